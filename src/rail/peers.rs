//! Addresses of peers' endpoints, shared by all connections to the same one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fabric::{AddressVector, FabricError, PeerAddress};

/// The address vector of one NIC, with a count of users per entry.
#[derive(Debug)]
pub(crate) struct Peers {
    known: HashMap<Box<[u8]>, Entry>,
    /// Without users, oldest first. Nobody is told when an injected write has ended, and fi_av(3) leaves open what becomes
    /// of one whose peer is removed meanwhile: so an entry stays until many came after it.
    retired: VecDeque<Box<[u8]>>,
    addresses: Arc<AddressVector>,
}

#[derive(Debug)]
struct Entry {
    peer: PeerAddress,
    users: u32,
}

impl Peers {
    pub(crate) fn new(addresses: Arc<AddressVector>) -> Self {
        Self { known: HashMap::new(), retired: VecDeque::new(), addresses }
    }

    /// How many peers there are, and whether `name` is of one of them.
    pub(crate) fn knows(&self, name: &[u8]) -> (usize, bool) {
        (self.known.len(), self.known.contains_key(name))
    }

    /// The entry for `name`, inserted when it is new. Each call is one user more.
    pub(crate) fn join(&mut self, name: &[u8]) -> Result<PeerAddress, FabricError> {
        if let Some(entry) = self.known.get_mut(name) {
            if entry.users == 0 {
                self.retired.retain(|retired| **retired != *name);
            }
            entry.users += 1;
            return Ok(entry.peer);
        }
        let peer = self.addresses.insert(name)?;
        self.known.insert(name.into(), Entry { peer, users: 1 });
        Ok(peer)
    }

    /// One user more of an entry that has some.
    pub(crate) fn hold(&mut self, peer: PeerAddress) {
        if let Some(entry) = self.known.values_mut().find(|entry| entry.peer == peer) {
            entry.users += 1;
        }
    }

    /// One user less; the last one retires the entry.
    pub(crate) fn leave(&mut self, peer: PeerAddress) {
        let Some(name) =
            self.known.iter().find(|(_, entry)| entry.peer == peer).map(|(name, _)| name.clone())
        else {
            return;
        };
        let entry = self.known.get_mut(&name).expect("it was just found");
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        self.retired.push_back(name);
        if self.retired.len() > RETIRED_MAX
            && let Some(name) = self.retired.pop_front()
            && let Some(Entry { peer, .. }) = self.known.remove(&name)
            && let Err(error) = self.addresses.remove(peer)
        {
            log::debug!("removing a peer's address: {error}");
        }
    }
}

/// Peers without users that are kept.
const RETIRED_MAX: usize = 64;
