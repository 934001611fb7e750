//! Which ranks wait without progress, and which are silent.

use std::time::{Duration, Instant};

/// The hub's state of each rank.
#[derive(Debug)]
pub(super) struct Watch {
    ranks: Vec<State>,
    /// A thread waits to decide.
    is_judged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The rank makes progress, as far as the hub knows.
    Moving,
    /// The rank waits without progress, and has time until then.
    Stuck(Instant),
    /// The rank has sent its farewell.
    Left,
}

impl Watch {
    pub(super) fn new(size: usize) -> Self {
        Self { ranks: vec![State::Moving; size], is_judged: false }
    }

    /// This rank is stuck. Returns whether the caller must decide, by [`Watch::deadline`].
    pub(super) fn stuck(&mut self, rank: usize, until: Instant) -> bool {
        self.set(rank, State::Stuck(until));
        !std::mem::replace(&mut self.is_judged, true)
    }

    pub(super) fn moves(&mut self, rank: usize) {
        self.set(rank, State::Moving);
    }

    pub(super) fn left(&mut self, rank: usize) {
        self.set(rank, State::Left);
    }

    fn set(&mut self, rank: usize, state: State) {
        if self.ranks[rank] != State::Left {
            self.ranks[rank] = state;
        }
    }

    /// When the time of the first rank that is stuck now ends. None if no rank is stuck: there is nothing to decide.
    pub(super) fn deadline(&mut self) -> Option<Instant> {
        let until = self.ranks.iter().filter_map(|state| match state {
            State::Stuck(until) => Some(*until),
            _ => None,
        });
        let first = until.min();
        self.is_judged = first.is_some();
        first
    }

    /// Gives ranks that are stuck more time, since the hub has not run for `by`.
    pub(super) fn postpone(&mut self, by: Duration) {
        for state in &mut self.ranks {
            if let State::Stuck(until) = state {
                *until += by;
            }
        }
    }

    pub(super) fn all_left(&self) -> bool {
        self.ranks.iter().all(|state| *state == State::Left)
    }

    /// The silent ranks; those that have left are included only when all others wait.
    pub(super) fn verdict(&mut self) -> Vec<usize> {
        self.is_judged = false;
        let of = |wanted| {
            let ranks = self.ranks.iter().enumerate();
            ranks.filter(|(_, state)| **state == wanted).map(|(rank, _)| rank).collect::<Vec<_>>()
        };
        let silent = of(State::Moving);
        if silent.is_empty() { of(State::Left) } else { silent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silent_ranks_neither_wait_nor_have_left() {
        let (mut watch, now) = (Watch::new(4), Instant::now());
        assert!(watch.stuck(0, now) && !watch.stuck(1, now));
        watch.left(3);
        assert_eq!(watch.verdict(), [2]);
        assert!(watch.stuck(2, now));
        assert_eq!(watch.verdict(), [3]);
        (0..4).for_each(|rank| watch.moves(rank));
        assert_eq!(watch.deadline(), None);
    }

    #[test]
    fn the_time_of_a_rank_that_moves_again_does_not_count() {
        let (mut watch, now) = (Watch::new(3), Instant::now());
        let later = now + Duration::from_secs(1);
        assert!(watch.stuck(0, now) && !watch.stuck(1, later));
        assert_eq!(watch.deadline(), Some(now));
        watch.moves(0);
        assert_eq!(watch.deadline(), Some(later));
        watch.moves(1);
        assert_eq!(watch.deadline(), None);
        assert!(watch.stuck(1, later), "no thread decides any more");
        watch.left(1);
        assert_eq!(watch.deadline(), None);
    }

    #[test]
    fn a_time_in_which_the_hub_did_not_run_counts_for_no_rank() {
        let (mut watch, now) = (Watch::new(3), Instant::now());
        let (soon, long) = (now + Duration::from_secs(1), Duration::from_secs(1000));
        assert!(watch.stuck(1, soon));
        watch.postpone(long);
        assert!(!watch.stuck(2, soon + 2 * long));
        assert_eq!(watch.deadline(), Some(soon + long));
    }
}
