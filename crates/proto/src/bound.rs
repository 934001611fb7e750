//! The channel's bounds and timeouts. docs/protocol.md explains them.

use std::time::Duration;

/// Packets that are unacknowledged or whose write has not completed.
pub const PACKETS_MAX: usize = 64;
/// The reader writes the peer's cell when this many consumed packets are not acknowledged.
pub const ACKNOWLEDGE_AFTER_PACKETS: u32 = 32;
/// Delayed acknowledgement: how long fewer consumed packets wait for a packet that acknowledges them, before the cell is written.
pub const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(4);
/// The peer's cell is written at least once in this many packets, even if packets acknowledge all: the peer compares the cell's number
/// with that of the last acknowledgement, and the two may not be half of all numbers apart.
pub const CELL_AFTER_PACKETS: u32 = 1 << 20;
/// Inline messages in packets that are unacknowledged or not completed.
pub const INLINES_MAX: usize = 1024;
/// How long a channel without memory for a new inbox waits before it asks for memory again.
pub const MEMORY_AGAIN: Duration = Duration::from_millis(50);
/// The time between two attempts to forget a channel that has ended.
pub const FORGET_AGAIN: Duration = Duration::from_secs(1);
/// The time between two checks of the timers of a channel on which something happens: the resolution of timers.
pub const SETTLE_EVERY: Duration = Duration::from_micros(250);
/// How many inboxes a poll looks into, in turn, beside that of the connection that the caller waits for. A poll looks into all inboxes
/// if the last one was longer ago than `INBOXES_ALL_AFTER`.
pub const INBOXES_PER_POLL: usize = 64;
pub const INBOXES_ALL_AFTER: Duration = Duration::from_micros(100);
/// The most packets that one poll of a channel consumes, so that no peer can keep the endpoint's lock taken.
pub const PACKETS_PER_POLL: usize = 64;

/// Control rails of one channel.
pub const CONTROL_RAILS_MAX: usize = 4;
/// Peers that an endpoint knows by their HELLOs: as many as it may have channels.
pub const PEERS_MAX: usize = 1 << 16;
/// Old inboxes of a channel that are not lent again yet, because a late write may still reach them. Since the wait before a QUERY grows with
/// each new inbox, it takes most of a minute to lose so many with their rails alive.
pub const QUARANTINE: u8 = 32;
/// A control rail with lost packets in this many inboxes, while none came in any inbox, gets no more inboxes.
pub const INBOXES_IN_VAIN_MAX: u8 = 16;
/// Old shadows of a channel with writes that have not completed.
pub const SHADOWS_MAX: usize = 8;

/// Retransmission timeout of a HELLO that is not echoed: initial value and maximum.
pub const HELLO_AGAIN: Duration = Duration::from_millis(20);
pub const HELLO_AGAIN_MAX: Duration = Duration::from_secs(1);
/// A side that waits for a silent peer sends QUERY after this time: initial value and maximum.
pub const QUERY_AFTER: Duration = Duration::from_millis(20);
pub const QUERY_AFTER_MAX: Duration = Duration::from_secs(1);
/// When an endpoint closes, both ENDs have left, and the peer has answered no QUERY for this long, the peer is gone, and its
/// acknowledgement of our END is lost. A living peer answers within `KEEPER_PENDING`.
pub const END_UNANSWERED: Duration = Duration::from_millis(150);
/// Each new inbox lengthens the first wait before QUERY. After this long without a new inbox that back-off is reset.
pub const SWITCHES_RESET_AFTER: Duration = Duration::from_secs(10);
/// A packet counts as lost when this many STATUS in a row leave it unconsumed although its write has completed.
pub const ANSWERS_UNTIL_LOST: u8 = 2;
/// A control rail counts as lost if the write of a packet has not completed for this long although the peer answers, and
/// another rail lives.
pub const CONTROL_HANGS: Duration = Duration::from_millis(500);
/// After a control rail has refused letters for this long, letters go by the next rail.
pub const LETTER_REFUSED: Duration = Duration::from_millis(100);
/// The peer is gone if all control rails have refused letters for this long and nothing was received. If it were only stopped, the
/// provider's connections to it would accept letters.
pub const REFUSED_FOR_GOOD: Duration = Duration::from_secs(15);
/// At most this much of the gap between two polls of an endpoint counts towards timeouts of peers.
pub const POLL_GAP_MAX: Duration = Duration::from_millis(50);

/// The keeper polls an endpoint that has something to send or to confirm after this long without another poll.
pub const KEEPER_PENDING: Duration = Duration::from_millis(10);
/// As [`KEEPER_PENDING`], for an endpoint that has nothing to send, and has a connection that waits for its peer. Below
/// [`POLL_GAP_MAX`], so that all of the peer's silence counts towards its timeout even if NCCL does not call.
pub const KEEPER_WAITS: Duration = Duration::from_millis(25);
/// As [`KEEPER_PENDING`], for an endpoint that neither sends nor waits, and to which a peer has lent memory.
pub const KEEPER_LENT: Duration = Duration::from_millis(100);
/// As [`KEEPER_PENDING`], for an endpoint that neither sends nor waits, while a channel lives: initial value, and maximum after polls
/// that found nothing.
pub const KEEPER_IDLE: Duration = Duration::from_millis(250);
pub const KEEPER_IDLE_MAX: Duration = Duration::from_secs(1);

/// A data rail is lost when parts whose writes completed have not arrived after this time, although the peer answers.
pub const RAIL_SILENT: Duration = Duration::from_millis(500);
/// QUERY interval while such parts are missing.
pub const RAIL_QUERY: Duration = Duration::from_millis(100);
/// A data rail that refuses all parts of a channel for this long is lost, if another is open.
pub const RAIL_REFUSES: Duration = Duration::from_millis(500);
/// As [`RAIL_REFUSES`], for a rail that has not yet accepted a part of the channel: a provider may refuse posts while it connects to a
/// peer, for seconds if all ranks of a large job connect (verbs;ofi_rxm).
pub const RAIL_CONNECTS: Duration = Duration::from_secs(5);
/// How often rails are checked for hanging writes.
pub const RAIL_CHECK: Duration = Duration::from_millis(100);
/// A rail on which no write completes for this long, although the peer answers, is lost if another rail is open and this rail
/// can be closed. A rail that may have to stay open gets half of the peer timeout, and at most `RAIL_LAST`.
pub const RAIL_HANGS: Duration = Duration::from_millis(500);
/// The longest such time, for the last rail, whose loss fails the channel.
pub const RAIL_LAST: Duration = Duration::from_secs(8);

/// The bound for a rail that may have to stay open.
pub fn last_rail(peer_timeout: Duration) -> Duration {
    RAIL_LAST.min(peer_timeout / 2)
}

/// Answers further apart than this do not prove that the peer is running.
pub const RAIL_ANSWER_GAP: Duration = Duration::from_millis(250);
/// On a lost rail, the parts that the peer has posted count as lost after this long without an arrival.
pub const RAIL_STILL: Duration = Duration::from_millis(10);
/// On a lost rail, our own writes count as stuck after this long without a completion: they end only when the rail is closed.
pub const RAIL_STUCK: Duration = Duration::from_millis(200);
/// Before a rail is closed, transfers to other peers on it are drained, until they make no progress for `RAIL_DRAIN_STILL`, and
/// for `RAIL_DRAIN_MAX` at most.
pub const RAIL_DRAIN_STILL: Duration = Duration::from_millis(50);
pub const RAIL_DRAIN_MAX: Duration = Duration::from_secs(1);
/// If a rail cannot be closed within this time, the channels that need it closed fail. If it cannot be closed only because it is the last
/// rail of another channel, it is closed, and that channel has no rail until it opens again.
pub const RAIL_CLOSE_MAX: Duration = Duration::from_secs(2);

/// Pause before a lost rail is tried, and between two rounds of trials.
pub const RAIL_REST: Duration = Duration::from_millis(300);
/// After this many failed rounds the pause doubles each time, up to the maximum.
pub const RAIL_ROUNDS: u32 = 40;
pub const RAIL_REST_MAX: Duration = Duration::from_secs(60);
/// A rail that is lost again within `RAIL_FLAP` of its return flaps. After `RAIL_FLAPS` flaps its pauses double.
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
    assert!(
        ACKNOWLEDGE_AFTER.as_millis() < QUERY_AFTER.as_millis(),
        "the cell is written before a QUERY"
    );
    assert!(
        END_UNANSWERED.as_millis() > 7 * QUERY_AFTER.as_millis(),
        "three QUERYs, each after twice the wait"
    );
    assert!(KEEPER_WAITS.as_millis() < POLL_GAP_MAX.as_millis(), "all of a wait counts");
    assert!(
        CONTROL_RAILS_MAX * 4 <= u16::BITS as usize,
        "each rail has a number of 4 bits in letters"
    );
};
