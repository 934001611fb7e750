//! NCCL itself, found at run time: as much of it as `ironrail nccl` needs to run a collective over a plugin.
//!
//! ```text
//! Nccl ── unique_id ──▶ [u8; 128]        rank 0's, which the ranks' launcher passes on
//!   └──── Communicator::init ── run ──▶   a collective on GPU memory, so many times, and how long that took
//! ```
//!
//! Types and numbers are those of nccl.h since 2.7; NCCL keeps them within a major version. Results are plain numbers here, so that
//! a newer NCCL may answer what this crate does not know.

mod communicator;
mod library;

pub use communicator::{Collective, Communicator, Kind, Range};
pub use library::{Nccl, NcclError, UNIQUE_ID_BYTES};
