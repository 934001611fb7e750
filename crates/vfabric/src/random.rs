//! The only random generator: the same seed gives the same draws in the same order.

/// A small generator (xorshift64*).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Similar seeds give unrelated draws.
    pub(crate) fn new(seed: u64) -> Self {
        let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From 0 to `most`, both included.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        if most == 0 { 0 } else { (self.next() >> 11) % (most + 1) }
    }

    /// True `permille` times in a thousand.
    pub(crate) fn chance(&mut self, permille: u64) -> bool {
        permille > 0 && self.up_to(999) < permille
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_draws() {
        let draws = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.up_to(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    #[test]
    fn chances_come_as_often_as_asked() {
        let mut random = Random::new(3);
        let hits = (0..10_000).filter(|_| random.chance(300)).count();
        assert!((2700..3300).contains(&hits), "{hits}");
        assert!(!random.chance(0));
        assert!(random.chance(1000));
    }
}
