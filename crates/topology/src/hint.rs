//! A topology file for NCCL with the true width of devices that NCCL would underestimate.
//!
//! NCCL takes the PCIe link of the device's one NIC that it knows for the device's speed. The rails of a device have links of their own, so
//! NCCL would use only a part of their bandwidth. The file raises the width of the leader's link, and of the links of switches between it
//! and the place where the rails' paths meet. It contains nothing else: NCCL reads what a node lacks from sysfs, and drops nodes that lead
//! to nothing (NCCL src/graph/xml.cc, ncclTopoGetXmlFromSys and ncclTopoTrimXml).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::address::PciAddress;
use crate::group::{Group, Grouping};
use crate::link::LaneSpeed;
use crate::machine::Machine;
use crate::nic::Nic;

/// The file for NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Its text, in NCCL's format.
    pub xml: String,
    /// The devices that it concerns, and why.
    pub raised: Vec<Raised>,
}

/// A device that is wider than NCCL would assume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// Its index among the groups.
    pub device: usize,
    /// The function whose link is raised.
    pub leader: PciAddress,
    /// The bandwidth that NCCL would assume, in Mb/s as it counts PCIe.
    pub believed_mbps: u64,
    /// The bandwidth of the rails together, limited by their links, in Mb/s.
    pub carries_mbps: u64,
    /// The lanes in the file.
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
    // NCCL attaches a NIC that is not in sysfs to a CPU, without a link.
    machine.at(leader)?;
    let (mut carries_mbps, mut cards) = (0, Vec::<PciAddress>::new());
    for rail in &group.rails {
        let address = nics[*rail].address?;
        // The functions of one card share its link, and so its bandwidth.
        if cards.iter().any(|card| card.same_card(address)) {
            continue;
        }
        cards.push(address);
        let on_card =
            |other: &&usize| nics[**other].address.is_some_and(|other| other.same_card(address));
        let speeds =
            group.rails.iter().filter(on_card).map(|rail| nics[*rail].speed_mbps.map(u64::from));
        let speed: u64 = speeds.sum::<Option<u64>>()?;
        // A link without a speed in sysfs is assumed to be fast enough for its NIC.
        let is_known = machine.at(address).is_some_and(|one| one.link.speed.is_some());
        carries_mbps += if is_known { speed.min(machine.nccl_link(address).mbps()) } else { speed };
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

/// The bridges above all rails: their bandwidth is as NCCL sees it.
fn meeting_bridges(machine: &Machine, nics: &[Nic], group: &Group) -> Vec<PciAddress> {
    let mut above =
        group.rails.iter().filter_map(|rail| Some(machine.bridges_above(nics[*rail].address?)));
    let first = above.next().unwrap_or_default();
    let others: Vec<_> = above.collect();
    first.into_iter().filter(|bridge| others.iter().all(|other| other.contains(bridge))).collect()
}

/// A node of the file, and the nodes below it.
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

/// The speed that NCCL assumes for an unknown one.
const UNKNOWN_SPEED: &str = "8.0 GT/s PCIe";
