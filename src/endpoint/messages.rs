//! Buffers of the two-sided messages that set connections up and take them down, on the first control rail.

use std::sync::Arc;

use fabric::{Control, Endpoint, FabricError, LocalBytes, Pages, Region};
use proto::limits::MAX_MESSAGE_BYTES;

/// Receives kept posted. A storm of connects waits in the provider, not in us.
pub(crate) const INBOX_BUFFERS: u16 = 32;
/// Messages under way at once; past that a set-up call answers "not yet".
const OUTBOX_BUFFERS: u16 = 32;

/// One registration, cut into buffers: first the inbox, then the outbox.
#[derive(Debug)]
pub(crate) struct Messages {
    region: Region<Control>,
    pages: Arc<Pages>,
    free: Vec<u16>,
}

impl Messages {
    pub(crate) fn new(rail: &Arc<Endpoint<Control>>) -> Result<Self, FabricError> {
        let buffers = INBOX_BUFFERS + OUTBOX_BUFFERS;
        let pages = Arc::new(super::memory::pages(usize::from(buffers) * MAX_MESSAGE_BYTES)?);
        // A NIC's driver would bring them in now; elsewhere the first storm of connects would, and look like memory of theirs.
        pages.fill(0, pages.len(), 0);
        let region = Region::register_pages(rail, Arc::clone(&pages))?;
        Ok(Self { region, pages, free: (INBOX_BUFFERS..buffers).rev().collect() })
    }

    /// The whole of inbox buffer `index`, to post.
    pub(crate) fn inbox(&self, index: u16) -> Option<LocalBytes<'_, Control>> {
        self.region.local(usize::from(index) * MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
    }

    /// Whether another message can be under way.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// A copy of what arrived in buffer `index`: the peer may write on, we look at what we took.
    pub(crate) fn arrived(&self, index: u16, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(MAX_MESSAGE_BYTES)];
        self.pages.copy_out(usize::from(index) * MAX_MESSAGE_BYTES, &mut bytes);
        bytes
    }

    /// Puts `message` into an outbox buffer; `None` while all are under way.
    pub(crate) fn write(&mut self, message: &[u8]) -> Option<u16> {
        let len = message.len().min(MAX_MESSAGE_BYTES);
        let buffer = self.free.pop()?;
        self.pages.copy_in(usize::from(buffer) * MAX_MESSAGE_BYTES, &message[..len]);
        Some(buffer)
    }

    /// The first `len` bytes of outbox buffer `buffer`, to post.
    pub(crate) fn outbox(&self, buffer: u16, len: usize) -> Option<LocalBytes<'_, Control>> {
        self.region.local(usize::from(buffer) * MAX_MESSAGE_BYTES, len.min(MAX_MESSAGE_BYTES))
    }

    /// Takes an outbox buffer back, after its completion or a refused post.
    pub(crate) fn release(&mut self, buffer: u16) {
        self.free.push(buffer);
    }
}
