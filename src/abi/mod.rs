//! NCCL's C ABI: one table per API version. Each version's file has only what that version changes.
//!
//! ```text
//! v6 … v12 (tables, changed calls) ──▶ entry (newest form of each call) ──▶ plugin
//!                                      guard, place, argument, object, logger, profiler
//! ```
//!
//! Invariants enforced here: no panic and no error type crosses into NCCL; every out-parameter is written on every path, before anything
//! can fail; NCCL holds object ids, never pointers, so a stale or wild one is an error and not a crash; an error is logged once, where it
//! becomes a code.

mod argument;
mod entry;
mod explain;
#[cfg(debug_assertions)]
mod faults;
mod guard;
mod logger;
mod object;
mod place;
mod profiler;
mod published;
mod table;
#[cfg(test)]
mod tests;
mod v10;
mod v11;
mod v12;
mod v6;
mod v7;
mod v8;
mod v9;
mod words;

/// What `published` is made of.
mod atomic {
    pub(super) use std::sync::atomic::{AtomicPtr, Ordering};
}
