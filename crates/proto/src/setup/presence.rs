//! What an endpoint says of itself to its peers.

use super::super::packet::Ring;
use super::proof::EndpointId;
use crate::capabilities::Capabilities;
use crate::codec::Name;
use crate::limits::FINGERPRINT_BYTES;
use crate::rails::Rail;

/// An endpoint's description of itself in its HELLOs.
#[derive(Clone, Debug)]
pub struct Presence {
    /// A random number.
    pub id: EndpointId,
    pub capabilities: Capabilities,
    /// 1 to 16 rails, at least one of them with a control address.
    pub rails: Vec<Rail>,
    pub host: Host,
    pub offers: Offers,
}

/// An endpoint's offers for a channel. Both ends use the smaller of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    pub ring: Ring,
    /// The longest inline message. At most [`INLINE_BYTES_MAX`](super::super::frame::INLINE_BYTES_MAX).
    pub inline_bytes_max: u16,
    /// Messages of at least this many bytes are striped over the data rails.
    pub shared_from: u64,
}

/// The process at the other end, for log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub host: Name,
    pub process: u32,
    /// The PID namespace in which the process has this number (pid_namespaces(7)), as its inode number: processes of two containers on one
    /// host may have the same process number. `None`: the sender does not know the namespace, or its release does not send it.
    pub pid_namespace: Option<u64>,
    pub provider: Name,
    /// The provider's own version, and libfabric's: major in the high half, minor in the low one.
    pub provider_version: u32,
    pub libfabric_version: u32,
    /// A fingerprint of the settings that should be equal on both ends: a byte for each, then zeros.
    pub settings: [u8; FINGERPRINT_BYTES],
}
