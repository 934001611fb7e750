//! Libfabric's C interface, as version 1.17 has it, found at run time.
//!
//! Nothing here links with libfabric: its few real symbols are found by [`Symbols::load`], and all else is a jump through an
//! object's table ([`calls`]). One build runs on 1.17 and on every later version, because the symbols are asked for by their
//! old versions and later fields are declared apart ([`tails`]). docs/decisions/0001-own-libfabric-declarations.md says why
//! the published crates do not do this.

#![allow(non_camel_case_types, reason = "the names are libfabric's")]

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::use_self,
    clippy::ptr_as_ptr,
    missing_debug_implementations,
    unreachable_pub,
    reason = "generated"
)]
mod bindings;
#[allow(clippy::too_many_arguments, reason = "the signatures are libfabric's")]
pub mod calls;
mod constants;
pub mod load;
pub mod tails;

pub use bindings::*;
pub use calls::*;
pub use constants::*;
pub use load::{Attempt, LoadError, Symbols};
pub use tails::*;

#[cfg(test)]
mod layout;
