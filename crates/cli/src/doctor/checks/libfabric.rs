//! libfabric: its file, its version, its offers, and copies that are hidden by it.

use std::collections::BTreeSet;

use super::loading::TO_START;
use crate::doctor::finding::Finding;
use crate::doctor::machine::{Libfabric, Machine, UNSTARTED};

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let Some(libfabric) = machine.libfabric.as_ref().filter(|_| matters(machine)) else {
        return Vec::new();
    };
    let looked = looked(machine, libfabric);
    let Some(path) = &libfabric.path else {
        return vec![refused(machine, libfabric, looked)];
    };
    let mut findings = vec![Finding::ok("libfabric.found", looked, path.display().to_string())];
    findings.extend(version(libfabric));
    if findings.iter().all(|finding| finding.cure.is_none()) {
        findings.extend(copies(machine, libfabric));
        findings.push(offers(machine, libfabric));
    }
    findings
}

/// Whether a plugin needs libfabric: plugins other than Ironrail may not.
fn matters(machine: &Machine) -> bool {
    let uses = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libfabric"))
    };
    machine.is_ours() || machine.plugins.iter().any(|plugin| plugin.libraries.iter().any(uses))
}

fn looked(machine: &Machine, libfabric: &Libfabric) -> String {
    match machine.value("IRONRAIL_LIBFABRIC") {
        Some(file) => format!("IRONRAIL_LIBFABRIC={file}"),
        None => format!("{} on the loader's path", libfabric.asked),
    }
}

fn refused(machine: &Machine, libfabric: &Libfabric, looked: String) -> Finding {
    let reason = libfabric.refused.as_deref().unwrap_or("the loader gave no reason");
    // From the library's sentence: "libfabric 1.11 is older than 1.17".
    if let Some((major, minor)) = libfabric.version {
        return Finding::fail(
            "libfabric.version",
            looked,
            format!(
                "libfabric {major}.{minor} is too old: Ironrail needs 1.17 or newer ({reason})"
            ),
            "install a newer libfabric, or name one in IRONRAIL_LIBFABRIC",
        );
    }
    let cure = if reason.starts_with(UNSTARTED) {
        TO_START.to_owned()
    } else if machine.value("IRONRAIL_LIBFABRIC").is_some() {
        "correct IRONRAIL_LIBFABRIC, or unset it for libfabric.so.1".to_owned()
    } else {
        "install libfabric (Debian: libfabric1), add its folder to LD_LIBRARY_PATH, or name the file in IRONRAIL_LIBFABRIC; a container needs it inside".to_owned()
    };
    Finding::fail("libfabric.found", looked, reason.to_owned(), cure)
}

fn version(libfabric: &Libfabric) -> Option<Finding> {
    let (major, minor) = libfabric.version?;
    let looked = "fi_version()";
    let found = format!("libfabric {major}.{minor}");
    Some(if (major, minor) < OLDEST {
        Finding::fail(
            "libfabric.version",
            looked,
            format!("{found}, and Ironrail needs 1.17 or newer"),
            "install a newer libfabric, or name one in IRONRAIL_LIBFABRIC",
        )
    } else {
        Finding::ok("libfabric.version", looked, found)
    })
}

/// A newer libfabric that the loader does not take.
fn copies(machine: &Machine, libfabric: &Libfabric) -> Option<Finding> {
    let newest = machine.libfabrics.iter().max_by_key(|other| other.version)?;
    let (path, other) = (libfabric.path.as_ref()?, newest.path.as_ref()?);
    let looked = "libfabric.so.1 in the loader's folders".to_owned();
    let shown = |version: Option<(u16, u16)>| {
        version.map_or_else(String::new, |(major, minor)| format!("{major}.{minor}"))
    };
    if newest.version <= libfabric.version || machine.value("IRONRAIL_LIBFABRIC").is_some() {
        return Some(Finding::ok(
            "libfabric.copies",
            looked,
            "none is newer than the one that the loader takes",
        ));
    }
    Some(Finding::warn(
        "libfabric.copies",
        looked,
        format!(
            "the loader takes libfabric.so.1 {} at {}, and {} at {} is newer",
            shown(libfabric.version),
            path.display(),
            shown(newest.version),
            other.display()
        ),
        format!(
            "set IRONRAIL_LIBFABRIC={}, or put its folder first in LD_LIBRARY_PATH",
            other.display()
        ),
    ))
}

/// The providers' offers for rails.
fn offers(machine: &Machine, libfabric: &Libfabric) -> Finding {
    let mut names: Vec<&str> =
        machine.offers().iter().map(|offer| offer.provider.as_str()).collect();
    names.dedup();
    let mut unique: Vec<&str> = Vec::new();
    names.iter().for_each(|name| {
        if !unique.contains(name) {
            unique.push(name)
        }
    });
    let shown = unique.join(", ");
    if let Some((filter, place)) = machine.variable("FI_PROVIDER")
        && unique.is_empty()
    {
        return Finding::fail(
            "libfabric.filter",
            format!("FI_PROVIDER={filter} (from {place})"),
            format!(
                "with FI_PROVIDER={filter} libfabric offers nothing: {}",
                turned_away(machine, libfabric)
            ),
            "unset FI_PROVIDER; IRONRAIL_PROVIDER chooses a provider for the plugin only",
        );
    }
    let looked =
        "fi_getinfo() for reliable datagrams with one-sided writes, or tagged messages".to_owned();
    if let Some((wanted, place)) = machine.variable("IRONRAIL_PROVIDER")
        && !machine.offers().iter().any(|offer| offer.is_of(wanted))
    {
        return Finding::fail(
            "provider.usable",
            format!("IRONRAIL_PROVIDER={wanted} (from {place})"),
            format!(
                "{wanted} is not offered; libfabric offers {shown}: {}",
                turned_away(machine, libfabric)
            ),
            format!(
                "name one of {shown}, or unset IRONRAIL_PROVIDER; a provider that is installed and not offered lacks its device"
            ),
        );
    }
    if unique.is_empty() {
        return Finding::fail(
            "provider.usable",
            looked,
            format!("libfabric offers nothing: {}", turned_away(machine, libfabric)),
            "check that a network interface is up, and that the container sees it; `FI_LOG_LEVEL=info fi_info` shows each provider's reason",
        );
    }
    Finding::ok("provider.usable", looked, format!("{shown}; {}", turned_away(machine, libfabric)))
}

/// Providers that offered nothing, and why.
fn turned_away(machine: &Machine, libfabric: &Libfabric) -> String {
    let mut refused: Vec<_> =
        libfabric.providers.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    if machine.offers().is_empty() {
        let others = libfabric.offers.iter().map(|offer| &offer.provider);
        let others: BTreeSet<_> = others.collect();
        refused.extend(
            others.iter().map(|name| {
                format!("{name}: no one-sided writes, which IRONRAIL_PROTOCOL asks for")
            }),
        );
    }
    if refused.is_empty() {
        "no provider was turned away".to_owned()
    } else {
        format!("not usable: {}", refused.join("; "))
    }
}

const OLDEST: (u16, u16) = (1, 17);
