//! What Ironrail asks of a GPU's driver: whose memory an address is. The driver is found at run time; a host without one is served
//! as well.
//!
//! ```text
//! Driver ── owner ──▶ Owner               for the plugin: calls that wait for no kernel and need no context
//! Devices ── allocate ──▶ DeviceMemory    for tools and tests: memory on a GPU, copies, its dmabuf
//!         ├─ Pinned              host memory that copies go to and from, for the group library
//!         └─ Stream              what kernels are put into: for `ironrail nccl`, and for the group library to wait for
//! ```
//!
//! NCCL calls the plugin on threads that kernels wait for. A call that waits for a kernel there, as allocations and copies may, can
//! end in a deadlock. So what the plugin may call is a type of its own, [`Driver`], and the rest does not get into its library
//! (`tests/abi_exports.rs`).
//!
//! # Platforms
//!
//! The types at the top of this crate are the seam between Ironrail and a vendor's runtime. The module `cuda` is the one platform behind
//! them, and stands on the crate `cudarc` (docs/decisions/0012-the-cuda-driver.md). ROCm would be a second module with the same
//! types; that page lists what it would need.

mod cuda;

pub use cuda::{
    DeviceMemory, Devices, Driver, DriverError, Owner, Pinned, Stream, StreamError, Unavailable,
};
