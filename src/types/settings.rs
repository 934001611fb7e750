//! The settings that an endpoint uses. `plugin::config` reads and documents them.

use std::time::Duration;

use proto::limits::FINGERPRINT_BYTES;

/// The settings of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) force_fin: bool,
    /// A connection survives the loss of a data rail while others work.
    pub(crate) failover: bool,
    pub(crate) largest_write: u64,
    pub(crate) stripe_bytes_min: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) connect_warn: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) close_timeout: Duration,
    /// How long a request waits before that is reported; 0: never.
    pub(crate) stall_report: Duration,
    /// The longest message that travels in a packet.
    pub(crate) inline_bytes_max: u16,
    /// Entries of the completion queue of each data rail.
    pub(crate) cq_entries: usize,
    pub(crate) job: String,
    /// One byte per setting that must be the same on all ranks.
    pub(crate) fingerprint: [u8; FINGERPRINT_BYTES],
    /// The names of those settings.
    pub(crate) shared: Vec<String>,
}

impl Settings {
    /// The names of the settings in which a peer of the same version differs. Each is compared by one byte, so one in 256 differences is
    /// not seen.
    pub(crate) fn differing(&self, theirs: &[u8; FINGERPRINT_BYTES]) -> Vec<&str> {
        let bytes = self.shared.iter().zip(self.fingerprint.iter().zip(theirs));
        let differing = bytes.filter(|(_, (ours, theirs))| ours != theirs);
        differing.map(|(name, _)| name.as_str()).collect()
    }
}
