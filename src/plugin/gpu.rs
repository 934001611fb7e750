//! GPU memory: whether a device's rails access it directly, and if not why; and which GPU owns an address.
//!
//! Provider and NICs are chosen without regard to GPU memory. For the chosen rails libfabric is queried again with FI_HMEM: if not all of
//! them have it, the device uses host memory only.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use fabric::{Info, Library, NO_CUDA_CALLS, Query, Version, core_provider};
use gpu::{Driver, Owner};

use super::config::{Config, DeviceMemory};
use super::plan::{DevicePlan, GpuMemory, Obstacle, RailPlan};
use super::provider::{FI_PROTO_CXI, FI_PROTO_EFA, open_with, refuses_option};
use crate::error::{Cause, Error, Result};
use crate::label::Label;
use crate::types::{Protocol, gpu_number};

/// Finds out how each of `devices` accesses GPU memory. Rails that access it directly get the fi_info with FI_HMEM.
pub(super) fn equip(library: &Arc<Library>, config: &Config, devices: &mut [DevicePlan]) {
    for device in devices.iter_mut() {
        let found = match device.protocol {
            Protocol::Rdma => direct(library, config, &device.rails),
            Protocol::Sendrecv => Err(Obstacle::NoWrites),
        };
        match found {
            Ok((infos, dmabuf)) => {
                for (rail, info) in device.rails.iter_mut().zip(infos) {
                    rail.info = info;
                }
                device.gpu_memory = GpuMemory::Direct { dmabuf };
            }
            Err(obstacle) => device.gpu_memory = GpuMemory::ByHost(obstacle),
        }
    }
    announce(config, devices);
}

/// The fi_info of all rails with FI_HMEM, if all have it, and whether DMA-BUFs can be registered.
fn direct(
    library: &Arc<Library>,
    config: &Config,
    rails: &[RailPlan],
) -> std::result::Result<(Vec<Info>, bool), Obstacle> {
    if config.device_memory == DeviceMemory::Off {
        return Err(Obstacle::TurnedOff);
    }
    let driver = Driver::get().map_err(|reason| Obstacle::NoDriver(reason.to_string()))?;
    let infos = rails.iter().map(|rail| with_gpu_memory(library, config, rail));
    let infos: Vec<_> = infos.collect::<std::result::Result<_, _>>()?;
    let by_driver = (0..driver.devices()).any(|device| driver.exports_dmabuf(device));
    let by_library = library.api() >= Version::new(1, 20);
    let dmabuf = by_driver && by_library && infos.iter().all(supports_dmabuf);
    Ok((infos, dmabuf))
}

/// A rail's fi_info with FI_HMEM.
fn with_gpu_memory(
    library: &Arc<Library>,
    config: &Config,
    rail: &RailPlan,
) -> std::result::Result<Info, Obstacle> {
    let (interface, provider) = (rail.interface.clone(), rail.info.provider().to_owned());
    let query = Query {
        provider: Some(provider.clone()),
        basic_regions: config.basic_regions,
        device_memory: true,
        ..Query::default()
    };
    let here = |query: &Query| {
        let found = library.find(query).unwrap_or_default();
        found.into_iter().find(|info| info.device_memory() && info.is_at(&rail.info))
    };
    // libfabric lists an alias address only if it is in the hints.
    let by_address = || {
        let address: IpAddr = rail.address.parse().ok()?;
        here(&Query { source: Some(address.to_string()), ..query.clone() })
    };
    let info = here(&query).or_else(by_address);
    let Some(info) = info else { return Err(Obstacle::NotOffered { interface, provider }) };
    // Before 1.18 FI_OPT_CUDA_API_PERMITTED does not exist. NICs are then trusted not to call CUDA; software providers are not. Neither is
    // efa, which reaches peers on the same host, including the endpoint itself, through shm: shm copies by CUDA calls, and a flush through
    // shm reads nothing through the NIC (libfabric prov/efa/src/rxr/rxr_rma.c of 1.17).
    let version = library.version();
    if version < CUDA_OPTION_SINCE {
        let trusted = info.nic().is_some() && info.family() != "efa";
        return if trusted {
            Ok(info)
        } else {
            Err(Obstacle::NoCudaOption { interface, provider, version })
        };
    }
    match open_with(&info, &[NO_CUDA_CALLS]).map(drop) {
        Ok(()) => Ok(info),
        Err(error) if refuses_option(error) => {
            Err(Obstacle::CallsCuda { interface, provider, answer: error.to_string() })
        }
        Err(error) => Err(Obstacle::NotOpened { interface, provider, error: error.to_string() }),
    }
}

/// The first release with FI_OPT_CUDA_API_PERMITTED. All providers with FI_HMEM support the option, cxi since 2.0; a provider that can
/// access GPU memory only by CUDA calls refuses it.
const CUDA_OPTION_SINCE: Version = Version::new(1, 18);

/// Whether a provider supports FI_MR_DMABUF (fi_mr(3)). No call reports that, and a provider without it takes the descriptor for an
/// address. By their sources these providers support it, and so do providers that use a NIC's wire protocol.
fn supports_dmabuf(info: &Info) -> bool {
    matches!(core_provider(info.provider()), "cxi" | "efa" | "verbs" | "opx")
        || matches!(info.protocol(), FI_PROTO_EFA | FI_PROTO_CXI)
}

/// Logs one line for all devices if they are alike, otherwise one for each.
fn announce(config: &Config, devices: &[DevicePlan]) {
    let alike = devices.windows(2).all(|pair| pair[0].gpu_memory == pair[1].gpu_memory);
    for device in devices.iter().take(if alike { 1 } else { usize::MAX }) {
        let of = if alike { String::new() } else { format!("device {}: ", device.name) };
        match &device.gpu_memory {
            GpuMemory::ByHost(obstacle) if config.device_memory == DeviceMemory::On => log::warn!(
                "{of}IRONRAIL_DEVICE_MEMORY=1 requires direct transfers of GPU memory, and they go through the host: {}; {}",
                obstacle.phrase(),
                obstacle.next_step()
            ),
            found => log::info!("{of}GPU memory {}", found.describe()),
        }
    }
}

/// The GPU that owns all of these bytes, and the id of their buffer; 0 if they are in several buffers. The driver is asked for the owner,
/// since a process may register memory of other GPUs than its own (PXN).
pub(super) fn owner(address: u64, len: usize) -> Result<Owner> {
    owner_by(Driver::get(), address, len)
}

fn owner_by(
    driver: std::result::Result<&Driver, impl Display>,
    address: u64,
    len: usize,
) -> Result<Owner> {
    let driver = driver
        .map_err(|reason| Cause::NoGpuDriver { len, because: Label::of(&reason.to_string()) })?;
    let end_address = address.saturating_add(len.saturating_sub(1) as u64);
    let not_gpu = |last| Error::from(Cause::NotGpuMemory { address, len, last });
    let first = driver.owner(address).ok_or_else(|| not_gpu(false))?;
    let end = driver.owner(end_address).ok_or_else(|| not_gpu(true))?;
    if first.device != end.device {
        let (first, last) = (gpu_number(first.device), gpu_number(end.device));
        return Err(Cause::SpansTwoGpus { address, len, first, last }.into());
    }
    let buffer = if first.buffer == end.buffer { first.buffer } else { 0 };
    Ok(Owner { buffer, ..first })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_nothing_is_gpu_memory() {
        let error = owner_by(Err("libcuda.so.1 is not there"), 4096, 64).unwrap_err();
        let because = Label::of("libcuda.so.1 is not there");
        assert_eq!(error.cause, Cause::NoGpuDriver { len: 64, because });
    }
}
