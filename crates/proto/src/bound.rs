//! Every bound of the channel, by name.

use std::time::Duration;

/// Packets that are unacknowledged or whose write has not completed.
pub const PACKETS_MAX: usize = 64;
/// Consumed packets of which the peer has not been told that make the reader write its cell.
pub const TOLD_AFTER_PACKETS: u32 = 32;
/// How long fewer of them wait for a packet to tell of them.
pub const TOLD_AFTER: Duration = Duration::from_millis(4);
/// Inline messages in packets that are unacknowledged or not completed.
pub const INLINES_MAX: usize = 1024;
/// How often a channel to which nothing happens is looked after: its timers are no finer.
pub const SETTLE_EVERY: Duration = Duration::from_micros(5);
/// Packets that one poll of a channel consumes at most, so that no peer holds the lock for ever.
pub const PACKETS_PER_POLL: usize = 64;

/// Control rails of one channel.
pub const CONTROL_RAILS_MAX: usize = 4;
/// Inboxes of one channel and rail that are read no more and that a late write may still reach.
pub const QUARANTINE_MAX: usize = 16;
/// Shadows that a channel has left and whose writes have not all completed.
pub const SHADOWS_MAX: usize = 8;

/// How long a HELLO waits for its echo before it is repeated, at first and at most.
pub const HELLO_AGAIN: Duration = Duration::from_millis(20);
pub const HELLO_AGAIN_MAX: Duration = Duration::from_secs(1);
/// How long a side that waits hears nothing before it asks, at first and at most.
pub const QUERY_AFTER: Duration = Duration::from_millis(20);
pub const QUERY_AFTER_MAX: Duration = Duration::from_secs(1);
/// After so long without a new inbox the ones before do not make questions rarer.
pub const SWITCHES_FORGOTTEN: Duration = Duration::from_secs(10);
/// Answers that leave a completed packet unconsumed before it is taken for lost.
pub const ANSWERS_UNTIL_LOST: u8 = 2;
/// Letters without effect on one control rail before the next one is tried.
pub const LETTERS_PER_RAIL: u32 = 2;
/// Answers come, and the write of a packet does not end: after so long its control rail is lost, where another one lives.
pub const CONTROL_HANGS: Duration = Duration::from_millis(500);
/// How long a control rail takes no letter until the next one is tried.
pub const LETTER_REFUSED: Duration = Duration::from_millis(100);
/// The provider takes no letter by any control rail, and nothing is heard: after so long the peer is gone, not stopped, whose
/// connections would take them.
pub const REFUSED_FOR_GOOD: Duration = Duration::from_secs(15);
/// More time than this between two polls of an endpoint is no time that a peer was silent.
pub const POLL_GAP_MAX: Duration = Duration::from_millis(50);

/// How long an endpoint that owes something goes unpolled before the keeper polls it.
pub const KEEPER_OWED: Duration = Duration::from_millis(10);
/// The same for one that owes nothing, but has a connection that waits for its peer: the time that the peer is silent counts
/// in full, so that silence is an error in time although nobody calls.
pub const KEEPER_WAITS: Duration = Duration::from_millis(25);
/// The same for one that owes nothing and waits for nothing while a channel lives, at first and, after polls that found nothing, at most.
pub const KEEPER_IDLE: Duration = Duration::from_millis(250);
pub const KEEPER_IDLE_MAX: Duration = Duration::from_secs(1);

/// Parts of a rail whose writes completed do not arrive: after so long, with answers in between, the rail is lost.
pub const RAIL_SILENT: Duration = Duration::from_millis(500);
/// How long a side that waits for such parts hears nothing before it asks.
pub const RAIL_ASK: Duration = Duration::from_millis(100);
/// How long a rail takes no part of a channel's until it is lost, where another is open.
pub const RAIL_REFUSES: Duration = Duration::from_millis(500);
/// How often rails are looked at on which writes may hang.
pub const RAIL_LOOK: Duration = Duration::from_millis(100);
/// The peer answers, and for so long no write on a rail ends: the rail is lost, where another is open and this one can be closed.
/// One that may have to be left open gets half of the time of a silent peer, and `RAIL_LAST` at most.
pub const RAIL_HANGS: Duration = Duration::from_millis(500);
/// At most so long for the last rail, whose loss is the channel's.
pub const RAIL_LAST: Duration = Duration::from_secs(8);
/// Answers further apart than this do not show that the peer runs.
pub const RAIL_HEARD: Duration = Duration::from_millis(250);
/// On a lost rail: after so long without an arrival what the peer has posted is not coming any more.
pub const RAIL_STILL: Duration = Duration::from_millis(10);
/// The same of our own writes: they do not end by themselves.
pub const RAIL_STUCK: Duration = Duration::from_millis(200);
/// A rail that is to be closed: how long its other peers get for what is under way there, while nothing moves, and in all.
pub const RAIL_DRAIN_STILL: Duration = Duration::from_millis(50);
pub const RAIL_DRAIN_MAX: Duration = Duration::from_secs(1);
/// After so long a rail that cannot be closed fails the channels that need that.
pub const RAIL_CLOSE_MAX: Duration = Duration::from_secs(2);

/// How long a lost rail is left alone before it is tried, and between two rounds.
pub const RAIL_REST: Duration = Duration::from_millis(300);
/// So many rounds may fail before a pause is twice as long as the one before, and how long it is at most.
pub const RAIL_ROUNDS: u32 = 40;
pub const RAIL_REST_MAX: Duration = Duration::from_secs(60);
/// A rail that is lost again so soon after its return flaps; how often it may before its pauses double.
pub const RAIL_FLAP: Duration = Duration::from_secs(60);
pub const RAIL_FLAPS: u32 = 3;
/// How long a trial of a rail is waited for; and how long its endpoint is kept, if no channel uses it, until another one is opened.
pub const RAIL_TRIAL: Duration = Duration::from_secs(1);
/// How long after a trial that has failed the next one is posted.
pub const RAIL_TRY_AGAIN: Duration = Duration::from_millis(50);

const _: () = {
    assert!(
        TOLD_AFTER_PACKETS as usize + 2 <= PACKETS_MAX,
        "a writer of a pad and a packet waits past this many"
    );
    assert!(TOLD_AFTER.as_millis() < QUERY_AFTER.as_millis(), "the cell spares a QUERY");
    assert!(KEEPER_WAITS.as_millis() < POLL_GAP_MAX.as_millis(), "else a wait goes uncounted");
    assert!(CONTROL_RAILS_MAX * 4 <= u16::BITS as usize, "each has a number of 4 bits in letters");
};
