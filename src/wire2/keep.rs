//! What the keeper asks of an endpoint: see `plugin::keeper`.

use std::time::Duration;

use super::Endpoint;

impl Endpoint {
    /// Polls in NCCL's place, if that is due. How long until it will be; None: nothing here lives.
    pub(crate) fn keep(&mut self) -> Option<Duration> {
        if self.broken {
            return None;
        }
        let now = self.now();
        if self.core.keeper_due()? <= now {
            self.hands.begin();
            self.core.keep(&mut self.hands, now);
            if self.hands.has_news() || self.closing > 0 {
                self.attend(now);
            }
        }
        Some(self.core.keeper_due()?.since(now))
    }
}
