//! Ranks that leave, and connections that end. A rank that has sent its farewell is lost only for calls that need it; one that has not is
//! lost for the group.

use std::time::{Duration, Instant};

use super::failure::Failure;
use super::peer::{ANSWER, Peer, Way};
use super::{Mesh, Moved, Wait, rest};
use crate::bootstrap::News;
use crate::error::GroupError;
use crate::patience::deadline;

impl Mesh {
    /// Handles a broken connection. If its peer has sent its farewell, only the peer's connections end. Otherwise the group fails: the peer
    /// is lost, or this rank if it lacks a resource for the connection, unless the hub knows an earlier cause.
    pub(super) fn link_failed(
        &mut self,
        rank: usize,
        error: &GroupError,
    ) -> Result<(), GroupError> {
        if self.has_left {
            // The peer knows that this rank has left, or has died. The connection of small messages it closes last.
            if !self.peer(rank).is_some_and(Peer::loses_connection) {
                self.peers[rank] = None;
            }
            return Ok(());
        }
        if let GroupError::Mismatch { rank, why } = error {
            // Nothing is broken: both ranks have called a collective, with different lengths.
            let (rank, why) = (*rank, why.clone());
            return Err(self.collective_failed(GroupError::Mismatch { rank, why }));
        }
        let (mut echo, mut settled) = (None, None);
        let notified_by = deadline(answered_within(self.timeout));
        loop {
            self.read_news()?;
            if self.left[rank] {
                let known = self.peers[rank].as_mut();
                if known.is_some_and(|peer| !peer.left()) {
                    self.forget(rank);
                }
                self.close_ended(rank);
                return Ok(());
            }
            // A rank's connections end after the hub has notified all others of its farewell, so the farewell arrives before the echo.
            let echo = echo.get_or_insert_with(|| self.place.ask_for_echo());
            let now = Instant::now();
            if settled.is_none() && (echo.is_over() || now >= notified_by) {
                settled = Some(self.settled());
            }
            if settled.is_some_and(|settled| now >= settled) {
                break;
            }
            self.check()?;
            std::thread::sleep(Duration::from_millis(2));
        }
        if error.is_of_this_rank() {
            let why = format!("rank {rank} cannot be reached: {error}");
            let _ = self.place.accuse(self.rank, &why);
            return Err(self.fail(Failure::Other(why)));
        }
        let why = error.to_string();
        let _ = self.place.accuse(rank, &why);
        Err(self.fail(Failure::Lost { rank, why }))
    }

    /// Closes the connections of a peer: nothing more comes from it, or goes there. Parts that have come still count, as a collective may
    /// wait for other ranks first.
    pub(super) fn forget(&mut self, rank: usize) {
        if let Some(peer) = self.peers[rank].take() {
            self.close_lanes(rank, peer);
        }
    }

    /// Closes the connections of a peer that are needed no more. Pairs that still have a user on this rank stay.
    #[inline]
    pub(super) fn retire(&mut self, rank: usize) {
        if self.peers.get(rank).is_some_and(|peer| peer.as_ref().is_some_and(Peer::may_retire)) {
            self.retire_now(rank);
        }
    }

    #[cold]
    fn retire_now(&mut self, rank: usize) {
        let own = self.rank;
        match self.peer(rank) {
            Some(peer) if !peer.is_over() => {
                let lanes = peer.take_lanes(own);
                self.close_lanes(rank, lanes);
            }
            _ => self.forget(rank),
        }
    }

    fn close_lanes(&mut self, rank: usize, peer: Peer) {
        for (came, received) in self.came[rank].iter_mut().zip(peer.received_parts()) {
            *came += received;
        }
        // Each region holds its comm open.
        self.registry.forget(peer.comms());
        for op in peer.into_operations() {
            self.matching.lose(op, rank);
        }
        self.matching.rank_lost(rank);
    }

    /// The time by which the hub has named the cause of an error that happens now, if it knows one.
    pub(super) fn settled(&self) -> Instant {
        Instant::now() + SETTLE.min(self.timeout / 4)
    }

    fn read_news(&mut self) -> Result<(), GroupError> {
        while let Some(news) = self.place.next_news() {
            if let News::Left { ranks } = news {
                ranks.into_iter().for_each(|rank| self.leaves(rank));
            } else if self.failure.is_none() {
                let awaited = || self.awaited();
                if let Some(failure) = Failure::of(news, awaited, self.timeout, self.hub) {
                    return Err(self.fail(failure));
                }
            }
        }
        Ok(())
    }

    fn leaves(&mut self, rank: usize) {
        let Some(left) = self.left.get_mut(rank) else { return };
        *left = true;
        if !self.has_left {
            self.unanswered.push(rank);
        }
        if let Some(peer) = self.peer(rank) {
            peer.leaves();
        }
    }

    pub(super) fn read_mail(&mut self) -> Result<(), GroupError> {
        self.read_news()?;
        while let Some((from, letter)) = self.place.next_mail() {
            // After the farewell this rank mails no handle: it could not withdraw it.
            if self.has_left {
                if letter == ANSWER
                    && let Some(peer) = self.peers.get_mut(from)
                {
                    *peer = None;
                }
                continue;
            }
            self.with(from, |peer, shared| peer.invited(&letter, shared))?;
        }
        Ok(())
    }

    /// Answers the farewells of ranks whose connections are needed no more. A rank without connections awaits no answer.
    #[cold]
    pub(super) fn answer(&mut self) {
        if self.place.has_mail() {
            return;
        }
        let Self { unanswered, peers, place, .. } = self;
        unanswered.retain(|rank| {
            let peer = peers[*rank].as_ref();
            if peer.is_some_and(Peer::needs_connections) {
                return true;
            }
            if peer.is_none_or(Peer::is_known) {
                // Without a rendezvous the group has failed.
                let _ = place.mail(*rank, ANSWER);
            }
            false
        });
    }

    /// Checks that messages can still come from a rank, or go there.
    pub(crate) fn reach(&mut self, rank: usize) -> Result<(), GroupError> {
        self.reach_by(rank, Way::Small)
    }

    /// Checks that messages can still come from a rank, or go there, by this way.
    pub(super) fn reach_by(&mut self, rank: usize, way: Way) -> Result<(), GroupError> {
        self.check()?;
        if rank != self.rank && self.is_lost(rank, way) {
            // After the error the caller may use its memory again: nothing of it is posted since `is_lost`.
            self.retire(rank);
            return Err(lost(rank));
        }
        Ok(())
    }

    pub(super) fn is_lost(&mut self, rank: usize, way: Way) -> bool {
        let has_left = self.is_known_to_have_left(rank);
        let is_lost = self.peer(rank).is_none_or(|peer| peer.is_lost(way, has_left));
        if has_left {
            self.close_ended(rank);
        }
        is_lost
    }

    /// Ends the long messages of a rank that has left if their bytes never come: a receive from any rank may have matched one.
    pub(super) fn give_up_long(&mut self, rank: usize) {
        if self.is_known_to_have_left(rank)
            && let Some(peer) = self.peer(rank)
        {
            peer.give_up_all_long();
            self.close_ended(rank);
        }
    }

    /// Closes connections with a rank that has left by which nothing moves any more, so that no memory of callers is posted there after an
    /// error. What has come by the others may still be received.
    fn close_ended(&mut self, rank: usize) {
        let Self { peers, registry, matching, .. } = self;
        if let Some(peer) = &mut peers[rank] {
            peer.close_ended(registry, matching);
        }
    }

    /// Whether a rank has left, and its letters are read, which say what it has sent.
    fn is_known_to_have_left(&self, rank: usize) -> bool {
        self.left.get(rank).is_some_and(|left| *left) && !self.place.has_mail()
    }

    /// Sends the farewell, after the letters that say what was sent. Returns whether it was sent.
    pub(super) fn farewell(&mut self) -> bool {
        self.has_left = true;
        self.unanswered.clear();
        for peer in self.peers.iter_mut().flatten() {
            peer.drop_queued(&mut self.matching);
            peer.say_what_was_sent(&mut self.place);
        }
        self.place.farewell()
    }

    /// Waits until the plugin has completed everything that this rank sends, then closes. A rank that leaves completes its sends here. Every
    /// later call is an error.
    pub(crate) fn close(&mut self) -> Result<(), GroupError> {
        let answered_within = answered_within(self.timeout);
        if self.failure.is_some() {
            // The group has failed for all ranks, and the rendezvous waits for all of them to leave before the next one.
            if self.farewell() {
                self.await_notified(deadline(answered_within));
            }
            return self.check();
        }
        let ended = self.finish_sends();
        // The connections are closed after all ranks are notified of the farewell, so that a peer that sees the end of one knows the
        // reason. Usually all ranks leave together, and none sees an end.
        let mut are_notified = !self.farewell();
        let answered_by = deadline(answered_within);
        let stays = |mesh: &Self| {
            let known = |peer: &Option<Peer>| peer.as_ref().is_some_and(Peer::is_known);
            mesh.peers.iter().zip(&mesh.left).any(|(peer, left)| known(peer) && !left)
        };
        // A rank that has seen all others answer or leave closes; one that has not yet sees its connections end, which is not an error.
        net_loader::expecting_ends(|| {
            while stays(self) && Instant::now() < answered_by && self.poll(None).is_ok() {
                are_notified = are_notified || self.place.has_notified_all();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        self.fail(Failure::Other("this rank has left".to_owned()));
        if !are_notified {
            self.await_notified(answered_by);
        }
        ended
    }

    /// Waits until the plugin has completed everything that this rank sends. Only this rank gives up after the timeout: a rank that does not
    /// take what was sent to it may be computing.
    fn finish_sends(&mut self) -> Result<(), GroupError> {
        let (mut wait, mut sent) = (Wait::bounded(), 0);
        while let Some(rank) = self.still_sends_to() {
            let polled = self.poll(None)?;
            // What comes meanwhile is no reason to wait longer.
            let now_sent = self.peers.iter().flatten().map(Peer::sends).sum();
            if std::mem::replace(&mut sent, now_sent) != now_sent {
                wait.moved();
            }
            let Some(idle) = self.idle(&mut wait, None)? else { continue };
            if idle >= self.timeout {
                let awaited = format!("rank {rank} to receive what was sent to it");
                let (peers, limit) = (vec![rank], self.timeout);
                return Err(GroupError::Timeout { peers, awaited, limit });
            }
            if polled == Moved::Nothing {
                rest(self.pace, idle);
            }
        }
        Ok(())
    }

    /// A rank to which the plugin has not completed everything that this rank sends.
    fn still_sends_to(&mut self) -> Option<usize> {
        let sends = |peer: &mut Peer| peer.is_known() && !peer.is_closed() && !peer.has_sent();
        (0..self.peers.len())
            .find(|rank| self.peer(*rank).is_some_and(sends) && !self.is_lost(*rank, Way::Small))
    }

    /// Waits until the hub has notified all ranks of this rank's farewell: then this rank may join the hub's next group.
    fn await_notified(&self, by: Instant) {
        while !self.place.has_notified_all() && Instant::now() < by {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// How long a broken connection waits for the hub to name an earlier cause.
pub(super) const SETTLE: Duration = Duration::from_millis(500);

/// How long the hub may take to notify all of a farewell, and the others to answer it. A rank takes longer only where it is stopped: it polls
/// between calls, too. With a short timeout it is a quarter of that, after which the hub counts a rank as silent.
fn answered_within(timeout: Duration) -> Duration {
    ANSWERED_WITHIN.min(timeout / 4)
}

const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn lost(rank: usize) -> GroupError {
    GroupError::PeerLost { rank, why: "it has left".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Duration;

    use super::answered_within;
    use crate::error::GroupError;
    use crate::halo::FixedHalo1d;
    use crate::loader::Op;
    use crate::support::{WAIT, library, ranks};

    #[test]
    fn answers_may_take_a_quarter_of_the_timeout_and_ten_seconds_at_most() {
        let within = |seconds: u64| answered_within(Duration::from_secs(seconds)).as_secs();
        assert_eq!([8, 40, 60, 4000].map(within), [2, 10, 10, 10]);
    }

    #[test]
    fn a_rank_leaves_although_a_peer_is_stopped() {
        let (stops, is_stopped) = mpsc::channel();
        let (leaves, has_left) = mpsc::channel();
        let [is_stopped, has_left] = [is_stopped, has_left].map(|end| Arc::new(Mutex::new(end)));
        ranks(&library(), 2, move |group| {
            group.barrier().unwrap();
            if group.rank() == 0 {
                is_stopped.lock().unwrap().recv_timeout(WAIT).unwrap();
                group.shared.lock().mesh.timeout = Duration::from_millis(400);
                group.downgrade().leave();
                return leaves.send(()).unwrap();
            }
            // Without the lock no thread of this rank polls.
            let stopped = group.shared.lock();
            stops.send(()).unwrap();
            let left = has_left.lock().unwrap().recv_timeout(WAIT);
            drop(stopped);
            assert!(left.is_ok(), "rank 0 waits");
        });
    }

    #[test]
    fn nothing_is_kept_of_a_cancelled_exchange_once_its_source_has_left() {
        ranks(&library(), 2, |group| {
            if group.rank() == 1 {
                group.recv(&mut [0_u8], 0, 1).unwrap();
                return;
            }
            drop(group.exchange::<u8>(&[1], &[]).unwrap());
            assert_eq!(group.shared.lock().mesh.cancellations(), 1);
            group.send(&[7_u8], 1, 1).unwrap();
            let ended = group.recv(&mut [0_u8], 1, 1);
            assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
            assert_eq!(group.shared.lock().mesh.cancellations(), 0);
        });
    }

    #[test]
    fn no_connection_with_a_rank_is_open_once_a_call_says_that_it_has_left() {
        ranks(&library(), 2, |group| {
            let mut buffer = group.buffer::<f32>(1 << 18).unwrap();
            let other = 1 - group.rank();
            let (sent, came) = buffer.split_at_mut(1 << 17);
            group.sendrecv(sent, other, came, other, 1).unwrap();
            group.all_reduce(&mut buffer, Op::Sum).unwrap();
            assert!(group.shared.lock().mesh.registry.regions() >= 4);
            group.meet(&[]).unwrap();
            if group.rank() == 1 {
                return;
            }
            let ended = group.recv(&mut [0_u8], 1, 1);
            let state = group.shared.lock();
            assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
            assert!(state.mesh.peers[1].is_none(), "its lanes are closed");
            assert_eq!(state.mesh.registry.regions(), 0, "no comm with rank 1 is open");
        });
    }

    #[test]
    fn a_halo_keeps_no_other_connection_with_a_rank_that_has_left() {
        ranks(&library(), 2, |group| {
            let mut buffer = group.buffer::<f32>(1 << 18).unwrap();
            let mut halo = FixedHalo1d::<u8>::new(&group, 8, 8).unwrap();
            halo.round(|_, right| right.fill(7)).unwrap();
            group.all_reduce(&mut buffer, Op::Sum).unwrap();
            group.meet(&[]).unwrap();
            if group.rank() == 1 {
                return;
            }
            let ended = group.recv(&mut [0_u8], 1, 1);
            assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
            let state = group.shared.lock();
            assert!(!state.mesh.peers[1].as_ref().unwrap().has_lanes(), "the halo keeps its lanes");
            assert_eq!(state.mesh.registry.regions(), 0, "no comm with rank 1 is open");
            drop(state);
            let ended = halo.round(|_, _| {}).map(drop);
            assert!(matches!(ended, Err(GroupError::Cancelled { rank: 1 })), "{ended:?}");
            drop(halo);
            let ended = group.send(&[7_u8], 1, 1);
            assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
            assert!(group.shared.lock().mesh.peers[1].is_none(), "the halo's lanes are closed");
        });
    }
}
