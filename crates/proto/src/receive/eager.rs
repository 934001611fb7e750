//! Messages that came before the sender knew their receives: they wait in the eager ring, and go to the lines that they are for.
//!
//! A message is taken by a copy, once the advert of its line has been written: then the line is complete as if parts had come.

use super::ReceiveFlow;
use crate::eager::{self, Unplaced};
use crate::error::{ProtocolError, Violation};
use crate::flow::LineSource;
use crate::ids::Line;

/// What a receiver knows of eager messages.
#[derive(Debug)]
pub(super) struct Eager {
    /// Those that came and have no line yet.
    unplaced: Unplaced,
    /// The number from which on none will come.
    end: Option<u32>,
    /// The sender was asked to send none any more.
    unwanted: bool,
    /// The line whose message was longer than its receive: nobody writes there.
    misfit: Option<Line>,
    /// The lengths of messages, by their places.
    lens: [u8; Unplaced::MAX],
}

const _: () = assert!(eager::EAGER_BYTES_MAX <= u8::MAX as u64);

/// A message to be copied from the eager ring to where a receive begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EagerArrival {
    pub line: Line,
    /// Of the eager ring.
    pub place: u32,
    /// After truncation, where that was agreed.
    pub len: u64,
    pub sent: u64,
}

impl ReceiveFlow {
    /// A ring for eager messages was lent to the sender. False: with this window there can be none.
    pub fn allow_eager(&mut self) -> bool {
        let places = self.window().eager_places();
        if places == 0 {
            return false;
        }
        let unplaced = Unplaced::new(self.window().is_grouped());
        self.eager = Some(Box::new(Eager {
            unplaced: unplaced.numbered_from(eager::first_number(self.parameters.first_line)),
            end: None,
            unwanted: false,
            misfit: None,
            lens: [0; Unplaced::MAX],
        }));
        true
    }

    /// Whether [`next_eager`](Self::next_eager) may find something.
    #[inline]
    pub fn has_eager<S: LineSource>(&self, ring: &S) -> bool {
        let Some(eager) = &self.eager else { return false };
        let number = eager.unplaced.next();
        let place = number & (self.window().eager_places() - 1);
        !eager.unplaced.is_empty() || eager::is_there(ring, place, number)
    }

    /// The next message whose receive is advertised. Once it is copied, say [`copied`](Self::copied).
    #[cold]
    pub fn next_eager<S: LineSource>(&mut self, ring: &S) -> Option<EagerArrival> {
        self.hear_eager(ring);
        if self.eager.as_ref()?.unplaced.is_empty() {
            return None;
        }
        let mut line = self.done;
        while line != self.advertised {
            if self.may_take_eager(line)
                && let Some(found) = self.take_eager(line)
            {
                return self.fitted(found);
            }
            line = line.plus(1);
        }
        None
    }

    /// The sender says that it sends no eager message from this number on.
    pub fn eager_ends(&mut self, end: u32) {
        if let Some(eager) = &mut self.eager {
            eager.end.get_or_insert(end);
        }
    }

    /// Whether eager messages are on their way, for all that is known once the sender begins no more.
    pub fn is_eager_due(&self) -> bool {
        let due = |eager: &Eager| eager.end.is_some_and(|end| end != eager.unplaced.next());
        self.eager.as_ref().is_some_and(|eager| due(eager))
    }

    /// Whether messages have come that wait for receives, while no receive waits for a message.
    pub fn keeps_eager(&self) -> bool {
        let waits = |eager: &Eager| !eager.unplaced.is_empty();
        self.done == self.advertised && self.eager.as_ref().is_some_and(|eager| waits(eager))
    }

    /// Whether a receive that is advertised now may get an eager message: its bytes then need a call to come.
    pub(super) fn may_get_eager(&self) -> bool {
        let over =
            |eager: &Eager| eager.unplaced.is_empty() && eager.end == Some(eager.unplaced.next());
        self.eager.as_ref().is_some_and(|eager| !over(eager))
    }

    /// Whether to ask the sender to send none any more: true once.
    #[cold]
    pub fn refuse_eager(&mut self) -> bool {
        let Some(eager) = &mut self.eager else { return false };
        !std::mem::replace(&mut eager.unwanted, true) && eager.end.is_none()
    }

    /// Hears of messages in the order of their numbers.
    fn hear_eager<S: LineSource>(&mut self, ring: &S) {
        let (nonce, places) = (self.parameters.nonce, self.window().eager_places());
        let Some(eager) = &mut self.eager else { return };
        loop {
            let number = eager.unplaced.next();
            let place = number & (places - 1);
            let Some(header) = eager::read(ring, place, nonce, number) else { return };
            // Its place is used again only when the message before it there was taken.
            let has_room = eager.unplaced.len() < places as usize && eager.end != Some(number);
            if !has_room || eager.unplaced.push(header.base, header.tag).is_none() {
                self.violation();
                self.fail(ProtocolError::Violation(Violation::LineKind));
                return;
            }
            eager.lens[place as usize % Unplaced::MAX] = crate::bits::low8(header.len);
        }
    }

    /// Of a flow that has failed only what the sender may write to.
    fn may_take_eager(&self, line: Line) -> bool {
        let slot = self.slot(line);
        let open = self.failed.is_none() || self.begun.is_none_or(|begun| begun.has(line));
        open && slot.is_incomplete() && slot.parts == 0 && !self.is_misfit(line)
    }

    /// Whether the message for this line was too long, and dropped.
    pub(super) fn is_misfit(&self, line: Line) -> bool {
        self.eager.as_ref().is_some_and(|eager| eager.misfit == Some(line))
    }

    fn take_eager(&mut self, line: Line) -> Option<EagerArrival> {
        let tag = self.slot(line).form().tag();
        let places = self.window().eager_places();
        let eager = self.eager.as_mut()?;
        let place = eager.unplaced.take(line, tag)? & (places - 1);
        let len = eager.lens[place as usize % Unplaced::MAX].into();
        Some(EagerArrival { line, place, len, sent: len })
    }

    fn fitted(&mut self, found: EagerArrival) -> Option<EagerArrival> {
        let EagerArrival { line, len, .. } = found;
        let posted = self.slot(line).len;
        if len <= posted {
            return Some(found);
        }
        if self.slot(line).form().cuts() {
            return Some(EagerArrival { len: posted, ..found });
        }
        if let Some(eager) = &mut self.eager {
            eager.misfit.get_or_insert(line);
        }
        self.fail(ProtocolError::TooLong { line, sent: len, posted });
        None
    }
}
