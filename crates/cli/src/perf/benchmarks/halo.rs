//! halo: ranks in a ring swap borders with both neighbours, round after round. The size is that of one border.

use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::halo::Halo1d;

use super::{Shape, Workload};
use crate::perf::arguments::Options;
use crate::perf::statistics::Stopwatch;

pub(super) struct Rounds {
    halo: Halo1d<u8>,
    rank: usize,
    width: usize,
    /// The next borders for the left and for the right.
    borders: (Vec<u8>, Vec<u8>),
}

impl Rounds {
    pub(super) fn new(options: &Options, group: &Group) -> Self {
        let (halo, rank) = (Halo1d::ring(group), group.rank());
        Self { halo, rank, width: options.kind.bytes(), borders: (Vec::new(), Vec::new()) }
    }

    fn round(&mut self) -> Result<(), GroupError> {
        let (left, right) = std::mem::take(&mut self.borders);
        let (from_left, from_right) = self.halo.round(Some(left), Some(right))?;
        // Received borders are sent on, so that a round allocates nothing.
        self.borders = (from_left.unwrap_or_default(), from_right.unwrap_or_default());
        Ok(())
    }
}

impl Workload for Rounds {
    fn begin(&mut self, bytes: usize) -> Shape {
        let count = bytes / self.width;
        let bytes = count * self.width;
        self.borders = (vec![1; bytes], vec![1; bytes]);
        // A rank sends two borders in a round.
        Shape { bytes, count, bus_factor: 2.0 }
    }

    fn run(&mut self, iterations: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        watch.start();
        for _ in 0..iterations {
            self.round()?;
            watch.lap();
        }
        Ok(())
    }

    fn check(&mut self, iteration: usize) -> Result<u64, GroupError> {
        let len = self.borders.0.len();
        let own = |side| (0..len).map(|place| sample(self.rank, side, place, iteration)).collect();
        self.borders = (own(Side::Left), own(Side::Right));
        self.round()?;
        let (Some(left), Some(right)) = self.halo.neighbours() else { return Ok(len as u64) };
        let wrong = |border: &[u8], rank, side| {
            let missing = len.abs_diff(border.len());
            let right = |place: usize| sample(rank, side, place, iteration);
            missing + border.iter().enumerate().filter(|(i, byte)| **byte != right(*i)).count()
        };
        // The left neighbour sends its right border here.
        let wrong =
            wrong(&self.borders.0, left, Side::Right) + wrong(&self.borders.1, right, Side::Left);
        Ok(wrong as u64)
    }
}

#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

/// A byte that depends on its rank, side, place and iteration.
fn sample(rank: usize, side: Side, place: usize, iteration: usize) -> u8 {
    let side = match side {
        Side::Left => 1,
        Side::Right => 3,
    };
    let mixed =
        (place ^ place >> 8).wrapping_mul(29) ^ rank.wrapping_mul(7) ^ iteration << 2 ^ side;
    mixed.to_le_bytes()[0]
}
