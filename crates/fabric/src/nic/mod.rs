//! A NIC with all that is in flight on it: the one object that posts and polls.
//!
//! Laws kept here:
//! - memory that an operation may touch stays: the operation table holds its region, the region table a share of the memory, until the
//!   completion, or until the endpoint has closed;
//! - a region that is bound to an endpoint closes before it, and no region closes while an operation may touch it; where both cannot be,
//!   the NIC leaks with its memory;
//! - one user at a time: whatever touches libfabric takes `&mut`.
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
//! fn memory_that_was_given_back(nic: &mut Nic, region: Region<Data>, remote: RemoteBytes<Data>, peer: PeerAddress) {
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

mod domain;
mod operations;
mod peers;
mod post;
mod rail;
mod region;
mod regions;
mod tagged;

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::{fmt, ptr};

use libfabric_sys as sys;

use crate::error::{Call, FabricError, What};
use crate::handle::Handle;
use crate::info::{Info, RegionMode};
use crate::keys::Keys;
use crate::kind::{Data, RailKind};
use crate::library::Library;
use crate::memory::Memory;
use crate::options::{EndpointOption, OptionName};
use crate::pages::Pages;
use crate::posts::Posts;
use crate::scope::Scope;
use domain::Domain;
use operations::Operations;
pub use peers::PeerAddress;
use peers::Peers;
pub use post::{Delivery, Post, Write};
pub use rail::{CompletionError, Polled};
use rail::{Rail, Trouble};
use region::Names;
pub use region::{HostBytes, LocalBytes, Region, RemoteBytes, RemoteKey};
use regions::{Regions, Registered};
pub use tagged::Tags;

/// What a NIC is opened with.
#[derive(Clone, Copy, Debug)]
pub struct NicOptions<'a> {
    /// The options of the data rail's endpoint; none: there is no data rail.
    pub data: Option<&'a [EndpointOption]>,
    /// The same of the control rail.
    pub control: Option<&'a [EndpointOption]>,
    /// Both rails complete in one queue, that of the data rail, which then cannot be fenced alone.
    pub one_queue: bool,
    /// Entries of each rail's completion queue: at least as many as operations and arrivals may be outstanding there.
    pub entries: usize,
    /// Operations that may be in flight.
    pub operations: u16,
}

/// One NIC of its own: a domain, up to one data rail and one control rail with a completion queue each, the peers that they can name,
/// what is registered for them, and what is in flight.
///
/// It has one user at a time, which may be any thread: FI_THREAD_DOMAIN asks that calls on a domain, and on what was opened on it, do
/// not run at the same time.
pub struct Nic {
    data: Rail,
    control: Rail,
    regions: Regions, // Closed after the endpoints where they belong to the domain: see `shut`.
    peers: Peers,
    operations: Operations, // Behind the endpoints, which write to its contexts.
    domain: Domain,
    keys: Keys,
    number: u32,
    carried: Carried,
    /// Pages whose regions have closed, for data rails or not: what peers began before may still touch them (fi_mr(3)), until the
    /// endpoint has closed.
    quarantine: Vec<(bool, Arc<Pages>)>,
    /// The data rail was closed, and may be opened again.
    is_fenced: bool,
    shares_queue: bool,
    is_shut: bool,
    refused_class: Option<FabricError>,
}

// SAFETY: libfabric's objects belong to no thread; calls on them must not run at the same time (FI_THREAD_DOMAIN, fi_domain(3)).
// All of them are owned by the NIC, none is lent out, and each call takes `&mut Nic`.
unsafe impl Send for Nic {}

/// What a data rail has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes of completed writes and tagged messages.
    pub bytes: u64,
    /// Completed writes and tagged messages.
    pub writes: u64,
    /// Posts that the provider refused for the moment.
    pub refused: u64,
}

/// What a read of a queue has found.
#[derive(Debug)]
pub enum Event {
    /// A peer's write with an immediate has come.
    Arrived {
        /// The data that came with it, as many bytes as the domain carries.
        immediate: u64,
        /// Its length, which is true on some providers only: 1.17's tcp says 0.
        len: usize,
    },
    /// An operation of ours has ended well.
    Ended {
        /// What it was posted with.
        token: u64,
        /// Of a receive: the bytes received.
        len: usize,
        /// Of a tagged receive: the message's tag.
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
    /// What it was posted with; none where the error names nothing in flight, as of an injected write.
    pub token: Option<u64>,
    /// Why.
    pub error: CompletionError,
}

/// Why a region was not deregistered.
#[derive(Debug)]
pub enum Kept<K: RailKind> {
    /// Operations touch it, or it is another NIC's: it is as before.
    InUse(Region<K>),
    /// It could not be closed: it leaks, with its memory.
    Leaked(FabricError),
}

/// A NIC that could not close, as operations may still touch memory of regions that are bound to its endpoints, or as libfabric refused:
/// it leaks with that memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaked;

impl Nic {
    /// Opens fabric, domain, address vector, queues and endpoints.
    ///
    /// # Errors
    ///
    /// What the first failing call returned; what fi_setopt returned for a required option.
    pub fn open(
        library: &Library,
        info: &Info,
        options: &NicOptions<'_>,
    ) -> Result<Self, FabricError> {
        Self::open_in_class(library, info, options, None)
    }

    /// The same with the control rail in a traffic class of its own, FI_TC_* (fi_endpoint(3)), in place of the info's: where it is refused
    /// the control rail opens without, and [`Self::refused_class`] has the reason.
    ///
    /// # Errors
    ///
    /// As of [`Self::open`].
    pub fn open_in_class(
        library: &Library,
        info: &Info,
        options: &NicOptions<'_>,
        control_class: Option<u32>,
    ) -> Result<Self, FabricError> {
        let domain = Domain::open(library, info)?;
        let addresses = open_addresses(&domain)?;
        let open = |info: &Info, wanted: Option<&[EndpointOption]>, other| match wanted {
            None => Ok(Rail::none()),
            Some(wanted) => {
                let (addresses, entries) = (addresses.as_ptr(), options.entries);
                Rail::open(library, &domain, info, addresses, entries, other, wanted)
            }
        };
        let data = open(info, options.data, None)?;
        let shares_queue = options.one_queue && data.is_open();
        let other = || shares_queue.then_some(&data);
        let mut refused_class = None;
        let control = match control_class.filter(|_| options.control.is_some()) {
            None => open(info, options.control, other())?,
            Some(class) => {
                let in_class = info.in_class(class);
                open(&in_class, options.control, other()).or_else(|error| {
                    // Where it fails without, too, it is not the class.
                    let control = open(info, options.control, other())?;
                    refused_class = Some(error);
                    Ok(control)
                })?
            }
        };
        let number = Scope::new().number();
        Ok(Self {
            data,
            control,
            regions: Regions::new(),
            peers: Peers::new(addresses, number),
            operations: Operations::new(options.operations),
            domain,
            keys: Keys::new(info.key_bytes()),
            number,
            carried: Carried::default(),
            quarantine: Vec::new(),
            is_fenced: false,
            shares_queue,
            is_shut: false,
            refused_class,
        })
    }

    /// Why the control rail opened without the traffic class that was asked for it, if it did.
    pub fn refused_class(&self) -> Option<FabricError> {
        self.refused_class
    }

    /// An option of a rail that is a flag; none where the rail is not open, or the library or the provider does not know it.
    pub fn flag<K: RailKind>(&self, library: &Library, name: OptionName) -> Option<bool> {
        self.rail::<K>().flag(library, name)
    }

    /// Whether fi_setopt accepted an option when the rail was opened. One that is not required may have been refused.
    pub fn is_set<K: RailKind>(&self, name: OptionName) -> bool {
        self.rail::<K>().is_set(name)
    }

    /// Registers memory for the rail of its kind. While a data rail is fenced and regions are bound to endpoints, it is registered when
    /// the rail opens again, and has no key until then.
    ///
    /// # Errors
    ///
    /// What the first failing call of fi_mr(3) returned; -FI_ENOKEY when all keys are taken; -FI_EINVAL for no bytes, or bytes
    /// beyond the address space; -FI_ESHUTDOWN where the rail is closed.
    pub fn register<K: RailKind>(&mut self, memory: Memory) -> Result<Region<K>, FabricError> {
        let full = FabricError::new(Call::fi_mr_regattr, sys::FI_ENOMEM);
        self.close_dropped();
        let rail = self.rail::<K>();
        let is_fenced = K::IS_DATA && self.is_fenced;
        if !rail.is_open() && !is_fenced {
            let no_rail = What::NoRail;
            return Err(FabricError::unasked(Call::fi_mr_regattr, sys::FI_ESHUTDOWN, no_rail));
        }
        let share = memory.clone();
        let (slot, names) = if is_fenced && self.domain.mode().bind_to_endpoint {
            let slot = self.regions.insert_waiting(share, K::IS_DATA).ok_or(full)?;
            (slot, Names::waiting(&self.domain, &memory))
        } else {
            let endpoint = rail.endpoint_ptr();
            let (registered, names) =
                Registered::new::<K>(&self.domain, &mut self.keys, endpoint, share)?;
            match self.regions.insert(registered, (names.descriptor, names.key)) {
                Ok(slot) => (slot, names),
                Err(registered) => {
                    registered.close(&mut self.keys)?;
                    return Err(full);
                }
            }
        };
        let bin = Arc::clone(&self.regions.bin);
        Ok(Region::new(&names, memory, self.number, slot, bin))
    }

    /// The key that peers name a region by now; 0 while its rail is fenced and the region is bound to it, or of another NIC's.
    pub fn key_of<K: RailKind>(&self, region: &Region<K>) -> RemoteKey<K> {
        let its = region.nic() == self.number;
        RemoteKey::from_wire(if its { self.regions.key(region.slot()) } else { 0 })
    }

    /// Closes a region. Nothing that begins later can touch the memory through it. The region's share of the memory is dropped, except for pages of ours:
    /// what peers began before may still write there (fi_mr(3)), so the NIC keeps them until the rail closes. The maker of a
    /// [`UserMemory`](crate::UserMemory) has promised that it stays longer.
    ///
    /// # Errors
    ///
    /// Operations touch it: it is given back. Or libfabric refused to close it: it leaks.
    pub fn deregister<K: RailKind>(&mut self, region: Region<K>) -> Result<(), Kept<K>> {
        self.close_dropped();
        if region.nic() != self.number || self.regions.in_flight(region.slot()) > 0 {
            return Err(Kept::InUse(region));
        }
        let registered = self.regions.remove(region.slot());
        region.given_back();
        let closed = registered.map_or(Ok(()), |registered| self.close_region(registered));
        closed.map_err(Kept::Leaked)
    }

    fn close_region(&mut self, registered: Registered) -> Result<(), FabricError> {
        let (of_data, memory) = (registered.of_data, registered.memory.clone());
        registered.close(&mut self.keys)?;
        if let Memory::Pages(pages) = memory {
            self.quarantine.push((of_data, pages));
        }
        Ok(())
    }

    /// Closes the regions that were dropped, and that no operation touches any more. [`Nic::register`] and [`Nic::deregister`] do
    /// that, too.
    pub fn close_dropped(&mut self) {
        for registered in self.regions.take_dropped() {
            let len = registered.memory.len();
            if let Err(error) = self.close_region(registered) {
                log::error!("closing a region of {len} bytes: {error}; it leaks");
            }
        }
    }

    /// Operations in flight on the data rail.
    #[inline]
    pub fn data_in_flight(&self) -> usize {
        self.operations.data()
    }

    /// How many operations in flight touch a region.
    #[inline]
    pub fn uses_of<K: RailKind>(&self, region: &Region<K>) -> u32 {
        if region.nic() == self.number { self.regions.in_flight(region.slot()) } else { 0 }
    }

    /// Makes progress on the data rail, and reads its queue, unless what was read before is not all taken yet. What there is to be
    /// taken comes by [`Nic::next_data`].
    #[inline(always)]
    pub fn poll_data(&mut self) -> Polled {
        self.data.poll()
    }

    /// The same on the control rail.
    #[inline(always)]
    pub fn poll_control(&mut self) -> Polled {
        self.control.poll()
    }

    /// The next of what was read from the data rail's queue. Each comes once.
    #[inline(always)]
    pub fn next_data(&mut self) -> Option<Event> {
        let Self { data, operations, regions, carried, .. } = self;
        while let Some(completion) = data.next() {
            if completion.is_remote_write() {
                let (immediate, len) = (completion.immediate(), completion.len());
                return Some(Event::Arrived { immediate, len });
            }
            if let Some(entry) = operations.end(completion.context()) {
                let (len, tag) = (completion.len(), completion.tag());
                regions.release(entry.region);
                if entry.kind.carries() {
                    carried.bytes += entry.bytes;
                    carried.writes += 1;
                }
                return Some(Event::Ended { token: entry.token, len, tag });
            }
            stray();
        }
        if self.data.has_trouble() { self.trouble(true) } else { None }
    }

    /// The same of the control rail's.
    #[inline(always)]
    pub fn next_control(&mut self) -> Option<Event> {
        let Self { control, operations, regions, .. } = self;
        while let Some(completion) = control.next() {
            if completion.is_remote_write() {
                let (immediate, len) = (completion.immediate(), completion.len());
                return Some(Event::Arrived { immediate, len });
            }
            if let Some(entry) = operations.end(completion.context()) {
                let (len, tag) = (completion.len(), completion.tag());
                regions.release(entry.region);
                return Some(Event::Ended { token: entry.token, len, tag });
            }
            stray();
        }
        if self.control.has_trouble() { self.trouble(false) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn trouble(&mut self, of_data: bool) -> Option<Event> {
        let rail = if of_data { &mut self.data } else { &mut self.control };
        Some(match rail.take_trouble()? {
            Trouble::Broken(error) => Event::Broken(error),
            Trouble::Failed { context, error } => {
                let entry = self.operations.end(context);
                if let Some(entry) = entry {
                    self.regions.release(entry.region);
                }
                let token = entry.map(|entry| entry.token);
                Event::Failed(Box::new(Failed { token, error }))
            }
        })
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

    /// How many of those are posted receives, which end when a peer wants.
    pub fn receives_in_flight(&self) -> usize {
        self.operations.receives()
    }

    /// The tokens of what touches a region.
    pub fn tokens_on<K: RailKind>(&self, region: &Region<K>) -> impl Iterator<Item = u64> {
        let (its, slot) = (region.nic() == self.number, region.slot());
        let entries = self.operations.iter().map(|(_, entry)| entry);
        entries.filter(move |entry| its && entry.region == slot).map(|entry| entry.token)
    }

    /// Asks for posted operations to end early, by their tokens. Those that do fail with FI_ECANCELED; they may also end as usual.
    pub fn cancel(&mut self, which: impl Fn(u64) -> bool) {
        for (index, entry) in self.operations.iter().filter(|(_, entry)| which(entry.token)) {
            let rail = if entry.kind.is_of_data() { &self.data } else { &self.control };
            let Ok(index) = u16::try_from(index) else { continue };
            if let Err(error) = rail.cancel(self.operations.context(index)) {
                log::debug!("cancelling an operation: {error}");
            }
        }
    }

    /// Whether [`fence`](Self::fence) closes a rail on which operations are in flight.
    #[must_use]
    pub fn closes_any_time(&self) -> bool {
        !self.shares_queue && !self.domain.mode().bind_to_endpoint
    }

    /// Closes the endpoint of one rail, and its queue, while the NIC lives on: nothing that was posted there can touch memory any more,
    /// and nothing of peers' can arrive there. The tokens of what was in flight there, which has no other end.
    ///
    /// # Errors
    ///
    /// -FI_EBUSY where regions are bound to endpoints and operations are in flight on the rail: cancel them, or wait; and where the rails
    /// share a queue, which may hold what has ended. What fi_close returned: then the endpoint leaks, and so do its operations.
    pub fn fence<K: RailKind>(&mut self) -> Result<Vec<u64>, FabricError> {
        if self.shares_queue {
            return Err(FabricError::new(Call::fi_close, sys::FI_EBUSY));
        }
        let on_rail = |entry: &operations::Entry| entry.kind.is_on(K::IS_DATA);
        if self.domain.mode().bind_to_endpoint {
            if self.operations.iter().any(|(_, entry)| on_rail(entry)) {
                return Err(FabricError::new(Call::fi_close, sys::FI_EBUSY));
            }
            for registered in self.regions.take_until_open(K::IS_DATA) {
                self.close_region(registered)?;
            }
        }
        let rail = if K::IS_DATA { &mut self.data } else { &mut self.control };
        rail.close_endpoint()?;
        rail.close_queue()?;
        self.quarantine.retain(|(of_data, _)| *of_data != K::IS_DATA);
        self.is_fenced |= K::IS_DATA;
        let ended = self.operations.iter().filter(|(_, entry)| on_rail(entry));
        let ended: Vec<usize> = ended.map(|(index, _)| index).collect();
        let ended = ended.into_iter().filter_map(|index| self.operations.end_at(index));
        Ok(ended
            .inspect(|entry| self.regions.release(entry.region))
            .map(|entry| entry.token)
            .collect())
    }

    /// Opens the data rail again that was fenced: another endpoint, under another name. Regions that are bound to it are registered
    /// again, under other keys.
    ///
    /// # Errors
    ///
    /// What the first failing call returned: then the rail stays closed. -FI_EBUSY where it was not fenced. -FI_ENODATA where memory
    /// would have to be registered again by a dmabuf, whose descriptor may be another file's by now.
    pub fn renew(
        &mut self,
        library: &Library,
        info: &Info,
        options: &NicOptions<'_>,
    ) -> Result<(), FabricError> {
        let Some(wanted) = options.data.filter(|_| self.is_fenced && !self.data.is_open()) else {
            return Err(FabricError::new(Call::fi_endpoint, sys::FI_EBUSY));
        };
        let by_dmabuf = |(_, memory): &(u32, Memory)| memory.dmabuf().is_some();
        let waiting = self.regions.waiting(true);
        if self.domain.takes_dmabuf() && waiting.iter().any(by_dmabuf) {
            return Err(FabricError::new(Call::fi_mr_regattr, sys::FI_ENODATA));
        }
        let addresses = self.peers.handle().as_ptr();
        let (domain, entries) = (&self.domain, options.entries);
        let rail = Rail::open(library, domain, info, addresses, entries, None, wanted)?;
        let posts = std::mem::replace(&mut self.data, rail).posts;
        self.data.posts = posts;
        let endpoint = self.data.endpoint_ptr();
        for (slot, memory) in waiting {
            match Registered::new::<Data>(&self.domain, &mut self.keys, endpoint, memory) {
                Ok((registered, names)) => {
                    self.regions.fill(slot, registered, (names.descriptor, names.key));
                }
                Err(error) => {
                    let closed = self.fence::<Data>();
                    return Err(closed.err().unwrap_or(error));
                }
            }
        }
        self.is_fenced = false;
        Ok(())
    }

    /// The peer of this name, which its NIC's `data_name` or `control_name` said: inserted when it is new. Each call is one user
    /// more. The bytes may come from the wire.
    ///
    /// # Errors
    ///
    /// What fi_av_insert (fi_av(3)) returned; -FI_EINVAL for an empty, oversized or invalid address.
    pub fn join(&mut self, name: &[u8]) -> Result<PeerAddress, FabricError> {
        self.peers.join(name)
    }

    /// One user more of a peer that has some.
    pub fn hold(&mut self, peer: PeerAddress) {
        self.peers.hold(peer);
    }

    /// One user less. Without any, the peer is removed some time after.
    pub fn leave(&mut self, peer: PeerAddress) {
        let operations = &self.operations;
        self.peers.leave(peer, |slot| operations.goes_to(slot));
    }

    /// How many peers there are, and whether one has this name.
    pub fn knows(&self, name: &[u8]) -> (usize, bool) {
        (self.peers.count(), self.peers.knows(name))
    }

    /// The address that peers reach the data rail by; empty without one.
    pub fn data_name(&self) -> &[u8] {
        self.data.name()
    }

    /// The same of the control rail.
    pub fn control_name(&self) -> &[u8] {
        self.control.name()
    }

    /// Whether there is a control rail.
    #[inline]
    pub fn has_control(&self) -> bool {
        self.control.is_open()
    }

    /// The most bytes of an injected write on the rail of this kind. Longer ones are refused here.
    pub fn inject_bytes<K: RailKind>(&self) -> usize {
        self.rail::<K>().inject_bytes()
    }

    /// What registration asks of us here. No caller need branch on it: [`Nic::register`] obeys it.
    pub fn region_mode(&self) -> RegionMode {
        self.domain.mode()
    }

    /// Whether device memory can be registered by its dmabuf.
    pub fn takes_dmabuf(&self) -> bool {
        self.domain.takes_dmabuf()
    }

    /// What the data rail has carried.
    pub fn carried(&self) -> Carried {
        self.carried
    }

    /// Closes it, and says how that went; dropping it logs instead.
    ///
    /// # Errors
    ///
    /// It leaks, with the memory that is registered there.
    pub fn close(mut self) -> Result<(), Leaked> {
        self.shut()
    }

    /// How many posts libfabric has accepted on the data rail, by kind.
    pub fn data_posts(&self) -> Posts {
        self.data.posts
    }

    /// The same on the control rail.
    pub fn control_posts(&self) -> Posts {
        self.control.posts
    }

    #[inline(always)]
    fn rail_mut<K: RailKind>(&mut self) -> &mut Rail {
        if K::IS_DATA { &mut self.data } else { &mut self.control }
    }

    #[inline(always)]
    fn rail<K: RailKind>(&self) -> &Rail {
        if K::IS_DATA { &self.data } else { &self.control }
    }

    /// Closes everything, once, in the order that the regions' mode asks for. Regions of a domain can outlive the endpoints, which close
    /// first then: that ends their operations, and what peers still write meets a closed endpoint, not a closed region, which
    /// would break the rail that it came on. A region that is bound to an endpoint has to close before it (FI_MR_ENDPOINT,
    /// fi_mr(3)): neither can while an operation of ours is in flight.
    fn shut(&mut self) -> Result<(), Leaked> {
        if std::mem::replace(&mut self.is_shut, true) {
            return Ok(());
        }
        let is_bound = self.domain.mode().bind_to_endpoint;
        if is_bound && self.operations.in_flight() > 0 {
            self.leak();
            return Err(Leaked);
        }
        let mut whole = !is_bound || self.close_regions();
        let endpoints = [self.data.close_endpoint(), self.control.close_endpoint()];
        if endpoints.iter().any(Result::is_err) {
            // Which operations an endpoint that stays open still has is not known.
            self.leak();
            return Err(Leaked);
        }
        whole &= self.close_regions();
        whole &= self.data.close_queue().is_ok() & self.control.close_queue().is_ok();
        whole &= self.peers.handle().close().is_ok();
        if whole { Ok(()) } else { Err(Leaked) }
    }

    fn close_regions(&mut self) -> bool {
        let all = [true, false].map(|of_data| self.regions.take_all(of_data));
        let mut whole = true;
        for registered in all.into_iter().flatten() {
            whole &= self.close_region(registered).is_ok();
        }
        whole
    }

    fn leak(&mut self) {
        self.data.leak();
        self.control.leak();
        self.regions.leak();
        self.peers.handle().leak();
        self.operations.leak();
        self.domain.leak();
        let _leaked = ManuallyDrop::new(std::mem::take(&mut self.quarantine));
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        if self.shut().is_err() {
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
fn stray() {
    log::debug!("a completion of nothing in flight");
}

fn open_addresses(domain: &Domain) -> Result<Handle<sys::fid_av>, FabricError> {
    let mut attributes = sys::fi_av_attr { type_: sys::FI_AV_TABLE, ..Default::default() };
    let open = |out| {
        // SAFETY: the domain is open, and both places are valid.
        unsafe { sys::fi_av_open(domain.as_ptr(), &raw mut attributes, out, ptr::null_mut()) }
    };
    // SAFETY: fi_av_open gives us an address vector of our own.
    unsafe { Handle::open(Call::fi_av_open, open) }
}
