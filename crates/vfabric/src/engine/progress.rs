//! Polls: they drive the events, and bring completions to the user.

use std::ffi::c_int;

use libfabric_sys as sys;

use super::flight::Event;
use super::held::Held;
use super::{Endpoint, Engine, Errno, Id, Operation, Outcome, Queue, Region};
use crate::faults::Fault;

/// One entry of a completion queue.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) context: u64,
    pub(crate) flags: u64,
    pub(crate) len: u64,
    pub(crate) buffer: u64,
    pub(crate) immediate: u64,
    pub(crate) tag: u64,
    /// The error, and how many bytes were truncated.
    pub(crate) error: Option<(Errno, u64)>,
    /// The endpoint that it came from.
    pub(crate) source: Option<Id<Endpoint>>,
    pub(super) endpoint: Id<Endpoint>,
    /// The region that the user may deregister after reading this entry.
    pub(super) region: Option<Id<Region>>,
    /// The operation, if this entry reports it before its bytes have left.
    pub(super) operation: Option<Id<Operation>>,
    /// The held bytes that become visible when this entry is read.
    pub(super) held: Option<Id<Held>>,
}

impl Entry {
    pub(super) fn new(endpoint: Id<Endpoint>, context: u64, flags: u64) -> Self {
        Self {
            context,
            flags,
            len: 0,
            buffer: 0,
            immediate: 0,
            tag: 0,
            error: None,
            source: None,
            endpoint,
            region: None,
            operation: None,
            held: None,
        }
    }
}

/// What a poll returns.
#[derive(Debug)]
pub(crate) enum Taken {
    Nothing,
    /// The next entry is an error: fi_cq_readerr(3).
    Error,
    Entries(Vec<Entry>),
}

impl Engine {
    /// Makes progress, and takes up to `most` entries; stops at an error.
    pub(crate) fn poll(&mut self, queue: Id<Queue>, most: usize) -> Outcome<Taken> {
        self.counters.count("polls");
        self.progress(queue)?;
        self.fail_namelessly(queue);
        self.fail_endpoints_of(queue);
        let mut taken = Vec::new();
        while taken.len() < most {
            let entries = &mut self.queues.get_mut(queue).ok_or(Errno(sys::FI_EINVAL))?.entries;
            match entries.front() {
                Some(entry) if entry.error.is_none() => {}
                Some(_) if taken.is_empty() => return Ok(Taken::Error),
                _ => break,
            }
            if let Some(entry) = entries.pop_front() {
                self.was_read(&entry);
                taken.push(entry);
            }
        }
        Ok(if taken.is_empty() { Taken::Nothing } else { Taken::Entries(taken) })
    }

    /// Adds the errors that name no operation, as the script says (fi_cq(3): their context is null).
    fn fail_namelessly(&mut self, id: Id<Queue>) {
        let posts = self.posts;
        let is_due = |fault: &mut Fault| matches!(fault, Fault::Nameless(queue, at) if Id::of(*queue) == id && *at <= posts);
        let due = self.faults.extract_if(.., is_due).count();
        let Some(endpoint) = self.queues.get(id).and_then(|queue| queue.endpoints.first().copied())
        else {
            return;
        };
        for _ in 0..due {
            self.counters.count("faults.nameless");
            let mut entry = Entry::new(endpoint, 0, 0);
            entry.error = Some((Errno(sys::FI_EIO), 0));
            self.write_entry(Some(id), entry);
        }
    }

    /// Takes the error entry at the head of the queue.
    pub(crate) fn take_error(&mut self, queue: Id<Queue>) -> Outcome<Option<Entry>> {
        let entries = &mut self.queues.get_mut(queue).ok_or(Errno(sys::FI_EINVAL))?.entries;
        let is_error = entries.front().is_some_and(|entry| entry.error.is_some());
        let entry = if is_error { entries.pop_front() } else { None };
        if let Some(entry) = &entry {
            self.was_read(entry);
        }
        Ok(entry)
    }

    /// The `fi_addr_t` of an entry's source in the endpoint's address vector.
    pub(crate) fn source_name(&self, entry: &Entry) -> u64 {
        let endpoint = self.endpoints.get(entry.endpoint);
        let vector = endpoint.and_then(|endpoint| self.vectors.get(endpoint.vector?));
        let name = vector.and_then(|vector| vector.name_of(entry.source?));
        name.unwrap_or(sys::FI_ADDR_NOTAVAIL)
    }

    /// Continues what waited until the user had read this entry.
    fn was_read(&mut self, entry: &Entry) {
        self.end_use(entry.region);
        if let Some(held) = entry.held {
            self.show_arrived(held);
        }
        if let Some(operation) = entry.operation.and_then(|id| self.operations.get_mut(&id)) {
            operation.was_read = true;
        }
    }

    /// One poll by the owner of `queue`.
    fn progress(&mut self, queue: Id<Queue>) -> Outcome {
        if !self.settings.is_virtual {
            self.clock += 1;
        }
        let endpoints = self.queues.get(queue).ok_or(Errno(sys::FI_EINVAL))?.endpoints.clone();
        for endpoint in &endpoints {
            self.empty_outbox(*endpoint);
            self.move_connections(*endpoint);
        }
        self.run_due();
        for endpoint in &endpoints {
            self.empty_inbox(*endpoint);
        }
        self.run_due();
        let empty = self.queues.get(queue).is_some_and(|queue| queue.entries.is_empty());
        if self.settings.is_virtual
            && empty
            && let Some((time, _)) = self.events.keys().next()
        {
            self.clock = self.clock.max(*time);
            self.run_due();
            for endpoint in &endpoints {
                self.empty_inbox(*endpoint);
            }
        }
        for endpoint in endpoints {
            if let Some(endpoint) = self.endpoints.get_mut(endpoint) {
                endpoint.arrivals = 0;
            }
        }
        Ok(())
    }

    /// Advances virtual time.
    pub(crate) fn advance(&mut self, by: u64) -> u64 {
        let end = self.clock.saturating_add(by);
        while let Some((time, _)) = self.events.keys().next().filter(|(time, _)| *time <= end) {
            self.clock = self.clock.max(*time);
            self.run_due();
        }
        self.clock = end;
        end
    }

    /// Runs every event that is due, in order of time.
    fn run_due(&mut self) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.clock {
                return;
            }
            let event = entry.remove();
            self.run(event);
        }
    }

    fn run(&mut self, event: Event) {
        let id = match event {
            Event::Show(held, index) => return self.show_line(held, index),
            Event::Depart(id) | Event::Land(id) | Event::Acknowledge(id) => id,
        };
        if let Some(errno) = self.dead_end(id) {
            self.fail(id, errno);
            return;
        }
        if let Some(nic) = self.stalled_nic(id) {
            self.nics[nic].parked.push(event);
            return;
        }
        match event {
            Event::Depart(id) => self.depart(id),
            Event::Land(id) => self.come_in(id),
            Event::Acknowledge(id) => self.acknowledge(id),
            Event::Show(..) => {}
        }
    }

    /// The stalled NIC that holds an operation up.
    fn stalled_nic(&self, id: Id<Operation>) -> Option<usize> {
        self.nics_of(self.operations.get(&id)?)
            .into_iter()
            .flatten()
            .find(|nic| self.nics[*nic].stalled)
    }

    /// The error in which an operation from or to a dead NIC ends.
    fn dead_end(&self, id: Id<Operation>) -> Option<c_int> {
        let nics = self.nics_of(self.operations.get(&id)?);
        let [from, to] = nics.map(|nic| nic.is_some_and(|nic| self.nics[nic].dead));
        match (from, to) {
            (true, _) => Some(sys::FI_ENETDOWN),
            (false, true) => Some(sys::FI_EHOSTUNREACH),
            (false, false) => None,
        }
    }

    /// The NICs of the initiator and of the target, unless the endpoint is closed.
    pub(super) fn nics_of(&self, operation: &Operation) -> [Option<usize>; 2] {
        [operation.initiator, operation.target]
            .map(|end| self.endpoints.get(end).map(|endpoint| endpoint.nic))
    }
}
