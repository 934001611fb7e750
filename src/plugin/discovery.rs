//! Finds libfabric, a provider, and the rails of each device; or the reason why one of these is missing.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fabric::{FabricError, Info, Library, Query};
use topology::sysfs::{self, SYSFS};
use topology::{Hint, Machine, Nic, PciAddress};

use super::config::Config;
use super::failure::{Offers, StartError};
use super::gpu;
use super::plan::{DevicePlan, RailPlan};
use super::selection::{self, Candidate, Choice, Named, Offer};
use crate::types::Protocol;

/// What was found.
#[derive(Debug)]
pub(crate) struct Discovery {
    pub(crate) library: Arc<Library>,
    /// At least one device, each with at least one rail.
    pub(crate) devices: Vec<DevicePlan>,
    /// The topology file for NCCL, where it needs one.
    pub(crate) hint: Option<Hint>,
    /// The provider, and why it was chosen.
    #[cfg_attr(not(test), expect(dead_code, reason = "logged by then; tests read it here"))]
    pub(crate) chosen_because: String,
}

/// Finds library, provider and rails by the settings. Calls fi_getinfo(3), which may take long.
pub(crate) fn discover(config: &Config) -> Result<Discovery, StartError> {
    let library = open(config)?;
    log::info!("Using Libfabric {} from {}", library.version(), library.path().display());
    let (listed, choice) = choose(&library, config)?;
    let machine = listed.machine(&choice.provider);
    let (rails, offer) = if config.rails.is_empty() {
        listed.grouped(&choice.provider, &machine, listed.max_rails(config))
    } else {
        let rails = listed.named(&library, config, &choice.provider)?;
        let offer = selection::named(rails.iter().map(|rail| rail.nic.clone()).collect());
        (rails, offer)
    };
    let mut devices = plans(&machine, rails, listed.protocol, &offer);
    let chosen_because = announce(&choice, listed.protocol, &devices, &offer);
    gpu::equip(&library, config, &mut devices);
    let hint = topology::hint(&machine, &offer.nics, &offer.grouping);
    Ok(Discovery { library, devices, hint, chosen_because })
}

/// Queries libfabric and chooses a provider: one with one-sided writes, or, if there is none and the setting allows it, one with messages
/// only.
fn choose(library: &Arc<Library>, config: &Config) -> Result<(Listed, Choice), StartError> {
    let filter = config.provider_variable("FI_PROVIDER");
    let query_provider = |protocol| {
        let found = find(library, &query(config, config.provider.clone(), protocol))?;
        let (mut infos, mut candidates) = (Vec::new(), Vec::new());
        for info in found {
            let candidate = candidate(&info);
            if let Some(why) = selection::refusal(&candidate) {
                log::debug!("{} on {} is not used: {why}", candidate.domain, candidate.fabric);
                continue;
            }
            infos.push(info);
            candidates.push(candidate);
        }
        let choice = selection::choose(&candidates, config.provider.as_deref(), filter);
        Ok((Listed { infos, candidates, protocol }, choice))
    };
    let (first, choice) = query_provider(config.protocol.unwrap_or_default())?;
    if let Some(choice) = choice {
        return Ok((first, choice));
    }
    if config.protocol.is_none()
        && let (listed, Some(choice)) = query_provider(Protocol::Sendrecv)?
    {
        return Ok((listed, choice));
    }
    Err(none_usable(library, config))
}

/// A plan for each device. `rails` are in the order of `offer`.
fn plans(
    machine: &Machine,
    rails: Vec<RailPlan>,
    protocol: Protocol,
    offer: &Offer,
) -> Vec<DevicePlan> {
    let properties = topology::properties(machine, &offer.nics, &offer.grouping);
    let mut rails: Vec<_> = rails.into_iter().map(Some).collect();
    let mut plans: Vec<DevicePlan> = Vec::new();
    for (group, properties) in offer.grouping.groups.iter().zip(properties) {
        let taken = group.rails.iter().filter_map(|rail| rails[*rail].take()).collect();
        let mut plan = DevicePlan::new(taken, protocol, properties, group.reason.to_string());
        plan.name_apart(plans.len(), plans.iter());
        plans.push(plan);
    }
    plans
}

/// A file that the user names is the only one tried: falling back would hide that it does not load.
fn open(config: &Config) -> Result<Arc<Library>, StartError> {
    let default = PathBuf::from(DEFAULT_LIBRARY);
    let candidate = config.libfabric.as_ref().unwrap_or(&default);
    Library::open(&[candidate]).map_err(|error| StartError::NoLibrary {
        attempts: error.attempts().to_vec(),
        named: config.libfabric.is_some(),
    })
}

fn query(config: &Config, provider: Option<String>, protocol: Protocol) -> Query {
    let messages = protocol == Protocol::Sendrecv;
    Query { provider, basic_regions: config.basic_regions, messages, ..Query::default() }
}

fn find(library: &Arc<Library>, query: &Query) -> Result<Vec<Info>, StartError> {
    let failed = |fault: FabricError| StartError::NoAnswer { version: library.version(), fault };
    library.find(query).map_err(failed)
}

/// The error: what was requested, and what is offered.
fn none_usable(library: &Arc<Library>, config: &Config) -> StartError {
    let protocols = match config.protocol {
        Some(protocol) => vec![protocol],
        None => vec![Protocol::Rdma, Protocol::Sendrecv],
    };
    let found = protocols
        .iter()
        .flat_map(|protocol| library.find(&query(config, None, *protocol)).unwrap_or_default());
    let found = found.map(|info| candidate(&info));
    let (usable, refused): (Vec<_>, Vec<_>) =
        found.partition(|one| selection::refusal(one).is_none());
    let offered = selection::offered(&usable).into_iter().map(str::to_owned).collect();
    let offers = Offers {
        providers: offered,
        protocol: config.protocol,
        basic_regions: config.basic_regions,
    };
    let version = library.version();
    match &config.provider {
        Some(wanted) => StartError::NoSuchProvider {
            wanted: wanted.clone(),
            refusal: selection::refusal_of(&refused, wanted),
            version,
            offers,
        },
        None => StartError::NoProvider { version, offers },
    }
}

/// What libfabric listed, and the same as candidates, in the same order.
struct Listed {
    infos: Vec<Info>,
    candidates: Vec<Candidate>,
    protocol: Protocol,
}

impl Listed {
    /// The most rails of one device: one with SENDRECV.
    fn max_rails(&self, config: &Config) -> usize {
        match self.protocol {
            Protocol::Rdma => config.max_rails,
            Protocol::Sendrecv => 1,
        }
    }

    /// The rails of a provider, and their grouping into devices.
    fn grouped(
        &self,
        provider: &str,
        machine: &Machine,
        max_rails: usize,
    ) -> (Vec<RailPlan>, Offer) {
        let offer = selection::devices(&self.candidates, provider, machine, max_rails);
        (offer.places.iter().map(|place| self.rail(*place)).collect(), offer)
    }

    /// The PCI hierarchy, where it matters: with several rails on PCI.
    fn machine(&self, provider: &str) -> Machine {
        let of_provider = self.candidates.iter().filter(|one| one.provider == provider);
        let mut addresses: Vec<PciAddress> = of_provider.filter_map(|one| one.pci).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.len() < 2 {
            return Machine::default();
        }
        sysfs::machine(Path::new(SYSFS), &addresses)
    }

    /// One device with the rails that IRONRAIL_RAILS names.
    fn named(
        &self,
        library: &Arc<Library>,
        config: &Config,
        provider: &str,
    ) -> Result<Vec<RailPlan>, StartError> {
        let (named, taken) = (config.rails.len(), self.max_rails(config));
        let names = config.rails.iter().take(taken);
        if named > taken && self.protocol == Protocol::Sendrecv {
            log::warn!(
                "IRONRAIL_RAILS names {named} rails, and the first is used: a device has one rail with SENDRECV"
            );
        } else if named > taken {
            log::warn!(
                "IRONRAIL_RAILS names {named} rails, and the first {taken} are used: raise IRONRAIL_MAX_RAILS for more"
            );
        }
        let mut found: Vec<(&String, Named)> = Vec::new();
        for name in names {
            let rail = selection::find_rail(&self.candidates, provider, name)
                .ok_or_else(|| self.no_such_rail(provider, name))?;
            let is_it =
                |(_, other): &&(_, Named)| selection::is_one_rail(&self.candidates, *other, rail);
            if let Some((other, _)) = found.iter().find(is_it) {
                let names = [(*other).clone(), name.clone()];
                return Err(StartError::RailTwice { names, provider: provider.to_owned() });
            }
            found.push((name, rail));
        }
        let plan = |(name, rail): (&String, Named)| match rail {
            Named::Listed(place) => Ok(RailPlan { interface: name.clone(), ..self.rail(place) }),
            Named::Address(address) => self.rail_at(library, config, provider, address),
        };
        found.into_iter().map(plan).collect()
    }

    fn rail(&self, place: usize) -> RailPlan {
        let (info, candidate) = (self.infos[place].clone(), &self.candidates[place]);
        RailPlan {
            fabric_name: selection::pairing_name(
                &self.candidates,
                (&candidate.fabric, candidate.hardware),
                candidate.address,
            ),
            interface: candidate.domain.clone(),
            address: fabric::shown_address(info.address_format(), info.source_address()),
            nic: candidate.nic(),
            pci_path: candidate.pci_path.clone(),
            info,
        }
    }

    /// A rail at an address that libfabric does not list, such as an alias, but accepts as a source address.
    fn rail_at(
        &self,
        library: &Arc<Library>,
        config: &Config,
        provider: &str,
        address: IpAddr,
    ) -> Result<RailPlan, StartError> {
        // libfabric accepts any source address. If it is not this host's, opening an endpoint fails; except over shm, which takes the
        // address as a name: a second endpoint would have the same.
        let here = UdpSocket::bind((address, 0));
        let elsewhere = here.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable);
        let mut ours = self.candidates.iter().filter(|candidate| candidate.provider == provider);
        if elsewhere || !is_of_a_host(address) || ours.all(|candidate| candidate.address.is_none())
        {
            return Err(self.no_such_rail(provider, &address.to_string()));
        }
        let source = Some(address.to_string());
        let query = Query { source, ..query(config, Some(provider.to_owned()), self.protocol) };
        let mut found =
            find(library, &query)?.into_iter().filter(|info| info.provider() == provider);
        let info = found.next().ok_or_else(|| self.no_such_rail(provider, &address.to_string()))?;
        let neighbour = selection::neighbour(&self.candidates, address);
        Ok(RailPlan {
            fabric_name: selection::pairing_name(
                &self.candidates,
                (info.fabric_name(), info.nic().is_some()),
                Some(address),
            ),
            interface: address.to_string(),
            address: address.to_string(),
            nic: Nic {
                name: address.to_string(),
                ..neighbour.map_or_else(selection::unknown_nic, Candidate::nic)
            },
            pci_path: neighbour.and_then(|neighbour| neighbour.pci_path.clone()),
            info,
        })
    }

    fn no_such_rail(&self, provider: &str, name: &str) -> StartError {
        let mut there: Vec<String> = Vec::new();
        for candidate in self.candidates.iter().filter(|candidate| candidate.provider == provider) {
            let text = candidate.address.map_or_else(
                || candidate.domain.clone(),
                |address| format!("{} ({address})", candidate.domain),
            );
            if !there.contains(&text) {
                there.push(text);
            }
        }
        StartError::NoSuchRail { rail: name.to_owned(), provider: provider.to_owned(), there }
    }
}

/// Logs the start-up lines. Sites search logs for "Selected provider is".
fn announce(choice: &Choice, protocol: Protocol, devices: &[DevicePlan], offer: &Offer) -> String {
    let chosen = format!("{} ({})", choice.provider, choice.because);
    log::info!("Selected provider is {chosen}");
    if protocol == Protocol::Sendrecv {
        log::info!("its rails send messages (SENDRECV), without one-sided writes");
    }
    for device in devices {
        let rails: Vec<_> = device
            .rails
            .iter()
            .map(|rail| format!("{} at {} on {}", rail.interface, rail.address, rail.fabric_name))
            .collect();
        log::info!(
            "device {}: {} {}: {}",
            device.name,
            rails.len(),
            if rails.len() == 1 { "rail" } else { "rails" },
            rails.join(", ")
        );
        log::debug!("device {}: {}", device.name, device.because);
        let speeds = || device.rails.iter().filter_map(|rail| rail.nic.speed_mbps);
        if let (Some(slowest), Some(fastest)) = (speeds().min(), speeds().max())
            && fastest / 2 >= slowest
        {
            log::info!(
                "device {}: the rails' speeds differ, {slowest} to {fastest} Mb/s, and the slow ones hold up the rest: \
                 name the fast ones in IRONRAIL_RAILS",
                device.name
            );
        }
    }
    for left in &offer.grouping.left_out {
        let name = offer.nics.get(left.nic).map_or("", |nic| nic.name.as_str());
        log::debug!("{name} is not used: {}", left.phrase(&offer.nics));
    }
    chosen
}

/// What `selection` needs from a fi_info.
fn candidate(info: &Info) -> Candidate {
    let address = fabric::ip_address(info.address_format(), info.source_address());
    let nic = info.nic();
    let interface = sysfs::interface(Path::new(SYSFS), info.domain_name());
    let listed = nic.as_ref().and_then(|nic| nic.pci).and_then(|pci| pci.to_string().parse().ok());
    let by_bus = listed.and_then(|pci| sysfs::directory(Path::new(SYSFS), pci));
    let link = nic.as_ref().and_then(|nic| nic.link_bits_per_second);
    let device = nic.as_ref().and_then(|nic| nic.device.clone());
    // libfabric before 2.0 reports no speed for HDR and NDR (prov/verbs/src/verbs_info.c, also used for efa).
    let by_kernel = || sysfs::rdma_speed_mbps(Path::new(SYSFS), device.as_deref()?);
    let link_mbps = link.and_then(|bits| u32::try_from(bits / 1_000_000).ok()).or_else(by_kernel);
    // It does not report the PCI address of subfunctions of mlx5 either (prov/verbs/src/verbs_info.c, vrb_get_device_bus_attr).
    let function = device.as_deref().and_then(|name| sysfs::rdma_function(Path::new(SYSFS), name));
    let pci_path = by_bus.or(interface.pci_path);
    Candidate {
        provider: info.provider().to_owned(),
        fabric: info.fabric_name().to_owned(),
        domain: info.domain_name().to_owned(),
        device,
        address,
        class: Candidate::class_of(interface.class, address),
        speed_mbps: link_mbps.or(interface.speed_mbps),
        hardware: nic.is_some(),
        pci: pci_path
            .as_deref()
            .and_then(sysfs::function_of)
            .or(listed)
            .or_else(|| function.map(|(address, _)| address)),
        is_part: function.is_some_and(|(_, is_part)| is_part),
        pci_path: pci_path.and_then(|path| path.into_os_string().into_string().ok()),
        link_up: nic.as_ref().and_then(|nic| nic.link_up),
        network: nic.and_then(|nic| nic.network).unwrap_or_default(),
    }
}

/// Whether peers can connect to the address. Sockets can also be bound to other addresses.
fn is_of_a_host(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && address != Ipv4Addr::BROADCAST
}

const DEFAULT_LIBRARY: &str = "libfabric.so.1";

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Config {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::from_variables(owned).unwrap()
    }

    fn sentence(variables: &[(&str, &str)]) -> String {
        discover(&settings(variables)).unwrap_err().to_string()
    }

    /// The addresses of the rails of each device.
    fn rails(variables: &[(&str, &str)]) -> Vec<Vec<String>> {
        let found = discover(&settings(variables)).unwrap();
        found
            .devices
            .iter()
            .map(|device| device.rails.iter().map(|rail| rail.address.clone()).collect())
            .collect()
    }

    #[test]
    fn a_library_that_does_not_load_is_one_sentence_with_a_next_step() {
        let sentence = sentence(&[("IRONRAIL_LIBFABRIC", "/nowhere/libfabric.so.1")]);
        assert!(sentence.contains("/nowhere/libfabric.so.1"), "{sentence}");
        assert!(sentence.contains("correct IRONRAIL_LIBFABRIC"), "{sentence}");
        assert!(!sentence.contains('\n'), "{sentence}");
    }

    #[test]
    fn an_error_about_a_missing_provider_lists_those_offered() {
        let sentence = sentence(&[("IRONRAIL_PROVIDER", "cxi")]);
        assert!(
            sentence.starts_with("IRONRAIL_PROVIDER=cxi is not available: libfabric"),
            "{sentence}"
        );
        assert!(sentence.contains("tcp;ofi_rxm"), "{sentence}");
    }

    #[test]
    fn an_error_about_a_missing_rail_lists_those_offered() {
        let sentence =
            sentence(&[("IRONRAIL_PROVIDER", "sockets"), ("IRONRAIL_RAILS", "lo,eth77")]);
        assert!(
            sentence.starts_with("IRONRAIL_RAILS names eth77, which sockets does not have"),
            "{sentence}"
        );
        assert!(sentence.contains("lo (127.0.0.1)"), "{sentence}");
    }

    /// Sockets can be bound to these addresses, but no peer can connect to them.
    #[test]
    fn an_address_that_belongs_to_no_host_is_no_rail() {
        for address in ["0.0.0.0", "::", "224.0.0.1", "255.255.255.255"] {
            for provider in ["sockets", "tcp;ofi_rxm", "net"] {
                let named = [("IRONRAIL_PROVIDER", provider), ("IRONRAIL_RAILS", address)];
                let found = discover(&settings(&named)).map(|found| found.devices[0].name.clone());
                let sentence = found.expect_err(address).to_string();
                let start = format!("IRONRAIL_RAILS names {address}, which {provider} does not");
                assert!(sentence.starts_with(&start), "{sentence}");
            }
        }
    }

    #[test]
    fn a_rail_that_is_named_twice_is_refused() {
        let sentence = sentence(&[
            ("IRONRAIL_PROVIDER", "sockets"),
            ("IRONRAIL_RAILS", "127.0.0.2,127.0.0.1,lo"),
        ]);
        assert!(sentence.starts_with("IRONRAIL_RAILS names 127.0.0.1 and lo, "), "{sentence}");
    }

    #[test]
    fn rails_are_used_by_address_as_they_were_named() {
        for provider in ["tcp;ofi_rxm", "sockets"] {
            let found = rails(&[
                ("IRONRAIL_PROVIDER", provider),
                ("IRONRAIL_RAILS", "127.0.0.2,127.0.0.1,127.0.0.3"),
            ]);
            assert_eq!(found, [["127.0.0.2", "127.0.0.1", "127.0.0.3"]], "{provider}");
        }
    }

    #[test]
    fn named_loopback_rails_pair_with_each_other() {
        let found = discover(&settings(&[("IRONRAIL_RAILS", "127.0.0.3,127.0.0.2,lo")])).unwrap();
        let names: Vec<_> =
            found.devices[0].rails.iter().map(|rail| rail.fabric_name.as_str()).collect();
        assert_eq!(names, ["loopback"; 3]);
        assert_eq!(found.devices[0].name, "127.0.0.3+127.0.0.2+lo");
    }

    #[test]
    fn the_number_of_rails_is_capped() {
        let found = rails(&[
            ("IRONRAIL_RAILS", "127.0.0.1,127.0.0.2,127.0.0.3"),
            ("IRONRAIL_MAX_RAILS", "2"),
        ]);
        assert_eq!(found, [["127.0.0.1", "127.0.0.2"]]);
    }

    #[test]
    fn without_settings_a_native_provider_is_found_on_one_device() {
        let found = discover(&Config::default()).unwrap();
        assert_eq!(found.devices.len(), 1);
        let provider = found.devices[0].rails[0].info.provider();
        assert!(["net", "tcp"].contains(&provider), "{provider}");
        assert!(
            found.chosen_because.starts_with(&format!("{provider} (preferred to ")),
            "{}",
            found.chosen_because
        );
        assert!(found.devices[0].rails.len() <= 4);
        assert!(found.devices[0].regions_are_global());
    }

    #[test]
    fn shm_is_used_when_it_is_named() {
        let found = discover(&settings(&[("IRONRAIL_PROVIDER", "shm")])).unwrap();
        assert_eq!(found.devices.len(), 1);
        assert_eq!(found.devices[0].rails[0].info.provider(), "shm");
        assert_eq!(found.chosen_because, "shm (IRONRAIL_PROVIDER names it)");
    }
}
