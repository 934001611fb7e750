//! The probe: the first endpoint of a device writes to itself and reads from itself, to find out what its provider can do.
//!
//! fi_getinfo over-promises: cxi reports a `cq_data_size` of 8 and refuses `fi_writedata`, the tcp family of 1.17 reports remote writes
//! with length 0. This file is the state machine: what is tried, in which order, and what each result means. `endpoint::probing` posts and
//! polls: a few steps in each call of connect and accept, since an endpoint's first write to itself takes milliseconds on some providers,
//! and no call may block that long. What cannot be tried is in `plugin::assumed`.
//!
//! ```text
//! write ──▶ write with immediate ──▶ read ──▶ write, complete on delivery ──▶ over
//!   │                 └─ fails, or the time is up: write again, to see whether the NIC works
//!   │                      │         └─ the bytes land: the capability is absent, unless it is seen just after; on with the next attempt
//!   └──────────────────────┴─ fails, or the time is up: the NIC is lost. The next NIC is probed; after the last one: over, without an answer
//! ```
//!
//! A failed attempt alone says nothing about the provider: the NIC may have failed. Whether it works is seen by the bytes, since the tcp
//! family completes a write before it leaves.

use std::time::{Duration, Instant};

use fabric::FabricError;
use proto::capabilities::{Capabilities, ImmediateWidth};

use super::bound::{PROBE_GAP_MAX, PROBE_LATE_WAIT, PROBE_WAIT};
use super::purpose::Attempt;

/// Bytes that the probe writes and reads: more than any provider's header.
pub(crate) const PROBE_BYTES: usize = 64;
/// The low half, which 4-byte immediates carry, names the last connection that an endpoint can have. An immediate that arrives after the
/// bound thus hardly ever names a connection that exists.
pub(crate) const PROBE_IMMEDIATE: u64 = 0xa5c3_9617_5a3c_7fff;

/// The probe of one device, under way on one endpoint.
#[derive(Debug)]
pub(crate) struct Probe {
    /// The NIC that is probed, and how many the endpoint has.
    nic: u8,
    nics: u8,
    attempt: Attempt,
    seen: AttemptResult,
    /// The write that shows whether the NIC works, after the attempt has failed or timed out.
    check: Option<AttemptResult>,
    /// The attempt has timed out, and the check has shown that the NIC works.
    is_checked: bool,
    found: Found,
    /// How long the last operation has been waited for, and when that was updated.
    polled: Duration,
    last_step: Instant,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Post it on [`Probe::nic`], and report the result: [`Probe::posted`], [`Probe::refused`], or nothing, to get the same step again.
    Post(Attempt),
    Wait,
    /// This NIC does not work. The next one is probed.
    Lost(u8, FabricError),
    /// Finished. An error: no NIC can write even without an immediate. The error is that of the last NIC, [`Probe::nic`].
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
    /// The bytes of a write without an immediate are there.
    landed: bool,
    /// The error of the post, or of the operation.
    failure: Option<FabricError>,
    arrival: Option<(u64, u64)>,
}

impl AttemptResult {
    /// Whether the attempt has succeeded.
    fn has_ended(&self, attempt: Attempt) -> bool {
        let Self { posted, completed, landed, arrival, .. } = self;
        let is_seen = match attempt {
            Attempt::Write => *landed,
            Attempt::WriteWithImmediate => arrival.is_some(),
            Attempt::Read | Attempt::WriteDeliveryComplete => true,
        };
        *posted && *completed && is_seen
    }
}

impl Probe {
    /// A probe of an endpoint with this many NICs.
    pub(crate) fn new(nics: u8, now: Instant) -> Self {
        Self::of_nic(0, nics, now)
    }

    fn of_nic(nic: u8, nics: u8, now: Instant) -> Self {
        Self {
            nic,
            nics,
            attempt: Attempt::Write,
            seen: AttemptResult::default(),
            check: None,
            is_checked: false,
            found: Found::default(),
            polled: Duration::ZERO,
            last_step: now,
        }
    }

    /// The NIC that is probed.
    pub(crate) fn nic(&self) -> u8 {
        self.nic
    }

    /// What to do now.
    pub(crate) fn step(&mut self, now: Instant) -> Step {
        self.polled += now.duration_since(self.last_step).min(PROBE_GAP_MAX);
        self.last_step = now;
        loop {
            if let Some(check) = &self.check {
                if let Some(error) = check.failure {
                    return self.lost(error);
                }
                if !check.has_ended(Attempt::Write) {
                    return self
                        .wait()
                        .unwrap_or_else(|| self.lost(FabricError::SELF_WRITE_SILENT));
                }
                self.check = None;
                (self.is_checked, self.polled) = (true, Duration::ZERO);
            }
            let error = match (self.seen.has_ended(self.attempt), self.seen.failure) {
                (true, _) => None,
                (false, Some(error)) => Some(error),
                (false, None) => match self.wait() {
                    Some(step) => return step,
                    None => Some(FabricError::SELF_WRITE_SILENT),
                },
            };
            match error {
                Some(error) if self.attempt == Attempt::Write => return self.lost(error),
                Some(_) if !self.is_checked => {
                    (self.check, self.polled) = (Some(AttemptResult::default()), Duration::ZERO);
                }
                _ => {
                    if let Some(over) = self.conclude() {
                        return over;
                    }
                }
            }
        }
    }

    /// The step to post the current operation, or to wait for it. None: the time is up.
    fn wait(&self) -> Option<Step> {
        let (attempt, current) = self.current();
        let step = if current.posted { Step::Wait } else { Step::Post(attempt) };
        let bound = if self.is_checked { PROBE_LATE_WAIT } else { PROBE_WAIT };
        (self.polled <= bound).then_some(step)
    }

    /// The current operation, and its result so far.
    fn current(&self) -> (Attempt, &AttemptResult) {
        match &self.check {
            Some(check) => (Attempt::Write, check),
            None => (self.attempt, &self.seen),
        }
    }

    fn current_mut(&mut self) -> &mut AttemptResult {
        self.check.as_mut().unwrap_or(&mut self.seen)
    }

    /// Records what the attempt has shown on a NIC that works, and goes on with the next one.
    fn conclude(&mut self) -> Option<Step> {
        let seen = std::mem::take(&mut self.seen);
        let well = seen.has_ended(self.attempt);
        (self.is_checked, self.polled) = (false, Duration::ZERO);
        self.attempt = match self.attempt {
            Attempt::Write => Attempt::WriteWithImmediate,
            Attempt::WriteWithImmediate => {
                if let Some((len, data)) = seen.arrival.filter(|_| well) {
                    self.found.immediate = width_of(data);
                    self.found.true_lengths = len == PROBE_BYTES as u64;
                }
                Attempt::Read
            }
            Attempt::Read => {
                self.found.self_read = well;
                Attempt::WriteDeliveryComplete
            }
            Attempt::WriteDeliveryComplete => {
                self.found.delivery_complete = well;
                return Some(Step::Over(Ok(self.found)));
            }
        };
        None
    }

    fn lost(&mut self, error: FabricError) -> Step {
        let Self { nic, nics, last_step, .. } = *self;
        if nic + 1 >= nics {
            return Step::Over(Err(error));
        }
        *self = Self::of_nic(nic + 1, nics, last_step);
        Step::Lost(nic, error)
    }

    /// The attempt was posted.
    pub(crate) fn posted(&mut self) {
        self.current_mut().posted = true;
    }

    /// The attempt cannot be posted. If the NIC works, the capability is absent.
    pub(crate) fn refused(&mut self, error: FabricError) {
        self.current_mut().failure = Some(error);
    }

    /// An operation has ended, or has failed with this error number. Operations of an earlier attempt or NIC are ignored.
    pub(crate) fn ended(&mut self, nic: u8, attempt: Attempt, outcome: Result<(), i32>) {
        if nic != self.nic {
            return;
        }
        let result = match &mut self.check {
            Some(check) if attempt == Attempt::Write => check,
            _ if attempt == self.attempt => &mut self.seen,
            _ => return,
        };
        match outcome {
            Ok(()) => result.completed = true,
            Err(errno) => result.failure = Some(FabricError::self_write(errno)),
        }
    }

    /// Whether the bytes of a write have to be looked for, and reported by [`Probe::landed`].
    pub(crate) fn awaits_bytes(&self) -> bool {
        let (attempt, current) = self.current();
        attempt == Attempt::Write && current.posted && !current.landed
    }

    /// The bytes of the last write without an immediate are there.
    pub(crate) fn landed(&mut self) {
        self.current_mut().landed = true;
    }

    /// A write with an immediate has arrived. There are no connections yet, so it is the probe's.
    pub(crate) fn arrived(&mut self, nic: u8, len: u64, immediate: u64) {
        if nic == self.nic && self.attempt == Attempt::WriteWithImmediate {
            self.seen.arrival = Some((len, immediate));
        }
    }
}

impl Found {
    /// The capabilities: those that were found, and those that are assumed.
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
        let nic = probe.nic();
        probe.ended(nic, attempt, Ok(()));
        if attempt == Attempt::WriteWithImmediate {
            assert_eq!(probe.step(now), Step::Wait, "it has not arrived");
            probe.arrived(nic, PROBE_BYTES as u64, PROBE_IMMEDIATE);
        }
        if attempt == Attempt::Write {
            assert_eq!(probe.step(now), Step::Wait, "its bytes are not there");
            assert!(probe.awaits_bytes());
            probe.landed();
        }
    }

    /// Polls until the step is not to wait, and checks that this takes `bound`.
    fn until(bound: Duration, probe: &mut Probe, now: &mut Instant) -> Step {
        let mut waited = 0;
        loop {
            *now += PROBE_GAP_MAX;
            match probe.step(*now) {
                Step::Wait => waited += 1,
                step => {
                    assert_eq!(waited, bound.as_millis() / PROBE_GAP_MAX.as_millis());
                    return step;
                }
            }
        }
    }

    /// A probe of an endpoint with `nics` NICs that has reached attempt `index` without taking time.
    fn at(index: usize, nics: u8, now: Instant) -> Probe {
        let mut probe = Probe::new(nics, now);
        Attempt::ALL[..index].iter().for_each(|attempt| goes_well(&mut probe, now, *attempt));
        probe
    }

    const EVERYTHING: Found = Found {
        immediate: ImmediateWidth::Eight,
        true_lengths: true,
        self_read: true,
        delivery_complete: true,
    };
    const ENETDOWN: i32 = 100;

    /// All capabilities but the one that this attempt shows.
    fn without(attempt: Attempt) -> Found {
        match attempt {
            Attempt::Write => EVERYTHING,
            Attempt::WriteWithImmediate => {
                Found { immediate: ImmediateWidth::None, true_lengths: false, ..EVERYTHING }
            }
            Attempt::Read => Found { self_read: false, ..EVERYTHING },
            Attempt::WriteDeliveryComplete => Found { delivery_complete: false, ..EVERYTHING },
        }
    }

    #[test]
    fn every_capability_that_an_attempt_shows_is_found() {
        let now = Instant::now();
        let mut probe = at(Attempt::ALL.len(), 1, now);
        assert_eq!(probe.step(now), Step::Over(Ok(EVERYTHING)));
    }

    /// An attempt that is refused, or whose operation fails.
    fn goes_wrong(probe: &mut Probe, now: Instant, attempt: Attempt, by_post: bool) {
        assert_eq!(probe.step(now), Step::Post(attempt));
        if by_post {
            probe.refused(FabricError::self_write(ENETDOWN));
        } else {
            let nic = probe.nic();
            probe.posted();
            probe.ended(nic, attempt, Err(ENETDOWN));
        }
    }

    #[test]
    fn an_attempt_that_is_refused_or_fails_shows_absence_if_the_nic_works() {
        let now = Instant::now();
        for (index, wrong) in Attempt::ALL.into_iter().enumerate().skip(1) {
            for by_post in [true, false] {
                let mut probe = at(index, 1, now);
                goes_wrong(&mut probe, now, wrong, by_post);
                goes_well(&mut probe, now, Attempt::Write);
                Attempt::ALL[index + 1..]
                    .iter()
                    .for_each(|attempt| goes_well(&mut probe, now, *attempt));
                assert_eq!(probe.step(now), Step::Over(Ok(without(wrong))), "{wrong:?}");
            }
        }
    }

    #[test]
    fn a_nic_whose_writes_fail_is_lost_and_the_last_one_is_the_error() {
        let (now, error) = (Instant::now(), FabricError::self_write(ENETDOWN));
        for (index, wrong) in Attempt::ALL.into_iter().enumerate() {
            for by_post in [true, false] {
                let mut probe = at(index, 2, now);
                goes_wrong(&mut probe, now, wrong, by_post);
                if wrong != Attempt::Write {
                    goes_wrong(&mut probe, now, Attempt::Write, by_post);
                }
                assert_eq!(probe.step(now), Step::Lost(0, error), "{wrong:?}");
                goes_wrong(&mut probe, now, Attempt::Write, by_post);
                assert_eq!(probe.step(now), Step::Over(Err(error)), "{wrong:?}");
                assert_eq!(probe.nic(), 1);
            }
        }
    }

    #[test]
    fn a_nic_that_is_silent_is_lost_and_the_next_one_is_probed_from_the_start() {
        for (index, silent) in Attempt::ALL.into_iter().enumerate() {
            let mut now = Instant::now();
            let mut probe = at(index, 2, now);
            assert_eq!(probe.step(now), Step::Post(silent));
            probe.posted();
            let mut step = until(PROBE_WAIT, &mut probe, &mut now);
            if silent != Attempt::Write {
                assert_eq!(step, Step::Post(Attempt::Write));
                probe.posted();
                step = until(PROBE_WAIT, &mut probe, &mut now);
            }
            assert_eq!(step, Step::Lost(0, FabricError::SELF_WRITE_SILENT));
            // A late completion on the first NIC says nothing about the second.
            assert_eq!(probe.step(now), Step::Post(Attempt::Write));
            probe.posted();
            probe.ended(0, Attempt::Write, Err(ENETDOWN));
            assert_eq!(probe.step(now), Step::Wait);
            probe.ended(1, Attempt::Write, Ok(()));
            probe.landed();
            assert_eq!(probe.step(now), Step::Post(Attempt::WriteWithImmediate));
            probe.posted();
            probe.ended(1, Attempt::WriteWithImmediate, Ok(()));
            probe.arrived(0, 0, 0);
            assert_eq!(probe.step(now), Step::Wait);
            probe.arrived(1, PROBE_BYTES as u64, PROBE_IMMEDIATE);
            Attempt::ALL[2..].iter().for_each(|attempt| goes_well(&mut probe, now, *attempt));
            assert_eq!(probe.step(now), Step::Over(Ok(EVERYTHING)), "{silent:?}");
        }
    }

    /// An attempt that is not seen within the bound, on a NIC that works.
    fn is_silent(probe: &mut Probe, now: &mut Instant, attempt: Attempt) {
        assert_eq!(probe.step(*now), Step::Post(attempt));
        probe.posted();
        assert_eq!(until(PROBE_WAIT, probe, now), Step::Post(Attempt::Write));
        goes_well(probe, *now, Attempt::Write);
        assert_eq!(probe.step(*now), Step::Wait, "it may be late");
    }

    #[test]
    fn an_attempt_that_times_out_shows_absence_if_the_nic_works() {
        for (index, attempt) in Attempt::ALL.into_iter().enumerate().skip(1) {
            let mut now = Instant::now();
            let mut probe = at(index, 1, now);
            is_silent(&mut probe, &mut now, attempt);
            let mut step = until(PROBE_LATE_WAIT, &mut probe, &mut now);
            for next in &Attempt::ALL[index + 1..] {
                assert_eq!(step, Step::Post(*next));
                goes_well(&mut probe, now, *next);
                step = probe.step(now);
            }
            assert_eq!(step, Step::Over(Ok(without(attempt))), "{attempt:?}");
        }
    }

    #[test]
    fn an_attempt_that_ends_late_on_a_nic_that_works_again_counts() {
        for (index, attempt) in Attempt::ALL.into_iter().enumerate().skip(1) {
            let mut now = Instant::now();
            let mut probe = at(index, 1, now);
            is_silent(&mut probe, &mut now, attempt);
            probe.ended(0, attempt, Ok(()));
            probe.arrived(0, PROBE_BYTES as u64, PROBE_IMMEDIATE);
            Attempt::ALL[index + 1..]
                .iter()
                .for_each(|attempt| goes_well(&mut probe, now, *attempt));
            assert_eq!(probe.step(now), Step::Over(Ok(EVERYTHING)), "{attempt:?}");
        }
    }

    #[test]
    fn time_without_calls_does_not_count() {
        let mut now = Instant::now();
        let mut probe = Probe::new(1, now);
        assert_eq!(probe.step(now), Step::Post(Attempt::Write));
        probe.posted();
        now += Duration::from_secs(3600);
        assert_eq!(probe.step(now), Step::Wait, "the pause was the caller's");
    }

    #[test]
    fn the_end_of_an_earlier_attempt_is_ignored() {
        let now = Instant::now();
        let mut probe = at(1, 1, now);
        goes_wrong(&mut probe, now, Attempt::WriteWithImmediate, true);
        goes_well(&mut probe, now, Attempt::Write);
        assert_eq!(probe.step(now), Step::Post(Attempt::Read));
        probe.posted();
        probe.ended(0, Attempt::WriteWithImmediate, Ok(()));
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
