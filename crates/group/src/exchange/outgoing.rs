//! Messages to one rank.

use std::collections::VecDeque;

use super::SPARES_MAX;
use super::note::{NUMBER_MAX, Note};
use super::payload::Payload;
use crate::error::GroupError;
use crate::group::State;
use crate::loader::{DataType, Element, Place};
use crate::mesh::{Mesh, Name, OpId};

/// Memory that a send reads.
#[derive(Debug)]
enum Sent<T> {
    Meta { _bytes: Vec<u8> },
    Data(Payload<T>),
}

#[derive(Debug)]
pub(super) struct Outgoing<T> {
    /// The rank in the group.
    pub(super) rank: usize,
    /// The rank in the mesh.
    pub(super) peer: usize,
    numbers: u64,
    /// Reserved numbers whose messages were not sent yet.
    open: u64,
    /// A reserved number was dropped: its message will never be sent.
    left_open: bool,
    finished: bool,
    flights: VecDeque<(OpId, Sent<T>)>,
    pub(super) bytes: u64,
}

impl<T: Element> Outgoing<T> {
    pub(super) fn new(rank: usize, peer: usize) -> Self {
        let flights = VecDeque::new();
        let (left_open, finished) = (false, false);
        Self { rank, peer, numbers: 0, open: 0, left_open, finished, flights, bytes: 0 }
    }

    /// Reserves the number of a message that will be sent.
    pub(super) fn reserve(&mut self) -> Result<u64, GroupError> {
        if self.finished || self.numbers >= NUMBER_MAX {
            let why = format!(
                "the exchange with rank {} is finished: nothing more can be inserted",
                self.rank
            );
            return Err(GroupError::Usage(why));
        }
        self.numbers += 1;
        self.open += 1;
        Ok(self.numbers - 1)
    }

    /// A reserved number gets no message.
    pub(super) fn leave_open(&mut self) {
        self.left_open = true;
    }

    /// Sends a message with a reserved number.
    pub(super) fn send(
        &mut self,
        state: &mut State,
        name: Name,
        number: u64,
        meta: Vec<u8>,
        data: Vec<T>,
    ) -> Result<(), GroupError> {
        self.open -= 1;
        let mut note = Note::Whole(number);
        self.bytes += (meta.len() + size_of_val(&*data)) as u64;
        if !meta.is_empty() {
            note = Note::After(number);
            let named = Name { note: Note::Meta(number).encode(), ..name };
            let place = Place::reading(&meta);
            let op = state.mesh.send_with_next(self.peer, named, DataType::U8, place)?;
            self.flights.push_back((op, Sent::Meta { _bytes: meta }));
        }
        self.send_data(state, Name { note: note.encode(), ..name }, data, false)
    }

    /// Sends the only message, marked as the last. `with_next`: another message to this rank follows at once, in any exchange.
    pub(super) fn send_only(
        &mut self,
        state: &mut State,
        name: Name,
        data: Vec<T>,
        with_next: bool,
    ) -> Result<(), GroupError> {
        self.bytes += size_of_val(&*data) as u64;
        self.finished = true;
        let name = Name { note: Note::Last(0).encode(), ..name };
        self.send_data(state, name, data, with_next)
    }

    fn send_data(
        &mut self,
        state: &mut State,
        name: Name,
        data: Vec<T>,
        with_next: bool,
    ) -> Result<(), GroupError> {
        let send = if with_next { Mesh::send_with_next } else { Mesh::send };
        let mut data = Payload::new(data, self.peer, state);
        let op = send(&mut state.mesh, self.peer, name, T::TYPE, data.place())?;
        self.flights.push_back((op, Sent::Data(data)));
        Ok(())
    }

    /// Sends the number of messages in all. Returns whether that was not sent before.
    pub(super) fn finish(&mut self, state: &mut State, name: Name) -> Result<bool, GroupError> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(false);
        }
        self.send_note(state, name, Note::Finish(self.numbers)).map(|()| true)
    }

    fn send_note(&mut self, state: &mut State, name: Name, note: Note) -> Result<(), GroupError> {
        let name = Name { note: note.encode(), ..name };
        let op = state.mesh.send(self.peer, name, DataType::U8, Place::empty())?;
        self.flights.push_back((op, Sent::Meta { _bytes: Vec::new() }));
        Ok(())
    }

    /// Frees memory that was sent. Returns whether there was any.
    pub(super) fn advance(
        &mut self,
        state: &mut State,
        spare: &mut Vec<Vec<T>>,
    ) -> Result<bool, GroupError> {
        if self.left_open {
            let rank = self.rank;
            let why = format!("a place reserved for a message to rank {rank} was dropped unfilled");
            return Err(GroupError::Usage(why));
        }
        let mut moved = false;
        while let Some((op, _)) = self.flights.front() {
            let Some(ended) = state.mesh.ended(*op) else { break };
            moved = true;
            if let Some((_, Sent::Data(data))) = self.flights.pop_front() {
                let data = data.into_vec(state);
                if spare.len() < SPARES_MAX {
                    spare.push(data);
                }
            }
            ended?;
        }
        if !self.is_over() {
            state.mesh.reach(self.peer)?;
        }
        Ok(moved)
    }

    pub(super) fn is_over(&self) -> bool {
        self.finished && self.open == 0 && self.flights.is_empty()
    }

    /// Whether sends to the rank are under way.
    pub(super) fn waits(&self) -> bool {
        !self.flights.is_empty()
    }

    /// The oldest of the sends that are under way: they end in their order.
    pub(super) fn oldest(&self) -> Option<OpId> {
        self.flights.front().map(|(op, _)| *op)
    }

    /// Cancels: sends a cancellation to the rank, unless everything was sent.
    pub(super) fn cancel(mut self, state: &mut State, name: Name) {
        if !self.finished || self.open > 0 {
            // A peer that accepts no message has left, or the group has failed: the caller learns both elsewhere.
            let _ = self.send_note(state, name, Note::Cancel);
        }
        for (op, memory) in self.flights {
            drop(state.keep(op, memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_too_large_for_a_note_is_not_reserved() {
        let mut outgoing = Outgoing::<u8>::new(1, 1);
        outgoing.numbers = NUMBER_MAX - 1;
        assert_eq!(outgoing.reserve().unwrap(), NUMBER_MAX - 1);
        assert!(outgoing.reserve().is_err());
    }
}
