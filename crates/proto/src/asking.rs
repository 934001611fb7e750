//! The side that asks for a connection: its request is posted, sent again while no answer comes, and answered once.
//!
//! ```text
//!  ToPost ──posted──▶ InFlight ──sent──▶ Waiting ──reply──▶ Answered ──▶ Over
//!    ▲                    │ failed          │ time, or told to ask later
//!    └────────────────────┴─────────────────┘
//! ```
//!
//! A provider may lose what it has said it sent (libfabric 1.17's net does, when two ends connect to each other at once), or
//! say that it could not. Nothing is sent again that is still in flight: the provider is at it, and a peer that nobody polls would
//! be sent more and more. What comes twice at the other end makes no second connection: [`crate::answered`].
//!
//! Time is what the caller hands in, and time in which it did not call counts for little: the answer may have been there.

use std::time::Duration;

use crate::handshake::{Message, Refusal, RefusalReason, Reply};
use crate::limits::{
    ASK_AGAIN, ASK_AGAIN_MAX, ASK_SOON, ASK_SOON_MAX, ASKING_TURN_MAX as TURN_MAX,
};

/// A connection that is asked for.
#[derive(Debug)]
pub struct Asking {
    state: State,
    /// The request was posted at least once: an answer may come whatever the state.
    asked: bool,
    repeats: u32,
    /// How long an answer is waited for before the request is sent again.
    patience: Duration,
    /// How long the next one waits that could not be sent, or that the listener had no room for.
    pause: Duration,
}

#[derive(Debug)]
enum State {
    ToPost { pause: Duration },
    InFlight,
    Waiting { waited: Duration },
    Answered(Box<Reply>),
    Refused(Refusal),
    Over,
}

/// What the caller has to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Post the request, and say so by [`Asking::posted`] if it was accepted.
    Post,
    Wait,
    Open(Box<Reply>),
    Fail(Refusal),
}

impl Default for Asking {
    fn default() -> Self {
        Self {
            state: State::ToPost { pause: Duration::ZERO },
            asked: false,
            repeats: 0,
            patience: ASK_AGAIN,
            pause: ASK_SOON,
        }
    }
}

impl Asking {
    /// The request was posted.
    pub fn posted(&mut self) {
        if matches!(self.state, State::ToPost { .. }) {
            self.repeats += u32::from(self.asked);
            self.asked = true;
            self.state = State::InFlight;
        }
    }

    /// The provider says that the request was sent.
    pub fn sent(&mut self) {
        if matches!(self.state, State::InFlight) {
            self.state = State::Waiting { waited: Duration::ZERO };
        }
    }

    /// The provider says that it was not.
    pub fn failed(&mut self) {
        if matches!(self.state, State::InFlight) {
            self.ask_soon();
        }
    }

    /// Takes an answer. False: nobody waits for it.
    pub fn heard(&mut self, answer: Message) -> bool {
        match (&self.state, answer) {
            (State::Answered(_) | State::Refused(_) | State::Over, _) => false,
            (_, Message::Reply(reply)) if self.asked => {
                self.state = State::Answered(reply);
                true
            }
            (_, Message::Refusal(refusal)) if self.asked => self.refused(refusal),
            _ => false,
        }
    }

    fn refused(&mut self, refusal: Refusal) -> bool {
        if refusal.reason != RefusalReason::Busy {
            self.state = State::Refused(refusal);
            return true;
        }
        // Where several were sent, each is told so: one of them counts.
        let waits = matches!(self.state, State::InFlight | State::Waiting { .. });
        if waits {
            self.ask_soon();
        }
        waits
    }

    fn ask_soon(&mut self) {
        self.state = State::ToPost { pause: self.pause };
        self.pause = (self.pause * 2).min(ASK_SOON_MAX);
    }

    /// What to do now, `elapsed` after the last step.
    pub fn step(&mut self, elapsed: Duration) -> Step {
        let elapsed = elapsed.min(TURN_MAX);
        match &mut self.state {
            State::ToPost { pause } => {
                *pause = pause.saturating_sub(elapsed);
                if pause.is_zero() { Step::Post } else { Step::Wait }
            }
            State::InFlight | State::Over => Step::Wait,
            State::Waiting { waited } => {
                *waited += elapsed;
                if *waited < self.patience {
                    return Step::Wait;
                }
                self.patience = (self.patience * 2).min(ASK_AGAIN_MAX);
                self.state = State::ToPost { pause: Duration::ZERO };
                Step::Post
            }
            State::Answered(_) | State::Refused(_) => {
                match std::mem::replace(&mut self.state, State::Over) {
                    State::Answered(reply) => Step::Open(reply),
                    State::Refused(refusal) => Step::Fail(refusal),
                    _ => Step::Wait,
                }
            }
        }
    }

    /// The reply that has come, until a step gives it out.
    pub fn reply(&self) -> Option<&Reply> {
        match &self.state {
            State::Answered(reply) => Some(reply),
            _ => None,
        }
    }

    /// How often the request was posted beyond the first time.
    pub fn repeats(&self) -> u32 {
        self.repeats
    }
}
