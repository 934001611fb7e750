//! A machine's PCI hierarchy, as data.

use std::collections::BTreeMap;
use std::fmt;

use crate::address::PciAddress;
use crate::link::Link;

/// One function on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// Its address.
    pub address: PciAddress,
    /// The bridge above it; None on a root bus.
    pub above: Option<PciAddress>,
    /// Class, subclass and interface: `0x020000`.
    pub class: u32,
    /// The vendor's id.
    pub vendor: u16,
    /// The vendor's device id.
    pub device: u16,
    /// The link to the bridge above.
    pub link: Link,
    /// The NUMA node; None if firmware does not report one (-1 in sysfs).
    pub numa: Option<u32>,
    /// The physical function of a virtual one.
    pub physical: Option<PciAddress>,
    /// The GUID of an RDMA device's node.
    pub node_guid: Option<u64>,
}

impl PciFunction {
    /// A function of which only the address is known.
    pub fn at(address: PciAddress) -> Self {
        Self {
            address,
            above: None,
            class: 0,
            vendor: 0,
            device: 0,
            link: Link::default(),
            numa: None,
            physical: None,
            node_guid: None,
        }
    }

    /// Its kind.
    pub fn role(&self) -> Role {
        match (self.class >> 8, self.vendor) {
            (0x0604, _) => Role::Bridge,
            // VGA or 3D controllers. A server's management controller has a VGA too, of another vendor.
            (0x0300 | 0x0302, NVIDIA) | (0x0380 | 0x1200, AMD | NVIDIA) => Role::Gpu,
            (0x0200 | 0x0207 | 0x0280, _) => Role::Nic,
            _ => Role::Other,
        }
    }
}

const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;

/// The kind of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A root port, or a port of a switch.
    Bridge,
    /// Computes.
    Gpu,
    /// Ethernet, InfiniBand, or another network.
    Nic,
    /// Anything else.
    Other,
}

/// Where paths over PCI meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Below a bridge: a port of a switch, or a root port.
    Bridge(PciAddress),
    /// Directly on a root bus, as in virtual machines, where everything behind one switch appears so.
    RootBus {
        /// Its domain.
        domain: u32,
        /// Its number.
        bus: u8,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridge(address) => write!(f, "bridge {address}"),
            Self::RootBus { domain, bus } => write!(f, "root bus {domain:04x}:{bus:02x}"),
        }
    }
}

/// The functions on a machine's PCI buses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    functions: BTreeMap<PciAddress, PciFunction>,
}

impl Machine {
    /// If an address occurs twice, the last one counts.
    pub fn new(functions: impl IntoIterator<Item = PciFunction>) -> Self {
        Self { functions: functions.into_iter().map(|one| (one.address, one)).collect() }
    }

    /// The function at an address.
    pub fn at(&self, address: PciAddress) -> Option<&PciFunction> {
        self.functions.get(&address)
    }

    /// Everything, by address.
    pub fn functions(&self) -> impl Iterator<Item = &PciFunction> {
        self.functions.values()
    }

    /// The GPUs, by address; without virtual functions of those described.
    pub fn gpus(&self) -> impl Iterator<Item = &PciFunction> {
        let is_part = |one: &PciFunction| one.physical.is_some_and(|at| self.at(at).is_some());
        self.functions().filter(move |one| one.role() == Role::Gpu && !is_part(one))
    }

    /// The bridges above a function, the nearest first. The list ends at a bridge that is not described, or occurs twice, and after as many
    /// bridges as a domain can have.
    pub fn bridges_above(&self, address: PciAddress) -> Vec<PciAddress> {
        let mut found = Vec::new();
        let mut above = self.at(address).and_then(|one| one.above);
        while let Some(bridge) =
            above.filter(|bridge| *bridge != address && !found.contains(bridge))
            && found.len() < BRIDGES_MAX
        {
            found.push(bridge);
            above = self.at(bridge).and_then(|one| one.above);
        }
        found
    }

    /// The places where a function can meet others: below each bridge above it, the nearest first; or on its root bus.
    pub(crate) fn places(&self, address: PciAddress) -> Vec<Place> {
        let bridges = self.bridges_above(address);
        if bridges.is_empty() && self.at(address).is_some() {
            return vec![Place::RootBus { domain: address.domain, bus: address.bus }];
        }
        bridges.into_iter().map(Place::Bridge).collect()
    }

    /// The functions of which NCCL makes nodes, from this one up to the CPU: it skips every second bridge, since it takes two for the ports
    /// of one switch (NCCL src/graph/xml.cc, ncclTopoGetXmlFromSys).
    pub(crate) fn nccl_nodes(&self, address: PciAddress) -> Vec<PciAddress> {
        let mut nodes = vec![address];
        nodes.extend(self.bridges_above(address).into_iter().skip(1).step_by(2));
        nodes
    }

    /// The link above a function as NCCL sees it.
    pub(crate) fn nccl_link(&self, address: PciAddress) -> Link {
        let link = |address| self.at(address).map(|one| one.link).unwrap_or_default();
        let above = self.at(address).and_then(|one| one.above).map(link).unwrap_or_default();
        link(address).as_nccl_sees(above)
    }
}

/// The buses of a domain: each bridge has another one below it.
const BRIDGES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str, above: &str) -> PciFunction {
        let mut made = PciFunction::at(address.parse().unwrap());
        made.above = above.parse().ok();
        made
    }

    fn shown<T: ToString>(all: &[T]) -> Vec<String> {
        all.iter().map(T::to_string).collect()
    }

    #[test]
    fn a_function_has_no_more_bridges_above_it_than_a_domain_has_buses() {
        let address = |number: u32| format!("{:04x}:{:02x}:00.0", number >> 8, number & 255);
        let chain = (1..1000).map(|number| at(&address(number), &address(number - 1)));
        let machine = Machine::new(chain);
        let above = machine.bridges_above(address(999).parse().unwrap());
        assert_eq!((above.len(), above[255].to_string()), (256, address(743)));
    }

    #[test]
    fn a_loop_and_a_missing_bridge_end_the_way_up() {
        let machine = Machine::new([
            at("0000:01:00.0", "0000:02:00.0"),
            at("0000:02:00.0", "0000:03:00.0"),
            at("0000:03:00.0", "0000:02:00.0"),
            at("0000:04:00.0", "0000:04:00.0"),
            at("0000:05:00.0", "0000:99:00.0"),
        ]);
        let above = |address: &str| shown(&machine.bridges_above(address.parse().unwrap()));
        assert_eq!(above("0000:01:00.0"), ["0000:02:00.0", "0000:03:00.0"]);
        assert_eq!(above("0000:03:00.0"), ["0000:02:00.0"]);
        assert!(above("0000:04:00.0").is_empty(), "a bridge above itself");
        assert_eq!(above("0000:05:00.0"), ["0000:99:00.0"], "it is named, and not described");
        assert!(machine.places("0000:77:00.0".parse().unwrap()).is_empty());
    }

    #[test]
    fn nccl_takes_two_bridges_for_one_switch() {
        let machine = Machine::new([
            at("0000:00:01.0", ""),
            at("0000:01:00.0", "0000:00:01.0"),
            at("0000:02:00.0", "0000:01:00.0"),
            at("0000:03:00.0", "0000:02:00.0"),
        ]);
        let nodes = |address: &str| shown(&machine.nccl_nodes(address.parse().unwrap()));
        assert_eq!(nodes("0000:03:00.0"), ["0000:03:00.0", "0000:01:00.0"]);
        assert_eq!(nodes("0000:02:00.0"), ["0000:02:00.0", "0000:00:01.0"]);
        assert_eq!(nodes("0000:01:00.0"), ["0000:01:00.0"], "below a root port comes the CPU");
    }

    #[test]
    fn a_management_controllers_vga_is_no_gpu() {
        let role = |class, vendor| PciFunction { class, vendor, ..at("0000:01:00.0", "") }.role();
        assert_eq!(role(0x03_0000, 0x1a03), Role::Other);
        assert_eq!(role(0x03_0200, 0x10de), Role::Gpu);
        assert_eq!(role(0x12_0000, 0x1002), Role::Gpu);
        assert_eq!(role(0x06_0400, 0x1000), Role::Bridge);
        assert_eq!(role(0x02_0700, 0x15b3), Role::Nic);
    }
}
