//! Opens the NICs of a device for one endpoint.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use fabric::{Control, Data, FabricError, Info, Nic, NicOptions, OptionName};
use proto::capabilities::Capabilities;

use super::TrafficClass;
use super::arrival;
use super::assumed::{assumed, of_messages};
use super::device::Device;
use super::options;
use super::plan::RailPlan;
use crate::endpoint::bound::{OPERATIONS_MAX, TAGGED_RECEIVES_MAX};
use crate::endpoint::{Opened, Reopen};
use crate::error::{Bug, Cause, Error, Result};
use crate::label::Label;
use crate::types::Protocol;

/// Opens the NICs of `device` in a traffic class, or without a class if the provider refuses it. Warns once if the class is not used.
pub(super) fn open_in_class(
    device: &Device,
    class: Option<TrafficClass>,
) -> Result<(Vec<Opened>, Capabilities)> {
    let Some(requested) = class else { return open(device, None) };
    if let Some(rail) =
        device.plan.rails.iter().find(|rail| options::ignores(&rail.info, requested))
    {
        warn_of_unused_class(
            requested,
            format_args!("{} ignores traffic classes", rail.info.provider()),
        );
    }
    open(device, class).or_else(|error| {
        let opened = open(device, None)?;
        warn_of_unused_class(requested, format_args!("{error}"));
        Ok(opened)
    })
}

fn warn_of_unused_class(requested: TrafficClass, because: fmt::Arguments<'_>) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        log::warn!(
            "the traffic class of the communicator (DSCP {}) is not used: {}",
            requested.dscp(),
            because
        );
    }
}

/// Opens the NICs of `device`, and returns the capabilities that are known without a probe. NICs that cannot be opened are left out, unless
/// none can be opened.
fn open(device: &Device, class: Option<TrafficClass>) -> Result<(Vec<Opened>, Capabilities)> {
    let infos = device.infos(class);
    let mut nics: Vec<(Opened, &Info)> = Vec::with_capacity(infos.len());
    let mut missing = Vec::new();
    for (index, (plan, info)) in device.plan.rails.iter().zip(&infos).enumerate() {
        let with_control = nics.len() < device.settings.max_control_rails;
        let nic = match open_one(device, info, with_control) {
            Ok(nic) => nic,
            Err(fault) => {
                let error = refused(device, plan, fault);
                // The class is the obstacle: without it this rail opens.
                let by_class =
                    class.is_some() && open_one(device, &plan.info, with_control).is_ok();
                if by_class || !error.cause.concerns_one_rail() {
                    return Err(error);
                }
                missing.push((index, fault, error));
                continue;
            }
        };
        device.note_rail(index, Ok(()));
        let label = format!("{} {}", info.provider(), plan.interface);
        let fabric_name = plan.fabric_name.clone();
        nics.push((Opened { nic, fabric_name, label, reopen: reopen(device, info) }, info));
    }
    let Some((first, info)) = nics.first() else {
        let none = Cause::Bug(Bug::DeviceWithoutRails).into();
        return Err(missing.first().map_or(none, |(.., error)| *error));
    };
    for (index, fault, _) in &missing {
        device.note_rail(*index, Err(*fault));
    }
    let opened = |nics: Vec<(Opened, &Info)>| nics.into_iter().map(|(nic, _)| nic).collect();
    if device.plan.protocol == Protocol::Sendrecv {
        let known = of_messages(info);
        return Ok((opened(nics), known));
    }
    warn_of_emulated_writes(info, &first.nic);
    let is_proven =
        |(opened, info): &(Opened, &Info)| arrival::is_proven::<Data>(info, &opened.nic);
    let proves_arrival = nics.iter().all(is_proven);
    let known = assumed(info, proves_arrival);
    Ok((opened(nics), known))
}

/// Opens the data rail of such a NIC again, with the same options.
fn reopen(device: &Device, info: &Info) -> Reopen {
    let data = info.endpoint_options::<Data>();
    let (entries, operations) = sizes(device);
    let one_sided_data = is_one_sided(device, info);
    Reopen(Box::new(move |nic| {
        let data = Some(data.as_slice());
        let opened =
            NicOptions { data, one_sided_data, entries, operations, ..NicOptions::default() };
        nic.reopen(&opened)
    }))
}

/// Entries of control rails' completion queues beside those for operations. Few are needed: no write with an immediate arrives there.
const CONTROL_ENTRIES_KEPT: usize = 64;

/// Entries of a data rail's completion queue, and operations in flight.
fn sizes(device: &Device) -> (usize, u16) {
    let operations = match device.plan.protocol {
        Protocol::Rdma => OPERATIONS_MAX,
        Protocol::Sendrecv => OPERATIONS_MAX + TAGGED_RECEIVES_MAX,
    };
    (device.settings.cq_entries_or_default(), operations)
}

/// Whether data rails are opened without messages: the protocol needs none there, and the provider then uses less memory.
fn is_one_sided(device: &Device, info: &Info) -> bool {
    device.plan.protocol == Protocol::Rdma && NicOptions::of(info).one_sided_data
}

fn open_one(
    device: &Device,
    info: &Info,
    with_control: bool,
) -> std::result::Result<Nic, FabricError> {
    let data = info.endpoint_options::<Data>();
    let control = info.endpoint_options::<Control>();
    let (entries, operations) = sizes(device);
    let opened = NicOptions {
        data: Some(&data),
        control: with_control.then_some(control.as_slice()),
        one_sided_data: is_one_sided(device, info),
        entries,
        control_entries: Some(usize::from(operations) + CONTROL_ENTRIES_KEPT),
        operations,
        ..NicOptions::of(info)
    };
    let nic = Nic::open_in_class(info, &opened, Some(options::LOW_LATENCY))?;
    if let Some(error) = nic.refused_class() {
        log_refused_class(error);
    }
    Ok(nic)
}

/// Logs that control rails are opened without the low-latency class. Once, since all control rails are alike.
fn log_refused_class(error: FabricError) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        log::info!("control rails are opened without the low-latency traffic class: {error}");
    }
}

/// Warns once if a provider emulates writes by two-sided messages.
fn warn_of_emulated_writes(info: &Info, nic: &Nic) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    let is_efa = info.family() == "efa";
    let name = OptionName::EfaEmulatedWrite;
    let emulated = is_efa && nic.flag::<Data>(name) == Some(true);
    if emulated && !LOGGED.swap(true, Ordering::Relaxed) {
        log::warn!(
            "{} emulates writes by messages, which is slow: the device has no RDMA writes, or FI_EFA_USE_DEVICE_RDMA=0 turns them off",
            info.provider()
        );
    }
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
