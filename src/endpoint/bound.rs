//! The bounds of an endpoint: how much it has room for, how often it polls, and how long it waits. `proto::bound` has those of channels.

use std::time::Duration;

use proto::Slot;
use proto::bound::{KEEPER_IDLE_MAX, PEERS_MAX, REFUSED_FOR_GOOD};

/// Operations in flight on one NIC. Past that posts are refused, and repeated by later polls.
pub(crate) const OPERATIONS_MAX: u16 = 1024;
/// Of these, the operations reserved for control, and those reserved for parts to peers with fewer than [`PARTS_FEW`] parts in flight
/// there.
pub(super) const CONTROL_OPERATIONS: usize = 128;
pub(super) const FEWEST_OPERATIONS: usize = 128;
pub(super) const PARTS_FEW: usize = 4;
/// Tagged receives of connections that may be posted in addition, with SENDRECV. Further ones wait.
pub(crate) const TAGGED_RECEIVES_MAX: u16 = 4096;
/// Receives for letters that are kept posted on each control rail. Further letters wait in the provider.
pub(super) const LETTER_RECEIVES: u16 = 32;
/// Buffers for sent letters in one registration. A further one is made while letters to peers that hang hold all of them: such letters stay
/// in flight, and a working peer that gets no answer takes this rank for dead.
pub(super) const LETTER_SENDS: u16 = 32;
/// With SENDRECV, receives for packets that are kept posted on each control rail. Further packets wait in the provider; a channel has at most
/// a ring of them in flight.
pub(super) const PACKET_RECEIVES: u16 = 32;

/// Channels: a token has 16 bits for them.
pub(super) const CHANNELS_MAX: u32 = 1 << 16;
/// Connections: an immediate has 14 bits for them.
pub(super) const CONNECTIONS_MAX: u32 = 1 << 14;
/// Regions: NCCL registers each buffer once per connection.
pub(super) const REGIONS_MAX: u16 = u16::MAX;
/// At most this many differences between this end and its peers are logged.
pub(super) const DIFFERENCES_MAX: usize = 16;

/// Batches that one poll reads from one queue: a flood of completions must not hold the lock for ever.
pub(super) const BATCHES_PER_POLL: u32 = 4;
/// One in this many polls reads every data rail's queue: some providers progress a peer's operations there, such as connecting, only while
/// we poll.
pub(super) const DATA_POLLED_EVERY: u32 = 64;
/// One in this many polls reads the event queues, to which errors of endpoints are written.
pub(super) const EVENTS_READ_EVERY: u32 = 256;

/// How long the probe waits for each operation. Time counts only while connect or accept is called.
pub(super) const PROBE_WAIT: Duration = Duration::from_secs(2);
/// How long the probe still waits for an operation after [`PROBE_WAIT`], once a later write on the same NIC has landed.
pub(super) const PROBE_LATE_WAIT: Duration = Duration::from_millis(200);
/// At most this much of the time between two calls of connect or accept counts: a longer pause is the caller's, not the provider's.
pub(super) const PROBE_GAP_MAX: Duration = Duration::from_millis(100);

/// A peer counts as unreachable if the provider has rejected HELLOs to it for this long. Longer than a flapping link is down, and short
/// enough to wait for where a network is set up wrongly.
pub(super) const UNREACHABLE_AFTER: Duration = Duration::from_secs(10);
/// A connection for which accept was not called for this long delays no other one. NCCL's proxy calls accept for each in every pass of its
/// loop.
pub(super) const ACCEPT_ABANDONED_AFTER: Duration = Duration::from_secs(1);

/// An endpoint counts as abandoned after this long without a call, if a deregMr has failed on it and the threads that own it have ended.
pub(super) const ABANDONED_AFTER: Duration = Duration::from_secs(1);

/// At most this much of the time between two visits of the keeper counts as time without calls: in a longer pause the process was stopped.
pub(super) const VISIT_MAX: Duration = Duration::from_secs(2);

/// A peer to which every post was refused for this long counts as gone when memory is deregistered. To a working peer a provider refuses
/// posts for much less.
pub(super) const GONE_AFTER: Duration = Duration::from_millis(200);
/// Polls of deregMr for completions that are already there, before receives are withdrawn.
pub(super) const DEREGISTER_POLLS: u32 = 64;
/// The divisor of the next wait after one that timed out: many silent peers cost little more than one.
pub(super) const WAIT_SHRINKS_BY: u32 = 10;
/// The shortest wait for a peer, after others have timed out.
pub(super) const WAIT_MIN: Duration = Duration::from_millis(10);
/// Waits have their whole length again this long after the last one that timed out: the abort is over, and other communicators go on.
pub(super) const WAIT_RECOVERS_AFTER: Duration = Duration::from_secs(10);
/// The bound of an endpoint's drain, and then of its cancelled receives, after one peer has let a wait time out: an abort takes less than
/// two seconds in all, most of which deregMr uses.
pub(super) const IMPATIENT_WAIT: Duration = Duration::from_millis(150);
/// How long an endpoint that closes waits for cancelled receives.
pub(super) const CANCEL_WAIT: Duration = Duration::from_millis(50);
/// The final polls of an endpoint that closes, for local completions. A number, since on a busy machine a time limit may pass without a
/// poll.
pub(super) const DRAIN_POLLS: u32 = 256;

/// Checks for stalls per IRONRAIL_STALL_REPORT_MS, and the shortest and the longest time between two.
pub(super) const STALL_CHECKS: u32 = 8;
pub(super) const STALL_CHECK_MIN: Duration = Duration::from_millis(5);
pub(super) const STALL_CHECK_MAX: Duration = Duration::from_secs(1);
/// A peer that was queried and has sent nothing for this long is silent: an idle one answers within `KEEPER_IDLE_MAX`.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(3);
/// How long a NIC has to be slow before it is logged. On busy machines equal rails may differ for a moment.
pub(super) const SLOW_AFTER: Duration = Duration::from_secs(5);
/// The least time between two of a process's reports about stalls, between two about slow rails, and between two warnings that a connect or
/// accept waits.
pub(super) const REPORT_EVERY: Duration = Duration::from_secs(60);

const _: () = {
    let kept = CONTROL_OPERATIONS + FEWEST_OPERATIONS + LETTER_RECEIVES as usize;
    assert!(kept < OPERATIONS_MAX as usize / 2, "most operations are not reserved");
    assert!(CONNECTIONS_MAX as usize == Slot::COUNT, "each connection has a slot");
    assert!(CHANNELS_MAX as usize == PEERS_MAX, "one channel to each peer");
    assert!(PROBE_GAP_MAX.as_millis() < PROBE_LATE_WAIT.as_millis(), "a wait has several calls");
    assert!(GONE_AFTER.as_millis() < REFUSED_FOR_GOOD.as_millis(), "gone before its channel fails");
    assert!(
        CANCEL_WAIT.as_millis() < IMPATIENT_WAIT.as_millis(),
        "receives in bound regions get longer"
    );
    assert!(KEEPER_IDLE_MAX.as_millis() * 2 < SILENT_AFTER.as_millis(), "an idle peer answers");
};

/// A bound in milliseconds, for an error's sentence.
pub(super) fn milliseconds(bound: Duration) -> u32 {
    u32::try_from(bound.as_millis()).unwrap_or(u32::MAX)
}
