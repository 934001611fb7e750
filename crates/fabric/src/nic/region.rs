//! Registered memory, typed by the rails that may use it. fi_mr(3).
//!
//! Invariants:
//! - the endpoint is enabled, then the region bound, then enabled, then its key read (FI_MR_ENDPOINT): there is one constructor;
//! - a key that we choose is unique in its domain, and reused only after the close;
//! - data rails move NCCL's bytes, control rails move ours, and no region serves both: the type parameter.
//!
//! ```compile_fail,E0308
//! # use fabric::*;
//! fn name(key: RemoteKey<Control>) -> RemoteBytes<Data> {
//!     RemoteBytes { address: 0, key } // expected `RemoteKey<Data>`, found `RemoteKey<Control>`
//! }
//! ```

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::domain::Domain;
use super::regions::{Dropped, Registered};
use crate::copies::{copy_across, copy_in, copy_out};
use crate::error::{Call, FabricError, check};
use crate::handle::Handle;
use crate::keys::Keys;
use crate::kind::RailKind;
use crate::memory::{Memory, MemoryKind, address_bits};
use crate::pages::Pages;

/// Memory that the rails of kind `K` of one [`Nic`](crate::Nic) may use. It names a registration that the NIC owns, and holds a reference
/// to the memory.
///
/// A region may be dropped in any thread. A later call on the NIC then closes it, once no operation uses it: see
/// [`Nic::close_dropped`](crate::Nic::close_dropped). [`Nic::deregister`](crate::Nic::deregister) returns the result of the close.
#[derive(Debug)]
pub struct Region<K: RailKind> {
    memory: Memory,
    address: u64,
    len: usize,
    /// The end address if it is host memory, else 0.
    host_end: u64,
    wire_base: u64,
    key: RemoteKey<K>,
    nic: u32,
    slot: u32,
    /// The list that [`Drop`] adds to; None once the region was deregistered.
    dropped: Option<Arc<Dropped>>,
}

/// Descriptor and key of a complete registration.
pub(super) struct Names {
    pub(super) descriptor: *mut c_void,
    pub(super) key: u64,
    wire_base: u64,
}

impl Names {
    /// The names of a deferred registration: no descriptor and no key yet.
    pub(super) fn deferred(domain: &Domain, memory: &Memory) -> Self {
        let wire_base = wire_base(domain, memory);
        Self { descriptor: ptr::null_mut(), key: 0, wire_base }
    }
}

/// The target address of the first byte, for peers.
fn wire_base(domain: &Domain, memory: &Memory) -> u64 {
    if domain.mode().virtual_addresses { memory.address() } else { 0 }
}

impl Registered {
    /// Registers `memory`, which is not empty, with the domain, and binds it to `endpoint` if the provider requires that.
    pub(super) fn new<K: RailKind>(
        domain: &Domain,
        keys: &mut Keys,
        endpoint: *mut sys::fid_ep,
        memory: Memory,
    ) -> Result<(Self, Names), FabricError> {
        let len = memory.len();
        let mode = domain.mode();
        let requested_key = if mode.provider_keys {
            None
        } else {
            Some(keys.take().ok_or(FabricError::new(Call::fi_mr_regattr, sys::FI_ENOKEY))?)
        };
        let wire_base = wire_base(domain, &memory);
        let handle = register(domain, &memory, K::ACCESS, requested_key.unwrap_or(0));
        let handle = handle.inspect_err(|_| {
            if let Some(key) = requested_key {
                keys.release(key);
            }
        })?;
        let registered = Self { handle, memory, requested_key, role: K::ROLE };
        let named = if mode.bind_to_endpoint {
            bind_and_enable(&registered.handle, endpoint)
        } else {
            Ok(())
        };
        match named.and_then(|()| names(&registered.handle)) {
            Ok((descriptor, key)) => Ok((registered, Names { descriptor, key, wire_base })),
            Err(unusable) => {
                if let Err(error) = registered.close(keys) {
                    log::error!("closing a region of {len} bytes: {error}; it leaks");
                }
                Err(unusable)
            }
        }
    }
}

impl<K: RailKind> Region<K> {
    pub(super) fn new(
        names: &Names,
        memory: Memory,
        nic: u32,
        slot: u32,
        dropped: Arc<Dropped>,
    ) -> Self {
        let (address, len) = (memory.address(), memory.len());
        let is_host = memory.kind() == MemoryKind::Host;
        Self {
            host_end: if is_host { address + len as u64 } else { 0 },
            memory,
            address,
            len,
            wire_base: names.wire_base,
            key: RemoteKey::from_wire(names.key),
            nic,
            slot,
            dropped: Some(dropped),
        }
    }

    /// The key for peers, as of the registration; 0 if its rail was closed then. Where regions are bound to endpoints, the key changes when
    /// the data rail is opened again: see [`Nic::key_of`](crate::Nic::key_of).
    #[inline]
    pub fn key(&self) -> RemoteKey<K> {
        self.key
    }

    /// The memory it covers.
    #[inline]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The target address of the region's first byte, for peers: its virtual address, or 0 for offsets.
    #[inline]
    pub fn remote_base(&self) -> u64 {
        self.wire_base
    }

    /// The target address, for peers, of the byte at our `address`; None outside of the region. The region's end counts as inside.
    #[inline]
    pub fn target_address(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.address)?;
        (offset <= self.len as u64).then(|| self.wire_base + offset)
    }

    /// `len` bytes at `offset`, as a local operand; none if they are not all inside.
    #[inline]
    pub fn local(&self, offset: usize, len: usize) -> Option<LocalBytes<'_, K>> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.bytes(self.address + offset as u64, len))
    }

    /// `len` bytes at our `address`, as a local operand; none if they are not all inside.
    #[inline(always)]
    pub fn local_at(&self, address: u64, len: usize) -> Option<LocalBytes<'_, K>> {
        let offset = address.wrapping_sub(self.address);
        let room = (self.len as u64).checked_sub(len as u64)?;
        // For an address before the memory the subtraction wraps to a large number.
        (offset <= room).then(|| self.bytes(address, len))
    }

    #[inline(always)]
    fn bytes(&self, address: u64, len: usize) -> LocalBytes<'_, K> {
        LocalBytes { address, len, nic: self.nic, slot: self.slot, region: PhantomData }
    }

    /// `len` bytes at our `address`, for a post that copies them at once; None if they are not all inside, or not in host memory.
    #[inline(always)]
    pub fn host_bytes(&self, address: u64, len: usize) -> Option<HostBytes<'_>> {
        let end = address.checked_add(len as u64)?;
        let inside = address >= self.address && end <= self.host_end;
        inside.then_some(HostBytes { address, len, memory: PhantomData })
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    pub(super) fn nic(&self) -> u32 {
        self.nic
    }

    /// Drops the region without adding it to the dropped ones: the NIC closes it directly.
    pub(super) fn disown(mut self) {
        self.dropped = None;
    }
}

impl<K: RailKind> Drop for Region<K> {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            dropped.lock().push(self.slot);
        }
    }
}

/// Registers with the domain, without binding.
fn register(
    domain: &Domain,
    memory: &Memory,
    access: u64,
    requested_key: u64,
) -> Result<Handle<sys::fid_mr>, FabricError> {
    let base = ptr::with_exposed_provenance_mut::<c_void>(address_bits(memory.address()));
    let pieces = sys::iovec { iov_base: base, iov_len: memory.len() };
    let mut attributes = sys::Grown::new(sys::fi_mr_attr {
        mr_iov: &raw const pieces,
        iov_count: 1,
        access,
        requested_key,
        ..Default::default()
    });
    if let MemoryKind::Cuda { device } = memory.kind() {
        attributes.known.iface = sys::FI_HMEM_CUDA;
        attributes.known.device.cuda = device;
    }
    let mut flags = 0;
    let dmabuf =
        memory.dmabuf().filter(|_| domain.supports_dmabuf()).map(|dmabuf| sys::fi_mr_dmabuf {
            fd: dmabuf.fd,
            offset: dmabuf.offset,
            len: memory.len(),
            // The region begins at base_addr + offset, and must begin at our address.
            base_addr: base.wrapping_byte_sub(address_bits(dmabuf.offset)),
        });
    if let Some(dmabuf) = &dmabuf {
        flags |= sys::FI_MR_DMABUF;
        attributes.known.mr_iov = ptr::from_ref(dmabuf).cast();
    }
    let open = |out| {
        // SAFETY: the domain is open, the attributes and what they point to live here, and the registration holds a reference to the
        // memory, which stays valid as long.
        unsafe { sys::fi_mr_regattr(domain.as_ptr(), &raw const attributes.known, flags, out) }
    };
    // SAFETY: fi_mr_regattr gives us a region of our own.
    unsafe { Handle::open(Call::fi_mr_regattr, open) }
}

/// fi_mr(3), FI_MR_ENDPOINT.
fn bind_and_enable(
    region: &Handle<sys::fid_mr>,
    endpoint: *mut sys::fid_ep,
) -> Result<(), FabricError> {
    // SAFETY: both are open, and of one NIC, which closes the region first.
    check(Call::fi_mr_bind, unsafe { sys::fi_mr_bind(region.as_ptr(), endpoint.cast(), 0) })?;
    // SAFETY: as above.
    check(Call::fi_mr_enable, unsafe { sys::fi_mr_enable(region.as_ptr()) })
}

/// Descriptor and key, which exist only once the registration is complete.
fn names(region: &Handle<sys::fid_mr>) -> Result<(*mut c_void, u64), FabricError> {
    // SAFETY: the region is open, and complete: no asynchronous registration was requested.
    let descriptor = unsafe { sys::fi_mr_desc(region.as_ptr()) };
    // SAFETY: as above.
    let key = unsafe { sys::fi_mr_key(region.as_ptr()) };
    if key == sys::FI_KEY_NOTAVAIL {
        return Err(FabricError::new(Call::fi_mr_key, sys::FI_ENOKEY));
    }
    Ok((descriptor, key))
}

/// Registered bytes as a local operand of a post. It borrows the region, so that no bytes of a deregistered region can be posted.
#[derive(Clone, Copy, Debug)]
pub struct LocalBytes<'region, K: RailKind> {
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) nic: u32,
    pub(super) slot: u32,
    region: PhantomData<&'region Region<K>>,
}

/// Bytes of host memory that a post copies at once: it needs no descriptor, so any rail may use them.
#[derive(Clone, Copy, Debug)]
pub struct HostBytes<'region> {
    address: u64,
    len: usize,
    memory: PhantomData<&'region Memory>,
}

impl<K: RailKind> LocalBytes<'_, K> {
    /// The first byte's address.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes: such a post is legal everywhere.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl HostBytes<'_> {
    /// The length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes: such a post is legal everywhere.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes into `bytes`, up to its length.
    pub fn copy_to(&self, bytes: &mut [u8]) {
        let len = self.len.min(bytes.len());
        // SAFETY: host memory, to which the region holds a reference; its creator promised that it is readable. Peers may write it
        // meanwhile, so it is only accessed atomically.
        unsafe { copy_out(self.buffer().cast(), &mut bytes[..len]) };
    }

    /// Copies all bytes to byte offset `offset` of `pages`. If they do not fit, copies nothing and returns false.
    pub fn copy_to_pages(&self, pages: &Pages, offset: usize) -> bool {
        let Some(place) = pages.place_of(offset, self.len) else { return false };
        // SAFETY: host memory as in `copy_to`, and pages of ours with room for `len` bytes. Peers may write both meanwhile, so they are
        // only accessed atomically.
        unsafe { copy_across::<false>(self.buffer().cast(), place.as_ptr(), self.len) };
        true
    }

    /// Overwrites all bytes with those at byte offset `offset` of `pages`, front to back: a kernel may poll them, and if it sees a word it
    /// sees all bytes before that word. If `pages` has fewer bytes, copies nothing and returns false.
    pub fn fill_from_pages(&self, pages: &Pages, offset: usize) -> bool {
        let Some(place) = pages.place_of(offset, self.len) else { return false };
        // SAFETY: as in `copy_to_pages`; the creator of the memory promised that it is writable, since peers write it.
        unsafe { copy_across::<true>(place.as_ptr(), self.buffer().cast(), self.len) };
        true
    }

    /// Copies `bytes` to byte offset `offset`, front to back, after all earlier copies. If they do not fit, copies nothing and returns false.
    pub fn put(&self, offset: usize, bytes: &[u8]) -> bool {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len);
        if fits {
            let place = self.buffer().cast::<u8>().wrapping_add(offset);
            // SAFETY: as in `fill_from_pages`; there are so many bytes from `offset` on.
            unsafe { copy_in(place, bytes) };
        }
        fits
    }

    #[inline(always)]
    pub(super) fn buffer(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(address_bits(self.address))
    }
}

/// The key of a peer's region. A data key cannot be used for a control write, nor the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey<K: RailKind> {
    number: u64,
    kind: PhantomData<K>,
}

impl<K: RailKind> RemoteKey<K> {
    /// The key that a peer sent. The use of a wrong key can only fail at the peer.
    #[inline]
    pub const fn from_wire(number: u64) -> Self {
        Self { number, kind: PhantomData }
    }

    /// The number to send to a peer.
    #[inline]
    pub const fn to_wire(self) -> u64 {
        self.number
    }
}

/// A peer's bytes: a target address from its `remote_base` or `target_address`, and the key of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteBytes<K: RailKind> {
    /// The target address of the first byte.
    pub address: u64,
    /// The region's key.
    pub key: RemoteKey<K>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Data;
    use crate::lock::Lock;
    use crate::memory::UserMemory;

    fn region(memory: UserMemory) -> Region<Data> {
        let names = Names { descriptor: ptr::null_mut(), key: 7, wire_base: 0 };
        Region::new(&names, memory.into(), 0, 0, Arc::new(Lock::new(Vec::new())))
    }

    #[test]
    fn no_bytes_of_a_gpu_are_read_by_the_processor() {
        // SAFETY: it is registered nowhere, and nothing accesses it: addresses are compared.
        let ours = region(unsafe { UserMemory::host(0x1000, 64) });
        // SAFETY: as above.
        let a_gpus = region(unsafe { UserMemory::cuda(0x1000, 64, 0, None) });
        for (address, len, inside) in [(0x1000, 64, true), (0x1010, 49, false), (0xfff, 8, false)] {
            assert_eq!(ours.host_bytes(address, len).is_some(), inside, "{address} {len}");
            assert!(a_gpus.host_bytes(address, len).is_none(), "{address} {len}");
        }
    }
}
