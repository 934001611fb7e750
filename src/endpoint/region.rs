//! A buffer of NCCL's, registered once on each data rail that may use it.

use std::sync::Arc;

use fabric::{Data, FabricError, HostBytes, Kept, LocalBytes, Memory, Pages, Region};

use super::nics::Port;

/// One registration as NCCL sees it: a `Region<Data>` per data rail, in the rails' order.
#[derive(Debug)]
pub(crate) struct UserRegion {
    /// None for a rail that was closed before.
    rails: Box<[Option<Region<Data>>]>,
    /// The first that there is.
    first: usize,
    /// The rails' keys, as they travel; 0 for a rail without a region.
    keys: Box<[u64]>,
    /// What is added to an address of ours to name it to a peer.
    to_target: u64,
    address: u64,
    /// Behind its last byte.
    end: u64,
}

impl UserRegion {
    /// Registers `memory` on every open data rail; a rail that refuses undoes the ones before it.
    pub(super) fn register(nics: &mut [Port], memory: &Memory) -> Result<Self, FabricError> {
        let all = nics.iter_mut().map(|port| match port.is_closed {
            true => Ok(None),
            false => port.nic.register(memory.clone()).map(Some),
        });
        let all: Result<Box<[_]>, _> = all.collect();
        // What was registered before one was refused.
        let all = all.inspect_err(|_| nics.iter_mut().for_each(|port| port.nic.close_dropped()))?;
        Self::of(all)
    }

    /// The same for pages of ours.
    pub(super) fn register_pages(
        nics: &mut [Port],
        pages: Arc<Pages>,
    ) -> Result<Self, FabricError> {
        Self::register(nics, &pages.into())
    }

    fn of(rails: Box<[Option<Region<Data>>]>) -> Result<Self, FabricError> {
        let mut present = rails.iter().enumerate();
        let found = present.find_map(|(at, region)| Some((at, region.as_ref()?)));
        let (first, region) = found.ok_or(FabricError::NO_RAIL)?;
        let (address, len) = (region.memory().address(), region.memory().len());
        let to_target = region.remote_base().wrapping_sub(address);
        let key =
            |region: &Option<Region<Data>>| region.as_ref().map_or(0, |one| one.key().to_wire());
        let keys: Box<[_]> = rails.iter().map(key).collect();
        let end = address.saturating_add(len as u64);
        Ok(Self { rails, first, keys, to_target, address, end })
    }

    /// Closes it. In an error it is closed where that is possible, and stays registered elsewhere.
    pub(super) fn deregister(self, nics: &mut [Port]) -> Result<(), FabricError> {
        let mut outcome = Ok(());
        for (region, port) in self.rails.into_iter().zip(nics) {
            let Some(region) = region else { continue };
            match port.nic.deregister(region) {
                Ok(()) => {}
                // Dropped, and closed when that has ended: no caller comes here before.
                Err(Kept::InUse(region)) => {
                    log::error!(
                        "a region in use is given back: a bug in Ironrail; please report it"
                    );
                    drop(region);
                    outcome = Err(FabricError::IN_USE);
                }
                Err(Kept::Leaked(error)) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Whether an operation of ours touches it.
    pub(super) fn is_used(&self, nics: &[Port]) -> bool {
        let mut rails = self.rails.iter().zip(nics);
        rails.any(|(region, port)| region.as_ref().is_some_and(|one| port.nic.uses_of(one) > 0))
    }

    /// One of its regions.
    #[inline(always)]
    fn any(&self) -> &Region<Data> {
        self.rails[self.first].as_ref().expect("a region that has one is made so")
    }

    /// Whether `len` bytes from `address` lie inside.
    #[inline]
    pub(crate) fn holds(&self, address: u64, len: usize) -> bool {
        let end = address.checked_add(len as u64);
        address >= self.address && end.is_some_and(|end| end <= self.end)
    }

    /// How many bytes there are from `address` on; none outside.
    pub(crate) fn bytes_from(&self, address: u64) -> usize {
        let inside = address >= self.address;
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
        self.any().host_bytes(address, len)
    }

    #[inline]
    fn rail(&self, rail: usize) -> Option<&Region<Data>> {
        self.rails.get(rail)?.as_ref()
    }

    /// Where the peer's writes to `address` go: an address or an offset, as the domain negotiated.
    #[inline]
    pub(crate) fn target(&self, address: u64) -> u64 {
        address.wrapping_add(self.to_target)
    }

    /// The key that lets the peer write through data rail `rail`.
    pub(crate) fn key(&self, rail: usize) -> u64 {
        self.keys.get(rail).copied().unwrap_or(0)
    }

    /// The buffer.
    pub(crate) fn memory(&self) -> &Memory {
        self.any().memory()
    }

    /// Where the buffer begins.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}
