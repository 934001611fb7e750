//! The tables of the plugin under test, called as NCCL calls them, with garbage allowed: a refusal is an answer here.
//!
//! What the plugin gives out is numbers, which it never follows; every buffer here lives as long as the process. So the
//! calls are safe whatever is passed, as long as the plugin keeps its promises: which is what the tests are about.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use net_abi::{
    CommConfig, HANDLE_MAX_BYTES, LOG_WARN, Logger, NetV8, NetV12, OPTIONAL_RECEIVE_COMPLETION,
    ResultCode,
};

/// What `listen` writes and `connect` is given.
pub(crate) type Handle = [u8; HANDLE_MAX_BYTES];
/// The answer of a call: its value, or its code and what it had NCCL log.
pub(crate) type Answer<T> = Result<T, Failure>;

/// A context, a comm, a region or a request: what NCCL holds for the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(pub(crate) usize);

/// A call that failed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: ResultCode,
    /// The warnings of this call, a line each.
    pub(crate) said: Vec<String>,
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.code, self.said)
    }
}

/// An open plugin.
#[derive(Clone, Copy)]
pub(crate) struct Net {
    table: &'static NetV12,
    v8: &'static NetV8,
}

/// Memory that NCCL would register. It is never freed, so that nothing the plugin does late can hurt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    start: *mut u8,
    pub(crate) len: usize,
}

macro_rules! call {
    ($table:expr, $name:ident ( $($argument:expr),* )) => {{
        let call = $table.$name.expect(concat!("the table has ", stringify!($name)));
        let before = warned();
        // SAFETY: places are ours and alive, objects are numbers to the plugin, and buffers live for ever.
        let code = unsafe { call($($argument),*) };
        if code.is_success() { Ok(()) } else { Err(Failure { code, said: warnings().split_off(before) }) }
    }};
}

impl Net {
    /// Opens the file as NCCL does. It stays open: `-z nodelete`.
    pub(crate) fn open(file: &Path) -> Self {
        let name = CString::new(file.as_os_str().as_bytes()).expect("no zero byte");
        // SAFETY: runs the library's initialisers, which is what opening a plugin means.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{} does not open", file.display());
        // SAFETY: the library is open.
        let table = unsafe { libc::dlsym(library, c"ncclNetPlugin_v12".as_ptr()) };
        // SAFETY: as above.
        let v8 = unsafe { libc::dlsym(library, c"ncclNetPlugin_v8".as_ptr()) };
        // SAFETY: by its name a table of this version, which lives as long as the library.
        let table = unsafe { table.cast::<NetV12>().as_ref() }.expect("the plugin exports v12");
        // SAFETY: as above.
        let v8 = unsafe { v8.cast::<NetV8>().as_ref() }.expect("the plugin exports v8");
        Self { table, v8 }
    }

    pub(crate) fn init(self) -> Answer<Object> {
        let mut context = STALE;
        call!(self.table, init(&raw mut context, 7, ptr::null_mut(), logger(), None))?;
        Ok(object(context).expect("a context"))
    }

    /// A communicator that asks for a traffic class.
    pub(crate) fn init_in_class(self, traffic_class: c_int) -> Answer<Object> {
        let (mut context, mut config) = (STALE, CommConfig { traffic_class });
        call!(self.table, init(&raw mut context, 7, &raw mut config, logger(), None))?;
        Ok(object(context).expect("a context"))
    }

    /// The `init` of v8, which knows no contexts.
    pub(crate) fn init_v8(self) -> Answer<()> {
        call!(self.v8, init(logger()))
    }

    pub(crate) fn devices(self) -> Answer<c_int> {
        let mut count = -1;
        call!(self.table, devices(&raw mut count))?;
        Ok(count)
    }

    pub(crate) fn listen(self, context: Object, device: c_int) -> Answer<(Handle, Object)> {
        let (mut handle, mut listener) = ([0xee; HANDLE_MAX_BYTES], STALE);
        let place = handle.as_mut_ptr().cast();
        call!(self.table, listen(pointer(context), device, place, &raw mut listener))?;
        Ok((handle, object(listener).expect("a listener")))
    }

    pub(crate) fn listen_v8(self, device: c_int) -> Answer<(Handle, Object)> {
        let (mut handle, mut listener) = ([0xee; HANDLE_MAX_BYTES], STALE);
        call!(self.v8, listen(device, handle.as_mut_ptr().cast(), &raw mut listener))?;
        Ok((handle, object(listener).expect("a listener")))
    }

    /// `None`: not yet.
    pub(crate) fn connect(
        self,
        context: Object,
        device: c_int,
        handle: &mut Handle,
    ) -> Answer<Option<Object>> {
        let (mut comm, place) = (STALE, handle.as_mut_ptr().cast());
        call!(
            self.table,
            connect(pointer(context), device, place, &raw mut comm, ptr::null_mut())
        )?;
        Ok(object(comm))
    }

    pub(crate) fn connect_v8(self, device: c_int, handle: &mut Handle) -> Answer<Option<Object>> {
        let (mut comm, place) = (STALE, handle.as_mut_ptr().cast());
        call!(self.v8, connect(device, place, &raw mut comm, ptr::null_mut()))?;
        Ok(object(comm))
    }

    pub(crate) fn accept(self, listener: Object) -> Answer<Option<Object>> {
        let mut comm = STALE;
        call!(self.table, accept(pointer(listener), &raw mut comm, ptr::null_mut()))?;
        Ok(object(comm))
    }

    pub(crate) fn register(self, comm: Object, buffer: Buffer) -> Answer<Object> {
        self.register_at(comm, buffer.address(), buffer.len)
    }

    pub(crate) fn register_at(self, comm: Object, address: usize, len: usize) -> Answer<Object> {
        let mut region = STALE;
        let data = ptr::without_provenance_mut(address);
        call!(self.table, reg_mr(pointer(comm), data, len, net_abi::PTR_HOST, &raw mut region))?;
        Ok(object(region).expect("a region"))
    }

    /// GPU memory, by its address.
    pub(crate) fn register_gpu(self, comm: Object, address: u64, len: usize) -> Answer<Object> {
        let (mut region, data) = (STALE, gpu_pointer(address));
        call!(self.table, reg_mr(pointer(comm), data, len, net_abi::PTR_CUDA, &raw mut region))?;
        Ok(object(region).expect("a region"))
    }

    /// The same by a DMA-BUF.
    pub(crate) fn register_dmabuf(
        self,
        comm: Object,
        address: u64,
        len: usize,
        offset: u64,
        descriptor: c_int,
    ) -> Answer<Object> {
        let (mut region, data) = (STALE, gpu_pointer(address));
        let kind = net_abi::PTR_CUDA;
        let place = &raw mut region;
        call!(
            self.table,
            reg_mr_dma_buf(pointer(comm), data, len, kind, offset, descriptor, place)
        )?;
        Ok(object(region).expect("a region"))
    }

    /// `ptrSupport` of a device: bits of memory's kinds.
    pub(crate) fn pointer_support(self, device: c_int) -> Answer<c_int> {
        let mut properties = std::mem::MaybeUninit::<net_abi::PropertiesV12>::zeroed();
        call!(self.table, get_properties(device, properties.as_mut_ptr()))?;
        // SAFETY: the call has written it, and zeros are valid as well.
        Ok(unsafe { properties.assume_init() }.ptr_support)
    }

    pub(crate) fn deregister(self, comm: Object, region: Object) -> Answer<()> {
        call!(self.table, dereg_mr(pointer(comm), pointer(region)))
    }

    /// `None`: not now.
    pub(crate) fn isend(
        self,
        comm: Object,
        address: usize,
        len: usize,
        tag: c_int,
        region: Object,
    ) -> Answer<Option<Object>> {
        let (mut request, data) = (STALE, ptr::without_provenance_mut(address));
        let parent = ptr::null_mut();
        call!(
            self.table,
            isend(pointer(comm), data, len, tag, pointer(region), parent, &raw mut request)
        )?;
        Ok(object(request))
    }

    /// One receive. `None`: not now.
    pub(crate) fn irecv(
        self,
        comm: Object,
        address: usize,
        len: usize,
        tag: c_int,
        region: Object,
    ) -> Answer<Option<Object>> {
        self.irecv_group(comm, 1, address, len, tag, region)
    }

    /// The same, where the caller sees by itself that the bytes have come.
    pub(crate) fn irecv_optional(
        self,
        comm: Object,
        address: usize,
        len: usize,
        tag: c_int,
        region: Object,
    ) -> Answer<Option<Object>> {
        let asked = ptr::without_provenance_mut(OPTIONAL_RECEIVE_COMPLETION);
        self.irecv_alike(comm, 1, address, len, tag, region, asked)
    }

    /// A group of `count` receives, all alike.
    pub(crate) fn irecv_group(
        self,
        comm: Object,
        count: c_int,
        address: usize,
        len: usize,
        tag: c_int,
        region: Object,
    ) -> Answer<Option<Object>> {
        self.irecv_alike(comm, count, address, len, tag, region, STALE)
    }

    #[allow(clippy::too_many_arguments, reason = "as many as NCCL passes")]
    fn irecv_alike(
        self,
        comm: Object,
        count: c_int,
        address: usize,
        len: usize,
        tag: c_int,
        region: Object,
        mut request: *mut c_void,
    ) -> Answer<Option<Object>> {
        let mut data = [ptr::without_provenance_mut(address); 64];
        let (mut sizes, mut tags, mut regions) = ([len; 64], [tag; 64], [pointer(region); 64]);
        call!(
            self.table,
            irecv(
                pointer(comm),
                count,
                data.as_mut_ptr(),
                sizes.as_mut_ptr(),
                tags.as_mut_ptr(),
                regions.as_mut_ptr(),
                ptr::null_mut(),
                &raw mut request
            )
        )?;
        Ok(object(request))
    }

    /// `None`: there is nothing to wait for.
    pub(crate) fn iflush(
        self,
        comm: Object,
        address: usize,
        len: usize,
        region: Object,
    ) -> Answer<Option<Object>> {
        let (mut request, mut data) = (STALE, ptr::without_provenance_mut(address));
        let (mut size, mut regions) = (c_int::try_from(len).unwrap_or(c_int::MAX), pointer(region));
        let (data, size, regions) = (&raw mut data, &raw mut size, &raw mut regions);
        call!(self.table, iflush(pointer(comm), 1, data, size, regions, &raw mut request))?;
        Ok(object(request))
    }

    /// The same for a group: where each buffer begins, its size as NCCL says it, and its registration.
    pub(crate) fn iflush_each(
        self,
        comm: Object,
        buffers: &[(usize, c_int, Object)],
    ) -> Answer<Option<Object>> {
        let mut request = STALE;
        let mut data: Vec<*mut c_void> =
            buffers.iter().map(|(address, ..)| ptr::without_provenance_mut(*address)).collect();
        let mut sizes: Vec<c_int> = buffers.iter().map(|(_, size, _)| *size).collect();
        let mut regions: Vec<_> = buffers.iter().map(|(.., region)| pointer(*region)).collect();
        let count = c_int::try_from(buffers.len()).expect("few");
        let (data, sizes, regions) = (data.as_mut_ptr(), sizes.as_mut_ptr(), regions.as_mut_ptr());
        call!(self.table, iflush(pointer(comm), count, data, sizes, regions, &raw mut request))?;
        Ok(object(request))
    }

    /// A group of receives, each into a buffer of its own: where, its length, its tag and its registration.
    pub(crate) fn irecv_into(
        self,
        comm: Object,
        receives: &[(usize, usize, c_int, Object)],
    ) -> Answer<Option<Object>> {
        let mut request = STALE;
        let mut data: Vec<*mut c_void> =
            receives.iter().map(|(address, ..)| ptr::without_provenance_mut(*address)).collect();
        let mut sizes: Vec<usize> = receives.iter().map(|(_, len, ..)| *len).collect();
        let mut tags: Vec<c_int> = receives.iter().map(|(_, _, tag, _)| *tag).collect();
        let mut regions: Vec<_> = receives.iter().map(|(.., region)| pointer(*region)).collect();
        call!(
            self.table,
            irecv(
                pointer(comm),
                c_int::try_from(receives.len()).expect("few"),
                data.as_mut_ptr(),
                sizes.as_mut_ptr(),
                tags.as_mut_ptr(),
                regions.as_mut_ptr(),
                ptr::null_mut(),
                &raw mut request
            )
        )?;
        Ok(object(request))
    }

    /// A group of receives: where each begins, its length and its tag.
    pub(crate) fn irecv_each(
        self,
        comm: Object,
        receives: &[(usize, usize, c_int)],
        region: Object,
    ) -> Answer<Option<Object>> {
        let of_one = |&(address, len, tag)| (address, len, tag, region);
        self.irecv_into(comm, &receives.iter().map(of_one).collect::<Vec<_>>())
    }

    /// The sizes of `count` messages that are done.
    pub(crate) fn test_each(self, request: Object, count: usize) -> Answer<Option<Vec<usize>>> {
        let (mut done, mut sizes) = (77, [-7; 64]);
        call!(self.table, test(pointer(request), &raw mut done, sizes.as_mut_ptr()))?;
        assert!(done == 0 || done == 1, "test left done as it was");
        let size = |size: &c_int| usize::try_from(*size).expect("test wrote a size");
        Ok((done == 1).then(|| sizes[..count].iter().map(size).collect()))
    }

    /// An isend of v8, whose sizes are `int`.
    pub(crate) fn isend_v8(
        self,
        comm: Object,
        address: usize,
        len: c_int,
        region: Object,
    ) -> Answer<Option<Object>> {
        let (mut request, data) = (STALE, ptr::without_provenance_mut(address));
        call!(self.v8, isend(pointer(comm), data, len, 0, pointer(region), &raw mut request))?;
        Ok(object(request))
    }

    /// An irecv of v8: a message that is longer is cut.
    pub(crate) fn irecv_v8(
        self,
        comm: Object,
        address: usize,
        len: c_int,
        region: Object,
    ) -> Answer<Option<Object>> {
        let (mut request, mut data) = (STALE, ptr::without_provenance_mut(address));
        let (mut size, mut tag, mut regions) = (len, 0, pointer(region));
        let (data, size, tag) = (&raw mut data, &raw mut size, &raw mut tag);
        let regions = &raw mut regions;
        call!(self.v8, irecv(pointer(comm), 1, data, size, tag, regions, &raw mut request))?;
        Ok(object(request))
    }

    /// Bytes of a message that is done.
    pub(crate) fn test(self, request: Object) -> Answer<Option<usize>> {
        let (mut done, mut sizes) = (77, [-7; 64]);
        call!(self.table, test(pointer(request), &raw mut done, sizes.as_mut_ptr()))?;
        assert!(done == 0 || done == 1, "test left done as it was");
        Ok((done == 1).then(|| usize::try_from(sizes[0]).expect("test wrote a size")))
    }

    /// Whether a flush is done, which has no size.
    pub(crate) fn test_flush(self, request: Object) -> Answer<bool> {
        let (mut done, mut sizes) = (77, [-7; 64]);
        call!(self.table, test(pointer(request), &raw mut done, sizes.as_mut_ptr()))?;
        assert!(done == 0 || done == 1, "test left done as it was");
        Ok(done == 1)
    }

    pub(crate) fn close_send(self, comm: Object) -> Answer<()> {
        call!(self.table, close_send(pointer(comm)))
    }

    pub(crate) fn close_recv(self, comm: Object) -> Answer<()> {
        call!(self.table, close_recv(pointer(comm)))
    }

    pub(crate) fn close_listen(self, listener: Object) -> Answer<()> {
        call!(self.table, close_listen(pointer(listener)))
    }

    pub(crate) fn finalize(self, context: Object) -> Answer<()> {
        call!(self.table, finalize(pointer(context)))
    }
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let bytes = vec![0_u8; len.max(1)].leak();
        Self { start: bytes.as_mut_ptr(), len }
    }

    /// `len` of its bytes, from `offset` on.
    pub(crate) fn part(self, offset: usize, len: usize) -> Self {
        assert!(offset + len <= self.len);
        // SAFETY: within the buffer, which lives for ever.
        Self { start: unsafe { self.start.add(offset) }, len }
    }

    pub(crate) fn address(self) -> usize {
        self.start.expose_provenance()
    }

    pub(crate) fn write(self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        // SAFETY: within the buffer, which lives for ever; the caller is not sending from here now.
        let to = unsafe { self.start.add(offset) };
        // SAFETY: as above, and `bytes` is no part of a buffer that the network writes to.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    pub(crate) fn read(self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: within the buffer, which lives for ever.
        let from = unsafe { self.start.add(offset) };
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) };
        bytes
    }
}

/// Every warning so far: what a user would read.
pub(crate) fn warnings() -> Vec<String> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// How many there are.
pub(crate) fn warned() -> usize {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).len()
}

/// All that the log has said, of every level.
pub(crate) fn lines() -> Vec<String> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

static ALL: Mutex<Vec<String>> = Mutex::new(Vec::new());
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// What stands in a place before the call: a plugin has to overwrite it.
const STALE: *mut c_void = ptr::without_provenance_mut(0x5a5a_5a5a_5a5a_5a5a);

fn pointer(object: Object) -> *mut c_void {
    ptr::without_provenance_mut(object.0)
}

fn gpu_pointer(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(usize::try_from(address).expect("64 bits"))
}

fn object(place: *mut c_void) -> Option<Object> {
    assert_ne!(place, STALE, "a call that succeeds writes its place");
    (!place.is_null()).then(|| Object(place.addr()))
}

fn logger() -> Logger {
    type Fixed =
        unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    type Variadic = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
    // SAFETY: on 64-bit Linux a variadic function whose one further argument is a pointer is called as this one is.
    Some(unsafe { std::mem::transmute::<Fixed, Variadic>(receive) })
}

unsafe extern "C" fn receive(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    _: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the plugin's format is "%s", so its argument is a C string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    super::say(&format!("  log {level}: {text}"));
    ALL.lock().unwrap_or_else(PoisonError::into_inner).push(text.clone());
    if level == LOG_WARN {
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}
