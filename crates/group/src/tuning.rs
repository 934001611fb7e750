//! The table of all-reduce algorithms by the number of ranks and bytes. All ranks use rank 0's table.

use std::fmt;
use std::str::FromStr;

use crate::error::GroupError;

/// An algorithm of all-reduce; docs/group.md has a picture of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Every rank sends to every other at once: one step, (n-1)·S bytes sent by each rank.
    OnePhase,
    /// Exchange with the rank that differs in bit k: log2 n steps of S bytes. Powers of two only.
    Doubling,
    /// Each rank reduces a share: two steps, 2·(n-1)/n·S bytes.
    Mesh,
    /// Shares go round the ring twice: 2·(n-1) steps, 2·(n-1)/n·S bytes, two neighbours.
    Ring,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 4] = [Self::OnePhase, Self::Doubling, Self::Mesh, Self::Ring];

    /// The name of the algorithm in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnePhase => "one-phase",
            Self::Doubling => "doubling",
            Self::Mesh => "mesh",
            Self::Ring => "ring",
        }
    }

    /// Whether the algorithm supports this number of ranks.
    pub fn takes(self, ranks: usize) -> bool {
        self != Self::Doubling || ranks.is_power_of_two()
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = GroupError;

    fn from_str(text: &str) -> Result<Self, GroupError> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|algorithm| algorithm.name()).collect();
            GroupError::Usage(format!("{text} is none of {}", names.join(", ")))
        })
    }
}

/// One line of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The row is for this many ranks and more, up to the next row's.
    pub ranks: usize,
    /// The row is for at most this many bytes.
    pub bytes: usize,
    pub algorithm: Algorithm,
}

/// Rows, sorted by ranks, then by bytes. As text: a row per line, `ranks bytes algorithm`; `#` begins a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    rows: Vec<Row>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { rows: BUILT_IN.to_vec() }
    }
}

impl Tuning {
    /// A table of these rows.
    ///
    /// # Errors
    ///
    /// [`GroupError::Usage`] without a row.
    pub fn new(mut rows: Vec<Row>) -> Result<Self, GroupError> {
        if rows.is_empty() {
            return Err(GroupError::Usage("a table of algorithms needs a row".to_owned()));
        }
        rows.sort_by_key(|row| (row.ranks, row.bytes));
        Ok(Self { rows })
    }

    /// A table with one algorithm for all numbers of ranks that it supports, and all numbers of bytes.
    pub fn only(algorithm: Algorithm) -> Self {
        Self { rows: vec![Row { ranks: 0, bytes: usize::MAX, algorithm }] }
    }

    /// The rows.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The algorithm for this many bytes among this many ranks. Beyond the last row, and where a row's algorithm does not support the
    /// ranks: the mesh, or the ring for many ranks.
    pub fn choose(&self, ranks: usize, bytes: usize) -> Algorithm {
        let rows = &self.rows[..self.rows.partition_point(|row| row.ranks <= ranks)];
        let nearest = rows.last().map_or(0, |row| row.ranks);
        match rows.iter().find(|row| row.ranks == nearest && bytes <= row.bytes) {
            Some(row) if row.algorithm.takes(ranks) => row.algorithm,
            _ if ranks > MESH_RANKS_MAX => Algorithm::Ring,
            _ => Algorithm::Mesh,
        }
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Row { ranks, bytes, algorithm } in &self.rows {
            writeln!(f, "{ranks} {bytes} {algorithm}")?;
        }
        Ok(())
    }
}

impl FromStr for Tuning {
    type Err = GroupError;

    fn from_str(text: &str) -> Result<Self, GroupError> {
        let mut rows = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let cells: Vec<_> = line.split_whitespace().collect();
            let wrong = || {
                GroupError::Usage(format!(
                    "line {number} of the table is not `ranks bytes algorithm`: {line}"
                ))
            };
            match cells[..] {
                [] => {}
                [ranks, bytes, algorithm] => rows.push(Row {
                    ranks: ranks.parse().map_err(|_| wrong())?,
                    bytes: bytes.parse().map_err(|_| wrong())?,
                    algorithm: algorithm.parse()?,
                }),
                _ => return Err(wrong()),
            }
        }
        Self::new(rows)
    }
}

/// For more ranks, connections between all of them cost more than the ring.
const MESH_RANKS_MAX: usize = 16;

/// Up to 4 ranks: measured over the provider tcp on one machine of two CPUs, for 3 and 4 ranks by `ironrail perf tune -r 4 --cpus 0,1`, for 2
/// with each algorithm by itself. Beyond: estimates, by the steps and bytes of each algorithm.
const BUILT_IN: [Row; 12] = [
    Row { ranks: 2, bytes: 512 << 10, algorithm: Algorithm::Doubling },
    Row { ranks: 2, bytes: usize::MAX, algorithm: Algorithm::Mesh },
    Row { ranks: 3, bytes: 16 << 10, algorithm: Algorithm::OnePhase },
    Row { ranks: 3, bytes: usize::MAX, algorithm: Algorithm::Mesh },
    Row { ranks: 4, bytes: 256 << 10, algorithm: Algorithm::Doubling },
    Row { ranks: 4, bytes: usize::MAX, algorithm: Algorithm::Mesh },
    Row { ranks: 5, bytes: 16 << 10, algorithm: Algorithm::OnePhase },
    Row { ranks: 5, bytes: usize::MAX, algorithm: Algorithm::Mesh },
    Row { ranks: 8, bytes: 16 << 10, algorithm: Algorithm::Doubling },
    Row { ranks: 8, bytes: usize::MAX, algorithm: Algorithm::Mesh },
    Row { ranks: 9, bytes: usize::MAX, algorithm: Algorithm::Mesh },
    Row { ranks: 17, bytes: usize::MAX, algorithm: Algorithm::Ring },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_smaller_number_of_ranks_counts_and_the_first_row_that_is_long_enough() {
        let table: Tuning =
            "2 100 one-phase\n2 1000 mesh # half\n\n4 100 doubling\n".parse().unwrap();
        let chosen = |ranks, bytes| table.choose(ranks, bytes);
        assert_eq!(chosen(2, 100), Algorithm::OnePhase);
        assert_eq!((chosen(3, 101), chosen(3, 1001)), (Algorithm::Mesh, Algorithm::Mesh));
        assert_eq!((chosen(4, 1), chosen(5, 1)), (Algorithm::Doubling, Algorithm::Mesh));
        assert_eq!(chosen(32, 1 << 20), Algorithm::Ring);
        assert_eq!(table.to_string().parse::<Tuning>().unwrap(), table);
        for wrong in ["", "2 3", "2 x mesh", "2 3 mush"] {
            assert!(wrong.parse::<Tuning>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rows_may_come_in_any_order() {
        let sorted = "2 100 one-phase\n2 1000 mesh\n4 100 doubling\n";
        let mixed: Tuning = "4 100 doubling\n2 1000 mesh\n2 100 one-phase".parse().unwrap();
        assert_eq!(mixed.to_string(), sorted);
    }

    #[test]
    fn ranks_that_the_table_does_not_say_take_the_mesh_up_to_16_and_the_ring_beyond() {
        use Algorithm::{Doubling, Mesh, Ring};
        let table = Tuning::only(Doubling);
        let chosen = [7, 8, 15, 16, 17, 32].map(|ranks| table.choose(ranks, 1 << 20));
        assert_eq!(chosen, [Mesh, Doubling, Mesh, Doubling, Ring, Doubling]);
        let short: Tuning = "2 100 doubling".parse().unwrap();
        assert_eq!([2, 16, 17].map(|ranks| short.choose(ranks, 101)), [Mesh, Mesh, Ring]);
    }
}
