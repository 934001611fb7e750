//! The registrations of one NIC, each with the number of operations in flight that use it.
//!
//! The table owns the registrations. A registration closes when its [`Region`](crate::Region) was deregistered or dropped, and no operation
//! in flight uses it. The counts need no atomics, since a NIC has one user at a time.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use libfabric_sys as sys;

use crate::error::FabricError;
use crate::handle::Handle;
use crate::keys::Keys;
use crate::kind::Role;
use crate::lock::Lock;
use crate::memory::Memory;

/// Slots of regions that were dropped, in any thread.
pub(crate) type Dropped = Lock<Vec<u32>>;

/// The registrations of one NIC.
#[derive(Debug)]
pub(super) struct Regions {
    slots: Vec<Slot>,
    free: Vec<u32>,
    pub(super) dropped: Arc<Dropped>,
}

#[derive(Debug)]
struct Slot {
    /// The local descriptor: a pointer of the provider's, which we never dereference.
    descriptor: *mut c_void,
    /// The key for peers; 0 while it is not registered.
    key: u64,
    /// Operations in flight that use it.
    in_flight: u32,
    registered: Option<Registered>,
    /// The memory of a deferred registration, and the rail that makes the registration when it opens again.
    deferred: Option<(Memory, Role)>,
    /// The error of a registration that was to be deferred and did not close: it leaks, and peers may still access its memory.
    leaked: Option<FabricError>,
}

/// One registration, with a reference to its memory.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) handle: Handle<sys::fid_mr>, // Closes before the memory may go: keep it first.
    pub(super) memory: Memory,
    /// None where the provider chooses keys.
    pub(super) requested_key: Option<u64>,
    /// The rail of the registration.
    pub(super) role: Role,
}

impl Regions {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), dropped: Arc::new(Dropped::new(Vec::new())) }
    }

    /// Inserts a registration with its descriptor and key. Returns its slot; fails when there are 2³² of them.
    pub(super) fn insert(
        &mut self,
        registered: Registered,
        (descriptor, key): (*mut c_void, u64),
    ) -> Result<u32, Registered> {
        let registered = Some(registered);
        let slot = Slot { descriptor, key, in_flight: 0, registered, deferred: None, leaked: None };
        self.put(slot).map_err(|slot| slot.registered.expect("it was just put there"))
    }

    /// Inserts a deferred registration. Returns its slot; none when there are 2³² of them.
    pub(super) fn insert_deferred(&mut self, memory: Memory, role: Role) -> Option<u32> {
        let (descriptor, deferred) = (std::ptr::null_mut(), Some((memory, role)));
        let (registered, leaked) = (None, None);
        self.put(Slot { descriptor, key: 0, in_flight: 0, registered, deferred, leaked }).ok()
    }

    fn put(&mut self, slot: Slot) -> Result<u32, Slot> {
        if let Some(free) = self.free.pop() {
            self.slots[free as usize] = slot;
            return Ok(free);
        }
        match u32::try_from(self.slots.len()) {
            Ok(number) => {
                self.slots.push(slot);
                Ok(number)
            }
            Err(_) => Err(slot),
        }
    }

    /// Counts one more operation, and returns the descriptor. None if the slot has no registration.
    #[inline(always)]
    pub(super) fn hold(&mut self, slot: u32) -> Option<*mut c_void> {
        let slot = self.slots.get_mut(slot as usize)?;
        slot.registered.as_ref()?;
        slot.in_flight += 1;
        Some(slot.descriptor)
    }

    /// An operation that used the registration in this slot has ended, or was not posted.
    #[inline(always)]
    pub(super) fn release(&mut self, slot: u32) {
        let Some(slot) = self.slots.get_mut(slot as usize) else { return };
        match slot.in_flight.checked_sub(1) {
            Some(less) => slot.in_flight = less,
            // No operation ends twice. If one did, this region would never be closed.
            None => miscounted(&mut slot.in_flight),
        }
    }

    #[inline]
    pub(super) fn in_flight(&self, slot: u32) -> u32 {
        self.slots.get(slot as usize).map_or(0, |slot| slot.in_flight)
    }

    /// Removes the dropped registrations that no operation uses.
    pub(super) fn take_dropped(&mut self) -> Vec<Registered> {
        let mut dropped = self.dropped.lock();
        if dropped.is_empty() {
            return Vec::new();
        }
        let mut taken = Vec::new();
        dropped.retain(|number| {
            let Some(slot) = self.slots.get_mut(*number as usize) else { return false };
            if slot.in_flight > 0 {
                return true;
            }
            taken.extend(slot.registered.take());
            slot.deferred = None;
            self.free.push(*number);
            false
        });
        taken
    }

    /// Removes the registration in a slot, and frees the slot. None while an operation uses it; an error if it has leaked.
    pub(super) fn remove(&mut self, number: u32) -> Result<Option<Registered>, FabricError> {
        let slot = self.slots.get_mut(number as usize).filter(|slot| slot.in_flight == 0);
        let Some(slot) = slot else { return Ok(None) };
        self.free.push(number);
        slot.deferred = None;
        slot.leaked.take().map_or_else(|| Ok(slot.registered.take()), Err)
    }

    /// The key for peers; 0 while it is not registered.
    pub(super) fn key(&self, slot: u32) -> u64 {
        self.slots.get(slot as usize).map_or(0, |slot| slot.key)
    }

    /// Removes all registrations of one rail, and defers them until it opens again. Returns them with their slots.
    pub(super) fn defer(&mut self, role: Role) -> Vec<(u32, Registered)> {
        let mut taken = Vec::new();
        for (number, slot) in (0..).zip(&mut self.slots) {
            let its = slot.registered.take_if(|registered| registered.role == role);
            if let Some(registered) = its {
                slot.deferred = Some((registered.memory.clone(), role));
                slot.key = 0;
                taken.push((number, registered));
            }
        }
        taken
    }

    /// A deferred registration did not close.
    pub(super) fn leaked(&mut self, slot: u32, error: FabricError) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            (slot.deferred, slot.leaked) = (None, Some(error));
        }
    }

    /// Whether a rail has memory that is known by a DMA-BUF, registered or deferred.
    pub(super) fn has_dmabuf(&self, role: Role) -> bool {
        self.slots.iter().any(|slot| {
            let registered = slot.registered.as_ref().map(|one| (&one.memory, one.role));
            let deferred = slot.deferred.as_ref().map(|(memory, its)| (memory, *its));
            let its = registered.or(deferred);
            its.is_some_and(|(memory, its)| its == role && memory.dmabuf().is_some())
        })
    }

    /// The deferred registrations of a rail, with their slots.
    pub(super) fn deferred(&self, role: Role) -> Vec<(u32, Memory)> {
        let deferred = (0..).zip(&self.slots).filter_map(|(number, slot)| {
            let (memory, its) = slot.deferred.as_ref()?;
            (*its == role).then(|| (number, memory.clone()))
        });
        deferred.collect()
    }

    /// Completes a deferred registration.
    pub(super) fn fill(
        &mut self,
        slot: u32,
        registered: Registered,
        (descriptor, key): (*mut c_void, u64),
    ) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            (slot.registered, slot.deferred) = (Some(registered), None);
            (slot.descriptor, slot.key) = (descriptor, key);
        }
    }

    /// Removes all registrations. Their slots stay in use, since their `Region`s still exist.
    pub(super) fn take_all(&mut self) -> Vec<Registered> {
        self.slots.iter_mut().filter_map(|slot| slot.registered.take()).collect()
    }

    /// Leaks all registrations with their memory.
    pub(super) fn leak(&mut self) {
        for slot in &mut self.slots {
            let _leaked = ManuallyDrop::new(slot.registered.take());
        }
    }
}

impl Registered {
    /// Closes the registration. If that fails it leaks with its key and its memory, which a peer may still access.
    pub(super) fn close(self, keys: &mut Keys) -> Result<(), FabricError> {
        let mut kept = ManuallyDrop::new(self);
        kept.handle.close()?;
        let Self { requested_key, .. } = ManuallyDrop::into_inner(kept);
        if let Some(key) = requested_key {
            keys.release(key);
        }
        Ok(())
    }
}

#[cold]
#[inline(never)]
fn miscounted(in_flight: &mut u32) {
    debug_assert!(false, "an operation has ended that was not counted");
    log::error!("a bug: an operation has ended twice; its memory stays registered");
    *in_flight = u32::MAX;
}
