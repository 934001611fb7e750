//! Posting operations: what each kind of rail can do. fi_rma(3), fi_msg(3).
//!
//! A post says `Again` when the provider has no room (-FI_EAGAIN): progress, then repeat. Every accepted operation but an injected
//! one ends in the endpoint's queue, with its context. Until then its region, its context and, of a read or receive, its bytes
//! belong to it: the operation table keeps them.

use std::ffi::{c_int, c_void};
use std::ptr;

use libfabric_sys as sys;

use crate::address::PeerAddress;
use crate::context::Context;
use crate::endpoint::Endpoint;
use crate::error::FabricError;
use crate::kind::{Control, Data, RailKind};
use crate::posts::PostKind;
use crate::region::{HostBytes, LocalBytes, RemoteBytes};

/// What became of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a post that was not accepted must be repeated"]
pub enum Post {
    /// The operation is under way.
    Accepted,
    /// There is no room: nothing was posted.
    Again,
}

/// What a write's completion means: fi_cq(3), completion levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Delivery {
    /// What the provider does by default: at least, the buffer is free again.
    #[default]
    Default,
    /// The bytes are at the peer (FI_DELIVERY_COMPLETE), where the provider keeps that promise.
    Complete,
}

impl Endpoint<Data> {
    /// Writes `local` to the peer's `remote`.
    ///
    /// # Errors
    ///
    /// What fi_write or fi_writemsg (fi_rma(3)) returned; -FI_EINVAL for bytes of a region that is not this endpoint's.
    #[inline]
    pub fn write(
        &self,
        local: LocalBytes<'_, Data>,
        remote: RemoteBytes<Data>,
        peer: PeerAddress,
        delivery: Delivery,
        context: Context,
    ) -> Result<Post, FabricError> {
        self.post_write(&local, remote, peer, delivery, context)
    }

    /// Writes `local` to the peer's `remote`, and tells its queue, with `immediate`, when the bytes are there.
    ///
    /// # Errors
    ///
    /// What fi_writedata or fi_writemsg (fi_rma(3)) returned; cxi says -FI_ENOSYS by default. Else as [`Endpoint::write`].
    #[inline]
    pub fn write_with_immediate(
        &self,
        local: LocalBytes<'_, Data>,
        remote: RemoteBytes<Data>,
        peer: PeerAddress,
        immediate: u64,
        delivery: Delivery,
        context: Context,
    ) -> Result<Post, FabricError> {
        self.check_scope("fi_writedata", &local)?;
        if delivery == Delivery::Complete {
            return self.write_message(&local, remote, peer, Some(immediate), context);
        }
        // SAFETY: the endpoint is open, the region outlives the operation by its owner's table, and so does the context.
        let code = unsafe {
            sys::fi_writedata(
                self.as_ptr(),
                local.buffer(),
                local.len(),
                local.descriptor(),
                immediate,
                peer.0,
                remote.address,
                remote.key.to_wire(),
                context.as_ptr(),
            )
        };
        self.posted(PostKind::Write, "fi_writedata", code)
    }

    /// As [`Endpoint::write_with_immediate`] for a few bytes of host memory, which are free again at once; there is no completion
    /// here.
    ///
    /// # Errors
    ///
    /// What fi_inject_writedata (fi_rma(3)) returned; -FI_EMSGSIZE beyond `inject_bytes()`.
    #[inline(always)]
    pub fn inject_write_with_immediate(
        &self,
        local: HostBytes<'_>,
        remote: RemoteBytes<Data>,
        peer: PeerAddress,
        immediate: u64,
    ) -> Result<Post, FabricError> {
        self.check_injected("fi_inject_writedata", local)?;
        // SAFETY: the endpoint is open, and the region is borrowed; nothing is needed after the call.
        let code = unsafe {
            sys::fi_inject_writedata(
                self.as_ptr(),
                local.buffer(),
                local.len(),
                immediate,
                peer.0,
                remote.address,
                remote.key.to_wire(),
            )
        };
        self.posted(PostKind::InjectedWrite, "fi_inject_writedata", code)
    }

    /// Reads the peer's `remote` into `local`.
    ///
    /// # Errors
    ///
    /// What fi_read (fi_rma(3)) returned. Else as [`Endpoint::write`].
    #[inline]
    pub fn read(
        &self,
        local: LocalBytes<'_, Data>,
        remote: RemoteBytes<Data>,
        peer: PeerAddress,
        context: Context,
    ) -> Result<Post, FabricError> {
        self.check_scope("fi_read", &local)?;
        // SAFETY: as in `write_with_immediate`; nobody holds a reference into registered memory.
        let code = unsafe {
            sys::fi_read(
                self.as_ptr(),
                local.buffer(),
                local.len(),
                local.descriptor(),
                peer.0,
                remote.address,
                remote.key.to_wire(),
                context.as_ptr(),
            )
        };
        self.posted(PostKind::Read, "fi_read", code)
    }
}

impl Endpoint<Control> {
    /// Writes `local` to the peer's `remote`.
    ///
    /// # Errors
    ///
    /// What fi_write or fi_writemsg (fi_rma(3)) returned; -FI_EINVAL for bytes of a region that is not this endpoint's.
    #[inline]
    pub fn write(
        &self,
        local: LocalBytes<'_, Control>,
        remote: RemoteBytes<Control>,
        peer: PeerAddress,
        delivery: Delivery,
        context: Context,
    ) -> Result<Post, FabricError> {
        self.post_write(&local, remote, peer, delivery, context)
    }

    /// Writes a few bytes, which are free again at once; there is no completion.
    ///
    /// # Errors
    ///
    /// What fi_inject_write (fi_rma(3)) returned; -FI_EMSGSIZE beyond `inject_bytes()`.
    #[inline]
    pub fn inject_write(
        &self,
        local: HostBytes<'_>,
        remote: RemoteBytes<Control>,
        peer: PeerAddress,
    ) -> Result<Post, FabricError> {
        self.check_injected("fi_inject_write", local)?;
        // SAFETY: the endpoint is open, and the region is borrowed; nothing is needed after the call.
        let code = unsafe {
            sys::fi_inject_write(
                self.as_ptr(),
                local.buffer(),
                local.len(),
                peer.0,
                remote.address,
                remote.key.to_wire(),
            )
        };
        self.posted(PostKind::InjectedWrite, "fi_inject_write", code)
    }

    /// Sends `local` to a receive that the peer posted.
    ///
    /// # Errors
    ///
    /// What fi_send (fi_msg(3)) returned. Else as [`Endpoint::<Control>::write`].
    #[inline]
    pub fn send(
        &self,
        local: LocalBytes<'_, Control>,
        peer: PeerAddress,
        context: Context,
    ) -> Result<Post, FabricError> {
        self.check_scope("fi_send", &local)?;
        // SAFETY: the endpoint is open, the region outlives the operation by its owner's table, and so does the context.
        let code = unsafe {
            sys::fi_send(
                self.as_ptr(),
                local.buffer(),
                local.len(),
                local.descriptor(),
                peer.0,
                context.as_ptr(),
            )
        };
        self.posted(PostKind::Send, "fi_send", code)
    }

    /// As [`Endpoint::<Control>::send`] for a few bytes of host memory, which are free again at once; there is no completion here.
    ///
    /// # Errors
    ///
    /// What fi_inject (fi_msg(3)) returned; -FI_EMSGSIZE beyond `inject_bytes()`.
    #[inline]
    pub fn inject(&self, local: HostBytes<'_>, peer: PeerAddress) -> Result<Post, FabricError> {
        self.check_injected("fi_inject", local)?;
        // SAFETY: the endpoint is open, and the region is borrowed; nothing is needed after the call.
        let code = unsafe { sys::fi_inject(self.as_ptr(), local.buffer(), local.len(), peer.0) };
        self.posted(PostKind::InjectedSend, "fi_inject", code)
    }

    /// Posts `local` as room for one message from anyone.
    ///
    /// # Errors
    ///
    /// What fi_recv (fi_msg(3)) returned. Else as [`Endpoint::<Control>::write`].
    #[inline]
    pub fn receive(
        &self,
        local: LocalBytes<'_, Control>,
        context: Context,
    ) -> Result<Post, FabricError> {
        self.check_scope("fi_recv", &local)?;
        // SAFETY: as in `send`; nobody holds a reference into registered memory.
        let code = unsafe {
            sys::fi_recv(
                self.as_ptr(),
                local.buffer(),
                local.len(),
                local.descriptor(),
                sys::FI_ADDR_UNSPEC,
                context.as_ptr(),
            )
        };
        self.posted(PostKind::Receive, "fi_recv", code)
    }

    /// Asks for the operation at `context` to end early. If it does, it fails with FI_ECANCELED; it may also end as usual.
    ///
    /// # Errors
    ///
    /// What fi_cancel (fi_endpoint(3)) returned; -FI_ENOENT if there is no such operation.
    pub fn cancel(&self, context: Context) -> Result<(), FabricError> {
        // SAFETY: the endpoint is open, and the context is only compared.
        let code = unsafe { sys::fi_cancel(self.as_ptr(), context.as_ptr()) };
        answered("fi_cancel", code).map(drop)
    }
}

impl<K: RailKind> Endpoint<K> {
    #[inline]
    fn post_write(
        &self,
        local: &LocalBytes<'_, K>,
        remote: RemoteBytes<K>,
        peer: PeerAddress,
        delivery: Delivery,
        context: Context,
    ) -> Result<Post, FabricError> {
        self.check_scope("fi_write", local)?;
        if delivery == Delivery::Complete {
            return self.write_message(local, remote, peer, None, context);
        }
        // SAFETY: the endpoint is open, the region outlives the operation by its owner's table, and so does the context.
        let code = unsafe {
            sys::fi_write(
                self.as_ptr(),
                local.buffer(),
                local.len(),
                local.descriptor(),
                peer.0,
                remote.address,
                remote.key.to_wire(),
                context.as_ptr(),
            )
        };
        self.posted(PostKind::Write, "fi_write", code)
    }

    /// A write whose completion says that the bytes are at the peer: only the long form of the call takes that flag.
    #[inline]
    fn write_message(
        &self,
        local: &LocalBytes<'_, K>,
        remote: RemoteBytes<K>,
        peer: PeerAddress,
        immediate: Option<u64>,
        context: Context,
    ) -> Result<Post, FabricError> {
        let from = sys::iovec { iov_base: local.buffer(), iov_len: local.len() };
        let to =
            sys::fi_rma_iov { addr: remote.address, len: local.len(), key: remote.key.to_wire() };
        let mut descriptor: *mut c_void = local.descriptor();
        let message = sys::fi_msg_rma {
            msg_iov: ptr::from_ref(&from),
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: peer.0,
            rma_iov: ptr::from_ref(&to),
            rma_iov_count: 1,
            context: context.as_ptr(),
            data: immediate.unwrap_or(0),
        };
        let with_immediate = if immediate.is_some() { sys::FI_REMOTE_CQ_DATA } else { 0 };
        let flags = sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION | with_immediate;
        // SAFETY: as in `post_write`; the vectors are only read during the call.
        let code = unsafe { sys::fi_writemsg(self.as_ptr(), &raw const message, flags) };
        self.posted(PostKind::Write, "fi_writemsg", code)
    }

    /// A region's descriptor is a pointer of its own domain's or endpoint's, and no other may follow it.
    #[inline(always)]
    fn check_scope(
        &self,
        call: &'static str,
        local: &LocalBytes<'_, K>,
    ) -> Result<(), FabricError> {
        if local.scope() == self.scope() {
            Ok(())
        } else {
            Err(FabricError::new(call, sys::FI_EINVAL))
        }
    }

    /// What became of a post; an accepted one is counted.
    #[inline(always)]
    fn posted(&self, kind: PostKind, call: &'static str, code: isize) -> Result<Post, FabricError> {
        let answer = answered(call, code);
        if matches!(answer, Ok(Post::Accepted)) {
            self.tallies().count(kind);
        }
        answer
    }

    #[inline(always)]
    fn check_injected(&self, call: &'static str, local: HostBytes<'_>) -> Result<(), FabricError> {
        if local.len() > self.inject_bytes() {
            return Err(FabricError::new(call, sys::FI_EMSGSIZE));
        }
        Ok(())
    }
}

#[inline(always)]
fn answered(call: &'static str, code: isize) -> Result<Post, FabricError> {
    const AGAIN: isize = -sys::FI_EAGAIN as isize;
    match code {
        0 => Ok(Post::Accepted),
        AGAIN => Ok(Post::Again),
        code => refused(call, code),
    }
}

#[cold]
fn refused(call: &'static str, code: isize) -> Result<Post, FabricError> {
    Err(FabricError { call, code: c_int::try_from(code).unwrap_or(-sys::FI_EOTHER) })
}
