//! What both ends of a connection have agreed to; equal on both.

use crate::capabilities::{Capabilities, ImmediateWidth};

use super::ids::Name;
use super::split::Cutting;

/// How long a message may be that travels in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InlineLimits {
    /// Without an advert. 0 where the receiver may receive into GPU memory: then none may.
    pub unadvertised: u16,
    /// To a receive whose advert says that it is host memory.
    pub host: u16,
}

/// Longer messages are written, not sent inline, where receives are posted ahead of them. Inline, a message is copied into its
/// packet, checked at both ends and copied out: that costs more than a write from so many bytes on, and saves time only where the
/// message would have to wait for its advert (docs/benchmarks.md).
pub(crate) const COPIED_AT_MOST: u64 = 2048;

impl InlineLimits {
    /// Whether a message fits a limit; 0 admits none, not even an empty one.
    #[inline]
    pub(crate) const fn admit(limit: u16, len: u64) -> bool {
        limit > 0 && len <= limit as u64
    }
}

/// The terms of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What the peer calls this connection.
    pub peer: Name,
    /// What we call it.
    pub own: Name,
    pub cutting: Cutting,
    /// Receives may come in groups: then tags count.
    pub grouped: bool,
    /// What travels with a part; with `None` every message takes the path of FIN.
    pub immediates: ImmediateWidth,
    /// Completions of arrivals tell their true length.
    pub true_lengths: bool,
    /// A write's completion can be had on delivery: what the path of FIN needs.
    pub delivery: bool,
    /// The completion of a write proves that its bytes are at the peer.
    pub proves_arrival: bool,
    /// There are no writes: a message is one piece, for a receive that is posted (SENDRECV).
    pub messages: bool,
    pub inline: InlineLimits,
}

impl Terms {
    /// What the capabilities of both ends, already agreed, make of a connection. `fin_only` is a setting of either end.
    #[expect(clippy::too_many_arguments, reason = "each is settled somewhere else")]
    pub fn settle(
        own: Name,
        peer: Name,
        agreed: &Capabilities,
        rails: usize,
        shared_from: u64,
        grouped: bool,
        fin_only: bool,
        inline: InlineLimits,
    ) -> Option<Self> {
        let terms = Self {
            peer,
            own,
            cutting: Cutting::new(rails, shared_from, agreed.largest_write)?,
            grouped,
            immediates: if fin_only { ImmediateWidth::None } else { agreed.immediate },
            true_lengths: agreed.true_lengths,
            delivery: (agreed.delivery_complete || agreed.proves_arrival) && !agreed.messages,
            proves_arrival: agreed.proves_arrival,
            messages: agreed.messages,
            inline,
        };
        (terms.delivery || terms.immediates != ImmediateWidth::None).then_some(terms)
    }

    /// A send waits for DONE: with several rails a completed part may have to be written again on another one.
    pub const fn needs_done(&self) -> bool {
        self.cutting.rails > 1 && !self.proves_arrival
    }

    /// Whether a message of this length, which fills its receive, takes immediates; else a FIN ends it.
    pub const fn takes_immediates(&self, len: u64) -> bool {
        len < self.immediates_end(true)
    }

    /// The length from which on a message cannot take immediates. `whole`: it fills its receive.
    pub(crate) const fn immediates_end(&self, whole: bool) -> u64 {
        if self.messages {
            return self.cutting.longest.saturating_add(1);
        }
        let held = self.cutting.immediates_end().saturating_add(1);
        match self.immediates {
            ImmediateWidth::None => 0,
            _ if whole => held,
            ImmediateWidth::Eight if held > 1 << u32::BITS => 1 << u32::BITS,
            ImmediateWidth::Eight => held,
            ImmediateWidth::Four if self.true_lengths => held,
            ImmediateWidth::Four => 0,
        }
    }
}
