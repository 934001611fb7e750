//! Messages: isend, irecv, iflush, test.

use std::ffi::{c_int, c_void};
use std::ptr;

use net_abi::ResultCode;

use crate::abi::argument::{self, Bytes, GROUP_MAX, Group, Lists};
use crate::abi::guard::{guard, plainly};
use crate::abi::object;
use crate::abi::place::{is_marked, optional_place, place};
use crate::plugin::{self, Plain, Plainly, Poll, Unasked};

pub(in crate::abi) unsafe extern "C" fn isend(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    region: *mut c_void,
    _profiler_parent: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's own place, or null.
    unsafe { send(comm, data, size, tag, region, request) }
}

/// # Safety
///
/// `request` is null or a place for a request.
#[inline(always)]
pub(in crate::abi) unsafe fn send(
    comm: *mut c_void,
    data: *mut c_void,
    size: impl Bytes,
    tag: c_int,
    region: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    let outcome = plainly(|| {
        let (false, Ok(len)) = (request.is_null(), size.bytes()) else { return Plainly::Unlocked };
        let region = object::name(region);
        let outgoing = Plain { address: data.addr() as u64, len, tag, region };
        let posted = move |name| {
            // SAFETY: the caller's place, which is not null.
            unsafe { request.write(object::named(name)) };
        };
        plugin::isend_plainly(object::name(comm), &outgoing, posted)
    });
    let unasked = match outcome {
        Some(Plainly::Done) => return ResultCode::SUCCESS,
        Some(Plainly::Otherwise(unasked)) => Some(unasked),
        Some(Plainly::Unlocked) => None,
        // SAFETY: passed on.
        Some(Plainly::Refused(unasked)) => return unsafe { send_refused(unasked, comm, request) },
        None => return ResultCode::INTERNAL_ERROR,
    };
    // SAFETY: passed on.
    unsafe { send_generally(unasked, comm, data, size, tag, region, request) }
}

/// # Safety
///
/// As for `send`.
#[inline(never)]
unsafe fn send_generally(
    unasked: Option<Unasked>,
    comm: *mut c_void,
    data: *mut c_void,
    size: impl Bytes,
    tag: c_int,
    region: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    guard("isend", || {
        // SAFETY: the caller vouches for it.
        let request = unsafe { place(request, ptr::null_mut(), "request") }?;
        let len = size.bytes()?;
        let (address, region) = (argument::address(data, len)?, object::optional_region(region)?);
        let comm = object::sender(comm)?;
        let unasked = unasked.unwrap_or_else(|| plugin::locked(comm));
        *request = object::pointer_or_null(unasked.isend(comm, address, len, tag, region)?);
        Ok(())
    })
}

/// # Safety
///
/// As for `send`; and `request` is not null.
#[cold]
#[inline(never)]
unsafe fn send_refused(
    unasked: Unasked,
    comm: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    guard("isend", || {
        // SAFETY: the caller vouches for it.
        unsafe { place(request, ptr::null_mut(), "request") }?;
        unasked.refused(object::sender(comm)?)
    })
}

pub(in crate::abi) unsafe extern "C" fn irecv(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    regions: *mut *mut c_void,
    _profiler_parents: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's place for the request, which it has initialised, or null.
    if unsafe { is_marked(request) } {
        // SAFETY: NCCL's own arguments.
        return unsafe { receive_marked(comm, count, data, sizes, tags, regions, request) };
    }
    let lists = Lists { data, sizes, tags, regions };
    // SAFETY: NCCL's place for the request, or null, and its lists, one entry per receive.
    unsafe { receive(comm, count, GROUP_MAX, lists, false, request) }
}

/// `most`: the largest group of the version. `cut`: a message longer than its receive is truncated.
///
/// # Safety
///
/// `request` is null or a place for a request, which may hold anything; the lists are null or have `count` entries.
#[inline(always)]
pub(in crate::abi) unsafe fn receive<B: Bytes>(
    comm: *mut c_void,
    count: c_int,
    most: usize,
    lists: Lists<B>,
    cut: bool,
    request: *mut *mut c_void,
) -> ResultCode {
    let outcome = plainly(|| {
        // SAFETY: the caller vouches for it.
        let only = unsafe { lists.only(count) };
        let (Some(only), false) = (only, request.is_null()) else { return Plainly::Unlocked };
        let posted = move |name| {
            // SAFETY: the caller's place, which is not null.
            unsafe { request.write(object::named(name)) };
        };
        plugin::irecv_plainly(object::name(comm), &only, cut, posted)
    });
    let unasked = match outcome {
        Some(Plainly::Done) => return ResultCode::SUCCESS,
        Some(Plainly::Otherwise(unasked) | Plainly::Refused(unasked)) => Some(unasked),
        Some(Plainly::Unlocked) => None,
        None => return ResultCode::INTERNAL_ERROR,
    };
    // SAFETY: passed on.
    unsafe { receive_generally(unasked, comm, count, most, lists, cut, request) }
}

/// # Safety
///
/// As for `receive`.
#[inline(never)]
unsafe fn receive_generally<B: Bytes>(
    unasked: Option<Unasked>,
    comm: *mut c_void,
    count: c_int,
    most: usize,
    lists: Lists<B>,
    cut: bool,
    request: *mut *mut c_void,
) -> ResultCode {
    guard("irecv", || {
        // SAFETY: NCCL's place for the request, or null.
        let request = unsafe { place(request, ptr::null_mut(), "request") }?;
        // SAFETY: NCCL's lists, one entry per receive.
        let group = unsafe { Group::read(count, most, lists) }?;
        let comm = object::receiver(comm)?;
        let posted = group.parsed(|receives| {
            unasked.unwrap_or_else(|| plugin::locked(comm)).irecv(comm, receives, cut)
        })?;
        *request = object::pointer_or_null(posted);
        Ok(())
    })
}

/// A receive whose completion is optional: posted as any other, then given a request that may end early. NCCL marks no
/// groups, and nobody would take the mark there.
///
/// # Safety
///
/// As for `irecv`, and `request` is a request's place.
#[cold]
#[inline(never)]
unsafe fn receive_marked(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    regions: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: the caller vouches for it.
    unsafe { request.write(ptr::null_mut()) };
    // SAFETY: NCCL's own arguments.
    let code = unsafe { irecv(comm, count, data, sizes, tags, regions, ptr::null_mut(), request) };
    // SAFETY: written by `irecv`.
    let posted = unsafe { request.read() };
    if posted.is_null() || count != 1 {
        return code;
    }
    guard("irecv", || {
        let early = plugin::may_end_early(object::request(posted)?)?;
        // SAFETY: the caller vouches for it.
        unsafe { request.write(object::pointer(early)) };
        Ok(())
    })
}

pub(in crate::abi) unsafe extern "C" fn iflush(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    regions: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    guard("iflush", || {
        // SAFETY: NCCL's place for the request, or null.
        let request = unsafe { place(request, ptr::null_mut(), "request") }?;
        // SAFETY: NCCL's lists, one entry per receive.
        let group = unsafe { Group::read_untagged(count, data, sizes, regions) }?;
        let comm = object::receiver(comm)?;
        *request = object::pointer_or_null(group.parsed(|buffers| plugin::iflush(comm, buffers))?);
        Ok(())
    })
}

pub(in crate::abi) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> ResultCode {
    let outcome = plainly(|| {
        if done.is_null() {
            return Plainly::Unlocked;
        }
        let tell = move |size: Option<u64>| {
            // SAFETY: NCCL's place for the sizes, or null: one entry is always there.
            if let Some(first) = unsafe { sizes.as_mut() } {
                *first = size.map_or(0, told);
            }
            // SAFETY: NCCL's place for the answer, which is not null.
            unsafe { done.write(size.is_some().into()) };
        };
        plugin::test_plainly(object::name(request), tell)
    });
    let unasked = match outcome {
        Some(Plainly::Done) => return ResultCode::SUCCESS,
        Some(Plainly::Otherwise(unasked) | Plainly::Refused(unasked)) => Some(unasked),
        Some(Plainly::Unlocked) => None,
        None => return ResultCode::INTERNAL_ERROR,
    };
    // SAFETY: passed on.
    unsafe { test_generally(unasked, request, done, sizes) }
}

/// # Safety
///
/// As for `test`.
#[inline(never)]
unsafe fn test_generally(
    unasked: Option<Unasked>,
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> ResultCode {
    guard("test", || {
        // SAFETY: NCCL's place for the answer, or null.
        let done = unsafe { place(done, 0, "answer") };
        // One entry is always there: a send's only one, or a group's first.
        // SAFETY: NCCL's place for the sizes, or null.
        let first = unsafe { optional_place(sizes, 0) };
        let done = done?;
        let request = object::request(request)?;
        let unasked = unasked.unwrap_or_else(|| plugin::locked(request));
        let mut found = [0; GROUP_MAX];
        if let Poll::Done { sizes: count } = unasked.test(request, &mut found)? {
            if first.is_some() {
                // SAFETY: as long as the request's group, which the plugin counted.
                unsafe { write_sizes(sizes, &found[..(count as usize).min(GROUP_MAX)]) };
            }
            *done = 1;
        }
        Ok(())
    })
}

/// NCCL counts in `int` here, in every version: a longer message than that is told as the longest.
#[inline]
fn told(size: u64) -> c_int {
    c_int::try_from(size).unwrap_or(c_int::MAX)
}

/// # Safety
///
/// `sizes` has a place for each of `found`.
unsafe fn write_sizes(sizes: *mut c_int, found: &[usize]) {
    for (index, len) in found.iter().enumerate() {
        // SAFETY: within what the caller vouches for.
        let place = unsafe { sizes.add(index) };
        // SAFETY: as above.
        unsafe { place.write(told(*len as u64)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_past_int_are_told_as_the_largest_int() {
        let mut sizes = [-1; 3];
        // SAFETY: two places of three.
        unsafe { write_sizes(sizes.as_mut_ptr(), &[5, 1 << 31]) };
        assert_eq!(sizes, [5, c_int::MAX, -1]);
    }
}
