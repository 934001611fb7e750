//! regMr: NCCL's buffers on the data rails of an endpoint. deregMr is in `fence`.
//!
//! All of it happens under the endpoint's lock, as every post and every reading of a queue: providers keep a domain's keys
//! where an arriving write looks them up, and at FI_THREAD_COMPLETION nothing else keeps the two apart.

use fabric::{FabricError, MemoryKind, UserMemory};

use super::Endpoint;
use crate::error::{Error, Kind, Result};
use crate::handle::{Handle, HandleKind};
use crate::plugin::device::Device;
use crate::plugin::plan::GpuMemory;
use crate::rail::UserRegion;

/// Regions of one endpoint: NCCL registers each buffer once per connection.
pub(super) const REGIONS_MAX: u16 = u16::MAX;

impl Endpoint {
    /// Refuses what the device's properties do not offer.
    pub(crate) fn takes_gpu_memory(&self, by_dmabuf: bool) -> Result<()> {
        let label = self.label();
        let sentence = match &self.device.plan.gpu_memory {
            GpuMemory::Direct { dmabuf } if *dmabuf || !by_dmabuf => return Ok(()),
            GpuMemory::Direct { .. } => format!(
                "device {label} registers GPU memory by its address, not by a DMA-BUF: set NCCL_DMABUF_ENABLE=0"
            ),
            GpuMemory::ByHost(obstacle) => format!(
                "device {label} moves host memory only ({}): set NCCL_NET_GDR_LEVEL=LOC",
                obstacle.phrase()
            ),
        };
        Err(Error::new(Kind::InvalidArgument, sentence))
    }

    /// Registers `memory` on every data rail, unless a registration that is held covers it.
    pub(crate) fn register(&mut self, memory: UserMemory) -> Result<Handle> {
        if memory.kind() != MemoryKind::Host {
            self.takes_gpu_memory(memory.dmabuf().is_some())?;
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
}

fn refused(device: &Device, memory: &UserMemory, error: &FabricError) -> Error {
    let (len, name) = (memory.len(), &device.plan.name);
    let sentence = match (memory.kind(), memory.dmabuf()) {
        (MemoryKind::Host, _) => format!("registering {len} bytes on device {name}: {error}"),
        (MemoryKind::Cuda { device }, None) => format!(
            "registering {len} bytes of GPU {device} by their address on device {name}: {error}; \
             check that nvidia-peermem is loaded, or set IRONRAIL_DEVICE_MEMORY=0"
        ),
        (MemoryKind::Cuda { device }, Some(_)) => format!(
            "registering {len} bytes of GPU {device} by a DMA-BUF on device {name}: {error}; \
             set NCCL_DMABUF_ENABLE=0 for another way, or IRONRAIL_DEVICE_MEMORY=0"
        ),
    };
    Error::new(Kind::System, sentence)
}
