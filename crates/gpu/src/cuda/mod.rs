//! CUDA, by its driver API.

mod devices;
mod driver;
mod library;
mod stream;

pub use devices::{DeviceMemory, Devices};
pub use driver::{Driver, Owner};
pub use library::{DriverError, Unavailable};
pub use stream::{Stream, StreamError};
