//! Errors of libfabric's calls, and of calls that this crate refuses before libfabric is called.

use std::ffi::c_int;
use std::fmt;
use std::io;

use libfabric_sys as sys;

/// A libfabric call, the code that it returned (negative, see fi_errno(3)), and the reason where it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricError {
    code: c_int,
    call: Call,
    reason: Reason,
}

const _: () = assert!(size_of::<FabricError>() == 8, "errors are returned by value");

/// The calls that an error can name.
macro_rules! calls {
    ($($call:ident)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(non_camel_case_types, reason = "they are C's names")]
        pub(crate) enum Call { $($call,)* }

        impl Call {
            const fn name(self) -> &'static str {
                match self { $(Self::$call => stringify!($call),)* }
            }
        }
    };
}

calls! {
    no_call mmap madvise flock posix_fallocate
    fi_getinfo fi_dupinfo fi_fabric fi_eq_open fi_domain fi_open_ops fi_av_open fi_av_insert fi_av_remove fi_cq_open fi_cq_read fi_cq_readerr
    fi_endpoint fi_ep_bind fi_enable fi_setopt fi_getopt fi_getname fi_cancel fi_close
    fi_mr_regattr fi_mr_bind fi_mr_enable fi_mr_key
    fi_write fi_writedata fi_writemsg fi_inject_writedata fi_read fi_send fi_inject fi_recv
    fi_tsend fi_trecv
}

/// The reason of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// libfabric returned the code.
    Returned,
    /// Bytes outside of their region. libfabric was not called.
    Outside,
    /// A region or a peer of another NIC. libfabric was not called.
    WrongNic,
    /// A peer whose address the provider refused when the rail opened again. libfabric was not called.
    RefusedAddress,
    /// A rail that is closed, or was never opened. libfabric was not called.
    NoRail,
    /// Operations in flight use the region. libfabric was not called.
    InUse,
    /// The probe's write to its own endpoint failed.
    SelfWrite,
}

impl FabricError {
    /// Bytes outside of their region.
    pub const OUTSIDE: Self =
        Self { call: Call::no_call, code: -sys::FI_EINVAL, reason: Reason::Outside };
    /// No rail of that kind.
    pub const NO_RAIL: Self =
        Self { call: Call::no_call, code: -sys::FI_ESHUTDOWN, reason: Reason::NoRail };
    /// Operations in flight use the region.
    pub const IN_USE: Self =
        Self { call: Call::fi_close, code: -sys::FI_EBUSY, reason: Reason::InUse };
    /// The probe's write to its own endpoint has not completed, or its bytes have not landed.
    pub const SELF_WRITE_SILENT: Self = Self::self_write(sys::FI_ETIMEDOUT);

    /// The probe's write to its own endpoint has failed with this error number.
    pub const fn self_write(errno: c_int) -> Self {
        Self { call: Call::fi_write, code: errno.saturating_neg(), reason: Reason::SelfWrite }
    }

    /// `call` returned `-errno`.
    pub(crate) const fn new(call: Call, errno: c_int) -> Self {
        Self { call, code: -errno, reason: Reason::Returned }
    }

    /// `call` was not made.
    pub(crate) const fn not_called(call: Call, errno: c_int, reason: Reason) -> Self {
        Self { call, code: -errno, reason }
    }

    /// The call, by its C name.
    pub fn call(&self) -> &'static str {
        self.call.name()
    }

    /// The code: a negated error number.
    pub fn code(&self) -> c_int {
        self.code
    }

    /// The positive error number.
    pub fn errno(&self) -> c_int {
        self.code.saturating_neg()
    }
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, call, reason } = *self;
        if call != Call::no_call {
            f.write_str(call.name())?;
        }
        let words = match reason {
            Reason::Returned => return write!(f, ": {} ({code})", error_text(self.errno())),
            Reason::SelfWrite => {
                return write!(f, " to itself: {} ({code})", error_text(self.errno()));
            }
            Reason::Outside => "bytes outside of their region",
            Reason::WrongNic => "a region or a peer of another NIC",
            Reason::RefusedAddress => "the provider has refused the peer's address",
            Reason::NoRail => "the rail is closed",
            Reason::InUse => "operations use the region",
        };
        let gap = if call == Call::no_call { "" } else { ": " };
        write!(f, "{gap}{words} ({code})")
    }
}

impl std::error::Error for FabricError {}

/// Turns a negative code into an error; every other value, such as a count, is success.
#[inline]
pub(crate) fn check(call: Call, code: c_int) -> Result<(), FabricError> {
    if code < 0 { Err(FabricError::new(call, code.saturating_neg())) } else { Ok(()) }
}

/// The text for a positive error number: libfabric's for its own, the system's for the rest.
///
/// A copy of the texts of `fi_strerror`, since `Display` has no access to the loaded library.
pub fn error_text(errno: c_int) -> String {
    let own = match errno {
        sys::FI_EOTHER => "unspecified error",
        sys::FI_ETOOSMALL => "provided buffer is too small",
        sys::FI_EOPBADSTATE => "operation not permitted in current state",
        sys::FI_EAVAIL => "error available",
        sys::FI_EBADFLAGS => "flags not supported",
        sys::FI_ENOEQ => "missing or unavailable event queue",
        sys::FI_EDOMAIN => "invalid resource domain",
        sys::FI_ENOCQ => "missing or unavailable completion queue",
        sys::FI_ECRC => "checksum error",
        sys::FI_ETRUNC => "truncation error",
        sys::FI_ENOKEY => "required key not available",
        sys::FI_ENOAV => "missing or unavailable address vector",
        sys::FI_EOVERRUN => "queue has been overrun",
        sys::FI_ENORX => "receiver not ready, no receive buffers available",
        _ => {
            let text = io::Error::from_raw_os_error(errno).to_string();
            let words = text.rsplit_once(" (os error").map_or(text.as_str(), |(words, _)| words);
            return words.to_owned();
        }
    };
    own.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_call_the_text_and_the_code() {
        let error = FabricError::new(Call::fi_domain, sys::FI_EBUSY);
        assert_eq!(error.to_string(), "fi_domain: Device or resource busy (-16)");
        let error = FabricError::new(Call::fi_mr_regattr, sys::FI_ENOKEY);
        assert_eq!(error.to_string(), "fi_mr_regattr: required key not available (-266)");
        let refused =
            FabricError::not_called(Call::fi_write, sys::FI_EINVAL, Reason::RefusedAddress);
        let words = "fi_write: the provider has refused the peer's address (-22)";
        assert_eq!(refused.to_string(), words);
        let itself = "fi_write to itself: Input/output error (-5)";
        assert_eq!(FabricError::self_write(sys::FI_EIO).to_string(), itself);
        assert_eq!(FabricError::IN_USE.to_string(), "fi_close: operations use the region (-16)");
        assert_eq!(FabricError::OUTSIDE.to_string(), "bytes outside of their region (-22)");
    }
}
