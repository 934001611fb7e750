//! What connect and accept agree on: pure, over the messages of `proto::handshake`.

use std::time::{Duration, Instant};

use proto::handshake::{Message, RefusalReason, mix_nonces};
use proto::{Capabilities, CommId, FlowParameters, Refusal, Reply, Request, Window};

use crate::error::{Error, Kind};

/// How long a connect that was told "busy" waits before it asks again, at first and at most.
const BUSY_WAIT: Duration = Duration::from_millis(1);
const BUSY_WAIT_MAX: Duration = Duration::from_millis(100);

/// A connect on its way: the request is posted, then the answer awaited.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) request: Box<Request>,
    /// The request as it travels.
    pub(crate) bytes: Vec<u8>,
    pub(crate) started: Instant,
    pub(crate) warned: bool,
    /// The receiver has accepted, and left already: the nonce of the connection, and whether it is closed.
    left: Option<(u64, bool)>,
    /// The receiver wants no eager messages: the nonce of the connection.
    ceased: Option<u64>,
    state: AskingState,
    busy_wait: Duration,
}

/// ```text
/// ToPost ──posted──▶ Posted ──reply──▶ Answered
///   ▲                  │ busy
///   └──── time ── Deferred
/// ```
#[derive(Debug)]
enum AskingState {
    ToPost,
    Posted,
    Deferred { until: Instant },
    Answered(Box<Reply>),
    Refused(Refusal),
}

/// What connect has to do next.
#[derive(Debug)]
pub(crate) enum Step {
    Post,
    Wait,
    Open(Box<Reply>),
    Fail(Error),
}

impl Asking {
    pub(crate) fn new(request: Request, bytes: Vec<u8>, now: Instant) -> Self {
        Self {
            request: Box::new(request),
            bytes,
            started: now,
            warned: false,
            left: None,
            ceased: None,
            state: AskingState::ToPost,
            busy_wait: BUSY_WAIT,
        }
    }

    /// The request was posted.
    pub(crate) fn posted(&mut self) {
        self.state = AskingState::Posted;
    }

    /// Takes the answer. One that was not asked for is dropped: false.
    pub(crate) fn answered(&mut self, answer: Message, now: Instant) -> bool {
        if !matches!(self.state, AskingState::Posted) {
            return false;
        }
        self.state = match answer {
            Message::Reply(reply) => AskingState::Answered(reply),
            Message::Refusal(refusal) if refusal.reason == RefusalReason::Busy => {
                let until = now + self.busy_wait;
                self.busy_wait = (self.busy_wait * 2).min(BUSY_WAIT_MAX);
                AskingState::Deferred { until }
            }
            Message::Refusal(refusal) => AskingState::Refused(refusal),
            Message::Request(_)
            | Message::Bye(_)
            | Message::Withdraw(_)
            | Message::Withdrawn(_)
            | Message::Cease(_)
            | Message::Ceased(_) => return false,
        };
        true
    }

    /// The receiver has withdrawn its receives, or closed its end, before its reply was read.
    pub(crate) fn left(&mut self, nonce: u64, closed: bool) {
        self.left = Some((nonce, closed || self.left.is_some_and(|(_, closed)| closed)));
    }

    /// The receiver wants no eager messages, and has said so before its reply was read.
    pub(crate) fn cease(&mut self, nonce: u64) {
        self.ceased = Some(nonce);
    }

    /// Whether the receiver of the connection with this nonce wants no eager messages.
    pub(crate) fn has_ceased(&self, nonce: u64) -> bool {
        self.ceased == Some(nonce)
    }

    /// Whether the receiver of the connection with this nonce has left already; if so, whether it is closed.
    pub(crate) fn has_left(&self, nonce: u64) -> Option<bool> {
        self.left.filter(|(of, _)| *of == nonce).map(|(_, closed)| closed)
    }

    /// By whom and for which connection it was accepted, as far as is known: the receiver's number, and the nonce.
    pub(crate) fn accepted(&self) -> Option<(CommId, u64)> {
        let AskingState::Answered(reply) = &self.state else { return None };
        Some((reply.comm, mix_nonces(self.request.nonce, reply.nonce)))
    }

    /// What to do now.
    pub(crate) fn step(&mut self, now: Instant) -> Step {
        match &self.state {
            AskingState::ToPost => Step::Post,
            AskingState::Posted => Step::Wait,
            AskingState::Deferred { until } if now < *until => Step::Wait,
            AskingState::Deferred { .. } => {
                self.state = AskingState::ToPost;
                Step::Post
            }
            AskingState::Answered(_) => {
                match std::mem::replace(&mut self.state, AskingState::Posted) {
                    AskingState::Answered(reply) => Step::Open(reply),
                    _ => Step::Wait,
                }
            }
            AskingState::Refused(refusal) => Step::Fail(refused(refusal)),
        }
    }
}

fn refused(refusal: &Refusal) -> Error {
    let kind = match refusal.reason {
        RefusalReason::Version | RefusalReason::Feature | RefusalReason::Rails => {
            Kind::InvalidUsage
        }
        RefusalReason::Check
        | RefusalReason::Nonce
        | RefusalReason::Busy
        | RefusalReason::Closed => Kind::Remote,
    };
    Error::new(kind, format!("the peer refused the connection: {}", refusal.text))
}

/// The connection as both ends compute it. The sender of the messages comes first in the mix of the nonces.
pub(crate) fn settle(
    ours: &Capabilities,
    theirs: &Capabilities,
    window: Window,
    rails: usize,
    nonces: (u64, u64),
    comm: CommId,
    fin_only: bool,
) -> Result<FlowParameters, Error> {
    let nonce = mix_nonces(nonces.0, nonces.1);
    FlowParameters::settle(&ours.agree(theirs), window, rails, nonce, comm, fin_only).map_err(
        |error| Error::new(Kind::InvalidUsage, format!("no protocol serves both ends: {error}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::ConnectionId;
    use proto::handshake::Identity;

    fn asking(now: Instant) -> Asking {
        let identity = Identity::default();
        let capabilities = Capabilities {
            immediate: proto::ImmediateWidth::Eight,
            true_lengths: false,
            self_read: true,
            proves_arrival: false,
            delivery_complete: true,
            virtual_addresses: false,
            rma_inject_bytes: 64,
            largest_write: 1 << 30,
        };
        let request = Request {
            connection: ConnectionId(1),
            reply_to: proto::codec::Address::new(b"here").unwrap(),
            listener: 1,
            listener_nonce: 2,
            nonce: 3,
            capabilities,
            rails: Vec::new(),
            mailbox: proto::handshake::Ring::default(),
            window: Window::SINGLE,
            max_group: 1,
            eager_bytes: 128,
            identity,
        };
        Asking::new(request, Vec::new(), now)
    }

    fn refusal(reason: RefusalReason) -> Message {
        Message::Refusal(Refusal { connection: ConnectionId(1), reason, text: "no".to_owned() })
    }

    #[test]
    fn a_busy_listener_is_asked_again_after_a_growing_wait() {
        let start = Instant::now();
        let mut asking = asking(start);
        let mut now = start;
        for round in 0..10 {
            assert!(matches!(asking.step(now), Step::Post), "round {round}");
            asking.posted();
            assert!(asking.answered(refusal(RefusalReason::Busy), now));
            assert!(matches!(asking.step(now), Step::Wait));
            now += BUSY_WAIT_MAX;
        }
    }

    #[test]
    fn an_answer_that_was_not_asked_for_is_dropped() {
        let now = Instant::now();
        let mut asking = asking(now);
        assert!(!asking.answered(refusal(RefusalReason::Nonce), now));
        assert!(matches!(asking.step(now), Step::Post));
    }

    #[test]
    fn a_refusal_is_an_error_with_the_peers_sentence() {
        let now = Instant::now();
        let mut asking = asking(now);
        asking.posted();
        assert!(asking.answered(refusal(RefusalReason::Version), now));
        match asking.step(now) {
            Step::Fail(error) => assert!(error.sentence.ends_with("no"), "{error}"),
            step => panic!("{step:?}"),
        }
    }
}
