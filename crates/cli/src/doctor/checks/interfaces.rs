//! Interfaces and rails: up, with an address, equal in MTU and speed, in subnets of their own, near the GPUs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::doctor::finding::Finding;
use crate::doctor::machine::{Interface, Machine, Place};

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let mut findings = vec![usable(machine)];
    findings.extend(rails(machine));
    findings.extend(mtu(machine));
    findings.extend(speed(machine));
    findings.extend(subnets(machine));
    findings.extend(lanes(machine));
    findings.extend(numa(machine));
    findings
}

/// NCCL's bootstrap needs an interface with an address, independently of the plugin.
fn usable(machine: &Machine) -> Finding {
    let looked = "network interfaces";
    let up: Vec<_> =
        machine.interfaces.iter().filter(|one| one.up && !one.addresses.is_empty()).collect();
    let outward: Vec<_> =
        up.iter().filter(|one| !one.loopback).map(|one| one.name.as_str()).collect();
    if up.is_empty() {
        let names: Vec<_> = machine.interfaces.iter().map(|one| one.name.as_str()).collect();
        let names = if names.is_empty() { "there is none".to_owned() } else { names.join(", ") };
        return Finding::fail(
            "nic.usable",
            looked,
            format!("every interface is down or without an address: {names}"),
            "bring one up (`ip link set dev lo up`, `ip link set dev eth0 up`), or run the container with --network host",
        );
    }
    if outward.is_empty() {
        return Finding::warn(
            "nic.usable",
            looked,
            "only lo is up: ranks of this machine reach each other, and no other machine",
            "run the container with --network host, or give its namespace an interface",
        );
    }
    Finding::ok("nic.usable", looked, outward.join(", "))
}

/// The plugin's own sentence about a rail that is missing, or named twice.
fn rails(machine: &Machine) -> Option<Finding> {
    let (value, place) = machine.variable("IRONRAIL_RAILS")?;
    let cure = |text: &str| {
        let is_about = |words| text.contains("IRONRAIL_RAILS names") && text.contains(words);
        if is_about("does not have") {
            Some(
                "name in IRONRAIL_RAILS interfaces or addresses that this machine has, or unset it to use all",
            )
        } else if is_about("as one rail") {
            Some("leave one of the two out of IRONRAIL_RAILS")
        } else {
            None
        }
    };
    let mut said = machine.plugins.iter().flat_map(|plugin| &plugin.log);
    let wrong = said.find_map(|line| Some((line, cure(&line.text)?)));
    let looked = format!("IRONRAIL_RAILS={value} (from {place})");
    if let Some((line, cure)) = wrong {
        return Some(Finding::fail("nic.rails", looked, line.text.clone(), cure));
    }
    // Only the plugin looks for rails, once it has read its settings.
    let has_looked = machine.ours().any(|plugin| plugin.devices.is_some());
    has_looked.then(|| Finding::ok("nic.rails", looked, "every rail is there"))
}

fn mtu(machine: &Machine) -> Option<Finding> {
    let rails = machine.rails();
    let mtus: Vec<_> = rails
        .iter()
        .filter(|rail| !rail.loopback)
        .filter_map(|rail| Some((rail.mtu?, rail.name.as_str())))
        .collect();
    let (least, most) = (mtus.iter().min()?, mtus.iter().max()?);
    let looked = "/sys/class/net/*/mtu of the rails";
    if least.0 == most.0 {
        return Some(Finding::ok("nic.mtu", looked, least.0.to_string()));
    }
    Some(Finding::warn(
        "nic.mtu",
        looked,
        format!(
            "{} has {} and {} has {}: the rails are not equally fast, and a path with a smaller MTU drops larger packets",
            least.1, least.0, most.1, most.0
        ),
        format!(
            "give all rails one MTU on every machine and switch (`ip link set dev {} mtu {}`), or name equal ones in IRONRAIL_RAILS",
            least.1, most.0
        ),
    ))
}

/// Two NICs of one model have the same speed, unless a cable or a port is bad.
fn speed(machine: &Machine) -> Option<Finding> {
    let mut models: BTreeMap<&str, Vec<&Interface>> = BTreeMap::new();
    for one in machine.interfaces.iter().filter(|one| one.up && one.speed_mbps.is_some()) {
        if let Some(model) = &one.place.model {
            models.entry(model).or_default().push(one);
        }
    }
    let looked = "/sys/class/net/*/speed of interfaces of one model";
    for alike in models.values() {
        let slow = alike.iter().min_by_key(|one| one.speed_mbps)?;
        let fast = alike.iter().max_by_key(|one| one.speed_mbps)?;
        let (least, most) = (slow.speed_mbps?, fast.speed_mbps?);
        if least < most {
            return Some(Finding::warn(
                "nic.speed",
                looked,
                format!("{} has come up at {least} Mb/s and {} at {most}", slow.name, fast.name),
                format!(
                    "look at the cable, the transceiver and the switch's port of {}; `ethtool {}` shows what was agreed",
                    slow.name, slow.name
                ),
            ));
        }
    }
    (!models.is_empty()).then(|| Finding::ok("nic.speed", looked, "alike"))
}

/// Linux answers ARP requests for any of its addresses on any interface of the subnet, so two rails in one subnet may share a wire.
fn subnets(machine: &Machine) -> Option<Finding> {
    let rails = machine.rails();
    let mut seen: BTreeMap<(IpAddr, u8), &str> = BTreeMap::new();
    for rail in rails.iter().filter(|rail| !rail.loopback) {
        for (address, prefix) in &rail.addresses {
            let Some(subnet) = subnet(*address, *prefix) else { continue };
            match seen.get(&(subnet, *prefix)) {
                Some(other) if *other != rail.name => {
                    return Some(Finding::warn(
                        "nic.subnet",
                        "the addresses of the rails",
                        format!(
                            "{other} and {} are in one subnet, {subnet}/{prefix}: the kernel may send the traffic of both through one of them",
                            rail.name
                        ),
                        "give each rail a subnet of its own, or set net.ipv4.conf.all.arp_ignore=1, arp_announce=2 and a routing rule for each source address",
                    ));
                }
                _ => _ = seen.insert((subnet, *prefix), &rail.name),
            }
        }
    }
    (seen.len() > 1).then(|| {
        Finding::ok("nic.subnet", "the addresses of the rails", "each rail has a subnet of its own")
    })
}

/// The first address of the subnet; None for link-local addresses.
fn subnet(address: IpAddr, prefix: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) if !address.is_link_local() => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            Some(IpAddr::V4((u32::from(address) & mask).into()))
        }
        IpAddr::V6(address) if !address.is_unicast_link_local() => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            Some(IpAddr::V6((u128::from(address) & mask).into()))
        }
        _ => None,
    }
}

/// The devices that carry data, with their names.
fn movers(machine: &Machine) -> Vec<(&str, &Place)> {
    let rdma = machine.rdma.iter().map(|one| (one.name.as_str(), &one.place));
    let cxi = machine.cxi.iter().map(|one| (one.name.as_str(), &one.place));
    let rails = machine.rails();
    let rails = rails.into_iter().map(|one| (one.name.as_str(), &one.place));
    rdma.chain(cxi).chain(rails).collect()
}

fn lanes(machine: &Machine) -> Option<Finding> {
    let looked = "current_link_width and max_link_width of the NICs";
    let movers = movers(machine);
    let known: Vec<_> =
        movers.iter().filter_map(|(name, place)| Some((*name, place.lanes?))).collect();
    // A NIC with 16 lanes in a slot with 8 is a usual design; below half of its lanes, something is loose.
    if let Some((name, (now, most))) =
        known.iter().find(|(_, (now, most))| now.saturating_mul(2) < *most)
    {
        return Some(Finding::warn(
            "nic.pcie",
            looked,
            format!("{name} has {now} PCIe lanes of {most}"),
            format!(
                "reseat the NIC or try another slot; `lspci -vv` shows what {name}'s slot and the NIC agree on"
            ),
        ));
    }
    (!known.is_empty()).then(|| Finding::ok("nic.pcie", looked, "every NIC has its lanes"))
}

fn numa(machine: &Machine) -> Option<Finding> {
    let nodes = |places: &mut dyn Iterator<Item = &Place>| {
        let mut nodes: Vec<i32> =
            places.filter_map(|place| place.numa).filter(|node| *node >= 0).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    };
    // If there are NICs that reach GPU memory, interfaces do not count.
    let rdma = machine.rdma.iter().map(|one| &one.place);
    let mut nics = nodes(&mut rdma.chain(machine.cxi.iter().map(|one| &one.place)));
    if nics.is_empty() {
        nics = nodes(&mut machine.rails().into_iter().map(|one| &one.place));
    }
    let gpus = nodes(&mut machine.gpus.places.iter());
    if nics.is_empty() || gpus.is_empty() {
        return None;
    }
    let looked = "numa_node of the NICs and the GPUs";
    let shown = |nodes: &[i32]| {
        nodes.iter().map(|node| format!("node {node}")).collect::<Vec<_>>().join(", ")
    };
    if nics.iter().any(|node| gpus.contains(node)) {
        return Some(Finding::ok(
            "nic.numa",
            looked,
            format!("NICs on {}, GPUs on {}", shown(&nics), shown(&gpus)),
        ));
    }
    Some(Finding::warn(
        "nic.numa",
        looked,
        format!(
            "every NIC is on {} and every GPU on {}: all data crosses between the sockets",
            shown(&nics),
            shown(&gpus)
        ),
        "use GPUs of the NIC's node where there are any, or move the NIC to a slot there; `nvidia-smi topo -m` shows which is near which",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::machine::{Device, OURS, Plugin, Rdma};

    #[test]
    fn numbers_of_lanes_of_any_size_are_compared_without_overflow() {
        let place = Place { lanes: Some((u32::MAX, u32::MAX)), ..Place::default() };
        let rdma = vec![Rdma { place, ..Rdma::default() }];
        let finding = lanes(&Machine { rdma, ..Machine::default() });
        assert_eq!(
            finding.map(|finding| finding.found).as_deref(),
            Some("every NIC has its lanes")
        );
    }

    #[test]
    fn rails_are_there_only_where_the_plugin_has_looked_for_them() {
        let environment = BTreeMap::from([("IRONRAIL_RAILS".to_owned(), "eth0".to_owned())]);
        let plugin = |network: &str, devices| Plugin {
            network: Some(network.to_owned()),
            devices,
            ..Plugin::default()
        };
        let found = Some(vec![Device::default()]);
        for (plugins, is_there) in [
            (Vec::new(), false),
            (vec![plugin(OURS, None)], false),
            (vec![plugin("Other", found.clone())], false),
            (vec![plugin("Other", None), plugin(OURS, found)], true),
        ] {
            let machine =
                Machine { environment: environment.clone(), plugins, ..Machine::default() };
            assert_eq!(rails(&machine).is_some(), is_there, "{:?}", machine.plugins);
        }
    }
}
