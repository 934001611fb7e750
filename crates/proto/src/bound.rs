//! The channel's bounds and timeouts. docs/protocol.md explains them.

use std::time::Duration;

/// Packets that are unacknowledged or whose write has not completed.
pub const PACKETS_MAX: usize = 64;
/// So many consumed and unacknowledged packets make the reader write the peer's cell.
pub const ACKNOWLEDGE_AFTER_PACKETS: u32 = 32;
/// Delayed acknowledgement: how long fewer of them wait for a packet that carries it, before the cell is written.
pub const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(4);
/// After so many packets without a write of the peer's cell it is written even if packets have acknowledged them all: both ends compare its
/// number with that of the last acknowledgement, which must be less than half of all numbers ago.
pub const CELL_AFTER_PACKETS: u32 = 1 << 20;
/// Inline messages in packets that are unacknowledged or not completed.
pub const INLINES_MAX: usize = 1024;
/// How long a channel without memory for a new inbox waits before it asks for some again.
pub const MEMORY_AGAIN: Duration = Duration::from_millis(50);
/// When a channel that has ended, and could not be forgotten yet, is looked at again.
pub const FORGET_AGAIN: Duration = Duration::from_secs(1);
/// How often the timers of a channel are checked to which something happens. Timers are no finer than this.
pub const SETTLE_EVERY: Duration = Duration::from_micros(250);
/// How many inboxes a poll looks into, in turn, beside that of the connection that the caller waits for; but all inboxes where the last
/// poll was so long ago.
pub const INBOXES_PER_POLL: usize = 64;
pub const INBOXES_ALL_AFTER: Duration = Duration::from_micros(100);
/// Packets that one poll of a channel consumes at most, so that no peer can keep the endpoint's lock taken.
pub const PACKETS_PER_POLL: usize = 64;

/// Control rails of one channel.
pub const CONTROL_RAILS_MAX: usize = 4;
/// Peers that an endpoint knows by their HELLOs: as many as it may have channels.
pub const PEERS_MAX: usize = 1 << 16;
/// Old inboxes of one channel and rail that a late write may still reach.
pub const QUARANTINE_MAX: usize = 16;
/// Old shadows of a channel with writes that have not completed.
pub const SHADOWS_MAX: usize = 8;

/// Retransmission timeout of a HELLO that is not echoed: initial value and maximum.
pub const HELLO_AGAIN: Duration = Duration::from_millis(20);
pub const HELLO_AGAIN_MAX: Duration = Duration::from_secs(1);
/// A side that waits for a silent peer sends QUERY after this time: initial value and maximum.
pub const QUERY_AFTER: Duration = Duration::from_millis(20);
pub const QUERY_AFTER_MAX: Duration = Duration::from_secs(1);
/// An endpoint closes. Both ENDs have left, and the peer answers no QUERY for so long: it is gone, and its acknowledgement
/// of our END is lost. A living peer answers within `KEEPER_PENDING`.
pub const END_UNANSWERED: Duration = Duration::from_millis(150);
/// Each new inbox lengthens the first wait before QUERY. After so long without a new inbox that back-off is reset.
pub const SWITCHES_RESET_AFTER: Duration = Duration::from_secs(10);
/// A packet counts as lost when so many STATUS in a row leave it unconsumed although its write has completed.
pub const ANSWERS_UNTIL_LOST: u8 = 2;
/// The peer answers, but the write of a packet does not complete: after this time its control rail counts as lost, if
/// another one lives.
pub const CONTROL_HANGS: Duration = Duration::from_millis(500);
/// A control rail that refuses letters for so long is passed over for the next one.
pub const LETTER_REFUSED: Duration = Duration::from_millis(100);
/// All control rails refuse letters, and nothing was received: after this time the peer is gone. The connections of a
/// peer that is merely stopped would accept them.
pub const REFUSED_FOR_GOOD: Duration = Duration::from_secs(15);
/// Of a longer gap between two polls of an endpoint, only this much counts towards timeouts of peers.
pub const POLL_GAP_MAX: Duration = Duration::from_millis(50);

/// The keeper polls an endpoint that has something to send or to confirm when nothing else has polled it for so long.
pub const KEEPER_PENDING: Duration = Duration::from_millis(10);
/// The same for an endpoint that has nothing to send, with a connection that waits for its peer. Below
/// [`POLL_GAP_MAX`], so that all of the peer's silence counts towards its timeout even if NCCL does not call.
pub const KEEPER_WAITS: Duration = Duration::from_millis(25);
/// The same for an endpoint that neither sends nor waits, to which a peer has lent memory.
pub const KEEPER_LENT: Duration = Duration::from_millis(100);
/// The same for an endpoint that neither sends nor waits, while a channel lives: initial value, and maximum after polls
/// that found nothing.
pub const KEEPER_IDLE: Duration = Duration::from_millis(250);
pub const KEEPER_IDLE_MAX: Duration = Duration::from_secs(1);

/// A data rail is lost when parts whose writes completed have not arrived after this time, although the peer answers.
pub const RAIL_SILENT: Duration = Duration::from_millis(500);
/// QUERY interval while such parts are missing.
pub const RAIL_QUERY: Duration = Duration::from_millis(100);
/// A data rail that refuses all parts of a channel for so long is lost, if another is open.
pub const RAIL_REFUSES: Duration = Duration::from_millis(500);
/// The same for one that has accepted no part of the channel yet: a provider may refuse posts while it connects to a peer, for seconds where
/// all ranks of a large job do (verbs;ofi_rxm).
pub const RAIL_CONNECTS: Duration = Duration::from_secs(5);
/// How often rails are checked for hanging writes.
pub const RAIL_CHECK: Duration = Duration::from_millis(100);
/// A rail on which no write completes for so long, although the peer answers, is lost if another is open and this one
/// can be closed. A rail that may have to stay open gets half of the peer timeout, and `RAIL_LAST` at most.
pub const RAIL_HANGS: Duration = Duration::from_millis(500);
/// The longest such time for the last rail, whose loss fails the channel.
pub const RAIL_LAST: Duration = Duration::from_secs(8);

/// The bound for a rail that may have to stay open.
pub fn last_rail(peer_timeout: Duration) -> Duration {
    RAIL_LAST.min(peer_timeout / 2)
}

/// Answers further apart than this do not prove that the peer is running.
pub const RAIL_ANSWER_GAP: Duration = Duration::from_millis(250);
/// On a lost rail: after so long without an arrival, what the peer has posted counts as lost.
pub const RAIL_STILL: Duration = Duration::from_millis(10);
/// The same for our own writes, which then do not complete without closing the rail.
pub const RAIL_STUCK: Duration = Duration::from_millis(200);
/// Before a rail is closed, transfers of other peers on it are drained: for so long without progress, and for so long
/// in total.
pub const RAIL_DRAIN_STILL: Duration = Duration::from_millis(50);
pub const RAIL_DRAIN_MAX: Duration = Duration::from_secs(1);
/// If a rail cannot be closed within this time, the channels that need it closed fail. If it stays open because it is the last one
/// of a channel whose other rails are lost, that one goes without any while it is closed.
pub const RAIL_CLOSE_MAX: Duration = Duration::from_secs(2);

/// Pause before a lost rail is tried, and between two rounds.
pub const RAIL_REST: Duration = Duration::from_millis(300);
/// After so many failed rounds the pause doubles each time, up to the maximum.
pub const RAIL_ROUNDS: u32 = 40;
pub const RAIL_REST_MAX: Duration = Duration::from_secs(60);
/// A rail that is lost again so soon after its return flaps. After so many flaps its pauses double.
pub const RAIL_FLAP: Duration = Duration::from_secs(60);
pub const RAIL_FLAPS: u32 = 3;
/// Timeout of a trial of a rail.
pub const RAIL_TRIAL: Duration = Duration::from_secs(1);
/// Pause between a failed trial and the next one.
pub const RAIL_TRY_AGAIN: Duration = Duration::from_millis(50);

const _: () = {
    assert!(
        ACKNOWLEDGE_AFTER_PACKETS as usize + 2 <= PACKETS_MAX,
        "a writer of a pad and a packet waits past this many"
    );
    assert!(ACKNOWLEDGE_AFTER.as_millis() < QUERY_AFTER.as_millis(), "the cell spares a QUERY");
    assert!(
        END_UNANSWERED.as_millis() > 7 * QUERY_AFTER.as_millis(),
        "three QUERYs, each after twice the wait"
    );
    assert!(KEEPER_WAITS.as_millis() < POLL_GAP_MAX.as_millis(), "else a wait goes uncounted");
    assert!(CONTROL_RAILS_MAX * 4 <= u16::BITS as usize, "each has a number of 4 bits in letters");
};
