//! Memory on a GPU, for tools and tests: allocated, copied in and out, exported. The plugin makes none of these calls.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, OnceLock};

use super::library::{DriverError, Library, NAME, Unavailable, check, is_child};

/// The devices of this process.
#[derive(Clone, Debug)]
pub struct Devices(Arc<Calls>);

/// Memory on a device; freed when it is dropped.
#[derive(Debug)]
pub struct DeviceMemory {
    address: u64,
    len: usize,
    device: i32,
    calls: Arc<Calls>,
}

#[derive(Debug)]
struct Calls {
    library: Library, // The calls stand in it.
    device: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int,
    push: unsafe extern "C" fn(*mut c_void) -> c_int,
    pop: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    free: unsafe extern "C" fn(u64) -> c_int,
    copy_in: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    copy_out: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
    synchronise: unsafe extern "C" fn() -> c_int,
    /// CUDA 11.7 and newer.
    handle: Option<RangeHandle>,
}

type RangeHandle = unsafe extern "C" fn(*mut c_void, u64, usize, c_int, c_ulonglong) -> c_int;

impl Devices {
    /// The driver's, if there is one.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn open() -> Result<Self, Unavailable> {
        static FOUND: OnceLock<Result<Devices, Unavailable>> = OnceLock::new();
        if is_child() {
            return Err(Unavailable::Forked);
        }
        FOUND.get_or_init(|| Ok(Self(Arc::new(Calls::of(Library::open(NAME)?)?)))).clone()
    }

    /// How many there are.
    pub fn count(&self) -> i32 {
        self.0.library.devices()
    }

    /// `len` bytes on a device, in pages of its own, so that they have a dmabuf that begins where they do.
    ///
    /// # Errors
    ///
    /// The driver's, as for all that follows.
    pub fn allocate(&self, device: i32, len: usize) -> Result<DeviceMemory, DriverError> {
        let mut address = 0;
        let whole = len.max(1).next_multiple_of(GRANULE_BYTES);
        self.0.within(device, || {
            // SAFETY: the place lives through the call.
            check("cuMemAlloc", unsafe { (self.0.allocate)(&raw mut address, whole) })
        })?;
        Ok(DeviceMemory { address, len, device, calls: Arc::clone(&self.0) })
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
        self.calls.within(self.device, || {
            // SAFETY: the bytes live through the call, which is over when it returns; the place lies in the allocation.
            let code = unsafe { (self.calls.copy_in)(place, bytes.as_ptr().cast(), bytes.len()) };
            check("cuMemcpyHtoD", code)?;
            // The copy returns when the bytes have left the host's pages, and not when they have arrived (CUDA Driver API, API
            // synchronization behavior): a NIC might read what was there before.
            // SAFETY: it takes nothing.
            check("cuCtxSynchronize", unsafe { (self.calls.synchronise)() })
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
        let place = self.place(at, len);
        let mut bytes = vec![0; len];
        self.calls.within(self.device, || {
            // SAFETY: as in `write`, the other way.
            let code = unsafe { (self.calls.copy_out)(bytes.as_mut_ptr().cast(), place, len) };
            check("cuMemcpyDtoH", code)
        })?;
        Ok(bytes)
    }

    /// A new descriptor of its dmabuf, which begins where the memory does.
    ///
    /// # Errors
    ///
    /// The driver's: not every driver and kernel makes dmabufs.
    pub fn dmabuf(&self) -> Result<OwnedFd, DriverError> {
        const CALL: &str = "cuMemGetHandleForAddressRange";
        let handle = self.calls.handle.ok_or(DriverError { call: CALL, code: NOT_SUPPORTED })?;
        let len = self.len.max(1).next_multiple_of(PAGE_BYTES);
        let mut descriptor: c_int = -1;
        self.calls.within(self.device, || {
            let place = (&raw mut descriptor).cast();
            // SAFETY: for this type of handle, the place is an int's; the range lies in the allocation, which was rounded up further.
            check(CALL, unsafe { handle(place, self.address, len, DMA_BUF_FD, 0) })
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
        // Nobody could do anything about an error: the process ends soon, or the driver has.
        let _ = self.calls.within(self.device, || {
            // SAFETY: allocated by this driver, freed once.
            check("cuMemFree", unsafe { (self.calls.free)(self.address) })
        });
    }
}

impl Calls {
    fn of(library: Library) -> Result<Self, Unavailable> {
        Ok(Self {
            // SAFETY: each is declared as the driver's reference has it; cuda.h maps the plain names to these.
            device: unsafe { library.symbol(c"cuDeviceGet") }?,
            // SAFETY: as above.
            retain: unsafe { library.symbol(c"cuDevicePrimaryCtxRetain") }?,
            // SAFETY: as above.
            push: unsafe { library.symbol(c"cuCtxPushCurrent_v2") }?,
            // SAFETY: as above.
            pop: unsafe { library.symbol(c"cuCtxPopCurrent_v2") }?,
            // SAFETY: as above.
            allocate: unsafe { library.symbol(c"cuMemAlloc_v2") }?,
            // SAFETY: as above.
            free: unsafe { library.symbol(c"cuMemFree_v2") }?,
            // SAFETY: as above.
            copy_in: unsafe { library.symbol(c"cuMemcpyHtoD_v2") }?,
            // SAFETY: as above.
            copy_out: unsafe { library.symbol(c"cuMemcpyDtoH_v2") }?,
            // SAFETY: as above.
            synchronise: unsafe { library.symbol(c"cuCtxSynchronize") }?,
            // SAFETY: as above.
            handle: unsafe { library.symbol(c"cuMemGetHandleForAddressRange") }.ok(),
            library,
        })
    }

    /// Runs `body` with the device's primary context, and leaves the thread the context that it had. The context is never given back:
    /// the next call is for it.
    fn within(
        &self,
        device: i32,
        body: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let mut ordinal = 0;
        // SAFETY: the place lives through the call.
        check("cuDeviceGet", unsafe { (self.device)(&raw mut ordinal, device) })?;
        let mut context = ptr::null_mut();
        let place = &raw mut context;
        // SAFETY: as above.
        check("cuDevicePrimaryCtxRetain", unsafe { (self.retain)(place, ordinal) })?;
        // SAFETY: the context was just retained.
        check("cuCtxPushCurrent", unsafe { (self.push)(context) })?;
        let outcome = body();
        // SAFETY: the place lives through the call; what is popped was pushed above.
        let popped = check("cuCtxPopCurrent", unsafe { (self.pop)(&raw mut context) });
        outcome.and(popped)
    }
}

/// What the driver gives out as a whole: smaller allocations may share a page of the device's.
const GRANULE_BYTES: usize = 2 << 20;
/// The largest page that a host of GPUs has.
const PAGE_BYTES: usize = 1 << 16;
// cuda.h: CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, CUDA_ERROR_NOT_SUPPORTED.
const DMA_BUF_FD: c_int = 1;
const NOT_SUPPORTED: i32 = 801;
