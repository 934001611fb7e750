//! Submission of a message: inline into a known line, in parts, or inline without an advert.

use super::record::{Path, Record, State, Writing};
use super::{Found, Outgoing, Refused, SendFlow, bit_of};
use crate::account::Account;
use crate::connection::Submit;
use crate::credit;
use crate::fault::Fault;
use crate::frame::{FinStatus, INLINE_WORDS, Inline};
use crate::line::Line;
use crate::message::{Cut, MessageId, Source};
use crate::stall::WaitsFor;
use crate::terms::{COPIED_AT_MOST, InlineLimits};
use crate::unadvertised::Sent;
use crate::window::{RECORDS, bit};

/// Receives count as not posted ahead after this many long messages in a row that found only one advert.
const AHEAD_LASTS: u8 = 8;
/// From this length in bytes on a message is long. Over sockets a write is copied when it is posted, which then takes several
/// times as long as posting a packet.
const LONG: u64 = 256 << 10;

impl SendFlow {
    /// Submits a message, if it can be sent now. `words` is the room in the open packet.
    #[inline]
    pub fn submit(
        &mut self,
        message: &Outgoing,
        words: usize,
        account: &mut Account,
    ) -> Result<Submit, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.free == 0 {
            self.refused_for = WaitsFor::Room;
            return Ok(Submit::NotNow);
        }
        let submit = match self.find(message.tag)? {
            Found::Line(line) => self.submit_to(line, message, words, account),
            Found::Unadvertised => Ok(self.submit_unadvertised(message, words, account)),
            Found::Nothing => Ok(self.not_now(WaitsFor::Group)),
        };
        self.refused_caller = submit == Ok(Submit::NotNow);
        submit
    }

    #[inline]
    fn submit_to(
        &mut self,
        line: Line,
        message: &Outgoing,
        words: usize,
        account: &mut Account,
    ) -> Result<Submit, Fault> {
        let advert = *self.adverts.get(line);
        if message.len > advert.len {
            if !advert.cut {
                return Err(self.refuse(line, message.len, advert.len, account));
            }
            self.cut.get_or_insert(Cut { sent: message.len, posted: advert.len });
        }
        let len = message.len.min(advert.len);
        let path = self.path_of(len, len == advert.len);
        let inline =
            message.host && advert.host && InlineLimits::admit(self.terms.inline.host, len);
        if inline && !self.is_better_written(line, len, path) {
            let frame = self.inline_frame(line, true, message.tag, len);
            if INLINE_WORDS + frame.payload_words() > words {
                return Ok(self.not_now(WaitsFor::Room));
            }
            self.written &= !bit(line);
            self.take_line(line, account);
            let message = self.record(message.source, line, len, State::Inline);
            return Ok(Submit::Inline { message, frame });
        }
        if path == Path::Fin && !self.terms.delivery {
            self.take_line(line, account);
            self.refused =
                Some(Refused { line, len, status: FinStatus::Failed, begun: false, pending: true });
            return Err(self.stick(Fault::Unsendable { len }));
        }
        self.written |= bit(line);
        self.take_line(line, account);
        let split = self.terms.cutting.split(len);
        let state = State::Writing(Writing::new(split, path));
        let message = self.record(message.source, line, len, state);
        self.assign_rails(message, split, len, &mut account.loads);
        self.posting |= bit_of(message);
        Ok(Submit::Parts { message, long: len >= LONG })
    }

    /// Whether a message that could go inline should be written: it is long, and receives are posted ahead.
    #[inline]
    fn is_better_written(&mut self, line: Line, len: u64, path: Path) -> bool {
        if len <= COPIED_AT_MOST || path == Path::Fin {
            return false;
        }
        if self.adverts.has(line.plus(1)) {
            self.ahead = AHEAD_LASTS;
        } else if self.ahead > 0 {
            self.ahead -= 1;
        }
        self.ahead > 0
    }

    /// Submits a message before its advert has come, within the credit: the receiver may have to park it.
    fn submit_unadvertised(
        &mut self,
        message: &Outgoing,
        words: usize,
        account: &mut Account,
    ) -> Submit {
        if !message.host || !InlineLimits::admit(self.terms.inline.unadvertised, message.len) {
            return self.not_now(WaitsFor::Receive);
        }
        // The message's advert is on its way, and a write is faster than a copy.
        if self.ahead > 0 && message.len > COPIED_AT_MOST {
            return self.not_now(WaitsFor::Receive);
        }
        let number = self.next_number();
        let frame = self.inline_frame(number, false, message.tag, message.len);
        let cost = credit::cost(frame.len);
        let (messages, used) = (self.unadvertised.len(), self.unadvertised.cost());
        if INLINE_WORDS + frame.payload_words() > words {
            return self.not_now(WaitsFor::Room);
        }
        if !credit::fits(cost, messages, used, account.sent)
            || !self.unadvertised.push(Sent { base: self.first, tag: message.tag, len: frame.len })
        {
            return self.not_now(WaitsFor::Credit);
        }
        account.sent += cost;
        if !self.terms.grouped {
            self.written &= !bit(self.first);
            self.first = self.first.plus(1);
        }
        let message = self.record(message.source, number, message.len, State::Inline);
        Submit::Inline { message, frame }
    }

    /// Refuses a message for now: NCCL tries again.
    #[cold]
    fn not_now(&mut self, waits_for: WaitsFor) -> Submit {
        self.refused_for = waits_for;
        Submit::NotNow
    }

    /// The number of the next message without an advert; with single receives this is its line.
    fn next_number(&self) -> Line {
        match self.terms.grouped {
            true => self.first.plus(crate::bits::count32(self.unadvertised.len())),
            false => self.first,
        }
    }

    #[inline]
    fn inline_frame(&self, line: Line, advertised: bool, tag: i32, len: u64) -> Inline {
        let base = if advertised { line } else { self.first };
        Inline { to: self.terms.peer, line, advertised, tag, base, len: crate::bits::low16(len) }
    }

    #[inline]
    fn record(&mut self, source: Source, line: Line, len: u64, state: State) -> MessageId {
        let at = self.free.trailing_zeros() as usize % RECORDS;
        self.free &= !(1 << at);
        self.records[at] = Record::new(source, line, len, state);
        MessageId(crate::bits::low8(at as u64))
    }

    /// The path of a message: immediates, if the receiver can learn the size from them and 64 parts can hold the message.
    #[inline]
    fn path_of(&self, len: u64, whole: bool) -> Path {
        let end = if whole { self.whole_end } else { self.short_end };
        if len < end { Path::Immediate { whole } } else { Path::Fin }
    }

    #[cold]
    fn refuse(&mut self, line: Line, sent: u64, posted: u64, account: &mut Account) -> Fault {
        self.take_line(line, account);
        self.refused = Some(Refused {
            line,
            len: sent,
            status: FinStatus::TooLong,
            begun: false,
            pending: true,
        });
        self.stick(Fault::TooLong { line, sent, posted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::ImmediateWidth;
    use crate::frame::{Advert, Frame};
    use crate::ids::Name;
    use crate::terms::Terms;

    /// A sender of messages in host memory, inline up to 8 KiB, with immediates where they are written.
    fn flow() -> (SendFlow, Account) {
        let inline = InlineLimits { unadvertised: 8192, host: 8192 };
        let immediates = ImmediateWidth::Eight;
        let terms = Terms { inline, immediates, ..Terms::of_two_rails(Name::default()) };
        (SendFlow::new(terms), Account::new(2))
    }

    fn message(len: u64) -> Outgoing {
        Outgoing { tag: 0, len, source: Source::default(), host: true }
    }

    #[test]
    fn a_message_goes_inline_if_its_packet_has_just_the_room_for_it() {
        for advertised in [false, true] {
            for (len, words) in [(0, INLINE_WORDS), (8, INLINE_WORDS + 1), (9, INLINE_WORDS + 2)] {
                let (mut flow, mut account) = flow();
                if advertised {
                    let line = Advert::of_line(Name::default(), Line::FIRST, 1000, &[0, 0]);
                    let advert = Frame::Advert(Advert { host: true, ..line });
                    flow.received(&advert, &mut account).unwrap();
                }
                let submitted = flow.submit(&message(len), words - 1, &mut account);
                assert_eq!((submitted, flow.refused_for()), (Ok(Submit::NotNow), WaitsFor::Room));
                let submitted = flow.submit(&message(len), words, &mut account);
                assert!(matches!(submitted, Ok(Submit::Inline { .. })), "{submitted:?}");
            }
        }
    }

    #[test]
    fn a_long_message_waits_for_its_advert_where_receives_are_posted_ahead() {
        for (ahead, len, waits) in [
            (0, COPIED_AT_MOST + 1, false),
            (1, COPIED_AT_MOST, false),
            (1, COPIED_AT_MOST + 1, true),
            (AHEAD_LASTS, 8192, true),
        ] {
            let (mut flow, mut account) = flow();
            flow.ahead = ahead;
            let submitted = flow.submit(&message(len), 2000, &mut account);
            assert_eq!(submitted == Ok(Submit::NotNow), waits, "{len} bytes: {submitted:?}");
        }
    }
}
