//! Connections, the memory registered on them, and requests.

mod post;

use std::ffi::{c_int, c_void};
use std::fmt;
use std::iter;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use net_abi::{CommConfig, HANDLE_MAX_BYTES, UNDEFINED};
use net_loader::calls::{Lists, TooLong};

use super::claims::Use;
use super::memory::{Buffer, Memory};
use super::net::{Net, check, check_once, index};
use crate::error::{GroupError, MemoryError};

pub(crate) use post::{End, Post};

/// The most messages in one receive: no plugin is known to support more, though NCCL would ask for up to 64.
pub const GROUP_MAX: usize = 8;

/// What `listen` writes and `connect` reads. Aligned, because plugins access it as a struct.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub struct Handle(pub [u8; HANDLE_MAX_BYTES]);

/// Omits the bytes: with most plugins anyone who has them could connect.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Net {
    /// Opens a listener; returns it with the handle that a peer connects with.
    pub fn listen(self: &Arc<Self>, device: usize) -> Result<(ListenComm, Handle), GroupError> {
        let device = index(device)?;
        let mut handle = Handle([0; HANDLE_MAX_BYTES]);
        let mut comm = ptr::null_mut();
        let place = (&raw mut handle.0).cast();
        // SAFETY: the context is what `init` gave, the handle has the size of the contract, and both places live through the call.
        let code = unsafe { self.calls().listen(self.context, device, place, &raw mut comm) };
        check_once("listen", code)?;
        let comm = Comm::new(self, Side::Listen, comm)
            .ok_or_else(|| GroupError::Contract("listen succeeded without a comm".to_owned()))?;
        Ok((ListenComm::new(comm), handle))
    }

    /// One attempt to connect. `None`: call again with the same handle, which the plugin may change.
    pub fn connect(
        self: &Arc<Self>,
        device: usize,
        handle: &mut Handle,
    ) -> Result<Option<SendComm>, GroupError> {
        let device = index(device)?;
        let mut comm = ptr::null_mut();
        let mut device_comm = ptr::null_mut();
        let place = (&raw mut handle.0).cast();
        let mut config = CommConfig { traffic_class: UNDEFINED };
        let (config, comm_place, device_place) =
            (&raw mut config, &raw mut comm, &raw mut device_comm);
        // SAFETY: the context is what `init` gave, the handle has the size of the contract, and all places live through the call.
        let code = unsafe {
            self.calls().connect(self.context, device, config, place, comm_place, device_place)
        };
        check("connect", code)?;
        Ok(Comm::new(self, Side::Send, comm).map(SendComm::new))
    }
}

/// Waits for one peer to connect.
#[derive(Debug)]
pub struct ListenComm(Arc<Comm>);

impl ListenComm {
    fn new(comm: Comm) -> Self {
        Self(Arc::new(comm))
    }

    /// One attempt to accept. `None`: no peer has connected yet.
    pub fn accept(&self) -> Result<Option<ReceiveComm>, GroupError> {
        let mut comm = ptr::null_mut();
        let mut device_comm = ptr::null_mut();
        let listener = self.0.raw.as_ptr();
        // SAFETY: the listener is open, and the places live through the call.
        let code =
            unsafe { self.0.net.calls().accept(listener, &raw mut comm, &raw mut device_comm) };
        check("accept", code)?;
        Ok(Comm::new(&self.0.net, Side::Receive, comm).map(|comm| ReceiveComm(Arc::new(comm))))
    }
}

/// The sending end of a connection.
#[derive(Debug)]
pub struct SendComm(Arc<Comm>);

impl SendComm {
    fn new(comm: Comm) -> Self {
        Self(Arc::new(comm))
    }

    pub fn register(&self, buffer: &Buffer) -> Result<Region, GroupError> {
        Region::of(&self.0, buffer.memory())
    }

    /// Sends `range` of the buffer. `None`: the plugin cannot post it now, call again.
    #[inline]
    pub fn isend(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        region: &Region,
        tag: c_int,
    ) -> Result<Option<Request>, GroupError> {
        region.fits(&self.0, buffer)?;
        let memory = buffer.memory();
        let claim = memory.claim(&range, Use::Read)?;
        let place = memory.place().part(range.start, range.end - range.start);
        // A message that is too long for the table was not passed to the plugin. After an error of the plugin, it may still use the bytes,
        // which therefore stay claimed.
        let posted = self.post(place, region, tag).inspect_err(|error| {
            if error.is_usage() {
                memory.release(claim);
            }
        })?;
        Ok(Request::new(memory, claim, posted))
    }

    /// Whether a request of this comm is done. Only the oldest may be tested, and none again once it is done.
    #[inline]
    pub fn test(&self, request: &mut Request) -> Result<bool, GroupError> {
        request.test(&self.0, |_| Ok(()))
    }
}

/// The receiving end of a connection.
#[derive(Debug)]
pub struct ReceiveComm(Arc<Comm>);

impl ReceiveComm {
    pub fn register(&self, buffer: &Buffer) -> Result<Region, GroupError> {
        Region::of(&self.0, buffer.memory())
    }

    /// Receives into `range` of the buffer, which may be longer than the message. `None`: call again.
    #[inline]
    pub fn irecv(
        &self,
        buffer: &mut Buffer,
        range: Range<usize>,
        region: &Region,
        tag: c_int,
    ) -> Result<Option<Request>, GroupError> {
        self.irecv_group(buffer, iter::once((range, tag)), region)
    }

    /// Receives a message into each range, by its tag, all in one request; at most [`GROUP_MAX`], and at most the plugin's maxRecvs.
    #[inline]
    pub fn irecv_group(
        &self,
        buffer: &mut Buffer,
        messages: impl Iterator<Item = (Range<usize>, c_int)>,
        region: &Region,
    ) -> Result<Option<Request>, GroupError> {
        region.fits(&self.0, buffer)?;
        let memory = buffer.memory();
        let base = memory.base().as_ptr();
        let (mut data, mut lens) = ([ptr::null_mut::<c_void>(); GROUP_MAX], [0; GROUP_MAX]);
        let (mut tags, mut regions) = ([0; GROUP_MAX], [region.raw; GROUP_MAX]);
        let (mut count, mut start, mut end) = (0, usize::MAX, 0);
        for (range, tag) in messages {
            if let Some(place) = data.get_mut(count) {
                *place = base.wrapping_add(range.start).cast();
                lens[count] = range.end.saturating_sub(range.start);
                tags[count] = tag;
                (start, end) = (start.min(range.start), end.max(range.end));
            }
            count += 1;
        }
        if count == 0 || count > GROUP_MAX {
            return Err(GroupError::Usage(format!("a receive of {count} messages")));
        }
        let claim = memory.claim(&(start..end), Use::Write)?;
        let mut request = ptr::null_mut();
        let comm = self.0.raw.as_ptr();
        let mut parents = [ptr::null_mut(); GROUP_MAX];
        let lists = Lists {
            data: data.as_mut_ptr(),
            sizes: lens.as_mut_ptr(),
            tags: tags.as_mut_ptr(),
            regions: regions.as_mut_ptr(),
            parents: parents.as_mut_ptr(),
        };
        let number = int(count)?;
        // SAFETY: the comm is open, the bytes are registered on it and stay claimed until the request is done;
        // the arrays have as many entries as we say, and live through the call.
        let code = unsafe { self.0.net.calls().irecv(comm, number, &lists, &raw mut request) };
        check("irecv", code.inspect_err(|_| memory.release(claim))?)?;
        Ok(Request::new(memory, claim, Post::new(&self.0, request, Kind::Receive(count))))
    }

    /// As [`SendComm::test`]. Once the request is done, `each` is called with the number of bytes of each of its messages.
    #[inline]
    pub fn test(
        &self,
        request: &mut Request,
        each: impl FnMut(usize) -> Result<(), GroupError>,
    ) -> Result<bool, GroupError> {
        request.test(&self.0, each)
    }

    /// Makes received bytes visible to a GPU. `None`: there is nothing to wait for.
    pub fn iflush(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        region: &Region,
    ) -> Result<Option<Request>, GroupError> {
        region.fits(&self.0, buffer)?;
        let mut len = int(range.end.saturating_sub(range.start))?;
        let claim = buffer.memory().claim(&range, Use::Read)?;
        let mut data: *mut c_void =
            buffer.memory().base().as_ptr().wrapping_add(range.start).cast();
        let mut request = ptr::null_mut();
        let mut region = region.raw;
        let comm = self.0.raw.as_ptr();
        let (data, region) = (&raw mut data, &raw mut region);
        let (calls, len) = (self.0.net.calls(), &raw mut len);
        // SAFETY: as in `irecv`.
        let code = unsafe { calls.iflush(comm, 1, data, len, region, &raw mut request) };
        check("iflush", code)?;
        Ok(Request::new(buffer.memory(), claim, Post::new(&self.0, request, Kind::Flush)))
    }
}

/// A buffer registered on a connection. If the plugin does not deregister the memory, because a peer may still use it, it is never freed.
#[derive(Debug)]
pub struct Region {
    raw: *mut c_void,
    comm: Arc<Comm>,
    memory: Arc<Memory>,
}

// SAFETY: as for `Comm`: NCCL registers on one thread what it sends from on another.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    #[inline]
    fn fits(&self, comm: &Arc<Comm>, buffer: &Buffer) -> Result<(), MemoryError> {
        if Arc::ptr_eq(&self.comm, comm) && Arc::ptr_eq(&self.memory, buffer.memory()) {
            Ok(())
        } else {
            Err(MemoryError::ForeignRegion)
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered on this comm, which is open while we hold it.
        let code = unsafe { self.comm.net.calls().dereg_mr(self.comm.raw.as_ptr(), self.raw) };
        if let Err(error) = check_once("deregMr", code) {
            let bytes = self.memory.len();
            log::error!("{error}: {bytes} bytes are never freed, as a peer may still use them");
            // Neither the close of the comm nor `finalize` shows that this use has ended.
            let _kept = ManuallyDrop::new(Arc::clone(&self.memory));
        }
    }
}

/// An operation in progress. It is tested by its comm. If it is dropped before it is done, its bytes stay claimed.
#[derive(Debug)]
pub struct Request {
    post: Option<Post>,
    claim: u8,
    memory: Arc<Memory>,
}

impl Request {
    fn new(memory: &Arc<Memory>, claim: u8, posted: Option<Post>) -> Option<Self> {
        let Some(post) = posted else {
            memory.release(claim);
            return None;
        };
        Some(Self { post: Some(post), claim, memory: Arc::clone(memory) })
    }

    #[inline]
    fn test(
        &mut self,
        comm: &Comm,
        each: impl FnMut(usize) -> Result<(), GroupError>,
    ) -> Result<bool, GroupError> {
        let post = self.post.as_ref().ok_or_else(|| {
            GroupError::Usage("a request was tested after it was done".to_owned())
        })?;
        let (mut sizes, kind) = (Sizes::default(), post.kind);
        if !comm.test(post, &mut sizes)? {
            return Ok(false);
        }
        self.post = None;
        self.memory.release(self.claim);
        sizes.each(kind, each)?;
        Ok(true)
    }
}

/// The kind of a request; only a receive gets sizes.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Send(usize),
    /// A receive of this many messages.
    Receive(usize),
    Flush,
}

/// Where a test writes sizes. As long as any group, though we read those of [`GROUP_MAX`] messages only.
#[derive(Debug)]
#[repr(C)]
struct Sizes {
    read: [c_int; GROUP_MAX],
    beyond: MaybeUninit<[c_int; net_abi::MAX_GROUP - GROUP_MAX]>,
}

impl Default for Sizes {
    #[inline]
    fn default() -> Self {
        Self { read: [0; GROUP_MAX], beyond: MaybeUninit::uninit() }
    }
}

impl Sizes {
    /// How much of a message of `len` bytes was sent, if the plugin has truncated it to its receive, as some do and all may up to v8. Some
    /// plugins write no size of a send.
    #[inline]
    fn truncated(&self, len: usize) -> Option<usize> {
        usize::try_from(self.read[0]).ok().filter(|size| (1..len).contains(size))
    }

    /// Calls `each` with the size of each message of a request that is done.
    #[inline]
    fn each(
        &self,
        kind: Kind,
        mut each: impl FnMut(usize) -> Result<(), GroupError>,
    ) -> Result<(), GroupError> {
        match kind {
            Kind::Send(len) => each(self.truncated(len).unwrap_or(len)),
            Kind::Flush => each(0),
            Kind::Receive(count) => {
                self.read.iter().take(count).try_for_each(|size| {
                    each(usize::try_from(*size).map_err(|_| {
                        GroupError::Contract(format!("test answered a size of {size}"))
                    })?)
                })
            }
        }
    }
}

const UNWRITTEN: c_int = c_int::MIN;

/// The end of a connection that a comm is.
#[derive(Clone, Copy, Debug)]
enum Side {
    Listen,
    Send,
    Receive,
}

/// An open comm; closes on drop.
#[derive(Debug)]
struct Comm {
    raw: NonNull<c_void>,
    side: Side,
    /// Unique in this process: requests name their comm by it.
    number: u64,
    net: Arc<Net>,
}

// SAFETY: NCCL's service and progress threads use one comm at the same time, so a plugin must support that.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

impl Comm {
    fn new(net: &Arc<Net>, side: Side, raw: *mut c_void) -> Option<Self> {
        static COMMS: AtomicU64 = AtomicU64::new(0);
        let raw = NonNull::new(raw)?;
        net_loader::forget_last_warning();
        let number = COMMS.fetch_add(1, Ordering::Relaxed);
        Some(Self { raw, side, number, net: Arc::clone(net) })
    }

    /// Whether an operation on this comm is done; it must not be tested again then. Only the oldest may be tested.
    #[inline]
    fn test(&self, post: &Post, sizes: &mut Sizes) -> Result<bool, GroupError> {
        if post.comm != self.number {
            return Err(GroupError::Usage("a request was tested on another comm".to_owned()));
        }
        let mut done = UNWRITTEN;
        // As NCCL does: sizes for a group at a receive, one size at a send, none at a flush.
        let place = match post.kind {
            Kind::Send(_) | Kind::Receive(_) => ptr::from_mut(sizes).cast(),
            Kind::Flush => ptr::null_mut(),
        };
        // SAFETY: the request is alive: it has not been answered done, and its comm is open; the sizes are as many as any group's.
        let code = unsafe { self.net.calls().test(post.raw.as_ptr(), &raw mut done, place) };
        check("test", code)?;
        match done {
            UNWRITTEN => {
                Err(GroupError::Contract("test succeeded without writing done".to_owned()))
            }
            done => Ok(done != 0),
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        let calls = self.net.calls();
        let raw = self.raw.as_ptr();
        let (name, code) = match self.side {
            // SAFETY: opened by this plugin, closed here only; regions held a share, so they are gone, and requests are tested by their comm only.
            Side::Listen => ("closeListen", unsafe { calls.close_listen(raw) }),
            // SAFETY: as above.
            Side::Send => ("closeSend", unsafe { calls.close_send(raw) }),
            // SAFETY: as above.
            Side::Receive => ("closeRecv", unsafe { calls.close_recv(raw) }),
        };
        if let Err(error) = check_once(name, code) {
            log::error!("{error}");
        }
    }
}

/// Up to v8 sizes are `int`; some still are in every version.
fn int(len: usize) -> Result<c_int, GroupError> {
    c_int::try_from(len).map_err(|_| TooLong(len).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{buffering, connected};

    /// The byte of the test plugin's handle by which deregMr fails.
    const WITHHOLDS: usize = 13;

    #[test]
    fn memory_that_the_plugin_does_not_give_back_is_never_freed() {
        for withholds in [false, true] {
            let (sender, receiver) = connected(&buffering(), |handle| {
                handle.0[WITHHOLDS] = u8::from(withholds);
            });
            let buffer = Buffer::new(100).unwrap();
            let memory = Arc::downgrade(buffer.memory());
            let regions = (sender.register(&buffer).unwrap(), receiver.register(&buffer).unwrap());
            drop((buffer, regions));
            drop((sender, receiver));
            assert_eq!(memory.upgrade().is_some(), withholds);
        }
    }

    #[test]
    fn a_vector_is_taken_out_of_its_buffer_unless_the_plugin_does_not_give_it_back() {
        for withholds in [false, true] {
            let (sender, _receiver) = connected(&buffering(), |handle| {
                handle.0[WITHHOLDS] = u8::from(withholds);
            });
            let vector = vec![1_u16, 2, 3];
            let address = vector.as_ptr();
            let buffer = Buffer::of(vector);
            let region = sender.register(&buffer).unwrap();
            let buffer = buffer.into_vec::<u16>().unwrap_err();
            assert_eq!(buffer.to_vec::<u16>(), [1, 2, 3], "it is registered");
            drop(region);
            match buffer.into_vec::<u16>() {
                Ok(vector) => assert!(!withholds && vector.as_ptr() == address, "{vector:?}"),
                Err(buffer) => {
                    assert!(withholds);
                    let memory = Arc::downgrade(buffer.memory());
                    drop(buffer);
                    assert!(memory.upgrade().is_some(), "it is never freed");
                }
            }
        }
    }
}
