//! What we ask of CUDA: whose memory an address is. The driver is found at run time, or is not there, and both are fine.
//!
//! ```text
//! Driver ── owner ──▶ Owner          for the plugin: calls that wait for no kernel, and need no context
//! Devices ── allocate ──▶ DeviceMemory    for tools and tests: memory on a GPU, copies, its dmabuf
//! ```
//!
//! The plugin is called in NCCL's threads, one of which kernels wait for: a call there that waits for kernels, as allocations and
//! copies may, can end in a deadlock. So what it may call is a type of its own, and the rest never gets into its library
//! (`tests/abi_exports.rs`).
//!
//! Declarations are by hand, from the CUDA Driver API's reference: docs/decisions/0012-the-cuda-driver.md says why.

mod devices;
mod driver;
mod library;

pub use devices::{DeviceMemory, Devices};
pub use driver::{Driver, Owner};
pub use library::{DriverError, Unavailable};
