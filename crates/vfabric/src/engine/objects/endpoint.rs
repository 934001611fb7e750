//! Endpoints: what is bound to them before they are enabled, and how they close.

use std::collections::VecDeque;

use libfabric_sys as sys;

use super::{Domain, Queue, Vector};
use crate::engine::flight::Message;
use crate::engine::post::Receive;
use crate::engine::{Engine, Errno, Event, EventQueue, Id, Operation, Outcome, sight};
use crate::ledger::Rule;
use crate::settings::{DeviceMemory, SharedMemory};

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
    pub(in crate::engine) domain: Id<Domain>,
    pub(in crate::engine) nic: usize,
    pub(in crate::engine) enabled: bool,
    pub(in crate::engine) transmit_queue: Option<Id<Queue>>,
    pub(in crate::engine) receive_queue: Option<Id<Queue>>,
    pub(in crate::engine) context: u64,
    /// FI_* capabilities: those of its posts, then those of peers' posts to it and of its receives.
    pub(in crate::engine) initiates: u64,
    pub(in crate::engine) accepts: u64,
    /// The flags of calls that have none (fi_endpoint(3), `op_flags`).
    pub(in crate::engine) transmit_flags: u64,
    pub(in crate::engine) receive_flags: u64,
    /// The directions (FI_TRANSMIT, FI_RECV) in which only operations that ask for an entry get one (FI_SELECTIVE_COMPLETION).
    pub(in crate::engine) selective: u64,
    pub(in crate::engine) vector: Option<Id<Vector>>,
    pub(in crate::engine) event_queue: Option<Id<EventQueue>>,
    /// FI_ORDER_* bits that were asked for.
    pub(in crate::engine) orders: u64,
    /// The queue size that the user asked for; that of the profile may be smaller.
    pub(in crate::engine) depth: usize,
    pub(in crate::engine) bound_regions: usize,
    /// How many bytes of its writes become visible together.
    pub(in crate::engine) line: u64,
    /// FI_OPT_SHARED_MEMORY_PERMITTED.
    pub(in crate::engine) shares_memory: bool,
    /// Operations whose completion is not written yet.
    pub(in crate::engine) outstanding: usize,
    /// Writes with immediates that have arrived since its queue was last polled.
    pub(in crate::engine) arrivals: usize,
    pub(in crate::engine) receives: VecDeque<Receive>,
    /// Messages that arrived before their receive was posted.
    pub(in crate::engine) unexpected: VecDeque<Message>,
    /// Accepted operations that leave at the next poll of this side.
    pub(in crate::engine) outbox: VecDeque<Id<Operation>>,
    /// Operations of peers that land at the next poll of this side.
    pub(in crate::engine) inbox: VecDeque<Id<Operation>>,
}

impl Engine {
    /// Makes an endpoint write blocks of 128 bytes in order, or stops that (FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES).
    pub(crate) fn order_lines(&mut self, id: Id<Endpoint>, ordered: bool) -> Outcome {
        self.check_options(id)?;
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
        self.check_options(id)?;
        match self.settings.device_memory_of(self.endpoint(id)?.nic) {
            DeviceMemory::None => Err(Errno(sys::FI_EINVAL)),
            DeviceMemory::Calls if !permitted => Err(Errno(sys::FI_EOPNOTSUPP)),
            DeviceMemory::Calls => Ok(()),
            DeviceMemory::Direct => {
                self.counters.count(if permitted { "cuda.permitted" } else { "cuda.forbidden" });
                Ok(())
            }
        }
    }

    /// Records whether the user permits an endpoint to use shared memory (FI_OPT_SHARED_MEMORY_PERMITTED).
    pub(crate) fn permit_shared_memory(&mut self, id: Id<Endpoint>, permitted: bool) -> Outcome {
        self.check_options(id)?;
        if self.settings.shared_memory == SharedMemory::Refused {
            return Err(Errno(sys::FI_EOPNOTSUPP));
        }
        if !permitted {
            self.counters.count("options.shared_memory");
        }
        self.endpoint_mut(id)?.shares_memory = permitted;
        Ok(())
    }

    /// Options are set before an endpoint is enabled: fi_endpoint(3), fi_setopt.
    fn check_options(&mut self, id: Id<Endpoint>) -> Outcome {
        if !self.endpoint(id)?.enabled {
            return Ok(());
        }
        self.refuse(Rule::Arguments, sys::FI_EOPBADSTATE, || {
            format!("endpoint {id} is enabled, and its options are set before that")
        })
    }

    /// Whether an endpoint may use shared memory, where that can be read.
    pub(crate) fn shares_memory(&self, id: Id<Endpoint>) -> Option<bool> {
        match self.settings.shared_memory {
            SharedMemory::Read => Some(self.endpoints.get(id)?.shares_memory),
            SharedMemory::Stuck => Some(true),
            SharedMemory::Set | SharedMemory::Refused => None,
        }
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
            shares_memory: true,
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

    pub(in crate::engine) fn endpoint(&self, id: Id<Endpoint>) -> Outcome<&Endpoint> {
        self.endpoints.get(id).ok_or(Errno(sys::FI_EINVAL))
    }

    pub(in crate::engine) fn endpoint_mut(&mut self, id: Id<Endpoint>) -> Outcome<&mut Endpoint> {
        self.endpoints.get_mut(id).ok_or(Errno(sys::FI_EINVAL))
    }
}
