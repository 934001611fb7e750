//! A connection: the sender's or the receiver's flow, behind the interface that the channel uses.
//!
//! The channel pulls frames, passes received frames in, and pulls actions. The loop performs these and reports back by
//! `acted` and, later, by an event. Calls that only one direction has (`post`, `poll`, `close`) are made on the flow
//! itself.

use super::account::Account;
use super::connection::{ChannelEnd, Connection, Standing, Submit, Which};
use super::fault::{Breach, Fault};
use super::frame::Frame;
use super::ids::{Moment, Name};
use super::immediate::Immediate;
use super::line::Line;
use super::message::MessageId;
use super::receive::{Copy, Place, ReceiveFlow, Tagged};
use super::send::{Outgoing, PartWrite, SendFlow};
use super::setup::{Answer, Connecting};
use super::stall::{ConnectionState, WaitsFor};

/// One connection.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "both live in a table, and a box would cost a load")]
pub enum Flow {
    /// Requested by connect, not opened yet. OPENED turns it into a sender.
    Connecting(Box<Connecting>),
    Send(SendFlow),
    Receive(ReceiveFlow),
}

/// Work outside of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Post a write on a data rail. If it is refused, the flow returns it again.
    Write(PartWrite),
    /// Copy a parked message into its receive. It is never refused.
    Copy(Copy),
    /// Post a tagged receive, or cancel one.
    Tagged(Tagged),
}

/// A completion or an arrival outside of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A posted part has completed.
    Written { message: MessageId, part: u8 },
    /// A posted part has failed; the code is the caller's.
    WriteFailed { message: MessageId, part: u8, code: i32 },
    /// A part has arrived for this connection. `len` is the completion's length.
    Arrived { rail: u8, immediate: Immediate, len: u64 },
    /// The tagged receive of a line has completed with a message of `len` bytes.
    Received { line: Line, len: u64 },
    /// The tagged receive of a line has ended without a message.
    ReceiveEnded { line: Line },
}

impl Flow {
    /// The progress of a `connect`.
    pub fn answer(&self) -> Answer {
        match self {
            Self::Connecting(connecting) => connecting.answer(),
            Self::Send(_) => Answer::Opened,
            Self::Receive(_) => Answer::Failed(Fault::Misuse("a receiver cannot connect")),
        }
    }

    /// Whether this is a `connect` that stays "not yet" for ever.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Connecting(connecting) if connecting.is_lost())
    }

    pub fn fault(&self) -> Option<Fault> {
        match self {
            Self::Connecting(connecting) => connecting.fault(),
            Self::Send(flow) => flow.fault(),
            Self::Receive(flow) => flow.fault(),
        }
    }

    /// Whether both sides have closed and no frame, part or completion of this connection can come any more, so its
    /// slot can be freed.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Connecting(connecting) => connecting.is_over(),
            Self::Send(flow) => flow.is_over(),
            Self::Receive(flow) => flow.is_over(),
        }
    }

    /// The sender, once the connection is open.
    #[inline]
    pub fn sender(&self) -> Option<&SendFlow> {
        if let Self::Send(flow) = self { Some(flow) } else { None }
    }

    #[inline]
    pub fn sender_mut(&mut self) -> Option<&mut SendFlow> {
        if let Self::Send(flow) = self { Some(flow) } else { None }
    }

    #[inline]
    pub fn receiver(&self) -> Option<&ReceiveFlow> {
        if let Self::Receive(flow) = self { Some(flow) } else { None }
    }

    #[inline]
    pub fn receiver_mut(&mut self) -> Option<&mut ReceiveFlow> {
        if let Self::Receive(flow) = self { Some(flow) } else { None }
    }

    /// Fails the connection because of a bug of the caller.
    pub fn fail(&mut self, what: &'static str) {
        match self {
            Self::Connecting(connecting) => connecting.close(),
            Self::Send(flow) => flow.fail(what),
            Self::Receive(flow) => flow.fail(what),
        }
    }

    /// This side closes.
    pub fn close(&mut self, account: &mut Account) {
        match self {
            Self::Connecting(connecting) => connecting.close(),
            Self::Send(flow) => flow.close(),
            Self::Receive(flow) => flow.close(account),
        }
    }
}

impl Connection for Flow {
    type Message = Outgoing;
    type Place = Place;
    type Action = Action;
    type Event = Event;
    type Fault = Fault;
    type Error = Breach;

    #[inline]
    fn standing(&self, account: &Account, now: Moment) -> Standing {
        match self {
            Self::Connecting(connecting) => Standing {
                urgency: connecting.urgency(now),
                waits: connecting.waits(),
                ..Standing::default()
            },
            Self::Send(flow) => Standing {
                urgency: flow.urgency(),
                waits: flow.waits(),
                awaits_parts: false,
                acts: flow.has_parts(),
            },
            Self::Receive(flow) => Standing {
                urgency: flow.urgency(account, now),
                waits: flow.waits(),
                awaits_parts: flow.awaits_parts(),
                acts: flow.has_copies() || flow.is_tagging(),
            },
        }
    }

    #[inline]
    fn next_frame(
        &mut self,
        which: Which,
        words: usize,
        account: &mut Account,
        now: Moment,
    ) -> Option<Frame> {
        match self {
            Self::Connecting(connecting) => connecting.next_frame(words, now),
            Self::Send(flow) => flow.next_frame(which, words),
            Self::Receive(flow) => flow.next_frame(which, words, account, now),
        }
    }

    #[inline]
    fn submit(
        &mut self,
        message: &Outgoing,
        words: usize,
        account: &mut Account,
        now: Moment,
    ) -> Result<Submit, Fault> {
        match self {
            Self::Send(flow) => {
                account.speeds.drain(&mut account.loads, now);
                flow.submit(message, words, account)
            }
            Self::Receive(_) => Err(Fault::Misuse("a receiving connection cannot send")),
            Self::Connecting(_) => Err(Fault::Misuse("a connection was used before it is open")),
        }
    }

    #[inline]
    fn received(
        &mut self,
        frame: &Frame,
        account: &mut Account,
        now: Moment,
    ) -> Result<Option<Place>, Breach> {
        match self {
            Self::Connecting(connecting) => {
                if let Some(flow) = connecting.received(frame, now).map_err(Breach)? {
                    *self = Self::Send(flow);
                }
                Ok(None)
            }
            Self::Send(flow) => flow.received(frame, account).map(|()| None),
            Self::Receive(flow) => flow.received(frame, account, now),
        }
    }

    #[inline]
    fn copied(&mut self, place: Place, account: &mut Account, now: Moment) {
        if let Self::Receive(flow) = self {
            flow.copied(place, account, now);
        }
    }

    #[inline]
    fn inline_left(&mut self, message: MessageId) {
        if let Self::Send(flow) = self {
            flow.inline_left(message);
        }
    }

    #[inline]
    fn next_action(&mut self, account: &mut Account, _: Moment) -> Option<Action> {
        match self {
            Self::Connecting(_) => None,
            Self::Send(flow) => flow.next_part(account).map(Action::Write),
            Self::Receive(flow) => {
                let copy = flow.next_copy(&account.parking).map(Action::Copy);
                copy.or_else(|| flow.next_tagged().map(Action::Tagged))
            }
        }
    }

    #[inline]
    fn acted(&mut self, action: &Action, posted: bool, account: &mut Account, now: Moment) {
        match (self, action) {
            (Self::Send(flow), Action::Write(write)) if posted => {
                flow.posted(write, account);
                if write.immediate.is_some() {
                    account.posted(write.rail, write.len, now);
                }
            }
            (Self::Send(_), Action::Write(write)) => account.rails.refused(write.rail),
            (Self::Receive(flow), Action::Copy(copy)) => flow.unparked(*copy, account, now),
            (Self::Receive(flow), Action::Tagged(tagged)) if posted => flow.tagged_taken(tagged),
            _ => {}
        }
    }

    #[inline]
    fn happened(&mut self, event: Event, account: &mut Account, now: Moment) -> Result<(), Breach> {
        match (self, event) {
            (Self::Send(flow), Event::Written { message, part }) => {
                flow.written(message, part, account, now);
            }
            (Self::Send(flow), Event::WriteFailed { message, part, code }) => {
                flow.write_failed(message, part, code, account);
            }
            (Self::Receive(flow), Event::Arrived { rail, immediate, len }) => {
                flow.arrived(rail, immediate, len, account, now);
            }
            (Self::Receive(flow), Event::Received { line, len }) => {
                return flow.tagged_arrived(line, len, account, now).map_err(Breach);
            }
            (Self::Receive(flow), Event::ReceiveEnded { line }) => flow.tagged_ended(line),
            // Dropped: an immediate with a sender's slot, or a write's completion with a receiver's.
            _ => {}
        }
        Ok(())
    }

    #[inline]
    fn is_failure(event: &Event) -> bool {
        matches!(event, Event::WriteFailed { .. })
    }

    fn is_quiet(&self) -> bool {
        match self {
            Self::Send(flow) => flow.is_quiet(),
            Self::Connecting(_) | Self::Receive(_) => true,
        }
    }

    fn is_closed(&self) -> bool {
        self.receiver().is_some_and(ReceiveFlow::is_closed)
    }

    fn is_lent(&self) -> bool {
        self.sender().is_some_and(SendFlow::is_lent)
    }

    fn rail_left(&mut self, rail: u8) {
        match self {
            Self::Connecting(_) => {}
            Self::Send(flow) => flow.rail_left(rail),
            Self::Receive(flow) => flow.rail_left(rail),
        }
    }

    fn rail_fenced(&mut self, rail: u8) {
        if let Self::Receive(flow) = self {
            flow.rail_fenced(rail);
        }
    }

    fn has_rail_notes(&self) -> bool {
        matches!(self, Self::Receive(flow) if flow.has_rail_notes())
    }

    fn rail_counts(&mut self, rail: u8) {
        if let Self::Receive(flow) = self {
            flow.rail_counts(rail);
        }
    }

    fn rekey(&mut self, rail: u8, key: &mut dyn FnMut(u32) -> u64) {
        if let Self::Receive(flow) = self {
            flow.rekey(rail, key);
        }
    }

    fn end_said(&mut self) {
        if let Self::Send(flow) = self {
            flow.end_said();
        }
    }

    fn ended(&mut self, how: ChannelEnd) {
        match self {
            Self::Connecting(connecting) => connecting.ended(how),
            Self::Send(flow) => flow.ended(how),
            Self::Receive(flow) => flow.ended(how),
        }
    }

    fn connection_state(&self) -> ConnectionState {
        match self {
            Self::Connecting(connecting) => {
                let waits_for = if connecting.waits() { WaitsFor::Accept } else { WaitsFor::Room };
                ConnectionState { waits_for, open: true, ..ConnectionState::default() }
            }
            Self::Send(flow) => flow.connection_state(),
            Self::Receive(flow) => flow.connection_state(),
        }
    }

    fn peer(&self) -> Option<Name> {
        match self {
            Self::Connecting(_) => None,
            Self::Send(flow) => Some(flow.peer()),
            Self::Receive(flow) => Some(flow.peer()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Generation, Slot};
    use crate::terms::Terms;

    #[test]
    fn a_connection_knows_the_name_that_its_peer_has_for_it() {
        let peer = Name { slot: Slot::new(3).unwrap(), generation: Generation::new(5) };
        let terms = Terms { peer, ..Terms::of_two_rails(Name::default()) };
        for flow in [Flow::Send(SendFlow::new(terms)), Flow::Receive(ReceiveFlow::new(terms))] {
            assert_eq!(flow.peer(), Some(peer));
        }
    }
}
