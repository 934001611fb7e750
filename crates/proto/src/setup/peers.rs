//! What set-up an endpoint keeps: its listeners, and the peers that it meets.
//!
//! It says what to send and what to make, and does neither: see [the sequence](super#the-sequence).

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::channel::Parameters;
use super::super::endpoint::ChannelId;
use super::super::flow::Flow;
use super::super::frame::{Open, Refused};
use super::super::ids::{ListenerId, Moment, Name};
use super::super::letter::{Body, Letter};
use super::super::receive::ReceiveFlow;
use super::agreement::{Agreement, Offers};
use super::connecting::Connecting;
use super::handle::{HANDLE_ADDRESS_BYTES, Handle};
use super::hello::{Hello, Host};
use super::listener::{Asked, ClosedListeners, Listener, refuse};
use super::meeting::{Half, Meeting, Prover};
use super::message::{Message, unpack};
use super::opening::{Features, opened};
use super::proof::{EndpointId, Prove, Secret};
use super::version::{OldRequest, Versions, speaks_old};
use crate::bits::count32;
use crate::capabilities::Capabilities;
use crate::codec::Address;
use crate::codec::{Bounded, HandshakeError};
use crate::rails::Rail;

/// Names a peer of an endpoint. An endpoint that talks to itself is two peers, one for each end of that channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// What an endpoint says of itself in each HELLO.
#[derive(Clone, Debug)]
pub struct Presence {
    /// Drawn at random.
    pub id: EndpointId,
    pub capabilities: Capabilities,
    /// 1 to 16, at least one of them with a control address.
    pub rails: Vec<Rail>,
    pub host: Host,
    pub offers: Offers,
}

/// A HELLO to be sent to a peer that is not met yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    pub peer: PeerId,
    /// The control address in the peer's handle, and its format.
    pub control: Bounded<HANDLE_ADDRESS_BYTES>,
    pub address_format: u32,
    pub bytes: Vec<u8>,
}

/// What a two-sided message asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing; why, for a counter or a line in the log.
    Nothing(Ignored),
    /// A peer of an older version asks for a connection: see [`refuse_old`](super::refuse_old).
    Old { version: u16, request: OldRequest },
    /// The peer is met and has no channel yet: it is to be made ([`Peers::parameters`], [`Peers::join`]), then gets the
    /// letter, if there is one. Said again with the next HELLO if that is not possible now.
    Meets { peer: PeerId, letter: Option<Letter> },
    /// For [`Event::Letter`](super::super::Event::Letter).
    Letter { channel: ChannelId, letter: Letter, proven: bool },
}

/// Why a message has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It is no message of ours.
    Bytes(HandshakeError),
    /// No secret that we know proves it, or it is not of this peer, or not for us.
    Unproven,
    /// A letter for no channel of ours.
    Stranger,
    /// The peer is known, and it says nothing new.
    Known,
    /// The two have no data rail or no control rail in common.
    NoRail(PeerId),
}

#[derive(Debug)]
pub struct Peers<P> {
    us: Presence,
    prove: P,
    listeners: BTreeMap<ListenerId, Listener>,
    closed: ClosedListeners,
    next_listener: u32,
    meetings: Vec<Meeting>,
}

impl<P: Prove> Peers<P> {
    pub fn new(us: Presence, prove: P) -> Self {
        Self {
            us,
            prove,
            listeners: BTreeMap::new(),
            closed: ClosedListeners::default(),
            next_listener: 1,
            meetings: Vec::new(),
        }
    }

    /// What the endpoint was found to be able to do. No HELLO is sent or heard before that is known.
    pub fn settle(&mut self, found: Capabilities) {
        self.us.capabilities = found;
    }

    /// A data rail of ours, by its place in our list, is reached at another address from now on.
    pub fn rename(&mut self, rail: usize, address: Address) {
        if let Some(rail) = self.us.rails.get_mut(rail) {
            rail.data = address;
        }
    }

    pub fn us(&self) -> &Presence {
        &self.us
    }

    /// A new listener and the handle that names it. `secret` is drawn at random; `control` is where the endpoint takes
    /// two-sided messages. None: so many listeners were made that no number is left.
    pub fn listen(
        &mut self,
        secret: Secret,
        control: Bounded<HANDLE_ADDRESS_BYTES>,
        address_format: u32,
    ) -> Option<Handle> {
        let listener = ListenerId(self.next_listener);
        self.next_listener = self.next_listener.checked_add(1)?;
        self.listeners.insert(listener, Listener::new(listener, secret));
        let (versions, endpoint) = (Versions::OURS, self.us.id);
        Some(Handle { versions, endpoint, listener, secret, control, address_format })
    }

    /// Closes a listener. Each that waits at it is to be answered by [`Endpoint::refuse`](super::super::Endpoint::refuse).
    pub fn close(&mut self, listener: ListenerId) -> impl Iterator<Item = (ChannelId, Refused)> {
        let listener = self.listeners.remove(&listener);
        let waiting = listener.map(|listener| listener.close(&mut self.closed));
        waiting.into_iter().flatten().map(|(channel, refused)| (ChannelId(channel), refused))
    }

    /// The oldest OPEN at a listener. Take it only if a slot is vacant: it is answered by the flow of
    /// [`accepting`](Self::accepting), or by a refusal.
    pub fn accept(&mut self, listener: ListenerId) -> Option<Asked> {
        self.listeners.get_mut(&listener)?.accept()
    }

    /// `connect` was given this handle. `draw` answers random numbers.
    pub fn meet(&mut self, handle: &Handle, draw: &mut impl FnMut() -> u64) -> PeerId {
        let index = self.find(&handle.endpoint, Half::First);
        let index = index.unwrap_or_else(|| self.make(handle.endpoint, Half::First, draw));
        self.meetings[index].given(handle);
        PeerId(count32(index))
    }

    fn find(&self, peer: &EndpointId, half: Half) -> Option<usize> {
        self.meetings.iter().position(|meeting| meeting.peer == *peer && meeting.half == half)
    }

    fn make(&mut self, peer: EndpointId, half: Half, draw: &mut impl FnMut() -> u64) -> usize {
        self.meetings.push(Meeting::new(peer, half, draw(), draw()));
        self.meetings.len() - 1
    }

    fn meeting(&self, peer: PeerId) -> Option<&Meeting> {
        self.meetings.get(peer.0 as usize)
    }

    fn of(&self, channel: ChannelId) -> Option<&Meeting> {
        self.meetings.iter().find(|meeting| meeting.channel == Some(channel))
    }

    /// A HELLO that is due to a peer that is not met. It is due again until [`greeted`](Self::greeted).
    pub fn next_hello(&self, now: Moment) -> Option<Greeting> {
        let due = |(index, meeting): (usize, &Meeting)| {
            let (control, address_format) = meeting.is_due(now)?;
            let hello = meeting.hello(&self.us, None, &self.prove);
            let bytes = hello.encode().ok()?;
            Some(Greeting { peer: PeerId(count32(index)), control, address_format, bytes })
        };
        self.meetings.iter().enumerate().find_map(due)
    }

    /// That HELLO was posted.
    pub fn greeted(&mut self, peer: PeerId, now: Moment) {
        if let Some(meeting) = self.meetings.get_mut(peer.0 as usize) {
            meeting.said(now);
        }
    }

    /// The message for a letter of a channel's: what [`Perform::send`](super::super::Perform::send) posts. None: there is
    /// no such channel, or the HELLO is longer than a message may be.
    pub fn message(&self, channel: ChannelId, letter: &Letter) -> Option<Vec<u8>> {
        self.message_into(channel, letter, Vec::new())
    }

    /// The same in the memory of an earlier message: a QUERY or STATUS allocates nothing where that is long enough.
    pub fn message_into(
        &self,
        channel: ChannelId,
        letter: &Letter,
        into: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let meeting = self.of(channel)?;
        let bytes = match letter.body {
            Body::Hello(_) => meeting.hello(&self.us, Some(letter), &self.prove).encode(),
            Body::Query(_) | Body::Status(_) | Body::Trial(_) => {
                Message::encode_letter_into(letter, into)
            }
        };
        bytes.ok()
    }

    /// A two-sided message has come.
    pub fn heard(&mut self, bytes: &[u8], draw: &mut impl FnMut() -> u64) -> Heard {
        if let Some((version, request)) = speaks_old(bytes) {
            return Heard::Old { version, request };
        }
        match Message::decode(bytes) {
            Ok(Message::Hello(hello)) => self.heard_hello(&hello, draw),
            Ok(Message::Letter(letter)) => {
                let of = |meeting: &&Meeting| meeting.key == letter.key;
                match self.meetings.iter().find(of).and_then(|meeting| meeting.channel) {
                    Some(channel) => Heard::Letter { channel, letter, proven: false },
                    None => Heard::Nothing(Ignored::Stranger),
                }
            }
            Err(error) => Heard::Nothing(Ignored::Bytes(error)),
        }
    }

    fn heard_hello(&mut self, hello: &Hello, draw: &mut impl FnMut() -> u64) -> Heard {
        let letter = match unpack(hello.channel.as_bytes()) {
            // Whoever lends an inbox knows our nonce.
            Ok(letter) => letter.filter(|_| hello.echo != 0),
            Err(error) => return Heard::Nothing(Ignored::Bytes(error)),
        };
        let half = self.half_for(hello);
        let found = self.find(&hello.from, half);
        // One that is not known is kept only if the HELLO is proven.
        let index = found.unwrap_or_else(|| self.make(hello.from, half, draw));
        let (listeners, closed) = (&self.listeners, &self.closed);
        let secret_of = |id: ListenerId| {
            let open = listeners.get(&id).map(|listener| *listener.secret());
            open.or_else(|| closed.secret(id).copied())
        };
        if !self.meetings[index].proves(hello, &self.us.id, secret_of, &self.prove) {
            if found.is_none() {
                self.meetings.pop();
            }
            return Heard::Nothing(Ignored::Unproven);
        }
        let meeting = &mut self.meetings[index];
        meeting.heard(hello, &self.us, secret_of);
        let peer = PeerId(count32(index));
        match (meeting.channel, letter) {
            _ if meeting.agreement().is_none() => Heard::Nothing(Ignored::NoRail(peer)),
            (None, letter) => Heard::Meets { peer, letter },
            (Some(channel), Some(letter)) => Heard::Letter { channel, letter, proven: true },
            (Some(_), None) => Heard::Nothing(Ignored::Known),
        }
    }

    /// Which of ours a HELLO is for. Of an endpoint with itself it is for the end that has not sent it.
    fn half_for(&self, hello: &Hello) -> Half {
        let first = self.find(&hello.from, Half::First);
        let own = |index: usize| self.meetings[index].nonce() == hello.nonce;
        if hello.from == self.us.id && first.is_some_and(own) { Half::Second } else { Half::First }
    }

    /// What both ends use; None: the peer is not met.
    pub fn agreement(&self, peer: PeerId) -> Option<&Agreement> {
        self.meeting(peer)?.agreement()
    }

    /// The rails of a peer that is met, as its HELLO lists them: where their addresses are.
    pub fn rails(&self, peer: PeerId) -> Option<&[Rail]> {
        Some(&self.meeting(peer)?.met()?.rails)
    }

    /// What a peer that is met says of its process.
    pub fn host(&self, peer: PeerId) -> Option<&Host> {
        Some(&self.meeting(peer)?.met()?.host)
    }

    /// What the channel to a peer that is met is made with.
    pub fn parameters(&self, peer: PeerId, peer_timeout: Duration) -> Option<Parameters> {
        let meeting = self.meeting(peer)?;
        Some(meeting.agreement()?.parameters(meeting.key, peer.0, peer_timeout))
    }

    /// The channel to a peer was made.
    pub fn join(&mut self, peer: PeerId, channel: ChannelId) {
        if let Some(meeting) = self.meetings.get_mut(peer.0 as usize) {
            meeting.join(channel);
        }
    }

    /// The channel to a peer, once there is one. It may have ended.
    pub fn channel(&self, peer: PeerId) -> Option<ChannelId> {
        self.meeting(peer)?.channel
    }

    /// The peer of a channel.
    pub fn peer(&self, channel: ChannelId) -> Option<PeerId> {
        let of = |meeting: &Meeting| meeting.channel == Some(channel);
        self.meetings.iter().position(of).map(|index| PeerId(count32(index)))
    }

    /// A channel has ended: its OPENs wait no longer.
    pub fn ended(&mut self, channel: ChannelId) {
        for listener in self.listeners.values_mut() {
            listener.forget_channel(channel.0);
        }
    }

    /// An OPEN: what [`Perform::asked_to_open`](super::super::Perform::asked_to_open) answers. None: it waits for
    /// [`accept`](Self::accept).
    pub fn asked(&mut self, channel: ChannelId, open: &Open) -> Option<Refused> {
        let nonces = self.of(channel)?.nonces(Prover::Peer)?;
        let why = match self.listeners.get_mut(&open.listener) {
            Some(listener) => {
                let asked = Asked { channel: channel.0, open: *open };
                listener.heard(asked, nonces, &self.prove).err()?
            }
            None => self.closed.refusal(open, nonces, &self.prove),
        };
        Some(refuse(open, why))
    }

    /// The flow of a connection that `connect` asks for, over the channel to a peer that is met. `own`: a vacant name.
    pub fn connecting(
        &self,
        peer: PeerId,
        own: Name,
        handle: &Handle,
        features: Features,
    ) -> Option<Flow> {
        let meeting = self.meeting(peer)?;
        let nonces = meeting.nonces(Prover::Us)?;
        let agreement = meeting.agreement()?.clone();
        let connecting = Connecting::new(own, handle, features, (nonces, &self.prove), agreement);
        Some(Flow::Connecting(Box::new(connecting)))
    }

    /// The flow of a connection that `accept` takes, which owes OPENED. `inline_bytes_max`: the longest message that may
    /// come without an advert; 0 if the connection may receive into GPU memory. None: it cannot be, and is to be refused
    /// for its features.
    pub fn accepting(
        &self,
        asked: &Asked,
        own: Name,
        features: Features,
        inline_bytes_max: u16,
    ) -> Option<Flow> {
        let agreement = self.of(ChannelId(asked.channel))?.agreement()?;
        let inline = inline_bytes_max.min(agreement.inline_bytes_max);
        let answer = opened(&asked.open, own, features, inline);
        let agreed = Features::from_bits(answer.features);
        let terms = agreement.terms((own, asked.open.from), agreed, inline)?;
        Some(Flow::Receive(ReceiveFlow::accepted(terms, answer)))
    }
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
