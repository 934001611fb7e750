//! The values of the settings that an endpoint obeys. `plugin::config` reads them, and says what each is for.

use std::time::Duration;

use proto::limits::FINGERPRINT_BYTES;

/// The settings of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) force_fin: bool,
    /// A data rail may be lost while others live.
    pub(crate) failover: bool,
    pub(crate) largest_write: u64,
    pub(crate) stripe_bytes_min: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) connect_warn: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) close_timeout: Duration,
    /// After how long a wait is reported; 0: never.
    pub(crate) stall_report: Duration,
    /// The longest message that travels in a packet.
    pub(crate) inline_bytes_max: u16,
    /// Entries of each completion queue.
    pub(crate) cq_entries: usize,
    pub(crate) job: String,
    /// A byte for each setting that peers are to have alike.
    pub(crate) fingerprint: [u8; FINGERPRINT_BYTES],
    /// The names of those settings.
    pub(crate) shared: Vec<String>,
}

impl Settings {
    /// The names of the settings in which a peer of the same version differs. One in 256 differences goes unseen.
    pub(crate) fn differing(&self, theirs: &[u8; FINGERPRINT_BYTES]) -> Vec<&str> {
        let bytes = self.shared.iter().zip(self.fingerprint.iter().zip(theirs));
        let differing = bytes.filter(|(_, (ours, theirs))| ours != theirs);
        differing.map(|(name, _)| name.as_str()).collect()
    }
}
