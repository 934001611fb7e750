//! The two kinds of rail. They have the same libfabric objects, and separate traffic.

use std::fmt::Debug;

use libfabric_sys as sys;

/// A kind of rail, and its access to memory.
pub trait RailKind: Debug + Copy + Send + Sync + sealed::Sealed + 'static {
    /// The access that regions of this kind are registered for: fi_mr(3).
    const ACCESS: u64;
    /// For logs.
    const NAME: &'static str;
    /// Whether it is the data rail.
    const IS_DATA: bool;
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
    const NAME: &'static str = "data";
    const IS_DATA: bool = true;
}

impl RailKind for Control {
    const ACCESS: u64 = sys::FI_SEND | sys::FI_RECV | sys::FI_WRITE | sys::FI_REMOTE_WRITE;
    const NAME: &'static str = "control";
    const IS_DATA: bool = false;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Data {}
    impl Sealed for super::Control {}
}
