//! Events of NCCL's profiler for open requests, and what is reported to the profiler about their messages.
//!
//! `abi` calls the callback, which returns a handle only while a profiler runs. Without a profiler nothing here is allocated.

use proto::limits::MAX_GROUP;
use proto::{Flow, Slot};

use super::Endpoint;
use super::line::{line_near, message_of};
use super::side::{Side, side_of};
use crate::object_id::{ObjectId, RawId};
use crate::types::{MessageFacts, Tested};

/// Events of one comm, by the low bits of their messages' lines; allocated with the first event.
#[derive(Debug, Default)]
pub(super) struct Events(Option<Box<[Option<Kept>; PLACES]>>);

#[derive(Clone, Copy, Debug)]
struct Kept {
    /// NCCL's handle.
    handle: usize,
    /// The line in the request's id.
    line: u16,
    /// The low half of the message's own line.
    place: u16,
    /// The rails of a send.
    rails: u16,
}

/// The most events: a comm has this many open requests, and a window this many lines.
const PLACES: usize = 64;
#[expect(clippy::cast_possible_truncation, reason = "it is 8")]
const GROUP: u16 = MAX_GROUP as u16;

impl Events {
    #[inline]
    pub(super) fn are_kept(&self) -> bool {
        self.0.is_some()
    }

    fn put(&mut self, event: Kept) {
        let places = self.0.get_or_insert_with(|| Box::new([None; PLACES]));
        places[usize::from(event.place) % PLACES] = Some(event);
    }

    /// Takes the event of message `index` of a request, if it has one.
    fn take(&mut self, line: u16, index: u16) -> Option<Kept> {
        let place = usize::from(line.wrapping_add(index)) % PLACES;
        self.0.as_deref_mut()?[place].take_if(|event| event.line == line)
    }
}

impl Endpoint {
    /// The facts about a message that was accepted, for its event.
    #[inline]
    pub(crate) fn begun(&self, request: RawId, bytes: u64) -> MessageFacts {
        let id = ObjectId::from_bits(request.bits());
        let (endpoint, device) = (self.number, self.device.number);
        let connection = id.map_or(0, ObjectId::slot);
        let is_send = id.is_some_and(|id| side_of(id) == Side::Send);
        MessageFacts { is_send, failed: false, rails: 0, device, endpoint, connection, bytes }
    }

    /// The profiler has an event for message `index` of this request.
    #[cold]
    pub(crate) fn keep_event(&mut self, request: RawId, index: u16, handle: usize) {
        let Some(id) = ObjectId::from_bits(request.bits()) else { return };
        let (line, slot) = (id.line(), Slot::new(id.slot().into()));
        let Some((slot, comm)) = slot.and_then(|slot| Some((slot, self.comms.at_mut(slot)?)))
        else {
            return;
        };
        let flow = self.core.connection(slot).and_then(Flow::sender);
        let rails = flow.map_or(0, |flow| flow.rails(message_of(line)).bits());
        comm.events.put(Kept { handle, line, place: line.wrapping_add(index), rails });
    }

    /// The end of a request has been found: its events end. `None`: it has failed.
    #[cold]
    pub(super) fn end_events(&mut self, slot: Slot, line: u16, tested: Option<Tested>) {
        let Some(comm) = self.comms.at_mut(slot) else { return };
        let (side, failed) = (comm.side, tested.is_none());
        let flow = self.core.connection(slot).and_then(Flow::receiver);
        for index in 0..GROUP {
            let Some(event) = comm.events.take(line, index) else { continue };
            let bytes = match tested {
                Some(Tested::Done(bytes)) => bytes,
                Some(Tested::Group(_)) => {
                    self.sizes.get(usize::from(index)).map_or(0, |size| *size as u64)
                }
                Some(Tested::Pending) | None => 0,
            };
            let rails = match flow {
                Some(flow) if !failed => flow.carried(line_near(flow.next(), event.place)).bits(),
                _ => event.rails,
            };
            let facts = MessageFacts {
                is_send: side == Side::Send,
                failed,
                rails,
                device: self.device.number,
                endpoint: self.number,
                connection: slot.number(),
                bytes,
            };
            self.ended_events.push((event.handle, facts));
        }
    }

    #[inline]
    pub(crate) fn has_ended_events(&self) -> bool {
        !self.ended_events.is_empty()
    }

    /// One event of the request that `test` reported last.
    pub(crate) fn next_ended_event(&mut self) -> Option<(usize, MessageFacts)> {
        self.ended_events.pop()
    }
}
