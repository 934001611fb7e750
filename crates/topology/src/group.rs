//! Which NICs make one device.
//!
//! - A GPU and a NIC *meet* below the closest bridge above both, or on a root bus that both sit on directly. The NICs that meet GPUs below
//!   one bridge make as many devices as there are GPUs, evenly, or as there are NICs, if those are fewer.
//! - NICs that meet no GPU make one device for each root port.
//! - A device's rails are alike: of one speed and one kind of network. Beyond the limit of rails there are more devices, evenly again.
//! - A port counts once: of the virtual functions of one port, and that port itself, one is a rail. A port without a link is none, unless
//!   none has one.
//! - Interfaces that software drives go through the host's memory, wherever they are: all of the likeliest class make one device.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::address::PciAddress;
use crate::machine::{Machine, Place};
use crate::nic::{Class, Nic};

/// The devices, in the order of their first rails' addresses, and what is in none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grouping {
    /// The devices.
    pub groups: Vec<Group>,
    /// The NICs that carry no rail.
    pub left_out: Vec<LeftOut>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its rails, by their places in the list of NICs; the first one leads: NCCL is told that the device is where that NIC is.
    pub rails: Vec<usize>,
    /// Why these.
    pub reason: Reason,
}

/// Why NICs are one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// They meet GPUs.
    Gpus {
        /// Below which bridge.
        place: Place,
        /// Which GPUs.
        gpus: Vec<PciAddress>,
        /// How many NICs of their kind meet these GPUs.
        nics: usize,
        /// How many devices these make.
        devices: usize,
    },
    /// They are below one root port, and meet no GPU.
    RootPort {
        /// Which.
        port: PciAddress,
        /// How many NICs of their kind are there.
        nics: usize,
        /// How many devices these make.
        devices: usize,
    },
    /// Nothing is known to be near this one.
    Alone,
    /// They are interfaces of this class, which software drives.
    Interfaces(Class),
    /// A user names them.
    Named,
}

/// A NIC that carries no rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its place in the list.
    pub nic: usize,
    /// Why.
    pub why: Omission,
}

/// Why a NIC carries no rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omission {
    /// Its port has no link, and others have.
    LinkDown,
    /// It is a function of a port that this one, by its place in the list, stands for.
    SamePort(usize),
    /// Interfaces of this class lead further.
    LeadsLessFar(Class),
    /// The device has as many rails as it may.
    BeyondLimit,
}

/// Groups `nics` into devices of at most `rails_max` rails each (at least 1).
pub fn group(machine: &Machine, nics: &[Nic], rails_max: usize) -> Grouping {
    let rails_max = rails_max.max(1);
    let mut made = Grouping::default();
    let usable = usable(machine, nics, &mut made.left_out);
    let (driven, interfaces): (Vec<_>, Vec<_>) =
        usable.into_iter().partition(|nic| nics[*nic].interface.is_none());
    let home = homes(machine, nics, &driven);
    let mut sets: BTreeMap<(Home, Kind<'_>), Vec<usize>> = BTreeMap::new();
    for (nic, home) in driven.into_iter().zip(home) {
        sets.entry((home, Kind::of(&nics[nic]))).or_default().push(nic);
    }
    for ((home, _), mut set) in sets {
        set.sort_by_key(|nic| (nics[*nic].address, *nic));
        let devices = home.devices(set.len(), rails_max);
        let reason = home.reason(set.len(), devices);
        let groups = evenly(&set, devices);
        made.groups.extend(groups.map(|rails| Group { rails, reason: reason.clone() }));
    }
    // A NIC that is not on the bus comes behind all that are, in the order of the list.
    made.groups.sort_by_key(|group| {
        let leader = group.rails[0];
        (nics[leader].address.is_none(), nics[leader].address, leader)
    });
    made.groups.extend(group_interfaces(nics, interfaces, rails_max, &mut made.left_out));
    made
}

/// What divides the NICs of one place: a message is cut over rails that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind<'a> {
    /// The fastest first.
    speed: Reverse<Option<u32>>,
    network: &'a str,
}

impl<'a> Kind<'a> {
    fn of(nic: &'a Nic) -> Self {
        Self { speed: Reverse(nic.speed_mbps), network: &nic.network }
    }
}

/// Where a NIC belongs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Home {
    Meeting {
        place: Place,
        gpus: Vec<PciAddress>,
    },
    RootPort(PciAddress),
    /// With its place in the list.
    Alone(usize),
}

impl Home {
    /// How many devices its NICs make: as many as GPUs, each of which then has as many as any other.
    fn devices(&self, nics: usize, rails_max: usize) -> usize {
        let least = nics.div_ceil(rails_max);
        match self {
            Self::Meeting { gpus, .. } => least.next_multiple_of(gpus.len().max(1)).min(nics),
            Self::RootPort(_) | Self::Alone(_) => least,
        }
    }

    fn reason(&self, nics: usize, devices: usize) -> Reason {
        match self {
            Self::Meeting { place, gpus } => {
                Reason::Gpus { place: *place, gpus: gpus.clone(), nics, devices }
            }
            Self::RootPort(port) => Reason::RootPort { port: *port, nics, devices },
            Self::Alone(_) => Reason::Alone,
        }
    }
}

/// The home of each of `driven`.
fn homes(machine: &Machine, nics: &[Nic], driven: &[usize]) -> Vec<Home> {
    let address = |nic: &usize| nics[*nic].address;
    let places = |nic: &usize| address(nic).map(|at| machine.places(at)).unwrap_or_default();
    let with_nics: BTreeSet<Place> = driven.iter().flat_map(&places).collect();
    let mut gpus: BTreeMap<Place, Vec<PciAddress>> = BTreeMap::new();
    for gpu in machine.gpus() {
        let closest =
            machine.places(gpu.address).into_iter().find(|place| with_nics.contains(place));
        if let Some(place) = closest {
            gpus.entry(place).or_default().push(gpu.address);
        }
    }
    let home = |nic: &usize| {
        let meeting = places(nic).into_iter().find_map(|place| Some((place, gpus.get(&place)?)));
        if let Some((place, gpus)) = meeting {
            return Home::Meeting { place, gpus: gpus.clone() };
        }
        let root_port = address(nic).and_then(|at| machine.bridges_above(at).last().copied());
        root_port.map_or(Home::Alone(*nic), Home::RootPort)
    };
    driven.iter().map(home).collect()
}

/// Without ports that have no link, and all but one function of each port.
fn usable(machine: &Machine, nics: &[Nic], left_out: &mut Vec<LeftOut>) -> Vec<usize> {
    let is_down = |nic: &usize| nics[*nic].link_up == Some(false);
    let all: Vec<usize> = (0..nics.len()).collect();
    let any_is_up = all.iter().any(|nic| !is_down(nic));
    let (down, up): (Vec<_>, Vec<_>) = all.into_iter().partition(|nic| any_is_up && is_down(nic));
    left_out.extend(down.into_iter().map(|nic| LeftOut { nic, why: Omission::LinkDown }));
    let physical = |nic: usize| machine.at(nics[nic].address?)?.physical;
    let port = |nic: usize| physical(nic).or(nics[nic].address);
    let mut taken = Vec::new();
    for nic in &up {
        // Functions that are physical have ports of their own, whatever address they share.
        let shares = |other: &&usize| {
            let is_virtual = physical(*nic).is_some() || physical(**other).is_some();
            *other == nic || is_virtual && port(*nic).is_some() && port(*nic) == port(**other)
        };
        let mut rivals = up.iter().filter(shares).copied().collect::<Vec<_>>();
        rivals.sort_by_key(|rival| (physical(*rival).is_some(), nics[*rival].address, *rival));
        match rivals.first().filter(|best| *best != nic) {
            Some(best) => left_out.push(LeftOut { nic: *nic, why: Omission::SamePort(*best) }),
            None => taken.push(*nic),
        }
    }
    taken
}

/// All interfaces of the likeliest class in one device, the fastest first.
fn group_interfaces(
    nics: &[Nic],
    interfaces: Vec<usize>,
    rails_max: usize,
    left_out: &mut Vec<LeftOut>,
) -> Option<Group> {
    let class_of = |nic: &usize| nics[*nic].interface.unwrap_or(Class::Ordinary);
    let class = interfaces.iter().map(class_of).min()?;
    let (mut rails, others): (Vec<_>, Vec<_>) =
        interfaces.into_iter().partition(|nic| class_of(nic) == class);
    left_out
        .extend(others.into_iter().map(|nic| LeftOut { nic, why: Omission::LeadsLessFar(class) }));
    rails.sort_by_key(|nic| Reverse(nics[*nic].speed_mbps));
    let beyond = rails.split_off(rails_max.min(rails.len()));
    left_out.extend(beyond.into_iter().map(|nic| LeftOut { nic, why: Omission::BeyondLimit }));
    Some(Group { rails, reason: Reason::Interfaces(class) })
}

/// Cuts a list into so many pieces, whose lengths differ by one at most, the longer ones first.
fn evenly(list: &[usize], pieces: usize) -> impl Iterator<Item = Vec<usize>> {
    let pieces = pieces.clamp(1, list.len().max(1));
    let (each, more) = (list.len() / pieces, list.len() % pieces);
    let mut rest = list;
    (0..pieces).map(move |piece| {
        let (taken, left) = rest.split_at(each + usize::from(piece < more));
        rest = left;
        taken.to_vec()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_even_and_hold_everything() {
        for count in 1..20 {
            let list: Vec<usize> = (0..count).collect();
            for pieces in 1..=count {
                let cut: Vec<_> = evenly(&list, pieces).collect();
                assert_eq!(cut.len(), pieces);
                assert_eq!(cut.concat(), list);
                let sizes = cut.iter().map(Vec::len);
                assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn every_gpu_has_as_many_devices_as_any_other() {
        let gpu = |device| PciAddress { domain: 0, bus: 0, device, function: 0 };
        let place = Place::RootBus { domain: 0, bus: 0 };
        for gpus in 1..6_u8 {
            let home = Home::Meeting { place, gpus: (0..gpus).map(gpu).collect() };
            for nics in 1..40 {
                for rails_max in 1..9 {
                    let devices = home.devices(nics, rails_max);
                    assert!((1..=nics).contains(&devices));
                    assert!(nics.div_ceil(devices) <= rails_max, "{nics} in {devices}");
                    assert!(devices == nics || devices.is_multiple_of(gpus.into()));
                }
            }
        }
    }
}
