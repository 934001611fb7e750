//! The macros of libfabric 1.17, by hand: bindgen gives each the smallest type that holds its value, and leaves out those
//! with a cast.

use std::ffi::c_int;

/// What `fi_getinfo` is asked for and `fi_version` answers: fi_version(3).
pub const fn version(major: u16, minor: u16) -> u32 {
    ((major as u32) << 16) | minor as u32
}

// Capabilities and flags: rdma/fabric.h. Some bits mean different things in different calls.
pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_TAGGED: u64 = 1 << 3;
pub const FI_ATOMIC: u64 = 1 << 4;
pub const FI_MULTICAST: u64 = 1 << 5;
pub const FI_COLLECTIVE: u64 = 1 << 6;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_TRANSMIT: u64 = FI_SEND;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_MULTI_RECV: u64 = 1 << 16;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_MORE: u64 = 1 << 18;
pub const FI_PEEK: u64 = 1 << 19;
pub const FI_TRIGGER: u64 = 1 << 20;
pub const FI_FENCE: u64 = 1 << 21;
pub const FI_PRIORITY: u64 = 1 << 22;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_INJECT: u64 = 1 << 25;
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub const FI_AFFINITY: u64 = 1 << 29;
pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
pub const FI_PEER_TRANSFER: u64 = 1 << 36;
pub const FI_AV_USER_ID: u64 = 1 << 41;
pub const FI_PEER: u64 = 1 << 43;
pub const FI_HMEM_HOST_ALLOC: u64 = 1 << 45;
pub const FI_HMEM_DEVICE_ONLY: u64 = 1 << 46;
pub const FI_HMEM: u64 = 1 << 47;
pub const FI_VARIABLE_MSG: u64 = 1 << 48;
pub const FI_RMA_PMEM: u64 = 1 << 49;
pub const FI_SOURCE_ERR: u64 = 1 << 50;
pub const FI_LOCAL_COMM: u64 = 1 << 51;
pub const FI_REMOTE_COMM: u64 = 1 << 52;
pub const FI_SHARED_AV: u64 = 1 << 53;
pub const FI_PROV_ATTR_ONLY: u64 = 1 << 54;
pub const FI_NUMERICHOST: u64 = 1 << 55;
pub const FI_RMA_EVENT: u64 = 1 << 56;
pub const FI_SOURCE: u64 = 1 << 57;
pub const FI_NAMED_RX_CTX: u64 = 1 << 58;
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;

// Values that no object has: rdma/fabric.h.
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
pub const FI_ADDR_NOTAVAIL: u64 = u64::MAX;
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;

// Memory registration modes, in the type of `fi_domain_attr::mr_mode`: fi_mr(3). FI_MR_BASIC and FI_MR_SCALABLE are an enum's.
pub const FI_MR_LOCAL: c_int = 1 << 2;
pub const FI_MR_RAW: c_int = 1 << 3;
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
pub const FI_MR_PROV_KEY: c_int = 1 << 6;
pub const FI_MR_MMU_NOTIFY: c_int = 1 << 7;
pub const FI_MR_RMA_EVENT: c_int = 1 << 8;
pub const FI_MR_ENDPOINT: c_int = 1 << 9;
pub const FI_MR_HMEM: c_int = 1 << 10;
pub const FI_MR_COLLECTIVE: c_int = 1 << 11;

// Message orders: fi_endpoint(3).
pub const FI_ORDER_RAR: u64 = 1 << 0;
pub const FI_ORDER_RAW: u64 = 1 << 1;
pub const FI_ORDER_RAS: u64 = 1 << 2;
pub const FI_ORDER_WAR: u64 = 1 << 3;
pub const FI_ORDER_WAW: u64 = 1 << 4;
pub const FI_ORDER_WAS: u64 = 1 << 5;
pub const FI_ORDER_SAR: u64 = 1 << 6;
pub const FI_ORDER_SAW: u64 = 1 << 7;
pub const FI_ORDER_SAS: u64 = 1 << 8;
pub const FI_ORDER_DATA: u64 = 1 << 16;

// Mode bits: fi_getinfo(3).
pub const FI_CONTEXT: u64 = 1 << 59;
pub const FI_MSG_PREFIX: u64 = 1 << 58;
pub const FI_ASYNC_IOV: u64 = 1 << 57;
pub const FI_RX_CQ_DATA: u64 = 1 << 56;
pub const FI_LOCAL_MR: u64 = 1 << 55;
pub const FI_NOTIFY_FLAGS_ONLY: u64 = 1 << 54;
pub const FI_RESTRICTED_COMP: u64 = 1 << 53;
pub const FI_CONTEXT2: u64 = 1 << 52;
pub const FI_BUFFERED_RECV: u64 = 1 << 51;

// Errors: fi_errno(3). Calls return them negated. Those below 256 are the system's.
pub const FI_SUCCESS: c_int = 0;
pub const FI_EPERM: c_int = libc::EPERM;
pub const FI_ENOENT: c_int = libc::ENOENT;
pub const FI_EINTR: c_int = libc::EINTR;
pub const FI_EIO: c_int = libc::EIO;
pub const FI_E2BIG: c_int = libc::E2BIG;
pub const FI_EBADF: c_int = libc::EBADF;
pub const FI_EAGAIN: c_int = libc::EAGAIN;
pub const FI_ENOMEM: c_int = libc::ENOMEM;
pub const FI_EACCES: c_int = libc::EACCES;
pub const FI_EFAULT: c_int = libc::EFAULT;
pub const FI_EBUSY: c_int = libc::EBUSY;
pub const FI_ENODEV: c_int = libc::ENODEV;
pub const FI_EINVAL: c_int = libc::EINVAL;
pub const FI_EMFILE: c_int = libc::EMFILE;
pub const FI_ENOSPC: c_int = libc::ENOSPC;
pub const FI_ENOSYS: c_int = libc::ENOSYS;
pub const FI_ENOMSG: c_int = libc::ENOMSG;
pub const FI_ENODATA: c_int = libc::ENODATA;
pub const FI_EOVERFLOW: c_int = libc::EOVERFLOW;
pub const FI_EMSGSIZE: c_int = libc::EMSGSIZE;
pub const FI_ENOPROTOOPT: c_int = libc::ENOPROTOOPT;
pub const FI_EOPNOTSUPP: c_int = libc::EOPNOTSUPP;
pub const FI_EADDRINUSE: c_int = libc::EADDRINUSE;
pub const FI_EADDRNOTAVAIL: c_int = libc::EADDRNOTAVAIL;
pub const FI_ENETDOWN: c_int = libc::ENETDOWN;
pub const FI_ENETUNREACH: c_int = libc::ENETUNREACH;
pub const FI_ECONNABORTED: c_int = libc::ECONNABORTED;
pub const FI_ECONNRESET: c_int = libc::ECONNRESET;
pub const FI_ENOBUFS: c_int = libc::ENOBUFS;
pub const FI_EISCONN: c_int = libc::EISCONN;
pub const FI_ENOTCONN: c_int = libc::ENOTCONN;
pub const FI_ESHUTDOWN: c_int = libc::ESHUTDOWN;
pub const FI_ETIMEDOUT: c_int = libc::ETIMEDOUT;
pub const FI_ECONNREFUSED: c_int = libc::ECONNREFUSED;
pub const FI_EHOSTDOWN: c_int = libc::EHOSTDOWN;
pub const FI_EHOSTUNREACH: c_int = libc::EHOSTUNREACH;
pub const FI_EALREADY: c_int = libc::EALREADY;
pub const FI_EINPROGRESS: c_int = libc::EINPROGRESS;
pub const FI_EREMOTEIO: c_int = libc::EREMOTEIO;
pub const FI_ECANCELED: c_int = libc::ECANCELED;
pub const FI_EKEYREJECTED: c_int = libc::EKEYREJECTED;
pub const FI_EOTHER: c_int = 256;
pub const FI_ETOOSMALL: c_int = 257;
pub const FI_EOPBADSTATE: c_int = 258;
pub const FI_EAVAIL: c_int = 259;
pub const FI_EBADFLAGS: c_int = 260;
pub const FI_ENOEQ: c_int = 261;
pub const FI_EDOMAIN: c_int = 262;
pub const FI_ENOCQ: c_int = 263;
pub const FI_ECRC: c_int = 264;
pub const FI_ETRUNC: c_int = 265;
pub const FI_ENOKEY: c_int = 266;
pub const FI_ENOAV: c_int = 267;
pub const FI_EOVERRUN: c_int = 268;
pub const FI_ENORX: c_int = 269;

// Extensions of providers: rdma/fi_ext.h. Option numbers of providers are negative.
pub const FI_PROV_SPECIFIC: u32 = 1 << 31;
pub const FI_OPT_EFA_RNR_RETRY: c_int = -(0xefa << 16);
