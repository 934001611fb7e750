//! A NIC and all operations in flight on it: the only object that posts and polls.
//!
//! Invariants:
//! - memory that an operation may access stays valid: the operation table refers to its region, the region table to the memory, until the
//!   completion, or until the endpoint has closed;
//! - a region that is bound to an endpoint closes before it, and no region closes while an operation may access it; if neither
//!   order is possible, the NIC leaks with its memory;
//! - one user at a time: threads cannot share a NIC.
//!
//! ```compile_fail,E0308
//! # use fabric::*;
//! fn data_by_a_control_rail(nic: &mut Nic, buffer: &Region<Data>, remote: RemoteBytes<Control>, peer: PeerAddress) {
//!     let local = buffer.local(0, 64).unwrap();
//!     let write = Write { local, remote, peer, delivery: Delivery::Default };
//!     let _ = nic.write_control(&write, 1); // expected `Control`, found `Data`
//! }
//! ```
//!
//! ```compile_fail,E0505
//! # use fabric::*;
//! fn memory_that_was_deregistered(nic: &mut Nic, region: Region<Data>, remote: RemoteBytes<Data>, peer: PeerAddress) {
//!     let local = region.local(0, 64).unwrap();
//!     nic.deregister(region).unwrap(); // `local` borrows it, and is used below
//!     let _ = nic.write(&Write { local, remote, peer, delivery: Delivery::Default }, None, 1);
//! }
//! ```
//!
//! ```compile_fail,E0133
//! # use fabric::*;
//! fn memory_without_a_promise(nic: &mut Nic, bytes: &[u8]) {
//!     let memory = UserMemory::host(bytes.as_ptr().addr() as u64, bytes.len()); // its caller promises that the bytes stay
//!     let _ = nic.register::<Data>(memory.into());
//! }
//! ```
//!
//! ```compile_fail,E0308
//! # use fabric::*;
//! fn bytes_of_the_stack(nic: &mut Nic, remote: RemoteBytes<Data>, peer: PeerAddress) {
//!     let bytes = [0_u8; 64];
//!     let _ = nic.inject(&bytes, remote, peer, 0); // expected `HostBytes`
//! }
//! ```
//!
//! ```compile_fail,E0277
//! # use fabric::*;
//! fn shared_by_threads(nic: &Nic) {
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| nic.in_flight()); // `Nic` cannot be shared between threads safely
//!     });
//! }
//! ```
//!
//! ```compile_fail,E0499
//! # use fabric::*;
//! fn used_by_two_threads(mut nic: Nic) {
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| nic.poll_data().is_empty());
//!         scope.spawn(|| nic.poll_control().is_empty()); // it is borrowed by the first
//!     });
//! }
//! ```

mod completion_error;
mod cxi;
mod domain;
mod events;
mod fence;
mod operations;
mod peers;
mod post;
mod rail;
mod region;
mod regions;
mod registration;
mod tagged;

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::error::FabricError;
use crate::info::{Info, RegionMode};
use crate::keys::Keys;
use crate::kind::{RailKind, Role};
use crate::nic_number::NicNumber;
use crate::options::{EndpointOption, OptionName};
use crate::pages::Pages;
use crate::posts::Posts;
pub use completion_error::CompletionError;
use domain::Domain;
use operations::Operations;
pub use peers::PeerAddress;
pub use post::{Delivery, Post, Write};
pub use rail::Polled;
use rail::{QueueError, Rail};
pub use region::{HostBytes, LocalBytes, Region, RemoteBytes, RemoteKey};
use regions::Regions;
pub use registration::NotDeregistered;
pub use tagged::Tags;

/// The options for opening a NIC.
#[derive(Clone, Copy, Debug, Default)]
pub struct NicOptions<'a> {
    /// The options of the data rail's endpoint. None: no data rail is opened.
    pub data: Option<&'a [EndpointOption]>,
    /// The options of the control rail's endpoint. None: no control rail is opened.
    pub control: Option<&'a [EndpointOption]>,
    /// Both rails share the data rail's completion queue. Then the data rail cannot be fenced on its own.
    pub one_queue: bool,
    /// The data rail is opened without messages, if the provider accepts that: some providers keep buffers for unexpected messages.
    pub one_sided_data: bool,
    /// Control writes of at most the inject size have FI_INJECT (fi_rma(3)): the provider copies their bytes in the call. They have
    /// completions like others.
    pub injects_control: bool,
    /// Peers without uses stay in the address vectors, up to 65,536 in each: for providers that lose their state of a peer when its address
    /// is removed, although the peer keeps its own.
    pub keeps_peers: bool,
    /// Makes cxi use the descriptors of operations instead of looking up their buffers, if the release has the call for that.
    pub uses_descriptors: bool,
    /// Entries of each rail's completion queue: at least as many as operations and arrivals may be outstanding there.
    pub entries: usize,
    /// Entries of the control rail's completion queue, if it needs fewer.
    pub control_entries: Option<usize>,
    /// The most operations in flight.
    pub operations: u16,
}

/// One NIC: a domain, at most one data rail and one control rail, each with a completion queue and the peers that it can address; the
/// registrations for them, and the operations in flight.
///
/// A NIC has one user at a time, in any thread: FI_THREAD_DOMAIN requires that calls on a domain and on its objects do not run at the same
/// time.
pub struct Nic {
    data: Rail,
    control: Rail,
    regions: Regions, // Closed after the endpoints where they belong to the domain: see `close_all`.
    operations: Operations, // Dropped after the endpoints, which write to its contexts.
    domain: Domain,
    keys: Keys,
    number: u32,
    carried: Traffic,
    /// Control writes of 1 to this many bytes are injected; 0: none.
    injected_bytes: usize,
    /// Pages whose regions have closed, and the rail of those regions. Until the rail's endpoint has closed, writes that peers began before
    /// may still arrive in the pages (fi_mr(3)).
    quarantine: Vec<(Role, Arc<Pages>)>,
    /// The data rail was closed by a fence, and may be opened again.
    is_fenced: bool,
    shares_queue: bool,
    is_shut: bool,
    refused_class: Option<FabricError>,
    /// What the domain was opened with. An endpoint with another provider's info could not be opened safely: providers read addresses there in
    /// formats of their own.
    info: Info,
}

// SAFETY: libfabric's objects belong to no thread; calls on them must not run at the same time (FI_THREAD_DOMAIN, fi_domain(3)). The NIC
// owns all of them and lends none, and is not `Sync`.
unsafe impl Send for Nic {}

/// The place of an operation in the table of its NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationPlace(u16);

/// What a data rail has transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of completed writes and tagged messages.
    pub bytes: u64,
    /// Completed writes and tagged messages.
    pub writes: u64,
    /// Posts that the provider refused with -FI_EAGAIN.
    pub refused: u64,
}

/// An entry of a completion queue.
#[derive(Debug)]
pub enum Event {
    /// A peer's write with an immediate has arrived.
    Arrived {
        /// The immediate: as many bytes as the domain supports.
        immediate: u64,
        /// The length of the write, which is correct on some providers only: tcp of 1.17 reports 0.
        len: usize,
    },
    /// An operation of ours has completed.
    Ended {
        /// The token that it was posted with.
        token: u64,
        /// For a receive, the bytes received.
        len: usize,
        /// For a tagged receive, the message's tag.
        tag: u64,
    },
    /// An operation has failed.
    Failed(Box<Failed>),
    /// The queue is unusable: outstanding operations will have no completion.
    Broken(FabricError),
}

/// An operation that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The operation's token; None if the error names no operation in flight, as for an injected write.
    pub token: Option<u64>,
    /// The cause.
    pub error: CompletionError,
}

/// A NIC that could not be closed, because operations may still access memory of regions that are bound to its endpoints, or because
/// libfabric refused. It leaks with that memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaked;

impl Nic {
    /// Opens fabric, domain, queues, address vectors and endpoints. Threads that the provider starts for them (`sockets` does) leave the
    /// process's signals to its own threads.
    ///
    /// # Errors
    ///
    /// What the first failing call returned; what fi_setopt returned for a required option.
    pub fn open(info: &Info, options: &NicOptions<'_>) -> Result<Self, FabricError> {
        Self::open_in_class(info, options, None)
    }

    /// As [`Self::open`], with this traffic class, FI_TC_* (fi_endpoint(3)), for the control rail instead of the one in `info`. If the
    /// class is refused, the control rail opens without it, and [`Self::refused_class`] has the reason.
    ///
    /// # Errors
    ///
    /// As of [`Self::open`].
    pub fn open_in_class(
        info: &Info,
        options: &NicOptions<'_>,
        control_class: Option<u32>,
    ) -> Result<Self, FabricError> {
        signals::blocked(|| Self::open_all(info, options, control_class))
    }

    fn open_all(
        info: &Info,
        options: &NicOptions<'_>,
        control_class: Option<u32>,
    ) -> Result<Self, FabricError> {
        let domain = Domain::open(info, options)?;
        let entries = options.control_entries.unwrap_or(options.entries);
        let open = |info: &Info, wanted: Option<&[EndpointOption]>, other| match wanted {
            None => Ok(Rail::none()),
            Some(wanted) => Rail::open(&domain, info, options, entries, other, wanted),
        };
        let data = match options.data {
            None => Rail::none(),
            Some(wanted) => Self::open_data(&domain, info, options, wanted)?,
        };
        let shares_queue = options.one_queue && data.is_open();
        let other = || shares_queue.then_some(&data);
        let mut refused_class = None;
        let control = match control_class.filter(|_| options.control.is_some()) {
            None => open(info, options.control, other())?,
            Some(class) => {
                let in_class = info.in_class(class);
                open(&in_class, options.control, other()).or_else(|error| {
                    // If opening fails without the class too, the class is not the reason.
                    let control = open(info, options.control, other())?;
                    refused_class = Some(error);
                    Ok(control)
                })?
            }
        };
        let number = NicNumber::new().get();
        let injected_bytes = if options.injects_control { control.inject_bytes() } else { 0 };
        Ok(Self {
            data,
            control,
            regions: Regions::new(),
            operations: Operations::new(options.operations),
            domain,
            keys: Keys::new(info.key_bytes()),
            number,
            carried: Traffic::default(),
            injected_bytes,
            quarantine: Vec::new(),
            is_fenced: false,
            shares_queue,
            is_shut: false,
            refused_class,
            info: info.clone(),
        })
    }

    /// Opens a data rail.
    fn open_data(
        domain: &Domain,
        info: &Info,
        options: &NicOptions<'_>,
        wanted: &[EndpointOption],
    ) -> Result<Rail, FabricError> {
        let open = |info: &Info| Rail::open(domain, info, options, options.entries, None, wanted);
        if !options.one_sided_data {
            return open(info);
        }
        open(&info.without_messages()).or_else(|error| {
            let rail = open(info)?;
            log::debug!("a data rail does not open without messages: {error}");
            Ok(rail)
        })
    }

    /// Why the control rail opened without the requested traffic class, if it did.
    pub fn refused_class(&self) -> Option<FabricError> {
        self.refused_class
    }

    /// A rail's option that is a flag; None if the rail is not open, or the library or the provider does not support the option.
    pub fn flag<K: RailKind>(&self, name: OptionName) -> Option<bool> {
        self.rail(K::ROLE).flag(self.info.library(), name)
    }

    /// Whether fi_setopt accepted an option when the rail was opened. An option that is not required may have been refused.
    pub fn is_set<K: RailKind>(&self, name: OptionName) -> bool {
        self.rail(K::ROLE).is_set(name)
    }

    /// Operations in flight on the data rail.
    #[inline]
    pub fn data_in_flight(&self) -> usize {
        self.operations.data()
    }

    /// The number of operations in flight that use a region.
    #[inline]
    pub fn uses_of<K: RailKind>(&self, region: &Region<K>) -> u32 {
        if region.nic() == self.number { self.regions.in_flight(region.slot()) } else { 0 }
    }

    /// Progresses the data rail and reads a batch of its queue, unless the last batch is not consumed yet. [`Nic::next_data`] returns the
    /// events.
    #[inline(always)]
    pub fn poll_data(&mut self) -> Polled {
        self.data.poll()
    }

    /// As [`Nic::poll_data`], for the control rail.
    #[inline(always)]
    pub fn poll_control(&mut self) -> Polled {
        self.control.poll()
    }

    /// The next event of the batch from the data rail's queue. Each is returned once.
    #[inline(always)]
    pub fn next_data(&mut self) -> Option<Event> {
        self.next(Role::Data)
    }

    /// As [`Nic::next_data`], for the control rail.
    #[inline(always)]
    pub fn next_control(&mut self) -> Option<Event> {
        self.next(Role::Control)
    }

    #[inline(always)]
    fn next(&mut self, role: Role) -> Option<Event> {
        let Self { data, control, operations, regions, carried, .. } = self;
        let rail = match role {
            Role::Data => data,
            Role::Control => control,
        };
        while let Some(completion) = rail.next() {
            if completion.is_remote_write() {
                let (immediate, len) = (completion.immediate(), completion.len());
                return Some(Event::Arrived { immediate, len });
            }
            if let Some(entry) = operations.end(completion.context()) {
                let (len, tag) = (completion.len(), completion.tag());
                regions.release(entry.region);
                if entry.carries_data() {
                    carried.bytes += entry.bytes;
                    carried.writes += 1;
                }
                return Some(Event::Ended { token: entry.token, len, tag });
            }
            log_stray();
        }
        if rail.has_error() { self.error(role) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn error(&mut self, role: Role) -> Option<Event> {
        Some(match self.rail_mut(role).take_error()? {
            QueueError::Broken(error) => Event::Broken(error),
            QueueError::Failed { context, error } => {
                let entry = self.operations.end(context);
                if let Some(entry) = entry {
                    self.regions.release(entry.region);
                }
                let token = entry.map(|entry| entry.token);
                Event::Failed(Box::new(Failed { token, error }))
            }
        })
    }

    /// The next error of an endpoint that belongs to no operation, from the event queue, which only NICs of efa have.
    pub fn endpoint_error(&mut self) -> Option<CompletionError> {
        self.domain.events.next_error()
    }

    /// How many more operations can be in flight.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.operations.room()
    }

    /// How many operations are in flight, posted receives included.
    pub fn in_flight(&self) -> usize {
        self.operations.in_flight()
    }

    /// How many of the operations in flight are posted receives, which end only when a peer sends.
    pub fn receives_in_flight(&self) -> usize {
        self.operations.receives()
    }

    /// The tokens of the operations that use a region.
    pub fn tokens_on<K: RailKind>(&self, region: &Region<K>) -> impl Iterator<Item = u64> {
        let (its, slot) = (region.nic() == self.number, region.slot());
        let entries = self.operations.iter().map(|(_, entry)| entry);
        entries.filter(move |entry| its && entry.region == slot).map(|entry| entry.token)
    }

    /// Cancels the operations whose tokens `which` selects. A cancelled operation fails with FI_ECANCELED; some may complete nevertheless.
    pub fn cancel(&mut self, which: impl Fn(u64) -> bool) {
        for (index, entry) in self.operations.iter().filter(|(_, entry)| which(entry.token)) {
            let Ok(index) = u16::try_from(index) else { continue };
            self.cancel_at(index, entry.role);
        }
    }

    /// The place that the next operation will have in the table of operations, for [`cancel_one`](Self::cancel_one).
    #[inline]
    #[must_use]
    pub fn next_place(&self) -> Option<OperationPlace> {
        self.operations.upcoming().map(OperationPlace)
    }

    /// Cancels the operation in this place, if it was posted with this token and has not ended: as [`cancel`](Self::cancel), without a search.
    pub fn cancel_one(&mut self, place: OperationPlace, token: u64) {
        if let Some(entry) = self.operations.at(place.0).filter(|entry| entry.token == token) {
            self.cancel_at(place.0, entry.role);
        }
    }

    fn cancel_at(&self, index: u16, role: Role) {
        if let Err(error) = self.rail(role).cancel(self.operations.context(index)) {
            log::debug!("cancelling an operation: {error}");
        }
    }

    /// Inserts a peer's address for the rail of this kind, unless it was inserted before, and adds one use. `name`: the result of the
    /// peer's `data_name` or `control_name`, which may come from the wire. While the rail is closed the address is kept, and inserted when
    /// the rail opens again.
    ///
    /// # Errors
    ///
    /// What fi_av_insert (fi_av(3)) returned; -FI_EINVAL for an empty, oversized or invalid address.
    pub fn add_peer<K: RailKind>(&mut self, name: &[u8]) -> Result<PeerAddress, FabricError> {
        self.rail_mut(K::ROLE).peers.add(name)
    }

    /// Removes a use. An address without uses is removed from the address vector later.
    pub fn remove_peer<K: RailKind>(&mut self, peer: PeerAddress) {
        let Self { data, control, operations, .. } = self;
        let rail = match K::ROLE {
            Role::Data => data,
            Role::Control => control,
        };
        rail.peers.remove_use(peer, |slot| operations.goes_to(slot, K::ROLE));
    }

    /// The data rail's address for peers (fi_getname); empty if there is no data rail.
    pub fn data_name(&self) -> &[u8] {
        self.data.name()
    }

    /// As [`Nic::data_name`], for the control rail.
    pub fn control_name(&self) -> &[u8] {
        self.control.name()
    }

    /// Whether there is a data rail, and it is open.
    pub fn has_data(&self) -> bool {
        self.data.is_open()
    }

    /// Whether the data rail was closed by [`fence`](Self::fence), and has not opened again.
    pub fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// Whether there is a control rail.
    #[inline]
    pub fn has_control(&self) -> bool {
        self.control.is_open()
    }

    /// The most bytes of an injected write on the rail of this kind. This crate refuses longer ones.
    pub fn inject_bytes<K: RailKind>(&self) -> usize {
        self.rail(K::ROLE).inject_bytes()
    }

    /// The registration modes of the domain, which [`Nic::register`] follows.
    pub fn region_mode(&self) -> RegionMode {
        self.domain.mode()
    }

    /// Whether device memory can be registered by a DMA-BUF.
    pub fn supports_dmabuf(&self) -> bool {
        self.domain.supports_dmabuf()
    }

    /// What the data rail has transferred.
    pub fn traffic(&self) -> Traffic {
        self.carried
    }

    /// Closes the NIC and returns the result. Dropping a NIC logs a failure instead.
    ///
    /// # Errors
    ///
    /// The NIC leaks, with the memory that is registered there.
    pub fn close(mut self) -> Result<(), Leaked> {
        self.close_all()
    }

    /// How many posts libfabric has accepted on the data rail, by kind.
    pub fn data_posts(&self) -> Posts {
        self.data.posts
    }

    /// As [`Nic::data_posts`], for the control rail.
    pub fn control_posts(&self) -> Posts {
        self.control.posts
    }

    #[inline(always)]
    fn rail_mut(&mut self, role: Role) -> &mut Rail {
        match role {
            Role::Data => &mut self.data,
            Role::Control => &mut self.control,
        }
    }

    #[inline(always)]
    fn rail(&self, role: Role) -> &Rail {
        match role {
            Role::Data => &self.data,
            Role::Control => &self.control,
        }
    }

    /// Closes everything, once, in the order that the registration mode requires. Regions of a domain close after the endpoints: closing
    /// those ends their operations, and late writes of peers then meet a closed endpoint. If they met a closed region instead, the provider
    /// would break the connection. A region that is bound to an endpoint has to close before it (FI_MR_ENDPOINT, fi_mr(3)), and neither can
    /// close while an operation of ours is in flight.
    fn close_all(&mut self) -> Result<(), Leaked> {
        if std::mem::replace(&mut self.is_shut, true) {
            return Ok(());
        }
        let is_bound = self.domain.mode().bind_to_endpoint;
        if is_bound && (self.operations.in_flight() > 0 || !self.close_regions()) {
            self.leak();
            return Err(Leaked);
        }
        let endpoints = [self.data.close_endpoint(), self.control.close_endpoint()];
        if endpoints.iter().any(Result::is_err) {
            // It is unknown which operations an endpoint that stays open still has.
            self.leak();
            return Err(Leaked);
        }
        let mut whole = self.close_regions();
        whole &= self.data.close_queue().is_ok() & self.control.close_queue().is_ok();
        whole &= self.data.peers.close().is_ok() & self.control.peers.close().is_ok();
        if whole { Ok(()) } else { Err(Leaked) }
    }

    fn close_regions(&mut self) -> bool {
        let mut whole = true;
        for registered in self.regions.take_all() {
            whole &= self.close_region(registered).is_ok();
        }
        whole
    }

    fn leak(&mut self) {
        self.data.leak();
        self.control.leak();
        self.regions.leak();
        self.operations.leak();
        self.domain.leak();
        let _leaked = ManuallyDrop::new(std::mem::take(&mut self.quarantine));
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        if self.close_all().is_err() {
            log::error!(
                "a NIC cannot be closed, and leaks with the memory that is registered there"
            );
        }
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic")
            .field("number", &self.number)
            .field("in_flight", &self.in_flight())
            .field("carried", &self.carried)
            .finish_non_exhaustive()
    }
}

#[cold]
#[inline(never)]
fn log_stray() {
    log::debug!("a completion without an operation in flight");
}
