//! Which NICs make one device.
//!
//! - A GPU and a NIC *meet* below the closest bridge above both, or on a root bus that both are directly on. The NICs that meet GPUs below
//!   one bridge are divided evenly into as many devices as there are GPUs, or as there are NICs, if there are fewer. A GPU meets its closest
//!   NICs alone.
//! - NICs that meet no GPU make one device per root port.
//! - The rails of a device have one speed and one kind of network. Beyond the limit of rails there are more devices, divided evenly again.
//! - A port counts once: of a port, its virtual functions and its subfunctions, one is a rail. A port without a link is no rail, unless no port has a link.
//! - Interfaces driven by software go through host memory, wherever they are: all of the best class make one device, whatever their speeds,
//!   and those beyond the limit of rails carry none.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::address::PciAddress;
use crate::machine::{Machine, Place};
use crate::nic::{Class, Nic};

/// The devices, in the order of their first rails' addresses, and the NICs in none.
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
    /// Its rails, as indices of the list of NICs; the first one leads: NCCL is given its address as the device's.
    pub rails: Vec<usize>,
    /// Why these NICs.
    pub reason: Reason,
}

/// Why NICs are one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// They meet GPUs.
    Gpus {
        /// The bridge or bus where they meet.
        place: Place,
        /// The GPUs.
        gpus: Vec<PciAddress>,
        /// The number of NICs of one kind that meet these GPUs.
        nics: usize,
        /// The number of devices that these make.
        devices: usize,
    },
    /// They are below one root port, and meet no GPU.
    RootPort {
        /// The root port.
        port: PciAddress,
        /// The number of NICs of one kind below it.
        nics: usize,
        /// The number of devices that these make.
        devices: usize,
    },
    /// Nothing is known about its neighbours.
    Alone,
    /// They are interfaces of this class, driven by software.
    Interfaces(Class),
    /// The user named them.
    Named,
}

/// A NIC that carries no rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its index in the list.
    pub nic: usize,
    /// Why it carries none.
    pub why: Omission,
}

/// Why a NIC carries no rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omission {
    /// Its port has no link, and other ports have.
    LinkDown,
    /// It is a function of the same port as this one, by its index.
    SamePort(usize),
    /// Interfaces of a better class exist.
    LeadsLessFar(Class),
    /// The device has its maximum of rails.
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
    // NICs that are not on the bus come last, in the order of the list.
    made.groups.sort_by_key(|group| {
        let leader = group.rails[0];
        (nics[leader].address.is_none(), nics[leader].address, leader)
    });
    made.groups.extend(group_interfaces(nics, interfaces, rails_max, &mut made.left_out));
    made
}

/// The properties by which the NICs of one place are divided: the rails of a device must be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind<'a> {
    /// Sorted from the fastest.
    speed: Reverse<Option<u32>>,
    network: &'a str,
}

impl<'a> Kind<'a> {
    fn of(nic: &'a Nic) -> Self {
        Self { speed: Reverse(nic.speed_mbps), network: &nic.network }
    }
}

/// The place to which a NIC belongs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Home {
    Meeting {
        place: Place,
        gpus: Vec<PciAddress>,
    },
    RootPort(PciAddress),
    /// By its index in the list.
    Alone(usize),
}

impl Home {
    /// The number of devices that its NICs make: as many as there are GPUs, each with the same number of NICs.
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

/// The place of each of `driven`.
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

/// The NICs without ports that lack a link, and with one function of each port.
fn usable(machine: &Machine, nics: &[Nic], left_out: &mut Vec<LeftOut>) -> Vec<usize> {
    let is_down = |nic: &usize| nics[*nic].link_up == Some(false);
    let all: Vec<usize> = (0..nics.len()).collect();
    let any_is_up = all.iter().any(|nic| !is_down(nic));
    let (down, up): (Vec<_>, Vec<_>) = all.into_iter().partition(|nic| any_is_up && is_down(nic));
    left_out.extend(down.into_iter().map(|nic| LeftOut { nic, why: Omission::LinkDown }));
    let physical = |nic: usize| machine.at(nics[nic].address?)?.physical;
    let port = |nic: usize| physical(nic).or(nics[nic].address);
    // A virtual function or a subfunction.
    let is_virtual = |nic: usize| physical(nic).is_some() || nics[nic].is_part;
    let mut taken = Vec::new();
    for nic in &up {
        // Physical functions have ports of their own, even if they share an address.
        let shares = |other: &&usize| {
            let is_virtual = is_virtual(*nic) || is_virtual(**other);
            *other == nic || is_virtual && port(*nic).is_some() && port(*nic) == port(**other)
        };
        let mut rivals = up.iter().filter(shares).copied().collect::<Vec<_>>();
        rivals.sort_by_key(|rival| (is_virtual(*rival), nics[*rival].address, *rival));
        match rivals.first().filter(|best| *best != nic) {
            Some(best) => left_out.push(LeftOut { nic: *nic, why: Omission::SamePort(*best) }),
            None => taken.push(*nic),
        }
    }
    taken
}

/// All interfaces of the best class in one device, the fastest first.
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

/// Divides a list into `pieces` whose lengths differ by at most one, the longer ones first.
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
