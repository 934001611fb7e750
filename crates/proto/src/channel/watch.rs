//! A small copy of where the peer's next packet and acknowledgement appear, for polls of many channels.

use super::super::ids::{Nonce, PacketNumber};
use super::super::memory::{InboxMemory, MemoryId};
use super::super::packet::{Header, Ring};
use super::{Channel, Inbox, State};

/// Valid until the channel changes.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    ring: Ring,
    memory: MemoryId,
    nonce: Nonce,
    at: u32,
    next: PacketNumber,
    /// The last acknowledgement; None if everything is acknowledged, so that no later one can come.
    acknowledged: Option<PacketNumber>,
}

impl Watch {
    pub(super) fn new(ring: Ring, inbox: &Inbox, acknowledged: Option<PacketNumber>) -> Self {
        let (memory, nonce, at) = (inbox.memory(), inbox.lease().nonce, inbox.position());
        Self { ring, memory, nonce, at, next: inbox.consumed().plus(1), acknowledged }
    }

    /// The inbox.
    pub fn memory(&self) -> MemoryId {
        self.memory
    }

    /// Whether a packet may have landed, or the cell has a later acknowledgement.
    #[inline]
    pub fn has_news<M: InboxMemory>(&self, memory: &M) -> bool {
        Header::may_be_at(memory, self.at, self.next)
            || self.acknowledged.is_some_and(|last| {
                let cell = self.nonce.consumed(memory.load(self.ring.words()));
                cell.is_some_and(|cell| cell.is_after(last))
            })
    }
}

impl Channel {
    /// The channel's watch. None: the inbox is not read yet, or not any more.
    #[inline]
    pub fn watch(&self) -> Option<Watch> {
        if !matches!(self.state, State::Alive | State::Failing(_)) {
            return None;
        }
        let waits = self.shadow.unacknowledged() > 0;
        let acknowledged = waits.then(|| self.shadow.acknowledged());
        Some(Watch::new(self.parameters.ring, self.inbox.as_ref()?, acknowledged))
    }
}
