//! isend, irecv and test. Each has one path; rare cases are in functions of their own.

use proto::budget::Budget;
use proto::limits::MAX_GROUP;
use proto::progress::SubmitError;
use proto::{
    Flow, MessageId, Moment, Outgoing, Posting, Receive, ReceivePoll, SendPoll, Slot, Source,
    Submit, Target,
};
use proto::{Line, RailSet};

use super::Endpoint;
use super::line::{line_near, message_of};
use super::side::{Side, side_of};
use crate::error::{Cause, Error, Noun, Result};
use crate::object_id::{ObjectId, ObjectKind, RawId};
use crate::types::{Buffer, Tested};

impl Endpoint {
    /// Sends a message. `None`: not now, and one poll was made.
    ///
    /// NCCL polls what its kernels write, a size or the flags in the buffer, by volatile loads, and makes the call without a fence (NCCL
    /// src/transport/net.cc, sendProxyProgress). The bytes are read here, or by the provider.
    #[inline]
    pub(crate) fn isend(&mut self, comm: RawId, outgoing: Buffer) -> Result<Option<RawId>> {
        fabric::after_polls();
        let id = comm.sender()?;
        self.check_intact()?;
        let (slot, _) = self.comms.open(id, Side::Send, Noun::SendComm)?;
        let (Target { address, region }, memory) = self.executor.place(&outgoing)?;
        let Buffer { tag, len, .. } = outgoing;
        let (source, host) = (Source { address, region }, memory.is_host());
        let message = Outgoing { tag, len: len as u64, source, host };
        let now = self.lately();
        let mut sent = self.core.submit(&mut self.executor, slot, &message, now);
        if let Ok(Submit::NotNow) = sent {
            let now = self.now();
            self.progress_at(now, Some(slot));
            sent = self.core.submit(&mut self.executor, slot, &message, now);
        }
        match sent {
            Ok(Submit::Inline { message, .. }) => {
                Ok(Some(self.sent(comm, slot, message, true, now)))
            }
            Ok(Submit::Parts { message, .. }) => {
                Ok(Some(self.sent(comm, slot, message, false, now)))
            }
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
        comm: RawId,
        slot: Slot,
        message: MessageId,
        inline: bool,
        now: Moment,
    ) -> RawId {
        let line = self.comms.at_mut(slot).map_or(0, |comm| {
            self.outstanding += comm.awaited(1);
            comm.sent(message, inline, now)
        });
        comm.request(line)
    }

    /// Posts a receive, or a group of them. `None`: not now, and one poll was made.
    #[inline]
    pub(crate) fn irecv(
        &mut self,
        comm: RawId,
        receives: &[Buffer],
        how: Posting,
    ) -> Result<Option<RawId>> {
        let id = comm.receiver()?;
        if receives.len() > MAX_GROUP {
            let (count, most) = (receives.len(), MAX_GROUP);
            return Err(Cause::GroupOfDevice { count, most }.into());
        }
        // One receive is by far the most common group.
        let (mut one, mut several);
        let all: &mut [Receive] = if receives.len() == 1 {
            one = [Receive::default(); 1];
            &mut one
        } else {
            several = [Receive::default(); MAX_GROUP];
            &mut several[..receives.len()]
        };
        self.check_intact()?;
        let (slot, opened) = self.comms.open(id, Side::Receive, Noun::ReceiveComm)?;
        let Self { executor, keys, .. } = self;
        let lanes = executor.peer(opened.channel).map_or(&[][..], |peer| &*peer.data);
        keys.clear();
        for (receive, buffer) in all.iter_mut().zip(receives) {
            let (target, region) = executor.place(buffer)?;
            let address = region.target(target.address);
            let (len, tag, host) = (buffer.len as u64, buffer.tag, region.is_host());
            *receive = Receive { target, address, len, tag, host };
            keys.extend(lanes.iter().map(|lane| region.key(lane.nic)));
        }
        let now = self.lately();
        let mut posted = self.post(slot, all, how, now)?;
        if posted.is_none() {
            let now = self.now();
            self.progress_at(now, Some(slot));
            posted = self.post(slot, all, how, now)?;
        }
        let Some(first) = posted else {
            self.count_wait(slot);
            return Ok(None);
        };
        let line = self.comms.at_mut(slot).map_or(0, |comm| {
            self.outstanding += comm.awaited(1);
            comm.received(first, now)
        });
        let request = comm.request(line);
        Ok(Some(if how.optional { self.optional(request) } else { request }))
    }

    /// Posts receives whose keys are in `self.keys`.
    fn post(
        &mut self,
        slot: Slot,
        receives: &[Receive],
        how: Posting,
        now: Moment,
    ) -> Result<Option<Line>> {
        let Self { core, executor, budget, keys, .. } = self;
        return_entries(budget, core.entries_freed());
        let posted = core.with(executor, slot, now, |flow, account| {
            let flow = flow.receiver_mut()?;
            let cost = receives.iter().map(|receive| flow.entries(receive.len)).sum();
            let fails = flow.takes_no_more().is_some();
            if !fails && !budget.take(slot, cost) {
                return Some(Ok(None));
            }
            let posted = flow.post(receives, keys, how, account, now);
            if !matches!(posted, Ok(Some(_))) && !fails {
                return_entries(budget, cost);
            }
            Some(posted)
        });
        match posted.flatten() {
            Some(Ok(first)) => Ok(first),
            Some(Err(fault)) => Err(self.failed(slot, fault)),
            None => Err(Cause::Stale(Noun::ReceiveComm).into()),
        }
    }

    /// The request of a receive whose completion is optional: it may be reported before its bytes arrive.
    #[cold]
    fn optional(&self, request: RawId) -> RawId {
        let Some(id) = ObjectId::from_bits(request.bits()) else { return request };
        let (generation, slot) = (id.generation(), id.slot());
        let kind = ObjectKind::OptionalReceiveRequest;
        ObjectId::new(kind, self.number, generation, slot, id.line()).raw()
    }

    /// Whether the request is done. It polls only if the request is not done at the first check: one poll often completes several requests,
    /// and NCCL tests them one by one (docs/decisions/0003-no-poll-for-what-is-done.md).
    #[inline]
    pub(crate) fn test(&mut self, request: RawId) -> Result<Tested> {
        let id = request.any_request()?;
        self.check_intact()?;
        if id.is(ObjectKind::FlushRequest) {
            return self.test_flush(id);
        }
        match self.check_request(id)? {
            Tested::Pending => {}
            done => return Ok(done),
        }
        let now = self.now();
        self.progress_at(now, Slot::new(id.slot().into()));
        self.check_request(id)
    }

    #[inline]
    fn check_request(&mut self, request: ObjectId) -> Result<Tested> {
        let side = side_of(request);
        let (slot, comm) = self.comms.open(request, side, Noun::Request)?;
        let line = request.line();
        if !comm.has(line) {
            return Err(Cause::Stale(Noun::Request).into());
        }
        let tested = match side {
            Side::Send => self.check_send(slot, line)?,
            Side::Receive => self.check_receive(slot, line, request)?,
        };
        if !matches!(tested, Tested::Pending) {
            self.reported(slot, line, tested);
        }
        Ok(tested)
    }

    #[inline]
    fn check_send(&mut self, slot: Slot, line: u16) -> Result<Tested> {
        let message = message_of(line);
        let flow = self.core.connection_mut(slot).and_then(Flow::sender_mut);
        let Some(flow) = flow else { return Err(Cause::Stale(Noun::Request).into()) };
        match flow.poll(message) {
            SendPoll::Pending => Ok(Tested::Pending),
            SendPoll::Done { len } => {
                if let Some(cut) = flow.cut() {
                    self.warn_of_cut(slot, cut);
                }
                Ok(Tested::Done(len))
            }
            SendPoll::Failed(fault) => Err(self.request_failed(slot, line, fault)),
        }
    }

    #[inline]
    fn check_receive(&mut self, slot: Slot, line: u16, request: ObjectId) -> Result<Tested> {
        let flow = self.core.connection_mut(slot).and_then(Flow::receiver_mut);
        let Some(flow) = flow else { return Err(Cause::Stale(Noun::Request).into()) };
        let first = line_near(flow.next(), line);
        let count = match flow.poll(first) {
            ReceivePoll::Done { count } => count,
            ReceivePoll::Failed(fault) => return Err(self.request_failed(slot, line, fault)),
            ReceivePoll::Pending => {
                let optional = request.is(ObjectKind::OptionalReceiveRequest);
                if !optional || !flow.poll_early(first) {
                    return Ok(Tested::Pending);
                }
                self.incidents.early_receives += 1;
                // The size is not known yet. NCCL reads sizes for flushes only, and a flushed receive is never optional.
                return Ok(Tested::Done(0));
            }
        };
        let (mut carried, mut inline) = (RailSet::NONE, 0);
        for (size, index) in self.sizes.iter_mut().zip(0..count) {
            let line = first.plus(index);
            *size = usize::try_from(flow.size(line)).unwrap_or(usize::MAX);
            let rails = flow.carried(line);
            inline += u64::from(rails.is_empty());
            if *size > 0 {
                carried |= rails;
            }
        }
        let cut = flow.cut();
        if let Some(comm) = self.comms.at_mut(slot) {
            comm.tally.received(inline);
            comm.flushing.carried(carried);
        }
        if let Some(cut) = cut {
            self.warn_of_cut(slot, cut);
        }
        Ok(if count == 1 {
            Tested::Done(self.sizes[0] as u64)
        } else {
            Tested::Group(count as usize)
        })
    }

    /// The sizes of the messages of the group that `test` reported last.
    pub(crate) fn sizes(&self, count: usize) -> &[usize] {
        &self.sizes[..count.min(MAX_GROUP)]
    }

    /// A request's end is reported to NCCL. Before the last open one is reported, frames that the peer waits for, and unsent packets,
    /// leave: NCCL may not call again.
    #[inline]
    fn reported(&mut self, slot: Slot, line: u16, tested: Tested) {
        let (messages, bytes) = match tested {
            Tested::Pending => (0, 0),
            Tested::Done(bytes) => (1, bytes),
            Tested::Group(count) => {
                (count as u64, self.sizes(count).iter().map(|size| *size as u64).sum())
            }
        };
        if let Some(comm) = self.comms.at_mut(slot) {
            comm.tally.ended(line, (messages, bytes), self.executor.polled_at());
            comm.ended(line);
            self.outstanding -= comm.awaited(1);
            if comm.events.are_kept() {
                self.end_events(slot, line, Some(tested));
            }
        }
        if self.outstanding == 0 {
            if self.core.must_send_first() {
                self.progress();
            }
            self.needs_keeper = self.core.has_pending();
        }
    }

    #[cold]
    fn request_failed(&mut self, slot: Slot, line: u16, fault: proto::Fault) -> Error {
        self.end_events(slot, line, None);
        self.failed(slot, fault)
    }

    #[cold]
    fn refused(&mut self, slot: Slot, error: SubmitError<proto::Fault>) -> Error {
        match error {
            SubmitError::Connection(fault) => self.failed(slot, fault),
            SubmitError::Ended => self.failed(slot, proto::Fault::Ended),
            SubmitError::Unknown => Cause::Stale(Noun::SendComm).into(),
        }
    }
}

/// Returns the credits for completion queue entries of completed receives.
pub(super) fn return_entries(budget: &mut Budget, cost: u32) {
    if budget.release(cost).is_err() {
        log::error!(
            "{cost} completion queue entries were returned that no receive had taken, a bug in Ironrail; please report it"
        );
    }
}
