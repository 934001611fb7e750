//! The only access to a plugin: its comms, and the memory that it may use. `net-loader` has its file and its table.
//!
//! Ownership enforces NCCL's order: a region holds its comm and its memory; a request is tested by its comm, and holds its memory; a comm holds
//! the initialised [`Net`], which holds the [`Library`]. So in any order of drops, deregistration comes before the close, the close before
//! `finalize`, and `finalize` before `dlclose`.
//!
//! Memory in flight is not accessible: a buffer knows which of its bytes a request may still read or write, and returns no slice that
//! overlaps them. A buffer is leaked, not freed, if a request of it never completed, or its deregistration failed: then a peer may still use it.

mod claims;
mod comm;
mod element;
mod foreign;
mod forks;
mod halves;
mod memory;
mod net;
mod picks;
mod place;
mod private;

/// The atomics that `claims` uses.
mod atomic {
    pub(super) use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
}

pub(crate) use comm::{End, Post};
pub use comm::{GROUP_MAX, Handle, ListenComm, ReceiveComm, Region, Request, SendComm};
pub use element::{Complex64, DataType, Element, Op};
pub use foreign::{Foreign, ForeignMut};
pub(crate) use forks::forks;
pub use half::{bf16, f16};
pub use memory::Buffer;
pub(crate) use memory::{Memory, PinnedMemory, zeros};
pub use net::Net;
pub use net_loader::{Library, Properties};
pub(crate) use place::Place;
pub(crate) use private::Private;
