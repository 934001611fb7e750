//! Capabilities that a probe cannot show. What completions prove is in `plugin::arrival`.

use fabric::Info;
use proto::capabilities::{Capabilities, ImmediateWidth};

/// What is so wherever tagged messages carry everything (SENDRECV): nothing is to be tried.
pub(super) fn of_messages(info: &Info) -> Capabilities {
    Capabilities {
        // A tag says as much as four bytes, and the completion of a receive how long its message was.
        immediate: ImmediateWidth::Four,
        true_lengths: true,
        self_read: false,
        delivery_complete: false,
        proves_arrival: false,
        messages: true,
        rma_inject_bytes: 0,
        virtual_addresses: info.region_mode().virtual_addresses,
        largest_write: info.max_message(),
    }
}

/// What is known without trying, and what is to be tried as absent. Up to `inject_bytes` an endpoint would inject.
pub(super) fn assumed(info: &Info, inject_bytes: usize, proves_arrival: bool) -> Capabilities {
    Capabilities {
        immediate: ImmediateWidth::None,
        true_lengths: false,
        self_read: false,
        delivery_complete: false,
        proves_arrival,
        rma_inject_bytes: if injects(info.provider()) {
            u32::try_from(inject_bytes).unwrap_or(u32::MAX)
        } else {
            0
        },
        messages: false,
        virtual_addresses: info.region_mode().virtual_addresses,
        largest_write: info.max_message(),
    }
}

/// Whether an injected write that fails is without harm. Over tcp it is reported, without a context (libfabric prov/tcp, up to 2.5 at least),
/// and rxm dereferences the context of any failed operation: the process would crash when a peer dies.
fn injects(provider: &str) -> bool {
    provider != "tcp;ofi_rxm"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rxm_over_tcp_ends_the_process_by_an_injected_write() {
        assert!(!injects("tcp;ofi_rxm"));
        for provider in ["tcp", "net", "verbs;ofi_rxm", "sockets", "shm", "cxi", "efa"] {
            assert!(injects(provider), "{provider}");
        }
    }
}
