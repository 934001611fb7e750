//! What a panic leaves: an endpoint, or one comm of it, that fails for good. Nothing goes on from a state that nothing can rely on.
//!
//! The panic's own line is in the log, and the only one: it names the place. Every later call answers an error, but those that
//! close. They say that NCCL needs a comm no more, and do nothing else; then the endpoint closes, and what its NICs may still touch
//! leaks or closes behind them (`release`).

use super::Endpoint;
use crate::error::{Cause, Error, Noun, Result};
use crate::object_id::{ObjectId, ObjectKind};

/// What every call answers from then on. The panic is logged.
pub(crate) const PANICKED: Error = Error::logged(Cause::Panicked);

impl Endpoint {
    /// A panic under the lock: it may have left anything of the endpoint half done.
    #[cold]
    pub(crate) fn panicked(&mut self) {
        self.broken = true;
        // Another endpoint finds out what it would have.
        self.leave_probe();
    }

    /// A panic in a call about a comm, or a request of its, that had not touched the endpoint: the others go on.
    #[cold]
    pub(crate) fn comm_panicked(&mut self, about: ObjectId) {
        if about.is(ObjectKind::Listener) {
            if let Some(listening) = self.listeners.get_mut(about.slot(), about.generation()) {
                listening.broken = true;
            }
        } else if let Ok((slot, comm)) = self.comms.any(about, Noun::Comm) {
            (comm.failure, comm.is_logged) = (Some(PANICKED), true);
            let now = self.now();
            self.core.with(&mut self.executor, slot, now, |flow, _| {
                flow.fail("a call about the connection has panicked");
            });
        }
    }

    /// An error for all calls but those that close.
    #[inline]
    pub(crate) fn check_intact(&self) -> Result<()> {
        if self.broken { Err(PANICKED) } else { Ok(()) }
    }
}
