//! The peers that an endpoint has met, or is about to: who they are, and by which addresses our rails reach theirs.

use std::time::Duration;

use fabric::PeerAddress;
use proto::Capabilities;
use proto::wire2::setup::{EndpointId, Nonces, Role, Secret};
use proto::wire2::{ChannelId, Epoch, ListenerId, Moment};

use crate::comm::peer;
use crate::error::{Cause, Error};
use crate::label::Label;

/// How long the first HELLO waits for an answer before it is repeated, at first and at most.
const INTRODUCE_AGAIN: Duration = Duration::from_millis(20);
const INTRODUCE_AGAIN_MAX: Duration = Duration::from_secs(1);

/// A rail of ours, and the address by which it reaches its partner at the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    /// The place of the NIC in the endpoint's list.
    pub(super) nic: usize,
    pub(super) peer: PeerAddress,
}

/// What proves to a peer that we were given a handle, or gave it out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credential {
    pub(super) listener: ListenerId,
    /// On which side of the listener we stand.
    pub(super) role: Role,
    pub(super) secret: Secret,
}

/// Another endpoint, or one half of the channel with ourselves.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: EndpointId,
    /// With ourselves: on which side of listeners this half stands.
    pub(super) half: Option<Role>,
    /// Ours for this peer; never 0.
    pub(super) nonce: u64,
    /// The peer's, once it is known; else 0.
    pub(super) theirs: u64,
    pub(super) credential: Credential,
    /// Where the first HELLO goes.
    door: Option<Lane>,
    again: Moment,
    wait: Duration,
    pub(super) met: Option<Met>,
    /// Why there is no channel, or none any more.
    pub(super) failure: Option<Error>,
}

/// What is known of a peer once its HELLO has come.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) channel: ChannelId,
    /// In the order in which keys and counts stand on the wire.
    pub(super) data: Box<[Lane]>,
    pub(super) control: Box<[Lane]>,
    pub(super) agreed: Capabilities,
    pub(super) name: peer::Peer,
    /// The epoch that was posted last.
    pub(super) epoch: Epoch,
    /// What the fabric said first of a failed operation to this peer.
    pub(super) first_failure: Option<Cause>,
    /// Since when the provider takes nothing for the peer on a control rail.
    pub(super) refused_since: Option<Moment>,
}

impl Peer {
    pub(super) fn new(
        id: EndpointId,
        half: Option<Role>,
        nonce: u64,
        credential: Credential,
        door: Option<Lane>,
    ) -> Self {
        let (again, wait) = (Moment::default(), INTRODUCE_AGAIN);
        Self { id, half, nonce, theirs: 0, credential, door, again, wait, met: None, failure: None }
    }

    /// Where to introduce ourselves now, if that is due: not while the peer is known.
    pub(super) fn introduces(&self, now: Moment) -> Option<Lane> {
        if self.met.is_none() && now >= self.again { self.door } else { None }
    }

    pub(super) fn introduced(&mut self, now: Moment) {
        self.again = now.plus(self.wait);
        self.wait = (2 * self.wait).min(INTRODUCE_AGAIN_MAX);
    }

    /// The nonces of proofs that we make; the other way round those of the peer's.
    pub(super) fn nonces(&self) -> Nonces {
        Nonces { prover: self.nonce, verifier: self.theirs }
    }

    pub(super) fn their_nonces(&self) -> Nonces {
        Nonces { prover: self.theirs, verifier: self.nonce }
    }

    /// What it is called, for an error.
    #[cold]
    pub(super) fn label(&self) -> Label {
        match &self.met {
            Some(met) => met.name.label(),
            None => Label::of("a peer that has not answered"),
        }
    }
}

impl Met {
    /// The data rail that this NIC is to the peer.
    #[inline]
    pub(super) fn data_rail(&self, nic: usize) -> Option<u8> {
        rail_of(&self.data, nic)
    }

    #[inline]
    pub(super) fn control_rail(&self, nic: usize) -> Option<u8> {
        rail_of(&self.control, nic)
    }

    /// A post on a control rail was taken, or was refused for now: how long nothing was taken.
    #[inline]
    pub(super) fn was_taken(&mut self, taken: bool, now: Moment) -> Duration {
        if taken {
            self.refused_since = None;
            return Duration::ZERO;
        }
        now.since(*self.refused_since.get_or_insert(now))
    }

    /// An operation has failed: the first word of the fabric's stays.
    #[cold]
    pub(super) fn failed(&mut self, cause: Cause) {
        self.first_failure.get_or_insert(cause);
    }
}

#[inline]
fn rail_of(lanes: &[Lane], nic: usize) -> Option<u8> {
    // With equal rails on both ends they stand in the NICs' order.
    let at = match lanes.get(nic) {
        Some(lane) if lane.nic == nic => nic,
        _ => lanes.iter().position(|lane| lane.nic == nic)?,
    };
    u8::try_from(at).ok()
}
