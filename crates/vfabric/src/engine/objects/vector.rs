//! Address vectors, which name an endpoint to its peers.

use std::collections::BTreeSet;

use libfabric_sys as sys;

use super::{Domain, Endpoint};
use crate::engine::{Engine, Errno, Id, Operation, Outcome};
use crate::ledger::Rule;

/// An address vector: numbers of endpoints.
#[derive(Debug)]
pub(crate) struct Vector {
    pub(super) domain: Id<Domain>,
    peers: Vec<Option<Id<Endpoint>>>,
    pub(super) users: usize,
    /// Whether an endpoint was bound to it; that endpoint may have closed.
    pub(super) was_bound: bool,
    /// Endpoints to which something was posted, and those of them whose address was removed since, where the profile forgets peers.
    met: BTreeSet<Id<Endpoint>>,
    forgotten: BTreeSet<Id<Endpoint>>,
}

impl Vector {
    pub(in crate::engine) fn len(&self) -> usize {
        self.peers.iter().flatten().count()
    }

    /// The endpoint behind an `fi_addr_t`.
    pub(in crate::engine) fn peer(&self, name: u64) -> Option<Id<Endpoint>> {
        self.peers.get(usize::try_from(name).ok()?).copied().flatten()
    }

    /// Records a post to this endpoint. Returns whether there was none before its address was removed.
    pub(in crate::engine) fn meet(&mut self, endpoint: Id<Endpoint>) -> bool {
        self.met.insert(endpoint);
        !self.forgotten.contains(&endpoint)
    }

    /// The `fi_addr_t` of an endpoint.
    pub(in crate::engine) fn name_of(&self, endpoint: Id<Endpoint>) -> Option<u64> {
        self.peers.iter().position(|peer| *peer == Some(endpoint)).map(|place| place as u64)
    }
}

impl Engine {
    pub(crate) fn open_vector(&mut self, domain: Id<Domain>) -> Outcome<Id<Vector>> {
        self.domain_mut(domain)?.users += 1;
        Ok(self.vectors.insert(Vector {
            domain,
            peers: Vec::new(),
            users: 0,
            was_bound: false,
            met: BTreeSet::new(),
            forgotten: BTreeSet::new(),
        }))
    }

    pub(crate) fn close_vector(&mut self, id: Id<Vector>) -> Outcome {
        let users = self.vectors.get(id).ok_or(Errno(sys::FI_EINVAL))?.users;
        if users > 0 {
            return self.refuse(Rule::CloseOrder, sys::FI_EBUSY, || {
                format!("address vector {id} is closed before its endpoints")
            });
        }
        if let Some(vector) = self.vectors.remove(id) {
            self.domain_mut(vector.domain)?.users -= 1;
        }
        Ok(())
    }

    /// Adds an endpoint, which may be closed already: only a post to it fails.
    pub(crate) fn insert_peer(&mut self, id: Id<Vector>, endpoint: Id<Endpoint>) -> Outcome<u64> {
        let users = self.vectors.get(id).ok_or(Errno(sys::FI_EINVAL))?.users;
        if users == 0 && !self.settings.profile.shares_vectors {
            return self.refuse(Rule::BindOrder, sys::FI_EINVAL, || {
                format!("an address is inserted into address vector {id}, which has no endpoint")
            });
        }
        let vector = self.vectors.get_mut(id).ok_or(Errno(sys::FI_EINVAL))?;
        vector.peers.push(Some(endpoint));
        Ok(vector.peers.len() as u64 - 1)
    }

    pub(crate) fn remove_peer(&mut self, id: Id<Vector>, name: u64) -> Outcome {
        let vector = self.vectors.get(id).ok_or(Errno(sys::FI_EINVAL))?;
        let Some(peer) = vector.peer(name) else {
            return self.refuse(Rule::UnknownPeer, sys::FI_EINVAL, || {
                format!("peer {name} is removed from address vector {id}, which has none such")
            });
        };
        let users = |endpoint: Id<Endpoint>| {
            self.endpoints.get(endpoint).is_some_and(|endpoint| endpoint.vector == Some(id))
        };
        let in_flight = |operation: &Operation| {
            operation.target == peer
                && operation.peer == name
                && !operation.reported
                && users(operation.initiator)
        };
        if self.operations.values().any(in_flight) {
            self.broken(Rule::UnknownPeer, || {
                format!("peer {name} is removed from address vector {id} while operations to it are in flight")
            });
        }
        let place = usize::try_from(name).unwrap_or(usize::MAX);
        let Some(vector) = self.vectors.get_mut(id) else { return Ok(()) };
        if let Some(slot) = vector.peers.get_mut(place) {
            *slot = None;
        }
        if vector.met.contains(&peer) {
            vector.forgotten.insert(peer);
        }
        Ok(())
    }

    pub(crate) fn peer_at(&self, vector: Id<Vector>, name: u64) -> Outcome<Id<Endpoint>> {
        self.vectors.get(vector).and_then(|vector| vector.peer(name)).ok_or(Errno(sys::FI_EINVAL))
    }
}
