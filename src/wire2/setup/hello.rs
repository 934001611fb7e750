//! HELLO: who is there, which rails pair, and the channel that comes of it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use fabric::Post;
use proto::codec::HandshakeError;
use proto::limits::MAX_CONTROL_RAILS;
use proto::rails::Rail;
use proto::wire2::channel::Parameters;
use proto::wire2::letter::{LETTER_WORDS, Letter};
use proto::wire2::setup::{
    Entry, Hello, Pair, Role, Secret, VERSION, pair, refuse_old, speaks_old,
};
use proto::wire2::{ChannelId, Epoch, Event, ListenerId, Moment, PacketNumber};

use super::super::Endpoint;
use super::super::hands::CHANNELS_MAX;
use super::super::letters::About;
use super::super::memory::RING;
use super::super::nics::Port;
use super::super::peers::{Credential, Lane, Met, Peer};
use super::super::prove::{Mac, random_number};
use super::FRONT_DOOR;
use crate::comm::peer;
use crate::error::{Cause, Error, Nonsense, Result, Table};
use crate::label::Label;

/// Past so many different differences, the log hears of no more.
const DIFFERENCES_MAX: usize = 16;

impl Endpoint {
    /// A two-sided message that is neither QUERY nor STATUS: bytes of anybody's.
    pub(in crate::endpoint) fn heard(&mut self, bytes: &[u8], now: Moment) {
        if let Some((version, request)) = speaks_old(bytes) {
            let text = format!(
                "it speaks protocol version {VERSION}, and was asked in version {version}: start all ranks with the same release"
            );
            if let Ok(answer) = refuse_old(&request, &text) {
                self.answer(request.reply_to.as_bytes(), &answer);
            }
            return;
        }
        match Hello::decode(bytes) {
            Ok(hello) => self.heard_hello(&hello, now),
            Err(HandshakeError::Version { theirs, .. }) => {
                self.counters.garbage += 1;
                log::warn!(
                    "device {}: a peer speaks protocol version {theirs}, this rank version {VERSION}: start all ranks with the same release",
                    self.label()
                );
            }
            Err(error) => {
                self.counters.garbage += 1;
                log::debug!(
                    "device {}: a message of {} bytes is dropped: {error}",
                    self.label(),
                    bytes.len()
                );
            }
        }
    }

    fn heard_hello(&mut self, hello: &Hello, now: Moment) {
        // What this end can do is said by the first answer: before it is known, the peer asks again.
        if !self.settled {
            return;
        }
        let Some((index, entry)) = self.whose(hello) else {
            self.counters.late_messages += 1;
            return;
        };
        let index = match index {
            Some(index) => index,
            None => match self.new_peer(hello, entry) {
                Some(index) => index,
                None => return,
            },
        };
        let peer = &mut self.hands.peers[index];
        if peer.theirs != 0 && peer.theirs != hello.nonce {
            self.counters.late_messages += 1;
            return;
        }
        peer.theirs = hello.nonce;
        if peer.failure.is_some() {
            return;
        }
        if peer.met.is_none()
            && let Err(error) = self.meet(index, hello)
        {
            log::error!(
                "device {}: no channel to process {} on {}: {error}",
                self.label(),
                hello.host.process,
                hello.host.host.to_text()
            );
            self.hands.peers[index].failure = Some(Error { logged: true, ..error });
            // It finds out for itself by our rails.
            self.say_hello(index, now);
            return;
        }
        self.channel_letter(index, hello);
    }

    /// The letter of the channel that a HELLO carries.
    fn channel_letter(&mut self, index: usize, hello: &Hello) {
        let Some(met) = &self.hands.peers[index].met else { return };
        let channel = met.channel;
        let (words, rest) = hello.channel.as_bytes().as_chunks::<8>();
        let words: Option<&[[u8; 8]; LETTER_WORDS]> = words.try_into().ok();
        let Some(words) = words.filter(|_| rest.is_empty()) else { return };
        match Letter::decode(&words.map(u64::from_le_bytes)) {
            Some(letter) => {
                self.hands.queued.push_back(Event::Letter { channel, letter, proven: true });
            }
            None => self.counters.garbage += 1,
        }
    }

    /// The peer that a HELLO is of, if it is known, and the entry that proves it. None: nothing proves it.
    fn whose(&self, hello: &Hello) -> Option<(Option<usize>, Entry)> {
        let entry = *hello.entries.as_slice().first()?;
        let role = entry.role?;
        let half = (hello.from == self.hands.id).then(|| role.other());
        let known = self.hands.find_peer(hello.from, half);
        let peer = known.map(|index| &self.hands.peers[index]);
        let of_peer = |listener: ListenerId, role: Role| -> Option<Secret> {
            let credential = peer?.credential;
            let its = credential.listener == listener && credential.role == role.other();
            its.then_some(credential.secret)
        };
        let secret_of = |listener, role| match role {
            Role::Connects => self.listener_secret(listener).or_else(|| of_peer(listener, role)),
            Role::Listens => of_peer(listener, role),
        };
        let nonce = peer.map(|peer| peer.nonce);
        hello.is_proven(&self.hands.id, nonce, secret_of, &Mac).then_some((known, entry))
    }

    fn new_peer(&mut self, hello: &Hello, entry: Entry) -> Option<usize> {
        let role = entry.role?.other();
        let listener = entry.listener;
        let secret = self.listener_secret(listener)?;
        let half = (hello.from == self.hands.id).then_some(role);
        let credential = Credential { listener, role, secret };
        let nonce = random_number().ok()?;
        let door = hello.rails.iter().find_map(|rail| rail.control);
        let door = door.and_then(|address| self.lane(FRONT_DOOR, address.as_bytes()).ok());
        let peer = Peer::new(hello.from, half, nonce, credential, door);
        self.hands.peers.push(peer);
        Some(self.hands.peers.len() - 1)
    }

    /// A rail of ours, and the address that it reaches.
    pub(super) fn lane(&mut self, nic: usize, name: &[u8]) -> Result<Lane> {
        let port = self.hands.nics.get_mut(nic).ok_or(Cause::Nonsense(Nonsense::Rail))?;
        match port.nic.join(name) {
            Ok(peer) => Ok(Lane { nic, peer }),
            Err(fault) => Err(Cause::CannotReach { rail: Label::of(&port.label), fault }.into()),
        }
    }

    /// The peer is known: its rails pair with ours, and the channel is made.
    fn meet(&mut self, index: usize, hello: &Hello) -> Result<()> {
        let theirs = hello.rails.as_slice();
        let paired = pair(self.hands.id, &self.hands.rails, hello.from, theirs);
        let paired = paired.ok_or(Cause::NoCommonRail).map_err(Cause::settling)?;
        let data = self.lanes(&paired.data, |rail| Some(rail.data), theirs)?;
        let mut control = paired.control;
        control.truncate(MAX_CONTROL_RAILS);
        let control = self.lanes(&control, |rail| rail.control, theirs)?;
        let key = random_number().map_err(|_| Cause::NoRandom)?;
        let number = self.hands.channels.len();
        if number >= CHANNELS_MAX {
            return Err(Cause::Full { table: Table::Connections, count: low32(number) }.into());
        }
        let rails = low8(control.len());
        let parameters = Parameters {
            ring: RING,
            rails,
            data_rails: low8(data.len()),
            rail: low8(number % control.len()),
            key,
            peer_timeout: self.settings.peer_timeout,
            first: PacketNumber::new(1),
        };
        let channel = self.core.add_channel(parameters).ok_or(Cause::Nonsense(Nonsense::Rail))?;
        let identity = proto::handshake::Identity {
            host: hello.host.host,
            process: hello.host.process,
            provider: hello.host.provider,
            provider_version: hello.host.provider_version,
            libfabric_version: hello.host.libfabric_version,
            settings: hello.host.settings,
        };
        let name = self.acquaintances.meet(&identity);
        self.compare(&name, &identity);
        self.hands.peers[index].met = Some(Met {
            channel,
            data,
            control,
            agreed: self.hands.capabilities.agree(&hello.capabilities),
            name,
            epoch: Epoch(0),
            first_failure: None,
            refused_since: None,
        });
        self.hands.channels.push(index);
        self.hands.keys.insert(key, channel);
        debug_assert_eq!(channel, ChannelId(low32(number)));
        Ok(())
    }

    fn lanes(
        &mut self,
        pairs: &[Pair],
        address: impl Fn(&Rail) -> Option<proto::codec::Address>,
        theirs: &[Rail],
    ) -> Result<Box<[Lane]>> {
        let mut lanes = Vec::with_capacity(pairs.len());
        for Pair { ours, theirs: at } in pairs {
            let rail = theirs.get(usize::from(*at)).and_then(&address);
            let name = rail.ok_or(Cause::Nonsense(Nonsense::Rail))?;
            lanes.push(self.lane(usize::from(*ours), name.as_bytes())?);
        }
        Ok(lanes.into())
    }

    /// Presents ourselves to a peer that is not known yet, when that is due.
    pub(super) fn introduce(&mut self, index: usize, now: Moment) -> Result<()> {
        if self.hands.peers[index].introduces(now).is_none() {
            return Ok(());
        }
        self.say_hello(index, now).map_or(Ok(()), Err)
    }

    /// A HELLO without a letter of a channel; why it cannot be sent.
    fn say_hello(&mut self, index: usize, now: Moment) -> Option<Error> {
        let door = self.hands.peers[index].introduces(now)?;
        let bytes = self.hands.hello(&self.hands.peers[index], &[])?;
        let Port { nic, letters, .. } = self.hands.nics.get_mut(door.nic)?;
        match letters.as_mut()?.send(nic, door.peer, &bytes, About::Stranger) {
            Ok(Post::Accepted) => {
                self.hands.peers[index].introduced(now);
                None
            }
            Ok(Post::Again | Post::Full) => None,
            Err(error) => Some(Cause::Unreachable(error).into()),
        }
    }

    /// Sends a message to who asked, at the address that came with the question.
    fn answer(&mut self, to: &[u8], bytes: &[u8]) {
        let Ok(lane) = self.lane(FRONT_DOOR, to) else { return };
        let Port { nic, letters, .. } = &mut self.hands.nics[lane.nic];
        if let Some(letters) = letters {
            // Unsent, it is asked for again.
            let _unsent = letters.send(nic, lane.peer, bytes, About::Stranger);
        }
        nic.leave(lane.peer);
    }

    /// A difference between the ends that should not be: one WARN that names it, however many connections have it.
    fn compare(&self, name: &peer::Peer, theirs: &proto::handshake::Identity) {
        let ours = &self.hands.host;
        let ours = proto::handshake::Identity {
            host: ours.host,
            process: ours.process,
            provider: ours.provider,
            provider_version: ours.provider_version,
            libfabric_version: ours.libfabric_version,
            settings: ours.settings,
        };
        let mut found = peer::differences(&ours, theirs);
        let names = self.settings.differing(&theirs.settings);
        if !names.is_empty() {
            found.push(format!("other values than we have for {}", names.join(", ")));
        }
        if !found.is_empty() && is_news(&found) {
            let found = found.join("; ");
            log::warn!("{name} has {found}: run the same, with the same settings, on all ranks");
        }
    }
}

/// Whether the log does not have this difference yet. What comes past the bound is left out: there is enough to mend.
fn is_news(difference: &[String]) -> bool {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    told.len() < DIFFERENCES_MAX && told.insert(difference.join("; "))
}

#[expect(clippy::cast_possible_truncation, reason = "rails are counted below that")]
const fn low8(number: usize) -> u8 {
    number as u8
}

#[expect(clippy::cast_possible_truncation, reason = "channels are counted below that")]
const fn low32(number: usize) -> u32 {
    number as u32
}
