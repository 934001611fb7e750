//! Whether the bytes of an object bound the work of decoding it. If the elements of a sequence take no bytes, only the sequence's length
//! says how many there are, and a peer may send any length.

use postcard_schema::Schema;
use postcard_schema::schema::{DataModelType, DataModelVariant, NamedType, NamedValue};

use crate::error::GroupError;

/// Refuses a type with such a sequence.
pub(super) fn check<O: Schema>() -> Result<(), GroupError> {
    if const { of(O::SCHEMA).is_bounded } {
        return Ok(());
    }
    let name = O::SCHEMA.name;
    Err(GroupError::InvalidArgument(format!("{name}: a sequence whose elements take no bytes")))
}

/// How values of a type are encoded.
#[derive(Clone, Copy)]
struct Encoding {
    takes_bytes: bool,
    is_bounded: bool,
}

impl Encoding {
    /// The encoding of values that take no bytes.
    const NOTHING: Self = Self { takes_bytes: false, is_bounded: true };

    /// The encoding of a value of this type followed by one of `next`.
    const fn then(self, next: Self) -> Self {
        Self {
            takes_bytes: self.takes_bytes || next.takes_bytes,
            is_bounded: self.is_bounded && next.is_bounded,
        }
    }

    /// The encoding of a sequence of such values: their count, then the values.
    const fn repeated(self) -> Self {
        Self { takes_bytes: true, is_bounded: self.is_bounded && self.takes_bytes }
    }

    /// The encoding of a variant: a byte that says which one, then one or none of such values.
    const fn chosen(self) -> Self {
        Self { takes_bytes: true, ..self }
    }
}

const fn of(named: &NamedType) -> Encoding {
    use DataModelType as D;
    match named.ty {
        D::Unit | D::UnitStruct => Encoding::NOTHING,
        D::NewtypeStruct(inner) => of(inner),
        D::Option(inner) => of(inner).chosen(),
        D::Seq(inner) => of(inner).repeated(),
        D::Map { key, val } => of(key).then(of(val)).repeated(),
        D::Tuple(types) | D::TupleStruct(types) => of_all(types),
        D::Struct(fields) => of_fields(fields),
        D::Enum(variants) => {
            let (mut all, mut next) = (Encoding::NOTHING, 0);
            while next < variants.len() {
                all = all.then(match variants[next].ty {
                    DataModelVariant::UnitVariant => Encoding::NOTHING,
                    DataModelVariant::NewtypeVariant(inner) => of(inner),
                    DataModelVariant::TupleVariant(types) => of_all(types),
                    DataModelVariant::StructVariant(fields) => of_fields(fields),
                });
                next += 1;
            }
            all.chosen()
        }
        _ => Encoding::NOTHING.chosen(),
    }
}

const fn of_all(types: &[&NamedType]) -> Encoding {
    let (mut all, mut next) = (Encoding::NOTHING, 0);
    while next < types.len() {
        all = all.then(of(types[next]));
        next += 1;
    }
    all
}

const fn of_fields(fields: &[&NamedValue]) -> Encoding {
    let (mut all, mut next) = (Encoding::NOTHING, 0);
    while next < fields.len() {
        all = all.then(of(fields[next].ty));
        next += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::objects::Leaf;

    #[derive(Schema)]
    struct Empty;

    #[derive(Schema)]
    #[expect(dead_code, reason = "for its schema")]
    struct Fields {
        few: [Empty; 3],
        some: Vec<u8>,
        none: (),
    }

    #[derive(Schema)]
    #[expect(dead_code, reason = "for its schema")]
    enum Choice {
        Bare,
        Held(Vec<Empty>),
    }

    #[test]
    fn only_sequences_of_nothing_are_unbounded() {
        let bounded = [
            check::<()>(),
            check::<[u8; 1000]>(),
            check::<Vec<Fields>>(),
            check::<Vec<Option<()>>>(),
            check::<Vec<Leaf<f64>>>(),
            check::<BTreeMap<String, ()>>(),
            check::<BTreeMap<(), String>>(),
        ];
        assert!(bounded.iter().all(Result::is_ok), "{bounded:?}");
        let unbounded = [
            check::<Vec<()>>(),
            check::<Vec<([u8; 0], Empty)>>(),
            check::<BTreeMap<(), Empty>>(),
            check::<Option<Vec<Vec<()>>>>(),
            check::<(u8, Choice)>(),
        ];
        assert!(unbounded.iter().all(Result::is_err), "{unbounded:?}");
    }
}
