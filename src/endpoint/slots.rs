//! A table of slots with generations, so that stale ids are recognised.

use crate::object_id::{ObjectId, ObjectKind, RawId};

/// Values in numbered slots. Removing a value increments the slot's generation, so that old ids do not match.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u16>,
    limit: u16,
    /// The first generation of new slots.
    first: u16,
    /// The kind and endpoint bits of this table's ids.
    family: u64,
}

#[derive(Debug)]
struct Entry<T> {
    /// The id that names the value.
    id: u64,
    value: Option<T>,
}

impl<T> Entry<T> {
    fn new(id: RawId) -> Self {
        Self { id: id.bits(), value: None }
    }

    #[inline]
    fn generation(&self) -> u16 {
        RawId::new(self.id).generation()
    }
}

impl<T> Slots<T> {
    /// A table that never holds more than `limit` values.
    pub(crate) fn new(limit: u16) -> Self {
        Self { entries: Vec::new(), free: Vec::new(), limit, first: 0, family: 0 }
    }

    /// Generations begin here. A table that replaces another begins elsewhere, so that the other's ids do not match.
    pub(crate) fn beginning_at(self, generation: u16) -> Self {
        Self { first: generation, ..self }
    }

    /// Sets kind and endpoint of the ids, for [`Slots::of`].
    pub(crate) fn named(self, kind: ObjectKind, endpoint: u16) -> Self {
        Self { family: ObjectId::new(kind, endpoint, 0, 0, 0).bits(), ..self }
    }

    /// The value that `id` names.
    #[inline(always)]
    pub(crate) fn of(&self, id: RawId) -> Option<&T> {
        let entry = self.entries.get(usize::from(id.slot()))?;
        if entry.id == id.bits() { entry.value.as_ref() } else { None }
    }

    /// Makes [`Slots::of`] miss the value in `slot`, while [`Slots::get`] still finds it.
    pub(crate) fn hide(&mut self, slot: u16) {
        if let Some(entry) = self.entries.get_mut(usize::from(slot)) {
            // The line bits of a value's id are 0, so this id is never looked up.
            entry.id |= 1;
        }
    }

    /// Puts `make(slot, generation)` into a free slot; `None` when the table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u16, u16) -> T) -> Option<u16> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot =
                    u16::try_from(self.entries.len()).ok().filter(|slot| *slot < self.limit)?;
                self.entries.push(Entry::new(RawId::of(self.family, self.first, slot)));
                slot
            }
        };
        let entry = &mut self.entries[usize::from(slot)];
        entry.value = Some(make(slot, entry.generation()));
        Some(slot)
    }

    /// The slot that the next insertion takes; `None` when the table is full.
    pub(crate) fn upcoming(&self) -> Option<u16> {
        let next = || u16::try_from(self.entries.len()).ok().filter(|slot| *slot < self.limit);
        self.free.last().copied().or_else(next)
    }

    /// The value in `slot`, if it is of this generation.
    #[inline]
    pub(crate) fn get(&self, slot: u16, generation: u16) -> Option<&T> {
        let entry = self.entries.get(usize::from(slot))?;
        if entry.generation() == generation { entry.value.as_ref() } else { None }
    }

    /// As [`Slots::get`], to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u16, generation: u16) -> Option<&mut T> {
        let entry = self.entries.get_mut(usize::from(slot))?;
        if entry.generation() == generation { entry.value.as_mut() } else { None }
    }

    /// The value in `slot`, of any generation.
    #[inline]
    pub(crate) fn at_mut(&mut self, slot: u16) -> Option<&mut T> {
        self.entries.get_mut(usize::from(slot))?.value.as_mut()
    }

    /// Removes the value and frees the slot.
    pub(crate) fn remove(&mut self, slot: u16, generation: u16) -> Option<T> {
        self.get(slot, generation)?;
        self.remove_at(slot)
    }

    /// Removes the value in `slot`, of any generation, and frees the slot.
    pub(crate) fn remove_at(&mut self, slot: u16) -> Option<T> {
        let entry = self.entries.get_mut(usize::from(slot))?;
        let value = entry.value.take()?;
        let next = entry.generation().wrapping_add(1);
        *entry = Entry::new(RawId::of(self.family, next, slot));
        self.free.push(slot);
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| entry.value.as_mut())
    }

    /// Slot and generation of every value.
    pub(crate) fn keys(&self) -> Vec<(u16, u16)> {
        let numbered = self.entries.iter().enumerate().filter(|(_, entry)| entry.value.is_some());
        numbered
            .map(|(slot, entry)| {
                (u16::try_from(slot).expect("the limit is a u16"), entry.generation())
            })
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_removed_value_misses_even_when_the_slot_is_used_again() {
        let mut slots = Slots::new(8);
        let slot = slots.insert_with(|_, _| "first").unwrap();
        assert_eq!(slots.remove(slot, 0), Some("first"));
        assert_eq!(slots.remove(slot, 0), None);
        let again = slots
            .insert_with(|_, generation| if generation == 1 { "second" } else { "?" })
            .unwrap();
        assert_eq!(again, slot);
        assert_eq!(slots.get(slot, 0), None);
        assert_eq!(slots.get(slot, 1), Some(&"second"));
    }

    #[test]
    fn a_hidden_value_has_no_id_until_its_slot_is_reused() {
        let mut slots = Slots::new(8).named(ObjectKind::Region, 5);
        let slot = slots.insert_with(|_, _| "first").unwrap();
        let name = |generation| ObjectId::new(ObjectKind::Region, 5, generation, slot, 0).raw();
        assert_eq!(slots.of(name(0)), Some(&"first"));
        slots.hide(slot);
        assert_eq!(slots.of(name(0)), None);
        assert_eq!(slots.get(slot, 0), Some(&"first"));
        assert_eq!(slots.remove(slot, 0), Some("first"));
        slots.insert_with(|_, _| "second").unwrap();
        assert_eq!((slots.of(name(0)), slots.of(name(1))), (None, Some(&"second")));
    }

    #[test]
    fn an_id_of_an_earlier_table_misses() {
        let mut slots = Slots::new(8).beginning_at(7);
        let slot = slots.insert_with(|_, generation| generation).unwrap();
        assert_eq!((slots.get(slot, 0), slots.get(slot, 7)), (None, Some(&7)));
    }

    #[test]
    fn a_full_table_accepts_nothing_until_a_slot_is_freed() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.insert_with(|_, _| 1), Some(0));
        assert_eq!(slots.insert_with(|_, _| 2), Some(1));
        assert_eq!(slots.insert_with(|_, _| 3), None);
        slots.remove(0, 0);
        assert_eq!(slots.insert_with(|_, _| 3), Some(0));
        assert_eq!(slots.len(), 2);
    }

    #[test]
    fn slots_out_of_range_hold_nothing() {
        let mut slots: Slots<u8> = Slots::new(2);
        assert!(slots.get(7, 0).is_none());
        assert!(slots.get_mut(7, 0).is_none());
        assert!(slots.at_mut(7).is_none());
        assert!(slots.remove(7, 0).is_none());
    }
}
