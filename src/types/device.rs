//! A device, as an endpoint on it needs to know it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use fabric::Version;
use proto::Capabilities;

use crate::label::Label;

/// What does not change while a device is open.
#[derive(Clone, Debug)]
pub(crate) struct DeviceFacts {
    /// The number that it has in the process.
    pub(crate) number: u16,
    /// The name by which peers and logs know it.
    pub(crate) label: Label,
    /// The name of this host, for peers' logs.
    pub(crate) host: String,
    pub(crate) provider: String,
    pub(crate) provider_version: Version,
    pub(crate) libfabric_version: Version,
    /// The format of its rails' addresses.
    pub(crate) address_format: u32,
    /// What its rails carry together.
    pub(crate) speed_mbps: u32,
    /// Whether other processes have an endpoint's memory mapped (shm), so that it must not be closed before they are.
    pub(crate) is_mapped_by_peers: bool,
    pub(crate) gpu_access: GpuAccess,
    /// The first rail's interface, which the probe uses.
    pub(crate) interface: Label,
    pub(crate) probed: Arc<Probed>,
}

/// What the device was found to be able to do, and which endpoint finds it out.
#[derive(Debug, Default)]
pub(crate) struct Probed {
    capabilities: OnceLock<Capabilities>,
    /// One more than the number of the endpoint that probes; 0 while none does.
    prober: AtomicU32,
}

impl Probed {
    /// What the first endpoint's probe found; the later ones take its word. None: it is not over.
    pub(crate) fn capabilities(&self) -> Option<Capabilities> {
        self.capabilities.get().copied()
    }

    /// The endpoint that probes.
    pub(crate) fn prober(&self) -> Option<u16> {
        let number = self.prober.load(Ordering::Acquire).checked_sub(1)?;
        u16::try_from(number).ok()
    }

    /// Makes endpoint `number` the one that probes. False: another one does, or it is over.
    pub(crate) fn take_probe(&self, number: u16) -> bool {
        let taken = u32::from(number) + 1;
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        if self.prober.compare_exchange(0, taken, success, failure).is_err() {
            return false;
        }
        // Another probe may have ended since the caller checked.
        let is_over = self.capabilities.get().is_some();
        if is_over {
            self.leave_probe(number);
        }
        !is_over
    }

    /// What the probe of endpoint `number` has found.
    pub(crate) fn learned(&self, number: u16, found: Capabilities) {
        self.capabilities.get_or_init(|| found);
        self.leave_probe(number);
    }

    /// Endpoint `number` probes no longer.
    pub(crate) fn leave_probe(&self, number: u16) {
        let taken = u32::from(number) + 1;
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        // Only the one that probes leaves.
        _ = self.prober.compare_exchange(taken, 0, success, failure);
    }
}

/// How the bytes of messages cross.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// By one-sided writes into memory that was advertised.
    #[default]
    Rdma,
    /// By tagged messages into receives that are posted.
    Sendrecv,
}

/// How GPU memory goes between the rails and a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuAccess {
    /// The NICs read and write it.
    Direct {
        /// It may also be registered by a DMA-BUF.
        dmabuf: bool,
    },
    /// NCCL copies it through memory of the host's, and why.
    ByHost { because: Label },
}

impl GpuAccess {
    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Self::Direct { .. })
    }
}

/// The number of a GPU, for a sentence.
pub(crate) fn gpu_number(device: i32) -> i16 {
    i16::try_from(device).unwrap_or(i16::MAX)
}
