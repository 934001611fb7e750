//! Schemas: those sent to peers, and those received from them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use arrow_schema::{Field, Schema, SchemaRef};
use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::objects::ReceivingObject;
use ironrail_group::patience::deadline;

use crate::frame::Described;

/// The schemas that one rank knows. A schema is sent before the first batch of it, so the receiver need not ask for it.
#[derive(Debug)]
pub(crate) struct Book {
    /// For schemas only.
    group: Group,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    own: Vec<(SchemaRef, Arc<Described>)>,
    sent: HashSet<(usize, u64)>,
    known: HashMap<(usize, u64), Arc<Described>>,
    /// By peer, the schemas that have come before a batch of them.
    early: HashMap<usize, HashMap<u64, Arc<Described>>>,
    coming: HashMap<usize, ReceivingObject<Described>>,
}

/// The most schemas of this rank whose encoding is kept.
const OWN_MAX: usize = 64;
/// The most schemas of a peer that are kept before their batches. A peer sends each once, so none can be dropped.
const EARLY_MAX: usize = 4096;

impl Pages {
    fn known(&mut self, peer: usize, fingerprint: u64) -> Option<Arc<Described>> {
        if let Some(early) = self.early.get_mut(&peer).and_then(|early| early.remove(&fingerprint))
        {
            self.known.insert((peer, fingerprint), early);
        }
        self.known.get(&(peer, fingerprint)).cloned()
    }

    fn keep(&mut self, peer: usize, described: Described) -> Result<(), GroupError> {
        let early = self.early.entry(peer).or_default();
        if early.len() == EARLY_MAX {
            let why =
                format!("rank {peer} sent more than {EARLY_MAX} schemas before their batches");
            return Err(GroupError::Mismatch { rank: peer, why });
        }
        early.insert(described.fingerprint, Arc::new(described));
        Ok(())
    }
}

impl Book {
    pub(crate) fn new(group: Group) -> Self {
        Self { group, pages: Mutex::default() }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The encoding of one of this rank's schemas.
    pub(crate) fn describe(&self, schema: &SchemaRef) -> Result<Arc<Described>, GroupError> {
        let mut pages = self.pages();
        let same = |own: &Schema| {
            std::ptr::eq(own, schema.as_ref())
                || (own == schema.as_ref() && orders(own) == orders(schema))
        };
        if let Some((_, described)) = pages.own.iter().find(|(own, _)| same(own)) {
            return Ok(Arc::clone(described));
        }
        let described = Described::new(schema).map_err(|why| refused(&why))?;
        let described = Arc::new(described);
        if pages.own.len() == OWN_MAX {
            pages.own.remove(0);
        }
        pages.own.push((Arc::clone(schema), Arc::clone(&described)));
        Ok(described)
    }

    /// Sends a schema to a rank, the first time only.
    pub(crate) fn send(&self, described: &Arc<Described>, to: usize) -> Result<(), GroupError> {
        let mut pages = self.pages();
        let fingerprint = described.fingerprint;
        if to == self.group.rank() {
            pages.known.insert((to, fingerprint), Arc::clone(described));
        } else if to < self.group.size() && !pages.sent.contains(&(to, fingerprint)) {
            // It is still sent when the request is dropped.
            drop(self.group.isend_obj(described.as_ref(), to, 0)?);
            pages.sent.insert((to, fingerprint));
        }
        Ok(())
    }

    /// A peer's schema, once it has arrived. Receives one at most, so that a caller can look at its deadline.
    pub(crate) fn find(
        &self,
        peer: usize,
        fingerprint: u64,
    ) -> Result<Option<Arc<Described>>, GroupError> {
        let mut pages = self.pages();
        if let Some(described) = pages.known(peer, fingerprint) {
            return Ok(Some(described));
        }
        let mut coming = match pages.coming.remove(&peer) {
            Some(coming) => coming,
            None => self.group.irecv_obj::<Described>(peer, 0)?,
        };
        if !coming.test()? {
            pages.coming.insert(peer, coming);
            return Ok(None);
        }
        let (described, _) = coming.wait()?;
        if !described.is_whole() {
            let why = format!("rank {peer} sent a schema that does not match its fingerprint");
            return Err(GroupError::Mismatch { rank: peer, why });
        }
        pages.keep(peer, described)?;
        Ok(pages.known(peer, fingerprint))
    }

    /// The same, but waits for the schema as long as the group waits.
    pub(crate) fn wait(&self, peer: usize, fingerprint: u64) -> Result<Arc<Described>, GroupError> {
        self.wait_for(peer, fingerprint, self.group.timeout())
    }

    fn wait_for(
        &self,
        peer: usize,
        fingerprint: u64,
        limit: Duration,
    ) -> Result<Arc<Described>, GroupError> {
        let deadline = deadline(limit);
        loop {
            if let Some(described) = self.find(peer, fingerprint)? {
                return Ok(described);
            }
            if Instant::now() >= deadline {
                let awaited = format!("the schema of a batch from rank {peer}");
                return Err(GroupError::Timeout { peers: vec![peer], awaited, limit });
            }
            thread::yield_now();
        }
    }
}

/// Whether the values of each dictionary are ordered, which the encoding says and a comparison of schemas does not look at.
fn orders(schema: &Schema) -> Vec<Option<bool>> {
    schema.flattened_fields().into_iter().map(Field::dict_is_ordered).collect()
}

pub(crate) fn refused(why: &arrow_schema::ArrowError) -> GroupError {
    GroupError::InvalidArgument(format!("the record batch: {why}"))
}

#[cfg(test)]
mod tests {
    use arrow_schema::DataType;

    use super::*;
    use crate::support::{library, ranks, ranks_within};

    /// A schema of one column, whose name is this number.
    fn described(number: usize) -> Described {
        Described::new(&Schema::new(vec![Field::new(number.to_string(), DataType::Int8, true)]))
            .unwrap()
    }

    #[test]
    fn a_peer_that_sends_other_schemas_without_end_is_a_timeout() {
        ranks(&library(), 1, |group| {
            let wanted = described(2);
            for described in [&described(0), &described(1), &wanted] {
                drop(group.isend_obj(described, 0, 0).unwrap());
            }
            let book = Book::new(group);
            // At the deadline another one comes.
            let missed = book.wait_for(0, wanted.fingerprint, Duration::ZERO);
            assert!(matches!(missed, Err(GroupError::Timeout { .. })), "{missed:?}");
            let found = book.wait(0, wanted.fingerprint).unwrap();
            assert_eq!(found.fingerprint, wanted.fingerprint);
        });
    }

    #[test]
    fn a_peer_that_sends_schemas_and_no_batches_is_a_mismatch() {
        let mut pages = Pages::default();
        for number in 0..EARLY_MAX {
            pages.keep(1, described(number)).unwrap();
        }
        let why = pages.keep(1, described(EARLY_MAX)).unwrap_err().to_string();
        assert_eq!(why, "rank 1 sent more than 4096 schemas before their batches");
        assert!(pages.known(1, described(0).fingerprint).is_some(), "those are kept");
        pages.keep(1, described(EARLY_MAX)).unwrap();
    }

    #[test]
    fn a_schema_is_described_once_while_it_is_among_the_latest_64() {
        ranks(&library(), 1, |group| {
            // As many columns of the same kinds: only their names differ.
            let schema = |number: usize| {
                let field = Field::new(number.to_string(), DataType::Int8, true);
                Arc::new(Schema::new(vec![field]))
            };
            let book = Book::new(group);
            let first = book.describe(&schema(0)).unwrap();
            for number in 1..OWN_MAX {
                let next = book.describe(&schema(number)).unwrap();
                assert_ne!(next.fingerprint, first.fingerprint, "of column {number}");
            }
            assert!(Arc::ptr_eq(&book.describe(&schema(0)).unwrap(), &first));
            book.describe(&schema(OWN_MAX)).unwrap();
            assert_eq!(book.pages().own.len(), OWN_MAX);
            assert!(!Arc::ptr_eq(&book.describe(&schema(0)).unwrap(), &first));
        });
    }

    #[test]
    fn a_schema_is_sent_to_a_rank_once() {
        ranks(&library(), 2, |group| {
            let book = Book::new(group);
            let (group, described) = (&book.group, Arc::new(described(0)));
            if group.rank() == 0 {
                (0..3).for_each(|_| book.send(&described, 1).unwrap());
                group.send_obj(&7_u8, 1, 1).unwrap();
            } else {
                book.wait(0, described.fingerprint).unwrap();
                // What was sent before this has come.
                group.recv_obj::<u8>(0, 1).unwrap();
                assert!(!group.irecv_obj::<Described>(0, 0).unwrap().test().unwrap());
            }
            group.barrier().unwrap();
        });
    }

    #[test]
    fn a_schema_with_the_fingerprint_of_another_one_is_a_mismatch_and_not_kept() {
        ranks(&library(), 1, |group| {
            let (wanted, other) = (described(0), described(1));
            let wrong = Described { fingerprint: wanted.fingerprint, ..other };
            drop(group.isend_obj(&wrong, 0, 0).unwrap());
            drop(group.isend_obj(&wanted, 0, 0).unwrap());
            let book = Book::new(group);
            let refused = book.wait(0, wanted.fingerprint);
            assert!(matches!(refused, Err(GroupError::Mismatch { rank: 0, .. })), "{refused:?}");
            assert!(book.wait(0, wanted.fingerprint).unwrap().is_whole());
        });
    }

    #[test]
    fn a_schema_that_does_not_come_is_waited_for_as_long_as_the_group_waits() {
        let limit = Duration::from_millis(300);
        ranks_within(&library(), 1, limit, move |group| {
            let begun = Instant::now();
            let missed = Book::new(group).wait(0, 7);
            assert!(
                matches!(&missed, Err(GroupError::Timeout { peers, limit: waited, .. }) if *peers == [0] && *waited == limit),
                "{missed:?}"
            );
            assert!(begun.elapsed() >= limit);
        });
    }
}
