//! One side of a connection: its comm, its memory and its requests.

use std::ops::Range;

use super::memory::{Memory, Slot};
use crate::support::calls::Object;

pub(super) struct Side {
    /// The communicator that it belongs to.
    pub(super) end: usize,
    pub(super) comm: Option<Object>,
    pub(super) memory: Memory,
    /// All of the same memory.
    pub(super) regions: Vec<Object>,
    pub(super) requests: Vec<Request>,
}

pub(super) struct Request {
    pub(super) object: Object,
    pub(super) region: Object,
    /// Those of the connection's messages that it is for.
    pub(super) messages: Range<usize>,
    pub(super) slots: Vec<Slot>,
    /// Whether it may be reported before its bytes are there.
    pub(super) is_optional: bool,
    pub(super) is_reported: bool,
}

impl Side {
    pub(super) fn new(end: usize) -> Self {
        let (regions, requests) = (Vec::new(), Vec::new());
        Self { end, comm: None, memory: Memory::new(), regions, requests }
    }

    pub(super) fn keep(&mut self, request: Request) {
        self.memory.take(&request.slots);
        self.requests.push(request);
    }

    /// The comm is gone, and perhaps also what the plugin may do with its memory. Returns what is closed.
    pub(super) fn close(&mut self, is_given_back: bool) -> Vec<Object> {
        if is_given_back {
            self.memory.give_back();
        }
        let requests = self.requests.drain(..).map(|request| request.object);
        self.comm.take().into_iter().chain(self.regions.drain(..)).chain(requests).collect()
    }
}

impl Request {
    pub(super) fn new(
        object: Object,
        region: Object,
        messages: Range<usize>,
        slots: Vec<Slot>,
    ) -> Self {
        Self { object, region, messages, slots, is_optional: false, is_reported: false }
    }
}
