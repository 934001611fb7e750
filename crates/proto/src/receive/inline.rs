//! Inline messages: matches each to its receive, and parks it if that is not posted yet.
//!
//! A message with a known advert names its line. Any other goes to the first line, from its base on, that has its tag
//! and no message; with single receives its number is the line. So the n-th message of a tag goes to the n-th receive of
//! that tag, independent of the order in which the ends learn of them: the sender applies the same rule to the adverts.

use super::slot::{State, Target};
use super::{ReceiveFlow, Slot};
use crate::account::Account;
use crate::credit;
use crate::fault::{Fault, Violation};
use crate::frame::Inline;
use crate::ids::Moment;
use crate::line::Line;
use crate::message::Cut;
use crate::parking::{Header, Parked, Parking};
use crate::rail_set::RailSet;
use crate::terms::InlineLimits;
use crate::window::{WINDOW, place, within};

/// The destination of an INLINE's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The receive of a line: `len` bytes, copied in ascending order, in aligned stores of 8 bytes as far as possible.
    Receive(Matched),
    /// The channel's parking: see [`Parking::fill`].
    Parked(Parked),
}

/// An inline message that was matched to its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matched {
    pub line: Line,
    pub target: Target,
    pub len: u16,
    /// The message's cost, if it came without an advert; otherwise 0.
    cost: u16,
}

/// A parked message to be copied into its receive: see [`Parking::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    pub line: Line,
    pub target: Target,
    pub len: u16,
    pub from: Parked,
}

impl ReceiveFlow {
    /// The destination of an inline message; None if its connection has failed or is closed, so it is dropped.
    #[inline]
    pub(super) fn inline(
        &mut self,
        inline: &Inline,
        account: &mut Account,
    ) -> Result<Option<Place>, Violation> {
        if self.sent.is_some() {
            return Err(Violation::Ending);
        }
        if self.fault.is_some() {
            return Ok(None);
        }
        if inline.advertised {
            return self.inline_by_line(inline).map(Some);
        }
        if !InlineLimits::admit(self.terms.inline.unadvertised, inline.len.into()) {
            return Err(Violation::Credit);
        }
        let header =
            Header { number: inline.line, base: inline.base, tag: inline.tag, len: inline.len };
        let Some(line) = self.line_for(&header)? else {
            let parked = account.parking.park(&mut self.parked, inline);
            return parked.map(|parked| Some(Place::Parked(parked))).ok_or(Violation::Credit);
        };
        let slot = self.slot(line);
        let Some(len) = fitting(slot, inline.len) else {
            self.misfit(line, inline.len);
            return Ok(None);
        };
        let (target, posted) = (slot.target, slot.len);
        if len < inline.len {
            self.cut.get_or_insert_with(|| Cut { sent: inline.len.into(), posted });
        }
        let cost = if self.is_unsent(line) { cost_of(inline.len) } else { 0 };
        Ok(Some(Place::Receive(Matched { line, target, len, cost })))
    }

    /// A message that names its line, because the sender has its advert.
    #[inline]
    fn inline_by_line(&self, inline: &Inline) -> Result<Place, Violation> {
        let (line, len) = (inline.line, inline.len);
        let slot = self.slot(line);
        let admitted = InlineLimits::admit(self.terms.inline.host, len.into());
        let fits = slot.host && u64::from(len) <= slot.len && admitted;
        let open = within(line, self.done, self.open_lines()) && slot.state == State::Posted;
        if !fits || !open {
            return Err(Violation::Inline);
        }
        Ok(Place::Receive(Matched { line, target: slot.target, len, cost: 0 }))
    }

    /// The line of a message that came without an advert, if it is posted.
    fn line_for(&self, header: &Header) -> Result<Option<Line>, Violation> {
        let posted = self.next.distance(self.done);
        if !self.terms.grouped {
            let line = header.number;
            let known = within(line, self.done, posted);
            if known && self.slot(line).state != State::Posted
                || !known && !within(line, self.next, WINDOW)
            {
                return Err(Violation::Inline);
            }
            return Ok(known.then_some(line));
        }
        if header.base.is_after(self.next) {
            return Err(Violation::Inline);
        }
        let mut lines = (0..posted).map(|ahead| self.done.plus(ahead));
        Ok(lines.find(|line| takes(self.slot(*line), *line, header)))
    }

    /// Whether the advert of a line has not left.
    fn is_unsent(&self, line: Line) -> bool {
        !self.advertised.is_after(line)
    }

    /// The payload was copied to the place that [`received`](Self::received) returned.
    #[inline]
    pub fn copied(&mut self, place: Place, account: &mut Account, now: Moment) {
        match place {
            Place::Parked(_) => {}
            Place::Receive(matched) => {
                let oldest = self.parked.is_empty();
                self.fill(matched, oldest, account, now);
            }
        }
    }

    /// An inline message was copied into the receive of a line. `oldest`: it is the oldest message for which the sender has no
    /// line.
    #[inline]
    fn fill(&mut self, matched: Matched, oldest: bool, account: &mut Account, now: Moment) {
        let Matched { line, len, cost, .. } = matched;
        let slot = &mut self.slots[place(line)];
        (slot.cost, self.lazy_from) = (cost, now);
        let single = slot.count == 1;
        self.traffic.came_inline(slot.len);
        if cost != 0 {
            self.unreported.add(cost, account);
            self.omit(line, single, oldest);
        }
        self.complete(line, len.into(), RailSet::NONE, account, now);
    }

    /// Omits the advert of a filled line, if the sender can find out which message has filled it: always with single
    /// receives; with groups the sender assumes its oldest message without a line when DONE passes the line.
    fn omit(&mut self, line: Line, single: bool, oldest: bool) {
        let follows = line.is_after(self.newest_unadvertised);
        if follows {
            self.newest_unadvertised = line;
        }
        if line != self.advertised {
            return;
        }
        if !self.terms.grouped {
            self.advertised = line.plus(1);
        } else if single && oldest && follows && line == self.done {
            self.advertised = line.plus(1);
            self.omitted_to = self.advertised;
        }
    }

    /// Matches receives, from `first` on, to parked messages.
    #[cold]
    pub(super) fn match_parked(&mut self, first: Line, parking: &Parking) {
        let mut line = first;
        while line != self.next {
            if let Some((message, len)) = self.parked_for(line, parking) {
                let posted = self.slot(line).len;
                match fitting(self.slot(line), len) {
                    Some(fits) if fits < len => {
                        self.cut.get_or_insert_with(|| Cut { sent: len.into(), posted });
                    }
                    Some(_) => {}
                    None => return self.misfit(line, len),
                }
                self.slots[place(line)].state = State::Copying(message);
                self.copies += 1;
            }
            line = line.plus(1);
        }
    }

    /// The oldest parked message that matches this line and no earlier one.
    fn parked_for(&self, line: Line, parking: &Parking) -> Option<(Parked, u16)> {
        let mut at = self.parked.first();
        while let Some(message) = at {
            let header = parking.header(message);
            let slot = self.slot(line);
            let its = match self.terms.grouped {
                true => takes(slot, line, &header) && !self.is_claimed(message),
                false => header.number == line,
            };
            if its {
                return Some((message, header.len));
            }
            at = parking.after(message);
        }
        None
    }

    fn is_claimed(&self, message: Parked) -> bool {
        let mut lines = (0..self.next.distance(self.done)).map(|ahead| self.done.plus(ahead));
        self.copies > 0 && lines.any(|line| self.slot(line).state == State::Copying(message))
    }

    /// Whether parked messages are to be copied into their receives.
    #[inline]
    pub fn has_copies(&self) -> bool {
        self.copies > 0
    }

    /// The next parked message to copy into its receive, oldest line first; then [`unparked`](Self::unparked).
    #[inline]
    pub fn next_copy(&self, parking: &Parking) -> Option<Copy> {
        if self.copies == 0 {
            return None;
        }
        let mut lines = (0..self.next.distance(self.done)).map(|ahead| self.done.plus(ahead));
        lines.find_map(|line| {
            let slot = self.slot(line);
            let State::Copying(from) = slot.state else { return None };
            let len = fitting(slot, parking.header(from).len)?;
            Some(Copy { line, target: slot.target, len, from })
        })
    }

    /// The message was copied into its receive.
    #[cold]
    pub fn unparked(&mut self, copy: Copy, account: &mut Account, now: Moment) {
        let Copy { line, target, len, from } = copy;
        let oldest = self.parked.first() == Some(from);
        let cost = cost_of(account.parking.header(from).len);
        if !account.parking.release(&mut self.parked, from) {
            self.stick(Fault::Misuse("a message was copied that is not parked here"));
            return;
        }
        self.copies -= 1;
        let cost = if self.is_unsent(line) { cost } else { 0 };
        self.fill(Matched { line, target, len, cost }, oldest, account, now);
    }

    /// A message is longer than its receive: both ends fail. The advert tells the sender the receive's length.
    #[cold]
    fn misfit(&mut self, line: Line, sent: u16) {
        let slot = self.slot(line);
        let (posted, rest) = (slot.len, u32::from(slot.count - slot.index));
        self.stick(Fault::TooLong { line, sent: sent.into(), posted });
        self.flush_to = line.plus(rest);
    }
}

/// Whether a line matches a message: the line is posted and empty, has the message's tag, and is not before its base.
fn takes(slot: &Slot, line: Line, header: &Header) -> bool {
    slot.state == State::Posted && slot.tag == header.tag && !header.base.is_after(line)
}

/// How many bytes of a message fit its receive; None if it is too long and the receive does not truncate.
fn fitting(slot: &Slot, len: u16) -> Option<u16> {
    match u16::try_from(slot.len) {
        Ok(posted) if len > posted => slot.cut.then_some(posted),
        _ => Some(len),
    }
}

/// The cost of a message; never 0.
fn cost_of(len: u16) -> u16 {
    crate::bits::low16(credit::cost(len).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Which;
    use crate::frame::Frame;
    use crate::ids::Name;
    use crate::receive::{Posting, Receive};
    use crate::terms::Terms;

    const NOW: Moment = Moment::from_nanos(1);

    fn flow(grouped: bool) -> (ReceiveFlow, Account) {
        let inline = InlineLimits { unadvertised: 512, host: 512 };
        let terms = Terms { grouped, inline, ..Terms::of_two_rails(Name::default()) };
        (ReceiveFlow::new(terms), Account::new(2))
    }

    fn post(flow: &mut ReceiveFlow, account: &Account, receives: &[Receive]) -> Line {
        let keys = vec![1; 2 * receives.len()];
        flow.post(receives, &keys, Posting::default(), account, NOW).unwrap().unwrap()
    }

    fn adverts(flow: &mut ReceiveFlow, account: &mut Account) -> Vec<Frame> {
        std::iter::from_fn(|| flow.next_frame(Which::Adverts, 100, account, NOW)).collect()
    }

    /// Its payload would be copied past the end of the receive, or into memory of a GPU.
    #[test]
    fn an_inline_message_fits_its_receive_in_host_memory_and_the_limit_or_is_refused() {
        for (host, posted, len, valid) in [
            (true, 1000, 512, true),
            (true, 1000, 513, false),
            (true, 100, 100, true),
            (true, 100, 101, false),
            (false, 1000, 8, false),
        ] {
            let (mut flow, mut account) = flow(false);
            let line =
                post(&mut flow, &account, &[Receive { len: posted, host, ..Receive::default() }]);
            assert_eq!(adverts(&mut flow, &mut account).len(), 1);
            let to = Name::default();
            let inline = Inline { to, line, advertised: true, tag: 0, base: line, len };
            let place = flow.received(&Frame::Inline(inline), &mut account, NOW);
            assert_eq!(place.is_ok(), valid, "{len} bytes into {posted}, host: {host}");
        }
    }

    #[test]
    fn an_inline_message_for_a_line_comes_after_the_advert_of_that_line_and_once() {
        for advertised in [false, true] {
            let (mut flow, mut account) = flow(true);
            for _ in 0..2 {
                post(&mut flow, &account, &[Receive { len: 8, host: true, ..Receive::default() }]);
            }
            if advertised {
                flow.flush_to = flow.next;
                assert_eq!(adverts(&mut flow, &mut account).len(), 2);
            }
            let (to, base) = (Name::default(), Line::FIRST);
            let inline = Inline { to, line: base.plus(1), advertised: true, tag: 0, base, len: 8 };
            let place = flow.received(&Frame::Inline(inline), &mut account, NOW);
            assert_eq!(place.is_ok(), advertised);
            if let Ok(Some(place)) = place {
                flow.copied(place, &mut account, NOW);
                let again = flow.received(&Frame::Inline(inline), &mut account, NOW);
                assert!(again.is_err());
            }
        }
    }

    /// The adverts of its group leave, of which the sender needs all, and no other.
    #[test]
    fn the_adverts_of_a_group_explain_that_a_message_was_too_long_for_one_of_its_receives() {
        for index in 0..3 {
            let (mut flow, mut account) = flow(true);
            let receives = [5, 6, 7].map(|tag| Receive { len: 8, tag, ..Receive::default() });
            let first = post(&mut flow, &account, &receives);
            post(&mut flow, &account, &receives);
            let (to, tag) = (Name::default(), receives[index].tag);
            let inline = Inline { to, line: first, advertised: false, tag, base: first, len: 9 };
            assert_eq!(flow.received(&Frame::Inline(inline), &mut account, NOW), Ok(None));
            let left = adverts(&mut flow, &mut account);
            let ends =
                left.iter().map(|frame| matches!(frame, Frame::Advert(one) if one.ends_group));
            assert_eq!(ends.collect::<Vec<_>>(), [false, false, true], "{left:?}");
        }
    }
}
