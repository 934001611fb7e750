//! Messages between two ranks.

mod device;
pub(crate) mod entry;

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::time::Duration;

use crate::error::GroupError;
use crate::group::Group;
use crate::loader::{DataType, Element, Place};
use crate::memory::{CLAIMED_BYTES_MAX, Source, Target, zeroed};
use crate::mesh::{Envelope, Mesh, Name, OpId, Space, Wanted, type_number, type_of};
pub use device::{DeviceSlice, DeviceStaging};
use entry::{Entry, What};

/// Matches any rank, or any tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Any;

/// The sender that a receive matches: a rank, or [`Any`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct From(Option<usize>);

impl std::convert::From<usize> for From {
    fn from(rank: usize) -> Self {
        Self(Some(rank))
    }
}

impl std::convert::From<Any> for From {
    fn from(_: Any) -> Self {
        Self(None)
    }
}

impl From {
    pub(crate) fn rank(self) -> Option<usize> {
        self.0
    }
}

/// The tag that a receive matches: one tag, or [`Any`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(Option<u32>);

impl std::convert::From<u32> for Tag {
    fn from(tag: u32) -> Self {
        Self(Some(tag))
    }
}

impl std::convert::From<Any> for Tag {
    fn from(_: Any) -> Self {
        Self(None)
    }
}

impl Tag {
    pub(crate) fn number(self) -> Option<u32> {
        self.0
    }
}

/// The result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The rank that sent the message.
    pub source: usize,
    pub tag: u32,
    /// The number of elements received, from the start of the receive's memory; the rest is unchanged.
    pub count: usize,
}

/// Messages. A message has a type, a length and a tag; it goes to the oldest waiting receive of its group that matches its sender and its
/// tag, and a receive takes the oldest message that matches. Messages of one sender that match the same receive do not overtake each other.
/// No message is lost because its receive is missing: short messages wait in the receiver's memory, and long ones at the sender, except for
/// the first 1.5 MiB of a message whose memory is not registered.
///
/// A message of no elements is matched as any other: it has a source and a tag, and arrives in its order.
///
/// A receive may be longer than its message. A receive that is too short, or of another type, returns [`GroupError::TooLong`] or
/// [`GroupError::OtherType`]; the message is dropped, the memory is unchanged, and the next message can be received.
impl Group {
    /// Sends, and returns when `data` may be changed. The peer may not have received by then a message of up to 64 KiB, or the last 1.5 MiB
    /// of a message whose memory is not registered.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] for a rank that does not exist, or for this rank: outside of [`Group::group`] no thread could
    /// receive the message. A failure of the group, see [`Group`].
    pub fn send<T: Element>(&self, data: &[T], to: usize, tag: u32) -> Result<(), GroupError> {
        let peer = self.other(to)?;
        let named = Name::message(self.scope, tag);
        let op = self.shared.enter()?.mesh.send(peer, named, T::TYPE, Place::reading(data))?;
        self.wait(op, Some(peer)).map(drop)
    }

    /// Receives into `data`.
    ///
    /// # Errors
    ///
    /// As [`Group::send`], and [`GroupError::TooLong`] and [`GroupError::OtherType`].
    pub fn recv<T: Element>(
        &self,
        data: &mut [T],
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<Received, GroupError> {
        let from = from.into();
        if let From(Some(rank)) = from {
            self.other(rank)?;
        }
        let wanted = self.wanted::<T>(Place::writing(data), from, tag.into())?;
        let op = self.shared.enter()?.mesh.receive(wanted)?;
        let envelope = self.wait(op, wanted.source)?;
        Ok(self.received::<T>(envelope))
    }

    /// Receives a message of any length.
    ///
    /// # Errors
    ///
    /// As [`Group::recv`]: a message of more than 64 GiB is [`GroupError::TooLong`]. [`GroupError::System`] where there is no memory for
    /// the message, which can still be received.
    pub fn recv_vec<T: Element>(
        &self,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<(Vec<T>, Received), GroupError> {
        let from = from.into();
        if let From(Some(rank)) = from {
            self.other(rank)?;
        }
        let wanted = self.wanted::<T>(Place::empty(), from, tag.into())?;
        let (op, source, mut data) = self.find(&wanted, |mesh, envelope, element| {
            // A message of another type is received too: the receive returns the error, and drops the message.
            let is_of_type = element == type_number(T::TYPE);
            if is_of_type && envelope.bytes > CLAIMED_BYTES_MAX {
                let Envelope { source, tag, bytes, .. } = envelope;
                let refused =
                    mesh.receive(Wanted { source: Some(source), tag: Some(tag), ..wanted })?;
                mesh.abandon(refused);
                let (source, room) = (self.rank_in_group(source), CLAIMED_BYTES_MAX);
                return Err(GroupError::TooLong { source, tag, bytes, room });
            }
            let count = if is_of_type { envelope.bytes.div_ceil(size_of::<T>()) } else { 1 };
            let mut data = zeroed::<T>(count.max(1))?;
            let (source, tag, place) = (envelope.source, envelope.tag, Place::writing(&mut data));
            let wanted = Wanted { source: Some(source), tag: Some(tag), place, ..wanted };
            Ok((mesh.receive(wanted)?, source, data))
        })?;
        let received = self.received::<T>(self.wait(op, Some(source))?);
        data.truncate(received.count);
        Ok((data, received))
    }

    /// Waits for a message, without receiving it.
    ///
    /// # Errors
    ///
    /// As [`Group::send`].
    pub fn probe(&self, from: impl Into<From>, tag: impl Into<Tag>) -> Result<Coming, GroupError> {
        let wanted = self.wanted::<u8>(Place::empty(), from.into(), tag.into())?;
        self.find(&wanted, |_, Envelope { source, tag, bytes, .. }, element| {
            let unknown = || GroupError::Contract("an unknown type".to_owned());
            let (source, element) =
                (self.rank_in_group(source), type_of(element).ok_or_else(unknown)?);
            Ok(Coming { source, tag, bytes, element })
        })
    }

    /// Waits for a message, and calls `found` with its envelope and element type under the lock, so that no other receive takes the message
    /// meanwhile.
    fn find<R>(
        &self,
        wanted: &Wanted,
        mut found: impl FnMut(&mut Mesh, Envelope, u8) -> Result<R, GroupError>,
    ) -> Result<R, GroupError> {
        self.until_some(wanted.source, |state| {
            let Some((envelope, element)) = state.mesh.probe(wanted) else { return Ok(None) };
            found(&mut state.mesh, envelope, element).map(Some)
        })
    }

    /// Sends to one rank and receives from another or the same rank at once. Both may be this rank.
    ///
    /// # Errors
    ///
    /// As [`Group::send`] and [`Group::recv`].
    pub fn sendrecv<T: Element>(
        &self,
        data: &[T],
        to: usize,
        into: &mut [T],
        from: impl Into<From>,
        tag: u32,
    ) -> Result<Received, GroupError> {
        let peer = self.rank_of(to)?;
        let wanted = self.wanted::<T>(Place::writing(into), from.into(), tag.into())?;
        let mut state = self.shared.enter()?;
        let receive = state.mesh.receive(wanted)?;
        let named = Name::message(self.scope, tag);
        let send = state.mesh.send(peer, named, T::TYPE, Place::reading(data));
        // The caller may use the memory again after an error, too.
        let is_receiving = send.is_ok() || !state.mesh.take_back(receive);
        drop(state);
        let received = is_receiving.then(|| self.wait(receive, wanted.source));
        self.wait(send?, Some(peer))?;
        let envelope =
            received.expect("the receive is taken back only where the send has failed")?;
        Ok(self.received::<T>(envelope))
    }

    /// Begins a send. The request owns the memory and returns it.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] for a rank that does not exist; a failure of the group. This rank may send to itself.
    pub fn isend<T: Element, B: Source<T>>(
        &self,
        data: B,
        to: usize,
        tag: u32,
    ) -> Result<Sending<T, B>, GroupError> {
        let peer = self.rank_of(to)?;
        let (named, place) = (Name::message(self.scope, tag), Place::reading(data.elements()));
        let op = Some(self.shared.enter()?.mesh.send(peer, named, T::TYPE, place)?);
        let request = Request { group: self.clone(), op, focus: Some(peer), data: Some(data) };
        Ok(Sending { request, elements: PhantomData })
    }

    /// Begins a receive.
    ///
    /// # Errors
    ///
    /// As [`Group::isend`].
    pub fn irecv<T: Element, B: Target<T>>(
        &self,
        mut data: B,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<Receiving<T, B>, GroupError> {
        let (from, tag) = (from.into(), tag.into());
        let wanted = self.wanted::<T>(Place::writing(data.elements_mut()), from, tag)?;
        let op = Some(self.shared.enter()?.mesh.receive(wanted)?);
        let none = self.nothing(from, tag);
        let request = Request { group: self.clone(), op, focus: wanted.source, data: Some(data) };
        Ok(Receiving { request, none, elements: PhantomData })
    }

    /// Runs sends and receives together: they begin when `describe` has added all of them, receives first, and have ended when this
    /// returns. So no order of them can deadlock, and a rank may send to itself.
    ///
    /// # Errors
    ///
    /// The error of `describe`; nothing has moved then. Otherwise the first error of an operation, in order, after all have ended.
    pub fn group<'env>(
        &self,
        describe: impl FnOnce(&mut Block<'_, 'env>) -> Result<(), GroupError>,
    ) -> Result<(), GroupError> {
        let entries = self.shared.enter()?.blocks.pop().unwrap_or_default();
        let mut block = Block { group: self, entries, memory: PhantomData };
        let ended = describe(&mut block).and_then(|()| block.run());
        let mut entries = std::mem::take(&mut block.entries);
        entries.clear();
        self.shared.enter()?.blocks.push(entries);
        ended
    }

    pub(crate) fn other(&self, rank: usize) -> Result<usize, GroupError> {
        let peer = self.rank_of(rank)?;
        if rank == self.rank() {
            let why =
                format!("rank {rank} is this one: a message to itself needs a group or a request");
            return Err(GroupError::InvalidArgument(why));
        }
        Ok(peer)
    }

    fn wanted<T: Element>(
        &self,
        place: Place,
        From(from): From,
        Tag(tag): Tag,
    ) -> Result<Wanted, GroupError> {
        let source = from.map(|rank| self.rank_of(rank)).transpose()?;
        let (scope, space) = (self.scope, Space::MESSAGES);
        Ok(Wanted { scope, space, source, tag, element: T::TYPE, place })
    }

    fn received<T: Element>(&self, envelope: Envelope) -> Received {
        let Envelope { source, tag, bytes, .. } = envelope;
        Received { source: self.rank_in_group(source), tag, count: bytes / size_of::<T>() }
    }

    fn nothing(&self, From(from): From, Tag(tag): Tag) -> Received {
        Received { source: from.unwrap_or_else(|| self.rank()), tag: tag.unwrap_or(0), count: 0 }
    }

    pub(crate) fn rank_in_group(&self, member: usize) -> usize {
        self.members.iter().position(|other| *other == member).unwrap_or(usize::MAX)
    }

    /// Waits for an operation. Its memory is free when this returns, after an error too.
    fn wait(&self, op: OpId, focus: Option<usize>) -> Result<Envelope, GroupError> {
        match self.until_some(focus, |state| Ok(state.mesh.ended(op))) {
            Ok(ended) => self.named(ended),
            Err(why) => {
                if let Some(mut state) = self.shared.lock_here() {
                    state.mesh.abandon(op);
                }
                Err(why)
            }
        }
    }

    /// Replaces the mesh's ranks in errors by this group's.
    pub(crate) fn named<T>(&self, ended: Result<T, GroupError>) -> Result<T, GroupError> {
        ended.map_err(|error| match error {
            GroupError::TooLong { source, tag, bytes, room } => {
                GroupError::TooLong { source: self.rank_in_group(source), tag, bytes, room }
            }
            GroupError::OtherType { source, tag, sent, wanted } => {
                GroupError::OtherType { source: self.rank_in_group(source), tag, sent, wanted }
            }
            other => other,
        })
    }
}

/// A message that can be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coming {
    pub source: usize,
    pub tag: u32,
    pub bytes: usize,
    /// The type that a receive of the message must have.
    pub element: DataType,
}

/// Sends and receives that run together; see [`Group::group`].
pub struct Block<'a, 'env> {
    group: &'a Group,
    entries: Vec<Entry>,
    memory: PhantomData<&'env mut [u8]>,
}

impl fmt::Debug for Block<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("operations", &self.entries.len()).finish_non_exhaustive()
    }
}

impl<'env> Block<'_, 'env> {
    /// Adds a send.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] for a rank that does not exist.
    pub fn send<T: Element>(
        &mut self,
        data: &'env [T],
        to: usize,
        tag: u32,
    ) -> Result<(), GroupError> {
        let (to, place) = (self.group.rank_of(to)?, Place::reading(data));
        self.entries
            .push(Entry { what: What::Send { to, tag, element: T::TYPE, place }, op: None });
        Ok(())
    }

    /// Adds a receive.
    ///
    /// # Errors
    ///
    /// As [`Block::send`].
    pub fn recv<T: Element>(
        &mut self,
        data: &'env mut [T],
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<(), GroupError> {
        let wanted = self.group.wanted::<T>(Place::writing(data), from.into(), tag.into())?;
        self.entries.push(Entry { what: What::Receive(wanted), op: None });
        Ok(())
    }

    fn run(&mut self) -> Result<(), GroupError> {
        let began = self.begin();
        let whole = began.is_ok();
        let mut first = began;
        for Entry { what, op } in &mut self.entries {
            let Some(op) = op.take() else { continue };
            let focus = match what {
                What::Send { to, .. } => Some(*to),
                What::Receive(wanted) => wanted.source,
            };
            // Not all operations could begin: receives that may never complete are removed.
            if !whole && self.group.shared.lock().mesh.take_back(op) {
                continue;
            }
            let ended = self.group.wait(op, focus).map(drop);
            first = first.and(ended);
        }
        first
    }

    fn begin(&mut self) -> Result<(), GroupError> {
        let mut state = self.group.shared.enter()?;
        for Entry { what, op } in &mut self.entries {
            if let What::Receive(wanted) = what {
                *op = Some(state.mesh.receive(*wanted)?);
            }
        }
        for Entry { what, op } in &mut self.entries {
            if let What::Send { to, tag, element, place } = *what {
                *op = Some(state.mesh.send(
                    to,
                    Name::message(self.group.scope, tag),
                    element,
                    place,
                )?);
            }
        }
        Ok(())
    }
}

/// An operation that owns its memory.
#[derive(Debug)]
struct Request<B: Send + 'static> {
    group: Group,
    op: Option<OpId>,
    focus: Option<usize>,
    data: Option<B>,
}

impl<B: Send + 'static> Request<B> {
    /// Makes progress for at most `limit`. Returns None while the operation is in progress, `Some(None)` without an operation.
    fn wait_for(&mut self, limit: Duration) -> Result<Option<Option<Envelope>>, GroupError> {
        let Some(op) = self.op else { return Ok(Some(None)) };
        let ended = self.group.until_within(self.focus, limit, |state| Ok(state.mesh.ended(op)))?;
        let Some(ended) = ended else { return Ok(None) };
        self.op = None;
        self.group.named(ended).map(|envelope| Some(Some(envelope)))
    }

    fn wait(&mut self) -> Result<Option<Envelope>, GroupError> {
        // In a forked child this is an error; the drop then leaves the operation to the parent.
        self.group.shared.here()?;
        let Some(op) = self.op.take() else { return Ok(None) };
        self.group.wait(op, self.focus).map(Some)
    }

    fn take(&mut self) -> B {
        self.data.take().expect("a request gives its memory back once, when it ends")
    }
}

impl<B: Send + 'static> Drop for Request<B> {
    fn drop(&mut self) {
        let (Some(op), Some(data)) = (self.op, self.data.take()) else { return };
        let Some(mut state) = self.group.shared.lock_here() else {
            // In a forked child: the owner's code must run in the parent only.
            let _never_dropped = ManuallyDrop::new(data);
            return;
        };
        // If the bytes are in flight, the plugin may still access this memory.
        let free = if state.mesh.take_back(op) { Some(data) } else { state.keep(op, data) };
        drop(state);
        // Without the lock, because the drop runs the owner's code.
        drop(free);
    }
}

/// A send in progress. After a drop before its end, the message is still sent, and its memory freed after that.
#[derive(Debug)]
#[must_use = "dropped, its end is not known"]
pub struct Sending<T: Element, B: Source<T>> {
    request: Request<B>,
    elements: PhantomData<T>,
}

impl<T: Element, B: Source<T>> Sending<T, B> {
    /// Whether this is a send to this rank itself, which ends when this rank receives the message.
    pub fn is_to_itself(&self) -> bool {
        let group = &self.request.group;
        self.request.focus == Some(group.members[group.rank()])
    }

    /// Makes progress; returns whether the send has ended. Then [`Sending::wait`] returns the memory at once.
    ///
    /// # Errors
    ///
    /// As [`Group::send`].
    pub fn test(&mut self) -> Result<bool, GroupError> {
        self.wait_timeout(Duration::ZERO)
    }

    /// Waits, and returns the memory.
    ///
    /// # Errors
    ///
    /// As [`Group::send`].
    pub fn wait(mut self) -> Result<B, GroupError> {
        self.request.wait()?;
        Ok(self.request.take())
    }

    /// Waits at most `limit`. Returns whether it has ended.
    ///
    /// # Errors
    ///
    /// As [`Group::send`].
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<bool, GroupError> {
        Ok(self.request.wait_for(limit)?.is_some())
    }
}

/// A receive in progress. A drop removes it if it has no message so far; otherwise its memory is freed when the message has come.
#[derive(Debug)]
#[must_use = "a receive that is not waited for is taken back"]
pub struct Receiving<T: Element, B: Target<T>> {
    request: Request<B>,
    none: Received,
    elements: PhantomData<T>,
}

impl<T: Element, B: Target<T>> Receiving<T, B> {
    /// Makes progress; returns whether the receive has ended. Then [`Receiving::wait`] returns the memory at once.
    ///
    /// # Errors
    ///
    /// As [`Group::recv`].
    pub fn test(&mut self) -> Result<bool, GroupError> {
        self.wait_timeout(Duration::ZERO)
    }

    /// Waits, and returns the memory and the envelope of the message.
    ///
    /// # Errors
    ///
    /// As [`Group::recv`].
    pub fn wait(mut self) -> Result<(B, Received), GroupError> {
        if let Some(envelope) = self.request.wait()? {
            self.none = self.request.group.received::<T>(envelope);
        }
        Ok((self.request.take(), self.none))
    }

    /// Waits at most `limit`. Returns whether it has ended.
    ///
    /// # Errors
    ///
    /// As [`Group::recv`].
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<bool, GroupError> {
        let ended = self.request.wait_for(limit)?;
        if let Some(Some(envelope)) = ended {
            self.none = self.request.group.received::<T>(envelope);
        }
        Ok(ended.is_some())
    }

    /// Removes the receive if it has no message so far. Returns whether it did: then [`Receiving::wait`] returns the memory at once, with
    /// nothing received. A receive whose message has come, or that has ended, stays as it is.
    pub fn take_back(&mut self) -> bool {
        let Some(op) = self.request.op else { return false };
        let state = self.request.group.shared.lock_here();
        let is_removed = state.is_some_and(|mut state| state.mesh.recall(op));
        if is_removed {
            self.request.op = None;
        }
        is_removed
    }

    #[cfg(test)]
    pub(crate) fn op(&self) -> Option<OpId> {
        self.request.op
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::support::{WAIT, library, ranks};

    #[test]
    fn a_message_longer_than_the_limit_is_an_error_and_the_next_one_comes() {
        ranks(&library(), 2, |group| {
            if group.rank() == 0 {
                group.shared.lock().mesh.announce_huge(1, group.scope);
                group.send(&[8_i8], 1, 0).unwrap();
                return drop(group.recv_vec::<i8>(1, 1));
            }
            let refused = group.recv_vec::<i8>(0, 0);
            let is_limit = |room| room == CLAIMED_BYTES_MAX;
            assert!(
                matches!(refused, Err(GroupError::TooLong { source: 0, room, .. }) if is_limit(room)),
                "{refused:?}"
            );
            assert_eq!(group.recv_vec::<i8>(0, 0).unwrap().0, [8]);
            group.abort();
        });
    }

    #[test]
    fn memory_of_a_call_that_has_panicked_is_not_written_and_the_group_has_failed() {
        let has_panicked = Arc::<AtomicBool>::default();
        ranks(&library(), 2, move |group| {
            let met = group.barrier();
            if group.rank() == 1 {
                // Rank 0 may have panicked before this rank's barrier has ended.
                drop(met);
                let end = Instant::now() + WAIT;
                while !has_panicked.load(Ordering::Acquire) {
                    assert!(Instant::now() < end, "rank 0 never panics");
                    std::thread::yield_now();
                }
                // Rank 0 may have closed its connections by then.
                let _ = group.send(&[7_u8; 4], 0, 1).and_then(|()| group.send(&[7_u8; 4], 0, 2));
                let ended = group.recv(&mut [0_u8; 4], 0, 3);
                let is_lost = matches!(ended, Err(GroupError::PeerLost { rank: 0, .. }));
                return assert!(is_lost, "{ended:?}");
            }
            met.unwrap();
            let mut data = [0_u8; 4];
            let wanted = group.wanted::<u8>(Place::writing(&mut data), 1.into(), 1.into()).unwrap();
            // As `recv` does it, where a poll panics.
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                group.shared.lock().mesh.receive(wanted).unwrap();
                group.until_some::<()>(Some(1), |_| panic!("as this test wants it"))
            }));
            assert!(panicked.is_err());
            has_panicked.store(true, Ordering::Release);
            let ended = group.recv(&mut [0_u8; 4], 1, 2);
            assert_eq!(data, [0; 4], "the memory of the call that has panicked");
            let why = "a call of rank 0 has panicked";
            assert!(matches!(&ended, Err(GroupError::Bootstrap(said)) if said == why), "{ended:?}");
        });
    }
}
