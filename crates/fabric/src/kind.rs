//! The two kinds of rail. They have the same libfabric objects, and separate traffic.

use std::fmt::Debug;

use libfabric_sys as sys;

/// A kind of rail, and its access to memory.
pub trait RailKind: Debug + Copy + Send + Sync + sealed::Sealed + 'static {
    /// The access that regions of this kind are registered for: fi_mr(3).
    const ACCESS: u64;
    /// The kind as a value.
    const ROLE: Role;
}

/// A kind of rail as a value, for tables with entries of both kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// [`Data`](enum@Data).
    Data,
    /// [`Control`](enum@Control).
    Control,
}

/// Transfers NCCL's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {}

/// Transfers the plugin's own messages, into inboxes that the plugin owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {}

impl RailKind for Data {
    const ACCESS: u64 = sys::FI_SEND
        | sys::FI_RECV
        | sys::FI_READ
        | sys::FI_WRITE
        | sys::FI_REMOTE_READ
        | sys::FI_REMOTE_WRITE;
    const ROLE: Role = Role::Data;
}

impl RailKind for Control {
    const ACCESS: u64 = sys::FI_SEND | sys::FI_RECV | sys::FI_WRITE | sys::FI_REMOTE_WRITE;
    const ROLE: Role = Role::Control;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Data {}
    impl Sealed for super::Control {}
}
