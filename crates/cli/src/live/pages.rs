//! The pages of processes, and files that have the name of a page and are none.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use counters::{Key, Page, Row};
use ironrail_group::error::GroupError;

use crate::values;

/// Which pages are read, and what of them.
#[derive(Debug, Args)]
pub(super) struct Query {
    /// Processes [default: all of this user's]
    #[arg(value_name = "PROCESS", value_parser = values::process)]
    pub(super) processes: Vec<u32>,
    /// Processes of all users: root can read their pages
    #[arg(long)]
    pub(super) all_users: bool,
    /// What has rows of its own: each peer, or each device and rail, summed over peers
    #[arg(long, value_enum, default_value = "peer")]
    pub(super) by: By,
    /// Where pages are
    #[arg(long, hide = true, default_value = counters::FOLDER)]
    pub(super) folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum By {
    Peer,
    Rail,
}

/// A file with the name of a page.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    /// The file's owner.
    pub(super) user: u32,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    /// The page of a running process.
    Live(Page),
    /// The page of a process that ended without removing it.
    Stale(Page),
    Unreadable(String),
}

impl Found {
    /// The page and its owner, if its process is running.
    pub(super) fn live(&self) -> Option<(u32, &Page)> {
        match &self.state {
            State::Live(page) => Some((self.user, page)),
            State::Stale(_) | State::Unreadable(_) => None,
        }
    }

    /// The page and its owner, if its process has ended.
    pub(super) fn stale(&self) -> Option<(u32, &Page)> {
        match &self.state {
            State::Stale(page) => Some((self.user, page)),
            State::Live(_) | State::Unreadable(_) => None,
        }
    }

    /// The problem of the file, as a sentence, if it has one.
    pub(super) fn complaint(&self) -> Option<String> {
        // Any user may make a file of any name in the folder.
        let name = self.path.to_string_lossy();
        let path = name.escape_debug();
        match &self.state {
            State::Live(Page { elsewhere: 0, .. }) => None,
            State::Live(page) => Some(format!(
                "{} has {} rows that are in no page: it has as many pages as it may have, or {} takes no more; the file of IRONRAIL_STATS_FILE has all rows",
                number(page),
                page.elsewhere,
                counters::FOLDER
            )),
            State::Stale(page) => Some(format!(
                "{path} is stale: {} has ended without removing it; the next process with Ironrail removes it once it is a minute old, or remove it by rm",
                number(page)
            )),
            State::Unreadable(why) => Some(format!("{path}: {why}")),
        }
    }
}

impl Query {
    /// The pages of the processes that are asked for, sorted by name.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub(super) fn find(&self) -> Result<Vec<Found>, GroupError> {
        let folder = &self.folder;
        let unreadable = |error: io::Error| GroupError::System {
            what: "reading the pages of counters",
            error: io::Error::new(error.kind(), format!("{}: {error}", folder.display())),
        };
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(rest) = name.and_then(|name| name.strip_prefix(counters::PREFIX)) else {
                continue;
            };
            // The user in a name is that of a user namespace, as of a container, so the file's owner decides whose page it is.
            let process = rest.split('.').nth(1).and_then(|number| number.parse().ok());
            let is_asked_for = |process| self.processes.contains(&process);
            if self.processes.is_empty() || process.is_some_and(is_asked_for) {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(self.found(paths))
    }

    fn found(&self, paths: Vec<PathBuf>) -> Vec<Found> {
        paths.into_iter().filter_map(|path| self.inspect(path)).collect()
    }

    /// Reads a file. None: its process has removed it, or it belongs to another user and is not asked for.
    fn inspect(&self, path: PathBuf) -> Option<Found> {
        let is_asked_for = |user: u32| self.all_users || user == fabric::user_id();
        let mut options = File::options();
        // Neither follows a link nor blocks on a pipe without a writer.
        options.read(true).custom_flags(NO_LINK_NO_WAIT);
        let (user, state) = match options.open(&path) {
            Ok(file) => {
                let user = file.metadata().ok()?.uid();
                if !is_asked_for(user) {
                    return None;
                }
                (user, self.state(&file))
            }
            Err(error) => {
                // The owner of a link itself, not of its target. An error means that the file is gone.
                let user = fs::symlink_metadata(&path).ok()?.uid();
                (user, State::Unreadable(format!("it cannot be opened: {error}")))
            }
        };
        is_asked_for(user).then_some(Found { path, user, state })
    }

    fn state(&self, file: &File) -> State {
        let bytes = match read(file) {
            Ok(bytes) => bytes,
            Err(why) => return State::Unreadable(why),
        };
        match Page::read(&bytes) {
            Err(why) => State::Unreadable(why.to_string()),
            Ok(mut page) => {
                if self.by == By::Rail {
                    page.rows = over_peers(&page.rows);
                }
                let is_stale = fabric::is_unlocked(file) || is_gone(&page);
                if is_stale { State::Stale(page) } else { State::Live(page) }
            }
        }
    }
}

/// The rows without their peers.
fn over_peers(rows: &[Row]) -> Vec<Row> {
    let sums = rows.iter().map(|row| {
        let mut sum = Row::new(Key { peer: String::new(), ..row.key.clone() });
        sum.add(row);
        sum
    });
    counters::summed(sums)
}

/// A process's number, with its PID namespace if that is not ours.
fn number(page: &Page) -> String {
    let namespace = of_namespace(other_namespace(page));
    format!("process {}{namespace}", page.process)
}

fn of_namespace(other: Option<u64>) -> String {
    other.map_or_else(String::new, |inode| format!(" of PID namespace {inode}"))
}

/// What identifies a process. Processes of two containers may have one number, and even one host name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Process {
    pub(super) number: u32,
    pub(super) user: u32,
    pub(super) host: String,
    /// The PID namespace, if it is known and not ours.
    pub(super) namespace: Option<u64>,
}

impl Process {
    /// The number, followed by the PID namespace if that is not ours, as in the names of peers.
    pub(super) fn short(&self) -> String {
        let Self { number, namespace, .. } = self;
        namespace.map_or_else(|| number.to_string(), |inode| format!("{number}@{inode}"))
    }

    /// The name of the process, as in the log of its peers. It has the host, as containers may have processes of one number.
    pub(super) fn text(&self, of_users: bool) -> String {
        let Self { number, user, host, namespace } = self;
        let namespace = of_namespace(*namespace);
        let user = if of_users { format!(" of user {user}") } else { String::new() };
        format!("process {number}{namespace}{user} on {host}")
    }
}

/// One page for each process: copies of the plugin have pages of their own, and many rows fill more than one.
pub(super) fn processes<'a>(
    pages: impl Iterator<Item = (u32, &'a Page)>,
) -> BTreeMap<Process, Page> {
    let mut all = BTreeMap::<Process, Page>::new();
    for (user, page) in pages {
        let (number, host) = (page.process, page.host.clone());
        match all.entry(Process { number, user, host, namespace: other_namespace(page) }) {
            Entry::Vacant(entry) => drop(entry.insert(page.clone())),
            Entry::Occupied(entry) => {
                let sum = entry.into_mut();
                let rows = std::mem::take(&mut sum.rows).into_iter();
                sum.rows = counters::summed(rows.chain(page.rows.iter().cloned()));
                sum.elsewhere = sum.elsewhere.saturating_add(page.elsewhere);
            }
        }
    }
    all
}

fn read(file: &File) -> Result<Vec<u8>, String> {
    let facts = file.metadata().map_err(|error| error.to_string())?;
    if !facts.is_file() {
        return Err("it is no file".to_owned());
    }
    if facts.mode() & 0o077 != 0 {
        return Err(
            "others than its owner can write or read it: Ironrail makes no such pages".to_owned()
        );
    }
    counters::copy_whole(|| copy(file)).map_err(|error| error.to_string())
}

fn copy(mut file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = (counters::page_words() * 8 + MORE) as u64;
    file.rewind()?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether the process of a page has ended, as far as this PID namespace can tell: a child of the process may hold the lock.
fn is_gone(page: &Page) -> bool {
    if namespace() != Some(page.namespace) || !proc_status::has_our_numbers() {
        return false;
    }
    match proc_status::started(page.process) {
        // 0: the process did not know when it was started.
        Ok(started) => page.started != 0 && started != page.started,
        Err(error) => {
            let errno = rustix::io::Errno::from_io_error(&error);
            matches!(errno, Some(rustix::io::Errno::NOENT | rustix::io::Errno::SRCH))
        }
    }
}

/// The PID namespace of a page, if it is known and not ours.
pub(super) fn other_namespace(page: &Page) -> Option<u64> {
    Some(page.namespace).filter(|other| *other != 0 && Some(*other) != namespace())
}

/// The PID namespace of this process.
fn namespace() -> Option<u64> {
    static HERE: OnceLock<Option<u64>> = OnceLock::new();
    *HERE.get_or_init(|| proc_status::pid_namespace().ok())
}

/// The most bytes behind the rows: the file's length is rounded up to the system's page size.
const MORE: usize = 64 << 10;
/// The standard library adds O_CLOEXEC.
const NO_LINK_NO_WAIT: i32 =
    (rustix::fs::OFlags::NOFOLLOW.bits() | rustix::fs::OFlags::NONBLOCK.bits()).cast_signed();

/// A page of process 7 on node7, in this PID namespace.
#[cfg(test)]
pub(super) fn page_in(namespace: u64, rows: Vec<Row>) -> Page {
    Page {
        process: 7,
        started: 0,
        namespace,
        made_unix: 0,
        elsewhere: 0,
        host: "node7".to_owned(),
        version: String::new(),
        rows,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use std::path::Path;

    use counters::Counter;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ironrail-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// A query for all of this user's processes, or for one.
    fn query(folder: &Path, process: Option<u32>) -> Query {
        let processes = process.into_iter().collect();
        Query { processes, all_users: false, by: By::Peer, folder: folder.to_owned() }
    }

    fn page_of(folder: &Path, process: u32) -> PathBuf {
        folder.join(counters::file_name(fabric::user_id(), process, namespace().unwrap(), 0))
    }

    #[test]
    fn files_that_are_no_pages_are_reported() {
        let folder = folder("foreign");
        let write = |process, bytes: &[u8], mode| {
            let path = page_of(&folder, process);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write(1, b"something else that lies here", 0o600);
        write(2, &vec![0; counters::page_words() * 8], 0o600);
        write(3, &vec![0; counters::page_words() * 8], 0o644);
        symlink(page_of(&folder, 1), page_of(&folder, 4)).unwrap();
        fs::write(folder.join("nccl-abc"), "another's").unwrap();
        let found = query(&folder, None).find().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let said: Vec<_> = found.iter().map(|found| found.complaint().unwrap()).collect();
        assert_eq!(said.len(), 4, "{said:?}");
        for (said, words) in said.iter().zip([
            "no page of Ironrail's",
            "half written",
            "others than its owner",
            "cannot be opened",
        ]) {
            assert!(said.contains(words), "{words}: {said}");
        }
    }

    #[test]
    fn a_page_that_its_process_has_removed_since_it_was_listed_is_none() {
        let folder = folder("removed");
        let found = query(&folder, None).found(vec![page_of(&folder, 7)]);
        fs::remove_dir_all(&folder).unwrap();
        assert!(found.is_empty(), "{found:?}");
    }

    /// Writes a page that no process has locked.
    fn unlocked(folder: &Path, process: u32, started: u64) {
        let mut words = vec![0; counters::page_words()];
        words[counters::head::MAGIC] = counters::MAGIC;
        words[counters::head::LAYOUT] = counters::LAYOUT;
        words[counters::head::ROW_WORDS] = counters::ROW_WORDS as u64;
        words[counters::head::ROWS] = counters::ROWS as u64;
        words[counters::head::PROCESS] = process.into();
        words[counters::head::STARTED] = started;
        words[counters::head::NAMESPACE] = namespace().unwrap();
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        let path = page_of(folder, process);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    #[test]
    fn a_process_with_a_name_that_is_no_utf8_runs_and_one_that_began_at_another_time_has_ended() {
        let folder = folder("named");
        let looked = || {
            fs::write("/proc/thread-self/comm", b"half a letter\xc3").unwrap();
            // A thread's number names it under /proc as a process's does.
            let (started, number) = (proc_status::started("thread-self").unwrap(), thread_number());
            [started, 0, started + 1].map(|started| {
                unlocked(&folder, number, started);
                let found = query(&folder, Some(number)).find().unwrap();
                match &found[0].state {
                    State::Stale(page) => is_gone(page),
                    other => panic!("{other:?}"),
                }
            })
        };
        let gone = std::thread::scope(|scope| scope.spawn(looked).join().unwrap());
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(gone, [false, false, true]);
    }

    fn thread_number() -> u32 {
        let link = fs::read_link("/proc/thread-self").unwrap();
        link.file_name().unwrap().to_str().unwrap().parse().unwrap()
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_named_with_it() {
        let here = namespace().unwrap();
        let pages = [0, here, here + 1].map(|namespace| page_in(namespace, Vec::new()));
        let found = processes(pages.iter().map(|page| (1000, page)));
        let names: Vec<_> = found.keys().map(|process| process.text(false)).collect();
        let other = format!("process 7 of PID namespace {} on node7", here + 1);
        assert_eq!(names, ["process 7 on node7", &other]);
        let short: Vec<_> = found.keys().map(Process::short).collect();
        assert_eq!(short, ["7", &format!("7@{}", here + 1)]);
        assert!(found.keys().all(|process| process.text(true).contains(" of user 1000 on ")));
        let [_, _, page] = pages;
        let stale = Found { path: "page".into(), user: 0, state: State::Stale(page) };
        let said = stale.complaint().unwrap();
        assert!(said.contains(&format!(" of PID namespace {} has ended", here + 1)), "{said}");
    }

    #[test]
    fn a_page_without_a_process_is_stale() {
        let folder = folder("stale");
        unlocked(&folder, 7, 1);
        let found = query(&folder, Some(7)).find().unwrap();
        assert!(query(&folder, Some(8)).find().unwrap().is_empty());
        fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(found[0].state, State::Stale(_)), "{found:?}");
    }

    #[test]
    fn the_owner_of_a_page_counts_and_not_the_user_in_its_name() {
        let folder = folder("owner");
        unlocked(&folder, 7, 1);
        // As from a container, whose root is another user here.
        let inside =
            folder.join(counters::file_name(fabric::user_id() + 1, 8, namespace().unwrap(), 0));
        fs::rename(page_of(&folder, 7), &inside).unwrap();
        let found = query(&folder, Some(8)).find().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.iter().map(|found| &found.path).collect::<Vec<_>>(), [&inside]);
        assert!(found[0].stale().is_some(), "{found:?}");
    }

    #[test]
    fn files_of_other_users_are_left_out_and_all_users_shows_them() {
        const OTHER: u32 = 4_000_000;
        let folder = folder("others");
        unlocked(&folder, 7, 1);
        symlink("/nowhere", page_of(&folder, 8)).unwrap();
        for path in [7, 8].map(|process| page_of(&folder, process)) {
            // Only root can change the owner, and not in every user namespace.
            if lchown(&path, Some(OTHER), None).is_err() {
                fs::remove_dir_all(&folder).unwrap();
                return;
            }
        }
        let own = query(&folder, None).find().unwrap();
        let all = Query { all_users: true, ..query(&folder, None) }.find().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(own.is_empty(), "{own:?}");
        assert_eq!(all.iter().map(|found| found.user).collect::<Vec<_>>(), [OTHER; 2]);
        assert!(all[0].stale().is_some(), "{all:?}");
        assert!(all[1].complaint().unwrap().contains("cannot be opened"), "{all:?}");
    }

    #[test]
    fn rows_without_their_peers_are_sums_by_device_direction_and_rail() {
        let key = |peer: &str, rail| Key {
            kind: counters::Kind::Rail,
            direction: counters::Direction::Send,
            device: 0,
            rail,
            peer: peer.to_owned(),
            name: "eth0".to_owned(),
        };
        let row = |peer, rail, count| {
            let mut words = vec![0; counters::ROW_WORDS];
            Row::new(key(peer, rail)).write(|at, word| words[at] = word);
            words[0] = key(peer, rail).head();
            words[counters::COUNTERS_AT + Counter::Parts.place()] = count;
            Row::read(&words).unwrap()
        };
        let rows = over_peers(&[row("a:1", 0, 1), row("b:1", 0, 2), row("b:1", 1, 4)]);
        let sums = rows.iter().map(|row| (row.key.clone(), row.get(Counter::Parts)));
        assert_eq!(sums.collect::<Vec<_>>(), [(key("", 0), 3), (key("", 1), 4)]);
    }
}
