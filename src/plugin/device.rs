//! A device as NCCL counts them: a group of NICs, and what the first of its endpoints learned of them.

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
}

impl Device {
    pub(super) fn new(plan: DevicePlan, library: Arc<Library>, settings: Arc<Config>) -> Self {
        let host = host_name();
        Self { plan, settings, library, host, capabilities: OnceLock::new() }
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

    /// What the first endpoint's probe found; the later ones take its word.
    pub(crate) fn capabilities(
        &self,
        probe: impl FnOnce() -> Result<Capabilities>,
    ) -> Result<&Capabilities> {
        if let Some(known) = self.capabilities.get() {
            return Ok(known);
        }
        let found = probe()?;
        Ok(self.capabilities.get_or_init(|| found))
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
