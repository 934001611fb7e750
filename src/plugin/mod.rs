//! What the plugin does for NCCL, in our own types. `abi` is the only caller.

use crate::error::Result;
use crate::handle::Handle;

/// NCCL_NET_HANDLE_MAXSIZE (NCCL src/include/plugin/nccl_net.h).
pub(crate) const HANDLE_BYTES: usize = 128;

/// What `getProperties` reports of a device, in the newest form. Strings live as long as the library.
#[derive(Clone, Debug)]
pub(crate) struct DeviceProperties {
    pub(crate) name: &'static std::ffi::CStr,
    pub(crate) pci_path: Option<&'static std::ffi::CStr>,
    pub(crate) guid: u64,
    /// Megabits per second.
    pub(crate) speed_mbps: i32,
    pub(crate) port: i32,
    /// Whole microseconds: NCCL truncates.
    pub(crate) latency_us: f32,
    pub(crate) max_comms: i32,
    /// Largest group of receives on v9 and newer.
    pub(crate) max_receives: i32,
    pub(crate) device_memory: bool,
    pub(crate) dmabuf: bool,
    pub(crate) regions_are_global: bool,
    pub(crate) max_point_to_point_bytes: usize,
    pub(crate) max_collective_bytes: usize,
}

/// Who an endpoint belongs to: a communicator context (v11 and newer), or the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    Context(Handle),
    Thread,
}

/// One receive of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) tag: i32,
    /// `None` where NCCL gave null.
    pub(crate) region: Option<Handle>,
}

/// A request's state after a turn of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poll {
    Pending,
    /// `sizes` of them were written to the slice the caller gave.
    Done { sizes: usize },
}

/// Reads settings, finds libfabric, discovers devices: once per process. Later calls return the first answer.
pub(crate) fn start() -> Result<()> {
    todo!()
}
/// Opens a communicator context. v6 to v10 call `start` alone.
pub(crate) fn open_context() -> Result<Handle> {
    todo!()
}
/// Frees what is left of a context: listeners, comms, endpoints.
pub(crate) fn close_context(_context: Handle) -> Result<()> {
    todo!()
}
pub(crate) fn devices() -> Result<usize> {
    todo!()
}
pub(crate) fn properties(_device: usize) -> Result<&'static DeviceProperties> {
    todo!()
}
pub(crate) fn listen(_owner: Owner, _device: usize, _handle: &mut [u8; HANDLE_BYTES]) -> Result<Handle> {
    todo!()
}
/// `None`: not yet, call again with the same handle, which carries the state.
pub(crate) fn connect(_owner: Owner, _device: usize, _handle: &mut [u8; HANDLE_BYTES]) -> Result<Option<Handle>> {
    todo!()
}
pub(crate) fn accept(_listener: Handle) -> Result<Option<Handle>> {
    todo!()
}
pub(crate) fn register(_comm: Handle, _memory: fabric::UserMemory) -> Result<Handle> {
    todo!()
}
pub(crate) fn deregister(_comm: Handle, _region: Handle) -> Result<()> {
    todo!()
}
/// `cut` in v6 to v8 means: a message longer than its receive is truncated. It is a property of the receive.
pub(crate) fn isend(_comm: Handle, _address: u64, _len: usize, _tag: i32, _region: Option<Handle>) -> Result<Option<Handle>> {
    todo!()
}
pub(crate) fn irecv(_comm: Handle, _receives: &[Receive], _cut: bool) -> Result<Option<Handle>> {
    todo!()
}
/// `None`: nothing to wait for.
pub(crate) fn iflush(_comm: Handle, _buffers: &[Receive]) -> Result<Option<Handle>> {
    todo!()
}
pub(crate) fn test(_request: Handle, _sizes: &mut [usize; 8]) -> Result<Poll> {
    todo!()
}
pub(crate) fn close_send(_comm: Handle) -> Result<()> {
    todo!()
}
pub(crate) fn close_receive(_comm: Handle) -> Result<()> {
    todo!()
}
pub(crate) fn close_listen(_listener: Handle) -> Result<()> {
    todo!()
}
