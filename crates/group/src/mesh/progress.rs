//! Polls and waits. The waiting thread makes progress: the caller's, or the group's own between calls. A rank that waits for a peer polls that
//! peer each time, and the others in rotation every few polls.

use std::time::Duration;

use super::failure::Failure;
use super::leaving::SETTLE;
use super::peer::Way;
use super::{Mesh, Wait, rest};
use crate::error::GroupError;

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Moved {
    #[default]
    Nothing,
    /// Progress with the awaited peer, or with any peer if none is awaited.
    Here,
    Elsewhere,
}

impl Mesh {
    /// Polls the peer `focus`, and every few polls one other; without a `focus`, all peers.
    pub(crate) fn poll(&mut self, focus: Option<usize>) -> Result<Moved, GroupError> {
        self.hear()?;
        let Some(focus) = focus else {
            let mut moved = false;
            for peer in 0..self.peers.len() {
                self.give_up_long(peer);
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

    /// Called before each poll: reads messages of the rendezvous, and returns an error if the group has failed.
    pub(super) fn hear(&mut self) -> Result<(), GroupError> {
        if !self.unwanted.is_empty() {
            self.drop_unwanted();
        }
        if !self.dropped.is_empty() {
            self.end_dropped();
        }
        if self.place.has_mail() {
            self.read_mail()?;
        }
        self.check()?;
        if !self.unanswered.is_empty() {
            self.answer();
        }
        Ok(())
    }

    /// For a poll without progress of the awaited peer: polls another peer every few times.
    pub(super) fn poll_another(&mut self) -> Result<Moved, GroupError> {
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

    /// Makes progress until `ready` returns true. An error if nothing moves for the timeout.
    pub(super) fn until(
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

    /// One poll for a caller that waits by itself. `Some` when it should sleep: the time without progress. An error if the awaited peer has
    /// left.
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
    pub(crate) fn after(
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

    /// One poll for a caller that waits for several ranks, and that knows whether anything has moved for it since its last poll.
    pub(crate) fn step_for_own(
        &mut self,
        moved: bool,
        wait: &mut Wait,
    ) -> Result<Option<Duration>, GroupError> {
        if moved {
            wait.moved();
        }
        let polled = self.poll(None)?;
        let idle = self.idle(wait, None)?;
        Ok(idle.filter(|_| polled == Moved::Nothing))
    }

    /// Nothing moved in a poll: returns the time without progress, for `rest`; `None` while the caller should poll again at once.
    pub(super) fn idle(
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
            if let Some(Some(peer)) = focus.map(|rank| self.peers[rank].as_ref()) {
                // The peer may have sent a part that this rank does not expect.
                peer.ask_for_last_part(&mut self.place);
            }
            wait.reported(self.place.stuck(self.timeout / 4));
        }
        if idle > self.timeout.saturating_add(SETTLE) {
            // The hub has not decided, so the hub itself is stopped.
            let ranks = self.hub.or(focus).into_iter().collect();
            let (awaited, limit) = (self.awaited(), self.timeout);
            return Err(self.fail(Failure::Silent { ranks, awaited, limit }));
        }
        Ok(Some(idle))
    }

    /// What the last wait was for, for the error.
    pub(super) fn awaited(&self) -> String {
        match self.focus.map(|rank| (rank, self.peers.get(rank))) {
            Some((rank, Some(Some(peer)))) if peer.is_connecting() => {
                format!("rank {rank} to connect")
            }
            Some((rank, _)) => format!("rank {rank}"),
            None => "any rank".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

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

    /// As a wait of a process that is stopped and continued.
    #[test]
    fn a_wait_that_is_not_polled_for_longer_than_the_timeout_goes_on() {
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
                        assert!(Instant::now() < end, "the other thread never polls");
                        drop(state);
                        std::thread::yield_now();
                    }
                };
                // The first idle poll may be one of the barrier.
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
