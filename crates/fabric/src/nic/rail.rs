//! One rail of a NIC: an endpoint (fi_endpoint(3)), its completion queue (fi_cq(3)), its address vector (fi_av(3)), and the last batch that
//! was read from the queue.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use libfabric_sys as sys;

use super::NicOptions;
use super::completion_error::CompletionError;
use super::domain::Domain;
use super::peers::Peers;
use crate::error::{Call, FabricError, check};
use crate::handle::Handle;
use crate::info::Info;
use crate::library::Library;
use crate::options::{EndpointOption, OptionName};
use crate::posts::Posts;
use crate::text::provider_text;

/// An enabled endpoint with its queue and address vector, or none of these. Every operation has a completion in the queue, except injected
/// ones.
#[derive(Debug)]
pub(super) struct Rail {
    endpoint: Handle<sys::fid_ep>, // Closes before its queue and its address vector: keep it first.
    queue: Handle<sys::fid_cq>,
    pub(super) peers: Peers,
    /// libfabric has refused to close the endpoint, or a region that is bound to it: both leak. Operations, and peers' writes, may still
    /// access memory.
    is_stuck: bool,
    inject_bytes: usize,
    name: Box<[u8]>,
    batch: Batch,
    /// Options that fi_setopt accepted.
    set: Vec<OptionName>,
    /// Posts that libfabric has accepted.
    pub(super) posts: Posts,
}

/// The last batch of completions, and how many of them were consumed.
#[derive(Debug)]
struct Batch {
    completions: [Completion; BATCH],
    at: usize,
    count: usize,
    error: Option<QueueError>,
}

/// An error from the queue, returned after the completions before it.
#[derive(Debug)]
pub(super) enum QueueError {
    Failed { context: usize, error: CompletionError },
    Broken(FabricError),
}

/// The most completions per read of a queue.
pub(super) const BATCH: usize = 32;

impl Rail {
    /// No rail.
    pub(super) fn none() -> Self {
        Self {
            endpoint: Handle::none(),
            queue: Handle::none(),
            peers: Peers::none(),
            is_stuck: false,
            inject_bytes: 0,
            name: Box::default(),
            batch: Batch::new(),
            set: Vec::new(),
            posts: Posts::NONE,
        }
    }

    /// Opens a queue of `entries` entries, an address vector and an endpoint, binds the first two to the endpoint, sets the options
    /// `wanted`, and enables the endpoint. With `other` it uses that rail's queue instead of its own.
    pub(super) fn open(
        domain: &Domain,
        info: &Info,
        options: &NicOptions<'_>,
        entries: usize,
        other: Option<&Self>,
        wanted: &[EndpointOption],
    ) -> Result<Self, FabricError> {
        let queue = if other.is_some() { Handle::none() } else { open_queue(domain, entries)? };
        let peers = Peers::open(domain, options.keeps_peers)?;
        let open = |out| {
            // SAFETY: the domain is open, its provider only reads `info`, which is of the same provider, and `out` is a valid place.
            unsafe { sys::fi_endpoint(domain.as_ptr(), info.as_ptr(), out, ptr::null_mut()) }
        };
        // SAFETY: fi_endpoint gives us an endpoint of our own.
        let endpoint = unsafe { Handle::open(Call::fi_endpoint, open) }?;
        let inject_bytes = info.inject_bytes();
        let mut rail = Self {
            endpoint,
            queue,
            peers,
            is_stuck: false,
            inject_bytes,
            name: Box::default(),
            batch: Batch::new(),
            set: Vec::new(),
            posts: Posts::NONE,
        };
        let queue = other.map_or(&rail.queue, |other| &other.queue);
        rail.bind(queue.as_ptr().cast(), sys::FI_TRANSMIT | sys::FI_RECV)?;
        rail.bind(rail.peers.as_ptr().cast(), 0)?;
        rail.bind_events(domain);
        let library = info.library();
        for option in wanted {
            if rail.set(library, option)? {
                rail.set.push(option.name);
            }
        }
        let enabled = match rail.enable() {
            // shm names its memory by process id, and a killed process leaves the memory behind. The next process with that id is refused
            // once, since shm takes the memory for one in use; but shm removes it then, so a second attempt succeeds.
            Err(error) if error.errno() == sys::FI_EBUSY => rail.enable(),
            enabled => enabled,
        };
        enabled?;
        if let Some(bytes) = rail.size(library, OptionName::InjectRmaSize)? {
            rail.inject_bytes = rail.inject_bytes.min(bytes);
        }
        rail.name = rail.read_name()?.into();
        Ok(rail)
    }

    /// The endpoint, while the rail is open.
    #[inline(always)]
    pub(super) fn endpoint(&self) -> Option<NonNull<sys::fid_ep>> {
        NonNull::new(self.endpoint.as_ptr())
    }

    pub(super) fn is_open(&self) -> bool {
        self.endpoint().is_some()
    }

    /// Whether its endpoint has leaked.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    #[inline(always)]
    pub(super) fn inject_bytes(&self) -> usize {
        self.inject_bytes
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Progresses the endpoint and reads a batch of completions, unless the last batch is not consumed yet. Returns the number of
    /// completions to consume.
    #[inline(always)]
    pub(super) fn poll(&mut self) -> Polled {
        let Batch { completions, at, count, .. } = &mut self.batch;
        if *at < *count {
            return Polled(*count - *at);
        }
        let queue = self.queue.as_ptr();
        if queue.is_null() {
            return Polled::EMPTY;
        }
        // SAFETY: the queue is open, has the format of `Completion`, and there is room for so many.
        let read = unsafe { sys::fi_cq_read(queue, completions.as_mut_ptr().cast(), BATCH) };
        if read == EMPTY || read == 0 {
            return Polled::EMPTY;
        }
        match usize::try_from(read) {
            Ok(read) => {
                (*at, *count) = (0, read.min(BATCH));
                Polled(*count)
            }
            Err(_) => self.read_failure(read),
        }
    }

    /// The next completion that was read.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<&Completion> {
        let Batch { completions, at, count, .. } = &mut self.batch;
        if at >= count {
            return None;
        }
        let completion = completions.get(*at)?;
        *at += 1;
        Some(completion)
    }

    #[inline(always)]
    pub(super) fn has_error(&self) -> bool {
        self.batch.error.is_some()
    }

    pub(super) fn take_error(&mut self) -> Option<QueueError> {
        self.batch.error.take()
    }

    #[cold]
    #[inline(never)]
    fn read_failure(&mut self, code: isize) -> Polled {
        // The next error stays in the queue until the last one is consumed.
        if self.has_error() {
            return Polled(BATCH);
        }
        (self.batch.at, self.batch.count) = (0, 0);
        self.batch.error = self.failure(code);
        // More errors may follow.
        if self.has_error() { Polled(BATCH) } else { Polled::EMPTY }
    }

    fn failure(&self, code: isize) -> Option<QueueError> {
        let code = c_int::try_from(code).unwrap_or(-sys::FI_EOTHER);
        if code != -sys::FI_EAVAIL {
            return Some(QueueError::Broken(FabricError::new(Call::fi_cq_read, -code)));
        }
        // No buffer for the provider's error data: err_data_size is 0, and err_data then points to the provider's own.
        let mut entry = sys::Grown::new(sys::fi_cq_err_entry::default());
        // SAFETY: the queue is open, and the entry has room for the form of every version.
        let count = unsafe { sys::fi_cq_readerr(self.queue.as_ptr(), &raw mut entry.known, 0) };
        if count == EMPTY || count == 0 {
            return None;
        }
        if count < 0 {
            let code = c_int::try_from(count).unwrap_or(-sys::FI_EOTHER);
            return Some(QueueError::Broken(FabricError::new(Call::fi_cq_readerr, -code)));
        }
        let entry = entry.known;
        let (queue, code, data) = (self.queue.as_ptr(), entry.prov_errno, entry.err_data);
        let text = provider_text(|buffer, len| {
            // SAFETY: the queue is open; the buffer is as long as we say; error data is the provider's, until the next read.
            unsafe { sys::fi_cq_strerror(queue, code, data, buffer, len) }
        });
        let errno = entry.err.saturating_abs();
        let error = CompletionError { errno, provider_errno: code, text: text.into() };
        Some(QueueError::Failed { context: entry.op_context.addr(), error })
    }

    /// Cancels the operation with this context.
    pub(super) fn cancel(&self, context: *mut c_void) -> Result<(), FabricError> {
        let Some(endpoint) = self.endpoint() else { return Ok(()) };
        // SAFETY: the endpoint is open, and the context is only compared.
        let code = unsafe { sys::fi_cancel(endpoint.as_ptr(), context) };
        check(Call::fi_cancel, c_int::try_from(code).unwrap_or(-sys::FI_EOTHER))
    }

    /// Closes the endpoint. Outstanding operations end without a completion, and after a success they can no longer access memory. After a
    /// failure the endpoint leaks, and every later call fails, too.
    pub(super) fn close_endpoint(&mut self) -> Result<(), FabricError> {
        if self.is_stuck {
            return Err(FabricError::new(Call::fi_close, sys::FI_EBUSY));
        }
        self.endpoint.close().inspect_err(|_| self.is_stuck = true)
    }

    /// Leaks the endpoint: a region that is bound to it does not close, and the endpoint must not close before the region.
    pub(super) fn abandon_endpoint(&mut self) {
        self.endpoint.leak();
        self.is_stuck = true;
    }

    /// Closes the queue, after its endpoint. Completions that were read and not consumed are dropped.
    pub(super) fn close_queue(&mut self) -> Result<(), FabricError> {
        let Batch { at, count, error, .. } = &mut self.batch;
        (*at, *count, *error) = (0, 0, None);
        self.queue.close()
    }

    /// Leaks the endpoint, the queue and the address vector.
    pub(super) fn leak(&mut self) {
        self.endpoint.leak();
        self.queue.leak();
        self.peers.leak();
    }

    pub(super) fn endpoint_ptr(&self) -> *mut sys::fid_ep {
        self.endpoint.as_ptr()
    }

    fn enable(&self) -> Result<(), FabricError> {
        // SAFETY: the endpoint is open, and what it needs is bound.
        check(Call::fi_enable, unsafe { sys::fi_enable(self.endpoint.as_ptr()) })
    }

    fn bind(&self, object: *mut sys::fid, flags: u64) -> Result<(), FabricError> {
        // SAFETY: both are open, of one fabric, and the object outlives the endpoint.
        let code = unsafe { sys::fi_ep_bind(self.endpoint.as_ptr(), object, flags) };
        check(Call::fi_ep_bind, code)
    }

    /// Binds the event queue of the fabric, if there is one. If the provider refuses, the endpoint opens without it.
    fn bind_events(&self, domain: &Domain) {
        let events = domain.events.as_ptr();
        if !events.is_null()
            && let Err(error) = self.bind(events.cast(), 0)
        {
            log::debug!("an endpoint is not bound to the event queue: {error}");
        }
    }

    /// Sets an option. Returns whether it was accepted.
    fn set(&self, library: &Library, option: &EndpointOption) -> Result<bool, FabricError> {
        let unknown = FabricError::new(Call::fi_setopt, sys::FI_ENOPROTOOPT);
        let outcome = match number(library, option.name) {
            None => Err(unknown),
            Some(number) => self.set_flag(number, option.value),
        };
        match outcome {
            Err(error) if !option.required => {
                log::debug!("option {:?} is not set: {error}", option.name);
                Ok(false)
            }
            outcome => outcome.map(|()| true),
        }
    }

    fn set_flag(&self, number: i32, value: bool) -> Result<(), FabricError> {
        let (place, len): (*const c_void, _) = (ptr::from_ref(&value).cast(), size_of_val(&value));
        let level = sys::FI_OPT_ENDPOINT.cast_signed();
        // SAFETY: the endpoint is open, and the value is as long as we say: a `bool` of C's.
        check(Call::fi_setopt, unsafe {
            sys::fi_setopt(self.endpoint.as_ptr(), level, number, place, len)
        })
    }

    /// An option that is a size; None if the library or the provider does not support it.
    fn size(&self, library: &Library, name: OptionName) -> Result<Option<usize>, FabricError> {
        let Some(number) = number(library, name) else { return Ok(None) };
        let (mut value, mut len) = (0_usize, size_of::<usize>());
        let level = sys::FI_OPT_ENDPOINT.cast_signed();
        let place: *mut c_void = (&raw mut value).cast();
        // SAFETY: the endpoint is open, and the place is as long as we say.
        let code =
            unsafe { sys::fi_getopt(self.endpoint.as_ptr(), level, number, place, &raw mut len) };
        match -code {
            sys::FI_ENOPROTOOPT | sys::FI_EOPNOTSUPP | sys::FI_ENOSYS | sys::FI_EINVAL => Ok(None),
            _ => check(Call::fi_getopt, code).map(|()| Some(value)),
        }
    }

    /// An option that is a flag; None if the rail is not open, or the library or the provider does not support the option.
    pub(super) fn flag(&self, library: &Library, name: OptionName) -> Option<bool> {
        let (number, endpoint) = (number(library, name)?, self.endpoint()?);
        let (mut value, mut len) = (0_u8, size_of::<u8>());
        let level = sys::FI_OPT_ENDPOINT.cast_signed();
        let place: *mut c_void = (&raw mut value).cast();
        // SAFETY: the endpoint is open, and the place is as long as we say: a `bool` of C's.
        let code =
            unsafe { sys::fi_getopt(endpoint.as_ptr().cast(), level, number, place, &raw mut len) };
        (code == 0).then_some(value != 0)
    }

    pub(super) fn is_set(&self, name: OptionName) -> bool {
        self.set.contains(&name)
    }

    /// The endpoint's address for peers.
    fn read_name(&self) -> Result<Vec<u8>, FabricError> {
        let mut name = vec![0; NAME_BYTES];
        for _ in 0..2 {
            let mut len = name.len();
            let place: *mut c_void = name.as_mut_ptr().cast();
            // SAFETY: the endpoint is open, and the buffer is as long as we say.
            let code =
                unsafe { sys::fi_getname(self.endpoint.as_ptr().cast(), place, &raw mut len) };
            if code == -sys::FI_ETOOSMALL && len > name.len() && len <= NAME_BYTES_MAX {
                name.resize(len, 0);
                continue;
            }
            check(Call::fi_getname, code)?;
            name.truncate(len);
            return Ok(name);
        }
        Err(FabricError::new(Call::fi_getname, sys::FI_ETOOSMALL))
    }
}

/// Long enough for every provider's addresses; if one needs more, the call is repeated once, up to the maximum.
const NAME_BYTES: usize = 256;
const NAME_BYTES_MAX: usize = 4096;

/// An option's number, if the loaded release has it.
fn number(library: &Library, name: OptionName) -> Option<i32> {
    let (number, since) = name.number();
    (library.version() >= since).then_some(number)
}

fn open_queue(domain: &Domain, entries: usize) -> Result<Handle<sys::fid_cq>, FabricError> {
    let mut attributes = sys::Grown::new(sys::fi_cq_attr {
        size: entries,
        format: sys::FI_CQ_FORMAT_TAGGED,
        wait_obj: sys::FI_WAIT_NONE,
        ..Default::default()
    });
    let open = |out| {
        let attributes = &raw mut attributes.known;
        // SAFETY: the domain is open, and both places are valid.
        unsafe { sys::fi_cq_open(domain.as_ptr(), attributes, out, ptr::null_mut()) }
    };
    // SAFETY: fi_cq_open gives us a queue of our own.
    unsafe { Handle::open(Call::fi_cq_open, open) }
}

const EMPTY: isize = -sys::FI_EAGAIN as isize;

impl Batch {
    fn new() -> Self {
        const NONE: Completion =
            Completion { context: 0, flags: 0, len: 0, buffer: 0, data: 0, tag: 0 };
        Self { completions: [NONE; BATCH], at: 0, count: 0, error: None }
    }
}

/// The number of completions to consume after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the batch that was read has to be consumed"]
pub struct Polled(usize);

impl Polled {
    const EMPTY: Self = Self(0);

    /// Whether there is nothing to consume.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the batch is full: there may be more in the queue.
    #[inline(always)]
    pub fn is_full(self) -> bool {
        self.0 >= BATCH
    }
}

/// A completion of an operation, or an arrival: fi_cq_tagged_entry, with addresses as numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    context: usize,
    flags: u64,
    len: usize,
    buffer: usize,
    data: u64,
    tag: u64,
}

const _: () = {
    assert!(size_of::<Completion>() == size_of::<sys::fi_cq_tagged_entry>());
    assert!(align_of::<Completion>() == align_of::<sys::fi_cq_tagged_entry>());
    assert!(offset_of!(Completion, context) == offset_of!(sys::fi_cq_tagged_entry, op_context));
    assert!(offset_of!(Completion, flags) == offset_of!(sys::fi_cq_tagged_entry, flags));
    assert!(offset_of!(Completion, len) == offset_of!(sys::fi_cq_tagged_entry, len));
    assert!(offset_of!(Completion, buffer) == offset_of!(sys::fi_cq_tagged_entry, buf));
    assert!(offset_of!(Completion, data) == offset_of!(sys::fi_cq_tagged_entry, data));
    assert!(offset_of!(Completion, tag) == offset_of!(sys::fi_cq_tagged_entry, tag));
};

impl Completion {
    /// The context of the operation that ended. Meaningless for an arrival: cxi returns the region's context.
    #[inline(always)]
    pub(super) fn context(&self) -> usize {
        self.context
    }

    /// Whether this is an arrival of a peer's write, not the end of an operation of ours. Only this flag decides: sockets sets
    /// FI_REMOTE_CQ_DATA on the initiator's own completion too.
    #[inline(always)]
    pub(super) fn is_remote_write(&self) -> bool {
        self.flags & sys::FI_REMOTE_WRITE != 0
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The tag of the message that a tagged receive has matched.
    #[inline(always)]
    pub(super) fn tag(&self) -> u64 {
        self.tag
    }

    #[inline(always)]
    pub(super) fn immediate(&self) -> u64 {
        self.data
    }
}
