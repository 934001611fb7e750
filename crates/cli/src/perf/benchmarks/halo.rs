//! halo and fixed_halo: ranks in a ring swap borders with both neighbours, round after round. The size is that of one border.

use std::io;

use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::halo::{FixedHalo1d, Halo1d};

use super::{Shape, Workload};
use crate::perf::arguments::Options;
use crate::perf::statistics::Stopwatch;

pub(super) struct Rounds {
    halo: Halo1d<u8>,
    rank: usize,
    width: usize,
    /// The borders to send next, to the left and to the right neighbour.
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
    fn begin(&mut self, bytes: usize) -> Result<Shape, GroupError> {
        let count = bytes / self.width;
        let bytes = count * self.width;
        self.borders = (Vec::new(), Vec::new());
        self.borders = (border(bytes)?, border(bytes)?);
        // A rank sends two borders in a round.
        Ok(Shape { bytes, count, bus_factor: 2.0 })
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
        fill(&mut self.borders.0, (self.rank, Side::Left), iteration);
        fill(&mut self.borders.1, (self.rank, Side::Right), iteration);
        self.round()?;
        let (Some(left), Some(right)) = self.halo.neighbours() else { return Ok(len as u64) };
        // The left neighbour sends its right border here.
        Ok(wrong(&self.borders.0, len, (left, Side::Right), iteration)
            + wrong(&self.borders.1, len, (right, Side::Left), iteration))
    }
}

pub(super) struct FixedRounds {
    group: Group,
    width: usize,
    /// The size of a border in bytes.
    bytes: usize,
    /// The halo. It is made by all ranks in the first round of a size.
    halo: Option<FixedHalo1d<u8>>,
}

impl FixedRounds {
    pub(super) fn new(options: &Options, group: &Group) -> Self {
        Self { group: group.clone(), width: options.kind.bytes(), bytes: 0, halo: None }
    }

    fn halo(&mut self) -> Result<&mut FixedHalo1d<u8>, GroupError> {
        match &mut self.halo {
            Some(halo) => Ok(halo),
            none => Ok(none.insert(FixedHalo1d::ring(&self.group, self.bytes, self.bytes)?)),
        }
    }
}

impl Workload for FixedRounds {
    fn begin(&mut self, bytes: usize) -> Result<Shape, GroupError> {
        let count = bytes / self.width;
        self.bytes = count * self.width;
        self.halo = None;
        Ok(Shape { bytes: self.bytes, count, bus_factor: 2.0 })
    }

    fn run(&mut self, iterations: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        let halo = self.halo()?;
        watch.start();
        for _ in 0..iterations {
            halo.round(|_, _| {})?;
            watch.lap();
        }
        Ok(())
    }

    fn check(&mut self, iteration: usize) -> Result<u64, GroupError> {
        let (rank, len) = (self.group.rank(), self.bytes);
        let halo = self.halo()?;
        let (left, right) = halo.neighbours();
        let (from_left, from_right) = halo.round(|to_left, to_right| {
            fill(to_left, (rank, Side::Left), iteration);
            fill(to_right, (rank, Side::Right), iteration);
        })?;
        let (Some(left), Some(right)) = (left, right) else { return Ok(len as u64) };
        Ok(wrong(from_left.unwrap_or_default(), len, (left, Side::Right), iteration)
            + wrong(from_right.unwrap_or_default(), len, (right, Side::Left), iteration))
    }
}

/// A border whose pages are all touched; an error where there is no memory for it.
fn border(bytes: usize) -> Result<Vec<u8>, GroupError> {
    let mut border = Vec::new();
    border.try_reserve_exact(bytes).map_err(|_| GroupError::System {
        what: "allocating a buffer",
        error: io::ErrorKind::OutOfMemory.into(),
    })?;
    border.resize(bytes, 1);
    Ok(border)
}

/// Writes the border that `rank` sends from its `side`.
fn fill(border: &mut [u8], (rank, side): (usize, Side), iteration: usize) {
    for (place, byte) in border.iter_mut().enumerate() {
        *byte = sample(rank, side, place, iteration);
    }
}

/// The number of bytes of a received border that are missing, or differ from those that `rank` sent from its `side`.
fn wrong(border: &[u8], len: usize, (rank, side): (usize, Side), iteration: usize) -> u64 {
    let missing = len.abs_diff(border.len());
    let right = |place: usize| sample(rank, side, place, iteration);
    let other = border.iter().enumerate().filter(|(place, byte)| **byte != right(*place));
    (missing + other.count()) as u64
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
