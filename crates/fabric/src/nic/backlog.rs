//! Posts that libfabric refused with EAGAIN, in the order they were made to each peer.
//!
//! While anything to a peer waits here, later posts to it queue behind, so that no part overtakes another for ever and a
//! refused post is neither lost nor repeated. Posts to other peers pass: a peer that is gone refuses for ever, and may
//! hold up nobody else.

use std::collections::VecDeque;
use std::time::Duration;

use super::post::Post;
use crate::error::FabricError;

/// A bounded first-in-first-out of refused posts for each peer.
#[derive(Debug)]
pub struct Backlog<P, T> {
    waiting: VecDeque<Entry<P, T>>,
    /// Posts that ever waited: what tells one from another.
    serial: u64,
    /// Peers that refused in this turn.
    refused: Vec<P>,
    /// Peers that refused all there was since the last tick.
    stalls: Vec<Stall<P>>,
}

#[derive(Debug)]
struct Entry<P, T> {
    peer: P,
    serial: u64,
    item: T,
}

#[derive(Debug)]
struct Stall<P> {
    peer: P,
    /// The oldest post to the peer: while it stays, nothing to the peer was accepted.
    oldest: u64,
    waited: Duration,
}

impl<P: Copy + PartialEq, T> Backlog<P, T> {
    /// Room for `count` posts is made now, so that the hot path does not allocate.
    pub fn new(count: usize) -> Self {
        let refused = Vec::with_capacity(PEERS_USUAL);
        Self { waiting: VecDeque::with_capacity(count), serial: 0, refused, stalls: Vec::new() }
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many posts wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a post to `peer` waits.
    #[cold]
    #[inline(never)]
    pub fn holds(&self, peer: P) -> bool {
        self.waiting.iter().any(|entry| entry.peer == peer)
    }

    /// Queues a post.
    pub fn push(&mut self, peer: P, item: T) {
        self.serial += 1;
        self.waiting.push_back(Entry { peer, serial: self.serial, item });
    }

    /// Posts to each peer until one is refused again. An item whose post failed is handed to `failed`, and the rest go
    /// on.
    pub fn flush(
        &mut self,
        mut post: impl FnMut(&T) -> Result<Post, FabricError>,
        mut failed: impl FnMut(T, FabricError),
    ) {
        self.refused.clear();
        let mut at = 0;
        while let Some(Entry { peer, item, .. }) = self.waiting.get(at) {
            if self.refused.contains(peer) {
                at += 1;
                continue;
            }
            match post(item) {
                Ok(Post::Again | Post::Full) => {
                    self.refused.push(*peer);
                    at += 1;
                }
                Ok(Post::Accepted) => drop(self.waiting.remove(at)),
                Err(error) => {
                    let entry = self.waiting.remove(at).expect("it was just looked at");
                    failed(entry.item, error);
                }
            }
        }
    }

    /// Takes out what `gone` says.
    pub fn give_up(&mut self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        if self.is_empty() {
            return Vec::new();
        }
        let (taken, kept) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<_>, _>(|entry| gone(&entry.item));
        self.waiting.extend(kept);
        taken.into_iter().map(|entry| entry.item).collect()
    }

    /// `elapsed` has passed since the last tick. Takes out what waits for peers that accepted nothing for more than
    /// `bound`.
    pub fn tick(&mut self, elapsed: Duration, bound: Duration) -> Vec<T> {
        let mut stalls: Vec<Stall<P>> = Vec::new();
        for entry in &self.waiting {
            if stalls.iter().any(|stall| stall.peer == entry.peer) {
                continue;
            }
            let mut known = self.stalls.iter();
            let known =
                known.find(|stall| stall.peer == entry.peer && stall.oldest == entry.serial);
            let waited = known.map_or(Duration::ZERO, |stall| stall.waited + elapsed);
            stalls.push(Stall { peer: entry.peer, oldest: entry.serial, waited });
        }
        self.stalls = stalls;
        let mut given_up = Vec::new();
        for stall in self.stalls.iter().filter(|stall| stall.waited > bound) {
            while let Some(at) = self.waiting.iter().position(|entry| entry.peer == stall.peer) {
                given_up.extend(self.waiting.remove(at).map(|entry| entry.item));
            }
        }
        given_up
    }
}

/// Peers that are likely to refuse in one turn.
const PEERS_USUAL: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Call;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn refused_posts_keep_their_order_and_are_neither_lost_nor_repeated() {
        for refusals in 0..64_u32 {
            let mut backlog = Backlog::new(8);
            (0..4).for_each(|item| backlog.push(0, item));
            let (mut posted, mut turn) = (Vec::new(), 0);
            while !backlog.is_empty() {
                backlog.flush(
                    |item| {
                        turn += 1;
                        if turn <= 6 && refusals >> (turn - 1) & 1 == 1 {
                            return Ok(Post::Again);
                        }
                        posted.push(*item);
                        Ok(Post::Accepted)
                    },
                    |_, _| panic!("nothing failed"),
                );
            }
            assert_eq!(posted, [0, 1, 2, 3], "refusals {refusals:06b}");
        }
    }

    #[test]
    fn a_post_that_fails_is_handed_back_and_the_rest_go_on() {
        let mut backlog = Backlog::new(4);
        (0..3).for_each(|item| backlog.push(0, item));
        let (mut posted, mut failed) = (Vec::new(), Vec::new());
        backlog.flush(
            |item| {
                if *item == 1 {
                    return Err(FabricError::new(Call::fi_write, 5));
                }
                posted.push(*item);
                Ok(Post::Accepted)
            },
            |item, _| failed.push(item),
        );
        assert_eq!((posted, failed), (vec![0, 2], vec![1]));
    }

    /// Posts of peer 7 are refused, all others accepted.
    fn seven_is_gone(backlog: &mut Backlog<u8, (u8, u8)>) -> Vec<(u8, u8)> {
        let mut posted = Vec::new();
        backlog.flush(
            |item| match item {
                (7, _) => Ok(Post::Again),
                item => {
                    posted.push(*item);
                    Ok(Post::Accepted)
                }
            },
            |_, _| panic!("nothing failed"),
        );
        posted
    }

    #[test]
    fn a_peer_that_refuses_holds_up_nobody_else() {
        let mut backlog = Backlog::new(8);
        for item in [(7, 0), (1, 0), (7, 1), (2, 0), (1, 1)] {
            backlog.push(item.0, item);
        }
        assert_eq!(seven_is_gone(&mut backlog), [(1, 0), (2, 0), (1, 1)]);
        assert!(backlog.holds(7) && !backlog.holds(1));
    }

    #[test]
    fn a_peer_that_accepts_nothing_for_longer_than_the_bound_is_given_up_alone() {
        let mut backlog = Backlog::new(8);
        (0..3).for_each(|item| backlog.push(7, (7, item)));
        for second in 0..=3 {
            backlog.push(1, (1, second));
            assert_eq!(backlog.tick(SECOND, 3 * SECOND), [], "second {second}");
            seven_is_gone(&mut backlog);
        }
        backlog.push(1, (1, 9));
        assert_eq!(backlog.tick(SECOND, 3 * SECOND), [(7, 0), (7, 1), (7, 2)]);
        assert_eq!(seven_is_gone(&mut backlog), [(1, 9)]);
        assert!(backlog.is_empty());
    }

    #[test]
    fn a_peer_that_accepts_one_post_has_its_time_again() {
        let mut backlog = Backlog::new(8);
        (0..9).for_each(|item| backlog.push(7, item));
        for _ in 0..4 {
            for _ in 0..3 {
                assert_eq!(backlog.tick(SECOND, 3 * SECOND), []);
            }
            let mut one = Some(Post::Accepted);
            backlog.flush(|_| Ok(one.take().unwrap_or(Post::Again)), |_, _| panic!("none failed"));
        }
        assert_eq!(backlog.waiting.len(), 5);
    }
}
