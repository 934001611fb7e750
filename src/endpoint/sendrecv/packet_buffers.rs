//! The buffers that packets arrive in, on one control rail: one registration, cut into receives that match every tag.

use std::sync::Arc;

use fabric::{Control, FabricError, Nic, Pages, Post, Region, Tags};
use proto::packet::Ring;

use super::super::purpose::Purpose;

/// Receives that are kept posted. Further packets wait in the provider; a channel has at most a ring of them in flight.
const RECEIVES: u16 = 32;
/// The longest packet.
const PACKET_BYTES: usize = Ring::SENT.packet_bytes_max() as usize;

#[derive(Debug)]
pub(super) struct PacketBuffers {
    region: Region<Control>,
    pages: Arc<Pages>,
    /// Buffers whose receives are to be posted.
    unposted: Vec<u16>,
    /// The endpoint closes: none is posted any more.
    is_stopped: bool,
}

impl PacketBuffers {
    pub(super) fn new(nic: &mut Nic) -> Result<Self, FabricError> {
        let pages = Arc::new(Pages::map(usize::from(RECEIVES) * PACKET_BYTES)?);
        let region = nic.register(Arc::clone(&pages).into())?;
        Ok(Self { region, pages, unposted: (0..RECEIVES).collect(), is_stopped: false })
    }

    /// Posts receives until the provider refuses one.
    ///
    /// # Errors
    ///
    /// What fi_trecv (fi_tagged(3)) returned: the rail cannot receive any more.
    #[inline]
    pub(super) fn post(&mut self, nic: &mut Nic) -> Result<(), FabricError> {
        while let Some(buffer) = self.unposted.last().copied() {
            let at = usize::from(buffer) * PACKET_BYTES;
            let room = self.region.local(at, PACKET_BYTES).ok_or(FabricError::OUTSIDE)?;
            let token = Purpose::PacketReceive { buffer }.token();
            match nic.receive_tagged(room, Tags::ANY, token)? {
                Post::Accepted => self.unposted.pop(),
                Post::Again | Post::Full => return Ok(()),
            };
        }
        Ok(())
    }

    /// Passes the words of the packet in this buffer to `put`.
    #[inline]
    pub(super) fn copy_out(&self, buffer: u16, len: usize, mut put: impl FnMut(usize, u64)) {
        let first = usize::from(buffer) * PACKET_BYTES / 8;
        for index in 0..len.min(PACKET_BYTES) / 8 {
            put(index, self.pages.load(first + index));
        }
    }

    /// A receive has ended: the next poll posts it again.
    #[inline]
    pub(super) fn ended(&mut self, buffer: u16) {
        if !self.is_stopped {
            self.unposted.push(buffer);
        }
    }

    /// Posts no receives any more, also not in place of those that end.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        self.unposted.clear();
    }

    /// Gives up the receives that could not be posted, until others end.
    pub(super) fn skip(&mut self) {
        self.unposted.clear();
    }
}
