//! What NCCL holds for us: a kind, a place in tables we own, and a generation. Never a pointer.
//!
//! ```text
//! 63..52 endpoint | 51..48 kind | 47..32 generation | 31..16 slot | 15..0 line (requests)
//! ```

use std::num::NonZeroU64;

use crate::error::{Cause, Noun, Result};

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HandleKind {
    Context = 1,
    Sender = 2,
    Receiver = 3,
    Listener = 4,
    Region = 5,
    /// Of a comm and a line: see [`Name::request`].
    SendRequest = 6,
    ReceiveRequest = 7,
    FlushRequest = 8,
    /// Of a receive that may be told done before its bytes are there.
    OptionalReceiveRequest = 9,
    /// Of a connect that is on its way: what the handle keeps between its calls.
    Connect = 11,
}

/// A handle as NCCL sees it: 64 bits that are never 0 (null) and never 1 (NCCL's mark for optional completion).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle(NonZeroU64);

impl Handle {
    pub(crate) fn new(
        kind: HandleKind,
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

    pub(crate) fn name(self) -> Name {
        Name(self.bits())
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(Self)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn is(self, kind: HandleKind) -> bool {
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

/// 64 bits as NCCL gave them, before anybody has looked what they name. The slot that they lead to knows its own name, and
/// says in one comparison whether they are that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name(u64);

impl Name {
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

    pub(crate) fn context(self) -> Result<Handle> {
        self.one_of(Noun::Context, &[HandleKind::Context])
    }

    pub(crate) fn listener(self) -> Result<Handle> {
        self.one_of(Noun::ListenComm, &[HandleKind::Listener])
    }

    #[inline]
    pub(crate) fn sender(self) -> Result<Handle> {
        self.one_of(Noun::SendComm, &[HandleKind::Sender])
    }

    #[inline]
    pub(crate) fn receiver(self) -> Result<Handle> {
        self.one_of(Noun::ReceiveComm, &[HandleKind::Receiver])
    }

    /// Either end of a connection.
    #[inline]
    pub(crate) fn comm(self) -> Result<Handle> {
        self.one_of(Noun::Comm, &[HandleKind::Sender, HandleKind::Receiver])
    }

    #[inline]
    pub(crate) fn region(self) -> Result<Handle> {
        self.one_of(Noun::MemoryHandle, &[HandleKind::Region])
    }

    /// Null where the message is empty.
    #[inline]
    pub(crate) fn optional_region(self) -> Result<Option<Handle>> {
        if self.0 == 0 { Ok(None) } else { self.region().map(Some) }
    }

    #[inline]
    pub(crate) fn any_request(self) -> Result<Handle> {
        self.one_of(
            Noun::Request,
            &[
                HandleKind::SendRequest,
                HandleKind::ReceiveRequest,
                HandleKind::FlushRequest,
                HandleKind::OptionalReceiveRequest,
            ],
        )
    }

    #[inline]
    fn one_of(self, expected: Noun, kinds: &[HandleKind]) -> Result<Handle> {
        match Handle::from_bits(self.0) {
            Some(handle) if kinds.iter().any(|kind| handle.is(*kind)) => Ok(handle),
            _ => Err(Cause::NotOurs { expected, found: self.0 }.into()),
        }
    }

    /// `family` has kind and endpoint.
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

    /// Of a comm: the request for a line that ends in `line`.
    #[inline(always)]
    pub(crate) const fn request(self, line: u16) -> Self {
        Self(self.0 | REQUEST | line as u64)
    }
}

/// What makes a comm's kind its requests' kind. A comm's line is 0.
const REQUEST: u64 = 4 << KIND_SHIFT;
const ENDPOINT_SHIFT: u32 = 52;
const KIND_SHIFT: u32 = 48;
const _: () = {
    assert!(HandleKind::Sender as u64 | 4 == HandleKind::SendRequest as u64);
    assert!(HandleKind::Receiver as u64 | 4 == HandleKind::ReceiveRequest as u64);
    assert!(HandleKind::Receiver as u64 & 1 == 1 && HandleKind::Sender as u64 & 1 == 0);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_gives_back_what_it_was_made_of() {
        let handle = Handle::new(HandleKind::ReceiveRequest, 4095, 65535, 12345, 54321);
        assert!(handle.is(HandleKind::ReceiveRequest));
        assert!(!handle.is(HandleKind::SendRequest));
        assert_eq!(handle.endpoint(), 4095);
        assert_eq!(handle.generation(), 65535);
        assert_eq!(handle.slot(), 12345);
        assert_eq!(handle.line(), 54321);
        assert_eq!(Handle::from_bits(handle.bits()), Some(handle));
    }

    #[test]
    fn no_handle_is_null_or_nccls_mark_for_optional_completion() {
        for kind in [HandleKind::Context, HandleKind::FlushRequest] {
            assert!(Handle::new(kind, 0, 0, 0, 0).bits() > 1);
        }
        assert_eq!(Handle::from_bits(0), None);
    }
}
