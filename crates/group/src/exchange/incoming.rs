//! Messages from one rank. They are numbered, and may arrive in any order.

use std::collections::{BTreeMap, VecDeque};

use super::Message;
use super::note::Note;
use super::payload::Payload;
use crate::error::GroupError;
use crate::group::State;
use crate::loader::{DataType, Element, Place};
use crate::memory::zeroed;
use crate::mesh::{Due, Envelope, Name, OpId, SMALL, Wanted, type_name, type_number};

#[derive(Debug)]
pub(super) struct Incoming<T> {
    /// The rank in the group.
    pub(super) rank: usize,
    /// The rank in the mesh.
    pub(super) peer: usize,
    /// The number of messages, once it is known.
    count: Option<u64>,
    whole: BTreeMap<u64, Message<T>>,
    /// Metadata whose elements have not arrived.
    metas: BTreeMap<u64, Vec<u8>>,
    flights: VecDeque<(OpId, u64, Payload<T>)>,
    pub(super) bytes: u64,
}

impl<T: Element> Incoming<T> {
    pub(super) fn new(rank: usize, peer: usize) -> Self {
        Self {
            rank,
            peer,
            count: None,
            whole: BTreeMap::new(),
            metas: BTreeMap::new(),
            flights: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Whether all messages are here. Never while elements are under way, even if the peer's count is reached: their memory is being
    /// written.
    pub(super) fn is_over(&self) -> bool {
        !self.receives() && self.count.is_some_and(|count| self.whole.len() as u64 == count)
    }

    /// Whether elements are under way.
    pub(super) fn receives(&self) -> bool {
        !self.flights.is_empty()
    }

    /// The receives of elements that are under way.
    pub(super) fn operations(&self) -> impl Iterator<Item = OpId> {
        self.flights.iter().map(|(op, ..)| *op)
    }

    /// All messages, in the order in which they were inserted.
    pub(super) fn take(&mut self) -> Vec<Message<T>> {
        std::mem::take(&mut self.whole).into_values().collect()
    }

    /// Processes what has arrived. Returns whether anything has.
    pub(super) fn advance(
        &mut self,
        state: &mut State,
        name: Name,
        limit: usize,
        spare: &mut Vec<Vec<T>>,
    ) -> Result<bool, GroupError> {
        let mut moved = false;
        while let Some((envelope, element)) = state.mesh.probe(&self.wanted(name, Place::empty())) {
            moved = true;
            if envelope.bytes > limit {
                let what = format!("a message of {} bytes, more than {limit}", envelope.bytes);
                return Err(self.mismatch(&what));
            }
            match Note::decode(envelope.note, self.rank)? {
                Note::Whole(number) => self.data(state, name, number, (envelope, element), spare),
                Note::Last(number) => {
                    self.counted(number + 1)?;
                    self.data(state, name, number, (envelope, element), spare)
                }
                Note::Meta(number) => self.meta(state, name, number, envelope),
                Note::After(number) => {
                    if !self.metas.contains_key(&number) {
                        return Err(self.mismatch("elements without their metadata"));
                    }
                    self.data(state, name, number, (envelope, element), spare)
                }
                Note::Finish(count) => {
                    self.counted(count)?;
                    let op = state.mesh.receive(self.wanted(name, Place::empty()))?;
                    // A note without bytes completes at once.
                    state.mesh.abandon(op);
                    Ok(())
                }
                Note::Cancel => return Err(GroupError::Cancelled { rank: self.rank }),
            }?;
        }
        moved |= self.land(state)?;
        if !self.is_over() {
            state.mesh.reach(self.peer)?;
        }
        Ok(moved)
    }

    fn counted(&mut self, count: u64) -> Result<(), GroupError> {
        match self.count.replace(count) {
            None => Ok(()),
            Some(_) => Err(self.mismatch("two end messages")),
        }
    }

    fn meta(
        &mut self,
        state: &mut State,
        name: Name,
        number: u64,
        envelope: Envelope,
    ) -> Result<(), GroupError> {
        if !(1..=SMALL).contains(&envelope.bytes) {
            return Err(self.mismatch("metadata of an invalid length"));
        }
        self.fresh(number)?;
        let mut meta = vec![0; envelope.bytes];
        let op = state.mesh.receive(self.wanted(name, Place::writing(&mut meta)))?;
        match state.mesh.ended(op) {
            Some(ended) => ended.map(drop)?,
            None => {
                drop(state.keep(op, meta));
                return Err(self.mismatch("metadata as a long message"));
            }
        }
        self.bytes += meta.len() as u64;
        self.metas.insert(number, meta);
        Ok(())
    }

    fn data(
        &mut self,
        state: &mut State,
        name: Name,
        number: u64,
        (envelope, element): (Envelope, u8),
        spare: &mut Vec<Vec<T>>,
    ) -> Result<(), GroupError> {
        let source = self.rank;
        let Envelope { tag, bytes, .. } = envelope;
        if element != type_number(T::TYPE) {
            let (sent, wanted) = (type_name(element), T::TYPE.name());
            return Err(GroupError::OtherType { source, tag, sent, wanted });
        }
        if !bytes.is_multiple_of(size_of::<T>()) {
            return Err(self.mismatch("half an element"));
        }
        if self.whole.contains_key(&number)
            || self.flights.iter().any(|(_, other, _)| *other == number)
        {
            return Err(self.mismatch("a message twice"));
        }
        let count = bytes / size_of::<T>();
        let data = match spare.pop().filter(|spare| spare.capacity() >= count) {
            Some(mut data) => {
                data.resize(count, T::from_small(0));
                data
            }
            None => zeroed(count)?,
        };
        let mut data = Payload::new(data, self.peer, state);
        let wanted = Wanted { element: T::TYPE, ..self.wanted(name, data.place()) };
        let op = state.mesh.receive(wanted)?;
        self.bytes += bytes as u64;
        self.flights.push_back((op, number, data));
        Ok(())
    }

    fn fresh(&self, number: u64) -> Result<(), GroupError> {
        if self.metas.contains_key(&number) || self.whole.contains_key(&number) {
            return Err(self.mismatch("a message twice"));
        }
        Ok(())
    }

    /// Takes the messages whose elements have arrived, in any order.
    fn land(&mut self, state: &mut State) -> Result<bool, GroupError> {
        let mut moved = false;
        let mut index = 0;
        while let Some((op, ..)) = self.flights.get(index) {
            let Some(ended) = state.mesh.ended(*op) else {
                index += 1;
                continue;
            };
            moved = true;
            if let Some((_, number, data)) = self.flights.remove(index) {
                let data = data.into_vec(state);
                ended?;
                let meta = self.metas.remove(&number).unwrap_or_default();
                self.whole.insert(number, Message { meta, data });
            }
        }
        if let Some(count) = self.count {
            let landed = self.whole.last_key_value().map(|(last, _)| *last);
            let under_way = self.flights.iter().map(|(_, number, _)| *number);
            if under_way.chain(landed).any(|number| number >= count) {
                return Err(self.mismatch("more messages than announced"));
            }
        }
        Ok(moved)
    }

    fn wanted(&self, Name { scope, space, .. }: Name, place: Place) -> Wanted {
        let (source, tag, element) = (Some(self.peer), None, DataType::U8);
        Wanted { scope, space, source, tag, element, place }
    }

    fn mismatch(&self, what: &str) -> GroupError {
        let rank = self.rank;
        GroupError::Mismatch { rank, why: format!("rank {rank} sent {what} in an exchange") }
    }

    /// Cancels. Memory that is being written stays until the write has ended. Returns the messages that are still to come, if any.
    pub(super) fn cancel(self, state: &mut State) -> Option<Remains> {
        let came = (self.whole.len() + self.flights.len()) as u64;
        for (op, _, memory) in self.flights {
            drop(state.keep(op, memory));
        }
        let remains = Remains { rank: self.rank, peer: self.peer, came, count: self.count };
        (!remains.is_over()).then_some(remains)
    }
}

/// Messages that a source of a cancelled exchange still sends.
#[derive(Debug)]
pub(super) struct Remains {
    rank: usize,
    peer: usize,
    /// How many messages have come, not counting metadata.
    came: u64,
    /// How many messages there are, once that is known.
    count: Option<u64>,
}

impl Remains {
    fn is_over(&self) -> bool {
        self.count.is_some_and(|count| self.came >= count)
    }
}

/// The messages that all sources of a cancelled exchange still send.
#[derive(Debug)]
pub(super) struct Rest(pub(super) Vec<Remains>);

impl Due for Rest {
    fn came(&mut self, source: usize, note: u64) -> bool {
        if let Some(one) = self.0.iter_mut().find(|one| one.peer == source) {
            match Note::decode(note, one.rank) {
                Ok(Note::Whole(_) | Note::After(_)) => one.came += 1,
                Ok(Note::Last(number)) => (one.came, one.count) = (one.came + 1, Some(number + 1)),
                Ok(Note::Finish(count)) => one.count = Some(count),
                // The cancellation was sent after all messages.
                Ok(Note::Cancel) => one.count = Some(0),
                // The elements follow.
                Ok(Note::Meta(_)) | Err(_) => {}
            }
        }
        self.0.retain(|one| !one.is_over());
        self.0.is_empty()
    }

    fn lost(&mut self, source: usize) -> bool {
        self.0.retain(|one| one.peer != source);
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Space;
    use crate::support::{library, ranks};

    static BYTES: [u8; 2 * SMALL] = [7; 2 * SMALL];
    /// The longest message.
    const LIMIT: usize = 2 * SMALL - 2;

    /// Whether all messages are here, in an exchange of u16 after these messages of this rank to itself. `together`: all have come before
    /// the first poll.
    fn polled(messages: &[(Note, DataType, usize)], together: bool) -> Result<bool, String> {
        let messages = messages.to_vec();
        let run = move |group: crate::group::Group| {
            let mut state = group.shared.lock();
            let (scope, space) = (group.scope, Space::exchange(0, 0));
            let name = Name { scope, tag: 0, space, note: 0 };
            let mut incoming = Incoming::<u16>::new(0, 0);
            for (at, (note, element, bytes)) in (1..).zip(&messages) {
                let named = Name { note: note.encode(), ..name };
                state.mesh.send(0, named, *element, Place::reading(&BYTES[..*bytes])).unwrap();
                if !together || at == messages.len() {
                    let moved = incoming.advance(&mut state, name, LIMIT, &mut Vec::new());
                    assert!(moved.map_err(|error| error.to_string())?, "nothing has moved");
                }
            }
            assert!(!incoming.advance(&mut state, name, LIMIT, &mut Vec::new()).unwrap());
            Ok(incoming.is_over())
        };
        ranks(&library(), 1, run).remove(0)
    }

    #[test]
    fn messages_of_a_peer_that_breaks_the_order_of_an_exchange_are_refused() {
        use DataType::{U8, U16};
        use Note::{After, Cancel, Finish, Last, Meta, Whole};
        let one = (Whole(0), U16, 2);
        let (meta, end) = ((Meta(0), U8, 1), (Finish(1), U8, 0));
        for (messages, why) in [
            (&[(After(0), U16, 2)][..], "elements without their metadata"),
            (&[(Meta(0), U8, 0)], "metadata of an invalid length"),
            (&[(Meta(0), U8, SMALL + 1)], "metadata of an invalid length"),
            (&[(Whole(0), U16, 3)], "half an element"),
            (&[(Whole(0), U8, 2)], "a message of uint8"),
            (&[(Whole(0), U16, LIMIT + 2)], "131072 bytes, more than 131070"),
            (&[one, one], "a message twice"),
            (&[meta, meta], "a message twice"),
            (&[end, end], "two end messages"),
            (&[(Last(0), U16, 2), end], "two end messages"),
            (&[(Finish(0), U8, 0), one], "more messages than announced"),
            (&[end, (Whole(1), U16, 2)], "more messages than announced"),
            (&[one, (Cancel, U8, 0)], "rank 0 cancelled the exchange"),
        ] {
            for together in [false, true] {
                let said = polled(messages, together).unwrap_err();
                assert!(said.contains(why), "{messages:?}: {said}");
            }
        }
        let said = polled(&[one, meta], false).unwrap_err();
        assert!(said.contains("a message twice"), "{said}");
    }

    #[test]
    fn messages_of_an_exchange_may_come_in_any_order_and_as_long_as_its_limit() {
        use DataType::{U8, U16};
        use Note::{After, Finish, Last, Meta, Whole};
        let (meta, whole) = ((Meta(0), U8, SMALL), (Whole(1), U16, 0));
        let (after, end) = ((After(0), U16, LIMIT), (Finish(2), U8, 0));
        for together in [false, true] {
            for messages in [[meta, after, whole, end], [end, whole, meta, after]] {
                assert_eq!(polled(&messages, together), Ok(true), "{messages:?}");
            }
            assert_eq!(polled(&[(Last(0), U16, 2)], together), Ok(true));
            assert_eq!(polled(&[meta, after, whole], together), Ok(false));
            assert_eq!(polled(&[end, whole, meta], together), Ok(false));
        }
    }

    #[test]
    fn a_cancelled_exchange_awaits_from_each_source_as_many_messages_as_it_sends() {
        let of = |rest: &Rest| rest.0.iter().map(|one| one.peer).collect::<Vec<_>>();
        let one = |peer, came, count| Remains { rank: peer, peer, came, count };
        let mut rest = Rest(vec![one(1, 0, None), one(2, 1, Some(2)), one(3, 0, None)]);
        for (note, left) in [
            (Note::Whole(0), &[1, 2, 3][..]),
            (Note::Meta(1), &[1, 2, 3]),
            (Note::Finish(2), &[1, 2, 3]),
            (Note::After(1), &[2, 3]),
        ] {
            assert!(!rest.came(1, note.encode()));
            assert_eq!(of(&rest), left, "{note:?}");
        }
        assert!(!rest.came(2, Note::Whole(1).encode()) && of(&rest) == [3]);
        assert!(!rest.lost(2) && of(&rest) == [3]);
        assert!(rest.lost(3));
        for last in [Note::Last(0), Note::Finish(0), Note::Cancel] {
            assert!(Rest(vec![one(1, 0, None)]).came(1, last.encode()), "{last:?}");
        }
    }
}
