//! Messages: isend, irecv, iflush, test.

use std::ffi::{c_int, c_void};
use std::ptr;

use net_abi::ResultCode;

use crate::abi::argument::{self, Bytes, GROUP_MAX, Group};
use crate::abi::guard::guard;
use crate::abi::object;
use crate::abi::place::{optional_place, place};
use crate::error::Result;
use crate::plugin::{self, Poll};

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
    guard("isend", || unsafe { send(comm, data, size, tag, region, request) })
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
) -> Result<()> {
    // SAFETY: the caller vouches for it.
    let request = unsafe { place(request, ptr::null_mut(), "request") }?;
    let len = size.bytes()?;
    let address = argument::address(data, len)?;
    let region = object::optional_region(region)?;
    *request =
        object::pointer_or_null(plugin::isend(object::sender(comm)?, address, len, tag, region)?);
    Ok(())
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
    guard("irecv", || {
        // The place may hold 1, "completion is optional": a hint that is safe to ignore.
        // SAFETY: NCCL's place for the request, or null.
        let request = unsafe { place(request, ptr::null_mut(), "request") }?;
        // SAFETY: NCCL's lists, one entry per receive.
        let group = unsafe { Group::read(count, GROUP_MAX, data, sizes, tags, regions) }?;
        *request = receive(comm, &group, false)?;
        Ok(())
    })
}

/// `cut`: a message longer than its receive is truncated.
#[inline(always)]
pub(in crate::abi) fn receive<B: Bytes>(
    comm: *mut c_void,
    group: &Group<'_, B>,
    cut: bool,
) -> Result<*mut c_void> {
    let comm = object::receiver(comm)?;
    group.parsed(|receives| plugin::irecv(comm, receives, cut)).map(object::pointer_or_null)
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
    guard("test", || {
        // SAFETY: NCCL's place for the answer, or null.
        let done = unsafe { place(done, 0, "answer") };
        // One entry is always there: a send's only one, or a group's first.
        // SAFETY: NCCL's place for the sizes, or null.
        let first = unsafe { optional_place(sizes, 0) };
        let done = done?;
        let mut found = [0; GROUP_MAX];
        if let Poll::Done { sizes: count } = plugin::test(object::request(request)?, &mut found)? {
            if first.is_some() {
                // SAFETY: as long as the request's group, which the plugin counted.
                unsafe { write_sizes(sizes, &found[..(count as usize).min(GROUP_MAX)]) };
            }
            *done = 1;
        }
        Ok(())
    })
}

/// # Safety
///
/// `sizes` has a place for each of `found`.
unsafe fn write_sizes(sizes: *mut c_int, found: &[usize]) {
    for (index, len) in found.iter().enumerate() {
        // SAFETY: within what the caller vouches for.
        let place = unsafe { sizes.add(index) };
        // NCCL counts in `int` here, in every version: a longer message than that is told as the longest.
        // SAFETY: as above.
        unsafe { place.write(c_int::try_from(*len).unwrap_or(c_int::MAX)) };
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
