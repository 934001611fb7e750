//! What an endpoint needs to know about its device.

use std::sync::Arc;

use fabric::{Lock, Version};
use proto::Capabilities;

use crate::label::Label;

/// Facts that do not change while a device is open.
#[derive(Clone, Debug)]
pub(crate) struct DeviceFacts {
    /// The device's number in this process.
    pub(crate) number: u16,
    /// Its name in logs, here and at peers.
    pub(crate) label: Label,
    /// The name of this host, for peers' logs.
    pub(crate) host: String,
    pub(crate) provider: String,
    pub(crate) provider_version: Version,
    pub(crate) libfabric_version: Version,
    /// The format of its rails' addresses.
    pub(crate) address_format: u32,
    /// The speed of all its rails together.
    pub(crate) speed_mbps: u32,
    /// Whether peers map an endpoint's memory (shm): then an endpoint must not be closed before theirs are.
    pub(crate) is_mapped_by_peers: bool,
    /// How many writes with immediates may arrive on a rail between two polls, where the provider keeps fewer than its completion queue has
    /// entries.
    pub(crate) arrivals_max: Option<u32>,
    pub(crate) gpu_access: GpuAccess,
    pub(crate) probed: Arc<Probed>,
}

/// The result of the device's probe, and which endpoint runs it.
#[derive(Debug)]
pub(crate) struct Probed(Lock<Probing>);

#[derive(Clone, Copy, Debug)]
struct Probing {
    capabilities: Option<Capabilities>,
    /// The number of the endpoint that runs the probe.
    prober: Option<u16>,
}

impl Default for Probed {
    fn default() -> Self {
        Self(Lock::new(Probing { capabilities: None, prober: None }))
    }
}

impl Probed {
    /// The probe's result, which all endpoints of the device use. None: it is not finished.
    pub(crate) fn capabilities(&self) -> Option<Capabilities> {
        self.0.lock().capabilities
    }

    /// The endpoint that runs the probe.
    pub(crate) fn prober(&self) -> Option<u16> {
        self.0.lock().prober
    }

    /// Makes endpoint `number` run the probe. False: another one does, or the result is there.
    pub(crate) fn take_probe(&self, number: u16) -> bool {
        let mut probing = self.0.lock();
        let is_free = probing.prober.is_none() && probing.capabilities.is_none();
        if is_free {
            probing.prober = Some(number);
        }
        is_free
    }

    /// Stores the result of endpoint `number`'s probe. The first result stays.
    pub(crate) fn learned(&self, number: u16, found: Capabilities) {
        self.0.lock().capabilities.get_or_insert(found);
        self.leave_probe(number);
    }

    /// Endpoint `number` no longer runs the probe.
    pub(crate) fn leave_probe(&self, number: u16) {
        self.0.lock().prober.take_if(|prober| *prober == number);
    }
}

/// How the bytes of messages are transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// One-sided writes into advertised memory.
    #[default]
    Rdma,
    /// Tagged messages into posted receives.
    Sendrecv,
}

impl Protocol {
    /// As IRONRAIL_PROTOCOL has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Sendrecv => "sendrecv",
        }
    }
}

/// How data moves between rails and GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuAccess {
    /// NICs read and write GPU memory.
    Direct {
        /// GPU memory can also be registered by a DMA-BUF.
        dmabuf: bool,
    },
    /// NCCL copies through host memory, and why.
    ByHost { because: Label },
}

impl GpuAccess {
    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Self::Direct { .. })
    }
}

/// A GPU's number, for an error's sentence.
pub(crate) fn gpu_number(device: i32) -> i16 {
    i16::try_from(device).unwrap_or(i16::MAX)
}
