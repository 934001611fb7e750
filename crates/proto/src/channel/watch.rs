//! A few bytes that say where the peer's next packet and acknowledgement appear, for polls of many channels.

use super::super::ids::PacketNumber;
use super::super::memory::{InboxMemory, MemoryId};
use super::super::packet::{Header, Ring};
use super::{Channel, Inbox, State};
use crate::bits::low32;

/// Valid until the channel changes.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    ring: Ring,
    memory: MemoryId,
    at: u32,
    next: PacketNumber,
    /// The last acknowledgement; none if everything is acknowledged, so that no news of that can come.
    acknowledged: Option<PacketNumber>,
}

impl Watch {
    pub(super) fn new(ring: Ring, inbox: &Inbox, acknowledged: Option<PacketNumber>) -> Self {
        let (memory, at) = (inbox.memory(), inbox.position());
        Self { ring, memory, at, next: inbox.consumed().plus(1), acknowledged }
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
                let cell = PacketNumber::new(low32(memory.load(self.ring.words())));
                cell.is_after(last)
            })
    }
}

impl Channel {
    /// None if nothing is read any more, or not yet.
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
