//! Safe, owning objects over libfabric.

/// Placeholder until `memory` lands.
#[derive(Clone, Copy, Debug)]
pub struct UserMemory;
