//! Collectives: what they are called by, and the algorithms behind.
//!
//! An algorithm says what goes where in which order. Waiting, matching and failing are the mesh's.

mod all_reduce;
mod calls;
mod everyone;
mod reducer;
mod rooted;
mod session;

pub(crate) use session::{Session, Work};
