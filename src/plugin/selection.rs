//! Chooses provider, rails and devices from what libfabric lists, by pure functions.
//!
//! - A domain is one rail, with one of its addresses, preferably IPv4, then IPv6. The crate `topology` decides which rails make a device.
//! - An interface that cannot reach another host is used only if it is named, or if there is nothing else.

use std::net::IpAddr;

use topology::{Class, Group, Grouping, Machine, Nic, PciAddress, Reason};

/// One of libfabric's offers: a provider on a NIC, with one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// libfabric's name: `tcp;ofi_rxm`.
    pub(crate) provider: String,
    /// For software providers the subnet: `192.0.2.0/24`.
    pub(crate) fabric: String,
    /// For software providers the interface.
    pub(crate) domain: String,
    /// The NIC's own name, such as `rdmap79s0`, whose domain is `rdmap79s0-rdm`.
    pub(crate) device: Option<String>,
    pub(crate) address: Option<IpAddr>,
    pub(crate) class: Class,
    pub(crate) speed_mbps: Option<u32>,
    /// Whether libfabric describes a NIC: software providers have none.
    pub(crate) hardware: bool,
    /// The directory of the NIC or of the interface's device in sysfs, where it is on the PCI bus.
    pub(crate) pci_path: Option<String>,
    /// The PCI address of the NIC or of the interface's device, from sysfs or from libfabric.
    pub(crate) pci: Option<PciAddress>,
    /// Whether the NIC is only a part of the PCI function at that address, such as a subfunction.
    pub(crate) is_part: bool,
    pub(crate) link_up: Option<bool>,
    /// The kind of network, where libfabric describes a NIC.
    pub(crate) network: String,
}

/// The chosen provider and the reason, for the start-up line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) provider: String,
    pub(crate) because: String,
}

/// The preferred providers, the best first. Others are used only if they are named: shm reaches no other host, and the rest is unknown.
/// `tcp` (libfabric 1.18 and later) and `net` (1.17) are native, and use a tenth of rxm's memory.
const PREFERENCE: &[&str] =
    &["cxi", "efa", "verbs;ofi_rxm", "tcp", "net", "tcp;ofi_rxm", "sockets"];

/// Chooses one of the offered providers. `wanted`: the user's choice. `filter`: FI_PROVIDER, which restricts libfabric's offers to the
/// providers that it names, or after `^` to all others (fi_fabric(3)).
pub(crate) fn choose(
    candidates: &[Candidate],
    wanted: Option<&str>,
    filter: Option<&str>,
) -> Option<Choice> {
    let offered = offered(candidates);
    if let Some(wanted) = wanted {
        return choose_wanted(&offered, wanted);
    }
    let known = PREFERENCE.iter().find(|name| offered.contains(name));
    if let Some(provider) = known {
        let rest: Vec<_> = offered.iter().filter(|name| *name != provider).copied().collect();
        let because = match rest.as_slice() {
            [] => "the only one offered".into(),
            rest => format!("preferred to {}", rest.join(", ")),
        };
        return Some(Choice { provider: (*provider).to_owned(), because });
    }
    let first = offered.first().filter(|_| filter.is_some_and(|names| !names.starts_with('^')))?;
    Some(Choice { provider: (*first).to_owned(), because: "FI_PROVIDER leaves no other".into() })
}

fn choose_wanted(offered: &[&str], wanted: &str) -> Option<Choice> {
    let layered = |name: &&&str| is_layered(name, wanted);
    if offered.contains(&wanted) {
        let because = "IRONRAIL_PROVIDER names it".into();
        return Some(Choice { provider: wanted.to_owned(), because });
    }
    let provider = (*offered.iter().find(layered)?).to_owned();
    Some(Choice {
        provider,
        because: format!("IRONRAIL_PROVIDER names {wanted}, which is offered in this form only"),
    })
}

/// Whether `verbs;ofi_rxm` is a form of `verbs`.
fn is_layered(name: &str, wanted: &str) -> bool {
    name.split(';').next() == Some(wanted)
}

/// Each provider once, in libfabric's order.
pub(crate) fn offered(candidates: &[Candidate]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for candidate in candidates {
        if !names.contains(&candidate.provider.as_str()) {
            names.push(&candidate.provider);
        }
    }
    names
}

/// The rails to choose from: one candidate for each domain, by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) places: Vec<usize>,
    /// The same, as input for `topology`.
    pub(crate) nics: Vec<Nic>,
    pub(crate) grouping: Grouping,
}

/// The devices of a provider.
pub(crate) fn devices(
    candidates: &[Candidate],
    provider: &str,
    machine: &Machine,
    max_rails: usize,
) -> Offer {
    let places = best_of_each_nic(candidates, provider);
    let nics: Vec<_> = places.iter().map(|place| candidates[*place].nic()).collect();
    let grouping = topology::group(machine, &nics, max_rails);
    Offer { places, nics, grouping }
}

/// One device with the rails that a user has named.
pub(crate) fn named(nics: Vec<Nic>) -> Offer {
    let rails: Vec<_> = (0..nics.len()).collect();
    let groups = vec![Group { rails: rails.clone(), reason: Reason::Named }];
    Offer { places: rails, nics, grouping: Grouping { groups, left_out: Vec::new() } }
}

/// A NIC about which nothing is known.
pub(crate) fn unknown_nic() -> Nic {
    Nic {
        name: String::new(),
        address: None,
        is_part: false,
        speed_mbps: None,
        link_up: None,
        network: String::new(),
        interface: Some(Class::Ordinary),
    }
}

/// One candidate per domain of the provider, in libfabric's order: the one with the best address.
fn best_of_each_domain(candidates: &[Candidate], provider: &str) -> Vec<usize> {
    let mut best: Vec<usize> = Vec::new();
    for (place, candidate) in
        candidates.iter().enumerate().filter(|(_, one)| one.provider == provider)
    {
        match best.iter_mut().find(|other| candidates[**other].domain == candidate.domain) {
            Some(other) if candidate.rank() < candidates[*other].rank() => *other = place,
            Some(_) => {}
            None => best.push(place),
        }
    }
    best
}

/// One candidate per NIC: of a NIC's domains, the first.
fn best_of_each_nic(candidates: &[Candidate], provider: &str) -> Vec<usize> {
    let mut best = best_of_each_domain(candidates, provider);
    let mut seen: Vec<usize> = Vec::new();
    best.retain(|place| {
        let is_new = !seen.iter().any(|other| candidates[*other].is_rail_of(&candidates[*place]));
        seen.push(*place);
        is_new
    });
    best
}

/// A rail that a user named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// A candidate's index.
    Listed(usize),
    /// An address that libfabric does not list but may accept: an alias such as 127.0.0.2.
    Address(IpAddr),
}

/// Resolves a name in IRONRAIL_RAILS: an address, or a domain.
pub(crate) fn find_rail(candidates: &[Candidate], provider: &str, name: &str) -> Option<Named> {
    if let Ok(address) = name.parse::<IpAddr>() {
        let has_it = |one: &Candidate| one.provider == provider && one.address == Some(address);
        return Some(
            candidates.iter().position(has_it).map_or(Named::Address(address), Named::Listed),
        );
    }
    let best = best_of_each_domain(candidates, provider);
    let is = |candidate: &Candidate| {
        candidate.domain == name || candidate.device.as_deref() == Some(name)
    };
    best.into_iter().find(|place| is(&candidates[*place])).map(Named::Listed)
}

/// Whether both names mean the same rail.
pub(crate) fn is_one_rail(candidates: &[Candidate], one: Named, other: Named) -> bool {
    match (one, other) {
        (Named::Listed(one), Named::Listed(other)) => {
            candidates[one].is_rail_of(&candidates[other])
        }
        (Named::Address(one), Named::Address(other)) => one == other,
        (Named::Listed(_), Named::Address(_)) | (Named::Address(_), Named::Listed(_)) => false,
    }
}

/// The name of the fabric by which rails of two peers are paired: for a NIC the provider's name, for an interface its subnet. Peers must
/// get the same name, no matter how their rails were named; but libfabric reports no subnet for an address that it does not list, and
/// another subnet for each loopback address.
pub(crate) fn pairing_name(
    candidates: &[Candidate],
    (fabric, hardware): (&str, bool),
    address: Option<IpAddr>,
) -> String {
    match address.filter(|_| !hardware) {
        Some(address) if address.is_loopback() => "loopback".to_owned(),
        Some(address) => {
            neighbour(candidates, address).map_or(fabric, |neighbour| &neighbour.fabric).to_owned()
        }
        None => fabric.to_owned(),
    }
}

/// Fabrics that are never used, and why (docs/providers.md).
const REFUSED: &[(&str, &str)] = &[
    // libfabric 2.1 and later list it before "efa", with the same names; 2.3.1 and later refuse the plugin's completion queues on it
    // (prov/efa/src/efa_prov.c, efa_cq.c).
    (
        "efa-direct",
        "its completion queues have another format, and its completions prove nothing; efa is used",
    ),
    // prov/verbs/src/verbs_rma.c ignores FI_DELIVERY_COMPLETE.
    ("Ethernet-iWARP", "verbs does not say when data has arrived; tcp is used"),
];

/// Why a candidate is not used.
pub(crate) fn refusal(candidate: &Candidate) -> Option<&'static str> {
    REFUSED.iter().find(|(fabric, _)| *fabric == candidate.fabric).map(|(_, why)| *why)
}

/// Why a provider whose candidates are all refused is not used.
pub(crate) fn refusal_of(candidates: &[Candidate], wanted: &str) -> Option<&'static str> {
    let named = |one: &&Candidate| one.provider == wanted || is_layered(&one.provider, wanted);
    candidates.iter().filter(named).find_map(refusal)
}

/// A candidate on the interface of this address.
pub(crate) fn neighbour(candidates: &[Candidate], address: IpAddr) -> Option<&Candidate> {
    let both_loop = |one: &Candidate| address.is_loopback() && one.class == Class::Loopback;
    candidates.iter().find(|one| contains(&one.fabric, address) || both_loop(one))
}

/// Whether `192.0.2.0/24` has the address.
fn contains(subnet: &str, address: IpAddr) -> bool {
    let Some((network, bits)) = subnet.split_once('/') else { return false };
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let differing = network.to_bits() ^ address.to_bits();
            bits <= u32::BITS && differing.checked_shr(u32::BITS - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let differing = network.to_bits() ^ address.to_bits();
            bits <= u128::BITS && differing.checked_shr(u128::BITS - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

impl Candidate {
    /// The class of the interface and its address together.
    pub(crate) fn class_of(interface: Class, address: Option<IpAddr>) -> Class {
        match address {
            Some(address) if address.is_loopback() => Class::Loopback,
            Some(address) if is_link_local(address) => interface.max(Class::LinkLocal),
            _ => interface,
        }
    }

    /// Its description for `topology`.
    pub(crate) fn nic(&self) -> Nic {
        Nic {
            name: self.domain.clone(),
            address: self.pci,
            is_part: self.is_part,
            speed_mbps: self.speed_mbps,
            link_up: self.link_up,
            network: self.network.clone(),
            interface: (!self.hardware).then_some(self.class),
        }
    }

    /// Whether both are the same NIC, which may have several domains and addresses, or the same address of an interface.
    fn is_rail_of(&self, other: &Self) -> bool {
        let is_nic = self.hardware && other.hardware;
        let of_one_domain =
            self.domain == other.domain && (is_nic || self.address == other.address);
        of_one_domain || is_nic && self.device.is_some() && self.device == other.device
    }

    /// Lower is better: first by the class of the interface, then IPv4, then IPv6, then other addresses.
    fn rank(&self) -> (Class, u8) {
        let family = match self.address {
            Some(IpAddr::V4(_)) => 0,
            Some(IpAddr::V6(_)) => 1,
            None => 2,
        };
        (self.class, family)
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn software(
        provider: &str,
        interface: &str,
        fabric: &str,
        address: &str,
        class: Class,
    ) -> Candidate {
        let address = address.parse().ok();
        Candidate {
            provider: provider.into(),
            fabric: fabric.into(),
            domain: interface.into(),
            device: None,
            address,
            class: Candidate::class_of(class, address),
            speed_mbps: None,
            hardware: false,
            pci_path: None,
            pci: None,
            is_part: false,
            link_up: None,
            network: String::new(),
        }
    }

    fn nic(provider: &str, domain: &str, address: &str) -> Candidate {
        Candidate {
            speed_mbps: Some(200_000),
            hardware: true,
            pci: address.parse().ok(),
            ..software(provider, domain, provider, "", Class::Ordinary)
        }
    }

    /// What libfabric 1.17 lists on a host with one Ethernet interface, shortened by the repetitions.
    fn debian_host() -> Vec<Candidate> {
        let mut all = Vec::new();
        for provider in ["tcp;ofi_rxm", "net", "net;ofi_rxm", "udp;ofi_rxd"] {
            all.push(software(provider, "eth0", "192.0.2.0/24", "192.0.2.2", Class::Ordinary));
            all.push(software(
                provider,
                "eth0",
                "fe80::/64",
                "fe80::fc:ff:fe00:1",
                Class::Ordinary,
            ));
            all.push(software(provider, "eth0", "fd00::/64", "fd00::2", Class::Ordinary));
            all.push(software(provider, "lo", "127.0.0.1/32", "127.0.0.1", Class::Loopback));
            all.push(software(provider, "lo", "::1/128", "::1", Class::Loopback));
        }
        all.push(software("shm", "shm", "shm", "", Class::Ordinary));
        all.push(software("shm", "shm", "shm", "", Class::Ordinary));
        all.push(software("sockets", "eth0", "192.0.2.0/24", "192.0.2.2", Class::Ordinary));
        all
    }

    /// The indices of each device's rails, on a machine about which nothing is known.
    fn chosen(candidates: &[Candidate], provider: &str, max_rails: usize) -> Vec<Vec<usize>> {
        let offer = devices(candidates, provider, &Machine::default(), max_rails);
        let rails = |group: &Group| group.rails.iter().map(|rail| offer.places[*rail]).collect();
        offer.grouping.groups.iter().map(rails).collect()
    }

    fn domains<'a>(candidates: &'a [Candidate], devices: &[Vec<usize>]) -> Vec<Vec<&'a str>> {
        let names = |rails: &Vec<usize>| {
            rails.iter().map(|place| candidates[*place].domain.as_str()).collect()
        };
        devices.iter().map(names).collect()
    }

    fn provider(candidates: &[Candidate], wanted: Option<&str>) -> Option<String> {
        choose(candidates, wanted, None).map(|choice| choice.provider)
    }

    #[test]
    fn the_native_provider_is_preferred_to_rxm_unless_rxm_is_named() {
        let host = debian_host();
        assert_eq!(
            choose(&host, None, None).unwrap(),
            Choice {
                provider: "net".into(),
                because: "preferred to tcp;ofi_rxm, net;ofi_rxm, udp;ofi_rxd, shm, sockets".into()
            }
        );
        assert_eq!(provider(&host, Some("tcp;ofi_rxm")).as_deref(), Some("tcp;ofi_rxm"));
        assert_eq!(provider(&host, Some("shm")).as_deref(), Some("shm"));
        let newer = software("tcp", "eth0", "192.0.2.0/24", "192.0.2.2", Class::Ordinary);
        let newer: Vec<_> = host.into_iter().chain([newer]).collect();
        assert_eq!(provider(&newer, None).as_deref(), Some("tcp"));
    }

    #[test]
    fn a_base_name_finds_the_layered_provider_when_there_is_no_native_one() {
        let choice = choose(&debian_host(), Some("tcp"), None).unwrap();
        assert_eq!(choice.provider, "tcp;ofi_rxm");
        assert!(choice.because.contains("names tcp"));
        assert_eq!(provider(&debian_host(), Some("cxi")), None);
        assert_eq!(provider(&debian_host(), Some("ofi_rxm")), None);
    }

    #[test]
    fn an_unknown_provider_is_used_only_when_it_is_named() {
        let only_shm = [software("shm", "shm", "shm", "", Class::Ordinary)];
        assert_eq!(provider(&only_shm, None), None);
        assert_eq!(choose(&only_shm, None, Some("shm")).unwrap().provider, "shm");
        assert_eq!(
            choose(&only_shm, None, Some("^tcp,sockets")),
            None,
            "a list of others names none"
        );
        assert_eq!(chosen(&only_shm, "shm", 4), [[0]]);
    }

    #[test]
    fn hardware_is_preferred_to_software() {
        let mut host = debian_host();
        host.push(nic("efa", "rdmap0s6-rdm", "0000:10:1b.0"));
        assert_eq!(provider(&host, None).as_deref(), Some("efa"));
    }

    #[test]
    fn an_interface_is_one_rail_with_its_ipv4_address() {
        let mut host = debian_host();
        assert_eq!(chosen(&host, "net", 4), [[5]], "net on eth0, by 192.0.2.2");

        host.retain(|one| one.address.is_none_or(|address| address.is_ipv6()));
        let rails = chosen(&host, "net", 4);
        assert_eq!(
            host[rails[0][0]].address,
            "fd00::2".parse().ok(),
            "the one that is not link-local"
        );
    }

    /// verbs lists each NIC at its IP addresses and at its GIDs (AF_IB), which are no IP addresses, and do not serve over Ethernet.
    #[test]
    fn a_nic_is_used_at_its_ip_address_if_it_has_one() {
        let nic = || nic("verbs;ofi_rxm", "mlx5_0", "0000:3b:00.0");
        let at = |address: &str| {
            let address = address.parse().ok();
            Candidate { address, class: Candidate::class_of(Class::Ordinary, address), ..nic() }
        };
        let used = |all: &[Candidate]| all[chosen(all, "verbs;ofi_rxm", 4)[0][0]].address;
        let all = [at("fe80::1"), at("fd00::2"), nic(), nic()];
        assert_eq!(used(&all), "fd00::2".parse().ok());
        assert_eq!(used(&[nic(), at("192.0.2.7"), at("fd00::2")]), "192.0.2.7".parse().ok());
        assert_eq!(used(&[at("fe80::1"), nic()]), None, "a link-local address leads nowhere");
    }

    #[test]
    fn an_address_that_reaches_no_other_host_is_used_only_if_there_is_no_other() {
        let class = |interface: &str, class| software("net", interface, "f", "10.0.0.1", class);
        let all = [
            class("docker0", Class::Container),
            software("net", "lo", "f", "127.0.0.1", Class::Loopback),
            software("net", "zero", "f", "169.254.3.4", Class::Ordinary),
            class("br0", Class::Bridge),
            class("eth0", Class::Ordinary),
            class("eth1", Class::Ordinary),
        ];
        let expected: [&[&str]; 6] =
            [&["docker0"], &["lo"], &["zero"], &["br0"], &["eth0"], &["eth0", "eth1"]];
        for (count, expected) in (1..).zip(expected) {
            let some = &all[..count];
            assert_eq!(domains(some, &chosen(some, "net", 4)), [expected]);
        }
    }

    #[test]
    fn the_cap_leaves_out_the_slowest() {
        let speeds = [1_000, 100_000, 25_000];
        let all: Vec<_> = speeds
            .iter()
            .enumerate()
            .map(|(place, speed)| Candidate {
                speed_mbps: Some(*speed),
                ..software("tcp", &format!("eth{place}"), "f", "10.0.0.1", Class::Ordinary)
            })
            .collect();
        assert_eq!(domains(&all, &chosen(&all, "tcp", 2)), [["eth1", "eth2"]]);
    }

    #[test]
    fn a_domain_that_is_listed_several_times_is_one_rail() {
        // cxi lists each domain several times, with other modes.
        let mut all = vec![nic("cxi", "cxi1", "0000:21:00.0"), nic("cxi", "cxi0", "0000:11:00.0")];
        all.extend(all.clone());
        assert_eq!(chosen(&all, "cxi", 4), [[1], [0]], "by address");
    }

    #[test]
    fn rails_are_named_by_address_or_by_interface() {
        let host = debian_host();
        assert_eq!(find_rail(&host, "net", "192.0.2.2"), Some(Named::Listed(5)));
        assert_eq!(find_rail(&host, "net", "eth0"), Some(Named::Listed(5)));
        assert_eq!(find_rail(&host, "net", "lo"), Some(Named::Listed(8)));
        assert_eq!(
            find_rail(&host, "net", "127.0.0.2"),
            Some(Named::Address([127, 0, 0, 2].into()))
        );
        assert_eq!(find_rail(&host, "net", "eth7"), None);
        assert_eq!(find_rail(&host, "cxi", "eth0"), None);
    }

    #[test]
    fn peers_pair_rails_by_subnet_however_they_were_named() {
        let host = debian_host();
        let name =
            |fabric, address: &str| pairing_name(&host, (fabric, false), address.parse().ok());
        assert_eq!(name("192.0.2.0/24", "192.0.2.2"), "192.0.2.0/24");
        assert_eq!(
            name("net", "192.0.2.77"),
            "192.0.2.0/24",
            "an alias in a subnet that is listed"
        );
        assert_eq!(name("net", "198.51.100.1"), "net");
        assert_eq!(name("127.0.0.1/32", "127.0.0.1"), name("net", "127.0.0.2"));
        assert_eq!(name("fd00::/64", "fd00::2"), "fd00::/64");
        assert_eq!(name("shm", ""), "shm");
        let of_nic =
            pairing_name(&host, ("IB-0xfe80000000000000", true), Some([192, 0, 2, 7].into()));
        assert_eq!(of_nic, "IB-0xfe80000000000000", "whether or not tcp is listed, too");
    }

    #[test]
    fn a_nic_is_found_by_its_own_name_too() {
        let rdma = Candidate {
            device: Some("rdmap79s0".into()),
            ..nic("efa", "rdmap79s0-rdm", "0000:4f:00.0")
        };
        for name in ["rdmap79s0", "rdmap79s0-rdm"] {
            assert_eq!(find_rail(std::slice::from_ref(&rdma), "efa", name), Some(Named::Listed(0)));
        }
        assert_eq!(find_rail(&[rdma], "efa", "rdmap79"), None);
    }

    #[test]
    fn a_nic_with_two_domains_is_one_rail() {
        let domain = |name: &str| Candidate {
            device: Some("mlx5_0".into()),
            ..nic("verbs;ofi_rxm", name, "0000:18:00.0")
        };
        let all = [domain("mlx5_0-xrc"), domain("mlx5_0"), nic("verbs;ofi_rxm", "mlx5_1", "")];
        assert_eq!(domains(&all, &chosen(&all, "verbs;ofi_rxm", 1)), [["mlx5_0-xrc"], ["mlx5_1"]]);
        let find = |name| find_rail(&all, "verbs;ofi_rxm", name).unwrap();
        let is_one = |one, other| is_one_rail(&all, find(one), find(other));
        assert!(is_one("mlx5_0", "mlx5_0-xrc") && !is_one("mlx5_0", "mlx5_1"));
    }

    #[test]
    fn an_interface_and_its_address_are_one_rail_and_two_addresses_are_two() {
        let host = debian_host();
        let is_one = |one, other| {
            let find = |name| find_rail(&host, "net", name).unwrap();
            is_one_rail(&host, find(one), find(other))
        };
        for (one, other) in [
            ("eth0", "192.0.2.2"),
            ("::1", "0:0::1"),
            ("fd00::7", "fd00:0::7"),
            ("lo", "127.0.0.1"),
        ] {
            assert!(is_one(one, other), "{one} {other}");
        }
        for (one, other) in [("eth0", "lo"), ("eth0", "fd00::2"), ("127.0.0.1", "127.0.0.2")] {
            assert!(!is_one(one, other), "{one} {other}");
        }
    }

    #[test]
    fn fabrics_that_the_plugin_cannot_use_are_refused() {
        let on = |provider: &str, fabric: &str| Candidate {
            fabric: fabric.into(),
            ..nic(provider, "rdmap79s0-rdm", "0000:4f:00.0")
        };
        assert!(refusal(&on("efa", "efa-direct")).is_some());
        let iwarp = on("verbs;ofi_rxm", "Ethernet-iWARP");
        assert!(refusal(&iwarp).is_some());
        for wanted in ["verbs", "verbs;ofi_rxm"] {
            assert_eq!(refusal_of(std::slice::from_ref(&iwarp), wanted), refusal(&iwarp));
        }
        assert_eq!(refusal_of(&[iwarp], "tcp"), None);
        assert_eq!(refusal(&on("efa", "efa")), None);
        assert_eq!(refusal(&on("verbs;ofi_rxm", "IB-0xfe80000000000000")), None);
    }

    #[test]
    fn a_subnet_contains_the_addresses_that_share_its_first_bits() {
        for (subnet, address, inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.1/32", "10.0.0.1", true),
            ("10.0.0.1/32", "10.0.0.2", false),
            ("0.0.0.0/0", "10.0.0.2", true),
            ("10.0.0.0/33", "10.0.0.1", false),
            ("fd00::/64", "fd00::1", true),
            ("fd00::/64", "fd00:0:0:1::1", false),
            ("::/0", "fd00::1", true),
            ("fd00::/64", "10.0.0.1", false),
            ("nonsense/8", "10.0.0.1", false),
            ("net", "10.0.0.1", false),
        ] {
            assert_eq!(contains(subnet, address.parse().unwrap()), inside, "{subnet} {address}");
        }
    }
}
