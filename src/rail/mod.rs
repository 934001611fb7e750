//! A rail: one libfabric endpoint, and what is in flight on it.
//!
//! The data rail and the control rail of one NIC share one table of operations.

mod backlog;
mod cache;
pub(crate) mod data;
pub(crate) mod operations;
pub(crate) mod peers;
mod region;

pub(crate) use backlog::Backlog;
pub(crate) use cache::RegionCache;
pub(crate) use data::{DataRail, PartWrite};
pub(crate) use operations::{Attempt, Letter, Operations, Purpose};
pub(crate) use region::UserRegion;
