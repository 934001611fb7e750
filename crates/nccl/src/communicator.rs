//! A rank of a communicator, and its collectives on GPU memory.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gpu::{DeviceMemory, Devices, Stream};

use crate::library::{Handle, Nccl, NcclError, UNIQUE_ID_BYTES, UniqueId};

/// What ranks do together. Counts are nccl.h's: elements of one rank's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Every rank gets the sums of `count` elements of all.
    AllReduce,
    /// Every rank gets the `count` elements of each, by rank.
    AllGather,
    /// Every rank gets its `count` sums out of `count` times the ranks.
    ReduceScatter,
    /// Every rank sends `count` elements to each.
    AllToAll,
    /// Every rank sends `count` elements to the next rank and gets as many from the previous one.
    SendReceive,
}

/// The type of an element, in the order of ncclDataType_t.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    BF16,
}

/// Bytes of a device's memory, from `start` to its end.
#[derive(Clone, Copy, Debug)]
pub struct Range<'m> {
    /// The memory.
    pub memory: &'m DeviceMemory,
    /// The first byte.
    pub start: usize,
}

/// One rank. Dropped, it is destroyed, or aborted after an error.
#[derive(Debug)]
pub struct Communicator {
    nccl: Arc<Nccl>,
    handle: Handle,
    stream: Stream,
    rank: usize,
    size: usize,
    failed: bool,
}

impl Communicator {
    /// Joins the ranks that have the same id; returns when all have. `device` becomes this thread's.
    ///
    /// # Errors
    ///
    /// NCCL's or the driver's. NCCL bounds this wait for sockets only: a plugin that hangs, hangs here.
    pub fn init(
        nccl: &Arc<Nccl>,
        devices: &Devices,
        device: i32,
        id: [u8; UNIQUE_ID_BYTES],
        rank: usize,
        size: usize,
    ) -> Result<Self, NcclError> {
        let stream = Stream::new(devices, device)?;
        let mut handle: Handle = ptr::null_mut();
        let id = UniqueId(id.map(u8::cast_signed).map(|byte| byte as c_char));
        let (ranks, own) = (number(size), number(rank));
        // SAFETY: the place lives through the call; an id is any bytes.
        let code = unsafe { (nccl.calls.comm_init_rank)(&raw mut handle, ranks, id, own) };
        nccl.check("ncclCommInitRank", code)?;
        Ok(Self { nccl: Arc::clone(nccl), handle, stream, rank, size, failed: false })
    }

    /// Puts the collective into the stream `times` times and waits until all have ended; how long that took. The memory may be
    /// the same for both ranges where NCCL allows it (in place).
    ///
    /// # Errors
    ///
    /// A range that is too short, NCCL's error at once or later, or no end after `wait`; the communicator is aborted then, and
    /// serves no more.
    pub fn run(
        &mut self,
        collective: Collective,
        kind: Kind,
        count: usize,
        (send, receive): (Range<'_>, Range<'_>),
        times: usize,
        wait: Duration,
    ) -> Result<Duration, NcclError> {
        let parts = |all: bool| if all { self.size } else { 1 };
        let (sent, received) = match collective {
            Collective::AllReduce | Collective::SendReceive => (1, 1),
            Collective::AllGather => (1, parts(true)),
            Collective::ReduceScatter => (parts(true), 1),
            Collective::AllToAll => (parts(true), parts(true)),
        };
        let bytes = count.saturating_mul(kind.bytes());
        let from = send.of(bytes.saturating_mul(sent))?;
        let to = receive.of(bytes.saturating_mul(received))?;
        if self.failed {
            return Err(NcclError::Failed {
                call: "this communicator",
                code: 0,
                word: "aborted".to_owned(),
                said: String::new(),
            });
        }
        let start = Instant::now();
        let queue = || (0..times).try_for_each(|_| self.put(collective, kind, count, from, to));
        let ended = queue().and_then(|()| self.idle(start, wait));
        if ended.is_err() {
            self.abort();
        }
        ended.map(|()| start.elapsed())
    }

    /// Waits until the stream is idle, and asks NCCL meanwhile whether something failed.
    fn idle(&self, start: Instant, wait: Duration) -> Result<(), NcclError> {
        let mut polls = 0_u32;
        while !self.stream.is_idle()? {
            let mut later = 0;
            // SAFETY: the communicator lives, as does the place.
            let code =
                unsafe { (self.nccl.calls.comm_get_async_error)(self.handle, &raw mut later) };
            self.nccl.check("ncclCommGetAsyncError", code)?;
            self.nccl.check("a collective", later)?;
            if start.elapsed() > wait {
                return Err(NcclError::Timeout(wait));
            }
            polls = polls.saturating_add(1);
            if polls > SPINS {
                thread::yield_now();
            }
        }
        Ok(())
    }

    fn put(
        &self,
        collective: Collective,
        kind: Kind,
        count: usize,
        from: *const c_void,
        to: *mut c_void,
    ) -> Result<(), NcclError> {
        let (calls, handle, stream) = (&self.nccl.calls, self.handle, self.stream.as_ptr());
        let kind_number = kind.number();
        // In all three: the ranges were found long enough, and `run` returns only when the stream is idle or the communicator
        // aborted, so the memory outlives the work.
        match collective {
            Collective::AllReduce => {
                // SAFETY: as said above.
                let code = unsafe {
                    (calls.all_reduce)(from, to, count, kind_number, SUM, handle, stream)
                };
                self.nccl.check("ncclAllReduce", code)
            }
            Collective::AllGather => {
                // SAFETY: as said above.
                let code =
                    unsafe { (calls.all_gather)(from, to, count, kind_number, handle, stream) };
                self.nccl.check("ncclAllGather", code)
            }
            Collective::ReduceScatter => {
                // SAFETY: as said above.
                let code = unsafe {
                    (calls.reduce_scatter)(from, to, count, kind_number, SUM, handle, stream)
                };
                self.nccl.check("ncclReduceScatter", code)
            }
            Collective::AllToAll => {
                let peers = (0..self.size).map(|peer| (peer, peer, peer));
                self.exchange(kind, count, from, to, peers)
            }
            Collective::SendReceive => {
                let (next, previous) =
                    ((self.rank + 1) % self.size, (self.rank + self.size - 1) % self.size);
                self.exchange(kind, count, from, to, [(0, next, previous)].into_iter())
            }
        }
    }

    /// Sends and receives in one group: for each, the part and the peer.
    fn exchange(
        &self,
        kind: Kind,
        count: usize,
        from: *const c_void,
        to: *mut c_void,
        parts: impl Iterator<Item = (usize, usize, usize)>,
    ) -> Result<(), NcclError> {
        let (calls, handle, stream) = (&self.nccl.calls, self.handle, self.stream.as_ptr());
        // SAFETY: it takes nothing.
        self.nccl.check("ncclGroupStart", unsafe { (calls.group_start)() })?;
        let mut put = Ok(());
        for (part, target, source) in parts {
            let at = part * count * kind.bytes();
            let (from, to) = (from.wrapping_byte_add(at), to.wrapping_byte_add(at));
            let (number_of, target, source) = (kind.number(), number(target), number(source));
            // SAFETY: as in `put`.
            let code = unsafe { (calls.send)(from, count, number_of, target, handle, stream) };
            put = put.and_then(|()| self.nccl.check("ncclSend", code));
            // SAFETY: as in `put`.
            let code = unsafe { (calls.receive)(to, count, number_of, source, handle, stream) };
            put = put.and_then(|()| self.nccl.check("ncclRecv", code));
        }
        // SAFETY: a group was started.
        let ended = self.nccl.check("ncclGroupEnd", unsafe { (calls.group_end)() });
        put.and(ended)
    }

    fn abort(&mut self) {
        self.failed = true;
        // SAFETY: the communicator lives, and nothing uses it any more. The call ends its kernels.
        let _ = unsafe { (self.nccl.calls.comm_abort)(self.handle) };
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.failed {
            // SAFETY: it was made here and is destroyed once; its stream is idle.
            let _ = unsafe { (self.nccl.calls.comm_destroy)(self.handle) };
        }
    }
}

impl Range<'_> {
    /// Where it begins, if `len` bytes are there.
    fn of(self, len: usize) -> Result<*mut c_void, NcclError> {
        let there = self.memory.len().saturating_sub(self.start);
        if self.start > self.memory.len() || len > there {
            return Err(NcclError::Range { needed: len, there });
        }
        let address = self.memory.address() + self.start as u64;
        let address = usize::try_from(address).expect("an address has the size of a pointer");
        // The address is the device's; the CPU does not follow it.
        Ok(ptr::without_provenance_mut(address))
    }
}

impl Kind {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// ncclDataType_t.
    fn number(self) -> c_int {
        self as c_int
    }
}

// nccl.h counts the types in this order.
const _: () =
    assert!(Kind::U8 as c_int == 1 && Kind::F32 as c_int == 7 && Kind::BF16 as c_int == 9);

fn number(rank: usize) -> c_int {
    c_int::try_from(rank).expect("ranks are few")
}

/// ncclSum.
const SUM: c_int = 0;
/// Polls before the CPU is given to others, such as NCCL's proxy thread.
const SPINS: u32 = 1000;
