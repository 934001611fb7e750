//! Reads the machine from sysfs, the only input of this crate. Missing files mean unknown facts; nothing fails.

mod interface;
mod nics;

use std::fs;
use std::path::{Path, PathBuf};

pub use interface::{Interface, interface};
pub use nics::{Family, nics, rdma_function, rdma_speed_mbps};

use crate::address::PciAddress;
use crate::link::{LaneSpeed, Link};
use crate::machine::{Machine, PciFunction, Role};

/// Where the kernel presents its devices.
pub const SYSFS: &str = "/sys";

/// The bridges, GPUs and NICs of the machine, and the functions at the addresses `also`.
pub fn machine(sysfs: &Path, also: &[PciAddress]) -> Machine {
    let entries = fs::read_dir(sysfs.join("bus/pci/devices"));
    let links = entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    Machine::new(links.filter_map(|link| function(&link, also)))
}

/// The directory of the PCI function at `address`.
pub fn directory(sysfs: &Path, address: PciAddress) -> Option<PathBuf> {
    on_pci(&sysfs.join("bus/pci/devices").join(address.to_string()))
}

/// The function of a directory, or of a file in it: the last address in the path.
pub fn function_of(directory: &Path) -> Option<PciAddress> {
    addresses(directory).next()
}

fn function(link: &Path, also: &[PciAddress]) -> Option<PciFunction> {
    let address = link.file_name()?.to_str()?.parse().ok()?;
    let made = PciFunction {
        class: number(&link.join("class")).and_then(|class| u32::try_from(class).ok()).unwrap_or(0),
        vendor: word(link, "vendor"),
        ..PciFunction::at(address)
    };
    let role = made.role();
    // There are hundreds of other functions, which are not needed.
    if role == Role::Other && !also.contains(&address) {
        return None;
    }
    let home = fs::canonicalize(link).ok()?;
    let lanes = number(&link.join("max_link_width")).and_then(|lanes| u16::try_from(lanes).ok());
    let speed = fs::read_to_string(link.join("max_link_speed")).ok();
    Some(PciFunction {
        above: addresses(&home).nth(1),
        device: word(link, "device"),
        link: Link {
            speed: speed.as_deref().and_then(LaneSpeed::parse),
            // 0 means unknown. So does 255, which NCCL takes for a number.
            lanes: lanes.filter(|lanes| (1..=255).contains(lanes)),
        },
        numa: number(&link.join("numa_node")).and_then(|node| u32::try_from(node).ok()),
        physical: fs::canonicalize(link.join("physfn")).ok().and_then(|at| function_of(&at)),
        node_guid: if role == Role::Nic { node_guid(link) } else { None },
        ..made
    })
}

/// The addresses at the end of a path, the last one first.
fn addresses(path: &Path) -> impl Iterator<Item = PciAddress> {
    let address = |part: &Path| part.file_name()?.to_str()?.parse().ok();
    let parts: Vec<_> = path.ancestors().map(address).collect();
    parts.into_iter().skip_while(Option::is_none).map_while(|address| address)
}

fn node_guid(function: &Path) -> Option<u64> {
    let mut devices = fs::read_dir(function.join("infiniband")).ok()?;
    let text = fs::read_to_string(devices.next()?.ok()?.path().join("node_guid")).ok()?;
    u64::from_str_radix(&text.trim().replace(':', ""), 16).ok()
}

/// NCCL reads the link `subsystem` there, and needs the real directory.
fn on_pci(link: &Path) -> Option<PathBuf> {
    let path = fs::canonicalize(link).ok()?;
    let subsystem = fs::canonicalize(path.join("subsystem")).ok()?;
    subsystem.ends_with("pci").then_some(path)
}

fn word(function: &Path, file: &str) -> u16 {
    number(&function.join(file)).and_then(|word| u16::try_from(word).ok()).unwrap_or(0)
}

/// A decimal number, or a hexadecimal one after `0x`.
fn number(path: &Path) -> Option<i64> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory tree like the kernel's, removed when dropped.
    pub(super) struct Tree(pub(super) PathBuf);

    impl Tree {
        pub(super) fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("ironrail-{name}-{}", std::process::id()));
            fs::create_dir_all(&root).unwrap();
            Self(fs::canonicalize(root).unwrap())
        }

        pub(super) fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        pub(super) fn directory(&self, path: &str) -> PathBuf {
            fs::create_dir_all(self.0.join(path)).unwrap();
            self.0.join(path)
        }

        /// A function on the bus, with these files.
        pub(super) fn function(&self, path: &str, files: &[(&str, &str)]) -> PathBuf {
            let home = self.directory(path);
            symlink(self.directory("bus/pci"), home.join("subsystem")).unwrap();
            let devices = self.directory("bus/pci/devices");
            symlink(&home, devices.join(home.file_name().unwrap())).unwrap();
            for (file, text) in files {
                self.file(&format!("{path}/{file}"), text);
            }
            home
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _left_behind = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn functions_are_read_with_their_bridges_and_links() {
        let tree = Tree::new("machine");
        let port = "devices/pci0000:44/0000:44:00.0";
        let nic = "devices/pci0000:44/0000:44:00.0/0000:4f:00.0";
        tree.function(
            port,
            &[("class", "0x060400\n"), ("vendor", "0x1d0f\n"), ("numa_node", "0\n")],
        );
        let home = tree.function(
            nic,
            &[
                ("class", "0x020000\n"),
                ("vendor", "0x1d0f\n"),
                ("device", "0xefa1\n"),
                ("max_link_speed", "16.0 GT/s PCIe\n"),
                ("max_link_width", "8\n"),
                ("numa_node", "-1\n"),
                ("infiniband/rdmap79s0/node_guid", "cd77:f833:0000:1001\n"),
            ],
        );
        tree.function(
            "devices/pci0000:44/0000:44:01.0",
            &[("class", "0x010802\n"), ("numa_node", "0\n")],
        );
        symlink(&home, tree.directory("elsewhere").join("device")).unwrap();
        let machine = machine(&tree.0, &[]);
        assert_eq!(machine.functions().count(), 2, "storage is left out");
        let read = machine.at("0000:4f:00.0".parse().unwrap()).unwrap();
        assert_eq!(read.above, "0000:44:00.0".parse().ok());
        assert_eq!((read.vendor, read.device, read.numa), (0x1d0f, 0xefa1, None));
        assert_eq!(read.link.speed.map(LaneSpeed::text).as_deref(), Some("16.0 GT/s PCIe"));
        assert_eq!((read.link.lanes, read.node_guid), (Some(8), Some(0xcd77_f833_0000_1001)));
        assert_eq!(machine.at("0000:44:00.0".parse().unwrap()).unwrap().above, None);
        assert_eq!(directory(&tree.0, read.address).as_deref(), Some(home.as_path()));
        assert_eq!(function_of(&home.join("net/eth0")), Some(read.address));
        assert_eq!(
            super::machine(&tree.0, &["0000:44:01.0".parse().unwrap()]).functions().count(),
            3
        );
    }

    #[test]
    fn a_virtual_function_names_its_physical_one() {
        let tree = Tree::new("virtual");
        let nic =
            [("class", "0x020000\n"), ("max_link_width", "255\n"), ("max_link_speed", "Unknown\n")];
        let physical = tree.function("devices/pci0000:00/0000:01:00.0", &nic);
        let one = tree.function("devices/pci0000:00/0000:01:00.2", &nic);
        symlink(physical, one.join("physfn")).unwrap();
        let machine = machine(&tree.0, &[]);
        let read = machine.at("0000:01:00.2".parse().unwrap()).unwrap();
        assert_eq!(read.physical, "0000:01:00.0".parse().ok());
        assert_eq!(read.link, Link { speed: None, lanes: Some(255) });
    }

    /// NCCL takes the smaller number of both ends (NCCL src/graph/xml.cc), and 255 is the kernel's for a function that does not say.
    #[test]
    fn a_function_of_unknown_width_has_the_lanes_of_the_port_above() {
        let tree = Tree::new("width");
        let port = "devices/pci0000:00/0000:00:01.0";
        let eight = [
            ("class", "0x060400\n"),
            ("max_link_width", "8\n"),
            ("max_link_speed", "16.0 GT/s PCIe\n"),
        ];
        tree.function(port, &eight);
        let nic =
            [("class", "0x020000\n"), ("max_link_width", "255\n"), ("max_link_speed", "Unknown\n")];
        tree.function(&format!("{port}/0000:01:00.2"), &nic);
        let seen = machine(&tree.0, &[]).nccl_link("0000:01:00.2".parse().unwrap());
        assert_eq!(seen.mbps(), 8 * 12_000);
    }

    #[test]
    fn a_machine_without_pci_has_no_functions() {
        let tree = Tree::new("nothing");
        assert_eq!(machine(&tree.0, &[]), Machine::default());
    }
}
