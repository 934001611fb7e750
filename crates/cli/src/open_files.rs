//! The limit of open files of this process. A launcher has three files open for each rank, and the usual limit is 1,024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files of this process, and of those that it starts, to the hard limit. Returns the limit before. None: it was
/// the hard limit already.
pub(crate) fn allow_all() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let limit = current.filter(|_| current != maximum)?;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok()?;
    Some(limit)
}

/// Sets the limit of open files of this process.
pub(crate) fn limit(files: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum });
}
