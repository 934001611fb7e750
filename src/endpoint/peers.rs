//! The peers that an endpoint has met: by which addresses our rails reach theirs, and what they are called.

use std::time::Duration;

use fabric::PeerAddress;
use proto::{ChannelId, Epoch, Moment};

use super::counting::Rows;
use super::identity::PeerName;
use crate::error::{Cause, Error};
use crate::label::Label;

/// A rail of ours, and the address by which it reaches its partner at the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    /// The place of the NIC in the endpoint's list.
    pub(super) nic: usize,
    pub(super) peer: PeerAddress,
}

/// The other end of a channel.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) channel: ChannelId,
    /// In the order in which keys and counts stand on the wire.
    pub(super) data: Box<[Lane]>,
    pub(super) control: Box<[Lane]>,
    pub(super) name: PeerName,
    /// What goes to it and comes from it, counted.
    pub(super) sends: Rows,
    pub(super) receives: Rows,
    /// Packets that went out again, as far as they are counted.
    pub(super) resent: u32,
    /// The epoch that was posted last.
    pub(super) epoch: Epoch,
    /// What the fabric said first of a failed operation to this peer.
    pub(super) first_failure: Option<Cause>,
    /// Since when the provider takes nothing for the peer on a control rail.
    pub(super) refused_since: Option<Moment>,
    /// Why the channel cannot go on.
    pub(super) failure: Option<Error>,
}

impl Peer {
    pub(super) fn new(
        channel: ChannelId,
        data: Box<[Lane]>,
        control: Box<[Lane]>,
        name: PeerName,
    ) -> Self {
        Self {
            channel,
            data,
            control,
            name,
            sends: Rows::default(),
            receives: Rows::default(),
            resent: 0,
            epoch: Epoch(0),
            first_failure: None,
            refused_since: None,
            failure: None,
        }
    }

    /// What it is called, for an error.
    #[cold]
    pub(super) fn label(&self) -> Label {
        self.name.label()
    }

    /// The data rail that this NIC is to the peer.
    #[inline]
    pub(super) fn data_rail(&self, nic: usize) -> Option<u8> {
        rail_of(&self.data, nic)
    }

    #[inline]
    pub(super) fn control_rail(&self, nic: usize) -> Option<u8> {
        rail_of(&self.control, nic)
    }

    /// A post on a control rail was taken.
    #[inline]
    pub(super) fn taken(&mut self) {
        self.refused_since = None;
    }

    /// A post on a control rail was refused for now: how long nothing was taken.
    #[inline]
    pub(super) fn refused(&mut self, now: Moment) -> Duration {
        now.since(*self.refused_since.get_or_insert(now))
    }

    /// An operation has failed: the first word of the fabric's stays.
    #[cold]
    pub(super) fn failed(&mut self, cause: Cause) {
        self.first_failure.get_or_insert(cause);
    }

    /// Whether it has ended, as far as this side can see: what was posted to it has failed, or nothing is taken for it; or its process
    /// is gone where that means something.
    pub(super) fn is_gone(&self, now: Moment) -> bool {
        let refused = self.refused_since.is_some_and(|since| now.since(since) >= GONE_AFTER);
        refused || self.failure.is_some() && self.first_failure.is_some() || self.name.has_ended()
    }
}

/// A provider that takes nothing for a living peer does so for moments.
const GONE_AFTER: Duration = Duration::from_millis(200);

#[inline]
fn rail_of(lanes: &[Lane], nic: usize) -> Option<u8> {
    // With equal rails on both ends they stand in the NICs' order.
    let at = match lanes.get(nic) {
        Some(lane) if lane.nic == nic => nic,
        _ => lanes.iter().position(|lane| lane.nic == nic)?,
    };
    u8::try_from(at).ok()
}
