//! Whether the peer of a connection is still there, for an end that waits and has nothing in flight that could fail.
//!
//! ```text
//! waits, nothing has come for BEAT ──▶ a write of one word that nobody reads ──▶ it completes: alive, wait again
//!                                        │ refused (EAGAIN)                  └──▶ it fails: dead
//!                                        └──▶ tried again; refused without a break for PEER_TIMEOUT: dead
//! ```
//!
//! Only operations that fail count, and refusals that last, never silence: a peer whose caller does not poll answers
//! nothing, and is well. A provider that has lost a connection makes a new one, and refuses posts meanwhile, which it
//! does for ever when nobody is there.

use std::path::Path;
use std::time::Duration;

use crate::comm::peer::Peer;
use crate::error::Cause;

/// What one end knows of the other.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// The last control write was refused by the provider.
    refused: bool,
    /// A write of ours that asks for a sign of life is in flight.
    beating: bool,
    /// For how long control writes have been refused.
    stalled: Duration,
    /// For how long this end has waited and nothing has come.
    quiet: Duration,
    /// How far the connection was at the last look.
    mark: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// Write the word that nobody reads.
    Beat,
    /// Nothing has been accepted for longer than the bound.
    Dead,
}

impl Pulse {
    /// A control write was accepted.
    #[inline]
    pub(super) fn accepted(&mut self) {
        self.refused = false;
    }

    /// The provider has no room for a control write.
    #[inline]
    pub(super) fn refused(&mut self) {
        self.refused = true;
    }

    /// The word is on its way.
    pub(super) fn beat(&mut self) {
        self.beating = true;
        self.quiet = Duration::ZERO;
    }

    /// The word has arrived, or failed.
    pub(super) fn beaten(&mut self) {
        self.beating = false;
    }

    /// `elapsed` of polling has passed. `waits`: this end expects something; `mark`: how far the connection is.
    pub(super) fn sweep(
        &mut self,
        elapsed: Duration,
        bound: Duration,
        waits: bool,
        mark: u64,
    ) -> Verdict {
        if self.refused {
            self.stalled += elapsed;
            if self.stalled > bound {
                return Verdict::Dead;
            }
        } else {
            self.stalled = Duration::ZERO;
        }
        if !waits || std::mem::replace(&mut self.mark, mark) != mark {
            self.quiet = Duration::ZERO;
            return Verdict::Fine;
        }
        self.quiet += elapsed;
        // One that was refused is tried at once: the next acceptance is what ends a stall.
        let due = self.refused || self.quiet >= BEAT.min(bound / 4);
        if due && !self.beating { Verdict::Beat } else { Verdict::Fine }
    }
}

/// Why a peer is given up that has refused all writes for so long.
pub(super) fn silent(bound: Duration) -> Cause {
    Cause::Silent { bound_ms: milliseconds(bound) }
}

/// A bound, for a sentence.
pub(super) fn milliseconds(bound: Duration) -> u32 {
    u32::try_from(bound.as_millis()).unwrap_or(u32::MAX)
}

/// Whether the peer's process is known to have ended. Shared memory takes writes for the dead as for the living, so there
/// the operating system is asked; elsewhere a process of that number means nothing.
pub(super) fn has_ended(peer: &Peer) -> bool {
    is_shared_memory(peer) && !Path::new(&format!("/proc/{}", peer.process)).exists()
}

/// Whether posts to the peer go to memory that its process may or may not look at.
pub(super) fn is_shared_memory(peer: &Peer) -> bool {
    peer.provider == SHARED_MEMORY
}

const SHARED_MEMORY: &str = "shm";

/// How long an end waits before it asks for a sign of life, unless the bound is short.
const BEAT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const BOUND: Duration = Duration::from_secs(60);

    fn waits(pulse: &mut Pulse) -> Verdict {
        pulse.sweep(SECOND, BOUND, true, 7)
    }

    #[test]
    fn a_peer_that_is_silent_is_asked_now_and_then_and_never_judged() {
        let mut pulse = Pulse::default();
        let mut beats = 0;
        for second in 0..100_000 {
            match waits(&mut pulse) {
                Verdict::Beat => {
                    beats += 1;
                    pulse.accepted();
                    pulse.beat();
                    // Every other word takes long: none is sent while one is under way.
                    if beats % 2 == 0 {
                        (0..100).for_each(|_| assert_eq!(waits(&mut pulse), Verdict::Fine));
                    }
                    pulse.beaten();
                }
                verdict => assert_eq!(verdict, Verdict::Fine, "second {second}"),
            }
        }
        assert!(beats > 10_000, "{beats}");
    }

    #[test]
    fn an_end_that_waits_for_nothing_asks_for_nothing() {
        let mut pulse = Pulse::default();
        for _ in 0..1000 {
            assert_eq!(pulse.sweep(SECOND, BOUND, false, 0), Verdict::Fine);
        }
    }

    #[test]
    fn an_end_to_which_something_comes_asks_for_nothing() {
        let mut pulse = Pulse::default();
        for mark in 0..1000 {
            assert_eq!(pulse.sweep(4 * SECOND, BOUND, true, mark), Verdict::Fine);
        }
    }

    #[test]
    fn refusal_without_a_break_is_death_after_the_bound() {
        let mut pulse = Pulse::default();
        (0..5).for_each(|_| assert_ne!(waits(&mut pulse), Verdict::Dead));
        for second in 1..=60 {
            pulse.refused();
            assert_eq!(waits(&mut pulse), Verdict::Beat, "second {second}");
        }
        assert_eq!(waits(&mut pulse), Verdict::Dead);
    }

    #[test]
    fn one_acceptance_gives_the_peer_its_time_again() {
        let mut pulse = Pulse::default();
        for _ in 0..10 {
            (0..60).for_each(|_| {
                pulse.refused();
                assert_ne!(waits(&mut pulse), Verdict::Dead);
            });
            pulse.accepted();
            assert_ne!(waits(&mut pulse), Verdict::Dead);
        }
    }
}
