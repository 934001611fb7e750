//! Completion queues.

use std::collections::VecDeque;

use libfabric_sys as sys;

use super::{Domain, Endpoint};
use crate::engine::progress::Entry;
use crate::engine::{Engine, Errno, Id, Outcome};
use crate::faults::Fault;
use crate::ledger::Rule;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(super) domain: Id<Domain>,
    size: usize,
    pub(in crate::engine) entries: VecDeque<Entry>,
    pub(in crate::engine) endpoints: Vec<Id<Endpoint>>,
}

impl Queue {
    /// How many entries it was opened for.
    pub(in crate::engine) fn size(&self) -> usize {
        self.size
    }
}

impl Engine {
    pub(crate) fn open_queue(&mut self, domain: Id<Domain>, size: usize) -> Outcome<Id<Queue>> {
        self.domain_mut(domain)?.users += 1;
        let size = if size == 0 { QUEUE_ENTRIES } else { size };
        let queue = Queue { domain, size, entries: VecDeque::new(), endpoints: Vec::new() };
        Ok(self.queues.insert(queue))
    }

    pub(crate) fn close_queue(&mut self, id: Id<Queue>) -> Outcome {
        let queue = self.queues.get(id).ok_or(Errno(sys::FI_EINVAL))?;
        if !queue.endpoints.is_empty() {
            return self.refuse(Rule::CloseOrder, sys::FI_EBUSY, || {
                format!("completion queue {id} is closed before its endpoints")
            });
        }
        let jams = |fault: &Fault| matches!(fault, Fault::Jam(queue, at) if Id::of(*queue) == id && *at <= self.posts);
        if self.faults.iter().any(jams) {
            self.counters.count("faults.jam");
            return Err(Errno(sys::FI_EBUSY));
        }
        if let Some(queue) = self.queues.remove(id) {
            for entry in queue.entries {
                self.end_use(entry.region);
            }
            self.domain_mut(queue.domain)?.users -= 1;
        }
        Ok(())
    }

    /// Writes an entry to a queue.
    pub(in crate::engine) fn write_entry(&mut self, queue: Option<Id<Queue>>, entry: Entry) {
        let Some(id) = queue else { return };
        let Some(queue) = self.queues.get_mut(id) else { return };
        queue.entries.push_back(entry);
        let (len, size) = (queue.entries.len(), queue.size);
        if len > size {
            self.broken(Rule::Overrun, || {
                format!("completion queue {id} of {size} entries has {len} to hold")
            });
        }
    }
}

/// The size of a queue whose user leaves it to the provider.
const QUEUE_ENTRIES: usize = 1024;
