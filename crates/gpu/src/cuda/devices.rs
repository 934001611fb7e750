//! Memory on a GPU, for tools and tests: allocated, copied in and out, exported. The plugin makes none of these calls.

use std::ffi::{CStr, c_int};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::OnceLock;

use cudarc::driver::sys::CUmemRangeHandleType;

use super::calls::{self, SUCCESS};
use super::child::is_child;
use super::context::Context;
use super::library::{DriverError, Library, Unavailable, check};

/// The devices of this process.
#[derive(Clone, Copy, Debug)]
pub struct Devices(Library);

/// Memory on a device; freed when it is dropped.
#[derive(Debug)]
pub struct DeviceMemory {
    address: u64,
    len: usize,
    device: i32,
    context: Context,
}

/// What is called here. cuMemGetHandleForAddressRange is CUDA 11.7's; without it there are no dmabufs.
const FUNCTIONS: [&CStr; 9] = [
    c"cuDeviceGet",
    c"cuDevicePrimaryCtxRetain",
    c"cuCtxPushCurrent_v2",
    c"cuCtxPopCurrent_v2",
    c"cuMemAlloc_v2",
    c"cuMemFree_v2",
    c"cuMemcpyHtoD_v2",
    c"cuMemcpyDtoH_v2",
    c"cuCtxSynchronize",
];

impl Devices {
    /// The driver's devices, if there is a driver.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn open() -> Result<Self, Unavailable> {
        static FOUND: OnceLock<Result<Devices, Unavailable>> = OnceLock::new();
        if is_child() {
            return Err(Unavailable::Forked);
        }
        FOUND.get_or_init(|| Library::open(&FUNCTIONS).map(Self)).clone()
    }

    /// The number of devices.
    pub fn count(&self) -> i32 {
        self.0.devices()
    }

    /// The driver's version, as CUDA numbers it: 12040 is 12.4. `None`: it does not say.
    pub fn driver_version(&self) -> Option<i32> {
        let mut version = 0;
        // SAFETY: the place lives through the call.
        let answer = unsafe { calls::cuDriverGetVersion(&raw mut version) };
        (answer == SUCCESS).then_some(version)
    }

    /// The name of a device. `None`: the driver does not give it.
    pub fn name(&self, device: i32) -> Option<String> {
        let mut text = [0_u8; 128];
        let len = c_int::try_from(text.len()).ok()?;
        // SAFETY: the place has as many bytes as the call is given; a device that does not exist is an error.
        let answer = unsafe { calls::cuDeviceGetName(text.as_mut_ptr().cast(), len, device) };
        check("cuDeviceGetName", answer).ok()?;
        Some(CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned())
    }

    /// `len` bytes on a device, in pages of its own, so that they have a dmabuf that begins where they do.
    ///
    /// # Errors
    ///
    /// The driver's, as for all that follows.
    pub fn allocate(&self, device: i32, len: usize) -> Result<DeviceMemory, DriverError> {
        let mut address = 0;
        // Past the last multiple the driver refuses.
        let whole = len.max(1).checked_next_multiple_of(GRANULE_BYTES).unwrap_or(usize::MAX);
        let context = Context::of(device)?;
        context.within(|| {
            // SAFETY: the place lives through the call.
            check("cuMemAlloc", unsafe { calls::cuMemAlloc_v2(&raw mut address, whole) })
        })?;
        Ok(DeviceMemory { address, len, device, context })
    }
}

impl DeviceMemory {
    /// Where it is, in the address space that all devices and the host share.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device that it is on.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// Copies bytes in; they are there when this returns.
    ///
    /// # Errors
    ///
    /// The driver's.
    ///
    /// # Panics
    ///
    /// When they do not fit.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), DriverError> {
        let place = self.place(at, bytes.len());
        if bytes.is_empty() {
            // The end of the memory is an address of no allocation.
            return Ok(());
        }
        self.context.within(|| {
            // SAFETY: the bytes live through the call, which is over when it returns; the place lies in the allocation.
            let code = unsafe { calls::cuMemcpyHtoD_v2(place, bytes.as_ptr().cast(), bytes.len()) };
            check("cuMemcpyHtoD", code)?;
            // The copy returns when the bytes have left the host's pages, and not when they have arrived (CUDA Driver API, API
            // synchronization behavior): a NIC might read what was there before.
            // SAFETY: it takes nothing.
            check("cuCtxSynchronize", unsafe { calls::cuCtxSynchronize() })
        })
    }

    /// Fills `bytes` with what the device sees there now; nothing is allocated.
    ///
    /// # Errors
    ///
    /// The driver's.
    ///
    /// # Panics
    ///
    /// When the range lies outside.
    pub fn read_into(&self, at: usize, bytes: &mut [u8]) -> Result<(), DriverError> {
        let place = self.place(at, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        self.context.within(|| {
            // SAFETY: as in `write`, the other way.
            let code =
                unsafe { calls::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), place, bytes.len()) };
            check("cuMemcpyDtoH", code)
        })
    }

    /// A copy of what the device sees there now.
    ///
    /// # Errors
    ///
    /// The driver's.
    ///
    /// # Panics
    ///
    /// When the range lies outside.
    pub fn read(&self, at: usize, len: usize) -> Result<Vec<u8>, DriverError> {
        let mut bytes = vec![0; len];
        self.read_into(at, &mut bytes)?;
        Ok(bytes)
    }

    /// A new descriptor of its dmabuf, which begins where the memory does.
    ///
    /// # Errors
    ///
    /// The driver's: not every driver and kernel makes dmabufs.
    pub fn dmabuf(&self) -> Result<OwnedFd, DriverError> {
        const CALL: &str = "cuMemGetHandleForAddressRange";
        let len = self.len.max(1).next_multiple_of(PAGE_BYTES);
        let mut descriptor: c_int = -1;
        self.context.within(|| {
            let place = (&raw mut descriptor).cast();
            let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
            // SAFETY: for this type of handle, the place is an int's; the range lies in the allocation, which was rounded up further.
            let answer =
                unsafe { calls::cuMemGetHandleForAddressRange(place, self.address, len, kind, 0) };
            check(CALL, answer)
        })?;
        // SAFETY: the driver has opened it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    fn place(&self, at: usize, len: usize) -> u64 {
        assert!(at <= self.len && len <= self.len - at, "{at}+{len} lies outside {}", self.len);
        self.address + at as u64
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // An error here has no remedy: the process ends soon, or the driver has.
        let _ = self.context.within(|| {
            // SAFETY: allocated by this driver, freed once.
            check("cuMemFree", unsafe { calls::cuMemFree_v2(self.address) })
        });
    }
}

/// The driver's allocation granularity: smaller allocations may share a page of the device.
const GRANULE_BYTES: usize = 2 << 20;
/// The largest page that a host of GPUs has.
const PAGE_BYTES: usize = 1 << 16;
