//! How many files this process may have open. A launcher has three for each rank, and the usual limit is 1,024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process, and those that it starts, have as many as it may. Returns the limit before. None: it is as high as it may be.
pub(crate) fn allow_all() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let limit = current.filter(|_| current != maximum)?;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok()?;
    Some(limit)
}

/// Lets this process have so many.
pub(crate) fn limit(files: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum });
}
