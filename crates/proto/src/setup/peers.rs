//! The set-up state of an endpoint: its listeners and its peers.
//!
//! This module decides what to send and what to create; the caller does so: see [the sequence](super#the-sequence).

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::bound::PEERS_MAX;
use super::super::channel::Parameters;
use super::super::flow::Flow;
use super::super::frame::{Open, Refused};
use super::super::ids::{ListenerId, Moment, Name};
use super::super::letter::{Body, Letter};
use super::super::progress::ChannelId;
use super::super::receive::ReceiveFlow;
use super::agreement::Agreement;
use super::connecting::Connecting;
use super::handle::{ControlAddresses, HANDLE_ADDRESS_BYTES, Handle};
use super::hello::Hello;
use super::listener::{ClosedListeners, Listener, QueuedOpen, refuse};
use super::meeting::{Half, Meeting, Prover};
use super::message::{Message, unpack};
use super::opening::{Features, opened};
use super::pairing::Apart;
use super::presence::{Host, Presence};
use super::proof::{EndpointId, Prove, Secret};
use super::version::Versions;
use crate::bits::count32;
use crate::capabilities::Capabilities;
use crate::codec::Address;
use crate::codec::{Bounded, HandshakeError};
use crate::rails::Rail;

/// The number of a peer of an endpoint. An endpoint that connects to itself has two peers, one for each end of that
/// channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// A HELLO to send to a peer that is not met yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstHello {
    pub peer: PeerId,
    /// The rail of ours that the HELLO goes by, which has a control address.
    pub rail: usize,
    /// A control address in the peer's handle, and its format.
    pub control: Bounded<HANDLE_ADDRESS_BYTES>,
    pub address_format: u32,
    pub bytes: Vec<u8>,
}

/// What to do after a two-sided message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing; the cause is for a counter or the log.
    Nothing(Ignored),
    /// The peer is met and has no channel yet: make the channel ([`Peers::parameters`], [`Peers::join`]), then pass it the
    /// letter, if there is one. If that is not possible now, the next HELLO returns the same.
    Meets { peer: PeerId, letter: Option<Letter> },
    /// A letter, to be passed on as [`Event::Letter`](super::super::Event::Letter).
    Letter { channel: ChannelId, letter: Letter, proven: bool },
}

/// Why a message has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// The bytes are not a valid message.
    Bytes(HandshakeError),
    /// The HELLO is not proven by a secret that we know, or is not from this peer, or not for us.
    Unproven,
    /// A letter with a key of no channel.
    Stranger,
    /// The peer is known, and its HELLO has nothing new.
    Known,
    /// [`Peers::apart`] says why the two have no channel.
    NoRail(PeerId),
    /// The HELLO is from a new peer, and there are already as many peers as allowed.
    Full,
}

#[derive(Debug)]
pub struct Peers<P> {
    us: Presence,
    prove: P,
    listeners: BTreeMap<ListenerId, Listener>,
    closed: ClosedListeners,
    next_listener: u32,
    meetings: Vec<Meeting>,
    /// The places of meetings in that list.
    by_peer: BTreeMap<(EndpointId, Half), usize>,
    by_key: BTreeMap<u64, usize>,
    by_channel: BTreeMap<ChannelId, usize>,
    /// The most peers that HELLOs make. A bound, since a sender with a handle may send HELLOs under any number of names.
    most: usize,
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
            by_peer: BTreeMap::new(),
            by_key: BTreeMap::new(),
            by_channel: BTreeMap::new(),
            most: PEERS_MAX,
        }
    }

    /// Sets the capabilities that the probe found. No HELLO is sent or handled before.
    pub fn settle(&mut self, found: Capabilities) {
        self.us.capabilities = found;
    }

    /// Sets the new address of one of our data rails.
    pub fn rename(&mut self, rail: usize, address: Address) {
        if let Some(rail) = self.us.rails.get_mut(rail) {
            rail.data = address;
        }
    }

    pub fn us(&self) -> &Presence {
        &self.us
    }

    /// Makes a listener, and its handle. `secret` is random; `control` is where the endpoint receives two-sided
    /// messages now. None if all numbers of listeners are used up.
    pub fn listen(
        &mut self,
        secret: Secret,
        control: ControlAddresses,
        address_format: u32,
    ) -> Option<Handle> {
        let listener = ListenerId(self.next_listener);
        self.next_listener = self.next_listener.checked_add(1)?;
        self.listeners.insert(listener, Listener::new(listener, secret));
        let (versions, endpoint) = (Versions::OURS, self.us.id);
        Some(Handle { versions, endpoint, listener, secret, control, address_format })
    }

    /// Closes a listener. Each OPEN that was queued is to be answered by
    /// [`ProgressLoop::refuse`](super::super::ProgressLoop::refuse).
    pub fn close(&mut self, listener: ListenerId) -> impl Iterator<Item = (ChannelId, Refused)> {
        let listener = self.listeners.remove(&listener);
        let waiting = listener.map(|listener| listener.close(&mut self.closed));
        waiting.into_iter().flatten().map(|(channel, refused)| (ChannelId(channel), refused))
    }

    /// The channel that the oldest OPEN at a listener came by.
    pub fn waiting(&self, listener: ListenerId) -> Option<ChannelId> {
        self.listeners.get(&listener)?.waiting().map(ChannelId)
    }

    /// Takes the oldest OPEN at a listener. Call it only if a slot is vacant. The OPEN must be answered, by the flow of
    /// [`accepting`](Self::accepting) or by a refusal.
    pub fn accept(&mut self, listener: ListenerId) -> Option<QueuedOpen> {
        self.listeners.get_mut(&listener)?.accept()
    }

    /// `connect` got this handle. `draw` returns random numbers.
    pub fn meet(&mut self, handle: &Handle, draw: &mut impl FnMut() -> u64) -> PeerId {
        let index = self.find(&handle.endpoint, Half::First);
        let index = index.unwrap_or_else(|| self.make(handle.endpoint, Half::First, draw));
        self.meetings[index].given(handle);
        PeerId(count32(index))
    }

    fn find(&self, peer: &EndpointId, half: Half) -> Option<usize> {
        self.by_peer.get(&(*peer, half)).copied()
    }

    fn make(&mut self, peer: EndpointId, half: Half, draw: &mut impl FnMut() -> u64) -> usize {
        let (index, meeting) = (self.meetings.len(), Meeting::new(peer, half, draw(), draw()));
        self.by_peer.insert((peer, half), index);
        self.by_key.insert(meeting.key, index);
        self.meetings.push(meeting);
        index
    }

    /// Forgets the newest meeting: its peer is not kept.
    fn unmake(&mut self) {
        if let Some(Meeting { peer, half, key, .. }) = self.meetings.pop() {
            self.by_peer.remove(&(peer, half));
            self.by_key.remove(&key);
        }
    }

    fn meeting(&self, peer: PeerId) -> Option<&Meeting> {
        self.meetings.get(peer.0 as usize)
    }

    fn of(&self, channel: ChannelId) -> Option<&Meeting> {
        self.meetings.get(*self.by_channel.get(&channel)?)
    }

    /// The HELLO that is due to this peer, if it is not met. The same HELLO is returned again until [`hello_posted`](Self::hello_posted).
    pub fn hello_to(&self, peer: PeerId, now: Moment) -> Option<FirstHello> {
        let meeting = self.meeting(peer)?;
        let hellos = meeting.due(now)?;
        let rails = (0..).zip(&self.us.rails).filter(|(_, rail)| rail.control.is_some());
        let ours: Vec<usize> = rails.map(|(place, _)| place).collect();
        let (rail, control) = hellos.way(&ours)?;
        let address_format = hellos.handle.address_format;
        let bytes = meeting.hello(&self.us, None, &self.prove).encode().ok()?;
        Some(FirstHello { peer, rail, control, address_format, bytes })
    }

    /// The HELLO of [`hello_to`](Self::hello_to) was posted.
    pub fn hello_posted(&mut self, peer: PeerId, now: Moment) {
        if let Some(meeting) = self.meetings.get_mut(peer.0 as usize) {
            meeting.hello_posted(now);
        }
    }

    /// The provider refuses the HELLO of [`hello_to`](Self::hello_to) for now.
    pub fn hello_refused(&mut self, peer: PeerId, now: Moment) {
        if let Some(meeting) = self.meetings.get_mut(peer.0 as usize) {
            meeting.hello_refused(now);
        }
    }

    /// The message for a channel's letter, for [`Perform::send`](super::super::Perform::send) to post, in the memory of an earlier message: a
    /// QUERY or STATUS allocates nothing if that is long enough. False if there is no such channel, or the HELLO is too long for a message.
    pub fn message(&self, channel: ChannelId, letter: &Letter, bytes: &mut Vec<u8>) -> bool {
        let Some(meeting) = self.of(channel) else { return false };
        let encoded = match letter.body {
            Body::Hello(_) => meeting.hello(&self.us, Some(letter), &self.prove).encode(),
            Body::Query(_) | Body::Status(_) | Body::Trial(_) => {
                Message::encode_letter(letter, std::mem::take(bytes))
            }
        };
        encoded.map(|encoded| *bytes = encoded).is_ok()
    }

    /// Handles a two-sided message.
    pub fn heard(&mut self, bytes: &[u8], draw: &mut impl FnMut() -> u64) -> Heard {
        match Message::decode(bytes) {
            Ok(Message::Hello(hello)) => self.heard_hello(&hello, draw),
            Ok(Message::Letter(letter)) => {
                let of = self.by_key.get(&letter.key);
                match of.and_then(|index| self.meetings[*index].channel) {
                    Some(channel) => Heard::Letter { channel, letter, proven: false },
                    None => Heard::Nothing(Ignored::Stranger),
                }
            }
            Err(error) => Heard::Nothing(Ignored::Bytes(error)),
        }
    }

    fn heard_hello(&mut self, hello: &Hello, draw: &mut impl FnMut() -> u64) -> Heard {
        let letter = match unpack(hello.channel.as_bytes()) {
            // A peer that lends an inbox has seen our nonce.
            Ok(letter) => letter.filter(|_| hello.echo != 0),
            Err(error) => return Heard::Nothing(Ignored::Bytes(error)),
        };
        let half = self.half_for(hello);
        let found = self.find(&hello.from, half);
        if found.is_none() && self.meetings.len() >= self.most {
            return Heard::Nothing(Ignored::Full);
        }
        // A new peer is kept only if its HELLO is proven.
        let index = found.unwrap_or_else(|| self.make(hello.from, half, draw));
        let (listeners, closed) = (&self.listeners, &self.closed);
        let secret_of = |id: ListenerId| {
            let open = listeners.get(&id).map(|listener| *listener.secret());
            open.or_else(|| closed.secret(id).copied())
        };
        if !self.meetings[index].proves(hello, &self.us.id, secret_of, &self.prove) {
            if found.is_none() {
                self.unmake();
            }
            return Heard::Nothing(Ignored::Unproven);
        }
        let meeting = &mut self.meetings[index];
        meeting.heard(hello, &self.us, secret_of);
        let peer = PeerId(count32(index));
        match (meeting.channel, letter) {
            _ if meeting.apart().is_some() => Heard::Nothing(Ignored::NoRail(peer)),
            (None, letter) => Heard::Meets { peer, letter },
            (Some(channel), Some(letter)) => Heard::Letter { channel, letter, proven: true },
            (Some(_), None) => Heard::Nothing(Ignored::Known),
        }
    }

    /// The half that a HELLO is for. A HELLO from the endpoint itself is for the half that has not sent it.
    fn half_for(&self, hello: &Hello) -> Half {
        let first = self.find(&hello.from, Half::First);
        let own = |index: usize| self.meetings[index].nonce() == hello.nonce;
        if hello.from == self.us.id && first.is_some_and(own) { Half::Second } else { Half::First }
    }

    /// The agreement with a peer; None if the peer is not met, or the two are [`apart`](Self::apart).
    pub fn agreement(&self, peer: PeerId) -> Option<&Agreement> {
        self.meeting(peer)?.agreement()
    }

    /// Why there is no channel to a peer that is met.
    pub fn apart(&self, peer: PeerId) -> Option<&Apart> {
        self.meeting(peer)?.apart()
    }

    /// The rails of a peer that is met, with their addresses, as its HELLO lists them.
    pub fn rails(&self, peer: PeerId) -> Option<&[Rail]> {
        Some(&self.meeting(peer)?.met()?.rails)
    }

    /// The process of a peer that is met.
    pub fn host(&self, peer: PeerId) -> Option<&Host> {
        Some(&self.meeting(peer)?.met()?.host)
    }

    /// The parameters of the channel to a peer that is met.
    pub fn parameters(&self, peer: PeerId, peer_timeout: Duration) -> Option<Parameters> {
        let meeting = self.meeting(peer)?;
        Some(meeting.agreement()?.parameters(meeting.key, peer.0, peer_timeout))
    }

    /// The channel to a peer was made.
    pub fn join(&mut self, peer: PeerId, channel: ChannelId) {
        if let Some(meeting) = self.meetings.get_mut(peer.0 as usize) {
            meeting.join(channel);
            self.by_channel.insert(channel, peer.0 as usize);
        }
    }

    /// The channel to a peer, once there is one. It may have ended.
    pub fn channel(&self, peer: PeerId) -> Option<ChannelId> {
        self.meeting(peer)?.channel
    }

    /// The peer of a channel.
    pub fn peer(&self, channel: ChannelId) -> Option<PeerId> {
        self.by_channel.get(&channel).map(|index| PeerId(count32(*index)))
    }

    /// A channel has ended: drops its queued OPENs.
    pub fn ended(&mut self, channel: ChannelId) {
        for listener in self.listeners.values_mut() {
            listener.forget_channel(channel.0);
        }
    }

    /// Handles an OPEN, for [`Perform::open_requested`](super::super::Perform::open_requested). None: it is queued for
    /// [`accept`](Self::accept).
    pub fn open_arrived(&mut self, channel: ChannelId, open: &Open) -> Option<Refused> {
        let nonces = self.of(channel)?.nonces(Prover::Peer)?;
        let why = match self.listeners.get_mut(&open.listener) {
            Some(listener) => {
                let queued = QueuedOpen { channel: channel.0, open: *open };
                listener.received(queued, nonces, &self.prove).err()?
            }
            None => self.closed.refusal(open, nonces, &self.prove),
        };
        Some(refuse(open, why))
    }

    /// The flow of a connection that `connect` requests, over the channel to a peer that is met. `own`: a vacant name.
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

    /// The flow of a connection that `accept` takes, which sends OPENED. `inline_bytes_max`: the longest message
    /// without an advert; 0 if the connection may receive into GPU memory. None if the connection is impossible, and has
    /// to be refused for its features.
    pub fn accepting(
        &self,
        queued: &QueuedOpen,
        own: Name,
        features: Features,
        inline_bytes_max: u16,
    ) -> Option<Flow> {
        let agreement = self.of(ChannelId(queued.channel))?.agreement()?;
        let inline = inline_bytes_max.min(agreement.inline_bytes_max);
        let answer = opened(&queued.open, own, features, inline);
        let agreed = Features::from_bits(answer.features);
        let terms = agreement.terms((own, queued.open.from), agreed, inline)?;
        Some(Flow::Receive(ReceiveFlow::accepted(terms, answer)))
    }
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
