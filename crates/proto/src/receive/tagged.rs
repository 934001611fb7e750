//! SENDRECV: the tagged receives of a connection, which are posted at the provider and cancelled there.

use super::{ReceiveFlow, Target};
use crate::account::Account;
use crate::fault::{Fault, Violation};
use crate::ids::Moment;
use crate::immediate::Immediate;
use crate::line::Line;
use crate::sendrecv::{Step, Tag};
use crate::window::within;

/// An action at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagged {
    /// Post the receive of a line. If the provider refuses it, the action is returned again.
    Post { line: Line, tag: Tag, target: Target, len: u64 },
    /// Cancel the receive of a line (`fi_cancel`). This is never refused; an event reports the receive's end.
    Cancel { line: Line },
}

impl ReceiveFlow {
    /// The next action at the provider. If it was performed, call [`tagged_taken`](Self::tagged_taken).
    #[inline]
    pub fn next_tagged(&mut self) -> Option<Tagged> {
        if !self.is_tagging() {
            return None;
        }
        let mut tagged = self.tagged.take()?;
        let step = tagged.next_step(self.oldest(), |line| self.may_come(line));
        self.tagged = Some(tagged);
        Some(match step? {
            Step::Cancel(line) => Tagged::Cancel { line },
            Step::Post(line) => {
                let slot = self.slot(line);
                let tag = Tag::of_line(self.terms.own, line);
                Tagged::Post { line, tag, target: slot.target, len: slot.len }
            }
        })
    }

    /// The action that [`next_tagged`](Self::next_tagged) returned was performed.
    #[inline]
    pub fn tagged_taken(&mut self, done: &Tagged) {
        let Some(tagged) = &mut self.tagged else { return };
        tagged.taken(match *done {
            Tagged::Post { line, .. } => Step::Post(line),
            Tagged::Cancel { line } => Step::Cancel(line),
        });
    }

    /// A message of `len` bytes has arrived for a line.
    pub fn tagged_arrived(
        &mut self,
        line: Line,
        len: u64,
        account: &mut Account,
        now: Moment,
    ) -> Result<(), Violation> {
        let known = self.tagged.as_mut().is_some_and(|tagged| tagged.ended(line));
        if !known || !within(line, self.done, self.open_lines()) {
            self.dropped.late += u64::from(known);
            return Ok(());
        }
        let posted = self.slot(line).len;
        if len > posted {
            let violation = Violation::Size { said: len, posted };
            self.stick(Fault::Violation(violation));
            return Err(violation);
        }
        let whole = Immediate::new(self.terms.own.in_immediate(), line, 0, true, false, 0);
        self.arrived(0, whole, len, account, now);
        Ok(())
    }

    /// The receive of a line has ended without a message: it was cancelled or has failed.
    pub fn tagged_ended(&mut self, line: Line) {
        if let Some(tagged) = &mut self.tagged {
            tagged.ended(line);
        }
    }

    /// Whether there may be an action at the provider.
    #[inline]
    pub fn is_tagging(&self) -> bool {
        self.tagged.as_ref().is_some_and(|tagged| tagged.is_busy())
    }

    /// How many receives are at the provider, or are to be posted there: their memory must stay registered.
    pub fn tagged_count(&self) -> u32 {
        self.tagged.as_ref().map_or(0, |tagged| tagged.count())
    }

    /// The peer is lost: cancels all receives, even if their messages may be on their way.
    #[cold]
    pub fn cancel_all(&mut self) {
        if let Some(tagged) = &mut self.tagged {
            tagged.lose();
        }
    }

    #[inline]
    pub(super) fn stir(&mut self) {
        if let Some(tagged) = &mut self.tagged {
            tagged.stir();
        }
    }

    /// Whether an earlier line still has this line's place at the provider: then its advert waits.
    #[inline]
    pub(super) fn is_taken(&self, line: Line) -> bool {
        self.tagged.as_ref().is_some_and(|tagged| tagged.is_taken(line))
    }

    /// Whether the sender may still send a message for this advertised line.
    fn may_come(&self, line: Line) -> bool {
        let open = within(line, self.done, self.open_lines()) && self.slot(line).is_writable();
        if self.nothing_comes() || !open {
            return false;
        }
        self.withdrawal.is_none_or(|withdrawal| withdrawal.has(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::ImmediateWidth;
    use crate::connection::Which;
    use crate::frame::{Close, Frame, Keys, Lines};
    use crate::ids::Name;
    use crate::receive::{Posting, Receive};
    use crate::terms::Terms;

    const NOW: Moment = Moment::from_nanos(1);

    /// Two receives at the provider.
    fn two_posted() -> (ReceiveFlow, Account) {
        let terms = Terms { messages: true, ..Terms::of_two_rails(Name::default()) };
        let (mut flow, mut account) = (ReceiveFlow::new(terms), Account::new(2));
        for _ in 0..2 {
            let receive = Receive { len: 1000, ..Receive::default() };
            flow.post(&[receive], &[1, 2], Posting::default(), &account, NOW).unwrap().unwrap();
        }
        while flow.next_frame(Which::Adverts, 100, &mut account, NOW).is_some() {}
        assert_eq!(taken(&mut flow).len(), 2);
        (flow, account)
    }

    /// Performs all actions. Returns the lines of the receives that they cancel, and of those that they post.
    fn taken(flow: &mut ReceiveFlow) -> Vec<Line> {
        let mut lines = Vec::new();
        while let Some(tagged) = flow.next_tagged() {
            flow.tagged_taken(&tagged);
            let (Tagged::Post { line, .. } | Tagged::Cancel { line }) = tagged;
            lines.push(line);
        }
        assert!(!flow.is_tagging());
        lines
    }

    /// Such adverts explain a receive that was too short.
    #[test]
    fn a_receive_whose_advert_leaves_after_the_senders_close_is_not_posted() {
        for closes in [false, true] {
            let (mut flow, mut account) = two_posted();
            for _ in 0..2 {
                let receive = Receive { len: 1000, ..Receive::default() };
                flow.post(&[receive], &[1, 2], Posting::default(), &account, NOW).unwrap().unwrap();
            }
            let advertise = |flow: &mut ReceiveFlow, account: &mut Account| {
                flow.flush_to = flow.next;
                let advert = flow.next_frame(Which::Adverts, 100, account, NOW);
                assert!(matches!(advert, Some(Frame::Advert(_))), "{advert:?}");
            };
            // This one is not posted at once.
            advertise(&mut flow, &mut account);
            let lines = Line::new(0);
            let parts = Keys::new(&[0, 0]).unwrap();
            let close = Frame::Close(Close { to: Name::default(), lines, parts });
            if closes {
                flow.received(&close, &mut account, NOW).unwrap();
                assert_eq!(taken(&mut flow).len(), 2, "those that are posted are cancelled");
            }
            advertise(&mut flow, &mut account);
            assert_eq!(taken(&mut flow).len(), if closes { 0 } else { 2 });
        }
    }

    /// A message for the other receive is under way.
    #[test]
    fn a_withdrawn_receive_is_cancelled_once_the_sender_answers_that_it_has_not_begun_it() {
        let (mut flow, mut account) = two_posted();
        flow.withdraw();
        let request = flow.next_frame(Which::Others, 100, &mut account, NOW);
        let Some(Frame::Withdraw(lines)) = request else { panic!("{request:?}") };
        assert_eq!((lines.set, taken(&mut flow)), (0b11, vec![]));
        let answer = Frame::Withdrawn(Lines { set: 0b01, ..lines });
        flow.received(&answer, &mut account, NOW).unwrap();
        let second = Line::FIRST.plus(1);
        assert_eq!((taken(&mut flow), flow.tagged_count()), (vec![second], 2));
        flow.tagged_ended(second);
        assert_eq!(flow.tagged_count(), 1);
        flow.cancel_all();
        assert_eq!(taken(&mut flow), [Line::FIRST], "the peer is lost");
    }

    /// It is at the provider until that reports its end, and may be filled until then.
    #[test]
    fn a_message_for_a_receive_that_is_not_open_any_more_is_dropped_and_counted_once() {
        let (mut flow, mut account) = two_posted();
        (flow.terms.immediates, flow.terms.true_lengths) = (ImmediateWidth::Four, true);
        let first = Line::FIRST;
        for (line, late) in [(first.plus(5), 0), (first, 0), (first, 0)] {
            assert_eq!(flow.tagged_arrived(line, 1000, &mut account, NOW), Ok(()));
            assert_eq!(flow.dropped().late, late, "{line:?}");
        }
        assert_eq!((flow.done(), flow.tagged_count()), (first.plus(1), 1));
        // An inline message has filled the receive meanwhile.
        flow.done = flow.next;
        flow.advertised = flow.next;
        for _ in 0..2 {
            let arrived = flow.tagged_arrived(first.plus(1), 1000, &mut account, NOW);
            assert_eq!((arrived, flow.dropped().late, flow.tagged_count()), (Ok(()), 1, 0));
        }
    }

    #[test]
    fn a_message_for_a_receive_that_is_not_at_the_provider_changes_nothing() {
        let (mut flow, mut account) = two_posted();
        let second = Line::FIRST.plus(1);
        flow.tagged_ended(second);
        assert_eq!(flow.tagged_arrived(second, 1000, &mut account, NOW), Ok(()));
        assert!(flow.slot(second).is_open() && flow.fault().is_none());
    }
}
