//! Letters, the two-sided messages of a channel: handshake, keepalive and recovery, which must work although packets
//! are lost. Each is idempotent: it may be lost, repeated or reordered.
//!
//! ```text
//! HELLO     lends an inbox; repeated until its epoch is echoed in a HELLO of the other side
//! QUERY     what was consumed last?
//! STATUS    the answer
//! TRIAL     does this control rail carry letters again?
//! ```

use crate::bits::{low8, low16, low32};
use crate::limits::MAX_DATA_RAILS;

use super::counts::{Counts, PeerCounts};
use super::frame::Keys;
use super::ids::{Epoch, Generation, Name, Nonce, PacketNumber, Slot};
use super::memory::Lease;
use super::stall::{ConnectionState, WaitsFor};

pub const LETTER_WORDS: usize = 8 + MAX_DATA_RAILS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letter {
    /// The key from the recipient's first HELLO; 0 before that has come. Only a HELLO with a valid proof may have 0.
    pub key: u64,
    /// What the sender knows about the control rails.
    pub rails: RailNumbers,
    pub body: Body,
}

/// How often each control rail was lost and came back, modulo 16: odd while it is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailNumbers(u16);

impl RailNumbers {
    /// Each number is below 16.
    pub fn new(numbers: [u8; 4]) -> Self {
        let mut all = Self::default();
        (0..).zip(numbers).for_each(|(rail, number)| all.set(rail, number));
        all
    }

    #[inline]
    pub(crate) const fn of(self, rail: u8) -> u8 {
        low8((self.0 >> (4 * (rail % 4))) as u64 & 15)
    }

    #[inline]
    pub(crate) const fn is_lost(self, rail: u8) -> bool {
        self.of(rail) & 1 != 0
    }

    /// Counts a loss or a return of a rail.
    pub(crate) fn advance(&mut self, rail: u8) {
        self.set(rail, self.of(rail) + 1);
    }

    /// Takes over the number of a rail if it is newer: at most 7 ahead, because numbers wrap. Returns how far it is
    /// ahead; 0 if it is not newer.
    pub(crate) fn take_newer(&mut self, rail: u8, from: Self) -> u8 {
        let ahead = from.of(rail).wrapping_sub(self.of(rail)) & 15;
        let newer = (1..8).contains(&ahead);
        if newer {
            self.set(rail, from.of(rail));
        }
        if newer { ahead } else { 0 }
    }

    fn set(&mut self, rail: u8, number: u8) {
        let shift = 4 * (rail % 4);
        self.0 = self.0 & !(15 << shift) | u16::from(number & 15) << shift;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Hello(Hello),
    Query(Query),
    Status(Status),
    Trial(Trial),
}

/// Probes a lost control rail, or answers such a probe, by that rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    pub rail: u8,
    /// The rail's number when it was tried.
    pub number: u8,
    pub answers: bool,
}

/// Lends an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    pub lease: Lease,
    /// The key that letters to this side must carry.
    pub key: u64,
    /// The last packet consumed before this inbox; the next one is to be written into it.
    pub consumed: PacketNumber,
    /// The epoch of the recipient's inbox that this side writes into; 0 for none.
    pub echo: Epoch,
    /// Requests an echo: this side's epoch is not echoed yet.
    pub requests_echo: bool,
}

/// Asks which packet was consumed last (keepalive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The epoch of the inbox that the sender of the QUERY writes into.
    pub epoch: Epoch,
    /// The last packet up to which all writes have completed.
    pub completed: PacketNumber,
    /// The first of these packets that was not consumed counts as lost.
    pub lost: bool,
    /// The control rail that the QUERY goes by. The answer goes by the same rail, if that lives.
    pub rail: u8,
    pub counts: PeerCounts,
    /// The connection whose progress the answer is to report.
    pub about: Option<Name>,
}

/// The answer to a QUERY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The epoch of the inbox that the sender of the STATUS reads.
    pub epoch: Epoch,
    pub consumed: PacketNumber,
    /// The packet that the QUERY named as completed.
    pub asked: PacketNumber,
    pub counts: PeerCounts,
    /// Whether the sender of the STATUS waits for an action of the recipient.
    pub waits: bool,
    /// The channel has failed at its sender.
    pub failed: bool,
    /// For how many milliseconds NCCL has not polled at the sender of the STATUS. The keeper may have polled.
    pub idle_ms: u32,
    /// Progress of the connection that QUERY named.
    pub about: Option<About>,
}

/// Progress of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The recipient's name for the connection.
    pub name: Name,
    pub state: ConnectionState,
}

impl Letter {
    pub fn encode(&self) -> [u64; LETTER_WORDS] {
        let mut words = [0; LETTER_WORDS];
        words[0] = self.key;
        let (kind, flags, epoch) = match &self.body {
            Body::Hello(hello) => (HELLO, u8::from(hello.requests_echo), hello.lease.epoch),
            Body::Query(query) => (QUERY, u8::from(query.lost), query.epoch),
            Body::Status(status) => {
                (STATUS, u8::from(status.waits) | u8::from(status.failed) << 1, status.epoch)
            }
            Body::Trial(trial) => (TRIAL, u8::from(trial.answers), Epoch(0)),
        };
        words[1] = u64::from(kind)
            | u64::from(flags) << 8
            | u64::from(self.rails.0) << 16
            | u64::from(epoch.0) << 32;
        match &self.body {
            Body::Hello(hello) => {
                words[2] = u64::from(hello.consumed.get()) | u64::from(hello.echo.0) << 32;
                words[3] = hello.key;
                words[4] = hello.lease.nonce.0;
                words[5] = hello.lease.address;
                words[6] = hello.lease.key;
                words[7] = u64::from(hello.lease.rail);
            }
            Body::Query(query) => {
                words[2] = u64::from(query.completed.get()) | u64::from(query.rail) << 32;
                words[3] = query.about.map_or(0, name_bits);
                put_counts(&query.counts, &mut words);
            }
            Body::Status(status) => {
                words[2] = u64::from(status.consumed.get()) | u64::from(status.asked.get()) << 32;
                if let Some(About { name, state }) = status.about {
                    let (code, rail) = state.waits_for.code();
                    words[3] = name_bits(name);
                    words[4] = u64::from(state.begun) | u64::from(state.done) << 32;
                    words[5] = u64::from(code) | u64::from(rail) << 8 | u64::from(state.open) << 16;
                }
                words[6] = status.idle_ms.into();
                put_counts(&status.counts, &mut words);
            }
            Body::Trial(trial) => {
                words[2] = u64::from(trial.rail) | u64::from(trial.number) << 8;
            }
        }
        words
    }

    /// None unless the words are exactly the encoding of a letter.
    pub fn decode(words: &[u64; LETTER_WORDS]) -> Option<Self> {
        let [key, head, third, ..] = *words;
        let (flags, epoch) = (low8(head >> 8), Epoch(low32(head >> 32)));
        let first = PacketNumber::new(low32(third));
        let body = match low8(head) {
            HELLO => Body::Hello(Hello {
                lease: Lease {
                    epoch,
                    nonce: Nonce(words[4]),
                    rail: low8(words[7]),
                    address: words[5],
                    key: words[6],
                },
                key: words[3],
                consumed: first,
                echo: Epoch(low32(third >> 32)),
                requests_echo: flags & 1 != 0,
            }),
            QUERY => Body::Query(Query {
                epoch,
                completed: first,
                lost: flags & 1 != 0,
                rail: low8(third >> 32),
                counts: counts_of(words),
                about: name_of(words[3]),
            }),
            STATUS => Body::Status(Status {
                epoch,
                consumed: first,
                asked: PacketNumber::new(low32(third >> 32)),
                counts: counts_of(words),
                waits: flags & 1 != 0,
                failed: flags & 2 != 0,
                idle_ms: low32(words[6]),
                about: about_of(words),
            }),
            TRIAL => Body::Trial(Trial {
                rail: low8(third),
                number: low8(third >> 8),
                answers: flags & 1 != 0,
            }),
            _ => return None,
        };
        let letter = Self { key, rails: RailNumbers(low16(head >> 16)), body };
        (letter.encode() == *words).then_some(letter)
    }
}

/// A slot, a generation, and a bit that marks the name as present.
fn name_bits(name: Name) -> u64 {
    u64::from(name.slot.number()) | u64::from(name.generation.get()) << 16 | 1 << 24
}

fn name_of(bits: u64) -> Option<Name> {
    let slot = Slot::new(usize::from(low16(bits)))?;
    let name = Name { slot, generation: Generation::new(low8(bits >> 16)) };
    (name_bits(name) == bits).then_some(name)
}

fn about_of(words: &[u64; LETTER_WORDS]) -> Option<About> {
    let state = ConnectionState {
        waits_for: WaitsFor::of((low8(words[5]), low8(words[5] >> 8)))?,
        open: words[5] >> 16 & 1 != 0,
        begun: low32(words[4]),
        done: low32(words[4] >> 32),
    };
    Some(About { name: name_of(words[3])?, state })
}

fn put_counts(counts: &PeerCounts, words: &mut [u64; LETTER_WORDS]) {
    for (rail, word) in (0..).zip(words[8..].iter_mut()) {
        let (completed, seen) = (counts.completed.get(rail), counts.seen.get(rail));
        *word = u64::from(completed) | u64::from(seen) << 32;
    }
}

fn counts_of(words: &[u64; LETTER_WORDS]) -> PeerCounts {
    let half = |shift: u32| {
        let mut wide = [0; MAX_DATA_RAILS];
        for (count, word) in wide.iter_mut().zip(&words[8..]) {
            *count = u64::from(low32(word >> shift));
        }
        let keys = Keys::new(&wide).expect("as many keys as there can be rails");
        Counts::from_keys(&keys).expect("each has 32 bits")
    };
    PeerCounts { completed: half(0), seen: half(32) }
}

const HELLO: u8 = 1;
const QUERY: u8 = 2;
const STATUS: u8 = 3;
const TRIAL: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<Letter> {
        let counts_from = |first: u64| {
            let wide: Vec<u64> = (0..16).map(|rail| first + rail * 7).collect();
            Counts::from_keys(&Keys::new(&wide).unwrap()).unwrap()
        };
        let counts =
            PeerCounts { completed: counts_from(1), seen: counts_from(u64::from(u32::MAX) - 200) };
        let (epoch, number) = (Epoch(u32::MAX), PacketNumber::new(u32::MAX));
        let lease = Lease { epoch, nonce: Nonce(9), rail: 3, address: u64::MAX, key: 5 };
        let mut letters = Vec::new();
        for (flag, open) in [(false, false), (true, false), (true, true)] {
            let hello =
                Hello { lease, key: 77, consumed: number, echo: Epoch(2), requests_echo: flag };
            let name =
                Name { slot: Slot::new(Slot::COUNT - 1).unwrap(), generation: Generation::new(9) };
            let about = flag.then_some(name);
            let query = Query { epoch, completed: number, lost: flag, rail: 3, counts, about };
            let status = Status {
                epoch,
                consumed: number,
                asked: PacketNumber::new(6),
                counts,
                waits: flag,
                failed: !flag,
                idle_ms: 77,
                about: about.map(|name| {
                    let waits_for = WaitsFor::Data { rail: Some(2) };
                    About {
                        name,
                        state: ConnectionState { waits_for, open, begun: u32::MAX, done: 3 },
                    }
                }),
            };
            let trial = Body::Trial(Trial { rail: 3, number: 15, answers: flag });
            for body in [Body::Hello(hello), Body::Query(query), Body::Status(status), trial] {
                letters.push(Letter {
                    key: 1 << 63,
                    rails: RailNumbers::new([14, 13, 11, 7]),
                    body,
                });
            }
        }
        letters
    }

    #[test]
    fn a_letter_is_read_as_it_was_written() {
        for letter in examples() {
            assert_eq!(Letter::decode(&letter.encode()), Some(letter));
        }
    }

    #[test]
    fn the_newer_number_of_a_rail_counts_across_the_wrap() {
        let mut numbers = RailNumbers::default();
        for step in 1..=40_u8 {
            let mut newer = numbers;
            newer.advance(2);
            assert_eq!((newer.take_newer(1, numbers), numbers.take_newer(2, newer)), (0, 1));
            assert_eq!((numbers.of(2), numbers.is_lost(2)), (step % 16, step % 2 == 1));
            assert_eq!(numbers.take_newer(2, newer), 0, "it is known");
        }
        assert_eq!([0, 1, 3].map(|rail| numbers.of(rail)), [0; 3]);
    }

    #[test]
    fn every_bit_of_a_letter_has_a_meaning_or_makes_it_none() {
        for letter in examples() {
            for word in 0..LETTER_WORDS {
                for bit in 0..64 {
                    let mut words = letter.encode();
                    words[word] ^= 1 << bit;
                    if let Some(other) = Letter::decode(&words) {
                        assert_ne!(other, letter);
                        assert_eq!(other.encode(), words);
                    }
                }
            }
        }
    }
}
