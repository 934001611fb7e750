//! The rails that one communicator uses on one device, behind one lock.
//!
//! ```text
//!  calls ──▶ Endpoint ──▶ proto's loop (channels, connections) ──▶ Executor ──▶ NICs
//! ```
//!
//! All state of an endpoint is in this object, and every caller holds the lock of its entry in `plugin::table`: NCCL's service thread,
//! its progress thread, and the keeper thread, which polls while neither of them does. libfabric's objects are used under that lock alone,
//! as FI_THREAD_DOMAIN requires (fi_domain(3)).

mod authentication;
pub(crate) mod bound;
pub(crate) mod broken;
mod cache;
pub(crate) mod close;
mod comms;
mod counting;
mod deregister;
mod executor;
mod failures;
mod flush;
mod identity;
mod in_flight;
pub(crate) mod incidents;
mod keeper;
mod lane;
mod letter_buffers;
mod line;
mod memory;
mod nics;
pub(crate) mod ownership;
mod patience;
mod peers;
mod probe;
mod probing;
mod profiling;
mod purpose;
mod region;
mod register;
mod release;
mod seldom;
mod setup;
mod side;
pub(crate) mod slots;
mod slow_rails;
mod stall;
mod transfer;
mod unposted;
mod wait_tracker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use fabric::Pages;
use proto::Capabilities;
use proto::bound::REFUSED_FOR_GOOD;
use proto::budget::Budget;
use proto::limits::MAX_GROUP;
use proto::setup::Presence;
use proto::{Flow, Moment, Slot};

use crate::error::{Cause, Error, Result};
use crate::label::Label;
use crate::object_id::ObjectId;
use crate::object_id::ObjectKind;
use crate::types::{DeviceFacts, MessageFacts, Settings};
use bound::{OPERATIONS_MAX, REGIONS_MAX, TAGGED_RECEIVES_MAX};
use cache::RegionCache;
use comms::Comms;
use deregister::Deregistering;
use executor::{Deferred, Executor, Sendrecv};
use flush::Flush;
use identity::KnownProcesses;
use incidents::Incidents;
use keeper::Idle;
use nics::Port;
pub(crate) use nics::{Opened, Reopen};
use ownership::Ownership;
use patience::Patience;
use probe::Probe;
use region::UserRegion;
use setup::{Accepting, Listening, PendingConnect};
use slots::Slots;
use slow_rails::SlowRails;
use stall::StallWatch;

/// The rails, the memory and the connections of one communicator on one device.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Its place in `plugin::table`, which is part of each object id.
    number: u16,
    settings: Settings,
    device: DeviceFacts,
    /// The probe has found the device's capabilities. No connection is made before.
    is_probed: bool,
    /// The device's probe, while it runs on this endpoint.
    probe: Option<Probe>,
    ownership: Ownership,
    core: proto::ProgressLoop<Flow>,
    executor: Executor,
    comms: Comms,
    listeners: Slots<Listening>,
    accepting: Vec<Accepting>,
    connects: Slots<PendingConnect>,
    /// Credits for the completion queue entries that receives may use.
    budget: Budget,
    flushes: Slots<Flush>,
    incidents: Incidents,
    known_processes: KnownProcesses,
    /// Finds the registration that covers a buffer.
    cache: RegionCache,
    /// Registrations under deregMr that an operation may still touch.
    deregistering: Vec<Deregistering>,
    /// Calls of deregMr that wait, each in a thread of its own.
    deregister_calls: u32,
    /// Registrations that libfabric did not close, with the error for each call of deregMr that waits for them.
    unclosed: Vec<(ObjectId, Error)>,
    patience: Patience,
    /// Requests whose end has not been reported to NCCL, except those of comms that NCCL knows to have failed.
    outstanding: u32,
    /// The slots of comms that NCCL has closed and whose connections have not ended.
    closing: Vec<Slot>,
    /// The last open request was reported while frames were due: NCCL may not call again, so the keeper has to send them.
    needs_keeper: bool,
    /// The keys of the receives that are being posted. A field, so that `irecv` does not allocate.
    keys: Vec<u64>,
    /// Message sizes of the group that `test` reported last; `abi` copies them into NCCL's array.
    sizes: [usize; MAX_GROUP],
    /// Events of NCCL's profiler that end with the request that `test` reported last; `abi` ends them.
    ended_events: Vec<(usize, MessageFacts)>,
    /// How long NCCL has made no call.
    idle: Idle,
    /// When to check for stalled requests.
    watch: StallWatch,
    slow_rails: SlowRails,
    failure: Option<Error>,
    /// A panic has occurred under the lock: see `broken`.
    broken: bool,
}

impl Endpoint {
    pub(crate) fn open(
        number: u16,
        device: DeviceFacts,
        settings: Settings,
        opened: Vec<Opened>,
        capabilities: Capabilities,
    ) -> Result<Self> {
        let nics = opened.into_iter().map(Port::new).collect::<std::result::Result<Vec<_>, _>>();
        let no_memory = |fault| Cause::NoControlMemory { device: device.label, fault };
        let mut nics = nics.map_err(no_memory)?;
        let landing = Pages::map(fabric::page_bytes())
            .and_then(|pages| UserRegion::register_pages(&mut nics, Arc::new(pages)));
        let sendrecv = capabilities.messages.then(|| Sendrecv::new(&mut nics)).transpose();
        let sendrecv = sendrecv.map_err(no_memory)?.map(Box::new);
        let landing = landing.map(Arc::new).map_err(Cause::NoLandingPage)?;
        let first = first_generation();
        // The other entries are for this endpoint's own operations, which complete in the same queues.
        let entries = u32::try_from(settings.cq_entries).unwrap_or(u32::MAX);
        let entries = entries.saturating_sub(OPERATIONS_MAX.into());
        let posted_most = if sendrecv.is_some() { TAGGED_RECEIVES_MAX.into() } else { u32::MAX };
        let presence = Presence {
            id: authentication::random_id().map_err(|_| Cause::NoRandom)?,
            capabilities,
            rails: setup::rails_of(&nics)?,
            host: setup::host_of(&device, &settings),
            offers: setup::offers_of(&settings, &capabilities),
        };
        let regions = Slots::new(REGIONS_MAX);
        let regions = regions.beginning_at(first).named(ObjectKind::Region, number);
        let refusals_bound = settings.peer_timeout.min(REFUSED_FOR_GOOD);
        let executor = Executor::new(nics, landing, sendrecv, regions, presence, refusals_bound);
        let mut endpoint = Self {
            number,
            patience: Patience::new(settings.close_timeout),
            is_probed: false,
            probe: None,
            ownership: Ownership::default(),
            core: proto::ProgressLoop::new(Slot::COUNT),
            executor,
            comms: Comms::new(first),
            listeners: Slots::new(u16::MAX).beginning_at(first),
            accepting: Vec::new(),
            connects: Slots::new(u16::MAX).beginning_at(first),
            budget: Budget::new(entries.min(posted_most)),
            flushes: Slots::new(u16::MAX).beginning_at(first),
            incidents: Incidents::default(),
            known_processes: KnownProcesses::default(),
            cache: RegionCache::default(),
            deregistering: Vec::new(),
            deregister_calls: 0,
            unclosed: Vec::new(),
            outstanding: 0,
            closing: Vec::new(),
            needs_keeper: false,
            keys: Vec::new(),
            sizes: [0; MAX_GROUP],
            ended_events: Vec::new(),
            idle: Idle::new(Moment::from_nanos(fabric::monotonic_nanos())),
            watch: StallWatch::new(settings.stall_report),
            slow_rails: SlowRails::default(),
            failure: None,
            broken: false,
            settings,
            device,
        };
        // The probe's first post makes some providers connect this endpoint to itself, which takes milliseconds: start now.
        endpoint.progress();
        endpoint.learn_capabilities();
        Ok(endpoint)
    }

    #[inline]
    fn now(&self) -> Moment {
        Moment::from_nanos(fabric::monotonic_nanos())
    }

    /// The time for a call that posts: that of the last poll while requests are open, which saves a read of the clock. NCCL or the keeper
    /// polls then, so the error is small against the waits of a round trip or more that use this time; and measurements of rails begin with
    /// the same error on all rails.
    #[inline]
    fn lately(&self) -> Moment {
        if self.outstanding == 0 { self.now() } else { self.executor.polled_at() }
    }

    /// One poll: sends what is due, reads completions and inboxes, and sends what follows from them.
    #[inline]
    fn progress(&mut self) {
        let now = self.now();
        self.progress_at(now, None);
    }

    /// One poll at `now`, for a caller that waits for connection `awaited`.
    #[inline]
    fn progress_at(&mut self, now: Moment, awaited: Option<Slot>) {
        self.poll_at(now, awaited);
        if self.watch.is_due(now) {
            self.check_stalls(now);
        }
    }

    #[inline]
    fn poll_at(&mut self, now: Moment, awaited: Option<Slot>) {
        self.executor.begin(now, self.core.awaits_parts() || !self.is_probed);
        match awaited {
            Some(slot) => self.core.progress_for(&mut self.executor, slot, now),
            None => self.core.progress(&mut self.executor, now),
        }
        if self.executor.has_deferred() || !self.closing.is_empty() {
            self.handle_deferred();
        }
    }

    /// Handles what the progress loop leaves to the endpoint.
    #[cold]
    fn handle_deferred(&mut self) {
        let Deferred {
            letters,
            ended,
            lost,
            flushes,
            interrupted,
            probes,
            strays,
            misplaced,
            rails_lost,
            rails_returned,
            nameless,
            deaf,
            broken,
        } = self.executor.take_deferred();
        self.incidents.garbage += misplaced;
        self.incidents.rails_lost += rails_lost;
        self.incidents.rails_returned += rails_returned;
        if let Some(cause) = broken {
            self.fail_all(cause.into());
        }
        probes.into_iter().for_each(|(nic, attempt, how)| self.probe_ended(nic, attempt, how));
        for (nic, len, immediate) in strays {
            if !self.probe_arrived(nic, len, immediate) {
                self.incidents.stray_immediates += 1;
            }
        }
        interrupted.into_iter().for_each(|flush| self.flush_again(flush));
        flushes.into_iter().for_each(|(flush, well)| self.flush_read(flush, well));
        letters.iter().for_each(|bytes| self.letter_received(bytes));
        self.executor.reuse(letters);
        ended.into_iter().for_each(|(channel, outcome)| self.channel_ended(channel, outcome));
        let no_rail = proto::Cause::NoRail;
        lost.into_iter().for_each(|channel| self.core.fail(channel, no_rail));
        nameless.iter().for_each(|(nic, of, error)| self.nameless_error(*nic, *of, error));
        deaf.into_iter().for_each(|(nic, fault)| self.receives_nothing(nic, fault));
        self.release_closed();
    }

    #[inline]
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The device's name, as in peers' logs and ours.
    fn label(&self) -> Label {
        self.device.label
    }

    /// Fails the endpoint and all its channels for good. The first error is kept.
    #[cold]
    fn fail_all(&mut self, error: Error) {
        self.failure.get_or_insert(error);
        for peer in self.executor.channel_ends_mut() {
            peer.failure.get_or_insert(error);
            self.core.fail(peer.channel, proto::Cause::NoRail);
        }
    }

    fn check_alive(&mut self) -> Result<()> {
        match &mut self.failure {
            Some(failure) => Err(failures::repeated(failure)),
            None => Ok(()),
        }
    }
}

/// The first generation of an endpoint's ids. An endpoint may get the number of one that was closed, so its generations begin far from
/// those that the earlier endpoint can have reached: stale ids do not match.
fn first_generation() -> u16 {
    static ENDPOINTS: AtomicU16 = AtomicU16::new(0);
    ENDPOINTS.fetch_add(STRIDE, Ordering::Relaxed)
}

/// Odd, so that the sequence runs through all 65536 values.
const STRIDE: u16 = 40_503;
