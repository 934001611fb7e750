//! One connection: the messages that it is to move, what was done to it, and what its calls may answer.

use super::ends::Ends;
use super::memory::{Memory, Slot};
use super::messages::{self, Message};
use super::side::{Request, Side};
use crate::support::calls::{Answer, Handle, Net, Object};
use crate::support::random::Random;

pub(super) const SENDER: usize = 0;
pub(super) const RECEIVER: usize = 1;
const REQUESTS_MAX: usize = 16;

pub(super) struct Connection {
    net: Net,
    pub(super) name: usize,
    /// Until connect has returned the comm.
    handle: Option<Handle>,
    /// Until accept has.
    listener: Option<Object>,
    sides: [Side; 2],
    messages: Vec<Message>,
    /// The lengths of the groups that are still to be received.
    groups: Vec<usize>,
    sent: usize,
    received: usize,
    /// Whether its calls may fail: there are faults, or something that was done to it is a reason.
    pub(super) may_fail: bool,
    pub(super) has_failed: bool,
    /// Objects that are closed, or whose work is done.
    pub(super) stale: Vec<Object>,
}

impl Connection {
    /// From one of the ends to another, or to itself. `None`: its listener's end has failed.
    pub(super) fn new(net: Net, ends: &Ends, name: usize, random: &mut Random) -> Option<Self> {
        let [from, to] = [0; 2].map(|_| ends.any(random));
        let listened = net.listen(ends.context(to), 0);
        assert!(listened.is_ok() || ends.may_fail, "listen: {listened:?}");
        let (handle, listener) = listened.ok()?;
        let (messages, groups) = messages::draw(name, random);
        Some(Self {
            net,
            name,
            handle: Some(handle),
            listener: Some(listener),
            sides: [from, to].map(Side::new),
            messages,
            groups,
            sent: 0,
            received: 0,
            may_fail: ends.may_fail,
            has_failed: false,
            stale: Vec::new(),
        })
    }

    /// The value of a call, if it has succeeded; else there must be a reason.
    #[track_caller]
    fn value<T>(&mut self, call: &str, answer: Answer<T>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(failure) => {
                assert!(self.may_fail, "{call} of connection {}: {failure:?}", self.name);
                self.has_failed = true;
                None
            }
        }
    }

    pub(super) fn connect(&mut self, ends: &Ends) {
        let Some(handle) = &mut self.handle else { return };
        let answer = self.net.connect(ends.context(self.sides[SENDER].end), 0, handle);
        if let Some(comm) = self.value("connect", answer).flatten() {
            self.sides[SENDER].comm = Some(comm);
            self.handle = None;
        }
    }

    /// The listener closes, whether or not connect has returned.
    pub(super) fn accept(&mut self) {
        let Some(listener) = self.listener else { return };
        let answer = self.net.accept(listener);
        if let Some(comm) = self.value("accept", answer).flatten() {
            self.sides[RECEIVER].comm = Some(comm);
            self.close_listener();
        }
    }

    fn close_listener(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.net.close_listen(listener).expect("closeListen");
            self.stale.push(listener);
        }
    }

    /// Once more than necessary, or for the first time.
    pub(super) fn register(&mut self, side: usize) {
        let Side { comm: Some(comm), memory, .. } = &self.sides[side] else { return };
        let answer = self.net.register(*comm, memory.buffer);
        let region = self.value("regMr", answer);
        self.sides[side].regions.extend(region);
    }

    /// What a post needs: a comm, a registration, and a slot for each message.
    fn ready(
        &mut self,
        side: usize,
        count: usize,
        random: &mut Random,
    ) -> Option<(Object, Object, Vec<Slot>)> {
        if self.sides[side].regions.is_empty() {
            self.register(side);
        }
        let Side { comm, memory, regions, requests, .. } = &self.sides[side];
        if regions.is_empty() || requests.len() == REQUESTS_MAX {
            return None;
        }
        Some(((*comm)?, random.pick(regions), memory.free(count)?))
    }

    pub(super) fn send(&mut self, random: &mut Random) {
        let Some(message) = self.messages.get(self.sent).copied() else { return };
        let Some((comm, region, slots)) = self.ready(SENDER, 1, random) else { return };
        let part = self.sides[SENDER].memory.part(slots[0]);
        part.write(0, message.bytes());
        let answer = self.net.isend(comm, part.address(), message.len, message.tag, region);
        match self.value("isend", answer).flatten() {
            Some(object) => {
                let messages = self.sent..self.sent + 1;
                self.sent = messages.end;
                self.sides[SENDER].keep(Request::new(object, region, messages, slots));
            }
            None => self.sides[SENDER].memory.give(&slots),
        }
    }

    pub(super) fn receive(&mut self, random: &mut Random) {
        let Some(count) = self.groups.last().copied() else { return };
        let Some((comm, region, slots)) = self.ready(RECEIVER, count, random) else { return };
        let messages = self.received..self.received + count;
        let memory = &self.sides[RECEIVER].memory;
        assert!(
            slots.iter().all(|slot| memory.has(*slot, &[])),
            "a write to memory without a receive"
        );
        let of_each = |(message, slot): (&Message, &Slot)| {
            (memory.part(*slot).address(), message.room, message.tag, region)
        };
        let receives: Vec<_> =
            self.messages[messages.clone()].iter().zip(&slots).map(of_each).collect();
        let is_optional = count == 1 && random.one_in(8);
        let answer = match receives[0] {
            (address, room, tag, _) if is_optional => {
                self.net.irecv_optional(comm, address, room, tag, region)
            }
            _ => self.net.irecv_into(comm, &receives),
        };
        if let Some(object) = self.value("irecv", answer).flatten() {
            self.groups.pop();
            self.received = messages.end;
            let request = Request::new(object, region, messages, slots);
            self.sides[RECEIVER].keep(Request { is_optional, ..request });
        }
    }

    /// Tests a request of this side, mostly the oldest.
    pub(super) fn test(&mut self, side: usize, random: &mut Random) {
        let requests = &self.sides[side].requests;
        let Some(nth) = requests.len().checked_sub(1) else { return };
        let nth = if random.one_in(4) { random.below(nth + 1) } else { 0 };
        let Request { object, is_optional, is_reported, .. } = requests[nth];
        let messages = self.messages[requests[nth].messages.clone()].to_vec();
        if !is_reported {
            let answer = self.net.test_each(object, messages.len());
            let Some(answer) = self.value("test", answer) else {
                // What may still be written stays taken.
                self.sides[side].requests.remove(nth);
                return self.stale.push(object);
            };
            let Some(sizes) = answer else { return };
            let lens = messages.iter().map(|message| message.len);
            assert!(
                is_optional || lens.eq(sizes.iter().copied()),
                "connection {}: sizes {sizes:?}",
                self.name
            );
            self.sides[side].requests[nth].is_reported = true;
            self.stale.push(object);
        }
        let Side { memory, requests, .. } = &mut self.sides[side];
        let slots = &requests[nth].slots;
        let landed = || memory.begins(slots[0], messages[0].bytes());
        if is_optional && !landed() {
            return;
        }
        for (message, slot) in messages.iter().zip(slots) {
            let is_right = memory.has(*slot, message.bytes());
            assert!(is_right, "side {side}: message {} of {} bytes", message.number, message.len);
        }
        memory.give(slots);
        requests.remove(nth);
    }

    /// Any registration; one that is used only rarely, since the connection may then fail.
    pub(super) fn deregister(&mut self, side: usize, ends: &Ends, random: &mut Random) {
        let Side { regions, requests, .. } = &self.sides[side];
        if regions.is_empty() {
            return;
        }
        let region = random.pick(regions);
        let is_used = requests.iter().any(|request| request.region == region);
        if !is_used || random.one_in(8) {
            self.may_fail |= is_used;
            self.give_up(side, region, ends);
        }
    }

    fn give_up(&mut self, side: usize, region: Object, ends: &Ends) {
        let (net, Some(comm)) = (self.net, self.sides[side].comm) else { return };
        let deregister = || net.deregister(comm, region);
        let answer = if self.may_fail { ends.wait(deregister) } else { deregister() };
        if self.value("deregMr", answer).is_some() {
            self.sides[side].regions.retain(|other| *other != region);
            self.stale.push(region);
        }
    }

    /// Closes the comm of one side, whatever it is used for.
    pub(super) fn close(&mut self, side: usize) {
        let Some(comm) = self.sides[side].comm else { return };
        self.may_fail = true;
        let close = [Net::close_send, Net::close_recv][side];
        close(self.net, comm).expect("close");
        let is_given_back = self.sides[side].regions.is_empty();
        self.stale.extend(self.sides[side].close(is_given_back));
    }

    /// Closes all that is open.
    pub(super) fn close_all(&mut self, ends: &Ends, random: &mut Random) {
        self.may_fail |= !self.is_through();
        self.handle = None;
        self.close_listener();
        for side in [SENDER, RECEIVER] {
            for region in self.sides[side].regions.clone() {
                self.give_up(side, region, ends);
            }
        }
        let first = random.below(2);
        self.close(first);
        self.close(1 - first);
    }

    /// An end has finalized. With operations in flight that never end, memory that they may touch is not given back.
    pub(super) fn lose(&mut self, end: usize, is_given_back: bool) {
        for side in [SENDER, RECEIVER] {
            if self.sides[side].end == end {
                self.may_fail = true;
                self.stale.extend(self.sides[side].close(is_given_back));
                match side {
                    SENDER => self.handle = None,
                    _ => self.stale.extend(self.listener.take()),
                }
            }
        }
    }

    pub(super) fn into_memory(self) -> [Memory; 2] {
        self.sides.map(|side| side.memory)
    }

    /// Nothing is open.
    pub(super) fn is_over(&self) -> bool {
        let open = [self.handle.is_some(), self.listener.is_some()];
        !open.contains(&true) && self.sides.iter().all(|side| side.comm.is_none())
    }

    /// All messages were moved.
    pub(super) fn is_through(&self) -> bool {
        let count = self.messages.len();
        let is_idle = self.sides.iter().all(|side| side.comm.is_some() && side.requests.is_empty());
        is_idle && self.sent == count && self.received == count
    }
}
