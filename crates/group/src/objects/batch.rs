//! Sends and receives of objects that run together.

use std::fmt;

use postcard_schema::Schema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::collective::{Sends, count, ended};
use super::receiving::{Inbound, Origin};
use super::sending::{Outbound, Route};
use crate::error::GroupError;
use crate::group::{Group, State};
use crate::mesh::Space;
use crate::messages::{From, Tag};

/// A queue of sends and receives of any types, executed together: no order of them can deadlock, and a rank may send to itself.
#[derive(Default)]
pub struct ObjectBatch<'env> {
    sends: Vec<Begin<'env>>,
    receives: Vec<Make<'env>>,
}

type Begin<'env> = Box<dyn FnOnce(&Group) -> Result<Outbound, GroupError> + 'env>;
type Make<'env> = Box<dyn FnOnce(&Group) -> Result<Box<dyn Coming + 'env>, GroupError> + 'env>;

/// A receive of some type.
trait Coming {
    fn advance(&mut self, state: &mut State) -> Result<bool, GroupError>;

    fn moves(&self, state: &mut State) -> u64;

    /// Stores the object in the caller's place, if it was received. Called without the lock: the object is decoded, and an older one
    /// dropped.
    fn store(&mut self) -> Result<(), GroupError>;
}

struct Slot<'env, O> {
    inbound: Inbound<O>,
    into: &'env mut Option<(O, Origin)>,
}

impl<O: DeserializeOwned + Schema> Coming for Slot<'_, O> {
    fn advance(&mut self, state: &mut State) -> Result<bool, GroupError> {
        self.inbound.advance(state)
    }

    fn moves(&self, state: &mut State) -> u64 {
        self.inbound.moves(state)
    }

    fn store(&mut self) -> Result<(), GroupError> {
        if let Some(came) = self.inbound.take()? {
            *self.into = Some(came);
        }
        Ok(())
    }
}

impl fmt::Debug for ObjectBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sends, receives) = (self.sends.len(), self.receives.len());
        f.debug_struct("ObjectBatch").field("sends", &sends).field("receives", &receives).finish()
    }
}

impl<'env> ObjectBatch<'env> {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a send.
    pub fn send<O: Serialize + Schema>(&mut self, object: &'env O, to: usize, tag: u32) {
        let route = Route { space: Space::OBJECTS, tag };
        self.sends.push(Box::new(move |group| {
            let begun = Outbound::begin(group, object, to, route);
            // The receiver waits for the object, in a batch of its own.
            begun.inspect_err(|_| Outbound::without(group, to, route))
        }));
    }

    /// Adds a receive into `object`.
    pub fn recv<O: DeserializeOwned + Schema>(
        &mut self,
        into: &'env mut Option<(O, Origin)>,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) {
        let (source, tag) = (from.into().rank(), tag.into().number());
        self.receives.push(Box::new(move |group| {
            let inbound = Inbound::new(group, Space::OBJECTS, source, tag)?;
            Ok(Box::new(Slot { inbound, into }) as Box<dyn Coming + 'env>)
        }));
    }

    /// Runs all sends and receives. Of receives that match the same message, the one queued first takes it.
    ///
    /// # Errors
    ///
    /// The first error of an operation, after all have ended. An object that cannot be encoded is [`GroupError::InvalidArgument`], and
    /// [`GroupError::Mismatch`] for its receiver. A receive from a rank that does not exist is an error before any operation begins.
    pub fn execute(self, group: &Group) -> Result<(), GroupError> {
        let receives: Result<Vec<_>, _> =
            self.receives.into_iter().map(|make| make(group)).collect();
        let mut receives = receives?;
        let (mut sends, mut failed) = (Sends::default(), None);
        for begin in self.sends {
            sends.add(begin(group), &mut failed);
        }
        let mut received = vec![false; receives.len()];
        let waited = group.until_over(|state| {
            // The receives are borrowed: the drop of an unfinished one takes the lock, which is held here.
            let mut moves = None;
            for (receive, over) in receives.iter_mut().zip(&mut received) {
                *over = *over || ended(receive.advance(state), &mut failed);
                count(&mut moves, *over, || receive.moves(state));
            }
            Ok(sends.advance(state, &mut failed, moves))
        });
        for receive in &mut receives {
            if let Err(error) = receive.store() {
                failed.get_or_insert(error);
            }
        }
        waited?;
        failed.map_or(Ok(()), Err)
    }
}
