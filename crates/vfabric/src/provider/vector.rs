//! Address vectors and addresses, which are text: `vfabric://NIC/ENDPOINT`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libfabric_sys as sys;

use super::answer;
use super::object::Object;
use super::table::table;
use crate::engine::{Endpoint, Errno, Id, engine};
use crate::ledger::Rule;

table! {
    fn objects() -> sys::fi_ops { close: close }
}

table! {
    fn calls() -> sys::fi_ops_av {
        insert: insert,
        remove: remove,
        lookup: look_up,
        straddr: text_of,
    }
}

/// Length of an address, padded with zeros: that of an IPv6 address (sockaddr_in6).
pub(super) const ADDRESS_BYTES: usize = 28;

/// The address of an endpoint.
pub(super) fn address(nic: usize, endpoint: Id<Endpoint>) -> [u8; ADDRESS_BYTES] {
    let mut bytes = [0; ADDRESS_BYTES];
    let text = format!("vfabric://{nic}/{endpoint}");
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// The endpoint of an address.
fn endpoint_of(bytes: &[u8]) -> Option<Id<Endpoint>> {
    let text = CStr::from_bytes_until_nul(bytes).ok()?.to_str().ok()?;
    let (nic, endpoint) = text.strip_prefix("vfabric://")?.split_once('/')?;
    nic.parse::<u8>().ok()?;
    endpoint.parse().ok().map(Id::of)
}

/// Copies as much of an address as fits.
///
/// # Safety
///
/// `len` must be valid, and `place` have room for that many bytes.
pub(super) unsafe fn hand_out(
    bytes: &[u8; ADDRESS_BYTES],
    place: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: the caller's.
    let room = unsafe { len.replace(ADDRESS_BYTES) };
    let fits = room.min(ADDRESS_BYTES);
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast::<u8>(), fits) };
    if room < ADDRESS_BYTES { -sys::FI_ETOOSMALL } else { 0 }
}

/// fi_av_open in fi_av(3).
pub(super) unsafe extern "C" fn open(
    domain: *mut sys::fid_domain,
    attributes: *mut sys::fi_av_attr,
    vector: *mut *mut sys::fid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric gives a domain of ours.
    let Some(domain) = (unsafe { Object::of(domain) }) else { return -sys::FI_EINVAL };
    let _marks = domain.enter("fi_av_open");
    // SAFETY: the user gives null or attributes.
    let kind = unsafe { attributes.as_ref() }.map(|attributes| attributes.type_);
    // As the infos have FI_AV_TABLE, and libfabric's providers compare with that (prov/util/src/util_av.c).
    if !matches!(kind, Some(sys::FI_AV_TABLE | sys::FI_AV_UNSPEC)) {
        engine().broken(Rule::Arguments, || {
            format!("an address vector of type {kind:?} in a domain of FI_AV_TABLE")
        });
        return -sys::FI_EINVAL;
    }
    let id = match engine().open_vector(domain.id) {
        Ok(id) => id,
        Err(Errno(code)) => return -code,
    };
    let fid = sys::fid_av {
        fid: sys::fid { fclass: sys::FI_CLASS_AV as usize, context, ops: objects() },
        ops: calls(),
    };
    let object = Object::new(fid, id, domain.serialised);
    object.join_groups_of(domain);
    // SAFETY: the user gives a valid place.
    unsafe { vector.write(object.publish()) };
    0
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: this table is of address vectors only.
    let Some(vector) = (unsafe { Object::<sys::fid_av>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    let _marks = vector.enter("fi_close");
    let outcome = engine().close_vector(vector.id);
    if outcome.is_ok() {
        vector.bury();
    }
    answer(outcome)
}

unsafe extern "C" fn insert(
    vector: *mut sys::fid_av,
    addresses: *const c_void,
    count: usize,
    names: *mut sys::fi_addr_t,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric gives an address vector of ours.
    let Some(vector) = (unsafe { Object::of(vector) }) else { return -sys::FI_EINVAL };
    let _marks = vector.enter("fi_av_insert");
    let mut inserted = 0;
    for index in 0..count {
        let mut bytes = [0; ADDRESS_BYTES];
        // SAFETY: the user gives `count` addresses, each as long as ours are.
        let from = unsafe { addresses.cast::<u8>().add(index * ADDRESS_BYTES) };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), ADDRESS_BYTES) };
        let name =
            endpoint_of(&bytes).and_then(|endpoint| engine().insert_peer(vector.id, endpoint).ok());
        if !names.is_null() {
            // SAFETY: the user gives room for `count` names.
            let place = unsafe { names.add(index) };
            // SAFETY: as above.
            unsafe { place.write(name.unwrap_or(sys::FI_ADDR_NOTAVAIL)) };
        }
        inserted += c_int::from(name.is_some());
    }
    inserted
}

unsafe extern "C" fn remove(
    vector: *mut sys::fid_av,
    names: *mut sys::fi_addr_t,
    count: usize,
    _flags: u64,
) -> c_int {
    // SAFETY: libfabric gives an address vector of ours.
    let Some(vector) = (unsafe { Object::of(vector) }) else { return -sys::FI_EINVAL };
    let _marks = vector.enter("fi_av_remove");
    let mut outcome = Ok(());
    for index in 0..count {
        // SAFETY: the user gives `count` names.
        let place = unsafe { names.add(index) };
        // SAFETY: as above.
        let name = unsafe { place.read() };
        let removed = engine().remove_peer(vector.id, name);
        outcome = outcome.and(removed);
    }
    answer(outcome)
}

unsafe extern "C" fn look_up(
    vector: *mut sys::fid_av,
    name: sys::fi_addr_t,
    place: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: libfabric gives an address vector of ours.
    let Some(vector) = (unsafe { Object::of(vector) }) else { return -sys::FI_EINVAL };
    let _marks = vector.enter("fi_av_lookup");
    let engine = engine();
    let endpoint = engine.peer_at(vector.id, name);
    let found = endpoint.and_then(|endpoint| Ok((engine.address_of(endpoint)?, endpoint)));
    match found {
        // SAFETY: the user gives room of `len` bytes.
        Ok((nic, endpoint)) => unsafe { hand_out(&address(nic, endpoint), place, len) },
        Err(Errno(code)) => -code,
    }
}

unsafe extern "C" fn text_of(
    _vector: *mut sys::fid_av,
    address: *const c_void,
    buffer: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    // SAFETY: the user gives an address of ours, which is a C string.
    let text = CString::from(unsafe { CStr::from_ptr(address.cast()) });
    let bytes = text.as_bytes_with_nul();
    // SAFETY: the user gives a valid place.
    let room = unsafe { len.replace(bytes.len()) };
    let fits = room.min(bytes.len());
    // SAFETY: the user's buffer is as long as they say.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, fits) };
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_their_endpoint_and_garbage_names_none() {
        for endpoint in [17, u32::MAX.into()].map(Id::of) {
            assert_eq!(endpoint_of(&address(15, endpoint)), Some(endpoint));
        }
        for garbage in [&b"vfabric://x/1\0"[..], b"vfabric://1/\0", b"\0", b"no end"] {
            assert_eq!(endpoint_of(garbage), None);
        }
    }
}
