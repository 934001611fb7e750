//! The buffers that packets arrive in, on one control rail: one registration, cut into receives that match every tag.

use std::sync::Arc;

use fabric::{Control, FabricError, Nic, Pages, Region, Tags};
use proto::Moment;
use proto::packet::Ring;

use super::super::super::bound::PACKET_RECEIVES;
use super::super::super::purpose::Purpose;
use super::super::super::unposted::{Trouble, Unposted};

/// The longest packet.
const PACKET_BYTES: usize = Ring::SENT.packet_bytes_max() as usize;

#[derive(Debug)]
pub(super) struct PacketBuffers {
    region: Region<Control>,
    pages: Arc<Pages>,
    unposted: Unposted,
}

impl PacketBuffers {
    pub(super) fn new(nic: &mut Nic) -> Result<Self, FabricError> {
        let pages = Arc::new(Pages::map(usize::from(PACKET_RECEIVES) * PACKET_BYTES)?);
        let region = nic.register(Arc::clone(&pages).into())?;
        Ok(Self { region, pages, unposted: Unposted::all(PACKET_RECEIVES) })
    }

    /// As [`Unposted::post`], with fi_trecv (fi_tagged(3)).
    #[inline]
    pub(super) fn post(&mut self, nic: &mut Nic, now: Moment) -> Option<Trouble> {
        let Self { region, unposted, .. } = self;
        unposted.post(now, |buffer| {
            let at = usize::from(buffer) * PACKET_BYTES;
            let room = region.local(at, PACKET_BYTES).ok_or(FabricError::OUTSIDE)?;
            nic.receive_tagged(room, Tags::ANY, Purpose::PacketReceive { buffer }.token())
        })
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
        self.unposted.ended(buffer);
    }

    /// As [`Unposted::stop`].
    pub(super) fn stop(&mut self) {
        self.unposted.stop();
    }
}
