//! A listener: the requests that wait for accept, in the order they came.

use std::collections::VecDeque;
use std::time::Instant;

use proto::Request;

/// Requests that wait on one listener. The next one is told to ask again.
const WAITING_MAX: usize = 128;

/// What `listen` opened. `A` is an accept that has begun: its reply is yet to be posted.
#[derive(Debug)]
pub(crate) struct Listener<A> {
    /// A request must show it.
    pub(crate) nonce: u64,
    /// Receives of its connections come in groups of up to so many.
    pub(crate) max_group: usize,
    pub(crate) accepting: Option<A>,
    /// A call about it has panicked.
    pub(crate) broken: bool,
    /// Since when accept finds nothing, and whether that was said.
    pub(crate) waiting_since: Option<Instant>,
    pub(crate) warned: bool,
    /// Each in its box: room for a few by value would be kilobytes for each listener.
    requests: VecDeque<Box<Request>>,
}

impl<A> Listener<A> {
    pub(crate) fn new(nonce: u64, max_group: usize) -> Self {
        Self {
            nonce,
            max_group,
            accepting: None,
            broken: false,
            waiting_since: None,
            warned: false,
            requests: VecDeque::new(),
        }
    }

    /// Queues a request. False: the queue is full, and the sender must ask again.
    pub(crate) fn push(&mut self, request: Box<Request>) -> bool {
        let room = self.requests.len() < WAITING_MAX;
        if room {
            self.requests.push_back(request);
        }
        room
    }

    /// The request that has waited longest.
    pub(crate) fn pop(&mut self) -> Option<Box<Request>> {
        self.requests.pop_front()
    }

    /// What waits.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().map(|request| &**request)
    }
}
