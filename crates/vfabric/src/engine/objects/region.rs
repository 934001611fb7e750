//! Memory regions: registered, bound to an endpoint where FI_MR_ENDPOINT is in force, enabled, closed.

use std::ffi::c_int;
use std::sync::Arc;

use libfabric_sys as sys;

use super::{Domain, Endpoint};
use crate::engine::{Engine, Errno, Id, Outcome};
use crate::ledger::Rule;
use crate::memory::{self, Mapping};

/// Registered memory.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(in crate::engine) domain: Id<Domain>,
    pub(in crate::engine) base: u64,
    pub(in crate::engine) len: u64,
    pub(in crate::engine) access: u64,
    pub(in crate::engine) context: u64,
    /// The device whose memory it is: bytes that land there become visible by a flush only.
    pub(in crate::engine) device: Option<c_int>,
    /// Added to an address of the region to find its bytes.
    pub(in crate::engine) shift: u64,
    /// The mapping that holds them, if the region has one of its own.
    _mapping: Option<Arc<Mapping>>,
    pub(in crate::engine) key: Option<u64>,
    /// The endpoint that it is bound to.
    pub(in crate::engine) endpoint: Option<Id<Endpoint>>,
    pub(in crate::engine) enabled: bool,
    /// Local operations whose completion the user has not read.
    pub(in crate::engine) uses: usize,
}

impl Region {
    /// A host region that is about to be registered.
    pub(crate) fn new(base: u64, len: u64, access: u64, context: u64) -> Self {
        Self {
            domain: Id::of(0),
            base,
            len,
            access,
            context,
            device: None,
            shift: 0,
            _mapping: None,
            key: None,
            endpoint: None,
            enabled: false,
            uses: 0,
        }
    }

    /// A region of device memory, whose bytes are at `place`.
    pub(crate) fn of_device(
        self,
        device: c_int,
        place: u64,
        mapping: Option<Arc<Mapping>>,
    ) -> Self {
        let shift = place.wrapping_sub(self.base);
        Self { device: Some(device), shift, _mapping: mapping, ..self }
    }

    /// The key; FI_KEY_NOTAVAIL under FI_MR_PROV_KEY before the region is enabled.
    pub(crate) fn key(&self) -> u64 {
        self.key.unwrap_or(sys::FI_KEY_NOTAVAIL)
    }
}

impl Engine {
    /// Registers a region; its descriptor is made of its number.
    pub(crate) fn register(
        &mut self,
        domain: Id<Domain>,
        mut region: Region,
        requested_key: u64,
    ) -> Outcome<(Id<Region>, u64)> {
        let modes = self.domain(domain)?.modes;
        if region.base.checked_add(region.len).is_none() || region.len == 0 {
            return self.refuse(Rule::Arguments, sys::FI_EINVAL, || {
                format!("a region of {} bytes at {:#x}", region.len, region.base)
            });
        }
        let is_pinned = modes & sys::FI_MR_ALLOCATED != 0 && region.device.is_none();
        if is_pinned && !memory::is_mapped(region.base, region.len) {
            return self.refuse(Rule::Arguments, sys::FI_EFAULT, || {
                format!(
                    "a region of {} bytes at {:#x}, which are not all there",
                    region.len, region.base
                )
            });
        }
        if self.nics[self.domain(domain)?.nic].scarce {
            self.counters.count("faults.scarce");
            return Err(Errno(sys::FI_ENOMEM));
        }
        region.domain = domain;
        if modes & sys::FI_MR_PROV_KEY == 0 {
            let bits = 8 * u32::try_from(self.settings.profile.key_bytes).unwrap_or(8);
            let fits = bits >= u64::BITS || requested_key < 1 << bits;
            if !fits {
                return self.refuse(Rule::KeyTwice, sys::FI_EKEYREJECTED, || {
                    format!("key {requested_key:#x} is asked for, and keys have {bits} bits")
                });
            }
            if self.keys.contains_key(&(domain, requested_key)) {
                return self.refuse(Rule::KeyTwice, sys::FI_ENOKEY, || {
                    format!("key {requested_key:#x} is asked for, which an open region has")
                });
            }
            region.key = Some(requested_key);
        }
        let key = region.key;
        let id = self.regions.insert(region);
        if let Some(key) = key {
            self.keys.insert((domain, key), id);
            self.retired_keys.remove(&(domain, key));
        }
        self.domain_mut(domain)?.users += 1;
        if modes & sys::FI_MR_ENDPOINT == 0 {
            self.make_usable(id);
        }
        Ok((id, self.region(id)?.key()))
    }

    pub(crate) fn bind_region(
        &mut self,
        id: Id<Region>,
        endpoint: Id<Endpoint>,
        flags: u64,
    ) -> Outcome {
        let region = self.region(id)?.clone();
        if self.domain(region.domain)?.modes & sys::FI_MR_ENDPOINT == 0 {
            return Err(Errno(sys::FI_ENOSYS));
        }
        let target = self.endpoint(endpoint)?;
        let (enabled, same_domain) = (target.enabled, target.domain == region.domain);
        if flags != 0 || !same_domain {
            return self.refuse(Rule::Arguments, sys::FI_EINVAL, || {
                format!("region {id} is bound to endpoint {endpoint} with flags {flags:#x}, same domain: {same_domain}")
            });
        }
        if !enabled || region.enabled || region.endpoint.is_some() {
            return self.refuse(Rule::BindOrder, sys::FI_EINVAL, || {
                let why = if enabled { "it is bound already" } else { "that is not enabled" };
                format!("region {id} is bound to endpoint {endpoint}, but {why}")
            });
        }
        self.region_mut(id)?.endpoint = Some(endpoint);
        self.endpoint_mut(endpoint)?.bound_regions += 1;
        Ok(())
    }

    /// Enables a region, and returns its key.
    pub(crate) fn enable_region(&mut self, id: Id<Region>) -> Outcome<u64> {
        let region = self.region(id)?;
        if self.domain(region.domain)?.modes & sys::FI_MR_ENDPOINT == 0 {
            return Err(Errno(sys::FI_ENOSYS));
        }
        if region.endpoint.is_none() || region.enabled {
            return self.refuse(Rule::BindOrder, sys::FI_EINVAL, || {
                format!("region {id} is enabled before it is bound, or twice")
            });
        }
        self.make_usable(id);
        Ok(self.region(id)?.key())
    }

    fn make_usable(&mut self, id: Id<Region>) {
        let Some(region) = self.regions.get_mut(id) else { return };
        region.enabled = true;
        // As on cxi, a region without remote access gets no key.
        if region.key.is_none() && region.access & REMOTE != 0 {
            let key = KEY_TAG | id.number();
            region.key = Some(key);
            let domain = region.domain;
            self.keys.insert((domain, key), id);
        }
    }

    pub(crate) fn close_region(&mut self, id: Id<Region>) -> Outcome {
        let region = self.region(id)?.clone();
        self.change_endpoints();
        if region.endpoint.is_some_and(|endpoint| self.stuck.contains(&endpoint)) {
            self.counters.count("faults.stuck");
            return Err(Errno(sys::FI_EBUSY));
        }
        if region.uses > 0 {
            self.broken(Rule::FreedEarly, || {
                format!(
                    "region {id} is closed while {} operations from or to it are in flight",
                    region.uses
                )
            });
        }
        self.show_of_region(id);
        self.regions.remove(id);
        if let Some(key) = region.key {
            self.keys.remove(&(region.domain, key));
            self.retired_keys.insert((region.domain, key));
        }
        if let Some(endpoint) = region.endpoint {
            self.endpoint_mut(endpoint)?.bound_regions -= 1;
        }
        self.domain_mut(region.domain)?.users -= 1;
        Ok(())
    }

    /// The user has read the completion of an operation that used the region.
    pub(in crate::engine) fn end_use(&mut self, region: Option<Id<Region>>) {
        if let Some(region) = region.and_then(|region| self.regions.get_mut(region)) {
            region.uses = region.uses.saturating_sub(1);
        }
    }

    pub(in crate::engine) fn region(&self, id: Id<Region>) -> Outcome<&Region> {
        self.regions.get(id).ok_or(Errno(sys::FI_EINVAL))
    }

    fn region_mut(&mut self, id: Id<Region>) -> Outcome<&mut Region> {
        self.regions.get_mut(id).ok_or(Errno(sys::FI_EINVAL))
    }
}

const REMOTE: u64 = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;

/// Chosen keys use all eight bytes, so that a user that truncates them is detected.
const KEY_TAG: u64 = 0x5646_4142_0000_0000;
