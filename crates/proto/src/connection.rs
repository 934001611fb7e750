//! The interface between channel and connection. The channel pulls: a connection reports that it has frames to send,
//! and the channel takes them when it composes a packet.

use std::fmt;

use super::account::Account;
use super::frame::{Frame, Inline};
use super::ids::{Moment, Name};
use super::message::MessageId;
use super::stall::ConnectionState;

/// How urgent a connection's pending frames are. `Urgent` and `Waited` make a packet leave. That packet, or another one that lazy
/// frames join, takes all pending frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    #[default]
    Nothing,
    /// Frames that may wait until `until`. `joins`: a packet that leaves earlier takes them. Frames that do not join are probably not
    /// needed, or not yet.
    Lazy { until: Moment, joins: bool },
    /// Frames that the next progress call sends.
    Urgent,
    /// Frames that must be posted before the endpoint's last request is reported as done: the peer waits for them, and
    /// NCCL may stop polling after that.
    Waited,
}

impl Urgency {
    /// The urgency of both together: the greater one; of two lazy ones the earlier time.
    #[inline]
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Waited, _) | (_, Self::Waited) => Self::Waited,
            (Self::Urgent, _) | (_, Self::Urgent) => Self::Urgent,
            (Self::Lazy { until: one, joins }, Self::Lazy { until: other, joins: also_joins }) => {
                Self::Lazy { until: one.min(other), joins: joins || also_joins }
            }
            (lazy @ Self::Lazy { .. }, Self::Nothing) | (Self::Nothing, lazy) => lazy,
        }
    }

    /// Whether a packet must leave for the frames.
    #[inline]
    pub(crate) fn is_due(self, now: Moment) -> bool {
        match self {
            Self::Nothing => false,
            Self::Lazy { until, .. } => until <= now,
            Self::Urgent | Self::Waited => true,
        }
    }
}

/// What a connection has pending, and what it waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Whether the connection has frames to send, and how urgent they are.
    pub urgency: Urgency,
    /// Whether the connection waits for an action of its peer. If so, the channel sends QUERY when the peer is silent.
    pub waits: bool,
    /// Whether parts may arrive for the connection on a data rail.
    pub awaits_parts: bool,
    /// Whether [`Connection::next_action`] may return an action.
    pub acts: bool,
}

/// Which frames a packet takes: first adverts, and OPENs with them, then the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Adverts,
    Others,
}

/// The result of an `isend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// No advert and no credit, or no room in the open packet: NCCL tries again.
    NotNow,
    /// The message is sent inline. The caller copies its payload into the packet at once.
    Inline { message: MessageId, frame: Inline },
    /// The message is sent in parts: see [`Connection::next_action`]. `long`: posting the parts may take longer than posting a packet, so
    /// frames that peers wait for leave first.
    Parts { message: MessageId, long: bool },
}

/// How a channel ends for its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEnd {
    /// The peer has said END. All that it wrote has arrived, and our posted writes complete.
    ByPeer,
    /// The channel has failed. Whether posted writes arrive is unknown.
    Failed,
}

/// One connection of a channel. The owner checks its [`standing`](Self::standing) after each call.
pub trait Connection: fmt::Debug {
    /// A message passed to `isend`.
    type Message: Copy + fmt::Debug;
    /// Destination of an inline message's payload: a receive, or parking.
    type Place: Copy + fmt::Debug;
    /// Work outside of the channel: writes of parts and of the FIN path, copies out of parking.
    type Action: Copy + fmt::Debug;
    /// The outcome of an action, or an arrival on a data rail.
    type Event: Copy + fmt::Debug;
    /// Why this connection fails. The channel is not affected.
    type Fault: Copy + fmt::Debug;
    /// Why the channel fails: a frame breaks a bound.
    type Error: Copy + fmt::Debug;

    /// The connection's pending frames, and whether it waits.
    fn standing(&self, account: &Account, now: Moment) -> Standing;

    /// The next frame, if it has at most `words` words. The channel delivers each returned frame: a connection never
    /// repeats one.
    fn next_frame(
        &mut self,
        which: Which,
        words: usize,
        account: &mut Account,
        now: Moment,
    ) -> Option<Frame>;

    /// Submits a message. `words` is the room in the open packet: an INLINE that needs more with its payload is
    /// `NotNow`.
    fn submit(
        &mut self,
        message: &Self::Message,
        words: usize,
        account: &mut Account,
        now: Moment,
    ) -> Result<Submit, Self::Fault>;

    /// Handles a frame from the peer, in the order in which the peer sent them. For an INLINE it returns the
    /// destination of the payload; the caller copies it there and then calls [`copied`](Self::copied). It never blocks.
    /// A frame that breaks a bound is an error.
    fn received(
        &mut self,
        frame: &Frame,
        account: &mut Account,
        now: Moment,
    ) -> Result<Option<Self::Place>, Self::Error>;

    /// The payload was copied to its destination.
    fn copied(&mut self, place: Self::Place, account: &mut Account, now: Moment);

    /// The packet with this inline message needs no retransmission any more: its write has completed, or it is
    /// acknowledged. Called once per message. It does not change the [`standing`](Self::standing).
    fn inline_left(&mut self, message: MessageId);

    /// The next action. It is returned again until [`acted`](Self::acted) reports that it was posted.
    fn next_action(&mut self, account: &mut Account, now: Moment) -> Option<Self::Action>;

    /// The action that [`next_action`](Self::next_action) returned was posted, or was refused and is to be returned
    /// again.
    fn acted(&mut self, action: &Self::Action, posted: bool, account: &mut Account, now: Moment);

    /// An event outside of the channel.
    fn happened(
        &mut self,
        event: Self::Event,
        account: &mut Account,
        now: Moment,
    ) -> Result<(), Self::Error>;

    /// Whether the event is the failure of a write: then the peer may have left that rail.
    fn is_failure(_event: &Self::Event) -> bool {
        false
    }

    /// Whether none of its writes outside of the channel are pending or in flight: END waits for that.
    fn is_quiet(&self) -> bool;

    /// Whether its caller has closed it, and nothing of it is posted: a channel that has ended may be forgotten, though a late write may still
    /// come for the connection.
    fn is_closed(&self) -> bool {
        false
    }

    /// Whether the peer has lent the connection memory for messages that the caller has not submitted.
    fn is_lent(&self) -> bool {
        false
    }

    /// No part is posted on this data rail any more.
    fn rail_left(&mut self, _rail: u8) {}

    /// The data rail is fenced: nothing from the peer can arrive by it any more, and all that arrived is counted.
    fn rail_fenced(&mut self, _rail: u8) {}

    /// Whether RAIL frames are pending: what a fenced rail has delivered, or new keys.
    fn has_rail_notes(&self) -> bool {
        false
    }

    /// Parts from the peer on this rail, which was fenced, count again from now on.
    fn rail_counts(&mut self, _rail: u8) {}

    /// Our memory keys on this rail have changed: `key` returns that of each region. RAIL frames that report them
    /// become pending.
    fn rekey(&mut self, _rail: u8, _key: &mut dyn FnMut(u32) -> u64) {}

    /// Our END was sent: no write may arrive after it, so parts that were lost with a rail are not posted again.
    fn end_said(&mut self) {}

    /// The channel has ended: incomplete messages cannot complete any more.
    fn ended(&mut self, how: ChannelEnd);

    /// The connection's progress and what it waits for, for stall reports.
    fn connection_state(&self) -> ConnectionState {
        ConnectionState::default()
    }

    /// The peer's name for this connection, once it is known.
    fn peer(&self) -> Option<Name>;
}
