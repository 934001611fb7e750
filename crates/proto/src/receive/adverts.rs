//! When adverts and DONE leave.
//!
//! Adverts are collected while the sender still has others: until as many are unsent as are advertised and incomplete, or
//! three times as many if those keep the rails busy. If only one advertised line is incomplete, an advert leaves at once:
//! after that line the sender would wait. If the last message into a receive of that length came inline, adverts are lazy:
//! they wait for some round trips, and are not needed if another inline message comes first. A flush that has begun sends
//! all pending adverts, since half a group cannot be used.
//!
//! DONE is sent if it returns credit, if sends wait for it, or if a receive without an advert was filled. While the sender
//! has used little of its credit, DONE does not join packets, since it is not needed yet; it leaves after a second. DONE covers only lines that the
//! sender knows: adverts of complete lines leave before it.

use std::time::Duration;

use super::ReceiveFlow;
use super::ending::Ending;
use crate::account::Account;
use crate::connection::Urgency;
use crate::credit::Used;
use crate::fault::Fault;
use crate::frame::{self, Frame, Keys};
use crate::ids::Moment;
use crate::limits::MAX_DATA_RAILS;
use crate::line::Line;
use crate::window::{WINDOW, place};

/// While the rails are busy, adverts may be collected until there are this many unsent ones per open line.
const BUSY_FACTOR: u32 = 3;
/// The delay of a DONE that a send waits for, so that it covers lines that complete meanwhile.
pub(super) const DONE_WAIT: Duration = Duration::from_micros(20);
/// The delay of any other DONE: without it a connection whose last messages came without adverts would wait for ever, though idle.
pub(super) const DONE_WAIT_MAX: Duration = Duration::from_secs(1);
/// After this many lines without a DONE one leaves, even if it returns nothing: both ends compare lines with that of the last DONE, and
/// numbers that are half of all numbers apart cannot be compared.
const FAR: u32 = 1 << 20;
/// No deadline.
const NO_TIME: Moment = Moment::from_nanos(u64::MAX);

impl ReceiveFlow {
    /// How many lines are advertised, from the oldest incomplete one on.
    #[inline]
    pub(super) fn open_lines(&self) -> u32 {
        if self.advertised.is_after(self.done) { self.advertised.distance(self.done) } else { 0 }
    }

    #[inline]
    pub(super) fn advert_urgency(&self, account: &Account, now: Moment) -> Urgency {
        let unsent = self.next.distance(self.advertised);
        if unsent == 0 || self.is_blocked() || self.is_taken(self.advertised) {
            return Urgency::Nothing;
        }
        if self.flush_to.is_after(self.advertised) {
            return Urgency::Urgent;
        }
        if self.prompt_to.is_after(self.advertised) {
            let due = self.is_due(unsent, self.open_lines());
            return if due { Urgency::Urgent } else { lazy(NO_TIME, true) };
        }
        at(self.lazy_from.plus(account.lazy_wait), false, now)
    }

    /// Whether `unsent` adverts are due while the sender has adverts of `left` incomplete lines.
    fn is_due(&self, unsent: u32, left: u32) -> bool {
        unsent >= left
            && (left <= 1 || unsent >= BUSY_FACTOR * left || !self.traffic.keeps_busy(left))
    }

    /// Whether the next advert must wait for a DONE, because its place in the sender's table may still be in use.
    fn is_blocked(&self) -> bool {
        let known = if self.omitted_to.is_after(self.reported) { self.reported } else { self.done };
        self.advertised.is_after(known) && self.advertised.distance(known) >= WINDOW
    }

    /// How far a DONE may report now: adverts of complete lines, and of whole groups, leave first.
    #[inline]
    fn sayable(&self) -> Line {
        let mut known = self.advertised;
        if known != self.next {
            known = known.plus(u32::from(self.slot(known).index).wrapping_neg());
        }
        if !self.done.is_after(known) {
            self.done
        } else if known.is_after(self.reported) {
            known
        } else {
            self.reported
        }
    }

    #[inline]
    fn done_matters(&self) -> bool {
        !self.unreported.is_empty()
            || self.terms.needs_done()
            || self.omitted_to.is_after(self.reported)
            || self.is_far()
    }

    /// Whether a DONE has to leave because the last one is [`FAR`] lines ago.
    #[inline]
    fn is_far(&self) -> bool {
        self.done.distance(self.reported) >= FAR
    }

    #[inline]
    pub(super) fn done_urgency(&self, account: &Account, now: Moment) -> Urgency {
        if self.reported == self.done || !self.done_matters() {
            return Urgency::Nothing;
        }
        let used = self.credit_used(account);
        if self.is_blocked() || used == Used::Half {
            return Urgency::Urgent;
        }
        if !self.terms.needs_done() {
            // The sender uses adverts only once it knows of the lines before them.
            let explains = self.omitted_to.is_after(self.reported)
                && self.advertised.is_after(self.omitted_to);
            let joins = explains || used == Used::Eighth || self.is_far();
            return at(self.unreported_since.plus(DONE_WAIT_MAX), joins, now);
        }
        // No receive is left, so NCCL may stop polling.
        if self.done == self.next {
            return Urgency::Waited;
        }
        at(self.unreported_since.plus(DONE_WAIT), true, now)
    }

    /// How much of its credit the sender has used, if a DONE would return some of it.
    fn credit_used(&self, account: &Account) -> Used {
        self.unreported.credit_used(&self.parked, account)
    }

    /// The next advert, if it is due and fits.
    pub(super) fn next_advert(
        &mut self,
        words: usize,
        account: &Account,
        now: Moment,
    ) -> Option<Frame> {
        if !self.flush_to.is_after(self.advertised) {
            self.begin_flush(account, now)?;
        }
        let line = self.advertised;
        if line == self.next || self.is_blocked() || self.is_taken(line) {
            return None;
        }
        let slot = self.slot(line);
        let rails = usize::from(self.terms.cutting.rails);
        let advert = frame::Advert {
            to: self.terms.peer,
            line,
            tag: slot.tag,
            address: slot.address,
            len: slot.len,
            cut: slot.cut,
            host: slot.host,
            ends_group: slot.ends_group(),
            keys: Keys::new(&self.keys[place(line) * rails..][..rails])?,
        };
        if advert.words() > words {
            return None;
        }
        // A line that is filled already needs no receive at the provider.
        let is_open = slot.is_writable();
        self.advertised = line.plus(1);
        if let Some(tagged) = self.tagged.as_mut().filter(|_| is_open) {
            tagged.advertised(line);
            // An advert that only explains a failure gets no message any more.
            if self.sent.is_some() {
                tagged.stir();
            }
        }
        Some(Frame::Advert(advert))
    }

    /// Begins a flush of all unsent adverts; None if they wait.
    fn begin_flush(&mut self, account: &Account, now: Moment) -> Option<()> {
        if self.fault.is_some() {
            return None;
        }
        let early = match self.advert_urgency(account, now) {
            Urgency::Urgent | Urgency::Waited => false,
            // A packet leaves anyway, and takes lazy adverts, except those that are probably never needed.
            Urgency::Lazy { joins, .. } => !joins && !self.must_say(account, now),
            Urgency::Nothing => true,
        };
        if early {
            return None;
        }
        self.flush_to = self.next;
        Some(())
    }

    /// Whether DONE is urgent but blocked until adverts of complete lines have left.
    fn must_say(&self, account: &Account, now: Moment) -> bool {
        self.done.is_after(self.sayable())
            && (self.terms.needs_done() || self.done_urgency(account, now) == Urgency::Urgent)
    }

    /// Whether the sender needs a DONE before the advert of a receive that was too short, to match its messages.
    pub(super) fn must_explain(&self) -> bool {
        matches!(self.fault, Some(Fault::TooLong { .. })) && self.omitted_to.is_after(self.reported)
    }

    /// DONE, if it is needed.
    pub(super) fn next_done(&mut self, account: &mut Account) -> Option<Frame> {
        let lines = self.sayable();
        let ends = self.ending == Ending::Closed || self.fault.is_some() && !self.must_explain();
        if lines == self.reported || !self.done_matters() || ends {
            return None;
        }
        self.reported = lines;
        // Move marks that were left behind: half of all numbers later they would count as newer.
        for mark in [&mut self.omitted_to, &mut self.prompt_to, &mut self.flush_to] {
            if lines.is_after(*mark) {
                *mark = lines;
            }
        }
        let last = lines.plus(u32::MAX);
        if last.is_after(self.newest_unadvertised) {
            self.newest_unadvertised = last;
        }
        if lines == self.done {
            self.unreported.report(account);
        }
        Some(Frame::Done { to: self.terms.peer, lines })
    }
}

/// Urgent from `due` on, lazy before.
#[inline]
fn at(due: Moment, joins: bool, now: Moment) -> Urgency {
    if now >= due { Urgency::Urgent } else { lazy(due, joins) }
}

#[inline]
fn lazy(until: Moment, joins: bool) -> Urgency {
    Urgency::Lazy { until, joins }
}

const _: () = assert!(MAX_DATA_RAILS <= 16, "an advert has a key for each rail");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::ImmediateWidth;
    use crate::connection::Which;
    use crate::credit;
    use crate::frame::Inline;
    use crate::ids::{Generation, Name, Slot as NameSlot};
    use crate::immediate::Immediate;
    use crate::receive::{Posting, Receive, ReceivePoll, Target};
    use crate::split::Cutting;
    use crate::terms::{InlineLimits, Terms};

    const NOW: Moment = Moment::from_nanos(1);

    fn flow(inline: u16) -> (ReceiveFlow, Account) {
        let name = Name { slot: NameSlot::new(3).unwrap(), generation: Generation::new(5) };
        let terms = Terms {
            peer: name,
            own: name,
            cutting: Cutting::new(1, 0, 1 << 30).unwrap(),
            grouped: false,
            immediates: ImmediateWidth::Eight,
            true_lengths: false,
            delivery: true,
            proves_arrival: true,
            messages: false,
            inline: InlineLimits { unadvertised: inline, host: inline },
        };
        (ReceiveFlow::new(terms), Account::new(1))
    }

    fn post(flow: &mut ReceiveFlow, account: &Account) -> Line {
        let target = Target::default();
        let receive = Receive { target, address: 0, len: 8, tag: 0, host: true };
        flow.post(&[receive], &[7], Posting::default(), account, NOW).unwrap().unwrap()
    }

    /// Completes the oldest line by a write.
    fn complete(flow: &mut ReceiveFlow, account: &mut Account) {
        let own = flow.terms.own.in_immediate();
        let line = flow.done;
        let whole = Immediate::new(own, line, 0, true, true, 0);
        flow.arrived(0, whole, 8, account, NOW);
        assert_eq!(flow.poll(line), ReceivePoll::Done { count: 1 });
    }

    /// How many adverts leave with a packet that leaves only if it has to.
    fn advertised(flow: &mut ReceiveFlow, account: &mut Account) -> usize {
        if flow.urgency(account, NOW) != Urgency::Urgent {
            return 0;
        }
        std::iter::from_fn(|| flow.next_frame(Which::Adverts, 1000, account, NOW)).count()
    }

    #[test]
    fn a_sender_always_has_an_advert_and_gets_more_at_a_time_while_long_messages_keep_the_rails_busy()
     {
        for window in 2..=WINDOW {
            for busy in [false, true] {
                let (mut flow, mut account) = flow(0);
                // The bytes of one message are enough.
                flow.set_busy_bytes(if busy { 8 } else { u64::MAX });
                for _ in 0..window {
                    post(&mut flow, &account);
                }
                assert_eq!(advertised(&mut flow, &mut account), window as usize);
                let (mut left, mut packets) = (window as usize, 0);
                for _ in 0..4 * window {
                    complete(&mut flow, &mut account);
                    left -= 1;
                    assert!(left > 0, "with {window} posted the sender waits");
                    post(&mut flow, &account);
                    let more = advertised(&mut flow, &mut account);
                    packets += u32::from(more > 0);
                    left += more;
                }
                // At most one packet for half a window, or for three quarters.
                let expected = match (window, busy) {
                    (..8, _) => 1..=8,
                    (_, false) => 7..=8,
                    (_, true) => 4..=6,
                };
                assert!(expected.contains(&packets), "{packets} packets with {window} posted");
            }
        }
    }

    /// Messages of such lengths come inline until one is written.
    #[test]
    fn an_advert_is_lazy_where_the_last_message_of_its_length_came_inline() {
        let (mut flow, mut account) = flow(512);
        let to = flow.terms.own;
        for (inline, lazy) in [(true, false), (true, true), (false, true), (false, false)] {
            let line = post(&mut flow, &account);
            let urgency = flow.urgency(&account, NOW);
            assert_eq!(matches!(urgency, Urgency::Lazy { joins: false, .. }), lazy, "{urgency:?}");
            if inline {
                let inline = Inline { to, line, advertised: false, tag: 0, base: line, len: 8 };
                let place = flow.received(&Frame::Inline(inline), &mut account, NOW).unwrap();
                flow.copied(place.unwrap(), &mut account, NOW);
                assert_eq!(flow.poll(line), ReceivePoll::Done { count: 1 });
            } else {
                flow.flush_to = flow.next;
                let advert = flow.next_frame(Which::Adverts, 100, &mut account, NOW);
                assert!(matches!(advert, Some(Frame::Advert(_))), "{advert:?}");
                complete(&mut flow, &mut account);
            }
        }
    }

    /// Until then the sender waits, and asks for news.
    #[test]
    fn the_done_of_messages_without_adverts_leaves_after_a_second() {
        // Two lines that are filled in descending order: their adverts leave before the DONE.
        for filled in [&[0][..], &[1, 0]] {
            let (to, inline) = (Name::default(), InlineLimits { unadvertised: 512, host: 512 });
            let terms =
                Terms { grouped: true, inline, proves_arrival: true, ..Terms::of_two_rails(to) };
            let (mut flow, mut account) = (ReceiveFlow::new(terms), Account::new(2));
            flow.traffic.came_inline(8);
            for tag in (0..).take(filled.len()) {
                let receive = Receive { len: 8, tag, host: true, ..Receive::default() };
                flow.post(&[receive], &[7, 7], Posting::default(), &account, NOW).unwrap();
            }
            for tag in filled {
                let (line, base) = (Line::FIRST, Line::FIRST);
                let inline = Inline { to, line, advertised: false, tag: *tag, base, len: 8 };
                let place = flow.received(&Frame::Inline(inline), &mut account, NOW).unwrap();
                flow.copied(place.unwrap(), &mut account, NOW);
            }
            let until = NOW.plus(DONE_WAIT_MAX);
            let urgency = flow.done_urgency(&account, NOW);
            assert_eq!(urgency, Urgency::Lazy { until, joins: false }, "{filled:?}");
            assert_eq!(flow.urgency(&account, until), Urgency::Urgent, "{filled:?}");
            let mut frames = |which| {
                let next = || flow.next_frame(which, 100, &mut account, until);
                std::iter::from_fn(next).last()
            };
            frames(Which::Adverts);
            let lines = Line::FIRST.plus(crate::bits::count32(filled.len()));
            assert_eq!(frames(Which::Others), Some(Frame::Done { to, lines }), "{filled:?}");
            assert_eq!(flow.urgency(&account, until), Urgency::Nothing, "{filled:?}");
        }
    }

    /// Otherwise credit, or the sends that wait for DONE, would wait until these adverts are due.
    #[test]
    fn adverts_that_are_probably_not_needed_leave_with_a_packet_if_an_urgent_done_follows_them() {
        // Of two lines that are filled in descending order the adverts cannot be omitted.
        for (filled, half_used, needs_done, left) in [
            ([1, 0], true, false, 3),
            ([1, 0], false, true, 3),
            ([1, 0], false, false, 0),
            ([0, 1], true, false, 0),
            ([0, 1], false, true, 0),
        ] {
            let to = Name::default();
            let inline = InlineLimits { unadvertised: 512, host: 512 };
            let (grouped, proves_arrival) = (true, !needs_done);
            let terms = Terms { grouped, inline, proves_arrival, ..Terms::of_two_rails(to) };
            let (mut flow, mut account) = (ReceiveFlow::new(terms), Account::new(2));
            flow.traffic.came_inline(8);
            for tag in 0..3 {
                let receive = Receive { len: 8, tag, host: true, ..Receive::default() };
                flow.post(&[receive], &[7, 7], Posting::default(), &account, NOW).unwrap();
            }
            for tag in filled {
                let (line, base) = (Line::FIRST, Line::FIRST);
                let inline = Inline { to, line, advertised: false, tag, base, len: 8 };
                let place = flow.received(&Frame::Inline(inline), &mut account, NOW).unwrap();
                flow.copied(place.unwrap(), &mut account, NOW);
            }
            account.unreported += if half_used { credit::CHANNEL_BYTES / 2 } else { 0 };
            let next = || flow.next_frame(Which::Adverts, 100, &mut account, NOW);
            let case = format!("{filled:?}, half: {half_used}, needs DONE: {needs_done}");
            assert_eq!(std::iter::from_fn(next).count(), left, "{case}");
        }
    }

    /// The sender has the advert by then, and so knows the line.
    #[test]
    fn a_message_that_has_crossed_its_advert_returns_no_credit() {
        for crosses in [false, true] {
            let (mut flow, mut account) = flow(512);
            let line = post(&mut flow, &account);
            if crosses {
                flow.flush_to = flow.next;
                let advert = flow.next_frame(Which::Adverts, 100, &mut account, NOW);
                assert!(matches!(advert, Some(Frame::Advert(_))));
            }
            let to = flow.terms.own;
            let inline = Inline { to, line, advertised: false, tag: 0, base: line, len: 8 };
            let place = flow.received(&Frame::Inline(inline), &mut account, NOW).unwrap();
            flow.copied(place.unwrap(), &mut account, NOW);
            assert_eq!(account.unreported > 0, !crosses);
        }
    }

    #[test]
    fn the_tag_that_is_awaited_is_that_of_the_oldest_incomplete_receive() {
        let (mut flow, mut account) = flow(0);
        for tag in [7, 5] {
            let receive = Receive { len: 8, tag, ..Receive::default() };
            flow.post(&[receive], &[7], Posting::default(), &account, NOW).unwrap();
        }
        assert_eq!(advertised(&mut flow, &mut account), 2);
        for tag in [Some(7), Some(5)] {
            assert_eq!(flow.awaited_tag(), tag);
            complete(&mut flow, &mut account);
        }
        assert_eq!(flow.awaited_tag(), None);
    }

    /// The lines of the DONE frames that leave with a packet.
    fn said(flow: &mut ReceiveFlow, account: &mut Account) -> Vec<Line> {
        let frames = std::iter::from_fn(|| flow.next_frame(Which::Others, 100, account, NOW));
        let done = |frame| match frame {
            Frame::Done { lines, .. } => Some(lines),
            _ => None,
        };
        frames.filter_map(done).collect()
    }

    #[test]
    fn a_done_leaves_after_a_million_lines_although_it_returns_nothing() {
        let (mut flow, mut account) = flow(0);
        let mut left = Vec::new();
        for number in 0..FAR + 9 {
            let line = post(&mut flow, &account);
            let advert = flow.next_frame(Which::Adverts, 100, &mut account, NOW);
            assert!(matches!(advert, Some(Frame::Advert(_))));
            left.extend(said(&mut flow, &mut account));
            complete(&mut flow, &mut account);
            assert_eq!(line, Line::new(number));
        }
        assert_eq!(left, [Line::new(FAR)]);
        assert!(flow.done.distance(flow.newest_unadvertised) < FAR, "a mark stays behind");
    }

    #[test]
    fn receives_that_are_filled_inline_need_no_advert_after_two_billion_lines_either() {
        let (mut flow, mut account) = flow(512);
        let mut one = || {
            let line = post(&mut flow, &account);
            let urgency = flow.urgency(&account, NOW);
            let to = flow.terms.own;
            let inline = Inline { to, line, advertised: false, tag: 0, base: line, len: 8 };
            let place = flow.received(&Frame::Inline(inline), &mut account, NOW).unwrap();
            flow.copied(place.unwrap(), &mut account, NOW);
            assert_eq!(flow.poll(line), ReceivePoll::Done { count: 1 });
            said(&mut flow, &mut account);
            let marks = [flow.prompt_to, flow.flush_to, flow.omitted_to];
            let behind = marks.map(|mark| flow.done.distance(mark));
            (urgency, behind.into_iter().max())
        };
        one();
        for _ in 0..1000 {
            let (urgency, behind) = one();
            assert!(matches!(urgency, Urgency::Lazy { joins: false, .. }), "{urgency:?}");
            assert!(behind < Some(WINDOW), "a mark stays behind: {behind:?}");
        }
    }

    /// A line that was filled without an advert keeps its place until then.
    #[test]
    fn an_advert_waits_for_the_done_that_frees_its_place_in_the_senders_table() {
        let (mut flow, mut account) = flow(512);
        // A sender of groups can take a message for a line only when a DONE passes that.
        flow.terms.grouped = true;
        let to = flow.terms.own;
        for _ in 0..WINDOW {
            let line = post(&mut flow, &account);
            let inline = Inline { to, line, advertised: false, tag: 0, base: line, len: 8 };
            let place = flow.received(&Frame::Inline(inline), &mut account, NOW).unwrap();
            flow.copied(place.unwrap(), &mut account, NOW);
            assert_eq!(flow.poll(line), ReceivePoll::Done { count: 1 });
        }
        let line = post(&mut flow, &account);
        flow.flush_to = flow.next;
        assert_eq!(flow.next_frame(Which::Adverts, 100, &mut account, NOW), None);
        assert_eq!(flow.urgency(&account, NOW), Urgency::Urgent, "for DONE");
        assert_eq!(said(&mut flow, &mut account), [line]);
        let advert = flow.next_frame(Which::Adverts, 100, &mut account, NOW);
        assert!(matches!(advert, Some(Frame::Advert(_))), "{advert:?}");
    }

    /// From such an advert the sender learns that a message was too long.
    #[test]
    fn an_advert_that_explains_a_failure_waits_for_done_too_also_if_its_receiver_closes() {
        let (mut flow, mut account) = flow(512);
        flow.terms.grouped = true;
        let to = flow.terms.own;
        let inline = |line, len| {
            Frame::Inline(Inline { to, line, advertised: false, tag: 0, base: line, len })
        };
        for _ in 0..WINDOW {
            let line = post(&mut flow, &account);
            let place = flow.received(&inline(line, 8), &mut account, NOW).unwrap();
            flow.copied(place.unwrap(), &mut account, NOW);
            assert_eq!(flow.poll(line), ReceivePoll::Done { count: 1 });
        }
        let line = post(&mut flow, &account);
        assert_eq!(flow.received(&inline(line, 9), &mut account, NOW), Ok(None));
        assert!(matches!(flow.fault(), Some(Fault::TooLong { .. })));
        flow.close(&mut account);
        let mut left = Vec::new();
        for _ in 0..4 {
            for which in [Which::Adverts, Which::Others] {
                left.extend(flow.next_frame(which, 100, &mut account, NOW));
            }
        }
        assert!(
            matches!(
                left[..],
                [Frame::Done { .. }, Frame::Advert(_), Frame::Withdraw(_), Frame::Close(_)]
            ),
            "{left:?}"
        );
    }

    /// A DONE leaves finally, since the advert that explains the failure waits for it.
    #[test]
    fn lines_that_complete_after_the_close_return_no_credit() {
        let (mut flow, mut account) = flow(512);
        flow.terms.grouped = true;
        let (to, own) = (flow.terms.own, flow.terms.own.in_immediate());
        let inline = |line, tag, len| {
            Frame::Inline(Inline { to, line, advertised: false, tag, base: line, len })
        };
        let fill = |flow: &mut ReceiveFlow, account: &mut Account, line, tag| {
            let place = flow.received(&inline(line, tag, 8), account, NOW).unwrap();
            flow.copied(place.unwrap(), account, NOW);
        };
        let write = |flow: &mut ReceiveFlow, account: &mut Account, line| {
            flow.arrived(0, Immediate::new(own, line, 0, true, true, 0), 8, account, NOW);
        };
        for _ in 0..40 {
            let line = post(&mut flow, &account);
            fill(&mut flow, &mut account, line, 0);
            assert_eq!(flow.poll(line), ReceivePoll::Done { count: 1 });
        }
        let oldest = post(&mut flow, &account);
        flow.flush_to = flow.next;
        assert!(flow.next_frame(Which::Adverts, 100, &mut account, NOW).is_some());
        // Filled while the previous one is incomplete.
        let receive = Receive { len: 8, tag: 1, host: true, ..Receive::default() };
        let line = flow.post(&[receive], &[7], Posting::default(), &account, NOW).unwrap().unwrap();
        fill(&mut flow, &mut account, line, 1);
        for _ in 2..24 {
            let line = post(&mut flow, &account);
            flow.flush_to = flow.next;
            while flow.next_frame(Which::Adverts, 100, &mut account, NOW).is_some() {}
            write(&mut flow, &mut account, line);
        }
        let last = post(&mut flow, &account);
        assert_eq!(flow.received(&inline(last, 0, 9), &mut account, NOW), Ok(None));
        flow.close(&mut account);
        assert_eq!(account.unreported, 0);
        write(&mut flow, &mut account, oldest);
        assert_eq!(said(&mut flow, &mut account), [last]);
        assert_eq!(account.unreported, 0);
    }

    /// The sender may write to the earlier receives, once their adverts have come.
    #[test]
    fn receives_whose_adverts_explain_a_failure_are_withdrawn_after_these_adverts() {
        let (mut flow, mut account) = flow(512);
        flow.terms.grouped = true;
        let first = post(&mut flow, &account);
        let receive = Receive { len: 8, tag: 1, host: true, ..Receive::default() };
        let second = flow.post(&[receive], &[7], Posting::default(), &account, NOW).unwrap();
        let (to, line) = (flow.terms.own, first);
        let inline = Inline { to, line, advertised: false, tag: 1, base: first, len: 9 };
        assert_eq!(flow.received(&Frame::Inline(inline), &mut account, NOW), Ok(None));
        assert!(matches!(flow.fault(), Some(Fault::TooLong { line, .. }) if Some(line) == second));
        flow.withdraw();
        assert_eq!(flow.exposed(), 2);
        let mut left = Vec::new();
        for which in [Which::Adverts, Which::Adverts, Which::Adverts, Which::Others] {
            left.extend(flow.next_frame(which, 100, &mut account, NOW));
        }
        assert!(
            matches!(left[..], [Frame::Advert(_), Frame::Advert(_), Frame::Withdraw(lines)] if lines.set == 0b11),
            "{left:?}"
        );
        assert_eq!(flow.exposed(), 2, "until the sender has answered");
    }

    #[test]
    fn a_done_that_nothing_needs_does_not_leave() {
        let (mut flow, mut account) = flow(0);
        for _ in 0..WINDOW {
            post(&mut flow, &account);
            assert_eq!(advertised(&mut flow, &mut account), 1);
            complete(&mut flow, &mut account);
            assert_eq!(flow.urgency(&account, NOW), Urgency::Nothing);
            assert_eq!(said(&mut flow, &mut account), []);
        }
    }

    /// The sender takes a message without an advert for the line of a receive only when a DONE passes that, and the advert of the
    /// receive that was too short is for the next line.
    #[test]
    fn a_done_that_explains_a_failure_is_waited_for_until_it_has_left() {
        let (mut flow, mut account) = flow(512);
        flow.terms.grouped = true;
        let to = flow.terms.own;
        for len in [8, 9] {
            let line = post(&mut flow, &account);
            let inline = Inline { to, line, advertised: false, tag: 0, base: line, len };
            let place = flow.received(&Frame::Inline(inline), &mut account, NOW).unwrap();
            assert_eq!(place.is_some(), len == 8);
            if let Some(place) = place {
                flow.copied(place, &mut account, NOW);
            }
        }
        let advert = flow.next_frame(Which::Adverts, 100, &mut account, NOW);
        assert!(matches!(advert, Some(Frame::Advert(_))), "{advert:?}");
        assert_eq!(flow.urgency(&account, NOW), Urgency::Waited);
        assert_eq!(said(&mut flow, &mut account), [flow.done]);
        assert_eq!(flow.urgency(&account, NOW), Urgency::Nothing);
    }

    /// Except for those that are probably not needed.
    #[test]
    fn lazy_adverts_join_a_packet_that_leaves() {
        let (mut flow, mut account) = flow(0);
        for _ in 0..8 {
            post(&mut flow, &account);
        }
        assert_eq!(advertised(&mut flow, &mut account), 8);
        post(&mut flow, &account);
        let urgency = flow.urgency(&account, NOW);
        assert!(matches!(urgency, Urgency::Lazy { joins: true, .. }), "{urgency:?}");
        let advert = flow.next_frame(Which::Adverts, 100, &mut account, NOW);
        assert!(matches!(advert, Some(Frame::Advert(_))), "{advert:?}");
        flow.traffic.came_inline(8);
        post(&mut flow, &account);
        let urgency = flow.urgency(&account, NOW);
        assert!(matches!(urgency, Urgency::Lazy { joins: false, .. }), "{urgency:?}");
        assert_eq!(flow.next_frame(Which::Adverts, 100, &mut account, NOW), None);
    }
}
