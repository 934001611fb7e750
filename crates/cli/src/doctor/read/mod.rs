//! Reads a machine: the only module of the doctor with I/O.

mod environment;
mod limits;
pub(super) mod paths;
mod probe;
mod system;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::machine::{Libfabric, Machine};
pub(super) use environment::{HIDDEN, settings_of_files, variables};

/// Where and how to read.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The parent of `/sys`, `/proc` and `/dev`: `/` except in tests.
    pub(super) root: PathBuf,
    /// The plugin to use in place of NCCL_NET_PLUGIN.
    pub(super) net: Option<String>,
    /// How long a plugin may take for each step.
    pub(super) wait: Duration,
}

/// Reads everything. Takes as long as the plugin takes to start and to move its messages.
pub(super) fn machine(place: &Place) -> Machine {
    let mut machine = surroundings(place);
    machine.plugins = plugins(&machine, place);
    machine
}

/// The host's name. A sandbox may hide `/proc/sys`.
fn host(root: &Path) -> String {
    let read = system::text(root, "proc/sys/kernel/hostname");
    read.unwrap_or_else(|| if root == "/" { fabric::host_name() } else { String::new() })
}

/// Reads everything except plugins.
pub(super) fn surroundings(place: &Place) -> Machine {
    let root = &place.root;
    let environment = variables();
    let files = environment::files(root);
    let mut machine = Machine {
        host: host(root),
        kernel: system::text(root, "proc/sys/kernel/osrelease").unwrap_or_default(),
        processor: std::env::consts::ARCH.to_owned(),
        environment,
        files,
        interfaces: system::interfaces(root),
        rdma: system::rdma(root),
        cxi: system::cxi(root),
        gpus: system::gpus(root),
        limits: limits::read(root),
        named_by_command: place.net.is_some(),
        ..Machine::default()
    };
    machine.copies = paths::plugins(&machine.environment);
    if !machine.gpus.places.is_empty() || *root == *Path::new("/") {
        let found = probe::gpus(place.wait);
        machine.gpus.counted = found.counted;
        machine.gpus.dmabuf = found.dmabuf;
        machine.gpus.refused = found.refused;
    }
    machine.libfabric = Some(probe::libfabric(&libfabric_name(&machine), true, place.wait));
    machine.libfabrics = others(&machine, place.wait);
    machine
}

/// The name of the library that the plugin would open.
fn libfabric_name(machine: &Machine) -> String {
    machine.value("IRONRAIL_LIBFABRIC").unwrap_or("libfabric.so.1").to_owned()
}

/// The other copies of libfabric on this machine, which the loader does not choose.
fn others(machine: &Machine, wait: Duration) -> Vec<Libfabric> {
    let taken = machine.libfabric.as_ref().and_then(|libfabric| libfabric.path.clone());
    let taken = taken.and_then(|path| path.canonicalize().ok());
    paths::libfabrics(&machine.environment)
        .into_iter()
        .filter(|path| Some(path) != taken.as_ref())
        .map(|path| probe::libfabric(&path.to_string_lossy(), false, wait))
        .filter(|libfabric| libfabric.path.is_some())
        .collect()
}

/// The plugins that NCCL would try, in order. The first one with the right network is started; the others are opened only.
fn plugins(machine: &Machine, place: &Place) -> Vec<super::machine::Plugin> {
    let given = || machine.given("NCCL_NET_PLUGIN").map(|(value, _)| value);
    let named = place.net.as_deref().or_else(given);
    let wanted = machine.value("NCCL_NET");
    let names: Vec<&str> = match named {
        None => vec!["libnccl-net.so"],
        Some(name) if name.eq_ignore_ascii_case("none") && place.net.is_none() => {
            return Vec::new();
        }
        Some(value) => crate::plugin::names(value).collect(),
    };
    let mut started = false;
    let mut plugins = Vec::new();
    for name in names {
        let mut plugin = probe::plugin(machine, name, false, place.wait);
        let right = plugin.network.as_deref().is_some_and(|network| {
            wanted.is_none_or(|wanted| wanted.eq_ignore_ascii_case(network))
                || machine.named_by_command
        });
        if right && !started {
            plugin = probe::plugin(machine, name, true, place.wait);
            started = plugin.devices.as_ref().is_some_and(|devices| !devices.is_empty());
        }
        if named.is_none() {
            plugin.asked.clear();
        }
        plugins.push(plugin);
    }
    plugins
}
