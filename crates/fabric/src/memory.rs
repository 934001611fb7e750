//! Memory to register: our own pages, or a user's memory, which the creator of a [`UserMemory`] promises to keep valid.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::pages::Pages;

/// A reference to memory that rails may use. The memory stays valid while any reference exists, and a region holds one.
#[derive(Clone, Debug)]
pub enum Memory {
    /// Ours.
    Pages(Arc<Pages>),
    /// A user's.
    User(Arc<UserMemory>),
}

/// A user's memory: an address and a length, under the contract of [`UserMemory::host`].
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct UserMemory {
    address: u64,
    len: usize,
    kind: MemoryKind,
    buffer: u64,
    dmabuf: Option<Dmabuf>,
}

/// The kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The host's.
    Host,
    /// A CUDA device's.
    Cuda {
        /// The device's ordinal.
        device: i32,
    },
}

/// Device memory as a file descriptor: fi_mr(3), FI_MR_DMABUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dmabuf {
    /// The dmabuf; it must stay open while the region is being registered.
    pub fd: RawFd,
    /// The offset of the memory in it, in bytes.
    pub offset: u64,
}

impl UserMemory {
    /// `len` bytes of host memory at `address`.
    ///
    /// # Safety
    ///
    /// The bytes stay mapped, readable and writable, until the value is dropped, and until operations that peers began before its regions
    /// closed have ended (fi_mr(3)). Peers, the provider and the value's users may read and write them meanwhile, and the owner expects
    /// that.
    pub const unsafe fn host(address: u64, len: usize) -> Self {
        Self { address, len, kind: MemoryKind::Host, buffer: 0, dmabuf: None }
    }

    /// `len` bytes of a CUDA device's memory at `address`, by its dmabuf if there is one.
    ///
    /// # Safety
    ///
    /// As for [`UserMemory::host`]; `device` owns the memory, and `dmabuf` covers it.
    pub const unsafe fn cuda(
        address: u64,
        len: usize,
        device: i32,
        dmabuf: Option<Dmabuf>,
    ) -> Self {
        Self { address, len, kind: MemoryKind::Cuda { device }, buffer: 0, dmabuf }
    }

    /// Sets the id of the memory's buffer (CU_POINTER_ATTRIBUTE_BUFFER_ID), which is unique in the process: memory that is freed and
    /// allocated again at the same address has another id. 0: not known.
    pub const fn in_buffer(mut self, buffer: u64) -> Self {
        self.buffer = buffer;
        self
    }

    /// The first byte's address.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The kind of memory.
    pub const fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// The number of its buffer, on a device; 0 where that is not known.
    pub const fn buffer(&self) -> u64 {
        self.buffer
    }

    /// Its dmabuf, if it has one.
    pub const fn dmabuf(&self) -> Option<Dmabuf> {
        self.dmabuf
    }
}

impl From<Pages> for Memory {
    fn from(pages: Pages) -> Self {
        Self::Pages(Arc::new(pages))
    }
}

impl From<Arc<Pages>> for Memory {
    fn from(pages: Arc<Pages>) -> Self {
        Self::Pages(pages)
    }
}

impl From<UserMemory> for Memory {
    fn from(memory: UserMemory) -> Self {
        Self::User(Arc::new(memory))
    }
}

impl Memory {
    /// The first byte's address.
    pub fn address(&self) -> u64 {
        match self {
            Self::Pages(pages) => pages.address(),
            Self::User(memory) => memory.address(),
        }
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Pages(pages) => pages.len(),
            Self::User(memory) => memory.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The kind of memory.
    pub fn kind(&self) -> MemoryKind {
        match self {
            Self::Pages(_) => MemoryKind::Host,
            Self::User(memory) => memory.kind(),
        }
    }

    /// The number of its buffer, on a device; 0 where that is not known.
    pub fn buffer(&self) -> u64 {
        match self {
            Self::Pages(_) => 0,
            Self::User(memory) => memory.buffer(),
        }
    }

    /// Its dmabuf, if it has one.
    pub fn dmabuf(&self) -> Option<Dmabuf> {
        match self {
            Self::Pages(_) => None,
            Self::User(memory) => memory.dmabuf(),
        }
    }
}

/// An address as a usize: this crate requires 64-bit addresses.
#[inline]
pub(crate) fn address_bits(address: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    usize::from_ne_bytes(address.to_ne_bytes())
}
