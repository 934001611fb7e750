//! All ranks of a job as one rank sees them: a peer for each, with lanes that are opened on first use, and one progress function for
//! everything.
//!
//! One lock guards all of it. The waiting thread makes progress: the caller's, or the progress thread if enabled. A
//! rank that waits for a peer polls that peer each time, and the others in rotation every few polls.

mod connector;
mod failure;
mod header;
mod lane;
mod long;
mod matching;
mod opening;
mod pace;
mod pair;
mod peer;
mod registry;
mod slots;
mod staged;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) use connector::Connector;
use failure::Failure;
use header::{Header, Kind};
pub(crate) use header::{Name, Space, name as type_name, number as type_number};
use long::Route;
pub(crate) use matching::{Due, Envelope, OpId, Wanted};
use matching::{Found, Matching};
pub(crate) use pace::{Pace, Quiet, Wait, rest};
use pair::Pair;
pub(crate) use pair::{PairName, Reached};
use peer::{Peer, Shared, Way};
use registry::Registry;
use slots::Letter;

use crate::bootstrap::{Bootstrap, News, Remote};
use crate::error::GroupError;
use crate::loader::{Buffer, DataType, Net, Place};

pub(crate) use slots::SMALL;
use slots::SMALL_OBJECT;

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Moved {
    #[default]
    Nothing,
    /// Progress with the awaited peer, or any progress if no peer is awaited.
    Here,
    Elsewhere,
}

/// The memory of a message that announces others.
pub(crate) trait Announces: fmt::Debug + Send {
    /// Memory for a message of so many bytes, and the place to receive it into. That is empty where no message is so long.
    fn room(bytes: usize) -> Result<(Self, Place), GroupError>
    where
        Self: Sized;

    /// The space of those, and how many there are, if there are any. Called when the message is there.
    fn announces(&self) -> Option<(Space, Count)>;
}

/// A number of messages, of which there is at least one.
#[derive(Debug)]
pub(crate) struct Count(pub(crate) usize);

impl Due for Count {
    fn came(&mut self, _: usize, _: u64) -> bool {
        self.0 -= 1;
        self.0 == 0
    }
}

/// A receive in progress whose caller has gone: nobody receives what its message announces.
#[derive(Debug)]
struct Dropped {
    op: OpId,
    scope: u32,
    memory: Box<dyn Announces>,
}

/// A message that nobody receives any more. It is received when it comes, as nothing else tells what it announces.
#[derive(Debug)]
struct Unwanted {
    wanted: Wanted,
    room: fn(usize) -> Result<Room, GroupError>,
}

/// Memory of some kind, and its place.
type Room = (Box<dyn Announces>, Place);

/// The parts of a mesh.
pub(crate) struct Parts {
    pub(crate) net: Arc<Net>,
    pub(crate) device: usize,
    /// The device of each peer.
    pub(crate) devices: Vec<usize>,
    pub(crate) place: Remote,
    pub(crate) connector: Arc<Connector>,
    pub(crate) timeout: Duration,
    /// The number of ranks on this machine, and of the CPUs that all of them together may use.
    pub(crate) crowd: (usize, usize),
    /// The rank whose process holds the rendezvous, if any.
    pub(crate) hub: Option<usize>,
    pub(crate) aborted: Arc<AtomicBool>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Mesh {
    peers: Vec<Option<Peer>>, // Closed before the plugin is finalized.
    registry: Registry,
    dropped: Vec<Dropped>, // Freed after the connections have closed.
    unwanted: Vec<Unwanted>,
    matching: Matching,
    scratch: Option<Buffer>,
    rank: usize,
    device: usize,
    comms: usize,
    /// The other peer that was polled last.
    rotation: usize,
    /// Polls in a row without progress.
    idle_polls: u32,
    /// The peer that was last waited for without progress.
    focus: Option<usize>,
    pace: Pace,
    timeout: Duration,
    hub: Option<usize>,
    failure: Option<Failure>,
    /// For ranks that sent their farewell: when whatever they had connected before is open.
    left: Vec<Option<Instant>>,
    /// By rank: the long parts of collectives that came from a peer that was forgotten.
    came: Vec<u64>,
    /// This rank has sent its farewell.
    has_left: bool,
    aborted: Arc<AtomicBool>,
    place: Remote,
    connector: Arc<Connector>,
    net: Arc<Net>,
}

/// The parts that a peer needs.
macro_rules! shared {
    ($mesh:expr) => {
        &mut Shared {
            net: &$mesh.net,
            rank: $mesh.rank,
            connector: &$mesh.connector,
            place: &mut $mesh.place,
            registry: &mut $mesh.registry,
            matching: &mut $mesh.matching,
            comms: &mut $mesh.comms,
        }
    };
}

impl Mesh {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { net, device, devices, place, connector, timeout, crowd, hub, aborted } = parts;
        let (ranks, cpus) = crowd;
        let (rank, size) = (place.rank(), place.size());
        Self {
            peers: devices
                .into_iter()
                .enumerate()
                .map(|(peer, device)| (peer != rank).then(|| Peer::new(peer, rank, device)))
                .collect(),
            registry: Registry::default(),
            dropped: Vec::new(),
            unwanted: Vec::new(),
            matching: Matching::default(),
            scratch: None,
            rank,
            device,
            comms: 0,
            rotation: 0,
            idle_polls: 0,
            focus: None,
            pace: Pace::new(ranks, cpus),
            timeout,
            hub,
            failure: None,
            left: vec![None; size],
            came: vec![0; size],
            has_left: false,
            aborted,
            place,
            connector,
            net,
        }
    }

    pub(crate) fn device(&self) -> usize {
        self.device
    }

    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    pub(crate) fn net(&self) -> &Arc<Net> {
        &self.net
    }

    pub(crate) fn place(&mut self) -> &mut Remote {
        &mut self.place
    }

    /// The number of regions ever made of users' buffers.
    pub(crate) fn registrations(&self) -> u64 {
        self.registry.registrations()
    }

    /// Adds a buffer's memory, so that it is sent and received without a copy.
    pub(crate) fn add(&mut self, buffer: &Buffer) {
        self.registry.add(buffer.memory());
    }

    /// Deregisters and frees buffers that were dropped.
    pub(crate) fn sweep(&mut self) {
        self.registry.sweep();
    }

    /// Registered memory for a collective; its content is lost when it grows.
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

    /// Ends everything, and closes the comms: memory of pending operations is free when this returns.
    fn fail(&mut self, failure: Failure) -> GroupError {
        let error = failure.error();
        self.failure = Some(failure);
        self.registry = Registry::default();
        self.peers.iter_mut().for_each(|peer| *peer = None);
        self.dropped.clear();
        self.unwanted.clear();
        error
    }

    /// Polls the peer that is waited for, and every few polls one other; without such a peer, all.
    pub(crate) fn poll(&mut self, focus: Option<usize>) -> Result<Moved, GroupError> {
        self.hear()?;
        let Some(focus) = focus else {
            let mut moved = false;
            for peer in 0..self.peers.len() {
                moved |= self.with(peer, |peer, shared| peer.progress(shared))?;
            }
            return Ok(if moved { Moved::Here } else { Moved::Nothing });
        };
        let moved = self.with(focus, |peer, shared| peer.attend(shared))?;
        if moved != Moved::Nothing {
            return Ok(moved);
        }
        self.poll_another()
    }

    /// What precedes each poll: reads messages of the rendezvous, and fails if the group has failed.
    fn hear(&mut self) -> Result<(), GroupError> {
        if !self.unwanted.is_empty() {
            self.drop_unwanted();
        }
        if !self.dropped.is_empty() {
            self.end_dropped();
        }
        if self.place.has_mail() {
            self.read_mail()?;
        }
        self.check()
    }

    /// Without progress of the awaited peer, polls another one every few times.
    fn poll_another(&mut self) -> Result<Moved, GroupError> {
        self.idle_polls = self.idle_polls.wrapping_add(1);
        if !self.pace.polls_another(self.idle_polls) {
            return Ok(Moved::Nothing);
        }
        self.rotation = (self.rotation + 1) % self.peers.len();
        let moved = self.with(self.rotation, |peer, shared| peer.progress(shared))?;
        Ok(match moved {
            true => Moved::Elsewhere,
            false => Moved::Nothing,
        })
    }

    fn with<T: Default>(
        &mut self,
        peer: usize,
        work: impl FnOnce(&mut Peer, &mut Shared<'_>) -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        let Some(Some(known)) = self.peers.get_mut(peer) else { return Ok(T::default()) };
        if known.is_over() {
            self.forget(peer);
            return Ok(T::default());
        }
        let done = work(known, shared!(self));
        done.or_else(|error| self.link_failed(peer, &error).map(|()| T::default()))
    }

    /// A connection is broken. If its peer has left properly, only that peer is gone; otherwise it is lost, unless the hub knows an earlier
    /// cause.
    fn link_failed(&mut self, rank: usize, error: &GroupError) -> Result<(), GroupError> {
        if self.has_left {
            // The peer knows that this rank has left, and ends what it had begun with it.
            self.peers[rank] = None;
            return Ok(());
        }
        let deadline = self.settled();
        while Instant::now() < deadline {
            self.read_news()?;
            if self.left[rank].is_some() {
                let known = self.peers[rank].as_mut();
                if known.is_some_and(|peer| !peer.left()) {
                    self.forget(rank);
                }
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let why = error.to_string();
        let _ = self.place.accuse(rank, &why);
        Err(self.fail(Failure::Lost { rank, why }))
    }

    /// Nothing more comes from a peer, or goes there: its connections close. What came before counts still, for a collective may wait for
    /// other ranks first.
    fn forget(&mut self, rank: usize) {
        let Some(peer) = self.peers[rank].take() else { return };
        self.came[rank] = peer.received_data();
        for op in peer.into_operations() {
            self.matching.lose(op, rank);
        }
    }

    /// When what has happened by now is known here.
    fn settled(&self) -> Instant {
        Instant::now() + SETTLE.min(self.timeout / 4)
    }

    fn read_news(&mut self) -> Result<(), GroupError> {
        let settled = self.settled();
        while let Some(news) = self.place.next_news() {
            if let News::Left { rank } = news
                && let Some(left) = self.left.get_mut(rank)
            {
                *left = Some(settled);
                if let Some(peer) = self.peer(rank) {
                    peer.leaves();
                }
            } else if self.failure.is_none() {
                let awaited = || self.awaited();
                if let Some(failure) = Failure::of(news, awaited, self.timeout, self.hub) {
                    return Err(self.fail(failure));
                }
            }
        }
        Ok(())
    }

    fn read_mail(&mut self) -> Result<(), GroupError> {
        self.read_news()?;
        while let Some((from, letter)) = self.place.next_mail() {
            self.with(from, |peer, shared| peer.invited(&letter, shared))?;
        }
        Ok(())
    }

    /// Checks that messages can still come from a rank, or go there.
    pub(crate) fn reach(&mut self, rank: usize) -> Result<(), GroupError> {
        self.reach_by(rank, Way::Small)
    }

    /// The same for what goes by another way.
    fn reach_by(&mut self, rank: usize, way: Way) -> Result<(), GroupError> {
        self.check()?;
        if rank != self.rank && self.is_lost(rank, way) {
            return Err(lost(rank));
        }
        Ok(())
    }

    fn is_lost(&mut self, rank: usize, way: Way) -> bool {
        // Letters that a rank sent before its farewell are read first.
        let settled = self.left.get(rank).copied().flatten().filter(|_| !self.place.has_mail());
        self.peer(rank).is_none_or(|peer| peer.is_lost(way, settled))
    }

    /// Checks that a rank can still be reached by pairs.
    fn reach_pairs(&mut self, rank: usize) -> Result<(), GroupError> {
        self.check()?;
        if self.peer(rank).is_none_or(|peer| peer.is_over()) { Err(lost(rank)) } else { Ok(()) }
    }

    /// Makes progress until `ready`. An error if nothing moves for the timeout.
    fn until(
        &mut self,
        focus: Option<(usize, Way)>,
        mut ready: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), GroupError> {
        let mut wait = Wait::default();
        loop {
            if ready(self) {
                return Ok(());
            }
            if let Some((rank, way)) = focus {
                self.reach_by(rank, way)?;
            }
            if let Some(idle) = self.after(focus.map(|(rank, _)| rank), &mut wait)? {
                rest(self.pace, idle);
            }
        }
    }

    /// One poll for a caller that waits by itself. `Some` when it should sleep: the time without progress.
    pub(crate) fn step(
        &mut self,
        focus: Option<usize>,
        wait: &mut Wait,
    ) -> Result<Option<Duration>, GroupError> {
        if let Some(rank) = focus {
            self.reach(rank)?;
        }
        self.after(focus, wait)
    }

    /// Polls, and returns the time without progress. Progress of other peers does not prove that the awaited one is alive.
    fn after(
        &mut self,
        focus: Option<usize>,
        wait: &mut Wait,
    ) -> Result<Option<Duration>, GroupError> {
        match self.poll(focus)? {
            Moved::Here => {
                wait.moved();
                Ok(None)
            }
            Moved::Elsewhere => self.idle(wait, focus).map(|_| None),
            Moved::Nothing => self.idle(wait, focus),
        }
    }

    /// Nothing moved in a poll: returns the time without progress, for `rest`; `None` while the caller should poll again at once.
    pub(crate) fn idle(
        &mut self,
        wait: &mut Wait,
        focus: Option<usize>,
    ) -> Result<Option<Duration>, GroupError> {
        let Some(idle) = wait.idle(self.pace, self.timeout) else { return Ok(None) };
        self.focus = focus;
        crate::patience::note();
        if wait.is_bounded() {
            return Ok(Some(idle));
        }
        if idle > self.timeout / 4 * 3 && !wait.is_stuck() {
            wait.reported(self.place.stuck(self.timeout / 4));
        }
        if idle > self.timeout.saturating_add(SETTLE) {
            // The hub has not decided, so it is stopped itself.
            let ranks = self.hub.or(focus).into_iter().collect();
            let (awaited, limit) = (self.awaited(), self.timeout);
            return Err(self.fail(Failure::Silent { ranks, awaited, limit }));
        }
        Ok(Some(idle))
    }

    /// What the last wait was for, for the error.
    fn awaited(&self) -> String {
        match self.focus.map(|rank| (rank, self.peers.get(rank))) {
            Some((rank, Some(Some(peer)))) if peer.is_connecting() => {
                format!("rank {rank} to connect")
            }
            Some((rank, _)) => format!("rank {rank}"),
            None => "any rank".to_owned(),
        }
    }

    // Messages between two ranks.

    /// Begins a send; [`Mesh::ended`] reports when its memory is free.
    pub(crate) fn send(
        &mut self,
        to: usize,
        Name { scope, tag, space, note }: Name,
        element: DataType,
        place: Place,
    ) -> Result<OpId, GroupError> {
        self.reach(to)?;
        let op = self.matching.begin();
        let route = self.route(to, space, place);
        let header = Header {
            kind: route.map_or(Kind::Short, Kind::Long),
            element: header::number(element),
            scope,
            tag,
            len: place.len() as u64,
            space,
            note,
        };
        if to == self.rank {
            self.matching.own(op, to, header, place);
            return Ok(op);
        }
        self.with(to, |peer, shared| {
            let Some(route) = route else {
                return peer.send(Letter { header, body: place, op: Some(op) }, shared);
            };
            peer.send(Letter { header, body: Place::empty(), op: None }, shared)?;
            peer.send_long(route, place, op, shared)
        })?;
        Ok(op)
    }

    /// How the bytes of a message travel; none for those that its header's slot has room for, and for a message to this rank.
    fn route(&mut self, to: usize, space: Space, place: Place) -> Option<Route> {
        let small = if space.is_of_objects() { SMALL_OBJECT } else { SMALL };
        if place.len() <= small || to == self.rank {
            None
        } else if self.registry.has(place) {
            Some(Route::Direct)
        } else {
            Some(Route::Staged)
        }
    }

    /// Begins a receive.
    pub(crate) fn receive(&mut self, wanted: Wanted) -> Result<OpId, GroupError> {
        self.check()?;
        if let Some(source) = wanted.source
            && source != self.rank
        {
            self.with(source, |peer, shared| peer.open(Way::Small, shared))?;
        }
        begin_receive(&mut self.peers, &mut self.matching, wanted)
    }

    /// The same for a message that was announced: it waits where there is no memory for one before it.
    pub(crate) fn receive_announced(&mut self, wanted: Wanted) -> Result<OpId, GroupError> {
        self.check()?;
        Ok(match_receive(&mut self.peers, &mut self.matching, wanted))
    }

    pub(crate) fn ended(&mut self, op: OpId) -> Option<Result<Envelope, GroupError>> {
        self.matching.ended(op)
    }

    /// Whether an operation without a waiting caller may still access its memory. One that has ended is forgotten.
    pub(crate) fn is_open(&mut self, op: OpId) -> bool {
        self.failure.is_none() && self.matching.ended(op).is_none()
    }

    /// The operation was dropped; returns whether its memory is free.
    pub(crate) fn abandon(&mut self, op: OpId) -> bool {
        self.matching.abandon(op) || self.failure.is_some()
    }

    /// Removes a receive without a message so far. Returns whether nothing of it is in progress.
    pub(crate) fn take_back(&mut self, op: OpId) -> bool {
        self.matching.take_back(op) || self.failure.is_some()
    }

    /// The space has ended: its messages are dropped, those that have arrived and those that will, which are due.
    pub(crate) fn cancel(&mut self, scope: u32, space: Space, mut due: impl Due + 'static) {
        let (element, place) = (DataType::U8, Place::empty());
        let all = Wanted { scope, space, source: None, tag: None, element, place };
        while let Some((envelope, _)) = self.matching.probe(&all) {
            let op = match_receive(&mut self.peers, &mut self.matching, all);
            self.matching.abandon(op);
            if due.came(envelope.source, envelope.note) {
                return;
            }
        }
        for rank in 0..self.left.len() {
            if self.left[rank].is_some() && self.is_lost(rank, Way::Small) && due.lost(rank) {
                return;
            }
        }
        self.matching.cancel(scope, space, Box::new(due));
    }

    /// Removes a receive without a message so far. Returns whether it was one.
    pub(crate) fn recall(&mut self, op: OpId) -> bool {
        self.matching.recall(op)
    }

    /// The caller of a receive has gone. Its memory is kept until the message is there; what that announces is cancelled then.
    pub(crate) fn let_go(&mut self, op: OpId, scope: u32, memory: impl Announces + 'static) {
        self.dropped.push(Dropped { op, scope, memory: Box::new(memory) });
        self.end_dropped();
    }

    fn end_dropped(&mut self) {
        for index in (0..self.dropped.len()).rev() {
            let Some(ended) = self.matching.ended(self.dropped[index].op) else { continue };
            let Dropped { scope, memory, .. } = self.dropped.swap_remove(index);
            if ended.is_ok()
                && let Some((space, count)) = memory.announces()
            {
                self.cancel(scope, space, count);
            }
        }
    }

    /// The next message that such a receive takes is dropped when it comes, with those that it announces. Until then its memory is of
    /// the kind `M`.
    pub(crate) fn refuse<M: Announces + 'static>(&mut self, wanted: Wanted) {
        if self.failure.is_some() {
            return;
        }
        let room = |bytes| M::room(bytes).map(|(memory, place)| (Box::new(memory) as _, place));
        self.unwanted.push(Unwanted { wanted, room });
        self.drop_unwanted();
    }

    fn drop_unwanted(&mut self) {
        let mut unwanted = std::mem::take(&mut self.unwanted);
        unwanted.retain(|unwanted| !self.drop_one(unwanted));
        self.unwanted = unwanted;
    }

    /// Whether the message has come, or never will.
    fn drop_one(&mut self, Unwanted { wanted, room }: &Unwanted) -> bool {
        let Some((envelope, _)) = self.matching.probe(wanted) else {
            let source = wanted.source.filter(|rank| *rank != self.rank);
            let is_lost = source.is_some_and(|rank| self.is_lost(rank, Way::Small));
            return is_lost;
        };
        // It waits where there is no memory for it: what it announces has to be known.
        let Ok((memory, place)) = room(envelope.bytes) else { return false };
        let (source, tag) = (Some(envelope.source), Some(envelope.tag));
        let wanted = Wanted { source, tag, place, ..*wanted };
        let op = match_receive(&mut self.peers, &mut self.matching, wanted);
        self.dropped.push(Dropped { op, scope: wanted.scope, memory });
        self.end_dropped();
        true
    }

    /// Counts that change whenever a piece of a long message to this peer, or from it, moves.
    pub(crate) fn pieces(&mut self, rank: usize) -> (u64, u64) {
        self.peer(rank).map_or((0, 0), |peer| peer.pieces())
    }

    pub(crate) fn probe(&self, wanted: &Wanted) -> Option<(Envelope, u8)> {
        self.matching.probe(wanted)
    }

    /// The message that [`Mesh::probe`] finds, with the memory that it arrived in, if it is a short one. [`Mesh::give_back`] reuses that.
    pub(crate) fn take(&mut self, wanted: &Wanted) -> Option<(Envelope, Vec<u8>)> {
        self.matching.take(wanted)
    }

    pub(crate) fn give_back(&mut self, bytes: Vec<u8>) {
        self.matching.give_back(bytes);
    }

    // Parts of collectives.

    /// A collective of this rank has ended in an error: the group fails, for all ranks by the same cause. Parts have no place but their order, so
    /// those on their way would be taken for parts of the next collective, and long ones are posted in memory that is the caller's again.
    pub(crate) fn collective_failed(&mut self, error: GroupError) -> GroupError {
        if self.failure.is_some() {
            return error;
        }
        let (rank, why, failure) = match &error {
            GroupError::PeerLost { rank, why } => {
                (*rank, why.clone(), Failure::Lost { rank: *rank, why: why.clone() })
            }
            GroupError::Mismatch { rank, why } => {
                (self.rank, why.clone(), Failure::Mismatch { rank: *rank, why: why.clone() })
            }
            other => (self.rank, other.to_string(), Failure::Other(other.to_string())),
        };
        let _ = self.place.accuse(rank, &why);
        self.fail(failure);
        error
    }

    /// Sends a part of collective `number`, in a slot if it fits one. Its memory is free after [`Mesh::flush`]. Returns its number for
    /// [`Mesh::await_sent`]; None for a part in a slot, which is for [`Mesh::await_taken`].
    pub(crate) fn send_part(
        &mut self,
        to: usize,
        (scope, number): (u32, u32),
        place: Place,
    ) -> Result<Option<u64>, GroupError> {
        if place.len() > SMALL {
            self.reach_by(to, Way::Data)?;
            return self.with(to, |peer, shared| peer.send_data(place, shared)).map(Some);
        }
        self.reach(to)?;
        let (kind, space, len) = (Kind::Part, Space::MESSAGES, place.len() as u64);
        let header = Header { kind, element: 0, scope, tag: number, len, space, note: 0 };
        let letter = Letter { header, body: place, op: None };
        self.with(to, |peer, shared| peer.send(letter, shared))?;
        Ok(None)
    }

    /// Announces where a part goes that is too long for a slot; returns its number.
    pub(crate) fn expect_part(&mut self, from: usize, place: Place) -> Result<u64, GroupError> {
        self.reach_by(from, Way::Data)?;
        self.with(from, |peer, shared| peer.receive_data(place, shared))
    }

    /// Waits for a long part.
    pub(crate) fn await_part(&mut self, from: usize, number: u64) -> Result<(), GroupError> {
        self.until(Some((from, Way::Data)), |mesh| {
            let came = mesh.came[from];
            mesh.peer(from).map_or(came, |peer| peer.received_data()) >= number
        })
    }

    /// Waits until a long part's memory is free.
    pub(crate) fn await_sent(&mut self, to: usize, number: u64) -> Result<(), GroupError> {
        let sent = |mesh: &mut Self| mesh.peer(to).is_none_or(|peer| peer.sent_data() >= number);
        self.until(Some((to, Way::Data)), sent)
    }

    /// Waits until all short parts are in slots. One stays in its memory while the connection is not open, or no slot is free.
    pub(crate) fn await_taken(&mut self, to: usize) -> Result<(), GroupError> {
        let is_taken = |mesh: &mut Self| mesh.peer(to).is_none_or(|peer| peer.has_sent_slots());
        self.until(Some((to, Way::Small)), is_taken)
    }

    /// Waits for a short part of a collective and copies it to its place.
    pub(crate) fn take_part(
        &mut self,
        from: usize,
        (scope, number): (u32, u32),
        place: Place,
    ) -> Result<(), GroupError> {
        self.with(from, |peer, shared| peer.open(Way::Small, shared))?;
        let mut found = None;
        self.until(Some((from, Way::Small)), |mesh| {
            found = mesh.peer(from).and_then(|peer| peer.held());
            found.is_some()
        })?;
        let Some(arrival) = found else { return self.check() };
        let Header { scope: theirs, tag, .. } = arrival.header;
        let (sent, len) = (arrival.body.len(), place.len());
        if (theirs, tag, sent) != (scope, number, len) {
            let own = self.rank;
            let why = format!(
                "rank {from} is in collective {tag} of group {theirs} with a part of {sent} bytes, rank {own} in {number} of group \
                 {scope} and waits for {len}"
            );
            return Err(GroupError::Mismatch { rank: from, why });
        }
        place.copy_from(arrival.body);
        self.with(from, |peer, _| peer.release_held())
    }

    /// Waits until the memory of all sent parts is free. A part in a slot has left its memory: that does not need a call of the peer.
    pub(crate) fn flush(&mut self, to: usize) -> Result<(), GroupError> {
        if to == self.rank {
            return Ok(());
        }
        self.await_taken(to)?;
        let sent = |mesh: &mut Self| mesh.peer(to).is_none_or(|peer| peer.has_sent_data());
        self.until(Some((to, Way::Data)), sent)
    }

    // Pairs of lanes with one user each: messages in order, of lengths that both ends know.

    /// Opens this rank's end of a pair with a peer. Its messages are parts of the buffer, which lives until [`Mesh::close_pair`] has it.
    pub(crate) fn open_pair(
        &mut self,
        to: usize,
        name: PairName,
        buffer: &Buffer,
    ) -> Result<(), GroupError> {
        self.reach_pairs(to)?;
        self.with(to, |peer, shared| peer.open_pair(name, buffer, shared))
    }

    /// Closes it as soon as the peer does. What was sent still arrives.
    pub(crate) fn close_pair(&mut self, to: usize, name: PairName, buffer: Arc<Buffer>) {
        let close = |peer: &mut Peer, shared: &mut Shared<'_>| {
            peer.close_pair(name, buffer, shared);
            Ok(())
        };
        // The comms of a peer that is gone are closed already.
        let _ = self.with(to, close);
    }

    /// Sends a message by a pair, and posts the receive of the next one. An empty place stands for none.
    pub(crate) fn push_pair(
        &mut self,
        to: usize,
        name: PairName,
        sent: Place,
        expected: Place,
    ) -> Result<(), GroupError> {
        self.reach_pairs(to)?;
        self.with(to, |peer, _| {
            if let Some(pair) = peer.pair(name) {
                pair.push(sent, expected);
                pair.progress();
            }
            Ok(())
        })
    }

    /// The progress of a pair: whether so many messages were received and sent.
    pub(crate) fn reached(
        &mut self,
        to: usize,
        name: PairName,
        came: u64,
        left: u64,
    ) -> Result<Reached, GroupError> {
        match self.pair_reached(to, name, came, left)? {
            Reached::Broken => self.pair_broke(to, name, came, left),
            reached => Ok(reached),
        }
    }

    /// The same, without the cause of a connection that has ended.
    fn pair_reached(
        &mut self,
        to: usize,
        name: PairName,
        came: u64,
        left: u64,
    ) -> Result<Reached, GroupError> {
        self.reach_pairs(to)?;
        Ok(self.pair(to, name).map_or(Reached::Closed, |pair| pair.reached(came, left)))
    }

    fn pair(&mut self, to: usize, name: PairName) -> Option<&mut Pair> {
        self.peer(to)?.pair(name)
    }

    /// A pair's connection has ended. Usually the peer has closed the pair, and a letter will report it; otherwise the
    /// peer is lost.
    fn pair_broke(
        &mut self,
        to: usize,
        name: PairName,
        came: u64,
        left: u64,
    ) -> Result<Reached, GroupError> {
        let deadline = self.settled();
        loop {
            self.read_mail()?;
            let reached = self.pair_reached(to, name, came, left)?;
            if reached != Reached::Broken {
                return Ok(reached);
            }
            if self.left[to].is_some() {
                return Ok(Reached::Closed);
            }
            if Instant::now() >= deadline {
                let why = self.pair(to, name).and_then(|pair| pair.why()).unwrap_or_default();
                self.link_failed(to, &GroupError::Contract(why))?;
                return Ok(Reached::Closed);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Polls these peers' pair, and without progress another peer every few times. Returns whether the pair moved.
    pub(crate) fn poll_pairs(
        &mut self,
        name: PairName,
        peers: impl Iterator<Item = usize>,
    ) -> Result<bool, GroupError> {
        self.hear()?;
        let mut moved = false;
        for peer in peers {
            self.reach_pairs(peer)?;
            self.focus = Some(peer);
            let progress = |peer: &mut Peer| peer.pair(name).is_some_and(Pair::progress);
            moved |= self.with(peer, |peer, _| Ok(progress(peer)))?;
        }
        if !moved {
            self.poll_another()?;
        }
        Ok(moved)
    }

    /// The same for a caller that waits, as [`Mesh::step`].
    pub(crate) fn step_pairs(
        &mut self,
        name: PairName,
        peers: impl Iterator<Item = usize>,
        wait: &mut Wait,
    ) -> Result<Option<Duration>, GroupError> {
        if self.poll_pairs(name, peers)? {
            wait.moved();
            return Ok(None);
        }
        self.idle(wait, self.focus)
    }

    /// A count that changes whenever anything of this peer's pair moves.
    pub(crate) fn pair_progress(&mut self, to: usize, name: PairName) -> u64 {
        self.pair(to, name).map_or(0, |pair| pair.steps())
    }

    fn peer(&mut self, rank: usize) -> Option<&mut Peer> {
        self.peers.get_mut(rank)?.as_mut()
    }

    /// Waits until the plugin has completed everything that this rank sends, then closes. A rank that leaves completes its sends here. Every
    /// later call is an error.
    pub(crate) fn close(&mut self) -> Result<(), GroupError> {
        if self.failure.is_some() {
            // The rendezvous in this process waits for all ranks to leave, this one included.
            if self.hub == Some(self.rank) {
                self.place.farewell();
            }
            return self.check();
        }
        let ended = self.until(None, |mesh| {
            let sends = |peer: &mut Peer| peer.is_known() && !peer.has_sent();
            let mut ranks = 0..mesh.peers.len();
            ranks.all(|rank| !mesh.peer(rank).is_some_and(sends) || mesh.is_lost(rank, Way::Small))
        });
        // Farewell first, so that a peer that sees these connections end has the reason. Usually all leave together,
        // and none sees it.
        self.place.farewell();
        self.has_left = true;
        let deadline = Instant::now() + LINGER;
        let stays = |mesh: &Self| {
            let known = |peer: &Option<Peer>| peer.as_ref().is_some_and(Peer::is_known);
            mesh.peers.iter().zip(&mesh.left).any(|(peer, left)| known(peer) && left.is_none())
        };
        // A rank that has seen all others leave closes; one that has not yet sees its connections end, which is not an error.
        net_loader::expecting_ends(|| {
            while stays(self) && Instant::now() < deadline && self.poll(None).is_ok() {
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        self.fail(Failure::Other("this rank has left".to_owned()));
        ended
    }
}

#[cfg(test)]
impl Mesh {
    /// Announces a message of bytes that never come, more than any memory has.
    pub(crate) fn announce_huge(&mut self, to: usize, scope: u32) {
        let (kind, space, len) = (Kind::Long(Route::Direct), Space::MESSAGES, isize::MAX as u64);
        let header = Header { kind, element: 0, scope, tag: 0, len, space, note: 0 };
        let letter = Letter { header, body: Place::empty(), op: None };
        self.with(to, |peer, shared| peer.send(letter, shared)).unwrap();
    }

    /// The buffers that may be registered on connections.
    pub(crate) fn buffers(&self) -> usize {
        self.registry.buffers()
    }

    /// The spaces of which messages are dropped, and the messages that nobody receives.
    pub(crate) fn cancellations(&self) -> usize {
        self.matching.cancellations() + self.unwanted.len() + self.dropped.len()
    }
}

/// How long a broken connection waits for the hub to name an earlier cause.
const SETTLE: Duration = Duration::from_millis(500);
/// How long a leaving rank waits for the others to leave too.
const LINGER: Duration = Duration::from_millis(500);
/// The least scratch memory, so that small collectives rarely make it grow.
const SCRATCH_MIN: usize = 256 << 10;

fn lost(rank: usize) -> GroupError {
    GroupError::PeerLost { rank, why: "it has left".to_owned() }
}

/// Matches a receive, or lets it wait. Memory is made before the match: after an error no message has the receive's place, and all can still
/// be received.
fn begin_receive(
    peers: &mut [Option<Peer>],
    matching: &mut Matching,
    wanted: Wanted,
) -> Result<OpId, GroupError> {
    if let Some((source, position)) = matching.waiting_long(&wanted)
        && let Some(Some(peer)) = peers.get_mut(source)
    {
        peer.make_room(position)?;
    }
    Ok(match_receive(peers, matching, wanted))
}

/// The same without that memory: where there is none, the message waits for those before it.
fn match_receive(peers: &mut [Option<Peer>], matching: &mut Matching, wanted: Wanted) -> OpId {
    let op = matching.begin();
    if let Found::Long { source, position, claim } = matching.receive(op, wanted) {
        match peers.get_mut(source) {
            Some(Some(peer)) => peer.claim(position, claim, matching),
            // It was forgotten, and the bytes with it.
            _ => matching.lose(op, source),
        }
    }
    op
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{WAIT, library, ranks, ranks_within};

    /// More than any memory, as a peer may say.
    const HUGE: usize = isize::MAX as usize;

    fn header(tag: u32, len: usize) -> Header {
        let (kind, element) = (Kind::Long(Route::Direct), header::number(DataType::U8));
        let (space, len) = (Space::MESSAGES, len as u64);
        Header { kind, element, scope: 0, tag, len, space, note: 0 }
    }

    /// A peer that has announced messages of these lengths, with tags from 0.
    fn announced(lengths: &[usize]) -> ([Option<Peer>; 2], Matching) {
        let (mut peer, mut matching) = (Peer::new(1, 0, 0), Matching::default());
        for (tag, len) in (0..).zip(lengths) {
            peer.announced(Route::Direct, header(tag, *len), &mut matching).unwrap();
        }
        ([None, Some(peer)], matching)
    }

    fn wanted(tag: u32, room: &mut [u8]) -> Wanted {
        let (space, element, place) = (Space::MESSAGES, DataType::U8, Place::writing(room));
        Wanted { scope: 0, space, source: Some(1), tag: Some(tag), element, place }
    }

    #[test]
    fn a_receive_that_finds_no_memory_for_an_earlier_message_takes_none() {
        let (mut peers, mut matching) = announced(&[HUGE, 100_000]);
        let mut room = vec![0; 100_000];
        let wanted = wanted(1, &mut room);
        for _ in 0..2 {
            let ended = begin_receive(&mut peers, &mut matching, wanted);
            assert!(matches!(ended, Err(GroupError::System { .. })), "{ended:?}");
            assert_eq!(peers[1].as_ref().unwrap().claims(), 0, "the place is the caller's again");
            assert!(matching.probe(&wanted).is_some(), "the message can still be received");
        }
    }

    #[test]
    fn a_message_that_its_receive_refuses_needs_no_memory() {
        let (mut peers, mut matching) = announced(&[HUGE, 100_000]);
        let (mut short, mut room) = ([0; 4], vec![0; 100_000]);
        let (refused, taken) = (wanted(0, &mut short), wanted(1, &mut room));
        begin_receive(&mut peers, &mut matching, refused).unwrap();
        begin_receive(&mut peers, &mut matching, taken).unwrap();
        assert_eq!(peers[1].as_ref().unwrap().claims(), 2);
    }

    #[test]
    fn a_message_with_a_receive_waits_for_one_before_it_that_finds_no_memory() {
        let (mut peers, mut matching) = announced(&[]);
        let (mut short, mut room) = ([0; 4], vec![0; 100_000]);
        begin_receive(&mut peers, &mut matching, wanted(1, &mut room)).unwrap();
        let peer = peers[1].as_mut().unwrap();
        peer.announced(Route::Direct, header(0, HUGE), &mut matching).unwrap();
        peer.announced(Route::Direct, header(1, 100_000), &mut matching).unwrap();
        assert_eq!((peer.claims(), peer.posted()), (1, 0));
        begin_receive(&mut peers, &mut matching, wanted(0, &mut short)).unwrap();
        let peer = peers[1].as_ref().unwrap();
        assert_eq!((peer.claims(), peer.posted()), (2, 2), "both in their order");
    }

    #[test]
    fn a_long_message_of_a_peer_that_is_forgotten_is_lost_with_its_receive() {
        let (mut peers, mut matching) = announced(&[100_000]);
        peers[1] = None;
        let mut room = vec![0; 100_000];
        let from_any = Wanted { source: None, ..wanted(0, &mut room) };
        let op = begin_receive(&mut peers, &mut matching, from_any).unwrap();
        let ended = matching.ended(op);
        assert!(matches!(ended, Some(Err(GroupError::PeerLost { rank: 1, .. }))), "{ended:?}");
        assert!(matching.probe(&from_any).is_none(), "the next receive waits for another");
    }

    #[test]
    fn a_long_message_of_memory_that_is_not_registered_comes_before_its_receive() {
        const BYTES: usize = 3 << 19;
        ranks(&library(), 2, |group| {
            if group.rank() == 1 {
                group.send(&vec![7_u8; BYTES], 0, 5).unwrap();
                return group.barrier().unwrap();
            }
            let mut state = group.shared.lock();
            state.mesh.until(None, |mesh| mesh.pieces(1).1 == 3).unwrap();
            drop(state);
            let mut came = vec![0_u8; BYTES];
            group.recv(&mut came, 1, 5).unwrap();
            assert_eq!(came, [7; BYTES]);
            group.barrier().unwrap();
        });
    }

    /// As one of a process that is stopped and continued.
    #[test]
    fn a_wait_that_nobody_polls_for_longer_than_the_timeout_goes_on() {
        const TIMEOUT: Duration = Duration::from_secs(2);
        let is_over = Arc::<AtomicBool>::default();
        ranks_within(&library(), 2, TIMEOUT, move |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                let end = Instant::now() + WAIT;
                while !is_over.load(Ordering::Acquire) && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return group.send(&[7_u8], 0, 1).unwrap();
            }
            std::thread::scope(|threads| {
                let waiting = threads.spawn(|| group.recv(&mut [0_u8], 1, 1));
                let await_idle_poll = || {
                    let end = Instant::now() + WAIT;
                    loop {
                        let mut state = group.shared.lock();
                        if state.mesh.focus.take() == Some(1) || waiting.is_finished() {
                            break state;
                        }
                        assert!(Instant::now() < end, "it does not wait");
                        drop(state);
                        std::thread::yield_now();
                    }
                };
                // The first one may be of the barrier.
                drop(await_idle_poll());
                let state = await_idle_poll();
                std::thread::sleep(TIMEOUT + 2 * SETTLE);
                drop(state);
                drop(await_idle_poll());
                is_over.store(true, Ordering::Release);
                waiting.join().unwrap().unwrap();
            });
        });
    }

    /// As the root of a gather waits for a slow rank first, while another one has ended its part, and its process.
    #[test]
    fn a_part_counts_though_its_rank_has_left_before_it_is_awaited() {
        ranks(&library(), 2, |group| {
            // The connection of short messages is open, so that its end is seen.
            group.barrier().unwrap();
            let mut part = vec![7_u8; 4 * SMALL];
            let mut state = group.shared.lock();
            let mesh = &mut state.mesh;
            if group.rank() == 1 {
                let number = mesh.send_part(0, (0, 0), Place::reading(&part)).unwrap();
                return mesh.await_sent(0, number.unwrap()).unwrap();
            }
            part.fill(0);
            let number = mesh.expect_part(1, Place::writing(&mut part)).unwrap();
            mesh.until(None, |mesh| mesh.peers[1].is_none()).unwrap();
            mesh.await_part(1, number).unwrap();
            assert_eq!(part, vec![7; 4 * SMALL]);
            let next = mesh.expect_part(1, Place::writing(&mut part));
            assert!(matches!(next, Err(GroupError::PeerLost { rank: 1, .. })), "{next:?}");
        });
    }
}
