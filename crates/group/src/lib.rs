//! Ranks, messages and collectives over any NCCL net plugin, driven through its C tables as NCCL drives it.
//!
//! ```text
//!   launch ─▶ bootstrap                the ranks and their addresses: a rendezvous over TCP
//!                 │
//!   halo ─▶ exchange, objects ─┐
//!   messages, collective ─▶ group ─▶ mesh ─▶ loader ──C ABI──▶ the plugin
//!                                      peers, lanes, slots, matching, waiting, failing
//!   communicator ─▶ channel ───────────────▶ loader      a ring of bare connections, to measure the plugin itself
//!   check                              test data, poison, counts of wrong elements
//! ```
//! [`group::Builder`] makes a [`group::Group`]; docs/group.md is the guide. A program for `ironrail run`, or another launcher:
//!
//! ```no_run
//! use std::error::Error;
//! use std::time::Duration;
//!
//! use ironrail_group::group::Builder;
//! use ironrail_group::loader::{Library, Op};
//! use ironrail_group::start::Start;
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let library = Library::open("ironrail", None)?;
//!     let (place, hub) = Start::from_environment()?.join(Duration::from_secs(30))?;
//!     let group = Builder::new(&library).join_with(place, hub)?;
//!     let mut data = [group.rank() as f32 + 1.0; 4];
//!     group.all_reduce(&mut data, Op::Sum)?;
//!     println!("{} of {}: {data:?}", group.rank(), group.size());
//!     Ok(())
//! }
//! ```
//!
//! `unsafe` lives in [`loader`] only.
#![deny(unsafe_code)]

pub mod bootstrap;
pub mod channel;
pub mod check;
mod collective;
pub mod communicator;
pub mod devices;
pub mod error;
pub mod exchange;
pub mod group;
pub mod halo;
pub mod launch;
#[expect(unsafe_code, reason = "the one door to the plugin's C tables")]
pub mod loader;
pub mod memory;
mod mesh;
pub mod messages;
pub mod objects;
pub mod patience;
pub mod start;
pub mod tuning;
mod waiting;

#[cfg(test)]
#[expect(unsafe_code, reason = "fork(2)")]
#[path = "../../../tests/support/fork.rs"]
mod fork;

// The tests in this crate run ranks as those beside it do.
#[cfg(test)]
extern crate self as ironrail_group;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
