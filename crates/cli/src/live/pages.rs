//! The pages of this user's processes, and files that only have the name of one.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use counters::Page;
use ironrail_group::error::GroupError;

/// A file with the name of a page.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
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
    /// The page, if its process is running.
    pub(super) fn live(&self) -> Option<&Page> {
        match &self.state {
            State::Live(page) => Some(page),
            State::Stale(_) | State::Unreadable(_) => None,
        }
    }

    /// What is wrong with it, as a sentence.
    pub(super) fn complaint(&self) -> Option<String> {
        let path = self.path.display();
        match &self.state {
            State::Live(_) => None,
            State::Stale(page) => Some(format!(
                "{path} is stale: process {} has ended without removing it; the next process with Ironrail removes it once it is a minute old, or remove it by rm",
                page.process
            )),
            State::Unreadable(why) => Some(format!("{path}: {why}")),
        }
    }
}

/// The pages of all of this user's processes, or of `processes`, sorted by name.
///
/// # Errors
///
/// If the folder cannot be read.
pub(super) fn find(folder: &Path, processes: &[u32]) -> Result<Vec<Found>, GroupError> {
    let unreadable =
        |error| GroupError::Usage(format!("{} cannot be read: {error}", folder.display()));
    let ours = format!("{}{}.", counters::PREFIX, fabric::user_id());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(rest) = name.and_then(|name| name.strip_prefix(&ours)) else { continue };
        let process = rest.split('.').next().and_then(|number| number.parse().ok());
        if processes.is_empty() || process.is_some_and(|process| processes.contains(&process)) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(found(paths))
}

fn found(paths: Vec<PathBuf>) -> Vec<Found> {
    paths.into_iter().filter_map(|path| Some(Found { state: inspect(&path)?, path })).collect()
}

/// None: its process has removed it.
fn inspect(path: &Path) -> Option<State> {
    let mut options = File::options();
    // Neither follows a link nor blocks on a pipe without a writer.
    options.read(true).custom_flags(NO_LINK_NO_WAIT);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(State::Unreadable(format!("it cannot be opened: {error}"))),
    };
    let bytes = match read(&file) {
        Ok(bytes) => bytes,
        Err(why) => return Some(State::Unreadable(why)),
    };
    Some(match Page::read(&bytes) {
        Err(why) => State::Unreadable(why.to_string()),
        Ok(page) if fabric::is_unlocked(&file) || is_gone(&page) => State::Stale(page),
        Ok(page) => State::Live(page),
    })
}

fn read(mut file: &File) -> Result<Vec<u8>, String> {
    let facts = file.metadata().map_err(|error| error.to_string())?;
    if !facts.is_file() {
        return Err("it is no file".to_owned());
    }
    if facts.uid() != fabric::user_id() || facts.mode() & 0o077 != 0 {
        return Err(
            "others than this user can write or read it: Ironrail makes no such pages".to_owned()
        );
    }
    let mut bytes = Vec::new();
    let most = (counters::page_words() * 8 + MORE) as u64;
    (&mut file).take(most).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Whether its process has ended, as far as this PID namespace can tell: a child of the process may hold the lock.
fn is_gone(page: &Page) -> bool {
    if namespace() != Some(page.namespace) {
        return false;
    }
    match proc_status::started(page.process) {
        // 0: it did not find out itself.
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

/// What a page's process is called, as in the log of its peers: containers may have processes of one number.
pub(super) fn name(page: &Page) -> String {
    let Page { process, host, .. } = page;
    match other_namespace(page) {
        Some(namespace) => format!("process {process} of PID namespace {namespace} on {host}"),
        None => format!("process {process} on {host}"),
    }
}

/// The PID namespace of this process.
pub(super) fn namespace() -> Option<u64> {
    static HERE: OnceLock<Option<u64>> = OnceLock::new();
    *HERE.get_or_init(|| proc_status::pid_namespace().ok())
}

/// The most bytes behind the rows: the file's length is rounded up to the system's page size.
const MORE: usize = 64 << 10;
/// The standard library adds O_CLOEXEC.
const NO_LINK_NO_WAIT: i32 =
    (rustix::fs::OFlags::NOFOLLOW.bits() | rustix::fs::OFlags::NONBLOCK.bits()).cast_signed();

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ironrail-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn page_of(folder: &Path, process: u32) -> PathBuf {
        folder.join(counters::file_name(fabric::user_id(), process, 0))
    }

    #[test]
    fn what_is_no_page_is_said_to_be_none() {
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
        let found = find(&folder, &[]).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let said: Vec<_> = found.iter().map(|found| found.complaint().unwrap()).collect();
        assert_eq!(said.len(), 4, "{said:?}");
        for (said, words) in said.iter().zip([
            "no page of Ironrail's",
            "half written",
            "others than this user",
            "cannot be opened",
        ]) {
            assert!(said.contains(words), "{words}: {said}");
        }
    }

    #[test]
    fn a_page_that_its_process_has_removed_since_it_was_listed_is_none() {
        let folder = folder("removed");
        let found = found(vec![page_of(&folder, 7)]);
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
    fn a_process_whose_name_is_no_utf8_is_there_and_one_that_began_at_another_time_is_gone() {
        let folder = folder("named");
        let looked = || {
            fs::write("/proc/thread-self/comm", b"half a letter\xc3").unwrap();
            // A thread's number names it under /proc as a process's does.
            let (started, number) = (proc_status::started("thread-self").unwrap(), thread_number());
            [started, 0, started + 1].map(|started| {
                unlocked(&folder, number, started);
                let found = find(&folder, &[number]).unwrap();
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
        let names = [0, here, here + 1].map(|namespace| {
            name(&Page {
                process: 7,
                started: 0,
                namespace,
                made_unix: 0,
                elsewhere: 0,
                host: "node7".to_owned(),
                version: String::new(),
                rows: Vec::new(),
            })
        });
        let other = format!("process 7 of PID namespace {} on node7", here + 1);
        assert_eq!(names, ["process 7 on node7", "process 7 on node7", &other]);
    }

    #[test]
    fn a_page_without_a_process_is_stale() {
        let folder = folder("stale");
        unlocked(&folder, 7, 1);
        let found = find(&folder, &[7]).unwrap();
        assert!(find(&folder, &[8]).unwrap().is_empty());
        fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(found[0].state, State::Stale(_)), "{found:?}");
    }
}
