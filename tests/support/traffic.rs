//! Messages of one size over one connection, with a window of them outstanding, as NCCL's proxy drives them: only the oldest request of
//! each side is tested.

use std::collections::VecDeque;
use std::ffi::c_int;

use super::net::{Comm, GROUP, Memory, Net, Request};

/// One side of a connection, and its outstanding requests.
pub(crate) struct End<'net> {
    net: &'net Net,
    pub(crate) comm: Comm,
    side: Side,
    requests: VecDeque<Request>,
    posted: usize,
    done: usize,
    pub(crate) calls: Calls,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Send,
    Receive,
}

/// The numbers of calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    /// isend or irecv.
    pub(crate) posts: usize,
    /// Of those, the ones that returned NULL.
    pub(crate) refused: usize,
    pub(crate) tests: usize,
    /// Of those, the ones whose request was not done.
    pub(crate) empty: usize,
}

impl<'net> End<'net> {
    pub(crate) fn sending(net: &'net Net, comm: Comm) -> Self {
        Self::new(net, comm, Side::Send)
    }

    pub(crate) fn receiving(net: &'net Net, comm: Comm) -> Self {
        Self::new(net, comm, Side::Receive)
    }

    fn new(net: &'net Net, comm: Comm, side: Side) -> Self {
        let requests = VecDeque::new();
        Self { net, comm, side, requests, posted: 0, done: 0, calls: Calls::default() }
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.posted - self.done
    }

    /// Posts one message; false if the plugin has no room for it now.
    pub(crate) fn post(&mut self, bytes: usize) -> bool {
        let tag = c_int::try_from(self.posted % 1000).expect("a small number");
        let request = match self.side {
            Side::Send => self.net.isend(&self.comm, bytes, tag),
            Side::Receive => self.net.irecv(&self.comm, bytes, tag),
        };
        self.calls.posts += 1;
        let Some(request) = request else {
            self.calls.refused += 1;
            return false;
        };
        self.requests.push_back(request);
        self.posted += 1;
        true
    }

    /// Tests the oldest message, if there is one; true if it is done.
    pub(crate) fn test(&mut self, bytes: usize) -> bool {
        let Some(request) = self.requests.front().copied() else { return false };
        self.calls.tests += 1;
        let Some(size) = self.net.test(request) else {
            self.calls.empty += 1;
            return false;
        };
        assert_eq!(usize::try_from(size), Ok(bytes), "the size of message {}", self.done);
        self.requests.pop_front();
        self.done += 1;
        true
    }

    /// Moves `count` messages, while the other side is driven elsewhere.
    pub(crate) fn run(&mut self, bytes: usize, window: usize, count: usize) {
        let end = self.done + count;
        while self.done < end {
            while self.posted < end && self.outstanding() < window && self.post(bytes) {}
            while self.test(bytes) {}
        }
    }
}

/// A connection between two endpoints of this process: its send comm and its receive comm.
pub(crate) fn connection(from: &Net, to: &Net, out: &Memory, into: &Memory) -> (Comm, Comm) {
    let (listener, mut handle) = to.listen();
    let (mut send, mut receive) = (None, None);
    while send.is_none() || receive.is_none() {
        if send.is_none() {
            send = from.connect(&mut handle, out);
        }
        if receive.is_none() {
            receive = to.accept(&listener, into);
        }
    }
    to.close_listen(listener);
    (send.expect("connected"), receive.expect("accepted"))
}

/// A process's connection to itself.
pub(crate) fn to_itself<'net>(net: &'net Net, out: &Memory, into: &Memory) -> [End<'net>; 2] {
    let (send, receive) = connection(net, net, out, into);
    [End::sending(net, send), End::receiving(net, receive)]
}

/// Moves `count` messages over such a connection: posts receives first, then sends, then tests the oldest of each.
pub(crate) fn exchange(ends: &mut [End<'_>; 2], bytes: usize, window: usize, count: usize) {
    let [send, receive] = ends;
    let (sent, received) = (send.done + count, receive.done + count);
    while send.done < sent || receive.done < received {
        while receive.posted < received && receive.outstanding() < window && receive.post(bytes) {}
        while send.posted < sent && send.outstanding() < window && send.post(bytes) {}
        while send.test(bytes) {}
        while receive.test(bytes) {}
    }
}

/// Moves `count` groups of eight messages over such a connection, with two groups outstanding.
pub(crate) fn exchange_groups(ends: &mut [End<'_>; 2], bytes: usize, count: usize) {
    let [send, receive] = ends;
    let (mut posted, mut received, mut sent) = (0, 0, 0);
    let mut sends: [Option<Request>; GROUP] = [None; GROUP];
    let mut groups: [Option<Request>; 2] = [None; 2];
    let tag = |group: usize, message: usize| {
        c_int::try_from(group % 2 * GROUP + message).expect("a small number")
    };
    while received < count || sent < count * GROUP || sends.iter().any(Option::is_some) {
        if posted < count && groups[posted % 2].is_none() {
            groups[posted % 2] = receive.net.irecv_group(&receive.comm, bytes, tag(posted, 0));
            posted += usize::from(groups[posted % 2].is_some());
        }
        // In another order than the receives.
        let place = &mut sends[sent % GROUP];
        if sent < count * GROUP && place.is_none() {
            let message = GROUP - 1 - sent % GROUP;
            *place = send.net.isend(&send.comm, bytes, tag(sent / GROUP, message));
            sent += usize::from(place.is_some());
        }
        for place in &mut sends {
            let done = place.and_then(|request| send.net.test(request));
            *place = place.filter(|_| done.is_none());
        }
        if let Some(sizes) = groups[received % 2].and_then(|group| receive.net.test_group(group)) {
            assert!(sizes.iter().all(|size| usize::try_from(*size) == Ok(bytes)), "{sizes:?}");
            groups[received % 2] = None;
            received += 1;
        }
    }
}
