//! The peers of an endpoint: their addresses for each of our rails, their names, and their failures.

use std::time::Duration;

use proto::channel::RailNews;
use proto::polled::{PolledClock, PolledTime};
use proto::{ChannelId, Epoch, Moment, RailSet};

use super::bound::GONE_AFTER;
use super::counting::Rows;
use super::identity::PeerName;
use super::lane::{Lane, rail_of};
use crate::error::{Cause, Error, Operation};
use crate::label::Label;

/// The first failed operation to a peer whose cause was not the loss of a rail.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FirstFailure {
    pub(super) cause: Option<Cause>,
    /// Lost rails. Later failures on them say nothing about the peer.
    lost_data: RailSet,
    lost_control: RailSet,
    /// Whether the cause is that of the last failure.
    is_new: bool,
}

/// The other end of a channel.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) channel: ChannelId,
    /// In the order of the keys and counts on the wire.
    pub(super) data: Box<[Lane]>,
    pub(super) control: Box<[Lane]>,
    pub(super) name: PeerName,
    /// Counters of messages to and from the peer.
    pub(super) sends: Rows,
    pub(super) receives: Rows,
    /// Retransmitted packets that are counted already.
    pub(super) resent: u32,
    /// The epoch of the last posted packet.
    pub(super) epoch: Epoch,
    pub(super) first_failure: FirstFailure,
    /// How long the provider has refused every post to the peer on a control rail; None after one was accepted. Each poll posts again.
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
            first_failure: FirstFailure::default(),
            refusals: None,
            failure: None,
        }
    }

    /// Takes the lanes of data and of control, so that nothing is posted to the peer any more.
    pub(super) fn take_lanes(&mut self) -> (Box<[Lane]>, Box<[Lane]>) {
        (std::mem::take(&mut self.data), std::mem::take(&mut self.control))
    }

    /// The peer's name, for an error.
    #[cold]
    pub(super) fn label(&self) -> Label {
        self.name.label()
    }

    /// The index of this NIC's data rail among those to the peer.
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

    /// The provider refused a post on a control rail. Returns for how long it has refused every post.
    #[inline]
    pub(super) fn refused(&mut self, now: Moment) -> Duration {
        self.refusals.get_or_insert_default().poll(now).polled.since(PolledTime::START)
    }

    /// An operation has failed, for a reason that concerns no rail. The first cause is kept.
    #[cold]
    pub(super) fn failed(&mut self, cause: Cause) {
        self.first_failure.keep(cause);
    }

    /// An operation on a rail of this NIC has failed.
    #[cold]
    pub(super) fn failed_on(&mut self, nic: usize, operation: Operation, cause: Cause) {
        let rail = match operation {
            Operation::Data => self.data_rail(nic),
            Operation::Control => self.control_rail(nic),
        };
        match rail {
            Some(rail) => self.first_failure.failed(operation, rail, cause),
            None => self.failed(cause),
        }
    }

    /// Whether the peer has ended, as far as this side can see: an operation to it has failed, the provider refuses all posts to it, or its
    /// process is known to be gone.
    pub(super) fn is_gone(&self) -> bool {
        let lasts = |clock: &PolledClock| clock.now().since(PolledTime::START) >= GONE_AFTER;
        let refused = self.refusals.as_ref().is_some_and(lasts);
        refused
            || self.failure.is_some() && self.first_failure.cause.is_some()
            || self.name.has_ended()
    }
}

impl FirstFailure {
    /// An operation on a rail has failed. The first cause is kept.
    pub(super) fn failed(&mut self, operation: Operation, rail: u8, cause: Cause) {
        let lost = match operation {
            Operation::Data => self.lost_data,
            Operation::Control => self.lost_control,
        };
        self.is_new = false;
        if !lost.has(rail) {
            self.keep(cause);
        }
    }

    fn keep(&mut self, cause: Cause) {
        self.is_new = self.cause.is_none();
        self.cause.get_or_insert(cause);
    }

    /// The failure of the last event says nothing about the peer: it is no cause.
    pub(super) fn take_back(&mut self) {
        self.cause.take_if(|_| self.is_new);
    }

    /// A data rail is lost, and others continue. Returns the cause of the first failed operation, if any, as that of the loss.
    pub(super) fn data_rail_lost(&mut self, rail: u8) -> Option<Cause> {
        self.lost_data.insert(rail);
        self.cause.take()
    }

    pub(super) fn data_rail_returned(&mut self, rail: u8) {
        self.lost_data.remove(rail);
    }

    /// Some of `rails` control rails are lost or back. Returns the cause of the first failed operation, if any, as that of a loss.
    pub(super) fn control_rails_changed(&mut self, news: RailNews, rails: usize) -> Option<Cause> {
        news.lost.iter().for_each(|rail| self.lost_control.insert(rail));
        news.returned.iter().for_each(|rail| self.lost_control.remove(rail));
        if news.lost.is_empty() {
            return None;
        }
        let why = self.cause;
        // With the last control rail the channel ends: the cause is kept for that.
        if (self.lost_control.len() as usize) < rails {
            self.cause = None;
        }
        why
    }
}

#[cfg(test)]
mod tests {
    use proto::setup::Host;

    use super::*;
    use crate::endpoint::identity::KnownProcesses;

    fn peer() -> Peer {
        let name = KnownProcesses::default().peer_name(&Host::default(), &Host::default());
        Peer::new(ChannelId(0), Box::new([]), Box::new([]), name)
    }

    #[test]
    fn the_first_of_several_failures_is_the_cause() {
        let mut peer = peer();
        peer.failed(Cause::SendDeregistered);
        peer.failed_on(0, Operation::Control, Cause::Ended);
        assert!(matches!(peer.first_failure.cause, Some(Cause::SendDeregistered)));
    }

    /// Otherwise a peer that falls silent hours later would be taken for one that has ended, and memory that it may still write to would be
    /// deregistered.
    #[test]
    fn a_failure_on_a_lost_rail_is_no_cause_of_a_later_one_until_the_rail_is_back() {
        let news = |lost, returned| RailNews {
            lost: RailSet::new(lost),
            returned: RailSet::new(returned),
        };
        for operation in [Operation::Data, Operation::Control] {
            let mut peer = peer();
            let first = &mut peer.first_failure;
            first.failed(operation, 0, Cause::SendDeregistered);
            let why = match operation {
                Operation::Data => first.data_rail_lost(0),
                Operation::Control => first.control_rails_changed(news(1, 0), 2),
            };
            assert!(matches!(why, Some(Cause::SendDeregistered)));
            first.failed(operation, 0, Cause::Ended);
            assert!(first.cause.is_none(), "{operation:?}");
            peer.failure = Some(Cause::Ended.into());
            assert!(!peer.is_gone(), "{operation:?}");
            let first = &mut peer.first_failure;
            match operation {
                Operation::Data => first.data_rail_returned(0),
                Operation::Control => {
                    assert!(first.control_rails_changed(news(0, 1), 2).is_none());
                }
            }
            first.failed(operation, 0, Cause::Ended);
            assert!(peer.is_gone(), "{operation:?}");
        }
    }

    /// An error that comes late, after its rail is back.
    #[test]
    fn a_failure_that_is_taken_back_is_no_cause_unless_it_repeats_an_earlier_one() {
        let mut peer = peer();
        peer.failure = Some(Cause::Ended.into());
        let first = &mut peer.first_failure;
        first.failed(Operation::Control, 0, Cause::Ended);
        first.take_back();
        assert!(!peer.is_gone());
        let first = &mut peer.first_failure;
        first.failed(Operation::Control, 0, Cause::Ended);
        first.failed(Operation::Control, 1, Cause::SendDeregistered);
        first.take_back();
        assert!(matches!(first.cause, Some(Cause::Ended)));
    }

    #[test]
    fn a_failure_on_the_last_control_rail_stays_the_cause_of_the_end() {
        let mut peer = peer();
        for (rail, lost) in [(0, 1), (1, 2)] {
            peer.first_failure.failed(Operation::Control, rail, Cause::Ended);
            let news = RailNews { lost: RailSet::new(lost), returned: RailSet::new(0) };
            assert!(peer.first_failure.control_rails_changed(news, 2).is_some());
        }
        peer.failure = Some(Cause::Ended.into());
        assert!(peer.is_gone());
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
    fn time_in_which_the_process_was_stopped_does_not_count_as_refusals() {
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let mut peer = peer();
        let refused = [0, 20, 3_600_000, 3_600_010].map(|ms| peer.refused(at(ms)).as_millis());
        assert_eq!(refused, [0, 20, 70, 80]);
    }
}
