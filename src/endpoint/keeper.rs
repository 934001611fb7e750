//! What the keeper thread does on an endpoint: see `plugin::keeper`.

use std::time::Duration;

use super::Endpoint;

impl Endpoint {
    /// Whether the last open request, or an accepted connection, was reported with frames pending, since this was last asked.
    #[inline]
    pub(crate) fn needs_keeper(&mut self) -> bool {
        std::mem::take(&mut self.needs_keeper)
    }

    /// Polls in NCCL's place, if a poll is due. Returns the time until the next one; None: no channel is alive.
    pub(crate) fn keep(&mut self) -> Option<Duration> {
        if self.broken {
            return None;
        }
        let now = self.now();
        if self.core.keeper_due()? <= now {
            self.executor.begin(now, true);
            self.core.keep(&mut self.executor, now);
            if self.executor.has_deferred() || !self.closing.is_empty() {
                self.handle_deferred();
            }
            // `handle_deferred` queues received letters as events; a second poll answers them, since the next may be a second away.
            if self.executor.has_queued() {
                self.core.set_keeping(true);
                self.poll_at(now);
                self.core.set_keeping(false);
            }
        }
        self.check_for_calls(now);
        Some(self.core.keeper_due()?.since(now))
    }
}
