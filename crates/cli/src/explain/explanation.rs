//! The result of `ironrail_explain`, and the child process that calls it.

use std::os::unix::process::ExitStatusExt;
use std::process::{self, Command};
use std::time::Duration;

use ironrail_group::bootstrap::Local;
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::loader::{Library, Net};
use serde::{Deserialize, Serialize};

use crate::plugin::{COMMUNICATOR, FAILURES_MAX};
use crate::{answers, mapped, overheard};

/// The plugin's JSON, with the names of src/plugin/explain.rs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Explanation {
    pub(super) format: String,
    pub(super) version: String,
    pub(super) commit: String,
    pub(super) target: String,
    pub(super) profile: String,
    /// The error with which a wrong value stops the start.
    pub(super) refused: Option<String>,
    pub(super) settings: Vec<Setting>,
    pub(super) notes: Vec<Note>,
    pub(super) provider_variables: Vec<ProviderVariable>,
    pub(super) protocols: Option<String>,
    pub(super) devices: Option<Vec<Device>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setting {
    pub(super) name: String,
    pub(super) value: Option<String>,
    /// default, environment or alias from the plugin; `file` is set by this command: the plugin sees the settings of NCCL's files as
    /// environment.
    pub(super) source: String,
    pub(super) alias: Option<String>,
    pub(super) default: String,
    pub(super) takes: String,
    pub(super) shared: bool,
    pub(super) what: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) level: String,
    pub(super) text: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ProviderVariable {
    pub(super) name: String,
    pub(super) value: Option<String>,
    pub(super) source: String,
    pub(super) provider: String,
    pub(super) what: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) because: String,
    pub(super) libfabric: String,
    /// rdma or sendrecv. A plugin that does not report it has no sendrecv devices.
    #[serde(default)]
    pub(super) protocol: String,
    pub(super) speed_mbps: u64,
    pub(super) gpu_memory: String,
    pub(super) pci_path: Option<String>,
    pub(super) guid: String,
    pub(super) groups: u64,
    pub(super) comms: u64,
    pub(super) rails: Vec<Rail>,
    pub(super) probed: Option<Probed>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Rail {
    pub(super) interface: String,
    pub(super) address: String,
    pub(super) network: String,
    pub(super) provider: String,
    pub(super) provider_version: String,
    pub(super) speed_mbps: Option<String>,
    pub(super) pci_path: Option<String>,
    pub(super) device_memory: bool,
    pub(super) registration: String,
    pub(super) immediate_bytes: u64,
    pub(super) inject_bytes: u64,
    pub(super) largest_write: String,
    pub(super) transmit_depth: u64,
    pub(super) in_order: bool,
}

impl Device {
    /// Whether bytes are transferred by tagged messages (SENDRECV), not by one-sided writes.
    pub(super) fn sends_messages(&self) -> bool {
        self.protocol == "sendrecv"
    }

    /// The longest write or message of all rails.
    pub(super) fn largest(&self) -> u64 {
        let rails = self.rails.iter().filter_map(|rail| rail.largest_write.parse().ok());
        rails.min().unwrap_or(u64::MAX)
    }
}

/// The results of the probes of the first endpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Probed {
    pub(super) immediate_bytes: u64,
    pub(super) true_lengths: bool,
    pub(super) self_read: bool,
    pub(super) proves_arrival: bool,
    pub(super) delivery_complete: bool,
    pub(super) largest_write: String,
}

/// The properties of a device, of any plugin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Properties {
    pub(super) name: String,
    pub(super) pci_path: Option<String>,
    pub(super) guid: String,
    pub(super) memory: Vec<String>,
    pub(super) speed_mbps: i32,
    pub(super) port: i32,
    pub(super) latency_us: f32,
    pub(super) comms: i32,
    pub(super) groups: i32,
    pub(super) regions_are_global: bool,
    pub(super) rail: Option<i16>,
    pub(super) plane: Option<i16>,
}

/// A plugin as a child has found it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Found {
    pub(super) file: String,
    pub(super) network: String,
    pub(super) tables: Vec<u32>,
    /// None for a plugin other than ours.
    pub(super) explanation: Option<Explanation>,
    pub(super) properties: Vec<Properties>,
    /// Why the plugin did not start.
    pub(super) failed: Option<String>,
}

/// Asks a plugin in a process of its own; starts it if `start`.
///
/// # Errors
///
/// If the plugin cannot be opened, or its process dies.
pub(super) fn ask(net: &str, start: bool) -> Result<Found, GroupError> {
    let system =
        |error| GroupError::System { what: "starting a process that asks the plugin", error };
    let own = std::env::current_exe().map_err(system)?;
    let mut command = Command::new(own);
    command.args(["explain", "--net", net, "--child", if start { "start" } else { "read" }]);
    command.args(["--launcher", &process::id().to_string()]);
    for (name, value) in crate::doctor::settings_of_files() {
        command.env(name, value);
    }
    let (status, [text, errors]) = overheard::output(&mut command, PATIENCE).map_err(system)?;
    // The plugin may have printed to the same line.
    if let Some((_, line)) = text.lines().find_map(|line| line.split_once(answers::MARK)) {
        return serde_json::from_str(line).map_err(|error| {
            GroupError::Load(format!("the plugin's explanation cannot be read: {error}"))
        });
    }
    let last =
        errors.lines().last().unwrap_or_default().trim_start_matches("ironrail: ").to_owned();
    Err(GroupError::Load(match status.map(|status| status.signal()) {
        None => format!(
            "{net} has not answered for {} s; `ironrail doctor` says where",
            PATIENCE.as_secs()
        ),
        Some(Some(signal)) => {
            format!("{net} crashed: signal {signal}; `ironrail doctor` says where")
        }
        Some(None) => last,
    }))
}

/// The limit of a start: far longer than one with many devices takes, each of which is connected to itself.
const PATIENCE: Duration = Duration::from_secs(120);

/// In the child: opens the plugin, reads its explanation, and starts it if `start`.
pub(super) fn child(net: &str, start: bool) -> Result<(), GroupError> {
    let library = Library::open(net, None)?;
    let mut found = Found {
        file: file_of(&library),
        network: library.name().to_owned(),
        tables: library.versions(),
        explanation: read(&library)?,
        ..Found::default()
    };
    // A wrong value stops the start; the explanation reports it already.
    if start {
        let refused =
            found.explanation.as_ref().and_then(|explanation| explanation.refused.clone());
        found.failed =
            refused.or_else(|| begin(&library, &mut found).err().map(|error| error.to_string()));
    }
    answers::say(&found);
    Ok(())
}

fn read(library: &Library) -> Result<Option<Explanation>, GroupError> {
    let Some(text) = library.explanation() else { return Ok(None) };
    let explanation: Explanation = serde_json::from_str(&text).map_err(|error| {
        GroupError::Load(format!("the explanation of {} cannot be read: {error}", library.path()))
    })?;
    Ok(Some(explanation))
}

/// Starts the plugin, and connects it to itself: the first endpoint probes the provider.
fn begin(library: &std::sync::Arc<Library>, found: &mut Found) -> Result<(), GroupError> {
    let net = Net::init(library, COMMUNICATOR)?;
    for device in 0..net.devices()? {
        let of = net.properties(device)?;
        let kinds = [(1, "host"), (2, "CUDA"), (4, "DMA-BUF")];
        let memory = kinds.iter().filter(|(bit, _)| of.memory_kinds & bit != 0);
        found.properties.push(Properties {
            name: of.name,
            pci_path: of.pci_path,
            guid: format!("{:016x}", of.guid),
            memory: memory.map(|(_, word)| (*word).to_owned()).collect(),
            speed_mbps: of.speed_mbps,
            port: of.port,
            latency_us: of.latency_us,
            comms: of.comms_max,
            groups: of.group_max,
            regions_are_global: of.regions_are_global,
            rail: of.rail,
            plane: of.plane,
        });
    }
    let probed = probe(found.properties.len(), |device| {
        let mut alone = Local::group(1).remove(0);
        Communicator::connect(library, &mut alone, Some(device), WAIT).map(drop)
    });
    // The settings are those from before the start, because the start sets variables itself.
    let devices = read(library)?.and_then(|explanation| explanation.devices);
    if let Some(explanation) = &mut found.explanation {
        explanation.devices = devices;
    }
    probed
}

/// Connects one device after the other, until [`FAILURES_MAX`] have failed. The error is the first.
fn probe(
    devices: usize,
    mut connect: impl FnMut(usize) -> Result<(), GroupError>,
) -> Result<(), GroupError> {
    let failures = (0..devices).filter_map(|device| connect(device).err()).take(FAILURES_MAX);
    failures.collect::<Vec<_>>().into_iter().next().map_or(Ok(()), Err)
}

const WAIT: Duration = Duration::from_secs(20);
const _: () = assert!(WAIT.as_secs() * (FAILURES_MAX as u64) < PATIENCE.as_secs());

/// The file that the loader has found for the library.
fn file_of(library: &Library) -> String {
    let name = library.path();
    mapped::file(name).map_or_else(|| name.to_owned(), |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_device_is_tried_after_three_that_fail() {
        let tried = |fails: fn(usize) -> bool| {
            let mut tried = 0;
            let probed = probe(9, |device| {
                tried += 1;
                if fails(device) { Err(GroupError::Load(device.to_string())) } else { Ok(()) }
            });
            (tried, probed.err().map(|error| error.to_string()))
        };
        assert_eq!(tried(|_| true), (3, Some("0".to_owned())));
        assert_eq!(tried(|device| device % 2 == 1), (6, Some("1".to_owned())));
        assert_eq!(tried(|device| device == 8), (9, Some("8".to_owned())));
        assert_eq!(tried(|_| false), (9, None));
    }
}
