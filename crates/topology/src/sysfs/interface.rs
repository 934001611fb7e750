//! Facts about a network interface from sysfs.

use std::path::{Path, PathBuf};

use super::{number, on_pci};
use crate::nic::Class;

/// The known facts about a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// How far it reaches.
    pub class: Class,
    /// The speed of its link, in Mb/s.
    pub speed_mbps: Option<u32>,
    /// The directory of its PCI device, if it has one.
    pub pci_path: Option<PathBuf>,
}

/// Reads an interface. A name that is no interface, such as `shm`, gives no facts.
pub fn interface(sysfs: &Path, name: &str) -> Interface {
    let home = sysfs.join("class/net").join(name);
    // A domain's name is used as a file name here, and libfabric chooses it.
    if name.contains('/') || !home.exists() {
        return Interface { class: Class::Ordinary, speed_mbps: None, pci_path: None };
    }
    // -1 and EINVAL mean unknown, as for virtual interfaces and links that are down.
    let speed = number(&home.join("speed")).and_then(|speed| u32::try_from(speed).ok());
    Interface {
        class: class(&home, name),
        speed_mbps: speed.filter(|speed| *speed > 0),
        pci_path: on_pci(&home.join("device")),
    }
}

fn class(home: &Path, name: &str) -> Class {
    if number(&home.join("type")) == Some(ARPHRD_LOOPBACK) {
        Class::Loopback
    } else if CONTAINER_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        Class::Container
    } else if home.join("bridge").exists() {
        Class::Bridge
    } else {
        Class::Ordinary
    }
}

/// linux/if_arp.h.
const ARPHRD_LOOPBACK: i64 = 772;

/// Name prefixes of bridges made by container and guest managers: docker, docker networks, libvirt, CNI, LXC, podman.
const CONTAINER_PREFIXES: &[&str] =
    &["docker", "br-", "virbr", "cni", "flannel", "lxcbr", "lxdbr", "podman"];

#[cfg(test)]
mod tests {
    use super::super::tests::Tree;
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_interface_on_pci_has_a_speed_and_a_place() {
        let tree = Tree::new("pci");
        let nic = tree.directory("devices/pci0000:00/0000:00:01.0/0000:01:00.0");
        symlink(tree.directory("bus/pci"), nic.join("subsystem")).unwrap();
        symlink(&nic, tree.directory("bus/pci/devices").join("0000:01:00.0")).unwrap();
        tree.file("class/net/eth0/speed", "100000\n");
        tree.file("class/net/eth0/type", "1\n");
        symlink(&nic, tree.0.join("class/net/eth0/device")).unwrap();

        let found = interface(&tree.0, "eth0");
        assert_eq!(
            found,
            Interface {
                class: Class::Ordinary,
                speed_mbps: Some(100_000),
                pci_path: Some(nic.clone())
            }
        );
    }

    #[test]
    fn a_device_on_another_bus_has_no_place_on_pci() {
        let tree = Tree::new("virtio");
        let device = tree.directory("devices/virtio0");
        symlink(tree.directory("bus/virtio"), device.join("subsystem")).unwrap();
        tree.file("class/net/eth0/speed", "-1\n");
        symlink(&device, tree.0.join("class/net/eth0/device")).unwrap();
        assert_eq!(
            interface(&tree.0, "eth0"),
            Interface { class: Class::Ordinary, speed_mbps: None, pci_path: None }
        );
    }

    #[test]
    fn each_class_is_distinguished() {
        let tree = Tree::new("classes");
        tree.file("class/net/lo/type", "772\n");
        tree.directory("class/net/br0/bridge");
        tree.directory("class/net/docker0/bridge");
        tree.directory("class/net/br-0123456789ab/bridge");
        tree.file("class/net/eth0/type", "1\n");
        for (name, class) in [
            ("lo", Class::Loopback),
            ("br0", Class::Bridge),
            ("docker0", Class::Container),
            ("br-0123456789ab", Class::Container),
            ("eth0", Class::Ordinary),
        ] {
            assert_eq!(interface(&tree.0, name).class, class, "{name}");
        }
    }

    #[test]
    fn a_name_that_is_no_interface_is_ordinary_and_reads_nothing() {
        let tree = Tree::new("none");
        tree.file("class/net/eth0/type", "772\n");
        for name in ["shm", "../net/eth0"] {
            assert_eq!(
                interface(&tree.0, name),
                Interface { class: Class::Ordinary, speed_mbps: None, pci_path: None }
            );
        }
    }
}
