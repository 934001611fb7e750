//! Which ranks wait without progress, and which are silent.

/// The hub's state of each rank.
#[derive(Debug)]
pub(super) struct Watch {
    ranks: Vec<State>,
    /// A rank is waiting for a verdict.
    running: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// As far as is known, it makes progress.
    Moving,
    Stuck,
    /// It sent its farewell.
    Left,
}

impl Watch {
    pub(super) fn new(size: usize) -> Self {
        Self { ranks: vec![State::Moving; size], running: false }
    }

    /// Returns whether this rank is the first that waits for a verdict.
    pub(super) fn stuck(&mut self, rank: usize) -> bool {
        self.ranks[rank] = State::Stuck;
        !std::mem::replace(&mut self.running, true)
    }

    pub(super) fn moves(&mut self, rank: usize) {
        self.ranks[rank] = State::Moving;
    }

    pub(super) fn left(&mut self, rank: usize) {
        self.ranks[rank] = State::Left;
    }

    /// Whether every rank has answered that could.
    pub(super) fn all_said(&self) -> bool {
        !self.ranks.contains(&State::Moving)
    }

    pub(super) fn all_left(&self) -> bool {
        self.ranks.iter().all(|state| *state == State::Left)
    }

    /// The silent ranks; those that have left are included only when all others wait. None when no rank waits any more.
    pub(super) fn verdict(&mut self) -> Option<Vec<usize>> {
        self.running = false;
        let of = |wanted| {
            let ranks = self.ranks.iter().enumerate();
            ranks.filter(|(_, state)| **state == wanted).map(|(rank, _)| rank).collect::<Vec<_>>()
        };
        let silent = of(State::Moving);
        let silent = if silent.is_empty() { of(State::Left) } else { silent };
        let stuck = of(State::Stuck);
        (!stuck.is_empty()).then_some(silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silent_ranks_neither_wait_nor_have_left() {
        let mut watch = Watch::new(4);
        assert!(watch.stuck(0) && !watch.stuck(1));
        watch.left(3);
        assert!(!watch.all_said());
        assert_eq!(watch.verdict(), Some(vec![2]));
        watch.stuck(2);
        assert!(watch.all_said());
        assert_eq!(watch.verdict(), Some(vec![3]));
        (0..3).for_each(|rank| watch.moves(rank));
        assert_eq!(watch.verdict(), None);
    }
}
