//! A cache of registrations: NCCL registers the same buffer once per connection.
//!
//! The cache holds weak references, so no registration outlives its last handle. Ranges are not rounded to pages: a peer can reach the
//! buffer and not a byte beside it, whatever the page size is. A part of a buffer in host memory gets a registration of its own. If it
//! shared the buffer's, the rest of the buffer would stay registered after its last handle, when other memory may be at its address.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use fabric::{FabricError, Memory, MemoryKind};

use super::region::UserRegion;

/// The registrations of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct RegionCache {
    held: BTreeMap<Key, Held>,
}

#[derive(Debug)]
struct Held {
    region: Weak<UserRegion>,
    /// NCCL's handles of this registration.
    handles: usize,
}

/// Ordered by kind and buffer, then by the beginning of the range, longest first: a range comes right after the one that may contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    kind: u64,
    buffer: u64,
    start: u64,
    shortness: u64,
}

impl RegionCache {
    /// The cached registration that serves `memory`, or a new one from `register`.
    pub(crate) fn find_or(
        &mut self,
        memory: &Memory,
        register: impl FnOnce() -> Result<UserRegion, FabricError>,
    ) -> Result<Arc<UserRegion>, FabricError> {
        if let Some(held) = self.find(memory) {
            return Ok(held);
        }
        let region = Arc::new(register()?);
        if is_identifiable(memory) {
            let held = Held { region: Arc::downgrade(&region), handles: 1 };
            self.held.insert(Key::of(memory), held);
        }
        Ok(region)
    }

    /// Releases one handle. Returns the registration, to be closed, if that was the last one.
    pub(crate) fn release(&mut self, region: Arc<UserRegion>) -> Option<UserRegion> {
        let key = Key::of(region.memory());
        if let Some(held) = self.held.get_mut(&key).filter(|held| held.is(&region)) {
            held.handles -= 1;
            if Arc::strong_count(&region) == 1 {
                self.held.remove(&key);
            }
        }
        Arc::into_inner(region)
    }

    /// Whether the registration has other handles than the caller's.
    pub(crate) fn is_shared(&self, region: &Arc<UserRegion>) -> bool {
        let held = self.held.get(&Key::of(region.memory())).filter(|held| held.is(region));
        held.is_some_and(|held| held.handles > 1)
    }

    /// The cached registration of `memory`, or one of GPU memory that covers it.
    fn find(&mut self, memory: &Memory) -> Option<Arc<UserRegion>> {
        if !is_identifiable(memory) {
            return None;
        }
        let key = Key::of(memory);
        let (nearest, held) = self.held.range_mut(..=key).next_back()?;
        // Only the last range that begins at or before `memory` is checked. If an earlier range covers `memory` and that one does not,
        // a second registration is made, which costs only time.
        let is_its = (nearest.kind, nearest.buffer) == (key.kind, key.buffer);
        let region = if is_its { held.region.upgrade() } else { None };
        let covers = |region: &UserRegion| match memory.kind() {
            MemoryKind::Host => *nearest == key,
            MemoryKind::Cuda { .. } => region.holds(memory.address(), memory.len()),
        };
        let region = region.filter(|region| covers(region))?;
        held.handles += 1;
        Some(region)
    }
}

impl Held {
    fn is(&self, region: &Arc<UserRegion>) -> bool {
        Weak::as_ptr(&self.region) == Arc::as_ptr(region)
    }
}

impl Key {
    fn of(memory: &Memory) -> Self {
        let kind = match memory.kind() {
            MemoryKind::Host => 0,
            MemoryKind::Cuda { device } => 1 + u64::from(device.cast_unsigned()),
        };
        let shortness = u64::MAX - memory.len() as u64;
        Self { kind, buffer: memory.buffer(), start: memory.address(), shortness }
    }
}

/// Whether address, length and kind identify the memory. GPU memory may be freed and allocated again at the same address while its
/// registration exists. That registration does not cover the new allocation, and only the driver's buffer id, if there is one,
/// distinguishes the two allocations.
fn is_identifiable(memory: &Memory) -> bool {
    memory.kind() == MemoryKind::Host || memory.buffer() != 0
}
