//! A file that tells NCCL how wide a device is, where it would believe less.
//!
//! NCCL takes a device for as fast as the PCIe link of the one NIC that it is told of. The rails of a device have links of their own, so
//! NCCL would use a part of what they carry. The file raises the width of the leader's link, and of the switches' between it and where the
//! rails' ways meet. It holds nothing else: what a node of the file does not say NCCL reads from sysfs, as of any other, and nodes that
//! lead to nothing it drops (NCCL src/graph/xml.cc, ncclTopoGetXmlFromSys and ncclTopoTrimXml).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::address::PciAddress;
use crate::group::{Group, Grouping};
use crate::link::LaneSpeed;
use crate::machine::Machine;
use crate::nic::Nic;

/// What NCCL is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The file's text, in NCCL's form.
    pub xml: String,
    /// For which devices, and why.
    pub raised: Vec<Raised>,
}

/// A device that is wider than NCCL would believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// Its place among the groups.
    pub device: usize,
    /// Whose link is raised.
    pub leader: PciAddress,
    /// What NCCL would believe, in Mb/s as it counts PCIe.
    pub believed_mbps: u64,
    /// What the rails carry together, and their links let through, in Mb/s.
    pub carries_mbps: u64,
    /// The lanes that NCCL is told.
    pub lanes: u64,
}

/// The file, if any device needs it.
pub fn hint(machine: &Machine, nics: &[Nic], grouping: &Grouping) -> Option<Hint> {
    let groups = grouping.groups.iter().enumerate();
    let raised: Vec<Raised> =
        groups.filter_map(|(device, group)| raise(machine, nics, device, group)).collect();
    if raised.is_empty() {
        return None;
    }
    let mut cpus: BTreeMap<String, Tree> = BTreeMap::new();
    for one in &raised {
        let nodes = machine.nccl_nodes(one.leader);
        let top = nodes.last().and_then(|top| machine.at(*top)).and_then(|top| top.numa);
        let numa = top.map_or_else(|| "-1".to_owned(), |numa| numa.to_string());
        let meeting = meeting_bridges(machine, nics, &grouping.groups[one.device]);
        let mut tree = cpus.entry(numa).or_default();
        for node in nodes.iter().rev() {
            tree = tree.below.entry(*node).or_default();
            if !meeting.contains(node) {
                tree.widen(machine, *node, one.carries_mbps);
            }
        }
    }
    Some(Hint { xml: xml(&cpus), raised })
}

fn raise(machine: &Machine, nics: &[Nic], device: usize, group: &Group) -> Option<Raised> {
    let leader = nics[*group.rails.first()?].address?;
    // What sysfs does not have NCCL attaches to a CPU, behind no link.
    machine.at(leader)?;
    let (mut carries_mbps, mut cards) = (0, Vec::<PciAddress>::new());
    for rail in &group.rails {
        let address = nics[*rail].address?;
        // Functions of one card have one link, which lets through what it does.
        if cards.iter().any(|card| card.same_card(address)) {
            continue;
        }
        cards.push(address);
        let on_card =
            |other: &&usize| nics[**other].address.is_some_and(|other| other.same_card(address));
        let speeds =
            group.rails.iter().filter(on_card).map(|rail| nics[*rail].speed_mbps.map(u64::from));
        let speed: u64 = speeds.sum::<Option<u64>>()?;
        // A link that sysfs does not tell of is taken to be made for its NIC.
        let is_told = machine.at(address).is_some_and(|one| one.link.speed.is_some());
        carries_mbps += if is_told { speed.min(machine.nccl_link(address).mbps()) } else { speed };
    }
    let link = machine.nccl_link(leader);
    let is_wider = group.rails.len() > 1 && carries_mbps > link.mbps();
    is_wider.then(|| Raised {
        device,
        leader,
        believed_mbps: link.mbps(),
        carries_mbps,
        lanes: carries_mbps.div_ceil(link.lane_mbps()),
    })
}

/// The bridges that every rail is below: what they let through is as NCCL sees it.
fn meeting_bridges(machine: &Machine, nics: &[Nic], group: &Group) -> Vec<PciAddress> {
    let mut above =
        group.rails.iter().filter_map(|rail| Some(machine.bridges_above(nics[*rail].address?)));
    let first = above.next().unwrap_or_default();
    let others: Vec<_> = above.collect();
    first.into_iter().filter(|bridge| others.iter().all(|other| other.contains(bridge))).collect()
}

/// A node of the file, and what is below it.
#[derive(Debug, Default)]
struct Tree {
    link: Option<(String, u64)>,
    below: BTreeMap<PciAddress, Self>,
}

impl Tree {
    fn widen(&mut self, machine: &Machine, node: PciAddress, mbps: u64) {
        let link = machine.nccl_link(node);
        if mbps <= link.mbps() {
            return;
        }
        let speed = link.speed.map_or_else(|| UNKNOWN_SPEED.to_owned(), LaneSpeed::text);
        let lanes = mbps.div_ceil(link.lane_mbps());
        let wider = self.link.take().map_or(lanes, |(_, before)| before.max(lanes));
        self.link = Some((speed, wider));
    }

    fn write(&self, xml: &mut String, depth: usize) {
        for (address, tree) in &self.below {
            let indent = "  ".repeat(depth);
            put(xml, format_args!("{indent}<pci busid=\"{address}\""));
            if let Some((speed, lanes)) = &tree.link {
                put(xml, format_args!(" link_speed=\"{speed}\" link_width=\"{lanes}\""));
            }
            if tree.below.is_empty() {
                put(xml, format_args!("/>\n"));
            } else {
                put(xml, format_args!(">\n"));
                tree.write(xml, depth + 1);
                put(xml, format_args!("{indent}</pci>\n"));
            }
        }
    }
}

fn xml(cpus: &BTreeMap<String, Tree>) -> String {
    let mut xml = String::from("<system version=\"1\">\n");
    for (numa, tree) in cpus {
        put(&mut xml, format_args!("  <cpu numaid=\"{numa}\">\n"));
        tree.write(&mut xml, 2);
        put(&mut xml, format_args!("  </cpu>\n"));
    }
    xml.push_str("</system>\n");
    xml
}

fn put(xml: &mut String, text: std::fmt::Arguments<'_>) {
    let written = xml.write_fmt(text);
    debug_assert!(written.is_ok(), "a string takes everything");
}

/// What NCCL takes an unknown speed for.
const UNKNOWN_SPEED: &str = "8.0 GT/s PCIe";
