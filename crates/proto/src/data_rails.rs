//! The state of a channel's data rails that its connections and the progress loop share: writes in flight, failures,
//! refusals.

use super::counts::Counts;
use super::frame::RailPosts;
use crate::limits::MAX_DATA_RAILS;
use crate::rail_set::RailSet;

/// The data rails of one channel, for its connections' writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataRails {
    /// The loss of a rail is survived if others are open: its parts go by those.
    survives: bool,
    /// Rails on which a write has failed since the loop last checked; and rails that have refused their last post since then.
    failed: RailSet,
    refused: RailSet,
    /// Parts with immediates that were posted on each rail.
    posted: Counts,
    /// Writes that have completed or failed on each rail, wrapping.
    ended: Counts,
    /// Writes in flight on each rail; and writes without immediates that are in flight or have failed.
    flying: [u32; MAX_DATA_RAILS],
    uncounted: [u32; MAX_DATA_RAILS],
}

impl DataRails {
    /// Sets whether a lost rail is survived if another one is open.
    pub(crate) fn set_survives(&mut self, survives: bool) {
        self.survives = survives;
    }

    pub(crate) const fn survives(&self) -> bool {
        self.survives
    }

    #[inline]
    pub(crate) fn posted(&mut self, rail: u8, immediate: bool) {
        let at = usize::from(rail) % MAX_DATA_RAILS;
        self.flying[at] += 1;
        self.refused.remove(rail);
        if immediate {
            self.posted.add(rail);
        } else {
            self.uncounted[at] += 1;
        }
    }

    /// A write has completed or failed. False if none was in flight, which is a bug of the caller.
    #[inline]
    #[must_use]
    pub(crate) fn ended(&mut self, rail: u8, immediate: bool, well: bool) -> bool {
        let at = usize::from(rail) % MAX_DATA_RAILS;
        let Some(flying) = self.flying[at].checked_sub(1) else { return false };
        self.flying[at] = flying;
        self.ended.add(rail);
        if immediate || !well {
            return true;
        }
        let Some(uncounted) = self.uncounted[at].checked_sub(1) else { return false };
        self.uncounted[at] = uncounted;
        true
    }

    #[cold]
    pub(crate) fn failed(&mut self, rail: u8) {
        self.failed.insert(rail);
    }

    /// The provider refused a part on this rail.
    pub(crate) fn refused(&mut self, rail: u8) {
        self.refused.insert(rail);
    }

    /// Whether a rail has failed writes or refusals to handle.
    #[inline]
    pub(crate) const fn has_news(&self) -> bool {
        !self.failed.is_empty() || !self.refused.is_empty()
    }

    /// Whether a write has failed on a rail since the last call of [`take_failed`](Self::take_failed).
    #[inline]
    pub(crate) const fn has_failures(&self) -> bool {
        !self.failed.is_empty()
    }

    /// The rails on which a write has failed since the last call of [`take_failed`](Self::take_failed).
    pub(crate) const fn failures(&self) -> RailSet {
        self.failed
    }

    /// The rails on which a write has failed since the last call.
    pub(crate) fn take_failed(&mut self) -> RailSet {
        std::mem::take(&mut self.failed)
    }

    /// The rails that have refused their last post since the last call.
    pub(crate) fn take_refused(&mut self) -> RailSet {
        std::mem::take(&mut self.refused)
    }

    /// How many writes a rail has accepted, wrapping.
    pub(crate) fn accepted_on(&self, rail: u8) -> u32 {
        self.ended_on(rail).wrapping_add(self.flying_on(rail))
    }

    pub(crate) fn posted_on(&self, rail: u8) -> u32 {
        self.posted.get(rail)
    }

    /// How many writes have completed or failed on a rail, wrapping.
    pub(crate) fn ended_on(&self, rail: u8) -> u32 {
        self.ended.get(rail)
    }

    /// A lost rail is back: its failures are cleared.
    #[cold]
    pub(crate) fn returned(&mut self, rail: u8) {
        let at = usize::from(rail) % MAX_DATA_RAILS;
        self.uncounted[at] = 0;
        self.failed.remove(rail);
        self.refused.remove(rail);
    }

    /// Writes in flight on a rail.
    pub fn flying_on(&self, rail: u8) -> u32 {
        self.flying[usize::from(rail) % MAX_DATA_RAILS]
    }

    /// Our posts on a rail, for a frame to the peer.
    pub(crate) fn posts_on(&self, rail: u8) -> RailPosts {
        let uncounted = self.uncounted[usize::from(rail) % MAX_DATA_RAILS] > 0;
        RailPosts { parts: self.posted_on(rail), uncounted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAILS: [u8; 3] = [0, 3, 15];

    fn all<T>(rails: &DataRails, of: impl Fn(&DataRails, u8) -> T) -> [T; 3] {
        RAILS.map(|rail| of(rails, rail))
    }

    #[test]
    fn writes_are_counted_on_their_own_rail_and_those_with_immediates_as_posted() {
        let mut rails = DataRails::default();
        for (rail, immediate) in [(3, true), (3, true), (3, false), (15, false), (15, true)] {
            rails.posted(rail, immediate);
        }
        assert_eq!(all(&rails, DataRails::flying_on), [0, 3, 2]);
        assert_eq!(all(&rails, DataRails::posted_on), [0, 2, 1]);
        assert!(rails.ended(3, true, true) && rails.ended(15, false, true));
        assert_eq!(all(&rails, DataRails::flying_on), [0, 2, 1]);
        assert_eq!(all(&rails, DataRails::ended_on), [0, 1, 1]);
        assert_eq!(all(&rails, DataRails::accepted_on), [0, 3, 2]);
        assert!(!rails.ended(0, true, true), "none was in flight there");
    }

    /// Only a completed write is known to have arrived.
    #[test]
    fn writes_without_immediates_stay_uncounted_until_they_complete_or_the_rail_is_back() {
        for well in [false, true] {
            let mut rails = DataRails::default();
            RAILS.iter().for_each(|rail| rails.posted(*rail, false));
            let uncounted =
                |rails: &DataRails| all(rails, |rails, at| rails.posts_on(at).uncounted);
            assert_eq!(uncounted(&rails), [true; 3]);
            assert!(rails.ended(3, false, well));
            assert_eq!(uncounted(&rails), [true, !well, true]);
            rails.returned(3);
            assert_eq!(uncounted(&rails), [true, false, true]);
            rails.posted(3, true);
            assert_eq!(rails.posts_on(3), RailPosts { parts: 1, uncounted: false });
        }
    }

    #[test]
    fn failures_and_refusals_are_taken_once_and_those_of_a_rail_that_is_back_never() {
        let mut rails = DataRails::default();
        assert!(!rails.has_news() && !rails.has_failures());
        RAILS.iter().for_each(|rail| rails.refused(*rail));
        assert!(rails.has_news() && !rails.has_failures());
        rails.posted(0, true);
        rails.returned(15);
        assert!(rails.take_refused().iter().eq([3]), "a rail that accepts a write refuses no more");
        assert!(!rails.has_news());
        RAILS.iter().for_each(|rail| rails.failed(*rail));
        rails.returned(3);
        assert!(rails.has_failures() && rails.failures().iter().eq([0, 15]));
        assert!(rails.take_failed().iter().eq([0, 15]));
        assert!(!rails.has_news());
    }
}
