//! Buffers of the two-sided messages that set connections up and take them down, on the first control rail.

use std::sync::Arc;

use fabric::{Control, FabricError, LocalBytes, Nic, Pages, PeerAddress, Region};
use proto::limits::MAX_MESSAGE_BYTES;

/// Receives kept posted. A storm of connects waits in the provider, not in us.
pub(crate) const INBOX_BUFFERS: u16 = 32;
/// Messages under way at once; past that a set-up call answers "not yet".
const OUTBOX_BUFFERS: u16 = 32;

/// Whom the end of a two-sided message is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letter {
    /// The connect in this slot: it is its request.
    Request { sender: u16, generation: u16 },
    /// The receiver in this slot: it is its reply.
    Reply { receiver: u16, generation: u16 },
    /// Nothing.
    Notice,
}

/// One registration, cut into buffers: first the inbox, then the outbox.
#[derive(Debug)]
pub(crate) struct Messages {
    region: Region<Control>,
    pages: Arc<Pages>,
    free: Vec<u16>,
    /// What each outbox buffer is about, while it is under way.
    letters: Box<[Option<(PeerAddress, Letter)>]>,
}

impl Messages {
    pub(crate) fn new(nic: &mut Nic) -> Result<Self, FabricError> {
        let buffers = INBOX_BUFFERS + OUTBOX_BUFFERS;
        let pages = Arc::new(Pages::map(usize::from(buffers) * MAX_MESSAGE_BYTES)?);
        // A NIC's driver would bring them in now; elsewhere the first storm of connects would, and look like memory of theirs.
        pages.fill(0, pages.len(), 0);
        let region = nic.register(Arc::clone(&pages).into())?;
        let free = (INBOX_BUFFERS..buffers).rev().collect();
        Ok(Self { region, pages, free, letters: vec![None; usize::from(buffers)].into() })
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
    pub(super) fn write(
        &mut self,
        message: &[u8],
        peer: PeerAddress,
        letter: Letter,
    ) -> Option<u16> {
        let len = message.len().min(MAX_MESSAGE_BYTES);
        let buffer = self.free.pop()?;
        self.letters[usize::from(buffer)] = Some((peer, letter));
        self.pages.copy_in(usize::from(buffer) * MAX_MESSAGE_BYTES, &message[..len]);
        Some(buffer)
    }

    /// The first `len` bytes of outbox buffer `buffer`, to post.
    pub(crate) fn outbox(&self, buffer: u16, len: usize) -> Option<LocalBytes<'_, Control>> {
        self.region.local(usize::from(buffer) * MAX_MESSAGE_BYTES, len.min(MAX_MESSAGE_BYTES))
    }

    /// Takes an outbox buffer back, after its completion or a refused post: what it was about.
    pub(super) fn release(&mut self, buffer: u16) -> Option<(PeerAddress, Letter)> {
        let letter = self.letters.get_mut(usize::from(buffer))?.take();
        if letter.is_some() {
            self.free.push(buffer);
        }
        letter
    }
}
