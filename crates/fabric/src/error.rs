//! Errors: of libfabric's calls, and of calls that were refused here.

use std::ffi::c_int;
use std::fmt;
use std::io;

use libfabric_sys as sys;

/// A libfabric call, the code that it returned (negative, by fi_errno(3)), and what was wrong where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricError {
    code: c_int,
    call: Call,
    what: What,
}

const _: () = assert!(size_of::<FabricError>() == 8, "errors are returned by value");

/// The calls that an error may be of.
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
    fi_getinfo fi_dupinfo fi_fabric fi_domain fi_av_open fi_av_insert fi_av_remove fi_cq_open fi_cq_read fi_cq_readerr
    fi_endpoint fi_ep_bind fi_enable fi_setopt fi_getopt fi_getname fi_cancel fi_close
    fi_mr_regattr fi_mr_bind fi_mr_enable fi_mr_key
    fi_write fi_writedata fi_writemsg fi_inject_writedata fi_read fi_send fi_inject fi_recv
    fi_tsend fi_trecv
}

/// What an error is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// libfabric's own answer.
    Answer,
    /// Bytes outside of the region that they are to lie in. libfabric was not asked.
    Outside,
    /// A region or a peer that is not this NIC's. libfabric was not asked.
    Stranger,
    /// A rail that is closed, or was never opened. libfabric was not asked.
    NoRail,
    /// As many operations as the NIC has room for are in flight. libfabric was not asked.
    NoRoom,
    /// A region that operations touch. libfabric was not asked.
    InUse,
    /// A write to itself that did not end as it should.
    ToItself,
}

impl FabricError {
    /// Bytes outside of their region.
    pub const OUTSIDE: Self =
        Self { call: Call::no_call, code: -sys::FI_EINVAL, what: What::Outside };
    /// No rail of that kind.
    pub const NO_RAIL: Self =
        Self { call: Call::no_call, code: -sys::FI_ESHUTDOWN, what: What::NoRail };
    /// A region that operations touch.
    pub const IN_USE: Self = Self { call: Call::fi_close, code: -sys::FI_EBUSY, what: What::InUse };
    /// A write to itself has failed.
    pub const SELF_WRITE_FAILED: Self =
        Self { call: Call::fi_write, code: -sys::FI_EIO, what: What::ToItself };
    /// A write to itself has not completed.
    pub const SELF_WRITE_SILENT: Self =
        Self { call: Call::fi_write, code: -sys::FI_ETIMEDOUT, what: What::ToItself };

    /// `call` refused with `-errno`.
    pub(crate) const fn new(call: Call, errno: c_int) -> Self {
        Self { call, code: -errno, what: What::Answer }
    }

    /// `call` was not made.
    pub(crate) const fn unasked(call: Call, errno: c_int, what: What) -> Self {
        Self { call, code: -errno, what }
    }

    /// The call, by its C name.
    pub fn call(&self) -> &'static str {
        self.call.name()
    }

    /// What it returned: a negated error number.
    pub fn code(&self) -> c_int {
        self.code
    }

    /// What it is of.
    pub fn what(&self) -> What {
        self.what
    }

    /// The positive error number.
    pub fn errno(&self) -> c_int {
        self.code.saturating_neg()
    }
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, call, what } = *self;
        if call != Call::no_call {
            f.write_str(call.name())?;
        }
        let words = match what {
            What::Answer => return write!(f, ": {} ({code})", error_text(self.errno())),
            What::ToItself => {
                return write!(f, " to itself: {} ({code})", error_text(self.errno()));
            }
            What::Outside => "bytes outside of their region",
            What::Stranger => "a region or a peer of another NIC",
            What::NoRail => "the rail is closed",
            What::InUse => "operations touch the region",
            What::NoRoom => "as many operations as there is room for are in flight",
        };
        let gap = if call == Call::no_call { "" } else { ": " };
        write!(f, "{gap}{words} ({code})")
    }
}

impl std::error::Error for FabricError {}

/// A negative answer as an error, anything else as success. Counts are the caller's to read.
#[inline]
pub(crate) fn check(call: Call, code: c_int) -> Result<(), FabricError> {
    if code < 0 { Err(FabricError::new(call, code.saturating_neg())) } else { Ok(()) }
}

/// The words for a positive error number: libfabric's for its own, the system's for the rest.
///
/// They are a copy of what `fi_strerror` returns, since `Display` has no access to the loaded library.
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
    fn an_error_says_the_call_the_words_and_the_code() {
        let error = FabricError::new(Call::fi_domain, sys::FI_EBUSY);
        assert_eq!(error.to_string(), "fi_domain: Device or resource busy (-16)");
        let error = FabricError::new(Call::fi_mr_regattr, sys::FI_ENOKEY);
        assert_eq!(error.to_string(), "fi_mr_regattr: required key not available (-266)");
        let itself = "fi_write to itself: Input/output error (-5)";
        assert_eq!(FabricError::SELF_WRITE_FAILED.to_string(), itself);
        assert_eq!(FabricError::IN_USE.to_string(), "fi_close: operations touch the region (-16)");
        assert_eq!(FabricError::OUTSIDE.to_string(), "bytes outside of their region (-22)");
    }
}
