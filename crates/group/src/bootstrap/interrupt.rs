//! The end of a join that another thread no longer wants.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::hub::{Hub, Waits};
use crate::loader::Private;

/// Ends a join: while it looks for the rendezvous it returns an error within seconds, and while it waits there, at once. A hub of the join
/// does not wait for ranks to leave any more.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_set: bool,
    /// The connection to the rendezvous.
    stream: Option<Private<TcpStream>>,
    /// The waits of the hub that this process runs.
    waits: Option<Waits>,
}

impl Interrupt {
    /// Ends the join, now or when it begins.
    pub fn set(&self) {
        let mut state = self.lock();
        state.is_set = true;
        if let Some(stream) = state.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(waits) = state.waits.take() {
            waits.end();
        }
    }

    /// An error once the interrupt is set.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.lock().is_set { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }

    /// Ends this connection when the interrupt is set.
    pub(super) fn watch(&self, stream: &TcpStream) -> io::Result<()> {
        self.lock().stream = Some(Private::new(stream.try_clone()?));
        self.check()
    }

    /// Ends the waits of the join's hub for ranks to leave when the interrupt is set.
    pub(crate) fn ends_waits_of(&self, hub: &Hub) {
        let waits = hub.waits();
        let mut state = self.lock();
        if state.is_set {
            waits.end();
        } else {
            state.waits = Some(waits);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
