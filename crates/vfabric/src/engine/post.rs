//! Posts: checked against every rule before they become operations.

use libfabric_sys as sys;

use super::operation::{Fate, Kind, Local, Remote, Source};
use super::{Connecting, Endpoint, Engine, Entry, Errno, Id, Operation, Outcome, Region, Vector};
use crate::faults::{self, Effect, Fault};
use crate::ledger::Rule;
use crate::memory;
use crate::profile::Progress;

/// One post, whichever call makes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) endpoint: Id<Endpoint>,
    pub(crate) kind: Kind,
    pub(crate) local: Local,
    /// The target's `fi_addr_t`.
    pub(crate) peer: u64,
    pub(crate) remote: Remote,
    pub(crate) immediate: Option<u64>,
    /// The tag of a tagged send.
    pub(crate) tag: Option<u64>,
    /// FI_COMPLETION, FI_INJECT, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE; None for calls without flags, which have the endpoint's.
    pub(crate) flags: Option<u64>,
    pub(crate) context: u64,
    /// Whether the call is of the inject family, which writes no completion.
    pub(crate) silent: bool,
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(super) local: Local,
    pub(super) context: u64,
    pub(super) region: Option<Id<Region>>,
    /// The tags that it matches; none: messages without a tag.
    pub(super) tags: Option<Tags>,
    /// Whether it completes with an entry also without an error.
    pub(super) signalled: bool,
}

/// The tags that a receive takes: fi_trecv in fi_tagged(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    pub(crate) tag: u64,
    /// Bits that are not compared.
    pub(crate) ignore: u64,
}

impl Tags {
    /// As on cxi, tags have 48 bits (libfabric prov/cxi/src/cxip_msg_hpc.c).
    pub(crate) const BITS: u64 = (1 << 48) - 1;
}

impl Receive {
    /// Whether it matches a message with this tag, or without one.
    pub(super) fn takes(&self, tag: Option<u64>) -> bool {
        match (self.tags, tag) {
            (None, None) => true,
            (Some(tags), Some(tag)) => (tags.tag ^ tag) & !tags.ignore == 0,
            _ => false,
        }
    }

    /// FI_TAGGED or FI_MSG, for the completion's flags.
    pub(super) fn class(&self) -> u64 {
        if self.tags.is_some() { sys::FI_TAGGED } else { sys::FI_MSG }
    }
}

/// Marks descriptors, so that no other number is mistaken for one; as a pointer it is invalid.
const DESCRIPTOR_TAG: u64 = 0x5646_0000_0000_0000;

/// The descriptor of a region.
pub(crate) const fn descriptor(region: Id<Region>) -> u64 {
    DESCRIPTOR_TAG | region.number()
}

impl Ask {
    /// The counters of posts and of accepted operations of this kind.
    fn names(&self) -> (&'static str, &'static str) {
        match (self.kind, self.immediate.is_some(), self.silent) {
            (Kind::Write, false, false) => ("posts.write", "accepted.write"),
            (Kind::Write, true, false) => ("posts.writedata", "accepted.writedata"),
            (Kind::Write, false, true) => ("posts.inject_write", "accepted.inject_write"),
            (Kind::Write, true, true) => ("posts.inject_writedata", "accepted.inject_writedata"),
            (Kind::Read, ..) => ("posts.read", "accepted.read"),
            (Kind::Send, _, false) if self.tag.is_some() => ("posts.tsend", "accepted.tsend"),
            (Kind::Send, _, true) if self.tag.is_some() => ("posts.tinject", "accepted.tinject"),
            (Kind::Send, _, false) => ("posts.send", "accepted.send"),
            (Kind::Send, _, true) => ("posts.inject", "accepted.inject"),
        }
    }

    /// What sentences call it.
    fn name(&self) -> &'static str {
        self.names().0
    }

    /// The access with which the local region must have been registered: fi_mr(3).
    fn access(&self) -> u64 {
        match self.kind {
            Kind::Write => sys::FI_WRITE,
            Kind::Read => sys::FI_READ,
            Kind::Send => sys::FI_SEND,
        }
    }

    /// The capabilities that the endpoint needs for it: fi_getinfo(3).
    fn caps(&self) -> u64 {
        match self.kind {
            Kind::Write => sys::FI_RMA | sys::FI_WRITE,
            Kind::Read => sys::FI_RMA | sys::FI_READ,
            Kind::Send if self.tag.is_some() => sys::FI_TAGGED | sys::FI_SEND,
            Kind::Send => sys::FI_MSG | sys::FI_SEND,
        }
    }

    /// Whether it has this flag.
    fn has(&self, flag: u64) -> bool {
        self.flags.is_some_and(|flags| flags & flag != 0)
    }

    fn is_injected(&self) -> bool {
        self.silent || self.has(sys::FI_INJECT)
    }
}

impl Engine {
    /// Accepts a send, a write or a read. -FI_EAGAIN where the queue is full or a fault says so.
    pub(crate) fn post(&mut self, mut ask: Ask) -> Outcome {
        let nic = self.ready(ask.endpoint)?;
        let endpoint = self.endpoint(ask.endpoint)?;
        if ask.caps() & !endpoint.initiates != 0 {
            return Err(Errno(sys::FI_ENOSYS));
        }
        // The inject family completes nothing, and of all flags only FI_COMPLETION is about a read.
        let defaults = match ask.kind {
            _ if ask.silent => 0,
            Kind::Read => endpoint.transmit_flags & READ_FLAGS,
            Kind::Write | Kind::Send => endpoint.transmit_flags,
        };
        ask.flags.get_or_insert(defaults);
        let (target, region) = self.check(&ask)?;
        ask.local.shift = self.shift_of(region);
        let (posts, accepted) = ask.names();
        self.counters.count(posts);
        self.may_start(nic, &ask, target)?;
        let operation = self.operation(&ask, target, region)?;
        self.counters.count(accepted);
        self.accept(operation);
        Ok(())
    }

    /// Checks a request against the endpoint and the profile. Returns its target, and the region of its local memory.
    fn check(&mut self, ask: &Ask) -> Outcome<(Id<Endpoint>, Option<Id<Region>>)> {
        self.check_flags(ask)?;
        if ask.kind == Kind::Write && ask.immediate.is_some() && !self.settings.profile.immediates {
            self.counters.count("refused.immediate");
            return Err(Errno(sys::FI_ENOSYS));
        }
        self.check_length(ask)?;
        let target = self.peer_of(ask)?;
        self.check_kind(ask)?;
        let region = if ask.is_injected() {
            None
        } else {
            self.check_local(ask.endpoint, &ask.local, ask.access())?
        };
        Ok((target, region))
    }

    /// -FI_EAGAIN where the queue is full or a fault says so; an error where a fault has ended the path to the target.
    fn may_start(&mut self, nic: usize, ask: &Ask, target: Id<Endpoint>) -> Outcome {
        self.may_post(nic, ask.local.len)?;
        self.may_reach(target)?;
        self.connect(ask.endpoint, target)?;
        let endpoint = self.endpoint(ask.endpoint)?;
        if endpoint.outstanding >= endpoint.depth.min(self.settings.profile.transmit_depth) {
            self.counters.count("refused.full");
            return Err(Errno(sys::FI_EAGAIN));
        }
        Ok(())
    }

    /// The operation that a request begins.
    fn operation(
        &mut self,
        ask: &Ask,
        target: Id<Endpoint>,
        region: Option<Id<Region>>,
    ) -> Outcome<Operation> {
        let endpoint = self.endpoint(ask.endpoint)?;
        let (selective, own) = (endpoint.selective & sys::FI_TRANSMIT != 0, endpoint.context);
        let line = endpoint.line;
        let signalled = !ask.silent && (!selective || ask.has(sys::FI_COMPLETION));
        let source = self.source_of(ask)?;
        // The inject family has no context: errors have the endpoint's.
        let context = match ask.silent {
            true => own,
            false => self.take_context(ask.context, ask.endpoint, signalled)?,
        };
        // A send buffer takes the bytes, and a completion that promises no more can be written at once.
        let reported = self.settings.profile.progress == Progress::Software
            && !ask.has(sys::FI_TRANSMIT_COMPLETE | sys::FI_DELIVERY_COMPLETE)
            && ask.kind != Kind::Read;
        let immediate =
            ask.immediate.map(|immediate| match self.settings.profile.immediate_bytes {
                bytes @ 0..8 => immediate & ((1 << (8 * bytes)) - 1),
                _ => immediate,
            });
        let print = if ask.is_injected() || ask.kind == Kind::Read {
            None
        } else {
            memory::print(ask.local.place(), memory::bits(ask.local.len))
        };
        Ok(Operation {
            kind: ask.kind,
            initiator: ask.endpoint,
            target,
            peer: ask.peer,
            context,
            local: ask.local,
            remote: ask.remote,
            immediate,
            tag: ask.tag,
            source,
            print,
            region,
            signalled,
            silent: ask.silent,
            delivery: ask.has(sys::FI_DELIVERY_COMPLETE),
            line,
            reported,
            was_read: false,
            departed: false,
            fails_late: false,
            vanishes: false,
            breaks_off: false,
            fate: Fate::default(),
            delay: 0,
            held: None,
            read_device: None,
            read_after: Id::of(0),
            result: Ok(()),
        })
    }

    /// Posts a receive; a message that arrived before fills it at once.
    pub(crate) fn post_receive(
        &mut self,
        id: Id<Endpoint>,
        mut local: Local,
        tags: Option<Tags>,
        flags: Option<u64>,
        context: u64,
    ) -> Outcome {
        let nic = self.ready(id)?;
        let endpoint = self.endpoint(id)?;
        let class = if tags.is_some() { sys::FI_TAGGED } else { sys::FI_MSG };
        if (class | sys::FI_RECV) & !endpoint.accepts != 0 {
            return Err(Errno(sys::FI_ENOSYS));
        }
        let selective = endpoint.selective & sys::FI_RECV != 0;
        let asked = flags.unwrap_or(endpoint.receive_flags) & sys::FI_COMPLETION != 0;
        let signalled = !selective || asked;
        let region = self.check_local(id, &local, sys::FI_RECV)?;
        local.shift = self.shift_of(region);
        self.counters.count(if tags.is_some() { "posts.trecv" } else { "posts.recv" });
        // Faults that look for a length do not count the bytes of a receive.
        self.may_post(nic, 0)?;
        self.may_receive(id)?;
        if self.endpoint(id)?.receives.len() >= self.settings.profile.receive_depth {
            self.counters.count("refused.full");
            return Err(Errno(sys::FI_EAGAIN));
        }
        self.counters.count(if tags.is_some() { "accepted.trecv" } else { "accepted.recv" });
        let context = self.take_context(context, id, signalled)?;
        if let Some(region) = region.and_then(|region| self.regions.get_mut(region)) {
            region.uses += 1;
        }
        let receive = Receive { local, context, region, tags, signalled };
        let endpoint = self.endpoint_mut(id)?;
        let came = endpoint.unexpected.iter().position(|message| receive.takes(message.tag));
        match came.and_then(|place| endpoint.unexpected.remove(place)) {
            Some(message) => self.fill(id, receive, message),
            None => endpoint.receives.push_back(receive),
        }
        Ok(())
    }

    /// Cancels a receive: it completes with FI_ECANCELED.
    pub(crate) fn cancel(&mut self, id: Id<Endpoint>, context: u64) -> Outcome {
        let endpoint = self.endpoint_mut(id)?;
        let place = endpoint.receives.iter().position(|receive| receive.context == context);
        let place = place.ok_or(Errno(sys::FI_ENOENT))?;
        let receive = endpoint.receives.remove(place).ok_or(Errno(sys::FI_ENOENT))?;
        self.counters.count("cancelled");
        self.end_without_message(id, &receive);
        Ok(())
    }

    /// A receive ends with FI_ECANCELED.
    pub(super) fn end_without_message(&mut self, id: Id<Endpoint>, receive: &Receive) {
        self.give_context_back(receive.context);
        let flags = receive.class() | sys::FI_RECV;
        let mut entry = Entry::new(id, receive.context, flags);
        entry.error = Some((Errno(sys::FI_ECANCELED), 0));
        entry.region = receive.region;
        let queue = self.endpoints.get(id).and_then(|endpoint| endpoint.receive_queue);
        self.write_entry(queue, entry);
    }

    /// The NIC of an endpoint that is enabled.
    fn ready(&mut self, id: Id<Endpoint>) -> Outcome<usize> {
        match self.endpoints.get(id) {
            Some(endpoint) if endpoint.enabled => Ok(endpoint.nic),
            _ => self.refuse(Rule::Arguments, sys::FI_EOPBADSTATE, || {
                format!("a post on endpoint {id}, which is not enabled")
            }),
        }
    }

    /// Checks flags, immediate and tag against what fi_rma(3), fi_msg(3) and the profile know.
    fn check_flags(&mut self, ask: &Ask) -> Outcome {
        let known = if ask.kind == Kind::Read { READ_FLAGS } else { SEND_FLAGS };
        let unknown = ask.flags.unwrap_or(0) & !known;
        if unknown != 0 {
            return self.refuse(Rule::Arguments, sys::FI_EBADFLAGS, || {
                format!("{} on endpoint {} with flags {unknown:#x}", ask.name(), ask.endpoint)
            });
        }
        if ask.immediate.is_some() && self.settings.profile.immediate_bytes == 0 {
            return self.refuse(Rule::Arguments, sys::FI_EINVAL, || {
                format!(
                    "{} with data on endpoint {}, and cq_data_size is 0",
                    ask.name(),
                    ask.endpoint
                )
            });
        }
        if ask.tag.is_some_and(|tag| tag & !Tags::BITS != 0) {
            return Err(Errno(sys::FI_EINVAL));
        }
        Ok(())
    }

    fn check_length(&mut self, ask: &Ask) -> Outcome {
        let profile = &self.settings.profile;
        let most = match (ask.is_injected(), ask.kind) {
            (false, Kind::Write) if ask.immediate.is_some() => {
                profile.max_message.min(profile.max_piece)
            }
            (false, _) => profile.max_message,
            (true, Kind::Write | Kind::Read) if self.names_rma_limit => {
                profile.inject_rma_bytes as u64
            }
            // With a library that does not report the second limit, the user knows only this one.
            (true, _) => profile.inject_bytes as u64,
        };
        if ask.local.len > most {
            return self.refuse(Rule::TooLong, sys::FI_EMSGSIZE, || {
                format!(
                    "{} of {} bytes on endpoint {}, and {most} is the most",
                    ask.name(),
                    ask.local.len,
                    ask.endpoint
                )
            });
        }
        Ok(())
    }

    fn peer_of(&mut self, ask: &Ask) -> Outcome<Id<Endpoint>> {
        let vector = self.endpoint(ask.endpoint)?.vector;
        let peer = vector
            .and_then(|vector| self.vectors.get(vector))
            .and_then(|vector| vector.peer(ask.peer));
        match peer {
            Some(peer) => {
                self.meet(ask, vector, peer);
                Ok(peer)
            }
            None => self.refuse(Rule::UnknownPeer, sys::FI_EINVAL, || {
                format!(
                    "{} on endpoint {} to peer {}, which its address vector does not have",
                    ask.name(),
                    ask.endpoint,
                    ask.peer
                )
            }),
        }
    }

    /// Records a post to a peer, which the initiator must not have forgotten since the previous post.
    fn meet(&mut self, ask: &Ask, vector: Option<Id<Vector>>, peer: Id<Endpoint>) {
        if !self.settings.profile.forgets_peers {
            return;
        }
        let Some(vector) = vector.and_then(|vector| self.vectors.get_mut(vector)) else { return };
        if !vector.meet(peer) {
            self.broken(Rule::ForgottenPeer, || {
                format!(
                    "{} on endpoint {} to endpoint {peer}, whose address was removed meanwhile: it takes this for a repetition",
                    ask.name(),
                    ask.endpoint,
                )
            });
        }
    }

    /// Device memory needs a descriptor that names it, and cannot be injected: the CPU cannot read it.
    fn check_kind(&mut self, ask: &Ask) -> Outcome {
        let Local { address, len, descriptor, .. } = ask.local;
        let device = |region: &Region| region.device.is_some() && region.holds(address, len);
        let bare = ask.is_injected() || descriptor == 0;
        if bare && len > 0 && self.regions.iter().any(|(_, region)| device(region)) {
            return self.refuse(Rule::NoDescriptor, sys::FI_EFAULT, || {
                format!(
                    "{} of {len} bytes of a device's memory at {address:#x} without descriptor",
                    ask.name()
                )
            });
        }
        Ok(())
    }

    pub(super) fn shift_of(&self, region: Option<Id<Region>>) -> u64 {
        region.and_then(|region| self.regions.get(region)).map_or(0, |region| region.shift)
    }

    /// Checks that this endpoint may use these bytes. Returns their region.
    fn check_local(
        &mut self,
        id: Id<Endpoint>,
        local: &Local,
        access: u64,
    ) -> Outcome<Option<Id<Region>>> {
        let domain = self.endpoint(id)?.domain;
        let modes = self.domain(domain)?.modes();
        if local.descriptor == 0 {
            if modes & sys::FI_MR_LOCAL != 0 && local.len > 0 {
                return self.refuse(Rule::NoDescriptor, sys::FI_EINVAL, || {
                    format!("{} bytes without descriptor on endpoint {id}", local.len)
                });
            }
            return Ok(None);
        }
        let number = Id::of(local.descriptor ^ DESCRIPTOR_TAG);
        let Some(region) = self.regions.get(number) else {
            let (rule, what) = if self.regions.was(number) {
                (Rule::Closed, "of a closed region")
            } else {
                (Rule::Unknown, "that never was one")
            };
            return self.refuse(rule, sys::FI_EINVAL, || {
                format!("descriptor {:#x} {what} on endpoint {id}", local.descriptor)
            });
        };
        let region = region.clone();
        let binds = modes & sys::FI_MR_ENDPOINT != 0;
        let broken = if region.domain != domain {
            Some((Rule::WrongDescriptor, "it belongs to another domain"))
        } else if binds && region.endpoint.is_some_and(|endpoint| endpoint != id) {
            Some((Rule::WrongDescriptor, "it is bound to another endpoint"))
        } else if !region.enabled {
            Some((Rule::NotEnabled, "it is not enabled"))
        } else if !region.holds(local.address, local.len) {
            Some((Rule::Bounds, "the bytes lie outside of it"))
        } else if local.len > 0 && region.access & access == 0 {
            Some((Rule::Rights, "it was not registered for this"))
        } else {
            None
        };
        if let Some((rule, why)) = broken {
            return self.refuse(rule, sys::FI_EACCES, || {
                format!(
                    "{} bytes at {:#x} on endpoint {id} with region {number} ({} bytes at {:#x}, endpoint {:?}): {why}",
                    local.len, local.address, region.len, region.base, region.endpoint
                )
            });
        }
        Ok(Some(number))
    }

    /// Counts the post, runs the script up to it, and refuses it if the script or chance says so.
    fn may_post(&mut self, nic: usize, len: u64) -> Outcome {
        self.posts += 1;
        let post = self.posts;
        while let Some((nic, action)) = faults::take_nic(&mut self.faults, post) {
            self.change_nic(nic, action)?;
        }
        self.nics[nic].operations += 1;
        let scripted =
            |fault: &Fault| matches!(fault, Fault::Refuse(range) if range.contains(&post));
        if self.faults.iter().any(scripted) {
            self.counters.count("faults.refuse");
            return Err(Errno(sys::FI_EAGAIN));
        }
        if faults::take(&mut self.faults, Effect::Reject, post, len) {
            self.counters.count("faults.reject");
            return Err(Errno(sys::FI_EIO));
        }
        if self.random.chance(self.settings.eagain_permille) {
            self.counters.count("faults.refuse_random");
            return Err(Errno(sys::FI_EAGAIN));
        }
        Ok(())
    }

    /// Refuses a post to an endpoint that is shut.
    fn may_reach(&mut self, target: Id<Endpoint>) -> Outcome {
        self.change_endpoints();
        if self.shut.contains(&target) {
            self.counters.count("faults.shut");
            return Err(Errno(sys::FI_EAGAIN));
        }
        Ok(())
    }

    /// Rejects a receive on an endpoint that is deaf.
    fn may_receive(&mut self, endpoint: Id<Endpoint>) -> Outcome {
        self.change_endpoints();
        if self.deaf.contains(&endpoint) {
            self.counters.count("faults.deaf");
            return Err(Errno(sys::FI_EIO));
        }
        Ok(())
    }

    /// Closes and opens endpoints for posts and for receives, and makes their closes fail, as the script says.
    pub(super) fn change_endpoints(&mut self) {
        let Self { faults, shut, deaf, stuck, counters, posts, .. } = self;
        faults.retain(|fault| match fault {
            Fault::Shut(endpoint, at) if *at <= *posts => {
                shut.insert(Id::of(*endpoint));
                false
            }
            Fault::Open(endpoint, at) if *at <= *posts => {
                if shut.remove(&Id::of(*endpoint)) {
                    counters.count("faults.open");
                }
                false
            }
            Fault::Deaf(endpoint, at) if *at <= *posts => {
                deaf.insert(Id::of(*endpoint));
                false
            }
            Fault::Hears(endpoint, at) if *at <= *posts => {
                if deaf.remove(&Id::of(*endpoint)) {
                    counters.count("faults.hears");
                }
                false
            }
            Fault::Stuck(endpoint, at) if *at <= *posts => {
                stuck.insert(Id::of(*endpoint));
                false
            }
            _ => true,
        });
    }

    /// The first posts to a peer get -FI_EAGAIN until both ends have polled.
    fn connect(&mut self, from: Id<Endpoint>, to: Id<Endpoint>) -> Outcome {
        if self.settings.profile.progress == Progress::Hardware || !self.is_open(to) {
            return Ok(());
        }
        let pair = (from.min(to), from.max(to));
        if self.connected.contains(&pair) {
            return Ok(());
        }
        if !self.connecting.iter().any(|one| one.pair == pair) {
            self.connecting.push(Connecting { pair, owed: [HANDSHAKE_POLLS; 2] });
        }
        self.counters.count("refused.connect");
        Err(Errno(sys::FI_EAGAIN))
    }

    /// A poll of an endpoint's owner advances its connections.
    pub(super) fn move_connections(&mut self, endpoint: Id<Endpoint>) {
        for one in &mut self.connecting {
            let (first, second) = one.pair;
            if first == endpoint {
                one.owed[0] = one.owed[0].saturating_sub(1);
            }
            if second == endpoint {
                one.owed[1] = one.owed[1].saturating_sub(1);
            }
        }
        let connected = &mut self.connected;
        self.connecting.retain(|one| {
            let done = one.owed == [0, 0];
            if done {
                connected.insert(one.pair);
            }
            !done
        });
    }

    pub(super) fn is_open(&self, endpoint: Id<Endpoint>) -> bool {
        self.endpoints.get(endpoint).is_some_and(|endpoint| endpoint.enabled)
    }

    /// Copies the bytes now if they are injected, or if the provider buffers them; otherwise they are read when the operation departs.
    fn source_of(&mut self, ask: &Ask) -> Outcome<Source> {
        let early = ask.is_injected() || self.settings.profile.progress == Progress::Software;
        if ask.kind == Kind::Read || !early {
            return Ok(Source::Memory);
        }
        let mut bytes = vec![0; memory::bits(ask.local.len)];
        if memory::read(ask.local.place(), &mut bytes) {
            return Ok(Source::Taken(bytes));
        }
        self.refuse(Rule::FreedEarly, sys::FI_EFAULT, || {
            format!(
                "{} of {} bytes at {:#x}, which is no memory",
                ask.name(),
                ask.local.len,
                ask.local.address
            )
        })
    }

    /// FI_CONTEXT2: each operation has a context of its own, and the provider writes to it while the operation is in flight. That of an
    /// operation without a completion is ignored, and its errors have the endpoint's (fi_endpoint(3), NOTES). Returns the operation's context.
    fn take_context(
        &mut self,
        context: u64,
        endpoint: Id<Endpoint>,
        signalled: bool,
    ) -> Outcome<u64> {
        if self.settings.profile.mode & sys::FI_CONTEXT2 == 0 {
            return Ok(context);
        }
        if !signalled {
            return Ok(self.endpoint(endpoint)?.context);
        }
        if context == 0 || !memory::write(context, &SCRIBBLE) {
            self.broken(Rule::Context, || {
                format!("an operation of endpoint {endpoint} without context, where FI_CONTEXT2 is in force")
            });
        } else if !self.contexts.insert(context) {
            self.broken(Rule::Context, || {
                format!("context {context:#x} is posted on endpoint {endpoint} while an operation has it")
            });
        }
        Ok(context)
    }

    /// Checks the context of an operation whose completion is about to be written.
    pub(super) fn give_context_back(&mut self, context: u64) {
        if !self.contexts.remove(&context) {
            return;
        }
        let mut seen = [0; SCRIBBLE.len()];
        if !memory::read(context, &mut seen) || seen != SCRIBBLE {
            self.broken(Rule::Context, || {
                format!("context {context:#x} was freed or written to while an operation had it")
            });
        }
    }
}

impl Region {
    /// Whether the region contains these bytes.
    pub(super) fn holds(&self, address: u64, len: u64) -> bool {
        let end = address.checked_sub(self.base).and_then(|offset| offset.checked_add(len));
        end.is_some_and(|end| end <= self.len)
    }
}

/// The flags of fi_writemsg (fi_rma(3)) and fi_sendmsg (fi_msg(3)). FI_FENCE needs a capability that no profile has.
const SEND_FLAGS: u64 = sys::FI_REMOTE_CQ_DATA
    | sys::FI_COMPLETION
    | sys::FI_MORE
    | sys::FI_INJECT
    | sys::FI_INJECT_COMPLETE
    | sys::FI_TRANSMIT_COMPLETE
    | sys::FI_DELIVERY_COMPLETE;

/// The flags of fi_readmsg: fi_rma(3) has all others for writes.
const READ_FLAGS: u64 = sys::FI_COMPLETION | sys::FI_MORE;

/// What a context contains while its operation is in flight: 64 bytes, the size of `fi_context2`.
const SCRIBBLE: [u8; 64] = [0x5f; 64];

/// Polls that each end makes before a connection is up.
const HANDSHAKE_POLLS: u8 = 2;
