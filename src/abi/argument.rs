//! Parses NCCL's numbers and arrays into checked types, once.

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use net_abi::CommConfig;

use crate::abi::object;
use crate::error::{Cause, List, Result};
use crate::object_id::RawId;
use crate::plugin::TrafficClass;
use crate::types::Buffer;
use crate::types::HANDLE_BYTES;

/// Largest group of receives in any version.
pub(super) const GROUP_MAX: usize = 8;

/// A number of bytes, as NCCL's API has it: `int` up to v8, `size_t` since.
pub(super) trait Bytes: Copy {
    fn bytes(self) -> Result<usize>;
}

impl Bytes for c_int {
    fn bytes(self) -> Result<usize> {
        usize::try_from(self).map_err(|_| Cause::NegativeSize(self).into())
    }
}

impl Bytes for usize {
    fn bytes(self) -> Result<usize> {
        Ok(self)
    }
}

pub(super) fn device(index: c_int) -> Result<usize> {
    usize::try_from(index).map_err(|_| Cause::NoDevice(index.into()).into())
}

/// Addresses are numbers here: the region decides which bytes may be accessed.
#[inline]
pub(super) fn address(data: *mut c_void, len: usize) -> Result<u64> {
    if data.is_null() && len > 0 {
        return Err(Cause::NullAddress { len }.into());
    }
    Ok(data.addr() as u64)
}

/// The handle that `listen` wrote. Between calls of connect it holds the connect's id.
///
/// # Safety
///
/// Null, or valid for reads and writes of 128 bytes for the length of the call.
pub(super) unsafe fn handle<'a>(pointer: *mut c_void) -> Result<&'a mut [u8; HANDLE_BYTES]> {
    // SAFETY: the caller vouches for it.
    unsafe { pointer.cast::<[u8; HANDLE_BYTES]>().as_mut() }.ok_or_else(|| Cause::NoHandle.into())
}

/// The arrays of `irecv`, as NCCL passed them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lists<B> {
    pub(super) data: *mut *mut c_void,
    pub(super) sizes: *mut B,
    pub(super) tags: *mut c_int,
    pub(super) regions: *mut *mut c_void,
}

impl<B: Bytes> Lists<B> {
    /// The receive of a group of one, the common case, without checks of its ids. None for other groups or null pointers.
    ///
    /// # Safety
    ///
    /// Each pointer is null, or valid for reads of `count` entries.
    #[inline(always)]
    pub(super) unsafe fn only(&self, count: c_int) -> Option<Buffer> {
        if count != 1 {
            return None;
        }
        // SAFETY: the caller vouches for one entry, or it is null.
        let address = unsafe { self.data.as_ref() }?.addr() as u64;
        // SAFETY: as above.
        let len = unsafe { self.sizes.as_ref() }?.bytes().ok()?;
        // SAFETY: as above.
        let tag = *unsafe { self.tags.as_ref() }?;
        // SAFETY: as above.
        let region = object::raw(*unsafe { self.regions.as_ref() }?);
        Some(Buffer { address, len, tag, region })
    }
}

/// The arrays of `irecv` and `iflush`, one entry per sub-receive.
#[derive(Debug)]
pub(super) struct Group<'a, B> {
    data: &'a [*mut c_void],
    sizes: &'a [B],
    /// Empty for a flush.
    tags: &'a [c_int],
    regions: &'a [*mut c_void],
}

impl<'a, B: Bytes> Group<'a, B> {
    /// # Safety
    ///
    /// Each pointer is null, or valid for reads of `count` entries for the length of the call.
    pub(super) unsafe fn read(count: c_int, most: usize, lists: Lists<B>) -> Result<Self> {
        let Lists { data, sizes, tags, regions } = lists;
        let count = group_len(count, most)?;
        Ok(Self {
            // SAFETY: passed on; the count has been checked.
            data: unsafe { list(data, count, List::Addresses) }?,
            // SAFETY: as above.
            sizes: unsafe { list(sizes, count, List::Sizes) }?,
            // SAFETY: as above.
            tags: unsafe { list(tags, count, List::Tags) }?,
            // SAFETY: as above.
            regions: unsafe { list(regions, count, List::MemoryHandles) }?,
        })
    }

    /// # Safety
    ///
    /// As for `read`.
    pub(super) unsafe fn read_untagged(
        count: c_int,
        data: *mut *mut c_void,
        sizes: *mut B,
        regions: *mut *mut c_void,
    ) -> Result<Self> {
        let count = group_len(count, GROUP_MAX)?;
        Ok(Self {
            // SAFETY: passed on; the count has been checked.
            data: unsafe { list(data, count, List::Addresses) }?,
            // SAFETY: as above.
            sizes: unsafe { list(sizes, count, List::Sizes) }?,
            tags: &[],
            // SAFETY: as above.
            regions: unsafe { list(regions, count, List::MemoryHandles) }?,
        })
    }

    /// Passes the buffers to `body` on the stack: this path allocates nothing.
    pub(super) fn parsed<T>(&self, body: impl FnOnce(&[Buffer]) -> Result<T>) -> Result<T> {
        let mut buffers = [Buffer { address: 0, len: 0, tag: 0, region: RawId::new(0) }; GROUP_MAX];
        let buffers = &mut buffers[..self.data.len()];
        for (index, buffer) in buffers.iter_mut().enumerate() {
            *buffer = Buffer {
                address: self.data[index].addr() as u64,
                len: self.sizes[index].bytes()?,
                tag: self.tags.get(index).copied().unwrap_or(0),
                region: object::raw(self.regions[index]),
            };
        }
        body(buffers)
    }
}

fn group_len(count: c_int, most: usize) -> Result<usize> {
    match usize::try_from(count) {
        Ok(len) if len >= 1 && len <= most => Ok(len),
        _ => Err(Cause::GroupOfVersion { count, most }.into()),
    }
}

/// # Safety
///
/// Null, or valid for reads of `count` entries for the length of the call.
unsafe fn list<'a, T>(first: *mut T, count: usize, list: List) -> Result<&'a [T]> {
    if first.is_null() {
        return Err(Cause::NoList(list).into());
    }
    // SAFETY: not null, so the caller vouches for it.
    Ok(unsafe { slice::from_raw_parts(first, count) })
}

/// The traffic class of a communicator. NCCL passes -1 where the user has set none, else the user's value: the byte of the IP header, as
/// in NCCL's own InfiniBand transport. A value above a byte is ignored, and logged once: in v10 each poll of connect passes it again.
///
/// # Safety
///
/// `config` is null or NCCL's.
pub(super) unsafe fn traffic_class(config: *const CommConfig) -> Option<TrafficClass> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    // SAFETY: the caller vouches for it.
    let value = unsafe { config.as_ref() }?.traffic_class;
    if value < 0 {
        return None;
    }
    let class = u8::try_from(value).ok().map(TrafficClass::of_byte);
    if class.is_none() && !WARNED.swap(true, Ordering::Relaxed) {
        log::warn!(
            "traffic class {value} is ignored: it is more than a byte; NCCL_IB_TC and ncclConfig_t.trafficClass take 0 to 255"
        );
    }
    class
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::object_id::{ObjectId, ObjectKind};

    #[test]
    fn a_group_is_read_entry_by_entry() {
        let region = ObjectId::new(ObjectKind::Region, 1, 2, 3, 0);
        let mut data = [ptr::without_provenance_mut(64), ptr::null_mut()];
        let mut sizes = [7, 0];
        let mut tags = [5, -9];
        let mut regions = [object::pointer(region), ptr::null_mut()];
        let (data, sizes, tags, regions) =
            (data.as_mut_ptr(), sizes.as_mut_ptr(), tags.as_mut_ptr(), regions.as_mut_ptr());
        // SAFETY: two entries each.
        let group = unsafe { Group::<c_int>::read(2, 8, Lists { data, sizes, tags, regions }) }
            .expect("well-formed");
        group
            .parsed(|receives| {
                assert_eq!(receives.len(), 2);
                assert_eq!((receives[0].address, receives[0].len, receives[0].tag), (64, 7, 5));
                assert_eq!(receives[0].region, region.raw());
                assert_eq!((receives[1].len, receives[1].tag), (0, -9));
                assert_eq!(receives[1].region.optional_region(), Ok(None));
                Ok(())
            })
            .expect("well-formed");
    }

    #[test]
    fn a_group_has_one_to_most_members() {
        for (count, most, fits) in [
            (0, 8, false),
            (-1, 8, false),
            (1, 1, true),
            (2, 1, false),
            (8, 8, true),
            (9, 8, false),
        ] {
            assert_eq!(group_len(count, most).is_ok(), fits, "{count} of {most}");
        }
    }

    #[test]
    fn negative_sizes_and_null_buffers_are_refused() {
        assert_eq!((-1).bytes().expect_err("negative"), Cause::NegativeSize(-1).into());
        assert_eq!(c_int::MAX.bytes(), Ok(0x7fff_ffff));
        assert_eq!(usize::MAX.bytes(), Ok(usize::MAX));
        assert_eq!(address(ptr::null_mut(), 0), Ok(0));
        assert!(address(ptr::null_mut(), 1).is_err());
        assert!(device(-1).is_err());
    }
}
