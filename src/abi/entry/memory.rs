//! Memory: regMr, regMrDmaBuf, deregMr.
//!
//! NCCL's kinds are host and CUDA; DMABUF is a way to name CUDA memory, never a kind. The plugin finds out whether the device supports CUDA
//! memory, and which GPU owns it (a process may register another's).
//!
//! A region of 0 bytes is refused: NCCL never registers one, an empty message needs no region, and not every provider can register 0 bytes,
//! so it is a caller's mistake that would show up later.

use std::ffi::{c_int, c_void};
use std::ptr;

use net_abi::{PTR_CUDA, PTR_HOST, ResultCode};

use crate::abi::guard::guard_comm;
use crate::abi::place::place;
use crate::abi::{argument, object};
use crate::error::{Cause, Noun, Result};
use crate::plugin;
use crate::types::{Dmabuf, UserMemory};

pub(in crate::abi) unsafe extern "C" fn reg_mr(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    region: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's own place, or null.
    guard_comm("regMr", object::raw(comm), || unsafe { register(comm, data, size, kind, region) })
}

/// # Safety
///
/// `region` is null or a place for a memory handle; the memory stays valid until it is deregistered.
pub(in crate::abi) unsafe fn register(
    comm: *mut c_void,
    data: *mut c_void,
    size: impl argument::Bytes,
    kind: c_int,
    region: *mut *mut c_void,
) -> Result<()> {
    // SAFETY: the caller vouches for it.
    let region = unsafe { place(region, ptr::null_mut(), Noun::MemoryHandle) }?;
    let (address, len) = range(data, size)?;
    let comm = object::raw(comm).comm()?;
    let memory = match kind {
        // SAFETY: NCCL keeps what it registers until it has deregistered it.
        PTR_HOST => unsafe { UserMemory::host(address, len) },
        PTR_CUDA => {
            let (device, buffer) = plugin::gpu_of(comm, address, len, false)?;
            // SAFETY: as above; the driver has named the device.
            unsafe { UserMemory::cuda(address, len, device, None) }.in_buffer(buffer)
        }
        _ => return Err(Cause::MemoryKind(kind).into()),
    };
    *region = object::pointer(plugin::register(comm, memory)?);
    Ok(())
}

pub(in crate::abi) unsafe extern "C" fn reg_mr_dma_buf(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    offset: u64,
    descriptor: c_int,
    region: *mut *mut c_void,
) -> ResultCode {
    guard_comm("regMrDmaBuf", object::raw(comm), || {
        // SAFETY: NCCL's place for the memory handle, or null.
        let region = unsafe { place(region, ptr::null_mut(), Noun::MemoryHandle) }?;
        let (address, len) = range(data, size)?;
        if kind != PTR_CUDA {
            return Err(Cause::MemoryKind(kind).into());
        }
        if descriptor < 0 {
            return Err(Cause::NoDmabuf(descriptor).into());
        }
        let comm = object::raw(comm).comm()?;
        let (device, buffer) = plugin::gpu_of(comm, address, len, true)?;
        let dmabuf = Some(Dmabuf { fd: descriptor, offset });
        // SAFETY: NCCL keeps what it registers until it has deregistered it, and made the dmabuf from it; the driver has named the device.
        let memory = unsafe { UserMemory::cuda(address, len, device, dmabuf) }.in_buffer(buffer);
        *region = object::pointer(plugin::register(comm, memory)?);
        Ok(())
    })
}

/// A null memory handle is that of a registration that failed: NCCL marks a connection whose buffers could not be registered as connected,
/// and deregisters all of them at its end (NCCL src/proxy.cc:1620-1628, src/transport/net.cc:1211-1213). An error would end that.
pub(in crate::abi) unsafe extern "C" fn dereg_mr(
    comm: *mut c_void,
    region: *mut c_void,
) -> ResultCode {
    let comm = object::raw(comm);
    guard_comm("deregMr", comm, || match object::raw(region).optional_region()? {
        Some(region) => plugin::deregister(comm.comm()?, region),
        None => Ok(()),
    })
}

fn range(data: *mut c_void, size: impl argument::Bytes) -> Result<(u64, usize)> {
    let len = size.bytes()?;
    if len == 0 {
        return Err(Cause::EmptyRegion.into());
    }
    let address = argument::address(data, len)?;
    if address.checked_add(len as u64).is_none() {
        return Err(Cause::PastAddressSpace { address, len }.into());
    }
    Ok((address, len))
}
