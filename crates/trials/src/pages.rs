//! What each rail of a process has carried so far, from its page of counters (docs/counters.md).

use std::fs;
use std::path::PathBuf;

use counters::{Counter, Direction, Kind, Page};

/// Sums since the process began, per data rail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Bytes of parts that were posted, by rail.
    pub(crate) sent: Vec<u64>,
    /// Milliseconds in which each rail was measured to be slow.
    pub(crate) slow_millis: Vec<u64>,
    /// Parts that went by another rail than the one they were given to.
    pub(crate) moved: u64,
    /// Parts that ended with an error.
    pub(crate) failed: u64,
}

/// The sums of a process; none while it shows no page.
pub(crate) fn sums(process: u32, rails: usize) -> Option<Sums> {
    let mut sums = Sums { sent: vec![0; rails], slow_millis: vec![0; rails], ..Sums::default() };
    let file = page(process)?;
    let bytes = counters::copy_whole(|| fs::read(&file)).ok()?;
    for row in &Page::read(&bytes).ok()?.rows {
        if row.key.kind != Kind::Rail || row.key.direction != Direction::Send {
            continue;
        }
        let rail = usize::from(row.key.rail);
        if let (Some(sent), Some(slow)) = (sums.sent.get_mut(rail), sums.slow_millis.get_mut(rail))
        {
            *sent += row.get(Counter::Bytes);
            *slow += row.get(Counter::SlowMillis);
        }
        sums.moved += row.get(Counter::Failovers);
        sums.failed += row.get(Counter::Failed);
    }
    Some(sums)
}

fn page(process: u32) -> Option<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    // The ranks are in network namespaces of their own, and in no other.
    let namespace = proc_status::pid_namespace().ok()?;
    let name = |serial| {
        let name = counters::file_name(user, process, namespace, serial);
        PathBuf::from(counters::FOLDER).join(name)
    };
    (0..4).map(name).find(|path| path.exists())
}
