//! A rail: one libfabric endpoint, and what is in flight on it.
