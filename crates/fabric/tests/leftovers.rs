//! What a process that was killed leaves to the next one of its number: shm's memory lies under names with that number in them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[allow(dead_code, reason = "shared with loopback")]
mod support;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process;

use support::{Provider, Side, info, library, say};

/// As shm names the memory of this process's first endpoints. A whole page, as it maps what it finds.
fn leave(count: usize) -> Option<Vec<PathBuf>> {
    let user = fs::metadata("/proc/self").unwrap().uid();
    let name = |index| PathBuf::from(format!("/dev/shm/{}:{user}:{index}", process::id()));
    let names: Vec<PathBuf> = (0..count).map(name).collect();
    for name in &names {
        match fs::write(name, [0; 4096]) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => panic!("{}: {error}", name.display()),
        }
    }
    Some(names)
}

/// Alone in its file, since the names count this process's endpoints.
#[test]
fn an_endpoint_opens_over_what_a_killed_process_of_its_number_left() {
    let provider = Provider { name: "shm", source: None };
    let Some(library) = library() else { return };
    let Some(info) = info(&library, provider, false) else {
        say("SKIPPED: there is no shm");
        return;
    };
    let Some(names) = leave(8) else {
        say("SKIPPED: there is no /dev/shm");
        return;
    };
    drop(Side::open(&library, &info));
    // shm clears away what it meets.
    let met = names.iter().filter(|name| fs::remove_file(name).is_err()).count();
    assert!(met > 0, "no endpoint met what was left: shm names its memory otherwise");
}
