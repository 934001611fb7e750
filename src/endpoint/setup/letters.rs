//! What arrives on the control rails while connections are made and ended, and the answers that nobody waits for.

use fabric::PeerAddress;
use proto::codec::Address;
use proto::handshake::{HandshakeError, Message, RefusalReason};
use proto::{Bye, ConnectionId, Refusal, Request, Standing};

use super::{FAILED_REPLIES_MAX, FRONT_DOOR, REFUSED_PEERS_MAX, parts};
use crate::endpoint::lanes::ControlLane;
use crate::endpoint::messages::Letter;
use crate::endpoint::notices::Notice;
use crate::endpoint::{Endpoint, SenderState};

impl Endpoint {
    /// A message has arrived on a control rail: bytes of anybody's.
    pub(in crate::endpoint) fn heard(&mut self, nic: usize, bytes: &[u8]) {
        match Message::decode(bytes) {
            Ok(Message::Request(request)) => self.heard_request(request),
            Ok(Message::Bye(bye)) => self.heard_bye(&bye),
            Ok(Message::Withdraw(withdraw)) => self.heard_withdraw(&withdraw),
            Ok(Message::Withdrawn(withdrawn)) => self.heard_withdrawn(&withdrawn),
            Ok(Message::Cease(cease)) => self.heard_cease(&cease),
            Ok(Message::Ceased(ceased)) => self.heard_ceased(&ceased),
            Ok(Message::Reply(reply)) => {
                let connection = reply.connection;
                self.heard_answer(connection, Message::Reply(reply));
            }
            Ok(Message::Refusal(refusal)) => {
                let connection = refusal.connection;
                self.heard_answer(connection, Message::Refusal(refusal));
            }
            Err(HandshakeError::Version { theirs, reply: Some((connection, address)) }) => {
                let text = format!(
                    "it speaks protocol version {}, and was asked in version {theirs}",
                    proto::codec::VERSION
                );
                self.refuse(&address, connection, RefusalReason::Version, text);
            }
            Err(error) => {
                self.counters.garbage += 1;
                log::debug!(
                    "{}: a message of {} bytes is dropped: {error}",
                    self.nics[nic].label,
                    bytes.len()
                );
            }
        }
    }

    fn heard_request(&mut self, request: Box<Request>) {
        let mark = request.mark();
        match self.answered.standing(mark) {
            Standing::New => self.heard_new(request),
            known => {
                self.counters.requests_heard_again += 1;
                self.heard_again(&request, known);
            }
        }
    }

    /// It makes no second connection. Its answer may have been lost, and goes out again.
    fn heard_again(&mut self, request: &Request, known: Standing) {
        let (to, connection) = (&request.reply_to, request.connection);
        let receiver = match known {
            Standing::Open(comm) => self.receivers.at_mut(comm.get()),
            Standing::Closed => None,
            Standing::New | Standing::Waiting => return,
        };
        match receiver.filter(|receiver| !receiver.ending.closing) {
            Some(receiver) if receiver.mark == request.mark() => {
                let bytes = receiver.reply.to_vec();
                self.answer(to, bytes);
            }
            _ => {
                let text = "it was accepted, and the peer has closed it since";
                self.refuse(to, connection, RefusalReason::Closed, text.to_owned());
            }
        }
    }

    fn heard_new(&mut self, request: Box<Request>) {
        let mark = request.mark();
        let (slot, generation) = parts(request.listener);
        let job = self.job();
        let Some(listener) = self.listeners.get_mut(slot, generation) else {
            // Closed, or one that lost the race for a shared connection.
            self.counters.late_messages += 1;
            return;
        };
        let (reply_to, connection) = (request.reply_to, request.connection);
        if listener.nonce ^ job != request.listener_nonce {
            let text = "the request is for another job or an earlier listener; are IRONRAIL_JOB and the handles of this run?";
            self.refuse(&reply_to, connection, RefusalReason::Nonce, text.to_owned());
        } else if listener.push(request) {
            self.answered.wait(mark);
        } else {
            self.refuse(
                &reply_to,
                connection,
                RefusalReason::Busy,
                "128 requests wait on one listener".to_owned(),
            );
        }
    }

    fn heard_answer(&mut self, connection: ConnectionId, answer: Message) {
        let (slot, generation) = parts(connection.0);
        let taken = match self.senders.get_mut(slot, generation).map(|state| &mut **state) {
            Some(SenderState::Asking { asking, .. }) => asking.answered(answer),
            _ => false,
        };
        if !taken {
            self.counters.late_messages += 1;
        }
    }

    pub(super) fn refuse(
        &mut self,
        to: &Address,
        connection: ConnectionId,
        reason: RefusalReason,
        text: String,
    ) {
        log::debug!("device {}: a connection is refused ({reason:?}): {text}", self.label());
        if let Ok(bytes) = (Refusal { connection, reason, text }).encode() {
            self.answer(to, bytes);
        }
    }

    /// Sends a message to whoever asked, at the address that came with the question.
    pub(in crate::endpoint) fn answer(&mut self, to: &Address, bytes: Vec<u8>) {
        let (known, is_known) = self.nics[FRONT_DOOR].nic.knows(to.as_bytes());
        if !is_known && known >= REFUSED_PEERS_MAX {
            self.counters.late_messages += 1;
            return;
        }
        let Ok(peer) = self.join(FRONT_DOOR, to.as_bytes()) else { return };
        let letter = Letter::Notice;
        if !self.notices.push(Notice { nic: FRONT_DOOR, peer, bytes, letter }) {
            self.nics[FRONT_DOOR].nic.leave(peer);
            self.counters.late_messages += 1;
        }
    }

    /// Sends a message to the peer of a connection.
    pub(in crate::endpoint) fn say(&mut self, lane: ControlLane, bytes: Vec<u8>) {
        self.say_to(lane.nic, lane.peer, bytes, Letter::Notice);
    }

    /// The same, to whom this address of a NIC's names.
    fn say_to(&mut self, nic: usize, peer: PeerAddress, bytes: Vec<u8>, letter: Letter) {
        if self.notices.push(Notice { nic, peer, bytes, letter }) {
            self.nics[nic].nic.hold(peer);
        }
    }

    /// A message has ended: well, as far as the provider can tell, or not.
    pub(in crate::endpoint) fn letter_ended(
        &mut self,
        nic: usize,
        peer: PeerAddress,
        letter: Letter,
        well: bool,
    ) {
        match letter {
            Letter::Request { sender, generation } => {
                if let Some(SenderState::Asking { asking, .. }) =
                    self.senders.get_mut(sender, generation).map(|state| &mut **state)
                {
                    asking.sent(well);
                }
            }
            Letter::Reply { receiver, generation } if !well => {
                let receiver = self.receivers.get_mut(receiver, generation);
                if let Some(receiver) = receiver
                    && receiver.failed_replies < FAILED_REPLIES_MAX
                {
                    receiver.failed_replies += 1;
                    let bytes = receiver.reply.to_vec();
                    self.say_to(nic, peer, bytes, letter);
                }
            }
            Letter::Reply { .. } | Letter::Notice => {}
        }
    }

    /// Tells the peer that this end of the connection is closed.
    pub(in crate::endpoint) fn say_bye(&mut self, nic: usize, peer: PeerAddress, bye: &Bye) {
        match bye.encode() {
            Ok(bytes) => self.say_to(nic, peer, bytes, Letter::Notice),
            Err(error) => log::debug!("a bye was not made: {error}"),
        }
    }
}
