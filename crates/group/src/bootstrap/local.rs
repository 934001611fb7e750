//! The rendezvous of ranks that are threads of one process.

use std::sync::Arc;
use std::time::Duration;

use super::frame::decode_parts;
use super::rounds::Rounds;
use super::{Bootstrap, random};
use crate::error::GroupError;

/// One thread's membership in a group.
#[derive(Debug)]
pub struct Local {
    rank: usize,
    size: usize,
    identity: u64,
    left_well: bool,
    gave_up: bool,
    rounds: Arc<Rounds>,
}

impl Local {
    /// The members of a new group, by rank.
    pub fn group(size: usize) -> Vec<Self> {
        let (rounds, identity) = (Arc::new(Rounds::new(size)), random());
        let place = |rank| Self {
            rank,
            size,
            identity,
            left_well: false,
            gave_up: false,
            rounds: Arc::clone(&rounds),
        };
        (0..size).map(place).collect()
    }

    /// Reports that this rank has finished, so that its leaving fails no other rank.
    pub fn leave(&mut self) {
        self.left_well = true;
    }

    /// The reasons of ranks that gave up, the first cause first.
    pub fn causes(&self) -> Vec<String> {
        self.rounds.causes()
    }
}

impl Bootstrap for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn identity(&self) -> u64 {
        self.identity
    }

    fn all_gather(&mut self, part: &[u8], wait: Duration) -> Result<Vec<Vec<u8>>, GroupError> {
        let all = self.rounds.give(self.rank, part.to_vec(), wait)?;
        Ok(decode_parts(&mut &*all).expect("encoded here"))
    }

    fn give_up(&mut self, why: &GroupError) -> bool {
        if !self.gave_up {
            self.gave_up = true;
            self.rounds.give_up(format!("rank {}: {why}", self.rank));
        }
        true
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.left_well {
            self.rounds.ends(self.rank);
        } else {
            self.rounds.fail(format!("rank {} left", self.rank));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    #[test]
    fn every_rank_gets_every_part_round_after_round() {
        let threads: Vec<_> = Local::group(5)
            .into_iter()
            .map(|mut place| {
                thread::spawn(move || {
                    for round in 0..200_u8 {
                        let mine = [u8::try_from(place.rank()).unwrap(), round];
                        let all = place.all_gather(&mine, WAIT).unwrap();
                        let expected: Vec<_> = (0..5).map(|rank| vec![rank, round]).collect();
                        assert_eq!(all, expected);
                    }
                    place.leave();
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn a_rank_that_leaves_fails_the_others_at_once() {
        let mut places = Local::group(3);
        drop(places.pop());
        let why = places[0].barrier(WAIT).unwrap_err().to_string();
        assert_eq!(why, "rank 2 left");
    }

    #[test]
    fn causes_stand_in_their_order_and_what_repeats_one_is_left_out() {
        let mut places = Local::group(3);
        let usage = |why: &str| GroupError::Usage(why.to_owned());
        assert!(places[2].give_up(&usage("the cause")));
        assert!(places[2].give_up(&usage("the same cause, passed on")));
        let ended = places[1].barrier(WAIT).unwrap_err();
        assert_eq!(ended.to_string(), "rank 2: the cause");
        places[1].give_up(&ended);
        places[0].give_up(&usage("the peer is gone"));
        assert_eq!(places[0].causes(), ["rank 2: the cause", "rank 0: the peer is gone"]);
    }

    #[test]
    fn no_round_completes_after_a_failure() {
        let mut places = Local::group(2);
        places[0].give_up(&GroupError::Usage("the cause".to_owned()));
        for rank in [1, 0] {
            assert_eq!(places[rank].barrier(WAIT).unwrap_err().to_string(), "rank 0: the cause");
        }
    }

    #[test]
    fn the_part_of_a_rank_that_waits_no_more_is_in_no_round() {
        let mut places = Local::group(2);
        let (early, short) = (b"early".as_slice(), Duration::from_millis(30));
        assert!(places[0].all_gather(early, short).is_err());
        let ended = places[1].all_gather(b"other", short);
        assert!(
            matches!(&ended, Err(GroupError::Timeout { peers, .. }) if *peers == [0]),
            "{ended:?}"
        );
    }

    #[test]
    fn a_missing_rank_is_named() {
        let mut places = Local::group(3);
        let why = places[1].barrier(Duration::from_millis(30)).unwrap_err().to_string();
        assert!(why.contains("ranks [0, 2]"), "{why}");
    }
}
