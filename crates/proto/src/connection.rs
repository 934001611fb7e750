//! What the channel asks of a connection. It pulls: a connection says that it owes frames, and is asked for the next one
//! when a packet is composed.

use std::fmt;

use super::account::Account;
use super::frame::{Frame, Inline};
use super::ids::{Moment, Name};
use super::message::MessageId;
use super::stall::Sight;

/// How urgently a connection owes frames: the last two make a packet leave, and where one leaves, all of them join it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owes {
    #[default]
    Nothing,
    /// Frames that may wait for a packet that leaves anyway, until then.
    Lazy { until: Moment },
    /// Frames that the next progress sends.
    Urgent,
    /// Frames that must be posted before the endpoint's last request is reported: the peer waits for them, and the caller
    /// may never call again.
    Waited,
}

/// Adverts come first among what a packet takes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Adverts,
    Others,
}

/// What became of an `isend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// No advert and no credit, or no room in the open packet: the caller tries again.
    NotNow,
    /// The message travels in the packet. Its payload is copied there at once.
    Inline { message: MessageId, frame: Inline },
    /// The message travels in parts: see [`Connection::next_action`].
    Parts { message: MessageId },
}

/// One connection of a channel. Between any two calls its owner asks [`owes`](Self::owes) again.
pub trait Connection: fmt::Debug {
    /// A message that the caller gives to `isend`.
    type Message: Copy + fmt::Debug;
    /// Where the payload of an inline message goes: into a receive, or where it is parked.
    type Place: Copy + fmt::Debug;
    /// What is to be done outside of the channel: parts, fins' writes, copies out of where messages were parked.
    type Action: Copy + fmt::Debug;
    /// How an action ended, or what arrived on a data rail.
    type Event: Copy + fmt::Debug;
    /// Why this connection cannot go on; the channel can.
    type Fault: Copy + fmt::Debug;
    /// Why the channel cannot go on: a frame that breaks a bound.
    type Error: Copy + fmt::Debug;

    /// What it owes its peer.
    fn owes(&self, account: &Account, now: Moment) -> Owes;

    /// The next frame, if it has at most `words` words. What was handed out has left for good.
    fn next_frame(
        &mut self,
        which: Which,
        words: usize,
        account: &mut Account,
        now: Moment,
    ) -> Option<Frame>;

    /// A message. `words` is the room in the open packet: an INLINE with its payload that needs more is `NotNow`.
    fn submit(
        &mut self,
        message: &Self::Message,
        words: usize,
        account: &mut Account,
        now: Moment,
    ) -> Result<Submit, Self::Fault>;

    /// A frame of the peer's, in the order in which the peer sent them. Of an INLINE it answers where the payload goes:
    /// it is copied there, and then [`copied`](Self::copied) is called. It never blocks. A frame that breaks a bound is an
    /// error.
    fn received(
        &mut self,
        frame: &Frame,
        account: &mut Account,
        now: Moment,
    ) -> Result<Option<Self::Place>, Self::Error>;

    /// The payload lies where it belongs.
    fn copied(&mut self, place: Self::Place, account: &mut Account, now: Moment);

    /// The packet that carries this inline message needs no help any more: its write has completed, or it is acknowledged.
    /// Called once per message. It owes nothing by that, and waits for nothing.
    fn inline_left(&mut self, message: MessageId);

    /// The next thing to do. Where it is refused, it is offered again: see [`acted`](Self::acted).
    fn next_action(&mut self, account: &mut Account, now: Moment) -> Option<Self::Action>;

    /// Whether there may be an action that no call or event has led to: one that follows a frame that has left, or the channel's end.
    fn acts(&self) -> bool {
        false
    }

    /// The action that [`next_action`](Self::next_action) named was posted; or refused, and is named again later.
    fn acted(&mut self, action: &Self::Action, posted: bool, account: &mut Account, now: Moment);

    /// Something happened outside of the channel.
    fn happened(
        &mut self,
        event: Self::Event,
        account: &mut Account,
        now: Moment,
    ) -> Result<(), Self::Error>;

    /// Whether it waits for something that its peer is to do: then silence makes the channel ask.
    fn waits(&self) -> bool;

    /// Whether something may arrive for it on a data rail.
    fn awaits_parts(&self) -> bool;

    /// Whether nothing of it is to be written outside of the channel, or under way there: END waits for that.
    fn is_quiet(&self) -> bool;

    /// No part is posted on this data rail any more.
    fn rail_left(&mut self, _rail: u8) {}

    /// Nothing of the peer's lands by this data rail any more, and all that has landed is counted.
    fn rail_fenced(&mut self, _rail: u8) {}

    /// Whether notes about rails are owed: what a fenced one has brought, or new keys.
    fn owes_rails(&self) -> bool {
        false
    }

    /// What the peer posts on this rail, which was fenced, counts from now on.
    fn rail_counts(&mut self, _rail: u8) {}

    /// Our own keys on this rail are others now: asks for that of each region. Notes about them are owed to the peer.
    fn rekey(&mut self, _rail: u8, _key: &mut dyn FnMut(u32) -> u64) {}

    /// The channel has failed, or the peer has said END: what is not complete never will be.
    fn ended(&mut self, failed: bool, now: Moment);

    /// How far it is, and what it waits for.
    fn sight(&self) -> Sight {
        Sight::default()
    }

    /// What the peer calls this connection, once that is known.
    fn peer(&self) -> Option<Name>;
}
