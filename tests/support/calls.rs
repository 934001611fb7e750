//! The tables of the plugin under test, called as NCCL calls them, with garbage allowed: a refusal is a result here.
//!
//! The plugin's objects are numbers, which the tests never dereference; every buffer here lives as long as the process. So the calls are
//! safe whatever is passed, as long as the plugin keeps its promises, which is what the tests check.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use net_abi::{
    CommConfig, HANDLE_MAX_BYTES, LOG_WARN, Logger, OPTIONAL_RECEIVE_COMPLETION, Profiler,
    PropertiesV12, ResultCode, VProps8,
};
use net_loader::Library;
use net_loader::calls::{Calls, Lists};

/// What `listen` writes and `connect` is given.
pub(crate) type Handle = [u8; HANDLE_MAX_BYTES];
/// The result of a call: its value, or its code and what the plugin logged.
pub(crate) type Answer<T> = Result<T, Failure>;

/// A context, a comm, a region or a request, as NCCL holds it for the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(pub(crate) usize);

/// A call that failed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: ResultCode,
    /// The warnings of this call, one line each.
    pub(crate) said: Vec<String>,
}

impl Failure {
    /// The call's own sentences: the loss of a rail may be reported in the same call, or in an earlier one.
    pub(crate) fn errors(&self) -> Vec<&str> {
        let own = self.said.iter().filter(|line| !line.contains(" is lost: "));
        own.map(String::as_str).collect()
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.code, self.said)
    }
}

/// An open plugin: its newest table, and some older ones.
#[derive(Clone, Copy)]
pub(crate) struct Net {
    table: &'static Calls,
    v8: &'static Calls,
    v10: &'static Calls,
}

/// Memory that NCCL would register. It is never freed, so that late accesses of the plugin do no harm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    start: *mut u8,
    pub(crate) len: usize,
}

/// Makes a call of [`Calls`]; the result is its code, with the plugin's log if that is an error.
macro_rules! call {
    ($table:expr, $name:ident ( $($argument:expr),* $(,)? )) => {{
        let before = warned();
        // SAFETY: places are ours and alive, objects are numbers to the plugin, and buffers live for ever.
        let code = unsafe { $table.$name($($argument),*) };
        if code.is_success() { Ok(()) } else { Err(Failure { code, said: warnings().split_off(before) }) }
    }};
}

/// The same for a call that some versions lack, or do not have for every length: the test knows its version.
macro_rules! call_of_version {
    ($table:expr, $name:ident ( $($argument:expr),* $(,)? )) => {{
        let before = warned();
        // SAFETY: as above.
        let code = unsafe { $table.$name($($argument),*) };
        let code = code.expect("a call of this version");
        if code.is_success() { Ok(()) } else { Err(Failure { code, said: warnings().split_off(before) }) }
    }};
}

impl Net {
    /// Opens the file as NCCL does.
    pub(crate) fn open(file: &Path) -> Self {
        Self { table: calls(file, 12), v8: calls(file, 8), v10: calls(file, 10) }
    }

    /// The same with the table of another version for the newest one's calls.
    pub(crate) fn open_version(file: &Path, version: u32) -> Self {
        Self { table: calls(file, version), ..Self::open(file) }
    }

    pub(crate) fn init(self) -> Answer<Object> {
        self.init_profiled(None)
    }

    /// The context is null in versions without contexts.
    pub(crate) fn init_profiled(self, profiler: Profiler) -> Answer<Object> {
        let mut context = match self.table.has_contexts() {
            true => STALE,
            false => ptr::null_mut(),
        };
        call!(self.table, init(&raw mut context, 7, ptr::null_mut(), logger(), profiler))?;
        assert_ne!(context, STALE, "init writes its place");
        Ok(Object(context.addr()))
    }

    /// A communicator with a traffic class.
    pub(crate) fn init_in_class(self, traffic_class: c_int) -> Answer<Object> {
        let (mut context, mut config) = (STALE, CommConfig { traffic_class });
        call!(self.table, init(&raw mut context, 7, &raw mut config, logger(), None))?;
        Ok(object(context).expect("a context"))
    }

    /// The `init` of v8, which has no contexts.
    pub(crate) fn init_v8(self) -> Answer<()> {
        call!(self.v8, init(ptr::null_mut(), 0, ptr::null_mut(), logger(), None))
    }

    /// The `init` of v10, which has no contexts either.
    pub(crate) fn init_v10(self) -> Answer<()> {
        call!(self.v10, init(ptr::null_mut(), 0, ptr::null_mut(), logger(), None))
    }

    /// As `make_device`, by the table with four places.
    pub(crate) fn make_device_v10(self, parts: [c_int; 4], count: c_int) -> Answer<c_int> {
        let [first, second, third, fourth] = parts;
        let asked = VProps8 { ndevs: count, devs: [first, second, third, fourth, 0, 0, 0, 0] };
        let mut device = -7;
        call_of_version!(self.v10, make_device(&raw mut device, asked))?;
        Ok(device)
    }

    pub(crate) fn listen_v10(self, device: c_int) -> Answer<(Handle, Object)> {
        let (mut handle, mut listener) = ([0xee; HANDLE_MAX_BYTES], STALE);
        let (context, place) = (ptr::null_mut(), handle.as_mut_ptr().cast());
        call!(self.v10, listen(context, device, place, &raw mut listener))?;
        Ok((handle, object(listener).expect("a listener")))
    }

    /// A connect with a traffic class. `None`: not yet.
    pub(crate) fn connect_v10(
        self,
        device: c_int,
        traffic_class: c_int,
        handle: &mut Handle,
    ) -> Answer<Option<Object>> {
        let (mut comm, place) = (STALE, handle.as_mut_ptr().cast());
        let mut config = CommConfig { traffic_class };
        let (context, device_comm) = (ptr::null_mut(), ptr::null_mut());
        call!(
            self.v10,
            connect(context, device, &raw mut config, place, &raw mut comm, device_comm)
        )?;
        Ok(object(comm))
    }

    pub(crate) fn devices(self) -> Answer<c_int> {
        let mut count = -1;
        call!(self.table, devices(&raw mut count))?;
        Ok(count)
    }

    /// One device of these, and its index.
    pub(crate) fn make_device(self, parts: &[c_int]) -> Answer<c_int> {
        let mut asked = VProps8 { ndevs: 0, devs: [0; 8] };
        for (place, part) in asked.devs.iter_mut().zip(parts) {
            *place = *part;
        }
        asked.ndevs = c_int::try_from(parts.len()).expect("a small number");
        let mut device = -7;
        call_of_version!(self.table, make_device(&raw mut device, asked))?;
        Ok(device)
    }

    pub(crate) fn listen(self, context: Object, device: c_int) -> Answer<(Handle, Object)> {
        let (mut handle, mut listener) = ([0xee; HANDLE_MAX_BYTES], STALE);
        let place = handle.as_mut_ptr().cast();
        call!(self.table, listen(pointer(context), device, place, &raw mut listener))?;
        Ok((handle, object(listener).expect("a listener")))
    }

    pub(crate) fn listen_v8(self, device: c_int) -> Answer<(Handle, Object)> {
        let (mut handle, mut listener) = ([0xee; HANDLE_MAX_BYTES], STALE);
        let (context, place) = (ptr::null_mut(), handle.as_mut_ptr().cast());
        call!(self.v8, listen(context, device, place, &raw mut listener))?;
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
            connect(
                pointer(context),
                device,
                ptr::null_mut(),
                place,
                &raw mut comm,
                ptr::null_mut()
            )
        )?;
        Ok(object(comm))
    }

    pub(crate) fn connect_v8(self, device: c_int, handle: &mut Handle) -> Answer<Option<Object>> {
        let (mut comm, place) = (STALE, handle.as_mut_ptr().cast());
        let none = ptr::null_mut();
        call!(
            self.v8,
            connect(none, device, ptr::null_mut(), place, &raw mut comm, ptr::null_mut())
        )?;
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
        call_of_version!(
            self.table,
            reg_mr(pointer(comm), data, len, net_abi::PTR_HOST, &raw mut region)
        )?;
        Ok(object(region).expect("a region"))
    }

    /// GPU memory, by its address.
    pub(crate) fn register_gpu(self, comm: Object, address: u64, len: usize) -> Answer<Object> {
        let (mut region, data) = (STALE, gpu_pointer(address));
        call_of_version!(
            self.table,
            reg_mr(pointer(comm), data, len, net_abi::PTR_CUDA, &raw mut region)
        )?;
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
        call_of_version!(
            self.table,
            reg_mr_dma_buf(pointer(comm), data, len, kind, offset, descriptor, place)
        )?;
        Ok(object(region).expect("a region"))
    }

    /// `ptrSupport` of a device: bits of kinds of memory.
    pub(crate) fn pointer_support(self, device: c_int) -> Answer<c_int> {
        self.properties(device).map(|properties| properties.ptr_support)
    }

    pub(crate) fn properties(self, device: c_int) -> Answer<PropertiesV12> {
        let mut properties = std::mem::MaybeUninit::<PropertiesV12>::zeroed();
        call_of_version!(self.table, get_properties_v12(device, properties.as_mut_ptr()))?;
        // SAFETY: the call has written it, and zeros are valid as well.
        Ok(unsafe { properties.assume_init() })
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
        self.isend_profiled(comm, (address, len, tag, region), 0)
    }

    /// The same with a parent for the profiler's event.
    pub(crate) fn isend_profiled(
        self,
        comm: Object,
        (address, len, tag, region): (usize, usize, c_int, Object),
        parent: usize,
    ) -> Answer<Option<Object>> {
        let (mut request, data) = (STALE, ptr::without_provenance_mut(address));
        let parent = ptr::without_provenance_mut(parent);
        call_of_version!(
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

    /// The same with optional completion: the caller detects the arrival of the bytes itself.
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

    /// A group of `count` equal receives.
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
        let lists = lists(&mut data, &mut sizes, &mut tags, &mut regions);
        call_of_version!(self.table, irecv(pointer(comm), count, &lists, &raw mut request))?;
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

    /// The same for a group: the address of each buffer, its size as NCCL passes it, and its registration.
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

    /// A group of receives, each into a buffer of its own: the address, the length, the tag and the registration.
    pub(crate) fn irecv_into(
        self,
        comm: Object,
        receives: &[(usize, usize, c_int, Object)],
    ) -> Answer<Option<Object>> {
        self.irecv_profiled(comm, receives, &[])
    }

    /// The same with a parent for the profiler's event of each, or without the array.
    pub(crate) fn irecv_profiled(
        self,
        comm: Object,
        receives: &[(usize, usize, c_int, Object)],
        parents: &[usize],
    ) -> Answer<Option<Object>> {
        let mut request = STALE;
        let mut data: Vec<*mut c_void> =
            receives.iter().map(|(address, ..)| ptr::without_provenance_mut(*address)).collect();
        let mut sizes: Vec<usize> = receives.iter().map(|(_, len, ..)| *len).collect();
        let mut tags: Vec<c_int> = receives.iter().map(|(_, _, tag, _)| *tag).collect();
        let mut regions: Vec<_> = receives.iter().map(|(.., region)| pointer(*region)).collect();
        let count = c_int::try_from(receives.len()).expect("few");
        let mut lists = lists(&mut data, &mut sizes, &mut tags, &mut regions);
        let mut parents: Vec<_> =
            parents.iter().map(|parent| ptr::without_provenance_mut(*parent)).collect();
        if !parents.is_empty() {
            assert_eq!(parents.len(), receives.len());
            lists.parents = parents.as_mut_ptr();
        }
        call_of_version!(self.table, irecv(pointer(comm), count, &lists, &raw mut request))?;
        Ok(object(request))
    }

    /// A group of receives: the address of each, its length and its tag.
    pub(crate) fn irecv_each(
        self,
        comm: Object,
        receives: &[(usize, usize, c_int)],
        region: Object,
    ) -> Answer<Option<Object>> {
        let of_one = |&(address, len, tag)| (address, len, tag, region);
        self.irecv_into(comm, &receives.iter().map(of_one).collect::<Vec<_>>())
    }

    /// The sizes of `count` messages, once done.
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
        call_of_version!(
            self.v8,
            isend_int(pointer(comm), data, len, 0, pointer(region), &raw mut request)
        )?;
        Ok(object(request))
    }

    /// An irecv of v8: a longer message is truncated.
    pub(crate) fn irecv_v8(
        self,
        comm: Object,
        address: usize,
        len: c_int,
        region: Object,
    ) -> Answer<Option<Object>> {
        let (mut request, mut data) = (STALE, [ptr::without_provenance_mut(address)]);
        let mut sizes = [usize::try_from(len).expect("a length")];
        let (mut tags, mut regions) = ([0], [pointer(region)]);
        let lists = lists(&mut data, &mut sizes, &mut tags, &mut regions);
        call_of_version!(self.v8, irecv(pointer(comm), 1, &lists, &raw mut request))?;
        Ok(object(request))
    }

    /// The bytes of a message, once done.
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

/// The table of this version. It stays open: `-z nodelete`.
fn calls(file: &Path, version: u32) -> &'static Calls {
    let name = file.to_str().expect("text");
    let library = Library::open(name, Some(version)).unwrap_or_else(|error| panic!("{error}"));
    // Open for the life of the process.
    Box::leak(Box::new(library)).calls()
}

/// The explanation that this plugin, which is loaded, gives to tools, as JSON.
pub(crate) fn explain(file: &Path) -> String {
    type Explain = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    let name = CString::new(file.as_os_str().as_bytes()).expect("no zero byte");
    // SAFETY: the file is loaded already, so nothing runs.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null(), "{} is not loaded", file.display());
    // SAFETY: the library is open.
    let symbol = unsafe { libc::dlsym(library, c"ironrail_explain".as_ptr()) };
    assert!(!symbol.is_null(), "{} does not explain itself", file.display());
    // SAFETY: the plugin defines it so; a symbol's address is a function pointer.
    let explain = unsafe { (&raw const symbol).cast::<Explain>().read() };
    let mut text = vec![0_u8; 1 << 20];
    // SAFETY: the buffer is as long as we say.
    let len = unsafe { explain(text.as_mut_ptr().cast(), text.len()) };
    assert!(len < text.len(), "it is longer: {len}");
    String::from_utf8_lossy(&text[..len]).into_owned()
}

/// Lists with equal numbers of entries.
fn lists(
    data: &mut [*mut c_void],
    sizes: &mut [usize],
    tags: &mut [c_int],
    regions: &mut [*mut c_void],
) -> Lists {
    Lists {
        data: data.as_mut_ptr(),
        sizes: sizes.as_mut_ptr(),
        tags: tags.as_mut_ptr(),
        regions: regions.as_mut_ptr(),
        parents: ptr::null_mut(),
    }
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let bytes = vec![0_u8; len.max(1)].leak();
        Self { start: bytes.as_mut_ptr(), len }
    }

    /// `len` of its bytes, from `offset`.
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

/// Every warning so far, as a user would read them.
pub(crate) fn warnings() -> Vec<String> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The number of warnings so far.
pub(crate) fn warned() -> usize {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).len()
}

/// The whole log, of every level.
pub(crate) fn lines() -> Vec<String> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

static ALL: Mutex<Vec<String>> = Mutex::new(Vec::new());
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The content of an output before the call: a plugin must overwrite it.
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
