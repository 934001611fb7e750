//! How often a peer that refuses is tried again.
//!
//! A peer whose endpoint is closed refuses each post, and each is a connection that some providers try to make anew. So who has
//! refused many in a row is tried in fewer and fewer turns. It is turns that count and not time: they come when NCCL calls,
//! and who calls often is not to spend it on the dead.

use fabric::{FabricError, Post};

/// Refusals in a row after which a peer has a rest: more than one takes that is only busy, or being connected.
const FREE: u32 = 64;
/// The longest rest, in turns.
const LONGEST: u32 = 1024;

/// Peers that have refused.
#[derive(Debug)]
pub(super) struct Rests<P> {
    peers: Vec<Rest<P>>,
}

#[derive(Debug)]
struct Rest<P> {
    peer: P,
    /// In a row.
    refusals: u32,
    /// Turns until it is tried again.
    turns: u32,
}

impl<P> Default for Rests<P> {
    fn default() -> Self {
        Self { peers: Vec::new() }
    }
}

impl<P: PartialEq> Rests<P> {
    /// A turn in which something waits for `peer`: tries it, unless the peer rests. That is a refusal, too.
    pub(super) fn turn(
        &mut self,
        peer: P,
        post: impl FnOnce() -> Result<Post, FabricError>,
    ) -> Result<Post, FabricError> {
        let known = self.peers.iter().position(|rest| rest.peer == peer);
        if let Some(known) = known
            && self.peers[known].turns > 0
        {
            self.peers[known].turns -= 1;
            return Ok(Post::Again);
        }
        let posted = post();
        match (&posted, known) {
            (Ok(Post::Again), Some(known)) => self.peers[known].refused(),
            (Ok(Post::Again), None) => self.peers.push(Rest { peer, refusals: 1, turns: 0 }),
            // That says nothing of the peer.
            (Ok(Post::Full), _) => {}
            (_, Some(known)) => drop(self.peers.swap_remove(known)),
            (_, None) => {}
        }
        posted
    }

    /// Forgets the peers for which nothing waits any more.
    pub(super) fn retain(&mut self, waits_for: impl Fn(&P) -> bool) {
        self.peers.retain(|rest| waits_for(&rest.peer));
    }
}

impl<P> Rest<P> {
    fn refused(&mut self) {
        self.refusals = self.refusals.saturating_add(1);
        let beyond = self.refusals.saturating_sub(FREE);
        self.turns = (1 << beyond.min(LONGEST.ilog2() + 1)) >> 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: u8 = 7;
    const BUSY: u8 = 1;

    /// How often the peer is tried in so many turns. It answers the same each time.
    fn tries(rests: &mut Rests<u8>, peer: u8, turns: u32, answer: Post) -> u32 {
        let mut tries = 0;
        for _ in 0..turns {
            let posted = rests.turn(peer, || {
                tries += 1;
                Ok(answer)
            });
            assert!(posted.is_ok());
        }
        tries
    }

    #[test]
    fn a_peer_that_refuses_on_and_on_is_tried_in_fewer_and_fewer_turns() {
        let mut rests = Rests::default();
        for _ in 0..2 {
            assert_eq!(tries(&mut rests, GONE, FREE, Post::Again), FREE, "it has no rest yet");
            let tried = tries(&mut rests, GONE, 1000 * LONGEST, Post::Again);
            assert!((990..1020).contains(&tried), "{tried}");
            // It is there again. After that the next refusal is the first.
            let tried = tries(&mut rests, GONE, LONGEST + 1, Post::Accepted);
            assert!(tried > 0, "the longest rest is longer");
        }
    }

    #[test]
    fn a_peer_that_rests_keeps_nobody_else_from_being_tried() {
        let mut rests = Rests::default();
        tries(&mut rests, GONE, 100 * LONGEST, Post::Again);
        for refusals in 0..FREE {
            assert_eq!(tries(&mut rests, BUSY, refusals, Post::Again), refusals);
            assert_eq!(tries(&mut rests, BUSY, 1, Post::Accepted), 1);
        }
    }

    #[test]
    fn a_peer_for_which_nothing_waits_is_forgotten() {
        let mut rests = Rests::default();
        tries(&mut rests, GONE, 100 * LONGEST, Post::Again);
        rests.retain(|peer| *peer != GONE);
        assert_eq!(tries(&mut rests, GONE, 1, Post::Accepted), 1);
    }
}
