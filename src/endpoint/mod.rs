//! The rails one communicator uses on one device, behind one lock.
//!
//! All state of an endpoint sits in this object, and whoever calls into it holds the lock of its cell
//! (`plugin::registry`): NCCL's service thread and progress thread take turns. libfabric's objects are used under that
//! lock alone, which is what FI_THREAD_DOMAIN asks for.

pub(crate) mod broken;
mod bundle;
mod cache;
pub(crate) mod close;
mod completions;
mod copies;
pub(crate) mod counters;
mod eager;
mod early;
mod fence;
mod flush;
mod in_flight;
mod lanes;
mod mail;
mod memory;
mod messages;
mod nics;
mod notices;
mod operation;
pub(crate) mod plain;
mod probe;
mod probing;
mod progress;
mod pulse;
mod receiver;
mod region;
mod regions;
mod release;
mod rests;
mod sender;
mod setup;
mod silence;
pub(crate) mod slots;
pub(crate) mod tenants;
mod unheard;
mod watch;
mod working;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use fabric::Pages;
use proto::{Answered, Capabilities, CommId, LineFormat};

use crate::comm::listener::Listener;
use crate::comm::peer::Acquaintances;
use crate::comm::setup::Asking;
use crate::error::{Cause, Error, Noun, Result};
use crate::handle::{Handle, HandleKind, Name};
use crate::label::Label;
use crate::types::{Buffer, Device, Poll, Receive, Settings, Tested};
use cache::RegionCache;
use counters::Counters;
use fence::Leaving;
use flush::Flush;
use memory::{Sizes, Slabs, Unit};
use nics::Port;
pub(crate) use nics::{OPERATIONS, Opened};
use notices::Notices;
use probe::Probe;
use receiver::{Incoming, Receiver};
use region::UserRegion;
use sender::{Outgoing, Sender};
use slots::Slots;
use tenants::Tenants;
use unheard::Unheard;
use watch::Watch;
use working::Working;

/// The rails, the memory and the connections of one communicator on one device.
#[derive(Debug)]
pub(crate) struct Endpoint {
    number: u16,
    /// Tells our own handles and connection ids from another process's.
    nonce: u64,
    settings: Settings,
    device: Device,
    capabilities: Capabilities,
    /// Whether these are what the probe has found; no connection is made before.
    settled: bool,
    /// The probe of the device, while this endpoint makes it.
    probe: Option<Probe>,
    tenants: Tenants,
    listeners: Slots<Listener<setup::Accepting>>,
    /// The requests that have come, by what became of them.
    answered: Answered,
    senders: Slots<Box<SenderState>>,
    receivers: Slots<Box<Receiver>>,
    regions: Slots<Arc<UserRegion>>,
    flushes: Slots<Flush>,
    /// Receivers whose adverts wait or that owe a done.
    working: Working,
    /// Senders with parts or fins that are yet to be posted.
    feeding: Vec<u16>,
    /// Senders that hold messages back until the next turn.
    holding: Vec<u16>,
    /// Receives that NCCL has not been told the end of.
    outstanding: u32,
    /// Since when the last receive waits for dones to leave.
    departing: Option<Instant>,
    notices: Notices,
    /// Receives for messages that found no room yet, by NIC and buffer.
    owed_inboxes: Vec<(usize, u16)>,
    counters: Counters,
    acquaintances: Acquaintances,
    /// What an empty message is sent from and received into.
    landing: Arc<UserRegion>,
    slabs: Slabs,
    /// What eager messages that the provider copies are written from.
    eager_scratch: Option<Unit>,
    /// Registrations that are held.
    cache: RegionCache,
    /// Registrations that NCCL gives back, and that peers may still use.
    leaving: Vec<Leaving>,
    unheard: Unheard,
    /// A sender has closed its end before all that it had begun was here.
    left: bool,
    /// How long peers that do not answer may hold up those who end something.
    patience: Duration,
    nics: Vec<Port>,
    watch: Watch,
    failure: Option<Error>,
    /// A panic has left it as it is: see `broken`.
    broken: bool,
}

/// Where a test looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// At what is known already.
    Known,
    /// Also into the memory that the peer writes to.
    Memory,
}

/// A slot of the sending side.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the slot's box is made once, when asking, and serves the connection's life"
)]
enum SenderState {
    /// The mailbox moves on to the sender.
    Asking {
        asking: Asking,
        mailbox: Option<Unit>,
        control: fabric::PeerAddress,
    },
    Connected(Sender),
}

/// How far the end of a connection has come.
#[derive(Clone, Copy, Debug, Default)]
struct Ending {
    /// NCCL has closed this end: its handles are stale, and it drains.
    closing: bool,
    /// NCCL may post nothing here: this end is closed, its failure was told, or the receiver is gone.
    blocked: bool,
    said_bye: bool,
    /// The peer has closed its end.
    heard_bye: bool,
}

impl Endpoint {
    pub(crate) fn open(
        number: u16,
        device: Device,
        settings: Settings,
        opened: Vec<Opened>,
        capabilities: Capabilities,
    ) -> Result<Self> {
        let nics = opened.into_iter().map(Port::new).collect::<std::result::Result<Vec<_>, _>>();
        let no_memory = |fault| Cause::NoControlMemory { device: device.label, fault };
        let mut nics = nics.map_err(no_memory)?;
        let line_bytes = LineFormat::for_rails(nics.len()).bytes();
        let sizes = Sizes {
            lines: setup::LENT.places() as usize * line_bytes,
            eager: eager::RING_BYTES,
            // Where completions prove arrival, nobody waits for done, and writes of a NIC are cheap.
            bundles: if capabilities.proves_arrival { 0 } else { bundle::RING_BYTES },
        };
        let landing = Pages::map(fabric::page_bytes())
            .and_then(|pages| UserRegion::register_pages(&mut nics, Arc::new(pages)));
        let landing = landing.map(Arc::new).map_err(Cause::NoLandingPage)?;
        let working = Working::new(settings.lone_done_turns);
        let first = first_generation();
        let mut endpoint = Self {
            number,
            nonce: random(),
            patience: settings.close_timeout,
            settings,
            device,
            capabilities,
            settled: false,
            probe: None,
            tenants: Tenants::default(),
            listeners: Slots::new(u16::MAX).beginning_at(first),
            answered: Answered::default(),
            senders: Slots::new(u16::MAX).beginning_at(first).named(HandleKind::Sender, number),
            receivers: Slots::new(CommId::COUNT)
                .beginning_at(first)
                .named(HandleKind::Receiver, number),
            flushes: Slots::new(u16::MAX).beginning_at(first),
            regions: Slots::new(regions::REGIONS_MAX)
                .beginning_at(first)
                .named(HandleKind::Region, number),
            working,
            feeding: Vec::new(),
            holding: Vec::new(),
            outstanding: 0,
            departing: None,
            notices: Notices::default(),
            owed_inboxes: Vec::new(),
            counters: Counters::default(),
            acquaintances: Acquaintances::default(),
            landing,
            slabs: Slabs::new(sizes),
            eager_scratch: None,
            cache: RegionCache::default(),
            leaving: Vec::new(),
            unheard: Unheard::default(),
            left: false,
            nics,
            watch: Watch::default(),
            failure: None,
            broken: false,
        };
        endpoint.post_inboxes();
        // Its first post costs a connection of this endpoint with itself, which may come about meanwhile.
        endpoint.settle();
        Ok(endpoint)
    }

    /// Sends a message if its receive is advertised; else makes one turn of progress and tries again.
    #[inline(never)]
    fn isend_generally(&mut self, comm: Name, outgoing: Buffer) -> Result<Option<Name>> {
        let (outgoing, comm) = (outgoing.checked()?, comm.sender()?);
        self.check_intact()?;
        let sent = match self.try_send(comm, &outgoing) {
            Ok(None) => self.isend_again(comm, &outgoing)?,
            Ok(request) => request,
            Err(error) => return Err(self.call_failed(comm, error)),
        };
        Ok(sent.map(Handle::name))
    }

    fn isend_again(&mut self, comm: Handle, outgoing: &Receive) -> Result<Option<Handle>> {
        self.progress();
        match self.try_send(comm, outgoing) {
            Ok(None) => self.send_eagerly(comm, outgoing),
            sent => sent,
        }
    }

    fn try_send(&mut self, comm: Handle, outgoing: &Receive) -> Result<Option<Handle>> {
        let Receive { address, len, tag, region } = *outgoing;
        let Self { senders, regions, landing, nics, slabs, feeding, holding, watch, .. } = self;
        let (slot, generation) = (comm.slot(), comm.generation());
        let sender = open_sender(senders.get_mut(slot, generation), Noun::SendComm)?;
        let (region, address) = pick(regions, landing, region, address, len)?;
        let mut means = sender::Means { nics, slabs, slot };
        let turn = watch.number();
        let line = sender.send(&mut means, &Outgoing { region, address, len, tag, turn })?;
        if sender.holds_back() {
            remember(holding, slot);
        }
        if sender.is_feeding() {
            remember(feeding, slot);
        }
        let request = |line: proto::Line| comm.request(sender::low16(line.number()));
        Ok(line.map(request))
    }

    /// Posts a receive, or a group. `None`: the window has no room; a turn of progress was made.
    #[inline(never)]
    fn irecv_generally(
        &mut self,
        comm: Name,
        receives: &[Buffer],
        cut: bool,
    ) -> Result<Option<Name>> {
        // Refused before anything is looked up, as what is no handle.
        receives.iter().try_for_each(|receive| receive.checked().map(drop))?;
        let comm = comm.receiver()?;
        self.check_intact()?;
        let posted = match self.try_receive(comm, receives, cut) {
            Ok(None) => {
                self.progress();
                self.try_receive(comm, receives, cut)?
            }
            Ok(request) => request,
            Err(error) => return Err(self.call_failed(comm, error)),
        };
        Ok(posted.map(Handle::name))
    }

    fn try_receive(
        &mut self,
        comm: Handle,
        receives: &[Buffer],
        cut: bool,
    ) -> Result<Option<Handle>> {
        let Self { receivers, regions, landing, nics, slabs, working, outstanding, .. } = self;
        let (slot, generation) = (comm.slot(), comm.generation());
        let receiver = open_receiver(receivers.get_mut(slot, generation), Noun::ReceiveComm)?;
        let mut means = receiver::Means { nics, slabs, slot, generation };
        let line = if let [only] = receives {
            receiver.receive(&mut means, &[incoming(regions, landing, *only)?], cut)?
        } else {
            let mut group = [Incoming { region: landing, address: 0, len: 0, tag: 0 };
                setup::MAX_GROUP as usize];
            let count = receives.len();
            if count > group.len() {
                return Err(Cause::GroupOfDevice { count, most: group.len() }.into());
            }
            for (place, receive) in group.iter_mut().zip(receives) {
                *place = incoming(regions, landing, *receive)?;
            }
            receiver.receive(&mut means, &group[..count], cut)?
        };
        let Some(line) = line else { return Ok(None) };
        *outstanding += 1;
        enqueue(receiver, working, slot);
        Ok(Some(comm.request(sender::low16(line.number()))))
    }

    /// Asks for a request of any kind.
    #[inline(never)]
    fn test_generally(&mut self, request: Name) -> Result<Tested> {
        let request = request.any_request()?;
        self.check_intact()?;
        let mut sizes = [0; setup::MAX_GROUP as usize];
        let asked = self.ask_in_a_turn(request, &mut sizes);
        Ok(match asked.map_err(|error| self.call_failed(request, error))? {
            Poll::Pending => Tested::Pending,
            Poll::Done { sizes: 1 } => Tested::Done(sizes[0] as u64),
            Poll::Done { sizes: count } => Tested::Group { count: count as usize, sizes },
        })
    }

    fn ask_in_a_turn(&mut self, request: Handle, sizes: &mut [usize; 8]) -> Result<Poll> {
        if !self.waits(request)
            && let done @ Poll::Done { .. } = self.ask(request, sizes, Look::Known)?
        {
            return Ok(done);
        }
        let control = self.awaits_control(request);
        self.progress_for(control);
        self.ask(request, sizes, Look::Memory)
    }

    /// An error was answered about a comm or a request. Who is told of a failure may never call again, and others are not
    /// to wait for that: what it has begun is pushed a little further the first time. Who goes on with other connections
    /// has made a turn of progress.
    #[cold]
    #[inline(never)]
    fn call_failed(&mut self, about: Handle, error: Error) -> Error {
        let kinds =
            [HandleKind::Receiver, HandleKind::ReceiveRequest, HandleKind::OptionalReceiveRequest];
        if kinds.iter().any(|kind| about.is(*kind)) {
            self.abandon_receives(about.slot(), about.generation());
        }
        let turns = if error.logged { 1 } else { FAREWELL_TURNS };
        for _ in 0..turns {
            self.progress();
        }
        error
    }

    /// The receives of a connection that has failed are outstanding no longer.
    fn abandon_receives(&mut self, slot: u16, generation: u16) {
        if let Some(receiver) = self.receivers.get_mut(slot, generation) {
            self.outstanding -= receiver.abandon();
            if receiver.ending.blocked {
                self.receivers.hide(slot);
            }
        }
        self.tell_if_idle();
    }

    fn ask(&mut self, request: Handle, sizes: &mut [usize; 8], look: Look) -> Result<Poll> {
        if request.is(HandleKind::ReceiveRequest) {
            self.test_receive(request, sizes, look)
        } else if request.is(HandleKind::SendRequest) {
            self.test_send(request, sizes, look)
        } else if request.is(HandleKind::FlushRequest) {
            self.test_flush(request)
        } else if request.is(HandleKind::OptionalReceiveRequest) {
            self.test_optional(request, sizes, look)
        } else if request.is(HandleKind::EagerSendRequest) {
            self.test_eager(request, sizes, look)
        } else {
            Err(Cause::Stale(Noun::Request).into())
        }
    }

    #[inline(always)]
    fn test_send(&mut self, request: Handle, sizes: &mut [usize; 8], look: Look) -> Result<Poll> {
        let sender =
            open_sender(self.senders.get_mut(request.slot(), request.generation()), Noun::Request)?;
        let line = sender.line_of(request.line()).ok_or(Cause::Stale(Noun::Request))?;
        Ok(match sender.test(line, look)? {
            Some(len) => {
                sizes[0] = usize::try_from(len).unwrap_or(usize::MAX);
                Poll::Done { sizes: 1 }
            }
            None if sender.holds(line) => Poll::Pending,
            None => return Err(Cause::Stale(Noun::Request).into()),
        })
    }

    #[inline(always)]
    fn test_receive(
        &mut self,
        request: Handle,
        sizes: &mut [usize; 8],
        look: Look,
    ) -> Result<Poll> {
        let (slot, generation) = (request.slot(), request.generation());
        if self.outstanding == 1 {
            return self.test_last_receive(request, sizes, look);
        }
        let receiver = open_receiver(self.receivers.get_mut(slot, generation), Noun::Request)?;
        let line = receiver.line_of(request.line()).ok_or(Cause::Stale(Noun::Request))?;
        let mut count = receiver.report(line, sizes);
        if count == 0 {
            receiver.read_fins(look);
            if receiver.has_copies(look) {
                self.take_copies(slot);
                return self.test_receive(request, sizes, Look::Known);
            }
            enqueue(receiver, &mut self.working, slot);
            count = receiver.report(line, sizes);
            if count == 0 {
                if !receiver.holds(line) {
                    return Err(Cause::Stale(Noun::Request).into());
                }
                return receiver.verdict().map(|()| Poll::Pending);
            }
        }
        self.outstanding -= 1;
        enqueue(receiver, &mut self.working, slot);
        Ok(Poll::Done { sizes: count })
    }

    /// Whether the handle names a comm that NCCL has open.
    pub(crate) fn check_comm(&mut self, comm: Handle) -> Result<()> {
        let (slot, generation) = (comm.slot(), comm.generation());
        let failure = if comm.is(HandleKind::Sender) {
            open_sender(self.senders.get_mut(slot, generation), Noun::SendComm)?.failure
        } else {
            open_receiver(self.receivers.get_mut(slot, generation), Noun::ReceiveComm)?.failure
        };
        // On a connection that has failed otherwise memory comes and goes as on any.
        match failure {
            Some(error) if error.cause == Cause::Panicked => Err(error),
            _ => Ok(()),
        }
    }

    /// The name by which peers and logs know the device.
    fn label(&self) -> Label {
        self.device.label
    }
}

/// The region and the address to use: an empty message takes the landing page, since older NCCL passes a handle of
/// another buffer with it, and some providers look at addresses even then.
#[inline(always)]
fn pick<'a>(
    regions: &'a Slots<Arc<UserRegion>>,
    landing: &'a Arc<UserRegion>,
    region: Option<Handle>,
    address: u64,
    len: usize,
) -> Result<(&'a Arc<UserRegion>, u64)> {
    if len == 0 {
        return Ok((landing, landing.address()));
    }
    let known = region.and_then(|handle| regions.get(handle.slot(), handle.generation()));
    match known {
        Some(region) if region.holds(address, len) => Ok((region, address)),
        Some(_) => Err(Cause::OutsideOfRegion { address, len }.into()),
        None => Err(Cause::Stale(Noun::MemoryHandle).into()),
    }
}

#[inline(always)]
fn incoming<'a>(
    regions: &'a Slots<Arc<UserRegion>>,
    landing: &'a Arc<UserRegion>,
    receive: Buffer,
) -> Result<Incoming<'a>> {
    let Receive { address, len, tag, region } = receive.checked()?;
    let (region, address) = pick(regions, landing, region, address, len)?;
    Ok(Incoming { region, address, len, tag })
}

/// Puts a receiver that has work on the list, once, and has the next turn look at it.
#[inline(always)]
fn enqueue(receiver: &mut Receiver, working: &mut Working, slot: u16) {
    if receiver.queued {
        working.wake();
    } else if receiver.has_work() {
        receiver.queued = true;
        working.put(slot);
    }
}

/// The same where it seldom has to be done.
#[inline(never)]
fn enqueue_late(receiver: &mut Receiver, working: &mut Working, slot: u16) {
    enqueue(receiver, working, slot);
}

/// Puts a slot on a list, once.
#[inline(never)]
fn remember(list: &mut Vec<u16>, slot: u16) {
    if !list.contains(&slot) {
        list.push(slot);
    }
}

/// The sender in a slot, while NCCL may use it.
#[inline(always)]
fn open_sender(state: Option<&mut Box<SenderState>>, what: Noun) -> Result<&mut Sender> {
    match state.map(|state| &mut **state) {
        Some(SenderState::Connected(sender)) if !sender.ending.closing => Ok(sender),
        _ => Err(Cause::Stale(what).into()),
    }
}

/// The receiver in a slot, while NCCL may use it.
#[inline(always)]
fn open_receiver(receiver: Option<&mut Box<Receiver>>, what: Noun) -> Result<&mut Receiver> {
    match receiver {
        Some(receiver) if !receiver.ending.blocked => Ok(receiver),
        other => Err(blocked(other, what)),
    }
}

#[cold]
fn blocked(receiver: Option<&mut Box<Receiver>>, what: Noun) -> Error {
    let failed = receiver.filter(|receiver| !receiver.ending.closing);
    failed.and_then(|receiver| receiver.failed()).unwrap_or_else(|| Cause::Stale(what).into())
}

/// Where the generations of an endpoint begin: far from where those of the endpoints before it are by now, since their
/// number may be this one's.
fn first_generation() -> u16 {
    static ENDPOINTS: AtomicU16 = AtomicU16::new(0);
    ENDPOINTS.fetch_add(STRIDE, Ordering::Relaxed)
}

/// Turns for what was begun on a connection whose failure is told.
const FAREWELL_TURNS: u32 = 64;

/// Odd, so that all 65536 values take their turn.
const STRIDE: u16 = 40_503;

/// 64 bits that nobody else drew: keys of the standard library's hasher come from the operating system.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
