//! The memory that a killed process leaves behind: shm names it by process id, so the next process with that id finds it.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[allow(dead_code, reason = "shared with loopback")]
mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use harness::Test;
use support::{Provider, Side, info, library, offers};

fn main() -> ExitCode {
    let folder = Path::new("/dev/shm").is_dir();
    let folder = if folder { Ok(()) } else { Err("/dev/shm".to_owned()) };
    let test = Test::new(an_endpoint_opens_over_what_a_killed_process_of_its_number_left);
    harness::run([test.needs(offers(SHM, false)).needs(folder)])
}

const SHM: Provider = Provider { name: "shm", source: None, messages: false };

/// Creates files with the names of this process's first endpoints in shm. A whole page each, since shm maps them.
fn leave(count: usize) -> Vec<PathBuf> {
    let user = fs::metadata("/proc/self").unwrap().uid();
    let name = |index| PathBuf::from(format!("/dev/shm/{}:{user}:{index}", process::id()));
    let names: Vec<PathBuf> = (0..count).map(name).collect();
    for name in &names {
        fs::write(name, [0; 4096]).unwrap_or_else(|error| panic!("{}: {error}", name.display()));
    }
    names
}

/// Alone in its file, since the names count this process's endpoints.
fn an_endpoint_opens_over_what_a_killed_process_of_its_number_left() {
    let library = library().unwrap();
    let info = info(&library, SHM, false).unwrap();
    let names = leave(8);
    drop(Side::open(&info, false));
    // shm removes those that it finds.
    let met = names.iter().filter(|name| fs::remove_file(name).is_err()).count();
    assert!(met > 0, "no endpoint met what was left: shm names its memory otherwise");
}
