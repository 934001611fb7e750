//! Objects by number. Numbers start at 1 and are never reused, so that a closed object differs from one that never existed.

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
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        self.slots.push(Some(Box::new(value)));
        self.open += 1;
        self.slots.len() as u64
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.slots.get(slot(number)?)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.slots.get_mut(slot(number)?)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let taken = self.slots.get_mut(slot(number)?)?.take()?;
        self.open -= 1;
        Some(*taken)
    }

    /// Whether an object of this number existed and is closed.
    pub(crate) fn was(&self, number: u64) -> bool {
        slot(number).and_then(|slot| self.slots.get(slot)).is_some_and(Option::is_none)
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
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        (1..).zip(&self.slots).filter_map(|(number, slot)| Some((number, slot.as_deref()?)))
    }
}

fn slot(number: u64) -> Option<usize> {
    usize::try_from(number).ok()?.checked_sub(1)
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
        assert_eq!((one, two, three), (1, 2, 3));
        assert!(table.was(one) && !table.was(two) && !table.was(99) && !table.was(0));
        assert_eq!((table.open(), table.opened()), (2, 3));
        assert_eq!(table.iter().map(|(number, _)| number).collect::<Vec<_>>(), [2, 3]);
    }
}
