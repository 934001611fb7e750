//! A completion queue: how posted operations end, and how peers' writes are noticed. fi_cq(3).

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use crate::domain::Domain;
use crate::error::{FabricError, error_text};
use crate::handle::Handle;

/// A queue of completions, for the endpoints of one NIC. Polling it is what makes them progress (FI_PROGRESS_MANUAL).
#[derive(Debug)]
pub struct CompletionQueue {
    handle: Handle<sys::fid_cq>,
    _domain: Arc<Domain>,
}

impl CompletionQueue {
    /// Opens a queue of `entries` completions: at least as many as all operations and arrivals that may be outstanding on its
    /// endpoints.
    ///
    /// # Errors
    ///
    /// What fi_cq_open(3) returned.
    pub fn open(domain: &Arc<Domain>, entries: usize) -> Result<Arc<Self>, FabricError> {
        let mut attributes = sys::Grown::new(sys::fi_cq_attr {
            size: entries,
            format: sys::FI_CQ_FORMAT_DATA,
            wait_obj: sys::FI_WAIT_NONE,
            ..Default::default()
        });
        let open = |out| {
            // SAFETY: the domain is open, and both places are valid.
            unsafe {
                sys::fi_cq_open(domain.as_ptr(), &raw mut attributes.known, out, ptr::null_mut())
            }
        };
        // SAFETY: fi_cq_open gives us a queue of our own.
        let handle = unsafe { Handle::open("fi_cq_open", open) }?;
        Ok(Arc::new(Self { handle, _domain: Arc::clone(domain) }))
    }

    /// Makes progress, and takes what has ended: up to [`Batch::CAPACITY`] completions, or one failure. When completions are
    /// followed by a failure, the next call tells it.
    #[inline]
    pub fn read<'batch>(&self, batch: &'batch mut Batch) -> CqPoll<'batch> {
        let polled = self.poll(batch);
        self.told(polled, batch)
    }

    /// The first half of [`CompletionQueue::read`]: mostly there is nothing, and that is all there is to know.
    #[inline(always)]
    pub fn poll(&self, batch: &mut Batch) -> Polled {
        let entries = batch.completions.as_mut_ptr();
        // SAFETY: the queue is open, has the format of `Completion`, and the batch has room for so many.
        Polled(unsafe { sys::fi_cq_read(self.as_ptr(), entries.cast(), Batch::CAPACITY) })
    }

    /// The second half: what the poll of this queue has put into `batch`.
    #[inline]
    pub fn told<'batch>(&self, polled: Polled, batch: &'batch Batch) -> CqPoll<'batch> {
        match usize::try_from(polled.0) {
            Ok(0) => CqPoll::Empty,
            Ok(count) => CqPoll::Completions(&batch.completions[..count.min(Batch::CAPACITY)]),
            Err(_) if polled.0 == EMPTY => CqPoll::Empty,
            Err(_) => self.failure(polled.0),
        }
    }

    #[cold]
    fn failure<'batch>(&self, code: isize) -> CqPoll<'batch> {
        let code = c_int::try_from(code).unwrap_or(-sys::FI_EOTHER);
        if code != -sys::FI_EAVAIL {
            return CqPoll::Broken(FabricError { call: "fi_cq_read", code });
        }
        // No room is given for a provider's own error data: err_data_size is 0, and err_data then points to the provider's.
        let mut entry = sys::Grown::new(sys::fi_cq_err_entry::default());
        // SAFETY: the queue is open, and the entry has room for the form of every version.
        let count = unsafe { sys::fi_cq_readerr(self.as_ptr(), &raw mut entry.known, 0) };
        if count == EMPTY || count == 0 {
            return CqPoll::Empty;
        }
        if count < 0 {
            let code = c_int::try_from(count).unwrap_or(-sys::FI_EOTHER);
            return CqPoll::Broken(FabricError { call: "fi_cq_readerr", code });
        }
        let entry = entry.known;
        CqPoll::Failed(CompletionError {
            context: entry.op_context.addr(),
            flags: entry.flags,
            errno: entry.err.saturating_abs(),
            provider_errno: entry.prov_errno,
            text: self.provider_text(&entry).into(),
        })
    }

    /// The provider's own words: fi_cq_strerror in fi_cq(3).
    fn provider_text(&self, entry: &sys::fi_cq_err_entry) -> String {
        let mut buffer: [c_char; 256] = [0; 256];
        // SAFETY: the queue is open; the buffer is as long as we say; error data is the provider's, until the next read.
        let text = unsafe {
            sys::fi_cq_strerror(
                self.as_ptr(),
                entry.prov_errno,
                entry.err_data,
                buffer.as_mut_ptr(),
                buffer.len() - 1,
            )
        };
        // An unwritten slot may be a stub that answers -FI_ENOSYS, whatever its type.
        if text.is_null() || text.addr() > usize::MAX - 4096 {
            return String::new();
        }
        // SAFETY: fi_cq_strerror answers with a C string: static, or in our buffer, whose last byte is zero.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fid_cq {
        self.handle.as_ptr()
    }
}

const EMPTY: isize = -sys::FI_EAGAIN as isize;

/// Room for the completions of one poll, to be reused.
#[derive(Debug)]
pub struct Batch {
    completions: [Completion; Self::CAPACITY],
}

impl Batch {
    /// How many completions one poll takes at most.
    pub const CAPACITY: usize = 32;

    /// The first `count` of what the last poll has put here.
    #[inline(always)]
    pub fn first(&self, count: usize) -> &[Completion] {
        &self.completions[..count.min(Self::CAPACITY)]
    }

    /// An empty one.
    pub const fn new() -> Self {
        Self {
            completions: [Completion { context: 0, flags: 0, len: 0, buffer: 0, data: 0 };
                Self::CAPACITY],
        }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// What fi_cq_read answered.
#[derive(Clone, Copy, Debug)]
#[must_use = "what has ended is told once"]
pub struct Polled(isize);

impl Polled {
    /// Whether nothing has ended.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0 == EMPTY || self.0 == 0
    }

    /// How many have ended well, if any and fewer than fill a batch: then there are no more to be read now.
    #[inline(always)]
    pub fn few(self) -> Option<usize> {
        let count = self.0.cast_unsigned();
        // One comparison: errors are huge here, and so is none less one.
        (count.wrapping_sub(1) < Batch::CAPACITY - 1).then_some(count)
    }

    /// How many have ended well. None: there was a failure.
    #[inline(always)]
    pub fn count(self) -> Option<usize> {
        usize::try_from(self.0).ok().filter(|count| *count <= Batch::CAPACITY)
    }
}

/// What one poll found.
#[derive(Debug)]
pub enum CqPoll<'batch> {
    /// Nothing has ended.
    Empty,
    /// At least one operation ended well, or a peer's write arrived.
    Completions(&'batch [Completion]),
    /// One operation failed.
    Failed(CompletionError),
    /// The queue itself is unusable: nothing that is outstanding will be told.
    Broken(FabricError),
}

/// An operation that ended well, or an arrival: fi_cq_data_entry, with addresses as numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    context: usize,
    flags: u64,
    len: usize,
    buffer: usize,
    data: u64,
}

const _: () = {
    assert!(size_of::<Completion>() == size_of::<sys::fi_cq_data_entry>());
    assert!(align_of::<Completion>() == align_of::<sys::fi_cq_data_entry>());
    assert!(offset_of!(Completion, context) == offset_of!(sys::fi_cq_data_entry, op_context));
    assert!(offset_of!(Completion, flags) == offset_of!(sys::fi_cq_data_entry, flags));
    assert!(offset_of!(Completion, len) == offset_of!(sys::fi_cq_data_entry, len));
    assert!(offset_of!(Completion, buffer) == offset_of!(sys::fi_cq_data_entry, buf));
    assert!(offset_of!(Completion, data) == offset_of!(sys::fi_cq_data_entry, data));
};

impl Completion {
    /// The context of the operation that ended. Of a peer's write it says nothing: cxi puts the region's there.
    #[inline]
    pub fn context(&self) -> usize {
        self.context
    }

    /// Whether a peer's write-with-immediate arrived, rather than an operation of ours ended. Only this flag tells: sockets
    /// marks the initiator's own completion with FI_REMOTE_CQ_DATA too.
    #[inline]
    pub fn is_remote_write(&self) -> bool {
        self.flags & sys::FI_REMOTE_WRITE != 0
    }

    /// Whether a receive of ours was filled.
    #[inline]
    pub fn is_receive(&self) -> bool {
        self.flags & sys::FI_RECV != 0
    }

    /// The bytes received. Of a peer's write it is true on some providers only: 1.17's tcp says 0.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether `len()` is zero.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The data that came with a peer's write, as many bytes as the domain carries.
    #[inline]
    pub fn immediate(&self) -> u64 {
        self.data
    }

    /// All flags, as fi_cq(3) has them.
    #[inline]
    pub fn flags(&self) -> u64 {
        self.flags
    }
}

/// An operation that failed: fi_cq_err_entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionError {
    /// The context it was posted with.
    pub context: usize,
    /// As fi_cq(3) has them.
    pub flags: u64,
    /// A positive error number, by fi_errno(3).
    pub errno: i32,
    /// The provider's own number.
    pub provider_errno: i32,
    /// The provider's words for it; may be empty.
    pub text: Box<str>,
}

impl CompletionError {
    /// Whether it ended because it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.errno == sys::FI_ECANCELED
    }
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { errno, provider_errno, text, .. } = self;
        write!(f, "{} ({errno}), provider says {text:?} ({provider_errno})", error_text(*errno))
    }
}

impl std::error::Error for CompletionError {}
