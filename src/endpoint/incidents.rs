//! Incidents of an endpoint, counted by cause: dropped input, lost rails, receives that were reported early.

use proto::receive::Dropped;

/// Counts by cause. A single incident is harmless; many of one kind show what is wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Incidents {
    /// Messages on a control rail that do not follow the protocol.
    pub(super) garbage: u64,
    /// HELLOs without a valid proof, and OPENs for closed listeners.
    pub(super) late_messages: u64,
    /// Immediates that name no connection.
    pub(super) stray_immediates: u64,
    /// Frames and events for connections that have ended.
    pub(super) stale_frames: u64,
    /// Receives that were reported before their bytes arrived, as NCCL allows for some. Nothing is dropped; the number helps to interpret
    /// sizes.
    pub(super) early_receives: u64,
    /// Data rails to peers that were lost while other rails continued, and those that came back.
    pub(super) rails_lost: u64,
    pub(super) rails_returned: u64,
    /// Errors of completion queues that name no operation, and those of event queues.
    pub(super) nameless_errors: u64,
    receives: Dropped,
}

impl Incidents {
    pub(crate) const NONE: Self = Self {
        garbage: 0,
        late_messages: 0,
        stray_immediates: 0,
        stale_frames: 0,
        early_receives: 0,
        rails_lost: 0,
        rails_returned: 0,
        nameless_errors: 0,
        receives: Dropped { late: 0, duplicates: 0, violations: 0 },
    };

    pub(crate) fn add(&mut self, other: &Self) {
        self.garbage += other.garbage;
        self.late_messages += other.late_messages;
        self.stray_immediates += other.stray_immediates;
        self.stale_frames += other.stale_frames;
        self.early_receives += other.early_receives;
        self.rails_lost += other.rails_lost;
        self.rails_returned += other.rails_returned;
        self.nameless_errors += other.nameless_errors;
        self.add_receives(&other.receives);
    }

    /// Adds a connection's counts at its end.
    pub(super) fn add_receives(&mut self, other: &Dropped) {
        self.receives.late += other.late;
        self.receives.duplicates += other.duplicates;
        self.receives.violations += other.violations;
    }

    /// Every counter by name.
    pub(crate) fn named(&self) -> [(&'static str, u64); 11] {
        [
            ("garbage_messages", self.garbage),
            ("late_messages", self.late_messages),
            ("stray_immediates", self.stray_immediates),
            ("stale_frames", self.stale_frames),
            ("early_receives", self.early_receives),
            ("rails_lost", self.rails_lost),
            ("rails_returned", self.rails_returned),
            ("nameless_errors", self.nameless_errors),
            ("late_parts", self.receives.late),
            ("duplicate_parts", self.receives.duplicates),
            ("violations", self.receives.violations),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_about_counters_has_every_cause_of_a_drop() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/counters.md");
        let page = fs::read_to_string(path).expect("the page is there");
        let (_, table) = page.split_once("| in `counters` |").expect("it has the table");
        let row = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
        let on_page: Vec<_> = table.lines().filter_map(row).collect();
        assert_eq!(on_page, Incidents::NONE.named().map(|(name, _)| name));
    }
}
