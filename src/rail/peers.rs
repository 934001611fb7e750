//! Addresses of peers' endpoints, shared by all connections to the same one.

use std::collections::HashMap;
use std::sync::Arc;

use fabric::{AddressVector, FabricError, PeerAddress};

/// The address vector of one NIC, with a count of users per entry.
#[derive(Debug)]
pub(crate) struct Peers {
    known: HashMap<Box<[u8]>, Entry>,
    addresses: Arc<AddressVector>,
}

#[derive(Debug)]
struct Entry {
    peer: PeerAddress,
    users: u32,
}

impl Peers {
    pub(crate) fn new(addresses: Arc<AddressVector>) -> Self {
        Self { known: HashMap::new(), addresses }
    }

    /// How many peers there are, and whether `name` is of one of them.
    pub(crate) fn knows(&self, name: &[u8]) -> (usize, bool) {
        (self.known.len(), self.known.contains_key(name))
    }

    /// The entry for `name`, inserted when it is new. Each call is one user more.
    pub(crate) fn join(&mut self, name: &[u8]) -> Result<PeerAddress, FabricError> {
        if let Some(entry) = self.known.get_mut(name) {
            entry.users += 1;
            return Ok(entry.peer);
        }
        let peer = self.addresses.insert(name)?;
        self.known.insert(name.into(), Entry { peer, users: 1 });
        Ok(peer)
    }

    /// One user less; the last one removes the entry.
    pub(crate) fn leave(&mut self, peer: PeerAddress) {
        let Some(name) =
            self.known.iter().find(|(_, entry)| entry.peer == peer).map(|(name, _)| name.clone())
        else {
            return;
        };
        let entry = self.known.get_mut(&name).expect("it was just found");
        entry.users -= 1;
        if entry.users == 0 {
            self.known.remove(&name);
            if let Err(error) = self.addresses.remove(peer) {
                log::debug!("removing a peer's address: {error}");
            }
        }
    }
}
