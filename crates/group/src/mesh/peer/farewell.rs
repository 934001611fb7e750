//! When the connections with a peer that has left may end: whether its last messages are taken from the plugin, and the last ones to it are
//! known to have been received. The peer says in its farewell how many there are, and this rank answers when that is so.

use super::{Peer, Way};
use crate::bootstrap::Remote;
use crate::mesh::header::Route;
use crate::mesh::pair::Pair;

/// What a rank that leaves has sent to one peer, and received from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Farewell {
    /// The number of slots that were sent.
    pub(super) slots: u64,
    /// The number of pieces of long messages that were sent to receives which are posted ahead.
    pub(super) staged: u64,
    /// The numbers of long messages that were received, by [`Route`].
    pub(super) long: [u64; 2],
    /// The numbers of long parts of collectives that were received, by [`Route`].
    pub(super) parts: [u64; 2],
}

/// First bytes of letters; [`Way`] and [`crate::mesh::pair`] have the lower ones.
const FAREWELL: u8 = 18;
/// The letter that answers a farewell.
pub(in super::super) const ANSWER: &[u8] = &[19];

impl Farewell {
    fn encode(self) -> Vec<u8> {
        let Self { slots, staged, long, parts } = self;
        let numbers = [slots, staged, long[0], long[1], parts[0], parts[1]].map(u64::to_le_bytes);
        [&[FAREWELL][..], numbers.as_flattened()].concat()
    }

    /// None if the letter is no farewell.
    pub(super) fn read(letter: &[u8]) -> Option<Self> {
        let numbers = letter.strip_prefix(&[FAREWELL])?;
        let (numbers, []) = numbers.as_chunks() else { return None };
        let numbers = <[[u8; 8]; 6]>::try_from(numbers).ok()?.map(u64::from_le_bytes);
        let [slots, staged, long_direct, long_staged, parts_direct, parts_staged] = numbers;
        let (long, parts) = ([long_direct, long_staged], [parts_direct, parts_staged]);
        Some(Self { slots, staged, long, parts })
    }
}

impl Peer {
    /// Mails how much was sent and received, if anything was.
    pub(super) fn say_farewell(&self, place: &mut Remote) {
        let (slots, staged) = (self.sender.sent(), self.long[Route::Staged as usize].posted_out());
        let received = |route: Route| self.long[route as usize].done().1;
        let (long, parts) = (Route::ALL.map(received), self.received_parts());
        let farewell = Farewell { slots, staged, long, parts };
        if farewell != Farewell::default() {
            // Without a rendezvous the group has failed.
            let _ = place.mail(self.rank, &farewell.encode());
        }
    }

    /// For a peer that has left, and whose letters are read: whether anything may be lost if its connections end now. That is
    ///
    /// - what is on its way while a receive is posted that nothing will fill: that receive fails with the connection, and some plugins then
    ///   fail earlier ones, too. What has no receive for now stays in the plugin, and is no reason,
    /// - what a connection brings that is not accepted yet,
    /// - what the peer has received while the send has not completed here: the send would fail.
    pub(in super::super) fn needs_connections(&self) -> bool {
        let Farewell { slots, long, parts, .. } = self.farewell;
        let comes = |way: Way| !self.silent[way.index()];
        let is_accepted = |way: Way| {
            let has_all = match way {
                Way::Part(route) => self.has_all_parts(route),
                Way::Small | Way::Long(_) => false,
            };
            self.is_open(way).1 || self.is_in_vain(way) || has_all
        };
        let may_lose = |route: Route| {
            comes(Way::Long(route)) && self.long[route as usize].may_lose()
                || comes(Way::Part(route)) && self.part_receivers[route as usize].may_lose()
        };
        let is_sending = |route: Route| {
            let route = route as usize;
            self.long[route].done().0 < long[route]
                || self.part_senders[route].done() < parts[route]
        };
        Way::ALL.into_iter().any(|way| comes(way) && !is_accepted(way))
            || comes(Way::Small) && self.receiver.may_lose(slots)
            || Route::ALL.into_iter().any(may_lose)
            || self.pairs.iter().any(Pair::may_lose)
            || Route::ALL.into_iter().any(is_sending) && !self.is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_farewell_is_read_as_it_was_written_and_other_bytes_are_none() {
        let farewell = Farewell { slots: 1, staged: 6, long: [u64::MAX, 3 << 40], parts: [4, 5] };
        let letter = farewell.encode();
        assert_eq!(Farewell::read(&letter), Some(farewell));
        for len in 0..letter.len() {
            assert_eq!(Farewell::read(&letter[..len]), None, "{len} bytes");
        }
        assert_eq!(Farewell::read(&[&letter[..], &[0]].concat()), None);
        assert_eq!(Farewell::read(&[&[FAREWELL + 1], &letter[1..]].concat()), None);
    }
}
