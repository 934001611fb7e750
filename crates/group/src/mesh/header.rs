//! The header of a message through a slot: it precedes the bytes of a short message or part, and announces a long message.

use crate::loader::DataType;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A complete message between two ranks.
    Short,
    /// The header of a message whose bytes travel on the lane of this route, in the order of these headers.
    Long(Route),
    /// A part of a collective.
    Part,
}

/// How the bytes of a long message travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// From registered memory, into the memory of the receive, once that is posted.
    Direct,
    /// From other memory, with a copy at each end, into staging memory that is posted in advance.
    Staged,
}

impl Route {
    pub(super) const ALL: [Self; 2] = [Self::Direct, Self::Staged];
}

/// What a message belongs to, besides its group and tag: a receive matches messages of its own space only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Space {
    kind: u8,
    number: u64,
}

impl Space {
    /// Messages of typed elements.
    pub(crate) const MESSAGES: Self = Self { kind: 0, number: 0 };

    /// Self-describing messages.
    pub(crate) const OBJECTS: Self = Self { kind: 1, number: 0 };

    /// The long leaves of one object, by a number that its sender uses once.
    pub(crate) fn leaves(number: u64) -> Self {
        Self { kind: 3, number }
    }

    /// One collective of objects.
    pub(crate) fn object_collective(number: u32) -> Self {
        Self { kind: 4, number: number.into() }
    }

    /// Whether messages of this space are packets of objects.
    pub(super) fn is_of_objects(self) -> bool {
        self.kind == Self::OBJECTS.kind || self.is_of_collective()
    }

    /// Whether this space is that of one collective of objects.
    pub(crate) fn is_of_collective(self) -> bool {
        self.kind == Self::object_collective(0).kind
    }

    /// One exchange of one stream of exchanges.
    pub(crate) fn exchange(stream: u32, number: u32) -> Self {
        Self { kind: 2, number: u64::from(stream) << 32 | u64::from(number) }
    }
}

/// The scope, space and tag by which a message is matched, and its note.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) scope: u32,
    pub(crate) tag: u32,
    pub(crate) space: Space,
    /// Sent with the message; not used in matching.
    pub(crate) note: u64,
}

impl Name {
    /// The name of a message of typed elements.
    pub(crate) fn message(scope: u32, tag: u32) -> Self {
        Self { scope, tag, space: Space::MESSAGES, note: 0 }
    }
}

/// Sent before the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// The element type of a message, as [`DataType`] is numbered.
    pub(super) element: u8,
    /// The group within the mesh.
    pub(super) scope: u32,
    /// The user's tag; for a part, the number of its collective.
    pub(super) tag: u32,
    /// The number of bytes that follow, or that travel on another lane.
    pub(super) len: u64,
    pub(super) space: Space,
    pub(super) note: u64,
}

/// The longest message of elements in a slot, in bytes; longer ones are sent without a copy. At this length two copies take less time than
/// a wait for the receive of the peer, at twice this length more.
pub(crate) const SMALL: usize = 64 << 10;
/// The longest packet of an object in a slot: [`SMALL`] bytes of elements, and the object's metadata.
pub(super) const SMALL_OBJECT: usize = SMALL + (2 << 10);

/// A multiple of the largest element, so that elements behind it are aligned.
pub(super) const HEADER_BYTES: usize = 48;
const MAGIC: u32 = u32::from_le_bytes(*b"IRG\x03");

impl Header {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let kind = match self.kind {
            Kind::Short => 1,
            Kind::Long(Route::Direct) => 2,
            Kind::Part => 3,
            Kind::Long(Route::Staged) => 4,
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4] = kind;
        bytes[5] = self.element;
        bytes[6] = self.space.kind;
        bytes[8..12].copy_from_slice(&self.scope.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.space.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.note.to_le_bytes());
        bytes
    }

    /// Returns None if the bytes are no header of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        if word(0)? != MAGIC {
            return None;
        }
        let kind = match bytes.get(4)? {
            1 => Kind::Short,
            2 => Kind::Long(Route::Direct),
            3 => Kind::Part,
            4 => Kind::Long(Route::Staged),
            _ => return None,
        };
        let long = |at: usize| Some(u64::from(word(at)?) | u64::from(word(at + 4)?) << 32);
        let space = Space { kind: *bytes.get(6)?, number: long(24)? };
        let (element, scope, tag) = (*bytes.get(5)?, word(8)?, word(12)?);
        Some(Self { kind, element, scope, tag, len: long(16)?, space, note: long(32)? })
    }
}

/// A type's number in a header.
pub(crate) fn type_number(kind: DataType) -> u8 {
    let place = DataType::ALL.iter().position(|other| *other == kind).unwrap_or(0);
    u8::try_from(place).unwrap_or(0)
}

/// The type of a number.
pub(crate) fn type_of(number: u8) -> Option<DataType> {
    DataType::ALL.get(usize::from(number)).copied()
}

/// The name of a type's number.
pub(crate) fn type_name(number: u8) -> &'static str {
    type_of(number).map_or("an unknown type", DataType::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written_and_nothing_else_is_one() {
        let (scope, tag, len) = (7, u32::MAX, u64::MAX - 5);
        for kind in [Kind::Short, Kind::Long(Route::Direct), Kind::Long(Route::Staged), Kind::Part]
        {
            let (space, note) = (Space::exchange(u32::MAX, 3), 1 << 63);
            let header = Header { kind, element: 12, scope, tag, len, space, note };
            let bytes = header.encode();
            assert_eq!(Header::decode(&bytes), Some(header));
            assert_eq!(Header::decode(&bytes[..39]), None);
        }
        assert_eq!(Header::decode(&[0xFF; HEADER_BYTES]), None);
    }
}
