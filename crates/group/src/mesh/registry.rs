//! Registered memory: the buffers of a group, and their regions on each comm.

use std::sync::Arc;

use crate::error::GroupError;
use crate::loader::{Buffer, End, Memory, Place, Region};

/// Finds the region of an address. A buffer is registered on a comm when it is first used there, and stays registered until the buffer is
/// dropped.
#[derive(Debug, Default)]
pub(super) struct Registry {
    entries: Vec<Entry>,
    /// The index of the entry that was found last; most calls concern one buffer.
    last: usize,
    registrations: u64,
}

#[derive(Debug)]
struct Entry {
    regions: Vec<Option<Region>>, // Deregistered before the memory goes.
    start: usize,
    end: usize,
    memory: Arc<Memory>,
}

impl Registry {
    /// Deregisters and frees buffers that were dropped.
    pub(super) fn sweep(&mut self) {
        self.entries.retain(|entry| !entry.memory.is_abandoned());
    }

    /// Deregisters a buffer.
    pub(super) fn remove(&mut self, buffer: &Buffer) {
        self.entries.retain(|entry| !Arc::ptr_eq(&entry.memory, buffer.memory()));
    }

    /// Adds memory, to be registered on first use.
    pub(super) fn add(&mut self, memory: &Arc<Memory>) {
        self.sweep();
        let place = memory.place();
        if self.find(place).is_none() {
            let (start, end) = (place.address(), place.address() + place.len());
            self.entries.push(Entry {
                regions: Vec::new(),
                start,
                end,
                memory: Arc::clone(memory),
            });
        }
    }

    /// The region of a place on the comm with this number; it is registered now if necessary. None: the place is in no buffer of this
    /// registry.
    pub(super) fn region<E: End>(
        &mut self,
        place: Place,
        end: &E,
        number: usize,
    ) -> Result<Option<&Region>, GroupError> {
        let Some(index) = self.find(place) else { return Ok(None) };
        let Entry { regions, memory, .. } = &mut self.entries[index];
        if regions.len() <= number {
            regions.resize_with(number + 1, || None);
        }
        let region = &mut regions[number];
        if region.is_none() {
            match end.register(memory) {
                Ok(made) => *region = Some(made),
                // Elements that can as well be copied need no registration.
                Err(error) if memory.is_vector() => {
                    log::debug!("{} bytes are copied: {error}", memory.place().len());
                    self.entries.swap_remove(index);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
            self.registrations += 1;
        }
        Ok(self.entries[index].regions[number].as_ref())
    }

    /// Deregisters all buffers from the comms with these numbers: regions keep a comm open.
    pub(super) fn forget(&mut self, numbers: &[usize]) {
        for Entry { regions, .. } in &mut self.entries {
            for number in numbers {
                if let Some(region) = regions.get_mut(*number) {
                    *region = None;
                }
            }
        }
    }

    /// Whether a place is in a buffer of this registry.
    pub(super) fn has(&mut self, place: Place) -> bool {
        self.find(place).is_some()
    }

    /// The number of regions of all buffers.
    #[cfg(test)]
    pub(super) fn regions(&self) -> usize {
        self.entries.iter().flat_map(|entry| &entry.regions).flatten().count()
    }

    #[cfg(test)]
    pub(super) fn buffers(&self) -> usize {
        self.entries.len()
    }

    /// The number of regions made so far.
    pub(super) fn registrations(&self) -> u64 {
        self.registrations
    }

    fn find(&mut self, place: Place) -> Option<usize> {
        let (start, end) = (place.address(), place.address() + place.len());
        let holds = |entry: &Entry| entry.start <= start && end <= entry.end;
        if !self.entries.get(self.last).is_some_and(holds) {
            self.last = self.entries.iter().position(holds)?;
        }
        // The memory may have been freed and allocated again.
        (!self.entries[self.last].memory.is_abandoned()).then_some(self.last)
    }
}
