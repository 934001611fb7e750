//! Which communicator owns which object. Communicators share an endpoint where a NIC has no resources for another one.
//!
//! Finalizing a communicator closes the objects that it left open, and none of the others'.

use std::collections::HashMap;

use super::Endpoint;
use crate::error::Result;
use crate::object_id::{ObjectId, ObjectKind};

/// A communicator's number. It is never reused in a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Communicator(pub(crate) u32);

/// The communicators of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// The communicator that makes the current call.
    calling: Communicator,
    /// The communicator that the endpoint was opened for. It owns all objects that `of_others` does not list.
    first: Communicator,
    of_others: HashMap<ObjectId, Communicator>,
}

impl Ownership {
    /// The communicator that makes the current call.
    pub(super) fn calling(&self) -> Communicator {
        self.calling
    }

    /// The calling communicator owns this object.
    pub(super) fn add(&mut self, id: ObjectId) {
        if self.calling != self.first {
            self.of_others.insert(id, self.calling);
        }
    }

    /// The object is closed.
    pub(super) fn remove(&mut self, id: ObjectId) {
        self.of_others.remove(&id);
    }

    fn of(&self, id: ObjectId) -> Communicator {
        self.of_others.get(&id).copied().unwrap_or(self.first)
    }
}

impl Endpoint {
    /// The endpoint was opened for this communicator.
    pub(crate) fn set_first_communicator(&mut self, communicator: Communicator) {
        self.ownership.first = communicator;
    }

    /// This communicator makes the current call.
    pub(crate) fn set_calling_communicator(&mut self, communicator: Communicator) {
        self.ownership.calling = communicator;
    }

    /// `child` belongs to the communicator that owns `parent`.
    pub(crate) fn inherit_owner(&mut self, parent: ObjectId, child: ObjectId) {
        self.ownership.calling = self.ownership.of(parent);
        self.ownership.add(child);
    }

    /// Closes what a communicator left open, while others keep using the endpoint. Returns the ids of its registrations, which the caller
    /// deregisters.
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
            // An object that is closed already, and draining, returns an error.
            if let Err(error) = self.close_object(id) {
                log::debug!("device {}: at the end of a communicator: {error}", self.label());
            }
        }
        regions
    }

    fn close_object(&mut self, id: ObjectId) -> Result<()> {
        if id.is(ObjectKind::Listener) {
            return self.close_listen(id);
        }
        if id.is(ObjectKind::Receiver) {
            return self.close_receive(id);
        }
        if id.is(ObjectKind::Connect) {
            self.check_intact()?;
            self.abandon_connect((id.slot(), id.generation()));
            self.ownership.remove(id);
            return Ok(());
        }
        self.close_send(id)
    }
}
