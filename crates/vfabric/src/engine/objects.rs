//! The objects that a user opens: domains, endpoints, completion queues, address vectors and regions, and the order in which they close.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;

use libfabric_sys as sys;

use super::flight::Message;
use super::post::Receive;
use super::progress::Entry;
use super::{Engine, Errno, Event, EventQueue, Id, Operation, Outcome, sight};
use crate::faults::Fault;
use crate::ledger::Rule;
use crate::memory::{self, Mapping};
use crate::settings::DeviceMemory;

/// A fabric, of which the engine keeps only the number.
#[derive(Debug)]
pub(crate) enum Fabric {}

/// A domain: one NIC.
#[derive(Debug)]
pub(crate) struct Domain {
    fabric: Id<Fabric>,
    nic: usize,
    /// FI_MR_* bits in force.
    modes: c_int,
    /// Whether FI_HMEM was asked for.
    device_memory: bool,
    /// Whether endpoints that open use descriptors (profile cxi).
    uses_descriptors: bool,
    users: usize,
}

/// The attributes that a user asks for in a domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DomainAsked {
    pub(crate) fabric: Id<Fabric>,
    pub(crate) nic: usize,
    pub(crate) modes: c_int,
    pub(crate) device_memory: bool,
}

/// The attributes that a user asks for in an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointAsked {
    /// The NIC of its info, if that names one.
    pub(crate) nic: Option<usize>,
    pub(crate) context: u64,
    /// The capabilities of its transmit and of its receive context.
    pub(crate) initiates: u64,
    pub(crate) accepts: u64,
    pub(crate) transmit_flags: u64,
    pub(crate) receive_flags: u64,
    pub(crate) orders: u64,
    /// The transmit queue's size; 0: the profile's.
    pub(crate) depth: usize,
}

/// An endpoint, enabled or not yet.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) domain: Id<Domain>,
    pub(super) nic: usize,
    pub(super) enabled: bool,
    pub(super) transmit_queue: Option<Id<Queue>>,
    pub(super) receive_queue: Option<Id<Queue>>,
    pub(super) context: u64,
    /// FI_* capabilities: those of its posts, then those of peers' posts to it and of its receives.
    pub(super) initiates: u64,
    pub(super) accepts: u64,
    /// The flags of calls that have none (fi_endpoint(3), `op_flags`).
    pub(super) transmit_flags: u64,
    pub(super) receive_flags: u64,
    /// The directions (FI_TRANSMIT, FI_RECV) in which only operations that ask for an entry get one (FI_SELECTIVE_COMPLETION).
    pub(super) selective: u64,
    pub(super) vector: Option<Id<Vector>>,
    pub(super) event_queue: Option<Id<EventQueue>>,
    /// FI_ORDER_* bits that were asked for.
    pub(super) orders: u64,
    /// The queue size that the user asked for; that of the profile may be smaller.
    pub(super) depth: usize,
    pub(super) bound_regions: usize,
    /// How many bytes of its writes become visible together.
    pub(super) line: u64,
    /// Operations whose completion is not written yet.
    pub(super) outstanding: usize,
    /// Writes with immediates that have arrived since its queue was last polled.
    pub(super) arrivals: usize,
    pub(super) receives: VecDeque<Receive>,
    /// Messages that arrived before their receive was posted.
    pub(super) unexpected: VecDeque<Message>,
    /// Accepted operations that leave at the next poll of this side.
    pub(super) outbox: VecDeque<Id<Operation>>,
    /// Operations of peers that land at the next poll of this side.
    pub(super) inbox: VecDeque<Id<Operation>>,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Queue {
    domain: Id<Domain>,
    size: usize,
    pub(super) entries: VecDeque<Entry>,
    pub(super) endpoints: Vec<Id<Endpoint>>,
}

impl Queue {
    /// How many entries it was opened for.
    pub(super) fn size(&self) -> usize {
        self.size
    }
}

/// An address vector: numbers of endpoints.
#[derive(Debug)]
pub(crate) struct Vector {
    domain: Id<Domain>,
    peers: Vec<Option<Id<Endpoint>>>,
    users: usize,
    /// Whether an endpoint was bound to it; that endpoint may have closed.
    was_bound: bool,
    /// Endpoints to which something was posted, and those of them whose address was removed since, where the profile forgets peers.
    met: BTreeSet<Id<Endpoint>>,
    forgotten: BTreeSet<Id<Endpoint>>,
}

impl Vector {
    pub(super) fn len(&self) -> usize {
        self.peers.iter().flatten().count()
    }

    /// The endpoint behind an `fi_addr_t`.
    pub(super) fn peer(&self, name: u64) -> Option<Id<Endpoint>> {
        self.peers.get(usize::try_from(name).ok()?).copied().flatten()
    }

    /// Records a post to this endpoint. Returns whether there was none before its address was removed.
    pub(super) fn meet(&mut self, endpoint: Id<Endpoint>) -> bool {
        self.met.insert(endpoint);
        !self.forgotten.contains(&endpoint)
    }

    /// The `fi_addr_t` of an endpoint.
    pub(super) fn name_of(&self, endpoint: Id<Endpoint>) -> Option<u64> {
        self.peers.iter().position(|peer| *peer == Some(endpoint)).map(|place| place as u64)
    }
}

/// Registered memory.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(super) domain: Id<Domain>,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) access: u64,
    pub(super) context: u64,
    /// The device whose memory it is: bytes that land there become visible by a flush only.
    pub(super) device: Option<c_int>,
    /// Added to an address of the region to find its bytes.
    pub(super) shift: u64,
    /// The mapping that holds them, if the region has one of its own.
    _mapping: Option<Arc<Mapping>>,
    pub(super) key: Option<u64>,
    /// The endpoint that it is bound to.
    pub(super) endpoint: Option<Id<Endpoint>>,
    pub(super) enabled: bool,
    /// Local operations whose completion the user has not read.
    pub(super) uses: usize,
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

const REMOTE: u64 = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;

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

    /// Makes an endpoint write blocks of 128 bytes in order, or stops that (FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES).
    pub(crate) fn order_lines(&mut self, id: Id<Endpoint>, ordered: bool) -> Outcome {
        let granted = self.settings.lines;
        if ordered {
            self.counters.count(if granted { "options.lines" } else { "options.lines_refused" });
            if !granted {
                return Err(Errno(sys::FI_EOPNOTSUPP));
            }
        }
        self.endpoint_mut(id)?.line = if ordered { sight::ORDERED_LINE } else { sight::LINE };
        Ok(())
    }

    /// Records whether the user permits an endpoint to call CUDA (FI_OPT_CUDA_API_PERMITTED, as in fi_endpoint(3)): -FI_EOPNOTSUPP where CUDA is
    /// not available, or where the NIC can reach device memory only by calls of CUDA.
    pub(crate) fn permit_cuda(&mut self, id: Id<Endpoint>, permitted: bool) -> Outcome {
        let endpoint = self.endpoint(id)?;
        if endpoint.enabled {
            return self.refuse(Rule::Arguments, sys::FI_EOPBADSTATE, || {
                format!("endpoint {id} is enabled, and its options are set before that")
            });
        }
        match self.settings.device_memory_of(endpoint.nic) {
            DeviceMemory::None => Err(Errno(sys::FI_EINVAL)),
            DeviceMemory::Calls if !permitted => Err(Errno(sys::FI_EOPNOTSUPP)),
            DeviceMemory::Calls => Ok(()),
            DeviceMemory::Direct => {
                self.counters.count(if permitted { "cuda.permitted" } else { "cuda.forbidden" });
                Ok(())
            }
        }
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

    pub(crate) fn open_queue(&mut self, domain: Id<Domain>, size: usize) -> Outcome<Id<Queue>> {
        self.domain_mut(domain)?.users += 1;
        let size = if size == 0 { QUEUE_ENTRIES } else { size };
        let queue = Queue { domain, size, entries: VecDeque::new(), endpoints: Vec::new() };
        Ok(self.queues.insert(queue))
    }

    pub(crate) fn close_queue(&mut self, id: Id<Queue>) -> Outcome {
        let queue = self.queues.get(id).ok_or(Errno(sys::FI_EINVAL))?;
        if !queue.endpoints.is_empty() {
            return self.refuse(Rule::CloseOrder, sys::FI_EBUSY, || {
                format!("completion queue {id} is closed before its endpoints")
            });
        }
        let jams = |fault: &Fault| matches!(fault, Fault::Jam(queue, at) if Id::of(*queue) == id && *at <= self.posts);
        if self.faults.iter().any(jams) {
            self.counters.count("faults.jam");
            return Err(Errno(sys::FI_EBUSY));
        }
        if let Some(queue) = self.queues.remove(id) {
            for entry in queue.entries {
                self.end_use(entry.region);
            }
            self.domain_mut(queue.domain)?.users -= 1;
        }
        Ok(())
    }

    pub(crate) fn open_vector(&mut self, domain: Id<Domain>) -> Outcome<Id<Vector>> {
        self.domain_mut(domain)?.users += 1;
        Ok(self.vectors.insert(Vector {
            domain,
            peers: Vec::new(),
            users: 0,
            was_bound: false,
            met: BTreeSet::new(),
            forgotten: BTreeSet::new(),
        }))
    }

    pub(crate) fn close_vector(&mut self, id: Id<Vector>) -> Outcome {
        let users = self.vectors.get(id).ok_or(Errno(sys::FI_EINVAL))?.users;
        if users > 0 {
            return self.refuse(Rule::CloseOrder, sys::FI_EBUSY, || {
                format!("address vector {id} is closed before its endpoints")
            });
        }
        if let Some(vector) = self.vectors.remove(id) {
            self.domain_mut(vector.domain)?.users -= 1;
        }
        Ok(())
    }

    /// Adds an endpoint, which may be closed already: only a post to it fails.
    pub(crate) fn insert_peer(&mut self, id: Id<Vector>, endpoint: Id<Endpoint>) -> Outcome<u64> {
        let users = self.vectors.get(id).ok_or(Errno(sys::FI_EINVAL))?.users;
        if users == 0 && !self.settings.profile.shares_vectors {
            return self.refuse(Rule::BindOrder, sys::FI_EINVAL, || {
                format!("an address is inserted into address vector {id}, which has no endpoint")
            });
        }
        let vector = self.vectors.get_mut(id).ok_or(Errno(sys::FI_EINVAL))?;
        vector.peers.push(Some(endpoint));
        Ok(vector.peers.len() as u64 - 1)
    }

    pub(crate) fn remove_peer(&mut self, id: Id<Vector>, name: u64) -> Outcome {
        let vector = self.vectors.get(id).ok_or(Errno(sys::FI_EINVAL))?;
        let Some(peer) = vector.peer(name) else {
            return self.refuse(Rule::UnknownPeer, sys::FI_EINVAL, || {
                format!("peer {name} is removed from address vector {id}, which has none such")
            });
        };
        let users = |endpoint: Id<Endpoint>| {
            self.endpoints.get(endpoint).is_some_and(|endpoint| endpoint.vector == Some(id))
        };
        let in_flight = |operation: &Operation| {
            operation.target == peer
                && operation.peer == name
                && !operation.reported
                && users(operation.initiator)
        };
        if self.operations.values().any(in_flight) {
            self.broken(Rule::UnknownPeer, || {
                format!("peer {name} is removed from address vector {id} while operations to it are in flight")
            });
        }
        let place = usize::try_from(name).unwrap_or(usize::MAX);
        let Some(vector) = self.vectors.get_mut(id) else { return Ok(()) };
        if let Some(slot) = vector.peers.get_mut(place) {
            *slot = None;
        }
        if vector.met.contains(&peer) {
            vector.forgotten.insert(peer);
        }
        Ok(())
    }

    pub(crate) fn peer_at(&self, vector: Id<Vector>, name: u64) -> Outcome<Id<Endpoint>> {
        self.vectors.get(vector).and_then(|vector| vector.peer(name)).ok_or(Errno(sys::FI_EINVAL))
    }

    pub(crate) fn open_endpoint(
        &mut self,
        domain: Id<Domain>,
        asked: EndpointAsked,
    ) -> Outcome<Id<Endpoint>> {
        let nic = self.domain(domain)?.nic;
        if let Some(other) = asked.nic.filter(|other| *other != nic) {
            return self.refuse(Rule::Arguments, sys::FI_EINVAL, || {
                format!("an endpoint by an info of NIC {other} in domain {domain}, which is on NIC {nic}")
            });
        }
        let there = self.endpoints.iter().filter(|(_, endpoint)| endpoint.nic == nic).count();
        if there >= self.settings.profile.endpoints_per_nic {
            self.counters.count("refused.endpoints");
            return Err(Errno(sys::FI_ENOSPC));
        }
        self.domain_mut(domain)?.users += 1;
        if self.domain(domain)?.uses_descriptors {
            self.counters.count("endpoints.with_descriptors");
        }
        let profile = &self.settings.profile;
        Ok(self.endpoints.insert(Endpoint {
            domain,
            nic,
            enabled: false,
            transmit_queue: None,
            receive_queue: None,
            context: asked.context,
            initiates: asked.initiates,
            accepts: asked.accepts,
            transmit_flags: asked.transmit_flags,
            receive_flags: asked.receive_flags,
            selective: 0,
            vector: None,
            event_queue: None,
            orders: (asked.orders & profile.orders) | profile.always_ordered,
            depth: if asked.depth == 0 { usize::MAX } else { asked.depth },
            bound_regions: 0,
            line: sight::LINE,
            outstanding: 0,
            arrivals: 0,
            receives: VecDeque::new(),
            unexpected: VecDeque::new(),
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
        }))
    }

    pub(crate) fn bind_queue(&mut self, id: Id<Endpoint>, queue: Id<Queue>, flags: u64) -> Outcome {
        let endpoint = self.endpoint(id)?;
        let known = self.queues.get(queue).is_some_and(|queue| queue.domain == endpoint.domain);
        let taken = (flags & sys::FI_TRANSMIT != 0 && endpoint.transmit_queue.is_some())
            || (flags & sys::FI_RECV != 0 && endpoint.receive_queue.is_some());
        let both = sys::FI_TRANSMIT | sys::FI_RECV;
        let wrong = flags & both == 0 || flags & !(both | sys::FI_SELECTIVE_COMPLETION) != 0;
        if !known || endpoint.enabled || taken || wrong {
            return self.refuse(Rule::Arguments, sys::FI_EINVAL, || {
                format!("endpoint {id} cannot be bound to completion queue {queue}")
            });
        }
        let endpoint = self.endpoint_mut(id)?;
        if flags & sys::FI_TRANSMIT != 0 {
            endpoint.transmit_queue = Some(queue);
        }
        if flags & sys::FI_RECV != 0 {
            endpoint.receive_queue = Some(queue);
        }
        if flags & sys::FI_SELECTIVE_COMPLETION != 0 {
            endpoint.selective |= flags & both;
        }
        if let Some(queue) = self.queues.get_mut(queue)
            && !queue.endpoints.contains(&id)
        {
            queue.endpoints.push(id);
        }
        Ok(())
    }

    pub(crate) fn bind_vector(&mut self, id: Id<Endpoint>, vector: Id<Vector>) -> Outcome {
        let endpoint = self.endpoint(id)?;
        let known = self.vectors.get(vector).is_some_and(|vector| vector.domain == endpoint.domain);
        if !known || endpoint.enabled || endpoint.vector.is_some() {
            return self.refuse(Rule::Arguments, sys::FI_EINVAL, || {
                format!("endpoint {id} cannot be bound to address vector {vector}")
            });
        }
        if let Some(vector) = self.vectors.get_mut(vector) {
            if vector.was_bound && !self.settings.profile.shares_vectors {
                self.counters.count("refused.vectors");
                return Err(Errno(sys::FI_ENOSYS));
            }
            vector.users += 1;
            vector.was_bound = true;
        }
        self.endpoint_mut(id)?.vector = Some(vector);
        Ok(())
    }

    pub(crate) fn enable_endpoint(&mut self, id: Id<Endpoint>) -> Outcome {
        let endpoint = self.endpoint_mut(id)?;
        // A queue for each direction that it has: fi_endpoint(3), fi_ep_bind.
        let transmits = endpoint.initiates & (sys::FI_SEND | sys::FI_READ | sys::FI_WRITE) != 0;
        let receives = endpoint.accepts & (sys::FI_RECV | sys::FI_REMOTE_WRITE) != 0;
        if transmits && endpoint.transmit_queue.is_none()
            || receives && endpoint.receive_queue.is_none()
        {
            return Err(Errno(sys::FI_ENOCQ));
        }
        if endpoint.vector.is_none() {
            return Err(Errno(sys::FI_ENOAV));
        }
        let (nic, domain) = (endpoint.nic, endpoint.domain);
        if self.nics[nic].absent {
            self.counters.count("faults.absent");
            return Err(Errno(sys::FI_EADDRNOTAVAIL));
        }
        if self.settings.profile.has_cuda_pin && self.domain(domain)?.device_memory {
            let leaves_it = std::env::var_os("FI_CXI_DISABLE_HOST_REGISTER");
            if leaves_it.is_none_or(|value| value != "1") {
                self.counters.count("cuda.pinned");
            }
        }
        self.endpoint_mut(id)?.enabled = true;
        Ok(())
    }

    /// The NIC of an enabled endpoint: its address is the NIC and the endpoint's number.
    pub(crate) fn address_of(&self, id: Id<Endpoint>) -> Outcome<usize> {
        let endpoint = self.endpoint(id)?;
        if endpoint.enabled { Ok(endpoint.nic) } else { Err(Errno(sys::FI_EOPBADSTATE)) }
    }

    /// Closes an endpoint: nothing touches memory through it any more, and its operations in flight end without a completion.
    pub(crate) fn close_endpoint(&mut self, id: Id<Endpoint>) -> Outcome {
        let bound = self.endpoint(id)?.bound_regions;
        if bound > 0 {
            return self.refuse(Rule::CloseOrder, sys::FI_EBUSY, || {
                format!("endpoint {id} is closed before {bound} regions that are bound to it")
            });
        }
        self.change_endpoints();
        if self.stuck.contains(&id) {
            self.counters.count("faults.stuck");
            return Err(Errno(sys::FI_EBUSY));
        }
        self.abandon_operations_of(id);
        self.show_of_endpoint(id);
        let Some(endpoint) = self.endpoints.remove(id) else { return Ok(()) };
        for receive in &endpoint.receives {
            self.contexts.remove(&receive.context);
            self.end_use(receive.region);
        }
        // Operations of peers that have arrived find no endpoint.
        for operation in endpoint.inbox {
            self.at(self.clock, Event::Land(operation));
        }
        self.connecting.retain(|one| one.pair.0 != id && one.pair.1 != id);
        self.connected.retain(|pair| pair.0 != id && pair.1 != id);
        self.last_times.retain(|stream, _| stream.from != id && stream.to != id);
        for queue in [endpoint.transmit_queue, endpoint.receive_queue].into_iter().flatten() {
            self.forget_uses(queue, id);
            if let Some(queue) = self.queues.get_mut(queue) {
                queue.endpoints.retain(|one| *one != id);
            }
        }
        if let Some(vector) = endpoint.vector.and_then(|vector| self.vectors.get_mut(vector)) {
            vector.users -= 1;
        }
        self.domain_mut(endpoint.domain)?.users -= 1;
        Ok(())
    }

    /// Unread completions of a closed endpoint no longer count as uses of a region.
    fn forget_uses(&mut self, queue: Id<Queue>, endpoint: Id<Endpoint>) {
        let Some(queue) = self.queues.get_mut(queue) else { return };
        let entries = queue.entries.iter_mut().filter(|entry| entry.endpoint == endpoint);
        let regions: Vec<_> = entries.filter_map(|entry| entry.region.take()).collect();
        for region in regions {
            self.end_use(Some(region));
        }
    }

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
    pub(super) fn end_use(&mut self, region: Option<Id<Region>>) {
        if let Some(region) = region.and_then(|region| self.regions.get_mut(region)) {
            region.uses = region.uses.saturating_sub(1);
        }
    }

    /// Writes an entry to a queue.
    pub(super) fn write_entry(&mut self, queue: Option<Id<Queue>>, entry: Entry) {
        let Some(id) = queue else { return };
        let Some(queue) = self.queues.get_mut(id) else { return };
        queue.entries.push_back(entry);
        let (len, size) = (queue.entries.len(), queue.size);
        if len > size {
            self.broken(Rule::Overrun, || {
                format!("completion queue {id} of {size} entries has {len} to hold")
            });
        }
    }

    pub(super) fn domain(&self, id: Id<Domain>) -> Outcome<&Domain> {
        self.domains.get(id).ok_or(Errno(sys::FI_EINVAL))
    }

    fn domain_mut(&mut self, id: Id<Domain>) -> Outcome<&mut Domain> {
        self.domains.get_mut(id).ok_or(Errno(sys::FI_EINVAL))
    }

    pub(super) fn endpoint(&self, id: Id<Endpoint>) -> Outcome<&Endpoint> {
        self.endpoints.get(id).ok_or(Errno(sys::FI_EINVAL))
    }

    pub(super) fn endpoint_mut(&mut self, id: Id<Endpoint>) -> Outcome<&mut Endpoint> {
        self.endpoints.get_mut(id).ok_or(Errno(sys::FI_EINVAL))
    }

    pub(super) fn region(&self, id: Id<Region>) -> Outcome<&Region> {
        self.regions.get(id).ok_or(Errno(sys::FI_EINVAL))
    }

    fn region_mut(&mut self, id: Id<Region>) -> Outcome<&mut Region> {
        self.regions.get_mut(id).ok_or(Errno(sys::FI_EINVAL))
    }
}

impl Domain {
    /// FI_MR_* bits in force.
    pub(super) fn modes(&self) -> c_int {
        self.modes
    }
}

/// The size of a queue whose user leaves it to the provider.
const QUEUE_ENTRIES: usize = 1024;

/// Chosen keys use all eight bytes, so that a user that truncates them is detected.
const KEY_TAG: u64 = 0x5646_4142_0000_0000;
