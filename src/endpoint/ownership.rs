//! Which communicator owns which object, on an endpoint that several share because a NIC has no more endpoints.
//!
//! A communicator that is finalized closes what it has left open, and nothing of the others.

use std::collections::HashMap;

use super::Endpoint;
use crate::error::Result;
use crate::object_id::{ObjectId, ObjectKind};

/// A communicator, by a number that no other of the process has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Communicator(pub(crate) u32);

/// The communicators of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// The one whose call this is.
    calling: Communicator,
    /// The one that it was opened for: what is not listed is this one's, so an endpoint that is not shared lists nothing.
    first: Communicator,
    of_others: HashMap<ObjectId, Communicator>,
}

impl Ownership {
    /// The caller has made this.
    pub(super) fn add(&mut self, id: ObjectId) {
        if self.calling != self.first {
            self.of_others.insert(id, self.calling);
        }
    }

    /// It is closed.
    pub(super) fn remove(&mut self, id: ObjectId) {
        self.of_others.remove(&id);
    }

    fn of(&self, id: ObjectId) -> Communicator {
        self.of_others.get(&id).copied().unwrap_or(self.first)
    }
}

impl Endpoint {
    /// It was opened for this communicator.
    pub(crate) fn set_first_communicator(&mut self, communicator: Communicator) {
        self.ownership.first = communicator;
    }

    /// This communicator calls.
    pub(crate) fn set_calling_communicator(&mut self, communicator: Communicator) {
        self.ownership.calling = communicator;
    }

    /// What came of `parent` is of the same communicator.
    pub(crate) fn inherit_owner(&mut self, parent: ObjectId, child: ObjectId) {
        self.ownership.calling = self.ownership.of(parent);
        self.ownership.add(child);
    }

    /// A communicator leaves, while others stay: what it has left open is closed. The answer names its registrations, which are to be
    /// given back like any.
    pub(crate) fn close_communicator(&mut self, communicator: Communicator) -> Vec<ObjectId> {
        let named =
            |kind, (slot, generation)| ObjectId::new(kind, self.number, generation, slot, 0);
        let listeners =
            self.listeners.keys().into_iter().map(|key| named(ObjectKind::Listener, key));
        let connects = self.connects.keys().into_iter().map(|key| named(ObjectKind::Connect, key));
        let regions = self.executor.regions.keys();
        let regions = regions.into_iter().map(|key| named(ObjectKind::Region, key));
        let all = listeners.chain(connects).chain(self.open_comms()).chain(regions);
        let its: Vec<_> = all.filter(|id| self.ownership.of(*id) == communicator).collect();
        let (regions, others): (Vec<_>, Vec<_>) =
            its.into_iter().partition(|id| id.is(ObjectKind::Region));
        for id in others {
            // What is closed already, and drains, says so.
            if let Err(error) = self.close_left(id) {
                log::debug!("device {}: at the end of a communicator: {error}", self.label());
            }
        }
        regions
    }

    fn close_left(&mut self, id: ObjectId) -> Result<()> {
        if id.is(ObjectKind::Listener) {
            return self.close_listen(id);
        }
        if id.is(ObjectKind::Receiver) {
            return self.close_receive(id);
        }
        if id.is(ObjectKind::Connect) {
            // What a panic has left is asked for nothing more.
            self.check_intact()?;
            self.abandon_connect((id.slot(), id.generation()));
            return Ok(());
        }
        self.close_send(id)
    }
}
