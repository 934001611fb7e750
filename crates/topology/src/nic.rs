//! A NIC, or an interface, that may become a rail.

use crate::address::PciAddress;

/// A NIC or interface that can carry a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name for users: `mlx5_0`, `cxi0`, `eth0`.
    pub name: String,
    /// Its PCI address, if it has one.
    pub address: Option<PciAddress>,
    /// Whether it is a part of the function at its address, and shares that one's port: a subfunction of mlx5, for instance.
    pub is_part: bool,
    /// The speed of its port in Mb/s, if known.
    pub speed_mbps: Option<u32>,
    /// Whether its port has a link, if known.
    pub link_up: Option<bool>,
    /// The kind of network: `InfiniBand`, `Ethernet`; may be empty.
    pub network: String,
    /// The class of an interface driven by software; None for a NIC that its provider drives.
    pub interface: Option<Class>,
}

/// The classes of interfaces, the one that most likely reaches other hosts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Any other interface.
    Ordinary,
    /// A bridge, which may have the host's own address on a machine with virtual guests.
    Bridge,
    /// It has a link-local address only.
    LinkLocal,
    /// It reaches this host only.
    Loopback,
    /// A bridge for this host's containers only.
    Container,
}

impl Class {
    /// The word in sentences: "the … interfaces".
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
