//! `ironrail info`: the plugin, its devices and rails, what was probed, and the properties for NCCL.

use anstyle::Style;
use clap::Args;
use ironrail_group::error::GroupError;

use super::explanation::{self, Device, Explanation, Found, Probed, Properties, Rail};
use crate::output;

/// Shows the plugin's devices, rails and capabilities as probed, and their properties for NCCL.
///
/// The plugin is started in a process of its own, and connects each device to itself. For a plugin other than Ironrail, only the properties
/// for NCCL are known.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Info {
    /// The plugin [default: what NCCL_NET_PLUGIN names, or Ironrail next to this executable]
    #[arg(long, value_name = "PLUGIN", value_parser = crate::plugin::name)]
    net: Option<String>,
    /// Write all of it as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ironrail info              Ironrail's devices here, now
  ironrail info --net ofi    the properties of another plugin for NCCL
  ironrail info --json       for programs";

impl Info {
    /// Runs the command. Returns whether the plugin has a device.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        let found = explanation::ask(&super::plugin(self.net.as_deref()), true)?;
        let well = found.failed.is_none() && !found.properties.is_empty();
        if self.json {
            output::line(format_args!("{:#}", serde_json::json!(found)));
            return Ok(well);
        }
        show(&found);
        if let Some(failed) = &found.failed {
            output::print_error(failed);
        }
        Ok(well)
    }
}

fn show(found: &Found) {
    let Found { file, network, tables, explanation, properties, .. } = found;
    let bold = Style::new().bold();
    let tables: Vec<_> = tables.iter().map(|version| format!("v{version}")).collect();
    let version = explanation.as_ref().map_or_else(String::new, |explanation| {
        let Explanation { version, commit, target, profile, .. } = explanation;
        // A plugin before it had a commit to tell has none.
        let build = [commit, target, profile].map(String::as_str);
        let build: Vec<_> = build.into_iter().filter(|fact| !fact.is_empty()).collect();
        format!(" {version} ({})", build.join(", "))
    });
    output::line(format_args!(
        "{bold}{network}{version}{bold:#}, {file}, tables {}",
        tables.join(" ")
    ));
    let devices = explanation.as_ref().and_then(|explanation| explanation.devices.as_ref());
    for (index, properties) in properties.iter().enumerate() {
        output::line(format_args!("{bold}device {index}: {}{bold:#}", properties.name));
        if let Some(device) = devices.and_then(|devices| devices.get(index)) {
            own(device);
        }
        nccls(properties);
    }
}

fn own(device: &Device) {
    output::line(format_args!("    {}", device.because));
    output::line(format_args!("    GPU memory {}", device.gpu_memory));
    for rail in &device.rails {
        let Rail { interface, address, network, provider, provider_version, speed_mbps, .. } = rail;
        let speed = speed_mbps
            .as_ref()
            .map_or_else(|| "speed unknown".to_owned(), |speed| format!("{speed} Mb/s"));
        output::line(format_args!(
            "    rail {interface} at {address} on {network}: {provider} {provider_version} of libfabric {}, {speed}",
            device.libfabric
        ));
        let registration =
            if rail.registration.is_empty() { "nothing" } else { &rail.registration };
        output::line(format_args!(
            "        promised: immediates of {} bytes, injects up to {}, {} in flight, registration asks for {registration}{}",
            rail.immediate_bytes,
            rail.inject_bytes,
            rail.transmit_depth,
            if rail.in_order { ", bytes land in order" } else { "" }
        ));
    }
    match &device.probed {
        Some(probed) => show_probed(probed),
        None if device.sends_messages() => output::line(format_args!(
            "    sends tagged messages of up to {} bytes (SENDRECV): there is nothing to probe",
            device.largest()
        )),
        None => output::line("    probed: nothing yet"),
    }
}

fn show_probed(probed: &Probed) {
    let facts = [
        (probed.true_lengths, "arrivals have their lengths"),
        (probed.self_read, "a rail reads its own memory"),
        (probed.proves_arrival, "a completion proves arrival"),
        (probed.delivery_complete, "delivery is completed when asked for"),
    ];
    let (yes, no): (Vec<_>, Vec<_>) = facts.iter().partition(|(is, _)| *is);
    let words = |facts: &[&(bool, &str)]| {
        facts.iter().map(|(_, word)| *word).collect::<Vec<_>>().join(", ")
    };
    let no = if no.is_empty() { String::new() } else { format!("; not: {}", words(&no)) };
    output::line(format_args!(
        "    probed: immediates of {} bytes, {}{no}",
        probed.immediate_bytes,
        words(&yes)
    ));
}

fn nccls(properties: &Properties) {
    let Properties { memory, speed_mbps, comms, groups, latency_us, guid, port, .. } = properties;
    let place = properties.pci_path.as_deref().unwrap_or("no place on PCI");
    output::line(format_args!(
        "    for NCCL: {speed_mbps} Mb/s, memory of {}, groups of {groups}, {comms} comms, latency {latency_us} us, guid {guid} port {port}, {place}",
        memory.join(" and ")
    ));
}
