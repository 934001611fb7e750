//! What several parts ask of a provider: its core, its wire, and whether an endpoint of it opens with an option.

use std::sync::Arc;

use fabric::{
    AddressVector, CompletionQueue, Data, Domain, Endpoint, EndpointOption, Fabric, FabricError,
    Info, Library,
};

/// The provider below what is layered on it: `verbs` of `verbs;ofi_rxm`.
pub(super) fn core(provider: &str) -> &str {
    provider.split(';').next().unwrap_or(provider)
}

/// Opens an endpoint with these options, and closes it: only the provider knows whether it grants them.
pub(super) fn opens_with(
    library: &Arc<Library>,
    info: &Info,
    options: &[EndpointOption],
) -> Result<(), FabricError> {
    let domain = Domain::open(&Fabric::open(library, info)?, info)?;
    let queue = CompletionQueue::open(&domain, ENTRIES)?;
    let addresses = AddressVector::open(&domain)?;
    Endpoint::<Data>::open_with(&domain, info, &queue, &addresses, options).map(drop)
}

const ENTRIES: usize = 64;

// rdma/fabric.h.
pub(super) const FI_PROTO_EFA: u32 = 20;
pub(super) const FI_PROTO_CXI: u32 = 24;
