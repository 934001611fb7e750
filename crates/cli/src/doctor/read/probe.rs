//! Children that load libraries that may crash or hang, and their reports before their end.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use ironrail_group::launch::lines_of;

use crate::answers;
use crate::doctor::machine::{
    Device, Failure, Gpus, Libfabric, Line, Machine, Plugin, Stage, UNSTARTED,
};
use crate::doctor::said::{Probe, Said};
use crate::overheard::{self, Overheard};

/// How a child ended.
struct Ended {
    said: Vec<Said>,
    errors: String,
    signal: Option<i32>,
    code: Option<i32>,
    /// The child was killed after this time without a line.
    silent: Option<Duration>,
    /// Why there was no child, from [`UNSTARTED`] on.
    unstarted: Option<String>,
}

/// Loads a plugin as NCCL does; if `start`, starts it and moves bytes.
pub(super) fn plugin(machine: &Machine, name: &str, start: bool, wait: Duration) -> Plugin {
    let mut command = command(if start { Probe::Plugin } else { Probe::File }, name, wait);
    command.env("RUST_LOG", "info");
    if machine.value("IRONRAIL_LOG_LEVEL").is_some_and(is_quiet) {
        command.env("IRONRAIL_LOG_LEVEL", "info");
    }
    let ended = run(command, wait);
    let mut plugin =
        Plugin { asked: name.to_owned(), log: log_lines(&ended.errors), ..Plugin::default() };
    let mut stage = Stage::Open;
    let mut failed = None;
    let mut whole = false;
    let mut tried = 0;
    for said in ended.said {
        match said {
            Said::Began(now) => stage = now,
            Said::Refused(refused) => plugin.refused = refused,
            Said::Opened { file, tables, network } => {
                (plugin.file, plugin.tables, plugin.network) = (file, tables, network);
            }
            Said::Devices(devices) => plugin.devices = Some(devices),
            Said::Transferred(moved) => {
                tried = moved.len();
                let is_any = moved.iter().any(Option::is_some);
                plugin.transfer = is_any.then(|| moved.iter().flatten().copied().sum());
                for (device, moved) in plugin.devices.iter_mut().flatten().zip(moved) {
                    device.transfer = moved;
                }
            }
            Said::Failed(why) => failed = Some(why),
            Said::Libraries(libraries) => {
                plugin.libraries = libraries;
                whole = true;
            }
            Said::Libfabric(_) | Said::Gpus(_) | Said::Pairs(_) => {}
        }
    }
    let call = call(stage, plugin.devices.as_deref().unwrap_or_default(), tried);
    let why = match (ended.silent, ended.signal, ended.code) {
        _ if ended.unstarted.is_some() => ended.unstarted,
        (Some(silent), ..) => {
            Some(format!("{call} has not returned for {:.0} s", silent.as_secs_f64()))
        }
        (_, Some(signal), _) => Some(format!(
            "{call} crashed: signal {signal} ended the process{}",
            last(&ended.errors)
        )),
        (_, _, code) if !whole => Some(format!(
            "the process ended in {call}, with code {}{}",
            code.unwrap_or(-1),
            last(&ended.errors)
        )),
        _ => failed,
    };
    let silent_s = ended.silent.map(|silent| silent.as_secs_f64());
    plugin.failure = why.map(|why| Failure { stage, why, signal: ended.signal, silent_s });
    plugin
}

/// Whether the plugin's log at this level lacks the lines that are read from it. The plugin accepts upper and lower case.
fn is_quiet(level: &str) -> bool {
    ["off", "error", "warn"].iter().any(|quiet| level.eq_ignore_ascii_case(quiet))
}

/// A call, with its device if there are several.
fn call(stage: Stage, devices: &[Device], tried: usize) -> String {
    let call = word(stage);
    match (stage, devices) {
        (Stage::Transfer | Stage::Close, [_, _, ..]) if tried < devices.len() => {
            format!("{call} of device {tried} ({})", devices[tried].name)
        }
        _ => call.to_owned(),
    }
}

fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::Open => "dlopen",
        Stage::Init => "init",
        Stage::Devices => "devices or getProperties",
        Stage::Transfer => "a transfer",
        Stage::Close => "a close",
    }
}

fn last(errors: &str) -> String {
    errors.lines().last().map_or_else(String::new, |line| format!("; its last line: {line}"))
}

/// Opens a libfabric; if `ask`, asks what it offers.
pub(super) fn libfabric(name: &str, ask: bool, wait: Duration) -> Libfabric {
    let mut command = command(if ask { Probe::Libfabric } else { Probe::Version }, name, wait);
    // Only libfabric's log says why a provider has no offer.
    command.env("FI_LOG_LEVEL", "info").env_remove("FI_LOG_PROV").env_remove("FI_LOG_SUBSYS");
    let ended = run(command, wait);
    let found = ended.said.into_iter().find_map(|said| match said {
        Said::Libfabric(libfabric) => Some(libfabric),
        _ => None,
    });
    let Some(mut found) = found else {
        let why = match (ended.silent, ended.signal) {
            (Some(silent), _) => format!("it has not answered for {:.0} s", silent.as_secs_f64()),
            (_, Some(signal)) => format!("it crashed: signal {signal}"),
            _ => "the process that opened it ended without an answer".to_owned(),
        };
        let why = ended.unstarted.unwrap_or(why);
        return Libfabric { asked: name.to_owned(), refused: Some(why), ..Libfabric::default() };
    };
    if ask && found.path.is_some() {
        super::system::providers(&ended.errors, &mut found);
    }
    found
}

/// Asks the library of the GPU's driver.
pub(super) fn gpus(wait: Duration) -> Gpus {
    let ended = run(command(Probe::Gpu, "libcuda.so.1", wait), wait);
    let found = ended.said.into_iter().find_map(|said| match said {
        Said::Gpus(gpus) => Some(gpus),
        _ => None,
    });
    found.unwrap_or_else(|| Gpus {
        refused: Some("libcuda.so.1 crashed or did not answer".to_owned()),
        ..Gpus::default()
    })
}

fn command(probe: Probe, name: &str, wait: Duration) -> Command {
    let own = std::env::current_exe().unwrap_or_else(|_| "ironrail".into());
    let word =
        probe.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let mut command = Command::new(own);
    command.args(["doctor", "--probe", &word, "--timeout", &wait.as_secs_f64().to_string()]);
    command.args(["--launcher", &process::id().to_string(), "--net", name]);
    // NCCL adds the settings of its files to the environment before it loads a plugin.
    command.envs(super::settings_of_files());
    // Counters of these short runs would be useless.
    command.env_remove("IRONRAIL_STATS_FILE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(mut command: Command, wait: Duration) -> Ended {
    let unstarted = |error: io::Error| Ended {
        said: Vec::new(),
        errors: String::new(),
        signal: None,
        code: None,
        silent: None,
        unstarted: Some(format!("{UNSTARTED}{error}")),
    };
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return unstarted(error),
    };
    let (send, receive) = mpsc::channel();
    let errors = match listen(&mut child, send) {
        Ok(errors) => errors,
        Err(error) => {
            overheard::kill(&mut child);
            return unstarted(error);
        }
    };
    let mut said = Vec::new();
    let mut silent = None;
    // A child bounds its own waits by `wait`; only a call that does not return takes longer, even if lines are printed meanwhile.
    let limit = wait + Duration::from_secs(1);
    loop {
        match receive.recv_timeout(limit) {
            Ok(one) => said.push(one),
            Err(RecvTimeoutError::Disconnected) => break,
            // What a plugin has started may keep the pipe open.
            Err(RecvTimeoutError::Timeout) => {
                if matches!(child.try_wait(), Ok(None)) {
                    silent = Some(limit);
                    let _ = child.kill();
                }
                break;
            }
        }
    }
    // Its output is closed, so that it is about to end.
    let status = overheard::ended(&mut child, wait);
    let errors = errors.text();
    let signal = status.and_then(|status| status.signal()).filter(|_| silent.is_none());
    let code = status.and_then(|status| status.code());
    Ended { said, errors, signal, code, silent, unstarted: None }
}

/// Reads both outputs of a child while it runs: what it reports is sent, the rest kept.
fn listen(child: &mut Child, send: Sender<Said>) -> io::Result<Overheard> {
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let errors = Overheard::from(errors.expect("it is a pipe"))?;
    thread::Builder::new().spawn(move || {
        for line in lines_of(output.expect("it is a pipe")) {
            let said = answers::find(&line);
            if said.is_some_and(|said| send.send(said).is_err()) {
                return;
            }
        }
    })?;
    Ok(errors)
}

/// The plugin's log lines, `[WARN  plugin] text (file:line)`, without the source location.
fn log_lines(errors: &str) -> Vec<Line> {
    let line = |line: &str| {
        let (head, text) = line.strip_prefix('[')?.split_once("] ")?;
        let (level, target) = head.split_once(' ')?;
        let text = match text.rsplit_once(" (") {
            Some((text, place)) if place.ends_with(')') && place.contains(':') => text,
            _ => text,
        };
        // Our plugin begins each line this way, as NCCL's own networks do.
        let text = match text.split_once(" : ") {
            Some((head, rest)) if head.starts_with("NET/") => rest,
            _ => text,
        };
        (target.trim() == "plugin").then(|| Line { level: level.to_owned(), text: text.to_owned() })
    };
    errors.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_level_is_recognised_in_upper_and_lower_case() {
        assert!(is_quiet("warn") && is_quiet("WARN") && is_quiet("Off") && !is_quiet("Info"));
    }
}
