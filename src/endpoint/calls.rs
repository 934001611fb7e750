//! isend, irecv and test: one way each. What is rare is a call on it.

use proto::Line;
use proto::budget::Budget;
use proto::endpoint::SubmitError;
use proto::limits::MAX_GROUP;
use proto::{
    Flow, MessageId, Moment, Outgoing, Posting, Receive, ReceiveFlow, ReceivePoll, SendFlow,
    SendPoll, Slot, Source, Submit, Target,
};

use fabric::MemoryKind;

use super::Endpoint;
use super::comms::{Side, line_near};
use super::hands::{LANDING, name_of};
use crate::error::{Cause, Noun, Result};
use crate::handle::{Handle, HandleKind, Name};
use crate::types::{Buffer, Tested};

/// A buffer of NCCL's, as the protocol names it.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    address: u64,
    len: usize,
    tag: i32,
    region: u32,
    /// In host memory.
    host: bool,
}

/// What is not told yet of a receive.
const NO_BYTES: Bytes = Bytes { address: 0, len: 0, tag: 0, region: LANDING, host: true };
const NO_RECEIVE: Receive<'_> = Receive {
    target: Target { address: 0, region: LANDING },
    address: 0,
    len: 0,
    tag: 0,
    keys: &[],
    host: true,
};

impl Endpoint {
    /// Sends a message. `None`: not now; a poll was made.
    #[inline]
    pub(crate) fn isend(&mut self, comm: Name, outgoing: Buffer) -> Result<Option<Name>> {
        let handle = comm.sender()?;
        let bytes = self.bytes(outgoing)?;
        self.check_intact()?;
        let (slot, _) = self.comms.open(handle, Side::Send, Noun::SendComm)?;
        let Bytes { address, len, tag, region, host } = bytes;
        let message = Outgoing { tag, len: len as u64, source: Source { address, region }, host };
        let now = self.now();
        let mut sent = self.core.submit(&mut self.hands, slot, &message, now);
        if let Ok(Submit::NotNow) = sent {
            self.progress_at(now);
            sent = self.core.submit(&mut self.hands, slot, &message, now);
        }
        match sent {
            Ok(Submit::Inline { message, .. }) => {
                Ok(Some(self.sent(comm, slot, message, true, now)))
            }
            Ok(Submit::Parts { message }) => Ok(Some(self.sent(comm, slot, message, false, now))),
            Ok(Submit::NotNow) => {
                self.count_wait(slot);
                Ok(None)
            }
            Err(error) => Err(self.refused(slot, error)),
        }
    }

    #[inline]
    fn sent(
        &mut self,
        comm: Name,
        slot: Slot,
        message: MessageId,
        inline: bool,
        now: Moment,
    ) -> Name {
        self.outstanding += 1;
        let line = self.comms.at_mut(slot).map_or(0, |comm| comm.sent(message, inline, now));
        comm.request(line)
    }

    /// Posts a receive, or a group. `None`: not now; a poll was made.
    #[inline]
    pub(crate) fn irecv(
        &mut self,
        comm: Name,
        receives: &[Buffer],
        how: Posting,
    ) -> Result<Option<Name>> {
        let handle = comm.receiver()?;
        if receives.len() > MAX_GROUP {
            let (count, most) = (receives.len(), MAX_GROUP);
            return Err(Cause::GroupOfDevice { count, most }.into());
        }
        // One receive is by far the most common group.
        let (mut one, mut several);
        let all: &mut [Bytes] = if receives.len() == 1 {
            one = [NO_BYTES; 1];
            &mut one
        } else {
            several = [NO_BYTES; MAX_GROUP];
            &mut several[..receives.len()]
        };
        for (bytes, receive) in all.iter_mut().zip(receives) {
            *bytes = self.bytes(*receive)?;
        }
        self.check_intact()?;
        let (slot, _) = self.comms.open(handle, Side::Receive, Noun::ReceiveComm)?;
        let now = self.now();
        self.core.send_urgent(&mut self.hands, slot, now);
        let mut posted = self.post(slot, all, how, now)?;
        if posted.is_none() {
            self.progress_at(now);
            posted = self.post(slot, all, how, now)?;
        }
        let Some(first) = posted else {
            self.count_wait(slot);
            return Ok(None);
        };
        self.outstanding += 1;
        let line = self.comms.at_mut(slot).map_or(0, |comm| comm.received(first, now));
        let request = comm.request(line);
        Ok(Some(if how.optional { self.optional(request) } else { request }))
    }

    fn post(
        &mut self,
        slot: Slot,
        all: &[Bytes],
        how: Posting,
        now: Moment,
    ) -> Result<Option<Line>> {
        let mut keys = std::mem::take(&mut self.keys);
        let rails = self.gather_keys(slot, all, &mut keys);
        let Self { core, hands, budget, .. } = self;
        let (mut one, mut several);
        let receives: &mut [Receive<'_>] = if all.len() == 1 {
            one = [NO_RECEIVE; 1];
            &mut one
        } else {
            several = [NO_RECEIVE; MAX_GROUP];
            &mut several[..all.len()]
        };
        for (at, (place, bytes)) in receives.iter_mut().zip(all).enumerate() {
            let Bytes { address, len, tag, region, host } = *bytes;
            let keys = keys.get(at * rails..(at + 1) * rails).unwrap_or_default();
            let known = hands.region(region);
            let named = known.map_or(address, |region| region.target(address));
            let target = Target { address, region };
            *place = Receive { target, address: named, len: len as u64, tag, keys, host };
        }
        let receives = &*receives;
        let posted = core.with(hands, slot, now, |flow, account| {
            let flow = flow.receiver_mut()?;
            give_back(budget, std::mem::take(&mut account.entries_freed));
            let cost = receives.iter().map(|receive| flow.entries(receive.len)).sum();
            if flow.fault().is_none() && !budget.take(slot, cost) {
                return Some(Ok(None));
            }
            let posted = flow.post(receives, how, account, now);
            if !matches!(posted, Ok(Some(_))) && flow.fault().is_none() {
                give_back(budget, cost);
            }
            Some(posted)
        });
        self.keys = keys;
        match posted.flatten() {
            Some(Ok(None)) => {
                let freed = self.core.entries_freed();
                give_back(&mut self.budget, freed);
                Ok(None)
            }
            Some(Ok(first)) => Ok(first),
            Some(Err(fault)) => Err(self.failed(slot, fault)),
            None => Err(Cause::Stale(Noun::ReceiveComm).into()),
        }
    }

    /// The keys of each receive, in the order of the channel's data rails; how many rails there are.
    fn gather_keys(&self, slot: Slot, all: &[Bytes], keys: &mut Vec<u64>) -> usize {
        keys.clear();
        let channel = self.comms.at(slot).map(|comm| comm.channel);
        let Some(peer) = channel.and_then(|channel| self.hands.peer(channel)) else { return 0 };
        for bytes in all {
            if let Some(region) = self.hands.region(bytes.region) {
                keys.extend(peer.data.iter().map(|lane| region.key(lane.nic)));
            }
        }
        peer.data.len()
    }

    /// The request of a receive that may end before its bytes are there.
    #[cold]
    fn optional(&self, request: Name) -> Name {
        let Some(handle) = Handle::from_bits(request.bits()) else { return request };
        let (generation, slot) = (handle.generation(), handle.slot());
        let kind = HandleKind::OptionalReceiveRequest;
        Handle::new(kind, self.number, generation, slot, handle.line()).name()
    }

    /// Asks for the request, and polls before it says "not yet". One that is done already is said at once: a poll brings several,
    /// and NCCL asks for them one by one (docs/decisions/0003-no-turn-for-what-is-done.md).
    #[inline]
    pub(crate) fn test(&mut self, request: Name) -> Result<Tested> {
        let handle = request.any_request()?;
        self.check_intact()?;
        if handle.is(HandleKind::FlushRequest) {
            return self.test_flush(handle);
        }
        // By the clock of the last poll: nothing has changed since.
        if let done @ (Tested::Done(_) | Tested::Group { .. }) = self.ask(handle, self.hands.now)? {
            return Ok(done);
        }
        let now = self.now();
        self.progress_at(now);
        self.ask(handle, now)
    }

    #[inline]
    fn ask(&mut self, request: Handle, now: Moment) -> Result<Tested> {
        let side = super::comms::side_of(request);
        let (slot, comm) = self.comms.open(request, side, Noun::Request)?;
        let line = request.line();
        if !comm.has(line) {
            return Err(Cause::Stale(Noun::Request).into());
        }
        let tested = match side {
            Side::Send => self.ask_send(slot, line, now)?,
            Side::Receive => self.ask_receive(slot, line, request, now)?,
        };
        if !matches!(tested, Tested::Pending) {
            self.reported(slot, line, &tested, now);
        }
        Ok(tested)
    }

    #[inline]
    fn ask_send(&mut self, slot: Slot, line: u16, now: Moment) -> Result<Tested> {
        let message = MessageId::new((line & 63) as u8);
        let flow = self.core.connection(slot).and_then(Flow::sender);
        if flow.is_some_and(|flow| flow.is_pending(message)) {
            return Ok(Tested::Pending);
        }
        let polled = self.core.with(&mut self.hands, slot, now, |flow, _| {
            flow.sender_mut().map(|flow| flow.poll(message))
        });
        match polled.flatten() {
            Some(SendPoll::Pending) => Ok(Tested::Pending),
            Some(SendPoll::Done { len }) => {
                let flow = self.core.connection(slot).and_then(Flow::sender);
                if let Some(cut) = flow.and_then(SendFlow::cut) {
                    self.warn_of_cut(slot, cut);
                }
                Ok(Tested::Done(len))
            }
            Some(SendPoll::Failed(fault)) => Err(self.failed(slot, fault)),
            None => Err(Cause::Stale(Noun::Request).into()),
        }
    }

    #[inline]
    fn ask_receive(
        &mut self,
        slot: Slot,
        line: u16,
        request: Handle,
        now: Moment,
    ) -> Result<Tested> {
        let optional = request.is(HandleKind::OptionalReceiveRequest);
        let flow = self.core.connection(slot).and_then(Flow::receiver);
        let pending = |flow: &ReceiveFlow| flow.is_pending(line_near(flow.next(), line));
        if !optional && flow.is_some_and(pending) {
            return Ok(Tested::Pending);
        }
        let mut sizes = [0; MAX_GROUP];
        let mut carried = 0;
        let polled = self.core.with(&mut self.hands, slot, now, |flow, _| {
            let flow = flow.receiver_mut()?;
            let first = line_near(flow.next(), line);
            let polled = flow.poll(first);
            if let ReceivePoll::Done { count } = polled {
                for (size, index) in sizes.iter_mut().zip(0..count) {
                    let line = first.plus(index);
                    *size = usize::try_from(flow.size(line)).unwrap_or(usize::MAX);
                    carried |= flow.carried(line);
                }
            }
            let early = optional && polled == ReceivePoll::Pending && flow.poll_early(first);
            Some((polled, early))
        });
        match polled.flatten() {
            Some((_, true)) => {
                self.counters.early_receives += 1;
                // The size is not known yet, and nobody asks: what NCCL flushes is never optional.
                Ok(Tested::Done(0))
            }
            Some((ReceivePoll::Pending, _)) => Ok(Tested::Pending),
            Some((ReceivePoll::Done { count }, _)) => {
                let flow = self.core.connection(slot).and_then(Flow::receiver);
                if let Some(cut) = flow.and_then(ReceiveFlow::cut) {
                    self.warn_of_cut(slot, cut);
                }
                if let Some(comm) = self.comms.at_mut(slot) {
                    comm.tally.received(carried, count);
                    comm.flushing.carried(carried);
                }
                Ok(match count {
                    1 => Tested::Done(sizes[0] as u64),
                    count => Tested::Group { count: count as usize, sizes },
                })
            }
            Some((ReceivePoll::Failed(fault), _)) => Err(self.failed(slot, fault)),
            None => Err(Cause::Stale(Noun::Request).into()),
        }
    }

    /// The end of a request is told. Of the last one only when frames that a peer waits for have left: NCCL may never call again.
    #[inline]
    fn reported(&mut self, slot: Slot, line: u16, tested: &Tested, now: Moment) {
        if let Some(comm) = self.comms.at_mut(slot) {
            comm.tally.ended(line, tested, now);
            comm.ended(line);
        }
        self.outstanding -= 1;
        if self.outstanding == 0 {
            if self.core.must_send_first() {
                self.progress();
            }
            self.needs_keeper = self.core.owes();
        }
    }

    #[inline]
    fn bytes(&self, buffer: Buffer) -> Result<Bytes> {
        let Buffer { address, len, tag, region } = buffer;
        if address == 0 && len > 0 {
            return Err(Cause::NullAddress { len }.into());
        }
        let handle = region.optional_region()?;
        if len == 0 {
            // Older NCCL passes a handle of another buffer with it, and some providers look at addresses even then.
            let address = self.hands.landing.address();
            return Ok(Bytes { address, len, tag, region: LANDING, host: true });
        }
        let (Some(handle), Some(known)) = (handle, self.hands.regions.of(region)) else {
            return Err(Cause::Stale(Noun::MemoryHandle).into());
        };
        if !known.holds(address, len) {
            return Err(Cause::OutsideOfRegion { address, len }.into());
        }
        let host = known.memory().kind() == MemoryKind::Host;
        let region = name_of(handle.slot(), handle.generation());
        Ok(Bytes { address, len, tag, region, host })
    }

    #[cold]
    fn refused(&mut self, slot: Slot, error: SubmitError<proto::Fault>) -> crate::error::Error {
        match error {
            SubmitError::Connection(fault) => self.failed(slot, fault),
            SubmitError::Ended => self.failed(slot, proto::Fault::Ended),
            SubmitError::Unknown => Cause::Stale(Noun::SendComm).into(),
        }
    }
}

/// Receives are complete that had cost so many entries of completion queues.
pub(super) fn give_back(budget: &mut Budget, cost: u32) {
    if budget.give_back(cost).is_err() {
        log::error!(
            "{cost} entries of completion queues are given back that nobody has taken, a bug in Ironrail; please report it"
        );
    }
}
