//! Which NICs of a machine make one device, and why: pure code over a description of the machine.
//!
//! ```text
//!   sysfs ──▶ Machine, Nic ──▶ group ──▶ Grouping: devices, rails, a reason for each ──▶ hint (NCCL's file), text
//!   a file ──▶ (describe)
//! ```
//!
//! - [`sysfs`] alone reads the machine; everything else is a function of data, so that any machine can be tested anywhere.
//! - A description can be written and read as text ([`Description`]): users can send one of a machine that we do not have.
//! - Incomplete descriptions give devices too: with a loop, a missing bridge, no NUMA node, a link of unknown width.

#![forbid(unsafe_code)]

mod address;
mod describe;
mod group;
mod hint;
mod link;
mod machine;
mod nic;
mod properties;
pub mod sysfs;
mod text;

pub use address::PciAddress;
pub use describe::{Description, DescriptionError};
pub use group::{Group, Grouping, LeftOut, Omission, Reason, group};
pub use hint::{Hint, Raised, hint};
pub use link::{LaneSpeed, Link};
pub use machine::{Machine, PciFunction, Place, Role};
pub use nic::{Class, Nic};
pub use properties::{Properties, properties};
