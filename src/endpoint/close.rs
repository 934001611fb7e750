//! The end of connections and of the endpoint: drain, say bye, give memory and ids back.
//!
//! A ring is handed on only when this end has nothing in flight and the peer has said bye: until then it may still write
//! there. What cannot be known to be quiet stays taken until the endpoint closes.

use std::time::{Duration, Instant};

use fabric::{Carried, Posts};
use proto::eager::FIRST_EAGER;
use proto::handshake::Side;
use proto::{Begun, Bye, CommId, ConnectionId, Line};

use super::counters::Counters;
use super::lanes::{ControlLane, Lane};
use super::nics::Port;
use super::operation::Purpose;
use super::setup::{id, parts};
use super::{Endpoint, SenderState, open_sender, receiver};
use crate::error::{Cause, Noun, Result};
use crate::fault;
use crate::handle::{Handle, HandleKind};

/// How long the closing of an endpoint waits for peers to say bye: a socket that closes over unread bytes takes back
/// what it has sent, and a peer may still be reading that its last message is done.
const BYE_WAIT: Duration = Duration::from_millis(250);

/// The same once a peer was waited for in vain: all in all an abort takes less than two seconds, of which `deregMr` has had
/// most.
const BYE_WAIT_IMPATIENT: Duration = Duration::from_millis(100);

/// Turns in which what needs no peer ends, when time is up: on a busy machine the clock alone says little, as who yields
/// there comes back once in many milliseconds.
const LAST_TURNS: u32 = 256;

impl Endpoint {
    pub(crate) fn close_send(&mut self, comm: Handle) -> Result<()> {
        let Self { senders, nics, tenants, .. } = self;
        let sender = open_sender(senders.get_mut(comm.slot(), comm.generation()), Noun::SendComm)?;
        tenants.closed(comm);
        sender.ending.closing = true;
        if self.broken {
            return Ok(());
        }
        sender.block();
        sender.count_in_flight(nics, comm.slot());
        self.senders.hide(comm.slot());
        self.progress();
        self.try_release_sender(comm.slot());
        self.part();
        Ok(())
    }

    pub(crate) fn close_receive(&mut self, comm: Handle) -> Result<()> {
        let (slot, generation) = (comm.slot(), comm.generation());
        let Self { receivers, nics, slabs, outstanding, working, tenants, .. } = self;
        let receiver = receivers.get_mut(slot, generation);
        let receiver = receiver.filter(|receiver| !receiver.ending.closing);
        let receiver = receiver.ok_or(Cause::Stale(Noun::ReceiveComm))?;
        tenants.closed(comm);
        receiver.ending.closing = true;
        if self.broken {
            return Ok(());
        }
        receiver.flow.end_plain_arrivals();
        if !std::mem::replace(&mut receiver.ending.blocked, true) {
            *outstanding -= receiver.outstanding();
        }
        receiver.write_lone_done(&mut receiver::Means { nics, slabs, slot, generation }, true);
        // Adverts that are yet to be written never will be: the connection may have had no other work.
        if receiver.queued && !receiver.has_work() {
            receiver.queued = false;
            working.remove(slot);
        }
        let exposes = receiver.exposes_any();
        receivers.hide(slot);
        if exposes {
            self.withdraw_closed(slot);
        }
        self.tell_if_idle();
        self.progress();
        self.try_release_receiver(slot);
        self.part();
        Ok(())
    }

    /// Lets the last words of a connection leave: the caller may not be heard of again, and the peer may wait for them. Some
    /// providers send only what a later turn pushes.
    pub(super) fn part(&mut self) {
        for _ in 0..2 {
            self.progress();
        }
    }

    pub(crate) fn close_listen(&mut self, listener: Handle) -> Result<()> {
        self.tenants.closed(listener);
        let taken = self.listeners.remove(listener.slot(), listener.generation());
        let listener = taken.ok_or(Cause::Stale(Noun::ListenComm))?;
        if self.broken {
            return Ok(());
        }
        listener.requests().for_each(|request| self.answered.forget(request.mark()));
        if let Some(accepting) = listener.accepting {
            self.forget(&accepting);
        }
        Ok(())
    }

    /// Whether NCCL has closed everything that it opened here.
    pub(crate) fn is_unused(&self) -> bool {
        let closing = |state: &SenderState| matches!(state, SenderState::Connected(sender) if sender.ending.closing);
        let senders = self.senders.iter().all(|state| closing(state));
        let receivers = self.receivers.iter().all(|receiver| receiver.ending.closing);
        self.listeners.is_empty() && senders && receivers
    }

    /// Drains what is in flight, within a bound; [`Endpoint::release`] then closes. One that a panic has left as it is drains nothing.
    pub(crate) fn drain(&mut self) -> Report {
        fault::point("finalize locked");
        if self.broken {
            return self.report();
        }
        let start = Instant::now();
        self.leave_probe();
        self.close_comms();
        let (bound, bye_wait) = match self.is_impatient() {
            // What is in flight is worth more: where regions are bound, it leaks.
            true => (BYE_WAIT, BYE_WAIT_IMPATIENT),
            false => (self.settings.close_timeout, BYE_WAIT),
        };
        while start.elapsed() < bound {
            self.progress();
            self.release_all();
            let quiet = self.nics.iter().all(|port| port.in_flight() == 0);
            let awaits_bye = !(self.senders.is_empty() && self.receivers.is_empty())
                && start.elapsed() < bye_wait;
            let fenced = !self.receivers.keys().iter().any(|(slot, _)| self.awaits_fence(*slot));
            if quiet && fenced && self.notices.is_empty() && !awaits_bye {
                break;
            }
            std::thread::yield_now();
        }
        self.give_up_unsent();
        self.cancel_inboxes();
        self.make_last_turns();
        let in_flight: usize = self.nics.iter().map(Port::in_flight).sum();
        if in_flight > 0 {
            log::warn!(
                "device {} closes with {in_flight} operations in flight after {} ms: their peers do not answer",
                self.label(),
                start.elapsed().as_millis()
            );
        }
        for receiver in self.receivers.iter() {
            self.counters.add_receives(&receiver.counters());
        }
        self.report()
    }

    /// Whether others of this process may still reach what it has drained: it goes with [`Endpoint::release`] once none is open.
    pub(crate) fn is_mapped_by_peers(&self) -> bool {
        self.device.is_mapped_by_peers
    }

    /// What NCCL left open: an abort, or a finalize that frees what is left.
    fn close_comms(&mut self) {
        for (slot, generation) in self.senders.keys() {
            self.abandon_connect(slot, generation);
            let handle = Handle::new(HandleKind::Sender, self.number, generation, slot, 0);
            // One that is closing already is as it should be.
            let _ = self.close_send(handle);
        }
        for (slot, generation) in self.receivers.keys() {
            let handle = Handle::new(HandleKind::Receiver, self.number, generation, slot, 0);
            let _ = self.close_receive(handle);
        }
    }

    /// What was not posted by now never will be: nothing in flight keeps its memory.
    fn give_up_unsent(&mut self) {
        for (slot, generation) in self.senders.keys() {
            if let Some(SenderState::Connected(sender)) =
                self.senders.get_mut(slot, generation).map(|state| &mut **state)
                && !sender.is_drained()
            {
                sender.fail(Cause::EndpointCloses.into());
                self.give_up_parts_of(slot);
            }
        }
    }

    fn release_all(&mut self) {
        for (slot, _) in self.senders.keys() {
            self.try_release_sender(slot);
        }
        for (slot, _) in self.receivers.keys() {
            self.try_release_receiver(slot);
        }
    }

    /// Says bye once a closing sender has drained, and frees its slot once the peer has said it too.
    pub(super) fn try_release_sender(&mut self, slot: u16) {
        let generation = self.senders.generation(slot);
        let Some(SenderState::Connected(sender)) =
            self.senders.get_mut(slot, generation).map(|state| &mut **state)
        else {
            return;
        };
        if !sender.ending.closing || !sender.is_drained() {
            return;
        }
        let heard_bye = sender.ending.heard_bye;
        if !std::mem::replace(&mut sender.ending.said_bye, true) {
            let lane = sender.control();
            let bye = Bye {
                connection: ConnectionId(id(slot, generation)),
                comm: sender.comm(),
                nonce: sender.nonce(),
                from: Side::Sender,
                begun: sender.begun(),
                eager_end: sender.eager_end(),
                done: Line::FIRST,
            };
            self.say_bye(lane.nic, lane.peer, &bye);
        }
        if heard_bye
            && let Some(mut state) = self.senders.remove(slot, generation)
            && let SenderState::Connected(sender) = &mut *state
        {
            self.leave(sender.lanes(), sender.control());
            sender.release(&mut self.slabs);
        }
    }

    /// The same for a closing receiver.
    pub(super) fn try_release_receiver(&mut self, slot: u16) {
        let generation = self.receivers.generation(slot);
        self.drive_fence(slot);
        if self.awaits_fence(slot) {
            return;
        }
        let Some(receiver) = self.receivers.get_mut(slot, generation) else { return };
        // A done that is still owed goes first: the bye tells the sender not to wait for it.
        if !receiver.ending.closing || !receiver.is_drained() || receiver.queued {
            return;
        }
        let heard_bye = receiver.ending.heard_bye;
        let is_due = heard_bye && receiver.is_eager_due();
        if !std::mem::replace(&mut receiver.ending.said_bye, true)
            && let Some(comm) = CommId::new(slot)
        {
            let lane = receiver.control();
            let (connection, nonce) = (receiver.connection, receiver.nonce());
            let (from, begun, done) = (Side::Receiver, Begun::NOTHING, receiver.done());
            let eager_end = FIRST_EAGER;
            let bye = Bye { connection, comm, nonce, from, begun, eager_end, done };
            self.say_bye(lane.nic, lane.peer, &bye);
        }
        if is_due && self.awaits_eager(slot) {
            return;
        }
        if heard_bye && let Some(mut receiver) = self.receivers.remove(slot, generation) {
            self.counters.add_receives(&receiver.counters());
            self.answered.close(receiver.mark);
            self.leave(receiver.lanes(), receiver.control());
            receiver.release(&mut self.slabs);
        }
    }

    /// One user less of the peer's addresses.
    pub(super) fn leave(&mut self, lanes: &[Lane], control: ControlLane) {
        for lane in lanes {
            self.nics[lane.nic].nic.leave(lane.peer);
        }
        self.nics[control.nic].nic.leave(control.peer);
    }

    /// The peer has closed its end.
    pub(super) fn heard_bye(&mut self, bye: &Bye) {
        let known = match bye.from {
            Side::Sender => self.sender_left(bye),
            Side::Receiver => self.receiver_left(bye),
        };
        if !known {
            self.counters.late_messages += 1;
        }
    }

    fn sender_left(&mut self, bye: &Bye) -> bool {
        let slot = bye.comm.get();
        let Some(receiver) = self.receivers.at_mut(slot) else { return false };
        if receiver.nonce() != bye.nonce {
            return false;
        }
        receiver.ending.heard_bye = true;
        self.unheard.end_of(receiver.lanes());
        receiver.fenced(bye.begun);
        receiver.eager_ends(bye.eager_end);
        if receiver.copies() {
            self.take_copies(slot);
        }
        let Some(receiver) = self.receivers.at_mut(slot) else { return false };
        self.left |= !receiver.fail_if_left();
        self.try_release_receiver(slot);
        true
    }

    /// What was on its way when its sender said bye may have come since.
    #[cold]
    pub(super) fn fail_left(&mut self) {
        self.left = false;
        for (_, _, receiver) in self.receivers.iter_mut() {
            self.left |= receiver.ending.heard_bye && !receiver.fail_if_left();
        }
    }

    fn receiver_left(&mut self, bye: &Bye) -> bool {
        let (slot, generation) = parts(bye.connection.0);
        match self.senders.get_mut(slot, generation).map(|state| &mut **state) {
            Some(SenderState::Asking { asking, control, .. }) => {
                asking.left(bye.nonce, true);
                // NCCL may never ask for this connection again.
                let control = *control;
                self.decline(control, bye.connection, bye.comm, bye.nonce);
            }
            Some(SenderState::Connected(sender)) if sender.nonce() == bye.nonce => {
                sender.ending.heard_bye = true;
                self.unheard.end_of(sender.lanes());
                sender.left(bye.done);
            }
            _ => return false,
        }
        self.try_release_sender(slot);
        true
    }

    fn cancel_inboxes(&mut self) {
        self.owed_inboxes.clear();
        let is_inbox = |token| matches!(Purpose::of(token), Some(Purpose::Inbox { .. }));
        self.nics.iter_mut().for_each(|port| port.nic.cancel(is_inbox));
        // Where regions are bound, one with a posted receive cannot be closed: the wait is worth more there.
        let bound = self.nics.iter().any(Port::binds_regions);
        let most = match bound {
            true if self.is_impatient() => BYE_WAIT,
            true => self.settings.close_timeout.max(BYE_WAIT),
            false => BYE_WAIT / 5,
        };
        let start = Instant::now();
        while self.nics.iter().any(|port| port.nic.receives_in_flight() > 0)
            && start.elapsed() < most
        {
            self.progress();
        }
    }

    /// Receives that were cancelled end, and what was sent to nobody fails.
    fn make_last_turns(&mut self) {
        for _ in 0..LAST_TURNS {
            if self.nics.iter().all(|port| port.nic.in_flight() == 0) {
                break;
            }
            self.progress();
        }
    }

    fn report(&self) -> Report {
        let rail = |port: &Port| {
            let Carried { bytes, writes, refused } = port.nic.carried();
            let (data, control) = (port.nic.data_posts(), port.nic.control_posts());
            RailReport { label: port.label.clone(), bytes, writes, refused, data, control }
        };
        Report { rails: self.nics.iter().map(rail).collect(), counters: self.counters }
    }
}

/// What an endpoint has done in its life.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) rails: Vec<RailReport>,
    pub(crate) counters: Counters,
}

/// What one rail has carried, counted from completions, and what was posted on it.
#[derive(Clone, Debug)]
pub(crate) struct RailReport {
    pub(crate) label: String,
    pub(crate) bytes: u64,
    pub(crate) writes: u64,
    /// Posts that libfabric refused for the moment.
    pub(crate) refused: u64,
    /// What libfabric accepted of data, and of control where the rail has any.
    pub(crate) data: Posts,
    pub(crate) control: Posts,
}
