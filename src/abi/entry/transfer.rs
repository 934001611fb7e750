//! Messages: isend, irecv, iflush, test.

use std::ffi::{c_int, c_void};
use std::ptr;

use net_abi::ResultCode;

use crate::abi::argument::{self, Bytes, GROUP_MAX, Group, Lists};
use crate::abi::guard::{guard, plainly};
use crate::abi::object;
use crate::abi::place::{is_marked, missing, optional_place, place};
use crate::error::Noun;
use crate::handle::Name;
use crate::plugin::{self, Looked, Plain, Plainly, Poll, Tested, Unasked};

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
    if request.is_null() {
        return nowhere_to_put::<true>();
    }
    let Ok(len) = size.bytes() else {
        // SAFETY: passed on.
        return unsafe { send_generally(None, comm, data, size, tag, region, request) };
    };
    if len > INJECTED_MOST {
        // SAFETY: passed on, and the place for the request is not null.
        unsafe { send_at_once::<true>(comm, data, len, tag, region, request) }
    } else {
        // SAFETY: as above.
        unsafe { send_at_once::<false>(comm, data, len, tag, region, request) }
    }
}

/// Messages longer than this are taken for long before anything is looked up: few providers inject longer ones. Those that do get
/// the form for others.
const INJECTED_MOST: usize = 256;

/// A message in the form for those that are `LONG`, or for short ones. By C's convention, which nothing unwinds through: so
/// `isend` is a jump here, and keeps nothing.
///
/// # Safety
///
/// As for `send`; and `request` is not null.
#[inline(never)]
unsafe extern "C" fn send_at_once<const LONG: bool>(
    comm: *mut c_void,
    data: *mut c_void,
    len: usize,
    tag: c_int,
    region: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: the caller's place, which is not null.
    let posted = unsafe { named_in(request) };
    let outgoing = Plain { address: data.addr() as u64, len, tag, region: object::name(region) };
    let mut endpoint = plugin::locked(object::name(comm));
    let outcome = plainly(|| {
        if LONG {
            endpoint.isend_long(object::name(comm), outgoing, posted)
        } else {
            endpoint.isend_shortly(object::name(comm), outgoing, posted)
        }
    });
    // SAFETY: passed on.
    let otherwise =
        |endpoint| unsafe { send_otherwise(comm, data, len, tag, region, request, endpoint) };
    // SAFETY: passed on.
    unsafe { sent(outcome, endpoint, comm, request, otherwise) }
}

/// # Safety
///
/// As for `send`; and `request` is not null.
#[inline(never)]
unsafe fn send_otherwise(
    comm: *mut c_void,
    data: *mut c_void,
    len: usize,
    tag: c_int,
    region: *mut c_void,
    request: *mut *mut c_void,
    mut endpoint: Unasked,
) -> ResultCode {
    // SAFETY: the caller's place, which is not null.
    let posted = unsafe { named_in(request) };
    let outgoing = Plain { address: data.addr() as u64, len, tag, region: object::name(region) };
    let outcome = plainly(|| endpoint.isend_plainly(object::name(comm), outgoing, posted));
    let otherwise = |endpoint| {
        // SAFETY: passed on.
        unsafe { send_generally(Some(endpoint), comm, data, len, tag, region, request) }
    };
    // SAFETY: passed on.
    unsafe { sent(outcome, endpoint, comm, request, otherwise) }
}

/// Answers a send that was tried in one of its forms: what that left alone goes the way `otherwise`.
///
/// # Safety
///
/// As for `send`; and `request` is not null.
#[inline(always)]
unsafe fn sent(
    outcome: Option<Plainly>,
    endpoint: Unasked,
    comm: *mut c_void,
    request: *mut *mut c_void,
    otherwise: impl FnOnce(Unasked) -> ResultCode,
) -> ResultCode {
    match outcome {
        Some(Plainly::Done | Plainly::Due) => ResultCode::SUCCESS,
        // SAFETY: passed on.
        Some(Plainly::Refused) => unsafe { send_refused(endpoint, comm, request) },
        Some(Plainly::Otherwise) => otherwise(endpoint),
        None => ResultCode::INTERNAL_ERROR,
    }
}

/// Writes the name of a request to where NCCL wants it.
///
/// # Safety
///
/// `request` is a place for a request.
#[inline(always)]
unsafe fn named_in(request: *mut *mut c_void) -> impl FnOnce(Name) {
    move |name| {
        // SAFETY: the caller vouches for it.
        unsafe { request.write(object::named(name)) };
    }
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
        let request = unsafe { place(request, ptr::null_mut(), Noun::Request) }?;
        let len = size.bytes()?;
        let (address, region) = (argument::address(data, len)?, object::optional_region(region)?);
        let comm = object::sender(comm)?;
        let unasked = unasked.unwrap_or_else(|| plugin::locked(comm.name()));
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
        unsafe { place(request, ptr::null_mut(), Noun::Request) }?;
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
    if request.is_null() {
        return nowhere_to_put::<false>();
    }
    if count != 1 {
        let lists = Lists { data, sizes, tags, regions };
        // SAFETY: NCCL's own arguments. Groups are not marked, and nobody looks whether they are.
        return unsafe { receive_generally(None, comm, count, GROUP_MAX, lists, false, request) };
    }
    // SAFETY: NCCL's place for the request, which it has initialised.
    if unsafe { is_marked(request) } {
        // SAFETY: NCCL's own arguments.
        return unsafe { receive_marked(comm, count, data, sizes, tags, regions, request) };
    }
    let lists = Lists { data, sizes, tags, regions };
    // SAFETY: NCCL's place for the request, or null, and its lists, one entry per receive.
    unsafe { receive(comm, count, GROUP_MAX, lists, false, request) }
}

/// By C's convention, as `send_at_once`.
#[cold]
#[inline(never)]
extern "C" fn nowhere_to_put<const SENDS: bool>() -> ResultCode {
    guard(if SENDS { "isend" } else { "irecv" }, || Err(missing(Noun::Request)))
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
    // SAFETY: the caller vouches for it.
    let only = unsafe { lists.only(count) };
    let (Some(only), false) = (only, request.is_null()) else {
        // SAFETY: passed on.
        return unsafe { receive_generally(None, comm, count, most, lists, cut, request) };
    };
    // SAFETY: the caller's place, which is not null.
    let posted = unsafe { named_in(request) };
    let mut endpoint = plugin::locked(object::name(comm));
    match plainly(|| endpoint.irecv_shortly(object::name(comm), only, cut, posted)) {
        Some(Plainly::Done) => ResultCode::SUCCESS,
        Some(Plainly::Due) => receive_posted(endpoint, comm),
        Some(Plainly::Otherwise | Plainly::Refused) => {
            let Plain { address, len, tag, region } = only;
            // SAFETY: passed on, and the place for the request is not null.
            unsafe { receive_one(endpoint, comm, (address, len), (tag, region), cut, request) }
        }
        None => ResultCode::INTERNAL_ERROR,
    }
}

/// A group of one, read already.
///
/// # Safety
///
/// As for `receive`; and `request` is not null.
#[inline(never)]
unsafe fn receive_one(
    mut endpoint: Unasked,
    comm: *mut c_void,
    (address, mut len): (u64, usize),
    (mut tag, region): (c_int, Name),
    cut: bool,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: the caller's place, which is not null.
    let posted = unsafe { named_in(request) };
    let only = Plain { address, len, tag, region };
    match plainly(|| endpoint.irecv_plainly(object::name(comm), only, cut, posted)) {
        Some(Plainly::Done) => return ResultCode::SUCCESS,
        Some(Plainly::Due) => return receive_posted(endpoint, comm),
        Some(Plainly::Otherwise | Plainly::Refused) => {}
        None => return ResultCode::INTERNAL_ERROR,
    }
    let (mut data, mut region) = (object::numbered(address), object::named(region));
    let lists = Lists {
        data: &raw mut data,
        sizes: &raw mut len,
        tags: &raw mut tag,
        regions: &raw mut region,
    };
    // SAFETY: passed on, and the lists have one entry.
    unsafe { receive_generally(Some(endpoint), comm, 1, GROUP_MAX, lists, cut, request) }
}

/// The first receives of several: adverts travel now, or with the next turn.
#[inline(never)]
fn receive_posted(mut endpoint: Unasked, comm: *mut c_void) -> ResultCode {
    let outcome = plainly(|| endpoint.receive_posted(object::name(comm)));
    outcome.map_or(ResultCode::INTERNAL_ERROR, |()| ResultCode::SUCCESS)
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
        let request = unsafe { place(request, ptr::null_mut(), Noun::Request) }?;
        // SAFETY: NCCL's lists, one entry per receive.
        let group = unsafe { Group::read(count, most, lists) }?;
        let comm = object::receiver(comm)?;
        let posted = group.parsed(|receives| {
            unasked.unwrap_or_else(|| plugin::locked(comm.name())).irecv(comm, receives, cut)
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
    if posted.is_null() {
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
        let request = unsafe { place(request, ptr::null_mut(), Noun::Request) }?;
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
    if done.is_null() {
        // SAFETY: passed on.
        return unsafe { test_generally(request, done, sizes, None) };
    }
    // Whoever would wait for it here had to keep everything meanwhile.
    let Some(mut endpoint) = plugin::try_locked(object::name(request)) else {
        // SAFETY: passed on.
        return unsafe { test_generally(request, done, sizes, None) };
    };
    match plainly(|| endpoint.test_plainly(object::name(request))) {
        Some(Looked::Done(size)) => {
            // SAFETY: NCCL's own places: one entry for the sizes is always there.
            unsafe { write_size(done, sizes, Some(size)) };
            ResultCode::SUCCESS
        }
        // SAFETY: passed on, and the place for the answer is not null.
        Some(Looked::AwaitsParts) => unsafe { wait_for_parts(request, done, sizes, endpoint) },
        // SAFETY: as above.
        Some(Looked::Unknown) => unsafe { test_in_a_turn(request, done, sizes, endpoint) },
        None => ResultCode::INTERNAL_ERROR,
    }
}

/// By C's convention, as [`test_in_a_turn`], so that `test` keeps nothing over a call.
///
/// # Safety
///
/// As for `test`; and `done` is not null.
#[inline(never)]
#[expect(
    improper_ctypes_definitions,
    reason = "Rust alone calls it: what is asked for is that nothing unwinds"
)]
unsafe extern "C" fn wait_for_parts(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
    mut endpoint: Unasked,
) -> ResultCode {
    let tested = plainly(|| endpoint.wait_for_parts(object::name(request)));
    // SAFETY: passed on.
    unsafe { tested_in_a_turn(tested, request, done, sizes, endpoint) }
}

/// # Safety
///
/// As for `test`; and `done` is not null.
#[inline(never)]
#[expect(
    improper_ctypes_definitions,
    reason = "Rust alone calls it: what is asked for is that nothing unwinds"
)]
unsafe extern "C" fn test_in_a_turn(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
    mut endpoint: Unasked,
) -> ResultCode {
    let tested = plainly(|| endpoint.test_in_a_turn(object::name(request)));
    // SAFETY: passed on.
    unsafe { tested_in_a_turn(tested, request, done, sizes, endpoint) }
}

/// Tells what a turn of progress has brought.
///
/// # Safety
///
/// As for `test`; and `done` is not null.
#[inline(always)]
unsafe fn tested_in_a_turn(
    tested: Option<Tested>,
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
    endpoint: Unasked,
) -> ResultCode {
    let size = match tested {
        Some(Tested::Done(size)) => Some(size),
        Some(Tested::Pending) => None,
        Some(Tested::Otherwise) => {
            // SAFETY: passed on.
            return unsafe { test_generally(request, done, sizes, Some(endpoint)) };
        }
        None => return ResultCode::INTERNAL_ERROR,
    };
    // SAFETY: NCCL's own places: one entry for the sizes is always there.
    unsafe { write_size(done, sizes, size) };
    ResultCode::SUCCESS
}

/// Answers a test of one message: its size, or "not yet".
///
/// # Safety
///
/// `done` is NCCL's place for the answer, and `sizes` null or one for a size.
#[inline(always)]
unsafe fn write_size(done: *mut c_int, sizes: *mut c_int, size: Option<u64>) {
    if !sizes.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { sizes.write(size.map_or(0, told)) };
    }
    // SAFETY: as above.
    unsafe { done.write(size.is_some().into()) };
}

/// # Safety
///
/// As for `test`.
#[inline(never)]
unsafe fn test_generally(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
    unasked: Option<Unasked>,
) -> ResultCode {
    guard("test", || {
        // SAFETY: NCCL's place for the answer, or null.
        let done = unsafe { place(done, 0, Noun::Answer) };
        // One entry is always there: a send's only one, or a group's first.
        // SAFETY: NCCL's place for the sizes, or null.
        let first = unsafe { optional_place(sizes, 0) };
        let done = done?;
        let request = object::request(request)?;
        let unasked = unasked.unwrap_or_else(|| plugin::locked(request.name()));
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
