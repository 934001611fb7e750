//! The newest table of a plugin file, called as NCCL calls it, for benches and tests that drive the plugin themselves. The calls are the
//! group library's raw ones.
//!
//! A call that fails ends the run: it panics with its name and code.

use std::array;
use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::fmt;
use std::mem;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use net_abi::{CommConfig, HANDLE_MAX_BYTES, LOG_WARN, Logger, PTR_HOST, ResultCode, UNDEFINED};
use net_loader::Library;
use net_loader::calls::{Calls, Lists, TooLong};

/// The receives of the largest group.
pub(crate) const GROUP: usize = 8;

fn small(number: usize) -> c_int {
    c_int::try_from(number).expect("a small number")
}

/// What `listen` writes, passed to the process that connects.
pub(crate) type Handle = [u8; HANDLE_MAX_BYTES];

/// An initialised plugin. It stays loaded for the life of the process.
pub(crate) struct Net {
    calls: &'static Calls,
    context: *mut c_void,
}

/// A listen comm.
pub(crate) struct Listener(*mut c_void);

/// A comm of either side, with a buffer registered for it.
pub(crate) struct Comm {
    raw: *mut c_void,
    region: *mut c_void,
    address: *mut c_void,
}

/// A registered buffer.
#[derive(Debug)]
pub(crate) struct Region(*mut c_void);

/// A posted message.
#[derive(Clone, Copy)]
pub(crate) struct Request(*mut c_void);

impl Net {
    /// Loads the file, and calls `init`. Settings come from the environment.
    pub(crate) fn open(file: &Path) -> Self {
        let name = file.to_str().expect("text");
        let library = Library::open(name, Some(12)).unwrap_or_else(|error| panic!("{error}"));
        // Open for the life of the process.
        let calls = Box::leak(Box::new(library)).calls();
        let (mut context, mut config) = (ptr::null_mut(), CommConfig { traffic_class: UNDEFINED });
        // SAFETY: both places live through the call.
        let code = unsafe { calls.init(&raw mut context, 1, &raw mut config, logger(), None) };
        check("init", code);
        Self { calls, context }
    }

    pub(crate) fn listen(&self) -> (Listener, Handle) {
        let (mut handle, mut comm) = ([0; HANDLE_MAX_BYTES], ptr::null_mut());
        // SAFETY: the context is init's, and both places live through the call.
        check("listen", unsafe {
            self.calls.listen(self.context, 0, (&raw mut handle).cast(), &raw mut comm)
        });
        (Listener(comm), handle)
    }

    /// One attempt to connect: the comm, with `memory` registered for it.
    pub(crate) fn connect(&self, handle: &mut Handle, memory: &Memory) -> Option<Comm> {
        let (mut comm, mut device) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the context is init's, the handle listen's, and all places live through the call.
        check("connect", unsafe {
            self.calls.connect(
                self.context,
                0,
                ptr::null_mut(),
                ptr::from_mut(handle).cast(),
                &raw mut comm,
                &raw mut device,
            )
        });
        (!comm.is_null()).then(|| self.with_memory(comm, memory))
    }

    /// One attempt to accept: the comm, with `memory` registered for it.
    pub(crate) fn accept(&self, listener: &Listener, memory: &Memory) -> Option<Comm> {
        let (mut comm, mut device) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: an open listener, and both places live through the call.
        check("accept", unsafe { self.calls.accept(listener.0, &raw mut comm, &raw mut device) });
        (!comm.is_null()).then(|| self.with_memory(comm, memory))
    }

    fn with_memory(&self, raw: *mut c_void, memory: &Memory) -> Comm {
        let mut comm = Comm { raw, region: ptr::null_mut(), address: memory.address };
        comm.region = self.register(&comm, memory).0;
        comm
    }

    #[inline]
    pub(crate) fn register(&self, comm: &Comm, memory: &Memory) -> Region {
        let mut region = ptr::null_mut();
        // SAFETY: an open comm, memory that stays for ever, and a place that lives through the call.
        check("regMr", unsafe {
            fits(self.calls.reg_mr(comm.raw, memory.address, memory.len, PTR_HOST, &raw mut region))
        });
        Region(region)
    }

    #[inline]
    pub(crate) fn deregister(&self, comm: &Comm, region: Region) {
        // SAFETY: the comm is open, and the region its own.
        check("deregMr", unsafe { self.calls.dereg_mr(comm.raw, region.0) });
    }

    /// `None`: not now.
    #[inline]
    pub(crate) fn isend(&self, comm: &Comm, bytes: usize, tag: c_int) -> Option<Request> {
        let mut request = ptr::null_mut();
        // SAFETY: an open send comm, bytes of its region, and a place that lives through the call.
        check("isend", unsafe {
            let Comm { raw, address, region } = *comm;
            fits(self.calls.isend(
                raw,
                address,
                bytes,
                tag,
                region,
                ptr::null_mut(),
                &raw mut request,
            ))
        });
        (!request.is_null()).then_some(Request(request))
    }

    /// `None`: not now.
    #[inline]
    pub(crate) fn irecv(&self, comm: &Comm, bytes: usize, tag: c_int) -> Option<Request> {
        let (mut address, mut bytes, mut tag, mut region) = (comm.address, bytes, tag, comm.region);
        let mut request = ptr::null_mut();
        let lists = Lists {
            data: &raw mut address,
            sizes: &raw mut bytes,
            tags: &raw mut tag,
            regions: &raw mut region,
            parents: ptr::null_mut(),
        };
        // SAFETY: an open receive comm, lists of one entry, and places that live through the call.
        let code = unsafe { self.calls.irecv(comm.raw, 1, &lists, &raw mut request) };
        check("irecv", fits(code));
        (!request.is_null()).then_some(Request(request))
    }

    /// A group of receives with tags from `tag`, each for `bytes` of the region. `None`: not now.
    pub(crate) fn irecv_group(&self, comm: &Comm, bytes: usize, tag: c_int) -> Option<Request> {
        let mut tags: [c_int; GROUP] = array::from_fn(|index| tag + small(index));
        let mut addresses: [*mut c_void; GROUP] =
            array::from_fn(|index| comm.address.wrapping_byte_add(index * bytes));
        let (mut sizes, mut regions) = ([bytes; GROUP], [comm.region; GROUP]);
        let mut request = ptr::null_mut();
        let lists = Lists {
            data: addresses.as_mut_ptr(),
            sizes: sizes.as_mut_ptr(),
            tags: tags.as_mut_ptr(),
            regions: regions.as_mut_ptr(),
            parents: ptr::null_mut(),
        };
        // SAFETY: an open receive comm, lists of as many entries as are named, and places that live through the call.
        let code = unsafe { self.calls.irecv(comm.raw, small(GROUP), &lists, &raw mut request) };
        check("irecv", fits(code));
        (!request.is_null()).then_some(Request(request))
    }

    /// The sizes of a group's messages, once all are done.
    pub(crate) fn test_group(&self, request: Request) -> Option<[c_int; GROUP]> {
        let (mut done, mut sizes) = (0, [-1; GROUP]);
        // SAFETY: a request that was not done yet; it is of one group, so that many sizes are written at most.
        check("test", unsafe { self.calls.test(request.0, &raw mut done, sizes.as_mut_ptr()) });
        (done != 0).then_some(sizes)
    }

    /// The size of the message, once it is done.
    #[inline]
    pub(crate) fn test(&self, request: Request) -> Option<c_int> {
        let (mut done, mut size) = (0, 0);
        // SAFETY: a request that was not done yet; it is of one message, so one size is written.
        check("test", unsafe { self.calls.test(request.0, &raw mut done, &raw mut size) });
        (done != 0).then_some(size)
    }

    pub(crate) fn close_listen(&self, listener: Listener) {
        // SAFETY: open, and used up here.
        check("closeListen", unsafe { self.calls.close_listen(listener.0) });
    }

    pub(crate) fn close_send(&self, comm: Comm) {
        self.deregister(&comm, Region(comm.region));
        // SAFETY: open, and used up here.
        check("closeSend", unsafe { self.calls.close_send(comm.raw) });
    }

    pub(crate) fn close_receive(&self, comm: Comm) {
        self.deregister(&comm, Region(comm.region));
        // SAFETY: open, and used up here.
        check("closeRecv", unsafe { self.calls.close_recv(comm.raw) });
    }

    pub(crate) fn finalize(self) {
        // SAFETY: init's context, used up here.
        check("finalize", unsafe { self.calls.finalize(self.context) });
    }
}

/// Memory as NCCL would pass it: mapped, touched, never freed. Its content is not checked.
pub(crate) struct Memory {
    address: *mut c_void,
    len: usize,
}

impl Memory {
    /// `len` of its bytes, from `offset`.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Self {
        assert!(offset + len <= self.len);
        Self { address: self.address.wrapping_byte_add(offset), len }
    }

    pub(crate) fn new(len: usize) -> Self {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a mapping of our own, wherever the system likes.
        let address = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "no memory for {len} bytes");
        // SAFETY: all of it was mapped just now. It makes the pages resident, so that no measurement sees them come.
        unsafe { ptr::write_bytes(address.cast::<u8>(), 0x5a, len) };
        Self { address, len }
    }
}

/// The newest table takes any length.
#[inline]
fn fits(code: Result<ResultCode, TooLong>) -> ResultCode {
    code.expect("lengths are 64 bits wide")
}

fn check(call: &str, code: ResultCode) {
    assert!(code.is_success(), "{call}: {code}");
}

/// Ends the process after this many seconds: every wait is bounded.
pub(crate) fn give_up_after(seconds: u32) {
    // SAFETY: no handler is set, so the signal ends the process.
    unsafe { libc::alarm(seconds) };
}

/// The CPU time of this thread.
pub(crate) fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place that lives through the call.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(code, 0, "every thread has a clock");
    let whole = u64::try_from(time.tv_sec).expect("time runs forward");
    Duration::new(whole, u32::try_from(time.tv_nsec).expect("less than a second"))
}

/// Prints warnings, and nothing else.
fn logger() -> Logger {
    type Fixed =
        unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    type Variadic = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
    // SAFETY: on System V x86-64 and AAPCS64 the first variadic pointer travels where a sixth fixed one does.
    Some(unsafe { mem::transmute::<Fixed, Variadic>(receive) })
}

#[expect(clippy::print_stderr, reason = "the user must see what went wrong")]
unsafe extern "C" fn receive(
    level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    _format: *const c_char,
    text: *const c_char,
) {
    if level == LOG_WARN {
        // SAFETY: this plugin's format is always "%s", with one C string.
        eprintln!("{}", unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy());
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Net")
    }
}
