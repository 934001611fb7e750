//! Registrations that are held, found again: NCCL registers the same buffer once per connection.
//!
//! The cache owns nothing: an entry is weak, so no registration outlives its last handle. Ranges are kept as they were
//! given, not rounded to pages: a peer can reach the buffer and not a byte beside it, whatever the page size is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fabric::{FabricError, MemoryKind, UserMemory};

use super::region::UserRegion;

/// The registrations of one domain, or of one endpoint where regions are bound.
#[derive(Debug, Default)]
pub(crate) struct RegionCache {
    held: Mutex<BTreeMap<Key, Weak<UserRegion>>>,
}

/// Ordered by kind, then by where a range begins, longest first: the range that may hold another comes right before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    kind: u64,
    start: u64,
    shortness: u64,
}

impl RegionCache {
    /// The held registration that covers `memory`, or what `register` makes. The lock is not held meanwhile: of two
    /// threads that register one buffer at once, the one that comes second drops its own.
    pub(crate) fn find_or(
        &self,
        memory: UserMemory,
        register: impl FnOnce() -> Result<UserRegion, FabricError>,
    ) -> Result<Arc<UserRegion>, FabricError> {
        if let Some(held) = self.find(&memory) {
            return Ok(held);
        }
        let ours = Arc::new(register()?);
        // A DMA-BUF is a buffer of its own each time: its descriptor may be another one at the same address.
        if memory.dmabuf().is_some() {
            return Ok(ours);
        }
        let mut held = self.lock();
        let entry = held.entry(Key::of(&memory)).or_default();
        if let Some(theirs) = entry.upgrade() {
            drop(held);
            return Ok(theirs);
        }
        *entry = Arc::downgrade(&ours);
        Ok(ours)
    }

    /// Gives a share back; the last one closes the registration.
    pub(crate) fn release(&self, region: Arc<UserRegion>) {
        let key = Key::of(&region.memory());
        drop(region);
        let mut held = self.lock();
        if held.get(&key).is_some_and(|entry| entry.strong_count() == 0) {
            held.remove(&key);
        }
    }

    /// The held registration that covers `memory`.
    pub(crate) fn find(&self, memory: &UserMemory) -> Option<Arc<UserRegion>> {
        if memory.dmabuf().is_some() {
            return None;
        }
        let key = Key::of(memory);
        let held = self.lock();
        let (nearest, region) = held.range(..=key).next_back()?;
        // The nearest range that begins at or before this one. Another one may hold it too: then a registration is
        // made that was not needed, which costs time and nothing else.
        (nearest.kind == key.kind)
            .then(|| region.upgrade())
            .flatten()
            .filter(|region| region.holds(memory.address(), memory.len()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Weak<UserRegion>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Key {
    fn of(memory: &UserMemory) -> Self {
        let kind = match memory.kind() {
            MemoryKind::Host => 0,
            MemoryKind::Cuda { device } => 1 + u64::from(device.cast_unsigned()),
        };
        Self { kind, start: memory.address(), shortness: u64::MAX - memory.len() as u64 }
    }
}
