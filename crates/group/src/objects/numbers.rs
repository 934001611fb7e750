//! Reductions of objects: every number of an object is reduced with the number at the same position in the other objects.
//!
//! A type's schema is followed through its encoding. Everything but numbers, such as lengths and variants, is the object's shape, which
//! must be the same on all ranks. Hash maps have another order on every rank, so the entries of maps and sets are sorted by their keys first.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use postcard_schema::Schema;
use postcard_schema::schema::{DataModelType, DataModelVariant, NamedType, NamedValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use siphasher::sip::SipHasher13;

use super::blob::BLOB;
use super::block::Block;
use super::elements::Owner;
use super::few::WORD;
use super::landing::Landing;
use super::leaf::{BESIDE, NAME};
use super::parts::{Inbox, Outbox, collecting, dealing};
use super::schemas::fingerprint;
use crate::error::GroupError;
use crate::group::Group;
use crate::loader::{DataType, Element, Op, Place};
use crate::mesh::{CallKind, What};
use crate::with_element;

/// The numbers of an object, by type, in the order of its encoding.
#[derive(Debug, Default)]
struct Columns {
    bytes: [Vec<u8>; DataType::ALL.len()],
    /// The number of bytes of each type that were read back.
    at: [usize; DataType::ALL.len()],
}

/// What to do with the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Numbers go to the columns; the output has zeros.
    Out,
    /// Numbers come from the columns.
    Back,
    /// The numbers are of keys, which are not reduced.
    Keys,
    /// Numbers are copied, and the output has entries sorted by their keys.
    Sort,
}

#[derive(Debug)]
struct Walk<'a> {
    input: &'a [u8],
    output: Vec<u8>,
    columns: &'a mut Columns,
    /// The types and bytes of the arrays that are not in the encoding, in the order of the input.
    arrays: Vec<(DataType, usize)>,
    /// The order of these arrays in the output, as indices.
    order: Vec<usize>,
    /// Two entries of a map have the same key: their order is not known.
    is_ambiguous: bool,
}

type Walked = Result<(), postcard::Error>;

/// One entry of a map or a set that is sorted.
#[derive(Debug)]
struct Entry {
    /// The bytes of the key and of the value.
    bytes: Vec<u8>,
    /// The number of bytes of the key.
    key: usize,
    arrays: Vec<usize>,
}

impl Entry {
    fn key(&self) -> &[u8] {
        &self.bytes[..self.key]
    }
}

impl<'a> Walk<'a> {
    fn new(input: &'a [u8], columns: &'a mut Columns) -> Self {
        let output = Vec::with_capacity(input.len());
        let (arrays, order) = (Vec::new(), Vec::new());
        Self { input, output, columns, arrays, order, is_ambiguous: false }
    }

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

    /// An array: its few elements, or the number of elements, which are then reduced separately.
    fn leaf(&mut self, element: DataType, way: Way) -> Walked {
        let count = self.copy::<u8>()?;
        if count == BESIDE {
            let count = usize::try_from(self.copy::<u64>()?).unwrap_or(usize::MAX);
            self.order.push(self.arrays.len());
            self.arrays.push((element, count.saturating_mul(element.bytes())));
            return Ok(());
        }
        let bytes = usize::from(count) * element.bytes();
        let mut words =
            (0..bytes.div_ceil(WORD)).map(|_| self.take::<f64>()).collect::<Result<Vec<_>, _>>()?;
        self.swap(element, Place::writing(&mut words).part(0, bytes).elements_mut(), way)?;
        words.iter().try_for_each(|word| self.put(word))
    }

    /// Moves the bytes of numbers to the column of their type, or from there.
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
            Way::Keys | Way::Sort => {}
        }
        Ok(())
    }

    /// The entries of a map, or of a set, whose entries are keys alone.
    fn entries(&mut self, key: &NamedType, value: Option<&NamedType>, way: Way) -> Walked {
        let count = self.copy::<u64>()?;
        let mut sorted = Vec::new();
        for _ in 0..count {
            let (start, arrays) = (self.output.len(), self.order.len());
            self.walk(key, Way::Keys)?;
            let key = self.output.len() - start;
            value.map_or(Ok(()), |value| self.walk(value, way))?;
            if way == Way::Sort {
                let (bytes, arrays) = (self.output.split_off(start), self.order.split_off(arrays));
                sorted.push(Entry { bytes, key, arrays });
            }
        }
        sorted.sort_by(|one, other| one.key().cmp(other.key()));
        self.is_ambiguous |= sorted.windows(2).any(|two| two[0].key() == two[1].key());
        for Entry { bytes, arrays, .. } in sorted {
            self.output.extend(bytes);
            self.order.extend(arrays);
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
            D::NewtypeStruct(inner) if named.name == SHAPE => self.walk(inner, Way::Keys),
            D::NewtypeStruct(inner) => self.walk(inner, way),
            D::Seq(inner) if is_set(named) => self.entries(inner, None, way),
            D::Seq(inner) => {
                let count = self.copy::<u64>()?;
                (0..count).try_for_each(|_| self.walk(inner, way))
            }
            D::Tuple(types) | D::TupleStruct(types) => self.all(types, way),
            D::Map { key, val } => self.entries(key, Some(val), way),
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

/// The lengths of an array of `ndarray`, which are not reduced.
pub(super) const SHAPE: &str = "ironrail::Shape";

/// Whether a sequence has no order of its own, by the names that `postcard-schema` gives.
fn is_set(named: &NamedType) -> bool {
    matches!(named.name, "HashSet<K>" | "BTreeSet<K>")
}

/// The first answer of `ask` about a type or its parts. `is_key`: the type is part of a key.
fn find<R>(
    named: &NamedType,
    is_key: bool,
    ask: &impl Fn(&NamedType, bool) -> Option<R>,
) -> Option<R> {
    use DataModelType as D;
    let all = |types: &[&NamedType]| types.iter().find_map(|one| find(one, is_key, ask));
    let fields =
        |fields: &[&NamedValue]| fields.iter().find_map(|field| find(field.ty, is_key, ask));
    ask(named, is_key).or_else(|| match named.ty {
        D::Seq(inner) => find(inner, is_key || is_set(named), ask),
        D::Option(inner) | D::NewtypeStruct(inner) => find(inner, is_key, ask),
        D::Tuple(types) | D::TupleStruct(types) => all(types),
        D::Map { key, val } => find(key, true, ask).or_else(|| find(val, is_key, ask)),
        D::Struct(parts) => fields(parts),
        D::Enum(variants) => variants.iter().find_map(|variant| match variant.ty {
            DataModelVariant::UnitVariant => None,
            DataModelVariant::NewtypeVariant(inner) => find(inner, is_key, ask),
            DataModelVariant::TupleVariant(types) => all(types),
            DataModelVariant::StructVariant(parts) => fields(parts),
        }),
        _ => None,
    })
}

/// Why a type cannot be reduced, apart from its parts.
fn obstacle(named: &NamedType, is_key: bool) -> Option<&'static str> {
    use DataModelType as D;
    match named.ty {
        D::Char | D::String if is_key => None,
        D::Char => Some("a char"),
        D::String => Some("a string"),
        D::ByteArray => Some("bytes"),
        D::Schema => Some("a schema"),
        D::I128 | D::U128 => Some("a number of 128 bits"),
        D::Struct(_) if named.name == BLOB => Some("bytes"),
        D::Struct(_) if named.name == NAME && is_key => Some("an array as a key"),
        _ => None,
    }
}

/// Whether values of a type have entries that are sorted.
fn has_entries(named: &NamedType) -> bool {
    let is_one = |named: &NamedType, _| {
        (is_set(named) || matches!(named.ty, DataModelType::Map { .. })).then_some(())
    };
    find(named, false, &is_one).is_some()
}

impl Group {
    /// Reduces every number of an object with the numbers at the same position in all ranks' objects; every rank gets the result. Keys of
    /// maps, elements of sets, lengths, variants and booleans are not reduced: they must be the same on all ranks. The entries of maps and
    /// sets may come in any order; in the result they have the order of their keys' encoding. All other sequences are reduced element by
    /// element.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] for a type with strings, bytes or numbers of 128 bits, and for an object that cannot be encoded:
    /// other ranks get [`GroupError::Mismatch`] then. [`GroupError::Mismatch`] also if shapes, operations or roots differ;
    /// [`GroupError::SchemaMismatch`] if types do. A failure of the group.
    pub fn all_reduce_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
        op: Op,
    ) -> Result<O, GroupError> {
        self.reduced(object, op, None)
    }

    /// As [`Group::all_reduce_obj`], with the result on the root only.
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
        let numbers = Numbers::reducible(object, op);
        // The terms are sent also without numbers: the other ranks wait for them.
        let own = numbers.as_ref().map(|numbers| Terms::of(numbers, op, root)).unwrap_or_default();
        let agreed = self.agree(fingerprint::<O>(), own);
        let mut numbers = numbers?;
        agreed?;
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

    /// Checks that all ranks reduce the same type, in the same shape and way.
    fn agree(&self, fingerprint: u64, Terms { shape, way }: Terms) -> Result<(), GroupError> {
        let own = [fingerprint, shape, way];
        let mut all = vec![0_u64; own.len() * self.size()];
        self.all_gather(&own, &mut all)?;
        let all = all.as_chunks::<3>().0;
        let first = all[0];
        let other = |word: usize| all.iter().position(|theirs| theirs[word] != first[word]);
        if let Some(rank) = other(0) {
            let name = |number: u64| format!("schema {number:016x}");
            let (expected, got) = (name(first[0]), name(all[rank][0]));
            return Err(GroupError::SchemaMismatch { rank, expected, got });
        }
        if let Some(rank) = all.iter().position(|[.., way]| *way == Terms::default().way) {
            let why = format!("rank {rank} has an object that cannot be reduced");
            return Err(GroupError::Mismatch { rank, why });
        }
        if let Some(rank) = other(2) {
            let why = format!(
                "rank {rank} reduces by another operation, or to another root, than rank 0"
            );
            return Err(GroupError::Mismatch { rank, why });
        }
        other(1).map_or(Ok(()), |rank| Err(other_shape(rank)))
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

/// The values that ranks compare before they reduce their objects.
#[derive(Clone, Copy, Debug, Default)]
struct Terms {
    shape: u64,
    /// The operation and the root. 0: this rank has nothing to reduce.
    way: u64,
}

impl Terms {
    fn of(numbers: &Numbers, op: Op, root: Option<usize>) -> Self {
        let what = match root {
            None => What::new(CallKind::AllReduce),
            Some(root) => What::new(CallKind::Reduce).at(root),
        };
        Self { shape: numbers.shape(), way: what.by(op).note() }
    }
}

/// An object in two parts: its encoding, and its numbers in columns that can be reduced.
#[derive(Debug)]
pub(super) struct Numbers {
    encoded: Vec<u8>,
    shape: u64,
    columns: Columns,
    /// The bytes of short arrays, and in `runs` the ranges of bytes of one type.
    inline: Vec<u8>,
    runs: Vec<(DataType, Range<usize>)>,
    /// Copies of long arrays.
    long: VecDeque<Landing>,
}

impl Numbers {
    /// The numbers of an object, if its type and the operation allow it.
    fn reducible<O: Serialize + Schema>(object: &O, op: Op) -> Result<Self, GroupError> {
        check_type::<O>()?;
        let mut numbers = Self::of(object)?;
        numbers.check(op)?;
        Ok(numbers)
    }

    /// The numbers of an object whose type [`check_type`] accepts.
    pub(super) fn of<O: Serialize + Schema>(object: &O) -> Result<Self, GroupError> {
        let (encoded, outbox) = collecting(Vec::new(), || postcard::to_stdvec(object));
        let encoded = encoded.map_err(|error| refused::<O>(&error))?;
        if !has_entries(O::SCHEMA) {
            return Self::apart::<O>(encoded, outbox);
        }
        // Arrays in the second outbox may still be in the memory of the first one.
        let (encoded, sorted) = sorted::<O>(&encoded, &outbox)?;
        Self::apart::<O>(encoded, sorted)
    }

    fn apart<O: Schema>(encoded: Vec<u8>, outbox: Outbox) -> Result<Self, GroupError> {
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

    /// The shape as a number: the same for objects of one type that can be reduced with each other.
    pub(super) fn shape(&self) -> u64 {
        self.shape
    }

    /// The columns of all numbers except those of long arrays, by type; no column is empty.
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

    /// Refuses an operation that the type of some number does not have.
    pub(super) fn check(&mut self, op: Op) -> Result<(), GroupError> {
        self.short().into_iter().try_for_each(|(element, _)| element.check(op))?;
        self.long.iter().try_for_each(|landing| landing.element().check(op))
    }

    /// Reduces with the numbers of an object of the same shape. [`Op::Avg`] adds; [`Numbers::divide`] completes the average.
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

    /// Divides the sums by the number of ranks, if the operation is an average.
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

    /// Builds an object with these numbers.
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

/// Refuses a type with parts that cannot be reduced. All ranks that reduce one type get the same answer.
pub(super) fn check_type<O: Schema>() -> Result<(), GroupError> {
    find(O::SCHEMA, false, &obstacle)
        .map_or(Ok(()), |part| Err(refused::<O>(&format!("{part} cannot be reduced"))))
}

/// The error for a rank whose object has another shape than rank 0's.
pub(super) fn other_shape(rank: usize) -> GroupError {
    let why = format!("rank {rank} reduces an object of another shape than rank 0");
    GroupError::Mismatch { rank, why }
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
    let mut walk = Walk::new(input, columns);
    walk.walk(O::SCHEMA, way)?;
    Ok(walk.output)
}

/// An encoding with the entries of its maps and sets sorted by their keys, and its arrays in that order.
fn sorted<O: Schema>(encoded: &[u8], outbox: &Outbox) -> Result<(Vec<u8>, Outbox), GroupError> {
    let mut columns = Columns::default();
    let mut walk = Walk::new(encoded, &mut columns);
    walk.walk(O::SCHEMA, Way::Sort).map_err(|error| refused::<O>(&error))?;
    if walk.is_ambiguous {
        return Err(refused::<O>(&"a map that has one key twice cannot be reduced"));
    }
    let places = outbox.places(&walk.arrays);
    let places = places.ok_or_else(|| refused::<O>(&"an array that its encoding lacks"))?;
    let mut sorted = Outbox::default();
    for index in walk.order {
        let ((element, _), place) = (walk.arrays[index], places[index]);
        sorted.add((element, element.bytes()), place, || Arc::new(()) as Owner);
    }
    Ok((walk.output, sorted))
}
