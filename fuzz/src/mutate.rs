//! New inputs out of old ones.

/// A generator of small state: a run is the same for the same seed.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// SplitMix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).expect("below a usize")
    }
}

/// The longest input.
pub(crate) const LONGEST: usize = 5000;

const WORDS: [u64; 10] = [0, 1, 7, 8, 0x7f, 0xff, 0xffff, 0xffff_ffff, 1 << 63, u64::MAX];

/// Changes `bytes` in a few places; `other` is an input to take pieces from.
pub(crate) fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = (at + 1 + random.below(16)).min(bytes.len());
        match random.below(8) {
            0 => bytes.insert(at, random.next().to_le_bytes()[0]),
            1 if at < end => drop(bytes.drain(at..end)),
            2 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            3 if at < bytes.len() => bytes[at] = random.next().to_le_bytes()[0],
            4 => {
                let word = WORDS[random.below(WORDS.len())].to_le_bytes();
                let len = [1, 2, 4, 8][random.below(4)];
                for (place, byte) in bytes[at..].iter_mut().zip(&word[..len]) {
                    *place = *byte;
                }
            }
            5 if at < end => {
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            6 if !other.is_empty() => {
                let from = random.below(other.len());
                let len = 1 + random.below((other.len() - from).min(64));
                bytes.splice(at..at, other[from..from + len].iter().copied());
            }
            _ => bytes.extend(random.next().to_le_bytes()),
        }
    }
    bytes.truncate(LONGEST);
}
