//! The plan of a device: its rails, and how they access GPU memory.

use fabric::{Info, Version};
use topology::{Nic, Properties};

use crate::error::{Cause, Result};
use crate::types::Protocol;

/// A device before it is opened.
#[derive(Clone, Debug)]
pub(crate) struct DevicePlan {
    /// Unique in the process and without blanks: NCCL identifies devices by their names.
    pub(crate) name: String,
    pub(crate) rails: Vec<RailPlan>,
    pub(crate) gpu_memory: GpuMemory,
    pub(crate) protocol: Protocol,
    /// The properties that depend on the machine's topology.
    pub(crate) properties: Properties,
    /// Why it has these rails.
    pub(crate) because: String,
}

/// A rail before it is opened.
#[derive(Clone, Debug)]
pub(crate) struct RailPlan {
    pub(crate) info: Info,
    /// The name of the fabric, by which rails of two peers are paired.
    pub(crate) fabric_name: String,
    /// The user's name for it: the interface, the NIC, or the address that was given.
    pub(crate) interface: String,
    /// The source address, for logs.
    pub(crate) address: String,
    /// The description of its NIC, for the grouping into devices.
    pub(crate) nic: Nic,
    pub(crate) pci_path: Option<String>,
}

/// How data moves between a device's rails and GPU memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GpuMemory {
    /// NICs read and write GPU memory.
    Direct {
        /// GPU memory can also be registered by a DMA-BUF.
        dmabuf: bool,
    },
    /// NCCL copies through host memory.
    ByHost(Obstacle),
}

/// Why NICs do not access GPU memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    TurnedOff,
    /// The error of the crate `gpu`.
    NoDriver(String),
    NotOffered {
        interface: String,
        provider: String,
    },
    /// The provider would call CUDA in NCCL's threads, where such a call may deadlock.
    CallsCuda {
        interface: String,
        provider: String,
        answer: String,
    },
    /// The provider opens no endpoint with FI_HMEM, with or without the option.
    NotOpened {
        interface: String,
        provider: String,
        error: String,
    },
    /// A libfabric without FI_OPT_CUDA_API_PERMITTED.
    NoCudaOption {
        interface: String,
        provider: String,
        version: Version,
    },
    /// There is no RMA read to flush received bytes with.
    NoWrites,
}

impl GpuMemory {
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self, Self::Direct { .. })
    }

    /// Whether GPU memory can be registered by a DMA-BUF.
    pub(crate) fn supports_dmabuf(&self) -> bool {
        matches!(self, Self::Direct { dmabuf: true })
    }

    /// A description for the log.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Direct { dmabuf: true } => "goes direct, by address or DMA-BUF".to_owned(),
            Self::Direct { dmabuf: false } => "goes direct, by address".to_owned(),
            Self::ByHost(obstacle) => format!("goes through the host: {}", obstacle.phrase()),
        }
    }
}

impl Obstacle {
    pub(crate) fn phrase(&self) -> String {
        match self {
            Self::TurnedOff => "IRONRAIL_DEVICE_MEMORY=0 turns it off".to_owned(),
            Self::NoDriver(reason) => reason.clone(),
            Self::NotOffered { interface, provider } => {
                format!("{provider} offers no FI_HMEM on {interface}")
            }
            Self::CallsCuda { interface, provider, answer } => {
                format!(
                    "{provider} cannot be prevented from calling CUDA on {interface} ({answer})"
                )
            }
            Self::NotOpened { interface, provider, error } => {
                format!("{provider} opens no endpoint on {interface} for it ({error})")
            }
            Self::NoWrites => "SENDRECV has no read to flush it by".to_owned(),
            Self::NoCudaOption { interface, provider, version } => format!(
                "libfabric {version} cannot prevent {provider} on {interface} from calling CUDA"
            ),
        }
    }

    pub(super) fn next_step(&self) -> &'static str {
        match self {
            Self::TurnedOff => "unset it",
            Self::NoDriver(_) => {
                "check that nvidia-smi lists the GPUs where the job runs, and that the container has the driver's libcuda.so.1"
            }
            Self::NotOffered { .. } => {
                "use a libfabric that was built with CUDA (fi_info -c FI_HMEM lists what it offers), or another provider by IRONRAIL_PROVIDER"
            }
            Self::CallsCuda { .. } => {
                "for cxi load GDRCopy's gdrdrv and use libfabric 2.0 or newer, built with it, for efa see that the driver lets the NIC reach the GPU's memory; \
                 other providers copy, so unset it"
            }
            Self::NotOpened { .. } => {
                "see that the NIC works and has endpoints left: other processes may use them, or be left from another job"
            }
            Self::NoCudaOption { .. } => "use libfabric 1.18 or newer",
            Self::NoWrites => "use a provider with one-sided writes",
        }
    }
}

impl DevicePlan {
    pub(super) fn new(
        rails: Vec<RailPlan>,
        protocol: Protocol,
        properties: Properties,
        because: String,
    ) -> Self {
        let names: Vec<_> = rails.iter().map(|rail| rail.interface.as_str()).collect();
        let gpu_memory = GpuMemory::ByHost(Obstacle::TurnedOff);
        Self { name: device_name(&names), rails, gpu_memory, protocol, properties, because }
    }

    /// Adds the rails of another device. Networks of two kinds cannot be combined.
    pub(super) fn join(&mut self, other: &Self) -> Result<()> {
        if self.protocol == Protocol::Sendrecv {
            return Err(Cause::OneRail.into());
        }
        let network = |plan: &Self| plan.rails.first().map(|rail| rail.nic.network.clone());
        if network(self) != network(other) {
            return Err(Cause::MixedNetworks.into());
        }
        self.rails.extend(other.rails.iter().cloned());
        self.gpu_memory = match (&self.gpu_memory, &other.gpu_memory) {
            (GpuMemory::Direct { dmabuf: one }, GpuMemory::Direct { dmabuf: other }) => {
                GpuMemory::Direct { dmabuf: *one && *other }
            }
            (GpuMemory::Direct { .. }, obstacle) | (obstacle, _) => obstacle.clone(),
        };
        let (one, other) = (self.properties.speed_mbps, other.properties.speed_mbps);
        self.properties.speed_mbps = one.zip(other).map(|(one, other)| one + other);
        // The new device gets its own guid: the first part's belongs to a device that may be used too.
        self.properties.guid = None;
        Ok(())
    }

    /// Names it after its rails.
    pub(super) fn rename(&mut self) {
        let names: Vec<_> = self.rails.iter().map(|rail| rail.interface.as_str()).collect();
        self.name = device_name(&names);
    }

    /// Adds its index to the name if one of the other devices has the same.
    pub(super) fn name_apart<'a>(
        &mut self,
        index: usize,
        mut others: impl Iterator<Item = &'a Self>,
    ) {
        if others.any(|other| other.name == self.name) {
            self.name = format!("{}-{index}", self.name);
        }
    }

    /// The speed of its rails together, in megabits per second; [`SPEED_MBPS_DEFAULT`] for a rail of unknown speed.
    pub(crate) fn speed_mbps(&self) -> u32 {
        let speed = |rail: &RailPlan| rail.nic.speed_mbps.unwrap_or(SPEED_MBPS_DEFAULT);
        self.rails.iter().map(speed).fold(0, u32::saturating_add)
    }

    /// Whether other processes have an endpoint's memory mapped. If so, after a close their next write crashes inside the provider: shm
    /// (1.17 and 2.5.1).
    pub(crate) fn is_mapped_by_peers(&self) -> bool {
        self.rails.iter().any(|rail| rail.info.provider() == "shm")
    }

    /// Whether a region serves every endpoint of the device's domains.
    pub(crate) fn regions_are_global(&self) -> bool {
        self.rails.iter().all(|rail| !rail.info.region_mode().bind_to_endpoint)
    }
}

/// `eth0`, `eth0+eth1`, or with many `eth0+15more`. Characters that are safe in NCCL's lists and files are kept, others replaced.
fn device_name(rails: &[&str]) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-+".contains(letter);
    let joined = rails.join("+");
    let name = match rails {
        [first, rest @ ..] if joined.len() > NAME_BYTES_MAX => {
            format!("{first}+{}more", rest.len())
        }
        _ => joined,
    };
    name.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect()
}

/// NCCL's buffers for names have 64 bytes or more.
const NAME_BYTES_MAX: usize = 60;
/// NCCL's own default for unknown speeds.
const SPEED_MBPS_DEFAULT: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_after_its_rails() {
        assert_eq!(device_name(&["eth0"]), "eth0");
        assert_eq!(device_name(&["cxi0", "cxi1"]), "cxi0+cxi1");
        assert_eq!(device_name(&["fd00::2"]), "fd00__2");
        let many: Vec<String> = (0..16).map(|place| format!("127.0.0.{place}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(device_name(&many), "127.0.0.0+15more");
    }

    #[test]
    fn each_obstacle_to_gpu_memory_is_one_phrase_with_a_next_step() {
        let (interface, provider) = ("eth0".to_owned(), "tcp".to_owned());
        let version = Version::new(1, 17);
        for (obstacle, words) in [
            (Obstacle::TurnedOff, "IRONRAIL_DEVICE_MEMORY=0"),
            (Obstacle::NoDriver("no CUDA driver (why)".to_owned()), "no CUDA driver"),
            (
                Obstacle::NotOffered { interface: interface.clone(), provider: provider.clone() },
                "tcp offers no FI_HMEM on eth0",
            ),
            (
                Obstacle::CallsCuda {
                    interface: interface.clone(),
                    provider: provider.clone(),
                    answer: "no".to_owned(),
                },
                "tcp cannot be prevented from calling CUDA on eth0 (no)",
            ),
            (
                Obstacle::NotOpened {
                    interface: interface.clone(),
                    provider: provider.clone(),
                    error: "why".to_owned(),
                },
                "tcp opens no endpoint on eth0 for it (why)",
            ),
            (Obstacle::NoCudaOption { interface, provider, version }, "libfabric 1.17"),
            (Obstacle::NoWrites, "no read to flush it by"),
        ] {
            let phrase = obstacle.phrase();
            assert!(phrase.contains(words) && !phrase.contains('\n'), "{phrase}");
            assert!(!obstacle.next_step().is_empty());
            let described = GpuMemory::ByHost(obstacle).describe();
            assert!(described.starts_with("goes through the host: "), "{described}");
        }
    }
}
