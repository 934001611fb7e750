//! regMr and deregMr: NCCL's buffers on the data rails of an endpoint.
//!
//! All of it happens under the endpoint's lock, as every post and every reading of a queue: providers keep a domain's keys
//! where an arriving write looks them up, and at FI_THREAD_COMPLETION nothing else keeps the two apart.

use std::sync::Arc;
use std::time::Instant;

use fabric::{FabricError, MemoryKind, UserMemory};

use super::Endpoint;
use crate::error::{Error, Kind, Result};
use crate::handle::{Handle, HandleKind};
use crate::plugin::device::Device;
use crate::rail::UserRegion;

/// Regions of one endpoint: NCCL registers each buffer once per connection.
pub(super) const REGIONS_MAX: u16 = u16::MAX;

impl Endpoint {
    /// Registers `memory` on every data rail, unless a registration that is held covers it.
    pub(crate) fn register(&mut self, memory: UserMemory) -> Result<Handle> {
        if memory.kind() != MemoryKind::Host {
            let sentence = format!(
                "device {} moves host memory only: set NCCL_NET_GDR_LEVEL=LOC",
                self.label()
            );
            return Err(Error::new(Kind::InvalidArgument, sentence));
        }
        let full = || {
            let sentence =
                format!("{REGIONS_MAX} buffers are registered on device {}", self.label());
            Error::new(Kind::System, sentence)
        };
        self.regions.upcoming().ok_or_else(full)?;
        let rails = self.nics.iter().map(|nic| nic.data.endpoint());
        let region = self.cache.find_or(memory, || UserRegion::register(rails, memory));
        let region = region.map_err(|error| refused(self.device, &memory, &error))?;
        let mut generation = 0;
        let slot = self.regions.insert_with(|_, current| {
            generation = current;
            region
        });
        let slot = slot.ok_or_else(|| Error::new(Kind::Internal, "an upcoming slot is taken"))?;
        Ok(Handle::new(HandleKind::Region, self.number, generation, slot, 0))
    }

    /// Returns when no post of ours touches the memory any more, within a bound.
    pub(crate) fn deregister(&mut self, region: Handle) -> Result<()> {
        let ours = region.is(HandleKind::Region) && region.endpoint() == self.number;
        let taken =
            if ours { self.regions.remove(region.slot(), region.generation()) } else { None };
        let region = taken.ok_or_else(|| Error::stale("memory handle"))?;
        // A buffer that others have registered too stays registered: what is in flight may be theirs.
        if !self.cache.is_shared(&region) {
            self.drain_region(&region);
        }
        self.cache.release(region);
        Ok(())
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

fn refused(device: &Device, memory: &UserMemory, error: &FabricError) -> Error {
    let (len, name) = (memory.len(), &device.plan.name);
    Error::new(Kind::System, format!("registering {len} bytes on device {name}: {error}"))
}
