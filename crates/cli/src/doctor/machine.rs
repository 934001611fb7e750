//! A machine as the checks see it: data without behaviour, read once by `read`, that can be written to a file and judged elsewhere.
//!
//! It contains no judgement. A value that could not be read is empty or `None`.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// All input of the checks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Machine {
    pub(crate) host: String,
    /// Why nothing could be read of a remote machine.
    pub(crate) unreachable: Option<String>,
    /// The kernel's release, as from `uname -r`.
    pub(crate) kernel: String,
    /// As `x86_64`.
    pub(crate) processor: String,
    /// Variables of NCCL, libfabric, plugins, the loader and the job's launcher only.
    pub(crate) environment: BTreeMap<String, String>,
    /// NCCL's settings files, by precedence.
    pub(crate) files: Vec<SettingsFile>,
    /// The plugins that NCCL would try, in order.
    pub(crate) plugins: Vec<Plugin>,
    /// A name from the command line replaces NCCL_NET_PLUGIN.
    pub(crate) named_by_command: bool,
    /// Plugin files in the loader's folders, in order.
    pub(crate) copies: Vec<Copy>,
    pub(crate) libfabric: Option<Libfabric>,
    /// Other libfabrics in the loader's folders.
    pub(crate) libfabrics: Vec<Libfabric>,
    pub(crate) interfaces: Vec<Interface>,
    /// Devices of /sys/class/infiniband, EFA included.
    pub(crate) rdma: Vec<Rdma>,
    pub(crate) cxi: Vec<Cxi>,
    pub(crate) gpus: Gpus,
    pub(crate) limits: Limits,
}

/// A file from which NCCL reads settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SettingsFile {
    pub(crate) path: PathBuf,
    /// Whether NCCL_CONF_FILE names it.
    pub(crate) named: bool,
    /// `None`: it cannot be read.
    pub(crate) settings: Option<BTreeMap<String, String>>,
}

/// A plugin, as far as it could be loaded and started in a process of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Plugin {
    /// The plugin's name in NCCL_NET_PLUGIN; empty for `libnccl-net.so`.
    pub(crate) asked: String,
    /// The names given to the loader, and why it refused them; empty if the file was opened.
    pub(crate) refused: Vec<Refused>,
    /// The file that was opened.
    pub(crate) file: Option<PathBuf>,
    /// The versions of the table in the file, newest first, including those that NCCL no longer uses.
    pub(crate) tables: Vec<u32>,
    /// The name of the plugin's network.
    pub(crate) network: Option<String>,
    pub(crate) devices: Option<Vec<Device>>,
    /// The messages of the plugin to itself, of all devices by which they have come.
    pub(crate) transfer: Option<Transfer>,
    /// The step at which the plugin failed, and why; `None` if it did not fail.
    pub(crate) failure: Option<Failure>,
    /// The plugin's log.
    pub(crate) log: Vec<Line>,
    /// Libraries that were loaded into the plugin's process: libfabric, CUDA's.
    pub(crate) libraries: Vec<PathBuf>,
}

impl Plugin {
    /// Whether NCCL skips this plugin and goes on to the next one: it has no device, or an error at its start. A plugin that crashes or
    /// hangs ends or blocks NCCL itself.
    pub(crate) fn is_skipped(&self) -> bool {
        let failed = self.failure.as_ref().is_some_and(|failure| {
            matches!(failure.stage, Stage::Init | Stage::Devices)
                && failure.signal.is_none()
                && failure.silent_s.is_none()
        });
        failed || self.devices.as_ref().is_some_and(Vec::is_empty)
    }
}

/// A name given to dlopen, and its error text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// The step at which the plugin failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    Open,
    Init,
    Devices,
    Transfer,
    Close,
}

/// How a plugin failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    /// The reason, as a sentence.
    pub(crate) why: String,
    /// The signal that ended the plugin's process.
    pub(crate) signal: Option<i32>,
    /// The seconds without an answer after which the process was killed.
    pub(crate) silent_s: Option<f64>,
}

/// How the reason begins where no process could be started that opens a plugin or a libfabric.
pub(crate) const UNSTARTED: &str = "no process can be started to open it: ";

/// A line of the plugin's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// ERROR, WARN, INFO, DEBUG or TRACE.
    pub(crate) level: String,
    pub(crate) text: String,
}

/// A device by its properties for NCCL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) pci_path: Option<String>,
    pub(crate) speed_mbps: i32,
    /// Whether it supports GPU memory, by address or DMA-BUF.
    pub(crate) gpu_memory: bool,
    pub(crate) dmabuf: bool,
    pub(crate) groups: i32,
    /// The device's network, as its planeId, if this host's devices are on several networks.
    pub(crate) plane: Option<i16>,
    /// The messages of the device to itself.
    pub(crate) transfer: Option<Transfer>,
}

/// Whether two devices of these planes are on different networks. Without a plane nothing is known.
pub(crate) fn are_apart(one: Option<i16>, other: Option<i16>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

/// Messages over the plugin, every byte compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Transfer {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Bytes that differ.
    pub(crate) wrong: u64,
}

impl Sum for Transfer {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            messages: sum.messages.saturating_add(one.messages),
            bytes: sum.bytes.saturating_add(one.bytes),
            wrong: sum.wrong.saturating_add(one.wrong),
        })
    }
}

/// A plugin's file in one of the loader's folders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Copy {
    pub(crate) path: PathBuf,
    /// Files with the same digest are the same.
    pub(crate) digest: u64,
    /// Whether the loader searches the folder.
    pub(crate) searched: bool,
    /// The processor from the ELF header; empty if the file is no library.
    pub(crate) processor: String,
}

/// A libfabric, and its offers to a plugin that asks as Ironrail does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Libfabric {
    /// The name given to the loader.
    pub(crate) asked: String,
    pub(crate) path: Option<PathBuf>,
    /// Why this libfabric cannot be used.
    pub(crate) refused: Option<String>,
    /// fi_version(3): major and minor.
    pub(crate) version: Option<(u16, u16)>,
    pub(crate) offers: Vec<Offer>,
    /// The registered providers, and for those without an offer the reason of fi_getinfo.
    pub(crate) providers: BTreeMap<String, String>,
}

/// An interface or NIC that a rail could use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Offer {
    pub(crate) provider: String,
    pub(crate) domain: String,
    pub(crate) gpu_memory: bool,
    pub(crate) in_order: bool,
    /// The offer is without one-sided writes, for IRONRAIL_PROTOCOL=sendrecv, or for auto if there is no other offer.
    pub(crate) messages_alone: bool,
}

/// Providers of fabrics that users expect; the others are of software.
pub(crate) const FABRICS: [&str; 3] = ["cxi", "efa", "verbs"];

impl Offer {
    /// Whether the offer is of this provider: `tcp` also means `tcp;ofi_rxm`.
    pub(crate) fn is_of(&self, wanted: &str) -> bool {
        self.provider == wanted || self.provider.split(';').next() == Some(wanted)
    }
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) loopback: bool,
    /// Addresses, each with the length of its subnet's prefix.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    pub(crate) mtu: Option<u32>,
    pub(crate) speed_mbps: Option<u32>,
    pub(crate) place: Place,
}

/// The place of a device on the PCI bus.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Place {
    /// As `0000:01:00.0`.
    pub(crate) pci: Option<String>,
    /// Vendor and model, as `0x15b3:0x1021`.
    pub(crate) model: Option<String>,
    pub(crate) numa: Option<i32>,
    /// Lanes: current and maximum.
    pub(crate) lanes: Option<(u32, u32)>,
}

/// A device of /sys/class/infiniband.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Rdma {
    pub(crate) name: String,
    /// Whether it is Amazon's EFA.
    pub(crate) efa: bool,
    /// The state of its first active port, or else of its first port, as `4: ACTIVE`.
    pub(crate) state: Option<String>,
    pub(crate) place: Place,
    /// Whether /dev/infiniband has any device file; their names differ from the device's.
    pub(crate) device_file: bool,
    /// Why none of these files can be opened.
    pub(crate) device_refused: Option<String>,
}

impl Rdma {
    /// The state, if no port is active: libfabric offers no such NIC.
    pub(crate) fn idle(&self) -> Option<&str> {
        self.state.as_deref().filter(|state| !state.ends_with(" ACTIVE"))
    }
}

/// A NIC of Slingshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Cxi {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) device_file: bool,
    /// Why the NIC's device file cannot be opened.
    pub(crate) device_refused: Option<String>,
}

/// GPUs, and what allows NICs to reach their memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Gpus {
    /// The places of the GPUs on the PCI bus.
    pub(crate) places: Vec<Place>,
    /// The kernel driver's version, as `550.54.15`.
    pub(crate) driver: Option<String>,
    /// The number of GPUs according to libcuda.so.1.
    pub(crate) counted: Option<i32>,
    /// Why libcuda.so.1 cannot be used.
    pub(crate) refused: Option<String>,
    /// Whether the driver exports DMA-BUFs.
    pub(crate) dmabuf: bool,
    /// Loaded kernel modules of those that matter: nvidia_peermem, gdrdrv.
    pub(crate) modules: Vec<String>,
}

/// The system's limits of a process. `None`: no limit, or not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Limits {
    pub(crate) locked_bytes: Option<u64>,
    /// The limit of locked memory does not apply to memory that NICs pin, because of CAP_IPC_LOCK in the first user namespace.
    pub(crate) pins_any: bool,
    pub(crate) files: Option<u64>,
    pub(crate) processes: Option<u64>,
    /// The cgroup that allows the fewest further processes.
    pub(crate) cgroup: Option<Cgroup>,
    /// The size of /dev/shm, and its free bytes.
    pub(crate) shm_bytes: Option<(u64, u64)>,
    /// Why no file can be made in /dev/shm.
    pub(crate) shm_refused: Option<String>,
    /// Free huge pages of 2 MiB.
    pub(crate) huge_pages: Option<u64>,
}

/// A cgroup's limit of threads and processes: pids.max and pids.current.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cgroup {
    pub(crate) folder: PathBuf,
    pub(crate) max: u64,
    pub(crate) current: u64,
}

impl Cgroup {
    /// The number of further threads and processes that the cgroup allows.
    pub(crate) fn left(&self) -> u64 {
        self.max.saturating_sub(self.current)
    }
}

/// Ranks on one or more machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    /// By rank.
    pub(crate) ranks: Vec<Machine>,
    #[serde(default)]
    pub(crate) pairs: Vec<Pair>,
    /// The machines were described apart, so that no messages were asked for.
    #[serde(skip)]
    pub(crate) apart: bool,
}

/// A message from one rank to another, between their devices of one number, or the reason why it did not arrive. Without either it was not
/// tried, since the devices are on different networks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Pair {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) device: usize,
    pub(crate) transfer: Option<Transfer>,
    pub(crate) failure: Option<String>,
}

impl Pair {
    pub(crate) fn is_tried(&self) -> bool {
        self.transfer.is_some() || self.failure.is_some()
    }
}

impl Machine {
    /// A variable as NCCL sees it, with its origin: from the environment, or else from NCCL's files. An empty value counts as not set.
    pub(crate) fn variable(&self, name: &str) -> Option<(&str, String)> {
        self.given(name).filter(|(value, _)| !value.is_empty())
    }

    /// As [`Machine::variable`], with empty values. A variable of the environment precedes NCCL's files, also if it is empty.
    pub(crate) fn given(&self, name: &str) -> Option<(&str, String)> {
        if let Some(value) = self.environment.get(name) {
            return Some((value, "the environment".to_owned()));
        }
        self.files.iter().find_map(|file| {
            let value = file.settings.as_ref()?.get(name)?;
            Some((value.as_str(), file.path.display().to_string()))
        })
    }

    /// The value of [`Machine::variable`].
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.variable(name).map(|(value, _)| value)
    }

    /// Every variable that NCCL sees, by name.
    pub(crate) fn variables(&self) -> BTreeMap<&str, &str> {
        let mut all = BTreeMap::new();
        for file in self.files.iter().rev() {
            for (name, value) in file.settings.iter().flatten() {
                all.insert(name.as_str(), value.as_str());
            }
        }
        all.extend(self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        all.retain(|_, value| !value.is_empty());
        all
    }

    /// The plugin that NCCL would use: the first that opens, has a table that NCCL knows, and the network that NCCL_NET asks for, and
    /// whose start is no error.
    pub(crate) fn winner(&self) -> Option<&Plugin> {
        let wanted = self.value("NCCL_NET");
        self.plugins.iter().find(|plugin| {
            let Some(network) = &plugin.network else { return false };
            wanted.is_none_or(|wanted| wanted.eq_ignore_ascii_case(network)) && !plugin.is_skipped()
        })
    }

    /// The devices that NCCL would use.
    pub(crate) fn devices(&self) -> &[Device] {
        self.winner().and_then(|plugin| plugin.devices.as_deref()).unwrap_or_default()
    }

    /// The offers of libfabric for the plugin's protocol. Offers of messages alone count only if there is no other, or the setting asks for
    /// them.
    pub(crate) fn offers(&self) -> Vec<&Offer> {
        let offers = self.libfabric.iter().flat_map(|libfabric| &libfabric.offers);
        let (messages, writes): (Vec<_>, Vec<_>) = offers.partition(|offer| offer.messages_alone);
        let is_asked = |offer: &&Offer| {
            self.value("IRONRAIL_PROVIDER").is_none_or(|wanted| offer.is_of(wanted))
        };
        match self.value("IRONRAIL_PROTOCOL").map(str::to_ascii_lowercase).as_deref() {
            Some("rdma") => writes,
            Some("sendrecv") => [writes, messages].concat(),
            _ if writes.iter().any(is_asked) => writes,
            _ if messages.iter().any(is_asked) => messages,
            _ => [writes, messages].concat(),
        }
    }

    /// Those of [`Machine::offers`] that the provider of IRONRAIL_PROVIDER makes: all, if none is named.
    pub(crate) fn chosen_offers(&self) -> Vec<&Offer> {
        let chosen = self.value("IRONRAIL_PROVIDER");
        let mut offers = self.offers();
        offers.retain(|offer| chosen.is_none_or(|chosen| offer.is_of(chosen)));
        offers
    }

    /// Whether IRONRAIL_PROVIDER leaves NICs of this provider to the plugin.
    pub(crate) fn may_use(&self, provider: &str) -> bool {
        let chosen = self.value("IRONRAIL_PROVIDER");
        chosen.is_none_or(|chosen| chosen.split(';').next() == Some(provider))
    }

    /// Whether NCCL would use Ironrail, or no plugin was found.
    pub(crate) fn is_ours(&self) -> bool {
        let named = self.plugins.iter().find_map(|plugin| plugin.network.as_deref());
        named.is_none_or(|name| name.eq_ignore_ascii_case(OURS))
    }

    /// Ironrail, under each of its names.
    pub(crate) fn ours(&self) -> impl Iterator<Item = &Plugin> {
        let is_ours = |plugin: &&Plugin| {
            plugin.network.as_ref().is_some_and(|name| name.eq_ignore_ascii_case(OURS))
        };
        self.plugins.iter().filter(is_ours)
    }

    /// Whether the kernel's release, as `5.10.0-30-amd64`, is older than this one.
    pub(crate) fn is_older_than(&self, major: u32, minor: u32) -> bool {
        let mut numbers =
            self.kernel.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(first)), Some(Ok(second))) => (first, second) < (major, minor),
            _ => false,
        }
    }

    /// Whether there is a NIC with RDMA.
    pub(crate) fn has_fabric(&self) -> bool {
        !self.rdma.is_empty() || !self.cxi.is_empty()
    }

    /// The interfaces that are rails, by the names of the plugin's devices.
    pub(crate) fn rails(&self) -> Vec<&Interface> {
        let devices = self.plugins.iter().filter_map(|plugin| plugin.devices.as_ref()).flatten();
        let names: Vec<&str> = devices.flat_map(|device| device.name.split('+')).collect();
        let is_rail = |interface: &&Interface| {
            let has = |name: &&str| {
                interface.addresses.iter().any(|(address, _)| address.to_string() == **name)
            };
            names.contains(&interface.name.as_str()) || names.iter().any(has)
        };
        self.interfaces.iter().filter(is_rail).collect()
    }
}

/// The name of our plugin's network.
pub(crate) const OURS: &str = "Ironrail";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_counts_of_any_size_ends_at_the_largest() {
        let most = Transfer { messages: u64::MAX, bytes: 1, wrong: u64::MAX };
        let sum: Transfer = [most, most].into_iter().sum();
        assert_eq!(sum, Transfer { messages: u64::MAX, bytes: 2, wrong: u64::MAX });
    }
}
