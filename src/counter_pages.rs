//! Counters of connections: rows in pages of shared memory that tools read, or in private memory.
//!
//! - A row belongs to one endpoint and is written under that endpoint's lock: counting takes no other lock, and needs no atomic operations
//!   but loads and stores.
//! - A row becomes unused when its endpoint closes, and continues with the next connection of the same key.
//! - When no row is in use the pages are unmapped. Their counts are kept for the file of IRONRAIL_STATS_FILE, and for the next page:
//!   otherwise sums over peers would shrink.
//!
//! A page is a new file that only its owner can read; docs/counters.md has its layout.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use counters::{
    COUNTERS_AT, Counter, HEADER_WORDS, HISTOGRAM_AT, HOST_AT, Key, LAYOUT, MAGIC, ROW_WORDS, ROWS,
    VERSION_AT, bucket_of, head, page_words,
};
use fabric::{Lock, Pages, Words, away_from_streams, is_unlocked, user_id};

/// One endpoint's counters for one key.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    words: Words<ROW_WORDS>,
    /// Its index in its page.
    number: usize,
}

impl Row {
    #[inline]
    pub(crate) fn add(&self, counter: Counter, more: u64) {
        self.words.add_relaxed(COUNTERS_AT + counter.place(), more);
    }

    #[inline]
    pub(crate) fn one(&self, counter: Counter) {
        self.add(counter, 1);
    }

    pub(crate) fn latency(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.words.add_relaxed(HISTOGRAM_AT + bucket_of(nanos), 1);
        self.add(Counter::LatencyNanos, nanos);
    }
}

/// A row in use; dropping it makes it unused.
#[derive(Debug)]
pub(crate) struct Owned(Row);

impl Owned {
    /// A row for this key, or None if there is no memory.
    pub(crate) fn new(key: Key) -> Option<Self> {
        POOL.lock().row(key).map(Self)
    }

    pub(crate) fn row(&self) -> &Row {
        &self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        POOL.lock().release(&self.0);
    }
}

/// All rows of this process, summed by key.
pub(crate) fn all() -> Vec<counters::Row> {
    let pool = POOL.lock();
    let retired = pool.retired.values().cloned();
    counters::summed(retired.chain(pool.pages.iter().flat_map(Page::rows)))
}

/// Sets whether tools may read pages that are made from now on.
pub(crate) fn share(host: &str, is_shared: bool) {
    let mut pool = POOL.lock();
    host.clone_into(&mut pool.host);
    pool.is_shared = is_shared;
}

/// Removes the pages' files as the process ends with rows in use. Counting goes on, and no later page is a file. Does not wait for the lock,
/// which the caller of exit(3) may hold.
pub(crate) fn unshare() {
    if let Some(mut pool) = POOL.try_lock() {
        pool.unshare();
    }
}

static POOL: Lock<Pool> = Lock::new(Pool::new());

/// All pages of the process, and the sums of those that are gone.
#[derive(Debug)]
struct Pool {
    pages: Vec<Page>,
    /// The number of rows in use; and, by key, the page and the number of each row that is not in use.
    in_use: usize,
    unused: BTreeMap<Key, Vec<(usize, usize)>>,
    /// Sums of the rows whose page is unmapped.
    retired: BTreeMap<Key, counters::Row>,
    host: String,
    /// Whether pages that are made from now on are files.
    is_shared: bool,
}

/// A page, and which of its rows are in use.
#[derive(Debug)]
struct Page {
    pages: Arc<Pages>,
    /// Removed with the page. None: tools do not see it.
    file: Option<SharedFile>,
    /// The key of each row that is in use.
    rows: Vec<Option<Key>>,
}

/// The file of a page, removed when dropped.
#[derive(Debug)]
struct SharedFile {
    path: PathBuf,
    /// Its lock shows tools that the process is alive.
    _lock: File,
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // The user may have removed it.
        let _gone = fs::remove_file(&self.path);
    }
}

impl Pool {
    const fn new() -> Self {
        Self {
            pages: Vec::new(),
            in_use: 0,
            unused: BTreeMap::new(),
            retired: BTreeMap::new(),
            host: String::new(),
            is_shared: false,
        }
    }

    fn row(&mut self, key: Key) -> Option<Row> {
        self.restore()?;
        let (page, at) = match self.unused.get_mut(&key).and_then(Vec::pop) {
            Some(place) => place,
            None => self.append(&counters::Row::new(key.clone()))?,
        };
        self.in_use += 1;
        Some(self.pages[page].take(at, key))
    }

    /// Writes the retired rows into pages, as unused rows. None: there is no memory, and the remaining rows stay retired.
    fn restore(&mut self) -> Option<()> {
        while let Some((key, row)) = self.retired.pop_first() {
            let Some(place) = self.append(&row) else {
                self.retired.insert(key, row);
                return None;
            };
            self.unused.entry(key).or_default().push(place);
        }
        Some(())
    }

    /// Appends a row that is not in use. Returns its page and its number there. None: there is no memory.
    fn append(&mut self, row: &counters::Row) -> Option<(usize, usize)> {
        let has_room = |page: &Page| page.rows.len() < ROWS;
        if !self.pages.iter().any(has_room) {
            let is_shared = self.is_shared && self.pages.len() < PAGES_MAX;
            let page = Page::new(&self.host, is_shared)?;
            self.pages.push(page);
        }
        let page = self.pages.iter().position(has_room)?;
        let at = self.pages[page].append(row);
        self.say_elsewhere();
        Some((page, at))
    }

    /// Stores in the first page that tools see how many rows they do not see.
    fn say_elsewhere(&self) {
        let elsewhere = self.pages.iter().filter(|page| page.file.is_none());
        let elsewhere: usize = elsewhere.map(|page| page.rows.len()).sum();
        if let Some(page) = self.pages.iter().find(|page| page.file.is_some()) {
            page.pages.store_relaxed(head::ELSEWHERE, elsewhere as u64);
        }
    }

    fn unshare(&mut self) {
        self.is_shared = false;
        for page in &mut self.pages {
            page.file = None;
        }
    }

    fn release(&mut self, row: &Row) {
        let Some(at) = self.pages.iter().position(|page| row.words.are_of(&page.pages)) else {
            return;
        };
        let Some(key) = self.pages[at].rows.get_mut(row.number).and_then(Option::take) else {
            return;
        };
        self.unused.entry(key).or_default().push((at, row.number));
        self.in_use -= 1;
        if self.in_use == 0 {
            let rows = self.pages.iter().flat_map(Page::rows);
            let rows = counters::summed(rows.chain(self.retired.values().cloned()));
            self.retired = rows.into_iter().map(|row| (row.key.clone(), row)).collect();
            self.pages.clear();
            self.unused.clear();
        }
    }
}

impl Page {
    fn new(host: &str, is_shared: bool) -> Option<Self> {
        let bytes = page_words() * size_of::<u64>();
        let shared =
            if is_shared { SharedFile::new(Path::new(counters::FOLDER), bytes) } else { None };
        let (pages, file) = match shared {
            Some((pages, file)) => (pages, Some(file)),
            None => (Pages::map(bytes).ok()?, None),
        };
        let process = u64::from(std::process::id());
        let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        for (at, value) in [
            (head::LAYOUT, LAYOUT),
            (head::ROW_WORDS, ROW_WORDS as u64),
            (head::ROWS, ROWS as u64),
            (head::PROCESS, process),
            (head::STARTED, proc_status::started("self").unwrap_or(0)),
            (head::NAMESPACE, pid_namespace()),
            (head::MADE, made),
        ] {
            pages.store_relaxed(at, value);
        }
        pages.store_words(HOST_AT, counters::text_words::<{ counters::HOST_WORDS }>(host));
        let version = env!("CARGO_PKG_VERSION");
        pages.store_words(VERSION_AT, counters::text_words::<{ counters::VERSION_WORDS }>(version));
        pages.store(head::MAGIC, MAGIC);
        Some(Self { pages: Arc::new(pages), file, rows: Vec::new() })
    }

    /// Appends a row that is not in use. Returns its number.
    fn append(&mut self, row: &counters::Row) -> usize {
        let at = self.rows.len();
        let first = HEADER_WORDS + at * ROW_WORDS;
        row.write(|word, value| self.pages.store_relaxed(first + word, value));
        self.pages.store(first, row.key.head());
        self.rows.push(None);
        at
    }

    /// The row at `at`, in use from now on.
    fn take(&mut self, at: usize, key: Key) -> Row {
        self.rows[at] = Some(key);
        Row { words: Words::of(&self.pages, HEADER_WORDS + at * ROW_WORDS), number: at }
    }

    fn rows(&self) -> impl Iterator<Item = counters::Row> {
        let row = |at| self.pages.load_words::<ROW_WORDS>(HEADER_WORDS + at * ROW_WORDS);
        let used = 0..self.rows.len();
        used.filter_map(move |at| counters::Row::read(&row(at)))
    }
}

impl SharedFile {
    /// A new file for a page of `bytes` bytes, in a folder that others may write to. None: tools do not see it, and the log says why.
    fn new(folder: &Path, bytes: usize) -> Option<(Pages, Self)> {
        tidy(folder);
        let made = (0..FILES_MAX).map(|number| -> io::Result<_> {
            let path = folder.join(counters::file_name(
                user_id(),
                std::process::id(),
                pid_namespace(),
                number,
            ));
            // Never an existing file, and no link is followed.
            let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600).custom_flags(flags);
            let file = options.open(&path)?;
            let file = away_from_streams(file).inspect_err(|_| {
                let _gone = fs::remove_file(&path);
            })?;
            Ok((path, file))
        });
        let mut failure = None;
        for attempt in made {
            match attempt {
                Ok((path, file)) => {
                    let file = Self { path, _lock: file };
                    return match Pages::share(&file._lock, bytes) {
                        Ok(pages) => Some((pages, file)),
                        Err(error) => {
                            log_not_shared(&error.to_string());
                            None
                        }
                    };
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    failure = Some(error);
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        log_not_shared(&failure.map_or_else(String::new, |error| error.to_string()));
        None
    }
}

/// This process's PID namespace; 0 where it is not known.
fn pid_namespace() -> u64 {
    proc_status::pid_namespace().unwrap_or(0)
}

fn log_not_shared(why: &str) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        log::info!(
            "no page of counters in {} ({why}): `ironrail top` does not see this process, or not all of its rows; IRONRAIL_STATS_FILE still works",
            counters::FOLDER
        );
    }
}

/// Removes this user's page files whose processes have ended without removing them. The owner of the file decides: the user id in a name
/// may be that of a container's user namespace.
fn tidy(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let is_page =
            entry.file_name().to_str().is_some_and(|name| name.starts_with(counters::PREFIX));
        if is_page && is_stale(&entry.path()) {
            let _gone = fs::remove_file(entry.path());
        }
    }
}

/// Whether no process holds the file's lock. A new file may be about to be locked, so only files older than a minute count.
fn is_stale(path: &Path) -> bool {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    let Ok(file) = options.open(path) else { return false };
    let Ok(found) = file.metadata() else { return false };
    let is_old = found.modified().is_ok_and(|made| made.elapsed().is_ok_and(|age| age > YOUNG));
    found.is_file() && found.uid() == user_id() && is_old && is_unlocked(&file)
}

/// The most pages of one process that tools see: one for each 1,023 rows.
const PAGES_MAX: usize = 8;
/// The most page files of one process: copies of the plugin that were loaded from different files have their own.
const FILES_MAX: u32 = 64;
const YOUNG: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use counters::{Direction, Kind};

    use super::*;

    fn key(peer: usize) -> Key {
        let (kind, direction, peer) = (Kind::Messages, Direction::Send, format!("host:{peer}"));
        Key { kind, direction, device: 0, rail: 0, peer, name: "a device".to_owned() }
    }

    /// What tools read of the pages that are files.
    fn shown(pool: &Pool) -> Vec<counters::Page> {
        let files = pool.pages.iter().filter_map(|page| page.file.as_ref());
        let page = |file: &SharedFile| counters::Page::read(&fs::read(&file.path).unwrap());
        files.map(|file| page(file).unwrap()).collect()
    }

    #[test]
    fn rows_that_do_not_fit_a_page_are_in_another_and_those_in_no_file_are_counted() {
        let mut pool = Pool { is_shared: true, ..Pool::new() };
        let one = |pool: &mut Pool, peer| pool.row(key(peer)).unwrap().one(Counter::Messages);
        (0..=ROWS).for_each(|peer| one(&mut pool, peer));
        let pages = shown(&pool);
        let messages = |page: &counters::Page| {
            page.rows.iter().map(|row| row.get(Counter::Messages)).sum::<u64>()
        };
        let found: Vec<_> = pages.iter().map(|page| (messages(page), page.elsewhere)).collect();
        assert_eq!(found, [(ROWS as u64, 0), (1, 0)]);
        pool.is_shared = false;
        (ROWS + 1..2 * ROWS + 3).for_each(|peer| one(&mut pool, peer));
        let elsewhere: Vec<_> = shown(&pool).iter().map(|page| page.elsewhere).collect();
        assert_eq!(elsewhere, [3, 0]);
    }

    #[test]
    fn the_first_page_after_the_last_connection_has_the_rows_of_all_earlier_peers() {
        let mut pool = Pool { is_shared: true, ..Pool::new() };
        let shown = |pool: &Pool| {
            let rows = shown(pool).into_iter().flat_map(|page| page.rows);
            let messages = |row: counters::Row| (row.key.peer.clone(), row.get(Counter::Messages));
            rows.map(messages).collect::<Vec<_>>()
        };
        let rows = [1, 2].map(|peer| pool.row(key(peer)).unwrap());
        rows.iter().for_each(|row| row.one(Counter::Messages));
        rows.iter().for_each(|row| pool.release(row));
        assert_eq!(shown(&pool), []);
        let counted = |peers: &[(usize, u64)]| {
            peers.iter().map(|(peer, count)| (key(*peer).peer, *count)).collect::<Vec<_>>()
        };
        let third = pool.row(key(3)).unwrap();
        assert_eq!(shown(&pool), counted(&[(1, 1), (2, 1), (3, 0)]));
        pool.row(key(1)).unwrap().one(Counter::Messages);
        third.one(Counter::Messages);
        assert_eq!(shown(&pool), counted(&[(1, 2), (2, 1), (3, 1)]));
    }

    #[test]
    fn a_process_gets_a_page_beside_those_of_containers_with_the_same_process_id() {
        let folder = std::env::temp_dir().join(format!("ironrail-taken-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for serial in 0..FILES_MAX {
            let (user, process) = (user_id(), std::process::id());
            let theirs = counters::file_name(user, process, pid_namespace() + 1, serial);
            File::create(folder.join(theirs)).unwrap();
        }
        let made = SharedFile::new(&folder, page_words() * size_of::<u64>());
        assert!(made.is_some());
        drop(made);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_unused_row_continues_with_its_key_and_the_pages_go_with_the_last_row() {
        let mut pool = Pool::new();
        let rows = [1, 2, 3].map(|peer| pool.row(key(peer)).unwrap());
        assert_eq!(rows.each_ref().map(|row| row.number), [0, 1, 2]);
        rows.iter().for_each(|row| row.one(Counter::Messages));
        pool.release(&rows[1]);
        let next = [4, 2, 2].map(|peer| pool.row(key(peer)).unwrap());
        assert_eq!(next.each_ref().map(|row| row.number), [3, 1, 4], "the row of key 2 is in use");
        next[1].one(Counter::Messages);
        for row in [&rows[0], &rows[2], &next[0], &next[1]] {
            pool.release(row);
            assert!(!pool.pages.is_empty());
        }
        pool.release(&next[2]);
        assert!(pool.pages.is_empty() && pool.unused.is_empty());
        assert_eq!(pool.retired[&key(2)].get(Counter::Messages), 2);
        assert_eq!(pool.row(key(5)).unwrap().number, 4, "in a new page, after the retired rows");
    }

    #[test]
    fn the_owner_of_a_page_and_not_the_user_in_its_name_decides_whether_it_is_removed() {
        let folder = std::env::temp_dir().join(format!("ironrail-tidy-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(counters::file_name(user_id() + 1, 7, 0, 0));
        let file = File::create(&path).unwrap();
        file.set_modified(SystemTime::now() - 2 * YOUNG).unwrap();
        file.lock_shared().unwrap();
        tidy(&folder);
        assert!(path.exists(), "its process lives");
        drop(file);
        tidy(&folder);
        assert!(!path.exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
