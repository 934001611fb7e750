//! The address vector of a rail: peers' addresses with use counts. fi_av(3).
//!
//! Each rail has its own vector: efa before libfabric 2.2 refuses a vector that was bound to another endpoint, even one that has closed.
//! efa also needs the endpoint to insert an address. So while a rail is closed its addresses are kept here, and inserted when it opens
//! again.

use std::collections::{HashMap, VecDeque};
use std::ptr;

use libfabric_sys as sys;

use super::domain::Domain;
use crate::error::{Call, FabricError, check};
use crate::handle::Handle;
use crate::nic_number::NicNumber;

/// The address vector of one rail, with a use count per entry.
#[derive(Debug)]
pub(super) struct Peers {
    /// None while the rail is closed.
    handle: Handle<sys::fid_av>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    known: HashMap<Box<[u8]>, u32>,
    /// Entries without uses, oldest first. An injected write may still be in flight, as it has no completion, and fi_av(3) does not define
    /// its outcome if the peer is removed. So an entry is kept until many others were retired after it.
    retired: VecDeque<u32>,
    retired_max: usize,
    /// The stamp of the next peer: the number of this vector, and a serial number.
    next_stamp: u64,
}

/// The address of a peer, on one rail of a NIC. It is not valid on other rails, nor after the peer was removed, when its last use had
/// ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress {
    stamp: u64,
    slot: u32,
}

#[derive(Debug)]
struct Entry {
    /// [`GONE`] if there is no peer.
    stamp: u64,
    /// FI_ADDR_NOTAVAIL while the rail is closed, or if the provider has refused the address when the rail opened again.
    raw: sys::fi_addr_t,
    users: u32,
    name: Box<[u8]>,
}

/// No peer has this stamp: serial numbers begin at 1.
const GONE: u64 = 0;
/// Bits of a stamp for the serial number; the others are for the vector's number.
const SERIAL_BITS: u32 = 32;
const SERIALS: u64 = 1 << SERIAL_BITS;

impl PeerAddress {
    #[inline(always)]
    pub(super) fn slot(self) -> u32 {
        self.slot
    }
}

impl Peers {
    /// The peers of a rail that does not exist.
    pub(super) fn none() -> Self {
        Self {
            handle: Handle::none(),
            entries: Vec::new(),
            free: Vec::new(),
            known: HashMap::new(),
            retired: VecDeque::new(),
            retired_max: RETIRED_MAX,
            next_stamp: u64::from(NicNumber::new().get()) << SERIAL_BITS | 1,
        }
    }

    /// Opens an address vector, for one endpoint. With `keeps_unused` it keeps many more entries without uses.
    pub(super) fn open(domain: &Domain, keeps_unused: bool) -> Result<Self, FabricError> {
        let mut attributes = sys::fi_av_attr { type_: sys::FI_AV_TABLE, ..Default::default() };
        let open = |out| {
            // SAFETY: the domain is open, and both places are valid.
            unsafe { sys::fi_av_open(domain.as_ptr(), &raw mut attributes, out, ptr::null_mut()) }
        };
        // SAFETY: fi_av_open gives us an address vector of our own.
        let handle = unsafe { Handle::open(Call::fi_av_open, open) }?;
        let retired_max = if keeps_unused { KEPT_MAX } else { RETIRED_MAX };
        Ok(Self { handle, retired_max, ..Self::none() })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::fid_av {
        self.handle.as_ptr()
    }

    /// Closes the address vector, after its endpoint. The addresses are kept.
    pub(super) fn close(&mut self) -> Result<(), FabricError> {
        for entry in &mut self.entries {
            entry.raw = sys::FI_ADDR_NOTAVAIL;
        }
        self.handle.close()
    }

    /// The rail has opened again, with the vector of `new`: inserts all addresses there.
    pub(super) fn move_to(&mut self, new: Self) {
        self.handle = new.handle;
        for slot in 0..self.entries.len() {
            let Entry { stamp, ref name, .. } = self.entries[slot];
            if stamp != GONE {
                let inserted = self.insert(name);
                if let Err(error) = &inserted {
                    log::debug!("inserting a peer's address again: {error}");
                }
                self.entries[slot].raw = inserted.unwrap_or(sys::FI_ADDR_NOTAVAIL);
            }
        }
    }

    /// libfabric's address of a peer (`fi_addr_t`).
    #[inline(always)]
    pub(super) fn raw(&self, peer: PeerAddress) -> Option<sys::fi_addr_t> {
        let entry = self.entries.get(peer.slot as usize)?;
        (entry.stamp == peer.stamp && entry.raw != sys::FI_ADDR_NOTAVAIL).then_some(entry.raw)
    }

    /// Whether this is a peer of this rail, with an address or without.
    pub(super) fn knows(&self, peer: PeerAddress) -> bool {
        self.entries.get(peer.slot as usize).is_some_and(|entry| entry.stamp == peer.stamp)
    }

    /// Inserts the address `name` if it is new, and adds one use. While the rail is closed the address is only kept.
    pub(super) fn add(&mut self, name: &[u8]) -> Result<PeerAddress, FabricError> {
        if let Some(slot) = self.known.get(name).copied() {
            // The address may have been refused when the rail opened again: the provider may accept it now.
            if self.entries[slot as usize].raw == sys::FI_ADDR_NOTAVAIL {
                self.entries[slot as usize].raw = self.insert(name)?;
            }
            let entry = &mut self.entries[slot as usize];
            if entry.users == 0 {
                self.retired.retain(|retired| *retired != slot);
            }
            entry.users += 1;
            return Ok(PeerAddress { stamp: entry.stamp, slot });
        }
        let full = FabricError::new(Call::fi_av_insert, sys::FI_ENOMEM);
        let number = match self.free.last() {
            Some(free) => *free,
            None => u32::try_from(self.entries.len()).map_err(|_| full)?,
        };
        // The last serial number is not used, so that stamps do not overflow into the NIC's number.
        if self.next_stamp % SERIALS == SERIALS - 1 {
            return Err(full);
        }
        let raw = self.insert(name)?;
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let entry = Entry { stamp, raw, users: 1, name: name.into() };
        if self.free.pop().is_some() {
            self.entries[number as usize] = entry;
        } else {
            self.entries.push(entry);
        }
        self.known.insert(name.into(), number);
        Ok(PeerAddress { stamp, slot: number })
    }

    /// Removes a use; the last one retires the entry. `in_use` returns whether an operation in flight uses a retired entry, which then is
    /// not removed yet.
    pub(super) fn remove_use(&mut self, peer: PeerAddress, in_use: impl Fn(u32) -> bool) {
        let entry = self.entries.get_mut(peer.slot as usize);
        let Some(entry) = entry.filter(|entry| entry.stamp == peer.stamp) else { return };
        let Some(users) = entry.users.checked_sub(1) else {
            debug_assert!(false, "a peer without users is left");
            return;
        };
        entry.users = users;
        if users > 0 {
            return;
        }
        self.retired.push_back(peer.slot);
        if self.retired.len() > self.retired_max
            && let Some(at) = self.retired.iter().position(|slot| !in_use(*slot))
            && let Some(slot) = self.retired.remove(at)
        {
            self.remove(slot);
        }
    }

    fn remove(&mut self, slot: u32) {
        let Some(entry) = self.entries.get_mut(slot as usize) else { return };
        entry.stamp = GONE;
        self.known.remove(&entry.name);
        self.free.push(slot);
        let mut raw = entry.raw;
        if raw == sys::FI_ADDR_NOTAVAIL {
            return;
        }
        // SAFETY: the vector is open, since the entry has an address; `raw` is a valid place, and no operation in flight has it as its target.
        let code = unsafe { sys::fi_av_remove(self.handle.as_ptr(), &raw mut raw, 1, 0) };
        if let Err(error) = check(Call::fi_av_remove, code) {
            // The sockets provider of libfabric 2.5 fails to remove some addresses.
            log::debug!("removing a peer's address: {error}");
        }
    }

    /// Inserts an address; FI_ADDR_NOTAVAIL while the rail is closed. The bytes may come from the wire. libfabric gets a padded copy: it
    /// reads as many bytes as the address format has, without a length.
    fn insert(&self, address: &[u8]) -> Result<sys::fi_addr_t, FabricError> {
        let mut padded = PaddedAddress([0; ADDRESS_BYTES_MAX]);
        let refused = FabricError::new(Call::fi_av_insert, sys::FI_EINVAL);
        // The last byte stays zero: addresses in text form end there at the latest.
        if address.is_empty() || address.len() >= ADDRESS_BYTES_MAX {
            return Err(refused);
        }
        if self.handle.as_ptr().is_null() {
            return Ok(sys::FI_ADDR_NOTAVAIL);
        }
        padded.0[..address.len()].copy_from_slice(address);
        let mut peer = sys::FI_ADDR_NOTAVAIL;
        // SAFETY: the vector is open, and the copy is longer than any address format.
        let inserted = unsafe {
            sys::fi_av_insert(
                self.handle.as_ptr(),
                (&raw const padded).cast(),
                1,
                &raw mut peer,
                0,
                ptr::null_mut(),
            )
        };
        check(Call::fi_av_insert, inserted)?;
        if inserted == 1 && peer != sys::FI_ADDR_NOTAVAIL { Ok(peer) } else { Err(refused) }
    }

    pub(super) fn leak(&mut self) {
        self.handle.leak();
    }
}

/// The most entries without uses that are kept.
const RETIRED_MAX: usize = 64;
/// The most if an address that was removed cannot be used again: more than a job has processes. Bounded, since addresses may come from the
/// wire.
const KEPT_MAX: usize = 1 << 16;

/// The longest formats are `sockaddr_storage` (128 bytes) and shm's names (256).
const ADDRESS_BYTES_MAX: usize = 512;

/// Aligned for every address structure.
#[repr(C, align(16))]
struct PaddedAddress([u8; ADDRESS_BYTES_MAX]);
