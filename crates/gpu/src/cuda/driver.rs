//! Which device owns an address, and which buffer it lies in.

use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUdevice_attribute as DeviceAttribute, CUmemorytype as MemoryType,
    CUpointer_attribute as PointerAttribute,
};

use super::calls::{self, SUCCESS};
use super::child::is_child;
use super::library::{Library, Unavailable};

/// The driver as NCCL's threads may use it: no call here waits for a kernel, allocates, or needs a current context.
#[derive(Debug)]
pub struct Driver(Library);

/// Whose memory an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The CUDA device, as this process counts them.
    pub device: i32,
    /// The driver's id of the allocation that the address lies in. A process never has two allocations with one id, not even one
    /// after the other at the same address. 0: the driver gave no id, so such allocations cannot be distinguished.
    pub buffer: u64,
}

impl Driver {
    /// This process' driver, loaded and initialised by the first call.
    ///
    /// # Errors
    ///
    /// Why there is none; every later call answers the same. A child of the process that asked first has none.
    pub fn get() -> Result<&'static Self, &'static Unavailable> {
        static FOUND: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
        if is_child() {
            return Err(&Unavailable::Forked);
        }
        let open = || Library::open(&[c"cuPointerGetAttributes", c"cuDeviceGetAttribute"]);
        FOUND.get_or_init(|| open().map(Self)).as_ref()
    }

    /// How many devices there are.
    pub fn devices(&self) -> i32 {
        self.0.devices()
    }

    /// The owner of the byte at `address`, whatever context is current. `None`: the byte is not a device's. Managed memory counts as
    /// not a device's: it moves between host and devices, so its place cannot be registered with a NIC.
    pub fn owner(&self, address: u64) -> Option<Owner> {
        // The driver fills what it knows and leaves the rest 0. For an address that it does not know, cuPointerGetAttribute
        // answers with an error, and this call does not (CUDA Driver API, Unified Addressing).
        let (mut kind, mut managed): (c_uint, c_uint) = (0, 0);
        let (mut device, mut buffer): (c_int, u64) = (0, 0);
        let mut attributes = [
            PointerAttribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            PointerAttribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            PointerAttribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            PointerAttribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
        ];
        let mut places = [
            (&raw mut kind).cast(),
            (&raw mut managed).cast(),
            (&raw mut device).cast(),
            (&raw mut buffer).cast(),
        ];
        let (names, values) = (attributes.as_mut_ptr(), places.as_mut_ptr());
        // SAFETY: both arrays have four entries, and each place has the size of its attribute; an address may be any number.
        let answer = unsafe { calls::cuPointerGetAttributes(4, names, values, address) };
        let is_device = kind == MemoryType::CU_MEMORYTYPE_DEVICE as c_uint;
        let is_owned = answer == SUCCESS && is_device && managed == 0;
        is_owned.then_some(Owner { device, buffer })
    }

    /// Whether the driver and the kernel export this device's memory as dmabufs. NCCL asks the same attribute
    /// (NCCL src/init.cc:402-424).
    pub fn exports_dmabuf(&self, device: i32) -> bool {
        let mut value = 0;
        let attribute = DeviceAttribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
        // SAFETY: the place lives through the call; a device that does not exist is an error.
        let answer = unsafe { calls::cuDeviceGetAttribute(&raw mut value, attribute, device) };
        answer == SUCCESS && value != 0
    }
}
