//! Counts the posts that libfabric has accepted, by kind: a measure of a message's cost that does not depend on the clock.
//!
//! Counting needs no atomic operation, since a NIC has one user at a time.

use std::ops::AddAssign;

/// Accepted posts of one or more endpoints, without refused ones (-FI_EAGAIN, errors).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posts {
    /// fi_write, fi_writedata and fi_writemsg.
    pub writes: u64,
    /// fi_inject_write and fi_inject_writedata.
    pub injected_writes: u64,
    /// fi_send and fi_tsend.
    pub sends: u64,
    /// fi_inject.
    pub injected_sends: u64,
    /// fi_read.
    pub reads: u64,
    /// fi_recv and fi_trecv, which send nothing.
    pub receives: u64,
}

impl Posts {
    /// None of any kind.
    pub const NONE: Self =
        Self { writes: 0, injected_writes: 0, sends: 0, injected_sends: 0, reads: 0, receives: 0 };

    /// The counts with their names in reports.
    pub fn named(&self) -> [(&'static str, u64); 6] {
        let Self { writes, injected_writes, sends, injected_sends, reads, receives } = *self;
        [
            ("writes", writes),
            ("injected_writes", injected_writes),
            ("sends", sends),
            ("injected_sends", injected_sends),
            ("reads", reads),
            ("receives", receives),
        ]
    }
}

impl AddAssign for Posts {
    fn add_assign(&mut self, other: Self) {
        let Self { writes, injected_writes, sends, injected_sends, reads, receives } = other;
        self.writes += writes;
        self.injected_writes += injected_writes;
        self.sends += sends;
        self.injected_sends += injected_sends;
        self.reads += reads;
        self.receives += receives;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_counted_and_summed_under_its_own_name() {
        let once = Posts {
            writes: 1,
            injected_writes: 2,
            sends: 3,
            injected_sends: 4,
            reads: 5,
            receives: 6,
        };
        let numbers = once.named().map(|(_, number)| number);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
        let mut twice = once;
        twice += once;
        assert_eq!(twice.named().map(|(_, number)| number), [2, 4, 6, 8, 10, 12]);
        let mut names = once.named().map(|(name, _)| name);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }
}
