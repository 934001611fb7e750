//! A connection between `connect` and OPENED: it holds its slot, sends OPEN, and becomes a sender.

use super::super::connection::{ChannelEnd, Urgency};
use super::super::fault::{Fault, Violation};
use super::super::frame::{Frame, Open, Refusal};
use super::super::ids::{Moment, Name};
use super::super::send::SendFlow;
use super::agreement::Agreement;
use super::handle::Handle;
use super::opening::{Features, Opening, Outcome, Step};
use super::proof::{Nonces, Prove};

/// The progress of a `connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Not yet. For a closed listener the answer stays this.
    Pending,
    Opened,
    Refused(Refusal),
    Failed(Fault),
}

#[derive(Debug)]
pub struct Connecting {
    opening: Opening,
    open: Open,
    agreement: Agreement,
    refused: Option<Refusal>,
    fault: Option<Fault>,
    /// The caller has given up. An OPEN that has left is still answered.
    closed: bool,
}

impl Connecting {
    pub(super) fn new(
        own: Name,
        handle: &Handle,
        features: Features,
        (nonces, prove): (Nonces, &impl Prove),
        agreement: Agreement,
    ) -> Self {
        let opening = Opening::new(own, handle.listener, handle.secret, features);
        let open = opening.open(nonces, prove);
        Self { opening, open, agreement, refused: None, fault: None, closed: false }
    }

    pub fn answer(&self) -> Answer {
        match (self.refused, self.fault) {
            (Some(why), _) => Answer::Refused(why),
            (None, Some(fault)) => Answer::Failed(fault),
            (None, None) => Answer::Pending,
        }
    }

    pub(in super::super) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The caller gives up.
    pub(in super::super) fn close(&mut self) {
        self.closed = true;
    }

    /// The channel has failed, or the peer has ended it, so that no answer comes.
    pub(in super::super) fn ended(&mut self, how: ChannelEnd) {
        if how == ChannelEnd::Failed {
            self.fault.get_or_insert(Fault::Ended);
        }
        self.opening.lose();
    }

    /// Whether the caller has given up and no answer can come any more, so that the slot can be freed.
    pub(in super::super) fn is_over(&self) -> bool {
        self.closed && !self.opening.is_sent()
    }

    /// Whether the `connect` stays pending for ever.
    pub(in super::super) fn is_lost(&self) -> bool {
        self.opening.is_lost()
    }

    /// Whether OPEN has left without an answer.
    pub(in super::super) fn waits(&self) -> bool {
        self.opening.is_sent()
    }

    pub(in super::super) fn urgency(&self, now: Moment) -> Urgency {
        if self.closed {
            return Urgency::Nothing;
        }
        match self.opening.due() {
            None => Urgency::Nothing,
            Some(due) if due <= now => Urgency::Waited,
            Some(until) => Urgency::Lazy { until, joins: false },
        }
    }

    pub(in super::super) fn next_frame(&mut self, words: usize, now: Moment) -> Option<Frame> {
        let frame = Frame::Open(self.open);
        if self.closed || frame.words() > words || self.opening.step(true, now) != Step::Open {
            return None;
        }
        self.opening.open_left();
        Some(frame)
    }

    /// Handles the answer. For OPENED, returns the sender that this connection becomes.
    pub(in super::super) fn received(
        &mut self,
        frame: &Frame,
        now: Moment,
    ) -> Result<Option<SendFlow>, Violation> {
        match frame {
            Frame::Opened(opened) if self.opening.opened(opened) => {
                let agreed = Features::from_bits(opened.features);
                let names = (opened.to, opened.from);
                let terms = self.agreement.terms(names, agreed, opened.inline_bytes_max);
                let mut flow = SendFlow::new(terms.ok_or(Violation::Opened)?);
                if self.closed {
                    flow.close();
                }
                Ok(Some(flow))
            }
            Frame::Refused(refused) if self.opening.refused(refused, now) => {
                if let Step::End(Outcome::Refused(why)) = self.opening.step(false, now) {
                    self.refused = Some(why);
                }
                Ok(None)
            }
            Frame::Opened(_) | Frame::Refused(_) => Err(Violation::Opened),
            _ => Err(Violation::Direction),
        }
    }
}
