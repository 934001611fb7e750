//! Every bound of the protocol, by name.

/// Data rails of one connection. NCCL's virtual devices have fewer.
pub const MAX_DATA_RAILS: usize = 16;
/// Control rails of one endpoint.
pub const MAX_CONTROL_RAILS: usize = 4;
/// Parts of a message that is sent with immediates: the receiver keeps a bit per part, and an immediate has 6 bits for
/// the index.
pub const MAX_PARTS: u32 = 64;
/// Sub-receives of a grouped receive (NCCL_PROXY_MAX_SUBS; NCCL src/include/proxy.h).
pub const MAX_GROUP: usize = 8;
/// Parts start on this boundary, so that each of NCCL's LL128 lines is in one part.
pub const PART_ALIGN: u64 = 128;

/// The longest connection message.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// The longest libfabric address we carry.
pub const MAX_ADDRESS_BYTES: usize = 64;
/// The longest name of a fabric, host or provider; longer ones are cut.
pub const MAX_NAME_BYTES: usize = 64;
/// The most settings in a fingerprint, which has a byte for each.
pub const FINGERPRINT_BYTES: usize = 32;

/// NCCL_NET_HANDLE_MAXSIZE (NCCL src/include/plugin/nccl_net.h).
pub const HANDLE_BYTES: usize = 128;
/// NCCL_NET_MAX_REQUESTS (NCCL src/include/plugin/nccl_net.h): requests NCCL may have on one communicator.
pub const NCCL_MAX_REQUESTS: u32 = 32;

const _: () = {
    assert!(MAX_PARTS <= u64::BITS);
    assert!(MAX_DATA_RAILS <= MAX_PARTS as usize, "every rail can carry a part");
    assert!(MAX_GROUP <= 16, "the index in a group has 4 bits");
};
