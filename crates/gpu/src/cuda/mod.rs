//! CUDA, by its driver API.

mod devices;
mod driver;
mod library;

pub use devices::{DeviceMemory, Devices};
pub use driver::{Driver, Owner};
pub use library::{DriverError, Unavailable};
