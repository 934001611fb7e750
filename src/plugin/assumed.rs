//! Capabilities that a probe cannot show. `plugin::arrival` has those that concern completions.

use fabric::Info;
use proto::capabilities::{Capabilities, ImmediateWidth};

use super::options;

/// The capabilities with SENDRECV, which needs no probe.
pub(super) fn of_messages(info: &Info) -> Capabilities {
    Capabilities {
        // A tag carries as much as a 4-byte immediate, and a receive's completion has its message's length.
        immediate: ImmediateWidth::Four,
        true_lengths: true,
        self_read: false,
        delivery_complete: false,
        proves_arrival: false,
        messages: true,
        arrival_times: false,
        virtual_addresses: info.region_mode().virtual_addresses,
        largest_write: info.max_message(),
    }
}

/// The capabilities that are known without the probe; those that it has to try are absent.
pub(super) fn assumed(info: &Info, proves_arrival: bool) -> Capabilities {
    Capabilities {
        immediate: ImmediateWidth::None,
        true_lengths: false,
        self_read: false,
        delivery_complete: false,
        proves_arrival,
        messages: false,
        arrival_times: true,
        virtual_addresses: info.region_mode().virtual_addresses,
        largest_write: options::largest_write(info),
    }
}
