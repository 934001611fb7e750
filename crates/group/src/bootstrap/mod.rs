//! How ranks find each other: they exchange bytes and wait for each other. Nothing here is on the data path.
//!
//! Two forms with one meaning: [`Local`] between threads, [`Remote`] over TCP to a [`Hub`]. A rank that disconnects without a farewell
//! fails the round for all ranks at once.

mod frame;
mod hub;
mod interrupt;
mod line;
mod local;
mod mailbox;
mod meeting;
mod reads;
mod remote;
mod rounds;
mod watch;

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

pub use frame::News;
pub use hub::Hub;
pub use interrupt::Interrupt;
pub(crate) use line::Stuck;
pub use local::Local;
pub use meeting::Meeting;
pub use remote::Remote;

use crate::error::GroupError;

/// A rank's view of the rendezvous.
pub trait Bootstrap: fmt::Debug {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// A number that the ranks of this group share and other groups do not.
    fn identity(&self) -> u64;
    /// Every rank's bytes, by rank. All ranks must call it; at most [`PART_BYTES_MAX`] each.
    fn all_gather(&mut self, part: &[u8], wait: Duration) -> Result<Vec<Vec<u8>>, GroupError>;

    /// Reports why this rank gives up; returns whether the rendezvous received it. To be called before anything is closed: the neighbours
    /// only see that their peer is gone, and their reports must come after the cause. Only the first call counts.
    fn give_up(&mut self, why: &GroupError) -> bool;

    /// Returns once every rank has called it.
    fn barrier(&mut self, wait: Duration) -> Result<(), GroupError> {
        self.all_gather(&[], wait).map(drop)
    }
}

/// The largest part of a rank in one round.
pub const PART_BYTES_MAX: usize = 64 << 10;
/// The largest group.
pub const RANKS_MAX: usize = 1024;

/// An unpredictable number.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
