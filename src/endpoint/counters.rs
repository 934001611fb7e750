//! What an endpoint has dropped, and why; and what it has told early.

use proto::receive::ReceiveCounters;

/// Drops, counted: each is harmless alone, and many of one kind tell what is wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Messages on a control rail that are none of ours.
    pub(super) garbage: u64,
    /// Requests for listeners that are closed, answers nobody waits for (or waits for any more), byes for connections long gone.
    pub(super) late_messages: u64,
    /// Requests of ours that were sent again, since no answer came.
    pub(super) repeated_requests: u64,
    /// Requests that were heard again: of connections that wait, are made or are closed.
    pub(super) requests_heard_again: u64,
    /// Refusals and byes that their peers' endpoints did not take.
    pub(super) unsent_notices: u64,
    /// Parts of messages that waited for room, and were never posted: their connections have failed, or their peers took nothing.
    pub(super) unsent_parts: u64,
    /// Immediates that name no connection.
    pub(super) stray_immediates: u64,
    /// Receives that were told done before their bytes came, as NCCL allows for some. No drop, but as well to know.
    pub(super) early_receives: u64,
    /// Messages that were sent, and received, without waiting for an advert. As well to know.
    pub(super) eager_sends: u64,
    pub(super) eager_receives: u64,
    pub(super) bundled_receives: u64,
    receives: ReceiveCounters,
}

impl Counters {
    pub(crate) const NONE: Self = Self {
        garbage: 0,
        late_messages: 0,
        repeated_requests: 0,
        requests_heard_again: 0,
        unsent_notices: 0,
        unsent_parts: 0,
        stray_immediates: 0,
        early_receives: 0,
        eager_sends: 0,
        eager_receives: 0,
        bundled_receives: 0,
        receives: ReceiveCounters { late: 0, duplicates: 0, violations: 0 },
    };

    pub(crate) fn add(&mut self, other: &Self) {
        self.garbage += other.garbage;
        self.late_messages += other.late_messages;
        self.repeated_requests += other.repeated_requests;
        self.requests_heard_again += other.requests_heard_again;
        self.unsent_notices += other.unsent_notices;
        self.unsent_parts += other.unsent_parts;
        self.stray_immediates += other.stray_immediates;
        self.early_receives += other.early_receives;
        self.eager_sends += other.eager_sends;
        self.eager_receives += other.eager_receives;
        self.bundled_receives += other.bundled_receives;
        self.add_receives(&other.receives);
    }

    /// A connection's own, at its end.
    pub(super) fn add_receives(&mut self, other: &ReceiveCounters) {
        self.receives.late += other.late;
        self.receives.duplicates += other.duplicates;
        self.receives.violations += other.violations;
    }

    /// Every counter by name.
    pub(crate) fn named(&self) -> [(&'static str, u64); 14] {
        [
            ("garbage_messages", self.garbage),
            ("late_messages", self.late_messages),
            ("repeated_requests", self.repeated_requests),
            ("requests_heard_again", self.requests_heard_again),
            ("unsent_notices", self.unsent_notices),
            ("unsent_parts", self.unsent_parts),
            ("stray_immediates", self.stray_immediates),
            ("early_receives", self.early_receives),
            ("eager_sends", self.eager_sends),
            ("eager_receives", self.eager_receives),
            ("bundled_receives", self.bundled_receives),
            ("late_parts", self.receives.late),
            ("duplicate_parts", self.receives.duplicates),
            ("violations", self.receives.violations),
        ]
    }
}
