//! The process's counters, summed as endpoints close, and written to the file of IRONRAIL_STATS_FILE then, and as the process ends.
//!
//! A separate thread writes the file, and the close waits for it within a bound: a file system that hangs does not block finalize.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use counters::{BUCKETS, Counter, Kind, Row, bucket_upper_nanos};
use fabric::{Lock, Posts};

use super::config::Config;
use super::json::{Object, array};
use super::wait::{LOOKS_EVERY, wait_until};
use crate::counter_pages;
use crate::endpoint::close::{RailReport, Report};
use crate::endpoint::incidents::Incidents;

/// The version of the file's format.
const FORMAT: u32 = 1;
/// How many names are tried for a new file. A process that is killed as it writes leaves a file behind.
const NEW_FILES_MAX: u32 = 64;
/// How long a close waits until the file is stored, which may take time on a network.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
struct Totals {
    /// By index and name.
    rails: BTreeMap<(usize, String), RailReport>,
    incidents: Incidents,
}

static TOTALS: Lock<Totals> =
    Lock::new(Totals { rails: BTreeMap::new(), incidents: Incidents::NONE });

/// A file that is to be written.
#[derive(Debug)]
struct Job {
    path: PathBuf,
    text: String,
}

/// The thread that writes. There is one at most: otherwise threads would accumulate in a file system that hangs. It ends when nothing is
/// left to write.
#[derive(Debug)]
struct Writer {
    /// The next file to write. A newer text replaces it, since it has all counts of the older one.
    next: Option<Job>,
    is_running: bool,
    /// A close has waited for the thread in vain. Later closes do not wait until the thread continues.
    hangs: bool,
}

impl Writer {
    const NONE: Self = Self { next: None, is_running: false, hangs: false };

    fn take(&mut self) -> Option<Job> {
        let job = self.next.take();
        (self.is_running, self.hangs) = (job.is_some(), false);
        job
    }
}

static WRITER: Lock<Writer> = Lock::new(Writer::NONE);

/// Adds an endpoint's report at its end, and writes the file again.
pub(super) fn add(config: &Config, report: &Report) {
    let mut totals = TOTALS.lock();
    totals.add(report);
    let Some(path) = path(config) else { return };
    let job = Job { path: path.clone(), text: totals.json(&counter_pages::all()) };
    // Handed over under the lock of the sums, so that the newest text is written last.
    hand_over(&WRITER, job, store);
    drop(totals);
    wait_for_file(&path);
}

/// Writes the file as the process ends, with the reports of open endpoints. They are not added: each endpoint may still close, and is then.
pub(super) fn write_at_exit(config: &Config, open: fn() -> Vec<Report>) {
    let Some(path) = path(config) else { return };
    let to = path.clone();
    let sum = move || {
        let reports = open();
        let totals = TOTALS.lock();
        let mut sums = totals.clone();
        reports.iter().for_each(|report| sums.add(report));
        hand_over(&WRITER, Job { path: to, text: sums.json(&counter_pages::all()) }, store);
    };
    // By a thread, for which the end waits within a bound: it takes locks that the caller of exit(3) may hold.
    let Ok(thread) = fabric::background::spawn("ironrail-stats", sum) else { return };
    wait_until(WRITTEN_WITHIN, || thread.is_finished());
    wait_for_file(&path);
}

fn path(config: &Config) -> Option<PathBuf> {
    config.stats_path(std::process::id(), &fabric::host_name())
}

fn wait_for_file(path: &Path) {
    if !wait(&WRITER, WRITTEN_WITHIN) {
        log::warn!(
            "IRONRAIL_STATS_FILE: {} is not written after {} s: its file system is slow or hangs; closing goes on",
            path.display(),
            WRITTEN_WITHIN.as_secs()
        );
    }
}

fn store(job: &Job) {
    if let Err(error) = write(&job.path, &job.text) {
        log_unwritten(&job.path, &error);
    }
}

fn log_unwritten(path: &Path, error: &io::Error) {
    log::warn!("IRONRAIL_STATS_FILE: {} cannot be written: {error}", path.display());
}

/// Gives a file to the thread, and starts the thread unless it runs.
fn hand_over(writer: &'static Lock<Writer>, job: Job, store: fn(&Job)) {
    let mut locked = writer.lock();
    let path = job.path.clone();
    locked.next = Some(job);
    if locked.is_running {
        return;
    }
    let next = move || writer.lock().take();
    let run = move || {
        while let Some(job) = next() {
            store(&job);
        }
    };
    match fabric::background::spawn("ironrail-stats", run) {
        // The close waits by `is_running`, so it needs no handle.
        Ok(_thread) => locked.is_running = true,
        Err(error) => log_unwritten(&path, &error),
    }
}

/// Waits until everything is written, within a bound. False: it took longer, and no earlier close has reported that.
fn wait(writer: &Lock<Writer>, bound: Duration) -> bool {
    let began = Instant::now();
    loop {
        let mut locked = writer.lock();
        if !locked.is_running || locked.hangs {
            return true;
        }
        if began.elapsed() >= bound {
            locked.hangs = true;
            return false;
        }
        drop(locked);
        std::thread::sleep(LOOKS_EVERY);
    }
}

/// Replaces the file that the user named, atomically, by one that only its owner may read. In a folder that others may write to, a link
/// could lead anywhere, and a pipe without a reader would block: only a regular file is replaced.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => return Err(io::Error::other("it is not a regular file")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let (mut file, new) = create_beside(path)?;
    // A full file system may report that only at fsync (close(2)): the old file stays until the new one is stored.
    let stored = writeln!(file, "{text}").and_then(|()| file.sync_all());
    let written = stored.and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| {
        let _gone = fs::remove_file(&new);
    })
}

/// Creates a new file in the folder of `path`. Never opens an existing one: other processes and copies of the plugin may write there too.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let create = |number| {
        let name = format!(".ironrail.{}.{number}", std::process::id());
        let new = path.with_file_name(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        Ok((options.open(&new)?, new))
    };
    let is_taken = |made: &io::Result<_>| {
        made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
    };
    let free = (0..NEW_FILES_MAX).map(create).find(|made| !is_taken(made));
    free.unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))
}

impl Totals {
    fn add(&mut self, report: &Report) {
        for (index, rail) in report.rails.iter().enumerate() {
            let none = || RailReport {
                label: rail.label.clone(),
                bytes: 0,
                writes: 0,
                refused: 0,
                data: Posts::NONE,
                control: Posts::NONE,
            };
            let total = self.rails.entry((index, rail.label.clone())).or_insert_with(none);
            total.bytes += rail.bytes;
            total.writes += rail.writes;
            total.refused += rail.refused;
            total.data += rail.data;
            total.control += rail.control;
        }
        self.incidents.add(&report.incidents);
    }

    fn json(&self, rows: &[Row]) -> String {
        let rail = |((index, label), rail): (&(usize, String), &RailReport)| {
            let RailReport { bytes, writes, refused, data, control, .. } = rail;
            let posts = |posts: &Posts| {
                let named = posts.named().into_iter();
                named.fold(Object::new(), |all, (kind, count)| all.number(kind, count)).end()
            };
            Object::new()
                .number("index", *index as u64)
                .text("name", label.replace(' ', "/"))
                .number("data_bytes", *bytes)
                .number("data_operations", *writes)
                .number("refused", *refused)
                .raw("data", &posts(data))
                .raw("control", &posts(control))
                .end()
        };
        of_this_process(FORMAT)
            .raw("rails", &array(self.rails.iter().map(rail)))
            .raw("messages", &self::rows(rows, Kind::Messages))
            .raw("parts", &self::rows(rows, Kind::Rail))
            .raw("counters", &named(&self.incidents))
            .end()
    }
}

/// An object that begins with its format and with the identity of this process, as peers name it. Namespace 0: unknown.
pub(super) fn of_this_process(format: u32) -> Object {
    Object::new()
        .number("format", format)
        .text("version", env!("CARGO_PKG_VERSION"))
        .text("host", fabric::host_name())
        .number("process", std::process::id())
        .number("pid_namespace", proc_status::pid_namespace().unwrap_or(0))
}

/// The rows of one kind, as a JSON array.
pub(super) fn rows(rows: &[Row], kind: Kind) -> String {
    array(rows.iter().filter(|row| row.key.kind == kind).map(row_json))
}

/// Counters by name, as a JSON object.
pub(super) fn named(incidents: &Incidents) -> String {
    let named = incidents.named().into_iter();
    named.fold(Object::new(), |all, (name, value)| all.number(name, value)).end()
}

/// A row: its key, its counters, and the non-empty buckets of its histogram, by their upper ends in nanoseconds.
fn row_json(row: &Row) -> String {
    let key = &row.key;
    let mut object = Object::new()
        .number("device", key.device)
        .text("direction", key.direction.name())
        .text("peer", &key.peer)
        .text("name", &key.name);
    if key.kind == Kind::Rail {
        object = object.number("rail", key.rail);
    }
    for counter in Counter::ALL {
        object = object.number(counter.name(), row.get(*counter));
    }
    let filled = (0..BUCKETS).filter(|bucket| row.latency[*bucket] > 0);
    let latency = filled.map(|bucket| {
        let end =
            bucket_upper_nanos(bucket).map_or_else(|| "null".to_owned(), |end| end.to_string());
        format!("[{end},{}]", row.latency[bucket])
    });
    object.raw("latency", &array(latency)).end()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use counters::{Direction, Key};

    use super::*;

    /// A folder for one test.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ironrail-{name}-{}", std::process::id()));
        fs::create_dir(&folder).expect("the folder of temporary files takes one");
        folder
    }

    #[test]
    fn a_file_that_is_there_is_replaced_whole_and_is_its_owners_alone() {
        let folder = folder("replaced");
        let path = folder.join("counters.json");
        fs::write(&path, "a longer text than the new one").expect("ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("ours");
        // The file of a process that was killed while it wrote.
        fs::write(folder.join(format!(".ironrail.{}.0", std::process::id())), "").expect("ours");
        let mut reader = File::open(&path).expect("ours");
        write(&path, "{}").expect("the folder is ours");
        let mut before = String::new();
        reader.read_to_string(&mut before).expect("it is open");
        assert_eq!(before, "a longer text than the new one");
        assert_eq!(fs::read_to_string(&path).expect("just written"), "{}\n");
        assert_eq!(fs::metadata(&path).expect("just written").mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&folder).expect("ours").count(), 2, "no new file is left");
        fs::remove_dir_all(folder).expect("ours");
    }

    #[test]
    fn a_path_that_is_not_a_regular_file_is_not_replaced() {
        let folder = folder("stays");
        let [target, link, pipe] = ["target", "link", "pipe"].map(|name| folder.join(name));
        fs::write(&target, "another's").expect("ours");
        symlink(&target, &link).expect("ours");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
        assert!(made.success());
        for path in [&link, &pipe, &folder] {
            let (sender, answered) = mpsc::channel();
            let to = path.clone();
            thread::spawn(move || sender.send(write(&to, "{}").map_err(|error| error.kind())));
            let answer = answered.recv_timeout(BOUND);
            assert!(matches!(answer, Ok(Err(_))), "{}: {answer:?}", path.display());
        }
        assert_eq!(fs::read_to_string(&target).expect("ours"), "another's");
        assert!(fs::symlink_metadata(&link).expect("ours").is_symlink());
        assert_eq!(fs::read_dir(&folder).expect("ours").count(), 3, "no new file is left");
        fs::remove_dir_all(folder).expect("ours");
    }

    #[test]
    fn a_file_system_that_hangs_delays_one_close_and_no_later_ones() {
        static HUNG: Lock<Writer> = Lock::new(Writer::NONE);
        static FILE_SYSTEM: Lock<Vec<String>> = Lock::new(Vec::new());
        static STORES: AtomicU32 = AtomicU32::new(0);
        let job = |text: &str| Job { path: PathBuf::new(), text: text.to_owned() };
        let store: fn(&Job) = |job| {
            STORES.fetch_add(1, Ordering::Relaxed);
            FILE_SYSTEM.lock().push(job.text.clone());
        };
        let within_bound = |bound| {
            let (sender, waited) = mpsc::channel();
            thread::spawn(move || sender.send(wait(&HUNG, bound)));
            waited.recv_timeout(BOUND).expect("the close goes on")
        };
        let hangs = FILE_SYSTEM.lock();
        hand_over(&HUNG, job("first"), store);
        until(|| STORES.load(Ordering::Relaxed) == 1);
        assert!(!within_bound(LOOKS_EVERY), "nothing is written");
        hand_over(&HUNG, job("second"), store);
        hand_over(&HUNG, job("third"), store);
        assert!(within_bound(Duration::MAX), "the next close does not wait");
        assert_eq!(STORES.load(Ordering::Relaxed), 1, "another thread would hang as well");
        drop(hangs);
        until(|| !HUNG.lock().is_running);
        assert_eq!(*FILE_SYSTEM.lock(), ["first", "third"]);
        hand_over(&HUNG, job("fourth"), store);
        assert!(within_bound(Duration::MAX), "it is waited for again");
        assert_eq!(*FILE_SYSTEM.lock(), ["first", "third", "fourth"]);
    }

    /// Far more than a thread needs for its next step.
    const BOUND: Duration = Duration::from_secs(20);

    fn until(is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < BOUND);
            thread::yield_now();
        }
    }

    #[test]
    fn endpoints_on_one_rail_are_summed() {
        let mut totals = Totals { rails: BTreeMap::new(), incidents: Incidents::NONE };
        let data = Posts { writes: 3, injected_writes: 4, reads: 5, ..Posts::NONE };
        let control = Posts { writes: 6, sends: 7, injected_sends: 8, receives: 9, ..data };
        let rail = RailReport {
            label: "net lo".to_owned(),
            bytes: 10,
            writes: 2,
            refused: 1,
            data,
            control,
        };
        let report = Report {
            rails: vec![rail.clone(), RailReport { bytes: 5, ..rail }],
            incidents: Incidents::NONE,
        };
        totals.add(&report);
        totals.add(&report);
        let text = totals.json(&[]);
        let posts = "\"data\":{\"writes\":6,\"injected_writes\":8,\"sends\":0,\"injected_sends\":0,\"reads\":10,\"receives\":0},\
             \"control\":{\"writes\":12,\"injected_writes\":8,\"sends\":14,\"injected_sends\":16,\"reads\":10,\"receives\":18}";
        for (rail, bytes) in [(0, 20), (1, 10)] {
            let object = format!(
                "{{\"index\":{rail},\"name\":\"net/lo\",\"data_bytes\":{bytes},\"data_operations\":4,\"refused\":2,{posts}}}"
            );
            assert!(text.contains(&object), "{text}");
        }
        assert!(text.contains("\"garbage_messages\":0"), "{text}");
    }

    #[test]
    fn a_file_has_the_pid_namespace_in_which_its_process_has_its_number() {
        let text = Totals { rails: BTreeMap::new(), incidents: Incidents::NONE }.json(&[]);
        let namespace = proc_status::pid_namespace().expect("proc is mounted");
        let number = std::process::id();
        let words = format!("\"process\":{number},\"pid_namespace\":{namespace},");
        assert!(text.contains(&words), "{text}");
    }

    #[test]
    fn a_row_has_its_key_its_counters_and_its_non_empty_buckets() {
        let key = Key {
            kind: Kind::Rail,
            direction: Direction::Receive,
            device: 2,
            rail: 3,
            peer: "host:9".to_owned(),
            name: "net eth0".to_owned(),
        };
        let mut row = Row::new(key);
        (row.latency[0], row.latency[31]) = (4, 1);
        let text = row_json(&row);
        let begin = "{\"device\":2,\"direction\":\"receive\",\"peer\":\"host:9\",\"name\":\"net eth0\",\"rail\":3,\"messages\":0,";
        assert!(text.starts_with(begin), "{text}");
        assert!(text.ends_with("\"latency\":[[256,4],[null,1]]}"), "{text}");
    }
}
