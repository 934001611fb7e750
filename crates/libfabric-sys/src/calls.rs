//! The inline calls of libfabric's headers, in Rust: each is a jump through a table of the object.
//!
//! Every one of them is `unsafe` for the reason its manual page gives: the objects must be open and of the same domain,
//! the pointers must be valid for what the call does with them, and buffers stay until the operation has ended. An empty slot
//! answers `-FI_ENOSYS`, and so does a table that is missing, as psm3 leaves out those of capabilities that an endpoint was not opened for.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::bindings::{
    FI_ENABLE, fi_addr_t, fi_av_attr, fi_cq_attr, fi_cq_err_entry, fi_eq_attr, fi_eq_err_entry,
    fi_info, fi_mr_attr, fi_msg, fi_msg_rma, fi_msg_tagged, fid, fid_av, fid_cq, fid_domain,
    fid_ep, fid_eq, fid_fabric, fid_mr, iovec,
};
use crate::constants::FI_ENOSYS;

/// What an integer of the call's own type says for "not implemented".
trait Absent {
    const ABSENT: Self;
}

impl Absent for c_int {
    const ABSENT: Self = -FI_ENOSYS;
}

impl Absent for isize {
    const ABSENT: Self = -FI_ENOSYS as Self;
}

impl Absent for *const c_char {
    const ABSENT: Self = ptr::null();
}

/// `name(arguments) -> result = object.table, slot(what the slot is given);`
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $name:ident($object:ident: $object_type:ty $(, $argument:ident: $type:ty)* $(,)?) -> $result:ty
            = $($table:ident).+, $slot:ident($($given:expr),* $(,)?);
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the manual page says: open objects, and pointers valid for what the call does with them.
        #[inline]
        pub unsafe fn $name($object: $object_type $(, $argument: $type)*) -> $result {
            // SAFETY: the caller gives an open object.
            let table = unsafe { (*$object).$($table).+ };
            // SAFETY: null, or a table of the object's; 1.17's slots are in that of every later version.
            let table = unsafe { table.as_ref() };
            match table.and_then(|table| table.$slot) {
                // SAFETY: the caller keeps the manual page's rules, and the object comes with its own table.
                Some(call) => unsafe { call($($given),*) },
                None => <$result as Absent>::ABSENT,
            }
        }
    )*};
}

calls! {
    /// Closes any object: fi_close in the manual page of its kind.
    fi_close(object: *mut fid) -> c_int = ops, close(object);
    /// fi_control(3).
    fi_control(object: *mut fid, command: c_int, argument: *mut c_void) -> c_int
        = ops, control(object, command, argument);
    /// Opens a provider's own table of calls: fi_open_ops in fi_fabric(3).
    fi_open_ops(object: *mut fid, name: *const c_char, flags: u64, ops: *mut *mut c_void, context: *mut c_void) -> c_int
        = ops, ops_open(object, name, flags, ops, context);

    /// fi_domain(3).
    fi_domain(fabric: *mut fid_fabric, info: *mut fi_info, domain: *mut *mut fid_domain, context: *mut c_void) -> c_int
        = ops, domain(fabric, info, domain, context);
    /// fi_eq(3).
    fi_eq_open(fabric: *mut fid_fabric, attributes: *mut fi_eq_attr, eq: *mut *mut fid_eq, context: *mut c_void) -> c_int
        = ops, eq_open(fabric, attributes, eq, context);
    /// fi_endpoint(3).
    fi_endpoint(domain: *mut fid_domain, info: *mut fi_info, endpoint: *mut *mut fid_ep, context: *mut c_void) -> c_int
        = ops, endpoint(domain, info, endpoint, context);
    /// fi_cq(3).
    fi_cq_open(domain: *mut fid_domain, attributes: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void) -> c_int
        = ops, cq_open(domain, attributes, cq, context);
    /// fi_av(3).
    fi_av_open(domain: *mut fid_domain, attributes: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void) -> c_int
        = ops, av_open(domain, attributes, av, context);

    /// fi_endpoint(3).
    fi_ep_bind(endpoint: *mut fid_ep, object: *mut fid, flags: u64) -> c_int
        = fid.ops, bind(endpoint.cast(), object, flags);
    /// Makes an endpoint ready for transfers: fi_endpoint(3).
    fi_enable(endpoint: *mut fid_ep) -> c_int
        = fid.ops, control(endpoint.cast(), FI_ENABLE as c_int, ptr::null_mut());
    /// fi_cancel in fi_endpoint(3).
    fi_cancel(endpoint: *mut fid_ep, context: *mut c_void) -> isize
        = ops, cancel(endpoint.cast(), context);
    /// fi_setopt in fi_endpoint(3).
    fi_setopt(endpoint: *mut fid_ep, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int
        = ops, setopt(endpoint.cast(), level, name, value, len);
    /// fi_getopt in fi_endpoint(3).
    fi_getopt(endpoint: *mut fid_ep, level: c_int, name: c_int, value: *mut c_void, len: *mut usize) -> c_int
        = ops, getopt(endpoint.cast(), level, name, value, len);
    /// The address of an enabled endpoint: fi_cm(3).
    fi_getname(endpoint: *mut fid_ep, address: *mut c_void, len: *mut usize) -> c_int
        = cm, getname(endpoint.cast(), address, len);

    /// fi_cq(3).
    fi_cq_read(cq: *mut fid_cq, entries: *mut c_void, count: usize) -> isize = ops, read(cq, entries, count);
    /// fi_cq(3). The library writes as much of the entry as the requested version of the interface has: give it a
    /// [`Grown`](crate::Grown).
    fi_cq_readerr(cq: *mut fid_cq, entry: *mut fi_cq_err_entry, flags: u64) -> isize = ops, readerr(cq, entry, flags);
    /// fi_cq(3).
    fi_cq_strerror(cq: *mut fid_cq, error: c_int, data: *const c_void, text: *mut c_char, len: usize) -> *const c_char
        = ops, strerror(cq, error, data, text, len);

    /// fi_eq(3).
    fi_eq_read(eq: *mut fid_eq, event: *mut u32, entry: *mut c_void, len: usize, flags: u64) -> isize
        = ops, read(eq, event, entry, len, flags);
    /// fi_eq(3).
    fi_eq_readerr(eq: *mut fid_eq, entry: *mut fi_eq_err_entry, flags: u64) -> isize = ops, readerr(eq, entry, flags);
    /// fi_eq(3).
    fi_eq_strerror(eq: *mut fid_eq, error: c_int, data: *const c_void, text: *mut c_char, len: usize) -> *const c_char
        = ops, strerror(eq, error, data, text, len);

    /// fi_av(3).
    fi_av_insert(
        av: *mut fid_av, addresses: *const c_void, count: usize, inserted: *mut fi_addr_t, flags: u64, context: *mut c_void,
    ) -> c_int = ops, insert(av, addresses, count, inserted, flags, context);
    /// fi_av(3).
    fi_av_remove(av: *mut fid_av, addresses: *mut fi_addr_t, count: usize, flags: u64) -> c_int
        = ops, remove(av, addresses, count, flags);
    /// fi_av(3).
    fi_av_lookup(av: *mut fid_av, address: fi_addr_t, out: *mut c_void, len: *mut usize) -> c_int
        = ops, lookup(av, address, out, len);
    /// fi_av(3).
    fi_av_straddr(av: *mut fid_av, address: *const c_void, text: *mut c_char, len: *mut usize) -> *const c_char
        = ops, straddr(av, address, text, len);

    /// fi_mr(3).
    fi_mr_reg(
        domain: *mut fid_domain, buffer: *const c_void, len: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
        mr: *mut *mut fid_mr, context: *mut c_void,
    ) -> c_int = mr, reg(domain.cast(), buffer, len, access, offset, requested_key, flags, mr, context);
    /// fi_mr(3).
    fi_mr_regv(
        domain: *mut fid_domain, iov: *const iovec, count: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
        mr: *mut *mut fid_mr, context: *mut c_void,
    ) -> c_int = mr, regv(domain.cast(), iov, count, access, offset, requested_key, flags, mr, context);
    /// fi_mr(3). Later versions read more of the attributes than 1.17 has: give them a
    /// [`Grown`](crate::Grown).
    fi_mr_regattr(domain: *mut fid_domain, attributes: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int
        = mr, regattr(domain.cast(), attributes, flags, mr);
    /// fi_mr(3).
    fi_mr_bind(mr: *mut fid_mr, object: *mut fid, flags: u64) -> c_int = fid.ops, bind(mr.cast(), object, flags);
    /// fi_mr(3).
    fi_mr_enable(mr: *mut fid_mr) -> c_int = fid.ops, control(mr.cast(), FI_ENABLE as c_int, ptr::null_mut());

    /// fi_msg(3).
    fi_send(
        endpoint: *mut fid_ep, buffer: *const c_void, len: usize, descriptor: *mut c_void, peer: fi_addr_t,
        context: *mut c_void,
    ) -> isize = msg, send(endpoint, buffer, len, descriptor, peer, context);
    /// fi_msg(3).
    fi_sendmsg(endpoint: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize = msg, sendmsg(endpoint, message, flags);
    /// fi_msg(3).
    fi_inject(endpoint: *mut fid_ep, buffer: *const c_void, len: usize, peer: fi_addr_t) -> isize
        = msg, inject(endpoint, buffer, len, peer);
    /// fi_msg(3).
    fi_injectdata(endpoint: *mut fid_ep, buffer: *const c_void, len: usize, data: u64, peer: fi_addr_t) -> isize
        = msg, injectdata(endpoint, buffer, len, data, peer);
    /// fi_msg(3).
    fi_recv(
        endpoint: *mut fid_ep, buffer: *mut c_void, len: usize, descriptor: *mut c_void, peer: fi_addr_t,
        context: *mut c_void,
    ) -> isize = msg, recv(endpoint, buffer, len, descriptor, peer, context);
    /// fi_msg(3).
    fi_recvmsg(endpoint: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize = msg, recvmsg(endpoint, message, flags);

    /// fi_tagged(3).
    fi_tsend(
        endpoint: *mut fid_ep, buffer: *const c_void, len: usize, descriptor: *mut c_void, peer: fi_addr_t, tag: u64,
        context: *mut c_void,
    ) -> isize = tagged, send(endpoint, buffer, len, descriptor, peer, tag, context);
    /// fi_tagged(3).
    fi_tsendv(
        endpoint: *mut fid_ep, pieces: *const iovec, descriptors: *mut *mut c_void, count: usize, peer: fi_addr_t, tag: u64,
        context: *mut c_void,
    ) -> isize = tagged, sendv(endpoint, pieces, descriptors, count, peer, tag, context);
    /// fi_tagged(3).
    fi_tsendmsg(endpoint: *mut fid_ep, message: *const fi_msg_tagged, flags: u64) -> isize
        = tagged, sendmsg(endpoint, message, flags);
    /// fi_tagged(3).
    fi_tsenddata(
        endpoint: *mut fid_ep, buffer: *const c_void, len: usize, descriptor: *mut c_void, data: u64, peer: fi_addr_t, tag: u64,
        context: *mut c_void,
    ) -> isize = tagged, senddata(endpoint, buffer, len, descriptor, data, peer, tag, context);
    /// fi_tagged(3).
    fi_tinject(endpoint: *mut fid_ep, buffer: *const c_void, len: usize, peer: fi_addr_t, tag: u64) -> isize
        = tagged, inject(endpoint, buffer, len, peer, tag);
    /// fi_tagged(3).
    fi_tinjectdata(
        endpoint: *mut fid_ep, buffer: *const c_void, len: usize, data: u64, peer: fi_addr_t, tag: u64,
    ) -> isize = tagged, injectdata(endpoint, buffer, len, data, peer, tag);
    /// fi_tagged(3).
    fi_trecv(
        endpoint: *mut fid_ep, buffer: *mut c_void, len: usize, descriptor: *mut c_void, peer: fi_addr_t, tag: u64,
        ignore: u64, context: *mut c_void,
    ) -> isize = tagged, recv(endpoint, buffer, len, descriptor, peer, tag, ignore, context);
    /// fi_tagged(3).
    fi_trecvv(
        endpoint: *mut fid_ep, pieces: *const iovec, descriptors: *mut *mut c_void, count: usize, peer: fi_addr_t, tag: u64,
        ignore: u64, context: *mut c_void,
    ) -> isize = tagged, recvv(endpoint, pieces, descriptors, count, peer, tag, ignore, context);

    /// fi_rma(3).
    fi_read(
        endpoint: *mut fid_ep, buffer: *mut c_void, len: usize, descriptor: *mut c_void, peer: fi_addr_t, address: u64, key: u64,
        context: *mut c_void,
    ) -> isize = rma, read(endpoint, buffer, len, descriptor, peer, address, key, context);
    /// fi_rma(3).
    fi_readv(
        endpoint: *mut fid_ep, pieces: *const iovec, descriptors: *mut *mut c_void, count: usize, peer: fi_addr_t, address: u64,
        key: u64, context: *mut c_void,
    ) -> isize = rma, readv(endpoint, pieces, descriptors, count, peer, address, key, context);
    /// fi_rma(3).
    fi_readmsg(endpoint: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize
        = rma, readmsg(endpoint, message, flags);
    /// fi_rma(3).
    fi_write(
        endpoint: *mut fid_ep, buffer: *const c_void, len: usize, descriptor: *mut c_void, peer: fi_addr_t, address: u64,
        key: u64, context: *mut c_void,
    ) -> isize = rma, write(endpoint, buffer, len, descriptor, peer, address, key, context);
    /// fi_rma(3).
    fi_writev(
        endpoint: *mut fid_ep, pieces: *const iovec, descriptors: *mut *mut c_void, count: usize, peer: fi_addr_t, address: u64,
        key: u64, context: *mut c_void,
    ) -> isize = rma, writev(endpoint, pieces, descriptors, count, peer, address, key, context);
    /// fi_rma(3).
    fi_writemsg(endpoint: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize
        = rma, writemsg(endpoint, message, flags);
    /// fi_rma(3).
    fi_writedata(
        endpoint: *mut fid_ep, buffer: *const c_void, len: usize, descriptor: *mut c_void, data: u64, peer: fi_addr_t,
        address: u64, key: u64, context: *mut c_void,
    ) -> isize = rma, writedata(endpoint, buffer, len, descriptor, data, peer, address, key, context);
    /// fi_rma(3).
    fi_inject_write(
        endpoint: *mut fid_ep, buffer: *const c_void, len: usize, peer: fi_addr_t, address: u64, key: u64,
    ) -> isize = rma, inject(endpoint, buffer, len, peer, address, key);
    /// fi_rma(3).
    fi_inject_writedata(
        endpoint: *mut fid_ep, buffer: *const c_void, len: usize, data: u64, peer: fi_addr_t, address: u64, key: u64,
    ) -> isize = rma, injectdata(endpoint, buffer, len, data, peer, address, key);
}

/// The descriptor of an enabled region: fi_mr(3).
///
/// # Safety
///
/// The region must be open.
#[inline]
pub unsafe fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
    // SAFETY: the caller gives an open region.
    unsafe { (*mr).mem_desc }
}

/// The key of an enabled region: fi_mr(3).
///
/// # Safety
///
/// The region must be open.
#[inline]
pub unsafe fn fi_mr_key(mr: *mut fid_mr) -> u64 {
    // SAFETY: the caller gives an open region.
    unsafe { (*mr).key }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_by_a_table_that_is_missing_is_not_implemented() {
        let mut endpoint = fid_ep::default();
        let (endpoint, none) = (&raw mut endpoint, ptr::null_mut());
        // SAFETY: an endpoint without tables: nothing looks at the other arguments.
        let sent = unsafe { fi_send(endpoint, none, 0, none, 0, none) };
        // SAFETY: as above.
        let written = unsafe { fi_write(endpoint, none, 0, none, 0, 0, 0, none) };
        // SAFETY: as above.
        let tagged = unsafe { fi_tsend(endpoint, none, 0, none, 0, 0, none) };
        assert_eq!([sent, written, tagged], [isize::ABSENT; 3]);
    }
}
