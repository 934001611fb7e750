//! The control rail by which letters go. A rail may be lost without an error, and a peer that is reachable by another rail must
//! not seem silent.
//!
//! ```text
//!  Inbox ──a letter left──▶ After ──a letter left──▶ After, one rail further
//!    ▲                        │ it was answered
//!    └──── a packet came ─────┴─────────────────▶ By
//! ```

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Route {
    /// By the rail of the own inbox: packets arrive there.
    #[default]
    Inbox,
    /// By the next rail: this one has refused a letter, or accepted one that was not answered.
    After(u8),
    /// By this rail: a letter that went by it was answered.
    By(u8),
}

impl Route {
    /// The rail of the next letter: the first of `count` rails that lives, from the preferred one on.
    pub(super) fn rail(self, inbox: u8, count: u8, lives: impl Fn(u8) -> bool) -> Option<u8> {
        let first = match self {
            Self::Inbox => inbox,
            Self::After(rail) => rail.wrapping_add(1),
            Self::By(rail) => rail,
        };
        (0..count).map(|step| first.wrapping_add(step) % count).find(|rail| lives(*rail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_takes_the_first_rail_that_lives() {
        let lives = |rail| rail != 2;
        for (route, rail) in [
            (Route::Inbox, 1),
            (Route::After(0), 1),
            (Route::After(1), 3),
            (Route::After(3), 0),
            (Route::By(3), 3),
            (Route::By(2), 3),
        ] {
            assert_eq!(route.rail(1, 4, lives), Some(rail), "{route:?}");
        }
        assert_eq!(Route::Inbox.rail(0, 4, |_| false), None);
        assert_eq!(Route::After(0).rail(0, 1, |_| true), Some(0), "there is no other rail");
    }
}
