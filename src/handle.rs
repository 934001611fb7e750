//! What NCCL holds for us: a kind, a place in tables we own, and a generation. Never a pointer.
//!
//! ```text
//! 63..60 kind | 59..48 endpoint | 47..32 generation | 31..16 slot | 15..0 line (requests)
//! ```

use std::num::NonZeroU64;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HandleKind {
    Context = 1,
    Listener = 2,
    Sender = 3,
    Receiver = 4,
    Region = 5,
    SendRequest = 6,
    ReceiveRequest = 7,
    FlushRequest = 8,
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
        debug_assert!(endpoint < 1 << 12, "the table of endpoints has 4096 places");
        let bits = (kind as u64) << 60
            | u64::from(endpoint & 0xfff) << 48
            | u64::from(generation) << 32
            | u64::from(slot) << 16
            | u64::from(line);
        Self(NonZeroU64::new(bits).expect("every kind is at least 1"))
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(Self)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn is(self, kind: HandleKind) -> bool {
        self.0.get() >> 60 == kind as u64
    }

    pub(crate) fn endpoint(self) -> u16 {
        self.field(48) & 0xfff
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
