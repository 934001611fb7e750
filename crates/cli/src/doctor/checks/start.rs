//! Whether the plugin starts, has devices, and moves bytes to itself.

use crate::doctor::finding::Finding;
use crate::doctor::machine::{Failure, Machine, Plugin, Stage, Transfer};

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let usable = |plugin: &&Plugin| plugin.network.is_some();
    let Some(plugin) = machine.winner().or_else(|| machine.plugins.iter().find(usable)) else {
        return Vec::new();
    };
    if plugin.failure.is_none() && plugin.devices.is_none() {
        return Vec::new(); // It was not asked to start: NCCL would not ask it either.
    }
    let mut findings: Vec<_> = machine
        .plugins
        .iter()
        .take_while(|other| !std::ptr::eq(*other, plugin))
        .filter_map(skipped)
        .collect();
    findings.push(started(plugin));
    if let Some(devices) = &plugin.devices {
        findings.push(if devices.is_empty() {
            Finding::fail(
                "plugin.devices",
                "devices",
                "the plugin starts and has no device: NCCL would leave it and use sockets",
                "see what its log says (`ironrail doctor --verbose`); most plugins have devices only where their NICs are",
            )
        } else {
            let names: Vec<_> = devices.iter().map(|one| format!("{} at {} Mb/s", one.name, one.speed_mbps)).collect();
            Finding::ok("plugin.devices", "devices and getProperties", names.join(", "))
        });
    }
    findings.extend(transfer(plugin));
    findings
}

/// An error of a plugin before the one that NCCL uses.
fn skipped(plugin: &Plugin) -> Option<Finding> {
    let failure = plugin.failure.as_ref().filter(|_| plugin.is_skipped())?;
    Some(Finding::warn(
        "plugin.starts",
        format!("init of {}", plugin.network.as_deref().unwrap_or("the plugin")),
        format!("{}: NCCL goes on to the next one that is named", failure.why),
        "cure what it says, or leave it out of NCCL_NET_PLUGIN",
    ))
}

fn started(plugin: &Plugin) -> Finding {
    let looked = format!("init of {}", plugin.network.as_deref().unwrap_or("the plugin"));
    let before =
        |failure: &&Failure| matches!(failure.stage, Stage::Open | Stage::Init | Stage::Devices);
    let Some(failure) = plugin.failure.as_ref().filter(before) else {
        return Finding::ok("plugin.starts", looked, "it starts");
    };
    let cure = match (failure.signal, failure.silent_s) {
        (Some(_), _) => {
            "report it to the plugin's authors, with `ironrail doctor --json`; until then NCCL_NET_PLUGIN=none makes NCCL use sockets"
        }
        (_, Some(_)) => {
            "see with `gdb -p` or `cat /proc/PID/stack` where it waits; a name server, a file system that hangs, or a NIC that is being reset"
        }
        _ => "do what the plugin says; the findings above name the cause where it is known",
    };
    Finding::fail("plugin.starts", looked, failure.why.clone(), cure)
}

fn transfer(plugin: &Plugin) -> Option<Finding> {
    let looked = "messages of each device to itself, every byte compared";
    let by = |is: fn(&Transfer) -> bool| {
        let devices = plugin.devices.iter().flatten();
        let names = devices.filter(|one| one.transfer.as_ref().is_some_and(is));
        let names: Vec<_> = names.map(|one| one.name.as_str()).collect();
        if names.is_empty() { String::new() } else { format!(" by {}", names.join(", ")) }
    };
    // Wrong bytes come first: a failure ends a job, wrong bytes do not.
    if let Some(transfer) = plugin.transfer.filter(|transfer| transfer.wrong > 0) {
        let by = by(|transfer| transfer.wrong > 0);
        return Some(Finding::fail(
            "transfer.loopback",
            looked,
            format!("{} of {} bytes are wrong{by}", transfer.wrong, transfer.bytes),
            "do not compute with this: report it with `ironrail doctor --json`; `ironrail conform` narrows it down",
        ));
    }
    let during = |failure: &&Failure| matches!(failure.stage, Stage::Transfer | Stage::Close);
    if let Some(failure) = plugin.failure.as_ref().filter(during) {
        let by = by(|_| true);
        let (others, cure) = if by.is_empty() {
            (
                by,
                "no job can run over this: `ironrail conform` says which part of NCCL's contract breaks; try another provider by IRONRAIL_PROVIDER",
            )
        } else {
            (
                format!("; messages{by} arrive"),
                "a job that uses it fails: look at its NIC's link, cable and switch port (`ip link`, `ibstat`), and at what the plugin's log says (--verbose)",
            )
        };
        let found = format!("{}{others}", failure.why);
        return Some(Finding::fail("transfer.loopback", looked, found, cure));
    }
    let transfer = plugin.transfer?;
    let what = format!("{} messages, {}", transfer.messages, super::limits::size(transfer.bytes));
    Some(Finding::ok("transfer.loopback", looked, format!("{what}{}, all right", by(|_| true))))
}
