//! Every bound of the protocol, by name.

use std::time::Duration;

/// Data rails of one connection. NCCL's virtual devices have fewer.
pub const MAX_DATA_RAILS: usize = 16;
/// Control rails of one endpoint.
pub const MAX_CONTROL_RAILS: usize = 4;
/// Parts of a message that is sent with immediates: the receiver keeps a bit per part, and an immediate has 6 bits for
/// the index.
pub const MAX_PARTS: u32 = 64;
/// Sub-receives of a grouped receive (NCCL_PROXY_MAX_SUBS; NCCL src/include/proxy.h).
pub const MAX_GROUP: usize = 8;
/// Parts start on this boundary, so that NCCL's LL128 lines are never torn across rails.
pub const PART_ALIGN: u64 = 128;
/// Polls without an event of a connection before a pending DONE leaves alone.
pub const LONE_DONE_IDLE_TURNS: u32 = 128;
/// The same before a connection for which nothing waits is not checked any more.
pub const IDLE_TURNS: u32 = 32;
/// The same before adverts leave that are delayed because the rails are busy.
pub const BUSY_IDLE_TURNS: u32 = 16;
/// A DONE of 16 bits can distinguish this many lines, forward and backward.
pub const MAX_RING: u32 = 128;

/// The longest connection message.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// The longest libfabric address we carry.
pub const MAX_ADDRESS_BYTES: usize = 64;
/// The longest name of a fabric, host or provider; longer ones are cut.
pub const MAX_NAME_BYTES: usize = 64;
/// Settings that a fingerprint has a byte for.
pub const FINGERPRINT_BYTES: usize = 32;
/// The longest sentence of a refusal; longer ones are cut.
pub const MAX_TEXT_BYTES: usize = 256;

/// Retransmission timeout of a request without an answer: initial value and maximum. It doubles each time.
pub const ASK_AGAIN: Duration = Duration::from_millis(200);
pub const ASK_AGAIN_MAX: Duration = Duration::from_secs(5);
/// Back-off of a request that could not be sent, or that the listener had no room for: initial value and maximum.
pub const ASK_SOON: Duration = Duration::from_millis(1);
pub const ASK_SOON_MAX: Duration = Duration::from_millis(100);
/// Of a longer gap between two calls of the requesting side, only this much counts towards its timeout.
pub const ASKING_TURN_MAX: Duration = Duration::from_millis(50);
/// Requests of closed connections that an endpoint remembers. A late duplicate is taken for a new request only after so
/// many others have closed.
pub const CLOSED_REQUESTS: usize = 1024;

/// NCCL_NET_HANDLE_MAXSIZE (NCCL src/include/plugin/nccl_net.h).
pub const HANDLE_BYTES: usize = 128;
/// NCCL_NET_MAX_REQUESTS (NCCL src/include/plugin/nccl_net.h): requests NCCL may have on one communicator.
pub const NCCL_MAX_REQUESTS: u32 = 32;

const _: () = {
    assert!(MAX_RING < 1 << 15, "a done of 16 bits has a direction");
    assert!(MAX_PARTS <= u64::BITS);
    assert!(MAX_DATA_RAILS <= u16::BITS as usize, "the rails that carried bytes are bits of a u16");
    assert!(MAX_DATA_RAILS <= MAX_PARTS as usize, "every rail can carry a part");
    assert!(MAX_GROUP <= 16, "the index in a group has 4 bits");
};
