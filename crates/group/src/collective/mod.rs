//! Collectives: their calls, and the algorithms.
//!
//! An algorithm decides what goes where in which order. Waiting, matching and failing are the mesh's.

mod all_reduce;
mod calls;
mod everyone;
mod reducer;
mod rooted;
mod session;
#[cfg(test)]
mod tests;

pub(crate) use session::{Session, Work};
