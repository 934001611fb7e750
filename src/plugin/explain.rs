//! A description of the plugin for tools, as JSON: settings, and the devices of a plugin that has started.
//!
//! The call does not start the plugin. `ironrail info` and `ironrail explain` read the fields by name; the format has a version.

use proto::{Capabilities, ImmediateWidth};

use super::config::settings;
use super::devices::Known;
use super::json::{Object, array};
use super::plan::RailPlan;
use super::{Plugin, started};

pub(crate) fn explain() -> String {
    let devices = started().ok().map(|plugin| {
        let all = plugin.devices.all();
        array(all.iter().map(|known| device(known).end()))
    });
    settings()
        .text("format", FORMAT)
        .text("version", env!("CARGO_PKG_VERSION"))
        .text("commit", env!("BUILT_COMMIT"))
        .text("target", env!("BUILT_TARGET"))
        .text("profile", env!("BUILT_PROFILE"))
        .maybe("protocols", started().ok().and_then(protocols))
        .raw("devices", devices.as_deref().unwrap_or("null"))
        .end()
}

const FORMAT: &str = "ironrail-explain/1";

/// The user's NCCL_PROTO, as it was before the plugin set it.
fn protocols(plugin: &'static Plugin) -> Option<&'static str> {
    plugin.settings.protocols()
}

fn device(known: &Known) -> Object {
    let (device, properties) = (&known.device, &known.properties);
    let plan = &device.plan;
    let facts = device.facts(known.number);
    let found = facts.probed.capabilities();
    let probed = found.map(|found| capabilities(&found).end());
    Object::new()
        .text("name", &plan.name)
        .text("because", &plan.because)
        .text("libfabric", device.libfabric_version())
        .text("protocol", plan.protocol.name())
        .number("speed_mbps", plan.speed_mbps())
        .text("gpu_memory", plan.gpu_memory.describe())
        .maybe("pci_path", properties.pci_path.map(|path| path.to_string_lossy()))
        .text("guid", format_args!("{:016x}", properties.guid))
        .number("groups", properties.max_receives.unsigned_abs())
        .number("comms", properties.max_comms.unsigned_abs())
        .raw("rails", &array(plan.rails.iter().map(|plan| rail(plan).end())))
        .raw("probed", probed.as_deref().unwrap_or("null"))
}

/// A rail, as libfabric describes it. The probe shows which of this is true.
fn rail(rail: &RailPlan) -> Object {
    let info = &rail.info;
    let mode = info.region_mode();
    let modes = [
        (mode.bind_to_endpoint, "endpoint"),
        (mode.virtual_addresses, "virtual addresses"),
        (mode.provider_keys, "provider's keys"),
        (mode.local, "local"),
        (mode.allocated, "allocated"),
        (mode.device_memory, "device memory"),
    ];
    let modes: Vec<_> = modes.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    Object::new()
        .text("interface", &rail.interface)
        .text("address", &rail.address)
        .text("network", &rail.fabric_name)
        .text("provider", info.provider())
        .text("provider_version", info.provider_version())
        .maybe("speed_mbps", rail.nic.speed_mbps)
        .maybe("pci_path", rail.pci_path.as_deref())
        .flag("device_memory", info.device_memory())
        .text("registration", modes.join(", "))
        .number("immediate_bytes", info.immediate_bytes() as u64)
        .number("inject_bytes", info.inject_bytes() as u64)
        .text("largest_write", info.max_message())
        .number("transmit_depth", info.transmit_depth() as u64)
        .flag("in_order", info.lands_in_order())
}

/// The result of the probe.
fn capabilities(found: &Capabilities) -> Object {
    let immediate = match found.immediate {
        ImmediateWidth::None => 0_u32,
        ImmediateWidth::Four => 4,
        ImmediateWidth::Eight => 8,
    };
    Object::new()
        .number("immediate_bytes", immediate)
        .flag("true_lengths", found.true_lengths)
        .flag("self_read", found.self_read)
        .flag("proves_arrival", found.proves_arrival)
        .flag("delivery_complete", found.delivery_complete)
        .text("largest_write", found.largest_write)
}
