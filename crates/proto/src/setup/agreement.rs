//! The parameters of a channel, computed from the HELLOs of both endpoints: equal on both ends.

use std::time::Duration;

use super::super::channel::Parameters;
use super::super::ids::{Name, PacketNumber};
use super::super::packet::Ring;
use super::super::split::Cutting;
use super::super::terms::{InlineLimits, Terms};
use super::hello::Hello;
use super::opening::Features;
use super::pairing::{Apart, Pairing};
use super::presence::Presence;
use crate::bits::low8;
use crate::bound::QUARANTINE;
use crate::capabilities::{Capabilities, ImmediateWidth};

/// The rails, capabilities and limits that both ends use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The pairs of our rails and the peer's. Every rail number of a channel and of its connections is an index into
    /// these lists.
    pub rails: Pairing,
    pub capabilities: Capabilities,
    pub ring: Ring,
    pub inline_bytes_max: u16,
    pub shared_from: u64,
}

impl Agreement {
    pub(super) fn of(us: &Presence, peer: &Hello) -> Result<Self, Apart> {
        if us.capabilities.messages != peer.capabilities.messages {
            return Err(Apart::Networks);
        }
        let (ours, theirs) = (us.offers, peer.offers);
        let ring = if ours.ring.bytes() < theirs.ring.bytes() { ours.ring } else { theirs.ring };
        let inline = ours.inline_bytes_max.min(theirs.inline_bytes_max);
        Ok(Self {
            rails: Pairing::of(us.id, &us.rails, peer.from, &peer.rails)?,
            capabilities: us.capabilities.agree(&peer.capabilities),
            ring,
            inline_bytes_max: inline.min(ring.longest_inline()),
            shared_from: ours.shared_from.min(theirs.shared_from),
        })
    }

    /// The parameters of the channel. `key` is a random number; `nth` spreads the first inboxes over the control rails.
    pub(super) fn parameters(&self, key: u64, nth: u32, peer_timeout: Duration) -> Parameters {
        let rails = low8(self.rails.control.len() as u64);
        let Capabilities { immediate, proves_arrival, messages, arrival_times, .. } =
            self.capabilities;
        let immediates = immediate != ImmediateWidth::None;
        Parameters {
            ring: self.ring,
            rails,
            data_rails: low8(self.rails.data.len() as u64),
            locals: std::array::from_fn(|at| self.rails.data.get(at).map_or(0, |pair| pair.ours)),
            failover: true,
            closes: false,
            tries: immediates,
            measure_by_arrival: arrival_times
                && self.rails.data.len() > 1
                && immediates
                && !proves_arrival
                && !messages,
            rail: low8((nth % u32::from(rails).max(1)).into()),
            key,
            peer_timeout,
            quarantine: QUARANTINE,
            first: PacketNumber::new(1),
        }
    }

    /// The terms of a connection. `unadvertised`: the longest message without an advert. None if the receiver could not
    /// learn the sizes of messages.
    pub(super) fn terms(
        &self,
        (own, peer): (Name, Name),
        agreed: Features,
        unadvertised: u16,
    ) -> Option<Terms> {
        let Self { rails, capabilities, shared_from, .. } = self;
        let cutting = Cutting::new(rails.data.len(), *shared_from, capabilities.largest_write)?;
        let host = self.inline_bytes_max;
        let inline = InlineLimits { unadvertised: unadvertised.min(host), host };
        Terms::settle(own, peer, cutting, capabilities, agreed, inline)
    }
}
