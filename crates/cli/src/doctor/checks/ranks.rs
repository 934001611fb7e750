//! Several machines: the differences between them, and the pairs that cannot communicate.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::doctor::finding::Finding;
use crate::doctor::machine::{Group, Machine, Pair};
use crate::output::named;

/// The differences first, then the pairs.
pub(crate) fn check(group: &Group) -> Vec<Finding> {
    let mut findings = unreachable(&group.ranks);
    findings.extend(differences(&group.ranks));
    findings.extend(pairs(group));
    findings
}

/// The finding that no pair was tried, because ranks fail alone, as their own findings say. None for separate descriptions of machines and
/// for a single rank, which have no pairs.
pub(crate) fn untried(group: &Group) -> Option<Finding> {
    let works = |one: &&Machine| one.plugins.iter().any(|plugin| plugin.transfer.is_some());
    let working = group.ranks.iter().filter(works).count();
    (group.pairs.is_empty() && group.ranks.len() > 1 && !group.apart && working < 2).then(|| {
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
        let finding = Finding::fail("rank.reached", format!("rank {rank} on {}", one.host), why.clone(), "check the host's name; let a remote shell (--rsh) run commands there without a password, and install this command at the same path (--at)");
        of_ranks(finding, vec![rank])
    })
    .collect()
}

fn differences(ranks: &[Machine]) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(by_sockets(ranks));
    // A rank without the value is left out: one without a plugin is reported by `by_sockets`.
    let odd_ones = |what: &str, of: &dyn Fn(&Machine) -> Option<String>| {
        odd(ranks.iter().enumerate().filter_map(|(rank, one)| Some((rank, Some(of(one)?)))), what)
    };
    let mut must_agree = |what: &str, cure: &str, of: &dyn Fn(&Machine) -> Option<String>| {
        findings.extend(odd_ones(what, of).map(|(found, odd)| {
            of_ranks(
                Finding::fail("rank.differs", format!("{what} of every rank"), found, cure),
                odd,
            )
        }));
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
    let mtu = |one: &Machine| {
        one.rails().iter().filter_map(|rail| rail.mtu).min().map(|mtu| mtu.to_string())
    };
    findings.extend(odd_ones("the rails' MTU", &mtu).map(|(found, odd)| {
        let cure = "give all of them one MTU: a path with a smaller one drops larger packets";
        of_ranks(Finding::warn("rank.differs", "the MTU of every rank's rails", found, cure), odd)
    }));
    let devices = |one: &Machine| Some(one.winner()?.devices.as_ref().map(Vec::len)?.to_string());
    findings.extend(odd_ones("the number of devices", &devices).map(|(found, odd)| {
        let cure = "look for a NIC that is down there";
        of_ranks(Finding::warn("rank.differs", "the devices of every rank", found, cure), odd)
    }));
    findings.extend(numbers(ranks));
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
    let finding = Finding::fail(
        "rank.differs",
        "whether the plugin starts on every rank",
        format!(
            "{} would use sockets, and the others the plugin{why}: the job hangs or ends while it connects",
            named(&without)
        ),
        "cure that rank's own findings; NCCL_NET=Ironrail on all ranks makes it an error there, and not a hang elsewhere",
    );
    Some(of_ranks(finding, without))
}

/// Devices of one name that have several numbers: messages are tried between devices of one number.
fn numbers(ranks: &[Machine]) -> Option<Finding> {
    let names: BTreeSet<_> =
        ranks.iter().flat_map(Machine::devices).map(|device| device.name.as_str()).collect();
    let odd_ones = |name: &&str| {
        let number = |one: &Machine| {
            let number = one.devices().iter().position(|device| device.name == *name)?;
            Some(Some(format!("device {number}")))
        };
        odd(ranks.iter().enumerate().filter_map(|(rank, one)| Some((rank, number(one)?))), name)
    };
    let differ: Vec<_> = names.iter().filter_map(odd_ones).collect();
    let (first, _) = differ.first()?;
    let more = match differ.len() - 1 {
        0 => String::new(),
        more => format!("; {more} more likewise"),
    };
    let odd: BTreeSet<_> = differ.iter().flat_map(|(_, odd)| odd).copied().collect();
    let finding = Finding::warn(
        "rank.differs",
        "the devices' numbers on every rank",
        format!("{first}{more}"),
        "messages are tried between devices of one number, which are different NICs here: look for a NIC that is missing or down, or name the rails in one order on all ranks (IRONRAIL_RAILS)",
    );
    Some(of_ranks(finding, odd.into_iter().collect()))
}

fn of_ranks(finding: Finding, ranks: Vec<usize>) -> Finding {
    Finding { ranks, ..finding }
}

/// The rest of the plugin's log line that starts with `start`.
fn said(machine: &Machine, start: &str) -> Option<String> {
    let lines = machine.plugins.iter().flat_map(|plugin| &plugin.log);
    lines.filter_map(|line| line.text.strip_prefix(start)).next().map(str::to_owned)
}

/// Compares variables, one finding each. Variables that may differ are left out.
fn variables(ranks: &[Machine]) -> Vec<Finding> {
    let reached = ranks.iter().enumerate().filter(|(_, one)| one.unreachable.is_none());
    let all: Vec<_> = reached.map(|(rank, one)| (rank, one.variables())).collect();
    let names: BTreeSet<&str> = all.iter().flat_map(|(_, of)| of.keys().copied()).collect();
    let compared = names.into_iter().filter(|name| {
        COMPARED.iter().any(|prefix| name.starts_with(prefix)) && !OWN.contains(name)
    });
    let differs = |name: &str| {
        let value = |of: &BTreeMap<&str, &str>| of.get(name).map(|value| (*value).to_owned());
        odd(all.iter().map(|(rank, of)| (*rank, value(of))), name).map(|(found, odd)| {
            let finding = Finding::warn("rank.differs", format!("{name} of every rank"), found, format!("set {name} alike on every rank, in the job's script or NCCL_CONF_FILE, and not in a shell's start-up file"));
            of_ranks(finding, odd)
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

/// The ranks whose value differs from the most frequent one, and a sentence on them.
fn odd(
    values: impl Iterator<Item = (usize, Option<String>)>,
    what: &str,
) -> Option<(String, Vec<usize>)> {
    let mut by_value: BTreeMap<Option<String>, Vec<usize>> = BTreeMap::new();
    for (rank, value) in values {
        by_value.entry(value).or_default().push(rank);
    }
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unset".to_owned());
    // On a tie, the value of the lowest rank.
    let most = by_value.iter().max_by_key(|(_, ranks)| (ranks.len(), Reverse(ranks[0])))?.0.clone();
    by_value.remove(&most);
    let others: Vec<_> = by_value
        .iter()
        .map(|(value, ranks)| format!("{} on {}", shown(value), named(ranks)))
        .collect();
    let mut odd: Vec<_> = by_value.into_values().flatten().collect();
    odd.sort_unstable();
    let found = format!("{what} is {} on most ranks, and {}", shown(&most), others.join(", "));
    (!odd.is_empty()).then_some((found, odd))
}

fn pairs(group: &Group) -> Vec<Finding> {
    let tried: Vec<_> = group.pairs.iter().filter(|pair| pair.is_tried()).collect();
    let mut findings = Vec::new();
    if !tried.is_empty() {
        findings.push(messages(group, &tried));
    }
    findings.extend(apart(group));
    findings
}

/// Pairs of ranks without two devices of one number that may be on one network. NCCL may find devices of other numbers.
fn apart(group: &Group) -> Option<Finding> {
    let mut reach: BTreeMap<_, bool> = BTreeMap::new();
    for pair in &group.pairs {
        *reach.entry((pair.from, pair.to)).or_default() |= pair.is_tried();
    }
    let untried: Vec<_> =
        reach.iter().filter(|(_, tried)| !**tried).map(|(pair, _)| pair).collect();
    let (from, to) = untried.first()?;
    Some(Finding::warn(
        "rank.transfer",
        PAIRS,
        format!(
            "{} of {} pairs not tried, the first of them {}: their devices of one number are on different networks",
            untried.len(),
            reach.len(),
            ends(group, *from, *to)
        ),
        "compare `ironrail info` of both: NICs of one network should have the same number on all machines",
    ))
}

fn messages(group: &Group, tried: &[&Pair]) -> Finding {
    let of = format!("{} messages {}", tried.len(), among(tried));
    let assumed = assumed(group, tried);
    let is_wrong = |pair: &Pair| pair.transfer.is_some_and(|transfer| transfer.wrong > 0);
    let wrong: Vec<_> = tried.iter().copied().filter(|pair| is_wrong(pair)).collect();
    if !wrong.is_empty() {
        let (ranks, whose) = common(group, &wrong);
        let found = format!("wrong bytes in {} of {of}, {whose}", wrong.len());
        let cure = "do not compute with this: report it with `ironrail doctor --json`";
        return failed(Finding::fail("rank.transfer", PAIRS, found, cure), ranks, &wrong);
    }
    let failing: Vec<_> = tried.iter().copied().filter(|pair| pair.failure.is_some()).collect();
    let Some(first) = failing.first() else {
        let apart = group.pairs.len() - tried.len();
        let apart = match apart {
            0 => String::new(),
            apart => format!("; {apart} more not tried, between devices of different networks"),
        };
        let found = format!("{of}{}, all right{apart}{assumed}", by(group, tried));
        return Finding::ok("rank.transfer", PAIRS, found);
    };
    let between = failing.iter().all(|pair| host(group, pair.from) != host(group, pair.to));
    let why = first.failure.as_deref().unwrap_or_default();
    let has_efa = group.ranks.iter().any(|one| one.rdma.iter().any(|device| device.efa));
    let (ranks, whose) = common(group, &failing);
    let cure = if has_efa && between {
        "EFA needs a security group that allows all traffic from itself and to itself, inbound and outbound: the outbound rule is often forgotten"
    } else if !ranks.is_empty() {
        "see these ranks' own findings; then look there at the NIC's link, cable and switch port (`ip link`, `ibstat`), at the firewall and the VLAN"
    } else if between {
        "let all ports through between the machines (a firewall, a security group, a VLAN), and check that the rails' subnets reach each other: `ping -I` each rail's address"
    } else {
        "see these ranks' own findings; `ironrail perf sendrecv` between them, with --verbose, shows more"
    };
    let found = format!("{} of {of} failed, {whose}: {why}{assumed}", failing.len());
    failed(Finding::fail("rank.transfer", PAIRS, found, cure), ranks, &failing)
}

/// The assumption of the pairs of several devices, if the plugin does not name the devices' networks.
fn assumed(group: &Group, tried: &[&Pair]) -> String {
    let plugins = group.ranks.iter().filter_map(Machine::winner);
    let mut newest = plugins.filter_map(|plugin| plugin.tables.first());
    let is_one_device = tried.iter().all(|pair| pair.device == 0);
    match newest.find(|table| **table < FIRST_WITH_PLANES) {
        Some(table) if !is_one_device => format!(
            "; a plugin's table v{table} names no networks, as v{FIRST_WITH_PLANES} does: devices of one number are taken to be on one"
        ),
        _ => String::new(),
    }
}

/// The first of NCCL's tables with planeId.
const FIRST_WITH_PLANES: u32 = 12;

fn failed(finding: Finding, ranks: Vec<usize>, pairs: &[&Pair]) -> Finding {
    let pairs = pairs.iter().map(|pair| (*pair).clone()).collect();
    Finding { ranks, pairs, ..finding }
}

/// The ranks that all pairs have in common, if they are few, and a phrase with these ranks, or else with the first pair.
fn common(group: &Group, pairs: &[&Pair]) -> (Vec<usize>, String) {
    let ranks = culprits(group, pairs);
    let by = by(group, pairs);
    if ranks.is_empty() {
        let first = ends(group, pairs[0].from, pairs[0].to);
        return (ranks, format!("the first of them {first}{by}"));
    }
    let way = match (
        pairs.iter().all(|pair| ranks.contains(&pair.from)),
        pairs.iter().all(|pair| ranks.contains(&pair.to)),
    ) {
        (true, false) => "from",
        (false, true) => "to",
        _ => "to or from",
    };
    let hosts: BTreeSet<_> = ranks.iter().map(|rank| host(group, *rank)).collect();
    let hosts = hosts.into_iter().collect::<Vec<_>>().join(", ");
    let whose = format!("all of them {way} {} ({hosts}){by}", named(&ranks));
    (ranks, whose)
}

/// The ranks, or all ranks of the hosts, that are in every pair.
fn culprits(group: &Group, pairs: &[&Pair]) -> Vec<usize> {
    let all: BTreeSet<_> = group.pairs.iter().flat_map(|pair| [pair.from, pair.to]).collect();
    let hosts: BTreeSet<_> = all.iter().map(|rank| host(group, *rank)).collect();
    let edges = pairs.iter().map(|pair| (pair.from, pair.to));
    few(edges, all.len()).unwrap_or_else(|| {
        let edges = pairs.iter().map(|pair| (host(group, pair.from), host(group, pair.to)));
        let found = few(edges, hosts.len()).unwrap_or_default();
        all.into_iter().filter(|rank| found.contains(&host(group, *rank))).collect()
    })
}

/// The few of `count` nodes of which every edge has one at an end. None: there are none, or other nodes could be the cause as well.
fn few<Node: Ord + Copy>(
    edges: impl Iterator<Item = (Node, Node)>,
    count: usize,
) -> Option<Vec<Node>> {
    let mut edges: BTreeSet<_> = edges.collect();
    let peers = |edges: &BTreeSet<(Node, Node)>| {
        let mut peers: BTreeMap<Node, BTreeSet<Node>> = BTreeMap::new();
        for (one, other) in edges {
            peers.entry(*one).or_default().insert(*other);
            peers.entry(*other).or_default().insert(*one);
        }
        peers
    };
    let all = peers(&edges);
    let mut found = Vec::new();
    while !edges.is_empty() {
        let (node, _) = peers(&edges).into_iter().max_by_key(|(_, peers)| peers.len())?;
        found.push(node);
        edges.retain(|(one, other)| *one != node && *other != node);
    }
    let (theirs, others): (Vec<_>, Vec<_>) = all.iter().partition(|(node, _)| found.contains(node));
    let fewest = theirs.iter().map(|(_, peers)| peers.len()).min()?;
    let is_clear = others.iter().all(|(_, peers)| peers.len() < fewest);
    let are_few = found.len() <= FEW && found.len() * 2 < count;
    found.sort_unstable();
    (is_clear && are_few).then_some(found)
}

/// If more machines than this fail at once, the cause is likely to be outside of them.
const FEW: usize = 4;

/// A phrase as `between 2 ranks`.
fn among(pairs: &[&Pair]) -> String {
    let ranks: BTreeSet<_> = pairs.iter().flat_map(|pair| [pair.from, pair.to]).collect();
    format!("{} {} ranks", if ranks.len() == 2 { "between" } else { "among" }, ranks.len())
}

/// A phrase as ` by device 0 (mlx5_0)`, with the name if it is the same on all ranks.
fn by(group: &Group, pairs: &[&Pair]) -> String {
    let devices: BTreeSet<_> = pairs.iter().map(|pair| pair.device).collect();
    let shown = |device: &usize| {
        let on_ranks = group.ranks.iter().filter_map(|one| one.devices().get(*device));
        let names: BTreeSet<_> = on_ranks.map(|one| one.name.as_str()).collect();
        match names.first().filter(|_| names.len() == 1) {
            Some(name) => format!("{device} ({name})"),
            None => device.to_string(),
        }
    };
    let shown: Vec<_> = devices.iter().map(shown).collect();
    format!(" by device{} {}", if shown.len() == 1 { "" } else { "s" }, shown.join(", "))
}

fn ends(group: &Group, from: usize, to: usize) -> String {
    format!("rank {from} ({}) to rank {to} ({})", host(group, from), host(group, to))
}

fn host(group: &Group, rank: usize) -> &str {
    group.ranks.get(rank).map_or("?", |one| one.host.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_whose_value_differs_from_most_are_named() {
        let odd = |texts: &[&str]| {
            let value = |text: &&str| (!text.is_empty()).then(|| (*text).to_owned());
            odd(texts.iter().map(value).enumerate(), "X")
        };
        let found = |text: &str, ranks: &[usize]| Some((text.to_owned(), ranks.to_vec()));
        assert_eq!(
            odd(&["a", "a", "b", "a"]),
            found("X is a on most ranks, and b on rank 2", &[2])
        );
        assert_eq!(
            odd(&["a", "", "a", ""]),
            found("X is a on most ranks, and unset on ranks 1, 3", &[1, 3])
        );
        assert_eq!(odd(&["a", "a"]), None);
        assert_eq!(odd(&[]), None);
    }

    #[test]
    fn only_ranks_that_all_failures_share_are_named() {
        let star = |nodes: &[usize], count: usize| {
            let edges =
                nodes.iter().flat_map(move |one| (0..count).map(move |other| (*one, other)));
            edges.filter(|(one, other)| one != other).collect::<Vec<_>>()
        };
        let few = |edges: Vec<(usize, usize)>, count| few(edges.into_iter(), count);
        assert_eq!(few(star(&[17], 64), 64), Some(vec![17]));
        assert_eq!(few(star(&[5, 3], 8), 8), Some(vec![3, 5]));
        assert_eq!(few(vec![(1, 0), (1, 2)], 3), Some(vec![1]));
        assert_eq!(few(vec![(0, 17), (17, 0)], 64), None, "either may be broken");
        assert_eq!(few(vec![(0, 1), (1, 2), (2, 3), (3, 0)], 64), None, "either of two pairs");
        assert_eq!(few(star(&[0, 1, 2], 4), 4), None, "most are broken");
        assert_eq!(few(star(&[0, 1, 2, 3, 4], 64), 64), None, "more than a few are broken");
    }
}
