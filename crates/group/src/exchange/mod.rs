//! A sparse exchange: every rank sends any number of messages to some ranks; no receiver knows in advance how many, or
//! how long they are.
//!
//! ```text
//! sender     message 0 … message k-1, end(k)      numbers travel beside the bytes; a message with metadata is two
//! receiver   counts, and has finished after k     so it takes nothing of the next exchange
//! ```
//! No lock is held while a caller sleeps. [`Exchange::wait`] makes all progress; for a future a waker says when to poll again.

mod incoming;
mod note;
mod outgoing;
mod payload;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::error::GroupError;
use crate::group::{Group, State};
use crate::loader::Element;
use crate::memory::CLAIMED_BYTES_MAX;
use crate::mesh::{Mesh, Name, Space, Wait, rest};
use crate::patience::Quiet;
use incoming::{Incoming, Rest};
use outgoing::Outgoing;

/// A message of an exchange.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message<T> {
    /// Metadata from the sender, up to [`META_BYTES_MAX`] bytes.
    pub meta: Vec<u8>,
    pub data: Vec<T>,
}

/// The longest metadata of a message.
pub const META_BYTES_MAX: usize = 32 << 10;

/// The most messages whose memory is kept to receive into.
const SPARES_MAX: usize = 4;

/// The longest message of an exchange in bytes, unless [`Exchange::message_bytes_max`] sets another one.
const LIMIT: usize = CLAIMED_BYTES_MAX;

type Callback = Box<dyn FnOnce() + Send>;

/// One exchange between the ranks of a group: each rank names the ranks that it sends to and receives from.
///
/// Any thread may insert, by reference. The exchanges of a group are numbered: all its ranks must make them in the same order, even ranks
/// that send and receive nothing, which need not wait. Several may be open at once.
///
/// Dropped before its end, it is cancelled: messages that still arrive for it are dropped, and its destinations get
/// [`GroupError::Cancelled`], unless this rank has finished and filled all reserved places: then all its messages still arrive.
pub struct Exchange<T: Element = u8> {
    group: Group,
    space: Space,
    limit: usize,
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    incoming: Vec<Incoming<T>>,
    outgoing: Vec<Outgoing<T>>,
    callback: Option<Callback>,
    /// Memory to receive into.
    spare: Vec<Vec<T>>,
    /// Changes whenever anything of it moves.
    progress: u64,
    /// The pieces of the lanes with messages of it.
    pieces: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// All messages have come, and the memory of all that were sent is free.
    Complete,
    Failed,
}

impl<T: Element> fmt::Debug for Exchange<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("space", &self.space).finish_non_exhaustive()
    }
}

impl Group {
    /// Begins an exchange: `sources` may send to this rank, and this rank to `destinations`. All ranks of the group call it, in the same
    /// order as other exchanges; a rank that is a source here must name this one as a destination.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] for a rank that does not exist, is this one, or is named twice; a failure of the group.
    pub fn exchange<T: Element>(
        &self,
        sources: &[usize],
        destinations: &[usize],
    ) -> Result<Exchange<T>, GroupError> {
        let number = || self.counts.exchanges.fetch_add(1, Ordering::Relaxed);
        Exchange::new(self, || Space::exchange(0, number()), sources, destinations)
    }
}

impl<T: Element> Exchange<T> {
    /// `space` is called only after the ranks are checked: an error there reaches no other rank, so it must not take a number.
    pub(crate) fn new(
        group: &Group,
        space: impl FnOnce() -> Space,
        sources: &[usize],
        destinations: &[usize],
    ) -> Result<Self, GroupError> {
        let peers = |ranks: &[usize]| {
            let mut peers = Vec::with_capacity(ranks.len());
            for (index, rank) in ranks.iter().enumerate() {
                if ranks[..index].contains(rank) {
                    return Err(GroupError::InvalidArgument(format!("rank {rank} is named twice")));
                }
                peers.push((*rank, group.other(*rank)?));
            }
            Ok(peers)
        };
        let (sources, destinations) = (peers(sources)?, peers(destinations)?);
        group.shared.enter()?.mesh.check()?;
        let inner = Inner {
            incoming: sources.into_iter().map(|(rank, peer)| Incoming::new(rank, peer)).collect(),
            outgoing: destinations
                .into_iter()
                .map(|(rank, peer)| Outgoing::new(rank, peer))
                .collect(),
            callback: None,
            spare: Vec::new(),
            progress: 0,
            pieces: 0,
            stage: Stage::Running,
        };
        let space = space();
        Ok(Self { group: group.clone(), space, limit: LIMIT, inner: Mutex::new(inner) })
    }

    /// Limits a message's bytes. A longer message is an error of its sender, and nothing is allocated for it. Default: 64 GiB.
    #[must_use]
    pub fn message_bytes_max(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Runs once, when the exchange is complete here, in the thread that detects it; no lock is held.
    #[must_use]
    pub fn on_complete(self, callback: impl FnOnce() + Send + 'static) -> Self {
        self.lock().callback = Some(Box::new(callback));
        self
    }

    /// Sends a message. Messages to one rank arrive in the order of their inserts.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`]: metadata longer than [`META_BYTES_MAX`]. [`GroupError::Usage`]: a rank that is no destination here,
    /// or an exchange that is finished. A failure of the group.
    pub fn insert(
        &self,
        destination: usize,
        meta: Vec<u8>,
        data: Vec<T>,
    ) -> Result<(), GroupError> {
        fits(&meta)?;
        let mut inner = self.enter()?;
        let outgoing = inner.outgoing(destination)?;
        let number = outgoing.reserve()?;
        outgoing.send(&mut self.group.shared.lock(), self.name(), number, meta, data)
    }

    /// Reserves the next message to a rank, for data that is not ready yet: later messages may be sent before it, and are ordered after it.
    /// The exchange cannot complete before it is filled: where a place is dropped without its message, waits for the exchange return
    /// [`GroupError::Usage`] here, and [`GroupError::Cancelled`] on the other ranks once it is dropped.
    ///
    /// # Errors
    ///
    /// As [`Exchange::insert`].
    pub fn reserve(&self, destination: usize) -> Result<Reserved<'_, T>, GroupError> {
        let number = self.enter()?.outgoing(destination)?.reserve()?;
        Ok(Reserved { exchange: self, destination, number, is_filled: false })
    }

    /// Ends the inserts of this rank.
    ///
    /// # Errors
    ///
    /// [`GroupError::Usage`] the second time; [`GroupError::PeerLost`] for a destination that has left, when all others know the end; a failure
    /// of the group.
    pub fn finish(&self) -> Result<(), GroupError> {
        let mut inner = self.enter()?;
        let mut state = self.group.shared.lock();
        let mut first = inner.outgoing.is_empty();
        let mut ended = Ok(());
        for outgoing in &mut inner.outgoing {
            match outgoing.finish(&mut state, self.name()) {
                Ok(now) => first |= now,
                Err(error) => ended = ended.and(Err(error)),
            }
        }
        ended?;
        if first {
            Ok(())
        } else {
            Err(GroupError::Usage("an exchange can be finished only once".to_owned()))
        }
    }

    /// Sends the only message to a rank, and ends the inserts for that rank. `with_next`: another message to it follows at once, in any
    /// exchange.
    pub(crate) fn insert_only(
        &self,
        destination: usize,
        data: Vec<T>,
        with_next: bool,
    ) -> Result<(), GroupError> {
        let mut inner = self.enter()?;
        let mut state = self.group.shared.lock();
        inner.outgoing(destination)?.send_only(&mut state, self.name(), data, with_next)
    }

    /// Waits until all messages have arrived, and the memory of inserted ones is free. Some thread must call [`Exchange::finish`].
    ///
    /// # Errors
    ///
    /// [`GroupError::Timeout`] with the ranks that have not sent or received everything, after three quarters of [`Group::timeout`] without
    /// progress of this exchange; the group has not failed then. [`GroupError::Cancelled`]. [`GroupError::Mismatch`] and
    /// [`GroupError::OtherType`] for messages that do not belong to it. A failure of the group. After a timeout it may be waited for again;
    /// after another error it can only be dropped.
    pub fn wait(&self) -> Result<(), GroupError> {
        wait(&[self], own_limit(&self.group))
    }

    /// As [`Exchange::wait`], with another bound, which may be longer than [`Group::timeout`].
    ///
    /// # Errors
    ///
    /// As [`Exchange::wait`].
    pub fn wait_timeout(&self, limit: Duration) -> Result<(), GroupError> {
        wait(&[self], limit)
    }

    /// As [`Exchange::wait`], as a future for any executor. The group's own thread wakes the future;
    /// [`crate::group::Builder::progress_thread`] does not make that thread faster while a future waits.
    pub fn completion(&self) -> Completion<'_, T> {
        Completion { exchange: self, waiting: Waiting::new(own_limit(&self.group)) }
    }

    /// Whether the exchange is complete; makes progress.
    ///
    /// # Errors
    ///
    /// As [`Exchange::wait`], but no timeout.
    pub fn test(&self) -> Result<bool, GroupError> {
        self.group.shared.enter()?.mesh.poll(None)?;
        advance(&[self])
    }

    /// The messages of one rank, in the order of its inserts.
    ///
    /// # Errors
    ///
    /// [`GroupError::Usage`] for a rank that is no source here, or before the exchange is complete.
    pub fn take(&self, source: usize) -> Result<Vec<Message<T>>, GroupError> {
        let mut inner = self.enter()?;
        if inner.stage != Stage::Complete {
            return Err(GroupError::Usage("the exchange is not complete yet".to_owned()));
        }
        let found = inner.incoming.iter_mut().find(|incoming| incoming.rank == source);
        found.map(Incoming::take).ok_or_else(|| {
            GroupError::Usage(format!("rank {source} is no source of this exchange"))
        })
    }

    /// The bytes inserted and received so far, metadata included.
    pub fn bytes(&self) -> (u64, u64) {
        let inner = self.lock();
        let sent = inner.outgoing.iter().map(|outgoing| outgoing.bytes).sum();
        (sent, inner.incoming.iter().map(|incoming| incoming.bytes).sum())
    }

    /// Swaps the memory to receive into with `spare`, which then has the memory that is left.
    pub(crate) fn swap_spare(&self, spare: &mut Vec<Vec<T>>) {
        std::mem::swap(&mut self.lock().spare, spare);
    }

    fn name(&self) -> Name {
        Name { scope: self.group.scope, tag: 0, space: self.space, note: 0 }
    }

    /// The lock, for a call. The group's lock is taken after it.
    fn enter(&self) -> Result<MutexGuard<'_, Inner<T>>, GroupError> {
        self.group.shared.here()?;
        Ok(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One poll of the exchange. Whether it is complete.
    fn advance(&self) -> Result<bool, GroupError> {
        let mut inner = self.enter()?;
        match inner.stage {
            Stage::Running => {}
            Stage::Complete => return Ok(true),
            Stage::Failed => {
                // The first cause, if the group has failed.
                self.group.shared.lock().mesh.check()?;
                return Err(GroupError::Usage("the exchange has failed before".to_owned()));
            }
        }
        let advanced = inner.advance(&mut self.group.shared.lock(), self.name(), self.limit);
        inner.stage = match advanced {
            Ok(false) => Stage::Running,
            Ok(true) => Stage::Complete,
            Err(_) => Stage::Failed,
        };
        let is_complete = advanced?;
        let callback = if is_complete { inner.callback.take() } else { None };
        drop(inner);
        if let Some(callback) = callback {
            callback();
        }
        Ok(is_complete)
    }
}

impl<T: Element> Inner<T> {
    fn outgoing(&mut self, rank: usize) -> Result<&mut Outgoing<T>, GroupError> {
        self.outgoing.iter_mut().find(|outgoing| outgoing.rank == rank).ok_or_else(|| {
            GroupError::Usage(format!("rank {rank} is no destination of this exchange"))
        })
    }

    /// The ranks from which messages are due, or to which messages are under way; each as its rank in the group and in the mesh.
    fn awaited(&self) -> impl Iterator<Item = (usize, usize)> {
        let incoming = self.incoming.iter().filter(|one| !one.is_over());
        let outgoing = self.outgoing.iter().filter(|one| one.waits());
        incoming.map(|one| (one.rank, one.peer)).chain(outgoing.map(|one| (one.rank, one.peer)))
    }

    /// The pieces of all lanes in which messages of the exchange are under way.
    fn pieces(&self, mesh: &mut Mesh) -> u64 {
        let sending = self.outgoing.iter().filter(|one| one.waits());
        let sent: u64 = sending.map(|one| mesh.pieces_of(one.peer, one.oldest()).0).sum();
        let receiving = self.incoming.iter().filter(|one| one.receives());
        sent + receiving.map(|one| mesh.pieces_of(one.peer, one.operations()).1).sum::<u64>()
    }

    /// Makes progress. Returns whether the exchange is complete.
    fn advance(&mut self, state: &mut State, name: Name, limit: usize) -> Result<bool, GroupError> {
        let mut moved = false;
        state.mesh.check()?;
        for outgoing in &mut self.outgoing {
            moved |= outgoing.advance(state, &mut self.spare)?;
        }
        for incoming in self.incoming.iter_mut().filter(|incoming| !incoming.is_over()) {
            moved |= incoming.advance(state, name, limit, &mut self.spare)?;
        }
        let pieces = self.pieces(&mut state.mesh);
        if moved || pieces != self.pieces {
            self.pieces = pieces;
            self.progress += 1;
        }
        Ok(self.incoming.iter().all(Incoming::is_over)
            && self.outgoing.iter().all(Outgoing::is_over))
    }
}

impl<T: Element> Drop for Exchange<T> {
    fn drop(&mut self) {
        let name = self.name();
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        if inner.stage == Stage::Complete {
            return;
        }
        let Some(mut state) = self.group.shared.lock_here() else { return };
        for outgoing in std::mem::take(&mut inner.outgoing) {
            outgoing.cancel(&mut state, name);
        }
        let incoming = std::mem::take(&mut inner.incoming).into_iter();
        let due: Vec<_> = incoming.filter_map(|one| one.cancel(&mut state)).collect();
        if !due.is_empty() {
            state.mesh.cancel(name.scope, name.space, Rest(due));
        }
    }
}

/// A reserved message to one rank, to be filled.
#[derive(Debug)]
#[must_use = "an exchange with a place that is not filled does not complete"]
pub struct Reserved<'a, T: Element> {
    exchange: &'a Exchange<T>,
    destination: usize,
    number: u64,
    is_filled: bool,
}

impl<T: Element> Reserved<'_, T> {
    /// Sends the message.
    ///
    /// # Errors
    ///
    /// As [`Exchange::insert`]: after [`GroupError::InvalidArgument`] the place is still there to be filled. [`GroupError::Usage`] the second
    /// time.
    pub fn fill(&mut self, meta: Vec<u8>, data: Vec<T>) -> Result<(), GroupError> {
        fits(&meta)?;
        if std::mem::replace(&mut self.is_filled, true) {
            return Err(GroupError::Usage("a reserved place can be filled only once".to_owned()));
        }
        let exchange = self.exchange;
        let mut inner = exchange.enter()?;
        let outgoing = inner.outgoing(self.destination)?;
        let mut state = exchange.group.shared.lock();
        outgoing.send(&mut state, exchange.name(), self.number, meta, data)
    }
}

impl<T: Element> Drop for Reserved<'_, T> {
    fn drop(&mut self) {
        // In a forked child nothing releases the lock if another thread had it at the fork.
        if !self.is_filled
            && !self.exchange.group.shared.is_forked()
            && let Ok(outgoing) = self.exchange.lock().outgoing(self.destination)
        {
            outgoing.leave_open();
        }
    }
}

/// See [`Exchange::completion`].
#[derive(Debug)]
#[must_use = "a future does nothing unless polled"]
pub struct Completion<'a, T: Element> {
    exchange: &'a Exchange<T>,
    waiting: Waiting,
}

impl<T: Element> Future for Completion<'_, T> {
    type Output = Result<(), GroupError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let exchange = self.exchange;
        self.waiting.poll(&[exchange], context)
    }
}

/// The state of a future of exchanges between polls.
#[derive(Debug)]
pub(crate) struct Waiting {
    limit: Duration,
    /// Since the first poll.
    quiet: Option<Quiet>,
}

impl Waiting {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, quiet: None }
    }

    pub(crate) fn poll<T: Element>(
        &mut self,
        exchanges: &[&Exchange<T>],
        context: &Context<'_>,
    ) -> Poll<Result<(), GroupError>> {
        let Some(first) = exchanges.first() else { return Poll::Ready(Ok(())) };
        let shared = &first.group.shared;
        if let Err(forked) = shared.here() {
            return Poll::Ready(Err(forked));
        }
        // Registered before the check, so that no later event is missed.
        shared.wakers.add(context.waker());
        // Messages that have arrived count first, even if this poll comes after the timeout.
        let advanced = match advance(exchanges) {
            Ok(false) => {
                let polled = shared.lock().mesh.poll(None);
                polled.and_then(|_| advance(exchanges))
            }
            ended => ended,
        };
        if let Ok(false) = advanced {
            let quiet = self.quiet.get_or_insert_with(|| Quiet::new(self.limit));
            if !quiet.is_over(progress(exchanges)) {
                return Poll::Pending;
            }
        }
        self.quiet = None;
        Poll::Ready(match advanced {
            Ok(true) => Ok(()),
            Ok(false) => Err(late(exchanges, self.limit)),
            Err(error) => Err(named(exchanges, error)),
        })
    }
}

/// How long an exchange waits without progress: its timeout must come before the group's, which would fail the group.
pub(crate) fn own_limit(group: &Group) -> Duration {
    group.timeout() / 4 * 3
}

fn advance<T: Element>(exchanges: &[&Exchange<T>]) -> Result<bool, GroupError> {
    let mut over = true;
    for exchange in exchanges {
        over &= exchange.advance()?;
    }
    Ok(over)
}

/// Waits for all exchanges.
pub(crate) fn wait<T: Element>(
    exchanges: &[&Exchange<T>],
    limit: Duration,
) -> Result<(), GroupError> {
    let Some(first) = exchanges.first() else { return Ok(()) };
    let shared = &first.group.shared;
    let (mut quiet, mut waited) = (Quiet::new(limit), Wait::bounded());
    let mut polls = 0_u32;
    let ended = loop {
        match advance(exchanges) {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err(error),
        }
        // Only that peer is polled each time. `advance` finds out whether it has left, after all that it has sent.
        let focus = only_awaited(exchanges);
        let mut state = shared.lock();
        let stepped = state.mesh.after(focus, &mut waited);
        let pace = state.mesh.pace();
        drop(state);
        let idle = match stepped {
            Ok(idle) => idle,
            Err(error) => break Err(error),
        };
        // Other traffic can keep the polls busy: the clock must be read then, too.
        polls = polls.wrapping_add(1);
        let reads_clock = idle.is_some() || polls.is_multiple_of(CLOCK_EVERY);
        if reads_clock && quiet.is_over(progress(exchanges)) {
            break Err(late(exchanges, limit));
        }
        if let Some(idle) = idle {
            rest(pace, idle);
        }
    };
    ended.map_err(|error| named(exchanges, error))
}

/// The rank in the mesh that the exchanges wait for, if it is the only one.
fn only_awaited<T: Element>(exchanges: &[&Exchange<T>]) -> Option<usize> {
    let mut only = None;
    for exchange in exchanges {
        for (_, peer) in exchange.lock().awaited() {
            if *only.get_or_insert(peer) != peer {
                return None;
            }
        }
    }
    only
}

/// The number of polls in a row without reading the clock.
const CLOCK_EVERY: u32 = 64;

/// A count that changes whenever one of the exchanges makes progress.
fn progress<T: Element>(exchanges: &[&Exchange<T>]) -> u64 {
    exchanges.iter().map(|exchange| exchange.lock().progress).sum()
}

/// The timeout of a wait in which nothing has moved for `limit`.
fn late<T: Element>(exchanges: &[&Exchange<T>], limit: Duration) -> GroupError {
    let error = GroupError::Timeout { peers: Vec::new(), awaited: String::new(), limit };
    named(exchanges, error)
}

/// Adds to a timeout without ranks the ranks that the exchanges wait for.
fn named<T: Element>(exchanges: &[&Exchange<T>], error: GroupError) -> GroupError {
    match error {
        GroupError::Timeout { peers, limit, .. } if peers.is_empty() => {
            let peers = silent(exchanges);
            let awaited = match &*peers {
                [] => "this rank to finish the exchange".to_owned(),
                [rank] => format!("rank {rank} in an exchange"),
                _ => format!("ranks {peers:?} in an exchange"),
            };
            GroupError::Timeout { peers, awaited, limit }
        }
        other => other,
    }
}

/// The ranks that the exchanges wait for. Both directions of a halo may wait for the same one.
fn silent<T: Element>(exchanges: &[&Exchange<T>]) -> Vec<usize> {
    let mut ranks = Vec::new();
    for exchange in exchanges {
        ranks.extend(exchange.lock().awaited().map(|(rank, _)| rank));
    }
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

fn fits(meta: &[u8]) -> Result<(), GroupError> {
    if meta.len() > META_BYTES_MAX {
        let len = meta.len();
        let why = format!("metadata of {len} bytes, more than {META_BYTES_MAX}");
        return Err(GroupError::InvalidArgument(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Instant;

    use super::note::Note;
    use super::*;
    use crate::loader::{DataType, Place};
    use crate::support::{WAIT, buffering, library, ranks};

    #[derive(Clone, Copy, Debug)]
    enum Sent {
        Nothing,
        Some,
        Last,
        Cancelled,
    }

    /// Rank 1 sends to rank 0, which drops the exchange, if `late` after the first message.
    fn drop_one(group: &Group, sent: Sent, late: bool) {
        let own = group.rank();
        let (sources, destinations) = ([1], [0]);
        let (sources, destinations) =
            if own == 0 { (&sources[..], &[][..]) } else { (&[][..], &destinations[..]) };
        let exchange = group.exchange::<u64>(sources, destinations).unwrap();
        if own == 0 {
            let deadline = Instant::now() + WAIT;
            while late && exchange.bytes().1 == 0 {
                assert!(Instant::now() < deadline && !exchange.test().unwrap());
            }
            return;
        }
        match sent {
            Sent::Last => return exchange.insert_only(0, vec![7; 3], false).unwrap(),
            Sent::Nothing => {}
            Sent::Some | Sent::Cancelled => {
                exchange.insert(0, vec![], vec![7; 3]).unwrap();
                group.meet(&[]).unwrap();
                exchange.insert(0, vec![1, 2, 3], vec![7; 100_000]).unwrap();
                exchange.insert(0, vec![4], vec![]).unwrap();
            }
        }
        if !matches!(sent, Sent::Cancelled) {
            exchange.finish().unwrap();
            exchange.wait().unwrap();
        }
    }

    /// A peer's wrong count must not free memory that its bytes still go to.
    #[test]
    fn an_exchange_whose_peer_counts_too_few_is_not_complete_while_bytes_are_under_way() {
        let is_over = Arc::<AtomicBool>::default();
        ranks(&library(), 2, move |group| {
            let sources: &[usize] = if group.rank() == 0 { &[1] } else { &[] };
            let exchange = group.exchange::<u8>(sources, &[]).unwrap();
            group.barrier().unwrap();
            if group.rank() == 1 {
                let long = vec![7_u8; 64 << 20];
                let mut state = group.shared.lock();
                let mut send = |note: Note, place| {
                    let name = Name { note: note.encode(), ..exchange.name() };
                    state.mesh.send(0, name, DataType::U8, place).unwrap()
                };
                let op = send(Note::Whole(0), Place::reading(&long));
                send(Note::Finish(0), Place::empty());
                // No more bytes of the message leave while the lock is held.
                let end = Instant::now() + WAIT;
                while !is_over.load(Ordering::Acquire) && Instant::now() < end {
                    thread::yield_now();
                }
                assert!(state.keep(op, long).is_none());
                drop(state);
            } else {
                let ended = exchange.wait();
                let is_refused = matches!(ended, Err(GroupError::Mismatch { rank: 1, .. }));
                assert!(is_refused, "{ended:?}");
                drop(exchange);
                is_over.store(true, Ordering::Release);
            }
            // Not a barrier: a plugin that fails earlier receives with a later one loses its part, where this rank is busy with the long
            // message until the other has left.
            group.meet(&[]).unwrap();
        });
    }

    const LONG: usize = 1 << 20;

    /// Rank 0 sends a long message to rank 1.
    fn send_long(group: &Group) {
        let (sources, destinations): (&[usize], &[usize]) =
            if group.rank() == 0 { (&[], &[1]) } else { (&[0], &[]) };
        let exchange = group.exchange::<u8>(sources, destinations).unwrap();
        if group.rank() == 0 {
            exchange.insert(1, vec![], vec![7; LONG]).unwrap();
        }
        exchange.finish().unwrap();
        exchange.wait().unwrap();
        if group.rank() == 1 {
            assert!(exchange.take(0).unwrap()[0].data == [7; LONG]);
        }
    }

    #[test]
    fn a_vector_is_registered_for_its_message_if_it_is_as_long_as_was_measured() {
        for (least, registers) in [(LONG, 1), (LONG + 1, 0)] {
            ranks(&buffering(), 2, move |group| {
                send_long(&group);
                // With its first long connection the device is measured. What that gives, the load of the machine decides.
                let (other, end) = (1 - group.rank(), Instant::now() + WAIT);
                while !group.shared.lock().mesh.has_measured(other) {
                    assert!(Instant::now() < end, "the device is never measured");
                    group.shared.lock().mesh.poll(None).unwrap();
                }
                group.shared.lock().mesh.lend_from(other, least);
                group.barrier().unwrap();
                for number in 1..3 {
                    send_long(&group);
                    assert_eq!(group.registrations(), number * registers);
                    assert_eq!(group.shared.lock().mesh.buffers(), 0, "none stays registered");
                }
                group.barrier().unwrap();
            });
        }
    }

    #[test]
    fn a_registered_vector_of_an_exchange_that_was_dropped_is_freed_once_it_is_sent() {
        ranks(&buffering(), 2, |group| {
            send_long(&group);
            group.shared.lock().mesh.lend_from(1 - group.rank(), LONG);
            let (sources, destinations): (&[usize], &[usize]) =
                if group.rank() == 0 { (&[], &[1]) } else { (&[0], &[]) };
            let exchange = group.exchange::<u8>(sources, destinations).unwrap();
            if group.rank() == 0 {
                exchange.insert(1, vec![], vec![7; 64 * LONG]).unwrap();
                drop(exchange);
                assert_eq!(group.shared.lock().mesh.buffers(), 1, "the plugin may still read it");
                group.meet(&[]).unwrap();
            } else {
                group.meet(&[]).unwrap();
                let ended = exchange.wait();
                assert!(matches!(ended, Err(GroupError::Cancelled { rank: 0 })), "{ended:?}");
                drop(exchange);
            }
            let end = Instant::now() + WAIT;
            while group.shared.lock().mesh.buffers() > 0 {
                assert!(Instant::now() < end, "it is never deregistered");
                thread::yield_now();
            }
            group.barrier().unwrap();
        });
    }

    #[test]
    fn nothing_is_kept_of_an_exchange_with_a_rank_that_has_left() {
        ranks(&library(), 2, |group| {
            if group.rank() == 1 {
                return;
            }
            for _ in 0..3 {
                let exchange = group.exchange::<u8>(&[1], &[]).unwrap();
                let ended = exchange.wait();
                assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
            }
            assert_eq!(group.shared.lock().mesh.cancellations(), 0);
        });
    }

    #[test]
    fn an_exchange_frees_what_it_has_sent() {
        ranks(&library(), 2, |group| {
            let (sources, destinations): (&[usize], &[usize]) =
                if group.rank() == 0 { (&[], &[1]) } else { (&[0], &[]) };
            let exchange = group.exchange::<u8>(sources, destinations).unwrap();
            for _ in 0..10 * SPARES_MAX * destinations.len() {
                exchange.insert(1, vec![], vec![7; 1000]).unwrap();
            }
            exchange.finish().unwrap();
            exchange.wait().unwrap();
            let kept = exchange.lock().spare.len();
            assert!(kept <= SPARES_MAX, "{kept}");
        });
    }

    #[test]
    fn nothing_is_kept_of_an_exchange_that_was_cancelled_once_its_messages_have_come() {
        ranks(&library(), 2, |group| {
            for sent in [Sent::Nothing, Sent::Some, Sent::Last, Sent::Cancelled] {
                for late in [false, true] {
                    let some = matches!(sent, Sent::Some | Sent::Cancelled);
                    if some || !late {
                        drop_one(&group, sent, late);
                    }
                    if some && group.rank() == 0 {
                        group.meet(&[]).unwrap();
                    }
                }
                group.barrier().unwrap();
                let state = group.shared.lock();
                let kept = (state.mesh.cancellations(), state.mesh.unexpected());
                drop(state);
                assert_eq!(kept, (0, 0), "{sent:?}");
                // Nothing of the next exchange comes before.
                group.meet(&[]).unwrap();
            }
        });
    }

    #[test]
    fn a_rank_that_several_exchanges_wait_for_is_named_once() {
        ranks(&library(), 3, |group| {
            let others: Vec<_> = (0..3).filter(|rank| *rank != group.rank()).collect();
            let (first, last) = (others[0], others[1]);
            let of = |sources: &[usize]| group.exchange::<u8>(sources, &[]).unwrap();
            let named = |exchanges: &[&Exchange<u8>]| match wait(exchanges, Duration::ZERO) {
                Err(GroupError::Timeout { peers, awaited, .. }) => (peers, awaited),
                ended => panic!("{ended:?}"),
            };
            // As the two directions of a halo in a ring of two.
            let (one, other) = (of(&[last]), of(&[last]));
            assert_eq!(named(&[&one, &other]), (vec![last], format!("rank {last} in an exchange")));
            let both = of(&[last, first]);
            let text = format!("ranks {others:?} in an exchange");
            assert_eq!(named(&[&one, &both]), (others, text));
            group.meet(&[]).unwrap();
        });
    }

    /// Exchanges in which rank 0 sends to rank 1.
    fn to_rank_1(group: &Group) -> Exchange<u8> {
        let (sources, destinations): (&[usize], &[usize]) =
            if group.rank() == 0 { (&[], &[1]) } else { (&[0], &[]) };
        group.exchange(sources, destinations).unwrap()
    }

    #[test]
    fn a_timeout_names_the_ranks_to_which_messages_are_under_way() {
        ranks(&library(), 2, |group| {
            let exchange = to_rank_1(&group);
            if group.rank() == 0 {
                exchange.insert(1, vec![], vec![7; 64 * LONG]).unwrap();
                exchange.finish().unwrap();
                let ended = exchange.wait_timeout(Duration::ZERO);
                let is_late = |error: &GroupError| match error {
                    GroupError::Timeout { peers, .. } => *peers == [1],
                    _ => false,
                };
                assert!(ended.as_ref().is_err_and(is_late), "{ended:?}");
            }
            group.meet(&[]).unwrap();
            exchange.wait().unwrap();
            group.barrier().unwrap();
        });
    }

    #[test]
    fn a_message_and_the_pieces_of_a_long_one_are_progress_and_a_poll_is_none() {
        let is_read = Arc::<AtomicBool>::default();
        ranks(&library(), 2, move |group| {
            let (exchange, end) = (to_rank_1(&group), Instant::now() + WAIT);
            group.barrier().unwrap();
            if group.rank() == 0 {
                exchange.insert(1, vec![], vec![7]).unwrap();
                exchange.insert(1, vec![], vec![7; 64 * LONG]).unwrap();
                exchange.finish().unwrap();
                // After the first pieces nothing leaves while the lock is held.
                let mut state = group.shared.lock();
                while state.mesh.pieces(1).0 < 3 && Instant::now() < end {
                    state.mesh.poll(None).unwrap();
                }
                while !is_read.load(Ordering::Acquire) && Instant::now() < end {
                    thread::yield_now();
                }
                drop(state);
            } else {
                assert_eq!(progress(&[&exchange]), 0);
                let mut last = 0;
                loop {
                    assert!(!exchange.test().unwrap() && Instant::now() < end, "{last}");
                    let now = progress(&[&exchange]);
                    if exchange.lock().pieces > 1 && now > 0 && now == last {
                        break;
                    }
                    last = now;
                }
                is_read.store(true, Ordering::Release);
            }
            exchange.wait().unwrap();
            group.barrier().unwrap();
        });
    }

    #[test]
    fn pieces_of_a_message_in_registered_memory_are_no_progress_of_one_in_other_memory() {
        ranks(&library(), 2, |group| {
            let exchange = to_rank_1(&group);
            let mut other = group.buffer::<u8>(1 << 20).unwrap();
            if group.rank() == 0 {
                group.shared.lock().mesh.lend_from(1, usize::MAX);
                exchange.insert(1, vec![], vec![7; 64 * LONG]).unwrap();
                exchange.finish().unwrap();
            }
            // Rank 1 does not receive the message of the exchange, of which the connection takes the first pieces.
            let mut stays = false;
            for _ in 0..100 {
                if group.rank() == 1 {
                    group.recv(&mut other, 0, 1).unwrap();
                    continue;
                }
                assert!(!exchange.test().unwrap());
                let before = progress(&[&exchange]);
                group.send(&other, 1, 1).unwrap();
                assert!(!exchange.test().unwrap());
                stays |= progress(&[&exchange]) == before;
            }
            assert!(stays || group.rank() == 1);
            exchange.wait().unwrap();
            group.barrier().unwrap();
        });
    }

    #[test]
    fn a_callback_runs_when_the_exchange_is_complete_and_without_its_lock() {
        ranks(&library(), 2, |group| {
            let (calls, called) = std::sync::mpsc::channel();
            let own = Arc::new(std::sync::OnceLock::<Arc<Exchange<u8>>>::new());
            let of_callback = Arc::clone(&own);
            let exchange = to_rank_1(&group).on_complete(move || {
                let is_free = of_callback.get().unwrap().inner.try_lock().is_ok();
                calls.send(is_free).unwrap();
            });
            let exchange = Arc::clone(own.get_or_init(|| Arc::new(exchange)));
            assert!(!exchange.test().unwrap() && called.try_recv().is_err());
            // Rank 1 cannot be complete before.
            group.meet(&[]).unwrap();
            exchange.finish().unwrap();
            exchange.wait().unwrap();
            assert_eq!(called.try_recv(), Ok(true));
            assert!(exchange.test().unwrap() && called.try_recv().is_err());
            group.barrier().unwrap();
        });
    }

    #[test]
    fn a_future_that_was_late_waits_anew() {
        ranks(&library(), 2, |group| {
            let exchange = to_rank_1(&group);
            let mut waiting = Waiting::new(Duration::ZERO);
            let context = Context::from_waker(std::task::Waker::noop());
            let polled = waiting.poll(&[&exchange], &context);
            assert!(matches!(polled, Poll::Ready(Err(GroupError::Timeout { .. }))), "{polled:?}");
            assert!(waiting.quiet.is_none());
            group.meet(&[]).unwrap();
        });
    }

    #[test]
    fn an_exchange_keeps_no_operation() {
        ranks(&library(), 2, |group| {
            for _ in 0..3 {
                let exchange = to_rank_1(&group);
                if group.rank() == 0 {
                    exchange.insert(1, vec![1], vec![7; 100]).unwrap();
                    exchange.insert(1, vec![], vec![7; LONG]).unwrap();
                }
                exchange.finish().unwrap();
                exchange.wait().unwrap();
                assert_eq!(group.shared.lock().mesh.operations(), 0);
            }
            group.barrier().unwrap();
        });
    }

    #[test]
    fn a_destination_that_leaves_is_an_error_of_an_exchange_that_is_not_finished() {
        ranks(&library(), 2, |group| {
            if group.rank() == 0 {
                let ended = to_rank_1(&group).wait();
                assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
            }
        });
    }

    #[test]
    fn each_call_of_an_exchange_returns_the_first_cause_of_a_failure_of_its_group() {
        ranks(&library(), 2, |group| {
            let exchange = to_rank_1(&group);
            assert!(!exchange.test().unwrap());
            // The other rank may abort meanwhile.
            let _met = group.meet(&[]);
            group.abort();
            for _ in 0..2 {
                for ended in
                    [exchange.test().map(drop), exchange.wait(), advance(&[&exchange]).map(drop)]
                {
                    assert!(matches!(ended, Err(GroupError::Aborted { .. })), "{ended:?}");
                }
            }
        });
    }

    #[test]
    fn metadata_may_be_32_kib_long() {
        fits(&[0; META_BYTES_MAX]).unwrap();
        assert!(fits(&[0; META_BYTES_MAX + 1]).is_err());
    }
}
