//! The peers of an endpoint: their addresses for each of our rails, their names, and their failures.

use std::time::Duration;

use fabric::PeerAddress;
use proto::polled::{PolledClock, PolledTime};
use proto::{ChannelId, Epoch, Moment};

use super::bound::GONE_AFTER;
use super::counting::Rows;
use super::identity::PeerName;
use crate::error::{Cause, Error};
use crate::label::Label;

/// A rail of ours, and the address of its partner rail at the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    /// The index of the NIC.
    pub(super) nic: usize,
    pub(super) peer: PeerAddress,
}

/// The other end of a channel.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) channel: ChannelId,
    /// In the order of the keys and counts on the wire.
    pub(super) data: Box<[Lane]>,
    pub(super) control: Box<[Lane]>,
    pub(super) name: PeerName,
    /// Counters of what is sent to it and received from it.
    pub(super) sends: Rows,
    pub(super) receives: Rows,
    /// Retransmitted packets that are counted already.
    pub(super) resent: u32,
    /// The epoch of the last posted packet.
    pub(super) epoch: Epoch,
    /// The cause of the first failed operation to this peer.
    pub(super) first_failure: Option<Cause>,
    /// While the provider refuses every post to the peer on a control rail: how long it has done so. They are tried again in each poll.
    refusals: Option<PolledClock>,
    /// Why the channel has failed.
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
            refusals: None,
            failure: None,
        }
    }

    /// Its name, for an error.
    #[cold]
    pub(super) fn label(&self) -> Label {
        self.name.label()
    }

    /// The data rail to the peer that this NIC has.
    #[inline]
    pub(super) fn data_rail(&self, nic: usize) -> Option<u8> {
        rail_of(&self.data, nic)
    }

    #[inline]
    pub(super) fn control_rail(&self, nic: usize) -> Option<u8> {
        rail_of(&self.control, nic)
    }

    /// The provider accepted a post on a control rail.
    #[inline]
    pub(super) fn accepted(&mut self) {
        self.refusals = None;
    }

    /// The provider refused a post on a control rail. Returns for how long it has refused all.
    #[inline]
    pub(super) fn refused(&mut self, now: Moment) -> Duration {
        self.refusals.get_or_insert_default().poll(now).polled.since(PolledTime::START)
    }

    /// An operation has failed. The first cause is kept.
    #[cold]
    pub(super) fn failed(&mut self, cause: Cause) {
        self.first_failure.get_or_insert(cause);
    }

    /// Whether the peer has ended, as far as this side can see: an operation to it has failed, the provider refuses all posts to it, or its
    /// process is known to be gone.
    pub(super) fn is_gone(&self) -> bool {
        let lasts = |clock: &PolledClock| clock.now().since(PolledTime::START) >= GONE_AFTER;
        let refused = self.refusals.as_ref().is_some_and(lasts);
        refused || self.failure.is_some() && self.first_failure.is_some() || self.name.has_ended()
    }
}

#[inline]
fn rail_of(lanes: &[Lane], nic: usize) -> Option<u8> {
    // With equal rails on both ends, rails are in the order of the NICs.
    let at = match lanes.get(nic) {
        Some(lane) if lane.nic == nic => nic,
        _ => lanes.iter().position(|lane| lane.nic == nic)?,
    };
    u8::try_from(at).ok()
}

#[cfg(test)]
mod tests {
    use proto::setup::Host;

    use super::*;
    use crate::endpoint::identity::KnownProcesses;

    fn peer() -> Peer {
        let name = KnownProcesses::default().peer_name(&Host::default());
        Peer::new(ChannelId(0), Box::new([]), Box::new([]), name)
    }

    #[test]
    fn the_first_of_several_failures_is_the_cause() {
        let mut peer = peer();
        peer.failed(Cause::SendDeregistered);
        peer.failed(Cause::Ended);
        assert!(matches!(peer.first_failure, Some(Cause::SendDeregistered)));
    }

    #[test]
    fn refusals_count_from_the_first_one_after_a_post_that_was_accepted() {
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let mut peer = peer();
        let refused = [1, 5, 9].map(|ms| peer.refused(at(ms)).as_millis());
        assert_eq!(refused, [0, 4, 8]);
        let gone = (10..).find(|ms| {
            peer.refused(at(*ms));
            peer.is_gone()
        });
        assert_eq!(gone, Some(201));
        peer.accepted();
        assert!(!peer.is_gone());
        assert_eq!(peer.refused(at(2000)), Duration::ZERO);
    }

    #[test]
    fn time_in_which_the_process_was_stopped_is_no_time_of_refusals() {
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let mut peer = peer();
        let refused = [0, 20, 3_600_000, 3_600_010].map(|ms| peer.refused(at(ms)).as_millis());
        assert_eq!(refused, [0, 20, 70, 80]);
    }
}
