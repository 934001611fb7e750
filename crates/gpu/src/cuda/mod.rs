//! CUDA, by its driver API.

mod calls;
mod child;
mod context;
mod devices;
mod driver;
mod library;
mod pinned;
mod stream;

pub use devices::{DeviceMemory, Devices};
pub use driver::{Driver, Owner};
pub use library::{DriverError, Unavailable};
pub use pinned::Pinned;
pub use stream::{Stream, StreamError};
