//! The state after a panic: the endpoint, or one comm of it, has failed for good. Nothing continues on state that may be inconsistent.
//!
//! The panic hook has logged the place of the panic; nothing else is logged. Every later call returns an error, except the closing ones:
//! these only record that NCCL no longer needs the comm. Then the endpoint closes, and what its NICs may still touch leaks, or closes after
//! their libfabric endpoints (`release`).

use super::Endpoint;
use crate::error::{Cause, Error, Noun, Result};
use crate::object_id::{ObjectId, ObjectKind};

/// Returned by every later call. The panic itself is in the log.
pub(crate) const PANICKED: Error = Error::logged(Cause::Panicked);

impl Endpoint {
    /// A panic occurred under the lock: any state of the endpoint may be inconsistent.
    #[cold]
    pub(crate) fn panicked(&mut self) {
        self.broken = true;
        // Another endpoint runs the probe in its place.
        self.leave_probe();
    }

    /// A panic occurred in a call about a comm, or about one of its requests, before the call touched the endpoint. Only the comm fails.
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

    /// An error for all calls except the closing ones.
    #[inline]
    pub(crate) fn check_intact(&self) -> Result<()> {
        if self.broken { Err(PANICKED) } else { Ok(()) }
    }
}
