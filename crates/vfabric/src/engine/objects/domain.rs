//! Fabrics, and domains: one NIC each.

use std::ffi::c_int;

use libfabric_sys as sys;

use crate::engine::{Engine, Errno, Id, Outcome};
use crate::ledger::Rule;
use crate::settings::DeviceMemory;

/// A fabric, of which the engine keeps only the number.
#[derive(Debug)]
pub(crate) enum Fabric {}

/// A domain: one NIC.
#[derive(Debug)]
pub(crate) struct Domain {
    fabric: Id<Fabric>,
    pub(super) nic: usize,
    /// FI_MR_* bits in force.
    pub(super) modes: c_int,
    /// Whether FI_HMEM was asked for.
    pub(super) device_memory: bool,
    /// Whether endpoints that open use descriptors (profile cxi).
    pub(super) uses_descriptors: bool,
    pub(super) users: usize,
}

/// The attributes that a user asks for in a domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DomainAsked {
    pub(crate) fabric: Id<Fabric>,
    pub(crate) nic: usize,
    pub(crate) modes: c_int,
    pub(crate) device_memory: bool,
}

impl Domain {
    /// FI_MR_* bits in force.
    pub(in crate::engine) fn modes(&self) -> c_int {
        self.modes
    }
}

impl Engine {
    pub(crate) fn open_fabric(&mut self) -> Id<Fabric> {
        self.last_fabric += 1;
        Id::of(self.last_fabric)
    }

    pub(crate) fn close_fabric(&mut self, id: Id<Fabric>) -> Outcome {
        let users = self.domains.iter().filter(|(_, domain)| domain.fabric == id).count();
        if users > 0 {
            return self.refuse(Rule::CloseOrder, sys::FI_EBUSY, || {
                format!("fabric {id} is closed while {users} domains of it are open")
            });
        }
        let queues = self.event_queues_of(id);
        if queues > 0 {
            return self.refuse(Rule::CloseOrder, sys::FI_EBUSY, || {
                format!("fabric {id} is closed while {queues} event queues of it are open")
            });
        }
        Ok(())
    }

    pub(crate) fn open_domain(&mut self, asked: DomainAsked) -> Outcome<Id<Domain>> {
        if asked.nic >= self.nics.len() {
            return Err(Errno(sys::FI_ENODEV));
        }
        let DomainAsked { fabric, nic, modes, device_memory } = asked;
        let uses_descriptors = false;
        let domain = Domain { fabric, nic, modes, device_memory, uses_descriptors, users: 0 };
        Ok(self.domains.insert(domain))
    }

    pub(crate) fn close_domain(&mut self, id: Id<Domain>) -> Outcome {
        let users = self.domain(id)?.users;
        if users > 0 {
            return self.refuse(Rule::CloseOrder, sys::FI_EBUSY, || {
                format!("domain {id} is closed while {users} objects of it are open")
            });
        }
        self.domains.remove(id);
        self.keys.retain(|(domain, _), _| *domain != id);
        self.retired_keys.retain(|(domain, _)| *domain != id);
        Ok(())
    }

    /// Whether device memory can be registered in this domain. Without FI_HMEM a real provider takes it for the host's (fi_mr(3), `iface`).
    pub(crate) fn may_take_device_memory(&mut self, id: Id<Domain>) -> Outcome {
        let domain = self.domain(id)?;
        if self.settings.device_memory_of(domain.nic) == DeviceMemory::None {
            return Err(Errno(sys::FI_ENOSYS));
        }
        if !domain.device_memory {
            return self.refuse(Rule::Arguments, sys::FI_EINVAL, || {
                format!(
                    "device memory is registered in domain {id}, which was opened without FI_HMEM"
                )
            });
        }
        Ok(())
    }

    /// Whether endpoints that open in the domain from now on use descriptors.
    pub(crate) fn use_descriptors(&mut self, id: Id<Domain>, uses: bool) -> Outcome {
        self.domain_mut(id)?.uses_descriptors = uses;
        Ok(())
    }

    /// Whether no domain is open.
    pub(crate) fn is_idle(&self) -> bool {
        self.domains.open() == 0
    }

    pub(in crate::engine) fn domain(&self, id: Id<Domain>) -> Outcome<&Domain> {
        self.domains.get(id).ok_or(Errno(sys::FI_EINVAL))
    }

    pub(super) fn domain_mut(&mut self, id: Id<Domain>) -> Outcome<&mut Domain> {
        self.domains.get_mut(id).ok_or(Errno(sys::FI_EINVAL))
    }
}
