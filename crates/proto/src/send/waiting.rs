//! What a sender waits for: see [`WaitsFor`].

use super::record::State;
use super::{ALL_FREE, SendFlow};
use crate::bits::{count32, low8};
use crate::stall::{ConnectionState, WaitsFor};
use crate::window::RECORDS;

impl SendFlow {
    /// The sender's progress, and what its oldest message waits for; without a message, what a refused `isend` waits for.
    pub fn connection_state(&self) -> ConnectionState {
        let waits_for = self.waits_for();
        let open = self.free != ALL_FREE || self.refused_caller;
        let under_way = self
            .records
            .iter()
            .filter(|record| record.state != State::Free && !self.is_done(record));
        // Of the open group, and of those whose adverts have not come.
        let further = match self.terms.grouped {
            true => self.group.taken.count_ones() + count32(self.unadvertised.len()),
            false => 0,
        };
        let begun = self.first.number().wrapping_add(further);
        let done = begun.wrapping_sub(count32(under_way.count()));
        ConnectionState { waits_for, open, begun, done }
    }

    fn waits_for(&self) -> WaitsFor {
        let used = (0..RECORDS).filter(|at| self.records[*at].state != State::Free);
        let age = |at: &usize| self.first.distance(self.records[*at].line).cast_signed();
        let waits = used.map(|at| (age(&at), self.record_waits_for(at)));
        let oldest = waits
            .filter(|(_, waits_for)| *waits_for != WaitsFor::Nothing)
            .max_by_key(|(age, _)| *age);
        match oldest {
            Some((_, waits_for)) => waits_for,
            None if self.refused_caller => self.refused_for,
            None => WaitsFor::Nothing,
        }
    }

    fn record_waits_for(&self, at: usize) -> WaitsFor {
        let record = &self.records[at];
        match record.state {
            State::Free | State::Sent => WaitsFor::Nothing,
            State::Inline | State::FinPending => WaitsFor::Room,
            State::Writing(writing) => {
                let part = low8(u64::from(writing.completed.trailing_ones()));
                let part = part.min(writing.parts.saturating_sub(1));
                WaitsFor::Data { rail: Some(self.rail(at, part)) }
            }
            State::Landed { .. } if self.is_done(record) => WaitsFor::Nothing,
            State::Landed { .. } => WaitsFor::Done,
        }
    }

    /// What the last refused `isend` waits for.
    pub fn refused_for(&self) -> WaitsFor {
        self.refused_for
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Account;
    use crate::capabilities::ImmediateWidth;
    use crate::connection::Submit;
    use crate::frame::{Advert, Frame};
    use crate::ids::{Moment, Name};
    use crate::line::Line;
    use crate::message::{MessageId, Source};
    use crate::send::{Outgoing, PartWrite, SendPoll};
    use crate::terms::{InlineLimits, Terms};

    #[test]
    fn a_sender_waits_for_what_its_oldest_message_waits_for_or_for_what_it_was_refused_for() {
        let (immediates, now) = (ImmediateWidth::Eight, Moment::default());
        let terms = Terms { immediates, ..Terms::of_two_rails(Name::default()) };
        let (mut flow, mut account) = (SendFlow::new(terms), Account::new(2));
        let said = |flow: &SendFlow| {
            let ConnectionState { waits_for, open, begun, done } = flow.connection_state();
            (waits_for, open, begun, done)
        };
        assert_eq!(said(&flow), (WaitsFor::Nothing, false, 0, 0));
        let message = Outgoing { tag: 0, len: 1000, source: Source::default(), host: false };
        assert_eq!(flow.submit(&message, 0, &mut account), Ok(Submit::NotNow));
        assert_eq!(flow.refused_for(), WaitsFor::Receive);
        assert_eq!(said(&flow), (WaitsFor::Receive, true, 0, 0));
        let writes = [0, 1].map(|line| {
            let advert = Advert::of_line(terms.peer, Line::new(line), 1000, &[0, 0]);
            flow.received(&Frame::Advert(advert), &mut account).unwrap();
            flow.submit(&message, 0, &mut account).unwrap();
            let write = flow.next_part(&account).unwrap();
            flow.posted(&write, &mut account);
            write
        });
        let data = |write: &PartWrite| WaitsFor::Data { rail: Some(write.rail) };
        assert_eq!(said(&flow), (data(&writes[0]), true, 2, 0));
        flow.written(writes[0].message, writes[0].part, &mut account, now);
        assert_eq!(said(&flow), (WaitsFor::Done, true, 2, 0));
        let has = |flow: &mut SendFlow, account: &mut Account, lines| {
            let done = Frame::Done { to: terms.peer, lines: Line::new(lines) };
            flow.received(&done, account).unwrap();
        };
        has(&mut flow, &mut account, 1);
        assert_eq!(said(&flow), (data(&writes[1]), true, 2, 1));
        flow.written(writes[1].message, writes[1].part, &mut account, now);
        has(&mut flow, &mut account, 2);
        assert_eq!(said(&flow), (WaitsFor::Nothing, true, 2, 2));
        for write in writes {
            assert_eq!(flow.poll(write.message), SendPoll::Done { len: 1000 });
        }
        assert_eq!(said(&flow), (WaitsFor::Nothing, false, 2, 2));
    }

    #[test]
    fn messages_that_left_before_the_adverts_of_their_groups_have_begun() {
        let inline = InlineLimits { host: 8192, unadvertised: 4096 };
        let terms = Terms { grouped: true, inline, ..Terms::of_two_rails(Name::default()) };
        let (mut flow, mut account) = (SendFlow::new(terms), Account::new(2));
        let counts = |flow: &SendFlow| {
            let ConnectionState { begun, done, .. } = flow.connection_state();
            (begun, done)
        };
        let message = |tag, len| Outgoing { tag, len, source: Source::default(), host: true };
        for begun in 1..=3 {
            let sent = flow.submit(&message(1, 8), 1000, &mut account).unwrap();
            assert!(matches!(sent, Submit::Inline { .. }), "{sent:?}");
            assert_eq!(counts(&flow), (begun, 0), "no packet has left");
        }
        assert_eq!(flow.submit(&message(1, 5000), 1000, &mut account), Ok(Submit::NotNow));
        assert_eq!(flow.refused_for(), WaitsFor::Receive);
        assert_eq!(counts(&flow), (3, 0));
        (0..3).for_each(|record| flow.inline_left(MessageId(record)));
        assert_eq!(counts(&flow), (3, 3));
        let done = Frame::Done { to: terms.peer, lines: Line::new(2) };
        flow.received(&done, &mut account).unwrap();
        assert_eq!(counts(&flow), (3, 3), "two of them had receives of their own");
        for (line, tag, ends_group) in [(2, 2, false), (3, 1, true)] {
            let advert = Advert::of_line(terms.peer, Line::new(line), 5000, &[0, 0]);
            let advert = Advert { tag, ends_group, ..advert };
            flow.received(&Frame::Advert(advert), &mut account).unwrap();
        }
        assert_eq!(counts(&flow), (3, 3), "the third has taken the second line of this group");
        assert_eq!(flow.submit(&message(1, 5000), 1000, &mut account), Ok(Submit::NotNow));
        assert_eq!(flow.refused_for(), WaitsFor::Group);
        flow.submit(&message(2, 5000), 1000, &mut account).unwrap();
        assert_eq!(counts(&flow), (4, 3));
    }
}
