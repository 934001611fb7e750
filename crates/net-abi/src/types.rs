//! The small types that NCCL's calls pass besides properties.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::{offset_of, size_of};

/// ncclResult_t. An integer, because a foreign plugin may return any.
#[must_use]
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResultCode(pub c_int);

impl ResultCode {
    pub const SUCCESS: Self = Self(0);
    pub const UNHANDLED_CUDA_ERROR: Self = Self(1);
    pub const SYSTEM_ERROR: Self = Self(2);
    pub const INTERNAL_ERROR: Self = Self(3);
    pub const INVALID_ARGUMENT: Self = Self(4);
    pub const INVALID_USAGE: Self = Self(5);
    pub const REMOTE_ERROR: Self = Self(6);
    pub const IN_PROGRESS: Self = Self(7);

    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }

    /// NCCL's name for the code.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::SUCCESS => "ncclSuccess",
            Self::UNHANDLED_CUDA_ERROR => "ncclUnhandledCudaError",
            Self::SYSTEM_ERROR => "ncclSystemError",
            Self::INTERNAL_ERROR => "ncclInternalError",
            Self::INVALID_ARGUMENT => "ncclInvalidArgument",
            Self::INVALID_USAGE => "ncclInvalidUsage",
            Self::REMOTE_ERROR => "ncclRemoteError",
            Self::IN_PROGRESS => "ncclInProgress",
            _ => return None,
        })
    }
}

impl fmt::Display for ResultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "ncclResult {}", self.0),
        }
    }
}

impl fmt::Debug for ResultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a communicator asks of the network: in `init` since v11, in `connect` in v10.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommConfig {
    /// -1: undefined.
    pub traffic_class: c_int,
}

const _: () = assert!(size_of::<CommConfig>() == 4);

/// What a device-offload plugin gives to kernels. Plugins of type HOST leave it alone.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DevHandle {
    pub net_device_type: c_int,
    pub net_device_version: c_int,
    pub handle: *mut c_void,
    pub size: usize,
    pub needs_proxy_progress: c_int,
}

const _: () = {
    assert!(size_of::<DevHandle>() == 32);
    assert!(offset_of!(DevHandle, net_device_version) == 4);
    assert!(offset_of!(DevHandle, handle) == 8);
    assert!(offset_of!(DevHandle, size) == 16);
    assert!(offset_of!(DevHandle, needs_proxy_progress) == 24);
};

/// Hints for one direction of a communicator's connections; -1: undefined.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommAttr {
    pub max_concurrent_peers: i32,
    pub min_concurrent_peers: i32,
    pub max_flows_per_peer: i32,
    pub min_flows_per_peer: i32,
}

/// Hints of `setNetAttr`, v11 and newer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetAttr {
    pub send_comm_attr: CommAttr,
    pub recv_comm_attr: CommAttr,
    /// Bits, one per kind of collective.
    pub op: u32,
    pub algo: u32,
    pub proto: u32,
}

const _: () = {
    assert!(size_of::<CommAttr>() == 16);
    assert!(size_of::<NetAttr>() == 44);
    assert!(offset_of!(NetAttr, recv_comm_attr) == 16);
    assert!(offset_of!(NetAttr, op) == 32);
    assert!(offset_of!(NetAttr, algo) == 36);
    assert!(offset_of!(NetAttr, proto) == 40);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_shown_by_nccls_name_and_an_unknown_one_by_its_number() {
        assert_eq!(ResultCode::REMOTE_ERROR.to_string(), "ncclRemoteError");
        assert_eq!(ResultCode(42).to_string(), "ncclResult 42");
    }
}
