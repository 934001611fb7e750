//! A NIC, or an interface, that may become a rail.

use crate::address::PciAddress;

/// One thing that can carry a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// As users know it: `mlx5_0`, `cxi0`, `eth0`.
    pub name: String,
    /// Where it is on the PCI bus, if it is.
    pub address: Option<PciAddress>,
    /// The speed of its port, in Mb/s, where somebody tells.
    pub speed_mbps: Option<u32>,
    /// Whether its port has a link, where somebody tells.
    pub link_up: Option<bool>,
    /// The kind of network: `InfiniBand`, `Ethernet`; may be empty.
    pub network: String,
    /// Of an interface that software drives, how far it leads; none of a NIC that its provider drives itself.
    pub interface: Option<Class>,
}

/// How likely an interface leads to other hosts: the likeliest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Nothing is special about it.
    Ordinary,
    /// May carry the host's own address on a machine with virtual guests.
    Bridge,
    /// Has an address of its own link alone.
    LinkLocal,
    /// Leads to the host itself.
    Loopback,
    /// A bridge that leads to this host's containers only.
    Container,
}

impl Class {
    /// For sentences: "the … interfaces".
    pub fn word(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Bridge => "bridge",
            Self::LinkLocal => "link-local",
            Self::Loopback => "loopback",
            Self::Container => "container",
        }
    }
}
