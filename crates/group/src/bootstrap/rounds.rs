//! Rounds in which every rank contributes a part and gets all parts.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::PART_BYTES_MAX;
use super::frame::encode_parts;
use crate::error::GroupError;
use crate::patience::deadline;

/// Shared by the ranks, or by the hub's threads that represent them.
pub(super) struct Rounds {
    state: Mutex<State>,
    changed: Condvar,
}

/// Omits parts: some have handles, with which anyone could connect.
impl fmt::Debug for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let mut text = f.debug_struct("Rounds");
        text.field("round", &state.round).field("present", &state.present);
        text.field("failed", &state.failed).finish_non_exhaustive()
    }
}

struct State {
    round: u64,
    parts: Vec<Option<Vec<u8>>>,
    /// The parts of the last complete round, by [`encode_parts`]. The next one cannot complete before every rank has read them.
    all: Arc<[u8]>,
    present: Vec<Presence>,
    /// The ranks that give no more parts.
    silent: Vec<bool>,
    failed: Option<String>,
    causes: Vec<String>,
}

/// How far a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Awaited,
    Here,
    /// It sent its farewell, or is lost.
    Left,
}

/// Why a rank cannot enter a group.
#[derive(Debug)]
pub(super) enum Refusal {
    For(String),
    /// The rank comes to the next group, and can enter only after these ranks have left.
    Until(Vec<usize>),
}

impl State {
    /// The ranks that have yet to leave before the group is over.
    fn staying(&self) -> Vec<usize> {
        let stays = |rank: &usize| match self.present[*rank] {
            Presence::Awaited => self.failed.is_none(),
            Presence::Here => true,
            Presence::Left => false,
        };
        (0..self.present.len()).filter(stays).collect()
    }

    /// A rank that has left without a part of this round.
    fn gone(&self) -> Option<usize> {
        (0..self.parts.len()).find(|rank| self.silent[*rank] && self.parts[*rank].is_none())
    }
}

impl Rounds {
    pub(super) fn new(size: usize) -> Self {
        let state = State {
            round: 0,
            parts: vec![None; size],
            all: Arc::from([]),
            present: vec![Presence::Awaited; size],
            silent: vec![false; size],
            failed: None,
            causes: Vec::new(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Enters as a rank, which each rank can do once.
    pub(super) fn enter(&self, rank: usize) -> Result<(), Refusal> {
        let mut state = self.lock();
        match state.present[rank] {
            Presence::Awaited => {
                state.present[rank] = Presence::Here;
                Ok(())
            }
            Presence::Here if state.failed.is_none() => {
                Err(Refusal::For(format!("there are two ranks {rank}")))
            }
            // The end of the rank's earlier connection may not have been seen yet.
            Presence::Here | Presence::Left => Err(Refusal::Until(state.staying())),
        }
    }

    /// The first rank that has not come yet.
    pub(super) fn first_awaited(&self) -> Option<usize> {
        self.lock().present.iter().position(|presence| *presence == Presence::Awaited)
    }

    /// Whether this rank and all others have left; after a failure, all others that had come. A rank that comes late gets the failure.
    pub(super) fn is_over_for(&self, rank: usize) -> bool {
        let state = self.lock();
        state.present[rank] == Presence::Left && state.staying().is_empty()
    }

    /// The rank has said farewell, or its connection has ended.
    pub(super) fn leave(&self, rank: usize) {
        self.lock().present[rank] = Presence::Left;
    }

    /// The rank has left, and all parts that it has sent were handled.
    pub(super) fn ends(&self, rank: usize) {
        self.lock().silent[rank] = true;
        self.changed.notify_all();
    }

    /// Contributes `part`, and waits for all others. After a timeout, or if a rank has left, the part is taken back.
    pub(super) fn give(
        &self,
        rank: usize,
        part: Vec<u8>,
        wait: Duration,
    ) -> Result<Arc<[u8]>, GroupError> {
        if part.len() > PART_BYTES_MAX {
            return Err(too_long());
        }
        let mut state = self.lock();
        if let Some(why) = &state.failed {
            return Err(GroupError::Bootstrap(why.clone()));
        }
        let round = state.round;
        state.parts[rank] = Some(part);
        if state.parts.iter().all(Option::is_some) {
            let parts: Vec<_> = state.parts.iter_mut().filter_map(Option::take).collect();
            state.all = encode_parts(&parts).expect("no part is too long");
            state.round += 1;
            self.changed.notify_all();
            return Ok(Arc::clone(&state.all));
        }
        let deadline = deadline(wait);
        loop {
            if state.round != round {
                return Ok(Arc::clone(&state.all));
            }
            if let Some(why) = &state.failed {
                return Err(GroupError::Bootstrap(why.clone()));
            }
            if let Some(gone) = state.gone() {
                state.parts[rank] = None;
                return Err(left(gone));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing: Vec<_> =
                    (0..state.parts.len()).filter(|rank| state.parts[*rank].is_none()).collect();
                // A later attempt of this rank completes with the parts that the others send then.
                state.parts[rank] = None;
                return Err(late(missing, wait));
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// No later round can complete. The first reason counts.
    pub(super) fn fail(&self, why: String) {
        self.lock().failed.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Records why a rank gives up. A cause that follows from an earlier one, such as a round that the earlier one ended, is left out.
    pub(super) fn give_up(&self, cause: String) {
        let mut state = self.lock();
        if !state.causes.iter().any(|earlier| cause.ends_with(earlier.as_str())) {
            state.causes.push(cause.clone());
        }
        drop(state);
        self.fail(cause);
    }

    /// The recorded causes, the first one first.
    pub(super) fn causes(&self) -> Vec<String> {
        self.lock().causes.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn too_long() -> GroupError {
    GroupError::Usage("a part longer than a round carries".to_owned())
}

/// The error of a round without a part of this rank, which has left.
pub(super) fn left(rank: usize) -> GroupError {
    GroupError::PeerLost { rank, why: "it has left".to_owned() }
}

/// The error of a round in which these ranks are missing.
pub(super) fn late(missing: Vec<usize>, limit: Duration) -> GroupError {
    let awaited = format!("ranks {missing:?} to come to the rendezvous");
    GroupError::Timeout { peers: missing, awaited, limit }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::frame::decode_parts;
    use super::*;

    #[test]
    fn all_ranks_of_a_round_are_answered_from_the_same_bytes() {
        const RANKS: u8 = 4;
        let rounds = Rounds::new(RANKS.into());
        let give =
            |rank: u8| rounds.give(rank.into(), vec![rank], Duration::from_secs(10)).unwrap();
        let all: Vec<_> = thread::scope(|scope| {
            let ranks: Vec<_> = (0..RANKS).map(|rank| scope.spawn(move || give(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(all.iter().all(|bytes| Arc::ptr_eq(bytes, &all[0])));
        let expected: Vec<_> = (0..RANKS).map(|rank| vec![rank]).collect();
        assert_eq!(decode_parts(&mut &*all[0]).unwrap(), expected);
    }
}
