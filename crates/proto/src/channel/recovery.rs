//! Keepalive and retransmission timers: HELLO until it is echoed, QUERY when the peer is silent, STATUS as the answer.
//!
//! ```text
//!  HELLO:  Due ──sent──▶ Sent ──echoed──▶ Echoed      QUERY: heard ──silence──▶ sent ──silence, twice as long──▶ sent …
//!           ▲              │ no echo for a while                ▲                 │ two answers leave a completed
//!           └──────────────┘                                    └── news ─────────┘ packet unconsumed: it is lost
//! ```
//!
//! Timeouts count only time in which the endpoint was polled: see [`PolledClock`](crate::polled::PolledClock).

use std::time::Duration;

use super::super::bound::{
    ANSWERS_UNTIL_LOST, HELLO_AGAIN, HELLO_AGAIN_MAX, LETTER_REFUSED, QUERY_AFTER, QUERY_AFTER_MAX,
    RAIL_QUERY, SWITCHES_RESET_AFTER,
};
use super::super::ids::PacketNumber;
use super::super::polled::PolledTime;
use super::super::rail_set::RailSet;
use super::route::Route;

#[derive(Debug)]
pub struct Recovery {
    hello: HelloState,
    /// The peer's HELLO requests an echo of its epoch.
    echo_pending: bool,
    /// The QUERYs to answer by one STATUS: the packet number that the last one named as completed, and the rails that they came by.
    status_pending: Option<(PacketNumber, RailSet)>,
    /// The rail of the last STATUS.
    status_by: u8,
    /// This side waits for something from the peer.
    waits: bool,
    /// When something last came from the peer, or the waiting began.
    heard: PolledTime,
    queried: PolledTime,
    query_after: Duration,
    /// Since when a packet is unacknowledged: the wait before the next QUERY does not begin earlier.
    unacknowledged: Option<PolledTime>,
    /// The number of new inboxes because of lost packets. Each lengthens the first wait before QUERY, so that a reader that is only
    /// late does not use up all its inboxes.
    switches: u32,
    /// The first wait before QUERY; it follows from `switches`.
    first_wait: Duration,
    switched_at: PolledTime,
    /// The oldest packet while its write does not complete, and the time of the first STATUS since then.
    hangs: Option<(PacketNumber, PolledTime)>,
    /// Retransmitted packets.
    resent: u32,
    /// STATUS in a row that left a completed packet unconsumed.
    answers: u8,
    route: Route,
    /// The rails of the last HELLO and of the last QUERY: an answer shows that its rail delivers.
    hello_by: u8,
    queried_by: u8,
    /// The rail of the last echo of the peer's inbox: if the peer requests the echo again, that rail may not deliver.
    echo_by: Option<u8>,
    /// Since when the current rail refuses letters.
    refused: Option<PolledTime>,
    /// Since when no rail has accepted a letter.
    all_refused: Option<PolledTime>,
}

/// The state of our HELLO. `at`: when it was last sent; `wait`: after how long it is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HelloState {
    Due,
    Sent { at: PolledTime, wait: Duration },
    Echoed,
}

/// Which letter is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueLetter {
    Hello,
    /// The answer to one QUERY or several, by a rail that one came by.
    Status {
        asked: PacketNumber,
        rail: u8,
    },
    Query,
}

impl Recovery {
    pub fn new(now: PolledTime) -> Self {
        Self {
            hello: HelloState::Due,
            echo_pending: false,
            status_pending: None,
            status_by: 0,
            waits: true,
            heard: now,
            queried: now,
            query_after: QUERY_AFTER,
            unacknowledged: None,
            switches: 0,
            first_wait: QUERY_AFTER,
            switched_at: now,
            hangs: None,
            resent: 0,
            answers: 0,
            route: Route::default(),
            hello_by: 0,
            queried_by: 0,
            echo_by: None,
            refused: None,
            all_refused: None,
        }
    }

    /// A packet or an acknowledgement came into the own inbox, so its rail delivers.
    #[inline]
    pub fn progressed(&mut self) {
        self.route = Route::Inbox;
        self.query_after = self.first_wait;
    }

    /// A QUERY was answered: its rail delivers, so the next letters go by that rail too.
    pub fn answered(&mut self) {
        self.route = Route::By(self.queried_by);
    }

    /// The control rail by which a letter goes. Each further echo of the same inbox goes by the next rail.
    pub(super) fn route(&self, letter: DueLetter) -> Route {
        match self.echo_by {
            Some(rail) if letter == DueLetter::Hello && self.is_echoed() => Route::After(rail),
            _ => self.route,
        }
    }

    /// Something may be lost: the next QUERY leaves within `wait`.
    pub fn query_within(&mut self, wait: Duration) {
        self.query_after = self.query_after.min(wait);
    }

    /// Something came from the peer: an acknowledgement, a packet or a letter.
    #[inline]
    pub fn heard(&mut self, now: PolledTime) {
        self.heard = now;
    }

    /// This side waits for nothing: the timers start again.
    #[inline]
    pub fn content(&mut self, now: PolledTime) {
        (self.heard, self.queried) = (now, now);
        self.query_after = self.first_wait;
        self.waits = false;
    }

    /// This side waits for something.
    #[inline]
    pub fn waits(&mut self) {
        self.waits = true;
    }

    /// Whether this side waited for something when it was last settled.
    pub fn is_waiting(&self) -> bool {
        self.waits
    }

    /// Restarts the timers at `before`, the previous poll, if this side waited for nothing when it was last settled. A channel on which
    /// nothing happens is seldom settled, and its timers start when something happens.
    #[inline]
    pub fn rested(&mut self, before: PolledTime) {
        if !self.waits {
            (self.heard, self.queried) = (self.heard.max(before), self.queried.max(before));
        }
    }

    /// When QUERY is due while this side waits; `unconfirmed` as in [`due`](Self::due).
    pub fn query_at(&self, unconfirmed: bool) -> PolledTime {
        let since = self.heard.max(self.queried).max(self.unacknowledged.unwrap_or_default());
        let quiet = since.plus(self.query_after);
        if unconfirmed { quiet.min(self.queried.plus(RAIL_QUERY)) } else { quiet }
    }

    /// When the peer will have been silent for so long.
    pub fn silent_at(&self, bound: Duration) -> PolledTime {
        self.heard.plus(bound)
    }

    /// Records whether a packet is unacknowledged. The first such packet after a wait for something else starts with a short interval
    /// between QUERYs, not with that wait's.
    pub fn awaits_acknowledgement(&mut self, awaits: bool, now: PolledTime) {
        if !awaits {
            self.unacknowledged = None;
        } else if self.unacknowledged.is_none() {
            self.unacknowledged = Some(now);
            self.query_after = self.query_after.min(self.first_wait);
        }
    }

    /// How long the peer has been silent while this side waited for it.
    pub fn silence(&self, now: PolledTime) -> Duration {
        now.since(self.heard)
    }

    /// A new inbox of ours is lent: HELLO is due.
    pub fn lent(&mut self) {
        self.hello = HelloState::Due;
    }

    /// The peer has lent a new inbox: unacknowledged packets are retransmitted.
    pub fn adopted(&mut self, now: PolledTime) {
        (self.heard, self.queried, self.answers) = (now, now, 0);
        // Packets are written again, perhaps by another rail.
        self.hangs = None;
        self.echo_by = None;
        // Losses that are far apart are not caused by a late reader.
        if now.since(self.switched_at) >= SWITCHES_RESET_AFTER {
            self.switches = 0;
        }
        self.switched_at = now;
        self.switched();
        self.query_after = self.first_wait;
    }

    /// Something may be lost: QUERY leaves without a wait.
    pub fn query_now(&mut self) {
        self.query_after = Duration::ZERO;
    }

    /// `packets` packets are retransmitted into a new inbox.
    pub fn resends(&mut self, packets: u32) {
        self.resent = self.resent.wrapping_add(packets);
    }

    /// Retransmitted packets. The count wraps.
    pub fn resent(&self) -> u32 {
        self.resent
    }

    /// Either side has a new inbox: the first wait before QUERY doubles.
    pub fn switched(&mut self) {
        self.switches = self.switches.saturating_add(1);
        self.first_wait = (QUERY_AFTER * (1 << self.switches.min(5))).min(QUERY_AFTER_MAX);
    }

    /// The peer does not know our newest inbox: sends HELLO again.
    pub fn say_hello_again(&mut self) {
        self.hello = HelloState::Due;
    }

    pub fn echoed(&mut self) {
        if !self.is_echoed() {
            self.route = Route::By(self.hello_by);
        }
        self.hello = HelloState::Echoed;
    }

    pub fn is_echoed(&self) -> bool {
        self.hello == HelloState::Echoed
    }

    /// The peer requests an echo of its epoch, which our next HELLO carries.
    pub fn echo_due(&mut self) {
        self.echo_pending = true;
    }

    /// A QUERY has come by `rail`; `asked` is the packet up to which the peer's writes have completed.
    pub fn status_due(&mut self, asked: PacketNumber, rail: u8) {
        let earlier = self.status_pending.map_or(RailSet::NONE, |(_, rails)| rails);
        self.status_pending = Some((asked, earlier | RailSet::of(rail)));
    }

    /// Whether a letter is due that the keeper must send if nothing else polls.
    pub fn has_pending(&self) -> bool {
        !self.is_echoed() || self.echo_pending || self.status_pending.is_some()
    }

    /// A STATUS left a packet unconsumed whose write had completed. Returns whether the packet counts as lost from now on.
    pub fn left_unconsumed(&mut self) -> bool {
        self.answers = self.answers.saturating_add(1);
        self.answers == ANSWERS_UNTIL_LOST
    }

    /// A STATUS has come. `oldest`: the oldest packet, if its write has not completed. Returns how long STATUS have come while that
    /// packet's write did not complete. `resumes`: the STATUS came after a gap, so that this time starts again.
    pub fn hangs(
        &mut self,
        oldest: Option<PacketNumber>,
        resumes: bool,
        now: PolledTime,
    ) -> Duration {
        let same = self.hangs.filter(|(number, _)| Some(*number) == oldest && !resumes);
        self.hangs = same.or_else(|| oldest.map(|number| (number, now)));
        self.hangs.map_or(Duration::ZERO, |(_, since)| now.since(since))
    }

    /// A packet was acknowledged: answers are counted from 0 for the packet that is now the oldest.
    #[inline]
    pub fn acknowledged(&mut self) {
        self.answers = 0;
        self.query_after = self.first_wait;
    }

    /// Whether the oldest unacknowledged packet counts as lost.
    pub fn takes_for_lost(&self) -> bool {
        self.answers >= ANSWERS_UNTIL_LOST
    }

    /// The letter that is due. `waits`: something is unacknowledged, or a connection waits for the peer. `unconfirmed`: parts are
    /// not confirmed; only a STATUS confirms them, so other packets and letters of the peer do not delay QUERY.
    pub fn due(
        &self,
        knows_peer: bool,
        (waits, unconfirmed): (bool, bool),
        now: PolledTime,
    ) -> Option<DueLetter> {
        let again = match self.hello {
            HelloState::Due => true,
            HelloState::Sent { at, wait } => now.since(at) >= wait,
            HelloState::Echoed => false,
        };
        if again || self.echo_pending {
            return Some(DueLetter::Hello);
        }
        // The peer's key is not known yet, so it would ignore other letters.
        if !knows_peer {
            return None;
        }
        if let Some((asked, rails)) = self.status_pending {
            // A peer that gets no answer asks by each rail in turn, and the answers of one may be lost. One that is seldom polled finds several
            // QUERYs at a time, the last of which might always have come by that rail.
            let next = rails.iter().find(|rail| *rail > self.status_by).or_else(|| rails.first());
            return next.map(|rail| DueLetter::Status { asked, rail });
        }
        (waits && now >= self.query_at(unconfirmed)).then_some(DueLetter::Query)
    }

    /// The provider refused the letter on this rail. A provider that has to connect first refuses letters for minutes when the
    /// link is dead, so the next rail is tried after [`LETTER_REFUSED`].
    pub fn refused(&mut self, rail: u8, now: PolledTime) {
        self.all_refused.get_or_insert(now);
        let since = *self.refused.get_or_insert(now);
        if now.since(since) >= LETTER_REFUSED {
            self.refused = None;
            self.route = Route::After(rail);
        }
    }

    /// How long all rails have refused letters while nothing came from the peer.
    pub fn refused_for(&self, now: PolledTime) -> Duration {
        self.all_refused.map_or(Duration::ZERO, |since| now.since(since.max(self.heard)))
    }

    /// The provider has accepted a letter.
    pub fn accepted(&mut self) {
        self.all_refused = None;
    }

    /// The letter has left by this rail. The next one goes by another rail, unless an answer shows that this one delivers.
    pub fn said(&mut self, letter: DueLetter, rail: u8, now: PolledTime) {
        self.refused = None;
        match letter {
            DueLetter::Hello => {
                self.echo_pending = false;
                let wait = match self.hello {
                    HelloState::Echoed => {
                        self.echo_by = Some(rail);
                        return;
                    }
                    HelloState::Due => HELLO_AGAIN,
                    HelloState::Sent { wait, .. } => (wait * 2).min(HELLO_AGAIN_MAX),
                };
                self.hello = HelloState::Sent { at: now, wait };
                (self.hello_by, self.route) = (rail, Route::After(rail));
            }
            DueLetter::Status { .. } => (self.status_pending, self.status_by) = (None, rail),
            DueLetter::Query => {
                self.queried = now;
                (self.queried_by, self.route) = (rail, Route::After(rail));
                self.query_after = (self.query_after * 2).clamp(QUERY_AFTER, QUERY_AFTER_MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> PolledTime {
        PolledTime::START.plus(Duration::from_millis(ms))
    }

    #[test]
    fn a_hello_is_repeated_with_back_off_until_it_is_echoed() {
        let mut recovery = Recovery::new(ms(0));
        let mut said = Vec::new();
        for now in 0..4000 {
            if let Some(DueLetter::Hello) = recovery.due(false, (true, false), ms(now)) {
                said.push(now);
                recovery.said(DueLetter::Hello, 0, ms(now));
            }
        }
        assert_eq!(said, [0, 20, 60, 140, 300, 620, 1260, 2260, 3260]);
        recovery.echoed();
        assert_eq!(recovery.due(false, (true, false), ms(9000)), None);
        recovery.echo_due();
        assert_eq!(recovery.due(false, (true, false), ms(9000)), Some(DueLetter::Hello));
        recovery.said(DueLetter::Hello, 0, ms(9000));
        assert_eq!(recovery.due(false, (true, false), ms(9000)), None);
    }

    #[test]
    fn a_query_follows_silence_with_back_off() {
        let mut recovery = Recovery::new(ms(0));
        recovery.echoed();
        let mut asked = Vec::new();
        for now in 0..3000 {
            if recovery.due(true, (true, false), ms(now)).is_some() {
                asked.push(now);
                recovery.said(DueLetter::Query, 0, ms(now));
            }
        }
        assert_eq!(asked, [20, 60, 140, 300, 620, 1260, 2260]);
        recovery.content(ms(3000));
        assert_eq!(recovery.due(true, (true, false), ms(3019)), None);
        assert_eq!(recovery.due(true, (true, false), ms(3020)), Some(DueLetter::Query));
    }

    #[test]
    fn the_query_interval_is_reset_when_a_packet_comes_although_the_side_always_waits() {
        let mut recovery = Recovery::new(ms(0));
        recovery.echoed();
        for now in [20, 60, 140, 300] {
            assert_eq!(recovery.due(true, (true, false), ms(now)), Some(DueLetter::Query));
            recovery.said(DueLetter::Query, 0, ms(now));
        }
        recovery.heard(ms(310));
        recovery.progressed();
        assert_eq!(recovery.due(true, (true, false), ms(329)), None);
        assert_eq!(recovery.due(true, (true, false), ms(330)), Some(DueLetter::Query));
    }

    #[test]
    fn letters_stay_on_a_rail_only_where_answers_or_packets_show_that_it_delivers() {
        let answer = DueLetter::Status { asked: PacketNumber::new(0), rail: 0 };
        let mut recovery = Recovery::new(ms(0));
        recovery.said(DueLetter::Hello, 0, ms(0));
        assert_eq!(recovery.route(DueLetter::Query), Route::After(0));
        recovery.echoed();
        assert_eq!(recovery.route(DueLetter::Query), Route::By(0));
        recovery.said(DueLetter::Query, 0, ms(20));
        recovery.said(DueLetter::Query, 1, ms(60));
        recovery.said(answer, 3, ms(61));
        assert_eq!(
            recovery.route(DueLetter::Query),
            Route::After(1),
            "answers of ours do not count"
        );
        recovery.answered();
        assert_eq!(recovery.route(DueLetter::Query), Route::By(1));
        recovery.acknowledged();
        recovery.content(ms(70));
        assert_eq!(
            recovery.route(DueLetter::Query),
            Route::By(1),
            "no packet has shown that the inbox's rail delivers"
        );
        recovery.progressed();
        assert_eq!(recovery.route(DueLetter::Query), Route::Inbox);
        recovery.echo_due();
        recovery.said(DueLetter::Hello, 2, ms(80));
        assert_eq!(recovery.route(DueLetter::Query), Route::Inbox, "an echo gets no answer");
    }

    /// Otherwise a peer would count as silent while each poll of it finds as many QUERYs by each rail, and the answers of one are lost.
    #[test]
    fn queries_that_came_by_several_rails_are_answered_by_each_of_these_in_turn() {
        let mut recovery = Recovery::new(ms(0));
        recovery.said(DueLetter::Hello, 0, ms(0));
        recovery.echoed();
        let mut answers = |asked_by: &[u8]| {
            for (number, rail) in (1..).zip(asked_by) {
                recovery.status_due(PacketNumber::new(number), *rail);
            }
            let due = recovery.due(true, (false, false), ms(1));
            let Some(DueLetter::Status { asked, rail }) = due else { panic!("{due:?}") };
            assert_eq!(usize::try_from(asked.get()), Ok(asked_by.len()), "that of the last");
            recovery.said(DueLetter::Status { asked, rail }, rail, ms(1));
            assert_eq!(recovery.due(true, (false, false), ms(2)), None, "one answers all");
            rail
        };
        assert_eq!([[1, 0], [1, 0], [1, 0]].map(|rails| answers(&rails)), [1, 0, 1]);
        assert_eq!([[3, 1, 0, 1], [3, 1, 0, 1]].map(|rails| answers(&rails)), [3, 0]);
        assert_eq!([[2], [2], [0]].map(|rails| answers(&rails)), [2, 2, 0]);
    }

    /// The echo may be the only letter that reaches the peer: the peer's QUERYs may go by the rail that does not deliver.
    #[test]
    fn an_echo_that_is_asked_for_again_goes_by_another_rail() {
        let mut recovery = Recovery::new(ms(0));
        recovery.said(DueLetter::Hello, 0, ms(0));
        recovery.echoed();
        recovery.progressed();
        for (rail, route) in [(1, Route::Inbox), (2, Route::After(1)), (1, Route::After(2))] {
            recovery.echo_due();
            assert_eq!(recovery.due(true, (false, false), ms(1)), Some(DueLetter::Hello));
            assert_eq!(recovery.route(DueLetter::Hello), route);
            recovery.said(DueLetter::Hello, rail, ms(1));
            assert_eq!(recovery.route(DueLetter::Query), Route::Inbox);
        }
        recovery.adopted(ms(2));
        assert_eq!(recovery.route(DueLetter::Hello), Route::Inbox, "the echo is of another inbox");
    }

    #[test]
    fn the_next_query_comes_soon_if_something_may_be_lost() {
        let mut recovery = Recovery::new(ms(0));
        recovery.echoed();
        for _ in 0..6 {
            recovery.said(DueLetter::Query, 0, ms(0));
        }
        assert_eq!(recovery.due(true, (true, false), ms(639)), None, "the interval has grown");
        recovery.query_within(Duration::from_millis(100));
        assert_eq!(recovery.due(true, (true, false), ms(99)), None);
        assert_eq!(recovery.due(true, (true, false), ms(100)), Some(DueLetter::Query));
    }

    #[test]
    fn a_rail_that_accepts_no_letters_is_passed_over() {
        let mut recovery = Recovery::new(ms(0));
        recovery.echoed();
        let before = recovery.route(DueLetter::Query);
        for now in [20, 100, 119] {
            recovery.refused(0, ms(now));
            assert_eq!(recovery.route(DueLetter::Query), before, "after {now} ms");
        }
        recovery.refused(0, ms(120));
        assert_eq!(recovery.route(DueLetter::Query), Route::After(0));
        recovery.refused(1, ms(121));
        recovery.said(DueLetter::Query, 1, ms(200));
        recovery.answered();
        recovery.refused(1, ms(230));
        assert_eq!(recovery.route(DueLetter::Query), Route::By(1), "one was accepted meanwhile");
    }

    #[test]
    fn refusals_count_from_the_first_since_a_letter_was_accepted_or_something_was_received() {
        let mut recovery = Recovery::new(ms(0));
        let refused_for = |recovery: &Recovery, now| recovery.refused_for(ms(now)).as_millis();
        assert_eq!(refused_for(&recovery, 90), 0, "none was refused");
        for now in (100..700).step_by(50) {
            recovery.refused(0, ms(now));
        }
        assert_eq!(refused_for(&recovery, 700), 600);
        recovery.heard(ms(720));
        assert_eq!(refused_for(&recovery, 750), 30);
        recovery.said(DueLetter::Query, 0, ms(760));
        assert_eq!(
            refused_for(&recovery, 790),
            70,
            "a letter that was dropped here was not accepted"
        );
        recovery.accepted();
        assert_eq!(refused_for(&recovery, 790), 0);
    }

    #[test]
    fn a_packet_is_taken_for_lost_after_two_answers_in_a_row() {
        let mut recovery = Recovery::new(ms(0));
        for _ in 0..3 {
            recovery.left_unconsumed();
            assert!(!recovery.takes_for_lost());
            recovery.acknowledged();
        }
        recovery.left_unconsumed();
        recovery.left_unconsumed();
        assert!(recovery.takes_for_lost());
        recovery.adopted(ms(0));
        assert!(!recovery.takes_for_lost());
    }

    #[test]
    fn the_first_wait_grows_with_each_switch_to_a_new_inbox() {
        let mut recovery = Recovery::new(ms(0));
        recovery.echoed();
        for wait in [40, 80, 160, 320, 640, 640] {
            recovery.adopted(ms(0));
            assert_eq!(recovery.due(true, (true, false), ms(wait - 1)), None);
            assert_eq!(recovery.due(true, (true, false), ms(wait)), Some(DueLetter::Query));
        }
        recovery.adopted(ms(10_000));
        assert_eq!(recovery.due(true, (true, false), ms(10_039)), None);
        assert_eq!(
            recovery.due(true, (true, false), ms(10_040)),
            Some(DueLetter::Query),
            "it was long ago"
        );
    }
}
