//! The interface between the progress loop and its environment: the plugin implements it over libfabric, the simulator
//! over a wire with faults.

use super::super::account::Account;
use super::super::channel::{Cause, Post, RailNews, WriteId};
use super::super::connection::Connection;
use super::super::frame::{Offer, Open, Refused};
use super::super::ids::{Generation, Nonce, Slot};
use super::super::letter::{Letter, RailNumbers};
use super::super::memory::{InboxMemory, MemoryId, Payload, Shadows};
use crate::codec::Address;

/// The number of a channel of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u32);

/// Memory for an inbox and the cell behind it.
#[derive(Clone, Copy, Debug)]
pub struct LentInbox {
    pub memory: MemoryId,
    pub address: u64,
    pub key: u64,
    /// A random number.
    pub nonce: Nonce,
}

/// A completion or an arrival.
#[derive(Clone, Copy, Debug)]
pub enum Event<E> {
    /// A write of a channel has completed (`well`) or failed.
    Wrote { channel: ChannelId, write: WriteId, rail: u8, well: bool },
    /// A letter with these rail numbers could not be sent. (Success is not reported: it does not prove arrival.)
    LetterFailed { channel: ChannelId, rail: u8, numbers: RailNumbers },
    /// A letter from the peer. `proven`: it came in a HELLO with a valid proof by a listener's secret.
    Letter { channel: ChannelId, letter: Letter, proven: bool },
    /// A part has arrived for a connection. It is identified as in an immediate: slot, and the low two bits of the
    /// generation.
    Arrived { connection: u16, event: E },
    /// Our trial of a data rail of a channel has completed (`well`) or failed.
    TrialEnded { channel: ChannelId, rail: u8, well: bool },
    /// A trial of this round has arrived from the peer by this rail of a channel.
    TrialArrived { channel: ChannelId, rail: u8, round: u8 },
    /// The outcome of a connection's action.
    Connection { slot: Slot, generation: Generation, event: E },
}

/// The address of one of our data rails, and the target of a trial on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialTarget {
    pub address: Address,
    /// A few bytes that are never read: their address, as peers use it, and their key.
    pub target: u64,
    pub key: u64,
}

/// The outcome of sending a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterPost {
    /// It is under way, and may be lost.
    Posted,
    /// It was dropped before the provider got it, for example for lack of room: like a letter that is lost on the way.
    Dropped,
    /// The provider refuses it for now (-FI_EAGAIN).
    Refused,
}

/// The outcome of an action of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acted {
    Done,
    /// The provider refuses it for now (-FI_EAGAIN).
    Refused,
    /// This side has no room for it now, for a reason unrelated to its rail.
    NoRoom,
}

/// How a channel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Over,
    Failed(Cause),
}

pub trait Perform<C: Connection>: Shadows {
    type Inbox: InboxMemory;

    fn inbox(&mut self, id: MemoryId) -> &mut Self::Inbox;

    /// Posts a write. False if the provider refuses it for now (-FI_EAGAIN).
    fn post(&mut self, channel: ChannelId, post: &Post) -> bool;

    /// Sends a letter.
    fn send(&mut self, channel: ChannelId, rail: u8, letter: &Letter) -> LetterPost;

    /// Performs an action of a connection.
    fn act(&mut self, slot: Slot, action: &C::Action, account: &Account) -> Acted;

    /// Copies the payload of a message into the shadow.
    fn copy_out(&mut self, shadow: MemoryId, payload: Payload, message: &C::Message);

    /// Copies a payload from the inbox to its destination: a receive, or the account's parking.
    fn copy_in(
        &mut self,
        inbox: MemoryId,
        payload: Payload,
        slot: Slot,
        place: &C::Place,
        account: &mut Account,
    );

    /// The next event, if there is one now.
    fn next_event(&mut self) -> Option<Event<C::Event>>;

    /// Memory for an inbox on this rail. None: not now.
    fn lend_inbox(&mut self, channel: ChannelId, rail: u8) -> Option<LentInbox>;

    /// Memory for a shadow. None: not now.
    fn lend_shadow(&mut self, channel: ChannelId) -> Option<MemoryId>;

    /// This inbox is not read any more. A late write may reach it.
    fn retire_inbox(&mut self, memory: MemoryId);

    /// The memory of this inbox may be lent again, but only as an inbox: a late write is invalid in another inbox, since it lacks that
    /// inbox's nonce. It was [retired](Self::retire_inbox) before, if its channel has not failed.
    fn release_inbox(&mut self, memory: MemoryId);

    /// Nothing reads this shadow any more.
    fn release_shadow(&mut self, memory: MemoryId);

    /// A peer requests a connection from a listener: see [`Peers::open_arrived`](super::super::setup::Peers::open_arrived). A refusal
    /// is sent at once; None: `accept` answers later.
    fn open_requested(&mut self, channel: ChannelId, open: &Open) -> Option<Refused>;

    /// A frame broke a bound of this connection: the channel fails.
    fn violated(&mut self, slot: Slot, error: C::Error);

    /// Control rails of a channel are lost, and the channel continues on others, or they are back: for the log.
    fn control_rails(&mut self, channel: ChannelId, news: RailNews);

    /// The failure that the last event reported is of before a loss of its control rail, which is back: it has no effect on the rail.
    fn failed_late(&mut self, channel: ChannelId, rail: u8);

    /// A data rail of a channel is lost, and the channel continues on others: for the log.
    fn rail_lost(&mut self, channel: ChannelId, rail: u8, cause: Cause);

    /// Closes one of our data rails, so that nothing is sent or received on it any more. In the next poll
    /// [`next_event`](Self::next_event) returns its remaining arrivals, and a completion for each operation that was in
    /// flight; later it returns none. False: the rail cannot be closed now, or not at all.
    fn close_rail(&mut self, local: u8) -> bool;

    /// Whether one of our data rails could be opened again after a close. Checked before a rail is closed only to be replaced.
    fn can_reopen(&self, local: u8) -> bool;

    /// Opens one of our closed data rails again, with a new libfabric endpoint. Returns whether all memory keys on it
    /// have changed. None: it cannot be opened now.
    fn open_rail(&mut self, local: u8) -> Option<bool>;

    /// The current address of one of our data rails.
    fn trial_target(&mut self, local: u8) -> Option<TrialTarget>;

    /// The key of a region on one of our data rails, after [`open_rail`](Self::open_rail); 0 for a region without one.
    fn key_of(&mut self, local: u8, region: u32) -> u64;

    /// Sets the peer's new address on a data rail of a channel. False if that fails.
    fn reach(&mut self, channel: ChannelId, rail: u8, address: &Address) -> bool;

    /// Posts a trial: a write of few or no bytes, with an immediate. [`Event::TrialEnded`] reports its end. False: not
    /// now.
    fn try_rail(&mut self, channel: ChannelId, offer: &Offer) -> bool;

    /// A data rail of a channel is back: for the log.
    fn rail_returned(&mut self, channel: ChannelId, rail: u8);

    /// The channel is over. This was reported to its connections.
    fn ended(&mut self, channel: ChannelId, outcome: Outcome);

    /// A channel that has ended is forgotten: nothing is posted or sent to its peer any more.
    fn forgotten(&mut self, channel: ChannelId);
}
