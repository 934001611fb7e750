//! Makes the channel to a peer whose HELLO has arrived: the addresses of its rails, its name, and how it differs from this end.

use std::collections::BTreeSet;

use fabric::{Control, Data, Lock, RailKind};
use proto::ChannelId;
use proto::codec::Address;
use proto::rails::Rail;
use proto::setup::{Host, PeerId, RailPair};

use super::super::Endpoint;
use super::super::bound::{CHANNELS_MAX, DIFFERENCES_MAX};
use super::super::identity::{PeerName, differences};
use super::super::lane::Lane;
use super::super::nics::Port;
use super::super::peers::Peer;
use crate::error::{Bug, Cause, Result, Table};
use crate::label::Label;

impl Endpoint {
    /// Makes the channel to a peer whose HELLO has arrived.
    pub(super) fn make_channel(&mut self, id: PeerId) -> Result<ChannelId> {
        let none = Cause::Bug(Bug::UnknownPeer);
        let peers = &self.executor.peers;
        let agreement = peers.agreement(id).ok_or(none)?.clone();
        let rails = peers.rails(id).ok_or(none)?.to_vec();
        let host = *peers.host(id).ok_or(none)?;
        let parameters = peers.parameters(id, self.settings.peer_timeout).ok_or(none)?;
        let closes = self.executor.nics.iter().all(Port::closes_with_operations);
        let parameters =
            proto::channel::Parameters { failover: self.settings.failover, closes, ..parameters };
        let number = self.executor.channel_ends().len();
        if number >= CHANNELS_MAX as usize {
            let count = CHANNELS_MAX;
            return Err(Cause::Full { table: Table::Peers, count }.into());
        }
        let data = self.lanes::<Data>(&agreement.rails.data, |rail| Some(rail.data), &rails)?;
        let control = self.lanes::<Control>(&agreement.rails.control, |rail| rail.control, &rails);
        let control = control.inspect_err(|_| self.remove_addresses::<Data>(&data))?;
        let channel = self.core.add_channel(parameters).ok_or(none)?;
        let name = self.known_processes.peer_name(&self.executor.peers.us().host, &host);
        self.compare(&name, &host);
        self.name_unpaired(&name, &agreement.rails.data, &rails);
        self.executor.add_peer(Peer::new(channel, data, control, name));
        self.executor.peers.join(id, channel);
        Ok(channel)
    }

    /// The rails of ours that have a partner at the peer, in the order of the pairs.
    fn lanes<K: RailKind>(
        &mut self,
        pairs: &[RailPair],
        address: impl Fn(&Rail) -> Option<Address>,
        theirs: &[Rail],
    ) -> Result<Box<[Lane]>> {
        let mut lanes = Vec::with_capacity(pairs.len());
        for RailPair { ours, theirs: at } in pairs {
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

    /// Inserts a peer's address for a rail of ours.
    pub(super) fn lane<K: RailKind>(&mut self, nic: usize, name: &[u8]) -> Result<Lane> {
        let port = self.executor.nics.get_mut(nic).ok_or(Cause::NoSuchRail)?;
        match port.nic.add_peer::<K>(name) {
            Ok(peer) => Ok(Lane { nic, peer }),
            Err(fault) => Err(Cause::CannotReach { rail: Label::of(&port.label), fault }.into()),
        }
    }

    /// Releases one use of each of these addresses.
    fn remove_addresses<K: RailKind>(&mut self, lanes: &[Lane]) {
        for lane in lanes {
            self.executor.nics[lane.nic].nic.remove_peer::<K>(lane.peer);
        }
    }

    /// Logs which rails of ours have no partner at the peer, once each, however many peers lack it.
    fn name_unpaired(&self, name: &PeerName, pairs: &[RailPair], theirs: &[Rail]) {
        static LOGGED: Lock<BTreeSet<String>> = Lock::new(BTreeSet::new());
        let rails = &self.executor.peers.us().rails;
        let (paired, all) = (pairs.len(), rails.len());
        // If no pair shares a fabric, the rails are paired by routes, and any rail of the peer might be the partner.
        let are_of_networks = pairs.iter().any(|RailPair { ours, theirs: at }| {
            rails[usize::from(*ours)].fabric == theirs[usize::from(*at)].fabric
        });
        for (index, rail) in (0_u8..).zip(rails) {
            if pairs.iter().any(|pair| pair.ours == index) {
                continue;
            }
            let label = &self.executor.nics[usize::from(index)].label;
            let of = if are_of_networks {
                format!(" on {}", rail.fabric.to_text())
            } else {
                String::new()
            };
            let lacks = format!("no rail{of} to pair with our rail {label}");
            if LOGGED.lock().insert(lacks.clone()) {
                log::warn!("{name} has {lacks}: {paired} of {all} rails carry messages to it");
            }
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
        let found = found.join("; ");
        if !found.is_empty() && is_new(found.clone()) {
            log::warn!("{name} has {found}: run the same, with the same settings, on all ranks");
        }
    }
}

/// Whether this difference was not logged yet, and fewer than the bound were.
pub(super) fn is_new(difference: String) -> bool {
    static LOGGED: Lock<BTreeSet<String>> = Lock::new(BTreeSet::new());
    let mut logged = LOGGED.lock();
    logged.len() < DIFFERENCES_MAX && logged.insert(difference)
}
