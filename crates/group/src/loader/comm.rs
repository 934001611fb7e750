//! Connections, the memory registered on them, and requests.

mod post;

use std::ffi::{c_int, c_void};
use std::iter;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use net_abi::HANDLE_MAX_BYTES;

use super::calls::{Lists, TooLong};
use super::claims::Use;
use super::memory::{Buffer, Memory};
use super::net::{Net, check};
use crate::error::{GroupError, MemoryError};

pub(crate) use post::Post;

/// The most messages in one receive: no plugin is known to support more, though NCCL would ask for up to 64.
pub const GROUP_MAX: usize = 8;

/// What `listen` writes and `connect` reads. Aligned, because plugins access it as a struct.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct Handle(pub [u8; HANDLE_MAX_BYTES]);

/// Waits for one peer to connect.
#[derive(Debug)]
pub struct ListenComm(Arc<Comm>);

impl ListenComm {
    pub(super) fn new(comm: Comm) -> Self {
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
    pub(super) fn new(comm: Comm) -> Self {
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
        let len = range.end.saturating_sub(range.start);
        let (data, claim) = buffer.memory().claim(&range, Use::Read)?;
        let data = data.as_ptr().cast();
        // In NCCL the argument still contains an older request, so the plugin must write null itself.
        let stale = ptr::from_ref(&STALE).cast_mut().cast::<c_void>();
        let mut request = stale;
        let comm = self.0.raw.as_ptr();
        let region = region.raw;
        // SAFETY: the comm is open, the bytes are registered on it and stay claimed until the request is done.
        let code = unsafe {
            self.0.net.calls().isend(
                comm,
                data,
                len,
                tag,
                region,
                ptr::null_mut(),
                &raw mut request,
            )
        };
        // Without a request, nothing is claimed.
        check("isend", code.inspect_err(|_| buffer.memory().release(claim))?)?;
        if request == stale {
            return Err(GroupError::Contract(
                "isend succeeded without writing its request".to_owned(),
            ));
        }
        Ok(Request::new(&self.0, buffer.memory(), claim, request, Kind::Send(len)))
    }
}

static STALE: u64 = 0;

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
        let (_, claim) = memory.claim(&(start..end), Use::Write)?;
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
        Ok(Request::new(&self.0, memory, claim, request, Kind::Receive(count)))
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
        let (data, claim) = buffer.memory().claim(&range, Use::Read)?;
        let mut data: *mut c_void = data.as_ptr().cast();
        let mut request = ptr::null_mut();
        let mut region = region.raw;
        let comm = self.0.raw.as_ptr();
        let (data, region) = (&raw mut data, &raw mut region);
        let (calls, len) = (self.0.net.calls(), &raw mut len);
        // SAFETY: as in `irecv`.
        let code = unsafe { calls.iflush(comm, 1, data, len, region, &raw mut request) };
        check("iflush", code)?;
        Ok(Request::new(&self.0, buffer.memory(), claim, request, Kind::Flush))
    }
}

/// A buffer registered on a connection.
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
        if let Err(error) = check("deregMr", code) {
            log::error!("{error}");
        }
    }
}

/// An operation in progress. Only the oldest of a connection may be tested.
#[derive(Debug)]
pub struct Request {
    raw: Option<NonNull<c_void>>,
    kind: Kind,
    claim: u8,
    comm: Arc<Comm>,
    memory: Arc<Memory>,
}

impl Request {
    fn new(
        comm: &Arc<Comm>,
        memory: &Arc<Memory>,
        claim: u8,
        raw: *mut c_void,
        kind: Kind,
    ) -> Option<Self> {
        let Some(raw) = NonNull::new(raw) else {
            memory.release(claim);
            return None;
        };
        let (comm, memory) = (Arc::clone(comm), Arc::clone(memory));
        Some(Self { raw: Some(raw), kind, claim, comm, memory })
    }

    /// The number of bytes moved, once it is done; for a receive of several messages, of all. Once done, a request must not be tested
    /// again.
    #[inline]
    pub fn test(&mut self) -> Result<Option<usize>, GroupError> {
        let sizes = self.test_each()?;
        Ok(sizes.map(|(sizes, count)| sizes[..count].iter().sum()))
    }

    /// The bytes of each message, and the number of messages, once they are done.
    #[inline]
    pub fn test_each(&mut self) -> Result<Option<([usize; GROUP_MAX], usize)>, GroupError> {
        let raw = self.raw.ok_or_else(|| {
            GroupError::Usage("a request was tested after it was done".to_owned())
        })?;
        let mut done = UNWRITTEN;
        // As NCCL does: sizes for a group at a receive, one size at a send, none at a flush.
        let mut size = 0;
        let mut sizes;
        let place = match self.kind {
            Kind::Send(_) => &raw mut size,
            Kind::Receive(_) => {
                sizes = [0; net_abi::MAX_GROUP];
                sizes.as_mut_ptr()
            }
            Kind::Flush => ptr::null_mut(),
        };
        // SAFETY: the request is alive: it has not been answered done, and its comm is open.
        let code = unsafe { self.comm.net.calls().test(raw.as_ptr(), &raw mut done, place) };
        check("test", code)?;
        match done {
            0 => return Ok(None),
            UNWRITTEN => {
                return Err(GroupError::Contract("test succeeded without writing done".to_owned()));
            }
            _ => {}
        }
        self.raw = None;
        self.memory.release(self.claim);
        let mut lens = [0; GROUP_MAX];
        let count = match self.kind {
            Kind::Send(len) => {
                lens[0] = len;
                1
            }
            Kind::Flush => 1,
            Kind::Receive(count) => {
                for (index, len) in lens.iter_mut().enumerate().take(count) {
                    // SAFETY: `place` is the array above, which the plugin may have written, and has room for more.
                    let size = unsafe { place.wrapping_add(index).read() };
                    *len = usize::try_from(size).map_err(|_| {
                        GroupError::Contract(format!("test answered a size of {size}"))
                    })?;
                }
                count
            }
        };
        Ok(Some((lens, count)))
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

const UNWRITTEN: c_int = c_int::MIN;

/// The end of a connection that a comm is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Listen,
    Send,
    Receive,
}

/// An open comm; closes on drop.
#[derive(Debug)]
pub(super) struct Comm {
    raw: NonNull<c_void>,
    side: Side,
    net: Arc<Net>,
}

// SAFETY: NCCL's service and progress threads use one comm at the same time, so a plugin must bear that.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

impl Comm {
    pub(super) fn new(net: &Arc<Net>, side: Side, raw: *mut c_void) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self { raw, side, net: Arc::clone(net) })
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        let calls = self.net.calls();
        let raw = self.raw.as_ptr();
        let (name, code) = match self.side {
            // SAFETY: opened by this plugin, closed here only; regions and requests held a share, so they are gone.
            Side::Listen => ("closeListen", unsafe { calls.close_listen(raw) }),
            // SAFETY: as above.
            Side::Send => ("closeSend", unsafe { calls.close_send(raw) }),
            // SAFETY: as above.
            Side::Receive => ("closeRecv", unsafe { calls.close_recv(raw) }),
        };
        if let Err(error) = check(name, code) {
            log::error!("{error}");
        }
    }
}

/// Up to v8 sizes are `int`; some still are in every version.
fn int(len: usize) -> Result<c_int, GroupError> {
    c_int::try_from(len).map_err(|_| TooLong(len).into())
}
