//! Reductions of objects: every number of an object is reduced with the same number of the others.
//!
//! A type's schema is followed through its encoding. Everything but numbers, such as lengths and variants, is the object's shape, which
//! must be the same on all ranks.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use postcard_schema::Schema;
use postcard_schema::schema::{DataModelType, DataModelVariant, NamedType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use siphasher::sip::SipHasher13;

use super::blob::BLOB;
use super::block::Block;
use super::collective::other_shape;
use super::few::WORD;
use super::landing::Landing;
use super::leaf::{BESIDE, NAME};
use super::parts::{Inbox, collecting, dealing};
use super::schemas::fingerprint;
use crate::error::GroupError;
use crate::group::Group;
use crate::loader::{DataType, Element, Op, Place};
use crate::with_element;

/// The numbers of an object, by type, in the order of its encoding.
#[derive(Debug, Default)]
struct Columns {
    bytes: [Vec<u8>; DataType::ALL.len()],
    /// How many of each were read back.
    at: [usize; DataType::ALL.len()],
}

/// What to do with the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// They go to the columns; the output has zeros.
    Out,
    /// They come from the columns.
    Back,
    /// They are keys, which are not reduced.
    Keys,
}

#[derive(Debug)]
struct Walk<'a> {
    input: &'a [u8],
    output: Vec<u8>,
    columns: &'a mut Columns,
}

type Walked = Result<(), postcard::Error>;

impl Walk<'_> {
    fn take<V: DeserializeOwned>(&mut self) -> Result<V, postcard::Error> {
        let (value, rest) = postcard::take_from_bytes(self.input)?;
        self.input = rest;
        Ok(value)
    }

    fn put<V: Serialize>(&mut self, value: &V) -> Walked {
        self.output.extend(postcard::to_stdvec(value)?);
        Ok(())
    }

    /// Copies a part of the shape.
    fn copy<V: Serialize + DeserializeOwned>(&mut self) -> Result<V, postcard::Error> {
        let value = self.take::<V>()?;
        self.put(&value)?;
        Ok(value)
    }

    fn number<V, T>(&mut self, way: Way, to: impl Fn(V) -> T, from: impl Fn(T) -> V) -> Walked
    where
        V: Serialize + DeserializeOwned,
        T: Element,
    {
        let mut number = [to(self.take::<V>()?)];
        self.swap(T::TYPE, Place::writing(&mut number).elements_mut(), way)?;
        let [number] = number;
        self.put(&from(number))
    }

    /// The few elements of an array, or the number of those that are reduced separately.
    fn leaf(&mut self, element: DataType, way: Way) -> Walked {
        let count = self.copy::<u8>()?;
        if count == BESIDE {
            return self.copy::<u64>().map(drop);
        }
        let bytes = usize::from(count) * element.bytes();
        let mut words =
            (0..bytes.div_ceil(WORD)).map(|_| self.take::<f64>()).collect::<Result<Vec<_>, _>>()?;
        self.swap(element, Place::writing(&mut words).part(0, bytes).elements_mut(), way)?;
        words.iter().try_for_each(|word| self.put(word))
    }

    /// Moves the bytes of numbers to their column, or from there.
    fn swap(&mut self, element: DataType, bytes: &mut [u8], way: Way) -> Walked {
        let index = usize::from(crate::mesh::type_number(element));
        let (column, at) = (&mut self.columns.bytes[index], &mut self.columns.at[index]);
        match way {
            Way::Out => {
                column.extend_from_slice(bytes);
                bytes.fill(0);
            }
            Way::Back => {
                let found = column.get(*at..*at + bytes.len());
                bytes.copy_from_slice(found.ok_or(postcard::Error::DeserializeUnexpectedEnd)?);
                *at += bytes.len();
            }
            Way::Keys => {}
        }
        Ok(())
    }

    fn all(&mut self, types: &[&NamedType], way: Way) -> Walked {
        types.iter().try_for_each(|one| self.walk(one, way))
    }

    fn walk(&mut self, named: &NamedType, way: Way) -> Walked {
        use DataModelType as D;
        match named.ty {
            D::Bool => self.copy::<bool>().map(drop),
            D::I8 => self.number(way, |v: i8| v, |v| v),
            D::U8 => self.number(way, |v: u8| v, |v| v),
            D::I16 => self.number(way, |v: i16| v, |v| v),
            D::I32 => self.number(way, |v: i32| v, |v| v),
            D::I64 | D::Isize => self.number(way, |v: i64| v, |v| v),
            D::U16 => self.number(way, |v: u16| v, |v| v),
            D::U32 => self.number(way, |v: u32| v, |v| v),
            D::U64 | D::Usize => self.number(way, |v: u64| v, |v| v),
            D::F32 => self.number(way, |v: f32| v, |v| v),
            D::F64 => self.number(way, |v: f64| v, |v| v),
            D::Char | D::String if way == Way::Keys => self.copy::<String>().map(drop),
            D::Char | D::String | D::ByteArray | D::Schema | D::I128 | D::U128 => {
                Err(postcard::Error::WontImplement)
            }
            D::Unit | D::UnitStruct => Ok(()),
            D::Option(inner) => match self.copy::<u8>()? {
                0 => Ok(()),
                _ => self.walk(inner, way),
            },
            D::NewtypeStruct(inner) => self.walk(inner, way),
            D::Seq(inner) => {
                let count = self.copy::<u64>()?;
                (0..count).try_for_each(|_| self.walk(inner, way))
            }
            D::Tuple(types) | D::TupleStruct(types) => self.all(types, way),
            D::Map { key, val } => {
                let count = self.copy::<u64>()?;
                (0..count).try_for_each(|_| {
                    self.walk(key, Way::Keys)?;
                    self.walk(val, way)
                })
            }
            D::Struct([field]) if named.name == NAME => {
                let element = field.name.parse().map_err(|_| postcard::Error::WontImplement)?;
                self.leaf(element, way)
            }
            D::Struct(fields) => fields.iter().try_for_each(|field| self.walk(field.ty, way)),
            D::Enum(variants) => {
                let index = usize::try_from(self.copy::<u32>()?).unwrap_or(usize::MAX);
                let variant = variants.get(index).ok_or(postcard::Error::DeserializeBadEnum)?;
                match variant.ty {
                    DataModelVariant::UnitVariant => Ok(()),
                    DataModelVariant::NewtypeVariant(inner) => self.walk(inner, way),
                    DataModelVariant::TupleVariant(types) => self.all(types, way),
                    DataModelVariant::StructVariant(fields) => {
                        fields.iter().try_for_each(|field| self.walk(field.ty, way))
                    }
                }
            }
        }
    }
}

/// A part of a type that cannot be reduced; it depends on the type only, so that all ranks agree.
fn obstacle(named: &NamedType) -> Option<&'static str> {
    use DataModelType as D;
    let all = |types: &[&NamedType]| types.iter().find_map(|one| obstacle(one));
    match named.ty {
        D::Char => Some("a char"),
        D::String => Some("a string"),
        D::ByteArray => Some("bytes"),
        D::Schema => Some("a schema"),
        D::I128 | D::U128 => Some("a number of 128 bits"),
        D::Struct(_) if named.name == BLOB => Some("bytes"),
        D::Option(inner) | D::NewtypeStruct(inner) | D::Seq(inner) => obstacle(inner),
        D::Tuple(types) | D::TupleStruct(types) => all(types),
        D::Map { val, .. } => obstacle(val),
        D::Struct(fields) => fields.iter().find_map(|field| obstacle(field.ty)),
        D::Enum(variants) => variants.iter().find_map(|variant| match variant.ty {
            DataModelVariant::UnitVariant => None,
            DataModelVariant::NewtypeVariant(inner) => obstacle(inner),
            DataModelVariant::TupleVariant(types) => all(types),
            DataModelVariant::StructVariant(fields) => {
                fields.iter().find_map(|field| obstacle(field.ty))
            }
        }),
        _ => None,
    }
}

impl Group {
    /// Reduces every number of an object with the same numbers of all ranks' objects; every rank gets the result. Keys of maps, lengths,
    /// variants and booleans are not reduced: they must be the same on all ranks.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] for a type with strings, bytes or numbers of 128 bits, [`GroupError::Mismatch`] where shapes differ,
    /// [`GroupError::SchemaMismatch`] where types do; the same on all ranks. A failure of the group.
    pub fn all_reduce_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
        op: Op,
    ) -> Result<O, GroupError> {
        self.reduced(object, op, None)
    }

    /// The same, on the root only.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce_obj`].
    pub fn reduce_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
        op: Op,
        root: usize,
    ) -> Result<Option<O>, GroupError> {
        self.rank_of(root)?;
        let reduced = self.reduced(object, op, Some(root))?;
        Ok((self.rank() == root).then_some(reduced))
    }

    fn reduced<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
        op: Op,
        root: Option<usize>,
    ) -> Result<O, GroupError> {
        check_type::<O>()?;
        let mut numbers = Numbers::of(object)?;
        self.agree(fingerprint::<O>(), numbers.shape())?;
        for (element, bytes) in numbers.short() {
            with_element!(element, T => {
                let mut elements = read::<T>(bytes);
                self.reduce_here(&mut elements, op, root)?;
                Place::reading(&elements).copy_to(bytes);
            });
        }
        for landing in &mut numbers.long {
            with_element!(landing.element(), T => {
                if let Some(elements) = landing.elements::<T>() {
                    self.reduce_here(elements, op, root)?;
                }
            });
        }
        numbers.build()
    }

    /// Checks that all ranks reduce the same type in the same shape.
    fn agree(&self, fingerprint: u64, shape: u64) -> Result<(), GroupError> {
        let own = [fingerprint, shape];
        let mut all = vec![0_u64; 2 * self.size()];
        self.all_gather(&own, &mut all)?;
        let first = &all[..2];
        for (rank, theirs) in all.chunks(2).enumerate() {
            if theirs[0] != first[0] {
                let name = |number: u64| format!("schema {number:016x}");
                let (expected, got) = (name(first[0]), name(theirs[0]));
                return Err(GroupError::SchemaMismatch { rank, expected, got });
            }
            if theirs[1] != first[1] {
                return Err(other_shape(rank));
            }
        }
        Ok(())
    }

    fn reduce_here<T: Element>(
        &self,
        elements: &mut [T],
        op: Op,
        root: Option<usize>,
    ) -> Result<(), GroupError> {
        match root {
            None => self.all_reduce(elements, op),
            Some(root) => self.reduce_in_place(elements, op, root),
        }
    }
}

/// An object, apart: its encoding, and its numbers where they can be reduced.
#[derive(Debug)]
pub(super) struct Numbers {
    encoded: Vec<u8>,
    shape: u64,
    columns: Columns,
    /// The bytes of short arrays, and which of them are of one type.
    inline: Vec<u8>,
    runs: Vec<(DataType, Range<usize>)>,
    /// Copies of long arrays.
    long: VecDeque<Landing>,
}

impl Numbers {
    /// The numbers of an object whose type [`check_type`] lets through.
    pub(super) fn of<O: Serialize + Schema>(object: &O) -> Result<Self, GroupError> {
        let (encoded, outbox) = collecting(Vec::new(), || postcard::to_stdvec(object));
        let encoded = encoded.map_err(|error| refused::<O>(&error))?;
        let mut columns = Columns::default();
        let rest =
            walked::<O>(&encoded, &mut columns, Way::Out).map_err(|error| refused::<O>(&error))?;
        let mut hasher = SipHasher13::new();
        rest.hash(&mut hasher);
        let mut long = VecDeque::new();
        for leaf in outbox.long {
            (crate::mesh::type_number(leaf.element), leaf.place.len()).hash(&mut hasher);
            long.push_back(Landing::copy(leaf.element, leaf.place)?);
        }
        let (shape, inline, runs) = (hasher.finish(), outbox.inline, outbox.short);
        Ok(Self { encoded, shape, columns, inline, runs, long })
    }

    /// The same for objects of one type whose numbers go together.
    pub(super) fn shape(&self) -> u64 {
        self.shape
    }

    /// All numbers but those of long arrays, by type; none is empty.
    fn short(&mut self) -> Vec<(DataType, &mut [u8])> {
        let Self { columns, inline, runs, .. } = self;
        let columns = columns.bytes.iter_mut().map(Vec::as_mut_slice);
        let mut short: Vec<_> = DataType::ALL.into_iter().zip(columns).collect();
        let (mut rest, mut at) = (inline.as_mut_slice(), 0);
        for (element, range) in &*runs {
            let (_, from) = rest.split_at_mut(range.start - at);
            let (run, behind) = from.split_at_mut(range.len());
            short.push((*element, run));
            (rest, at) = (behind, range.end);
        }
        short.retain(|(_, bytes)| !bytes.is_empty());
        short
    }

    /// Refuses an operation that some of them do not have.
    pub(super) fn check(&mut self, op: Op) -> Result<(), GroupError> {
        self.short().into_iter().try_for_each(|(element, _)| element.check(op))?;
        self.long.iter().try_for_each(|landing| landing.element().check(op))
    }

    /// Reduces with those of an object of the same shape. [`Op::Avg`] adds; [`Numbers::divide`] completes it.
    pub(super) fn reduce(&mut self, mut terms: Self, op: Op) {
        for ((element, into), (_, terms)) in self.short().into_iter().zip(terms.short()) {
            with_element!(element, T => {
                let mut elements = read::<T>(into);
                T::reduce(op, &mut elements, &read(terms));
                Place::reading(&elements).copy_to(into);
            });
        }
        for (into, terms) in self.long.iter_mut().zip(&mut terms.long) {
            with_element!(into.element(), T => {
                if let (Some(into), Some(terms)) = (into.elements::<T>(), terms.elements()) {
                    T::reduce(op, into, terms);
                }
            });
        }
    }

    /// Divides the sums of an average.
    pub(super) fn divide(&mut self, op: Op, ranks: usize) {
        if op != Op::Avg {
            return;
        }
        let ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
        for (element, into) in self.short() {
            with_element!(element, T => {
                let mut elements = read::<T>(into);
                T::divide(&mut elements, ranks);
                Place::reading(&elements).copy_to(into);
            });
        }
        for into in &mut self.long {
            with_element!(into.element(), T => {
                if let Some(into) = into.elements::<T>() {
                    T::divide(into, ranks);
                }
            });
        }
    }

    /// An object with these numbers.
    pub(super) fn build<O: DeserializeOwned + Schema>(mut self) -> Result<O, GroupError> {
        let bytes = walked::<O>(&self.encoded, &mut self.columns, Way::Back)
            .map_err(|error| refused::<O>(&error))?;
        let block = Arc::new(Block::copy(&self.inline)?);
        let (block, inline) = (Some(block), self.inline.len());
        let inbox = Inbox { block, inline, at: 0, long: self.long };
        let (decoded, _) = dealing(inbox, || postcard::from_bytes(&bytes));
        decoded.map_err(|error| refused::<O>(&error))
    }
}

/// Refuses types of which not all can be reduced; so do all ranks alike.
pub(super) fn check_type<O: Schema>() -> Result<(), GroupError> {
    obstacle(O::SCHEMA)
        .map_or(Ok(()), |part| Err(refused::<O>(&format!("{part} cannot be reduced"))))
}

fn refused<O: Schema>(why: &dyn fmt::Display) -> GroupError {
    GroupError::InvalidArgument(format!("{}: {why}", O::SCHEMA.name))
}

/// Elements given as bytes.
fn read<T: Element>(bytes: &[u8]) -> Vec<T> {
    let mut elements = vec![T::from_small(0); bytes.len() / size_of::<T>()];
    Place::writing(&mut elements).copy_from(Place::reading(bytes));
    elements
}

fn walked<O: Schema>(
    input: &[u8],
    columns: &mut Columns,
    way: Way,
) -> Result<Vec<u8>, postcard::Error> {
    let mut walk = Walk { input, output: Vec::with_capacity(input.len()), columns };
    walk.walk(O::SCHEMA, way)?;
    Ok(walk.output)
}
