//! Receivers whose adverts wait or that owe a done: a list, and when to look at it.
//!
//! Mostly they rest, and there may be many: a turn for data walks the list only after something that may have made one
//! due ([`Working::wake`]). A full turn always does, and every sixteenth is one. One that has nothing left stays for a few
//! turns: mostly something comes again, and to leave and to come costs more.

/// What a walk has made of a receiver on the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// It has something left, and is looked at again in the next turn.
    Works,
    /// It has nothing left.
    Rests,
    /// Nor has it had for a while.
    Leaves,
}

/// Slots of receivers, each once.
#[derive(Debug, Default)]
pub(super) struct Working {
    slots: Vec<u16>,
    /// The next turn walks the list, whatever turn it is.
    pub(super) awake: bool,
    /// Every turn does.
    restless: bool,
    /// The turn that walked it last.
    walked: u32,
}

impl Working {
    /// `turns` is how long a done may be owed before it travels alone: where that is short, it is counted exactly.
    pub(super) fn new(turns: u32) -> Self {
        Self { restless: turns < LONG, ..Self::default() }
    }

    /// Something may be due for one of them.
    #[inline(always)]
    pub(super) fn wake(&mut self) {
        self.awake = true;
    }

    /// Puts one on the list, and looks at it in the next turn.
    #[inline(never)]
    pub(super) fn put(&mut self, slot: u16) {
        self.awake = true;
        if !self.slots.contains(&slot) {
            self.slots.push(slot);
        }
    }

    /// Whether all rest in turn number `turn`, by what `rests` says of each, given the turns since the last walk.
    #[inline(always)]
    pub(super) fn all_rest(&mut self, turn: u32, mut rests: impl FnMut(u16, u32) -> bool) -> bool {
        let turns = turn.wrapping_sub(self.walked);
        self.walked = turn;
        self.awake = self.restless;
        // A loop of our own stays where it is called: there is mostly one.
        for slot in &self.slots {
            if !rests(*slot, turns) {
                return false;
            }
        }
        true
    }

    /// Keeps those that do not leave.
    #[inline(always)]
    pub(super) fn retain(&mut self, mut stay: impl FnMut(u16) -> Stay) {
        let (mut awake, mut kept) = (false, 0);
        for index in 0..self.slots.len() {
            let slot = self.slots[index];
            let stay = stay(slot);
            awake |= stay == Stay::Works;
            if stay != Stay::Leaves {
                self.slots[kept] = slot;
                kept += 1;
            }
        }
        self.slots.truncate(kept);
        self.awake = awake || self.restless;
    }

    /// Takes one from the list.
    pub(super) fn remove(&mut self, slot: u16) {
        self.slots.retain(|other| *other != slot);
    }

    pub(super) fn slots(&self) -> &[u16] {
        &self.slots
    }
}

/// Against this many turns, the few between two full ones do not count.
const LONG: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// The turns of 1 to 40 that walk the list, where a full one comes now and then, and the one in `list` rests.
    fn walks(working: &mut Working) -> Vec<(u32, u32)> {
        let mut walks = Vec::new();
        for turn in 1..=40_u32 {
            if working.awake || turn.is_multiple_of(8) {
                let rests = |_, turns| {
                    walks.push((turn, turns));
                    true
                };
                assert!(working.all_rest(turn, rests));
            }
        }
        walks
    }

    #[test]
    fn who_rests_is_asked_now_and_then_about_all_turns_since() {
        let mut working = Working::new(128);
        working.put(3);
        assert_eq!(walks(&mut working), [(1, 1), (8, 7), (16, 8), (24, 8), (32, 8), (40, 8)]);
    }

    #[test]
    fn a_done_that_is_soon_due_is_counted_in_every_turn() {
        let mut working = Working::new(4);
        working.put(3);
        assert_eq!(walks(&mut working).len(), 40);
    }

    #[test]
    fn who_does_not_rest_is_asked_in_the_next_turn() {
        let mut working = Working::new(128);
        working.put(3);
        working.put(3);
        assert!(!working.all_rest(1, |_, _| false) && working.slots() == [3]);
        working.retain(|_| Stay::Works);
        assert!(working.awake);
        working.retain(|_| Stay::Rests);
        assert!(!working.awake && working.slots() == [3]);
        working.retain(|_| Stay::Leaves);
        assert!(!working.awake && working.slots().is_empty());
    }
}
