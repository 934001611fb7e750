//! What the loop asks of the one that performs it: the plugin, over libfabric; the simulator, over a wire with faults.

use super::super::account::Account;
use super::super::channel::{Cause, Post, RailNews, WriteId};
use super::super::connection::Connection;
use super::super::frame::{Offer, Open, Refused};
use super::super::ids::{Generation, Nonce, Slot};
use super::super::letter::Letter;
use super::super::memory::{InboxMemory, MemoryId, Payload, Shadows};
use crate::codec::Address;

/// Names a channel of an endpoint.
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

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<E> {
    /// A write of a channel's has ended.
    Wrote { channel: ChannelId, write: WriteId, rail: u8, well: bool },
    /// A two-sided message could not be sent. (That one was sent says nothing.)
    LetterFailed { channel: ChannelId, rail: u8 },
    /// A two-sided message of the peer's. `proven`: the secret of a listener vouches for it.
    Letter { channel: ChannelId, letter: Letter, proven: bool },
    /// The endpoint of a control rail was closed: nothing moves on it any more. Said of each channel that has it, by the
    /// channel's own number of the rail.
    RailClosed { channel: ChannelId, rail: u8 },
    /// Something has arrived for a connection, named as an immediate does: slot, and the low two bits of the generation.
    Arrived { connection: u16, event: E },
    /// The trial of a data rail to the peer of a channel has ended.
    TrialEnded { channel: ChannelId, rail: u8, well: bool },
    /// A trial of the peer's has come by this rail of a channel, and names this round.
    TrialArrived { channel: ChannelId, rail: u8, round: u8 },
    /// Of a connection's own actions.
    Connection { slot: Slot, generation: Generation, event: E },
}

/// How a data rail of ours is reached, and where a trial of it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entrance {
    pub address: Address,
    /// A few bytes that are never read: their address, as peers name it, and their key.
    pub target: u64,
    pub key: u64,
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

    /// Posts a write. False if the provider refuses for now.
    fn post(&mut self, channel: ChannelId, post: &Post) -> bool;

    /// Posts a two-sided message. False if the provider refuses for now.
    fn send(&mut self, channel: ChannelId, rail: u8, letter: &Letter) -> bool;

    /// Does what a connection asks for. False if the provider refuses for now.
    fn act(&mut self, slot: Slot, action: &C::Action, account: &Account) -> bool;

    /// Copies the payload of a message into the shadow, in bytes.
    fn copy_out(&mut self, shadow: MemoryId, payload: Payload, message: &C::Message);

    /// Copies a payload from the inbox to where it belongs: into a receive, or into the account's parking.
    fn copy_in(
        &mut self,
        inbox: MemoryId,
        payload: Payload,
        slot: Slot,
        place: &C::Place,
        account: &mut Account,
    );

    /// What happened next. None: nothing more for now.
    fn next_event(&mut self) -> Option<Event<C::Event>>;

    /// Memory for an inbox on this rail. None: not now.
    fn lend_inbox(&mut self, channel: ChannelId, rail: u8) -> Option<LentInbox>;

    /// Memory for a shadow. None: not now.
    fn lend_shadow(&mut self, channel: ChannelId) -> Option<MemoryId>;

    /// This inbox is read no more. A late write may reach it until the rail is closed.
    fn retire_inbox(&mut self, memory: MemoryId, rail: u8);

    /// Nothing reads this shadow any more.
    fn release_shadow(&mut self, memory: MemoryId);

    /// A peer asks a listener for a connection: see [`Peers::asked`](super::super::setup::Peers::asked). An answer is sent at
    /// once; None: `accept` answers later.
    fn asked_to_open(&mut self, channel: ChannelId, open: &Open) -> Option<Refused>;

    /// A frame broke a bound of this connection: the channel fails.
    fn violated(&mut self, slot: Slot, error: C::Error);

    /// Control rails of a channel are lost, and the channel goes on by others, or they are back: for the log.
    fn control_rails(&mut self, channel: ChannelId, news: RailNews);

    /// A data rail of a channel is lost, and the channel goes on by others: for the log.
    fn rail_lost(&mut self, channel: ChannelId, rail: u8, cause: Cause);

    /// Closes a data rail of ours, by our own number, so that nothing moves on it any more. What has arrived and what has ended,
    /// all that was under way among it, is said by [`next_event`](Self::next_event) in the next poll, and nothing of the rail after
    /// that. False: not now, or not at all.
    fn close_rail(&mut self, local: u8) -> bool;

    /// Opens a data rail of ours again that was closed, by our own number: another endpoint. Whether all keys on it are others now.
    /// None: not now.
    fn open_rail(&mut self, local: u8) -> Option<bool>;

    /// How a data rail of ours is reached now.
    fn entrance(&mut self, local: u8) -> Option<Entrance>;

    /// The key of a region on a data rail of ours, after [`open_rail`](Self::open_rail). A region without one has 0.
    fn key_of(&mut self, local: u8, region: u32) -> u64;

    /// By this data rail of a channel the peer is reached at another address from now on. False: it cannot be.
    fn reach(&mut self, channel: ChannelId, rail: u8, address: &Address) -> bool;

    /// Posts a trial: a write of few bytes, or none, with an immediate. Its end is said by [`Event::TrialEnded`]. False: not now.
    fn try_rail(&mut self, channel: ChannelId, offer: &Offer) -> bool;

    /// A data rail of a channel is back: for the log.
    fn rail_returned(&mut self, channel: ChannelId, rail: u8);

    /// The channel is over. Its connections know.
    fn ended(&mut self, channel: ChannelId, outcome: Outcome);
}
