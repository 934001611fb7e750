//! A packet: a header of 24 bytes, then frames. The check shows that all of it has landed, and that it is for this
//! inbox.
//!
//! ```text
//! word 0   check of all words that follow, mixed with the inbox's nonce
//! word 1   63..32 length in bytes, header and all | 31..0 packet number
//! word 2   63..33 zero | 32 pad | 31..0 the last packet consumed in the other direction
//! ```
//!
//! A packet that has landed only in part, or that is of another lap, epoch or channel, does not validate: it counts as not
//! there yet. A pad fills the rest of a lap: its header has the length of the rest, and only the header is written and checked.

use crate::bits::{count32, low16, low32, mix};

use super::frame::{INLINE_BYTES_MAX, INLINE_WORDS};
use super::ids::{Nonce, PacketNumber};
use super::memory::InboxMemory;

pub const HEADER_WORDS: usize = 3;
pub const HEADER_BYTES: u32 = 24;
/// Packets start on this boundary: a cache line.
pub const START_BYTES: u32 = 64;
/// The value of an empty inbox word. Consumed words are overwritten with it: otherwise an old word with the value of a new one
/// could not be distinguished from a word that has landed.
pub const POISON: u64 = 0xd15e_a5ed_0bad_f00d;

/// The length of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring(u32);

impl Ring {
    /// For channels with inline messages.
    pub const LONG: Self = Self(64 << 10);
    /// For channels with adverts only.
    pub const SHORT: Self = Self(8 << 10);
    /// For channels of SENDRECV: its packets are messages, short enough for the provider to send without a rendezvous.
    pub const SENT: Self = Self(16 << 10);

    /// A ring of `bytes` bytes: a power of two from 2 to 64 KiB. A quarter of the ring must have room for the longest frame without a
    /// payload.
    pub const fn new(bytes: u32) -> Option<Self> {
        let bounded = bytes >= 2 << 10 && bytes <= 64 << 10;
        if bounded && bytes.is_power_of_two() { Some(Self(bytes)) } else { None }
    }

    #[inline]
    pub const fn bytes(self) -> u32 {
        self.0
    }

    #[inline]
    pub const fn words(self) -> usize {
        self.0 as usize / 8
    }

    /// The longest packet: a quarter of the ring. With half of the ring a writer and a reader could deadlock (docs/protocol.md,
    /// section 2).
    #[inline]
    pub const fn packet_bytes_max(self) -> u32 {
        self.0 / 4
    }

    /// The longest inline message that an empty packet has room for. A longer one could never leave.
    pub fn longest_inline(self) -> u16 {
        let room = self.packet_bytes_max() - HEADER_BYTES - count32(8 * INLINE_WORDS);
        low16(u64::from(room).min(INLINE_BYTES_MAX as u64))
    }

    /// Unacknowledged bytes that make the reader write its cell.
    #[inline]
    pub const fn acknowledged_at(self) -> u32 {
        self.0 / 2
    }
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub number: PacketNumber,
    /// The length with the header; of a pad, the rest of the lap.
    pub bytes: u32,
    pub acknowledged: PacketNumber,
    pub pad: bool,
}

impl Header {
    /// Words 1 and 2.
    #[inline]
    pub fn words(&self) -> [u64; 2] {
        let acknowledged = u64::from(self.acknowledged.get());
        [
            u64::from(self.number.get()) | u64::from(self.bytes) << 32,
            acknowledged | u64::from(self.pad) << 32,
        ]
    }

    /// How many words are written and checked, including the header.
    #[inline]
    pub const fn written_words(&self) -> usize {
        if self.pad { HEADER_WORDS } else { self.bytes as usize / 8 }
    }

    /// Distance to the next packet.
    #[inline]
    pub const fn span(&self) -> u32 {
        self.bytes.next_multiple_of(START_BYTES)
    }

    /// Whether the packet of this number may have landed at `at`. One load, since the answer to most polls is no.
    #[inline]
    pub fn may_be_at<M: InboxMemory>(memory: &M, at: u32, number: PacketNumber) -> bool {
        low32(memory.load(at as usize / 8 + 1)) == number.get()
    }

    /// The packet of this number at `at`, if all of it has landed. Every length is bounded before it is used.
    #[inline]
    pub fn validate<M: InboxMemory>(
        memory: &M,
        ring: Ring,
        at: u32,
        number: PacketNumber,
        nonce: Nonce,
    ) -> Option<Self> {
        let start = at as usize / 8;
        let first = memory.load(start + 1);
        if low32(first) != number.get() {
            return None;
        }
        let second = memory.load(start + 2);
        let header = Self {
            number,
            bytes: low32(first >> 32),
            acknowledged: PacketNumber::new(low32(second)),
            pad: second >> 32 & 1 != 0,
        };
        let longest = ring.packet_bytes_max().min(ring.bytes() - at);
        let bounded = header.bytes >= HEADER_BYTES && header.bytes <= longest;
        if !bounded || !header.bytes.is_multiple_of(8) || second >> 33 != 0 {
            return None;
        }
        // The check covers these copies, not a second load of the words, which the peer may have changed since.
        let sum = check(
            nonce,
            [first, second],
            header.written_words(),
            |word| memory.load(start + word),
            |word| memory.load_eight(start + word),
        );
        (sum == memory.load(start)).then_some(header)
    }
}

/// The check of a packet of `words` words. `load` returns one word behind the header, `load_eight` eight of them. Four
/// lanes of two words each let a processor multiply in parallel.
#[inline]
pub fn check(
    nonce: Nonce,
    header: [u64; 2],
    words: usize,
    load: impl Fn(usize) -> u64,
    load_eight: impl Fn(usize) -> [u64; 8],
) -> u64 {
    let mut lanes = SEEDS.map(|seed| nonce.0 ^ seed);
    lanes[0] = mix(lanes[0], header[0], header[1]);
    let mut word = HEADER_WORDS;
    while word + 8 <= words {
        let eight = load_eight(word);
        for (lane, state) in lanes.iter_mut().enumerate() {
            *state = mix(*state, eight[2 * lane], eight[2 * lane + 1]);
        }
        word += 8;
    }
    // The header has the length, so a missing last word may count as zero.
    for state in &mut lanes {
        if word >= words {
            break;
        }
        let second = if word + 1 < words { load(word + 1) } else { 0 };
        *state = mix(*state, load(word), second);
        word += 2;
    }
    mix(mix(nonce.0, lanes[0], lanes[1]), lanes[2], lanes[3])
}

const SEEDS: [u64; 4] = [0, 0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

const _: () = {
    use super::frame::{FRAME_WORDS_MAX, INLINE_BYTES_MAX, INLINE_WORDS};
    assert!(HEADER_WORDS * 8 == HEADER_BYTES as usize);
    let quarter = Ring::LONG.packet_bytes_max() as usize;
    assert!((HEADER_WORDS + INLINE_WORDS) * 8 + INLINE_BYTES_MAX <= quarter);
    assert!((HEADER_WORDS + FRAME_WORDS_MAX) * 8 <= (2 << 10) / 4);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Words;

    const NONCE: Nonce = Nonce(0x0123_4567_89ab_cdef);
    const NUMBER: PacketNumber = PacketNumber::new(7);

    fn ring() -> Ring {
        Ring::new(2048).unwrap()
    }

    fn packet(bytes: u32, pad: bool, at: u32) -> Words {
        let mut words = vec![POISON; ring().words()];
        let header = Header { number: NUMBER, bytes, acknowledged: PacketNumber::new(3), pad };
        let start = at as usize / 8;
        let body: Vec<u64> =
            (0..bytes as usize / 8).map(|word| word as u64 * 0x1234_5677).collect();
        let written = header.written_words();
        words[start..start + written].copy_from_slice(&body[..written]);
        words[start + 1..start + 3].copy_from_slice(&header.words());
        words[start] = check(
            NONCE,
            header.words(),
            written,
            |word| words[start + word],
            |word| std::array::from_fn(|index| words[start + word + index]),
        );
        Words(words)
    }

    fn read(words: &Words, at: u32) -> Option<Header> {
        Header::validate(words, ring(), at, NUMBER, NONCE)
    }

    #[test]
    fn a_packet_validates_whole() {
        for bytes in (24..=512).step_by(8) {
            for (at, pad) in [(0, false), (64, false), (2048 - 512, false), (2048 - 512, true)] {
                let header = read(&packet(bytes, pad, at), at).expect("it is all there");
                assert_eq!((header.bytes, header.pad), (bytes, pad));
                assert_eq!(header.acknowledged, PacketNumber::new(3));
                assert_eq!(header.span() % START_BYTES, 0);
            }
        }
    }

    #[test]
    fn a_word_that_has_not_landed_makes_the_packet_invalid() {
        for bytes in [24, 56, 64, 88, 96, 104, 344, 512] {
            for word in 0..bytes as usize / 8 {
                for other in [POISON, 0] {
                    let mut words = packet(bytes, false, 0);
                    if words.0[word] != other {
                        words.0[word] = other;
                        assert_eq!(read(&words, 0), None, "{bytes} {word}");
                    }
                }
                for bit in 0..64 {
                    let mut words = packet(bytes, false, 0);
                    words.0[word] ^= 1 << bit;
                    assert_eq!(read(&words, 0), None, "{bytes} {word} {bit}");
                }
            }
        }
    }

    #[test]
    fn two_words_that_changed_places_do_not_validate() {
        let len = 512 / 8;
        for one in HEADER_WORDS..len {
            for other in one + 1..len {
                let mut words = packet(512, false, 0);
                words.0.swap(one, other);
                assert_eq!(read(&words, 0), None, "{one} {other}");
            }
        }
    }

    #[test]
    fn a_packet_is_valid_in_one_inbox_and_under_one_number() {
        let words = packet(56, false, 0);
        for bit in 0..64 {
            let nonce = Nonce(NONCE.0 ^ 1 << bit);
            assert_eq!(Header::validate(&words, ring(), 0, NUMBER, nonce), None);
        }
        assert_eq!(Header::validate(&words, ring(), 0, NUMBER.plus(1), NONCE), None);
    }

    /// Packets with a valid check and a length that no writer may choose.
    #[test]
    fn lengths_are_bounded_before_they_are_used() {
        let sealed = |bytes: u32, at: u32, flags: u64| {
            let mut words = vec![0; ring().words()];
            let start = at as usize / 8;
            words[start + 1] = u64::from(NUMBER.get()) | u64::from(bytes) << 32;
            words[start + 2] = flags;
            let header = [words[start + 1], words[start + 2]];
            let last = (bytes as usize / 8).min(words.len() - start);
            words[start] = check(
                NONCE,
                header,
                last,
                |word| words[start + word],
                |word| std::array::from_fn(|index| words[start + word + index]),
            );
            Words(words)
        };
        assert!(read(&sealed(512, 2048 - 512, 0), 2048 - 512).is_some());
        for bytes in [0, 8, 16, 25, 63, 520, 2048, 4096, u32::MAX, u32::MAX - 7] {
            assert_eq!(read(&sealed(bytes, 0, 0), 0), None, "{bytes}");
        }
        assert_eq!(read(&sealed(128, 2048 - 64, 0), 2048 - 64), None, "it would wrap");
        assert_eq!(read(&sealed(64, 0, 2 << 32), 0), None, "bits without a meaning");
    }

    #[test]
    fn a_ring_is_a_power_of_two_within_bounds() {
        for bytes in [0, 64, 1 << 10, 3 << 10, 128 << 10, u32::MAX] {
            assert_eq!(Ring::new(bytes), None);
        }
        assert_eq!(Ring::new(8 << 10), Some(Ring::SHORT));
        assert_eq!(Ring::new(64 << 10), Some(Ring::LONG));
        assert_eq!(ring().words(), 2048 / 8);
    }

    /// Other builds compute the check, too.
    #[test]
    fn the_check_of_a_packet_never_changes() {
        let checks = [24, 64, 88, 512].map(|bytes| packet(bytes, false, 0).0[0]);
        let expected = [
            0x34da_4ff7_79b0_0ab6,
            0xaa08_3d8f_b7fd_a4b0,
            0xbe82_0b26_dfc4_6c0a,
            0x7280_6f36_be1f_5bb7,
        ];
        assert_eq!(checks, expected);
    }

    #[test]
    fn the_longest_inline_message_fills_the_longest_packet_or_has_the_length_that_no_frame_exceeds()
    {
        let around = HEADER_BYTES + count32(8 * INLINE_WORDS);
        assert_eq!(u32::from(ring().longest_inline()) + around, ring().packet_bytes_max());
        assert_eq!(usize::from(Ring::LONG.longest_inline()), INLINE_BYTES_MAX);
    }
}
