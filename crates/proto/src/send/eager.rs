//! Sending before the receive is known: a short message goes into the receiver's eager ring, and finds its line when the adverts
//! come.
//!
//! ```text
//!        pack_eagerly, eager_posted     the advert of its line is read        done passed the line
//!  over ─────────▶ without a line ───────────────────────▶ placed ────────────────────▶ over, once polled
//! ```
//!
//! While a message is without a line, everything else that is submitted asks first whether the adverts that have come are
//! its own. Its place is used again when the receiver is known to have taken it.

use super::{SendFlow, SendPoll};
use crate::eager::{self, EAGER_BYTES_MAX, Header, Unplaced};
use crate::error::ProtocolError;
use crate::flow::{LineSink, LineSource};
use crate::ids::Line;

/// What a sender knows of its eager messages.
#[derive(Debug)]
pub(super) struct Eager {
    /// Messages up to this length are sent so; none once the receiver wants no more.
    limit: Option<u64>,
    unplaced: Unplaced,
    /// A done that lies past the messages with lines.
    told: Option<Line>,
    sent: [Sent; Unplaced::MAX],
}

/// One message, by its place in the ring.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    len: u64,
    line: Option<Line>,
    /// The place was used.
    used: bool,
    written: bool,
    reported: bool,
}

/// A message that lies in the staging ring, to be written to the same place of the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EagerWrite {
    pub number: u32,
    pub place: u32,
    /// From the beginning of the place.
    pub words: usize,
    header: Header,
}

impl SendFlow {
    /// Messages of up to `limit` bytes may be sent eagerly: the receiver has lent a ring for them.
    pub fn allow_eager(&mut self, limit: u64) {
        let places = self.window().eager_places();
        if places > 0 {
            let unplaced = Unplaced::new(self.window().is_grouped());
            self.eager = Some(Box::new(Eager {
                limit: Some(limit.min(EAGER_BYTES_MAX)),
                unplaced: unplaced.numbered_from(eager::first_number(self.parameters.first_line)),
                told: None,
                sent: [Sent::default(); Unplaced::MAX],
            }));
        }
    }

    /// Whether a message of `len` bytes that found no receive may be sent eagerly, for all that is known without looking.
    pub fn may_send_eagerly(&self, len: u64) -> bool {
        let limit = self.eager.as_ref().and_then(|eager| eager.limit);
        limit.is_some_and(|limit| len <= limit) && self.group.count == 0 && self.failed.is_none()
    }

    /// Puts a message that [`submit`](Self::submit) had no receive for into the staging ring. None: it may not be sent now.
    pub fn pack_eagerly<S: LineSource, T: LineSink>(
        &mut self,
        mailbox: &S,
        staging: &mut T,
        tag: i32,
        payload: &[u8],
    ) -> Option<EagerWrite> {
        let len = payload.len() as u64;
        if !self.may_send_eagerly(len) || self.read_advert(mailbox, self.first) {
            return None;
        }
        let (places, base, done) = (self.window().eager_places(), self.first, self.peer_done);
        let eager = self.eager.as_mut()?;
        let (number, waiting) = (eager.unplaced.next(), eager.unplaced.len());
        let place = number & (places - 1);
        let sent = eager.sent[place as usize % Unplaced::MAX];
        let taken = sent.reported && sent.line.is_some_and(|line| done.is_after(line));
        if waiting >= places as usize || sent.used && !taken {
            return None;
        }
        let header = Header { base, tag, len };
        let nonce = self.parameters.nonce;
        let words = eager::pack(staging, place, nonce, number, header, payload)?;
        Some(EagerWrite { number, place, words, header })
    }

    /// The post of this message was accepted. `completes`: [`eager_written`](Self::eager_written) will be said.
    pub fn eager_posted(&mut self, write: EagerWrite, completes: bool) {
        let Some(eager) = &mut self.eager else { return };
        let Header { base, tag, len } = write.header;
        if eager.unplaced.push(base, tag).is_some() {
            eager.sent[write.place as usize % Unplaced::MAX] =
                Sent { len, line: None, used: true, written: !completes, reported: false };
            self.behind = true;
            self.plain.pause();
        }
    }

    /// The write of message `number` has completed well.
    pub fn eager_written(&mut self, number: u32) {
        if let Some(sent) = self.sent_mut(number) {
            sent.written = true;
        }
    }

    /// Asks for the eager message whose number ends in `request`; done is said once. None: there is no such.
    pub fn poll_eager(&mut self, request: u16) -> Option<SendPoll> {
        let (proves, done, failed) =
            (self.parameters.sends_arrive_when_complete, self.peer_done, self.failed);
        let next = self.eager_next();
        let behind = u32::from(crate::bits::low16(next.into()).wrapping_sub(request));
        if behind.wrapping_sub(1) >= self.window().eager_places() {
            return None;
        }
        let sent = self.sent_mut(next.wrapping_sub(behind))?;
        if !sent.used || sent.reported {
            return None;
        }
        // Before it has a line, nobody knows whether it is too long for it.
        let arrived = sent.line.is_some_and(|line| proves || done.is_after(line));
        if sent.written && arrived {
            sent.reported = true;
            return Some(SendPoll::Done { len: sent.len });
        }
        Some(failed.map_or(SendPoll::Pending, SendPoll::Failed))
    }

    /// The number of the next eager message: those before it were sent.
    pub fn eager_next(&self) -> u32 {
        let first = eager::first_number(self.parameters.first_line);
        self.eager.as_ref().map_or(first, |eager| eager.unplaced.next())
    }

    /// The receiver wants no more of them. Answers as [`eager_next`](Self::eager_next).
    pub fn cease_eager(&mut self) -> u32 {
        if let Some(eager) = &mut self.eager {
            eager.limit = None;
        }
        self.eager_next()
    }

    /// Whether some eager message was not told to be done.
    pub fn awaits_eager(&self) -> bool {
        let waits = |sent: &Sent| sent.used && !sent.reported;
        self.eager.as_ref().is_some_and(|eager| eager.sent.iter().any(waits))
    }

    /// Whether the receiver is known to have all that was sent.
    pub fn is_all_done(&self) -> bool {
        let done = self.peer_done;
        let taken = |sent: &Sent| {
            !sent.used || sent.reported || sent.line.is_some_and(|line| done.is_after(line))
        };
        done == self.submitted()
            && self.eager.as_ref().is_none_or(|eager| eager.sent.iter().all(taken))
    }

    /// Gives eager messages the lines that have come for them.
    #[cold]
    pub(super) fn place_eager<S: LineSource>(&mut self, mailbox: &S) -> Result<(), ProtocolError> {
        while self.behind && self.group.count == 0 {
            if !self.read_advert(mailbox, self.first) || !self.open_group(mailbox)? {
                break;
            }
            let (first, count) = (self.first, self.group.count);
            if (0..count).any(|index| self.holds(first.plus(index))) {
                // A place belongs to an earlier message that was not polled.
                self.group.count = 0;
                break;
            }
            for index in 0..count {
                self.place_line(mailbox, index)?;
            }
            self.end_group();
        }
        self.catch_up();
        Ok(())
    }

    /// Gives a line of the group just opened to the eager message that it is for, if there is one.
    fn place_line<S: LineSource>(&mut self, mailbox: &S, index: u32) -> Result<(), ProtocolError> {
        let line = self.first.plus(index);
        let tag = self.group.tags[index as usize];
        let Some(eager) = &mut self.eager else { return Ok(()) };
        let Some(number) = eager.unplaced.take(line, tag) else { return Ok(()) };
        self.behind = !eager.unplaced.is_empty();
        self.group.taken |= 1 << index;
        let (posted, cuts) = match self.mailbox.advert(mailbox, line) {
            true => (self.mailbox.posted(), self.mailbox.form().cuts()),
            false => (u64::MAX, true),
        };
        let Some(sent) = self.sent_mut(number) else { return Ok(()) };
        let len = sent.len;
        if len > posted && !cuts {
            // It is not done ever. The receiver finds out for itself.
            return Err(self.stick(ProtocolError::TooLong { line, sent: len, posted }));
        }
        (sent.line, sent.len) = (Some(line), len.min(posted));
        Ok(())
    }

    /// A done that lay past the messages with lines counts as far as they have them now.
    fn catch_up(&mut self) {
        let known = self.submitted().distance(self.peer_done);
        let Some(eager) = &mut self.eager else { return };
        let Some(told) = eager.told else { return };
        let ahead = told.distance(self.peer_done);
        if ahead <= known || ahead.cast_signed() < 0 {
            eager.told = None;
        }
        if ahead.cast_signed() > 0 {
            self.peer_done = self.peer_done.plus(ahead.min(known));
        }
    }

    /// A done has come that lies past the messages with lines: believed if eager messages can explain it.
    #[cold]
    pub(super) fn tell_eager(&mut self, done: Line) -> bool {
        let past = done.distance(self.submitted());
        let submitted = self.submitted();
        let Some(eager) = &mut self.eager else { return false };
        if past as usize > eager.unplaced.len() {
            return false;
        }
        if eager.told.is_none_or(|told| done.is_after(told)) {
            eager.told = Some(done);
        }
        self.peer_done = submitted;
        true
    }

    fn sent_mut(&mut self, number: u32) -> Option<&mut Sent> {
        let place = number & self.window().eager_places().wrapping_sub(1);
        self.eager.as_mut().map(|eager| &mut eager.sent[place as usize % Unplaced::MAX])
    }
}
