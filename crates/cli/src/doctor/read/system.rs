//! Interfaces, NICs and GPUs from /sys, /proc and /dev below a root; and what libfabric logs about providers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::net::if_::InterfaceFlags;

use crate::doctor::machine::{self, Cxi, FABRICS, Gpus, Interface, Libfabric, Rdma};

/// A file's text, trimmed.
pub(super) fn text(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned())
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number<N: std::str::FromStr>(path: &Path) -> Option<N> {
    read(path)?.parse().ok()
}

/// Sorted names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

pub(super) fn interfaces(root: &Path) -> Vec<Interface> {
    let home = root.join("sys/class/net");
    let known = addressed(root);
    let of = |name: String| {
        let folder = home.join(&name);
        let flags = read(&folder.join("flags"))?; // A file, such as bonding_masters, has none.
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
        Some(Interface {
            up: flags & IFF_UP != 0 && !is_down(read(&folder.join("operstate")).as_deref()),
            loopback: number::<u32>(&folder.join("type")) == Some(ARPHRD_LOOPBACK),
            addresses: known.get(&name).map(|one| one.addresses.clone()).unwrap_or_default(),
            mtu: number(&folder.join("mtu")),
            // -1 or an error means unknown.
            speed_mbps: number::<i64>(&folder.join("speed"))
                .and_then(|speed| u32::try_from(speed).ok())
                .filter(|speed| *speed > 0),
            place: place(&folder.join("device")),
            name,
        })
    };
    let found: Vec<_> = names(&home).into_iter().filter_map(of).collect();
    // A container may be without /sys, but with interfaces.
    if found.is_empty() { known.into_values().collect() } else { found }
}

/// Whether the state is one without a link (RFC 2863). Others mean unknown, too: loopback has `unknown`.
fn is_down(state: Option<&str>) -> bool {
    matches!(state, Some("down" | "lowerlayerdown" | "notpresent"))
}

/// net/if.h and linux/if_arp.h.
const IFF_UP: u32 = 1;
const ARPHRD_LOOPBACK: u32 = 772;

/// The interfaces by name, as far as getifaddrs(3) knows them. Below another root: lines of a file `addresses`, as `eth0 192.0.2.1/24`.
fn addressed(root: &Path) -> BTreeMap<String, Interface> {
    let mut known: BTreeMap<String, Interface> = BTreeMap::new();
    let mut of = |name: &str, up, loopback, address: Option<(IpAddr, u8)>| {
        let named = || Interface { name: name.to_owned(), up, loopback, ..Interface::default() };
        known.entry(name.to_owned()).or_insert_with(named).addresses.extend(address);
    };
    if root != Path::new("/") {
        let text = read(&root.join("addresses")).unwrap_or_default();
        let parse = |line: &str| {
            let (name, rest) = line.split_once(' ')?;
            let (address, prefix) = rest.split_once('/')?;
            Some((name.to_owned(), (address.parse().ok()?, prefix.trim().parse().ok()?)))
        };
        for (name, address) in text.lines().filter_map(parse) {
            of(&name, true, false, Some(address));
        }
        return known;
    }
    for one in nix::ifaddrs::getifaddrs().into_iter().flatten() {
        let ip = |address: &nix::sys::socket::SockaddrStorage| {
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        };
        let prefix = one.netmask.as_ref().and_then(ip).map_or(0, |mask| match mask {
            IpAddr::V4(mask) => u32::from(mask).count_ones(),
            IpAddr::V6(mask) => u128::from(mask).count_ones(),
        });
        let address = one.address.as_ref().and_then(ip);
        let address = address.map(|address| (address, u8::try_from(prefix).unwrap_or(0)));
        let is = |flag| one.flags.contains(flag);
        of(
            &one.interface_name,
            is(InterfaceFlags::IFF_UP),
            is(InterfaceFlags::IFF_LOOPBACK),
            address,
        );
    }
    known
}

/// The place of a device, from its folder; a device that is not on the PCI bus has no model.
fn place(device: &Path) -> machine::Place {
    let Ok(real) = fs::canonicalize(device) else { return machine::Place::default() };
    let hex = |name: &str| read(&real.join(name));
    // The kernel shows 0 or 255 where it does not know.
    let lanes = |name: &str| number(&real.join(name)).filter(|lanes| (1..255).contains(lanes));
    machine::Place {
        pci: real
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.contains(':')),
        model: hex("vendor")
            .zip(hex("device"))
            .map(|(vendor, device)| format!("{vendor}:{device}"))
            .filter(|model| model.starts_with("0x") && real.join("class").exists()),
        numa: number(&real.join("numa_node")),
        lanes: lanes("current_link_width").zip(lanes("max_link_width")),
    }
}

pub(super) fn rdma(root: &Path) -> Vec<Rdma> {
    let home = root.join("sys/class/infiniband");
    let files = root.join("dev/infiniband");
    let files: Vec<_> = names(&files)
        .into_iter()
        .filter(|name| name.starts_with("uverbs"))
        .map(|name| files.join(name))
        .collect();
    let device_refused = refused(&files);
    let of = |name: String| {
        let folder = home.join(&name);
        let place = place(&folder.join("device"));
        let efa = place.model.as_deref().is_some_and(|model| model.starts_with(AMAZON))
            || name.starts_with("efa");
        Rdma {
            efa,
            state: state(&folder.join("ports")),
            place,
            device_file: !files.is_empty(),
            device_refused: device_refused.clone(),
            name,
        }
    };
    names(&home).into_iter().map(of).collect()
}

/// The state of the first active port, or else of the first port.
fn state(ports: &Path) -> Option<String> {
    let mut states: Vec<_> =
        names(ports).iter().filter_map(|port| read(&ports.join(port).join("state"))).collect();
    let active = states.iter().position(|state| state.ends_with(" ACTIVE")).unwrap_or(0);
    (!states.is_empty()).then(|| states.swap_remove(active))
}

/// Why none of these device files can be opened as providers open them: the permission, or the device rules of a container.
fn refused(files: &[PathBuf]) -> Option<String> {
    let mut options = File::options();
    options.read(true).write(true);
    let mut errors = Vec::new();
    for file in files {
        match options.open(file) {
            Ok(_) => return None,
            Err(error) => errors.push(format!("{}: {error}", file.display())),
        }
    }
    errors.into_iter().next()
}

/// PCI vendors.
const AMAZON: &str = "0x1d0f";
const NVIDIA: &str = "0x10de";

pub(super) fn cxi(root: &Path) -> Vec<Cxi> {
    let home = root.join("sys/class/cxi");
    let of = |name: String| Cxi {
        place: place(&home.join(&name).join("device")),
        device_file: root.join("dev").join(&name).exists(),
        device_refused: Some(root.join("dev").join(&name))
            .filter(|file| file.exists())
            .and_then(|file| refused(&[file])),
        name,
    };
    names(&home).into_iter().map(of).collect()
}

pub(super) fn gpus(root: &Path) -> Gpus {
    let home = root.join("sys/bus/pci/devices");
    let is_gpu = |folder: &PathBuf| {
        // Display controllers: VGA and 3D.
        let class = read(&folder.join("class")).unwrap_or_default();
        read(&folder.join("vendor")).as_deref() == Some(NVIDIA) && class.starts_with("0x03")
    };
    let folders = names(&home).into_iter().map(|name| home.join(name)).filter(is_gpu);
    let modules = ["nvidia_peermem", "gdrdrv"];
    Gpus {
        places: folders.map(|folder| place(&folder)).collect(),
        driver: text(root, "sys/module/nvidia/version"),
        modules: modules
            .iter()
            .filter(|name| root.join("sys/module").join(name).exists())
            .map(|name| (*name).to_owned())
            .collect(),
        ..Gpus::default()
    }
}

/// The registered providers, and why those without an offer have none, from libfabric's log at level info.
pub(super) fn providers(log: &str, libfabric: &mut Libfabric) {
    let mut registered = Vec::new();
    let mut seen = Vec::new();
    for line in log.lines().filter_map(|line| line.strip_prefix("libfabric:")) {
        // process:time:layer:provider:subsystem:function():line<level> text
        let mut fields = line.splitn(6, ':');
        let (layer, provider) =
            (fields.nth(2).unwrap_or_default(), fields.next().unwrap_or_default());
        seen.push(provider.to_owned());
        if let Some((_, rest)) = line.split_once("registering provider: ") {
            registered.extend(rest.split(' ').next().map(str::to_owned));
        }
        if let Some((_, rest)) =
            line.split_once("fi_getinfo: provider ").filter(|_| layer.is_empty())
            && let Some((name, why)) = rest.split_once(" returned ")
        {
            libfabric.providers.insert(name.to_owned(), why.to_owned());
        }
    }
    for name in FABRICS {
        let offers =
            libfabric.offers.iter().any(|offer| offer.provider.split(';').any(|part| part == name));
        if offers || registered.iter().any(|one| one == name) {
            continue;
        }
        let why = if seen.iter().any(|one| one == name) {
            "found no device"
        } else {
            "not in this libfabric"
        };
        libfabric.providers.insert(name.to_owned(), why.to_owned());
    }
    let offered = |name: &str| {
        libfabric.offers.iter().any(|offer| offer.provider.split(';').any(|part| part == name))
    };
    let of_interest = |name: &String, _: &mut String| !name.starts_with("ofi_") && !offered(name);
    let mut providers = std::mem::take(&mut libfabric.providers);
    providers.retain(of_interest);
    libfabric.providers = providers;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_width_that_the_kernel_does_not_know_is_none() {
        let device = std::env::temp_dir().join(format!("ironrail-lanes-{}", std::process::id()));
        fs::create_dir_all(&device).unwrap();
        let of = |now: &str| {
            fs::write(device.join("current_link_width"), now).unwrap();
            fs::write(device.join("max_link_width"), "16").unwrap();
            place(&device).lanes
        };
        let found = ["8", "0", "255"].map(of);
        fs::remove_dir_all(&device).unwrap();
        assert_eq!(found, [Some((8, 16)), None, None]);
    }

    #[test]
    fn the_state_of_a_nic_is_that_of_its_first_active_port() {
        let ports = std::env::temp_dir().join(format!("ironrail-ports-{}", std::process::id()));
        let of = |states: [&str; 2]| {
            for (port, state) in ["1", "2"].iter().zip(states) {
                fs::create_dir_all(ports.join(port)).unwrap();
                fs::write(ports.join(port).join("state"), format!("{state}\n")).unwrap();
            }
            state(&ports).unwrap()
        };
        let found = [of(["1: DOWN", "4: ACTIVE"]), of(["2: INIT", "1: DOWN"])];
        fs::remove_dir_all(&ports).unwrap();
        assert_eq!((found, state(&ports)), (["4: ACTIVE", "2: INIT"].map(String::from), None));
    }

    #[test]
    fn an_interface_without_a_link_is_not_up() {
        let root = std::env::temp_dir().join(format!("ironrail-links-{}", std::process::id()));
        let home = root.join("sys/class/net/veth0");
        fs::create_dir_all(&home).unwrap();
        fs::write(home.join("flags"), "0x1003\n").unwrap();
        let is_up = |state: &str| {
            fs::write(home.join("operstate"), format!("{state}\n")).unwrap();
            interfaces(&root)[0].up
        };
        let found = ["up", "unknown", "down", "lowerlayerdown", "notpresent"].map(is_up);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [true, true, false, false, false]);
    }
}
