//! Variables: misspelt, of another plugin, with impossible values, or in conflict.

use super::names;
use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(values(machine));
    findings.extend(unknown(machine));
    findings.extend(foreign(machine));
    findings.extend(interface(machine, "NCCL_SOCKET_IFNAME"));
    findings.extend(interface(machine, "FI_TCP_IFACE"));
    findings.extend(protocol(machine));
    findings.extend(log(machine));
    if findings.iter().all(|finding| finding.cure.is_none()) {
        findings.push(known(machine));
    }
    findings
}

/// Counts the variables, apart from those that only the plugin can check.
fn known(machine: &Machine) -> Finding {
    let variables = machine.variables();
    let of = |prefix: &str| variables.keys().filter(|name| name.starts_with(prefix)).count();
    let unchecked = if is_started(machine) { 0 } else { of(PREFIX) };
    let known = PREFIXES.iter().map(|prefix| of(prefix)).sum::<usize>() - unchecked;
    let mut found = format!("{known} set, no problem found");
    if unchecked > 0 {
        found += &format!(
            "; {unchecked} of {PREFIX}* not checked: that is done by the plugin, which was not started"
        );
    }
    Finding::ok("variables.known", PREFIXES.join("*, ") + "*", found)
}

/// Whether Ironrail has started, or tried to: it has then checked its settings, and logged what is wrong with them.
fn is_started(machine: &Machine) -> bool {
    machine.ours().any(|plugin| plugin.devices.is_some() || plugin.failure.is_some())
}

const PREFIX: &str = "IRONRAIL_";
const PREFIXES: &[&str] = &["NCCL_", "FI_", "OFI_NCCL_", PREFIX];

/// The plugin refuses to start with a wrong value, and reports the allowed ones.
fn values(machine: &Machine) -> Option<Finding> {
    let line = said(machine, "is not a value Ironrail can use")?;
    let name = line.split('=').next().unwrap_or_default().trim();
    let name = name.rsplit(' ').next().unwrap_or_default();
    Some(Finding::fail(
        "variables.value",
        format!("{name}={}", machine.value(name).unwrap_or_default()),
        line,
        format!("correct {name}, or unset it; `ironrail explain {name}` says what it does"),
    ))
}

/// The first line of the plugin's log that contains these words.
fn said<'a>(machine: &'a Machine, words: &str) -> Option<&'a str> {
    let lines =
        machine.plugins.iter().flat_map(|plugin| &plugin.log).map(|line| line.text.as_str());
    let failures =
        machine.plugins.iter().filter_map(|plugin| Some(plugin.failure.as_ref()?.why.as_str()));
    lines.chain(failures).find(|text| text.contains(words))
}

fn unknown(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = machine.plugins.iter().flat_map(|plugin| &plugin.log);
    for line in lines.filter(|line| line.text.contains("is not a setting of Ironrail")) {
        let name = line.text.split(' ').next().unwrap_or_default();
        findings.push(Finding::warn(
            "variables.unknown",
            name,
            line.text.clone(),
            format!("correct the name, or unset {name}"),
        ));
    }
    for name in machine.variables().keys() {
        if let Some(right) = names::meant(name) {
            findings.push(Finding::warn(
                "variables.unknown",
                (*name).to_owned(),
                format!("nothing reads {name}: did you mean {right}?"),
                format!("correct the name to {right}, or unset {name}"),
            ));
        }
    }
    findings
}

/// Settings of aws-ofi-nccl.
fn foreign(machine: &Machine) -> Vec<Finding> {
    if !machine.is_ours() {
        return Vec::new();
    }
    let variables = machine.variables();
    let theirs =
        variables.keys().filter(|name| name.starts_with("OFI_NCCL_") && !TAKEN.contains(*name));
    let ignored: Vec<_> = theirs.copied().collect();
    if ignored.is_empty() {
        return Vec::new();
    }
    vec![Finding::warn(
        "variables.foreign",
        "OFI_NCCL_*",
        format!("{}: settings of aws-ofi-nccl, which Ironrail ignores", ignored.join(", ")),
        "unset them, or see docs/configuration.md for the setting that does the same; `ironrail explain` lists all",
    )]
}

/// Names of aws-ofi-nccl that Ironrail accepts (docs/configuration.md).
const TAKEN: &[&str] = &[
    "OFI_NCCL_MIN_STRIPE_SIZE",
    "OFI_NCCL_FORCE_NUM_RAILS",
    "OFI_NCCL_CQ_SIZE",
    "OFI_NCCL_EAGER_MAX_SIZE",
];

/// A list of interfaces in NCCL's syntax: prefixes, `=` before exact names, `^` before excluded ones.
fn interface(machine: &Machine, variable: &str) -> Option<Finding> {
    let (value, place) = machine.variable(variable)?;
    let looked = format!("{variable}={value} (from {place})");
    let exact = value.starts_with('=') || variable != "NCCL_SOCKET_IFNAME";
    let names = value.trim_start_matches(['^', '=']).split(',');
    let names: Vec<_> = names.map(|name| name.split(':').next().unwrap_or(name)).collect();
    let there = |name: &str| {
        machine
            .interfaces
            .iter()
            .any(|one| if exact { one.name == name } else { one.name.starts_with(name) })
    };
    if value.starts_with('^') || names.iter().any(|name| there(name)) {
        return Some(Finding::ok("variables.interface", looked, "the interface is there"));
    }
    let have: Vec<_> =
        machine.interfaces.iter().filter(|one| one.up).map(|one| one.name.as_str()).collect();
    Some(Finding::fail(
        "variables.interface",
        looked,
        format!("no interface is called {}: there are {}", names.join(" or "), have.join(", ")),
        format!(
            "correct {variable}, or unset it: without it NCCL and libfabric choose an interface themselves"
        ),
    ))
}

/// Protocols with flags inside the data need an order of writes that some providers do not guarantee.
fn protocol(machine: &Machine) -> Option<Finding> {
    let (value, place) = machine.variable("NCCL_PROTO")?;
    let looked = format!("NCCL_PROTO={value} (from {place})");
    let excluded = value.starts_with('^');
    let named: Vec<_> =
        value.trim_start_matches('^').split(',').map(str::to_ascii_uppercase).collect();
    let allows = |name: &str| named.iter().any(|one| one == name) != excluded;
    let offers = machine.chosen_offers();
    let loose =
        offers.iter().find(|offer| LOOSE.contains(&offer.provider.as_str()) && !offer.in_order);
    match loose {
        Some(offer) if allows("LL128") || allows("LL") => {
            let which = if allows("LL128") { "LL128" } else { "LL" };
            Some(Finding::fail(
                "variables.protocol",
                looked,
                format!(
                    "{which} is forced, and {} does not promise the order of bytes that it needs: results can be wrong without an error",
                    offer.provider
                ),
                "unset NCCL_PROTO: the plugin sets what the provider allows",
            ))
        }
        _ => Some(Finding::ok("variables.protocol", looked, "no problem with it is known")),
    }
}

/// Providers that write in any order by default.
const LOOSE: &[&str] = &["efa", "efa-direct"];

fn log(machine: &Machine) -> Option<Finding> {
    let level = machine.value("FI_LOG_LEVEL")?;
    let looked = format!("FI_LOG_LEVEL={level}");
    Some(if ["info", "debug", "trace"].contains(&level.to_ascii_lowercase().as_str()) {
        Finding::warn(
            "variables.log",
            looked,
            "libfabric writes lines for what it does, some of them per operation",
            "unset FI_LOG_LEVEL for measurements and real jobs",
        )
    } else {
        Finding::ok("variables.log", looked, "quiet enough")
    })
}
