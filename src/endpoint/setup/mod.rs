//! Listen, connect, accept, and what arrives on the control rails meanwhile. Nothing here blocks.

mod accept;
mod connect;
mod letters;

pub(super) use accept::Accepting;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use fabric::{FabricError, PeerAddress};
use proto::codec::{Address, Name};
use proto::handshake::{Identity, Ring};
use proto::rails::{Pairing, Rail};
use proto::{CommId, Window};

use crate::comm::peer::{Peer, differences};
use crate::endpoint::Endpoint;
use crate::endpoint::lanes::{ControlLane, Lane};
use crate::error::{Cause, Nonsense, Result};
use crate::label::Label;

/// The control rail that takes requests and replies. Byes travel on the connection's own.
const FRONT_DOOR: usize = 0;
/// The largest group of receives that a connection may have. Its receiver decides: the tables of v6 to v8 take none.
pub(in crate::endpoint) const MAX_GROUP: u8 = 8;
const _: () = assert!(MAX_GROUP as usize == proto::limits::MAX_GROUP);
/// What a sender's mailbox has room for.
pub(in crate::endpoint) const LENT: Window = Window::for_groups_of(MAX_GROUP as usize);

/// Past so many different differences, the log hears of no more.
const DIFFERENCES_MAX: usize = 16;
/// Past so many peers, one that is not known gets no refusal: addresses in requests are anybody's, and each takes memory.
const REFUSED_PEERS_MAX: usize = 1 << 14;
/// A reply that the provider could not send so often is not sent again before it is asked for.
const FAILED_REPLIES_MAX: u8 = 8;
/// The longest ring that a peer may lend us.
const RING_BYTES_MAX: u64 =
    (proto::limits::MAX_RING as u64 + 1) * 8 * proto::wire::MAX_LINE_WORDS as u64;

impl Endpoint {
    /// A difference between the ends that should not be: one WARN that names it, however many connections have it.
    pub(super) fn compare(&self, peer: &Peer, theirs: &Identity) {
        let ours = self.identity();
        let mut found = differences(&ours, theirs);
        let names = self.settings.differing(&theirs.settings);
        if !names.is_empty() {
            found.push(format!("other values than we have for {}", names.join(", ")));
        }
        if !found.is_empty() && is_news(&found) {
            let found = found.join("; ");
            log::warn!("{peer} has {found}: run the same, with the same settings, on all ranks");
        }
    }

    pub(super) fn rails(&self) -> Result<Vec<Rail>> {
        let address =
            |name: &[u8]| Address::new(name).ok_or(Cause::AddressTooLong { len: name.len() });
        let rails = (0..).zip(&self.nics).map(|(index, nic)| {
            let control = nic.nic.has_control();
            let control = control.then(|| address(nic.nic.control_name())).transpose()?;
            Ok(Rail {
                fabric: Name::cut(&nic.fabric_name),
                nic: index,
                data: address(nic.nic.data_name())?,
                control,
            })
        });
        rails.collect()
    }

    pub(in crate::endpoint) fn front_door_name(&self) -> Result<Address> {
        let front_door = self.nics.first().filter(|port| port.nic.has_control());
        let name = front_door.map(|port| port.nic.control_name());
        let address = name.and_then(Address::new);
        Ok(address.ok_or(Cause::NoFrontDoorName)?)
    }

    pub(super) fn control_lane(
        &mut self,
        ours: usize,
        theirs: usize,
        rails: &[Rail],
        ring: &Ring,
    ) -> Result<ControlLane> {
        let (target, key) = ring_of(theirs, rails, ring)?;
        let rail = rails.get(theirs).and_then(|rail| rail.control).ok_or(WRONG_RAIL)?;
        let peer = self.join(ours, rail.as_bytes())?;
        Ok(ControlLane { nic: ours, peer, target, key })
    }

    /// Joins the peer's rails, each given as our number and the peer's: for data, then the one for control. All of them, or
    /// none when one cannot be used.
    fn join_all(
        &mut self,
        mut data: impl Iterator<Item = (usize, usize)>,
        (ours, theirs): (usize, usize),
        rails: &[Rail],
        ring: &Ring,
    ) -> Result<(Box<[Lane]>, ControlLane)> {
        let mut lanes = Vec::with_capacity(rails.len());
        let joined = data.try_for_each(|(nic, theirs)| {
            let peer = self.join(nic, rails[theirs].data.as_bytes())?;
            lanes.push(Lane { nic, peer });
            Ok(())
        });
        let control = joined.and_then(|()| self.control_lane(ours, theirs, rails, ring));
        match control {
            Ok(control) => Ok((lanes.into(), control)),
            Err(error) => {
                lanes.iter().for_each(|lane| self.nics[lane.nic].nic.leave(lane.peer));
                Err(error)
            }
        }
    }

    pub(super) fn join(&mut self, nic: usize, name: &[u8]) -> Result<PeerAddress> {
        let port = self.nics.get_mut(nic).ok_or(Cause::Nonsense(Nonsense::Rail))?;
        port.nic
            .join(name)
            .map_err(|fault| Cause::CannotReach { rail: Label::of(&port.label), fault }.into())
    }

    pub(super) fn identity(&self) -> Identity {
        let packed =
            |version: fabric::Version| u32::from(version.major) << 16 | u32::from(version.minor);
        Identity {
            host: Name::cut(&self.device.host),
            process: std::process::id(),
            provider: Name::cut(&self.device.provider),
            provider_version: packed(self.device.provider_version),
            libfabric_version: packed(self.device.libfabric_version),
            settings: self.settings.fingerprint,
        }
    }

    /// What a request for another job does not know.
    pub(super) fn job(&self) -> u64 {
        let bytes = self.settings.job.bytes();
        bytes.fold(0, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(29)
        })
    }

    pub(super) fn check_alive(&mut self) -> Result<()> {
        match &mut self.failure {
            Some(failure) => Err(super::sender::repeated(failure)),
            None => Ok(()),
        }
    }

    pub(super) fn no_memory(&self, error: FabricError) -> Cause {
        Cause::NoControlMemory { device: self.label(), fault: error }
    }
}

/// Where a ring of the peer's is, and its key for the peer's rail `theirs`.
fn ring_of(theirs: usize, rails: &[Rail], ring: &Ring) -> Result<(u64, u64)> {
    // Keys come in the order of the owner's control rails, which are its first NICs.
    let before = rails.get(..theirs).ok_or(WRONG_RAIL)?;
    let index = before.iter().filter(|rail| rail.control.is_some()).count();
    let key = *ring.keys.get(index).ok_or(WRONG_RAIL)?;
    if ring.address.checked_add(RING_BYTES_MAX).is_none() {
        return Err(Cause::Nonsense(Nonsense::Ring).into());
    }
    Ok((ring.address, key))
}

const WRONG_RAIL: Cause = Cause::Nonsense(Nonsense::ControlRail);

/// Whether the log does not have this difference yet. What comes past the bound is left out: there is enough to mend.
fn is_news(difference: &[String]) -> bool {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    told.len() < DIFFERENCES_MAX && told.insert(difference.join("; "))
}

/// All control writes of a connection take one rail, so that a done cannot overtake a later one; connections spread.
fn control_pair(pairing: &Pairing, comm: CommId) -> proto::rails::RailPair {
    pairing.control[usize::from(comm.get()) % pairing.control.len()]
}

pub(in crate::endpoint) fn id(slot: u16, generation: u16) -> u64 {
    u64::from(generation) << 16 | u64::from(slot)
}

#[expect(clippy::cast_possible_truncation, reason = "the fields that `id` made")]
pub(in crate::endpoint) fn parts(id: u64) -> (u16, u16) {
    (id as u16, (id >> 16) as u16)
}

fn names(rails: &[Rail]) -> String {
    rails.iter().map(|rail| rail.fabric.to_text()).collect::<Vec<_>>().join(", ")
}
