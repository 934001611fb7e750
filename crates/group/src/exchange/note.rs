//! The eight bytes that travel beside a message of an exchange and describe it.

use crate::error::GroupError;

/// The kind of a message, with its number among those of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A complete message without metadata.
    Whole(u64),
    /// A complete message without metadata that is the last: the count is its number plus one.
    Last(u64),
    /// Metadata; its elements follow.
    Meta(u64),
    /// The elements that follow metadata.
    After(u64),
    /// The number of messages in all.
    Finish(u64),
    /// The sender cancelled.
    Cancel,
}

/// The bits of a number.
const NUMBER_BITS: u32 = 56;
pub(super) const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

impl Note {
    pub(super) fn encode(self) -> u64 {
        let (kind, number) = match self {
            Self::Whole(number) => (1, number),
            Self::Last(number) => (2, number),
            Self::Meta(number) => (3, number),
            Self::After(number) => (4, number),
            Self::Finish(count) => (5, count),
            Self::Cancel => (6, 0),
        };
        kind << NUMBER_BITS | number & NUMBER_MAX
    }

    pub(super) fn decode(bits: u64, rank: usize) -> Result<Self, GroupError> {
        let number = bits & NUMBER_MAX;
        Ok(match bits >> NUMBER_BITS {
            1 => Self::Whole(number),
            2 => Self::Last(number),
            3 => Self::Meta(number),
            4 => Self::After(number),
            5 => Self::Finish(number),
            6 => Self::Cancel,
            kind => {
                let why = format!("rank {rank} sent a message of an exchange of kind {kind}");
                return Err(GroupError::Mismatch { rank, why });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_and_other_kinds_are_refused() {
        let all = [Note::Whole, Note::Last, Note::Meta, Note::After, Note::Finish];
        let numbers = [0, 1, NUMBER_MAX];
        for note in all.iter().flat_map(|kind| numbers.map(kind)).chain([Note::Cancel]) {
            assert_eq!(Note::decode(note.encode(), 0).unwrap(), note);
        }
        for kind in (0..=255_u64).filter(|kind| !(1..=6).contains(kind)) {
            assert!(Note::decode(kind << NUMBER_BITS, 0).is_err());
        }
    }
}
