//! regMr and deregMr: NCCL's buffers on the data rails of an endpoint.
//!
//! Where regions belong to domains, the registering call is made without the endpoint's lock, so that a progress thread
//! posts on meanwhile. Where they are bound to endpoints it is made under the lock, as every bind and enable.

use std::sync::Arc;
use std::time::Instant;

use fabric::{Data, FabricError, MemoryKind, UserMemory};

use super::Endpoint;
use super::slots::Slots;
use crate::error::{Error, Kind, Result};
use crate::handle::{Handle, HandleKind};
use crate::plugin::device::Device;
use crate::rail::UserRegion;

/// Regions of one endpoint: NCCL registers each buffer once per connection.
pub(super) const REGIONS_MAX: u16 = u16::MAX;

/// How a buffer comes to be registered.
#[derive(Debug)]
pub(crate) enum Registration {
    /// Done: here is the handle.
    Done(Handle),
    /// To be made without the lock, then handed to [`Endpoint::adopt`].
    Outside(Registrar),
}

/// What registering with domains takes.
#[derive(Debug)]
pub(crate) struct Registrar {
    rails: Vec<Arc<fabric::Endpoint<Data>>>,
    device: &'static Device,
}

impl Registrar {
    pub(crate) fn register(&self, memory: UserMemory) -> Result<Arc<UserRegion>> {
        let register = || UserRegion::register(self.rails.iter(), memory);
        self.device
            .regions
            .find_or(memory, register)
            .map_err(|error| refused(self.device, &memory, &error))
    }
}

impl Endpoint {
    /// Registers `memory` if that can be done under the lock.
    pub(crate) fn register(&mut self, memory: UserMemory) -> Result<Registration> {
        if memory.kind() != MemoryKind::Host {
            let sentence = format!(
                "device {} moves host memory only: set NCCL_NET_GDR_LEVEL=LOC",
                self.label()
            );
            return Err(Error::new(Kind::InvalidArgument, sentence));
        }
        let rails = self.nics.iter().map(|nic| nic.data.endpoint());
        if self.binds_regions() {
            let register = || UserRegion::register(rails, memory);
            let region = self.bound_regions.find_or(memory, register);
            let region = region.map_err(|error| refused(self.device, &memory, &error))?;
            return self.adopt(region).map(Registration::Done);
        }
        match self.device.regions.find(&memory) {
            Some(held) => self.adopt(held).map(Registration::Done),
            None => Ok(Registration::Outside(Registrar {
                rails: rails.map(Arc::clone).collect(),
                device: self.device,
            })),
        }
    }

    /// Takes a registration in: the handle is NCCL's.
    pub(crate) fn adopt(&mut self, region: Arc<UserRegion>) -> Result<Handle> {
        let mut generation = 0;
        let slot = self.regions.insert_with(|_, current| {
            generation = current;
            region
        });
        let slot = slot.ok_or_else(|| {
            Error::new(
                Kind::System,
                format!("{REGIONS_MAX} buffers are registered on device {}", self.label()),
            )
        })?;
        Ok(Handle::new(HandleKind::Region, self.number, generation, slot, 0))
    }

    /// Returns when no post of ours touches the memory any more, within a bound.
    pub(crate) fn deregister(&mut self, region: Handle) -> Result<()> {
        let ours = region.is(HandleKind::Region) && region.endpoint() == self.number;
        let taken = if ours { take(&mut self.regions, region) } else { None };
        let region = taken.ok_or_else(|| Error::stale("memory handle"))?;
        self.drain_region(&region);
        let cache = if self.binds_regions() { &self.bound_regions } else { &self.device.regions };
        cache.release(region);
        Ok(())
    }

    fn binds_regions(&self) -> bool {
        self.nics
            .first()
            .is_some_and(|nic| nic.data.endpoint().domain().region_mode().bind_to_endpoint)
    }

    /// Waits, within a bound, until no post of ours reads `region`.
    fn drain_region(&mut self, region: &Arc<UserRegion>) {
        let start = Instant::now();
        while self.nics.iter().any(|nic| nic.operations.uses(region)) {
            self.progress();
            if start.elapsed() > self.settings.close_timeout {
                log::warn!(
                    "device {}: a buffer is deregistered while operations on it are in flight; it stays registered until they end",
                    self.label()
                );
                break;
            }
        }
    }
}

fn take(regions: &mut Slots<Arc<UserRegion>>, handle: Handle) -> Option<Arc<UserRegion>> {
    regions.remove(handle.slot(), handle.generation())
}

fn refused(device: &Device, memory: &UserMemory, error: &FabricError) -> Error {
    let (len, name) = (memory.len(), &device.plan.name);
    Error::new(Kind::System, format!("registering {len} bytes on device {name}: {error}"))
}
