//! Comms, regions and requests, each usable until the call that ends it.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use net_abi::{MAX_GROUP, OPTIONAL_RECEIVE_COMPLETION, PTR_CUDA, ResultCode};

use super::{Arena, Context, UNWRITTEN, Wrong, check, check_once, missing, stale};
use crate::calls::{Calls, Lists, int};
use crate::logger;

/// The content of *request before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    Null,
    /// The pointer of an older request.
    Stale,
    /// NCCL's marker for an optional completion, v9 and newer.
    Optional,
}

/// One sub-receive.
#[derive(Clone, Copy, Debug)]
pub struct Receive<'a> {
    pub arena: Arena,
    pub at: usize,
    pub len: usize,
    pub tag: c_int,
    pub region: &'a Region,
}

/// The results of `test`.
#[derive(Clone, Debug)]
pub struct Tested {
    pub done: bool,
    pub sizes: [c_int; MAX_GROUP],
}

/// Waits for peers. Dropped without `close`, it is abandoned, as NCCL does after an error.
#[derive(Debug)]
pub struct ListenComm(pub(super) Comm);

/// The sending end.
#[derive(Debug)]
pub struct SendComm(pub(super) Comm);

/// The receiving end.
#[derive(Debug)]
pub struct ReceiveComm(pub(super) Comm);

#[derive(Debug)]
pub(super) struct Comm {
    raw: NonNull<c_void>,
    life: Arc<Life>,
}

/// Whether a comm is open; its regions and requests end with it.
#[derive(Debug)]
struct Life {
    context: Arc<Context>,
    open: AtomicBool,
}

// SAFETY: NCCL's service and progress threads use one comm at the same time, so a plugin must bear that.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

impl Life {
    fn calls(&self) -> Result<&Calls, Wrong> {
        if self.open.load(Ordering::SeqCst) {
            return self.context.calls();
        }
        Err(Wrong::Contract("the comm is closed".to_owned()))
    }
}

/// The comm that a call left in its output argument.
pub(super) fn opened(
    context: &Arc<Context>,
    call: &'static str,
    raw: *mut c_void,
) -> Result<Option<Comm>, Wrong> {
    if raw == stale() {
        return Err(Wrong::Contract(format!("{call} left the comm as it was")));
    }
    let open = AtomicBool::new(true);
    Ok(NonNull::new(raw).map(|raw| {
        logger::forget_last_warning();
        let life = Arc::new(Life { context: Arc::clone(context), open });
        Comm { raw, life }
    }))
}

impl Comm {
    /// Marks the comm as closed, which is possible once: nothing of it is used any more.
    fn ends(&self) -> Result<(&Calls, *mut c_void), Wrong> {
        let calls = self.life.calls()?;
        self.life.open.store(false, Ordering::SeqCst);
        Ok((calls, self.raw.as_ptr()))
    }

    /// `kind` is NCCL's value for the kind of memory.
    fn register(
        &self,
        (arena, at, len): (Arena, usize, usize),
        kind: c_int,
    ) -> Result<Region, Wrong> {
        let data = arena.at(at, len).cast();
        let comm = self.raw.as_ptr();
        let mut raw = stale();
        let calls = self.life.calls()?;
        // SAFETY: the comm is open, and the memory is freed by its user alone, which keeps what is registered.
        let code = unsafe { calls.reg_mr(comm, data, len, kind, &raw mut raw) };
        self.registered("regMr", code?, raw)
    }

    fn register_dmabuf(&self, arena: Arena, dmabuf: OwnedFd) -> Result<Region, Wrong> {
        let calls = self.life.calls()?;
        let (data, len) = (arena.at(0, arena.len()).cast(), arena.len());
        let mut raw = stale();
        let (comm, descriptor) = (self.raw.as_ptr(), dmabuf.as_raw_fd());
        // SAFETY: as in `register`; the descriptor is open.
        let code =
            unsafe { calls.reg_mr_dma_buf(comm, data, len, PTR_CUDA, 0, descriptor, &raw mut raw) };
        drop(dmabuf);
        self.registered("regMrDmaBuf", code.ok_or_else(|| missing("regMrDmaBuf"))?, raw)
    }

    /// Deregisters null, the handle of a registration that failed.
    fn deregister_nothing(&self) -> Result<(), Wrong> {
        let calls = self.life.calls()?;
        // SAFETY: the comm is open, and nothing is deregistered.
        check_once("deregMr", unsafe { calls.dereg_mr(self.raw.as_ptr(), ptr::null_mut()) })
    }

    fn registered(
        &self,
        call: &'static str,
        code: ResultCode,
        raw: *mut c_void,
    ) -> Result<Region, Wrong> {
        check_once(call, code)?;
        if raw == stale() {
            return Err(Wrong::Contract(format!("{call} left the region as it was")));
        }
        Ok(Region { raw, comm: self.raw, life: Arc::clone(&self.life) })
    }

    /// The request that a call left in its output argument.
    fn request(
        &self,
        call: &'static str,
        before: *mut c_void,
        raw: *mut c_void,
        groups: bool,
    ) -> Result<Option<Request>, Wrong> {
        if raw == before && !before.is_null() {
            return Err(Wrong::Contract(format!(
                "{call} succeeded and left {before:p} in *request, where it stood before the call"
            )));
        }
        let life = &self.life;
        Ok(NonNull::new(raw).map(|raw| Request {
            raw,
            life: Arc::clone(life),
            groups,
            over: false,
        }))
    }
}

impl ListenComm {
    /// One attempt. `bare` as for `connect`.
    pub fn accept(&self, bare: bool) -> Result<Option<ReceiveComm>, Wrong> {
        let mut comm = stale();
        let mut device_comm = ptr::null_mut();
        let device_place = if bare { ptr::null_mut() } else { &raw mut device_comm };
        let listener = self.0.raw.as_ptr();
        let calls = self.0.life.calls()?;
        // SAFETY: the listener is open, and the places live through the call.
        let code = unsafe { calls.accept(listener, &raw mut comm, device_place) };
        check("accept", code)?;
        Ok(opened(&self.0.life.context, "accept", comm)?.map(ReceiveComm))
    }

    pub fn close(self) -> Result<(), Wrong> {
        let (calls, raw) = self.0.ends()?;
        // SAFETY: the plugin opened it, and it is closed once.
        check_once("closeListen", unsafe { calls.close_listen(raw) })
    }
}

impl SendComm {
    pub fn register(&self, arena: Arena, at: usize, len: usize) -> Result<Region, Wrong> {
        self.0.register((arena, at, len), arena.kind())
    }

    /// Registers the arena as device memory, whichever memory it has.
    pub fn register_as_device(&self, arena: Arena) -> Result<Region, Wrong> {
        self.0.register((arena, 0, arena.len()), PTR_CUDA)
    }

    /// Device memory by a dmabuf of all of it, which is closed after the call, as NCCL does.
    pub fn register_dmabuf(&self, arena: Arena, dmabuf: OwnedFd) -> Result<Region, Wrong> {
        self.0.register_dmabuf(arena, dmabuf)
    }

    pub fn isend(
        &self,
        (arena, at, len): (Arena, usize, usize),
        tag: c_int,
        region: &Region,
        before: Before,
    ) -> Result<Option<Request>, Wrong> {
        let data = arena.at(at, len).cast();
        let before = before.pointer();
        let mut request = before;
        let (comm, region) = (self.0.raw.as_ptr(), region.raw);
        let calls = self.0.life.calls()?;
        // SAFETY: the comm is open, and the memory is never freed.
        let code =
            unsafe { calls.isend(comm, data, len, tag, region, ptr::null_mut(), &raw mut request) };
        check("isend", code?)?;
        self.0.request("isend", before, request, false)
    }

    /// Deregisters null, the handle of a registration that failed.
    pub fn deregister_nothing(&self) -> Result<(), Wrong> {
        self.0.deregister_nothing()
    }

    pub fn close(self) -> Result<(), Wrong> {
        let (calls, raw) = self.0.ends()?;
        // SAFETY: the plugin opened it, and it is closed once.
        check_once("closeSend", unsafe { calls.close_send(raw) })
    }
}

impl ReceiveComm {
    pub fn register(&self, arena: Arena, at: usize, len: usize) -> Result<Region, Wrong> {
        self.0.register((arena, at, len), arena.kind())
    }

    /// Registers the arena as device memory, whichever memory it has.
    pub fn register_as_device(&self, arena: Arena) -> Result<Region, Wrong> {
        self.0.register((arena, 0, arena.len()), PTR_CUDA)
    }

    /// Device memory by a dmabuf of all of it, which is closed after the call, as NCCL does.
    pub fn register_dmabuf(&self, arena: Arena, dmabuf: OwnedFd) -> Result<Region, Wrong> {
        self.0.register_dmabuf(arena, dmabuf)
    }

    /// One request for all of `parts`. Without `parents` the array of profiler handles is null, as in NCCL's bootstrap.
    pub fn irecv(
        &self,
        parts: &[Receive<'_>],
        before: Before,
        parents: bool,
    ) -> Result<Option<Request>, Wrong> {
        let mut arrays = Arrays::of(parts)?;
        let before = before.pointer();
        let mut request = before;
        let (comm, count) = (self.0.raw.as_ptr(), arrays.count);
        let mut handles = [ptr::null_mut(); MAX_GROUP];
        let lists = Lists {
            data: arrays.data.as_mut_ptr(),
            sizes: arrays.sizes.as_mut_ptr(),
            tags: arrays.tags.as_mut_ptr(),
            regions: arrays.regions.as_mut_ptr(),
            parents: if parents { handles.as_mut_ptr() } else { ptr::null_mut() },
        };
        let calls = self.0.life.calls()?;
        // SAFETY: the comm is open, the memory is never freed, the arrays are longer than `count`; profiler handles may be null, the
        // array too.
        let code = unsafe { calls.irecv(comm, count, &lists, &raw mut request) };
        check("irecv", code?)?;
        self.0.request("irecv", before, request, true)
    }

    /// `None`: there is nothing to wait for.
    pub fn iflush(&self, parts: &[Receive<'_>], before: Before) -> Result<Option<Request>, Wrong> {
        let calls = self.0.life.calls()?;
        let mut arrays = Arrays::of(parts)?;
        let sizes = arrays.int_sizes()?;
        let before = before.pointer();
        let mut request = before;
        let (comm, count) = (self.0.raw.as_ptr(), arrays.count);
        let (data, regions) = (arrays.data.as_mut_ptr(), arrays.regions.as_mut_ptr());
        // SAFETY: as in `irecv`.
        let code = unsafe { calls.iflush(comm, count, data, sizes, regions, &raw mut request) };
        check("iflush", code)?;
        self.0.request("iflush", before, request, false)
    }

    /// Deregisters null, the handle of a registration that failed.
    pub fn deregister_nothing(&self) -> Result<(), Wrong> {
        self.0.deregister_nothing()
    }

    pub fn close(self) -> Result<(), Wrong> {
        let (calls, raw) = self.0.ends()?;
        // SAFETY: the plugin opened it, and it is closed once.
        check_once("closeRecv", unsafe { calls.close_recv(raw) })
    }
}

/// A buffer registered on a comm.
#[derive(Debug)]
pub struct Region {
    raw: *mut c_void,
    comm: NonNull<c_void>,
    life: Arc<Life>,
}

// SAFETY: as for `Comm`: the service thread registers what the progress thread uses.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub fn deregister(self) -> Result<(), Wrong> {
        let calls = self.life.calls()?;
        // SAFETY: registered on this comm, which is open; deregistered once.
        check_once("deregMr", unsafe { calls.dereg_mr(self.comm.as_ptr(), self.raw) })
    }
}

/// An operation in progress.
#[derive(Debug)]
pub struct Request {
    raw: NonNull<c_void>,
    life: Arc<Life>,
    groups: bool,
    over: bool,
}

// SAFETY: as for `Comm`.
unsafe impl Send for Request {}

impl Request {
    /// Calls `test` with zeroed arguments, as NCCL passes them.
    pub fn test(&mut self) -> Result<Tested, Wrong> {
        self.test_over(false, false)
    }

    /// `poisoned`: the outputs contain garbage before the call, and unwritten ones are reported. `bare`: sizes is null, as in NCCL's
    /// bootstrap and after a flush.
    pub fn test_over(&mut self, poisoned: bool, bare: bool) -> Result<Tested, Wrong> {
        if self.over {
            return Err(Wrong::Contract("a request that was done is tested again".to_owned()));
        }
        let calls = self.life.calls()?;
        let mut done = if poisoned { UNWRITTEN } else { 0 };
        let mut sizes = [if poisoned { UNWRITTEN } else { 0 }; MAX_GROUP];
        let place = if bare { ptr::null_mut() } else { sizes.as_mut_ptr() };
        // SAFETY: the request has not been answered done and its comm is open; the array has NCCL's size.
        let code = unsafe { calls.test(self.raw.as_ptr(), &raw mut done, place) };
        check("test", code)?;
        if done == UNWRITTEN {
            return Err(Wrong::Contract("test succeeded and left *done as it was".to_owned()));
        }
        self.over = done != 0;
        Ok(Tested { done: self.over, sizes })
    }

    /// Whether it is a receive.
    pub fn receives(&self) -> bool {
        self.groups
    }
}

impl Tested {
    /// Whether `test` wrote this size, if it was poisoned before.
    pub fn wrote(&self, place: usize) -> bool {
        self.sizes[place] != UNWRITTEN
    }
}

impl Before {
    fn pointer(self) -> *mut c_void {
        match self {
            Self::Null => ptr::null_mut(),
            Self::Stale => stale(),
            Self::Optional => ptr::without_provenance_mut(OPTIONAL_RECEIVE_COMPLETION),
        }
    }
}

/// The arrays of `irecv`; entries beyond the count are garbage.
struct Arrays {
    count: c_int,
    data: [*mut c_void; MAX_GROUP],
    sizes: [usize; MAX_GROUP],
    narrow: [c_int; MAX_GROUP],
    tags: [c_int; MAX_GROUP],
    regions: [*mut c_void; MAX_GROUP],
}

impl Arrays {
    fn of(parts: &[Receive<'_>]) -> Result<Self, Wrong> {
        assert!(parts.len() <= MAX_GROUP, "a group of {}", parts.len());
        let mut arrays = Self {
            count: int(parts.len())?,
            data: [stale(); MAX_GROUP],
            sizes: [usize::MAX; MAX_GROUP],
            narrow: [c_int::MAX; MAX_GROUP],
            tags: [UNWRITTEN; MAX_GROUP],
            regions: [stale(); MAX_GROUP],
        };
        for (place, part) in parts.iter().enumerate() {
            arrays.data[place] = part.arena.at(part.at, part.len).cast();
            arrays.sizes[place] = part.len;
            arrays.tags[place] = part.tag;
            arrays.regions[place] = part.region.raw;
        }
        Ok(arrays)
    }

    /// Sizes as `int`, as `iflush` takes them in every version.
    fn int_sizes(&mut self) -> Result<*mut c_int, Wrong> {
        for (narrow, wide) in self.narrow.iter_mut().zip(self.sizes) {
            *narrow = if wide == usize::MAX { c_int::MAX } else { int(wide)? };
        }
        Ok(self.narrow.as_mut_ptr())
    }
}
