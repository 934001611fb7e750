//! `ironrail stats` over pages of counters, as processes leave them.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/ended.rs"]
mod ended;

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ended::ended;

fn stats(arguments: &[&str], folder: &Path) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.arg("stats").args(arguments).arg("--folder").arg(folder);
    ended(command)
}

fn folder(name: &str) -> PathBuf {
    let name = format!("stats-{name}-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn page(folder: &Path, process: u32, bytes: &[u8]) {
    let path = folder.join(counters::file_name(fabric::user_id(), process, 0, 0));
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// The page of a process that was killed: nothing locks it.
fn stale(folder: &Path) {
    page(folder, 7, &words(7, 0));
}

/// The page of a process with so many rows in no page.
fn words(process: u64, elsewhere: u64) -> Vec<u8> {
    let mut words = vec![0; counters::page_words()];
    words[counters::head::MAGIC] = counters::MAGIC;
    words[counters::head::LAYOUT] = counters::LAYOUT;
    words[counters::head::ROW_WORDS] = counters::ROW_WORDS as u64;
    words[counters::head::ROWS] = counters::ROWS as u64;
    words[counters::head::PROCESS] = process;
    words[counters::head::ELSEWHERE] = elsewhere;
    words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect()
}

#[test]
fn a_stale_page_is_reported_on_standard_error_and_no_failure() {
    let folder = folder("stale");
    stale(&folder);
    for form in [&[][..], &["--json"], &["--prometheus"]] {
        let (code, said, errors) = stats(form, &folder);
        assert_eq!(code, 0, "{form:?}: {said}{errors}");
        assert!(
            errors.contains("is stale: process 7 has ended") && errors.contains("a minute old"),
            "{form:?}: {errors}"
        );
        assert!(!said.contains("has ended"), "{form:?}: {said}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_page_that_cannot_be_read_or_none_at_all_is_a_failure() {
    let folder = folder("unreadable");
    for form in [&[][..], &["--json"], &["--prometheus"]] {
        let (code, _, errors) = stats(form, &folder);
        assert_eq!(code, 1, "{form:?}: {errors}");
        assert!(
            errors.contains(
                "no process of this user, or none of those named, has a page of counters"
            ),
            "{form:?}: {errors}"
        );
    }
    stale(&folder);
    page(&folder, 8, b"something else");
    for form in [&[][..], &["--json"], &["--prometheus"]] {
        let (code, _, errors) = stats(form, &folder);
        assert_eq!(code, 1, "{form:?}: {errors}");
        assert!(errors.contains("no page of Ironrail's"), "{form:?}: {errors}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_file_for_prometheus_is_replaced_whole_and_not_by_an_error() {
    let folder = folder("textfile");
    stale(&folder);
    let file = folder.join("ironrail.prom");
    fs::write(&file, "old").unwrap();
    let before = File::open(&file).unwrap();
    let argument = format!("--prometheus={}", file.display());
    let (code, said, errors) = stats(&[&argument], &folder);
    assert_eq!((code, said.as_str()), (0, ""), "{errors}");
    assert_eq!(std::io::read_to_string(before).unwrap(), "old");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("# TYPE ironrail_messages_total counter"), "{text}");
    let (code, _, errors) = stats(&[&argument], &folder.join("none"));
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("reading the pages of counters: "), "{errors}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    let (code, _, errors) = stats(&["--prometheus=/no/such/folder/ironrail.prom"], &folder);
    assert_eq!(code, 1);
    assert!(errors.contains("/no/such/folder/ironrail.prom: "), "{errors}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn rows_that_no_page_has_are_reported() {
    let folder = folder("elsewhere");
    let number = std::process::id();
    page(&folder, number, &words(number.into(), 5));
    let path = folder.join(counters::file_name(fabric::user_id(), number, 0, 0));
    let lock = File::open(path).unwrap();
    lock.lock_shared().unwrap();
    let (code, said, errors) = stats(&["--json"], &folder);
    assert_eq!(code, 0, "{errors}");
    assert!(
        errors.contains(&format!("process {number} has 5 rows that are in no page")),
        "{errors}"
    );
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(json[0]["elsewhere"], 5, "{json}");
    fs::remove_dir_all(folder).unwrap();
}

/// Any user may make a file of any name there, and root reads those of all.
#[test]
fn the_name_of_another_users_file_gives_the_terminal_no_command() {
    let folder = folder("called");
    let name = "ironrail-stats.1.2.\u{9b}2J\u{1b}[2J";
    fs::write(folder.join(name), "no page").unwrap();
    for form in [&[][..], &["--json"], &["--prometheus"]] {
        let (_, said, errors) = stats(form, &folder);
        let is_command = |letter: char| letter.is_control() && letter != '\n';
        assert!(!(said + &errors).contains(is_command), "{form:?}");
    }
    let (_, said, _) = stats(&["--json"], &folder);
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(json[0]["path"].as_str().unwrap().ends_with(name), "{json}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn output_that_finds_no_room_is_a_failure() {
    let folder = folder("full");
    stale(&folder);
    let folder_of_pages = folder.to_str().unwrap();
    for arguments in [
        &["stats", "--folder", folder_of_pages][..],
        &["stats", "--prometheus", "--folder", folder_of_pages],
        &["env", "--plugin", "/opt/ironrail"],
        &["completions", "bash"],
        &["--help"],
        &["perf", "--help"],
        &["--version"],
        &["run", "-n", "1", "--", "sh", "-c", "echo here"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
        let full = File::options().write(true).open("/dev/full").unwrap();
        let Output { status, stderr, .. } =
            command.args(arguments).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let errors = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}: {errors}");
        let words = "writing to standard output: No space left on device";
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_address_in_use_is_no_wrong_command_line_and_one_that_others_reach_is() {
    let folder = folder("served");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, errors) = stats(&["--serve", &address], &folder);
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains(&format!("{address}: Address already in use")), "{errors}");
    let (code, _, errors) = stats(&["--serve", "192.0.2.1:0"], &folder);
    assert_eq!(code, 2, "{errors}");
    fs::remove_dir_all(folder).unwrap();
}
