//! A listener: verifies the OPENs that name it, and queues them for `accept`.
//!
//! The last listeners that were closed are remembered, so that a connect that comes too late is answered by REFUSED
//! *closed*, which keeps the connect pending. That is needed because NCCL's shared communicators connect to listeners that never
//! accept.

use std::collections::VecDeque;

use super::super::frame::{Open, Refusal, Refused};
use super::super::ids::ListenerId;
use super::proof::{Nonces, Proof, Prove, Secret, open_words, verify};

/// The most OPENs that one listener queues. NCCL accepts one connection from each listener.
pub const QUEUE: usize = 64;
/// The most closed listeners that an endpoint remembers.
pub const REMEMBERED: usize = 1024;

/// An OPEN that waits for `accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedOpen {
    /// The number of the channel by which the OPEN came.
    pub channel: u32,
    pub open: Open,
}

/// One listener.
#[derive(Debug)]
pub struct Listener {
    id: ListenerId,
    secret: Secret,
    queue: VecDeque<QueuedOpen>,
}

impl Listener {
    pub fn new(id: ListenerId, secret: Secret) -> Self {
        Self { id, secret, queue: VecDeque::with_capacity(QUEUE) }
    }

    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Verifies and queues an OPEN that names this listener. In `nonces` the peer is the prover. An error is to be
    /// answered by REFUSED.
    pub fn received(
        &mut self,
        queued: QueuedOpen,
        nonces: Nonces,
        prove: &impl Prove,
    ) -> Result<(), Refusal> {
        if !is_proven(&queued.open, &self.secret, nonces, prove) {
            return Err(Refusal::Proof);
        }
        if self.queue.len() == QUEUE {
            return Err(Refusal::Busy);
        }
        self.queue.push_back(queued);
        Ok(())
    }

    /// The channel that the oldest OPEN came by.
    pub fn waiting(&self) -> Option<u32> {
        Some(self.queue.front()?.channel)
    }

    /// Takes the oldest OPEN.
    pub fn accept(&mut self) -> Option<QueuedOpen> {
        self.queue.pop_front()
    }

    /// The channel is gone: drops its OPENs.
    pub fn forget_channel(&mut self, channel: u32) {
        self.queue.retain(|queued| queued.channel != channel);
    }

    /// Closes the listener. Returns the refusals to send for the OPENs that were queued.
    pub fn close(self, closed: &mut ClosedListeners) -> impl Iterator<Item = (u32, Refused)> {
        closed.remember(self.id, self.secret);
        self.queue.into_iter().map(|queued| (queued.channel, refuse(&queued.open, Refusal::Closed)))
    }
}

/// The REFUSED for an OPEN.
pub fn refuse(open: &Open, why: Refusal) -> Refused {
    Refused { to: open.from, why, detail: 0 }
}

fn is_proven(open: &Open, secret: &Secret, nonces: Nonces, prove: &impl Prove) -> bool {
    let words = open_words(nonces, open.listener, open.from, open.features);
    verify(prove, secret, &words, Proof(open.proof))
}

/// The secrets of the listeners that were closed last.
#[derive(Debug, Default)]
pub struct ClosedListeners {
    list: VecDeque<(ListenerId, Secret)>,
}

impl ClosedListeners {
    fn remember(&mut self, id: ListenerId, secret: Secret) {
        if self.list.len() == REMEMBERED {
            self.list.pop_front();
        }
        self.list.push_back((id, secret));
    }

    pub fn secret(&self, id: ListenerId) -> Option<&Secret> {
        self.list.iter().rev().find(|(closed, _)| *closed == id).map(|(_, secret)| secret)
    }

    /// The cause for refusing an OPEN whose listener is not open.
    pub fn refusal(&self, open: &Open, nonces: Nonces, prove: &impl Prove) -> Refusal {
        match self.secret(open.listener) {
            Some(secret) if is_proven(open, secret, nonces, prove) => Refusal::Closed,
            _ => Refusal::Proof,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::opening::{Features, Opening};
    use super::super::proof::Mixing;
    use super::*;
    use crate::ids::{Generation, Name, Slot};

    const SECRET: Secret = Secret([7; 16]);
    const NONCES: Nonces = Nonces { prover: 5, verifier: 6 };

    fn queued(slot: usize, listener: u32, secret: &Secret) -> QueuedOpen {
        let from = Name { slot: Slot::new(slot).unwrap(), generation: Generation::new(3) };
        let opening = Opening::new(from, ListenerId(listener), *secret, Features::default());
        QueuedOpen { channel: 9, open: opening.open(NONCES, &Mixing) }
    }

    #[test]
    fn proven_opens_are_accepted_in_order_and_no_others() {
        let mut listener = Listener::new(ListenerId(4), SECRET);
        for slot in 0..3 {
            assert_eq!(listener.received(queued(slot, 4, &SECRET), NONCES, &Mixing), Ok(()));
        }
        let forged = queued(8, 4, &Secret([8; 16]));
        assert_eq!(listener.received(forged, NONCES, &Mixing), Err(Refusal::Proof));
        let stale = Nonces { prover: 4, ..NONCES };
        assert_eq!(listener.received(queued(8, 4, &SECRET), stale, &Mixing), Err(Refusal::Proof));
        let mut changed = queued(8, 4, &SECRET);
        changed.open.features ^= 1;
        assert_eq!(listener.received(changed, NONCES, &Mixing), Err(Refusal::Proof));
        let by_another = QueuedOpen { channel: 12, ..queued(3, 4, &SECRET) };
        assert_eq!(listener.received(by_another, NONCES, &Mixing), Ok(()));
        let mut order = Vec::new();
        while let Some(channel) = listener.waiting() {
            let queued = listener.accept().unwrap();
            assert_eq!(queued.channel, channel, "the connection comes by this channel");
            order.push((queued.open.from.slot.index(), channel));
        }
        assert_eq!(order, [(0, 9), (1, 9), (2, 9), (3, 12)]);
        assert_eq!(listener.accept(), None);
    }

    #[test]
    fn a_full_queue_refuses_as_busy_and_drops_the_opens_of_a_lost_channel() {
        let mut listener = Listener::new(ListenerId(4), SECRET);
        for slot in 0..QUEUE {
            assert_eq!(listener.received(queued(slot, 4, &SECRET), NONCES, &Mixing), Ok(()));
        }
        assert_eq!(listener.received(queued(99, 4, &SECRET), NONCES, &Mixing), Err(Refusal::Busy));
        listener.forget_channel(8);
        assert_eq!(listener.queue.len(), QUEUE);
        listener.forget_channel(9);
        assert_eq!(listener.accept(), None);
    }

    #[test]
    fn opens_that_wait_at_a_closing_listener_and_later_ones_are_refused_as_closed() {
        let mut closed = ClosedListeners::default();
        let mut listener = Listener::new(ListenerId(4), SECRET);
        listener.received(queued(1, 4, &SECRET), NONCES, &Mixing).unwrap();
        let refused: Vec<_> = listener.close(&mut closed).collect();
        let open = queued(1, 4, &SECRET).open;
        assert_eq!(refused, [(9, Refused { to: open.from, why: Refusal::Closed, detail: 0 })]);
        assert_eq!(closed.refusal(&open, NONCES, &Mixing), Refusal::Closed);
        let forged = queued(1, 4, &Secret([1; 16])).open;
        assert_eq!(closed.refusal(&forged, NONCES, &Mixing), Refusal::Proof);
        let unknown = queued(1, 5, &SECRET).open;
        assert_eq!(closed.refusal(&unknown, NONCES, &Mixing), Refusal::Proof);
    }

    #[test]
    fn no_more_closed_listeners_are_remembered_than_the_bound() {
        let mut closed = ClosedListeners::default();
        for id in 0..2000 {
            assert_eq!(Listener::new(ListenerId(id), SECRET).close(&mut closed).count(), 0);
        }
        let known = |id| closed.secret(ListenerId(id)).is_some();
        assert!((0..976).all(|id| !known(id)) && (976..2000).all(known));
    }
}
