//! The order in which the bytes of a message become visible at the receiver, and which NCCL protocols that order rules out.
//!
//! NCCL's kernels poll flags inside the receive buffer and do not wait for `test`. LL needs each aligned 8-byte word whole, and
//! its flag not before its data (NCCL src/include/device.h:75-86); LL128 needs each aligned 128-byte line whole, its flag last.

use fabric::{Data, Info, LINES, OptionName, core_provider};

use super::provider::{open_with, refuses_option};

/// The order in which a message's bytes become visible; the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// Any byte may appear before any other.
    Nothing,
    /// An aligned word of 8 bytes appears whole, or front to back.
    Words,
    /// An aligned line of 128 bytes appears front to back.
    Lines,
}

/// The weakest order of all rails.
pub(super) fn of<'a>(rails: impl Iterator<Item = &'a Info>) -> Order {
    rails.map(of_rail).min().unwrap_or(Order::Nothing)
}

fn of_rail(info: &Info) -> Order {
    if info.lands_in_order() || (has_line_option(info.family()) && writes_lines_in_order(info)) {
        return Order::Lines;
    }
    by_name(info.provider())
}

/// Whether a family of NICs has an option for lines in order.
fn has_line_option(family: &str) -> bool {
    family == "efa"
}

/// Whether an endpoint opens with that option, which depends on the device, and does not emulate writes. The provider checks only the
/// device: writes that it emulates by messages are split inside of lines, and the pieces may overtake each other.
fn writes_lines_in_order(info: &Info) -> bool {
    match open_with(info, &[LINES]) {
        Ok(nic) => {
            let by_device = nic.flag::<Data>(OptionName::EfaEmulatedWrite) == Some(false);
            if !by_device {
                log::debug!(
                    "{} makes writes of messages, which have no order within lines",
                    info.provider()
                );
            }
            by_device
        }
        Err(error) if refuses_option(error) => {
            log::debug!("{} grants no order within lines: {error}", info.provider());
            false
        }
        Err(error) => {
            log::warn!(
                "{} opens no endpoint to find out whether it grants order within lines ({error}): assuming that it does not",
                info.provider()
            );
            false
        }
    }
}

/// The order by provider: no libfabric call reports the order, and no probe can prove it.
fn by_name(provider: &str) -> Order {
    match core_provider(provider) {
        // A stream is read into the buffer front to back, as NCCL's own socket transport does.
        "net" | "tcp" | "sockets"
        // Copied within a host, by words or larger units.
        | "shm"
        // The NIC writes whole packets, aligned as the buffer is, and its packets may overtake each other.
        | "cxi" | "verbs" => Order::Words,
        _ => Order::Nothing,
    }
}

/// The value that NCCL_PROTO must have, if it must have one. NCCL uses LL128 over the network only into GPU memory: for other paths it
/// considers the distance too long (NCCL src/graph/tuning.cc:518-535).
pub(super) fn protocols(order: Order, device_memory: bool) -> Option<&'static str> {
    match order {
        Order::Nothing => Some("Simple"),
        Order::Words if device_memory => Some("^LL128"),
        Order::Words | Order::Lines => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_is_kept_only_from_protocols_that_need_a_stronger_order() {
        assert_eq!(protocols(Order::Nothing, false), Some("Simple"));
        assert_eq!(protocols(Order::Nothing, true), Some("Simple"));
        assert_eq!(protocols(Order::Words, true), Some("^LL128"));
        assert_eq!(protocols(Order::Words, false), None);
        assert_eq!(protocols(Order::Lines, true), None);
    }

    #[test]
    fn an_unknown_provider_guarantees_no_order() {
        for provider in ["net", "tcp;ofi_rxm", "sockets", "shm", "cxi", "verbs;ofi_rxm"] {
            assert_eq!(by_name(provider), Order::Words, "{provider}");
        }
        for provider in ["efa", "udp;ofi_rxd", "new"] {
            assert_eq!(by_name(provider), Order::Nothing, "{provider}");
        }
    }
}
