//! What connect and accept agree on: pure, over the messages of `proto::handshake`.

use std::time::Instant;

use proto::asking;
use proto::handshake::{Message, mix_nonces};
use proto::{Capabilities, CommId, FlowParameters, Refusal, Reply, Request, Window};

use crate::error::{Cause, Error};

/// A connect on its way.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) request: Box<Request>,
    /// The request as it travels.
    pub(crate) bytes: Vec<u8>,
    pub(crate) started: Instant,
    pub(crate) warned: bool,
    /// When it was looked at last.
    looked: Instant,
    /// The receiver has accepted, and left already: the nonce of the connection, and whether it is closed.
    left: Option<(u64, bool)>,
    /// The receiver wants no eager messages: the nonce of the connection.
    ceased: Option<u64>,
    state: proto::Asking,
}

/// What connect has to do next.
#[derive(Debug)]
pub(crate) enum Step {
    Post,
    Wait,
    Open(Box<Reply>),
    Fail(Refusal),
}

impl Asking {
    pub(crate) fn new(request: Request, bytes: Vec<u8>, now: Instant) -> Self {
        Self {
            request: Box::new(request),
            bytes,
            started: now,
            warned: false,
            looked: now,
            left: None,
            ceased: None,
            state: proto::Asking::default(),
        }
    }

    /// The request was posted. True: not for the first time.
    pub(crate) fn posted(&mut self) -> bool {
        self.state.posted();
        self.state.repeats() > 0
    }

    /// That post has ended; well, as far as the provider can tell.
    pub(crate) fn sent(&mut self, well: bool) {
        if well {
            self.state.sent();
        } else {
            self.state.failed();
        }
    }

    /// Takes the answer. One that nobody waits for is dropped: false.
    pub(crate) fn answered(&mut self, answer: Message) -> bool {
        self.state.heard(answer)
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
        let reply = self.state.reply()?;
        Some((reply.comm, mix_nonces(self.request.nonce, reply.nonce)))
    }

    /// What to do now.
    pub(crate) fn step(&mut self, now: Instant) -> Step {
        let elapsed = now.duration_since(self.looked);
        self.looked = now;
        match self.state.step(elapsed) {
            asking::Step::Post => Step::Post,
            asking::Step::Wait => Step::Wait,
            asking::Step::Open(reply) => Step::Open(reply),
            asking::Step::Fail(refusal) => Step::Fail(refusal),
        }
    }
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
    FlowParameters::settle(&ours.agree(theirs), window, rails, nonce, comm, fin_only)
        .map_err(|error| Cause::from(error).settling())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::ConnectionId;
    use proto::handshake::{Identity, RefusalReason};

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
            bundle_bytes: 16,
            identity,
        };
        Asking::new(request, Vec::new(), now)
    }

    fn refusal(reason: RefusalReason) -> Message {
        Message::Refusal(Refusal { connection: ConnectionId(1), reason, text: "no".to_owned() })
    }

    #[test]
    fn a_refusal_is_what_connect_fails_with() {
        let now = Instant::now();
        let mut asking = asking(now);
        assert!(!asking.posted(), "for the first time");
        assert!(asking.answered(refusal(RefusalReason::Version)));
        match asking.step(now) {
            Step::Fail(refusal) => assert_eq!(refusal.text, "no"),
            step => panic!("{step:?}"),
        }
    }
}
