//! What a panic leaves: an endpoint, or one comm of it, that fails for good. Nothing goes on from a state that nothing can rely on.
//!
//! The panic's own line is in the log, and the only one: it names the place. Every later call answers an error, but those that
//! close. They say that NCCL needs a comm no more, and do nothing else; then the endpoint closes, and what its NICs may still touch
//! leaks or closes behind them (`release`).

use super::{Endpoint, SenderState};
use crate::error::{Cause, Error, Result};
use crate::handle::{Handle, HandleKind};

/// What every call answers from then on. The panic is logged.
pub(crate) const PANICKED: Error = Error::logged(Cause::Panicked);

impl Endpoint {
    /// A panic under the lock: it may have left anything of the endpoint half done.
    #[cold]
    pub(crate) fn panicked(&mut self) {
        self.broken = true;
        // Another endpoint finds out what it would have.
        self.leave_probe();
        // So that no short form finds a comm: they ask for nothing else.
        self.senders.hide_all();
        self.receivers.hide_all();
    }

    /// A panic in a call about a comm, or a request of its, that had not touched the endpoint: the others go on.
    #[cold]
    pub(crate) fn comm_panicked(&mut self, about: Handle) {
        let (slot, generation) = (about.slot(), about.generation());
        if about.is(HandleKind::Listener) {
            if let Some(listener) = self.listeners.get_mut(slot, generation) {
                listener.broken = true;
            }
        } else if [HandleKind::Sender, HandleKind::SendRequest, HandleKind::EagerSendRequest]
            .iter()
            .any(|kind| about.is(*kind))
        {
            if let Some(SenderState::Connected(sender)) =
                self.senders.get_mut(slot, generation).map(|state| &mut **state)
            {
                sender.fail(PANICKED);
                sender.block();
            }
        } else if [
            HandleKind::Receiver,
            HandleKind::ReceiveRequest,
            HandleKind::OptionalReceiveRequest,
        ]
        .iter()
        .any(|kind| about.is(*kind))
            && let Some(receiver) = self.receivers.get_mut(slot, generation)
        {
            receiver.fail(PANICKED);
            self.abandon_receives(slot, generation);
        }
    }

    /// An error for all calls but those that close.
    pub(crate) fn check_intact(&self) -> Result<()> {
        if self.broken { Err(PANICKED) } else { Ok(()) }
    }
}
