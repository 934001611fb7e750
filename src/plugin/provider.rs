//! Facts about a provider that several modules need: its wire protocol, and endpoints to try options on.

use fabric::{EndpointOption, FabricError, Info, Nic, NicOptions};

/// Opens an endpoint with these options: only the provider can tell whether it supports them.
pub(super) fn open_with(info: &Info, options: &[EndpointOption]) -> Result<Nic, FabricError> {
    let options = NicOptions { data: Some(options), entries: ENTRIES, ..NicOptions::default() };
    Nic::open(info, &options)
}

/// Whether the endpoint does not open because of the option, not for another reason.
pub(super) fn refuses_option(error: FabricError) -> bool {
    error.call() == "fi_setopt"
}

const ENTRIES: usize = 64;

// From rdma/fabric.h.
pub(super) const FI_PROTO_SOCK_TCP: u32 = 6;
pub(super) const FI_PROTO_RXM: u32 = 11;
pub(super) const FI_PROTO_SHM: u32 = 16;
pub(super) const FI_PROTO_EFA: u32 = 20;
pub(super) const FI_PROTO_CXI: u32 = 24;
pub(super) const FI_PROTO_XNET: u32 = 25;
pub(super) const FI_PROTO_CXI_RNR: u32 = 29;
