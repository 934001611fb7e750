//! A dump of all connections, written when the trigger file appears or changes.
//!
//! The keeper thread checks the file and writes the dump: there is no signal handler, and no work in NCCL's calls. A dump has names,
//! numbers and states, and no secrets.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use fabric::Lock;

use super::device::host_name;
use super::json::{Object, array};
use super::{registry, stats};
use crate::fault;
use crate::types::counts;
use crate::types::stall::{
    ConnectionSnapshot, ConnectionState, RailSnapshot, Snapshot, Waiting, WaitsFor,
};

/// The version of the dump's format.
const FORMAT: u32 = 1;
/// How often the trigger file is checked.
const EVERY: Duration = Duration::from_millis(500);
/// How long to try for an endpoint's lock.
const BUSY: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Trigger {
    path: PathBuf,
    checked: Instant,
    /// When the file was changed last, if it was there.
    changed: Option<SystemTime>,
}

static TRIGGER: Lock<Option<Trigger>> = Lock::new(None);

/// Sets the trigger file. One that exists already triggers nothing.
pub(super) fn watch(path: Option<&Path>) {
    let trigger = path.map(|path| Trigger {
        path: path.to_owned(),
        checked: Instant::now(),
        changed: changed(path),
    });
    *TRIGGER.lock() = trigger;
}

/// Checks the file if that is due. Returns the time until the next check; None: the setting is unset.
pub(super) fn check(endpoints: &[u16]) -> Option<Duration> {
    let mut trigger = TRIGGER.lock();
    let trigger = trigger.as_mut()?;
    if trigger.checked.elapsed() >= EVERY {
        trigger.checked = Instant::now();
        let changed = changed(&trigger.path);
        let before = std::mem::replace(&mut trigger.changed, changed);
        if changed.is_some() && changed != before {
            write(&trigger.path, endpoints);
        }
    }
    Some(EVERY)
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|found| found.modified()).ok()
}

fn write(trigger: &Path, endpoints: &[u16]) {
    fault::point("dump");
    let mut name = trigger.as_os_str().to_owned();
    name.push(format!(".{}.{}.json", host_name(), std::process::id()));
    let path = PathBuf::from(name);
    let text = Object::new()
        .number("format", FORMAT)
        .text("version", env!("CARGO_PKG_VERSION"))
        .text("host", host_name())
        .number("process", std::process::id())
        .raw("endpoints", &array(endpoints.iter().map(|number| endpoint(*number))))
        .raw("messages", &stats::messages(&counts::all()))
        .end();
    match stats::write(&path, &text) {
        Ok(()) => log::info!("IRONRAIL_DUMP_TRIGGER: {} is written", path.display()),
        Err(error) => {
            log::warn!("IRONRAIL_DUMP_TRIGGER: {} cannot be written: {error}", path.display());
        }
    }
}

/// One endpoint. If another thread holds its lock for long, a call hangs in it, and it is shown as busy. A panic leaves it as it was, since
/// a snapshot changes nothing: the others are shown, and the hook has logged the panic.
fn endpoint(number: u16) -> String {
    let began = Instant::now();
    loop {
        if let Some(entry) = registry::try_lock(number) {
            let shown = catch_unwind(AssertUnwindSafe(|| {
                fault::point("snapshot");
                let snapshot = entry.as_deref().map(|endpoint| endpoint.snapshot());
                snapshot.map_or_else(|| "null".to_owned(), |snapshot| json(&snapshot))
            }));
            let panicked =
                |_| Object::new().number("endpoint", number).flag("panicked", true).end();
            return shown.unwrap_or_else(panicked);
        }
        if began.elapsed() >= BUSY {
            return Object::new().number("endpoint", number).flag("busy", true).end();
        }
        std::thread::yield_now();
    }
}

fn json(snapshot: &Snapshot) -> String {
    let Snapshot { number, device, requests, uncalled, listeners, connects, failed, .. } = snapshot;
    Object::new()
        .number("endpoint", *number)
        .flag("busy", false)
        .text("device", device)
        .number("requests", *requests)
        .number("uncalled_ms", millis(*uncalled))
        .number("listeners", *listeners as u64)
        .number("connects", *connects as u64)
        .flag("failed", *failed)
        .raw("rails", &array(snapshot.rails.iter().map(rail)))
        .raw("connections", &array(snapshot.connections.iter().map(connection)))
        .end()
}

fn rail(rail: &RailSnapshot) -> String {
    Object::new()
        .text("name", &rail.name)
        .number("in_flight", rail.in_flight as u64)
        .number("bytes", rail.bytes)
        .number("refused", rail.refused)
        .end()
}

fn connection(connection: &ConnectionSnapshot) -> String {
    let ConnectionState { waits_for, begun, done, .. } = connection.here;
    let (waits_for, rail) = match waits_for {
        WaitsFor::Nothing => ("nothing", None),
        WaitsFor::Receive => ("a receive", None),
        WaitsFor::Credit => ("credit", None),
        WaitsFor::Room => ("room for packets", None),
        WaitsFor::Data { rail } => ("data", rail),
        WaitsFor::Done => ("done", None),
        WaitsFor::Message => ("a message", None),
        WaitsFor::Accept => ("accept", None),
    };
    let direction = match connection.waiting {
        Waiting::Sending => "send",
        Waiting::Receiving => "receive",
        Waiting::Connecting => "connect",
    };
    let object = Object::new()
        .number("slot", connection.slot)
        .text("direction", direction)
        .text("peer", &connection.peer)
        .flag("closing", connection.is_closing)
        .number("requests", connection.requests)
        .text("waits_for", waits_for)
        .number("waited_ms", millis(connection.waited))
        .number("begun", begun)
        .number("done", done)
        .number("silent_ms", millis(connection.silent))
        .number("unconsumed_packets", connection.unconsumed)
        .flag("failed", connection.failed);
    match rail {
        Some(rail) => object.number("rail", rail).end(),
        None => object.end(),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
