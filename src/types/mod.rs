//! Types that all layers share: arguments and results of NCCL's calls, settings, and facts about a device.

mod device;
mod settings;
pub(crate) mod stall;

pub(crate) use device::{DeviceFacts, GpuAccess, Probed, Protocol, gpu_number};
/// How a receive, or a group, is posted.
pub(crate) use proto::Posting;
// NCCL's memory. Only `abi` may construct it, since only its caller can guarantee that it is valid.
pub(crate) use fabric::{Dmabuf, UserMemory};
pub(crate) use settings::Settings;

use crate::object_id::RawId;

/// NCCL_NET_HANDLE_MAXSIZE (NCCL src/include/plugin/nccl_net.h).
pub(crate) const HANDLE_BYTES: usize = 128;

/// A buffer, as NCCL passed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) tag: i32,
    pub(crate) region: RawId,
}

/// A message, as it is reported to NCCL's profiler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageFacts {
    pub(crate) is_send: bool,
    pub(crate) failed: bool,
    /// The data rails that carried it, one bit each.
    pub(crate) rails: u16,
    pub(crate) device: u16,
    pub(crate) endpoint: u16,
    pub(crate) connection: u16,
    pub(crate) bytes: u64,
}

/// The result of `test`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tested {
    /// Not done; one poll was made.
    Pending,
    /// Done: the size of the message.
    Done(u64),
    /// Done: the number of messages; [`Endpoint::sizes`](crate::endpoint::Endpoint::sizes) has their sizes.
    Group(usize),
}
