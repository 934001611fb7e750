//! How a receiver ends: withdrawing advertised memory, and the close of either side.
//!
//! ```text
//!  Open ── withdraw ─▶ WITHDRAW ─▶ WITHDRAWN: lines that the sender has begun are waited for, the others are free
//!  Open ── close ──▶ (WITHDRAW) CLOSE ─▶ Closed ── the peer's CLOSE, and all its parts are here ─▶ over
//! ```
//!
//! The receiver waits for messages that were begun: on some providers a completion at the sender does not prove arrival.
//! After the sender's CLOSE, its counts of posted parts per rail show what may still come.

use std::ops::Range;

use super::withdrawal::Withdrawal;
use super::{ReceiveFlow, Slot};
use crate::account::Account;
use crate::bits::count32;
use crate::connection::{ChannelEnd, Urgency};
use crate::counts::Counts;
use crate::fault::{Fault, Violation};
use crate::frame::{Close, Frame, Lines};
use crate::line::Line;

/// The state of the connection's end, on this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ending {
    #[default]
    Open,
    /// CLOSE is pending.
    Closing,
    /// CLOSE has left.
    Closed,
}

impl ReceiveFlow {
    /// Withdraws all receives: the connection fails, no advert leaves any more, and WITHDRAW requests the lines that
    /// the sender has begun. WITHDRAW leaves even if no line is open, so that a sender that waits learns of the failure.
    #[cold]
    pub fn withdraw(&mut self) {
        self.stir();
        let healthy = self.fault.is_none() && self.sent.is_none();
        self.stick(Fault::Withdrawn);
        let withdrawal = self.withdraw_open();
        if healthy {
            withdrawal.request_anyway();
        }
    }

    fn withdraw_open(&mut self) -> &mut Withdrawal {
        let first = self.done;
        let open =
            (0..self.lent_lines()).filter(|ahead| self.slot(first.plus(*ahead)).is_writable());
        let set = open.fold(0, |set, ahead| set | 1 << ahead);
        let new = Withdrawal::new(first, set, self.sent.is_some());
        self.withdrawal.get_or_insert(new)
    }

    /// This side closes. Parked messages are dropped, and posted receives withdrawn.
    #[cold]
    pub fn close(&mut self, account: &mut Account) {
        if self.ending != Ending::Open {
            return;
        }
        self.stir();
        self.stick(Fault::Misuse("the connection is closed"));
        self.withdraw_open();
        account.parking.clear(&mut self.parked);
        self.unreported.clear(account);
        // Lines that are filled already and complete later return no credit either.
        self.slots.iter_mut().for_each(|slot| slot.cost = 0);
        // Messages that wait for a copy are not copied any more. The sender writes to none of their lines.
        self.copies = 0;
        self.ending = Ending::Closing;
    }

    /// Handles WITHDRAWN, the sender's answer.
    #[cold]
    pub(super) fn withdrawn(&mut self, lines: &Lines) -> Result<(), Violation> {
        self.withdrawal.as_mut().ok_or(Violation::Ending)?.answered(lines)
    }

    /// Handles the sender's CLOSE: the sender posts nothing more, and reports how many parts it has posted.
    #[cold]
    pub(super) fn peer_closed(&mut self, close: &Close) -> Result<(), Violation> {
        let rails = usize::from(self.terms.cutting.rails);
        if self.sent.is_some() || close.parts.as_slice().len() != rails {
            return Err(Violation::Ending);
        }
        self.sent = Some(Counts::from_keys(&close.parts).ok_or(Violation::Ending)?);
        if let Some(withdrawal) = &mut self.withdrawal {
            withdrawal.settled();
        }
        Ok(())
    }

    /// Whether the sender has closed and all parts that it posted have arrived.
    #[inline]
    pub(super) fn nothing_comes(&self) -> bool {
        let all = |sent: Counts| sent.equals_but(&self.seen, self.lost.fenced);
        self.peer_ended || self.lost.open.is_empty() && self.sent.is_some_and(all)
    }

    /// Whether an incomplete receive is posted into this region, advertised or not.
    pub fn fills(&self, region: u32) -> bool {
        let all = 0..self.next.distance(self.oldest());
        let mut slots = all.map(|ahead| self.slot(self.oldest().plus(ahead)));
        slots.any(|slot| slot.is_open() && slot.target.region == region)
    }

    /// Whether this region may still be written to: by the sender, or by a copy out of parking.
    pub fn exposes(&self, region: u32) -> bool {
        self.fills(region) && (self.has_copies() || self.exposed() > 0)
    }

    /// How many lines are advertised or will be, from the oldest incomplete one on: the adverts of a flush leave even after
    /// a failure, if they explain it.
    fn lent_lines(&self) -> u32 {
        let flushed = self.flush_to.is_after(self.advertised) && self.flush_to.is_after(self.done);
        if flushed { self.flush_to.distance(self.done) } else { self.open_lines() }
    }

    /// How many of `lines`, counted from the oldest incomplete one, are in a state in which the sender may write to them.
    fn writable(&self, lines: Range<u32>) -> u32 {
        let slots = lines.map(|ahead| self.slot(self.done.plus(ahead)));
        count32(slots.filter(|slot| slot.is_writable()).count())
    }

    /// How many lines the sender may still write to. Until it is 0, their memory must stay registered.
    pub fn exposed(&self) -> u32 {
        if self.tagged.is_some() {
            return self.tagged_count() + self.writable(self.open_lines()..self.lent_lines());
        }
        if self.nothing_comes() {
            return 0;
        }
        let Some(withdrawal) = self.withdrawal else { return self.writable(0..self.lent_lines()) };
        count32(withdrawal.lines().filter(|line| self.slot(*line).is_writable()).count())
    }

    pub(super) fn end_urgency(&self) -> Urgency {
        if self.peer_ended {
            return Urgency::Nothing;
        }
        let asks = self.withdrawal.is_some_and(|withdrawal| withdrawal.is_pending());
        let closes = self.ending == Ending::Closing;
        let misfit = self.flush_to.is_after(self.advertised)
            || self.ending != Ending::Closed && self.must_explain();
        if asks || closes || misfit { Urgency::Waited } else { Urgency::Nothing }
    }

    /// The next frame of the end: WITHDRAW, then CLOSE, both after the adverts that explain a failure.
    #[inline]
    pub(super) fn next_end(&mut self, words: usize) -> Option<Frame> {
        // A side that closes withdraws its receives.
        if self.withdrawal.is_none() || self.flush_to.is_after(self.advertised) {
            return None;
        }
        self.next_end_frame(words)
    }

    #[cold]
    fn next_end_frame(&mut self, words: usize) -> Option<Frame> {
        let to = self.terms.peer;
        if let Some(withdrawal) = self.withdrawal.as_mut().filter(|one| one.is_pending()) {
            let frame = Frame::Withdraw(withdrawal.request(to));
            if frame.words() > words {
                return None;
            }
            withdrawal.requested();
            return Some(frame);
        }
        if self.ending != Ending::Closing {
            return None;
        }
        let parts = self.seen.to_keys(self.terms.cutting.rails);
        let frame = Frame::Close(Close { to, lines: self.done, parts });
        if frame.words() > words {
            return None;
        }
        self.ending = Ending::Closed;
        Some(frame)
    }

    /// The channel has ended. Messages of a sender that closed before can still be received.
    #[cold]
    pub fn ended(&mut self, how: ChannelEnd) {
        self.opened = None;
        if let Some(tagged) = &mut self.tagged {
            tagged.lose();
        }
        self.peer_ended |= how == ChannelEnd::ByPeer;
        if !self.peer_ended || self.sent.is_none() {
            self.stick(Fault::Ended);
        }
    }

    /// Whether this side has closed and its CLOSE has left or cannot leave.
    pub fn has_closed(&self) -> bool {
        self.ending == Ending::Closed || self.peer_ended && self.ending == Ending::Closing
    }

    /// Whether this side has closed, and no receive of it is at the provider.
    pub fn is_closed(&self) -> bool {
        self.ending != Ending::Open && self.tagged_count() == 0
    }

    /// Whether neither a frame nor a part can come any more, so that the slot can be freed.
    pub fn is_over(&self) -> bool {
        self.has_closed() && self.nothing_comes() && self.tagged_count() == 0
    }

    /// Whether receives with optional completion may be reported early: their bytes arrive without calls on this side, and
    /// no send waits for DONE.
    pub(super) fn may_report_early(&self) -> bool {
        self.terms.proves_arrival && self.terms.inline.unadvertised == 0
    }

    /// Reports a receive with optional completion as soon as its advert has left, before its bytes have arrived. False:
    /// not yet, or not at all.
    pub fn poll_early(&mut self, line: Line) -> bool {
        let left = line.distance(self.done) < self.open_lines();
        if !left || self.fault.is_some() {
            return false;
        }
        let slot: &mut Slot = &mut self.slots[super::place(line)];
        if !slot.optional || slot.early || !slot.is_writable() {
            return false;
        }
        slot.early = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::ImmediateWidth;
    use crate::connection::Which;
    use crate::frame::{Inline, Keys};
    use crate::ids::{Moment, Name};
    use crate::immediate::Immediate;
    use crate::receive::{Place, Posting, Receive, ReceivePoll, Target};
    use crate::terms::{InlineLimits, Terms};

    const NOW: Moment = Moment::from_nanos(1);

    /// A receiver over two rails that accepts inline messages of up to 512 bytes, and its account.
    fn flow() -> (ReceiveFlow, Account) {
        let inline = InlineLimits { unadvertised: 512, host: 512 };
        let immediates = ImmediateWidth::Eight;
        let terms = Terms { inline, immediates, ..Terms::of_two_rails(Name::default()) };
        (ReceiveFlow::new(terms), Account::new(2))
    }

    /// Posts a receive into a region. Only a write may fill it, so that its advert leaves at once.
    fn post(flow: &mut ReceiveFlow, account: &Account, region: u32) -> Line {
        let target = Target { address: 0, region };
        let receive = Receive { target, len: 1000, ..Receive::default() };
        flow.post(&[receive], &[1, 2], Posting::default(), account, NOW).unwrap().unwrap()
    }

    /// The frames that leave with a packet.
    fn left(flow: &mut ReceiveFlow, account: &mut Account) -> Vec<Frame> {
        let mut frames = Vec::new();
        for which in [Which::Adverts, Which::Others] {
            let next = || flow.next_frame(which, 100, account, NOW);
            frames.extend(std::iter::from_fn(next));
        }
        frames
    }

    fn write(flow: &mut ReceiveFlow, account: &mut Account, line: Line) {
        let own = flow.terms.own.in_immediate();
        flow.arrived(0, Immediate::new(own, line, 0, true, true, 0), 1000, account, NOW);
    }

    /// Of the regions 1, 2 and 3, those that incomplete receives are posted into, and those that may be written to.
    fn regions(flow: &ReceiveFlow) -> (Vec<u32>, Vec<u32>) {
        let all =
            |of: fn(&ReceiveFlow, u32) -> bool| (1..=3).filter(|one| of(flow, *one)).collect();
        (all(ReceiveFlow::fills), all(ReceiveFlow::exposes))
    }

    #[test]
    fn memory_is_exposed_from_when_an_advert_leaves_until_its_message_or_the_senders_answer_has_come()
     {
        let (mut flow, mut account) = flow();
        assert_eq!((regions(&flow), flow.exposed()), ((vec![], vec![]), 0));
        let first = post(&mut flow, &account, 1);
        assert_eq!((regions(&flow), flow.exposed()), ((vec![1], vec![]), 0));
        post(&mut flow, &account, 2);
        assert_eq!(left(&mut flow, &mut account).len(), 2);
        assert_eq!((regions(&flow), flow.exposed()), ((vec![1, 2], vec![1, 2]), 2));
        write(&mut flow, &mut account, first);
        assert_eq!((regions(&flow), flow.exposed()), ((vec![2], vec![2]), 1));
        flow.withdraw();
        let frames = left(&mut flow, &mut account);
        let [Frame::Withdraw(lines)] = frames[..] else { panic!("{frames:?}") };
        assert_eq!((regions(&flow), flow.exposed()), ((vec![2], vec![2]), 1));
        let answer = Frame::Withdrawn(Lines { set: 0, ..lines });
        flow.received(&answer, &mut account, NOW).unwrap();
        assert_eq!((regions(&flow), flow.exposed()), ((vec![2], vec![]), 0));
    }

    /// No advert of that receive leaves.
    #[test]
    fn memory_is_exposed_while_a_message_is_to_be_copied_into_it() {
        let (mut flow, mut account) = flow();
        let (to, line) = (flow.terms.own, flow.next);
        let inline = Inline { to, line, advertised: false, tag: 0, base: line, len: 8 };
        let place = flow.received(&Frame::Inline(inline), &mut account, NOW).unwrap();
        assert!(matches!(place, Some(Place::Parked(_))), "{place:?}");
        post(&mut flow, &account, 3);
        assert_eq!(regions(&flow), (vec![3], vec![3]));
        let copy = flow.next_copy(&account.parking).unwrap();
        flow.unparked(copy, &mut account, NOW);
        assert_eq!(regions(&flow), (vec![], vec![]));
        assert!(!flow.has_copies());
    }

    /// Receives of groups are advertised nevertheless.
    #[test]
    fn receives_that_are_filled_before_their_adverts_leave_expose_nothing() {
        let (mut flow, mut account) = flow();
        (flow.terms.grouped, flow.terms.immediates) = (true, ImmediateWidth::None);
        let (to, base) = (flow.terms.own, flow.next);
        let post = |flow: &mut ReceiveFlow, account: &Account, tag| {
            let receive = Receive { len: 1000, tag, ..Receive::default() };
            flow.post(&[receive], &[1, 2], Posting::default(), account, NOW).unwrap();
        };
        for tag in [5, 6] {
            post(&mut flow, &account, tag);
        }
        flow.flush_to = flow.next;
        assert_eq!(flow.exposed(), 2, "their adverts have to leave");
        for tag in [7, 8] {
            post(&mut flow, &account, tag);
        }
        for tag in [6, 5, 7] {
            let inline = Inline { to, line: base, advertised: false, tag, base, len: 8 };
            let place = flow.received(&Frame::Inline(inline), &mut account, NOW).unwrap();
            flow.copied(place.unwrap(), &mut account, NOW);
        }
        assert_eq!((flow.done, flow.advertised), (base.plus(3), base));
        assert_eq!(flow.exposed(), 0);
    }

    /// The sender thus learns of the failure.
    #[test]
    fn withdraw_is_sent_although_no_receive_is_posted() {
        let (mut flow, mut account) = flow();
        flow.withdraw();
        let frames = left(&mut flow, &mut account);
        assert!(matches!(frames[..], [Frame::Withdraw(Lines { set: 0, .. })]), "{frames:?}");
    }

    /// Its sender writes to none of its lines any more.
    #[test]
    fn a_receiver_whose_sender_has_closed_requests_nothing() {
        let (mut flow, mut account) = flow();
        let (to, lines, parts) = (Name::default(), Line::FIRST, Keys::new(&[0, 0]).unwrap());
        flow.received(&Frame::Close(Close { to, lines, parts }), &mut account, NOW).unwrap();
        flow.withdraw();
        assert_eq!(left(&mut flow, &mut account), []);
    }

    /// Its place would never be free again.
    #[test]
    fn a_receive_is_reported_early_once_and_not_if_it_is_complete() {
        let immediates = ImmediateWidth::Eight;
        let terms = Terms::of_two_rails(Name::default());
        let terms = Terms { immediates, proves_arrival: true, ..terms };
        let (mut flow, mut account) = (ReceiveFlow::new(terms), Account::new(2));
        let how = Posting { optional: true, ..Posting::default() };
        let [first, second] = [(); 2].map(|()| {
            let receive = Receive { len: 1000, ..Receive::default() };
            let line = flow.post(&[receive], &[1, 2], how, &account, NOW).unwrap().unwrap();
            assert!(!flow.poll_early(line), "its advert has not left");
            line
        });
        assert_eq!(left(&mut flow, &mut account).len(), 2);
        write(&mut flow, &mut account, second);
        assert!(!flow.poll_early(second));
        assert_eq!(flow.poll(second), ReceivePoll::Done { count: 1 });
        assert_eq!([(); 2].map(|()| flow.poll_early(first)), [true, false]);
        write(&mut flow, &mut account, first);
        assert_eq!((flow.poll(first), flow.done()), (ReceivePoll::Pending, flow.next()));
    }
}
