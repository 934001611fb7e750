//! A device, as NCCL numbers them: a group of NICs, and the result of its probe.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fabric::{FabricError, Info, Library};

use super::TrafficClass;
use super::config::Config;
use super::options;
use super::plan::{DevicePlan, GpuMemory, RailPlan};
use crate::label::Label;
use crate::types::{self, GpuAccess, Probed};

/// One device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) plan: DevicePlan,
    pub(crate) settings: Arc<Config>,
    library: Arc<Library>,
    host: String,
    probed: Arc<Probed>,
    /// The rails that could not be opened the last time, one bit each.
    missing: AtomicU32,
}

impl Device {
    pub(super) fn new(plan: DevicePlan, library: Arc<Library>, settings: Arc<Config>) -> Self {
        let host = fabric::host_name();
        Self { plan, settings, library, host, probed: Arc::default(), missing: AtomicU32::new(0) }
    }

    /// The fi_info of each rail, in order, with this traffic class.
    pub(crate) fn infos(&self, class: Option<TrafficClass>) -> Vec<Info> {
        let info = |rail: &RailPlan| {
            let mut info = rail.info.clone();
            if let Some(class) = class {
                let class = options::class_of(&info, class);
                info.set_traffic_class(Some(class));
            }
            info
        };
        self.plan.rails.iter().map(info).collect()
    }

    /// The version of the libfabric that was loaded.
    pub(crate) fn libfabric_version(&self) -> fabric::Version {
        self.library.version()
    }

    /// The facts about the device that its endpoints need.
    pub(super) fn facts(&self, number: usize) -> types::DeviceFacts {
        let gpu_access = match &self.plan.gpu_memory {
            GpuMemory::Direct { dmabuf } => GpuAccess::Direct { dmabuf: *dmabuf },
            GpuMemory::ByHost(obstacle) => {
                GpuAccess::ByHost { because: Label::of(&obstacle.phrase()) }
            }
        };
        let info = self.plan.rails.first().map(|rail| &rail.info);
        let none = fabric::Version::new(0, 0);
        types::DeviceFacts {
            number: u16::try_from(number).unwrap_or(u16::MAX),
            label: self.label(),
            host: self.host.clone(),
            provider: info.map_or("", |info| info.provider()).to_owned(),
            provider_version: info.map_or(none, |info| info.provider_version()),
            libfabric_version: self.libfabric_version(),
            address_format: info.map_or(0, |info| info.address_format()),
            speed_mbps: self.plan.speed_mbps(),
            is_mapped_by_peers: self.plan.is_mapped_by_peers(),
            arrivals_max: info.and_then(|info| options::arrivals_max(&self.settings, info)),
            gpu_access,
            probed: Arc::clone(&self.probed),
        }
    }

    /// Endpoint `number` no longer runs the probe.
    pub(super) fn leave_probe(&self, number: u16) {
        self.probed.leave_probe(number);
    }

    /// Records whether a rail could be opened, and logs each change.
    pub(super) fn note_rail(&self, index: usize, outcome: Result<(), FabricError>) {
        let Some(rail) = self.plan.rails.get(index) else { return };
        let bit = 1 << index;
        let (label, RailPlan { interface, address, .. }) = (self.label(), rail);
        match outcome {
            Ok(()) => {
                if self.missing.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
                    log::info!("device {label}: {interface} at {address} can be opened again");
                }
            }
            Err(fault) => {
                if self.missing.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
                    log::warn!(
                        "device {label} runs without {interface} at {address}, which cannot be opened: {fault}; the next communicator tries it again"
                    );
                }
            }
        }
    }

    /// The device's name in logs, here and at peers.
    pub(crate) fn label(&self) -> Label {
        Label::of(&self.plan.name)
    }
}
