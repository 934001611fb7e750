//! Memory of the user's: where it is, and of which kind. The promise that it stays is made here, once.

use std::os::fd::RawFd;

/// Memory to register: an address and a length, with the promise of [`UserMemory::host`] behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserMemory {
    address: u64,
    len: usize,
    kind: MemoryKind,
    buffer: u64,
    dmabuf: Option<Dmabuf>,
}

/// Whose memory it is.
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
    /// Where the memory begins in it, in bytes.
    pub offset: u64,
}

impl UserMemory {
    /// `len` bytes of host memory at `address`.
    ///
    /// # Safety
    ///
    /// The bytes stay mapped, readable and writable, until every region over them has closed and every operation posted from
    /// them has ended; peers and the provider may read and write them meanwhile.
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

    /// The same, in the buffer of this number (CU_POINTER_ATTRIBUTE_BUFFER_ID), which no other buffer of the process ever has: what is
    /// freed and allocated anew at an address is told apart by it. 0: nobody knows.
    pub const fn in_buffer(self, buffer: u64) -> Self {
        Self { buffer, ..self }
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

    /// Whose memory it is.
    pub const fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// The number of its buffer, on a device; 0 where nobody knows.
    pub const fn buffer(&self) -> u64 {
        self.buffer
    }

    /// Its dmabuf, if it has one.
    pub const fn dmabuf(&self) -> Option<Dmabuf> {
        self.dmabuf
    }
}
