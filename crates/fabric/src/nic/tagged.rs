//! Tagged messages, on either rail: fi_tagged(3). They replace one-sided writes where a provider has none.

use libfabric_sys as sys;

use super::Nic;
use super::operations::Kind;
use super::peers::PeerAddress;
use super::post::{Post, buffer};
use super::region::LocalBytes;
use crate::error::{Call, FabricError};
use crate::kind::RailKind;

/// The tags that a receive matches: they are equal to `tag` in all bits that are not in `ignore`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tags {
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that are not compared.
    pub ignore: u64,
}

impl Tags {
    /// Exactly this tag.
    #[must_use]
    pub const fn only(tag: u64) -> Self {
        Self { tag, ignore: 0 }
    }

    /// Every tag of 48 bits. cxi compares only these bits, and refuses to ignore others (libfabric prov/cxi/src/cxip_msg_hpc.c).
    pub const ANY: Self = Self { tag: 0, ignore: (1 << 48) - 1 };
}

impl Nic {
    /// Sends `local` to a tagged receive of the peer, on the rail of its kind. The completion means at least that the buffer can be reused.
    ///
    /// # Errors
    ///
    /// What fi_tsend (fi_tagged(3)) returned, -FI_ENOSYS where the NIC was not opened for tagged messages; else as [`Nic::write`].
    #[inline]
    pub fn send_tagged<K: RailKind>(
        &mut self,
        local: LocalBytes<'_, K>,
        peer: PeerAddress,
        tag: u64,
        token: u64,
    ) -> Result<Post, FabricError> {
        const CALL: Call = Call::fi_tsend;
        let Some(begun) = self.begin(CALL, Kind::Send, &local, Some(peer), token)? else {
            return Ok(Post::Full);
        };
        // SAFETY: the endpoint is open, and the operation table keeps the region, its memory, the peer and the context until
        // the operation has ended.
        let code = unsafe {
            sys::fi_tsend(
                begun.endpoint.as_ptr(),
                buffer(local.address),
                local.len,
                begun.descriptor,
                begun.peer,
                tag,
                begun.context,
            )
        };
        self.rail_mut(K::ROLE).posts.sends += u64::from(code == 0);
        self.finish(CALL, begun.index, code)
    }

    /// Posts `local` as the buffer of a receive for one message with a matching tag from any peer, on the rail of its kind. It ends when
    /// the message has arrived, or when it is [cancelled](Nic::cancel).
    ///
    /// # Errors
    ///
    /// What fi_trecv (fi_tagged(3)) returned; else as [`Nic::send_tagged`].
    #[inline]
    pub fn receive_tagged<K: RailKind>(
        &mut self,
        local: LocalBytes<'_, K>,
        tags: Tags,
        token: u64,
    ) -> Result<Post, FabricError> {
        const CALL: Call = Call::fi_trecv;
        let Some(begun) = self.begin(CALL, Kind::Receive, &local, None, token)? else {
            return Ok(Post::Full);
        };
        // SAFETY: as in `send_tagged`.
        let code = unsafe {
            sys::fi_trecv(
                begun.endpoint.as_ptr(),
                buffer(local.address),
                local.len,
                begun.descriptor,
                sys::FI_ADDR_UNSPEC,
                tags.tag,
                tags.ignore,
                begun.context,
            )
        };
        self.rail_mut(K::ROLE).posts.receives += u64::from(code == 0);
        self.finish(CALL, begun.index, code)
    }
}
