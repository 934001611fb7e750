//! How a sender ends: withdrawn receives, and the close of either side.
//!
//! ```text
//!  Open ── WITHDRAW ─▶ answered by WITHDRAWN: messages that have begun continue, no other begins
//!  Open ── close ──▶ Closing ── all its writes have ended ─▶ CLOSE ─▶ Closed ── the peer's CLOSE ─▶ Over
//! ```
//!
//! CLOSE has the number of parts with immediates that were posted per rail, so that the receiver knows when all have
//! arrived. It leaves only after all writes have completed: writes without immediates are not counted, and a failed write
//! must be reported first.

use super::record::{Record, State};
use super::{ALL_FREE, SendFlow, bit_of};
use crate::account::Account;
use crate::fault::{Fault, Violation};
use crate::frame::{Close, Frame, Lines};
use crate::line::Line;
use crate::message::MessageId;
use crate::window::{RECORDS, WINDOW, bit};

/// The state of the connection's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ending {
    #[default]
    Open,
    /// This side closes: CLOSE is pending. `peer`: the other side has closed before.
    Closing { peer: bool },
    /// CLOSE has left.
    Closed,
    /// The other side has closed.
    PeerClosed,
    /// Both have closed.
    Over,
}

impl SendFlow {
    /// Handles WITHDRAW: messages that have begun are completed; nothing more begins.
    #[cold]
    pub(super) fn withdrawn(&mut self, lines: &Lines) -> Result<(), Violation> {
        match self.ending {
            Ending::Open if self.answer.is_none() => {
                self.stick(Fault::Withdrawn);
                let answer = Lines { set: self.begun(lines), to: self.terms.peer, ..*lines };
                self.answer = Some(Box::new(answer));
                Ok(())
            }
            // Our CLOSE makes the answer unnecessary.
            Ending::Closing { peer: false } | Ending::Closed => Ok(()),
            _ => Err(Violation::Ending),
        }
    }

    /// Which of these lines were begun: a message has taken the line, and goes in parts.
    fn begun(&self, lines: &Lines) -> u64 {
        let begun = |line: Line| {
            let refused =
                self.refused.is_some_and(|refused| refused.line == line && !refused.begun);
            let ahead = line.distance(self.first);
            let taken = ahead < u8::BITS && self.group.taken >> ahead & 1 == 1;
            // Inline messages do not count: the receiver drops them itself.
            let written = self.written & bit(line) != 0;
            !refused && written && (taken || self.first.is_after(line))
        };
        let asked = (0..u64::BITS).filter(|index| lines.set >> index & 1 == 1);
        asked.filter(|index| begun(lines.first.plus(*index))).fold(0, |set, index| set | 1 << index)
    }

    /// Handles the receiver's CLOSE: nothing more begins, and this connection's use of credit ends. CLOSE counts as the
    /// last DONE.
    #[cold]
    pub(super) fn peer_closed(
        &mut self,
        close: &Close,
        account: &mut Account,
    ) -> Result<(), Violation> {
        let lines = close.lines;
        if self.peer_done.is_after(lines) || lines.is_after(self.first.plus(WINDOW)) {
            return Err(Violation::Done);
        }
        self.peer_done = lines;
        if self.lost.is_some() {
            self.all_before(lines);
        }
        self.ending = match self.ending {
            Ending::Open => Ending::PeerClosed,
            Ending::Closing { peer: false } => Ending::Closing { peer: true },
            Ending::Closed => Ending::Over,
            Ending::Closing { peer: true } | Ending::PeerClosed | Ending::Over => {
                return Err(Violation::Ending);
            }
        };
        account.sent -= self.unadvertised.clear();
        self.no_more_keys(account);
        self.stick(Fault::Closed);
        Ok(())
    }

    /// This side closes: nothing more begins, and pending parts are dropped.
    #[cold]
    pub fn close(&mut self) {
        self.stick(Fault::Misuse("the connection is closed"));
        (self.posting, self.cut_off) = (0, true);
        self.ending = match self.ending {
            Ending::Open => Ending::Closing { peer: false },
            Ending::PeerClosed => Ending::Closing { peer: true },
            ended => ended,
        };
    }

    /// Whether parts from this region may still be posted, for the first time or, if their rail is lost, again.
    pub fn feeds_from(&self, region: u32) -> bool {
        let feeds = |record: &Record| match record.state {
            State::Writing(writing) => !writing.failed,
            _ => self.may_repeat(record),
        };
        let mut its = self.records.iter().filter(|record| record.source().region == region);
        self.free != ALL_FREE && self.may_post() && its.any(feeds)
    }

    /// The caller deregisters a region from which parts are pending: these are dropped, and the connection fails.
    #[cold]
    pub fn give_up_region(&mut self, region: u32) {
        if !self.feeds_from(region) {
            return;
        }
        self.stick(Fault::Misuse("the memory of a message that was being sent was deregistered"));
        for at in 0..RECORDS {
            if !self.is_done(&self.records[at]) {
                self.give_up(MessageId(crate::bits::low8(at as u64)));
            }
        }
    }

    /// A message is reported as failed. The caller may reuse its buffer, except for parts in flight, so no part of it is
    /// posted from now on, nor posted again.
    #[cold]
    pub(super) fn give_up(&mut self, message: MessageId) {
        let at = message.index() % RECORDS;
        self.posting &= !bit_of(message);
        let again = self.drop_again(at);
        let record = &mut self.records[at];
        match &mut record.state {
            State::Writing(writing) => {
                writing.completed |= again;
                writing.failed = true;
            }
            State::Landed { .. } => {
                record.state = State::Free;
                self.free |= bit_of(message);
            }
            State::Free | State::Inline | State::Sent | State::FinPending => {}
        }
    }

    /// Whether the receiver has closed.
    pub(super) const fn has_peer_closed(&self) -> bool {
        matches!(self.ending, Ending::PeerClosed | Ending::Closing { peer: true } | Ending::Over)
    }

    /// Whether parts may still be posted.
    pub(super) const fn may_post(&self) -> bool {
        matches!(self.ending, Ending::Open | Ending::PeerClosed) && !self.end_said
    }

    /// Our end of the channel has sent END, which nothing of ours may follow.
    #[cold]
    pub fn end_said(&mut self) {
        self.end_said = true;
    }

    /// Whether WITHDRAWN or CLOSE is pending and may leave.
    pub(super) fn has_end_frame(&self) -> bool {
        match self.ending {
            Ending::Open | Ending::PeerClosed => self.answer.is_some(),
            Ending::Closing { .. } => self.answer.is_some() || self.in_flight == 0,
            Ending::Closed | Ending::Over => false,
        }
    }

    pub(super) fn end_frame(&self) -> Option<Frame> {
        if let Some(answer) = &self.answer {
            return Some(Frame::Withdrawn(**answer));
        }
        match self.ending {
            Ending::Closing { .. } if self.in_flight == 0 => {
                let parts = self.parts.to_keys(self.terms.cutting.rails);
                Some(Frame::Close(Close { to: self.terms.peer, lines: self.first, parts }))
            }
            _ => None,
        }
    }

    pub(super) fn end_left(&mut self, frame: &Frame) {
        if matches!(frame, Frame::Withdrawn(_)) {
            self.answer = None;
        }
        self.ending = match (frame, self.ending) {
            (Frame::Close(_), Ending::Closing { peer: false }) => Ending::Closed,
            (Frame::Close(_), Ending::Closing { peer: true }) => Ending::Over,
            (_, ending) => ending,
        };
    }

    /// Whether neither a frame nor a completion can come any more, so that the slot can be freed.
    pub fn is_over(&self) -> bool {
        self.ending == Ending::Over && self.in_flight == 0
    }

    /// Whether this side has closed and its CLOSE has left.
    pub fn has_closed(&self) -> bool {
        matches!(self.ending, Ending::Closed | Ending::Over)
    }

    /// The messages with writes in flight, for a close that waits for them.
    pub fn unfinished(&self) -> impl Iterator<Item = MessageId> {
        let busy = |message: &MessageId| {
            let at = message.index();
            let State::Writing(writing) = self.records[at].state else { return false };
            (0..writing.posted)
                .any(|part| writing.completed >> part & 1 == 0 && !self.is_lost(at, part))
        };
        let all = (0..RECORDS).map(|at| MessageId(crate::bits::low8(at as u64)));
        all.filter(busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::ImmediateWidth;
    use crate::connection::Which;
    use crate::frame::Advert;
    use crate::ids::{Moment, Name};
    use crate::message::Source;
    use crate::send::{Outgoing, PartWrite, SendPoll};
    use crate::terms::Terms;

    /// An advert of 1000 bytes has come for this line.
    fn advertised(flow: &mut SendFlow, account: &mut Account, line: Line) {
        let advert = Advert::of_line(Name::default(), line, 1000, &[0, 0]);
        flow.received(&Frame::Advert(advert), account).unwrap();
    }

    fn message(len: u64) -> Outgoing {
        Outgoing { tag: 0, len, source: Source::default(), host: false }
    }

    /// Two messages of one part each, both posted.
    fn posted() -> (SendFlow, Account, [PartWrite; 2]) {
        let immediates = ImmediateWidth::Eight;
        let terms = Terms { immediates, ..Terms::of_two_rails(Name::default()) };
        let (mut flow, mut account) = (SendFlow::new(terms), Account::new(2));
        let writes = [0, 1].map(|line| {
            advertised(&mut flow, &mut account, Line::new(line));
            flow.submit(&message(1000), 0, &mut account).unwrap();
            let write = flow.next_part(&account).unwrap();
            flow.posted(&write, &mut account);
            write
        });
        (flow, account, writes)
    }

    /// CLOSE has the number of posted parts, and a failed part has to be reported first.
    #[test]
    fn close_leaves_once_no_write_is_in_flight() {
        let (mut flow, mut account, writes) = posted();
        flow.close();
        for write in &writes {
            assert_eq!(flow.next_frame(Which::Others, 100), None);
            assert!(!flow.has_closed());
            flow.written(write.message, write.part, &mut account, Moment::default());
        }
        let close = flow.next_frame(Which::Others, 100);
        assert!(
            matches!(close, Some(Frame::Close(Close { parts, .. })) if parts.as_slice() == [1, 1]),
            "{close:?}"
        );
        assert!(flow.has_closed());
    }

    /// A sender that did not wait would not notice that the receiver is gone.
    #[test]
    fn a_sender_waits_for_the_receiver_until_it_has_the_messages() {
        let (mut flow, mut account, writes) = posted();
        assert!(!flow.waits());
        for write in writes {
            flow.written(write.message, write.part, &mut account, Moment::default());
        }
        for (lines, waits) in [(1, true), (2, false)] {
            assert!(flow.waits());
            let done = Frame::Done { to: Name::default(), lines: Line::FIRST.plus(lines) };
            flow.received(&done, &mut account).unwrap();
            assert_eq!(flow.waits(), waits);
        }
    }

    /// The receiver waits for messages that were begun. Another line, 64 lines before, had the same place.
    #[test]
    fn a_message_that_was_refused_has_not_begun() {
        for len in [1000, 1001] {
            let (mut flow, mut account) =
                (SendFlow::new(Terms::of_two_rails(Name::default())), Account::new(2));
            for line in (0..WINDOW).map(Line::new) {
                advertised(&mut flow, &mut account, line);
                flow.submit(&message(1000), 0, &mut account).unwrap();
                let write = flow.next_part(&account).unwrap();
                flow.posted(&write, &mut account);
                flow.written(write.message, write.part, &mut account, Moment::default());
                assert!(matches!(flow.next_frame(Which::Others, 100), Some(Frame::Fin(_))));
                let done = Frame::Done { to: Name::default(), lines: line.plus(1) };
                flow.received(&done, &mut account).unwrap();
                assert_eq!(flow.poll(write.message), SendPoll::Done { len: 1000 });
            }
            let line = Line::new(WINDOW);
            advertised(&mut flow, &mut account, line);
            let fits = len == 1000;
            assert_eq!(flow.submit(&message(len), 0, &mut account).is_ok(), fits);
            let asked = Lines { to: Name::default(), first: line, set: 1 };
            flow.received(&Frame::Withdraw(asked), &mut account).unwrap();
            let frames: Vec<_> =
                std::iter::from_fn(|| flow.next_frame(Which::Others, 100)).collect();
            let answer = Lines { set: u64::from(fits), ..asked };
            assert_eq!(frames.last(), Some(&Frame::Withdrawn(answer)), "{len} bytes: {frames:?}");
        }
    }
}
