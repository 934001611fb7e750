//! One end of the duplex channel between two endpoints: events in, plain-data actions out.
//!
//! ```text
//!  frames ──▶ Shadow ──packets──▶ the peer's inbox          Ending:    END both ways
//!  frames ◀── Inbox ◀──packets─── the peer's shadow         Recovery:  HELLO, QUERY, STATUS
//!             Acknowledgement ──▶ in packets, or the peer's cell
//! ```
//!
//! Recovery from a lost packet and from a lost control rail is the same: the reader lends a new inbox under the next
//! epoch and never reads the old one again; the writer continues in the new one. The first inbox is lent in the same
//! way.

mod acknowledgement;
mod control_rails;
mod ending;
mod epoch;
mod inbox;
mod inquiry;
mod letters;
mod recovery;
mod round_trip;
mod route;
mod shadow;
mod watch;

use std::collections::VecDeque;
use std::time::Duration;

pub use acknowledgement::Acknowledgement;
pub use control_rails::RailNews;
pub use ending::Ending;
pub use epoch::{OldInboxes, OldShadow};
pub use inbox::{Inbox, PacketReader};
pub use inquiry::PeerReport;
pub use recovery::{DueLetter, Recovery};
pub use round_trip::RoundTrip;
pub use shadow::{Abandoned, NeverSent, PacketWrite, Sent, Shadow};
pub use watch::Watch;

use self::control_rails::ControlRails;
use self::inquiry::Inquiry;
use super::bound::{CONTROL_RAILS_MAX, END_UNANSWERED, SHADOWS_MAX};
use super::counts::PeerCounts;
use super::frame::Malformed;
use super::ids::{Epoch, Moment, PacketNumber};
use super::memory::{InboxMemory, MemoryId, ShadowMemory, Shadows};
use super::packet::{Header, Ring};
use super::polled::{Now, PolledTime};
use crate::limits::MAX_DATA_RAILS;

/// The parameters of a channel.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    pub ring: Ring,
    /// The number of control rails.
    pub rails: u8,
    /// The number of data rails.
    pub data_rails: u8,
    /// The rail of the first inbox, derived from the channel's id, so that channels spread over the rails.
    pub rail: u8,
    /// The random key that the peer's letters must carry.
    pub key: u64,
    /// For each data rail of the channel, its index among this endpoint's rails.
    pub locals: [u8; MAX_DATA_RAILS],
    /// Whether the channel survives the loss of a data rail, if another one is left.
    pub failover: bool,
    /// Whether immediates arrive, which trials of a lost rail need.
    pub tries: bool,
    /// Whether a data rail with writes that never complete can be closed.
    pub closes: bool,
    /// Whether both ends report when parts arrive, to measure the speeds of rails.
    pub measure_by_arrival: bool,
    /// Keepalive timeout: how long a peer may be silent while this side waits for it.
    pub peer_timeout: Duration,
    /// How many old inboxes are not lent again yet: [`QUARANTINE`](super::bound::QUARANTINE), except in tests.
    pub quarantine: u8,
    /// The number of the first packet in both directions: 1, except in tests of the wrap.
    pub first: PacketNumber,
}

/// Why a channel has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No control rail is left.
    NoRail,
    /// Packets do not arrive, and no living control rail has room for another inbox.
    NoInbox,
    /// No memory is available for a new inbox or a new shadow.
    NoMemory,
    /// Timeout: this side waits for the peer, and nothing was received from it.
    Silent,
    /// This side waits for the peer, and the provider refuses all posts to it.
    Refused,
    /// Parts of a data rail whose writes completed have not arrived.
    DataLost {
        rail: u8,
    },
    /// The peer has lost a data rail.
    RailDown {
        rail: u8,
    },
    /// A write on a data rail has failed.
    DataFailed {
        rail: u8,
    },
    /// A data rail refused all posts for too long.
    DataRefused {
        rail: u8,
    },
    /// Writes on a data rail do not complete.
    DataHangs {
        rail: u8,
    },
    /// A data rail of ours was closed because of another peer.
    RailClosing {
        rail: u8,
    },
    Malformed(Malformed),
    /// The peer acknowledged a packet that was never sent.
    NeverSent,
    /// A frame came after the peer's END.
    AfterEnd,
    /// A frame that breaks a bound of its connection.
    Connection,
    /// The peer's end of the channel has failed.
    Peer,
}

/// An RDMA write to post for the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    pub write: WriteId,
    /// The control rail to post on.
    pub rail: u8,
    pub from: MemoryId,
    /// Offset of the bytes, the same in the shadow and in the peer's inbox.
    pub at: u32,
    pub bytes: u32,
    /// Address of the peer's inbox.
    pub address: u64,
    pub key: u64,
}

/// Identifies a write of the channel until it has completed or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteId {
    pub epoch: Epoch,
    pub what: Written,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Packet(PacketNumber),
    Cell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Alive,
    /// The inbox is drained once more, then the channel has failed.
    Failing(Cause),
    Failed(Cause),
    /// END was sent and received.
    Over,
}

#[derive(Debug)]
pub struct Channel {
    parameters: Parameters,
    state: State,
    /// The cause with which the channel fails when the peer's first HELLO comes.
    fails_once_met: Option<Cause>,
    shadow: Shadow,
    inbox: Option<Inbox>,
    acknowledgement: Acknowledgement,
    recovery: Recovery,
    ending: Ending,
    round_trip: RoundTrip,
    peer_key: u64,
    rails: ControlRails,
    needs_inbox: epoch::NeedsInbox,
    /// Per control rail, the epoch of the peer's inbox when the rail was lost last: the peer replaces an inbox on that rail.
    lost_in: [Epoch; CONTROL_RAILS_MAX],
    /// Since when no living rail may get another inbox, and no packet has come.
    roomless_since: Option<PolledTime>,
    /// Old inboxes that a late write may still reach, the oldest first.
    quarantine: VecDeque<MemoryId>,
    /// Per rail, inboxes in which packets were lost since the last one came.
    in_vain: [u8; CONTROL_RAILS_MAX],
    /// Old shadows, until their writes have ended.
    old_shadows: Vec<OldShadow>,
    /// Since when a new inbox of the peer waits for an old shadow to be freed.
    crowded_since: Option<PolledTime>,
    /// Set while no memory is available for a new inbox or shadow.
    starved: Option<epoch::Starved>,
    confirmed: letters::Confirmed,
    inquiry: Inquiry,
}

impl Channel {
    /// None unless there are 1 to 4 control rails, and `rail` is one of them.
    pub fn new(parameters: Parameters, now: PolledTime) -> Option<Self> {
        let Parameters { ring, rails, rail, first, .. } = parameters;
        if usize::from(rails) > CONTROL_RAILS_MAX || rail >= rails {
            return None;
        }
        Some(Self {
            parameters,
            state: State::Alive,
            fails_once_met: None,
            shadow: Shadow::new(ring, first),
            inbox: None,
            acknowledgement: Acknowledgement::new(ring, first.plus(u32::MAX)),
            recovery: Recovery::new(now),
            ending: Ending::default(),
            round_trip: RoundTrip::default(),
            peer_key: 0,
            rails: ControlRails::new(rails),
            needs_inbox: epoch::NeedsInbox::Yes,
            lost_in: [Epoch(0); CONTROL_RAILS_MAX],
            roomless_since: None,
            quarantine: VecDeque::new(),
            in_vain: [0; CONTROL_RAILS_MAX],
            old_shadows: Vec::with_capacity(SHADOWS_MAX),
            crowded_since: None,
            starved: None,
            confirmed: letters::Confirmed::default(),
            inquiry: Inquiry::default(),
        })
    }

    /// Memory that the channel uses besides its inbox and its shadow.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.shadow.memory_bytes()
            + self.old_shadows.capacity() * size_of::<OldShadow>()
    }

    pub fn is_alive(&self) -> bool {
        self.state == State::Alive
    }

    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    pub fn failure(&self) -> Option<Cause> {
        match self.state {
            State::Failed(cause) => Some(cause),
            _ => None,
        }
    }

    pub fn shadow(&self) -> &Shadow {
        &self.shadow
    }

    pub fn shadow_mut(&mut self) -> &mut Shadow {
        &mut self.shadow
    }

    pub fn inbox(&self) -> Option<&Inbox> {
        self.inbox.as_ref()
    }

    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    pub fn ending_mut(&mut self) -> &mut Ending {
        &mut self.ending
    }

    /// Whether frames may be appended.
    pub fn may_write(&self) -> bool {
        self.is_alive() && !self.ending.is_said()
    }

    /// Begins to fail; the first cause is kept. The inbox is drained before the failure is reported to the connections.
    pub fn fail(&mut self, cause: Cause) {
        if self.state == State::Alive {
            self.state = State::Failing(cause);
        }
    }

    /// Fails a new channel, but not before the peer's first HELLO: until then no letter could report the failure to the peer. The first
    /// cause is kept.
    pub(crate) fn fail_once_met(&mut self, cause: Cause) {
        self.fails_once_met.get_or_insert(cause);
    }

    /// Whether the channel fails when the peer's first HELLO comes.
    pub(crate) fn fails_once_met(&self) -> bool {
        self.fails_once_met.is_some()
    }

    /// The cause, if the channel fails as soon as its inbox is drained.
    pub fn is_failing(&self) -> Option<Cause> {
        match self.state {
            State::Failing(cause) => Some(cause),
            _ => None,
        }
    }

    /// The inbox is drained. From now on the channel posts nothing.
    pub fn failed(&mut self) {
        if let State::Failing(cause) = self.state {
            self.state = State::Failed(cause);
        }
    }

    /// The next write to post. It stays the next one until [`posted`](Self::posted).
    #[inline]
    pub fn next_post(&self) -> Option<Post> {
        if self.state != State::Alive {
            return None;
        }
        let write = self.shadow.next_post()?;
        if self.is_lost(write.to.rail) {
            return None;
        }
        Some(Post {
            write: WriteId { epoch: write.to.epoch, what: Written::Packet(write.number) },
            rail: write.to.rail,
            from: write.memory,
            at: write.at,
            bytes: write.bytes,
            address: write.to.address,
            key: write.to.key,
        })
    }

    /// The write of the peer's cell, if one is due. Packets that leave carry the acknowledgement, so they are sealed before.
    #[inline]
    pub fn cell_post<M: Shadows>(&mut self, memories: &mut M, now: Moment) -> Option<Post> {
        if self.state != State::Alive || !self.must_acknowledge(now) {
            return None;
        }
        let to = *self.shadow.target()?;
        let from = self.shadow.memory()?;
        if self.is_lost(to.rail) {
            return None;
        }
        let (ring, consumed) = (self.parameters.ring, self.inbox.as_ref()?.consumed());
        memories.shadow(from).store(ring.words(), to.nonce.cell(consumed));
        Some(Post {
            write: WriteId { epoch: to.epoch, what: Written::Cell },
            rail: to.rail,
            from,
            at: ring.bytes(),
            bytes: 8,
            address: to.address,
            key: to.key,
        })
    }

    /// Whether this side or the peer is ending the channel.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.ending.is_begun() || self.ending.has_peer_said()
    }

    /// Whether the cell must be written now, unless a packet is sealed before.
    #[inline]
    pub fn must_acknowledge(&self, now: Moment) -> bool {
        self.acknowledgement.is_due(self.ending.has_peer_said(), now)
    }

    /// Makes the peer's cell old, as if it was not written for many packets.
    #[cfg(test)]
    pub fn age_cell(&mut self) {
        self.acknowledgement.age_cell();
    }

    /// The provider has accepted the write.
    #[inline]
    pub fn posted(&mut self, post: &Post, now: Moment) {
        match post.write.what {
            Written::Packet(_) => self.shadow.posted(now),
            Written::Cell => self.acknowledgement.cell_posted(),
        }
    }

    /// A write has completed or failed. Calls `left` for each inline message that needs no retransmission any more.
    /// Returns a shadow that is free now. A failure of a write from before a return of its rail is no loss: see
    /// [`is_late`](Self::is_late).
    #[inline]
    pub fn wrote(
        &mut self,
        write: WriteId,
        rail: u8,
        well: bool,
        left: impl FnMut(Sent),
    ) -> Option<MemoryId> {
        let current = self.shadow.target().is_some_and(|target| target.epoch == write.epoch);
        let free = if current {
            match write.what {
                Written::Packet(number) => self.shadow.wrote(number, well, left),
                Written::Cell => self.acknowledgement.cell_written(),
            }
            None
        } else {
            self.old_shadow_wrote(write.epoch)
        };
        if !well && !self.is_late(write.epoch, rail) {
            self.rail_lost(rail);
        }
        free
    }

    /// Seals the open packet, which acknowledges all that was consumed.
    #[inline]
    pub fn seal<S: ShadowMemory>(&mut self, memory: &mut S) {
        if self.shadow.seal(memory) {
            self.acknowledgement.acknowledged();
        }
    }

    /// The next packet that has arrived.
    #[inline]
    pub fn next_packet<M: InboxMemory>(&self, memory: &M) -> Option<PacketReader> {
        match self.state {
            State::Alive | State::Failing(_) => self.inbox.as_ref()?.next(memory),
            State::Failed(_) | State::Over => None,
        }
    }

    /// The packet's frames are handled: overwrites it, counts it, and processes its acknowledgement. Returns the smoothed
    /// round trip, if the packet has changed it.
    #[inline]
    pub fn consumed<M: InboxMemory>(
        &mut self,
        memory: &mut M,
        packet: &PacketReader,
        Now { clock: now, polled }: Now,
        left: impl FnMut(Sent),
    ) -> Option<Duration> {
        let inbox = self.inbox.as_mut()?;
        inbox.consume(memory, packet);
        let header: &Header = packet.header();
        self.roomless_since = None;
        if self.needs_inbox.consumed(header.number) {
            self.starved = None;
        }
        self.shadow.set_acknowledgement(header.number);
        self.acknowledgement.consumed(header.number, header.span(), now);
        self.recovery.heard(polled);
        self.recovery.progressed();
        let posted_at = self.acknowledged(header.acknowledged, polled, left)?;
        Some(self.round_trip.sample(now.since(posted_at)))
    }

    /// Reads the acknowledgement that the peer wrote into our cell.
    #[inline]
    pub fn read_cell<M: InboxMemory>(
        &mut self,
        memory: &M,
        polled: PolledTime,
        left: impl FnMut(Sent),
    ) {
        if self.state != State::Alive {
            return;
        }
        let Some(acknowledged) = self.inbox.as_ref().and_then(|inbox| inbox.cell(memory)) else {
            return;
        };
        if self.acknowledged(acknowledged, polled, left).is_some() {
            self.recovery.progressed();
        }
    }

    /// Handles an acknowledgement. Returns when the newest packet that it newly acknowledges was posted.
    #[inline]
    fn acknowledged(
        &mut self,
        number: PacketNumber,
        polled: PolledTime,
        left: impl FnMut(Sent),
    ) -> Option<Moment> {
        match self.shadow.acknowledge(number, left) {
            Ok(news) => {
                if news.is_some() {
                    self.recovery.heard(polled);
                    self.recovery.acknowledged();
                }
                news
            }
            Err(NeverSent) => {
                self.fail(Cause::NeverSent);
                None
            }
        }
    }

    /// Whether the channel has ended without an error: our END is acknowledged, the peer's has arrived, and our
    /// acknowledgement of it has left. After the peer's END a timeout or an unreachable peer end the channel without an
    /// error, too.
    pub fn has_ended(&self, polled: PolledTime) -> bool {
        if self.state != State::Alive || !self.ending.has_peer_said() {
            return false;
        }
        if self.ending.has_lost_peer() {
            return true;
        }
        // If the peer stops consuming, there may never be room for our END.
        let silent = self.recovery.silence(polled) >= self.parameters.peer_timeout;
        self.is_settled() || (self.ending.is_begun() && silent)
    }

    /// Whether an endpoint that closes need not wait for the channel any more: the channel has ended or failed, or both ENDs have
    /// left, and a silent peer does not acknowledge ours. The peer may have read our END and closed, which loses its last acknowledgement.
    pub fn may_be_left(&self, polled: PolledTime) -> bool {
        let has_left = self.ending.has_peer_said() && self.ending.is_in(self.shadow.completed());
        match self.state {
            State::Failed(_) | State::Over => true,
            State::Failing(_) => false,
            State::Alive => has_left && self.recovery.silence(polled) >= END_UNANSWERED,
        }
    }

    /// Whether the peer has consumed all packets up to our END, and our acknowledgement of its own has left.
    pub fn is_settled(&self) -> bool {
        self.ending.is_in(self.shadow.acknowledged()) && self.acknowledgement.is_settled()
    }

    /// Ends the channel. Returns its inbox: a late write of the peer may still reach it.
    pub fn over(&mut self) -> Option<MemoryId> {
        self.state = State::Over;
        // The inbox is kept: a late QUERY is answered with the last packet consumed.
        self.inbox.as_ref().map(|inbox| inbox.memory())
    }

    /// Whether something is unsent, unacknowledged or unanswered, so that the keeper must poll if nothing else does.
    pub fn has_pending(&self, counts: &PeerCounts) -> bool {
        if self.state != State::Alive {
            return matches!(self.state, State::Failing(_));
        }
        self.shadow.is_open()
            || self.shadow.unacknowledged() > 0
            || self.recovery.has_pending()
            || self.needs_inbox != epoch::NeedsInbox::No
            || self.ending.is_begun()
            || !self.confirmed.settles(counts)
    }

    /// The index of a data rail of this channel among this endpoint's rails.
    pub(crate) fn local_rail(&self, rail: u8) -> u8 {
        self.parameters.locals[usize::from(rail) % MAX_DATA_RAILS]
    }

    /// Keepalive timeout: how long a peer may be silent while this side waits for it.
    pub(crate) fn peer_timeout(&self) -> Duration {
        self.parameters.peer_timeout
    }

    /// Whether a data rail with writes that never complete can be closed.
    pub(crate) fn closes_rails(&self) -> bool {
        self.parameters.closes
    }

    /// A data rail is lost: its counts are ignored from now on.
    pub(crate) fn ignore_counts_of(&mut self, rail: u8) {
        self.confirmed.ignore(rail);
    }

    /// A data rail is back: its counts are compared again, from the `parts` that the peer has seen there.
    pub(crate) fn resume_counts_of(&mut self, rail: u8, parts: u32) {
        self.confirmed.resume(rail, parts);
    }

    /// How many of our parts the peer has confirmed on a data rail.
    pub(crate) fn confirmed_on(&self, rail: u8) -> u32 {
        self.confirmed.seen_on(rail)
    }

    /// Sends a QUERY at once, for the parts that the peer has seen.
    pub(crate) fn query_at_once(&mut self) {
        self.recovery.query_now();
    }

    /// Whether a control rail is lost.
    pub fn is_lost(&self, rail: u8) -> bool {
        self.rails.is_lost(rail)
    }
}

#[cfg(test)]
mod tests;
