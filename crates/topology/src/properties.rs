//! What NCCL is told of a device, as far as the machine decides it.

use crate::address::PciAddress;
use crate::group::Grouping;
use crate::machine::Machine;
use crate::nic::Nic;

/// Of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Where it is: where its leader is.
    pub address: Option<PciAddress>,
    /// What its rails carry together, in Mb/s; none where nobody knows of one of them.
    pub speed_mbps: Option<u64>,
    /// The leader's own, where sysfs tells one that no other device has.
    pub guid: Option<u64>,
    /// Which device of a host it is, of several: devices of one number meet one another the way that hosts are cabled. None of
    /// interfaces.
    pub rail: Option<u16>,
}

/// Of each device, in their order.
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
