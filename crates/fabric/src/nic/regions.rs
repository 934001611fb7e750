//! What is registered on one NIC, and how many operations of the NIC's touch each of them now.
//!
//! The table owns the registrations: one goes when its [`Region`](crate::Region) was given back or dropped, and nothing in flight
//! touches it. A count without atomics is enough, since a NIC has one user at a time.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use libfabric_sys as sys;

use crate::error::FabricError;
use crate::handle::Handle;
use crate::keys::Keys;
use crate::lock::Lock;
use crate::memory::Memory;

/// Slots of regions whose owners have dropped them, in whatever thread.
pub(crate) type Bin = Lock<Vec<u32>>;

/// The registrations of one NIC.
#[derive(Debug)]
pub(super) struct Regions {
    slots: Vec<Slot>,
    free: Vec<u32>,
    pub(super) bin: Arc<Bin>,
}

#[derive(Debug)]
struct Slot {
    /// What local operations name it by: a pointer of the provider's, which we never follow.
    descriptor: *mut c_void,
    /// What peers name it by; 0 while it is not registered.
    key: u64,
    /// Operations in flight that touch it.
    in_flight: u32,
    registered: Option<Registered>,
    /// It is to be registered when its rail opens again: its memory, and whether that is the data rail.
    waits: Option<(Memory, bool)>,
}

/// One registration, with a share of its memory.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) handle: Handle<sys::fid_mr>, // Closes before the memory may go: keep it first.
    pub(super) memory: Memory,
    /// None where the provider chooses keys.
    pub(super) requested_key: Option<u64>,
    /// Of the data rail, else of control.
    pub(super) of_data: bool,
}

impl Regions {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), bin: Arc::new(Bin::new(Vec::new())) }
    }

    /// The slot of a new registration, with its descriptor and key; none when there are 2³² of them.
    pub(super) fn insert(
        &mut self,
        registered: Registered,
        (descriptor, key): (*mut c_void, u64),
    ) -> Result<u32, Registered> {
        let registered = Some(registered);
        self.put(Slot { descriptor, key, in_flight: 0, registered, waits: None })
            .map_err(|slot| slot.registered.expect("it was just put there"))
    }

    /// The slot of memory that is registered when its rail opens again; none when there are 2³² of them.
    pub(super) fn insert_waiting(&mut self, memory: Memory, of_data: bool) -> Option<u32> {
        let (descriptor, waits) = (std::ptr::null_mut(), Some((memory, of_data)));
        self.put(Slot { descriptor, key: 0, in_flight: 0, registered: None, waits }).ok()
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

    /// One more operation touches it: its descriptor. None: it is not registered (any more).
    #[inline(always)]
    pub(super) fn hold(&mut self, slot: u32) -> Option<*mut c_void> {
        let slot = self.slots.get_mut(slot as usize)?;
        slot.registered.as_ref()?;
        slot.in_flight += 1;
        Some(slot.descriptor)
    }

    /// An operation that touched it has ended, or was never posted.
    #[inline(always)]
    pub(super) fn release(&mut self, slot: u32) {
        let Some(slot) = self.slots.get_mut(slot as usize) else { return };
        match slot.in_flight.checked_sub(1) {
            Some(less) => slot.in_flight = less,
            // No operation ends twice. If one did, this region would never close.
            None => miscounted(&mut slot.in_flight),
        }
    }

    #[inline]
    pub(super) fn in_flight(&self, slot: u32) -> u32 {
        self.slots.get(slot as usize).map_or(0, |slot| slot.in_flight)
    }

    /// Takes out what may be closed now, of the registrations without an owner.
    pub(super) fn take_dropped(&mut self) -> Vec<Registered> {
        let mut bin = self.bin.lock();
        if bin.is_empty() {
            return Vec::new();
        }
        let mut taken = Vec::new();
        bin.retain(|number| {
            let Some(slot) = self.slots.get_mut(*number as usize) else { return false };
            if slot.in_flight > 0 {
                return true;
            }
            taken.extend(slot.registered.take());
            slot.waits = None;
            self.free.push(*number);
            false
        });
        taken
    }

    /// Takes out the registration in a slot, which then is another's. None while an operation touches it.
    pub(super) fn remove(&mut self, number: u32) -> Option<Registered> {
        let slot = self.slots.get_mut(number as usize).filter(|slot| slot.in_flight == 0)?;
        self.free.push(number);
        slot.waits = None;
        slot.registered.take()
    }

    /// What peers name it by; 0 while it is not registered.
    pub(super) fn key(&self, slot: u32) -> u64 {
        self.slots.get(slot as usize).map_or(0, |slot| slot.key)
    }

    /// Takes out all registrations of one rail, which are made anew when that opens again.
    pub(super) fn take_until_open(&mut self, of_data: bool) -> Vec<Registered> {
        let mut taken = Vec::new();
        for slot in &mut self.slots {
            let its = slot.registered.take_if(|registered| registered.of_data == of_data);
            if let Some(registered) = its {
                slot.waits = Some((registered.memory.clone(), of_data));
                slot.key = 0;
                taken.push(registered);
            }
        }
        taken
    }

    /// The memory that waits for a rail, with its slots.
    pub(super) fn waiting(&self, of_data: bool) -> Vec<(u32, Memory)> {
        let waits = (0..).zip(&self.slots).filter_map(|(number, slot)| {
            let (memory, its) = slot.waits.as_ref()?;
            (*its == of_data).then(|| (number, memory.clone()))
        });
        waits.collect()
    }

    /// What waited in this slot is registered now.
    pub(super) fn fill(
        &mut self,
        slot: u32,
        registered: Registered,
        (descriptor, key): (*mut c_void, u64),
    ) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            (slot.registered, slot.waits) = (Some(registered), None);
            (slot.descriptor, slot.key) = (descriptor, key);
        }
    }

    /// Takes out all registrations of one rail. Their slots stay taken: their owners have not given them back.
    pub(super) fn take_all(&mut self, of_data: bool) -> Vec<Registered> {
        let its =
            |slot: &mut Slot| slot.registered.take_if(|registered| registered.of_data == of_data);
        self.slots.iter_mut().filter_map(its).collect()
    }

    /// Leaks all: they stay registered, with their memory.
    pub(super) fn leak(&mut self) {
        for slot in &mut self.slots {
            let _leaked = ManuallyDrop::new(slot.registered.take());
        }
    }
}

impl Registered {
    /// Closes it. If that fails it leaks with its key and its memory: a peer may still reach them.
    pub(super) fn close(self, keys: &mut Keys) -> Result<(), FabricError> {
        let mut kept = ManuallyDrop::new(self);
        kept.handle.close()?;
        let Self { requested_key, .. } = ManuallyDrop::into_inner(kept);
        if let Some(key) = requested_key {
            keys.give_back(key);
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
