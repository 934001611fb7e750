//! Objects by number. Numbers start at 1 and are never reused, so that a closed object differs from one that never existed.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;

/// The number of a `T`, and of nothing else.
pub(crate) struct Id<T>(u64, PhantomData<fn() -> T>);

impl<T> Id<T> {
    /// The id with this number; there may be no such object.
    pub(crate) const fn of(number: u64) -> Self {
        Self(number, PhantomData)
    }

    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

// Derived implementations would require the same traits of `T`.
impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Id<T> {}

impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Id<T> {}

impl<T> PartialOrd for Id<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Id<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> fmt::Display for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A table of `T`.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Option<Box<T>>>,
    open: usize,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), open: 0 }
    }

    /// Adds an object, and returns its number.
    pub(crate) fn insert(&mut self, value: T) -> Id<T> {
        self.slots.push(Some(Box::new(value)));
        self.open += 1;
        Id::of(self.slots.len() as u64)
    }

    pub(crate) fn get(&self, id: Id<T>) -> Option<&T> {
        self.slots.get(slot(id)?)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        self.slots.get_mut(slot(id)?)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, id: Id<T>) -> Option<T> {
        let taken = self.slots.get_mut(slot(id)?)?.take()?;
        self.open -= 1;
        Some(*taken)
    }

    /// Whether an object of this number existed and is closed.
    pub(crate) fn was(&self, id: Id<T>) -> bool {
        slot(id).and_then(|slot| self.slots.get(slot)).is_some_and(Option::is_none)
    }

    /// The number of open objects.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// The number of objects ever opened.
    pub(crate) fn opened(&self) -> usize {
        self.slots.len()
    }

    /// The open objects, in order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id<T>, &T)> {
        (1..).zip(&self.slots).filter_map(|(number, slot)| Some((Id::of(number), slot.as_deref()?)))
    }
}

fn slot<T>(id: Id<T>) -> Option<usize> {
    usize::try_from(id.number()).ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_given_out_again() {
        let mut table = Table::new();
        let (one, two) = (table.insert("one"), table.insert("two"));
        assert_eq!(table.remove(one), Some("one"));
        let three = table.insert("three");
        assert_eq!([one, two, three].map(Id::number), [1, 2, 3]);
        assert!(
            table.was(one) && !table.was(two) && !table.was(Id::of(99)) && !table.was(Id::of(0))
        );
        assert_eq!((table.open(), table.opened()), (2, 3));
        assert_eq!(table.iter().map(|(id, _)| id).collect::<Vec<_>>(), [two, three]);
    }
}
