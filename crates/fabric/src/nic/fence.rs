//! Fences a rail, which keeps late operations and writes of peers from its memory, and opens it again.

use libfabric_sys as sys;

use super::regions::Registered;
use super::{Nic, NicOptions, operations};
use crate::error::{Call, FabricError};
use crate::kind::{Data, RailKind, Role};

impl Nic {
    /// Whether [`fence`](Self::fence) can close a rail on which operations are in flight.
    #[must_use]
    pub fn closes_with_operations(&self) -> bool {
        !self.shares_queue && !self.domain.mode().bind_to_endpoint
    }

    /// Closes one rail's endpoint and queue, while the NIC stays open: operations that were posted there can no longer access memory, and
    /// peers' writes can no longer arrive there. Returns the tokens of the operations that were in flight, which get no completion.
    ///
    /// # Errors
    ///
    /// -FI_EBUSY if regions are bound to endpoints and operations are in flight on the rail: cancel them, or wait; also if the rails share a
    /// queue, which may hold their completions. What fi_close of the endpoint, or of a region that is bound to it, returned: then the
    /// endpoint leaks with its operations, and the rail is not fenced. If only a queue or an address vector does not close, it leaks, and
    /// the rail is fenced without an error.
    pub fn fence<K: RailKind>(&mut self) -> Result<Vec<u64>, FabricError> {
        if self.shares_queue {
            return Err(FabricError::new(Call::fi_close, sys::FI_EBUSY));
        }
        let on_rail = |entry: &operations::Entry| entry.role == K::ROLE;
        if self.domain.mode().bind_to_endpoint {
            if self.operations.iter().any(|(_, entry)| on_rail(entry)) {
                return Err(FabricError::new(Call::fi_close, sys::FI_EBUSY));
            }
            let mut failure = None;
            for (slot, registered) in self.regions.defer(K::ROLE) {
                if let Err(error) = self.close_region(registered) {
                    self.regions.leaked(slot, error);
                    failure = Some(error);
                }
            }
            if let Some(error) = failure {
                self.rail_mut(K::ROLE).abandon_endpoint();
                return Err(error);
            }
        }
        let rail = self.rail_mut(K::ROLE);
        rail.close_endpoint()?;
        // Without the endpoint nothing accesses memory: the rail is fenced even if these leak.
        for error in [rail.close_queue(), rail.peers.close()].into_iter().filter_map(Result::err) {
            log::error!(
                "closing the queue or the address vector of a fenced rail: {error}; it leaks"
            );
        }
        self.quarantine.retain(|(role, _)| *role != K::ROLE);
        self.is_fenced |= K::ROLE == Role::Data;
        let ended = self.operations.iter().filter(|(_, entry)| on_rail(entry));
        let ended: Vec<usize> = ended.map(|(index, _)| index).collect();
        let ended = ended.into_iter().filter_map(|index| self.operations.end_at(index));
        Ok(ended
            .inspect(|entry| self.regions.release(entry.region))
            .map(|entry| entry.token)
            .collect())
    }

    /// Whether all memory that is registered for the data rail could be registered again after a fence.
    pub fn can_reopen(&self) -> bool {
        !(self.domain.mode().bind_to_endpoint
            && self.domain.supports_dmabuf()
            && self.regions.has_dmabuf(Role::Data))
    }

    /// Opens the data rail again after a fence: a new endpoint with another address. Regions that are bound to it are registered again,
    /// with other keys.
    ///
    /// # Errors
    ///
    /// What the first failing call returned: then the rail stays closed. -FI_EBUSY if the rail was not fenced, or its endpoint has leaked.
    /// -FI_ENODATA if memory would have to be registered again by a DMA-BUF, whose descriptor may be another file's by now.
    pub fn reopen(&mut self, options: &NicOptions<'_>) -> Result<(), FabricError> {
        let may_open = self.is_fenced && !self.data.is_open() && !self.data.is_stuck();
        let Some(wanted) = options.data.filter(|_| may_open) else {
            return Err(FabricError::new(Call::fi_endpoint, sys::FI_EBUSY));
        };
        if !self.can_reopen() {
            return Err(FabricError::new(Call::fi_mr_regattr, sys::FI_ENODATA));
        }
        let waiting = self.regions.deferred(Role::Data);
        let rail = Self::open_data(&self.domain, &self.info, options, wanted)?;
        let before = std::mem::replace(&mut self.data, rail);
        self.data.posts = before.posts;
        let vector = std::mem::replace(&mut self.data.peers, before.peers);
        self.data.peers.move_to(vector);
        let endpoint = self.data.endpoint_ptr();
        for (slot, memory) in waiting {
            match Registered::new::<Data>(&self.domain, &mut self.keys, endpoint, memory) {
                Ok((registered, names)) => {
                    self.regions.fill(slot, registered, (names.descriptor, names.key));
                }
                Err(error) => {
                    let closed = self.fence::<Data>();
                    return Err(closed.err().unwrap_or(error));
                }
            }
        }
        self.is_fenced = false;
        Ok(())
    }
}
