//! Safe, owning objects over libfabric.
