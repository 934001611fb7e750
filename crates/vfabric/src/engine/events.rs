//! Event queues, and errors of endpoints that are no operation's.

use libfabric_sys as sys;

use super::{Endpoint, Engine, Errno, Fabric, Id, Outcome, Queue};
use crate::faults::Fault;
use crate::ledger::Rule;

/// An event queue, which holds nothing but errors of endpoints, all alike.
#[derive(Debug)]
pub(crate) struct EventQueue {
    fabric: Id<Fabric>,
    errors: usize,
}

impl Engine {
    pub(crate) fn open_event_queue(&mut self, fabric: Id<Fabric>) -> Outcome<Id<EventQueue>> {
        if !self.settings.profile.has_events {
            return Err(Errno(sys::FI_ENOSYS));
        }
        Ok(self.event_queues.insert(EventQueue { fabric, errors: 0 }))
    }

    pub(crate) fn close_event_queue(&mut self, id: Id<EventQueue>) -> Outcome {
        let bound = |(_, endpoint): &(_, &Endpoint)| endpoint.event_queue == Some(id);
        let users = self.endpoints.iter().filter(bound).count();
        if users > 0 {
            return self.refuse(Rule::CloseOrder, sys::FI_EBUSY, || {
                format!("event queue {id} is closed before its {users} endpoints")
            });
        }
        self.event_queues.remove(id);
        Ok(())
    }

    /// How many event queues of a fabric are open.
    pub(super) fn event_queues_of(&self, fabric: Id<Fabric>) -> usize {
        self.event_queues.iter().filter(|(_, queue)| queue.fabric == fabric).count()
    }

    /// How many errors no user has read.
    pub(crate) fn event_errors(&self) -> usize {
        self.event_queues.iter().map(|(_, queue)| queue.errors).sum()
    }

    pub(crate) fn bind_events(&mut self, id: Id<Endpoint>, queue: Id<EventQueue>) -> Outcome {
        let endpoint = self.endpoint_mut(id)?;
        if endpoint.enabled || endpoint.event_queue.is_some() {
            return self.refuse(Rule::Arguments, sys::FI_EINVAL, || {
                format!("endpoint {id} cannot be bound to event queue {queue}")
            });
        }
        endpoint.event_queue = Some(queue);
        Ok(())
    }

    /// Whether an event queue has an error.
    pub(crate) fn has_event_error(&self, id: Id<EventQueue>) -> bool {
        self.event_queues.get(id).is_some_and(|queue| queue.errors > 0)
    }

    /// Takes the next error of an event queue, if it has one.
    pub(crate) fn take_event_error(&mut self, id: Id<EventQueue>) -> Option<Errno> {
        let queue = self.event_queues.get_mut(id)?;
        queue.errors = queue.errors.checked_sub(1)?;
        Some(Errno(sys::FI_EHOSTUNREACH))
    }

    /// Writes the errors that endpoints of a completion queue have by the script.
    pub(super) fn fail_endpoints_of(&mut self, id: Id<Queue>) {
        if !self.settings.profile.has_events {
            return;
        }
        let posts = self.posts;
        let endpoints =
            self.queues.get(id).map(|queue| queue.endpoints.clone()).unwrap_or_default();
        let is_due = |fault: &mut Fault| matches!(fault, Fault::Unwell(endpoint, at) if endpoints.contains(&Id::of(*endpoint)) && *at <= posts);
        let due: Vec<_> = self.faults.extract_if(.., is_due).collect();
        for fault in due {
            let Fault::Unwell(endpoint, _) = fault else { continue };
            self.counters.count("faults.unwell");
            let endpoint = Id::of(endpoint);
            let queue = self.endpoints.get(endpoint).and_then(|endpoint| endpoint.event_queue);
            match queue.and_then(|queue| self.event_queues.get_mut(queue)) {
                Some(queue) => queue.errors += 1,
                None => self.broken(Rule::NoEventQueue, || {
                    format!("endpoint {endpoint} has an error, and no event queue for it")
                }),
            }
        }
    }
}
