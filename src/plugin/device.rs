//! A device as NCCL counts them: a group of NICs, and what the first of its endpoints learned of them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use fabric::{Domain, Fabric, Info, Library};
use proto::capabilities::Capabilities;

use super::TrafficClass;
use super::config::Config;
use super::plan::{DevicePlan, RailPlan};
use crate::error::{Cause, Result};
use crate::label::Label;

/// One device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) plan: DevicePlan,
    pub(crate) settings: Arc<Config>,
    library: Arc<Library>,
    host: String,
    capabilities: OnceLock<Capabilities>,
    /// The number of the endpoint that finds them out, and one more; 0 while none does.
    prober: AtomicU32,
}

impl Device {
    pub(super) fn new(plan: DevicePlan, library: Arc<Library>, settings: Arc<Config>) -> Self {
        let host = host_name();
        Self {
            plan,
            settings,
            library,
            host,
            capabilities: OnceLock::new(),
            prober: AtomicU32::new(0),
        }
    }

    /// Domains of an endpoint's own, one per rail of the plan, in its order: nothing below is shared between threads
    /// (docs/decisions/0004-a-domain-per-endpoint.md).
    pub(crate) fn open_domains(&self, infos: &[Info]) -> Result<Vec<Arc<Domain>>> {
        let open = self.plan.rails.iter().zip(infos).map(|(rail, info)| {
            let domain =
                Fabric::open(&self.library, info).and_then(|fabric| Domain::open(&fabric, info));
            domain.map_err(|error| {
                let (device, interface) = (self.label(), Label::of(&rail.interface));
                Cause::CannotOpen { device, interface, fault: error.into() }.into()
            })
        });
        open.collect()
    }

    /// What to open the rails with, in their order: as they were found, in this traffic class.
    pub(crate) fn infos(&self, class: Option<TrafficClass>) -> Vec<Info> {
        let info = |rail: &RailPlan| {
            let mut info = rail.info.clone();
            if let Some(class) = class {
                info.set_dscp(class.dscp());
            }
            info
        };
        self.plan.rails.iter().map(info).collect()
    }

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
        // Another one may have ended between the caller's look and now.
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

    /// The version of the libfabric that was loaded.
    pub(crate) fn libfabric_version(&self) -> fabric::Version {
        self.library.version()
    }

    /// The name of this host, for peers' logs.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The name by which peers and logs know it.
    pub(crate) fn label(&self) -> Label {
        Label::of(&self.plan.name)
    }
}

/// The name of this host, as a container sees it; empty where there is none.
pub(super) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}
