//! Between NCCL's `void*` and our tokens: a pointer is a number here, and is never followed.

use std::ffi::c_void;
use std::ptr;

use crate::token::{RawToken, Token};

/// What NCCL holds for us.
#[inline]
pub(super) fn pointer(token: Token) -> *mut c_void {
    ptr::without_provenance_mut(
        usize::try_from(token.bits()).expect("a pointer has 64 bits: asserted below"),
    )
}

/// As `pointer`, with null for "not yet".
#[inline]
pub(super) fn pointer_or_null(token: Option<Token>) -> *mut c_void {
    token.map_or(ptr::null_mut(), pointer)
}

/// What NCCL gave, unread.
#[inline(always)]
pub(super) fn raw(pointer: *mut c_void) -> RawToken {
    RawToken::new(pointer.addr() as u64)
}

/// What NCCL gets for a request; null for "not yet".
#[inline(always)]
pub(super) fn returned(request: Option<RawToken>) -> *mut c_void {
    let bits = request.map_or(0, RawToken::bits);
    ptr::without_provenance_mut(usize::from_ne_bytes(bits.to_ne_bytes()))
}

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "a token travels in a pointer");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::token::TokenKind;

    #[test]
    fn a_token_travels_through_a_pointer() {
        let token = Token::new(TokenKind::Receiver, 4095, 65535, 1, 2);
        assert_eq!(raw(pointer(token)).receiver(), Ok(token));
        assert_eq!(raw(pointer(token)).comm(), Ok(token));
        assert_eq!(returned(Some(token.raw())), pointer(token));
        assert!(pointer_or_null(None).is_null() && returned(None).is_null());
    }

    #[test]
    fn a_token_of_another_kind_is_refused() {
        let region = raw(pointer(Token::new(TokenKind::Region, 1, 1, 1, 0)));
        for parse in [
            RawToken::context,
            RawToken::listener,
            RawToken::sender,
            RawToken::receiver,
            RawToken::comm,
            RawToken::any_request,
        ] {
            assert_eq!(parse(region).expect_err("a region").kind(), Kind::InvalidArgument);
        }
    }

    #[test]
    fn null_and_nccls_marks_are_refused() {
        for bits in [0, 1, 2, usize::MAX] {
            let garbage = raw(ptr::without_provenance_mut(bits));
            for parse in [
                RawToken::context,
                RawToken::listener,
                RawToken::sender,
                RawToken::receiver,
                RawToken::comm,
                RawToken::region,
                RawToken::any_request,
            ] {
                assert_eq!(parse(garbage).expect_err("garbage").kind(), Kind::InvalidArgument);
            }
        }
        assert_eq!(raw(ptr::null_mut()).optional_region(), Ok(None));
        assert!(raw(ptr::without_provenance_mut(1)).optional_region().is_err());
    }
}
