//! Halos: ranks in a row, each of which exchanges borders with its neighbours, round after round.

mod fixed;
mod layout;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::error::GroupError;
use crate::exchange::{Exchange, Waiting, own_limit, wait};
use crate::group::Group;
use crate::loader::Element;
use crate::mesh::Space;

pub use fixed::{FixedBorders, FixedHalo1d, FixedRound};

/// The borders from the left and from the right.
pub type Borders<T> = (Option<Vec<T>>, Option<Vec<T>>);

/// This rank's position in a row, or in a ring, of all ranks of a group.
///
/// Rounds are numbered, so that a neighbour's next round is not mistaken for this one. Each round may have other lengths, and a rank may
/// send nothing to a side. Memory that was sent is reused to receive in a later round, so rounds of constant length allocate no memory for
/// borders. [`FixedHalo1d`] is faster where the lengths stay the same.
#[derive(Debug)]
pub struct Halo1d<T: Element> {
    group: Group,
    stream: u32,
    round: u32,
    left: Option<usize>,
    right: Option<usize>,
    spare: Vec<Vec<T>>,
}

impl<T: Element> Halo1d<T> {
    /// A row: rank 0 has no left neighbour, the last rank no right one. All ranks of the group make their halos in the same order.
    pub fn new(group: &Group) -> Self {
        Self::between(group, neighbours(group, Shape::Row))
    }

    /// A ring: the last rank is on the left of rank 0. A single rank is its own neighbour.
    pub fn ring(group: &Group) -> Self {
        Self::between(group, neighbours(group, Shape::Ring))
    }

    fn between(group: &Group, (left, right): (Option<usize>, Option<usize>)) -> Self {
        let stream = group.counts.streams.fetch_add(1, Ordering::Relaxed);
        Self { group: group.clone(), stream, round: 0, left, right, spare: Vec::new() }
    }

    /// The neighbours' ranks.
    pub fn neighbours(&self) -> (Option<usize>, Option<usize>) {
        (self.left, self.right)
    }

    /// Sends `left` to the left and `right` to the right, and returns the borders from the left and from the right: None where a neighbour
    /// sent nothing, or does not exist. A border for a neighbour that does not exist is ignored.
    ///
    /// # Errors
    ///
    /// As [`Exchange::wait`]: the silent neighbour is named. The next round can be tried.
    pub fn round(
        &mut self,
        left: Option<Vec<T>>,
        right: Option<Vec<T>>,
    ) -> Result<Borders<T>, GroupError> {
        let timeout = own_limit(&self.group);
        let mut round = self.begin(left, right)?;
        wait(&round.exchanges(), timeout)?;
        round.end()
    }

    /// Begins a round; the future completes like [`Halo1d::round`]. If it is dropped before, the neighbours still get their borders, and
    /// those that come from them are dropped.
    ///
    /// # Errors
    ///
    /// [`GroupError::PeerLost`] for a neighbour that has left; the other one has its border then. A failure of the group.
    pub fn begin(
        &mut self,
        left: Option<Vec<T>>,
        right: Option<Vec<T>>,
    ) -> Result<Round<'_, T>, GroupError> {
        let number = self.round.wrapping_mul(2);
        self.round = self.round.wrapping_add(1);
        if (self.left, self.right) == (Some(self.group.rank()), Some(self.group.rank())) {
            self.group.shared.enter()?.mesh.check()?;
            let (waiting, own) = (Waiting::new(own_limit(&self.group)), Some((right, left)));
            return Ok(Round { halo: self, leftwards: None, rightwards: None, own, waiting });
        }
        // An exchange for each direction, so that the borders of two ranks in a ring are not mixed up.
        // A neighbour gets its border even if the other neighbour has left.
        let together = self.left == self.right && right.is_some();
        let (to_left, to_right) = ((self.right, self.left), (self.left, self.right));
        let leftwards = self.one_way(number, to_left, left, together);
        let rightwards = self.one_way(number.wrapping_add(1), to_right, right, false);
        let (leftwards, rightwards) = (leftwards?, rightwards?);
        let waiting = Waiting::new(own_limit(&self.group));
        Ok(Round { halo: self, leftwards, rightwards, own: None, waiting })
    }

    fn one_way(
        &mut self,
        number: u32,
        (source, destination): (Option<usize>, Option<usize>),
        data: Option<Vec<T>>,
        with_next: bool,
    ) -> Result<Option<Exchange<T>>, GroupError> {
        if source.is_none() && destination.is_none() {
            return Ok(None);
        }
        let space = Space::exchange(self.stream, number);
        let (sources, destinations) = (source.as_slice(), destination.as_slice());
        let exchange = Exchange::new(&self.group, || space, sources, destinations)?;
        if let Some(spare) = self.spare.pop() {
            exchange.swap_spare(&mut vec![spare]);
        }
        match (destination, data) {
            (Some(rank), Some(data)) => exchange.insert_only(rank, data, with_next)?,
            _ => exchange.finish()?,
        }
        Ok(Some(exchange))
    }
}

/// The arrangement of the ranks of a halo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Row,
    Ring,
}

/// The ranks to the left and to the right of this one.
fn neighbours(group: &Group, shape: Shape) -> (Option<usize>, Option<usize>) {
    let (rank, size) = (group.rank(), group.size());
    if shape == Shape::Ring {
        return (Some((rank + size - 1) % size), Some((rank + 1) % size));
    }
    (rank.checked_sub(1), (rank + 1 < size).then_some(rank + 1))
}

/// A round in progress; see [`Halo1d::begin`].
#[derive(Debug)]
#[must_use = "the borders that come for a round that is dropped are dropped"]
pub struct Round<'a, T: Element> {
    halo: &'a mut Halo1d<T>,
    leftwards: Option<Exchange<T>>,
    rightwards: Option<Exchange<T>>,
    /// The borders of a rank that is its own neighbour.
    own: Option<Borders<T>>,
    waiting: Waiting,
}

impl<T: Element> Round<'_, T> {
    /// Waits, as [`Halo1d::round`].
    ///
    /// # Errors
    ///
    /// As [`Halo1d::round`].
    pub fn wait(mut self) -> Result<Borders<T>, GroupError> {
        wait(&self.exchanges(), own_limit(&self.halo.group))?;
        self.end()
    }

    fn exchanges(&self) -> Vec<&Exchange<T>> {
        self.leftwards.iter().chain(&self.rightwards).collect()
    }

    /// Returns the borders. Memory that was sent is kept.
    fn end(&mut self) -> Result<Borders<T>, GroupError> {
        if let Some(own) = self.own.take() {
            return Ok(own);
        }
        let (left, right) = (self.halo.left, self.halo.right);
        let mut of = |exchange: &Option<Exchange<T>>, source: Option<usize>| {
            let (Some(exchange), Some(source)) = (exchange, source) else { return Ok(None) };
            let came = exchange.take(source)?.pop();
            let mut spare = Vec::new();
            exchange.swap_spare(&mut spare);
            self.halo.spare.append(&mut spare);
            Ok::<_, GroupError>(came.map(|message| message.data))
        };
        let borders = (of(&self.rightwards, left)?, of(&self.leftwards, right)?);
        self.halo.spare.truncate(SPARE);
        Ok(borders)
    }
}

// Nothing of it is pinned.
impl<T: Element> Unpin for Round<'_, T> {}

impl<T: Element> Future for Round<'_, T> {
    type Output = Result<Borders<T>, GroupError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let round = &mut *self;
        let exchanges: Vec<_> = round.leftwards.iter().chain(&round.rightwards).collect();
        match round.waiting.poll(&exchanges, context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(ended) => Poll::Ready(ended.and_then(|()| round.end())),
        }
    }
}

/// The most borders that are kept to receive into.
const SPARE: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{library, ranks};

    #[test]
    fn a_round_that_is_dropped_is_whole_at_the_neighbours() {
        ranks(&library(), 3, |group| {
            let mut halo = Halo1d::ring(&group);
            for number in 0..4_u64 {
                let round = halo.begin(Some(vec![number]), Some(vec![number; 3 << 17])).unwrap();
                if group.rank() == 1 && number != 3 {
                    drop(round);
                } else {
                    let (left, right) = round.wait().unwrap();
                    assert_eq!((left, right), (Some(vec![number; 3 << 17]), Some(vec![number])));
                }
            }
            group.barrier().unwrap();
        });
    }

    #[test]
    fn a_round_that_was_begun_is_waited_for() {
        ranks(&library(), 2, |group| {
            let mut halo = Halo1d::ring(&group);
            let own = vec![group.rank(); 3].into_iter().map(|rank| rank as u64).collect();
            let theirs = vec![1 - group.rank() as u64; 3];
            let round = halo.begin(Some(own), None).unwrap();
            assert_eq!(round.wait().unwrap(), (None, Some(theirs)));
            group.barrier().unwrap();
        });
    }
}
