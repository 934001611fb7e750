//! A dump of all connections, written when the trigger file appears or changes.
//!
//! While an endpoint is open, a separate thread checks the file and writes the dump. So there is no signal handler and no work in NCCL's
//! calls, and a file system that hangs delays no poll of the keeper. A dump has names, numbers and states, and no secrets.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use counters::Kind;
use fabric::Lock;

use super::json::{Object, array};
use super::wait::wait_until;
use super::{keeper, stats, table};
use crate::counter_pages;
use crate::endpoint::incidents::Incidents;
use crate::fault;
use crate::types::stall::{
    ConnectionSnapshot, ConnectionState, RailSnapshot, Snapshot, Waiting, WaitsFor,
};

/// The version of the dump's format.
const FORMAT: u32 = 1;
/// The time between two checks of the trigger file, which may be on a file server, for all processes of a job.
const EVERY: Duration = Duration::from_secs(2);
/// The processes' checks are spread over this many different times within [`EVERY`].
const TIMES: u32 = 64;
/// How long to try for an endpoint's lock.
const BUSY: Duration = Duration::from_millis(200);
/// How long the close of the last endpoint waits for the thread, which may hang in a file system.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Trigger {
    path: PathBuf,
    /// The modification time of the file, if it existed at the last check.
    changed: Option<SystemTime>,
    /// When the setting was read; None after the first check.
    since: Option<SystemTime>,
}

impl Trigger {
    /// Whether the file has appeared or changed since the last check. At the first check, its modification time is compared with `since`:
    /// looking at the file in NCCL's init could block in a file system that hangs.
    fn asks(&mut self, changed: Option<SystemTime>) -> bool {
        let before = std::mem::replace(&mut self.changed, changed);
        match self.since.take() {
            Some(since) => changed >= Some(since),
            None => changed.is_some() && changed != before,
        }
    }
}

/// The thread that checks the file. There is one at most: otherwise threads would accumulate in a file system that hangs.
#[derive(Debug)]
struct Watcher {
    thread: Option<JoinHandle<()>>,
    /// The thread has not yet decided to end.
    is_watching: bool,
}

impl Watcher {
    const NONE: Self = Self { thread: None, is_watching: false };
}

static TRIGGER: Lock<Option<Trigger>> = Lock::new(None);
static WATCHER: Lock<Watcher> = Lock::new(Watcher::NONE);

/// Sets the trigger file. A file that exists already triggers nothing.
pub(super) fn set_trigger(path: Option<&Path>) {
    let since = Some(SystemTime::now());
    *TRIGGER.lock() = path.map(|path| Trigger { path: path.to_owned(), changed: None, since });
}

/// An endpoint has opened: the file is watched.
pub(super) fn watch() {
    if TRIGGER.lock().is_some() {
        start(&WATCHER, keeper::has_endpoints, check);
    }
}

/// The last endpoint closes: the thread ends.
pub(super) fn end() {
    stop(&WATCHER, keeper::has_endpoints, ENDS_WITHIN);
}

/// Starts the thread, unless it runs. It calls `check` repeatedly while `is_needed` returns true.
fn start(watcher: &'static Lock<Watcher>, is_needed: fn() -> bool, check: fn()) {
    let mut locked = watcher.lock();
    if locked.is_watching {
        return;
    }
    let goes_on = move || {
        let mut locked = watcher.lock();
        locked.is_watching = is_needed();
        locked.is_watching
    };
    let run = move || {
        let mut pause = first_pause(std::process::id());
        while goes_on() {
            // A panic ends this dump, and the hook has logged it.
            let _panicked = catch_unwind(check);
            std::thread::park_timeout(std::mem::replace(&mut pause, EVERY));
        }
    };
    match fabric::background::spawn("ironrail-dump", run) {
        Ok(thread) => *locked = Watcher { thread: Some(thread), is_watching: true },
        Err(error) => log::warn!("IRONRAIL_DUMP_TRIGGER: no thread to watch it: {error}"),
    }
}

/// The time before the first check, which differs between processes that start together.
fn first_pause(process: u32) -> Duration {
    EVERY * (process % TIMES) / TIMES
}

/// Ends the thread, and waits for its end within a bound, unless it is needed again.
fn stop(watcher: &Lock<Watcher>, is_needed: fn() -> bool, bound: Duration) {
    let Some(thread) = watcher.lock().thread.take() else { return };
    thread.thread().unpark();
    wait_until(bound, || thread.is_finished() || is_needed());
    if thread.is_finished() {
        // The thread catches its panics.
        let _ended = thread.join();
        return;
    }
    // The thread hangs, or is needed again.
    watcher.lock().thread.get_or_insert(thread);
}

/// Writes a dump if the file has appeared or changed since the last check.
fn check() {
    let Some(path) = TRIGGER.lock().as_ref().map(|trigger| trigger.path.clone()) else { return };
    let changed = changed(&path);
    if TRIGGER.lock().as_mut().is_some_and(|trigger| trigger.asks(changed)) {
        write(&path, &keeper::endpoints());
    }
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|found| found.modified()).ok()
}

fn write(trigger: &Path, endpoints: &[u16]) {
    fault::point("dump");
    let mut name = trigger.as_os_str().to_owned();
    name.push(format!(".{}.{}.json", fabric::host_name(), std::process::id()));
    let path = PathBuf::from(name);
    let rows = counter_pages::all();
    let text = stats::of_this_process(FORMAT)
        .raw("endpoints", &array(endpoints.iter().map(|number| endpoint(*number))))
        .raw("messages", &stats::rows(&rows, Kind::Messages))
        .raw("parts", &stats::rows(&rows, Kind::Rail))
        .end();
    match stats::write(&path, &text) {
        Ok(()) => log::info!("IRONRAIL_DUMP_TRIGGER: {} is written", path.display()),
        Err(error) => {
            log::warn!("IRONRAIL_DUMP_TRIGGER: {} cannot be written: {error}", path.display());
        }
    }
}

/// One endpoint, as JSON. It is shown as busy if another thread holds its lock for long: then a call hangs there. After a panic the other
/// endpoints are still shown; the endpoint is unchanged, since a snapshot only reads, and the hook has logged the panic.
fn endpoint(number: u16) -> String {
    let began = Instant::now();
    loop {
        if let Some(entry) = table::try_lock(number) {
            let shown = catch_unwind(AssertUnwindSafe(|| {
                fault::point("snapshot");
                let open = entry.as_deref();
                open.map_or_else(
                    || "null".to_owned(),
                    |open| json(&open.snapshot(), &open.incidents()),
                )
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

fn json(snapshot: &Snapshot, incidents: &Incidents) -> String {
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
        .raw("counters", &stats::named(incidents))
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
        WaitsFor::Group => ("other messages of a group", None),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::plugin::wait::LOOKS_EVERY;

    /// Far more than a thread needs for its next step.
    const BOUND: Duration = Duration::from_secs(20);

    #[test]
    fn a_file_asks_for_a_dump_when_it_appears_and_when_it_changes() {
        let at = |second| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
        let first = |changed| {
            let mut trigger = Trigger { path: PathBuf::new(), changed: None, since: at(10) };
            (trigger.asks(changed), trigger)
        };
        assert!(!first(None).0 && !first(at(9)).0, "no file, or an old one");
        assert!(first(at(11)).0, "it appeared before the first check");
        for before in [None, at(9), at(11)] {
            let (_, mut trigger) = first(before);
            assert!(!trigger.asks(before), "nothing has changed");
            assert!(trigger.asks(at(12)) && !trigger.asks(at(12)));
            assert!(trigger.asks(at(8)), "another file");
            assert!(!trigger.asks(None) && trigger.asks(at(8)), "it appeared again");
        }
    }

    #[test]
    fn neighbouring_processes_check_the_file_at_different_times() {
        let pauses: BTreeSet<_> = (1000..1000 + TIMES).map(first_pause).collect();
        assert_eq!(pauses.len(), TIMES as usize);
        assert!(pauses.iter().all(|pause| *pause < EVERY));
    }

    #[test]
    fn a_file_system_that_hangs_blocks_one_thread_and_no_close() {
        static IN_CHECK: AtomicBool = AtomicBool::new(false);
        static CHECKS: Lock<u32> = Lock::new(0);
        static ENDED: Lock<Watcher> = Lock::new(Watcher::NONE);
        static IS_NEEDED: AtomicBool = AtomicBool::new(true);
        let hang = || {
            IN_CHECK.store(true, Ordering::Relaxed);
            *CHECKS.lock() += 1;
        };
        let hangs = CHECKS.lock();
        start(&ENDED, || IS_NEEDED.load(Ordering::Relaxed), hang);
        let began = Instant::now();
        while !IN_CHECK.load(Ordering::Relaxed) {
            assert!(began.elapsed() < BOUND, "it checks");
            thread::yield_now();
        }
        IS_NEEDED.store(false, Ordering::Relaxed);
        within_bound(|| stop(&ENDED, || false, LOOKS_EVERY), "the close waits for the file system");
        let first = ENDED.lock().thread.as_ref().expect("it hangs").thread().id();
        start(&ENDED, || true, || {});
        let second = ENDED.lock().thread.as_ref().expect("it hangs").thread().id();
        assert_eq!(first, second, "another one would hang as well");
        drop(hangs);
        stop(&ENDED, || false, BOUND);
        let ended = ENDED.lock();
        assert!(ended.thread.is_none() && !ended.is_watching, "it is not needed");
    }

    #[test]
    fn a_close_does_not_wait_for_a_thread_that_another_endpoint_needs() {
        static GOES_ON: Lock<Watcher> = Lock::new(Watcher::NONE);
        static IS_NEEDED: AtomicBool = AtomicBool::new(true);
        let is_needed = || IS_NEEDED.load(Ordering::Relaxed);
        start(&GOES_ON, is_needed, || {});
        let close = move || stop(&GOES_ON, is_needed, Duration::MAX);
        within_bound(close, "it waits for a thread that goes on");
        assert!(GOES_ON.lock().thread.is_some(), "the next close waits for it");
        IS_NEEDED.store(false, Ordering::Relaxed);
        stop(&GOES_ON, is_needed, BOUND);
        assert!(GOES_ON.lock().thread.is_none());
    }

    fn within_bound(close: impl FnOnce() + Send + 'static, otherwise: &str) {
        let (sender, closed) = mpsc::channel();
        thread::spawn(move || {
            close();
            let _heard = sender.send(());
        });
        assert!(closed.recv_timeout(BOUND).is_ok(), "{otherwise}");
    }
}
