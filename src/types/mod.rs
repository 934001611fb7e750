//! What all layers share: what NCCL's calls are made of, and what an endpoint is handed of settings and of its device.

pub(crate) mod counts;
mod device;
mod settings;
pub(crate) mod stall;

pub(crate) use device::{DeviceFacts, GpuAccess, Probed, Protocol, gpu_number};
/// How a receive, or a group, is posted.
pub(crate) use proto::Posting;
// NCCL's memory, of which only `abi` can vouch.
pub(crate) use fabric::{Dmabuf, UserMemory};
pub(crate) use settings::Settings;

use crate::object_id::RawId;

/// NCCL_NET_HANDLE_MAXSIZE (NCCL src/include/plugin/nccl_net.h).
pub(crate) const HANDLE_BYTES: usize = 128;

/// One buffer, as NCCL named it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) tag: i32,
    pub(crate) region: RawId,
}

/// The answer to a test.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tested {
    /// A poll was made.
    Pending,
    /// The size of the message.
    Done(u64),
    /// So many messages: [`Endpoint::sizes`](crate::endpoint::Endpoint::sizes) has their sizes.
    Group(usize),
}
