//! All ranks of a job as one rank sees them: a peer for each, with lanes that are opened on first use, and one progress function for
//! everything.
//!
//! One lock guards the whole mesh.
//!
//! ```text
//! messages │ parts │ pairs        the operations that callers begin and wait for
//!    progress, leaving            polls and waits; the ends of ranks, and of connections
//!    peer ─▶ slots, long, pair    a peer for each rank, with long_parts for collectives; matching finds the receive of a message
//!    lane, opening, connector     comms, opened on first use by letters of the rendezvous
//! ```

mod call;
mod connector;
mod failure;
mod header;
mod lane;
mod leaving;
mod lending;
mod long;
mod long_parts;
mod matching;
mod messages;
mod opening;
mod pace;
mod pair;
mod pairs;
mod parts;
mod peer;
mod progress;
mod registry;
mod slots;
mod staged;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use call::{Call, Kind as CallKind, Said, What};
pub(crate) use connector::Connector;
use failure::Failure;
pub(crate) use header::{Name, SMALL, Space, type_name, type_number, type_of};
pub(crate) use lane::PART;
use leaving::lost;
use lending::Lending;
use matching::Matching;
pub(crate) use matching::{Due, Envelope, OpId, Wanted};
pub(crate) use messages::{Announces, Count};
use messages::{Dropped, Unwanted};
pub(crate) use pace::{Pace, Wait, rest};
pub(crate) use pair::{Counts, PairName, Reached};
pub(crate) use parts::{Part, Term};
use peer::Peer;
pub(crate) use progress::Moved;
use registry::Registry;

use crate::bootstrap::{Bootstrap, Remote};
use crate::error::GroupError;
use crate::loader::{Buffer, Net, Place};

/// The arguments of [`Mesh::new`].
pub(crate) struct Setup {
    pub(crate) net: Arc<Net>,
    /// The device of each peer.
    pub(crate) devices: Vec<usize>,
    pub(crate) place: Remote,
    pub(crate) connector: Arc<Connector>,
    pub(crate) timeout: Duration,
    pub(crate) pace: Pace,
    /// The rank whose process holds the rendezvous, if any.
    pub(crate) hub: Option<usize>,
    pub(crate) aborted: Arc<AtomicBool>,
    /// Whether parts of collectives of middle length pass through staging memory.
    pub(crate) stages_parts: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Mesh {
    peers: Vec<Option<Peer>>, // Closed before the plugin is finalized.
    registry: Registry,
    lending: Lending,
    dropped: Vec<Dropped>, // Freed after the connections have closed.
    unwanted: Vec<Unwanted>,
    matching: Matching,
    scratch: Option<Buffer>,
    rank: usize,
    /// The number of comms with peers so far: the registry identifies a comm by its number.
    comms: usize,
    /// The other peer that was polled last.
    rotation: usize,
    /// Polls in a row without progress.
    idle_polls: u32,
    /// The peer of the last wait without progress.
    focus: Option<usize>,
    pace: Pace,
    timeout: Duration,
    hub: Option<usize>,
    failure: Option<Failure>,
    /// The ranks that sent their farewell.
    left: Vec<bool>,
    /// By rank, and by route: the number of long parts of collectives that were received on connections that are closed.
    came: Vec<[u64; 2]>,
    /// The ranks whose farewell this rank has not answered.
    unanswered: Vec<usize>,
    /// This rank has sent its farewell.
    has_left: bool,
    aborted: Arc<AtomicBool>,
    stages_parts: bool,
    place: Remote,
    connector: Arc<Connector>,
    net: Arc<Net>,
}

/// The fields of a mesh that the lanes of every peer use.
struct Shared<'a> {
    net: &'a Arc<Net>,
    rank: usize,
    connector: &'a Connector,
    place: &'a mut Remote,
    registry: &'a mut Registry,
    lending: &'a mut Lending,
    matching: &'a mut Matching,
    comms: &'a mut usize,
}

/// Borrows a mesh's [`Shared`], and leaves its peers free.
macro_rules! shared {
    ($mesh:expr) => {
        &mut Shared {
            net: &$mesh.net,
            rank: $mesh.rank,
            connector: &$mesh.connector,
            place: &mut $mesh.place,
            registry: &mut $mesh.registry,
            lending: &mut $mesh.lending,
            matching: &mut $mesh.matching,
            comms: &mut $mesh.comms,
        }
    };
}

impl Mesh {
    pub(crate) fn new(setup: Setup) -> Self {
        let Setup { net, devices, place, connector, timeout, pace, hub, aborted, stages_parts } =
            setup;
        let (rank, size) = (place.rank(), place.size());
        Self {
            peers: devices
                .into_iter()
                .enumerate()
                .map(|(peer, device)| (peer != rank).then(|| Peer::new(peer, rank, device)))
                .collect(),
            registry: Registry::default(),
            lending: Lending::default(),
            dropped: Vec::new(),
            unwanted: Vec::new(),
            matching: Matching::default(),
            scratch: None,
            rank,
            comms: 0,
            rotation: 0,
            idle_polls: 0,
            focus: None,
            pace,
            timeout,
            hub,
            failure: None,
            left: vec![false; size],
            came: vec![[0; 2]; size],
            unanswered: Vec::new(),
            has_left: false,
            aborted,
            stages_parts,
            place,
            connector,
            net,
        }
    }

    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    pub(crate) fn place(&mut self) -> &mut Remote {
        &mut self.place
    }

    /// The number of regions of users' buffers that were made so far.
    pub(crate) fn registrations(&self) -> u64 {
        self.registry.registrations()
    }

    /// Adds a buffer's memory, so that it is sent and received without a copy.
    pub(crate) fn add(&mut self, buffer: &Buffer) {
        self.registry.add(buffer.memory());
    }

    /// Whether the elements of a message to or from this rank are in registered memory, which [`Mesh::add`] adds, and [`Mesh::remove`]
    /// deregisters when the message has moved.
    pub(crate) fn lends(&mut self, rank: usize, bytes: usize) -> bool {
        let Some(device) = self.peer(rank).map(|peer| peer.device()) else { return false };
        self.lending.lends(device, bytes)
    }

    /// Deregisters a buffer, which no operation uses.
    pub(crate) fn remove(&mut self, buffer: &Buffer) {
        self.registry.remove(buffer);
    }

    /// Deregisters and frees buffers that were dropped.
    pub(crate) fn sweep(&mut self) {
        self.registry.sweep();
    }

    /// At least `bytes` bytes of registered memory for a collective; the content is lost when the memory grows.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Result<Place, GroupError> {
        match &self.scratch {
            Some(buffer) if buffer.len() >= bytes => {}
            _ => {
                let buffer = Buffer::new(bytes.next_power_of_two().max(SCRATCH_MIN))?;
                self.scratch = None;
                self.registry.add(buffer.memory());
                self.scratch = Some(buffer);
            }
        }
        Ok(self.scratch.as_ref().map_or(Place::empty(), |buffer| buffer.memory().place()))
    }

    /// Returns the first cause, if the group has failed.
    #[inline]
    pub(crate) fn check(&mut self) -> Result<(), GroupError> {
        if self.failure.is_none() && !self.aborted.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.cause())
    }

    #[cold]
    fn cause(&mut self) -> GroupError {
        if let Some(failure) = &self.failure {
            return failure.error();
        }
        let _ = self.place.abort();
        self.fail(Failure::Aborted { rank: self.rank })
    }

    /// A call of this rank has panicked while it had the mesh.
    pub(crate) fn panicked(&mut self) {
        if self.failure.is_none() {
            let why = format!("a call of rank {} has panicked", self.rank);
            let _ = self.place.accuse(self.rank, &why);
            self.fail(Failure::Other(why));
        }
    }

    /// Fails the group: closes the comms, so that no memory of pending operations is posted when this returns. Memory to which a peer that
    /// hangs may still write is kept by its [`crate::loader::Region`].
    fn fail(&mut self, failure: Failure) -> GroupError {
        let error = failure.error();
        self.failure = Some(failure);
        self.registry = Registry::default();
        self.peers.iter_mut().for_each(|peer| *peer = None);
        self.dropped.clear();
        self.unwanted.clear();
        error
    }

    fn with<T: Default>(
        &mut self,
        peer: usize,
        work: impl FnOnce(&mut Peer, &mut Shared<'_>) -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        self.retire(peer);
        let Some(Some(known)) = self.peers.get_mut(peer) else { return Ok(T::default()) };
        let work = || work(known, shared!(self));
        // The connections with a rank that has left may end at any time, which is no reason for the plugin's warning.
        let done = if self.left[peer] { net_loader::expecting_ends(work) } else { work() };
        done.or_else(|error| self.link_failed(peer, &error).map(|()| T::default()))
    }

    fn peer(&mut self, rank: usize) -> Option<&mut Peer> {
        self.peers.get_mut(rank)?.as_mut()
    }
}

#[cfg(test)]
impl Mesh {
    /// Whether it is known how long registrations take on the device of this rank's connections.
    pub(crate) fn has_measured(&mut self, rank: usize) -> bool {
        let device = self.peer(rank).map(|peer| peer.device());
        device.is_some_and(|device| self.lending.has_measured(device))
    }

    /// Registers vectors of messages from so many bytes on, to and from all ranks on the device of this one, whatever is measured.
    pub(crate) fn lend_from(&mut self, rank: usize, bytes: usize) {
        let device = self.peer(rank).expect("it is connected").device();
        self.lending.lend_from(device, bytes);
    }

    /// The number of buffers that may be registered on connections.
    pub(crate) fn buffers(&self) -> usize {
        self.registry.buffers()
    }

    /// The number of peers to which any connection was requested.
    pub(crate) fn known(&self) -> usize {
        self.peers.iter().flatten().filter(|peer| peer.is_known()).count()
    }

    /// The number of operations whose results nothing has taken.
    pub(crate) fn operations(&self) -> usize {
        self.matching.operations()
    }

    /// The number of messages that wait for a receive.
    pub(crate) fn unexpected(&self) -> usize {
        self.matching.unexpected()
    }

    /// The number of spaces whose messages are dropped, and of messages that are not received.
    pub(crate) fn cancellations(&self) -> usize {
        self.matching.cancellations() + self.unwanted.len() + self.dropped.len()
    }
}

/// The least scratch memory in bytes, so that small collectives rarely make it grow.
const SCRATCH_MIN: usize = 256 << 10;
