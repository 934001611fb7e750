//! Secrets, nonces, and the MAC that proves knowledge of a secret.

use std::hash::Hasher;

use proto::setup::{EndpointId, Proof, Prove, Secret};
use siphasher::sip128::{Hasher128, SipHasher24};

/// SipHash-2-4 with 128 bits of output, keyed by the secret.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mac;

impl Prove for Mac {
    fn prove(&self, secret: &Secret, words: &[u64]) -> Proof {
        let mut hasher = SipHasher24::new_with_key(&secret.0);
        for word in words {
            hasher.write(&word.to_le_bytes());
        }
        let sum = hasher.finish128();
        Proof([sum.h1, sum.h2])
    }
}

/// Random bytes from the operating system.
///
/// # Errors
///
/// The operating system returned none.
pub(super) fn random_bytes() -> Result<[u8; 16], getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// A random number other than 0.
pub(super) fn random_number() -> Result<u64, getrandom::Error> {
    loop {
        let number = getrandom::u64()?;
        if number != 0 {
            return Ok(number);
        }
    }
}

/// A nonce for the protocol. Without random numbers it is 0, which is no valid nonce: then nothing is proven, and no connection is made.
pub(super) fn random_nonce() -> u64 {
    random_number().unwrap_or_else(|error| {
        log::error!("no random number: {error}");
        0
    })
}

pub(super) fn random_id() -> Result<EndpointId, getrandom::Error> {
    random_bytes().map(EndpointId)
}

/// The secret that proofs of this job use: the handle's, combined with the job's name.
pub(super) fn job_secret(secret: Secret, job: &str) -> Secret {
    let mut hasher = SipHasher24::new_with_key(&secret.0);
    hasher.write(job.as_bytes());
    let sum = hasher.finish128();
    if job.is_empty() { secret } else { Secret(sum.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_depends_on_the_secret_and_on_every_word() {
        let of = |secret: u8, words: &[u64]| Mac.prove(&Secret([secret; 16]), words);
        let base = of(1, &[1, 2]);
        assert_eq!(base, of(1, &[1, 2]));
        for other in [of(2, &[1, 2]), of(1, &[1, 3]), of(1, &[1]), of(1, &[2, 1])] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn jobs_of_other_names_have_other_secrets() {
        let secret = Secret([3; 16]);
        assert_eq!(job_secret(secret, ""), secret);
        assert_ne!(job_secret(secret, "one"), job_secret(secret, "other"));
        assert_ne!(job_secret(secret, "one"), secret);
    }

    #[test]
    fn what_is_drawn_differs() {
        assert_ne!(random_bytes(), random_bytes());
        assert_ne!(random_number(), random_number());
    }
}
