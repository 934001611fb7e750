//! HELLO: exchanges identities and addresses with a peer, pairs rails, and makes the channel.

use std::collections::BTreeSet;

use fabric::{Control, Data, Lock, Post, RailKind};
use proto::codec::Address;
use proto::rails::Rail;
use proto::setup::{FirstHello, Heard, Host, Ignored, Pair, PeerId, VERSION, refuse_old};
use proto::{Event, Moment};

use super::super::Endpoint;
use super::super::authentication::random_nonce;
use super::super::bound::{CHANNELS_MAX, DIFFERENCES_MAX};
use super::super::identity::{PeerName, differences};
use super::super::letter_buffers::LetterSubject;
use super::super::nics::Port;
use super::super::peers::{Lane, Peer};
use crate::error::{Bug, Cause, Error, Result, Table};
use crate::label::Label;

impl Endpoint {
    /// Handles a two-sided message. Its bytes may be anyone's.
    pub(in crate::endpoint) fn letter_received(&mut self, bytes: &[u8]) {
        // The first HELLO carries this end's capabilities. Until they are known letters are ignored; the peer repeats its own.
        if !self.is_probed {
            return;
        }
        match self.executor.peers.heard(bytes, &mut random_nonce) {
            Heard::Nothing(ignored) => self.count_dropped(&ignored),
            Heard::Old { version, request } => {
                let text = format!(
                    "it speaks protocol version {VERSION}, and received a HELLO of version {version}: start all ranks with the same release"
                );
                // The address came with the letter: an older version has one rail for these. If the provider refuses, the peer repeats it.
                if let Ok(answer) = refuse_old(&request, &text)
                    && let Err(error) =
                        self.send_to(0, request.reply_to.as_bytes(), &answer, LetterSubject::Other)
                {
                    log::debug!("device {}: a reply to an unknown peer: {error}", self.label());
                }
            }
            Heard::Meets { peer, letter } => {
                let channel = match self.make_channel(peer) {
                    Ok(channel) => channel,
                    // The peer repeats its HELLO, so this is retried.
                    Err(error) => {
                        log::warn!("device {}: no channel to a peer: {error}", self.label());
                        return;
                    }
                };
                if let Some(letter) = letter {
                    self.executor.queued.push_back(Event::Letter { channel, letter, proven: true });
                }
            }
            Heard::Letter { channel, letter, proven } => {
                self.executor.queued.push_back(Event::Letter { channel, letter, proven });
            }
        }
    }

    fn count_dropped(&mut self, why: &Ignored) {
        match why {
            Ignored::Bytes(error) => {
                self.incidents.garbage += 1;
                log::debug!("device {}: a message is dropped: {error}", self.label());
            }
            Ignored::Unproven | Ignored::Stranger => self.incidents.late_messages += 1,
            Ignored::Known => {}
            Ignored::NoRail(peer) => {
                let host = self.executor.peers.host(*peer);
                let name = host.map_or_else(String::new, |host| host.host.to_text());
                if is_deferred(std::slice::from_ref(&format!("no rail to {name}"))) {
                    log::error!(
                        "device {}, to a process on {name}: {}",
                        self.label(),
                        Error::from(Cause::NoCommonRail)
                    );
                }
            }
        }
    }

    /// Sends a HELLO to a peer of which only a handle is known, if one is due. Each connect sends its own: providers refuse messages to a
    /// host that does not answer for as long as they try to reach it.
    pub(in crate::endpoint) fn send_first_hello(&mut self, peer: PeerId, now: Moment) {
        let Some(hello) = self.executor.peers.hello_to(peer, now) else { return };
        let FirstHello { rail, control, bytes, .. } = hello;
        let sent = self.send_to(rail, control.as_bytes(), &bytes, LetterSubject::Hello);
        let error = match sent {
            Ok(Post::Accepted) => None,
            Ok(Post::Again | Post::Full) => {
                self.executor.peers.hello_refused(peer, now);
                return;
            }
            Err(error) => Some(error),
        };
        self.executor.peers.hello_posted(peer, now);
        self.hello_posted(peer, error, now);
    }

    /// Sends a letter to an address that is used for this one alone.
    fn send_to(
        &mut self,
        nic: usize,
        to: &[u8],
        bytes: &[u8],
        about: LetterSubject,
    ) -> Result<Post> {
        let lane = self.lane::<Control>(nic, to)?;
        let Port { nic, letters, .. } = &mut self.executor.nics[lane.nic];
        let letters = letters.as_mut().ok_or(Cause::NoSuchRail)?;
        let posted = letters.send(nic, lane.peer, bytes, about);
        nic.remove_peer::<Control>(lane.peer);
        // One that was dropped is repeated, as one that is under way.
        posted
            .map(|posted| posted.unwrap_or(Post::Accepted))
            .map_err(|error| Cause::Unreachable(error).into())
    }

    /// Inserts a peer's address for a rail of ours.
    fn lane<K: RailKind>(&mut self, nic: usize, name: &[u8]) -> Result<Lane> {
        let port = self.executor.nics.get_mut(nic).ok_or(Cause::NoSuchRail)?;
        match port.nic.add_peer::<K>(name) {
            Ok(peer) => Ok(Lane { nic, peer }),
            Err(fault) => Err(Cause::CannotReach { rail: Label::of(&port.label), fault }.into()),
        }
    }

    /// Makes the channel to a peer whose HELLO has arrived.
    fn make_channel(&mut self, id: PeerId) -> Result<proto::ChannelId> {
        let none = Cause::Bug(Bug::UnknownPeer);
        let peers = &self.executor.peers;
        let agreement = peers.agreement(id).ok_or(none)?.clone();
        let rails = peers.rails(id).ok_or(none)?.to_vec();
        let host = *peers.host(id).ok_or(none)?;
        let parameters = peers.parameters(id, self.settings.peer_timeout).ok_or(none)?;
        let closes = self.executor.nics.iter().all(Port::closes_with_operations);
        let parameters =
            proto::channel::Parameters { failover: self.settings.failover, closes, ..parameters };
        let number = self.executor.channels.len();
        if number >= CHANNELS_MAX as usize {
            let count = CHANNELS_MAX;
            return Err(Cause::Full { table: Table::Peers, count }.into());
        }
        let data = self.lanes::<Data>(&agreement.rails.data, |rail| Some(rail.data), &rails)?;
        let control = self.lanes::<Control>(&agreement.rails.control, |rail| rail.control, &rails);
        let control = control.inspect_err(|_| self.remove_addresses::<Data>(&data))?;
        let channel = self.core.add_channel(parameters).ok_or(none)?;
        let name = self.known_processes.peer_name(&host);
        self.compare(&name, &host);
        self.executor.channels.push(Peer::new(channel, data, control, name));
        self.executor.peers.join(id, channel);
        Ok(channel)
    }

    fn lanes<K: RailKind>(
        &mut self,
        pairs: &[Pair],
        address: impl Fn(&Rail) -> Option<Address>,
        theirs: &[Rail],
    ) -> Result<Box<[Lane]>> {
        let mut lanes = Vec::with_capacity(pairs.len());
        for Pair { ours, theirs: at } in pairs {
            let rail = theirs.get(usize::from(*at)).and_then(&address);
            let joined = rail.ok_or_else(|| Cause::NoSuchRail.into());
            match joined.and_then(|name| self.lane::<K>(usize::from(*ours), name.as_bytes())) {
                Ok(lane) => lanes.push(lane),
                Err(error) => {
                    self.remove_addresses::<K>(&lanes);
                    return Err(error);
                }
            }
        }
        Ok(lanes.into())
    }

    /// Releases one use of each of these addresses.
    fn remove_addresses<K: RailKind>(&mut self, lanes: &[Lane]) {
        for lane in lanes {
            self.executor.nics[lane.nic].nic.remove_peer::<K>(lane.peer);
        }
    }

    /// Logs differences of settings and versions between the ends, once each, however many connections have them.
    fn compare(&self, name: &PeerName, theirs: &Host) {
        let ours = &self.executor.peers.us().host;
        let mut found = differences(ours, theirs);
        let names = self.settings.differing(&theirs.settings);
        if !names.is_empty() {
            found.push(format!("other values than we have for {}", names.join(", ")));
        }
        if !found.is_empty() && is_deferred(&found) {
            let found = found.join("; ");
            log::warn!("{name} has {found}: run the same, with the same settings, on all ranks");
        }
    }
}

/// Whether these differences were not logged yet. Past the bound further ones are left out: there is enough to correct.
fn is_deferred(difference: &[String]) -> bool {
    static REPORTED: Lock<BTreeSet<String>> = Lock::new(BTreeSet::new());
    let mut reported = REPORTED.lock();
    reported.len() < DIFFERENCES_MAX && reported.insert(difference.join("; "))
}
