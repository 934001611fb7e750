//! What several parts ask of a provider: its core, its wire, and whether an endpoint of it opens with an option.

use fabric::{EndpointOption, FabricError, Info, Library, Nic, NicOptions};

/// The provider below what is layered on it: `verbs` of `verbs;ofi_rxm`.
pub(super) fn core(provider: &str) -> &str {
    provider.split(';').next().unwrap_or(provider)
}

/// The provider whose NICs these are: its core, or the one whose wire it speaks (fi_endpoint(3), `protocol`).
pub(super) fn family(info: &Info) -> &str {
    match info.protocol() {
        FI_PROTO_EFA => "efa",
        FI_PROTO_CXI => "cxi",
        _ => core(info.provider()),
    }
}

/// Opens an endpoint with these options, and closes it: only the provider knows whether it grants them.
pub(super) fn opens_with(
    library: &Library,
    info: &Info,
    options: &[EndpointOption],
) -> Result<(), FabricError> {
    let options = NicOptions {
        data: Some(options),
        control: None,
        entries: ENTRIES,
        one_queue: false,
        operations: 0,
    };
    Nic::open(library, info, &options).map(drop)
}

const ENTRIES: usize = 64;

// rdma/fabric.h.
pub(super) const FI_PROTO_SOCK_TCP: u32 = 6;
pub(super) const FI_PROTO_RXM: u32 = 11;
pub(super) const FI_PROTO_SHM: u32 = 16;
pub(super) const FI_PROTO_EFA: u32 = 20;
pub(super) const FI_PROTO_CXI: u32 = 24;
pub(super) const FI_PROTO_XNET: u32 = 25;
pub(super) const FI_PROTO_CXI_RNR: u32 = 29;
