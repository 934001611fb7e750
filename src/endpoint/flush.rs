//! The read that makes received bytes visible: once per data rail that brought some, of the memory that they went to.
//!
//! A NIC's read passes the same path as its writes before it, and pushes them ahead: the answer to a read does not overtake a posted
//! write, nor does the read (PCI Express Base Specification, Transaction Ordering). So it has to go where the writes went. GPU memory is
//! read where the received buffer begins, by the registration that the bytes came through, once per GPU; the host's memory from a page of
//! the endpoint's own. Both are registered for the rail that reads them, wherever regions are bound to rails
//! (docs/decisions/0013-a-flush-reads-what-was-received.md).

use std::sync::Arc;

use fabric::{FabricError, MemoryKind, Post, RemoteBytes, RemoteKey};

use super::Endpoint;
use super::comms::Side;
use super::executor::Executor;
use super::in_flight::InFlight;
use super::nics::Port;
use super::purpose::Purpose;
use super::region::UserRegion;
use super::slots::Slots;
use crate::error::{Bug, Cause, Noun, Result, Table};
use crate::object_id::{ObjectId, ObjectKind, RawId};
use crate::types::{Buffer, Tested};

/// What one read takes, or what is left of the buffer: a cache line.
const READ_BYTES: usize = 64;
/// Of a group: a read for each GPU that a buffer of it lies on, and one for the host.
const READS_MAX: usize = proto::limits::MAX_GROUP;

/// Whose memory is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushSource {
    Host,
    Gpu(i32),
    /// Of several, in one group.
    Several,
}

/// A flush under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flush {
    /// The comm that it is of.
    comm: ObjectId,
    reads: [Option<Read>; READS_MAX],
    /// Reads that have not completed.
    in_flight: InFlight,
    failed: bool,
}

/// One read on each of some NICs.
#[derive(Clone, Copy, Debug)]
struct Read {
    source: FlushSource,
    /// The slot and generation of the buffer's registration, and where the buffer begins; none for the page of our own.
    buffer: Option<(u16, u16, u64)>,
    /// The registration's key for the first rail, which no other has that is open.
    key: Option<u64>,
    /// NICs whose read was refused so far, as bits.
    unposted: u32,
}

impl Flush {
    pub(super) fn completed(&mut self, well: bool) {
        let counted = self.in_flight.end(1);
        self.failed |= !(well && counted);
    }

    /// Whether a read of this registration is under way.
    pub(super) fn reads_from(&self, region: &UserRegion) -> bool {
        let key = Some(region.key(0));
        !self.in_flight.is_none() && self.reads.iter().flatten().any(|read| read.key == key)
    }

    /// Whether all that was posted has ended. One that is miscounted has failed, and is waited for no more.
    fn has_ended(&self) -> bool {
        self.in_flight.is_none() || self.failed && self.in_flight.count() == 0
    }

    fn unposted(&self) -> u32 {
        self.reads.iter().flatten().fold(0, |all, read| all | read.unposted)
    }
}

/// What is to be flushed of one comm's receives.
#[derive(Debug, Default)]
pub(super) struct Flushing {
    /// A bit per data rail that brought bytes since the last flush began.
    carried: u16,
    /// Flushes that have not ended, and the NICs that they read on, as bits.
    count: InFlight,
    nics: u32,
    last: Option<FlushSource>,
}

impl Flushing {
    /// A receive was reported whose bytes these rails brought.
    #[inline]
    pub(super) fn carried(&mut self, rails: u16) {
        self.carried |= rails;
    }

    /// The data rails to read on, a bit each; what was read before of another place says nothing of this one.
    ///
    /// What a flush takes is of receives that were reported before it, whosever they are. So while that one has not ended another
    /// one reads there too; and behind a flush of another place nobody knows what it has taken of this one, and all are read.
    fn rails(&mut self, source: FlushSource) -> u16 {
        let carried = std::mem::take(&mut self.carried);
        let last = self.last.replace(source);
        let other = last.is_some_and(|last| last != source || last == FlushSource::Several);
        if other { u16::MAX } else { carried }
    }

    fn begins(&mut self, nics: u32) {
        self.count.begin(1);
        self.nics |= nics;
    }

    fn ends(&mut self) {
        // Miscounted, the NICs stay: a later flush reads there once more.
        if self.count.end(1) && self.count.is_none() {
            self.nics = 0;
        }
    }
}

impl Endpoint {
    /// Reads once on each rail that brought bytes to `comm` since its last flush, from each place where `buffers` are. `None`: there
    /// is nothing to wait for.
    ///
    /// The sizes that NCCL gives say nothing: its lists may have lost step with each other (NCCL src/transport/net.cc:1641-1687).
    pub(crate) fn iflush(&mut self, comm: RawId, buffers: &[Buffer]) -> Result<Option<RawId>> {
        let id = comm.receiver()?;
        for Buffer { address, len, .. } in buffers {
            if *address == 0 && *len > 0 {
                return Err(Cause::NullAddress { len: *len }.into());
            }
        }
        self.check_intact()?;
        let self_read = self.executor.capabilities.self_read;
        let mut reads = reads_of(&self.executor.regions, buffers)?;
        let mut sources = reads.iter().flatten().map(|read| read.source);
        let source = match (sources.next(), sources.next()) {
            (Some(source), None) => source,
            _ => FlushSource::Several,
        };
        let (_, found) = self.comms.open(id, Side::Receive, Noun::ReceiveComm)?;
        let (channel, rails) = (found.channel, found.flushing.rails(source));
        let running = found.flushing.nics;
        let lanes = self.executor.peer(channel).map_or(&[][..], |peer| &peer.data);
        let brought = lanes.iter().enumerate().filter(|(rail, _)| rails >> rail & 1 == 1);
        let unposted = brought.fold(running, |nics, (_, lane)| nics | 1 << lane.nic);
        let unposted = open_nics(&self.executor.nics, unposted);
        if unposted == 0 || (!self_read && source == FlushSource::Host) {
            return Ok(None);
        }
        if !self_read {
            return Err(Cause::NoFlush { device: self.label() }.into());
        }
        reads.iter_mut().flatten().for_each(|read| read.unposted = unposted);
        let flush = Flush { comm: id, reads, in_flight: InFlight::default(), failed: false };
        let mut generation = 0;
        let slot = self.flushes.insert_with(|_, current| {
            generation = current;
            flush
        });
        let full = Cause::Full { table: Table::Flushes, count: u16::MAX.into() };
        let slot = slot.ok_or(full)?;
        if let Ok((_, comm)) = self.comms.open(id, Side::Receive, Noun::ReceiveComm) {
            comm.flushing.begins(unposted);
        }
        self.post_flush(slot)?;
        let request = ObjectId::new(ObjectKind::FlushRequest, self.number, generation, slot, 0);
        Ok(Some(request.raw()))
    }

    pub(super) fn test_flush(&mut self, request: ObjectId) -> Result<Tested> {
        let (slot, generation) = (request.slot(), request.generation());
        for polled in [false, true] {
            let flush = self.flushes.get(slot, generation).ok_or(Cause::Stale(Noun::Request))?;
            if flush.unposted() != 0 {
                self.post_flush(slot)?;
            }
            let flush = self.flushes.get(slot, generation).ok_or(Cause::Stale(Noun::Request))?;
            if flush.unposted() == 0 && flush.has_ended() {
                break;
            }
            if polled {
                return Ok(Tested::Pending);
            }
            self.progress();
        }
        let flush = self.flushes.get(slot, generation).ok_or(Cause::Stale(Noun::Request))?;
        let (comm, failed) = (flush.comm, flush.failed);
        self.flushes.remove(slot, generation);
        if let Ok((_, comm)) = self.comms.open(comm, Side::Receive, Noun::ReceiveComm) {
            comm.flushing.ends();
        }
        if failed {
            return Err(Cause::FlushFailed { device: self.label() }.into());
        }
        Ok(Tested::Group(0))
    }

    /// The rail of a read was closed under it: it is made again on another one.
    #[cold]
    pub(super) fn flush_again(&mut self, flush: u16) {
        let nics = open_nics(&self.executor.nics, u32::MAX);
        let Some(flush) = self.flushes.at_mut(flush) else { return };
        flush.completed(true);
        let first = nics & nics.wrapping_neg();
        flush.reads.iter_mut().flatten().for_each(|read| read.unposted |= first);
    }

    /// A read of a flush has ended.
    pub(super) fn flush_read(&mut self, flush: u16, well: bool) {
        if let Some(flush) = self.flushes.at_mut(flush) {
            flush.completed(well);
        }
    }

    /// Whether a flush reads from a registration.
    pub(super) fn reads_from(&self, region: &UserRegion) -> bool {
        self.flushes.iter().any(|flush| flush.reads_from(region))
    }

    /// Posts the reads that are yet to be posted. One that is refused waits for the next test, and none is made twice. What was
    /// deregistered meanwhile is read no more.
    fn post_flush(&mut self, slot: u16) -> Result<()> {
        let Executor { nics, landing, regions, .. } = &mut self.executor;
        let Some(flush) = self.flushes.at_mut(slot) else { return Ok(()) };
        for read in flush.reads.iter_mut().flatten() {
            let found = match read.buffer {
                None => Some((&**landing, landing.address())),
                Some((region, generation, address)) => {
                    regions.get(region, generation).map(|region| (&**region, address))
                }
            };
            let Some((region, address)) = found else {
                flush.failed |= read.unposted != 0;
                read.unposted = 0;
                continue;
            };
            for (index, nic) in nics.iter_mut().enumerate() {
                if read.unposted >> index & 1 == 1
                    && post(nic, index, slot, landing, (region, address))? == Post::Accepted
                {
                    read.unposted &= !(1 << index);
                    flush.in_flight.begin(1);
                }
            }
        }
        Ok(())
    }
}

/// The NICs to read on, as bits, of those that brought something: one whose data rail is closed has an open one read in its place.
fn open_nics(nics: &[Port], wanted: u32) -> u32 {
    let open = (0..).zip(nics).filter(|(_, port)| !port.is_closed);
    let open = open.fold(0, |open, (nic, _)| open | 1 << nic);
    let instead = if wanted & !open == 0 { 0 } else { open & open.wrapping_neg() };
    wanted & open | instead
}

/// What there is to read for these buffers: one place of each GPU, one page for all that is the host's, or has no registration.
fn reads_of(
    regions: &Slots<Arc<UserRegion>>,
    buffers: &[Buffer],
) -> Result<[Option<Read>; READS_MAX]> {
    let mut reads = [None; READS_MAX];
    for buffer in buffers {
        let (source, bytes, key) = match buffer.region.optional_region()? {
            None => (FlushSource::Host, None, None),
            Some(id) => {
                let (slot, generation) = (id.slot(), id.generation());
                let region =
                    regions.get(slot, generation).ok_or(Cause::Stale(Noun::MemoryHandle))?;
                match region.memory().kind() {
                    MemoryKind::Host => (FlushSource::Host, None, None),
                    MemoryKind::Cuda { device } if region.holds(buffer.address, 1) => {
                        let bytes = Some((slot, generation, buffer.address));
                        (FlushSource::Gpu(device), bytes, Some(region.key(0)))
                    }
                    MemoryKind::Cuda { .. } => {
                        let address = buffer.address;
                        return Err(Cause::FlushOutsideOfRegion { address }.into());
                    }
                }
            }
        };
        let known = |read: &&mut Option<Read>| read.is_none_or(|read| read.source == source);
        if let Some(free @ None) = reads.iter_mut().find(known) {
            *free = Some(Read { source, buffer: bytes, key, unposted: 0 });
        }
    }
    Ok(reads)
}

/// Posts the read of one NIC, numbered `index`, from where a buffer begins into our own page.
fn post(
    port: &mut Port,
    index: usize,
    flush: u16,
    landing: &UserRegion,
    (region, address): (&UserRegion, u64),
) -> Result<Post> {
    let failed = |error: FabricError| {
        let rail = u8::try_from(index).unwrap_or(u8::MAX);
        Cause::FlushNotPosted { rail, fault: error }
    };
    let myself = port.myself().map_err(failed)?;
    let nic = &mut port.nic;
    let len = region.bytes_from(address).min(READ_BYTES);
    let local = landing.local(index, landing.address() + READ_BYTES as u64, len);
    let local = local.ok_or(Cause::Bug(Bug::LandingPageTooSmall))?;
    let key = RemoteKey::from_wire(region.key(index));
    let remote = RemoteBytes { address: region.target(address), key };
    Ok(nic.read(local, remote, myself, Purpose::Flush { flush }.token()).map_err(failed)?)
}
