//! Registers memory on a NIC, and closes the registrations.

use std::sync::Arc;

use libfabric_sys as sys;

use super::Nic;
use super::region::{Names, Region, RemoteKey};
use super::regions::Registered;
use crate::error::{Call, FabricError, Reason};
use crate::kind::{RailKind, Role};
use crate::memory::Memory;

/// Why a region was not deregistered.
#[derive(Debug)]
pub enum NotDeregistered<K: RailKind> {
    /// Operations use the region, or it belongs to another NIC: it is unchanged.
    InUse(Region<K>),
    /// The region could not be closed: it leaks, with its memory.
    Leaked(FabricError),
}

impl Nic {
    /// Registers memory for the rail of kind `K`. While the data rail is fenced and regions are bound to endpoints, the registration is
    /// deferred until the rail opens again, and the region has no key until then. If the endpoint of the data rail has leaked, it is
    /// deferred for good.
    ///
    /// # Errors
    ///
    /// What the first failing call of fi_mr(3) returned; -FI_ENOKEY when all keys are in use; -FI_EINVAL for memory of 0 bytes, or beyond
    /// the address space; -FI_ESHUTDOWN if the rail is closed.
    pub fn register<K: RailKind>(&mut self, memory: Memory) -> Result<Region<K>, FabricError> {
        let full = FabricError::new(Call::fi_mr_regattr, sys::FI_ENOMEM);
        self.close_dropped();
        // Checked also before a deferred registration, whose failure would later keep the rail from opening.
        if memory.is_empty() || memory.address().checked_add(memory.len() as u64).is_none() {
            return Err(FabricError::new(Call::fi_mr_regattr, sys::FI_EINVAL));
        }
        let rail = self.rail(K::ROLE);
        let is_data = K::ROLE == Role::Data;
        let (is_fenced, is_stuck) = (is_data && self.is_fenced, is_data && rail.is_stuck());
        if !rail.is_open() && !is_fenced && !is_stuck {
            let no_rail = Reason::NoRail;
            return Err(FabricError::not_called(Call::fi_mr_regattr, sys::FI_ESHUTDOWN, no_rail));
        }
        let share = memory.clone();
        let is_deferred = is_stuck || is_fenced && self.domain.mode().bind_to_endpoint;
        let (slot, names) = if is_deferred {
            let slot = self.regions.insert_deferred(share, K::ROLE).ok_or(full)?;
            (slot, Names::deferred(&self.domain, &memory))
        } else {
            let endpoint = rail.endpoint_ptr();
            let (registered, names) =
                Registered::new::<K>(&self.domain, &mut self.keys, endpoint, share)?;
            match self.regions.insert(registered, (names.descriptor, names.key)) {
                Ok(slot) => (slot, names),
                Err(registered) => {
                    registered.close(&mut self.keys)?;
                    return Err(full);
                }
            }
        };
        let dropped = Arc::clone(&self.regions.dropped);
        Ok(Region::new(&names, memory, self.number, slot, dropped))
    }

    /// The region's current key for peers; 0 while its rail is fenced and the region is bound to it, or if the region belongs to
    /// another NIC.
    pub fn key_of<K: RailKind>(&self, region: &Region<K>) -> RemoteKey<K> {
        let its = region.nic() == self.number;
        RemoteKey::from_wire(if its { self.regions.key(region.slot()) } else { 0 })
    }

    /// Closes a region: no later operation can access the memory through it. Writes that peers began before may still arrive (fi_mr(3)). So
    /// the NIC keeps a reference to our own pages until the rail closes. A [`UserMemory`](crate::UserMemory) is dropped: its creator has
    /// promised that the memory stays valid that long.
    ///
    /// # Errors
    ///
    /// Operations use the region: it is returned. Or libfabric refused to close the region, now or when its rail was fenced: it leaks.
    pub fn deregister<K: RailKind>(&mut self, region: Region<K>) -> Result<(), NotDeregistered<K>> {
        self.close_dropped();
        if region.nic() != self.number || self.regions.in_flight(region.slot()) > 0 {
            return Err(NotDeregistered::InUse(region));
        }
        let registered = self.regions.remove(region.slot());
        region.disown();
        let closed = match registered {
            Ok(Some(registered)) => self.close_region(registered),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        closed.map_err(NotDeregistered::Leaked)
    }

    pub(super) fn close_region(&mut self, registered: Registered) -> Result<(), FabricError> {
        let (role, memory) = (registered.role, registered.memory.clone());
        registered.close(&mut self.keys)?;
        if let Memory::Pages(pages) = memory {
            self.quarantine.push((role, pages));
        }
        Ok(())
    }

    /// Closes the regions that were dropped and that no operation uses any more. [`Nic::register`] and [`Nic::deregister`] do so, too.
    pub fn close_dropped(&mut self) {
        for registered in self.regions.take_dropped() {
            let len = registered.memory.len();
            if let Err(error) = self.close_region(registered) {
                log::error!("closing a region of {len} bytes: {error}; it leaks");
            }
        }
    }
}
