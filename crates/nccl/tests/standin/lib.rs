//! NCCL without GPUs: loads a net plugin by NCCL's variables, says so in NCCL's log lines, and moves the data of collectives over it.
//!
//! It stands in for libnccl.so.2 in tests of `ironrail nccl`, over the stand-in of the CUDA driver (crates/gpu/tests/support/cuda.c).
//! A collective is done when its call returns: every rank's input goes to all, by the plugin's ring or, as network Socket, by the
//! rendezvous, and each rank computes its output from them.
//!
//! STANDIN_NCCL, one word: `wrong` flips a bit of every output of rank 0; `die` ends rank 1 in its third collective; `p2p` says in the log
//! that connections go around the network; `hang` lets rank 1 join never; `stick` lets its third collective not return, and `stick-abort`
//! the abort after the third, which fails; `blind` finds no plugin.

mod comm;
mod network;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use comm::{Comm, Element, Operation, Work};

const SUCCESS: c_int = 0;
const INTERNAL_ERROR: c_int = 3;
const INVALID_ARGUMENT: c_int = 4;
const REMOTE_ERROR: c_int = 6;

/// Why a call failed: NCCL's number and a sentence for ncclGetLastError.
#[derive(Debug)]
pub(crate) struct Failure {
    code: c_int,
    why: String,
}

impl Failure {
    fn new(code: c_int, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
    /// The operations of an open group; none: no group is open.
    static GROUP: RefCell<Option<Vec<(*mut Comm, Work)>>> = const { RefCell::new(None) };
}

/// Runs a call and turns its failure into NCCL's number.
fn guard(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match body() {
        Ok(()) => SUCCESS,
        Err(Failure { code, why }) => {
            network::log("WARN", &why);
            LAST.set(CString::new(why).unwrap_or_default());
            code
        }
    }
}

pub(crate) fn forever() -> ! {
    loop {
        std::thread::park();
    }
}

/// The word of STANDIN_NCCL.
pub(crate) fn is(word: &str) -> bool {
    std::env::var("STANDIN_NCCL").is_ok_and(|set| set == word)
}

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UniqueId {
    bytes: [u8; 128],
}

/// # Safety
///
/// As nccl.h has it; so for all that follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller's place.
    unsafe { version.write(22_707) };
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    guard(|| {
        let bytes = network::unique_id()?;
        // SAFETY: the caller's place.
        unsafe { id.write(UniqueId { bytes }) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let word = match code {
        SUCCESS => c"no error",
        INVALID_ARGUMENT => c"invalid argument",
        5 => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        _ => c"internal error",
    };
    word.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_: *mut c_void) -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    place: *mut *mut Comm,
    size: c_int,
    id: UniqueId,
    rank: c_int,
) -> c_int {
    guard(|| {
        let wrong = |_| Failure::new(INVALID_ARGUMENT, "a rank or a size below 0");
        let (rank, size) =
            (usize::try_from(rank).map_err(wrong)?, usize::try_from(size).map_err(wrong)?);
        let comm = Box::new(Comm::join(&id.bytes, rank, size)?);
        // SAFETY: the caller's place.
        unsafe { place.write(Box::into_raw(comm)) };
        Ok(())
    })
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: *mut Comm) -> c_int {
    guard(|| {
        // SAFETY: made by ncclCommInitRank, given back once.
        let comm = unsafe { Box::from_raw(comm) };
        comm.leave()
    })
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: *mut Comm) -> c_int {
    if is("stick-abort") {
        forever();
    }
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(comm) });
    SUCCESS
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(_: *mut Comm, code: *mut c_int) -> c_int {
    // SAFETY: the caller's place.
    unsafe { code.write(SUCCESS) };
    SUCCESS
}

/// Keeps the operation for the end of the group, or does it.
fn put(comm: *mut Comm, work: Work) -> c_int {
    let kept = GROUP.with_borrow_mut(|group| match group {
        Some(group) => {
            group.push((comm, work));
            true
        }
        None => false,
    });
    if kept { SUCCESS } else { guard(|| perform(comm, &[work])) }
}

fn perform(comm: *mut Comm, work: &[Work]) -> Result<(), Failure> {
    // SAFETY: a communicator that NCCL's user still has, on the one thread that uses it.
    let comm = unsafe { &mut *comm };
    comm.perform(work)
}

fn work(
    operation: Operation,
    (from, to): (*const c_void, *mut c_void),
    count: usize,
    kind: c_int,
) -> Result<Work, Failure> {
    let element = Element::of(kind)
        .ok_or_else(|| Failure::new(INVALID_ARGUMENT, format!("a datatype of {kind}")))?;
    Ok(Work { operation, from: from.addr() as u64, to: to.addr() as u64, count, element })
}

macro_rules! one {
    ($comm:expr, $work:expr) => {
        match $work {
            Ok(work) => put($comm, work),
            Err(failure) => guard(|| Err(failure)),
        }
    };
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    _operation: c_int,
    comm: *mut Comm,
    _stream: *mut c_void,
) -> c_int {
    one!(comm, work(Operation::AllReduce, (from, to), count, kind))
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    comm: *mut Comm,
    _stream: *mut c_void,
) -> c_int {
    one!(comm, work(Operation::AllGather, (from, to), count, kind))
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    _operation: c_int,
    comm: *mut Comm,
    _stream: *mut c_void,
) -> c_int {
    one!(comm, work(Operation::ReduceScatter, (from, to), count, kind))
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    from: *const c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    comm: *mut Comm,
    _stream: *mut c_void,
) -> c_int {
    let peer = usize::try_from(peer).unwrap_or(usize::MAX);
    one!(comm, work(Operation::Send(peer), (from, ptr::null_mut()), count, kind))
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    to: *mut c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    comm: *mut Comm,
    _stream: *mut c_void,
) -> c_int {
    let peer = usize::try_from(peer).unwrap_or(usize::MAX);
    one!(comm, work(Operation::Receive(peer), (ptr::null(), to), count, kind))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    GROUP.with_borrow_mut(|group| {
        group.get_or_insert_default();
    });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    guard(|| {
        let Some(group) = GROUP.take() else {
            return Err(Failure::new(5, "no group is open"));
        };
        let Some(&(comm, _)) = group.first() else { return Ok(()) };
        let work: Vec<Work> = group.into_iter().map(|(_, work)| work).collect();
        perform(comm, &work)
    })
}
