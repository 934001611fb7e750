//! Which device owns an address, and which buffer it lies in.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::library::{Library, NAME, Unavailable, is_child};

/// The driver as NCCL's threads may use it: nothing here waits for a kernel, allocates, or needs a current context.
#[derive(Debug)]
pub struct Driver {
    library: Library, // The calls stand in it.
    attributes: PointerAttributes,
    device_attribute: DeviceAttribute,
}

/// Whose memory an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The CUDA device, as this process counts them.
    pub device: i32,
    /// The allocation that it lies in. No two of a process have the same, not even one after the other at one address. 0: the
    /// driver gave none, so nothing tells two such allocations apart.
    pub buffer: u64,
}

type PointerAttributes = unsafe extern "C" fn(
    count: c_uint,
    attributes: *mut c_int,
    places: *mut *mut c_void,
    address: u64,
) -> c_int;
type DeviceAttribute =
    unsafe extern "C" fn(value: *mut c_int, attribute: c_int, device: c_int) -> c_int;

impl Driver {
    /// This process' driver, loaded and initialised by the first call.
    ///
    /// # Errors
    ///
    /// Why there is none; the same ever after. A child of the process that asked first has none.
    pub fn get() -> Result<&'static Self, &'static Unavailable> {
        static FOUND: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
        if is_child() {
            return Err(&Unavailable::Forked);
        }
        FOUND.get_or_init(|| Self::of(Library::open(NAME)?)).as_ref()
    }

    fn of(library: Library) -> Result<Self, Unavailable> {
        // SAFETY: the driver's reference declares cuPointerGetAttributes so, since CUDA 7.0.
        let attributes = unsafe { library.symbol(c"cuPointerGetAttributes") }?;
        // SAFETY: as above, cuDeviceGetAttribute.
        let device_attribute = unsafe { library.symbol(c"cuDeviceGetAttribute") }?;
        Ok(Self { library, attributes, device_attribute })
    }

    /// How many devices there are.
    pub fn devices(&self) -> i32 {
        self.library.devices()
    }

    /// Who owns the byte at `address`, whatever context is current. `None`: it is not a device's. Managed memory is not either: it moves
    /// between host and devices, so no NIC can hold on to its place.
    pub fn owner(&self, address: u64) -> Option<Owner> {
        // The driver fills what it knows, and leaves the rest 0: an address that it does not know is no error here, as it is for
        // cuPointerGetAttribute (CUDA Driver API, Unified Addressing).
        let (mut kind, mut managed): (c_uint, c_uint) = (0, 0);
        let (mut device, mut buffer): (c_int, u64) = (0, 0);
        let mut attributes = [MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, BUFFER_ID];
        let mut places: [*mut c_void; 4] = [
            (&raw mut kind).cast(),
            (&raw mut managed).cast(),
            (&raw mut device).cast(),
            (&raw mut buffer).cast(),
        ];
        let (names, values) = (attributes.as_mut_ptr(), places.as_mut_ptr());
        // SAFETY: both arrays have four entries, and each place has the size of its attribute; an address may be any number.
        let code = unsafe { (self.attributes)(4, names, values, address) };
        let is_owned = code == 0 && kind == MEMORY_TYPE_DEVICE && managed == 0;
        is_owned.then_some(Owner { device, buffer })
    }

    /// Whether the driver and the kernel make dmabufs of this device's memory: what NCCL asks, too (NCCL src/init.cc:402-424).
    pub fn exports_dmabuf(&self, device: i32) -> bool {
        let mut answer = 0;
        // SAFETY: the place lives through the call; a device that is not there is an error.
        let code = unsafe { (self.device_attribute)(&raw mut answer, DMA_BUF_SUPPORTED, device) };
        code == 0 && answer != 0
    }
}

// CUpointer_attribute, CUmemorytype and CUdevice_attribute, as cuda.h numbers them.
const MEMORY_TYPE: c_int = 2;
const BUFFER_ID: c_int = 7;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const MEMORY_TYPE_DEVICE: c_uint = 2;
const DMA_BUF_SUPPORTED: c_int = 124;
