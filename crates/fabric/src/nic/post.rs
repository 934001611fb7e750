//! Posts operations: fi_rma(3), fi_msg(3).
//!
//! Every accepted operation, except injected ones, has a completion in its rail's queue, returned as [`Event::Ended`](super::Event) or
//! [`Event::Failed`](super::Event) with the caller's token. Until then the operation table refers to its region, its peer and its context.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use libfabric_sys as sys;

use super::Nic;
use super::operations::Kind;
use super::peers::PeerAddress;
use super::rail::Rail;
use super::region::{HostBytes, LocalBytes, RemoteBytes};
use crate::error::{Call, FabricError, Reason};
use crate::kind::{Control, Data, RailKind, Role};

/// The result of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a post that was not accepted must be repeated"]
pub enum Post {
    /// The operation is in flight.
    Accepted,
    /// The provider refused it for now (-FI_EAGAIN): nothing was posted.
    Again,
    /// The NIC's operation table is full: nothing was posted, which is unrelated to the peer.
    Full,
}

/// A write's completion level: fi_cq(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Delivery {
    /// The provider's default: at least, the buffer can be reused.
    #[default]
    Default,
    /// The bytes have arrived at the peer (FI_DELIVERY_COMPLETE), if the provider implements that.
    Complete,
}

/// A write from our memory into a peer's.
#[derive(Clone, Copy, Debug)]
pub struct Write<'region, K: RailKind> {
    /// The source.
    pub local: LocalBytes<'region, K>,
    /// The target.
    pub remote: RemoteBytes<K>,
    /// The peer that owns the target.
    pub peer: PeerAddress,
    /// Its completion level.
    pub delivery: Delivery,
}

/// The arguments of a write, as libfabric has them.
#[derive(Clone, Copy, Debug)]
struct Raw {
    address: u64,
    len: usize,
    remote: u64,
    key: u64,
    immediate: Option<u64>,
    /// Flags that only fi_writemsg takes: FI_DELIVERY_COMPLETE, FI_INJECT.
    flags: u64,
}

/// An operation that is being posted.
pub(super) struct Begun {
    pub(super) index: u16,
    pub(super) context: *mut c_void,
    pub(super) descriptor: *mut c_void,
    pub(super) peer: sys::fi_addr_t,
    pub(super) endpoint: NonNull<sys::fid_ep>,
}

impl Nic {
    /// Writes on the data rail. With `immediate`, the peer's queue gets a completion with this data once the bytes have arrived.
    ///
    /// # Errors
    ///
    /// What fi_write, fi_writedata or fi_writemsg (fi_rma(3)) returned; cxi returns -FI_ENOSYS for immediates by default. -FI_EINVAL for a
    /// region or a peer of another NIC, and for a peer whose address the provider refused when the rail opened again; -FI_ESHUTDOWN if the
    /// rail is closed.
    #[inline(always)]
    pub fn write(
        &mut self,
        write: &Write<'_, Data>,
        immediate: Option<u64>,
        token: u64,
    ) -> Result<Post, FabricError> {
        self.post_write(write, immediate, token)
    }

    /// Injects a write of a few bytes of host memory on the data rail, with an immediate. The bytes can be reused at once, and there is no
    /// completion on this side.
    ///
    /// # Errors
    ///
    /// What fi_inject_writedata (fi_rma(3)) returned; else as [`Nic::write`].
    #[inline(always)]
    pub fn inject(
        &mut self,
        local: HostBytes<'_>,
        remote: RemoteBytes<Data>,
        peer: PeerAddress,
        immediate: u64,
    ) -> Result<Post, FabricError> {
        const CALL: Call = Call::fi_inject_writedata;
        let (endpoint, address) = self.inject_target(CALL, &self.data, local.len(), peer)?;
        // Counted before the call: otherwise the length would be spilled to the stack during the call.
        let len = local.len() as u64;
        self.carried.bytes += len;
        self.carried.writes += 1;
        // SAFETY: the endpoint is open, the peer is in its address vector, and the region is borrowed; nothing is needed after
        // the call.
        let code = unsafe {
            sys::fi_inject_writedata(
                endpoint.as_ptr(),
                local.buffer(),
                local.len(),
                immediate,
                address,
                remote.address,
                remote.key.to_wire(),
            )
        };
        if code == 0 {
            self.data.posts.injected_writes += 1;
        } else {
            self.uncount(len);
        }
        posted(CALL, code)
    }

    /// Reads the peer's `remote` into `local`, on the data rail.
    ///
    /// # Errors
    ///
    /// What fi_read (fi_rma(3)) returned; else as [`Nic::write`].
    #[inline]
    pub fn read(
        &mut self,
        local: LocalBytes<'_, Data>,
        remote: RemoteBytes<Data>,
        peer: PeerAddress,
        token: u64,
    ) -> Result<Post, FabricError> {
        const CALL: Call = Call::fi_read;
        let Some(begun) = self.begin(CALL, Kind::Read, &local, Some(peer), token)? else {
            return Ok(Post::Full);
        };
        // SAFETY: the endpoint is open, and the operation table keeps the region, its memory, the peer and the context until
        // the operation has ended.
        let code = unsafe {
            sys::fi_read(
                begun.endpoint.as_ptr(),
                buffer(local.address),
                local.len,
                begun.descriptor,
                begun.peer,
                remote.address,
                remote.key.to_wire(),
                begun.context,
            )
        };
        self.data.posts.reads += u64::from(code == 0);
        self.finish(CALL, begun.index, code)
    }

    /// Writes on the control rail; a short write is injected if [`NicOptions::injects_control`](super::NicOptions) is set.
    ///
    /// # Errors
    ///
    /// As [`Nic::write`].
    #[inline(always)]
    pub fn write_control(
        &mut self,
        write: &Write<'_, Control>,
        token: u64,
    ) -> Result<Post, FabricError> {
        self.post_write(write, None, token)
    }

    /// Injects a send of a few bytes of host memory on the control rail. The bytes can be reused at once, and there is no completion on
    /// this side.
    ///
    /// # Errors
    ///
    /// What fi_inject (fi_msg(3)) returned; else as [`Nic::write`].
    pub fn inject_send(
        &mut self,
        local: HostBytes<'_>,
        peer: PeerAddress,
    ) -> Result<Post, FabricError> {
        const CALL: Call = Call::fi_inject;
        let (endpoint, address) = self.inject_target(CALL, &self.control, local.len(), peer)?;
        // SAFETY: as in `inject`.
        let code =
            unsafe { sys::fi_inject(endpoint.as_ptr(), local.buffer(), local.len(), address) };
        self.control.posts.injected_sends += u64::from(code == 0);
        posted(CALL, code)
    }

    /// Sends `local` on the control rail, to a receive that the peer has posted.
    ///
    /// # Errors
    ///
    /// What fi_send (fi_msg(3)) returned; else as [`Nic::write`].
    pub fn send(
        &mut self,
        local: LocalBytes<'_, Control>,
        peer: PeerAddress,
        token: u64,
    ) -> Result<Post, FabricError> {
        const CALL: Call = Call::fi_send;
        let Some(begun) = self.begin(CALL, Kind::Send, &local, Some(peer), token)? else {
            return Ok(Post::Full);
        };
        // SAFETY: as in `read`.
        let code = unsafe {
            sys::fi_send(
                begun.endpoint.as_ptr(),
                buffer(local.address),
                local.len,
                begun.descriptor,
                begun.peer,
                begun.context,
            )
        };
        self.control.posts.sends += u64::from(code == 0);
        self.finish(CALL, begun.index, code)
    }

    /// Posts `local` as the buffer of a receive from any peer, on the control rail.
    ///
    /// # Errors
    ///
    /// What fi_recv (fi_msg(3)) returned; else as [`Nic::write`].
    pub fn receive(
        &mut self,
        local: LocalBytes<'_, Control>,
        token: u64,
    ) -> Result<Post, FabricError> {
        const CALL: Call = Call::fi_recv;
        let Some(begun) = self.begin(CALL, Kind::Receive, &local, None, token)? else {
            return Ok(Post::Full);
        };
        // SAFETY: as in `read`.
        let code = unsafe {
            sys::fi_recv(
                begun.endpoint.as_ptr(),
                buffer(local.address),
                local.len,
                begun.descriptor,
                sys::FI_ADDR_UNSPEC,
                begun.context,
            )
        };
        self.control.posts.receives += u64::from(code == 0);
        self.finish(CALL, begun.index, code)
    }

    #[inline(always)]
    fn post_write<K: RailKind>(
        &mut self,
        write: &Write<'_, K>,
        immediate: Option<u64>,
        token: u64,
    ) -> Result<Post, FabricError> {
        let Write { local, peer, .. } = write;
        let injects = K::ROLE == Role::Control && (1..=self.injected_bytes).contains(&local.len);
        let raw = Raw::of(write, immediate, injects);
        let Some(begun) = self.begin(raw.call(), Kind::Write, local, Some(*peer), token)? else {
            return Ok(Post::Full);
        };
        let Begun { index, context, descriptor, peer, endpoint } = begun;
        // SAFETY: the endpoint is open, and the operation table keeps the region, its memory, the peer and the context until
        // the operation has ended.
        let code = unsafe { raw.post(endpoint, descriptor, peer, context) };
        self.rail_mut(K::ROLE).posts.writes += u64::from(code == 0);
        self.finish(raw.call(), index, code)
    }

    /// Records an operation in the table, which refers to its region from now on. None when the table is full.
    #[inline(always)]
    pub(super) fn begin<K: RailKind>(
        &mut self,
        call: Call,
        kind: Kind,
        local: &LocalBytes<'_, K>,
        peer: Option<PeerAddress>,
        token: u64,
    ) -> Result<Option<Begun>, FabricError> {
        let Some(endpoint) = self.rail(K::ROLE).endpoint() else {
            return Err(FabricError::not_called(call, sys::FI_ESHUTDOWN, Reason::NoRail));
        };
        let (address, slot) = match peer {
            None => (sys::FI_ADDR_UNSPEC, u32::MAX),
            Some(peer) => match self.rail(K::ROLE).peers.raw(peer) {
                Some(address) => (address, peer.slot()),
                None => return Err(wrong_peer(call, self.rail(K::ROLE), peer)),
            },
        };
        let Some(index) = self.operations.upcoming() else { return Ok(None) };
        // A descriptor is a pointer that only its own domain or endpoint may dereference.
        let descriptor =
            if local.nic == self.number { self.regions.hold(local.slot) } else { None };
        let Some(descriptor) = descriptor else {
            return Err(wrong_nic(call));
        };
        self.operations.take((K::ROLE, kind), token, local.len as u64, local.slot, slot);
        let context = self.operations.context(index);
        Ok(Some(Begun { index, context, descriptor, peer: address, endpoint }))
    }

    /// The result of posting an operation that [`Nic::begin`] has recorded. Removes it if it was not accepted.
    #[inline(always)]
    pub(super) fn finish(
        &mut self,
        call: Call,
        index: u16,
        code: isize,
    ) -> Result<Post, FabricError> {
        if code != 0 {
            self.undo_begin(index, code);
        }
        posted(call, code)
    }

    #[cold]
    #[inline(never)]
    fn undo_begin(&mut self, index: u16, code: isize) {
        if let Some(entry) = self.operations.end_at(index.into()) {
            self.regions.release(entry.region);
            self.carried.refused += u64::from(entry.role == Role::Data && code == AGAIN);
        }
    }

    /// Endpoint and address for an injected operation of `len` bytes, if it may be posted.
    #[inline(always)]
    fn inject_target(
        &self,
        call: Call,
        rail: &Rail,
        len: usize,
        peer: PeerAddress,
    ) -> Result<(NonNull<sys::fid_ep>, sys::fi_addr_t), FabricError> {
        // Providers copy into buffers of this size, and some do not check the length.
        if len > rail.inject_bytes() {
            return Err(FabricError::new(call, sys::FI_EMSGSIZE));
        }
        match (rail.endpoint(), rail.peers.raw(peer)) {
            (Some(endpoint), Some(address)) => Ok((endpoint, address)),
            (None, _) => Err(FabricError::not_called(call, sys::FI_ESHUTDOWN, Reason::NoRail)),
            (_, None) => Err(wrong_peer(call, rail, peer)),
        }
    }

    #[cold]
    #[inline(never)]
    fn uncount(&mut self, len: u64) {
        self.carried.bytes -= len;
        self.carried.writes -= 1;
    }
}

impl Raw {
    #[inline(always)]
    fn of<K: RailKind>(write: &Write<'_, K>, immediate: Option<u64>, injects: bool) -> Self {
        let Write { local, remote, delivery, .. } = *write;
        // An empty write delivers nothing, and shm of 1.17 never completes one with FI_DELIVERY_COMPLETE.
        let level = match delivery {
            Delivery::Complete if local.len > 0 => sys::FI_DELIVERY_COMPLETE,
            Delivery::Complete | Delivery::Default => 0,
        };
        let flags = if injects { level | sys::FI_INJECT } else { level };
        let (remote, key) = (remote.address, remote.key.to_wire());
        Self { address: local.address, len: local.len, remote, key, immediate, flags }
    }

    /// The call that posts it.
    #[inline(always)]
    fn call(&self) -> Call {
        match (self.flags, self.immediate) {
            (0, None) => Call::fi_write,
            (0, Some(_)) => Call::fi_writedata,
            _ => Call::fi_writemsg,
        }
    }

    /// # Safety
    ///
    /// The endpoint is open, the descriptor is of a region of its NIC's that covers the bytes, the peer is in its address vector,
    /// and the context is no other operation's. Region, memory, peer and context stay until the operation has ended.
    #[inline(always)]
    unsafe fn post(
        &self,
        endpoint: NonNull<sys::fid_ep>,
        descriptor: *mut c_void,
        peer: sys::fi_addr_t,
        context: *mut c_void,
    ) -> isize {
        let (endpoint, from) = (endpoint.as_ptr(), buffer(self.address));
        match (self.flags, self.immediate) {
            (0, Some(immediate)) => {
                // SAFETY: the caller vouches for it.
                unsafe {
                    sys::fi_writedata(
                        endpoint,
                        from,
                        self.len,
                        descriptor,
                        immediate,
                        peer,
                        self.remote,
                        self.key,
                        context,
                    )
                }
            }
            (0, None) => {
                // SAFETY: as above.
                unsafe {
                    sys::fi_write(
                        endpoint,
                        from,
                        self.len,
                        descriptor,
                        peer,
                        self.remote,
                        self.key,
                        context,
                    )
                }
            }
            // SAFETY: as above.
            _ => unsafe { self.post_message(endpoint, descriptor, peer, context) },
        }
    }

    /// Only fi_writemsg has flags.
    ///
    /// # Safety
    ///
    /// As [`Raw::post`].
    unsafe fn post_message(
        &self,
        endpoint: *mut sys::fid_ep,
        descriptor: *mut c_void,
        peer: sys::fi_addr_t,
        context: *mut c_void,
    ) -> isize {
        let from = sys::iovec { iov_base: buffer(self.address), iov_len: self.len };
        let to = sys::fi_rma_iov { addr: self.remote, len: self.len, key: self.key };
        let mut descriptor = descriptor;
        let message = sys::fi_msg_rma {
            msg_iov: ptr::from_ref(&from),
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: peer,
            rma_iov: ptr::from_ref(&to),
            rma_iov_count: 1,
            context,
            data: self.immediate.unwrap_or(0),
        };
        let data = if self.immediate.is_some() { sys::FI_REMOTE_CQ_DATA } else { 0 };
        // SAFETY: the caller vouches for it; the vectors are only read during the call.
        unsafe {
            sys::fi_writemsg(endpoint, &raw const message, self.flags | sys::FI_COMPLETION | data)
        }
    }
}

#[cold]
fn wrong_nic(call: Call) -> FabricError {
    FabricError::not_called(call, sys::FI_EINVAL, Reason::WrongNic)
}

/// A peer without an address on this rail, which is open.
#[cold]
fn wrong_peer(call: Call, rail: &Rail, peer: PeerAddress) -> FabricError {
    if rail.peers.knows(peer) {
        return FabricError::not_called(call, sys::FI_EINVAL, Reason::RefusedAddress);
    }
    wrong_nic(call)
}

#[inline(always)]
pub(super) fn buffer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(crate::memory::address_bits(address))
}

const AGAIN: isize = -sys::FI_EAGAIN as isize;

#[inline(always)]
fn posted(call: Call, code: isize) -> Result<Post, FabricError> {
    match code {
        0 => Ok(Post::Accepted),
        AGAIN => Ok(Post::Again),
        code => refused(call, code),
    }
}

#[cold]
fn refused(call: Call, code: isize) -> Result<Post, FabricError> {
    Err(FabricError::new(call, -c_int::try_from(code).unwrap_or(-sys::FI_EOTHER)))
}
