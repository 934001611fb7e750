//! Declarations of libfabric.
