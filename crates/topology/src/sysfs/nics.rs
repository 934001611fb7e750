//! The NICs in sysfs, for callers that do not use libfabric.

use std::fs;
use std::path::Path;

use super::{function_of, interface};
use crate::address::PciAddress;
use crate::nic::Nic;

/// The family of NICs: the first one that exists, in the order in which the plugin prefers providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Slingshot's.
    Cxi,
    /// RDMA devices: EFA, InfiniBand, RoCE.
    Rdma,
    /// Interfaces driven by software.
    Interfaces,
}

/// The NICs of the machine, by name, and their family.
pub fn nics(sysfs: &Path) -> (Family, Vec<Nic>) {
    let of = |class: &str| names(&sysfs.join("class").join(class));
    let cxi: Vec<_> = of("cxi").iter().map(|name| cxi(sysfs, name)).collect();
    if !cxi.is_empty() {
        return (Family::Cxi, cxi);
    }
    let rdma: Vec<_> = of("infiniband").iter().map(|name| rdma(sysfs, name)).collect();
    if !rdma.is_empty() {
        return (Family::Rdma, rdma);
    }
    let interfaces = of("net").into_iter().filter(|name| stands_alone(sysfs, name));
    (Family::Interfaces, interfaces.map(|name| software(sysfs, &name)).collect())
}

/// Whether it is an interface that can have addresses: a port of a bond or of a bridge has none of its own. Files lie beside the
/// interfaces, such as `bonding_masters`.
fn stands_alone(sysfs: &Path, name: &str) -> bool {
    let home = sysfs.join("class/net").join(name);
    home.is_dir() && !["bonding_slave", "brport"].iter().any(|port| home.join(port).exists())
}

fn cxi(sysfs: &Path, name: &str) -> Nic {
    let home = sysfs.join("class/cxi").join(name);
    Nic { network: "Slingshot".to_owned(), ..driven(sysfs, &home, name) }
}

/// The link speed of an RDMA device, such as `mlx5_0`, in Mb/s.
pub fn rdma_speed_mbps(sysfs: &Path, name: &str) -> Option<u32> {
    rdma(sysfs, name).speed_mbps
}

/// The PCI function of an RDMA device, and whether the device is only a part of it, such as a subfunction.
pub fn rdma_function(sysfs: &Path, name: &str) -> Option<(PciAddress, bool)> {
    let Nic { address, is_part, .. } = rdma(sysfs, name);
    Some((address?, is_part))
}

/// An RDMA device by its first active port, as libfabric sees it (prov/verbs/src/verbs_info.c); by its first one if none is active.
fn rdma(sysfs: &Path, name: &str) -> Nic {
    let home = sysfs.join("class/infiniband").join(name);
    let ports: Vec<_> =
        names(&home.join("ports")).iter().map(|port| home.join("ports").join(port)).collect();
    let active = ports.iter().find(|port| port_state(port) == Some(ACTIVE));
    let port = active.or_else(|| ports.first()).cloned().unwrap_or_default();
    let read = |file: &str| fs::read_to_string(port.join(file)).unwrap_or_default();
    // `100 Gb/sec (4X EDR)`, `2.5 Gb/sec (1X SDR)`.
    let rate = read("rate");
    let rate = rate.split_whitespace().next().and_then(megabits);
    let known = driven(sysfs, &home, name);
    Nic {
        speed_mbps: rate.or(known.speed_mbps),
        link_up: port_state(&port).map(|state| state == ACTIVE),
        network: read("link_layer").trim().to_owned(),
        ..known
    }
}

/// The number in `4: ACTIVE`, `1: DOWN`.
fn port_state(port: &Path) -> Option<u8> {
    let state = fs::read_to_string(port.join("state")).ok()?;
    state.split(':').next()?.trim().parse().ok()
}

/// IB_PORT_ACTIVE.
const ACTIVE: u8 = 4;

/// `2.5` Gb/s in Mb/s.
fn megabits(text: &str) -> Option<u32> {
    let (whole, tenth) = text.split_once('.').unwrap_or((text, "0"));
    let whole = whole.parse::<u32>().ok()?.checked_mul(1000)?;
    whole.checked_add(tenth.parse::<u32>().ok().filter(|tenth| *tenth < 10)? * 100)
}

/// A NIC by its PCI function: its speed is that of its interface, if it has one.
fn driven(sysfs: &Path, home: &Path, name: &str) -> Nic {
    let function = fs::canonicalize(home.join("device")).ok();
    let address = function.as_deref().and_then(function_of);
    // A subfunction's folder, `mlx5_core.sf.4`, lies in that of its function.
    let own = function.as_deref().and_then(|at| at.file_name()?.to_str()?.parse().ok());
    let interfaces = function.as_deref().map(|at| names(&at.join("net"))).unwrap_or_default();
    Nic {
        name: name.to_owned(),
        address,
        is_part: address.is_some() && address != own,
        speed_mbps: interfaces.iter().find_map(|name| interface(sysfs, name).speed_mbps),
        link_up: None,
        network: String::new(),
        interface: None,
    }
}

fn software(sysfs: &Path, name: &str) -> Nic {
    let found = interface(sysfs, name);
    let state = fs::read_to_string(sysfs.join("class/net").join(name).join("operstate"));
    Nic {
        name: name.to_owned(),
        address: found.pci_path.as_deref().and_then(function_of),
        is_part: false,
        speed_mbps: found.speed_mbps,
        // Other values mean unknown: loopback has `unknown`.
        link_up: match state.unwrap_or_default().trim() {
            "up" => Some(true),
            "down" | "lowerlayerdown" | "notpresent" => Some(false),
            _ => None,
        },
        network: "Ethernet".to_owned(),
        interface: Some(found.class),
    }
}

/// The names in a directory, with numbers in order: `mlx5_2` before `mlx5_10`.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_by_key(|name| {
        (name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(), name.len(), name.clone())
    });
    names
}

#[cfg(test)]
mod tests {
    use super::super::tests::Tree;
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn rdma_devices_are_read_by_a_port() {
        let tree = Tree::new("rdma");
        for (name, rate, state) in [
            ("mlx5_10", "400 Gb/sec (4X NDR)", "4: ACTIVE"),
            ("mlx5_2", "2.5 Gb/sec (1X SDR)", "1: DOWN"),
        ] {
            let bus = if state.ends_with("DOWN") { "02" } else { "0a" };
            let home = tree.function(&format!("devices/pci0000:00/0000:{bus}:00.0"), &[]);
            let class = tree.directory(&format!("class/infiniband/{name}"));
            symlink(home, class.join("device")).unwrap();
            for (file, text) in [("rate", rate), ("state", state), ("link_layer", "InfiniBand\n")] {
                tree.file(&format!("class/infiniband/{name}/ports/1/{file}"), text);
            }
        }
        tree.file("class/net/eth0/operstate", "up\n");
        let (family, found) = nics(&tree.0);
        assert_eq!(family, Family::Rdma, "interfaces come after");
        let facts: Vec<_> =
            found.iter().map(|nic| (nic.name.as_str(), nic.speed_mbps, nic.link_up)).collect();
        assert_eq!(
            facts,
            [("mlx5_2", Some(2_500), Some(false)), ("mlx5_10", Some(400_000), Some(true))]
        );
        assert_eq!(found[1].address, "0000:0a:00.0".parse().ok());
        assert_eq!(found[1].network, "InfiniBand");
    }

    #[test]
    fn a_subfunction_is_a_part_of_its_function() {
        let tree = Tree::new("subfunctions");
        let home = tree.function("devices/pci0000:00/0000:03:00.0", &[]);
        let part = tree.directory("devices/pci0000:00/0000:03:00.0/mlx5_core.sf.4");
        for (name, home) in [("mlx5_0", home), ("mlx5_2", part)] {
            let class = tree.directory(&format!("class/infiniband/{name}"));
            symlink(home, class.join("device")).unwrap();
        }
        let (_, found) = nics(&tree.0);
        let facts: Vec<_> = found.iter().map(|nic| (nic.address, nic.is_part)).collect();
        let function = "0000:03:00.0".parse().ok();
        assert_eq!(facts, [(function, false), (function, true)]);
        assert_eq!(rdma_function(&tree.0, "mlx5_2"), function.map(|at| (at, true)));
        assert_eq!(rdma_function(&tree.0, "mlx5_9"), None);
    }

    #[test]
    fn a_device_of_two_ports_is_read_by_the_one_that_is_active() {
        let tree = Tree::new("ports");
        for (port, rate, state) in [
            (1, "10 Gb/sec (4X SDR)", "1: DOWN"),
            (2, "200 Gb/sec (4X HDR)", "4: ACTIVE"),
            (3, "100 Gb/sec (4X EDR)", "4: ACTIVE"),
        ] {
            for (file, text) in [("rate", rate), ("state", state)] {
                tree.file(&format!("class/infiniband/mlx5_0/ports/{port}/{file}"), text);
            }
        }
        let (_, found) = nics(&tree.0);
        assert_eq!((found[0].speed_mbps, found[0].link_up), (Some(200_000), Some(true)));
        assert_eq!(rdma_speed_mbps(&tree.0, "mlx5_0"), Some(200_000));
    }

    #[test]
    fn a_rate_past_all_numbers_is_unknown() {
        assert_eq!(megabits("400"), Some(400_000));
        assert_eq!(megabits("4294967.2"), Some(4_294_967_200));
        for text in ["4294967.9", "4294968", "2.55", "x", "", "."] {
            assert_eq!(megabits(text), None, "{text}");
        }
    }

    #[test]
    fn slingshot_comes_first_with_the_speed_of_its_interface() {
        let tree = Tree::new("slingshot");
        let home = tree.function("devices/pci0000:00/0000:01:00.0", &[("net/hsn0/flags", "")]);
        symlink(&home, tree.directory("class/cxi/cxi0").join("device")).unwrap();
        tree.file("class/net/hsn0/speed", "200000\n");
        tree.directory("class/infiniband/mlx5_0");
        let (family, found) = nics(&tree.0);
        assert_eq!((family, found.len(), found[0].speed_mbps), (Family::Cxi, 1, Some(200_000)));
    }

    #[test]
    fn ports_of_a_bond_or_bridge_and_files_beside_them_are_no_interfaces() {
        let tree = Tree::new("enslaved");
        tree.file("class/net/bonding_masters", "bond0\n");
        for name in ["bond0/bonding", "br0/bridge", "eth0/bonding_slave", "eth1/bonding_slave"] {
            tree.directory(&format!("class/net/{name}"));
        }
        tree.directory("class/net/eth2/brport");
        let (_, found) = nics(&tree.0);
        let names: Vec<_> = found.iter().map(|nic| nic.name.as_str()).collect();
        assert_eq!(names, ["bond0", "br0"], "the others have no addresses");
    }

    #[test]
    fn interfaces_are_used_where_there_are_no_nics() {
        let tree = Tree::new("interfaces");
        tree.file("class/net/eth0/operstate", "down\n");
        tree.file("class/net/lo/operstate", "unknown\n");
        let (family, found) = nics(&tree.0);
        assert_eq!(family, Family::Interfaces);
        let facts: Vec<_> = found.iter().map(|nic| (nic.name.as_str(), nic.link_up)).collect();
        assert_eq!(facts, [("eth0", Some(false)), ("lo", None)]);
    }
}
