//! Flush: a read on each data rail that carried received bytes, from the memory that they were written to, makes them visible to the GPU.
//!
//! A NIC's read takes the same PCIe path as its earlier writes and pushes them ahead: neither a read nor its completion passes a posted
//! write (PCI Express Base Specification, Transaction Ordering). So it has to target the memory that was written. GPU memory is read once
//! per GPU, at the start of the received buffer, through the registration that received the bytes; host memory through a page of the
//! endpoint's own. Both are registered for the rail that reads them, wherever regions are bound to rails
//! (docs/decisions/0013-a-flush-reads-what-was-received.md).

use std::ptr;
use std::sync::Arc;

use fabric::{FabricError, MemoryKind, Post, RemoteBytes, RemoteKey};
use proto::polled::PolledTime;
use proto::{RailSet, Slot};

use super::Endpoint;
use super::bound::milliseconds;
use super::executor::Executor;
use super::in_flight::InFlight;
use super::nics::Port;
use super::purpose::Purpose;
use super::region::UserRegion;
use super::side::Side;
use super::slots::Slots;
use crate::error::{Bug, Cause, Noun, Result, Table};
use crate::label::Label;
use crate::object_id::{ObjectId, ObjectKind, RawId};
use crate::types::{Buffer, Tested};

/// The length of a read, or less at the end of the buffer: a cache line.
const READ_BYTES: usize = 64;
/// Reads per group at most: one per GPU that has a buffer of it, and one for the host.
const READS_MAX: usize = proto::limits::MAX_GROUP;

/// The memory that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushSource {
    Host,
    Gpu(i32),
    /// A group with buffers in several memories.
    Several,
}

/// A flush under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flush {
    /// The receive comm; None once NCCL has closed it. The flush stays until its reads have ended.
    comm: Option<ObjectId>,
    reads: [Option<Read>; READS_MAX],
    /// Reads that have not completed.
    in_flight: InFlight,
    failed: bool,
    /// When the flush began, or when a rail that it reads on was last closed, by [`proto::ProgressLoop::polled_time`].
    since: PolledTime,
}

/// One read on each of some NICs.
#[derive(Clone, Copy, Debug)]
struct Read {
    source: FlushSource,
    /// Slot and generation of the buffer's registration, and the buffer's address; none for the endpoint's own page.
    buffer: Option<(u16, u16, u64)>,
    /// The address of the registration's object, which identifies it: the object stays there until no flush reads from it. (Keys do not
    /// identify it: they change when a rail opens again.)
    region: Option<usize>,
    /// NICs whose read is not posted yet, one bit each.
    unposted: u32,
}

impl Flush {
    pub(super) fn completed(&mut self, well: bool) {
        let counted = self.in_flight.end(1);
        self.failed |= !(well && counted);
    }

    /// Whether a read of this registration is under way.
    pub(super) fn reads_from(&self, region: &UserRegion) -> bool {
        let region = Some(ptr::from_ref(region).addr());
        !self.in_flight.is_none() && self.reads.iter().flatten().any(|read| read.region == region)
    }

    /// Whether all posted reads have completed. After a wrong count the flush has failed and is not waited for.
    fn has_ended(&self) -> bool {
        self.in_flight.is_none() || self.failed && self.in_flight.count() == 0
    }

    fn unposted(&self) -> u32 {
        self.reads.iter().flatten().fold(0, |all, read| all | read.unposted)
    }

    fn post_no_more(&mut self) {
        self.reads.iter_mut().flatten().for_each(|read| read.unposted = 0);
    }

    /// Whether neither NCCL nor a read refers to it any more.
    fn is_over(&self) -> bool {
        self.comm.is_none() && self.has_ended()
    }
}

/// The data rails that a comm's next flush has to read on.
#[derive(Debug, Default)]
pub(super) struct Flushing {
    /// Data rails that brought bytes since the last flush began.
    carried: RailSet,
    /// Data rails that ever brought bytes.
    brought: RailSet,
    /// Flushes that have not ended, and the NICs that they read on, one bit each.
    count: InFlight,
    nics: u32,
    last: Option<FlushSource>,
}

impl Flushing {
    /// A receive was reported whose bytes these rails carried.
    #[inline]
    pub(super) fn carried(&mut self, rails: RailSet) {
        self.carried |= rails;
        self.brought |= rails;
    }

    /// The data rails to read on. An earlier read of other memory proves nothing for this memory.
    ///
    /// A flush covers all receives of the comm that were reported before it, whichever request they belong to. While an earlier flush has
    /// not ended, a later one also reads on its rails. After a flush of other memory it is unknown on which rails bytes for this memory may
    /// still be under way, so all rails that ever brought bytes are read on.
    fn rails(&mut self, source: FlushSource) -> RailSet {
        let carried = std::mem::take(&mut self.carried);
        let last = self.last.replace(source);
        let other = last.is_some_and(|last| last != source || last == FlushSource::Several);
        if other { self.brought } else { carried }
    }

    fn begins(&mut self, nics: u32) {
        self.count.begin(1);
        self.nics |= nics;
    }

    fn ends(&mut self) {
        // After a wrong count the NICs stay listed: a later flush reads them again.
        if self.count.end(1) && self.count.is_none() {
            self.nics = 0;
        }
    }
}

impl Endpoint {
    /// Reads once on each rail that carried bytes for `comm` since its last flush, from each memory that `buffers` are in. `None`: there is
    /// nothing to wait for.
    ///
    /// The sizes are ignored: NCCL's lists of sizes and buffers may not correspond (NCCL src/transport/net.cc:1641-1687).
    pub(crate) fn iflush(&mut self, comm: RawId, buffers: &[Buffer]) -> Result<Option<RawId>> {
        let id = comm.receiver()?;
        for Buffer { address, len, .. } in buffers {
            if *address == 0 && *len > 0 {
                return Err(Cause::NullAddress { len: *len }.into());
            }
        }
        self.check_intact()?;
        let self_read = self.executor.capabilities().self_read;
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
        let brought = (0..).zip(lanes).filter(|(rail, _)| rails.has(*rail));
        let wanted = brought.fold(running, |nics, (_, lane)| nics | 1 << lane.nic);
        if wanted == 0 || (!self_read && source == FlushSource::Host) {
            return Ok(None);
        }
        if !self_read {
            return Err(Cause::NoFlush { device: self.label() }.into());
        }
        let Some(unposted) = readers(&self.executor.nics, wanted) else {
            found.flushing.carried(rails);
            return Err(Cause::FlushFailed { device: self.label() }.into());
        };
        reads.iter_mut().flatten().for_each(|read| read.unposted = unposted);
        let since = self.core.polled_time();
        let comm = Some(id);
        let flush = Flush { comm, reads, in_flight: InFlight::default(), failed: false, since };
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
        if let Err(error) = self.post_flush(slot) {
            // The caller gets an error and no request, so nothing would test this flush.
            self.close_flush(slot);
            if let Ok((_, comm)) = self.comms.open(id, Side::Receive, Noun::ReceiveComm) {
                comm.flushing.ends();
                comm.flushing.carried(rails);
            }
            return Err(error);
        }
        let request = ObjectId::new(ObjectKind::FlushRequest, self.number, generation, slot, 0);
        Ok(Some(request.raw()))
    }

    pub(super) fn test_flush(&mut self, request: ObjectId) -> Result<Tested> {
        let (slot, generation) = (request.slot(), request.generation());
        let stale = Cause::Stale(Noun::Request);
        let named = self.flushes.get(slot, generation);
        let comm = named.and_then(|flush| flush.comm).ok_or(stale)?;
        for polled in [false, true] {
            let flush = self.flushes.get(slot, generation).ok_or(stale)?;
            if flush.unposted() != 0 {
                self.post_flush(slot)?;
            }
            let flush = self.flushes.get(slot, generation).ok_or(stale)?;
            if flush.unposted() == 0 && flush.has_ended() {
                break;
            }
            if polled {
                let waited = self.core.polled_time().since(flush.since);
                if waited < self.settings.peer_timeout {
                    return Ok(Tested::Pending);
                }
                return Err(self.flush_hangs(slot, flush.unposted()).into());
            }
            let now = self.now();
            self.progress_at(now, Slot::new(comm.slot().into()));
        }
        let flush = self.flushes.remove(slot, generation).ok_or(stale)?;
        if let Ok((_, comm)) = self.comms.open(comm, Side::Receive, Noun::ReceiveComm) {
            comm.flushing.ends();
        }
        if flush.failed {
            return Err(Cause::FlushFailed { device: self.label() }.into());
        }
        Ok(Tested::Group(0))
    }

    /// Names a rail whose read has not ended. No other rail's read can replace it while the rail is open. The flush stays in its slot,
    /// which the reads in flight refer to, and may still end.
    #[cold]
    fn flush_hangs(&self, slot: u16, unposted: u32) -> Cause {
        let Executor { nics, landing, .. } = &self.executor;
        let token = Purpose::Flush { flush: slot }.token();
        let reads = |(index, port): &(usize, &Port)| {
            unposted >> index & 1 == 1 || landing.tokens(*index, &port.nic).any(|its| its == token)
        };
        let port = nics.iter().enumerate().find(reads);
        let rail = port.map_or_else(|| self.label(), |(_, port)| Label::of(&port.label));
        Cause::FlushHangs { rail, bound_ms: milliseconds(self.settings.peer_timeout) }
    }

    /// The rail of a read was closed before it completed: the read is posted on another rail.
    #[cold]
    pub(super) fn flush_again(&mut self, slot: u16) {
        let nics = nics_that(&self.executor.nics, |port| !port.is_closed());
        let now = self.core.polled_time();
        let Some(flush) = self.flushes.at_mut(slot) else { return };
        if flush.comm.is_none() {
            return self.flush_read(slot, false);
        }
        flush.since = now;
        flush.completed(nics != 0);
        let first = nics & nics.wrapping_neg();
        flush.reads.iter_mut().flatten().for_each(|read| read.unposted |= first);
    }

    /// A read of a flush has ended. If it has failed, so has the flush: no other NIC's read flushes the bytes that this NIC wrote.
    pub(super) fn flush_read(&mut self, slot: u16, well: bool) {
        let Some(flush) = self.flushes.at_mut(slot) else { return };
        flush.completed(well);
        if flush.is_over() {
            self.flushes.remove_at(slot);
        }
    }

    /// NCCL has closed a receive comm, whose flushes it does not test any more.
    pub(super) fn close_flushes(&mut self, comm: ObjectId) {
        for (slot, _) in self.flushes.keys() {
            if self.flushes.at_mut(slot).is_some_and(|flush| flush.comm == Some(comm)) {
                self.close_flush(slot);
            }
        }
    }

    /// NCCL does not test this flush any more. It stays until its reads have ended.
    fn close_flush(&mut self, slot: u16) {
        let Some(flush) = self.flushes.at_mut(slot) else { return };
        flush.comm = None;
        flush.post_no_more();
        if flush.is_over() {
            self.flushes.remove_at(slot);
        }
    }

    /// Whether a flush reads from a registration.
    pub(super) fn reads_from(&self, region: &UserRegion) -> bool {
        self.flushes.iter().any(|flush| flush.reads_from(region))
    }

    /// Posts the reads that are not posted yet. The next test retries a read that the provider refused. The flush fails if a post fails, or
    /// if a region was deregistered meanwhile; the error is returned once.
    fn post_flush(&mut self, slot: u16) -> Result<()> {
        let posted = self.post_reads(slot);
        if posted.is_err()
            && let Some(flush) = self.flushes.at_mut(slot)
        {
            flush.failed = true;
            flush.post_no_more();
        }
        posted
    }

    fn post_reads(&mut self, slot: u16) -> Result<()> {
        let Executor { nics, landing, regions, .. } = &mut self.executor;
        let Some(flush) = self.flushes.at_mut(slot) else { return Ok(()) };
        for read in flush.reads.iter_mut().flatten() {
            // A rail may have been closed since the read was refused.
            let readers = readers(nics, read.unposted);
            flush.failed |= readers.is_none();
            read.unposted = readers.unwrap_or(0);
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

/// The NICs to read on, one bit each: those that carried bytes, with an open NIC in place of one whose data rail was fenced. None if no NIC
/// is open, or if a rail's libfabric endpoint has leaked: then its late writes cannot be excluded.
fn readers(nics: &[Port], wanted: u32) -> Option<u32> {
    let open = nics_that(nics, |port| !port.is_closed());
    let fenced = nics_that(nics, |port| port.nic.is_fenced());
    let instead = if wanted & !open == 0 { 0 } else { open & open.wrapping_neg() };
    let readers = wanted & open | instead;
    (wanted & !open & !fenced == 0 && (wanted == 0 || readers != 0)).then_some(readers)
}

fn nics_that(nics: &[Port], are: impl Fn(&Port) -> bool) -> u32 {
    let chosen = (0..).zip(nics).filter(|(_, port)| are(port));
    chosen.fold(0, |all, (nic, _)| all | 1 << nic)
}

/// The reads for these buffers: one per GPU, and one of the endpoint's page for host memory and for buffers without a registration.
fn reads_of(
    regions: &Slots<Arc<UserRegion>>,
    buffers: &[Buffer],
) -> Result<[Option<Read>; READS_MAX]> {
    let mut reads = [None; READS_MAX];
    for buffer in buffers {
        let (source, bytes, at) = match buffer.region.optional_region()? {
            None => (FlushSource::Host, None, None),
            Some(id) => {
                let (slot, generation) = (id.slot(), id.generation());
                let region =
                    regions.get(slot, generation).ok_or(Cause::Stale(Noun::MemoryHandle))?;
                match region.memory().kind() {
                    MemoryKind::Host => (FlushSource::Host, None, None),
                    MemoryKind::Cuda { device } if region.holds(buffer.address, 1) => {
                        let bytes = Some((slot, generation, buffer.address));
                        (FlushSource::Gpu(device), bytes, Some(Arc::as_ptr(region).addr()))
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
            *free = Some(Read { source, buffer: bytes, region: at, unposted: 0 });
        }
    }
    Ok(reads)
}

/// Posts the read of NIC `index`, from the buffer's start into the endpoint's own page.
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
