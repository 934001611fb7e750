//! Matches messages to lines: by tag inside the first unfinished group; with single receives, the next line.
//!
//! A message that was sent without an advert gets its line when the adverts of its group come, before any other
//! message. If no advert comes, the message gets its line when DONE passes the line: then the receive was single, and the
//! oldest such message has filled it.

use super::{Found, Group, SendFlow};
use crate::account::Account;
use crate::credit;
use crate::fault::{Fault, Violation};
use crate::frame;
use crate::line::Line;
use crate::unadvertised::Sent;
use crate::window::{WINDOW, bit, within};

impl SendFlow {
    /// Finds the line for a message of this tag.
    #[inline]
    pub(super) fn find(&mut self, tag: i32) -> Result<Found, Fault> {
        if !self.terms.grouped {
            let known = self.adverts.has(self.first);
            return Ok(if known { Found::Line(self.first) } else { Found::Unadvertised });
        }
        if self.group.count == 0 {
            return Ok(Found::Unadvertised);
        }
        Ok(self.line_of(tag).map_or(Found::Nothing, Found::Line))
    }

    /// The first line of the open group that is free and has this tag.
    fn line_of(&self, tag: i32) -> Option<Line> {
        let free = |index: &u8| self.group.taken >> index & 1 == 0;
        let lines = (0..self.group.count).filter(free).map(|index| self.first.plus(index.into()));
        lines.into_iter().find(|line| self.adverts.get(*line).tag == tag)
    }

    /// Gives an advertised line to a message.
    #[inline]
    pub(super) fn take_line(&mut self, line: Line, account: &mut Account) {
        self.adverts.take(line);
        if !self.terms.grouped {
            self.first = line.plus(1);
            return;
        }
        self.group.taken |= 1 << line.distance(self.first);
        self.end_group();
        if let Err(violation) = self.open_groups(account) {
            self.stick(Fault::Violation(violation));
        }
    }

    /// Advances to the next group if all lines of this one are taken.
    #[inline]
    fn end_group(&mut self) {
        let Group { count, taken } = self.group;
        if u32::from(taken) == (1 << count) - 1 {
            self.first = self.first.plus(count.into());
            self.group = Group::default();
        }
    }

    /// Opens the next group that messages without an advert have not filled, if its adverts have come.
    #[inline]
    fn open_groups(&mut self, account: &mut Account) -> Result<(), Violation> {
        while self.group.count == 0 {
            match self.adverts.group(self.first)? {
                0 => break,
                count => self.fill_group(count, account),
            }
        }
        Ok(())
    }

    /// Handles an advert. A message may have been sent before the advert came.
    pub(super) fn advertised(
        &mut self,
        advert: &frame::Advert,
        account: &mut Account,
    ) -> Result<(), Violation> {
        if !within(advert.line, self.first, WINDOW) {
            return self.advertised_late(advert, account);
        }
        if self.is_in_use(advert.line) || !self.terms.grouped && !advert.ends_group {
            return Err(Violation::AdvertLine);
        }
        self.adverts.store(advert)?;
        if self.terms.grouped { self.settle(account) } else { Ok(()) }
    }

    /// Handles the advert of a line whose message has left already.
    fn advertised_late(
        &mut self,
        advert: &frame::Advert,
        account: &mut Account,
    ) -> Result<(), Violation> {
        let behind = self.first.distance(advert.line);
        let sent = self.unadvertised.take_line(advert.line);
        match sent {
            _ if self.terms.grouped || behind > WINDOW => Err(Violation::AdvertLine),
            Some(sent) => {
                account.sent -= credit::cost(sent.len);
                self.compare(sent, advert.line, advert.len, advert.cut);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Whether the message of the line one window earlier, which has the same place, is still being written. A correct
    /// receiver sends no advert then.
    fn is_in_use(&self, line: Line) -> bool {
        if self.posting == 0 {
            return false;
        }
        let earlier = line.plus(WINDOW.wrapping_neg());
        let mut posting = self.posting;
        while posting != 0 {
            let at = posting.trailing_zeros() as usize;
            if self.records[at % self.records.len()].line == earlier {
                return true;
            }
            posting &= posting - 1;
        }
        false
    }

    /// Handles DONE: the receiver has completed all lines before this one.
    pub(super) fn peer_has(&mut self, lines: Line, account: &mut Account) -> Result<(), Violation> {
        if self.peer_done.is_after(lines) {
            return Err(Violation::Done);
        }
        if self.terms.grouped {
            self.peer_done = lines;
            self.settle(account)?;
        } else if lines.is_after(self.first) {
            return Err(Violation::Done);
        } else {
            self.peer_done = lines;
            while let Some(sent) = self.unadvertised.first()
                && lines.is_after(sent.base)
            {
                self.unadvertised.pop();
                account.sent -= credit::cost(sent.len);
            }
        }
        if self.lost.is_some() {
            self.all_before(lines);
        }
        Ok(())
    }

    /// Assigns the known lines to messages without an advert, and checks DONE against the messages that were sent.
    fn settle(&mut self, account: &mut Account) -> Result<(), Violation> {
        self.open_groups(account)?;
        while self.group.count == 0 && self.peer_done.is_after(self.first) {
            // The oldest message without an advert has filled a single receive, whose advert does not come.
            if self.adverts.has(self.first) {
                return Err(Violation::Done);
            }
            let sent = self.unadvertised.pop().ok_or(Violation::Done)?;
            account.sent -= credit::cost(sent.len);
            self.first = self.first.plus(1);
            self.open_groups(account)?;
        }
        let known = self.first.plus(self.group.taken.trailing_ones());
        if self.peer_done.is_after(known) { Err(Violation::Done) } else { Ok(()) }
    }

    /// Opens a group, and assigns its lines to the messages without an advert that match them.
    fn fill_group(&mut self, count: u32, account: &mut Account) {
        self.group = Group { count: crate::bits::low8(count.into()), taken: 0 };
        if self.unadvertised.is_empty() {
            return;
        }
        let first = self.first;
        for index in 0..count {
            let line = first.plus(index);
            let advert = *self.adverts.get(line);
            let Some(sent) = self.unadvertised.take(line, advert.tag) else { continue };
            account.sent -= credit::cost(sent.len);
            self.adverts.take(line);
            self.written &= !bit(line);
            self.group.taken |= 1 << index;
            self.compare(sent, line, advert.len, advert.cut);
        }
        self.end_group();
    }

    /// Compares a message that has left with its advert: if the receive is too short, the connection fails on both
    /// ends.
    fn compare(&mut self, sent: Sent, line: Line, posted: u64, cut: bool) {
        let sent = u64::from(sent.len);
        if sent > posted && !cut {
            self.stick(Fault::TooLong { line, sent, posted });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Submit;
    use crate::frame::Frame;
    use crate::ids::Name;
    use crate::message::Source;
    use crate::send::Outgoing;
    use crate::terms::{InlineLimits, Terms};

    fn hears(flow: &mut SendFlow, account: &mut Account, line: u32, tag: i32, ends_group: bool) {
        let advert = frame::Advert::of_line(Name::default(), Line::new(line), 1000, &[0, 0]);
        let advert = Frame::Advert(frame::Advert { tag, ends_group, ..advert });
        flow.received(&advert, account).unwrap();
    }

    /// And the next group begins only when each line of this one is taken.
    #[test]
    fn messages_take_the_lines_of_a_group_by_their_tags_in_any_order() {
        let terms = Terms { grouped: true, ..Terms::of_two_rails(Name::default()) };
        let (mut flow, mut account) = (SendFlow::new(terms), Account::new(2));
        let group = [(0, 7, false), (1, 8, false), (2, 8, false), (3, 9, true), (4, 7, true)];
        for (line, tag, ends) in group {
            hears(&mut flow, &mut account, line, tag, ends);
        }
        let order =
            [(9, Some(3)), (8, Some(1)), (7, Some(0)), (7, None), (8, Some(2)), (7, Some(4))];
        for (tag, line) in order {
            let message = Outgoing { tag, len: 1000, source: Source::default(), host: false };
            let submitted = flow.submit(&message, 0, &mut account).unwrap();
            let write = flow.next_part(&account);
            assert_eq!(write.map(|write| write.line), line.map(Line::new), "tag {tag}");
            if let Some(write) = write {
                flow.posted(&write, &mut account);
            } else {
                assert_eq!(submitted, Submit::NotNow);
            }
        }
    }

    /// It is on its way while the credit of the connection is used up.
    #[test]
    fn an_advert_is_taken_64_lines_after_its_message_and_a_later_one_is_refused() {
        let inline = InlineLimits { unadvertised: 512, host: 512 };
        let terms = Terms { inline, ..Terms::of_two_rails(Name::default()) };
        for (behind, valid) in [(WINDOW, true), (WINDOW + 1, false)] {
            let mut account = Account::new(2);
            let mut flow = SendFlow::starting_at(terms, Line::new(behind - WINDOW));
            let message = Outgoing { tag: 0, len: 8, source: Source::default(), host: true };
            for _ in 0..WINDOW {
                let submitted = flow.submit(&message, 100, &mut account).unwrap();
                assert!(matches!(submitted, Submit::Inline { .. }));
            }
            let sent = account.sent;
            let advert = frame::Advert::of_line(Name::default(), Line::FIRST, 1000, &[0, 0]);
            let heard = flow.received(&Frame::Advert(advert), &mut account);
            assert_eq!(heard.is_ok(), valid, "{behind} lines later");
            let returned = if valid { credit::cost(8) } else { 0 };
            assert_eq!(account.sent, sent - returned);
        }
    }
}
