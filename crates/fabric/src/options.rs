//! Endpoint options: fi_setopt in fi_endpoint(3). They are set after an endpoint is opened and before it is enabled.

use std::ffi::c_int;

use libfabric_sys as sys;

use crate::library::Version;

/// The name of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionName {
    /// A flag: the provider may call CUDA from its progress. From 1.18.
    CudaApiPermitted,
    /// A flag: the provider may use shared memory within a host. From 1.21.
    SharedMemoryPermitted,
    /// The largest injected write in bytes. From 1.22.
    InjectRmaSize,
    /// A flag, read-only: efa emulates writes by messages. From 1.18.
    EfaEmulatedWrite,
    /// A flag: efa writes aligned lines of 128 bytes in order. From 1.18.
    EfaWriteInOrderAligned128Bytes,
}

impl OptionName {
    /// The first release of libfabric that has this option.
    pub const fn since(self) -> Version {
        self.number().1
    }

    /// The C constant, and the first release that has it.
    pub(crate) const fn number(self) -> (c_int, Version) {
        match self {
            Self::CudaApiPermitted => (sys::FI_OPT_CUDA_API_PERMITTED, Version::new(1, 18)),
            Self::SharedMemoryPermitted => {
                (sys::FI_OPT_SHARED_MEMORY_PERMITTED, Version::new(1, 21))
            }
            Self::InjectRmaSize => (sys::FI_OPT_INJECT_RMA_SIZE, Version::new(1, 22)),
            Self::EfaEmulatedWrite => (sys::FI_OPT_EFA_EMULATED_WRITE, Version::new(1, 18)),
            Self::EfaWriteInOrderAligned128Bytes => {
                (sys::FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES, Version::new(1, 18))
            }
        }
    }
}

/// A flag to set before the endpoint is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointOption {
    /// The option.
    pub name: OptionName,
    /// Its value.
    pub value: bool,
    /// Whether opening fails if the library or provider does not support the option or refuses it; otherwise it is skipped.
    pub required: bool,
}
