//! A child process of the doctor: loads a plugin, a libfabric or the GPU's driver, and reports how far it gets.
//!
//! It prints a line for each step (`said`), so that after a crash the last step is known. Other lines are the plugin's.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fabric::FabricError;
use ironrail_group::bootstrap::Local;
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::loader::{Library, Net};

use super::machine::{Device, Gpus, Libfabric, Offer, Refused, Stage, Transfer};
use super::pairs;
use super::read::{paths, settings_of_files};
use super::said::{Probe, Said};
use super::transfer;
use crate::answers::say;
use crate::mapped;
use crate::plugin::{COMMUNICATOR, FAILURES_MAX};

/// Carries out the parent's request. A failure is a result to report; the process itself still succeeds.
pub(super) fn run(probe: Probe, name: &str, wait: Duration) {
    match probe {
        Probe::Plugin => report(plugin(name, wait, true)),
        Probe::File => report(plugin(name, wait, false)),
        Probe::Libfabric => say(&Said::Libfabric(libfabric(name, true))),
        Probe::Version => say(&Said::Libfabric(libfabric(name, false))),
        Probe::Gpu => say(&Said::Gpus(gpus())),
        Probe::Pairs => say(&match settle().and_then(|()| pairs::run(name, wait)) {
            Ok(pairs) => Said::Pairs(pairs),
            Err(error) => Said::Failed(error.to_string()),
        }),
    }
}

/// Executes this command again if NCCL's files of this host add variables to the environment: the process that has started it may be on
/// another host.
fn settle() -> Result<(), GroupError> {
    let system = |error| GroupError::System { what: "starting a rank", error };
    let missing = settings_of_files();
    if missing.is_empty() {
        return Ok(());
    }
    let own = std::env::current_exe().map_err(system)?;
    Err(system(Command::new(own).args(std::env::args_os().skip(1)).envs(missing).exec()))
}

fn report(ended: Result<(), GroupError>) {
    if let Err(error) = ended {
        say(&Said::Failed(error.to_string()));
    }
    say(&Said::Libraries(libraries()));
}

fn plugin(name: &str, wait: Duration, start: bool) -> Result<(), GroupError> {
    say(&Said::Began(Stage::Open));
    let refused: Vec<_> = Library::refusals(name);
    if !refused.is_empty() {
        let refused = refused.into_iter().map(|(name, reason)| Refused { name, reason });
        say(&Said::Refused(refused.collect()));
        return Ok(());
    }
    let opened = Library::open(name, None);
    let (file, network) = match &opened {
        Ok(library) => (file_of(library.path()), Some(library.name().to_owned())),
        Err(_) => (net_loader::candidates(name).iter().find_map(|name| file_of(name)), None),
    };
    let tables = match &opened {
        Ok(library) => library.versions(),
        Err(_) => file.as_deref().map(old_tables).unwrap_or_default(),
    };
    say(&Said::Opened { file, tables, network });
    let Ok(library) = opened else { return Ok(()) };
    if !start {
        return Ok(());
    }
    say(&Said::Began(Stage::Init));
    let net = Net::init(&library, COMMUNICATOR)?;
    say(&Said::Began(Stage::Devices));
    let devices = (0..net.devices()?).map(|device| {
        let of = net.properties(device)?;
        Ok(Device {
            name: of.name,
            pci_path: of.pci_path,
            speed_mbps: of.speed_mbps,
            gpu_memory: of.memory_kinds & (CUDA | DMABUF) != 0,
            dmabuf: of.memory_kinds & DMABUF != 0,
            groups: of.group_max,
            plane: of.plane,
            transfer: None,
        })
    });
    let devices = devices.collect::<Result<Vec<_>, GroupError>>()?;
    say(&Said::Devices(devices.clone()));
    transfers(&library, &devices, wait);
    say(&Said::Began(Stage::Close));
    drop(net);
    Ok(())
}

/// Lets each device send messages to itself, one after the other.
fn transfers(library: &Arc<Library>, devices: &[Device], wait: Duration) {
    let mut moved = Vec::new();
    let mut failures = Vec::new();
    for (number, device) in devices.iter().enumerate() {
        if failures.len() == FAILURES_MAX {
            failures.push(format!("device {number} and later ones were not tried"));
            break;
        }
        let transfer = by(library, number, wait);
        if let Err(error) = &transfer {
            failures.push(format!("device {number} ({}): {error}", device.name));
        }
        moved.push(transfer.ok());
        // At once: the next device may crash the process.
        say(&Said::Transferred(moved.clone()));
    }
    if !failures.is_empty() {
        say(&Said::Began(Stage::Transfer));
        say(&Said::Failed(failures.join("; ")));
    }
}

fn by(library: &Arc<Library>, device: usize, wait: Duration) -> Result<Transfer, GroupError> {
    say(&Said::Began(Stage::Transfer));
    let mut alone = Local::group(1).remove(0);
    let mut communicator = Communicator::connect(library, &mut alone, Some(device), wait)?;
    let moved = transfer::exchange(&mut communicator);
    say(&Said::Began(Stage::Close));
    drop(communicator);
    moved
}

// Bits of ptrSupport.
const CUDA: i32 = 2;
const DMABUF: i32 = 4;

/// The file that the loader has found for a name.
fn file_of(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return fs::canonicalize(name).ok();
    }
    // A file without a table was closed again, and is not mapped any more.
    mapped::file(name).or_else(|| paths::find(name))
}

/// Versions of the table before v6, which older releases of NCCL used, by the symbols in the file, newest first.
fn old_tables(file: &Path) -> Vec<u32> {
    let bytes = fs::read(file).unwrap_or_default();
    let has = |version: &u32| {
        let symbol = format!("ncclNetPlugin_v{version}\0");
        bytes.windows(symbol.len()).any(|window| window == symbol.as_bytes())
    };
    (2..6).rev().filter(has).collect()
}

/// The loaded libraries whose version matters.
fn libraries() -> Vec<PathBuf> {
    let matters = |path: &PathBuf| {
        let name =
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        ["libfabric", "libcuda", "libnccl", "libibverbs", "libcxi"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let mut files: Vec<_> = mapped::files().into_iter().filter(matters).collect();
    files.sort();
    files.dedup();
    files
}

fn libfabric(name: &str, ask: bool) -> Libfabric {
    let mut found = Libfabric { asked: name.to_owned(), ..Libfabric::default() };
    let library = match fabric::Library::open(&[name]) {
        Ok(library) => library,
        Err(error) => {
            let reason = error.attempts().first().map(|attempt| attempt.reason.clone());
            found.version = reason.as_deref().and_then(version_in);
            found.refused = reason.or_else(|| Some(error.to_string()));
            return found;
        }
    };
    found.path = Some(library.path().to_owned());
    found.version = Some((library.version().major, library.version().minor));
    if !ask {
        return found;
    }
    match offers(&library, false) {
        Ok(writes) => {
            let mut messages = offers(&library, true).unwrap_or_default();
            messages.retain(|one| writes.iter().all(|other| other.provider != one.provider));
            found.offers = [writes, messages].concat();
        }
        Err(error) => found.refused = Some(error.to_string()),
    }
    found
}

/// The offers for rails with one-sided writes, or with `messages` alone.
fn offers(library: &Arc<fabric::Library>, messages: bool) -> Result<Vec<Offer>, FabricError> {
    let query = fabric::Query { messages, ..fabric::Query::default() };
    let with_gpu = fabric::Query { device_memory: true, ..query.clone() };
    let with_gpu = library.find(&with_gpu).unwrap_or_default();
    let offer = |info: &fabric::Info| Offer {
        provider: info.provider().to_owned(),
        domain: info.domain_name().to_owned(),
        gpu_memory: with_gpu.iter().any(|other| other.is_at(info)),
        in_order: info.lands_in_order(),
        messages_alone: messages,
    };
    Ok(library.find(&query)?.iter().map(offer).collect())
}

/// The version in "it is libfabric 1.11, and …".
fn version_in(reason: &str) -> Option<(u16, u16)> {
    let rest = reason.split("it is libfabric ").nth(1)?;
    let (major, rest) = rest.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn gpus() -> Gpus {
    match gpu::Driver::get() {
        Ok(driver) => Gpus {
            counted: Some(driver.devices()),
            dmabuf: (0..driver.devices()).any(|device| driver.exports_dmabuf(device)),
            ..Gpus::default()
        },
        Err(reason) => Gpus { refused: Some(reason.to_string()), ..Gpus::default() },
    }
}
