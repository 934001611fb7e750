//! The settings: VFABRIC_* in the environment, or the control table's `configure`.

use std::ffi::c_int;
use std::path::PathBuf;
use std::time::Duration;

use libfabric_sys as sys;

use crate::faults::{self, Fault, TIME_MAX};
use crate::ledger::Rule;
use crate::profile::{self, Classes, Profile};

/// A setting: its name, its values, its default and its effect. docs/vfabric.md has the same table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) takes: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "for the page, which a test compares"))]
    pub(crate) default: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "as above"))]
    pub(crate) doc: &'static str,
}

macro_rules! settings {
    ($($name:literal, $takes:literal, $default:literal, $doc:literal;)*) => {
        /// All settings. In the environment each is in capitals, after VFABRIC_.
        pub(crate) const SETTINGS: &[Setting] =
            &[$(Setting { name: $name, takes: $takes, default: $default, doc: $doc }),*];
    };
}

settings! {
    "profile", "cxi, efa, tcp, adversary or messages", "cxi",
        "What the fabric promises and demands. Comes first: the others change it.";
    "nics", "1 to 16", "4", "Virtual NICs: domains vnic0, vnic1 and so on.";
    "seed", "a number", "1", "Where all chance starts.";
    "eagain", "0 to 999", "0", "How many of a thousand posts are refused with -FI_EAGAIN.";
    "lose", "0 to 999", "0", "How many of a thousand two-sided messages never arrive, though their completions say that they were sent.";
    "double", "0 to 1000", "0", "How many of a thousand two-sided messages arrive twice.";
    "faults", "a script", "", "Faults by post and by operation; see below.";
    "immediates", "0, 1 or variable", "the profile's",
        "Whether writes with immediates work; else they answer -FI_ENOSYS, whatever `cq_data_size` says. Variable: as below.";
    "regions", "endpoint, prov_key, allocated, virt_addr, local, or none", "the profile's",
        "What registration asks of the user: FI_MR_* bits, with commas between.";
    "endpoints", "a number", "the profile's", "How many endpoints a NIC has; the next one is refused with -FI_ENOSPC.";
    "hybrid", "0 or 1", "1",
        "Profile cxi: whether a domain has the calls of fi_cxi(7), of which `enable_hybrid_mr_desc` makes descriptors count.";
    "one_sided", "0 or 1", "1", "Whether endpoints can be opened without messages; else they get -FI_EINVAL.";
    "depth", "a number", "the profile's", "How many operations an endpoint may have in flight; the next one is refused with -FI_EAGAIN.";
    "arrivals", "a number", "the profile's",
        "How many writes with immediates may arrive on an endpoint between two polls of it; 0: as many as its completion queue holds.";
    "inject", "bytes", "the profile's", "The largest injected operation.";
    "message", "bytes", "the profile's", "The largest operation.";
    "reorder", "polls, 2^48 at most", "the profile's", "How far completions and bytes may overtake each other.";
    "hold", "0 or 1", "the profile's", "Whether landed bytes may stay unseen for a while, torn at cache lines.";
    "linger", "0 to 1000", "1000",
        "Profile tcp: how many of a thousand operations that were reported complete wait for another poll of the sender's; the rest leave at once.";
    "clock", "polls or virtual", "polls",
        "The unit of time. Polls: each is one. Virtual: ns, by bandwidth and latency; a poll that finds nothing jumps to the next event.";
    "bandwidth", "Mb/s, one or one per NIC", "200000", "Of each NIC, in virtual time.";
    "latency", "ns, 2^48 at most, one or one per NIC", "1500", "Of each NIC, in virtual time.";
    "speed", "Mb/s, one or one per NIC", "200000", "The link speed in fi_info.nic.";
    "pci", "addresses, one per NIC", "0000:10:00.0 and up", "Where fi_info.nic says that the NICs are.";
    "numa", "nodes, one or one per NIC", "0", "Without `pci`: the PCI domain that each NIC's address has.";
    "tolerate", "rules", "", "Broken rules that are counted apart and fail no test; names as in reports.";
    "hmem", "0, 1 or calls, one or one per NIC", "0",
        "Device memory (FI_HMEM). Calls: by CUDA's calls alone, so that FI_OPT_CUDA_API_PERMITTED cannot be turned off.";
    "classes", "any, labels or none", "the profile's",
        "Which traffic classes (FI_TC_*) endpoints open in: labels alone, as on cxi, or none; others get -FI_EINVAL.";
    "emulated", "0, 1 or unreadable", "0",
        "Profile efa: whether FI_OPT_EFA_EMULATED_WRITE says that writes are made of messages. Unreadable: fi_getopt gives -FI_ENOPROTOOPT.";
    "lines", "0 or 1", "0",
        "Profile efa: whether FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES is granted, as where the device has it: then blocks of 128 bytes are not torn.";
    "shared_memory", "set, read, stuck or refused", "set",
        "Profile efa: what becomes of FI_OPT_SHARED_MEMORY_PERMITTED, as below.";
    "protocol", "a number, or two with a point between", "the profile's",
        "`ep_attr.protocol`, and behind the point `protocol_version`.";
    "cleanup", "ms, 60000 at most", "0",
        "How long the provider's cleanup takes, as the process ends: calls meanwhile are broken rules.";
    "report", "a path", "", "Where the report is written when the last domain closes, and at exit; %p in it is the process's number.";
}

/// The values: as set, or the profile's defaults.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) profile: Profile,
    pub(crate) nics: usize,
    pub(crate) seed: u64,
    pub(crate) eagain_permille: u64,
    pub(crate) lose_permille: u64,
    pub(crate) double_permille: u64,
    pub(crate) faults: Vec<Fault>,
    pub(crate) linger_permille: u64,
    pub(crate) is_virtual: bool,
    pub(crate) bandwidth_mbps: Vec<u64>,
    pub(crate) latency_ns: Vec<u64>,
    pub(crate) speed_mbps: Vec<u64>,
    pub(crate) pci: Vec<PciAddress>,
    pub(crate) numa: Vec<u64>,
    pub(crate) tolerated: Vec<Rule>,
    /// One value for all NICs, or one for each.
    pub(crate) device_memory: Vec<DeviceMemory>,
    /// Whether domains of profile cxi have that provider's own calls.
    pub(crate) hybrid: bool,
    /// Whether endpoints open without messages.
    pub(crate) one_sided: bool,
    /// Whether lines in order are granted.
    pub(crate) lines: bool,
    /// None: fi_getopt does not know the option.
    pub(crate) emulated_writes: Option<bool>,
    pub(crate) shared_memory: SharedMemory,
    pub(crate) cleanup: Duration,
    pub(crate) report: Option<PathBuf>,
}

/// How a NIC moves device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceMemory {
    None,
    /// By itself.
    Direct,
    /// By calls of CUDA.
    Calls,
}

/// How endpoints handle FI_OPT_SHARED_MEMORY_PERMITTED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedMemory {
    /// It can be set, and cannot be read.
    Set,
    /// It can be set, and reads as it was set.
    Read,
    /// It can be set, and always reads true.
    Stuck,
    Refused,
}

/// A PCI address as in sysfs: `0000:3b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PciAddress {
    pub(crate) domain: u16,
    pub(crate) bus: u8,
    pub(crate) device: u8,
    pub(crate) function: u8,
}

/// How names are given: as words, or as variables of the environment.
#[derive(Clone, Copy)]
enum Prefix {
    None,
    Variable,
}

impl Prefix {
    fn before(self, name: &str) -> String {
        match self {
            Self::None => name.to_owned(),
            Self::Variable => format!("{VARIABLES}{}", name.to_ascii_uppercase()),
        }
    }
}

const VARIABLES: &str = "VFABRIC_";

impl Settings {
    fn new() -> Self {
        Self {
            profile: profile::PROFILES[0],
            nics: 4,
            seed: 1,
            eagain_permille: 0,
            lose_permille: 0,
            double_permille: 0,
            faults: Vec::new(),
            linger_permille: 1000,
            is_virtual: false,
            bandwidth_mbps: vec![200_000],
            latency_ns: vec![1500],
            speed_mbps: vec![200_000],
            pci: Vec::new(),
            numa: vec![0],
            tolerated: Vec::new(),
            device_memory: vec![DeviceMemory::None],
            hybrid: true,
            one_sided: true,
            lines: false,
            emulated_writes: Some(false),
            shared_memory: SharedMemory::Set,
            cleanup: Duration::ZERO,
            report: None,
        }
    }

    /// From names and values; an empty value counts as not set. Errors have the names with `prefix`.
    fn of<'a>(
        given: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        prefix: Prefix,
    ) -> Result<Self, String> {
        let mut settings = Self::new();
        for (name, _) in given.clone() {
            if !SETTINGS.iter().any(|setting| setting.name == name) {
                return Err(format!("there is no setting {}", prefix.before(name)));
            }
        }
        // In the table's order, since `profile` must come first.
        for setting in SETTINGS {
            for (_, value) in given.clone().filter(|(name, _)| *name == setting.name) {
                if !value.is_empty() {
                    settings.set(setting.name, value).ok_or_else(|| {
                        format!(
                            "{}={value}: it takes {}",
                            prefix.before(setting.name),
                            setting.takes
                        )
                    })?;
                }
            }
        }
        if !faults::are_on(&settings.faults, settings.nics) {
            let script = given.filter(|(name, _)| *name == "faults").last();
            let last = settings.nics - 1;
            return Err(format!(
                "{}={}: the NICs are 0 to {last}",
                prefix.before("faults"),
                script.map_or("", |(_, script)| script)
            ));
        }
        Ok(settings)
    }

    /// From `name=value` words. A value with blanks stands between apostrophes.
    pub(crate) fn of_text(text: &str) -> Result<Self, String> {
        let mut quoted = false;
        let words: Vec<&str> = text
            .split(|letter: char| {
                quoted ^= letter == '\'';
                letter == ' ' && !quoted
            })
            .filter(|word| !word.is_empty())
            .collect();
        let pairs = words.iter().map(|word| word.split_once('=').unwrap_or((word, "")));
        Self::of(pairs.map(|(name, value)| (name, value.trim_matches('\''))), Prefix::None)
    }

    /// From the environment. Unknown VFABRIC_ names are errors.
    pub(crate) fn of_environment() -> Result<Self, String> {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| {
                let name = name.to_string_lossy().strip_prefix(VARIABLES)?.to_ascii_lowercase();
                Some((name, value))
            })
            .map(|(name, value)| match value.into_string() {
                Ok(value) => Ok((name, value)),
                Err(value) => Err(format!(
                    "{}={}: it is no UTF-8",
                    Prefix::Variable.before(&name),
                    value.display()
                )),
            })
            .collect::<Result<Vec<(String, String)>, String>>()?;
        let given = variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        Self::of(given, Prefix::Variable)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let profile = &mut self.profile;
        match name {
            "profile" => *profile = profile::named(value)?,
            "nics" => self.nics = number(value, 1, NICS_MAX as u64)?.try_into().ok()?,
            "seed" => self.seed = value.parse().ok()?,
            "eagain" => self.eagain_permille = number(value, 0, 999)?,
            "lose" => self.lose_permille = number(value, 0, 999)?,
            "double" => self.double_permille = number(value, 0, 1000)?,
            "faults" => self.faults = faults::parse(value).ok()?,
            "immediates" if value == "variable" => {
                profile.immediates =
                    std::env::var_os("FI_CXI_ENABLE_WRITEDATA").is_some_and(|value| value == "1");
            }
            "immediates" => profile.immediates = switch(value)?,
            "regions" => profile.regions = region_bits(value)?,
            "endpoints" => profile.endpoints_per_nic = value.parse().ok()?,
            "depth" => profile.transmit_depth = number(value, 1, 1 << 20)?.try_into().ok()?,
            "arrivals" => profile.arrivals = value.parse().ok()?,
            "inject" => {
                profile.inject_bytes = value.parse().ok()?;
                profile.inject_rma_bytes = profile.inject_bytes;
            }
            "message" => profile.max_message = number(value, 1, u64::MAX)?,
            "reorder" => profile.reorder = number(value, 0, TIME_MAX)?,
            "hold" => profile.hold = switch(value)?,
            "linger" => self.linger_permille = number(value, 0, 1000)?,
            "clock" => {
                self.is_virtual = match value {
                    "polls" => false,
                    "virtual" => true,
                    _ => return None,
                }
            }
            "bandwidth" => self.bandwidth_mbps = numbers(value, 1, u64::MAX)?,
            "latency" => self.latency_ns = numbers(value, 0, TIME_MAX)?,
            "speed" => self.speed_mbps = numbers(value, 1, u64::MAX)?,
            "pci" => self.pci = value.split(',').map(pci_address).collect::<Option<_>>()?,
            "numa" => self.numa = numbers(value, 0, u16::MAX.into())?,
            "tolerate" => {
                let rule = |name| Rule::ALL.iter().find(|rule| rule.name() == name).copied();
                self.tolerated = value.split(',').map(rule).collect::<Option<_>>()?;
            }
            "hmem" => {
                self.device_memory = value.split(',').map(device_memory).collect::<Option<_>>()?;
            }
            "classes" => {
                profile.classes = match value {
                    "any" => Classes::Any,
                    "labels" => Classes::Labels,
                    "none" => Classes::None,
                    _ => return None,
                }
            }
            "hybrid" => self.hybrid = switch(value)?,
            "one_sided" => self.one_sided = switch(value)?,
            "lines" => self.lines = switch(value)?,
            "emulated" if value == "unreadable" => self.emulated_writes = None,
            "emulated" => self.emulated_writes = Some(switch(value)?),
            "shared_memory" => self.shared_memory = shared_memory(value)?,
            "protocol" => {
                let (protocol, version) = value
                    .split_once('.')
                    .map_or((value, None), |(number, version)| (number, Some(version)));
                profile.protocol = protocol.parse().ok()?;
                if let Some(version) = version {
                    profile.protocol_version = version.parse().ok()?;
                }
            }
            "cleanup" => self.cleanup = Duration::from_millis(number(value, 0, CLEANUP_MAX)?),
            "report" => {
                let number = std::process::id().to_string();
                self.report = Some(PathBuf::from(value.replace("%p", &number)));
            }
            _ => return None,
        }
        Some(())
    }

    /// A NIC's entry of a list; the last entry serves all further NICs.
    pub(crate) fn of_nic(list: &[u64], nic: usize) -> u64 {
        list.get(nic).or_else(|| list.last()).copied().unwrap_or(0)
    }

    /// How a NIC moves device memory.
    pub(crate) fn device_memory_of(&self, nic: usize) -> DeviceMemory {
        let last = self.device_memory.last();
        self.device_memory.get(nic).or(last).copied().unwrap_or(DeviceMemory::None)
    }

    /// The PCI address that a NIC reports.
    pub(crate) fn pci_of(&self, nic: usize) -> PciAddress {
        self.pci.get(nic).copied().unwrap_or_else(|| PciAddress {
            domain: u16::try_from(Self::of_nic(&self.numa, nic)).unwrap_or(0),
            bus: 0x10 + u8::try_from(nic).unwrap_or(0),
            device: 0,
            function: 0,
        })
    }
}

/// The domains are vnic0 to vnic15.
pub(crate) const NICS_MAX: usize = 16;

/// The longest cleanup, in ms.
const CLEANUP_MAX: u64 = 60_000;

fn number(value: &str, least: u64, most: u64) -> Option<u64> {
    value.parse().ok().filter(|number| (least..=most).contains(number))
}

fn numbers(value: &str, least: u64, most: u64) -> Option<Vec<u64>> {
    value.split(',').map(|one| number(one, least, most)).collect()
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn device_memory(value: &str) -> Option<DeviceMemory> {
    match value {
        "0" => Some(DeviceMemory::None),
        "1" => Some(DeviceMemory::Direct),
        "calls" => Some(DeviceMemory::Calls),
        _ => None,
    }
}

fn shared_memory(value: &str) -> Option<SharedMemory> {
    match value {
        "set" => Some(SharedMemory::Set),
        "read" => Some(SharedMemory::Read),
        "stuck" => Some(SharedMemory::Stuck),
        "refused" => Some(SharedMemory::Refused),
        _ => None,
    }
}

fn region_bits(value: &str) -> Option<c_int> {
    if value == "none" {
        return Some(0);
    }
    value.split(',').try_fold(0, |bits, name| {
        Some(
            bits | match name {
                "endpoint" => sys::FI_MR_ENDPOINT,
                "prov_key" => sys::FI_MR_PROV_KEY,
                "allocated" => sys::FI_MR_ALLOCATED,
                "virt_addr" => sys::FI_MR_VIRT_ADDR,
                "local" => sys::FI_MR_LOCAL,
                _ => return None,
            },
        )
    })
}

fn pci_address(text: &str) -> Option<PciAddress> {
    let mut parts = text.split([':', '.']);
    let mut part = || u64::from_str_radix(parts.next()?, 16).ok();
    let address = PciAddress {
        domain: part()?.try_into().ok()?,
        bus: part()?.try_into().ok()?,
        device: part()?.try_into().ok()?,
        function: part()?.try_into().ok()?,
    };
    parts.next().is_none().then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_change_the_profile_whatever_their_order() {
        let settings = Settings::of_text("depth=3 profile=efa nics=2 regions=local").unwrap();
        assert_eq!(settings.profile.name, "efa");
        assert_eq!(settings.profile.transmit_depth, 3);
        assert_eq!(settings.profile.regions, sys::FI_MR_LOCAL);
        assert_eq!(settings.nics, 2);
    }

    /// Each default is written twice: for the page, and in `new`.
    #[test]
    fn the_default_of_each_setting_is_the_value_in_effect() {
        let unset = format!("{:?}", Settings::of_text("").unwrap());
        let mut values = 0;
        for Setting { name, default, .. } in SETTINGS {
            // The others are words about a value.
            if let Ok(set) = Settings::of([(*name, *default)].into_iter(), Prefix::None) {
                assert_eq!(format!("{set:?}"), unset, "{name}={default}");
                values += usize::from(!default.is_empty());
            }
        }
        let words = ["the profile's", "0000:10:00.0 and up", ""];
        let expected = SETTINGS.iter().filter(|setting| !words.contains(&setting.default));
        assert_eq!(values, expected.count());
    }

    #[test]
    fn errors_name_variables_as_they_are_set() {
        let error =
            |name, value| Settings::of([(name, value)].into_iter(), Prefix::Variable).unwrap_err();
        assert!(error("profile", "cxx").starts_with("VFABRIC_PROFILE=cxx: it takes "));
        assert_eq!(error("nic", "3"), "there is no setting VFABRIC_NIC");
        assert_eq!(error("faults", "kill=4@3"), "VFABRIC_FAULTS=kill=4@3: the NICs are 0 to 3");
    }

    #[test]
    fn a_wrong_value_is_said_with_what_it_takes() {
        let error = Settings::of_text("nics=17").unwrap_err();
        assert_eq!(error, "nics=17: it takes 1 to 16");
        assert!(Settings::of_text("nic=3").unwrap_err().contains("no setting nic"));
        assert!(Settings::of_text("nics=2 faults=kill=1@3").is_ok());
        let error = Settings::of_text("nics=2 faults=kill=2@3").unwrap_err();
        assert_eq!(error, "faults=kill=2@3: the NICs are 0 to 1");
        assert!(Settings::of_text("numa=65536").is_err(), "no PCI domain");
    }

    #[test]
    fn a_time_that_the_clock_could_not_hold_is_refused() {
        for (name, times) in
            [("reorder", ""), ("latency", ""), ("faults", "delay=1:"), ("faults", "double=1:")]
        {
            let set = |time: u64| {
                Settings::of([(name, format!("{times}{time}").as_str())].into_iter(), Prefix::None)
            };
            assert!(set(1 << 48).is_ok(), "{name}={times}");
            for time in [(1 << 48) + 1, u64::MAX] {
                assert!(set(time).is_err(), "{name}={times}{time}");
            }
        }
    }

    #[test]
    fn a_script_may_have_blanks() {
        let settings = Settings::of_text("faults='refuse=3 fail=4' seed=2").unwrap();
        assert_eq!(settings.faults.len(), 2);
        assert_eq!(settings.seed, 2);
    }

    #[test]
    fn lists_serve_every_nic() {
        let text = "pci=0000:3b:00.1,0001:02:03.4 bandwidth=10,20 numa=0,1";
        let settings = Settings::of_text(text).unwrap();
        assert_eq!(Settings::of_nic(&settings.bandwidth_mbps, 0), 10);
        assert_eq!(Settings::of_nic(&settings.bandwidth_mbps, 7), 20);
        let second = PciAddress { domain: 1, bus: 2, device: 3, function: 4 };
        assert_eq!(settings.pci_of(1), second);
        assert_eq!(settings.pci_of(2).domain, 1, "NUMA node 1");
    }

    #[test]
    fn nics_may_differ_in_device_memory() {
        let settings = Settings::of_text("hmem=1,calls,0").unwrap();
        let [first, second, later] = [0, 1, 7].map(|nic| settings.device_memory_of(nic));
        assert_eq!(
            [first, second, later],
            [DeviceMemory::Direct, DeviceMemory::Calls, DeviceMemory::None]
        );
        assert!(Settings::of_text("hmem=2").is_err());
    }

    #[test]
    fn the_page_has_every_setting_and_every_rule() {
        let page = include_str!("../../../docs/vfabric.md");
        for Setting { name, takes, default, doc } in SETTINGS {
            let default = if default.is_empty() { "none" } else { default };
            let row = format!(
                "| `VFABRIC_{}` | {takes} | {default} | {doc} |",
                name.to_ascii_uppercase()
            );
            assert!(page.contains(&row), "docs/vfabric.md lacks: {row}");
        }
        for rule in Rule::ALL {
            assert!(page.contains(&format!("| `{rule}` | ")), "docs/vfabric.md lacks {rule}");
        }
    }
}
