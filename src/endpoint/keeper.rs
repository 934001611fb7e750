//! What the keeper thread does on an endpoint: see `plugin::keeper`.

use std::time::Duration;

use super::Endpoint;

impl Endpoint {
    /// Whether, since the last call, the last open request was reported while frames are due.
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
            // Letters are answered now: the next poll may be a second away.
            if !self.executor.queued.is_empty() {
                self.core.keep_on(true);
                self.poll_at(now);
                self.core.keep_on(false);
            }
        }
        self.check_for_calls(now);
        Some(self.core.keeper_due()?.since(now))
    }
}
