//! Sends and receives of places, which carry a group's operations.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use net_loader::calls::Lists;

use super::{Comm, Kind, ReceiveComm, Region, SendComm, Sizes};
use crate::error::{GroupError, MemoryError};
use crate::loader::memory::Memory;
use crate::loader::net::{check, check_once};
use crate::loader::place::Place;

/// A request that the plugin has accepted. It is tested by its comm. If it is dropped before it is done, its memory stays in use until the
/// comm is closed.
#[derive(Debug)]
pub(crate) struct Post {
    pub(super) raw: NonNull<c_void>,
    pub(super) kind: Kind,
    /// The number of its comm.
    pub(super) comm: u64,
}

// SAFETY: as for `Comm`: NCCL may test on another thread than it sends from.
unsafe impl Send for Post {}

/// One end of a connection, in either direction.
pub(crate) trait End {
    /// Whether it receives.
    const RECEIVES: bool;

    fn register(&self, memory: &Arc<Memory>) -> Result<Region, GroupError>;

    /// Sends a place, which is in the region, or receives one message into it. `None`: the plugin cannot post it now, call again.
    fn post(&self, place: Place, region: &Region, tag: c_int) -> Result<Option<Post>, GroupError>;

    /// The number of bytes moved, once the post is done. Then it must not be tested again.
    fn test_post(&self, post: &Post) -> Result<Option<usize>, GroupError>;
}

impl End for SendComm {
    const RECEIVES: bool = false;

    fn register(&self, memory: &Arc<Memory>) -> Result<Region, GroupError> {
        Region::of(&self.0, memory)
    }

    fn test_post(&self, post: &Post) -> Result<Option<usize>, GroupError> {
        self.0.moved(post)
    }

    fn post(&self, place: Place, region: &Region, tag: c_int) -> Result<Option<Post>, GroupError> {
        region.holds(&self.0, place)?;
        // In NCCL the argument still contains an older request, so the plugin must write null itself.
        static STALE: u64 = 0;
        let stale = ptr::from_ref(&STALE).cast_mut().cast::<c_void>();
        let mut request = stale;
        let (comm, data) = (self.0.raw.as_ptr(), place.pointer().cast());
        let (len, region) = (place.len(), region.raw);
        // SAFETY: the comm is open, and the bytes are registered on it and alive by the law of `place`.
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
        check("isend", code?)?;
        if request == stale {
            let why = "isend succeeded without writing its request";
            return Err(GroupError::Contract(why.to_owned()));
        }
        Ok(Post::new(&self.0, request, Kind::Send(len)))
    }
}

impl End for ReceiveComm {
    const RECEIVES: bool = true;

    fn register(&self, memory: &Arc<Memory>) -> Result<Region, GroupError> {
        Region::of(&self.0, memory)
    }

    fn test_post(&self, post: &Post) -> Result<Option<usize>, GroupError> {
        self.0.moved(post)
    }

    fn post(&self, place: Place, region: &Region, tag: c_int) -> Result<Option<Post>, GroupError> {
        region.holds(&self.0, place)?;
        let mut data: *mut c_void = place.pointer().cast();
        let (mut len, mut tag, mut region, mut parent) =
            (place.len(), tag, region.raw, ptr::null_mut());
        let lists = Lists {
            data: &raw mut data,
            sizes: &raw mut len,
            tags: &raw mut tag,
            regions: &raw mut region,
            parents: &raw mut parent,
        };
        let mut request = ptr::null_mut();
        let comm = self.0.raw.as_ptr();
        // SAFETY: as in `SendComm::post`; the lists have one entry each and live through the call.
        let code = unsafe { self.0.net.calls().irecv(comm, 1, &lists, &raw mut request) };
        check("irecv", code?)?;
        Ok(Post::new(&self.0, request, Kind::Receive(1)))
    }
}

impl Post {
    pub(super) fn new(comm: &Comm, raw: *mut c_void, kind: Kind) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self { raw, kind, comm: comm.number })
    }
}

impl Comm {
    /// The number of bytes that a post has moved, once it is done.
    fn moved(&self, post: &Post) -> Result<Option<usize>, GroupError> {
        let (mut sizes, mut moved) = (Sizes::default(), 0);
        if !self.test(post, &mut sizes)? {
            return Ok(None);
        }
        sizes.each(post.kind, |len| {
            moved += len;
            Ok(())
        })?;
        Ok(Some(moved))
    }
}

impl Region {
    pub(super) fn of(comm: &Arc<Comm>, memory: &Arc<Memory>) -> Result<Self, GroupError> {
        let data = memory.base().as_ptr().cast();
        let len = memory.len().max(1);
        let place = comm.raw.as_ptr();
        let mut raw = ptr::null_mut();
        // SAFETY: the comm is open, and the region holds the memory until it is deregistered.
        let code =
            unsafe { comm.net.calls().reg_mr(place, data, len, net_abi::PTR_HOST, &raw mut raw) };
        check_once("regMr", code?)?;
        // Null is a valid region: some plugins need none for host memory.
        Ok(Self { raw, comm: Arc::clone(comm), memory: Arc::clone(memory) })
    }

    fn holds(&self, comm: &Arc<Comm>, place: Place) -> Result<(), MemoryError> {
        let base = self.memory.base().as_ptr().addr();
        let inside =
            place.address() >= base && place.address() + place.len() <= base + self.memory.len();
        if inside && Arc::ptr_eq(&self.comm, comm) {
            Ok(())
        } else {
            Err(MemoryError::ForeignRegion)
        }
    }
}
