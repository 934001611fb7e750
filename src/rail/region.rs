//! A buffer of NCCL's, registered once on each data rail that may use it.

use std::iter;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric::{
    Data, Endpoint, FabricError, HostBytes, LocalBytes, MemoryKind, Pages, Region, UserMemory,
};

/// One registration as NCCL sees it: a `Region<Data>` per data rail, in the rails' order.
#[derive(Debug)]
pub(crate) struct UserRegion {
    id: RegionId,
    first: Region<Data>,
    /// Those of the rails behind the first.
    others: Box<[Region<Data>]>,
    /// The rails' keys, as they travel.
    keys: Box<[u64]>,
    /// The first two of them, 0 where there is none.
    first_keys: [u64; 2],
    /// What is added to an address of ours to name it to a peer.
    to_target: u64,
    memory: UserMemory,
    /// Behind its last byte.
    end: u64,
}

/// Tells a registration from all others of the process, those that are gone included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionId(u64);

impl RegionId {
    pub(super) fn next() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        Self(MADE.fetch_add(1, Ordering::Relaxed))
    }
}

impl UserRegion {
    /// Registers `memory` on every one of `rails`; a rail that refuses undoes the ones before it.
    pub(crate) fn register<'a>(
        rails: impl Iterator<Item = &'a Arc<Endpoint<Data>>>,
        memory: UserMemory,
    ) -> Result<Self, FabricError> {
        Self::of(rails.map(|endpoint| Region::register(endpoint, memory)))
    }

    /// The same for pages of ours.
    pub(crate) fn register_pages<'a>(
        rails: impl Iterator<Item = &'a Arc<Endpoint<Data>>>,
        pages: &Arc<Pages>,
    ) -> Result<Self, FabricError> {
        Self::of(rails.map(|endpoint| Region::register_pages(endpoint, Arc::clone(pages))))
    }

    fn of(
        rails: impl Iterator<Item = Result<Region<Data>, FabricError>>,
    ) -> Result<Self, FabricError> {
        let mut rails = rails;
        const NONE: FabricError = FabricError { call: "fi_mr_regattr without rails", code: -22 };
        let first = rails.next().ok_or(NONE)??;
        let others: Box<[_]> = rails.collect::<Result<_, _>>()?;
        let memory = first.memory();
        let to_target = first.remote_base().wrapping_sub(memory.address());
        let all = iter::once(&first).chain(&others);
        let keys: Box<[_]> = all.map(|region| region.key().to_wire()).collect();
        let first_keys = [0, 1].map(|rail: usize| keys.get(rail).copied().unwrap_or(0));
        let end = memory.address().saturating_add(memory.len() as u64);
        Ok(Self { id: RegionId::next(), first, others, keys, first_keys, to_target, memory, end })
    }

    #[inline(always)]
    pub(crate) fn id(&self) -> RegionId {
        self.id
    }

    /// Whether `len` bytes from `address` lie inside.
    #[inline]
    pub(crate) fn holds(&self, address: u64, len: usize) -> bool {
        let end = address.checked_add(len as u64);
        address >= self.memory.address() && end.is_some_and(|end| end <= self.end)
    }

    /// The same for at least one byte, in fewer steps.
    #[inline(always)]
    pub(crate) fn holds_some(&self, address: u64, len: usize) -> bool {
        // Not behind the address where there is none, or where they wrap.
        let end = address.wrapping_add(len as u64);
        end > address && address >= self.memory.address() && end <= self.end
    }

    /// How many bytes there are from `address` on; none outside.
    pub(crate) fn bytes_from(&self, address: u64) -> usize {
        let inside = address >= self.memory.address();
        let left = self.end.checked_sub(address).filter(|_| inside).unwrap_or(0);
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Bytes of the buffer as a post on data rail `rail` names them; `None` out of bounds.
    #[inline]
    pub(crate) fn local(
        &self,
        rail: usize,
        address: u64,
        len: usize,
    ) -> Option<LocalBytes<'_, Data>> {
        self.rail(rail)?.local_at(address, len)
    }

    /// Bytes of the buffer for a post that copies them; `None` out of bounds.
    #[inline(always)]
    pub(crate) fn host_bytes(&self, address: u64, len: usize) -> Option<HostBytes<'_>> {
        self.first.host_bytes(address, len)
    }

    #[inline]
    fn rail(&self, rail: usize) -> Option<&Region<Data>> {
        if rail == 0 { Some(&self.first) } else { self.others.get(rail - 1) }
    }

    /// Puts the first `len` bytes of `words` where a peer would name `target`. False, and nothing happens, out of bounds or where the memory is not the
    /// host's.
    #[inline]
    pub(crate) fn store<const COUNT: usize>(
        &self,
        target: u64,
        words: [u64; COUNT],
        len: usize,
    ) -> bool {
        debug_assert_eq!(self.memory.kind(), MemoryKind::Host, "a copy to GPU memory");
        let address = target.wrapping_sub(self.to_target);
        self.first.store_words(address, words, len)
    }

    /// Where the peer's writes to `address` go: an address or an offset, as the domain negotiated.
    #[inline]
    pub(crate) fn target(&self, address: u64) -> u64 {
        address.wrapping_add(self.to_target)
    }

    /// The keys that let the peer write, of the first `rails` data rails.
    #[inline]
    pub(crate) fn keys(&self, rails: usize) -> &[u64] {
        self.keys.get(..rails).unwrap_or(&[])
    }

    /// Those of the first two data rails.
    #[inline(always)]
    pub(crate) fn first_keys(&self) -> [u64; 2] {
        self.first_keys
    }

    /// The key that lets the peer write through data rail `rail`.
    pub(crate) fn key(&self, rail: usize) -> u64 {
        self.keys.get(rail).copied().unwrap_or(0)
    }

    /// Closes it, but for the rails for which `leaks` says so: there it stays registered for ever.
    pub(crate) fn release_except(self, leaks: impl Fn(usize) -> bool) {
        for (rail, region) in iter::once(self.first).chain(self.others).enumerate() {
            if leaks(rail) {
                let _leaked = ManuallyDrop::new(region);
            }
        }
    }

    /// The buffer.
    pub(crate) fn memory(&self) -> UserMemory {
        self.memory
    }

    /// Where the buffer begins.
    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }
}
