//! The only access to a plugin: its file, its tables, its comms, and the memory that it may use.
//!
//! Ownership enforces NCCL's order: a region holds its comm and its memory; a request is tested by its comm, and holds its memory; a comm holds
//! the initialised [`Net`], which holds the [`Library`]. So deregistration comes before the close, the close before `finalize`, and that before `dlclose`, in whatever
//! order the values are dropped.
//!
//! Memory in flight is not accessible: a buffer knows which of its bytes a request may still read or write, and returns no slice that
//! overlaps them. A buffer whose requests never completed is leaked, not freed.

pub mod calls;
mod claims;
mod comm;
mod element;
mod foreign;
mod halves;
mod library;
mod logger;
mod memory;
mod net;
mod picks;
mod place;
mod properties;
pub mod raw;

pub(crate) use comm::Post;
pub use comm::{GROUP_MAX, Handle, ListenComm, ReceiveComm, Region, Request, SendComm};
pub use element::{Complex64, DataType, Element, Op};
pub use foreign::{Foreign, ForeignMut};
pub use half::{bf16, f16};
pub use library::{Library, candidates};
pub(crate) use logger::expecting_ends;
pub(crate) use memory::Memory;
pub use memory::{Buffer, page_bytes};
pub use net::Net;
pub use net_abi::{NEWEST, OLDEST};
pub(crate) use place::Place;
pub use properties::Properties;
