//! Capabilities that a probe cannot show, taken from a provider's wire protocol and name.

use fabric::Info;
use proto::capabilities::{Capabilities, ImmediateWidth};

use super::provider::{FI_PROTO_CXI, FI_PROTO_EFA, core};

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
pub(super) fn assumed(info: &Info, inject_bytes: usize) -> Capabilities {
    Capabilities {
        immediate: ImmediateWidth::None,
        true_lengths: false,
        self_read: false,
        delivery_complete: false,
        proves_arrival: proves_arrival(info.protocol(), info.provider()),
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

/// Whether a completion of a write proves that its bytes are at the peer. No write to oneself shows that: the NIC that
/// acknowledges is the one that waits. So the wire protocol decides (fi_endpoint(3), `protocol`): on that of a reliable NIC
/// the far side acknowledges, and a provider that speaks it for another one keeps its promises; software completes from a
/// queue of its own.
fn proves_arrival(protocol: u32, provider: &str) -> bool {
    // A layered provider has a wire protocol of its own, and cxi a second one in later releases: there the name of the core provider,
    // which comes first, decides.
    matches!(protocol, FI_PROTO_CXI | FI_PROTO_EFA)
        || matches!(core(provider), "cxi" | "efa" | "verbs")
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

    #[test]
    fn only_hardware_that_acknowledges_proves_arrival() {
        let (sockets, rxm, rxd, xnet) = (6, 11, 12, 25);
        for (protocol, provider) in [
            (xnet, "net"),
            (xnet, "tcp"),
            (rxm, "tcp;ofi_rxm"),
            (sockets, "sockets"),
            (16, "shm"),
            (rxd, "udp;ofi_rxd"),
            (xnet, "another"),
        ] {
            assert!(!proves_arrival(protocol, provider), "{provider}");
        }
        for (protocol, provider) in [
            (FI_PROTO_CXI, "cxi"),
            (29, "cxi"),
            (FI_PROTO_EFA, "efa"),
            (rxm, "verbs;ofi_rxm"),
            (FI_PROTO_CXI, "another"),
            (FI_PROTO_EFA, "another"),
        ] {
            assert!(proves_arrival(protocol, provider), "{provider}");
        }
    }
}
