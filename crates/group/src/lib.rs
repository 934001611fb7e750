//! Ranks and collectives over any NCCL net plugin, driven through its C tables as NCCL drives it.
//!
//! ```text
//!   launch ─▶ bootstrap            who is there, and their handles: a tiny rendezvous
//!                 │
//!   collectives ─▶ communicator ─▶ channel ─▶ loader ──C ABI──▶ the plugin
//!        │                            one rule: only the oldest request of a channel is tested
//!        ├─▶ plan                 pure: who sends what to whom, in which order
//!        └─▶ check                test data, poison, counting what is wrong
//! ```
//! `unsafe` lives in [`loader`] only.
#![deny(unsafe_code)]

pub mod bootstrap;
pub mod channel;
pub mod check;
pub mod collectives;
pub mod communicator;
pub mod error;
pub mod launch;
#[expect(unsafe_code, reason = "the one door to the plugin's C tables")]
pub mod loader;
pub mod patience;
pub mod plan;
