//! Arrow's record batches between the ranks of a group. Columns of a received batch refer to the memory that it was received into.
//!
//! ```text
//! schema   fingerprint │ the schema as Arrow's IPC has it, once for each peer
//! frame    fingerprint │ dictionaries and batch as Arrow's IPC has them, at multiples of 64 bytes
//! ```
//! [`Batches`] has the calls. Both are objects of [`ironrail_group`], in groups of their own.
#![forbid(unsafe_code)]

mod batches;
mod book;
mod frame;
mod inner;
mod requests;

pub use batches::Batches;
pub use requests::{ReceivingBatch, SendingBatch};

#[cfg(test)]
#[path = "../../group/tests/support/mod.rs"]
mod support;
