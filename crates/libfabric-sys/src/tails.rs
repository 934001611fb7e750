//! What later versions added to 1.17's structures and numbers, by hand, each with the version that brought it.
//!
//! A library reads a later field only when the version asked of `fi_getinfo` has it, with exceptions: a provider may read a
//! tail unasked, and a library writes later fields of what it fills. So structures travel in a [`Grown`], whose tail of zeroes has room for them.

use std::ffi::{c_int, c_void};

use crate::bindings::fi_mr_attr;

/// A structure of 1.17 followed by zeroes, as long as any later version's.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Grown<T> {
    /// The part that 1.17 has.
    pub known: T,
    tail: [u64; TAIL_WORDS],
}

/// The longest tail up to 2.7 is four words, `fi_mr_attr`'s.
const TAIL_WORDS: usize = 8;

impl<T> Grown<T> {
    /// `known`, and a tail of zeroes: "unset" for every field that was ever added.
    pub const fn new(known: T) -> Self {
        Self { known, tail: [0; TAIL_WORDS] }
    }
}

/// Gives memory as a dmabuf: a flag of `fi_mr_regattr`, from 1.20, in a domain with FI_HMEM: fi_mr(3).
pub const FI_MR_DMABUF: u64 = 1 << 40;

/// What `fi_mr_attr` points to under [`FI_MR_DMABUF`], from 1.20.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_mr_dmabuf {
    /// The dmabuf.
    pub fd: c_int,
    /// Where the region begins in it, in bytes.
    pub offset: u64,
    /// The region's length in bytes.
    pub len: usize,
    /// Where the dmabuf begins in the address space; the region begins at `base_addr + offset`.
    pub base_addr: *mut c_void,
}

/// `fi_mr_attr` with its tail: `hmem_data` from 1.19, `page_size` from 1.22, `base_mr` and `sub_mr_cnt` from 2.0.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "the generated part holds a union")]
pub struct fi_mr_attr_2_0 {
    /// The part that 1.17 has. Its `mr_iov` is a `*const fi_mr_dmabuf` under [`FI_MR_DMABUF`].
    pub known: fi_mr_attr,
    pub hmem_data: *mut c_void,
    pub page_size: usize,
    pub base_mr: *const c_void,
    pub sub_mr_cnt: usize,
}

// Endpoint options: fi_endpoint(3). An older library answers -FI_ENOPROTOOPT, some providers -FI_EINVAL.
/// From 1.18; a `bool`.
pub const FI_OPT_CUDA_API_PERMITTED: c_int = 10;
/// From 1.21; a `bool`.
pub const FI_OPT_SHARED_MEMORY_PERMITTED: c_int = 11;
/// From 1.22; a `size_t`, as the next seven.
pub const FI_OPT_MAX_MSG_SIZE: c_int = 12;
pub const FI_OPT_MAX_TAGGED_SIZE: c_int = 13;
pub const FI_OPT_MAX_RMA_SIZE: c_int = 14;
pub const FI_OPT_MAX_ATOMIC_SIZE: c_int = 15;
pub const FI_OPT_INJECT_MSG_SIZE: c_int = 16;
pub const FI_OPT_INJECT_TAGGED_SIZE: c_int = 17;
pub const FI_OPT_INJECT_RMA_SIZE: c_int = 18;
pub const FI_OPT_INJECT_ATOMIC_SIZE: c_int = 19;

// Options of the efa provider: fi_efa(7).
/// From 1.18; a `bool`, as all below.
pub const FI_OPT_EFA_EMULATED_READ: c_int = FI_OPT_EFA_BASE + 1;
pub const FI_OPT_EFA_EMULATED_WRITE: c_int = FI_OPT_EFA_BASE + 2;
pub const FI_OPT_EFA_EMULATED_ATOMICS: c_int = FI_OPT_EFA_BASE + 3;
pub const FI_OPT_EFA_USE_DEVICE_RDMA: c_int = FI_OPT_EFA_BASE + 4;
pub const FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES: c_int = FI_OPT_EFA_BASE + 5;
pub const FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES: c_int = FI_OPT_EFA_BASE + 6;
/// From 2.2.
pub const FI_OPT_EFA_HOMOGENEOUS_PEERS: c_int = FI_OPT_EFA_BASE + 7;
/// From 2.5.
pub const FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV: c_int = FI_OPT_EFA_BASE + 8;

const FI_OPT_EFA_BASE: c_int = crate::constants::FI_OPT_EFA_RNR_RETRY;
