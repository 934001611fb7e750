//! Several machines: the differences between them, and the pairs that cannot communicate.

use std::collections::{BTreeMap, BTreeSet};

use crate::doctor::finding::Finding;
use crate::doctor::machine::{Group, Machine, Pair};
use crate::output::named;

/// The differences first, then the pairs.
pub(crate) fn check(group: &Group) -> Vec<Finding> {
    let mut findings = unreachable(&group.ranks);
    findings.extend(differences(&group.ranks));
    if !group.pairs.is_empty() {
        findings.push(pairs(group));
    }
    findings
}

/// No pair was tried: ranks fail alone, and their own findings say why. Separate descriptions of machines have no pairs; nor has a single rank.
pub(crate) fn untried(group: &Group) -> Option<Finding> {
    let works = |one: &&Machine| one.plugins.iter().any(|plugin| plugin.transfer.is_some());
    let working = group.ranks.iter().filter(works).count();
    (group.pairs.is_empty() && group.ranks.len() > 1 && working < 2).then(|| {
        Finding::fail(
            "rank.transfer",
            PAIRS,
            format!("not tried: {working} of {} ranks move bytes to themselves", group.ranks.len()),
            "cure these ranks' own findings first",
        )
    })
}

const PAIRS: &str = "messages between each pair, every byte compared";

fn unreachable(ranks: &[Machine]) -> Vec<Finding> {
    let lost = ranks
        .iter()
        .enumerate()
        .filter_map(|(rank, one)| Some((rank, one, one.unreachable.as_ref()?)));
    lost.map(|(rank, one, why)| {
        Finding::fail("rank.reached", format!("rank {rank} on {}", one.host), why.clone(), "check the host's name; have a remote shell run commands there without a password (--rsh), and this command lie at the same place (--at)")
    })
    .collect()
}

fn differences(ranks: &[Machine]) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(by_sockets(ranks));
    let mut must_agree = |what: &str, cure: &str, of: &dyn Fn(&Machine) -> Option<String>| {
        // A rank without a plugin is reported by `by_sockets`.
        let values: Vec<_> = ranks.iter().map(of).collect();
        if let Some(found) = odd(&values, what, false) {
            findings.push(Finding::fail(
                "rank.differs",
                format!("{what} of every rank"),
                found,
                cure,
            ));
        }
    };
    must_agree("the network", "set NCCL_NET and NCCL_NET_PLUGIN alike on every rank", &|one| {
        one.winner()?.network.clone()
    });
    must_agree(
        "the plugin's version",
        "install one version of the plugin on every machine, and in every container",
        &|one| said(one, "Initializing "),
    );
    must_agree(
        "libfabric's version",
        "install one libfabric on every machine, or name it in IRONRAIL_LIBFABRIC on every rank",
        &|one| {
            let (major, minor) = one.libfabric.as_ref()?.version?;
            Some(format!("libfabric {major}.{minor}"))
        },
    );
    must_agree(
        "the provider",
        "set IRONRAIL_PROVIDER alike on every rank; a machine without the others' provider lacks its device",
        &|one| Some(said(one, "Selected provider is ")?.split(" (").next()?.to_owned()),
    );
    findings.extend(variables(ranks));
    let mtus: Vec<_> = ranks
        .iter()
        .map(|one| one.rails().iter().filter_map(|rail| rail.mtu).min().map(|mtu| mtu.to_string()))
        .collect();
    if let Some(found) = odd(&mtus, "the rails' MTU", false) {
        findings.push(Finding::warn(
            "rank.differs",
            "the MTU of every rank's rails",
            found,
            "give all of them one MTU: a path with a smaller one drops what is larger",
        ));
    }
    let rails: Vec<_> = ranks
        .iter()
        .map(|one| one.winner()?.devices.as_ref().map(|devices| devices.len().to_string()))
        .collect();
    if let Some(found) = odd(&rails, "the number of devices", false) {
        findings.push(Finding::warn(
            "rank.differs",
            "the devices of every rank",
            found,
            "look for a NIC that is down there",
        ));
    }
    let reached = ranks.iter().filter(|one| one.unreachable.is_none()).count();
    if findings.is_empty() && reached > 1 {
        findings.push(Finding::ok(
            "rank.differs",
            "plugin, libfabric, provider, variables, MTU",
            format!("the same on {reached} ranks"),
        ));
    }
    findings
}

/// Where the plugin fails on one rank, NCCL uses sockets there, and the others wait for it.
fn by_sockets(ranks: &[Machine]) -> Option<Finding> {
    let works = |one: &Machine| {
        one.winner().is_some_and(|plugin| {
            plugin.devices.as_ref().is_some_and(|devices| !devices.is_empty())
        })
    };
    let reached = |rank: &usize| ranks[*rank].unreachable.is_none();
    let without: Vec<_> =
        (0..ranks.len()).filter(reached).filter(|rank| !works(&ranks[*rank])).collect();
    if without.is_empty() || !ranks.iter().any(works) {
        return None;
    }
    let why = ranks[without[0]].plugins.iter().find_map(|plugin| {
        let failure = plugin.failure.as_ref().map(|failure| failure.why.clone());
        failure.or_else(|| plugin.refused.first().map(|refused| refused.reason.clone()))
    });
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    Some(Finding::fail(
        "rank.differs",
        "whether the plugin starts on every rank",
        format!(
            "{} would use sockets, and the others the plugin{why}: the job hangs or ends while it connects",
            named(&without)
        ),
        "cure that rank's own findings; NCCL_NET=Ironrail on all ranks makes it an error there, and not a hang elsewhere",
    ))
}

/// The rest of the plugin's log line that starts with `start`.
fn said(machine: &Machine, start: &str) -> Option<String> {
    let lines = machine.plugins.iter().flat_map(|plugin| &plugin.log);
    lines.filter_map(|line| line.text.strip_prefix(start)).next().map(str::to_owned)
}

/// Compares variables, one finding each. Variables that may differ are left out.
fn variables(ranks: &[Machine]) -> Vec<Finding> {
    let reached = ranks.iter().filter(|one| one.unreachable.is_none());
    let all: Vec<BTreeMap<&str, &str>> = reached.map(Machine::variables).collect();
    let names: BTreeSet<&str> = all.iter().flat_map(|of| of.keys().copied()).collect();
    let compared = names.into_iter().filter(|name| {
        COMPARED.iter().any(|prefix| name.starts_with(prefix)) && !OWN.contains(name)
    });
    let differs = |name: &str| {
        let values: Vec<_> =
            all.iter().map(|of| of.get(name).map(|value| (*value).to_owned())).collect();
        odd(&values, name, true).map(|found| {
            Finding::warn("rank.differs", format!("{name} of every rank"), found, format!("set {name} alike on every rank, in the job's script or NCCL_CONF_FILE, and not in a shell's start-up file"))
        })
    };
    compared.filter_map(differs).collect()
}

const COMPARED: &[&str] = &["NCCL_", "FI_", "OFI_NCCL_", "IRONRAIL_"];
/// Variables that may differ between ranks.
const OWN: &[&str] = &[
    "NCCL_HOSTID",
    "NCCL_DEBUG_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "NCCL_GRAPH_DUMP_FILE",
    "IRONRAIL_STATS_FILE",
    "NCCL_TOPO_FILE",
    "NCCL_CONF_FILE",
];

/// The ranks whose value differs from the most frequent one. `None` counts as a value if `absence` is set.
fn odd(values: &[Option<String>], what: &str, absence: bool) -> Option<String> {
    let mut by_value: BTreeMap<&Option<String>, Vec<usize>> = BTreeMap::new();
    for (rank, value) in values.iter().enumerate().filter(|(_, value)| absence || value.is_some()) {
        by_value.entry(value).or_default().push(rank);
    }
    if by_value.len() < 2 {
        return None;
    }
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unset".to_owned());
    // On a tie, the value of the lowest rank.
    let (most, _) =
        by_value.iter().max_by_key(|(_, ranks)| (ranks.len(), std::cmp::Reverse(ranks[0])))?;
    let others = by_value.iter().filter(|(value, _)| value != &most);
    let others: Vec<_> =
        others.map(|(value, ranks)| format!("{} on {}", shown(value), named(ranks))).collect();
    Some(format!("{what} is {} on most ranks, and {}", shown(most), others.join(", ")))
}

fn pairs(group: &Group) -> Finding {
    let wrong: Vec<_> = group
        .pairs
        .iter()
        .filter(|pair| pair.transfer.is_some_and(|transfer| transfer.wrong > 0))
        .collect();
    if let Some(first) = wrong.first() {
        return Finding::fail(
            "rank.transfer",
            PAIRS,
            format!(
                "wrong bytes in {} of {}, the first of them {}",
                wrong.len(),
                messages(group),
                shown(group, first)
            ),
            "do not compute with this: report it with `ironrail doctor --json`",
        );
    }
    let failed: Vec<_> = group.pairs.iter().filter(|pair| pair.failure.is_some()).collect();
    let Some(first) = failed.first() else {
        return Finding::ok("rank.transfer", PAIRS, format!("{}, all right", messages(group)));
    };
    let host = |rank: usize| group.ranks.get(rank).map(|one| one.host.as_str());
    let between = failed.iter().all(|pair| host(pair.from) != host(pair.to));
    let why = first.failure.as_deref().unwrap_or_default();
    let has_efa = group.ranks.iter().any(|one| one.rdma.iter().any(|device| device.efa));
    let cure = if has_efa && between {
        "EFA needs a security group that allows all traffic from itself and to itself, inbound and outbound: the outbound rule is the one that is forgotten"
    } else if between {
        "let all ports through between the machines (a firewall, a security group, a VLAN), and check that the rails' subnets reach each other: `ping -I` each rail's address"
    } else {
        "see these ranks' own findings; `ironrail perf sendrecv` between them, with --verbose, shows more"
    };
    Finding::fail(
        "rank.transfer",
        PAIRS,
        format!(
            "{} of {} failed, the first of them {}: {why}",
            failed.len(),
            messages(group),
            shown(group, first)
        ),
        cure,
    )
}

/// As `2 messages between 2 ranks`: each rank sends one to each other.
fn messages(group: &Group) -> String {
    let ranks: BTreeSet<_> = group.pairs.iter().flat_map(|pair| [pair.from, pair.to]).collect();
    let between = if ranks.len() == 2 { "between" } else { "among" };
    format!("{} messages {between} {} ranks", group.pairs.len(), ranks.len())
}

fn shown(group: &Group, pair: &Pair) -> String {
    let host = |rank: usize| group.ranks.get(rank).map_or("?", |one| one.host.as_str());
    format!("rank {} ({}) to rank {} ({})", pair.from, host(pair.from), pair.to, host(pair.to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_ones_are_named_and_most_are_right() {
        let values = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| (!text.is_empty()).then(|| (*text).to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            odd(&values(&["a", "a", "b", "a"]), "X", true).as_deref(),
            Some("X is a on most ranks, and b on rank 2")
        );
        assert_eq!(
            odd(&values(&["a", "", "a", ""]), "X", true).as_deref(),
            Some("X is a on most ranks, and unset on ranks 1, 3")
        );
        assert_eq!(odd(&values(&["a", "", "a", ""]), "X", false), None);
        assert_eq!(odd(&values(&["a", "a"]), "X", true), None);
    }
}
