//! Connections: what both ends say at set-up, who the peer is, why a connection ended.

pub(crate) mod listener;
pub(crate) mod peer;
pub(crate) mod setup;
