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
    use crate::connection::{ChannelEnd, Submit, Which};
    use crate::frame::{Advert, Fin, Keys};
    use crate::ids::{Generation, Moment, Name, Slot};
    use crate::message::Source;
    use crate::rail_set::RailSet;
    use crate::send::{Outgoing, PartWrite, SendPoll};
    use crate::split::Cutting;
    use crate::terms::{InlineLimits, Terms};

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

    /// The terms of a sender whose messages go in parts with immediates, or inline if they are in host memory and short.
    fn mixed(grouped: bool) -> Terms {
        let (immediates, inline) =
            (ImmediateWidth::Eight, InlineLimits { unadvertised: 512, host: 512 });
        let peer = Name { slot: Slot::new(3).unwrap(), generation: Generation::new(5) };
        Terms { peer, grouped, immediates, inline, ..Terms::of_two_rails(Name::default()) }
    }

    fn heard(flow: &mut SendFlow, account: &mut Account, advert: Advert) {
        flow.received(&Frame::Advert(advert), account).unwrap();
    }

    fn post_next(flow: &mut SendFlow, account: &mut Account) -> PartWrite {
        let write = flow.next_part(account).unwrap();
        flow.posted(&write, account);
        write
    }

    /// A sender that has written a whole window of messages, all of which the receiver has.
    fn after_a_window(grouped: bool) -> (SendFlow, Account) {
        let (mut flow, mut account) = (SendFlow::new(mixed(grouped)), Account::new(2));
        for line in (0..WINDOW).map(Line::new) {
            advertised(&mut flow, &mut account, line);
            flow.submit(&message(1000), 0, &mut account).unwrap();
            let write = post_next(&mut flow, &mut account);
            flow.written(write.message, write.part, &mut account, Moment::default());
            let done = Frame::Done { to: Name::default(), lines: line.plus(1) };
            flow.received(&done, &mut account).unwrap();
            assert_eq!(flow.poll(write.message), SendPoll::Done { len: 1000 });
        }
        (flow, account)
    }

    /// Which of these lines the sender says that it has begun.
    fn begun(flow: &mut SendFlow, account: &mut Account, first: Line, set: u64) -> u64 {
        let asked = Lines { to: Name::default(), first, set };
        flow.received(&Frame::Withdraw(asked), account).unwrap();
        let answer = flow.next_frame(Which::Others, 100);
        let Some(Frame::Withdrawn(Lines { to, first: same, set })) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((to, same), (flow.peer(), first));
        set
    }

    /// The receiver frees the memory of all others. Written messages had the places of both lines before.
    #[test]
    fn lines_that_are_being_written_are_begun_however_the_next_message_goes_inline() {
        let short = Outgoing { host: true, ..message(8) };
        for (grouped, known) in [(false, true), (false, false), (true, true), (true, false)] {
            let (mut flow, mut account) = after_a_window(grouped);
            let [first, second] = [0, 1].map(|ahead| Line::new(WINDOW).plus(ahead));
            advertised(&mut flow, &mut account, first);
            flow.submit(&message(1000), 0, &mut account).unwrap();
            let host = Advert { host: true, ..Advert::of_line(flow.peer(), second, 1000, &[0, 0]) };
            if known {
                heard(&mut flow, &mut account, host);
            }
            let submitted = flow.submit(&short, 100, &mut account);
            assert!(matches!(submitted, Ok(Submit::Inline { .. })), "{submitted:?}");
            if !known {
                heard(&mut flow, &mut account, host);
            }
            let set = begun(&mut flow, &mut account, first, 0b11);
            assert_eq!(set, 0b01, "groups: {grouped}, advert known: {known}");
        }
    }

    #[test]
    fn of_an_open_group_the_lines_that_messages_are_written_to_are_begun() {
        let (mut flow, mut account) = after_a_window(true);
        let first = Line::new(WINDOW);
        for tag in 0..3_i32 {
            let line = first.plus(tag.unsigned_abs());
            let advert = Advert::of_line(flow.peer(), line, 1000, &[0, 0]);
            heard(&mut flow, &mut account, Advert { tag, ends_group: tag == 2, ..advert });
        }
        flow.submit(&Outgoing { tag: 1, ..message(1000) }, 0, &mut account).unwrap();
        assert_eq!(begun(&mut flow, &mut account, first, 0x1ff), 0b010);
    }

    #[test]
    fn a_message_that_fails_takes_no_parts_of_others_with_it() {
        let (mut flow, mut account) = (SendFlow::new(mixed(false)), Account::new(2));
        let [first, second, third] = [0, 1, 2].map(|line| {
            let host = line == 1;
            let advert = Advert::of_line(flow.peer(), Line::new(line), 1000, &[0, 0]);
            heard(&mut flow, &mut account, Advert { host, ..advert });
            let submitted = flow.submit(&Outgoing { host, ..message(500) }, 100, &mut account);
            match submitted {
                Ok(Submit::Inline { message, .. }) if host => message,
                Ok(Submit::Parts { message, .. }) if !host => message,
                _ => panic!("{submitted:?}"),
            }
        });
        assert_eq!(flow.rails(second).iter().count(), 0, "an inline message has no data rail");
        begun(&mut flow, &mut account, Line::FIRST, 0b111);
        // Its packet may still be needed, and is not waited for.
        assert_eq!(flow.poll(second), SendPoll::Failed(Fault::Withdrawn));
        for message in [first, third] {
            assert_eq!(flow.poll(message), SendPoll::Pending);
            let write = post_next(&mut flow, &mut account);
            assert_eq!(write.message, message);
            flow.written(message, write.part, &mut account, Moment::default());
        }
        let done = Frame::Done { to: Name::default(), lines: Line::new(3) };
        flow.received(&done, &mut account).unwrap();
        for message in [first, third] {
            assert_eq!(flow.poll(message), SendPoll::Done { len: 500 });
        }
    }

    /// Its FIN names the rails by which it came, on which the receiver flushes.
    #[test]
    fn a_delivered_message_whose_receiver_has_closed_is_done_once_its_fin_has_left() {
        for len in [0, 1000] {
            let (mut flow, mut account) =
                (SendFlow::new(Terms::of_two_rails(Name::default())), Account::new(2));
            advertised(&mut flow, &mut account, Line::FIRST);
            flow.submit(&message(len), 0, &mut account).unwrap();
            let write = post_next(&mut flow, &mut account);
            flow.written(write.message, write.part, &mut account, Moment::default());
            let (lines, parts) = (Line::FIRST, Keys::new(&[0, 0]).unwrap());
            let close = Frame::Close(Close { to: Name::default(), lines, parts });
            flow.received(&close, &mut account).unwrap();
            assert_eq!(flow.poll(write.message), SendPoll::Pending);
            assert_eq!(flow.next_frame(Which::Others, 2), None, "there is no room for it");
            let fin = flow.next_frame(Which::Others, 3);
            let Some(Frame::Fin(Fin { rails, .. })) = fin else { panic!("{fin:?}") };
            assert_eq!(rails, RailSet::of(write.rail));
            assert_eq!(flow.poll(write.message), SendPoll::Done { len });
        }
    }

    /// The receiver takes back a line only if it closes with a line that it had not reported as complete.
    #[test]
    fn a_close_behind_the_last_done_or_beyond_the_window_is_refused() {
        for (lines, valid) in [(0, false), (1, true), (2, true), (66, true), (67, false)] {
            let (mut flow, mut account, _) = posted();
            let done = Frame::Done { to: Name::default(), lines: Line::new(1) };
            flow.received(&done, &mut account).unwrap();
            let (lines, parts) = (Line::new(lines), Keys::new(&[0, 0]).unwrap());
            let close = Frame::Close(Close { to: Name::default(), lines, parts });
            assert_eq!(flow.received(&close, &mut account).is_ok(), valid, "{lines:?}");
        }
    }

    #[test]
    fn a_sender_whose_channel_has_failed_is_over_once_no_write_is_in_flight() {
        let (mut flow, mut account, writes) = posted();
        assert!(!flow.is_over());
        flow.ended(ChannelEnd::Failed);
        for write in &writes {
            assert!(!flow.is_over());
            flow.written(write.message, write.part, &mut account, Moment::default());
        }
        assert!(flow.is_over());
    }

    /// The record of a message that has landed is free at once, that of another once its writes have ended.
    #[test]
    fn a_message_that_has_failed_is_unfinished_while_a_part_of_it_is_in_flight() {
        let cutting = Cutting::new(2, 1 << 16, 1 << 16).unwrap();
        let (mut flow, mut account) =
            (SendFlow::new(Terms { cutting, ..mixed(false) }), Account::new(2));
        let len = 1 << 17;
        let advert = Advert::of_line(flow.peer(), Line::FIRST, len, &[0, 0]);
        for line in [0, 1].map(Line::new) {
            heard(&mut flow, &mut account, Advert { line, ..advert });
            flow.submit(&message(len), 0, &mut account).unwrap();
        }
        let writes = [(); 4].map(|()| post_next(&mut flow, &mut account));
        let [landed, _, done, late] = &writes;
        for write in writes.iter().filter(|write| *write != late) {
            flow.written(write.message, write.part, &mut account, Moment::default());
        }
        flow.fail("a bug");
        for write in [landed, done] {
            let failed = SendPoll::Failed(Fault::Misuse("a bug"));
            assert_eq!(flow.poll(write.message), failed);
        }
        assert_eq!(flow.free, ALL_FREE & !bit_of(late.message));
        assert!(flow.unfinished().eq([late.message]));
        flow.written(late.message, late.part, &mut account, Moment::default());
        assert_eq!((flow.unfinished().count(), flow.in_flight()), (0, 0));
    }

    #[test]
    fn a_message_that_was_refused_hides_no_line_that_is_being_written() {
        let (mut flow, mut account, _) = posted();
        advertised(&mut flow, &mut account, Line::new(2));
        assert!(flow.submit(&message(1001), 0, &mut account).is_err());
        assert!(matches!(flow.next_frame(Which::Others, 100), Some(Frame::Fin(_))));
        assert_eq!(begun(&mut flow, &mut account, Line::FIRST, 0b111), 0b011);
    }

    /// None of its parts is posted any more.
    #[test]
    fn a_message_that_is_not_posted_fails_with_the_end_of_the_channel() {
        let (mut flow, mut account, writes) = posted();
        advertised(&mut flow, &mut account, Line::new(2));
        let submitted = flow.submit(&message(1000), 0, &mut account);
        let Ok(Submit::Parts { message, .. }) = submitted else { panic!("{submitted:?}") };
        flow.ended(ChannelEnd::ByPeer);
        assert_eq!(flow.poll(message), SendPoll::Failed(Fault::Ended));
        assert_eq!(flow.poll(writes[0].message), SendPoll::Pending);
    }
}
