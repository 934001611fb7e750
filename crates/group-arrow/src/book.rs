//! Schemas: those sent to peers, and those received from them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

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
    coming: HashMap<usize, ReceivingObject<Described>>,
}

/// The most schemas of this rank whose encoding is kept.
const OWN_MAX: usize = 64;

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

    /// A peer's schema, once it has arrived.
    pub(crate) fn find(
        &self,
        peer: usize,
        fingerprint: u64,
    ) -> Result<Option<Arc<Described>>, GroupError> {
        let mut pages = self.pages();
        loop {
            if let Some(described) = pages.known.get(&(peer, fingerprint)) {
                return Ok(Some(Arc::clone(described)));
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
                let why = format!("rank {peer} sent a schema that is not the one it says");
                return Err(GroupError::Mismatch { rank: peer, why });
            }
            pages.known.insert((peer, described.fingerprint), Arc::new(described));
        }
    }

    /// The same, waiting for it as long as for anything of the group.
    pub(crate) fn wait(&self, peer: usize, fingerprint: u64) -> Result<Arc<Described>, GroupError> {
        let limit = self.group.timeout();
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
    use std::time::Duration;

    use super::*;
    use crate::support::{library, ranks_within};

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
