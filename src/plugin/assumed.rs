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
        rma_inject_bytes: 0,
        virtual_addresses: info.region_mode().virtual_addresses,
        largest_write: info.max_message(),
    }
}

/// The capabilities that are known without the probe; those that it has to try are absent. `inject_bytes`: the most that the endpoint
/// injects.
pub(super) fn assumed(info: &Info, inject_bytes: usize, proves_arrival: bool) -> Capabilities {
    Capabilities {
        immediate: ImmediateWidth::None,
        true_lengths: false,
        self_read: false,
        delivery_complete: false,
        proves_arrival,
        rma_inject_bytes: u32::try_from(inject_bytes).unwrap_or(u32::MAX),
        messages: false,
        arrival_times: true,
        virtual_addresses: info.region_mode().virtual_addresses,
        largest_write: options::largest_write(info),
    }
}
