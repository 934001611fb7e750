//! An address vector: the peers that endpoints can name. fi_av(3).

use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use crate::domain::Domain;
use crate::error::{FabricError, check};
use crate::handle::Handle;

/// A table of peers' addresses. Insertions and removals happen under the lock of the endpoint that uses it.
#[derive(Debug)]
pub struct AddressVector {
    handle: Handle<sys::fid_av>,
    _domain: Arc<Domain>,
}

/// A peer, as one address vector names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress(pub(crate) sys::fi_addr_t);

impl AddressVector {
    /// Opens an empty table.
    ///
    /// # Errors
    ///
    /// What fi_av_open(3) returned.
    pub fn open(domain: &Arc<Domain>) -> Result<Arc<Self>, FabricError> {
        let mut attributes = sys::fi_av_attr { type_: sys::FI_AV_TABLE, ..Default::default() };
        let open = |out| {
            // SAFETY: the domain is open, and both places are valid.
            unsafe { sys::fi_av_open(domain.as_ptr(), &raw mut attributes, out, ptr::null_mut()) }
        };
        // SAFETY: fi_av_open gives us an address vector of our own.
        let handle = unsafe { Handle::open("fi_av_open", open) }?;
        Ok(Arc::new(Self { handle, _domain: Arc::clone(domain) }))
    }

    /// Adds a peer by what its endpoint's `name()` said. The same address added twice may give one name or two.
    ///
    /// The bytes may come from the wire: libfabric reads an address by its format, not by a length, so it is given a padded copy.
    ///
    /// # Errors
    ///
    /// What fi_av_insert(3) returned; -FI_EINVAL for an empty, oversized or invalid address.
    pub fn insert(&self, address: &[u8]) -> Result<PeerAddress, FabricError> {
        let mut padded = PaddedAddress([0; ADDRESS_BYTES_MAX]);
        let refused = FabricError::new("fi_av_insert", sys::FI_EINVAL);
        // The last byte stays zero: addresses in text form end there at the latest.
        if address.is_empty() || address.len() >= ADDRESS_BYTES_MAX {
            return Err(refused);
        }
        padded.0[..address.len()].copy_from_slice(address);
        let mut peer = sys::FI_ADDR_NOTAVAIL;
        // SAFETY: the vector is open, and the copy is longer than any address format.
        let inserted = unsafe {
            sys::fi_av_insert(
                self.as_ptr(),
                (&raw const padded).cast(),
                1,
                &raw mut peer,
                0,
                ptr::null_mut(),
            )
        };
        check("fi_av_insert", inserted)?;
        if inserted == 1 && peer != sys::FI_ADDR_NOTAVAIL {
            Ok(PeerAddress(peer))
        } else {
            Err(refused)
        }
    }

    /// Removes a peer. Operations to it must have ended.
    ///
    /// # Errors
    ///
    /// What fi_av_remove(3) returned.
    pub fn remove(&self, peer: PeerAddress) -> Result<(), FabricError> {
        let mut raw = peer.0;
        // SAFETY: the vector is open, and `raw` is a valid place.
        check("fi_av_remove", unsafe { sys::fi_av_remove(self.as_ptr(), &raw mut raw, 1, 0) })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fid_av {
        self.handle.as_ptr()
    }
}

/// Formats go up to a `sockaddr_storage` (128 bytes), names of shm's to 256.
const ADDRESS_BYTES_MAX: usize = 512;

/// Aligned as any address structure may need.
#[repr(C, align(16))]
struct PaddedAddress([u8; ADDRESS_BYTES_MAX]);
