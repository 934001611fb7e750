//! All ranks of a job as one rank sees them: a peer for each, with lanes that are opened on first use, and one progress function for
//! everything.
//!
//! One lock guards all of it. The waiting thread makes progress: the caller's, or the progress thread if enabled. A
//! rank that waits for a peer polls that peer each time, and the others in rotation every few polls.
//!
//! ```text
//! messages │ parts │ pairs        what callers begin and wait for, each by ways of a peer of its own
//!    mesh: poll, wait, fail       here
//!    peer ─▶ slots, long, pair    one for each rank; matching finds the receive of what has come
//!    lane, opening, connector     comms, opened on first use by letters of the rendezvous
//! ```

mod connector;
mod failure;
mod header;
mod lane;
mod long;
mod matching;
mod messages;
mod opening;
mod pace;
mod pair;
mod pairs;
mod parts;
mod peer;
mod registry;
mod slots;
mod staged;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) use connector::Connector;
use failure::Failure;
pub(crate) use header::{Name, Space, name as type_name, number as type_number};
use matching::Matching;
pub(crate) use matching::{Due, Envelope, OpId, Wanted};
pub(crate) use messages::{Announces, Count};
use messages::{Dropped, Unwanted};
pub(crate) use pace::{Pace, Wait, rest};
pub(crate) use pair::{PairName, Reached};
use peer::{Peer, Shared, Way};
use registry::Registry;
pub(crate) use slots::SMALL;

use crate::bootstrap::{Bootstrap, News, Remote};
use crate::error::GroupError;
use crate::loader::{Buffer, Net, Place};

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Moved {
    #[default]
    Nothing,
    /// Progress with the awaited peer, or any progress if no peer is awaited.
    Here,
    Elsewhere,
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{WAIT, library, ranks, ranks_within};

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
}
