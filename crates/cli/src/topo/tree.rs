//! A machine's PCI hierarchy as far as it leads to GPUs and NICs.

use std::collections::{BTreeMap, BTreeSet};

use topology::{Description, PciAddress, Role};

use super::Found;

/// The nodes of the picture: root buses, with the nodes below them.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) roots: Vec<Root>,
}

/// A root bus, or the devices that are on none.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) title: String,
    /// The nodes below the bus, in depth-first order.
    pub(super) nodes: Vec<Node>,
}

/// A bridge, a GPU or a NIC.
#[derive(Debug)]
pub(super) struct Node {
    /// Levels below the root bus.
    pub(super) depth: usize,
    pub(super) label: String,
    pub(super) what: What,
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Bridge,
    Gpu,
    /// A rail of this device; None: the NIC is in no device.
    Nic(Option<usize>),
}

impl Tree {
    pub(super) fn of(found: &Found) -> Self {
        let mut walk = Walk::new(found);
        let mut roots = Vec::new();
        let (tops, others): (Vec<_>, Vec<_>) =
            walk.drawn.iter().copied().partition(|address| walk.above(*address).is_none());
        let mut buses: BTreeMap<(u32, u8), Vec<PciAddress>> = BTreeMap::new();
        for top in tops {
            buses.entry((top.domain, top.bus)).or_default().push(top);
        }
        for ((domain, bus), tops) in buses {
            let numa = tops.iter().find_map(|top| found.described.machine.at(*top)?.numa);
            let numa = numa.map_or_else(|| "unknown".to_owned(), |numa| numa.to_string());
            let nodes = tops.into_iter().flat_map(|top| walk.down(top)).collect();
            let title = format!("root bus {domain:04x}:{bus:02x}, NUMA node {numa}");
            roots.push(Root { title, nodes });
        }
        // A node in a loop is below no root bus.
        let looped: Vec<_> = others.into_iter().flat_map(|address| walk.down(address)).collect();
        roots.push(Root { title: "below itself".to_owned(), nodes: looped });
        roots
            .push(Root { title: "not on a bus that is known".to_owned(), nodes: walk.elsewhere() });
        roots.retain(|root| !root.nodes.is_empty());
        Self { roots }
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for root in &self.roots {
            text += &format!("{}\n", root.title);
            for node in &root.nodes {
                text += &format!("{}{}\n", "  ".repeat(node.depth + 1), node.label);
            }
        }
        text
    }
}

/// The nodes that lead to a GPU or a NIC.
struct Walk<'a> {
    found: &'a Found,
    drawn: BTreeSet<PciAddress>,
    /// The nodes directly below each bridge.
    below: BTreeMap<PciAddress, Vec<PciAddress>>,
    seen: BTreeSet<PciAddress>,
}

impl<'a> Walk<'a> {
    fn new(found: &'a Found) -> Self {
        let Description { machine, nics } = &found.described;
        let gpus = machine.gpus().map(|gpu| gpu.address);
        let nics = nics.iter().filter_map(|nic| nic.address);
        let ends: Vec<_> = gpus.chain(nics).filter(|end| machine.at(*end).is_some()).collect();
        let above = ends.iter().flat_map(|end| machine.bridges_above(*end));
        let drawn: BTreeSet<_> = ends.iter().copied().chain(above).collect();
        let mut below: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for address in &drawn {
            if let Some(above) = machine.at(*address).and_then(|one| one.above) {
                below.entry(above).or_default().push(*address);
            }
        }
        Self { found, drawn, below, seen: BTreeSet::new() }
    }

    /// The bridge drawn above a function.
    fn above(&self, address: PciAddress) -> Option<PciAddress> {
        let above = self.found.described.machine.at(address)?.above?;
        self.drawn.contains(&above).then_some(above)
    }

    /// A function and all nodes below it. Not by recursion: a description of a machine may be of any depth.
    fn down(&mut self, top: PciAddress) -> Vec<Node> {
        let (mut nodes, mut waiting) = (Vec::new(), vec![(top, 0)]);
        while let Some((address, depth)) = waiting.pop() {
            if self.seen.insert(address) {
                nodes.extend(self.nodes(address, depth));
                let below = self.below.get(&address).into_iter().flatten().rev();
                waiting.extend(below.map(|one| (*one, depth + 1)));
            }
        }
        nodes
    }

    /// The function itself: a node for each NIC that it has.
    fn nodes(&self, address: PciAddress, depth: usize) -> Vec<Node> {
        let Description { machine, nics } = &self.found.described;
        let here = nics.iter().enumerate().filter(|(_, nic)| nic.address == Some(address));
        let nodes: Vec<_> = here.map(|(place, _)| self.nic(place, depth)).collect();
        if !nodes.is_empty() {
            return nodes;
        }
        let is_gpu = machine.at(address).is_some_and(|one| one.role() == Role::Gpu);
        let (what, word) = if is_gpu { (What::Gpu, "GPU") } else { (What::Bridge, "bridge") };
        vec![Node { depth, label: format!("{word} {address}"), what }]
    }

    fn nic(&self, place: usize, depth: usize) -> Node {
        let nic = &self.found.described.nics[place];
        let groups = &self.found.grouping.groups;
        let device = groups.iter().position(|group| group.rails.contains(&place));
        let address = nic.address.map_or_else(String::new, |address| format!(" {address}"));
        let speed = nic.speed_mbps.map_or_else(String::new, |speed| format!(", {speed} Mb/s"));
        let rail = device.map_or_else(|| "no rail".to_owned(), |device| format!("device {device}"));
        let label = format!("NIC{address} {}{speed}: {rail}", nic.name);
        Node { depth, label, what: What::Nic(device) }
    }

    fn elsewhere(&self) -> Vec<Node> {
        let Description { machine, nics } = &self.found.described;
        let known = |place: &usize| nics[*place].address.is_some_and(|at| machine.at(at).is_some());
        (0..nics.len()).filter(|place| !known(place)).map(|place| self.nic(place, 0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(machine: &str) -> Tree {
        let file = format!("{}/../topology/machines/{machine}.machine", env!("CARGO_MANIFEST_DIR"));
        let described: Description = std::fs::read_to_string(file).unwrap().parse().unwrap();
        Tree::of(&Found::of(described, 4))
    }

    #[test]
    fn every_nic_and_every_gpu_is_drawn_once() {
        for (machine, nics, gpus) in
            [("p4d", 4, 8), ("p5", 32, 8), ("gh200", 4, 4), ("broken", 12, 1)]
        {
            let tree = tree(machine);
            let nodes = || tree.roots.iter().flat_map(|root| &root.nodes);
            let count = |what: fn(&What) -> bool| nodes().filter(|node| what(&node.what)).count();
            assert_eq!(count(|what| matches!(what, What::Nic(_))), nics, "{machine}");
            assert_eq!(count(|what| *what == What::Gpu), gpus, "{machine}");
        }
    }

    #[test]
    fn nodes_below_a_bridge_are_indented_below_it() {
        let text = tree("p5").text();
        let first = "root bus 0000:44, NUMA node 0\n  bridge 0000:44:00.0\n    bridge 0000:45:00.0\n      \
                     bridge 0000:46:01.0\n        NIC 0000:4f:00.0 rdmap79s0, 100000 Mb/s: device 0\n";
        assert!(text.starts_with(first), "{text}");
    }

    #[test]
    fn a_chain_of_bridges_of_any_length_is_drawn() {
        const BRIDGES: u32 = 20_000;
        // A domain has no more than 256 buses, and a machine may have more domains. Bridges are drawn that lead to a NIC.
        let address = |number: u32| format!("{:04x}:{:02x}:00.0", number >> 8, number & 255);
        let chain = (1..BRIDGES).map(|number| {
            let (own, above) = (address(number), address(number - 1));
            let nic =
                if number % 100 == 0 { format!("nic n{number} at {own}\n") } else { String::new() };
            format!("pci {own} below {above} class 060400\n{nic}")
        });
        let text = format!("pci {} class 060400\n", address(0)) + &chain.collect::<String>();
        let tree = Tree::of(&Found::of(text.parse().unwrap(), 4));
        let depths: Vec<_> = tree.roots[0].nodes.iter().map(|node| node.depth).collect();
        assert_eq!(depths, (0..=19_900).collect::<Vec<_>>(), "the last NIC is at 19,900");
    }

    #[test]
    fn a_loop_is_drawn_and_ends() {
        let tree = tree("broken");
        let looped = tree.roots.iter().find(|root| root.title == "below itself").unwrap();
        assert!(looped.nodes.iter().any(|node| node.label.contains("looped")));
    }
}
