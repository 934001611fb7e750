//! Ironrail, a network plugin for NCCL over libfabric rails.
//!
//! ```text
//! NCCL ──C ABI──▶ abi ──▶ plugin ──▶ endpoint ──▶ proto      pure: events in, actions out
//!                                       │
//!                                       └────▶ fabric (Nic, Region) ──▶ libfabric-sys ──▶ libfabric.so
//! ```
//!
//! Arrows only point right, which `tests/tidy` checks. All layers share `types`, `counter_pages`, `error`, `object_id` and `label`. Unsafe code is in `abi`,
//! and in the crates `fabric` and `libfabric-sys`; `plugin::environment` alone sets variables.

mod abi;
#[forbid(unsafe_code)]
mod counter_pages;
#[forbid(unsafe_code)]
mod endpoint;
mod error;
#[forbid(unsafe_code)]
mod fault;
#[forbid(unsafe_code)]
mod label;
#[forbid(unsafe_code)]
mod object_id;
// Denied, not forbidden: `plugin::environment` sets variables, in one place.
#[deny(unsafe_code)]
mod plugin;
#[forbid(unsafe_code)]
mod types;
