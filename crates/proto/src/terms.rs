//! The terms of a connection, equal on both ends.

use crate::capabilities::{Capabilities, ImmediateWidth};

use super::ids::Name;
use super::setup::Features;
use super::split::Cutting;

/// The longest inline messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InlineLimits {
    /// Without an advert. 0 if the receiver may receive into GPU memory: then no such message is allowed.
    pub unadvertised: u16,
    /// To a receive whose advert names host memory.
    pub host: u16,
}

/// Messages above this length are written, not sent inline, if receives are posted ahead of them. An inline message is
/// copied into its packet, checked at both ends and copied out. Above this length that costs more than a write, and
/// saves time only if the message would have to wait for its advert (docs/benchmarks.md).
pub const COPIED_AT_MOST: u64 = 3072;

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
    /// The peer's name for this connection.
    pub peer: Name,
    /// Our name for it.
    pub own: Name,
    pub cutting: Cutting,
    /// Receives may be grouped; then tags are compared.
    pub grouped: bool,
    /// The immediate of a part; with `None` every message takes the FIN path.
    pub immediates: ImmediateWidth,
    /// Completions of arrivals have the true length.
    pub true_lengths: bool,
    /// Writes can complete on delivery, which the FIN path needs.
    pub delivery: bool,
    /// The completion of a write proves that its bytes are at the peer.
    pub proves_arrival: bool,
    /// There is no RMA: a message is one piece, into a receive posted at the provider (SENDRECV).
    pub messages: bool,
    pub inline: InlineLimits,
}

#[cfg(test)]
impl Terms {
    /// For tests: the terms of a connection over two data rails, all of whose messages take the FIN path in one part.
    pub(crate) fn of_two_rails(own: Name) -> Self {
        Self {
            peer: Name::default(),
            own,
            cutting: Cutting::new(2, u64::MAX, 1 << 30).unwrap(),
            grouped: false,
            immediates: ImmediateWidth::None,
            true_lengths: false,
            delivery: true,
            proves_arrival: false,
            messages: false,
            inline: InlineLimits::default(),
        }
    }
}

impl Terms {
    /// Derives the terms of a connection from the agreement. None if the receiver could not learn the sizes of messages.
    pub fn settle(
        own: Name,
        peer: Name,
        cutting: Cutting,
        agreed: &Capabilities,
        features: Features,
        inline: InlineLimits,
    ) -> Option<Self> {
        let terms = Self {
            peer,
            own,
            cutting,
            grouped: features.groups,
            immediates: if features.fin_only { ImmediateWidth::None } else { agreed.immediate },
            true_lengths: agreed.true_lengths,
            delivery: (agreed.delivery_complete || agreed.proves_arrival) && !agreed.messages,
            proves_arrival: agreed.proves_arrival,
            messages: agreed.messages,
            inline,
        };
        (terms.delivery || terms.immediates != ImmediateWidth::None).then_some(terms)
    }

    /// Whether a send waits for DONE: with several rails, a part may have to be written again on another rail even
    /// after its completion.
    pub const fn needs_done(&self) -> bool {
        self.cutting.rails > 1 && !self.proves_arrival
    }

    /// Whether a message of this length that fills its receive is sent with immediates; otherwise a FIN ends it.
    pub const fn takes_immediates(&self, len: u64) -> bool {
        len < self.immediates_end(true)
    }

    /// Messages of at least this length cannot be sent with immediates. `whole`: the message fills its receive.
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

#[cfg(test)]
mod tests {
    use super::*;

    const NO: Capabilities = Capabilities {
        immediate: ImmediateWidth::None,
        true_lengths: false,
        self_read: false,
        proves_arrival: false,
        delivery_complete: false,
        virtual_addresses: false,
        messages: false,
        arrival_times: false,
        largest_write: 1 << 30,
    };

    /// What both ends say of the path of each message has to be the same.
    #[test]
    fn a_message_is_sent_with_immediates_only_if_its_receiver_learns_its_length() {
        use ImmediateWidth::{Eight, Four, None};
        for largest_write in [1 << 20, 1 << 28] {
            let cutting = Cutting::new(2, 0, largest_write).unwrap();
            let held = 64 * largest_write + 1;
            for (immediates, true_lengths, whole, end) in [
                (None, true, true, 0),
                (None, true, false, 0),
                (Four, false, true, held),
                (Four, false, false, 0),
                (Four, true, false, held),
                (Eight, false, true, held),
                (Eight, false, false, held.min(1 << 32)),
            ] {
                let of_two = Terms::of_two_rails(Name::default());
                let terms = Terms { cutting, immediates, true_lengths, ..of_two };
                let case = format!("{immediates:?}, true lengths: {true_lengths}, whole: {whole}");
                assert_eq!(terms.immediates_end(whole), end, "{case}");
                if whole {
                    let takes = [0, end.saturating_sub(1), end, end + 1];
                    let takes = takes.map(|len| terms.takes_immediates(len));
                    assert_eq!(takes, [end > 0, end > 0, false, false], "{case}");
                }
                let terms = Terms { messages: true, ..terms };
                assert_eq!(terms.immediates_end(whole), largest_write + 1, "one message: {case}");
            }
        }
    }

    #[test]
    fn a_connection_exists_only_if_immediates_or_confirmed_writes_tell_the_receiver_of_messages() {
        let terms = |agreed: &Capabilities, fin_only| {
            let (name, inline) = (Name::default(), InlineLimits::default());
            let cutting = Cutting::new(1, 0, agreed.largest_write).unwrap();
            let features = Features { groups: false, fin_only };
            Terms::settle(name, name, cutting, agreed, features, inline)
        };
        let immediate = ImmediateWidth::Four;
        let with = Capabilities { immediate, ..NO };
        let confirms = Capabilities { delivery_complete: true, ..NO };
        let proves = Capabilities { proves_arrival: true, ..NO };
        let both = Capabilities { delivery_complete: true, ..with };
        let sent = Capabilities { messages: true, ..both };
        for (agreed, fin_only, expected) in [
            (NO, false, None),
            (with, false, Some((immediate, false))),
            (with, true, None),
            (confirms, false, Some((ImmediateWidth::None, true))),
            (proves, true, Some((ImmediateWidth::None, true))),
            (both, false, Some((immediate, true))),
            (both, true, Some((ImmediateWidth::None, true))),
            (sent, false, Some((immediate, false))),
            (sent, true, None),
        ] {
            let found = terms(&agreed, fin_only).map(|terms| (terms.immediates, terms.delivery));
            assert_eq!(found, expected, "{agreed:?}, FIN only: {fin_only}");
        }
    }

    #[test]
    fn a_send_waits_for_done_if_a_part_may_have_to_go_again_by_another_rail() {
        for (rails, proves_arrival, needs) in
            [(1, false, false), (2, false, true), (2, true, false), (1, true, false)]
        {
            let cutting = Cutting::new(rails, 0, 1 << 20).unwrap();
            let of_two = Terms::of_two_rails(Name::default());
            let terms = Terms { cutting, proves_arrival, ..of_two };
            assert_eq!(terms.needs_done(), needs, "{rails} rails, {proves_arrival}");
        }
    }

    /// 0 means that the receiver may receive into GPU memory.
    #[test]
    fn a_limit_admits_messages_up_to_its_length_and_zero_not_even_an_empty_one() {
        let admitted = [(0, 0), (0, 1), (8, 0), (8, 8), (8, 9), (8, 1 << 32)];
        let admitted = admitted.map(|(limit, len)| InlineLimits::admit(limit, len));
        assert_eq!(admitted, [false, false, true, true, false, false]);
    }
}
