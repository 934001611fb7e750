//! What sits in a slot of an endpoint: a connection from the moment it is asked for until nothing of it can come any more.
//!
//! ```text
//!  connect   Asking ── OPENED ──▶ Open          accept   Open, and OPENED is the first frame that leaves
//!              └── REFUSED, busy ──▶ Asking     refuse   Refusing ── REFUSED has left ──▶ over
//! ```
//!
//! OPENED makes the sender's flow at once: the adverts of the new connection may come in the same packet.

use super::super::account::Account;
use super::super::connection::{Connection, Owes, Submit, Which};
use super::super::fault::{Breach, Fault, Violation};
use super::super::flow::{Action, Event, Flow};
use super::super::frame::{Frame, Open, Opened, Refusal, Refused};
use super::super::ids::{Moment, Name};
use super::super::message::MessageId;
use super::super::receive::{Place, ReceiveFlow};
use super::super::send::{Outgoing, SendFlow};
use super::super::terms::{InlineLimits, Terms};
use super::opening::{Features, Opening, Outcome, Step};
use crate::capabilities::Capabilities;

/// What both ends of a channel make of a connection that its ends have not said yet.
#[derive(Clone, Copy, Debug)]
pub struct Settling {
    /// What both ends can do.
    pub agreed: Capabilities,
    /// Data rails that both have.
    pub rails: usize,
    /// Messages of so many bytes are shared out between rails.
    pub shared_from: u64,
    /// The longest message that may come inline to a receive of the host's.
    pub inline_host: u16,
}

impl Settling {
    /// The terms of a connection of these names. None: neither immediates nor delivery completion are there.
    pub fn settle(
        &self,
        own: Name,
        peer: Name,
        agreed: Features,
        unadvertised: u16,
    ) -> Option<Terms> {
        let inline = InlineLimits { unadvertised, host: self.inline_host };
        Terms::settle(
            own,
            peer,
            &self.agreed,
            self.rails,
            self.shared_from,
            agreed.groups,
            agreed.fin_only,
            inline,
        )
    }
}

/// One slot's occupant.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a flow lives in the table, and a box would cost a load"
)]
pub enum Seat {
    Asking {
        opening: Opening,
        /// The OPEN that is to leave.
        open: Option<Open>,
        settling: Settling,
    },
    Refusing(Option<Refused>),
    Open {
        flow: Flow,
        /// The answer to the OPEN, until it has left: no other frame leaves before.
        opened: Option<Opened>,
    },
    /// The channel ended before the connection was made.
    Ended,
}

impl Seat {
    /// A connection that is asked for.
    pub fn asking(opening: Opening, settling: Settling) -> Self {
        Self::Asking { opening, open: None, settling }
    }

    /// A connection that is accepted: `opened` is the answer.
    pub fn accepted(flow: ReceiveFlow, opened: Opened) -> Self {
        Self::Open { flow: Flow::Receive(flow), opened: Some(opened) }
    }

    /// What connect is to do: see [`Opening::step`].
    pub fn step(&mut self, now: Moment) -> Step {
        match self {
            Self::Asking { opening, open, .. } => match opening.step(true, now) {
                Step::Open if open.is_some() => Step::Wait,
                step => step,
            },
            _ => Step::Wait,
        }
    }

    /// The OPEN that [`Step::Open`] asked for.
    pub fn ask(&mut self, made: Open) {
        if let Self::Asking { open, .. } = self {
            *open = Some(made);
        }
    }

    /// Whether connect waits for the answer still.
    pub fn is_asking(&self) -> bool {
        matches!(self, Self::Asking { .. })
    }

    pub fn opening(&self) -> Option<&Opening> {
        match self {
            Self::Asking { opening, .. } => Some(opening),
            _ => None,
        }
    }

    pub fn opening_mut(&mut self) -> Option<&mut Opening> {
        match self {
            Self::Asking { opening, .. } => Some(opening),
            _ => None,
        }
    }

    /// The flow, once both ends know the connection.
    #[inline]
    pub fn flow(&self) -> Option<&Flow> {
        match self {
            Self::Open { flow, .. } => Some(flow),
            _ => None,
        }
    }

    #[inline]
    pub fn flow_mut(&mut self) -> Option<&mut Flow> {
        match self {
            Self::Open { flow, .. } => Some(flow),
            _ => None,
        }
    }

    #[inline]
    pub fn sender(&self) -> Option<&SendFlow> {
        match self.flow()? {
            Flow::Send(flow) => Some(flow),
            Flow::Receive(_) => None,
        }
    }

    #[inline]
    pub fn sender_mut(&mut self) -> Option<&mut SendFlow> {
        match self.flow_mut()? {
            Flow::Send(flow) => Some(flow),
            Flow::Receive(_) => None,
        }
    }

    #[inline]
    pub fn receiver(&self) -> Option<&ReceiveFlow> {
        match self.flow()? {
            Flow::Receive(flow) => Some(flow),
            Flow::Send(_) => None,
        }
    }

    #[inline]
    pub fn receiver_mut(&mut self) -> Option<&mut ReceiveFlow> {
        match self.flow_mut()? {
            Flow::Receive(flow) => Some(flow),
            Flow::Send(_) => None,
        }
    }

    /// Whether OPENED is still to leave.
    pub fn owes_opened(&self) -> bool {
        matches!(self, Self::Open { opened: Some(_), .. })
    }

    /// Whether nothing of it can come any more: its slot is free.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Asking { .. } => false,
            Self::Refusing(refused) => refused.is_none(),
            Self::Open { flow, .. } => flow.is_over(),
            Self::Ended => true,
        }
    }

    fn answered(&mut self, answer: &Opened) -> Result<(), Breach> {
        let Self::Asking { opening, settling, .. } = self else {
            return Err(Breach(Violation::Ending));
        };
        if !opening.opened(answer) {
            return Err(Breach(Violation::Ending));
        }
        let agreed = Features::from_bits(answer.features);
        let unadvertised = answer.inline_bytes_max.min(settling.inline_host);
        // Both ends compute the same, so that the other had not answered.
        let terms = settling
            .settle(opening.name(), answer.from, agreed, unadvertised)
            .ok_or(Breach(Violation::Ending))?;
        *self = Self::Open { flow: Flow::Send(SendFlow::new(terms)), opened: None };
        Ok(())
    }
}

impl Connection for Seat {
    type Message = Outgoing;
    type Place = Place;
    type Action = Action;
    type Event = Event;
    type Fault = Fault;
    type Error = Breach;

    #[inline]
    fn owes(&self, account: &Account, now: Moment) -> Owes {
        match self {
            Self::Open { flow, opened: None } => flow.owes(account, now),
            Self::Open { .. } => Owes::Waited,
            Self::Asking { open, .. } if open.is_some() => Owes::Urgent,
            Self::Refusing(Some(_)) => Owes::Urgent,
            Self::Asking { .. } | Self::Refusing(None) | Self::Ended => Owes::Nothing,
        }
    }

    #[inline]
    fn next_frame(
        &mut self,
        which: Which,
        words: usize,
        account: &mut Account,
        now: Moment,
    ) -> Option<Frame> {
        if let Self::Open { flow, opened: None } = self {
            return flow.next_frame(which, words, account, now);
        }
        if which == Which::Adverts {
            return None;
        }
        let frame = match self {
            Self::Asking { open, .. } => Frame::Open((*open)?),
            Self::Refusing(refused) => Frame::Refused((*refused)?),
            Self::Open { opened, .. } => Frame::Opened((*opened)?),
            Self::Ended => return None,
        };
        if frame.words() > words {
            return None;
        }
        match self {
            Self::Asking { opening, open, .. } => {
                *open = None;
                opening.open_left();
            }
            Self::Refusing(refused) => *refused = None,
            Self::Open { opened, .. } => *opened = None,
            Self::Ended => {}
        }
        Some(frame)
    }

    #[inline]
    fn submit(
        &mut self,
        message: &Outgoing,
        words: usize,
        account: &mut Account,
        now: Moment,
    ) -> Result<Submit, Fault> {
        match self {
            Self::Open { flow, .. } => flow.submit(message, words, account, now),
            _ => Err(Fault::Misuse("a connection that is not open was asked to send")),
        }
    }

    #[inline]
    fn received(
        &mut self,
        frame: &Frame,
        account: &mut Account,
        now: Moment,
    ) -> Result<Option<Place>, Breach> {
        match (self, frame) {
            (Self::Open { flow, .. }, frame) => flow.received(frame, account, now),
            (seat @ Self::Asking { .. }, Frame::Opened(answer)) => {
                seat.answered(answer).map(|()| None)
            }
            (Self::Asking { opening, .. }, Frame::Refused(refused)) => {
                match opening.refused(refused, now) {
                    true => Ok(None),
                    false => Err(Breach(Violation::Ending)),
                }
            }
            _ => Err(Breach(Violation::Direction)),
        }
    }

    #[inline]
    fn copied(&mut self, place: Place, account: &mut Account, now: Moment) {
        if let Self::Open { flow, .. } = self {
            flow.copied(place, account, now);
        }
    }

    #[inline]
    fn inline_left(&mut self, message: MessageId) {
        if let Self::Open { flow, .. } = self {
            flow.inline_left(message);
        }
    }

    #[inline]
    fn next_action(&mut self, account: &mut Account, now: Moment) -> Option<Action> {
        match self {
            Self::Open { flow, .. } => flow.next_action(account, now),
            _ => None,
        }
    }

    #[inline]
    fn acted(&mut self, action: &Action, posted: bool, account: &mut Account, now: Moment) {
        if let Self::Open { flow, .. } = self {
            flow.acted(action, posted, account, now);
        }
    }

    #[inline]
    fn happened(&mut self, event: Event, account: &mut Account, now: Moment) -> Result<(), Breach> {
        match self {
            Self::Open { flow, .. } => flow.happened(event, account, now),
            // A part for a slot whose connection is not open: dropped.
            _ => Ok(()),
        }
    }

    fn waits(&self) -> bool {
        match self {
            Self::Open { flow, .. } => flow.waits(),
            Self::Asking { open, .. } => open.is_none(),
            Self::Refusing(_) | Self::Ended => false,
        }
    }

    fn ended(&mut self, failed: bool, now: Moment) {
        match self {
            Self::Open { flow, opened } => {
                *opened = None;
                flow.ended(failed, now);
            }
            _ => *self = Self::Ended,
        }
    }

    fn peer(&self) -> Option<Name> {
        self.flow()?.peer()
    }
}

/// Why connect fails, if the answer to its OPEN says so.
pub fn refusal(step: Step) -> Option<Refusal> {
    match step {
        Step::End(Outcome::Refused(why)) => Some(why),
        _ => None,
    }
}

#[cfg(test)]
#[path = "seat_tests.rs"]
mod tests;
