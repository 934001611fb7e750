//! regMr: registers NCCL's buffers on the data rails of an endpoint. deregMr is in `deregister`.
//!
//! All of it happens under the endpoint's lock, as do posts and reads of queues: providers look up an arriving write's key in the domain's
//! table of keys, and at FI_THREAD_DOMAIN nothing else synchronises the two (fi_domain(3)).

use fabric::{FabricError, Memory, MemoryKind, UserMemory};

use super::Endpoint;
use super::bound::REGIONS_MAX;
use super::region::UserRegion;
use crate::error::{Bug, Cause, Error, Noun, RegisteredBy, Result, Table};
use crate::label::Label;
use crate::object_id::{ObjectId, ObjectKind};
use crate::types::{GpuAccess, gpu_number};

impl Endpoint {
    /// An error if the device's properties do not offer this kind of GPU memory.
    pub(crate) fn check_gpu_memory(&self, by_dmabuf: bool) -> Result<()> {
        match self.device.gpu_access {
            GpuAccess::Direct { dmabuf } if dmabuf || !by_dmabuf => Ok(()),
            GpuAccess::Direct { .. } => Err(Cause::NoDmabufHere { device: self.label() }.into()),
            GpuAccess::ByHost { because } => {
                Err(Cause::HostMemoryOnly { device: self.label(), because }.into())
            }
        }
    }

    /// Whether the id names a comm that NCCL has open.
    pub(crate) fn check_comm(&mut self, comm: ObjectId) -> Result<()> {
        let noun = match comm.is(ObjectKind::Sender) {
            true => Noun::SendComm,
            false => Noun::ReceiveComm,
        };
        let (_, comm) = self.comms.any(comm, noun)?;
        // A connection that has failed for another reason can still register and deregister memory.
        match comm.failure {
            Some(error) if error.cause == Cause::Panicked => Err(error),
            _ => Ok(()),
        }
    }

    /// Registers `memory` on every data rail, unless a cached registration covers it.
    pub(crate) fn register(&mut self, memory: UserMemory) -> Result<ObjectId> {
        if memory.kind() != MemoryKind::Host {
            self.check_gpu_memory(memory.dmabuf().is_some())?;
        }
        if self.executor.regions.upcoming().is_none() {
            let table = Table::Regions { device: self.label() };
            return Err(Cause::Full { table, count: REGIONS_MAX.into() }.into());
        }
        let (memory, nics) = (Memory::from(memory), &mut self.executor.nics);
        let region = self.cache.find_or(&memory, || UserRegion::register(nics, &memory));
        let region = region.map_err(|error| refused(self.device.label, &memory, error))?;
        let mut generation = 0;
        let slot = self.executor.regions.insert_with(|_, current| {
            generation = current;
            region
        });
        let slot = slot.ok_or(Cause::Bug(Bug::SlotTaken))?;
        Ok(ObjectId::new(ObjectKind::Region, self.number, generation, slot, 0))
    }
}

fn refused(device: Label, memory: &Memory, fault: FabricError) -> Error {
    let by = match (memory.kind(), memory.dmabuf()) {
        (MemoryKind::Host, _) => RegisteredBy::Host,
        (MemoryKind::Cuda { device }, None) => RegisteredBy::GpuAddress { gpu: gpu_number(device) },
        (MemoryKind::Cuda { device }, Some(_)) => {
            RegisteredBy::GpuDmabuf { gpu: gpu_number(device) }
        }
    };
    let len = memory.len();
    Cause::NotRegistered { device, len, by, fault }.into()
}
