//! Opening the NICs of a device for one endpoint.

use std::sync::atomic::{AtomicBool, Ordering};

use fabric::{Data, FabricError, Info, Nic, NicOptions};
use proto::capabilities::Capabilities;

use super::assumed::assumed;
use super::device::Device;
use super::plan::RailPlan;
use super::{TrafficClass, gpu, order};
use crate::endpoint::{OPERATIONS, Opened};
use crate::error::{Bug, Cause, Error, Result};
use crate::label::Label;

/// Opens the NICs of `device` in a traffic class; without one where they do not take it, which the log says once.
pub(super) fn open_in_class(
    device: &Device,
    class: Option<TrafficClass>,
) -> Result<(Vec<Opened>, Capabilities)> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let Some(asked) = class else { return open(device, None) };
    open(device, class).or_else(|error| {
        let opened = open(device, None)?;
        if !WARNED.swap(true, Ordering::Relaxed) {
            log::warn!(
                "the traffic class that NCCL asks for (DSCP {}) is left out: {}",
                asked.dscp(),
                error
            );
        }
        Ok(opened)
    })
}

/// Opens the NICs of `device`, with what is known of them without trying.
fn open(device: &Device, class: Option<TrafficClass>) -> Result<(Vec<Opened>, Capabilities)> {
    let infos = device.infos(class);
    let mut nics: Vec<Opened> = Vec::with_capacity(infos.len());
    for (index, (plan, info)) in device.plan.rails.iter().zip(&infos).enumerate() {
        let with_control = index < device.settings.max_control_rails;
        let refused = |fault| refused(device, plan, fault);
        let nic = open_one(device, info, with_control).map_err(refused)?;
        let label = format!("{} {}", info.provider(), plan.interface);
        nics.push(Opened { nic, fabric_name: plan.fabric_name.clone(), label });
    }
    let (Some(first), Some(info)) = (nics.first(), infos.first()) else {
        return Err(Cause::Bug(Bug::DeviceWithoutRails).into());
    };
    let known = assumed(info, first.nic.inject_bytes::<Data>());
    Ok((nics, known))
}

fn open_one(
    device: &Device,
    info: &Info,
    with_control: bool,
) -> std::result::Result<Nic, FabricError> {
    let no_cuda = gpu::options(info, device.libfabric_version());
    let of_data = [order::options(info.provider()), no_cuda].concat();
    let options = NicOptions {
        data: Some(&of_data),
        control: with_control.then_some(no_cuda),
        entries: device.settings.cq_entries_or_default(),
        one_queue: false,
        operations: OPERATIONS,
    };
    Nic::open(device.library(), info, &options)
}

fn refused(device: &Device, plan: &RailPlan, fault: FabricError) -> Error {
    let (device, interface) = (device.label(), Label::of(&plan.interface));
    let cause = if matches!(fault.call(), "fi_fabric" | "fi_domain") {
        Cause::CannotOpen { device, interface, fault }
    } else {
        Cause::CannotUse { device, interface, fault }
    };
    cause.into()
}
