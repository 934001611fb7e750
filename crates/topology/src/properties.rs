//! A device's properties for NCCL, as far as the machine determines them.

use crate::address::PciAddress;
use crate::group::Grouping;
use crate::machine::Machine;
use crate::nic::Nic;

/// The properties of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The address of its leader.
    pub address: Option<PciAddress>,
    /// The speed of its rails together, in Mb/s; None if that of any rail is unknown.
    pub speed_mbps: Option<u64>,
    /// The leader's GUID, if sysfs has one that no other device has.
    pub guid: Option<u64>,
    /// The number of the device among those of a host: by the usual cabling, devices with the same number reach each other directly. None
    /// for interfaces.
    pub rail: Option<u16>,
}

/// The properties of each device, in order.
pub fn properties(machine: &Machine, nics: &[Nic], grouping: &Grouping) -> Vec<Properties> {
    let guid = |nic: usize| {
        let function = machine.at(nics[nic].address?)?;
        function.node_guid.filter(|guid| *guid != 0)
    };
    let leaders: Vec<_> =
        grouping.groups.iter().map(|group| group.rails.first().copied()).collect();
    let guids: Vec<_> = leaders.iter().map(|leader| guid((*leader)?)).collect();
    let of = |(index, leader): (usize, &Option<usize>)| {
        let rails = &grouping.groups[index].rails;
        let speeds = rails.iter().map(|rail| nics[*rail].speed_mbps.map(u64::from));
        let is_driven = leader.is_some_and(|leader| nics[leader].interface.is_none());
        let is_alone = guids.iter().filter(|other| **other == guids[index]).count() == 1;
        Properties {
            address: leader.and_then(|leader| nics[leader].address),
            speed_mbps: speeds.sum(),
            guid: guids[index].filter(|_| is_alone),
            rail: u16::try_from(index).ok().filter(|_| is_driven && leaders.len() > 1),
        }
    };
    leaders.iter().enumerate().map(of).collect()
}
