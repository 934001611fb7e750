//! A pair of lanes with one peer, for one user (a halo): messages of lengths that both ends know, with receives posted
//! ahead.
//!
//! The user's messages are parts of one buffer, registered for this pair alone. An end whose user has gone reports how
//! many messages it has sent and received, so that the other end can distinguish a message that is still due from one
//! that never comes. The comms are closed only when both users have gone: for a receive that is posted ahead the end of
//! a connection is an error, and some plugins then fail earlier receives, too. A broken connection fails the group only
//! when no such report can be on its way any more.

use std::sync::Arc;

use super::Shared;
use super::lane::{Lane, tag_of};
use super::opening::Opening;
use super::registry::Registry;
use crate::bootstrap::Remote;
use crate::error::GroupError;
use crate::loader::{Buffer, Handle, Place, ReceiveComm, SendComm};

/// The name of a pair, the same on both ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairName {
    pub(crate) scope: u32,
    pub(crate) number: u32,
}

/// The progress of a pair, compared with what its user waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    All,
    NotYet,
    /// The peer's user has gone before that.
    Closed,
    /// The connection has ended.
    Broken,
}

/// Counts of messages since the pair was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Some of the messages of an end that has gone may still be on their way.
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

#[derive(Debug)]
enum Stage {
    /// The peer has opened its end, this rank has not.
    Invited(Option<Box<Handle>>),
    Open,
    /// This rank's user has gone, the peer's has not: it still receives messages that were sent.
    Closing {
        _buffer: Arc<Buffer>,
    },
    Closed,
}

#[derive(Debug)]
pub(super) struct Pair {
    // The order of the fields: comms and regions are dropped before the memory, which `stage` may own.
    opening: Opening,
    sender: Lane<SendComm>,
    receiver: Lane<ReceiveComm>,
    registry: Registry,
    stage: Stage,
    name: PairName,
    rank: usize,
    device: usize,
    /// The peer's counts when its user had gone.
    ended: Option<Counts>,
    broken: Option<Arc<GroupError>>,
}

impl Pair {
    pub(super) fn new(name: PairName, rank: usize, own: usize, device: usize) -> Self {
        Self {
            opening: Opening::default(),
            sender: Lane::of_registered(tag_of(own)),
            receiver: Lane::of_registered(tag_of(rank)),
            registry: Registry::default(),
            stage: Stage::Invited(None),
            name,
            rank,
            device,
            ended: None,
            broken: None,
        }
    }

    pub(super) fn name(&self) -> PairName {
        self.name
    }

    pub(super) fn open(
        &mut self,
        buffer: &Buffer,
        shared: &mut Shared<'_>,
    ) -> Result<(), GroupError> {
        self.registry.add(buffer.memory());
        if self.ended.is_none_or(|ended| ended.sent > 0) {
            let head = Letter::head(PAIR, self.name);
            self.opening.request(self.rank, self.device, &head, shared)?;
        }
        if let Stage::Invited(Some(handle)) = std::mem::replace(&mut self.stage, Stage::Open) {
            self.opening.invited(self.device, *handle, shared);
        }
        Ok(())
    }

    /// Handles a letter from the peer's end.
    pub(super) fn received(&mut self, letter: Letter, shared: &Shared<'_>) {
        match (letter, &mut self.stage) {
            (Letter::Handle(_, handle), Stage::Invited(kept)) => *kept = Some(Box::new(handle)),
            (Letter::Handle(_, handle), _) => self.opening.invited(self.device, handle, shared),
            (Letter::End(_, counts), _) => {
                self.ended = Some(counts);
                if self.opening.is_requested() && counts.sent == 0 {
                    self.opening = Opening::Closed;
                }
            }
        }
    }

    /// Queues a message to the peer and one from it; an empty place stands for none.
    pub(super) fn push(&mut self, sent: Place, expected: Place) {
        self.sender.push(sent);
        self.receiver.push(expected);
    }

    /// Makes progress; returns whether anything moved. An error breaks only this pair.
    pub(super) fn progress(&mut self) -> bool {
        let moved = match &self.stage {
            Stage::Invited(_) | Stage::Closed => return false,
            _ if self.broken.is_some() => false,
            _ => self.carry_on().unwrap_or_else(|error| {
                self.broken = Some(Arc::new(error));
                true
            }),
        };
        if matches!(self.stage, Stage::Closing { .. }) && self.ended.is_some() {
            self.shut();
        }
        moved
    }

    fn carry_on(&mut self) -> Result<bool, GroupError> {
        let mut moved = false;
        if self.opening.is_requested() {
            let has = (self.sender.is_open(), self.receiver.is_open());
            let (send, receive) = self.opening.brought(has)?;
            moved = send.is_some() || receive.is_some();
            // 0 and 1: the numbers of the comms in this pair's own registry.
            if let Some(end) = send {
                self.sender.open(end, 0);
            }
            if let Some(end) = receive {
                self.receiver.open(end, 1);
            }
        }
        // A message that the peer waits for leaves before the receive of the next one is posted.
        moved |= self.sender.progress(&mut self.registry)?;
        // After this rank's user has gone nothing is received any more, and the end of the connection is no error.
        if matches!(self.stage, Stage::Open) {
            moved |= self.receiver.progress(&mut self.registry)?;
        }
        Ok(moved)
    }

    /// Whether `due` messages have been sent and received.
    pub(super) fn reached(&self, due: Counts) -> Reached {
        // What the peer has received is sent, even if the plugin cannot report that any more.
        let has_sent = self.sender.done() >= due.sent
            || self.ended.is_some_and(|ended| ended.received >= due.sent);
        // Messages that the peer's user had not received when the peer left are not read any more.
        if self.receiver.done() >= due.received && (has_sent || self.ended.is_some()) {
            return Reached::All;
        }
        match self.ended {
            Some(ended) if ended.sent < due.received => Reached::Closed,
            // The peer's user no longer receives a message of this rank, which ends the connection.
            Some(_) if !has_sent && self.broken.is_some() => Reached::Closed,
            _ if self.broken.is_some() => Reached::Broken,
            _ => Reached::NotYet,
        }
    }

    /// A count that changes whenever an end opens or a piece moves.
    pub(super) fn moves(&self) -> u64 {
        self.sends() + u64::from(self.receiver.is_open()) + self.receiver.moves()
    }

    /// A count that changes whenever the end to the peer opens or a piece to it moves.
    pub(super) fn sends(&self) -> u64 {
        u64::from(self.sender.is_open()) + self.sender.moves()
    }

    /// The cause, if the connection is broken.
    pub(super) fn why(&self) -> Option<Arc<GroupError>> {
        self.broken.clone()
    }

    /// This rank's user goes. The memory is kept until the peer's user has gone, too.
    pub(super) fn close(&mut self, buffer: Arc<Buffer>, shared: &mut Shared<'_>) {
        self.say_end(shared.place);
        self.stage = Stage::Closing { _buffer: buffer };
    }

    /// This rank leaves, and its user with it. The peer is notified, as it may wait for a connection that will not be opened.
    pub(super) fn leave(&self, place: &mut Remote) {
        if matches!(self.stage, Stage::Open) {
            self.say_end(place);
        }
    }

    fn say_end(&self, place: &mut Remote) {
        let counts = Counts { sent: self.sender.pushed(), received: self.receiver.done() };
        // If the rendezvous is gone, it has reported the cause to the peer.
        let _ = place.mail(self.rank, &Letter::end(self.name, counts));
    }

    fn shut(&mut self) {
        self.opening = Opening::Closed;
        self.registry = Registry::default();
        self.sender = Lane::new(0);
        self.receiver = Lane::new(0);
        self.stage = Stage::Closed;
    }

    pub(super) fn is_connecting(&self) -> bool {
        self.opening.is_requested()
    }

    /// Whether the plugin has completed all sends that the peer still receives.
    pub(super) fn has_sent(&self) -> bool {
        self.sender.is_idle() || self.ended.is_some() || self.broken.is_some()
    }

    /// Whether the end of the connection may lose a message of the peer, whose user has gone: it has not come, and a receive is posted that
    /// no message will fill, or the connection is not accepted yet.
    pub(super) fn may_lose(&self) -> bool {
        let has_come = |sent| self.receiver.done() >= sent;
        let fits = |sent| self.receiver.is_open() && self.receiver.pushed() <= sent;
        let is_read = |ended: Counts| has_come(ended.sent) || fits(ended.sent);
        let is_received = matches!(self.stage, Stage::Open) && self.broken.is_none();
        is_received && !self.ended.is_none_or(is_read)
    }

    /// Whether the pair has no user on this rank.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Invited(_) | Stage::Closed)
    }

    /// Whether both users have gone, so that no letter names the pair again.
    pub(super) fn is_forgotten(&self) -> bool {
        self.ended.is_some() && matches!(self.stage, Stage::Closed)
    }
}

/// A letter from one end to the other, by the rendezvous.
#[derive(Debug)]
pub(super) enum Letter {
    /// The handle to connect to.
    Handle(PairName, Handle),
    /// The sender's user has gone.
    End(PairName, Counts),
}

/// First bytes of letters; [`super::peer::Way`] has the lower ones.
const PAIR: u8 = 16;
const END: u8 = 17;

impl Letter {
    pub(super) fn name(&self) -> PairName {
        let (Self::Handle(name, _) | Self::End(name, _)) = self;
        *name
    }

    fn head(kind: u8, PairName { scope, number }: PairName) -> Vec<u8> {
        [&[kind][..], &scope.to_le_bytes(), &number.to_le_bytes()].concat()
    }

    fn end(name: PairName, Counts { sent, received }: Counts) -> Vec<u8> {
        [Self::head(END, name), [sent.to_le_bytes(), received.to_le_bytes()].concat()].concat()
    }

    /// None if the letter is not about a pair.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (scope, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let name =
            PairName { scope: u32::from_le_bytes(*scope), number: u32::from_le_bytes(*number) };
        match *kind {
            PAIR => Some(Self::Handle(name, Handle(rest.try_into().ok()?))),
            END => {
                let (sent, rest) = rest.split_first_chunk()?;
                let received = u64::from_le_bytes(rest.try_into().ok()?);
                Some(Self::End(name, Counts { sent: u64::from_le_bytes(*sent), received }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Wait;
    use crate::support::{buffering, ranks};

    const NAME: PairName = PairName { scope: 3, number: 0x0102_0304 };

    #[test]
    fn a_letter_of_a_pair_is_read_as_it_was_written_and_other_bytes_are_none() {
        let counts = Counts { sent: 7, received: u64::MAX };
        let end = Letter::end(NAME, counts);
        assert!(matches!(Letter::read(&end), Some(Letter::End(NAME, read)) if read == counts));
        let handle = [Letter::head(PAIR, NAME), vec![5; 128]].concat();
        let read = Letter::read(&handle);
        assert!(matches!(read, Some(Letter::Handle(NAME, Handle(bytes))) if bytes == [5; 128]));
        for len in 0..end.len() {
            assert!(Letter::read(&end[..len]).is_none(), "{len} bytes of an end");
        }
        for len in 0..handle.len() {
            assert!(Letter::read(&handle[..len]).is_none(), "{len} bytes of a handle");
        }
        assert!(Letter::read(&[&[2][..], &end[1..]].concat()).is_none(), "another kind");
    }

    #[test]
    fn after_a_peers_close_only_messages_that_it_had_sent_are_due() {
        let reached = |pair: &Pair, received, sent| pair.reached(Counts { sent, received });
        let mut pair = Pair::new(NAME, 1, 0, 0);
        assert_eq!(reached(&pair, 0, 0), Reached::All);
        assert_eq!(reached(&pair, 1, 0), Reached::NotYet);
        pair.ended = Some(Counts { sent: 1, received: 1 });
        assert_eq!(reached(&pair, 1, 1), Reached::NotYet, "the peer had sent it before the close");
        assert_eq!(reached(&pair, 0, 1), Reached::All, "the peer has received it");
        assert_eq!(reached(&pair, 0, 2), Reached::All, "the second message is not received");
        assert_eq!(reached(&pair, 2, 1), Reached::Closed);
        assert_eq!(
            reached(&pair, 1, 2),
            Reached::NotYet,
            "a message sent before the close still arrives"
        );
        pair.broken = Some(Arc::new(GroupError::Contract(String::new())));
        assert_eq!(reached(&pair, 1, 1), Reached::Broken, "the lost message was due");
        assert_eq!(reached(&pair, 2, 1), Reached::Closed);
        assert_eq!(
            reached(&pair, 1, 2),
            Reached::Closed,
            "the connection ends because the peer does not receive the message"
        );
    }

    #[test]
    fn a_rank_that_the_system_lets_connect_no_pair_is_named_and_not_its_peer() {
        ranks(&buffering(), 2, |group| {
            if group.rank() == 1 {
                let mut state = group.shared.lock();
                // Each attempt to connect to rank 0 fails, as if there were no more open files.
                let (_listener, mut handle) = state.mesh.net.listen(0).unwrap();
                handle.0[12] = u8::MAX;
                let letter = [Letter::head(PAIR, NAME), handle.0.to_vec()].concat();
                state.mesh.place().mail(0, &letter).unwrap();
                drop(state);
                let error = group.recv(&mut [0_u8], 0, 1).unwrap_err().to_string();
                assert!(error.starts_with("rank 0 is lost: rank 1 cannot be reached"), "{error}");
                return;
            }
            let buffer = Buffer::new(8).unwrap();
            group.shared.lock().mesh.open_pair(1, NAME, &buffer).unwrap();
            let mut wait = Wait::bounded();
            let error = loop {
                let mut state = group.shared.lock();
                let stepped = state.mesh.step_pairs(NAME, [1].into_iter(), &mut wait);
                let reached = stepped
                    .and_then(|_| state.mesh.reached(1, NAME, Counts { sent: 0, received: 1 }));
                match reached {
                    Ok(reached) => assert_eq!(reached, Reached::NotYet),
                    Err(error) => break error.to_string(),
                }
                drop(state);
                std::thread::yield_now();
            };
            assert!(error.starts_with("rank 1 cannot be reached: the plugin's connect"), "{error}");
        });
    }
}
