//! The common case of isend, irecv and test, in few instructions: one message that fills a receive posted alone, in one
//! part, on a connection of up to 4 rails.
//!
//! Each of isend, irecv and test is one function, which tries these forms first. A form answers `None`, and has changed nothing, where
//! anything is out of the ordinary: then the general form in `mod.rs` has it.
//! A comm that is closed, or may post nothing more, has no name any more (`Slots::hide`), and so none of this finds it.
//! What counts here is instructions (`cargo bench --bench instructions`), so these are inlined into the calls of the C
//! interface, and everything rare is a call.

use proto::Line;
use proto::wire2::Posting;

use super::bundle::Turn;
use super::sender::Sender;
use super::{Endpoint, Look, SenderState, enqueue, open_sender, receiver, sender};
use crate::error::{Cause, Noun, Result};
use crate::handle::{Handle, Name};
use crate::types::{Buffer, Receive, Tested};

/// What a look at a request finds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Looked {
    /// It is done, and the size of the message.
    Done(u64),
    /// A receive, and not the last one, that waits for parts which announce themselves: [`Endpoint::wait_for_parts`].
    AwaitsParts,
    /// To be asked by [`Endpoint::test_in_a_turn`].
    Unknown,
}

impl Buffer {
    /// The buffer as the general forms take it.
    pub(in crate::endpoint) fn checked(self) -> Result<Receive> {
        let Self { address, len, tag, region } = self;
        if address == 0 && len > 0 {
            return Err(Cause::NullAddress { len }.into());
        }
        Ok(Receive { address, len, tag, region: region.optional_region()? })
    }
}

/// Messages longer than this are taken for long before anything is looked up: few providers inject longer ones. Those that do get
/// the form for others.
const INJECTED_MOST: usize = 256;

impl Endpoint {
    /// Sends a message, in the form that fits it. `None`: not now; a turn of progress was made.
    #[inline(always)]
    pub(crate) fn isend(&mut self, comm: Name, outgoing: Buffer) -> Result<Option<Name>> {
        let mut request = None;
        let told = |name| request = Some(name);
        let posted = if outgoing.len > INJECTED_MOST {
            self.send_long(comm, outgoing, told)
        } else {
            self.send_shortly(comm, outgoing, told)
        };
        match posted {
            Some(true) => Ok(request),
            Some(false) => self.send_refused(comm),
            None => self.isend_otherwise(comm, outgoing),
        }
    }

    #[inline(never)]
    fn isend_otherwise(&mut self, comm: Name, outgoing: Buffer) -> Result<Option<Name>> {
        let mut request = None;
        match self.send_plainly(comm, outgoing, |name| request = Some(name)) {
            Some(true) => Ok(request),
            Some(false) => self.send_refused(comm),
            None => self.isend_generally(comm, outgoing),
        }
    }

    /// A post of `comm` was refused: it wants to send, and the next turn may make room.
    #[cold]
    #[inline(never)]
    fn send_refused(&mut self, comm: Name) -> Result<Option<Name>> {
        open_sender(self.senders.of_mut(comm), Noun::SendComm)?.want();
        self.progress();
        Ok(None)
    }

    /// Posts a receive, or a group, in the form that fits it. `None`: the window has no room; a turn of progress was made.
    #[inline(always)]
    pub(crate) fn irecv(
        &mut self,
        comm: Name,
        receives: &[Buffer],
        how: Posting,
    ) -> Result<Option<Name>> {
        let posted = self.irecv_of_form(comm, receives, how.cut)?;
        let handle = posted.and_then(|posted| posted.any_request().ok());
        Ok(match handle {
            Some(handle) if how.optional => Some(self.may_end_early(handle).name()),
            _ => posted,
        })
    }

    #[inline(always)]
    fn irecv_of_form(
        &mut self,
        comm: Name,
        receives: &[Buffer],
        cut: bool,
    ) -> Result<Option<Name>> {
        let [only] = receives else { return self.irecv_generally(comm, receives, cut) };
        let mut request = None;
        match self.receive_shortly(comm, *only, cut, |name| request = Some(name)) {
            Some(false) => Ok(request),
            Some(true) => {
                self.receive_posted(comm);
                Ok(request)
            }
            None => self.irecv_otherwise(comm, *only, cut),
        }
    }

    #[inline(never)]
    fn irecv_otherwise(&mut self, comm: Name, receive: Buffer, cut: bool) -> Result<Option<Name>> {
        let mut request = None;
        match self.receive_plainly(comm, receive, cut, |name| request = Some(name)) {
            Some(false) => Ok(request),
            Some(true) => {
                self.receive_posted(comm);
                Ok(request)
            }
            None => self.irecv_generally(comm, &[receive], cut),
        }
    }

    /// Asks for the request, and makes a turn of progress before it says "not yet". One that is done already is said at
    /// once: a turn brings several, and NCCL asks for them one by one (docs/decisions/0003-no-turn-for-what-is-done.md).
    #[inline(always)]
    pub(crate) fn test(&mut self, request: Name) -> Result<Tested> {
        match self.look_plainly(request) {
            Looked::Done(size) => Ok(Tested::Done(size)),
            Looked::AwaitsParts => self.wait_for_parts(request),
            Looked::Unknown => self.test_in_a_turn(request),
        }
    }

    /// [`Endpoint::isend`] for a short message: `posted` is told the request. False: the post was refused, and the message
    /// taken back. Tags choose inside a group alone, and have no say here.
    #[inline(always)]
    fn send_shortly(
        &mut self,
        comm: Name,
        outgoing: Buffer,
        posted: impl FnOnce(Name),
    ) -> Option<bool> {
        let SenderState::Connected(sender) = &mut **self.senders.of_mut(comm)? else { return None };
        let region = &**self.regions.of(outgoing.region)?;
        let told = move |line: Line| posted(comm.request(sender::low16(line.number())));
        let bytes = sender.short_bytes(region, outgoing)?;
        let turn = self.watch.number();
        if sender.follows(turn, bytes.len() as u64) {
            return sender.hold_shortly(&mut self.holding, comm.slot(), bytes, outgoing.tag, told);
        }
        sender.send_shortly(&mut self.nics, bytes, outgoing.tag, turn, told)
    }

    /// The same for a message too long to be injected.
    #[inline(always)]
    fn send_long(
        &mut self,
        comm: Name,
        outgoing: Buffer,
        posted: impl FnOnce(Name),
    ) -> Option<bool> {
        let SenderState::Connected(sender) = &mut **self.senders.of_mut(comm)? else { return None };
        let region = &**self.regions.of(outgoing.region)?;
        let turn = self.watch.number();
        sender.send_long(&mut self.nics, comm.slot(), region, outgoing, turn, move |line| {
            posted(comm.request(sender::low16(line.number())));
        })
    }

    /// The same for other messages.
    #[inline(always)]
    fn send_plainly(
        &mut self,
        comm: Name,
        outgoing: Buffer,
        posted: impl FnOnce(Name),
    ) -> Option<bool> {
        let SenderState::Connected(sender) = &mut **self.senders.of_mut(comm)? else { return None };
        let region = self.regions.of(outgoing.region)?;
        let turn = Turn { number: self.watch.number(), holding: &mut self.holding };
        sender.send_plainly(&mut self.nics, comm.slot(), region, outgoing, turn, move |line| {
            posted(comm.request(sender::low16(line.number())));
        })
    }

    /// As [`Endpoint::irecv`], where adverts have room for two keys: `posted` is told the request. True:
    /// [`Endpoint::receive_posted`] is to be called.
    #[inline(always)]
    fn receive_shortly(
        &mut self,
        comm: Name,
        receive: Buffer,
        cut: bool,
        posted: impl FnOnce(Name),
    ) -> Option<bool> {
        self.receive_in_form::<true>(comm, receive, cut, posted)
    }

    /// The same where they have more.
    #[inline(always)]
    fn receive_plainly(
        &mut self,
        comm: Name,
        receive: Buffer,
        cut: bool,
        posted: impl FnOnce(Name),
    ) -> Option<bool> {
        self.receive_in_form::<false>(comm, receive, cut, posted)
    }

    #[inline(always)]
    fn receive_in_form<const SHORT: bool>(
        &mut self,
        comm: Name,
        receive: Buffer,
        cut: bool,
        posted: impl FnOnce(Name),
    ) -> Option<bool> {
        let receiver = &mut **self.receivers.of_mut(comm)?;
        let region = &**self.regions.of(receive.region)?;
        let (outstanding, requests) = (&mut self.outstanding, receiver.requests);
        assert!(requests == comm.request(0), "a comm is told its name");
        let told = move |line: Line| {
            posted(requests.ending_in(sender::low16(line.number())));
            *outstanding += 1;
        };
        let is_posted = if SHORT {
            receiver.receive_shortly(region, receive, cut, told)
        } else {
            receiver.receive_plainly(region, receive, cut, told)
        };
        is_posted.then(|| receiver.is_urgent() || !receiver.queued)
    }

    /// A receive was posted: its advert is written now, or with the next turn.
    #[inline(never)]
    fn receive_posted(&mut self, comm: Name) {
        let Some(receiver) = self.receivers.of_mut(comm) else { return };
        if receiver.is_urgent() {
            self.write_adverts(comm.slot());
        } else {
            enqueue(receiver, &mut self.working, comm.slot());
        }
    }

    #[inline(always)]
    fn write_adverts(&mut self, slot: u16) {
        let Self { receivers, nics, slabs, working, .. } = self;
        let generation = receivers.generation(slot);
        if let Some(receiver) = receivers.at_mut(slot) {
            receiver.write_adverts(&mut receiver::Means { nics, slabs, slot, generation });
            // One that was refused waits for the next turn.
            if receiver.has_work() {
                enqueue(receiver, working, slot);
            }
        }
    }

    /// Whether a request that [`Endpoint::look_plainly`] did not answer still waits, so that asking again needs a turn of
    /// progress first. A group, or the last receive, may be done all the same.
    pub(super) fn waits(&self, request: Handle) -> bool {
        let request = request.name();
        !request.receives()
            || self.receivers.asked(request).is_some_and(|entry| entry.awaits(request.line()))
    }

    /// Whether what ends the request may come on a control rail: not for a receive whose parts announce themselves.
    pub(super) fn awaits_control(&mut self, request: Handle) -> bool {
        let request = request.name();
        let receiver = self.receivers.asked_mut(request).filter(|_| request.receives());
        let Some(receiver) = receiver else { return true };
        receiver.awaits_fins() || receiver.awaits_copies()
    }

    /// A look at what is known to be done.
    #[inline(always)]
    fn look_plainly(&mut self, request: Name) -> Looked {
        if request.receives() {
            return self.look_at_receive(request);
        }
        let size =
            self.open_plainly(request).and_then(|sender| sender.test_plainly(request.line()));
        size.map_or(Looked::Unknown, Looked::Done)
    }

    #[inline(always)]
    fn look_at_receive(&mut self, request: Name) -> Looked {
        // The last one is no common case: it may not be reported before the sender is told.
        if self.outstanding < 2 {
            return Looked::Unknown;
        }
        let Some(receiver) = self.receivers.asked_mut(request) else { return Looked::Unknown };
        let looked = receiver.look_plainly(request.line());
        if let Looked::Done(_) = looked {
            self.outstanding -= 1;
        }
        looked
    }

    /// A turn of progress for a receive that [`Looked::AwaitsParts`].
    #[inline(never)]
    fn wait_for_parts(&mut self, request: Name) -> Result<Tested> {
        let busy = self.progress_for_parts();
        // It was there, and not the last, and no turn changes that: so the name is not compared again.
        if busy
            && let Some(receiver) = self.receivers.at_mut(request.slot())
            && let Some(size) = receiver.look_again(request.line())
        {
            self.outstanding -= 1;
            return Ok(Tested::Done(size));
        }
        self.receive_after_a_turn(request, busy)
    }

    /// The same after a turn of progress.
    #[inline(never)]
    fn test_in_a_turn(&mut self, request: Name) -> Result<Tested> {
        if request.receives() {
            self.receive_in_a_turn(request)
        } else {
            self.send_in_a_turn(request)
        }
    }

    #[inline(always)]
    fn open_plainly(&mut self, request: Name) -> Option<&mut Sender> {
        match &mut **self.senders.asked_mut(request)? {
            SenderState::Connected(sender) => Some(sender),
            SenderState::Asking { .. } => None,
        }
    }

    #[inline(always)]
    fn report_plainly(&mut self, request: Name) -> Option<u64> {
        if self.outstanding < 2 {
            return None;
        }
        let size = self.receivers.asked_mut(request)?.test_plainly(request.line())?;
        self.outstanding -= 1;
        Some(size)
    }

    /// [`Endpoint::test_last_receive`], where that is complete and alone, and all dones leave at once.
    #[inline(always)]
    fn report_last_plainly(&mut self, request: Name) -> Option<u64> {
        let is_last = self.outstanding == 1;
        if !is_last || !self.receivers.asked(request)?.is_complete_plainly(request.line()) {
            return None;
        }
        if !self.dones_have_left(request.slot()) {
            return None;
        }
        let size = self.receivers.asked_mut(request)?.test_plainly(request.line())?;
        self.outstanding -= 1;
        Some(size)
    }

    /// A turn of progress for a receive that waits.
    #[inline(always)]
    fn receive_in_a_turn(&mut self, request: Name) -> Result<Tested> {
        let line = request.line();
        let Some(receiver) = self.receivers.asked_mut(request) else {
            return self.test_generally(request);
        };
        if !receiver.awaits_parts(line) {
            return match self.report_last_plainly(request) {
                Some(size) => Ok(Tested::Done(size)),
                None => self.test_generally(request),
            };
        }
        // Bundles that have come already need no turn. Who awaits no copies looks for them last.
        let (copies, mut busy) = (receiver.awaits_copies(), false);
        if !(copies && receiver.has_bundled()) {
            busy = self.progress_for(copies);
        }
        if !copies
            && busy
            && let Some(size) = self.report_plainly(request)
        {
            return Ok(Tested::Done(size));
        }
        self.receive_after_a_turn(request, busy)
    }

    /// What is left to look at for a receive that a turn of progress has not been seen to complete.
    #[inline(always)]
    fn receive_after_a_turn(&mut self, request: Name, mut busy: bool) -> Result<Tested> {
        let line = request.line();
        let came =
            self.receivers.asked(request).is_some_and(|entry| entry.has_copies(Look::Memory));
        if came {
            self.take_copies(request.slot());
            busy = true;
        }
        if busy && let Some(size) = self.report_plainly(request) {
            return Ok(Tested::Done(size));
        }
        let Self { receivers, working, .. } = self;
        let Some(receiver) = receivers.asked_mut(request) else {
            return self.test_generally(request);
        };
        // A message too long for immediates comes with a fin, whatever the path of the others.
        if receiver.read_fins(Look::Memory) {
            enqueue(receiver, working, request.slot());
        }
        // What came may be none, and then nothing has been looked at.
        if !came && receiver.waits_plainly(line) {
            Ok(Tested::Pending)
        } else {
            self.test_generally(request)
        }
    }

    /// A turn of progress for a message that waits. What ends it comes into memory, and is there already where somebody else's
    /// turn has brought it: then this one polls nothing.
    #[inline(always)]
    fn send_in_a_turn(&mut self, request: Name) -> Result<Tested> {
        let line = request.line();
        let Some(sender) = self.open_plainly(request).filter(|sender| sender.waits_plainly(line))
        else {
            return self.test_generally(request);
        };
        if let Some(size) = sender.look_plainly(line) {
            // Adverts that wait are waited for all the same: a poll that comes soon pushes them.
            self.walk_if_awake();
            return Ok(Tested::Done(size));
        }
        self.progress();
        let Some(sender) = self.open_plainly(request) else { return self.test_generally(request) };
        match sender.look_plainly(line) {
            Some(size) => Ok(Tested::Done(size)),
            None if sender.waits_plainly(line) => Ok(Tested::Pending),
            None => self.test_generally(request),
        }
    }
}
