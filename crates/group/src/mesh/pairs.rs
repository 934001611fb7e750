//! Pairs of lanes with one user each: messages in order, of lengths that both ends know.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pair::{Counts, Pair, PairName, Reached};
use super::peer::Peer;
use super::{Mesh, Shared, Wait, lost};
use crate::error::GroupError;
use crate::loader::{Buffer, Place};

impl Mesh {
    /// Opens this rank's end of a pair with a peer. The messages are parts of the buffer, which must live until it is passed to
    /// [`Mesh::close_pair`].
    pub(crate) fn open_pair(
        &mut self,
        to: usize,
        name: PairName,
        buffer: &Buffer,
    ) -> Result<(), GroupError> {
        self.reach_pairs(to)?;
        self.with(to, |peer, shared| peer.open_pair(name, buffer, shared))
    }

    /// Closes a pair as soon as the peer does. Messages that were sent still arrive.
    pub(crate) fn close_pair(&mut self, to: usize, name: PairName, buffer: Arc<Buffer>) {
        let close = |peer: &mut Peer, shared: &mut Shared<'_>| {
            peer.close_pair(name, buffer, shared);
            Ok(())
        };
        // The comms of a peer that is gone are closed already.
        let _ = self.with(to, close);
    }

    /// Sends a message by a pair, and posts the receive of the next one. An empty place stands for none.
    pub(crate) fn push_pair(
        &mut self,
        to: usize,
        name: PairName,
        sent: Place,
        expected: Place,
    ) -> Result<(), GroupError> {
        self.reach_pairs(to)?;
        self.with(to, |peer, _| {
            if let Some(pair) = peer.pair(name) {
                pair.push(sent, expected);
                pair.progress();
            }
            Ok(())
        })
    }

    /// The progress of a pair: whether so many messages were sent and received.
    pub(crate) fn reached(
        &mut self,
        to: usize,
        name: PairName,
        due: Counts,
    ) -> Result<Reached, GroupError> {
        match self.pair_reached(to, name, due)? {
            Reached::Broken => self.pair_broke(to, name, due),
            reached => Ok(reached),
        }
    }

    /// As [`Mesh::reached`], without the cause of a connection that has ended.
    fn pair_reached(
        &mut self,
        to: usize,
        name: PairName,
        due: Counts,
    ) -> Result<Reached, GroupError> {
        self.reach_pairs(to)?;
        Ok(self.pair(to, name).map_or(Reached::Closed, |pair| pair.reached(due)))
    }

    fn pair(&mut self, to: usize, name: PairName) -> Option<&mut Pair> {
        self.peer(to)?.pair(name)
    }

    /// A pair's connection has ended. Usually the peer has closed the pair, and a letter will report it; otherwise the
    /// peer is lost.
    fn pair_broke(
        &mut self,
        to: usize,
        name: PairName,
        due: Counts,
    ) -> Result<Reached, GroupError> {
        let deadline = self.settled();
        loop {
            self.read_mail()?;
            let reached = self.pair_reached(to, name, due)?;
            if reached != Reached::Broken {
                return Ok(reached);
            }
            if self.left[to] {
                return Ok(Reached::Closed);
            }
            if Instant::now() >= deadline {
                if let Some(why) = self.pair(to, name).and_then(|pair| pair.why()) {
                    self.link_failed(to, &why)?;
                }
                return Ok(Reached::Closed);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Polls these peers' pair, and without progress another peer every few times. Returns whether the pair moved.
    pub(crate) fn poll_pairs(
        &mut self,
        name: PairName,
        peers: impl Iterator<Item = usize>,
    ) -> Result<bool, GroupError> {
        self.hear()?;
        let mut moved = false;
        for peer in peers {
            self.reach_pairs(peer)?;
            self.focus = Some(peer);
            let progress = |peer: &mut Peer| peer.pair(name).is_some_and(Pair::progress);
            moved |= self.with(peer, |peer, _| Ok(progress(peer)))?;
        }
        if !moved {
            self.poll_another()?;
        }
        Ok(moved)
    }

    /// As [`Mesh::poll_pairs`], for a caller that waits, as [`Mesh::step`].
    pub(crate) fn step_pairs(
        &mut self,
        name: PairName,
        peers: impl Iterator<Item = usize>,
        wait: &mut Wait,
    ) -> Result<Option<Duration>, GroupError> {
        if self.poll_pairs(name, peers)? {
            wait.moved();
            return Ok(None);
        }
        self.idle(wait, self.focus)
    }

    /// A count that changes whenever anything of this peer's pair moves.
    pub(crate) fn pair_progress(&mut self, to: usize, name: PairName) -> u64 {
        self.pair(to, name).map_or(0, |pair| pair.moves())
    }

    /// Checks that a rank can still be reached by pairs.
    pub(crate) fn reach_pairs(&mut self, rank: usize) -> Result<(), GroupError> {
        self.check()?;
        if self.peer(rank).is_none_or(|peer| peer.is_gone()) { Err(lost(rank)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::halo::FixedHalo1d;
    use crate::support::{library, ranks};

    #[test]
    fn a_round_that_cannot_begin_for_a_lost_neighbour_sends_nothing_to_the_other_one() {
        ranks(&library(), 3, |group| {
            let mut halo = FixedHalo1d::<u64>::new(&group, 8, 8).unwrap();
            halo.round(|_, _| {}).map(drop).unwrap();
            match group.rank() {
                2 => {}
                1 => {
                    let left = group.recv(&mut [0_u8], 2, 1);
                    assert!(matches!(left, Err(GroupError::PeerLost { rank: 2, .. })), "{left:?}");
                    group.shared.lock().mesh.forget(2);
                    for _ in 0..2 {
                        let begun = halo.begin(|left, _| left.fill(7)).map(drop);
                        let is_lost = matches!(begun, Err(GroupError::PeerLost { rank: 2, .. }));
                        assert!(is_lost, "{begun:?}");
                    }
                }
                _ => {
                    let ended = halo.round(|_, _| {}).map(drop);
                    assert!(matches!(ended, Err(GroupError::Cancelled { rank: 1 })), "{ended:?}");
                }
            }
        });
    }
}
