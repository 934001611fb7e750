//! Which collective a part belongs to. The header of a short part says so: ranks that call different collectives find that out.

use std::fmt;

use super::header;
use super::lane::PART;
use crate::loader::{DataType, Op};

/// A collective of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) scope: u32,
    /// How many collectives the group had before.
    pub(crate) number: u32,
    pub(crate) what: What,
}

/// What ranks that call one collective have in common, apart from lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct What {
    pub(crate) kind: Kind,
    element: Option<DataType>,
    op: Option<Op>,
    root: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
}

/// The names of the kinds, in the order of [`Kind`].
const NAMES: [&str; 9] = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
];

impl What {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, element: None, op: None, root: None }
    }

    pub(crate) fn of(self, element: DataType) -> Self {
        Self { element: Some(element), ..self }
    }

    pub(crate) fn by(self, op: Op) -> Self {
        Self { op: Some(op), ..self }
    }

    /// The longest part that passes through staging memory at its receiver.
    ///
    /// The sender then does not wait until the receiver announces a place, and the receiver copies. Where parts travel in one direction
    /// the sender runs ahead meanwhile. Where two ranks exchange parts, both are at the same part anyway, so it is less.
    pub(super) fn staged_most(self) -> usize {
        match self.kind {
            Kind::Broadcast | Kind::Gather | Kind::Reduce | Kind::Scatter => PART,
            _ => PART / 4 * 3,
        }
    }

    /// `root`: a rank of the group.
    pub(crate) fn at(self, root: usize) -> Self {
        Self { root: Some(root), ..self }
    }

    /// The call as the tag of a packet of objects: three numbers, of which 0 stands for none. It has no element type.
    pub(crate) fn tag(self) -> u32 {
        let (op, root) =
            (self.op.map_or(0, |op| op as u32 + 1), self.root.map_or(0, |root| root + 1));
        (self.kind as u32 + 1) | op << 8 | u32::try_from(root).unwrap_or(u32::MAX) << 16
    }

    /// The call as the note of a header: four numbers, of which 0 stands for none. The note is never 0.
    pub(crate) fn note(self) -> u64 {
        let element = self.element.map_or(0, |element| u64::from(header::type_number(element)) + 1);
        let op = self.op.map_or(0, |op| op as u64 + 1);
        let root = self.root.map_or(0, |root| root as u64 + 1);
        (self.kind as u64 + 1) | element << 8 | op << 16 | root << 32
    }
}

/// A note, as text.
pub(crate) struct Said(pub(super) u64);

impl Said {
    /// The note that has the numbers of a tag.
    pub(crate) fn by(tag: u32) -> Self {
        let (low, root) = (u64::from(tag & 0xFFFF), u64::from(tag >> 16));
        Self(low & 0xFF | low >> 8 << 16 | root << 32)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(note) = *self;
        let part = |shift: u32| usize::from((note >> shift).to_le_bytes()[0]).checked_sub(1);
        f.write_str(part(0).and_then(|kind| NAMES.get(kind)).copied().unwrap_or("unknown"))?;
        if let Some(element) = part(8).and_then(|number| u8::try_from(number).ok()) {
            write!(f, " of {}", header::type_name(element))?;
        }
        if let Some(op) = part(16).and_then(|op| Op::ALL.get(op)) {
            write!(f, " by {op}")?;
        }
        match (note >> 32).checked_sub(1) {
            Some(root) => write!(f, " with root {root}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_differ_have_different_notes() {
        let sum = What::new(Kind::Reduce).of(DataType::F32).by(Op::Sum).at(0);
        assert_eq!(Said(sum.note()).to_string(), "reduce of float by sum with root 0");
        let scatter = What::new(Kind::Scatter).of(DataType::I8);
        assert_eq!(Said(scatter.note()).to_string(), "scatter of int8");
        let barrier = What::new(Kind::Barrier);
        assert_eq!(Said(barrier.note()).to_string(), "barrier");
        let all = [
            sum,
            sum.at(1023),
            sum.by(Op::Avg),
            sum.of(DataType::I8),
            What { kind: Kind::AllReduce, ..sum },
            scatter,
            barrier,
        ];
        for (place, one) in all.iter().enumerate() {
            assert!(all[..place].iter().all(|other| other.note() != one.note()), "{one:?}");
        }
        for one in [What::new(Kind::Reduce).by(Op::Sum).at(1023), barrier] {
            assert_eq!(Said::by(one.tag()).to_string(), Said(one.note()).to_string());
        }
        for note in [0, u64::MAX, 0xFFFF_FFFF, 0x7F << 8] {
            assert!(Said(note).to_string().starts_with("unknown"));
        }
    }
}
