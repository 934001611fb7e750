//! Registered memory, typed by the rails that may use it. fi_mr(3).
//!
//! Laws kept here:
//! - a region bound to an endpoint closes before that endpoint (FI_MR_ENDPOINT): it holds a share of it;
//! - the endpoint is enabled, then the region bound, then enabled, then its key read: there is one constructor;
//! - a key that we choose is unique in its domain, and free again only after the close;
//! - data rails move NCCL's bytes, control rails move ours, and no region serves both: the type parameter.
//!
//! ```compile_fail,E0308
//! # use fabric::*;
//! fn write(rail: &Endpoint<Data>, mailbox: &Region<Control>, to: RemoteBytes<Data>, peer: PeerAddress, context: Context) {
//!     let bytes = mailbox.local(0, 64).unwrap();
//!     let _ = rail.write(bytes, to, peer, Delivery::Default, context); // expected `Data`, found `Control`
//! }
//! ```
//!
//! ```compile_fail,E0308
//! # use fabric::*;
//! fn name(key: RemoteKey<Control>) -> RemoteBytes<Data> {
//!     RemoteBytes { address: 0, key } // expected `RemoteKey<Data>`, found `RemoteKey<Control>`
//! }
//! ```

use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::error::{FabricError, check};
use crate::handle::Handle;
use crate::kind::RailKind;
use crate::memory::{MemoryKind, UserMemory};
use crate::pages::Pages;
use crate::scope::Scope;

/// Memory that rails of kind `K` may use: of one endpoint where the provider binds regions, else of the whole domain.
///
/// Whoever posts from a region keeps a share of it until the completion, or until the endpoint has closed.
#[derive(Debug)]
pub struct Region<K: RailKind> {
    handle: Handle<sys::fid_mr>,
    held: Option<Held<K>>, // Released after the close.
    scope: Scope,
    memory: UserMemory,
    descriptor: Descriptor,
    key: RemoteKey<K>,
    wire_base: u64,
    /// Where host memory ends; 0 where it is a device's.
    host_end: u64,
}

/// What must stay until a region has closed, and for ever if it cannot be closed.
#[derive(Debug)]
struct Held<K: RailKind> {
    _requested_key: RequestedKey,
    pages: Option<Arc<Pages>>,
    _owner: Owner<K>,
}

impl<K: RailKind> Region<K> {
    /// Registers `memory` for `endpoint`, and binds it there where the provider asks for that; elsewhere any endpoint of the
    /// domain may use it.
    ///
    /// # Errors
    ///
    /// What the first failing call of fi_mr(3) returned; -FI_ENOKEY when all keys are taken; -FI_EINVAL for no bytes, or bytes
    /// beyond the address space.
    pub fn register(endpoint: &Arc<Endpoint<K>>, memory: UserMemory) -> Result<Self, FabricError> {
        Self::open(endpoint, memory, None)
    }

    /// Registers pages of ours, and keeps a share of them.
    ///
    /// # Errors
    ///
    /// As [`Region::register`].
    pub fn register_pages(
        endpoint: &Arc<Endpoint<K>>,
        pages: Arc<Pages>,
    ) -> Result<Self, FabricError> {
        // SAFETY: the region holds a share of the pages, and so does whoever keeps it for an operation.
        let memory = unsafe { UserMemory::host(pages.address(), pages.len()) };
        Self::open(endpoint, memory, Some(pages))
    }

    fn open(
        endpoint: &Arc<Endpoint<K>>,
        memory: UserMemory,
        pages: Option<Arc<Pages>>,
    ) -> Result<Self, FabricError> {
        let end = memory.address().checked_add(memory.len() as u64);
        if memory.is_empty() || end.is_none() {
            return Err(FabricError::new("fi_mr_regattr", sys::FI_EINVAL));
        }
        let domain = endpoint.domain();
        let mode = domain.region_mode();
        let requested_key = RequestedKey::take(domain)?;
        let handle = register(domain, &memory, K::ACCESS, requested_key.number())?;
        let (owner, scope) = if mode.bind_to_endpoint {
            (Owner::Endpoint(Arc::clone(endpoint)), endpoint.scope())
        } else {
            (Owner::Domain(Arc::clone(domain)), domain.scope())
        };
        let mut region = Self {
            handle,
            held: Some(Held { _requested_key: requested_key, pages, _owner: owner }),
            scope,
            memory,
            descriptor: Descriptor(ptr::null_mut()),
            key: RemoteKey::from_wire(sys::FI_KEY_NOTAVAIL),
            wire_base: if mode.virtual_addresses { memory.address() } else { 0 },
            host_end: end.filter(|_| memory.kind() == MemoryKind::Host).unwrap_or(0),
        };
        if mode.bind_to_endpoint {
            region.bind_and_enable(endpoint)?;
        }
        region.read_names()?;
        Ok(region)
    }

    /// The key that a peer names this region by.
    #[inline]
    pub fn key(&self) -> RemoteKey<K> {
        self.key
    }

    /// The memory it covers.
    pub fn memory(&self) -> UserMemory {
        self.memory
    }

    /// The pages it covers, if they are ours.
    pub fn pages(&self) -> Option<&Arc<Pages>> {
        self.held.as_ref().and_then(|held| held.pages.as_ref())
    }

    /// The address that a peer names the region's first byte by: its virtual address, or zero where offsets count.
    #[inline]
    pub fn remote_base(&self) -> u64 {
        self.wire_base
    }

    /// The address that a peer names the byte at our `address` by; none outside the region. The end is inside.
    #[inline]
    pub fn target_address(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.memory.address())?;
        (offset <= self.memory.len() as u64).then(|| self.wire_base + offset)
    }

    /// `len` bytes at `offset`, as a local operand; none if they are not all inside.
    #[inline]
    pub fn local(&self, offset: usize, len: usize) -> Option<LocalBytes<'_, K>> {
        let end = offset.checked_add(len)?;
        (end <= self.memory.len()).then(|| LocalBytes {
            address: self.memory.address() + offset as u64,
            len,
            descriptor: self.descriptor,
            scope: self.scope,
            region: PhantomData,
        })
    }

    /// `len` bytes at our `address`, for a post that copies them at once; none if they are not all inside, or not the
    /// host's.
    #[inline(always)]
    pub fn host_bytes(&self, address: u64, len: usize) -> Option<HostBytes<'_>> {
        let end = address.checked_add(len as u64)?;
        let inside = address >= self.memory.address() && end <= self.host_end;
        inside.then_some(HostBytes { address, len, memory: PhantomData })
    }

    /// Copies the first `len` bytes of `words`, the lowest of each first, to our `address`, as a peer's write would. False, and
    /// nothing happens, if they do not all fit inside, or the memory is not the host's.
    #[inline]
    pub fn store_words<const COUNT: usize>(
        &self,
        address: u64,
        words: [u64; COUNT],
        len: usize,
    ) -> bool {
        let Some(place) = self.host_bytes(address, len) else { return false };
        if len == 8 && COUNT > 0 {
            // SAFETY: inside memory that was promised to stay, to be writable and to be written by peers, of 8 bytes.
            unsafe { place.buffer().cast::<u64>().write_unaligned(words[0].to_le()) };
            return true;
        }
        // A copy of its own, so that the words need not lie in memory otherwise.
        place.fill(&words.map(u64::to_le))
    }

    /// `len` bytes at our `address`, as a local operand; none if they are not all inside.
    #[inline]
    pub fn local_at(&self, address: u64, len: usize) -> Option<LocalBytes<'_, K>> {
        let offset = address.wrapping_sub(self.memory.address());
        let room = (self.memory.len() as u64).checked_sub(len as u64)?;
        // An address before the memory is further behind it than any length.
        (offset <= room).then_some(LocalBytes {
            address,
            len,
            descriptor: self.descriptor,
            scope: self.scope,
            region: PhantomData,
        })
    }

    /// Whether `endpoint` may use it: the one it was registered for, or any of its domain where regions are not bound.
    pub fn serves(&self, endpoint: &Endpoint<K>) -> bool {
        self.scope == endpoint.scope()
    }

    /// Closes it now, and says how that went; dropping it logs instead. Nothing can touch the memory afterwards through this
    /// region, if the close succeeded.
    ///
    /// # Errors
    ///
    /// What fi_close returned. The region then leaks, with its key, its pages and its endpoint: a peer may still reach them.
    pub fn close(mut self) -> Result<(), FabricError> {
        self.close_once()
    }

    fn close_once(&mut self) -> Result<(), FabricError> {
        let Some(held) = self.held.take() else { return Ok(()) };
        let held = ManuallyDrop::new(held);
        self.handle.close()?;
        drop(ManuallyDrop::into_inner(held));
        Ok(())
    }

    /// fi_mr(3), FI_MR_ENDPOINT. An early return drops the region, which closes it.
    fn bind_and_enable(&self, endpoint: &Endpoint<K>) -> Result<(), FabricError> {
        let (region, target) = (self.handle.as_ptr(), endpoint.as_ptr());
        // SAFETY: we own the region, and hold a share of the endpoint.
        check("fi_mr_bind", unsafe { sys::fi_mr_bind(region, target.cast(), 0) })?;
        // SAFETY: as above.
        check("fi_mr_enable", unsafe { sys::fi_mr_enable(region) })
    }

    /// Reads key and descriptor, which are only there once registration is complete.
    fn read_names(&mut self) -> Result<(), FabricError> {
        // SAFETY: the region is open, and complete: no asynchronous registration was asked for.
        self.descriptor = Descriptor(unsafe { sys::fi_mr_desc(self.handle.as_ptr()) });
        // SAFETY: as above.
        let key = unsafe { sys::fi_mr_key(self.handle.as_ptr()) };
        if key == sys::FI_KEY_NOTAVAIL {
            return Err(FabricError::new("fi_mr_key", sys::FI_ENOKEY));
        }
        self.key = RemoteKey::from_wire(key);
        Ok(())
    }
}

impl<K: RailKind> Drop for Region<K> {
    fn drop(&mut self) {
        if let Err(error) = self.close_once() {
            log::error!(
                "closing a {} region of {} bytes: {error}; it leaks",
                K::NAME,
                self.memory.len()
            );
        }
    }
}

/// Registers with the domain alone.
fn register(
    domain: &Domain,
    memory: &UserMemory,
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
        memory.dmabuf().filter(|_| domain.takes_dmabuf()).map(|dmabuf| sys::fi_mr_dmabuf {
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
        // SAFETY: the domain is open, the attributes and what they point to live here, and whoever made the memory a
        // `UserMemory` promised that it stays.
        unsafe { sys::fi_mr_regattr(domain.as_ptr(), &raw const attributes.known, flags, out) }
    };
    // SAFETY: fi_mr_regattr gives us a region of our own.
    unsafe { Handle::open("fi_mr_regattr", open) }
}

/// An address as the machine has it: this crate is for 64 bits.
#[inline]
pub(crate) fn address_bits(address: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    usize::from_ne_bytes(address.to_ne_bytes())
}

/// What a region keeps open.
#[derive(Debug)]
enum Owner<K: RailKind> {
    Endpoint(#[expect(dead_code, reason = "a share")] Arc<Endpoint<K>>),
    Domain(#[expect(dead_code, reason = "a share")] Arc<Domain>),
}

/// A key that we asked for, given back when the region is gone; none where the provider chooses.
#[derive(Debug)]
struct RequestedKey(Option<(Arc<Domain>, u64)>);

impl RequestedKey {
    fn take(domain: &Arc<Domain>) -> Result<Self, FabricError> {
        if domain.region_mode().provider_keys {
            return Ok(Self(None));
        }
        let key = domain.take_key().ok_or(FabricError::new("fi_mr_regattr", sys::FI_ENOKEY))?;
        Ok(Self(Some((Arc::clone(domain), key))))
    }

    fn number(&self) -> u64 {
        self.0.as_ref().map_or(0, |(_, key)| *key)
    }
}

impl Drop for RequestedKey {
    fn drop(&mut self) {
        if let Some((domain, key)) = self.0.take() {
            domain.give_back_key(key);
        }
    }
}

/// What local operations name a region by: a pointer of the provider's, which we never follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor(*mut c_void);

// SAFETY: only the provider follows it, in calls under the endpoint's lock (FI_THREAD_DOMAIN).
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    #[inline]
    pub(crate) fn as_ptr(self) -> *mut c_void {
        self.0
    }
}

/// Registered bytes as a local operand of a post. It borrows the region, so that none is posted from a closed one.
#[derive(Clone, Copy, Debug)]
pub struct LocalBytes<'region, K: RailKind> {
    address: u64,
    len: usize,
    descriptor: Descriptor,
    scope: Scope,
    region: PhantomData<&'region Region<K>>,
}

/// Bytes of the host's that a post copies at once: it needs no descriptor, so that any rail may have them.
#[derive(Clone, Copy, Debug)]
pub struct HostBytes<'region> {
    address: u64,
    len: usize,
    memory: PhantomData<&'region UserMemory>,
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

    /// Copies as many of them as `bytes` has room for.
    pub fn copy_to(&self, bytes: &mut [u8]) {
        let len = self.len.min(bytes.len());
        // SAFETY: registered memory of the host's, promised to stay and to be readable; `bytes` are ours.
        unsafe { ptr::copy(self.buffer().cast::<u8>(), bytes.as_mut_ptr(), len) };
    }

    /// Puts the first bytes of `words`, as they are to lie there. False if there are fewer.
    #[inline(never)]
    fn fill<const COUNT: usize>(&self, words: &[u64; COUNT]) -> bool {
        if self.len > COUNT * 8 {
            return false;
        }
        // SAFETY: registered memory of the host's, promised to stay, to be writable and to be written by peers, of `len` bytes,
        // which `words` have.
        unsafe { ptr::copy(words.as_ptr().cast::<u8>(), self.buffer().cast(), self.len) };
        true
    }

    /// They, as so many words as they fill and no more than `COUNT`: the first byte is the lowest of the first word, and what
    /// is behind the last one is 0.
    #[inline(always)]
    pub fn words<const COUNT: usize>(&self) -> [u64; COUNT] {
        if self.len != 8 || COUNT == 0 {
            return self.some_words();
        }
        let mut words = [0; COUNT];
        // SAFETY: registered memory of the host's, promised to stay and to be readable, of 8 bytes.
        words[0] = u64::from_le(unsafe { self.buffer().cast::<u64>().read_unaligned() });
        words
    }

    #[inline(never)]
    fn some_words<const COUNT: usize>(&self) -> [u64; COUNT] {
        let mut words = [0; COUNT];
        let len = self.len.min(COUNT * 8);
        // SAFETY: registered memory of the host's, promised to stay and to be readable, of `len` bytes, for which `words` have
        // room.
        unsafe { ptr::copy(self.buffer().cast::<u8>(), words.as_mut_ptr().cast::<u8>(), len) };
        words.map(u64::from_le)
    }

    #[inline]
    pub(crate) fn buffer(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(address_bits(self.address))
    }
}

impl<K: RailKind> LocalBytes<'_, K> {
    /// The first byte's address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes: such a post is legal everywhere.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn buffer(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(address_bits(self.address))
    }

    #[inline]
    pub(crate) fn descriptor(&self) -> *mut c_void {
        self.descriptor.as_ptr()
    }

    #[inline]
    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }
}

/// Names a peer's region. A data key does not fit a control write, nor the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey<K: RailKind> {
    number: u64,
    kind: PhantomData<K>,
}

impl<K: RailKind> RemoteKey<K> {
    /// The key that a peer sent. A wrong one can only fail at the peer.
    #[inline]
    pub const fn from_wire(number: u64) -> Self {
        Self { number, kind: PhantomData }
    }

    /// What to send to a peer.
    #[inline]
    pub const fn to_wire(self) -> u64 {
        self.number
    }
}

/// Bytes of a peer's: an address as its `remote_base` or `target_address` said, and the key of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteBytes<K: RailKind> {
    /// The first byte, as the peer names it.
    pub address: u64,
    /// The region's key.
    pub key: RemoteKey<K>,
}
