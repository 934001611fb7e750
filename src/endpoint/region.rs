//! A buffer of NCCL's, registered on each data rail.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric::{
    Data, FabricError, HostBytes, LocalBytes, Memory, MemoryKind, Nic, NotDeregistered, Pages,
    Region,
};

use super::nics::Port;

/// One registration for NCCL: a `Region<Data>` per data rail, in the rails' order.
#[derive(Debug)]
pub(crate) struct UserRegion {
    first: Region<Data>,
    /// The regions of the other rails.
    others: Box<[Region<Data>]>,
    /// The keys on each rail, as on the wire; 0 for a rail that is closed. Written under the endpoint's lock only.
    keys: Box<[AtomicU64]>,
    /// The difference between the address that a peer's write targets and the local address.
    to_target: u64,
    address: u64,
    /// One past the last byte.
    end: u64,
}

impl UserRegion {
    /// Registers `memory` on every data rail. If one refuses, the earlier ones are undone.
    pub(super) fn register(nics: &mut [Port], memory: &Memory) -> Result<Self, FabricError> {
        let all = nics.iter_mut().map(|port| port.nic.register(memory.clone()));
        let all: Result<Vec<_>, _> = all.collect();
        // Close what was registered before one was refused.
        let all = all.inspect_err(|_| nics.iter_mut().for_each(|port| port.nic.close_dropped()))?;
        Self::of(all)
    }

    /// Registers pages of our own.
    pub(super) fn register_pages(
        nics: &mut [Port],
        pages: Arc<Pages>,
    ) -> Result<Self, FabricError> {
        Self::register(nics, &pages.into())
    }

    fn of(all: Vec<Region<Data>>) -> Result<Self, FabricError> {
        let mut all = all.into_iter();
        let first = all.next().ok_or(FabricError::NO_RAIL)?;
        let others: Box<[_]> = all.collect();
        let (address, len) = (first.memory().address(), first.memory().len());
        let to_target = first.remote_base().wrapping_sub(address);
        let all = iter::once(&first).chain(&others);
        let keys: Box<[_]> = all.map(|region| AtomicU64::new(region.key().to_wire())).collect();
        let end = address.saturating_add(len as u64);
        Ok(Self { first, others, keys, to_target, address, end })
    }

    /// A data rail was closed or opened again: read the key there.
    pub(super) fn rekey(&self, rail: usize, nic: &Nic) {
        if let (Some(region), Some(key)) = (self.rail(rail), self.keys.get(rail)) {
            key.store(nic.key_of(region).to_wire(), Ordering::Relaxed);
        }
    }

    /// Closes the regions. After an error those that could not be closed stay registered.
    pub(super) fn deregister(self, nics: &mut [Port]) -> Result<(), FabricError> {
        let mut outcome = Ok(());
        for (region, port) in iter::once(self.first).chain(self.others).zip(nics) {
            match port.nic.deregister(region) {
                Ok(()) => {}
                // Dropped: the NIC closes it when its operations have ended. Callers check that before.
                Err(NotDeregistered::InUse(region)) => {
                    log::error!(
                        "a region in use is deregistered: a bug in Ironrail; please report it"
                    );
                    drop(region);
                    outcome = Err(FabricError::IN_USE);
                }
                Err(NotDeregistered::Leaked(error)) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Whether an operation of ours uses it.
    pub(super) fn is_used(&self, nics: &[Port]) -> bool {
        let mut rails = iter::once(&self.first).chain(&self.others).zip(nics);
        rails.any(|(region, port)| port.nic.uses_of(region) > 0)
    }

    /// The tokens of the operations on data rail `rail` that use it.
    pub(super) fn tokens(&self, rail: usize, nic: &Nic) -> impl Iterator<Item = u64> {
        self.rail(rail).into_iter().flat_map(|region| nic.tokens_on(region))
    }

    /// Whether `len` bytes from `address` lie inside.
    #[inline]
    pub(crate) fn holds(&self, address: u64, len: usize) -> bool {
        let end = address.checked_add(len as u64);
        address >= self.address && end.is_some_and(|end| end <= self.end)
    }

    /// The number of bytes from `address` to the end; 0 outside.
    pub(crate) fn bytes_from(&self, address: u64) -> usize {
        let inside = address >= self.address;
        let left = self.end.checked_sub(address).filter(|_| inside).unwrap_or(0);
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Bytes of the buffer, for a post on data rail `rail`; `None` out of bounds.
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

    /// The target of a peer's write to `address`: an address or an offset, as the domain negotiated.
    #[inline]
    pub(crate) fn target(&self, address: u64) -> u64 {
        address.wrapping_add(self.to_target)
    }

    /// The key that lets the peer write through data rail `rail`.
    pub(crate) fn key(&self, rail: usize) -> u64 {
        self.keys.get(rail).map_or(0, |key| key.load(Ordering::Relaxed))
    }

    /// Whether it is host memory, which the processor reads and writes.
    #[inline]
    pub(crate) fn is_host(&self) -> bool {
        self.memory().kind() == MemoryKind::Host
    }

    pub(crate) fn memory(&self) -> &Memory {
        self.first.memory()
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}
