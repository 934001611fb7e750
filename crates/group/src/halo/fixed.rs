//! Halos whose borders keep their lengths: nothing is announced, and receives are posted rounds ahead.
//!
//! ```text
//! one buffer, registered     out 0 | out 1 | in 0 | in 1 | … | in a-1
//! round n                    sends out[n % 2], waits for in[n % a], and posts the receive of round n + a - 1 into the set of round n - 1
//! ```
//! So a round's borders may be read until the next round begins, and a send is waited for one round later. Long borders have only one set
//! to send, and a round waits for its own send; the longest have only one set to receive into, whose receive is posted when its round
//! begins.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use super::layout::Layout;
use super::{Shape, neighbours};
use crate::error::GroupError;
use crate::exchange::own_limit;
use crate::group::{Group, State};
use crate::loader::{Buffer, Element, Place};
use crate::mesh::{Counts, PairName, Reached, Wait, rest, type_name, type_number};
use crate::patience::Quiet;

/// The borders from the left and from the right, in the memory that they were received into.
pub type FixedBorders<'a, T> = (Option<&'a [T]>, Option<&'a [T]>);

/// As [`super::Halo1d`], for borders whose lengths are the same in every round.
///
/// Borders are written into and read from registered memory, with a connection of its own to each neighbour. No round allocates,
/// registers or announces anything.
///
/// Dropping a halo cancels it: borders that were sent still arrive, and a neighbour that begins a round which this rank did not begin gets
/// [`GroupError::Cancelled`].
pub struct FixedHalo1d<T: Element> {
    group: Group,
    name: PairName,
    /// Until the halo is dropped.
    buffer: Option<Buffer>,
    layout: Layout<T>,
    /// Ranks of the group.
    left: Option<usize>,
    right: Option<usize>,
    links: Vec<Link>,
    /// How many rounds have begun.
    rounds: u64,
    /// The last round has not been waited for to its end.
    under_way: bool,
}

impl<T: Element> fmt::Debug for FixedHalo1d<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, layout, rounds, .. } = self;
        let mut out = f.debug_struct("FixedHalo1d");
        out.field("name", name).field("layout", layout).field("rounds", rounds);
        out.finish_non_exhaustive()
    }
}

/// A neighbour that borders are swapped with. A ring of two ranks has one, with both borders in one message.
#[derive(Clone, Debug)]
struct Link {
    /// The neighbour's rank in the group.
    rank: usize,
    /// The neighbour's rank in the mesh.
    peer: usize,
    /// Bytes of the buffer, in the first round.
    out: Range<usize>,
    into: Range<usize>,
}

impl<T: Element> FixedHalo1d<T> {
    /// A row: rank 0 has no left neighbour, the last rank no right one. `left` and `right` are the borders' lengths in elements: a
    /// rank's `right` is its right neighbour's `left`, and 0 swaps nothing there. All ranks of the group call it.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] on all ranks where two neighbours give other lengths or other elements, and for borders that do not
    /// fit memory; a collective's.
    pub fn new(group: &Group, left: usize, right: usize) -> Result<Self, GroupError> {
        Self::between(group, Shape::Row, (left, right))
    }

    /// A ring: the last rank is on the left of rank 0. A rank that is alone is its own neighbour.
    ///
    /// # Errors
    ///
    /// As [`FixedHalo1d::new`].
    pub fn ring(group: &Group, left: usize, right: usize) -> Result<Self, GroupError> {
        Self::between(group, Shape::Ring, (left, right))
    }

    fn between(group: &Group, shape: Shape, lengths: (usize, usize)) -> Result<Self, GroupError> {
        let (left, right) = neighbours(group, shape);
        let number = group.counts.streams.fetch_add(1, Ordering::Relaxed);
        let together = left.is_some() && left == right && left != Some(group.rank());
        let layout = Layout::new(lengths, together);
        let made = layout.and_then(|layout| Ok((layout, Buffer::new(layout.bytes())?)));
        let rows = exchange_rows::<T>(group, lengths, made.is_ok())?;
        let (layout, buffer) = made?;
        agree(&rows, shape)?;
        let name = PairName { scope: group.scope, number };
        let links = links(group, &layout, left, right)?;
        let mut halo = Self {
            group: group.clone(),
            name,
            buffer: Some(buffer),
            layout,
            left,
            right,
            links,
            rounds: 0,
            under_way: false,
        };
        halo.open()?;
        Ok(halo)
    }

    fn open(&mut self) -> Result<(), GroupError> {
        let Some(buffer) = &self.buffer else { return Ok(()) };
        let whole = buffer.memory().place();
        let mut state = self.group.shared.enter()?;
        for Link { peer, into, .. } in &self.links {
            state.mesh.open_pair(*peer, self.name, buffer)?;
            for round in 0..self.layout.ahead() - 1 {
                let into = whole.part(into.start + self.layout.came(round), into.len());
                state.mesh.push_pair(*peer, self.name, Place::empty(), into)?;
            }
        }
        Ok(())
    }

    /// The neighbours' ranks.
    pub fn neighbours(&self) -> (Option<usize>, Option<usize>) {
        (self.left, self.right)
    }

    /// Lets `fill` write the borders to the left and to the right, sends them, and returns those from the left and from the right; None
    /// where there is no neighbour. The memory that `fill` gets holds the borders of one or two rounds before, at first zeros.
    ///
    /// # Errors
    ///
    /// [`GroupError::Timeout`] with the neighbours that stay silent, after three quarters of [`Group::timeout`]: the group has not failed then,
    /// and the next round waits for this one first. [`GroupError::Cancelled`] where a neighbour has dropped its halo; a failure of the
    /// group.
    pub fn round(
        &mut self,
        fill: impl FnOnce(&mut [T], &mut [T]),
    ) -> Result<FixedBorders<'_, T>, GroupError> {
        self.begin(fill)?.wait()
    }

    /// Begins a round, which makes progress while the caller computes; the future ends as [`FixedHalo1d::round`]. If the future is dropped,
    /// the round continues: the next round first waits for it, and its borders are dropped.
    ///
    /// # Errors
    ///
    /// As [`FixedHalo1d::round`].
    pub fn begin(
        &mut self,
        fill: impl FnOnce(&mut [T], &mut [T]),
    ) -> Result<FixedRound<'_, T>, GroupError> {
        if self.under_way {
            self.wait()?;
        }
        let Self { buffer: Some(buffer), layout, name, links, rounds, .. } = self else {
            return Err(GroupError::Usage("the halo has ended".to_owned()));
        };
        let (left, right) = layout.out(buffer, *rounds)?;
        fill(left, right);
        let whole = buffer.memory().place();
        let part = |range: &Range<usize>, shift| whole.part(range.start + shift, range.len());
        let (sent, free) = (layout.sent(*rounds), layout.came(*rounds + layout.ahead() - 1));
        let mut state = self.group.shared.enter()?;
        // Before any send: a round that does not begin sends nothing to the other neighbour.
        links.iter().try_for_each(|link| state.mesh.reach_pairs(link.peer))?;
        for Link { peer, out, into, .. } in &*links {
            state.mesh.push_pair(*peer, *name, part(out, sent), part(into, free))?;
        }
        drop(state);
        self.rounds += 1;
        self.under_way = true;
        let limit = own_limit(&self.group);
        Ok(FixedRound { halo: Some(self), limit, quiet: None })
    }

    /// Waits for the last round that [`FixedHalo1d::begin`] has begun, if it is still in progress, and returns its borders.
    ///
    /// # Errors
    ///
    /// As [`FixedHalo1d::round`]; [`GroupError::Usage`] before the first round.
    pub fn end(&mut self) -> Result<FixedBorders<'_, T>, GroupError> {
        if self.under_way {
            self.wait()?;
        }
        self.borders()
    }

    /// Waits for the round that is under way.
    fn wait(&mut self) -> Result<(), GroupError> {
        let limit = own_limit(&self.group);
        let (mut quiet, mut waited) = (Quiet::new(limit), Wait::bounded());
        let ended = loop {
            let mut state = self.group.shared.enter()?;
            let (waits_for, stepped, pace) = match self.awaited_rank(&mut state) {
                Ok(None) => break Ok(()),
                Ok(Some(rank)) => (rank, self.step(&mut state, &mut waited), state.mesh.pace()),
                Err(why) => break Err(why),
            };
            let progress = self.progress(&mut state);
            drop(state);
            match stepped {
                Ok(None) => {}
                Ok(Some(idle)) if !quiet.is_over(progress) => rest(pace, idle),
                Ok(Some(_)) => break Err(self.late(waits_for, limit)),
                Err(why) => break Err(why),
            }
        };
        ended?;
        self.under_way = false;
        Ok(())
    }

    /// The messages of a pair that the current round waits for.
    fn due(&self) -> Counts {
        let sent = self.layout.sent_before_next(self.rounds);
        Counts { sent, received: self.rounds }
    }

    /// A rank that the current round still waits for.
    fn awaited_rank(&self, state: &mut State) -> Result<Option<usize>, GroupError> {
        for Link { rank, peer, .. } in &self.links {
            match state.mesh.reached(*peer, self.name, self.due())? {
                Reached::All => {}
                Reached::NotYet | Reached::Broken => return Ok(Some(*rank)),
                Reached::Closed => return Err(GroupError::Cancelled { rank: *rank }),
            }
        }
        Ok(None)
    }

    fn step(&self, state: &mut State, wait: &mut Wait) -> Result<Option<Duration>, GroupError> {
        state.mesh.step_pairs(self.name, self.links.iter().map(|link| link.peer), wait)
    }

    /// A count that changes whenever a piece of a border moves.
    fn progress(&self, state: &mut State) -> u64 {
        self.links.iter().map(|link| state.mesh.pair_progress(link.peer, self.name)).sum()
    }

    /// The timeout with all ranks that the round waits for; `first` is one of them.
    fn late(&self, first: usize, limit: Duration) -> GroupError {
        let mut state = self.group.shared.lock();
        let waits = |link: &&Link| {
            let reached = state.mesh.reached(link.peer, self.name, self.due());
            !matches!(reached, Ok(Reached::All))
        };
        let mut peers: Vec<_> = self.links.iter().filter(waits).map(|link| link.rank).collect();
        if peers.is_empty() {
            peers.push(first);
        }
        let awaited = match &*peers {
            [rank] => format!("rank {rank} in a halo"),
            _ => format!("ranks {peers:?} in a halo"),
        };
        GroupError::Timeout { peers, awaited, limit }
    }

    /// The borders of the last round.
    fn borders(&self) -> Result<FixedBorders<'_, T>, GroupError> {
        let Some(buffer) = &self.buffer else { return Ok((None, None)) };
        let Some(last) = self.rounds.checked_sub(1) else {
            return Err(GroupError::Usage("the halo has had no round yet".to_owned()));
        };
        let layout = &self.layout;
        let (out_left, out_right) = (layout.out_left(), layout.out_right());
        let (in_left, in_right) = (layout.in_left(), layout.in_right());
        // A rank that is its own neighbour receives from the left the border that it sent to the right.
        let (left, right, shift) = if self.left == Some(self.group.rank()) {
            (out_right, out_left, layout.sent(last))
        } else {
            (in_left, in_right, layout.came(last))
        };
        let slice = |there: Option<usize>, Range { start, end }: Range<usize>| {
            there.map(|_| buffer.slice(start + shift..end + shift)).transpose()
        };
        Ok((slice(self.left, left)?, slice(self.right, right)?))
    }
}

impl<T: Element> Drop for FixedHalo1d<T> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take().map(Arc::new) else { return };
        let Some(mut state) = self.group.shared.lock_here() else { return };
        for link in &self.links {
            state.mesh.close_pair(link.peer, self.name, Arc::clone(&buffer));
        }
    }
}

/// A round in progress; see [`FixedHalo1d::begin`].
#[must_use = "a round does nothing for its caller unless it is waited for"]
pub struct FixedRound<'a, T: Element> {
    /// Until it has ended.
    halo: Option<&'a mut FixedHalo1d<T>>,
    limit: Duration,
    /// Since the first poll.
    quiet: Option<Quiet>,
}

impl<T: Element> fmt::Debug for FixedRound<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedRound").field("halo", &self.halo).finish_non_exhaustive()
    }
}

impl<'a, T: Element> FixedRound<'a, T> {
    /// Waits, as [`FixedHalo1d::round`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn wait(mut self) -> Result<FixedBorders<'a, T>, GroupError> {
        let halo = self.halo.take().ok_or_else(over)?;
        drop(self); // The wait of this future ends; the halo waits instead.
        halo.end()
    }
}

fn over() -> GroupError {
    GroupError::Usage("the round has ended before".to_owned())
}

// Nothing of it is pinned.
impl<T: Element> Unpin for FixedRound<'_, T> {}

impl<'a, T: Element> Future for FixedRound<'a, T> {
    type Output = Result<FixedBorders<'a, T>, GroupError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let round = &mut *self;
        let Some(halo) = round.halo.as_mut() else { return Poll::Ready(Err(over())) };
        let shared = &halo.group.shared;
        if let Err(forked) = shared.here() {
            return Poll::Ready(Err(forked));
        }
        // Registered before the check, so that nothing that arrives after the check is missed.
        shared.wakers.add(context.waker());
        let mut state = shared.lock();
        // Borders that have arrived count first, even if this poll comes after the timeout.
        let awaited = match halo.awaited_rank(&mut state) {
            Ok(Some(_)) => {
                let peers = halo.links.iter().map(|link| link.peer);
                let polled = state.mesh.poll_pairs(halo.name, peers);
                polled.and_then(|_| halo.awaited_rank(&mut state))
            }
            ended => ended,
        };
        if let Ok(Some(_)) = awaited {
            let quiet = round.quiet.get_or_insert_with(|| Quiet::new(round.limit));
            if !quiet.is_over(halo.progress(&mut state)) {
                return Poll::Pending;
            }
        }
        drop(state);
        let ended = match awaited {
            Ok(Some(rank)) => Err(halo.late(rank, round.limit)),
            Ok(None) => Ok(()),
            Err(why) => Err(why),
        };
        halo.under_way = ended.is_err();
        let Some(halo) = round.halo.take() else { return Poll::Ready(Err(over())) };
        Poll::Ready(ended.and_then(|()| halo.borders()))
    }
}

/// The neighbours that borders are swapped with.
fn links<T: Element>(
    group: &Group,
    layout: &Layout<T>,
    left: Option<usize>,
    right: Option<usize>,
) -> Result<Vec<Link>, GroupError> {
    let (out, into) =
        ((layout.out_left(), layout.out_right()), (layout.in_left(), layout.in_right()));
    let sides = match (left, right) {
        (Some(left), Some(right)) if left == right => {
            vec![(left, out.0.start..out.1.end, into.1.start..into.0.end)]
        }
        _ => {
            let left = left.map(|left| (left, out.0, into.0));
            left.into_iter().chain(right.map(|right| (right, out.1, into.1))).collect()
        }
    };
    let swaps =
        |(rank, out, _): &(usize, Range<usize>, _)| *rank != group.rank() && !out.is_empty();
    let link = |(rank, out, into)| Ok(Link { rank, peer: group.other(rank)?, out, into });
    sides.into_iter().filter(swaps).map(link).collect()
}

/// Every rank's description of its borders.
#[derive(Clone, Copy, Debug)]
struct Row {
    left: u64,
    right: u64,
    element: u8,
    /// Whether the rank has memory for its borders.
    fits: bool,
}

fn exchange_rows<T: Element>(
    group: &Group,
    (left, right): (usize, usize),
    fits: bool,
) -> Result<Vec<Row>, GroupError> {
    let own = [left as u64, right as u64, type_number(T::TYPE).into(), fits.into()];
    let mut all = vec![0; own.len() * group.size()];
    group.all_gather(&own, &mut all)?;
    let row = |row: &[u64]| Row {
        left: row[0],
        right: row[1],
        element: u8::try_from(row[2]).unwrap_or(u8::MAX),
        fits: row[3] != 0,
    };
    Ok(all.chunks(own.len()).map(row).collect())
}

/// Whether all neighbours agree; the result is the same on every rank.
fn agree(rows: &[Row], shape: Shape) -> Result<(), GroupError> {
    let refused = |why| Err(GroupError::InvalidArgument(why));
    if let Some(rank) = rows.iter().position(|row| !row.fits) {
        return refused(format!("rank {rank} has no memory for its borders"));
    }
    let pairs = if shape == Shape::Ring { rows.len() } else { rows.len() - 1 };
    for rank in 0..pairs {
        let next = (rank + 1) % rows.len();
        let (one, other) = (rows[rank], rows[next]);
        if (one.right, one.element) != (other.left, other.element) {
            let (length, kind) = (one.right, type_name(one.element));
            let (theirs, their_kind) = (other.left, type_name(other.element));
            return refused(format!(
                "rank {rank} swaps {length} elements of {kind} with rank {next}, which swaps {theirs} of {their_kind}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{library, ranks};

    #[test]
    fn each_border_that_moves_is_progress() {
        ranks(&library(), 2, |group| {
            let mut halo = FixedHalo1d::<u8>::new(&group, 8, 8).unwrap();
            let mut moves = Vec::new();
            for _ in 0..3 {
                halo.round(|_, _| {}).unwrap();
                moves.push(halo.progress(&mut group.shared.lock()));
            }
            assert!(moves[0] < moves[1] && moves[1] < moves[2], "{moves:?}");
            group.barrier().unwrap();
        });
    }
}
