//! The proof that a peer has a listener's handle: a MAC keyed with the secret in it. `proto` has no cryptography of its
//! own; the caller brings a MAC of 128 bits ([`Prove`]).
//!
//! The MAC covers its purpose, so that a proof cannot be used for another purpose; and ids and nonces in the
//! order (prover, verifier), so that it cannot be used in the other direction.

use std::fmt;

use super::super::ids::{ListenerId, Name};
use crate::bits::word_of;

/// A random number, drawn when an endpoint is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub [u8; 16]);

/// A random number, drawn for each listener.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A MAC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof(pub [u64; 2]);

/// A MAC: SipHash with 128 bits of output, or stronger.
pub trait Prove {
    fn prove(&self, secret: &Secret, words: &[u64]) -> Proof;
}

/// The nonces of both sides; 0 if a nonce is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nonces {
    pub prover: u64,
    pub verifier: u64,
}

/// The prover's side of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// The prover has got the handle.
    Connects = 1,
    /// The prover has made the handle.
    Listens = 2,
}

impl Role {
    pub(super) const fn from_u8(value: u8) -> Option<Self> {
        match value {
            1 => Some(Self::Connects),
            2 => Some(Self::Listens),
            _ => None,
        }
    }

    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Connects => Self::Listens,
            Self::Listens => Self::Connects,
        }
    }
}

/// The words that an entry of a HELLO proves: these two endpoints connect for this listener.
pub(super) fn hello_words(
    prover: &EndpointId,
    verifier: &EndpointId,
    nonces: Nonces,
    listener: ListenerId,
    role: Role,
) -> [u64; 8] {
    let ([a, b], [c, d]) = (words_of(prover), words_of(verifier));
    [HELLO, a, b, c, d, nonces.prover, nonces.verifier, u64::from(listener.0) << 8 | role as u64]
}

/// The words that an OPEN proves: this connection is for this listener, on this channel.
pub fn open_words(nonces: Nonces, listener: ListenerId, from: Name, features: u32) -> [u64; 5] {
    let name = (from.slot.index() as u64) << 8 | u64::from(from.generation.get());
    let listener = u64::from(listener.0) << 32 | u64::from(features);
    [OPEN, nonces.prover, nonces.verifier, listener, name]
}

/// Whether a proof is valid, checked in constant time.
pub fn verify(prove: &impl Prove, secret: &Secret, words: &[u64], shown: Proof) -> bool {
    let Proof([a, b]) = prove.prove(secret, words);
    let Proof([c, d]) = shown;
    std::hint::black_box((a ^ c) | (b ^ d)) == 0
}

fn words_of(id: &EndpointId) -> [u64; 2] {
    let (first, second) = id.0.split_at(8);
    [first, second].map(word_of)
}

const HELLO: u64 = u64::from_le_bytes(*b"IRhello2");
const OPEN: u64 = u64::from_le_bytes(*b"IRopen_2");

/// A keyed function for tests, without any security.
#[cfg(test)]
pub(super) struct Mixing;

#[cfg(test)]
impl Prove for Mixing {
    fn prove(&self, secret: &Secret, words: &[u64]) -> Proof {
        let [low, high] = words_of(&EndpointId(secret.0));
        let mix = |seed: u64| {
            words.iter().fold(seed, |seed, word| crate::bits::mix(seed, *word, seed >> 7))
        };
        Proof([mix(low), mix(high ^ 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Generation, Slot};

    #[test]
    fn a_proof_depends_on_every_word_and_on_its_purpose() {
        let (one, other) = (EndpointId([1; 16]), EndpointId([2; 16]));
        let nonces = Nonces { prover: 3, verifier: 4 };
        let swapped = Nonces { prover: 4, verifier: 3 };
        let (listener, role) = (ListenerId(7), Role::Connects);
        let base = hello_words(&one, &other, nonces, listener, role);
        for differs in [
            hello_words(&other, &one, nonces, listener, role),
            hello_words(&one, &other, swapped, listener, role),
            hello_words(&one, &other, nonces, ListenerId(8), role),
            hello_words(&one, &other, nonces, listener, Role::Listens),
        ] {
            assert_ne!(base, differs);
        }
        let mut seen = std::collections::HashSet::from([base]);
        for byte in 0..16 {
            let mut changed = one;
            changed.0[byte] ^= 1;
            for (prover, verifier) in [(&changed, &other), (&other, &changed)] {
                let words = hello_words(prover, verifier, nonces, listener, role);
                assert!(seen.insert(words), "byte {byte} of an endpoint's id");
            }
        }
        let name = |slot: usize, generation| Name {
            slot: Slot::new(slot).unwrap(),
            generation: Generation::new(generation),
        };
        let open = open_words(nonces, listener, name(1, 2), 5);
        for differs in [
            open_words(swapped, listener, name(1, 2), 5),
            open_words(nonces, ListenerId(8), name(1, 2), 5),
            open_words(nonces, listener, name(2, 2), 5),
            open_words(nonces, listener, name(1, 3), 5),
            open_words(nonces, listener, name(1, 2), 6),
        ] {
            assert_ne!(open, differs);
        }
        assert_ne!(base[0], open[0], "no proof can be used for both");
    }

    #[test]
    fn a_proof_that_differs_in_any_bit_is_none() {
        let (secret, words) = (Secret([8; 16]), [1, 2, 3]);
        let Proof(right) = Mixing.prove(&secret, &words);
        assert!(verify(&Mixing, &secret, &words, Proof(right)));
        for bit in 0..128 {
            let mut wrong = right;
            wrong[bit / 64] ^= 1 << (bit % 64);
            assert!(!verify(&Mixing, &secret, &words, Proof(wrong)));
            wrong[1 - bit / 64] ^= 1 << (bit % 64);
            assert!(!verify(&Mixing, &secret, &words, Proof(wrong)), "in both words");
        }
        assert!(!verify(&Mixing, &Secret([9; 16]), &words, Proof(right)));
    }
}
