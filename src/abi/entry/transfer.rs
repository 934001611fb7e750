//! Messages: isend, irecv, iflush, test.
//!
//! NCCL's progress thread makes four of these calls for each message, so each locks its endpoint once, first, and holds the lock
//! throughout: after a panic that endpoint fails for good.

use std::ffi::{c_int, c_void};
use std::ptr;

use net_abi::ResultCode;

use crate::abi::argument::{Bytes, GROUP_MAX, Group, Lists};
use crate::abi::guard::guard_locked;
use crate::abi::object;
use crate::abi::place::{is_marked, optional_place, place};
use crate::abi::profiler;
use crate::error::Noun;
use crate::plugin;
use crate::types::{Buffer, Posting, Tested};

pub(in crate::abi) unsafe extern "C" fn isend(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    region: *mut c_void,
    profiler_parent: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's own place, or null.
    unsafe { send(comm, data, size, tag, region, profiler_parent, request) }
}

/// # Safety
///
/// `request` is null or a place for a request; `profiler_parent` is null or what NCCL's profiler callback takes.
#[inline(always)]
pub(in crate::abi) unsafe fn send(
    comm: *mut c_void,
    data: *mut c_void,
    size: impl Bytes,
    tag: c_int,
    region: *mut c_void,
    profiler_parent: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    let comm = object::raw(comm);
    guard_locked("isend", plugin::locked(comm), |endpoint| {
        // SAFETY: the caller vouches for it.
        let request = unsafe { place(request, ptr::null_mut(), Noun::Request) }?;
        let (address, len) = (data.addr() as u64, size.bytes()?);
        let outgoing = Buffer { address, len, tag, region: object::raw(region) };
        let sent = endpoint.isend(comm, outgoing)?;
        *request = object::returned(sent);
        // SAFETY: the caller vouches for it.
        unsafe { profiler::send_begun(endpoint, sent, len, profiler_parent) };
        Ok(())
    })
}

pub(in crate::abi) unsafe extern "C" fn irecv(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    regions: *mut *mut c_void,
    profiler_parents: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // NCCL marks only single receives.
    // SAFETY: NCCL's place for the request, which it has initialised, or null.
    let may_end_early = count == 1 && unsafe { is_marked(request) };
    let lists = Lists { data, sizes, tags, regions };
    let parents = profiler_parents;
    let form = Form { most: GROUP_MAX, cut: false, may_end_early };
    // SAFETY: NCCL's place for the request, or null, and its lists, one entry per receive.
    unsafe { receive(comm, count, form, lists, parents, request) }
}

/// How receives behave, by the table's version and NCCL's mark in the request.
#[derive(Clone, Copy, Debug)]
pub(in crate::abi) struct Form {
    /// The largest group of the version.
    pub(in crate::abi) most: usize,
    /// A message longer than its receive is truncated.
    pub(in crate::abi) cut: bool,
    /// The completion is optional.
    pub(in crate::abi) may_end_early: bool,
}

/// # Safety
///
/// `request` is null or a place for a request, which may hold anything; the lists are null or have `count` entries, and so
/// has `parents`, each of them null or what NCCL's profiler callback takes.
#[inline(always)]
pub(in crate::abi) unsafe fn receive<B: Bytes>(
    comm: *mut c_void,
    count: c_int,
    form: Form,
    lists: Lists<B>,
    parents: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    let comm = object::raw(comm);
    guard_locked("irecv", plugin::locked(comm), |endpoint| {
        // SAFETY: the caller vouches for it.
        let request = unsafe { place(request, ptr::null_mut(), Noun::Request) }?;
        let how = Posting { cut: form.cut, optional: form.may_end_early };
        // SAFETY: as above.
        let posted = match unsafe { lists.only(count) } {
            Some(only) => endpoint.irecv(comm, &[only], how)?,
            None => {
                // SAFETY: as above, one entry per receive.
                let group = unsafe { Group::read(count, form.most, lists) }?;
                group.parsed(|receives| endpoint.irecv(comm, receives, how))?
            }
        };
        *request = object::returned(posted);
        // SAFETY: as above.
        unsafe { profiler::receives_begun(endpoint, posted, count, lists.sizes, parents) };
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
    let comm = object::raw(comm);
    guard_locked("iflush", plugin::locked(comm), |endpoint| {
        // SAFETY: NCCL's place for the request, or null.
        let request = unsafe { place(request, ptr::null_mut(), Noun::Request) }?;
        // SAFETY: NCCL's lists, one entry per receive.
        let group = unsafe { Group::read_untagged(count, data, sizes, regions) }?;
        *request = object::returned(group.parsed(|buffers| endpoint.iflush(comm, buffers))?);
        Ok(())
    })
}

pub(in crate::abi) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> ResultCode {
    let request = object::raw(request);
    guard_locked("test", plugin::locked(request), |endpoint| {
        // SAFETY: NCCL's place for the answer, or null.
        let done = unsafe { place(done, 0, Noun::Answer) };
        // At least one entry is there: a send's only one, or a group's first.
        // SAFETY: NCCL's place for the sizes, or null.
        let first = unsafe { optional_place(sizes, 0) };
        let done = done?;
        match (endpoint.test(request)?, first) {
            (Tested::Pending, _) => return Ok(()),
            (Tested::Done(size), Some(first)) => *first = as_int(size),
            (Tested::Group(count), Some(_)) => {
                // SAFETY: as long as the request's group, which the plugin counted.
                unsafe { write_sizes(sizes, endpoint.sizes(count)) };
            }
            (Tested::Done(_) | Tested::Group(_), None) => {}
        }
        *done = 1;
        profiler::ended(endpoint);
        Ok(())
    })
}

/// Sizes are `int` here in every version: a longer message is reported as the longest.
#[inline]
fn as_int(size: u64) -> c_int {
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
        unsafe { place.write(as_int(*len as u64)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_past_int_are_reported_as_the_largest_int() {
        let mut sizes = [-1; 3];
        // SAFETY: two places of three.
        unsafe { write_sizes(sizes.as_mut_ptr(), &[5, 1 << 31]) };
        assert_eq!(sizes, [5, c_int::MAX, -1]);
    }
}
