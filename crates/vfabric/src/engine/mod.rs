//! The fabric itself: one engine per process, behind one lock, free of C types.
//!
//! Domains, endpoints, queues, address vectors and regions are entries of its tables, named by numbers (`table`). A post is checked (`post`),
//! becomes an operation (`operation`), and goes through events: it departs, lands and is acknowledged (`flight`). Polls of completion queues
//! drive the events (`progress`). Landed bytes may stay invisible for a while (`held`, `sight`). One generator makes all random decisions, in
//! the order of calls: a single thread that drives all ranks sees the same run for the same seed.

mod events;
mod fate;
mod flight;
mod held;
mod landing;
mod objects;
mod operation;
mod post;
mod progress;
mod sight;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use libfabric_sys as sys;

use crate::counters::Counters;
use crate::faults::{self, Fault, NicAction};
use crate::ledger::{Ledger, Rule};
use crate::random::Random;
use crate::settings::Settings;

pub(crate) use events::EventQueue;
pub(crate) use objects::{
    Domain, DomainAsked, Endpoint, EndpointAsked, Fabric, Queue, Region, Vector,
};
pub(crate) use operation::{Kind, Local, Remote};
pub(crate) use post::{Ask, Tags, descriptor};
pub(crate) use progress::{Entry, Taken};
pub(crate) use table::Id;

use flight::{Event, LastTimes, Stream};
use held::Held;
use operation::Operation;
use table::Table;

/// A positive error number, by fi_errno(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// What a call returns.
pub(crate) type Outcome<T = ()> = Result<T, Errno>;

/// The whole fabric.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) settings: Settings,
    pub(crate) ledger: Ledger,
    pub(crate) counters: Counters,
    /// The error of the environment's settings, if they are wrong: no NIC is offered then.
    pub(crate) misconfigured: Option<String>,
    /// Whether the library has FI_OPT_INJECT_RMA_SIZE.
    pub(crate) names_rma_limit: bool,
    random: Random,
    faults: Vec<Fault>,
    /// Endpoints that accept no posts, and those that accept no receives, by the script.
    shut: BTreeSet<Id<Endpoint>>,
    deaf: BTreeSet<Id<Endpoint>>,
    /// Endpoints whose close is refused.
    stuck: BTreeSet<Id<Endpoint>>,
    /// Counts of posts, of accepted operations and of two-sided messages, which the script refers to.
    posts: u64,
    accepted: u64,
    messages: u64,
    /// Polls, or nanoseconds.
    clock: u64,
    nics: Vec<Nic>,
    /// The number of the last fabric that was opened.
    last_fabric: u64,
    domains: Table<Domain>,
    endpoints: Table<Endpoint>,
    queues: Table<Queue>,
    event_queues: Table<EventQueue>,
    vectors: Table<Vector>,
    regions: Table<Region>,
    /// Regions by domain and key.
    keys: BTreeMap<(Id<Domain>, u64), Id<Region>>,
    retired_keys: BTreeSet<(Id<Domain>, u64)>,
    operations: BTreeMap<Id<Operation>, Operation>,
    last_operation: u64,
    /// By time, then by number.
    events: BTreeMap<(u64, u64), Event>,
    last_event: u64,
    held: BTreeMap<Id<Held>, Held>,
    last_held: u64,
    /// Address and length of memory that stays invisible until a read by the same NIC completes.
    marked: Vec<(u64, u64)>,
    /// Pairs of endpoints that are connecting, the lower number first, and the polls that each side still has to make.
    connecting: Vec<Connecting>,
    connected: BTreeSet<(Id<Endpoint>, Id<Endpoint>)>,
    last_times: BTreeMap<Stream, LastTimes>,
    /// Contexts in flight, where FI_CONTEXT2 is in force.
    contexts: BTreeSet<u64>,
}

/// One virtual NIC.
#[derive(Debug, Default)]
pub(crate) struct Nic {
    stalled: bool,
    dead: bool,
    /// No endpoint can be enabled on it.
    absent: bool,
    /// No region can be registered on it.
    scarce: bool,
    /// Events that wait while it is stalled.
    parked: Vec<Event>,
    /// When its transmitter and its receiver are free again (virtual time).
    transmitter_free: u64,
    receiver_free: u64,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Connecting {
    pair: (Id<Endpoint>, Id<Endpoint>),
    owed: [u8; 2],
}

static ENGINE: LazyLock<Mutex<Engine>> = LazyLock::new(|| Mutex::new(Engine::of_environment()));

/// Locks the engine for the length of one call.
pub(crate) fn engine() -> MutexGuard<'static, Engine> {
    ENGINE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    fn of_environment() -> Self {
        match Settings::of_environment() {
            Ok(settings) => Self::new(settings),
            Err(reason) => {
                let settings = Settings::of_text("").expect("no setting is wrong");
                Self { misconfigured: Some(reason), ..Self::new(settings) }
            }
        }
    }

    /// A fabric on which nothing is open.
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            ledger: Ledger::new(settings.tolerated.clone()),
            counters: Counters::default(),
            misconfigured: None,
            names_rma_limit: false,
            random: Random::new(settings.seed),
            faults: settings.faults.clone(),
            shut: BTreeSet::new(),
            deaf: BTreeSet::new(),
            stuck: BTreeSet::new(),
            posts: 0,
            accepted: 0,
            messages: 0,
            clock: 0,
            nics: (0..settings.nics).map(|_| Nic::default()).collect(),
            last_fabric: 0,
            domains: Table::new(),
            endpoints: Table::new(),
            queues: Table::new(),
            event_queues: Table::new(),
            vectors: Table::new(),
            regions: Table::new(),
            keys: BTreeMap::new(),
            retired_keys: BTreeSet::new(),
            operations: BTreeMap::new(),
            last_operation: 0,
            events: BTreeMap::new(),
            last_event: 0,
            held: BTreeMap::new(),
            last_held: 0,
            marked: Vec::new(),
            connecting: Vec::new(),
            connected: BTreeSet::new(),
            last_times: BTreeMap::new(),
            contexts: BTreeSet::new(),
            settings,
        }
    }

    /// Starts again with other settings; refused while a domain is open.
    pub(crate) fn configure(&mut self, settings: Settings) -> Outcome {
        if self.domains.open() > 0 {
            return Err(Errno(sys::FI_EBUSY));
        }
        let Self { last_fabric, names_rma_limit, .. } = *self;
        *self = Self { last_fabric, names_rma_limit, ..Self::new(settings) };
        Ok(())
    }

    /// Records a broken rule.
    pub(crate) fn broken(&mut self, rule: Rule, text: impl FnOnce() -> String) {
        self.ledger.record(rule, text);
    }

    /// Records a broken rule, and returns the error of the call that broke it.
    fn refuse<T>(&mut self, rule: Rule, errno: c_int, text: impl FnOnce() -> String) -> Outcome<T> {
        self.broken(rule, text);
        Err(Errno(errno))
    }

    /// Adds to the script.
    pub(crate) fn add_faults(&mut self, faults: Vec<Fault>) -> Outcome {
        if !faults::are_on(&faults, self.nics.len()) {
            return Err(Errno(sys::FI_EINVAL));
        }
        self.faults.extend(faults);
        Ok(())
    }

    /// The time: polls, or nanoseconds of virtual time.
    pub(crate) fn now(&self) -> u64 {
        self.clock
    }

    pub(crate) fn nics(&self) -> &[Nic] {
        &self.nics
    }

    /// The number of posts, refused ones included.
    pub(crate) fn posts(&self) -> u64 {
        self.posts
    }

    /// The number of accepted posts that complete, receives left out: the script numbers faults of operations by it.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Stalls a NIC, kills it, takes its address or its room for regions away, or brings it back.
    pub(crate) fn change_nic(&mut self, nic: usize, action: NicAction) -> Outcome {
        let Some(state) = self.nics.get_mut(nic) else { return Err(Errno(sys::FI_EINVAL)) };
        match action {
            NicAction::Stall => {
                self.counters.count("faults.stall");
                state.stalled = true;
            }
            NicAction::Resume => {
                self.counters.count("faults.resume");
                state.stalled = false;
                self.unpark(nic);
            }
            NicAction::Kill => {
                self.counters.count("faults.kill");
                state.dead = true;
                self.fail_operations_of(nic);
            }
            NicAction::Revive => {
                self.counters.count("faults.revive");
                state.dead = false;
            }
            NicAction::Absent => state.absent = true,
            NicAction::Present => state.absent = false,
            NicAction::Scarce => state.scarce = true,
            NicAction::Ample => state.scarce = false,
        }
        Ok(())
    }

    /// Marks memory that stays invisible until a read by the same NIC completes, as a GPU's may.
    pub(crate) fn mark(&mut self, address: u64, len: u64) {
        self.marked.push((address, len));
    }

    /// Removes all marks; bytes held back by them become visible.
    pub(crate) fn unmark(&mut self) {
        self.marked.clear();
        for held in self.held.keys().copied().collect::<Vec<_>>() {
            self.show(held);
        }
    }

    /// How many objects of each kind are open, and how many were ever opened.
    pub(crate) fn census(&self) -> [(&'static str, usize, usize); 6] {
        [
            ("domains", self.domains.open(), self.domains.opened()),
            ("endpoints", self.endpoints.open(), self.endpoints.opened()),
            ("queues", self.queues.open(), self.queues.opened()),
            ("event_queues", self.event_queues.open(), self.event_queues.opened()),
            ("vectors", self.vectors.open(), self.vectors.opened()),
            ("regions", self.regions.open(), self.regions.opened()),
        ]
    }

    /// How many entries the open completion queues were opened for.
    pub(crate) fn queue_entries(&self) -> usize {
        self.queues.iter().map(|(_, queue)| queue.size()).sum()
    }

    /// How many peers the open address vectors contain.
    pub(crate) fn peers(&self) -> usize {
        self.vectors.iter().map(|(_, vector)| vector.len()).sum()
    }

    /// How many operations are in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.operations.len()
    }
}
