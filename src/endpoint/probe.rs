//! The probe: the first endpoint of a device writes to itself and reads from itself, to find out what its provider can do.
//!
//! fi_getinfo over-promises: cxi reports a `cq_data_size` of 8 and refuses `fi_writedata`, the tcp family of 1.17 reports remote writes
//! with length 0. This file is the state machine: what is tried, in which order, and what each result means. `endpoint::probing` posts and
//! polls: a few steps in each call of connect and accept, since an endpoint's first write to itself takes milliseconds on some providers,
//! and no call may block that long. What cannot be tried is in `plugin::assumed`.
//!
//! ```text
//! write ──▶ write with immediate ──▶ read ──▶ write, complete on delivery ──▶ over
//!   └─ fails, or the time is up: over, without an answer    (time is up: over, what was not seen counts as absent)
//! ```

use std::time::{Duration, Instant};

use fabric::FabricError;
use proto::capabilities::{Capabilities, ImmediateWidth};

use super::purpose::Attempt;

/// The bound of the whole probe, in time in which connect or accept is called. What was not seen by then counts as absent.
const PROBE_BOUND: Duration = Duration::from_secs(2);
/// The time between two calls counts up to this: a longer pause is the caller's, not the provider's.
const TICK_MAX: Duration = Duration::from_millis(100);
/// Bytes that the probe writes and reads: more than any provider's header.
pub(crate) const PROBE_BYTES: usize = 64;
/// The low half, which 4-byte immediates carry, names the last connection that an endpoint can have: should it arrive after the bound, it
/// hardly ever hits one that exists.
pub(crate) const PROBE_IMMEDIATE: u64 = 0xa5c3_9617_5a3c_7fff;

/// The probe of one device, under way on one endpoint.
#[derive(Debug)]
pub(crate) struct Probe {
    attempt: Attempt,
    seen: AttemptResult,
    found: Found,
    /// The time used so far, and when it was last updated.
    polled: Duration,
    last_step: Instant,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Post it, and report the result: [`Probe::posted`], [`Probe::refused`], or nothing, to get the same step again.
    Post(Attempt),
    Wait,
    /// Finished. An error: not even a write without an immediate works.
    Over(Result<Found, FabricError>),
}

/// What the attempts have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    immediate: ImmediateWidth,
    true_lengths: bool,
    self_read: bool,
    delivery_complete: bool,
}

/// The result of one attempt.
#[derive(Debug, Default)]
struct AttemptResult {
    posted: bool,
    completed: bool,
    /// The error of the post, or of the operation.
    failure: Option<FabricError>,
    arrival: Option<(u64, u64)>,
}

impl Probe {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            attempt: Attempt::Write,
            seen: AttemptResult::default(),
            found: Found::default(),
            polled: Duration::ZERO,
            last_step: now,
        }
    }

    /// What to do now.
    pub(crate) fn step(&mut self, now: Instant) -> Step {
        self.polled += now.duration_since(self.last_step).min(TICK_MAX);
        self.last_step = now;
        while self.has_ended() {
            let seen = std::mem::take(&mut self.seen);
            let next = match self.attempt {
                Attempt::Write => {
                    if let Some(error) = seen.failure {
                        return Step::Over(Err(error));
                    }
                    Attempt::WriteWithImmediate
                }
                Attempt::WriteWithImmediate => {
                    if let Some((len, data)) = seen.arrival.filter(|_| seen.completed) {
                        self.found.immediate = width_of(data);
                        self.found.true_lengths = len == PROBE_BYTES as u64;
                    }
                    Attempt::Read
                }
                Attempt::Read => {
                    self.found.self_read = seen.completed;
                    Attempt::WriteDeliveryComplete
                }
                Attempt::WriteDeliveryComplete => {
                    self.found.delivery_complete = seen.completed;
                    return Step::Over(Ok(self.found));
                }
            };
            self.attempt = next;
        }
        if self.polled > PROBE_BOUND {
            return Step::Over(match self.attempt {
                Attempt::Write => Err(FabricError::SELF_WRITE_SILENT),
                _ => Ok(self.found),
            });
        }
        if self.seen.posted { Step::Wait } else { Step::Post(self.attempt) }
    }

    fn has_ended(&self) -> bool {
        let AttemptResult { posted, completed, failure, arrival } = &self.seen;
        let needs_arrival = self.attempt == Attempt::WriteWithImmediate;
        failure.is_some() || (*posted && *completed && (arrival.is_some() || !needs_arrival))
    }

    /// The attempt was posted.
    pub(crate) fn posted(&mut self) {
        self.seen.posted = true;
    }

    /// The attempt cannot be posted. Except for the first write, that means that the capability is absent.
    pub(crate) fn refused(&mut self, error: FabricError) {
        self.seen.failure = Some(error);
    }

    /// An operation has ended. One of an earlier attempt is ignored.
    pub(crate) fn ended(&mut self, attempt: Attempt, well: bool) {
        if attempt == self.attempt {
            self.seen.completed |= well;
            if !well {
                self.seen.failure = Some(FabricError::SELF_WRITE_FAILED);
            }
        }
    }

    /// A write with an immediate has arrived. There are no connections yet, so it is the probe's.
    pub(crate) fn arrived(&mut self, len: u64, immediate: u64) {
        if self.attempt == Attempt::WriteWithImmediate {
            self.seen.arrival = Some((len, immediate));
        }
    }
}

impl Found {
    /// The capabilities: what was found, and what is known without trying.
    pub(crate) fn with(self, assumed: Capabilities) -> Capabilities {
        let Self { immediate, true_lengths, self_read, delivery_complete } = self;
        Capabilities { immediate, true_lengths, self_read, delivery_complete, ..assumed }
    }
}

/// How many bytes of the immediate arrived.
fn width_of(data: u64) -> ImmediateWidth {
    if data == PROBE_IMMEDIATE {
        ImmediateWidth::Eight
    } else if data & 0xffff_ffff == PROBE_IMMEDIATE & 0xffff_ffff {
        ImmediateWidth::Four
    } else {
        ImmediateWidth::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attempt that succeeds.
    fn goes_well(probe: &mut Probe, now: Instant, attempt: Attempt) {
        assert_eq!(probe.step(now), Step::Post(attempt));
        probe.posted();
        assert_eq!(probe.step(now), Step::Wait);
        probe.ended(attempt, true);
        if attempt == Attempt::WriteWithImmediate {
            assert_eq!(probe.step(now), Step::Wait, "it has not arrived");
            probe.arrived(PROBE_BYTES as u64, PROBE_IMMEDIATE);
        }
    }

    const ALL: [Attempt; 4] = [
        Attempt::Write,
        Attempt::WriteWithImmediate,
        Attempt::Read,
        Attempt::WriteDeliveryComplete,
    ];
    const EVERYTHING: Found = Found {
        immediate: ImmediateWidth::Eight,
        true_lengths: true,
        self_read: true,
        delivery_complete: true,
    };

    #[test]
    fn what_every_attempt_shows_is_found() {
        let now = Instant::now();
        let mut probe = Probe::new(now);
        ALL.into_iter().for_each(|attempt| goes_well(&mut probe, now, attempt));
        assert_eq!(probe.step(now), Step::Over(Ok(EVERYTHING)));
    }

    #[test]
    fn what_is_refused_or_fails_is_absent_except_for_the_first_write() {
        let refusal = FabricError::NO_RAIL;
        for (index, wrong) in ALL.into_iter().enumerate() {
            for by_post in [true, false] {
                let now = Instant::now();
                let mut probe = Probe::new(now);
                ALL[..index].iter().for_each(|attempt| goes_well(&mut probe, now, *attempt));
                assert_eq!(probe.step(now), Step::Post(wrong));
                if by_post {
                    probe.refused(refusal);
                } else {
                    probe.posted();
                    probe.ended(wrong, false);
                }
                let expected = match wrong {
                    Attempt::Write => {
                        assert!(matches!(probe.step(now), Step::Over(Err(_))));
                        continue;
                    }
                    Attempt::WriteWithImmediate => {
                        Found { immediate: ImmediateWidth::None, true_lengths: false, ..EVERYTHING }
                    }
                    Attempt::Read => Found { self_read: false, ..EVERYTHING },
                    Attempt::WriteDeliveryComplete => {
                        Found { delivery_complete: false, ..EVERYTHING }
                    }
                };
                let rest = &ALL[index + 1..];
                rest.iter().for_each(|attempt| goes_well(&mut probe, now, *attempt));
                assert_eq!(probe.step(now), Step::Over(Ok(expected)), "{wrong:?}");
            }
        }
    }

    #[test]
    fn what_is_not_seen_within_the_bound_is_absent() {
        for (index, attempt) in ALL.into_iter().enumerate() {
            let mut now = Instant::now();
            let mut probe = Probe::new(now);
            ALL[..index].iter().for_each(|attempt| goes_well(&mut probe, now, *attempt));
            assert_eq!(probe.step(now), Step::Post(attempt));
            probe.posted();
            let mut steps = 0;
            let over = loop {
                now += TICK_MAX;
                match probe.step(now) {
                    Step::Wait => steps += 1,
                    step => break step,
                }
            };
            assert_eq!(steps, PROBE_BOUND.as_millis() / TICK_MAX.as_millis());
            let seen = match attempt {
                Attempt::Write => {
                    assert!(matches!(over, Step::Over(Err(_))));
                    continue;
                }
                Attempt::WriteWithImmediate => Found::default(),
                Attempt::Read => Found { self_read: false, delivery_complete: false, ..EVERYTHING },
                Attempt::WriteDeliveryComplete => Found { delivery_complete: false, ..EVERYTHING },
            };
            assert_eq!(over, Step::Over(Ok(seen)), "{attempt:?}");
        }
    }

    #[test]
    fn time_without_calls_does_not_count() {
        let mut now = Instant::now();
        let mut probe = Probe::new(now);
        assert_eq!(probe.step(now), Step::Post(Attempt::Write));
        probe.posted();
        now += Duration::from_secs(3600);
        assert_eq!(probe.step(now), Step::Wait, "the pause was the caller's");
    }

    #[test]
    fn the_end_of_an_earlier_attempt_is_ignored() {
        let now = Instant::now();
        let mut probe = Probe::new(now);
        goes_well(&mut probe, now, Attempt::Write);
        assert_eq!(probe.step(now), Step::Post(Attempt::WriteWithImmediate));
        probe.refused(FabricError::NO_RAIL);
        assert_eq!(probe.step(now), Step::Post(Attempt::Read));
        probe.posted();
        probe.ended(Attempt::WriteWithImmediate, true);
        assert_eq!(probe.step(now), Step::Wait);
    }

    #[test]
    fn a_probe_that_arrives_late_names_the_last_connection() {
        assert_eq!(PROBE_IMMEDIATE & 0x3fff, proto::Slot::COUNT as u64 - 1);
    }

    #[test]
    fn the_width_of_an_immediate_is_what_came_through() {
        assert_eq!(width_of(PROBE_IMMEDIATE), ImmediateWidth::Eight);
        assert_eq!(width_of(PROBE_IMMEDIATE & 0xffff_ffff), ImmediateWidth::Four);
        assert_eq!(width_of(0), ImmediateWidth::None);
    }
}
