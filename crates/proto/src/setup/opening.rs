//! The connecting side: sends OPEN once the channel is ready, and handles the one answer.
//!
//! ```text
//!  ToOpen ── open_left ─▶ Sent ─┬─ OPENED ────────────────▶ Opened
//!                           ▲    ├─ REFUSED busy ─▶ Waiting ─┐
//!                           └────┼─────── open_left ─────────┘
//!                                ├─ REFUSED closed ────────▶ Lost: never an answer
//!                                └─ REFUSED otherwise ─────▶ Refused
//! ```

use std::time::Duration;

use super::super::frame::{Open, Opened, Refusal, Refused};
use super::super::ids::{ListenerId, Moment, Name};
use super::super::window::WINDOW;
use super::proof::{Nonces, Prove, Secret, open_words};
use crate::limits::MAX_GROUP;

/// Back-off after "busy": initial value and maximum. It doubles each time.
pub const BUSY_WAIT: Duration = Duration::from_millis(1);
pub const BUSY_WAIT_MAX: Duration = Duration::from_millis(100);

/// How a side can send or receive on a connection, in addition to its endpoint's capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Receives may be grouped.
    pub groups: bool,
    /// Every message must take the FIN path.
    pub fin_only: bool,
}

impl Features {
    pub const fn bits(self) -> u32 {
        self.groups as u32 | (self.fin_only as u32) << 1
    }

    /// Unknown bits, of a later version, are ignored.
    pub const fn from_bits(bits: u32) -> Self {
        Self { groups: bits & 1 != 0, fin_only: bits & 2 != 0 }
    }

    /// The features that the connection uses.
    #[must_use]
    pub const fn agree(self, other: Self) -> Self {
        Self { groups: self.groups && other.groups, fin_only: self.fin_only || other.fin_only }
    }
}

/// The OPENED for an OPEN that is accepted.
pub fn opened(open: &Open, from: Name, ours: Features, inline_bytes_max: u16) -> Opened {
    let agreed = ours.agree(Features::from_bits(open.features));
    Opened {
        to: open.from,
        from,
        features: agreed.bits(),
        inline_bytes_max,
        window: crate::bits::low8(WINDOW.into()),
        group_max: if agreed.groups { crate::bits::low8(MAX_GROUP as u64) } else { 1 },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ToOpen,
    Sent,
    Waiting {
        until: Moment,
    },
    Opened,
    Refused(Refusal),
    /// The listener is closed: no answer comes.
    Lost,
}

/// A requested connection.
#[derive(Debug)]
pub struct Opening {
    from: Name,
    listener: ListenerId,
    secret: Secret,
    features: Features,
    state: State,
    busy_wait: Duration,
}

impl Opening {
    pub fn new(from: Name, listener: ListenerId, secret: Secret, features: Features) -> Self {
        let (state, busy_wait) = (State::ToOpen, BUSY_WAIT);
        Self { from, listener, secret, features, state, busy_wait }
    }

    /// The OPEN to append. In `nonces` we are the prover.
    pub fn open(&self, nonces: Nonces, prove: &impl Prove) -> Open {
        let (from, listener, features) = (self.from, self.listener, self.features.bits());
        let proof = prove.prove(&self.secret, &open_words(nonces, listener, from, features)).0;
        Open { from, listener, features, proof }
    }

    /// When OPEN is due; None: not before another event.
    pub(super) fn due(&self) -> Option<Moment> {
        match self.state {
            State::ToOpen => Some(Moment::default()),
            State::Waiting { until } => Some(until),
            _ => None,
        }
    }

    pub fn is_due(&self, now: Moment) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Why the listener has refused for good.
    pub fn refusal(&self) -> Option<Refusal> {
        match self.state {
            State::Refused(why) => Some(why),
            _ => None,
        }
    }

    /// Whether an OPEN has left and is not answered.
    pub(super) fn is_sent(&self) -> bool {
        self.state == State::Sent
    }

    /// Whether an answer never comes: the listener is closed, or the peer has ended.
    pub(super) fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// No answer comes any more.
    pub(super) fn lose(&mut self) {
        if matches!(self.state, State::ToOpen | State::Sent | State::Waiting { .. }) {
            self.state = State::Lost;
        }
    }

    /// The OPEN was appended to a packet.
    pub fn open_left(&mut self) {
        if matches!(self.state, State::ToOpen | State::Waiting { .. }) {
            self.state = State::Sent;
        }
    }

    /// Handles OPENED. False if it is unexpected or invalid.
    pub fn opened(&mut self, opened: &Opened) -> bool {
        let group = usize::from(opened.group_max);
        let offered = u32::from(opened.window) == WINDOW
            && (1..=MAX_GROUP).contains(&group)
            && (self.features.groups || !Features::from_bits(opened.features).groups);
        if self.state != State::Sent || opened.to != self.from || !offered {
            return false;
        }
        self.state = State::Opened;
        true
    }

    /// Handles REFUSED. False if it is unexpected.
    pub fn refused(&mut self, refused: &Refused, now: Moment) -> bool {
        if self.state != State::Sent || refused.to != self.from {
            return false;
        }
        self.state = match refused.why {
            Refusal::Busy => {
                let until = now.plus(self.busy_wait);
                self.busy_wait = (2 * self.busy_wait).min(BUSY_WAIT_MAX);
                State::Waiting { until }
            }
            Refusal::Closed => State::Lost,
            why => State::Refused(why),
        };
        true
    }

    /// Our name for this connection, which the peer's frames carry.
    pub fn name(&self) -> Name {
        self.from
    }
}

#[cfg(test)]
mod tests {
    use super::super::proof::Mixing;
    use super::*;
    use crate::ids::{Generation, Slot};

    const NONCES: Nonces = Nonces { prover: 1, verifier: 2 };

    fn name(slot: usize) -> Name {
        Name { slot: Slot::new(slot).unwrap(), generation: Generation::new(1) }
    }

    fn opening() -> Opening {
        let features = Features { groups: true, fin_only: false };
        Opening::new(name(3), ListenerId(5), Secret([1; 16]), features)
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn asked() -> Opening {
        let mut opening = opening();
        assert!(opening.is_due(at(0)));
        opening.open_left();
        opening
    }

    fn answer(opening: &Opening) -> Opened {
        let ours = Features { groups: true, fin_only: false };
        opened(&opening.open(NONCES, &Mixing), name(9), ours, 512)
    }

    fn refusal(opening: &Opening, why: Refusal) -> Refused {
        Refused { to: opening.name(), why, detail: 0 }
    }

    #[test]
    fn an_open_is_due_until_it_has_left_and_is_answered_once() {
        let mut opening = opening();
        let answer = answer(&opening);
        assert!(!opening.opened(&answer), "no OPEN has left");
        assert!(opening.is_due(at(0)) && opening.is_due(at(1)));
        opening.open_left();
        assert!(!opening.is_due(at(1)) && opening.is_sent());
        assert!(opening.opened(&answer));
        assert!(!opening.opened(&answer));
        assert!(!opening.refused(&refusal(&opening, Refusal::Proof), at(1)));
        assert!(!opening.is_due(at(2)) && !opening.is_sent());
        assert_eq!(opening.refusal(), None);
    }

    #[test]
    fn a_connect_that_loses_to_a_closing_listener_stays_without_an_answer() {
        let mut opening = asked();
        assert!(opening.refused(&refusal(&opening, Refusal::Closed), at(1)));
        assert!(opening.is_lost() && !opening.is_due(at(100_000)));
        assert_eq!(opening.refusal(), None);
        assert!(!opening.opened(&answer(&opening)));
    }

    #[test]
    fn refusals_for_version_proof_and_features_are_errors() {
        for why in [Refusal::Version, Refusal::Proof, Refusal::Feature] {
            let mut opening = asked();
            assert!(opening.refused(&refusal(&opening, why), at(1)));
            assert_eq!(opening.refusal(), Some(why));
            assert!(!opening.is_due(at(100_000)) && !opening.opened(&answer(&opening)));
        }
    }

    #[test]
    fn an_open_to_a_busy_listener_is_repeated_with_back_off() {
        let mut opening = asked();
        let mut now = 0;
        for wait in [1, 2, 4, 8, 16, 32, 64, 100, 100, 100] {
            assert!(opening.refused(&refusal(&opening, Refusal::Busy), at(now)));
            assert!(!opening.is_due(at(now + wait - 1)));
            now += wait;
            assert!(opening.is_due(at(now)), "after {wait} ms");
            opening.open_left();
        }
    }

    #[test]
    fn answers_for_others_or_beyond_what_was_requested_are_dropped() {
        let right = answer(&opening());
        let plain = Features::default();
        for wrong in [
            Opened { to: name(4), ..right },
            Opened { window: 63, ..right },
            Opened { group_max: 0, ..right },
            Opened { group_max: 9, ..right },
        ] {
            assert!(!asked().opened(&wrong), "{wrong:?}");
        }
        let mut single = Opening::new(name(3), ListenerId(5), Secret([1; 16]), plain);
        single.open_left();
        assert!(!single.opened(&right), "groups were not requested");
        let mut opening = asked();
        let other = Refused { to: name(4), ..refusal(&opening, Refusal::Proof) };
        assert!(!opening.refused(&other, at(0)));
    }

    #[test]
    fn features_agree_and_survive_the_wire() {
        let all = || (0..4).map(Features::from_bits);
        let has = all().map(|features| (features.groups, features.fin_only));
        assert!(has.eq([(false, false), (true, false), (false, true), (true, true)]));
        for ours in all() {
            assert_eq!(Features::from_bits(ours.bits() | 1 << 20), ours);
            for theirs in all() {
                let agreed = ours.agree(theirs);
                assert_eq!(agreed, theirs.agree(ours));
                assert_eq!(agreed.groups, ours.groups && theirs.groups);
                assert_eq!(agreed.fin_only, ours.fin_only || theirs.fin_only);
            }
        }
        let single = Features::default();
        let groups = Features { groups: true, fin_only: true };
        let open = opening().open(NONCES, &Mixing);
        assert_eq!(opened(&open, name(9), single, 0).group_max, 1);
        assert_eq!(opened(&open, name(9), groups, 0).group_max, 8);
    }
}
