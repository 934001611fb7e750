//! Ids of the objects that NCCL holds: a kind, a slot in a table of ours, and a generation. Never a pointer.
//!
//! ```text
//! 63..52 endpoint | 51..48 kind | 47..32 generation | 31..16 slot | 15..0 line (requests)
//! ```

use std::num::NonZeroU64;

use crate::error::{Cause, Noun, Result};

/// The kind of object that an id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ObjectKind {
    Context = 1,
    Sender = 2,
    Receiver = 3,
    Listener = 4,
    Region = 5,
    /// A request: the id of its comm with a line, see [`RawId::request`].
    SendRequest = 6,
    ReceiveRequest = 7,
    FlushRequest = 8,
    /// A receive with optional completion, which may be reported before its bytes arrive.
    OptionalReceiveRequest = 9,
    /// A connect that has not finished: its id is kept in the handle between calls.
    Connect = 11,
}

/// The 64 bits that NCCL holds for a comm, a region or a request, never 0 (null) nor 1 (NCCL's mark for optional completion).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectId(NonZeroU64);

impl ObjectId {
    pub(crate) fn new(
        kind: ObjectKind,
        endpoint: u16,
        generation: u16,
        slot: u16,
        line: u16,
    ) -> Self {
        assert!(endpoint < 1 << 12, "the table of endpoints has 4096 places");
        let bits = (kind as u64) << KIND_SHIFT
            | u64::from(endpoint) << ENDPOINT_SHIFT
            | u64::from(generation) << 32
            | u64::from(slot) << 16
            | u64::from(line);
        Self(NonZeroU64::new(bits).expect("every kind is at least 1"))
    }

    pub(crate) fn raw(self) -> RawId {
        RawId(self.bits())
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(Self)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn is(self, kind: ObjectKind) -> bool {
        self.field(KIND_SHIFT) & 0xf == kind as u16
    }

    pub(crate) fn endpoint(self) -> u16 {
        self.field(ENDPOINT_SHIFT)
    }

    pub(crate) fn generation(self) -> u16 {
        self.field(32)
    }

    pub(crate) fn slot(self) -> u16 {
        self.field(16)
    }

    pub(crate) fn line(self) -> u16 {
        self.field(0)
    }

    #[expect(clippy::cast_possible_truncation, reason = "cutting to the field is the point")]
    fn field(self, shift: u32) -> u16 {
        (self.0.get() >> shift) as u16
    }
}

/// 64 bits that NCCL passes as an id, and that may be anything. The slot that they name stores its value's id, so one comparison checks
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawId(u64);

impl RawId {
    #[inline(always)]
    pub(crate) const fn new(bits: u64) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn endpoint(self) -> usize {
        (self.0 >> ENDPOINT_SHIFT) as usize
    }

    pub(crate) fn context(self) -> Result<ObjectId> {
        self.one_of(Noun::Context, &[ObjectKind::Context])
    }

    pub(crate) fn listener(self) -> Result<ObjectId> {
        self.one_of(Noun::ListenComm, &[ObjectKind::Listener])
    }

    #[inline]
    pub(crate) fn sender(self) -> Result<ObjectId> {
        self.one_of(Noun::SendComm, &[ObjectKind::Sender])
    }

    #[inline]
    pub(crate) fn receiver(self) -> Result<ObjectId> {
        self.one_of(Noun::ReceiveComm, &[ObjectKind::Receiver])
    }

    /// Either end of a connection.
    #[inline]
    pub(crate) fn comm(self) -> Result<ObjectId> {
        self.one_of(Noun::Comm, &[ObjectKind::Sender, ObjectKind::Receiver])
    }

    #[inline]
    pub(crate) fn region(self) -> Result<ObjectId> {
        self.one_of(Noun::MemoryHandle, &[ObjectKind::Region])
    }

    /// Null is allowed: an empty message has no region.
    #[inline]
    pub(crate) fn optional_region(self) -> Result<Option<ObjectId>> {
        if self.is_null() { Ok(None) } else { self.region().map(Some) }
    }

    #[inline]
    pub(crate) fn is_null(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn any_request(self) -> Result<ObjectId> {
        self.one_of(
            Noun::Request,
            &[
                ObjectKind::SendRequest,
                ObjectKind::ReceiveRequest,
                ObjectKind::FlushRequest,
                ObjectKind::OptionalReceiveRequest,
            ],
        )
    }

    #[inline]
    fn one_of(self, expected: Noun, kinds: &[ObjectKind]) -> Result<ObjectId> {
        match ObjectId::from_bits(self.0) {
            Some(id) if kinds.iter().any(|kind| id.is(*kind)) => Ok(id),
            _ => Err(Cause::NotOurs { expected, found: self.0 }.into()),
        }
    }

    /// `family` is the bits of the kind and of the endpoint.
    pub(crate) const fn of(family: u64, generation: u16, slot: u16) -> Self {
        Self(family | (generation as u64) << 32 | (slot as u64) << 16)
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "cutting to the field is the point")]
    pub(crate) const fn generation(self) -> u16 {
        (self.0 >> 32) as u16
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "cutting to the field is the point")]
    pub(crate) const fn slot(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The id of a comm's request: its comm's id, and the low half of its line.
    #[inline(always)]
    pub(crate) const fn request(self, line: u16) -> Self {
        Self(self.0 | REQUEST | line as u64)
    }
}

/// The bit that turns a comm's kind into its requests' kind. A comm's line is 0.
const REQUEST: u64 = 4 << KIND_SHIFT;
const ENDPOINT_SHIFT: u32 = 52;
const KIND_SHIFT: u32 = 48;
const _: () = {
    assert!(ObjectKind::Sender as u64 | 4 == ObjectKind::SendRequest as u64);
    assert!(ObjectKind::Receiver as u64 | 4 == ObjectKind::ReceiveRequest as u64);
    assert!(ObjectKind::Receiver as u64 & 1 == 1 && ObjectKind::Sender as u64 & 1 == 0);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_gives_back_what_it_was_made_of() {
        let id = ObjectId::new(ObjectKind::ReceiveRequest, 4095, 65535, 12345, 54321);
        assert!(id.is(ObjectKind::ReceiveRequest));
        assert!(!id.is(ObjectKind::SendRequest));
        assert_eq!(id.endpoint(), 4095);
        assert_eq!(id.generation(), 65535);
        assert_eq!(id.slot(), 12345);
        assert_eq!(id.line(), 54321);
        assert_eq!(ObjectId::from_bits(id.bits()), Some(id));
    }

    #[test]
    fn no_id_is_null_or_nccls_mark_for_optional_completion() {
        for kind in [ObjectKind::Context, ObjectKind::FlushRequest] {
            assert!(ObjectId::new(kind, 0, 0, 0, 0).bits() > 1);
        }
        assert_eq!(ObjectId::from_bits(0), None);
    }
}
