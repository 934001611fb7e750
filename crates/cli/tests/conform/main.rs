//! `ironrail conform` as users run it: correct plugins pass, ours among them, and each broken one is detected by name.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod broken;
#[path = "../support/built.rs"]
mod built;
#[path = "../../../gpu/tests/support/mod.rs"]
mod cuda;
#[path = "../support/ended.rs"]
mod ended;
mod faults;
pub(crate) mod ours;
#[path = "../../../group/tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ended::ended;
use serde_json::Value;

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
/// Only a hang takes this long.
const HANGS: Duration = Duration::from_secs(30);

fn reference() -> &'static Path {
    support::reference(TEMPORARY)
}

/// Adds two GPUs to this command: the driver without a GPU precedes the machine's own.
fn give_gpus(command: &mut Command) {
    let mut folders = cuda::folder(TEMPORARY).as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.push(":");
        folders.push(others);
    }
    command.env("LD_LIBRARY_PATH", folders);
}

fn conform(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.arg("conform").args(arguments.split_whitespace());
    command
}

/// For behaviours that pass, of the plugin that is named next: one that takes so long hangs, on however busy a machine.
fn passing(arguments: &str) -> Command {
    conform(&format!("--timeout 600 {arguments} --net"))
}

/// The ids in lines that begin with this word.
fn ids(lines: &str, word: &str) -> BTreeSet<String> {
    lines
        .lines()
        .filter(|line| line.starts_with(word))
        .map(|line| line.split_whitespace().nth(2).unwrap().trim_end_matches(':').to_owned())
        .collect()
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

// ---- correct plugins -------------------------------------------------------------------------------------------

/// Behaviours that need gigabytes, a second device, global regions, a plugin that refuses, or one that supports GPU memory.
const LACKING: [&str; 7] = [
    "properties-ports-differ",
    "properties-global-regions-are-global",
    "register-two-gib",
    "message-of-a-gib",
    "request-null-when-not-now",
    "sizes-are-int-up-to-v8",
    "ll128-flag-comes-after-its-data",
];

/// Behaviours that need a GPU and a plugin that supports its memory, and one that needs a plugin that does not.
const OF_GPUS: [&str; 8] = [
    "gpu-memory-registers",
    "gpu-dmabuf-registers",
    "gpu-memory-carries-messages",
    "gpu-memory-in-groups",
    "gpu-flush-makes-visible",
    "gpu-buffer-on-many-comms",
    "gpu-address-used-again",
    "gpu-deregister-in-flight",
];
const OF_NO_GPU: &str = "gpu-memory-is-refused";

#[test]
fn the_reference_passes_and_skips_only_what_it_lacks() {
    let mut command = passing("--jobs 2 --idle 2");
    command.arg(reference());
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 0, "{lines}{errors}");
    assert!(lines.contains("\npass  v12  idle-peer-is-alive: idle for 2 s\n"), "{lines}");
    assert_eq!(ids(&lines, "skip"), set(&[&LACKING[..], &OF_GPUS].concat()), "{lines}");
    assert!(ids(&lines, "pass").contains(OF_NO_GPU), "{lines}");
    assert!(lines.trim_end().ends_with("158 passed, 0 failed, 15 skipped"), "{lines}");
}

#[test]
fn output_of_a_plugin_hides_no_verdict() {
    for printed in [&b"caf\xe9\n"[..], b"caf\xe9", b"half a line"] {
        let mut command = passing("--only message-of-no-bytes,init-once-per-communicator");
        command.arg(reference()).env("REFERENCE_PRINTS", OsStr::from_bytes(printed));
        let (code, lines, errors) = ended(command);
        assert_eq!(code, 0, "{printed:?}: {lines}{errors}");
        assert!(lines.ends_with("2 passed, 0 failed, 0 skipped\n"), "{printed:?}: {lines}");
    }
}

/// The processes that this one has started, by proc_pid_stat(5): the parent is the second word behind the name, which is in parentheses.
fn children(parent: u32) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let is_child = |process: &PathBuf| {
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        let words = stat.rsplit_once(") ").map(|(_, words)| words.split(' '));
        words.and_then(|mut words| words.nth(1)) == Some(&*parent.to_string())
    };
    processes.filter(is_child).collect()
}

#[test]
fn no_worker_outlives_conform() {
    let mut command = conform("--idle 600 --only idle-peer-is-alive --net");
    let mut conform = command.arg(reference()).stdout(Stdio::null()).spawn().unwrap();
    let since = Instant::now();
    let mut workers = Vec::new();
    while workers.len() < 2 {
        assert!(since.elapsed() < HANGS, "there are no workers");
        workers = children(conform.id());
    }
    conform.kill().unwrap();
    conform.wait().unwrap();
    let since = Instant::now();
    // A zombie has no arguments any more.
    let runs = |worker: &PathBuf| fs::read(worker.join("cmdline")).is_ok_and(|all| !all.is_empty());
    while workers.iter().any(runs) {
        assert!(since.elapsed() < HANGS, "a worker waits for ten minutes, and more");
        thread::yield_now();
    }
}

/// With each table the reference passes the behaviours about GPUs, with dmabufs and without.
#[test]
fn the_reference_passes_with_gpus_and_skips_nothing_about_them() {
    for (takes, table) in [("1", 12), ("1", 8), ("1", 6), ("address", 12)] {
        let mut chosen = set(&OF_GPUS);
        if table < 9 {
            chosen.remove("gpu-memory-in-groups");
        }
        if takes == "address" {
            chosen.remove("gpu-dmabuf-registers");
        }
        let only = chosen.iter().cloned().collect::<Vec<_>>().join(",");
        let mut command = passing(&format!("--jobs 2 --no-skip --abi {table} --only {only}"));
        command.arg(reference()).env("REFERENCE_GPU", takes);
        give_gpus(&mut command);
        let (code, lines, errors) = ended(command);
        assert_eq!(code, 0, "{takes} {table}: {lines}{errors}");
        assert_eq!(ids(&lines, "pass"), chosen, "{lines}");
    }
}

/// With two devices, gigabytes of memory and GPU memory: the reference passes what it skips otherwise.
#[test]
fn the_reference_passes_what_it_lacks_by_itself() {
    let only = "properties-ports-differ,every-device-connects,ll128-flag-comes-after-its-data,register-two-gib";
    let mut command = passing(&format!("--no-skip --large --only {only}"));
    command.arg(reference()).env("REFERENCE_DEVICES", "2").env("REFERENCE_GPU", "1");
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 0, "{lines}{errors}");
    assert!(lines.ends_with("4 passed, 0 failed, 0 skipped\n"), "{lines}");
}

#[test]
fn a_skip_about_gpus_says_what_is_missing() {
    let held = |id: &str, words: &str, takes: Option<&str>| {
        let mut command = conform(&format!("--only {id} --net"));
        command.arg(reference()).env("STANDIN_CUDA", words);
        give_gpus(&mut command);
        if let Some(takes) = takes {
            command.env("REFERENCE_GPU", takes);
        }
        let (code, lines, errors) = ended(command);
        assert_eq!(code, 0, "{lines}{errors}");
        let first = lines.lines().next().unwrap().to_owned();
        first.split_once(": ").unwrap().1.to_owned()
    };
    let why = held("gpu-memory-registers", "no-init", Some("1"));
    assert_eq!(why, "no GPU: the CUDA driver does not start: cuInit answered 100 (no device)");
    let why = held("gpu-memory-registers", "no-devices", Some("1"));
    assert_eq!(why, "no GPU: the CUDA driver has no device");
    assert_eq!(held("gpu-memory-registers", "", None), "ptrSupport has no CUDA bit");
    assert_eq!(held("gpu-dmabuf-registers", "", Some("address")), "ptrSupport has no DMABUF bit");
    let why = held("gpu-dmabuf-registers", "no-dmabuf", Some("1"));
    assert_eq!(
        why,
        "there is no dmabuf: cuMemGetHandleForAddressRange answered 801 (not supported)"
    );
    assert_eq!(held("gpu-memory-is-refused", "", Some("1")), "ptrSupport has the CUDA bit");
}

#[test]
fn the_reference_passes_by_its_v8_table_too() {
    let mut command = passing("--jobs 2 --idle 2 --abi 8");
    command.arg(reference());
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 0, "{lines}{errors}");
    assert!(ids(&lines, "pass").contains("sizes-are-int-up-to-v8"), "{lines}");
    assert!(ids(&lines, "skip").contains("group-of-every-size"), "{lines}");
}

#[test]
fn init_is_called_once_in_a_process_up_to_v10() {
    let only =
        "connect-does-not-block,both-directions-from-one-thread,threads-of-four-communicators";
    for (arguments, table) in [("", 10), ("--threads ", 10), ("--threads ", 6)] {
        let mut command = passing(&format!("{arguments}--abi {table} --only {only}"));
        command.arg(reference()).env("REFERENCE_ONE_INIT", "1");
        let (code, lines, errors) = ended(command);
        assert_eq!(code, 0, "{arguments}{table}: {lines}{errors}");
        assert!(lines.ends_with("3 passed, 0 failed, 0 skipped\n"), "{lines}");
    }
}

#[test]
fn the_end_of_a_process_is_not_tested_where_threads_stand_for_processes() {
    let mut command = conform("--threads --only exit-right-after-the-last-send --net");
    command.arg(reference());
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 0, "{lines}{errors}");
    assert!(lines.contains("exit-right-after-the-last-send: by --threads both sides"), "{lines}");
}

#[test]
fn a_plugin_without_groups_passes() {
    let mut command = passing("--jobs 2 --idle 2");
    command.arg(support::loopback(TEMPORARY));
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 0, "{lines}{errors}");
    assert!(lines.contains("group-of-every-size: maxRecvs is 1: no grouped receives"), "{lines}");
}

#[test]
fn all_tables_are_held_one_after_the_other() {
    let few = "--only properties-write-every-field,properties-stay-the-same,message-of-no-bytes,";
    let more =
        "size-is-reported,isend-overwrites-an-old-request,load-table-is-data,unload-and-reload";
    let mut command = passing(&format!("--abi all {few}{more}"));
    command.arg(reference());
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 0, "{lines}{errors}");
    assert!(lines.ends_with("49 passed, 0 failed, 0 skipped\n"), "{lines}");
    let tables: Vec<&str> =
        lines.lines().filter_map(|line| line.split_whitespace().nth(1)).step_by(7).collect();
    assert_eq!(tables[..7], ["v12", "v11", "v10", "v9", "v8", "v7", "v6"]);
}

// ---- the command -----------------------------------------------------------------------------------------------

#[test]
fn a_failure_says_what_was_seen_what_nccl_expects_and_where() {
    let mut command = conform("--only size-is-reported --net");
    command.arg(reference()).env("REFERENCE_FAULT", "size-off-by-one");
    let (code, lines, _) = ended(command);
    assert_eq!(code, 1);
    let line = lines.lines().next().unwrap();
    assert!(line.starts_with("FAIL  v12  size-is-reported: process "), "{line}");
    assert!(line.contains("test says that message 0 has 1 bytes, it has 0"), "{line}");
    assert!(
        line.contains("[NCCL expects: test reports the size of the received message"),
        "{line}"
    );
    assert!(line.ends_with("NCCL src/transport/net.cc:1617-1620]"), "{line}");
    assert!(lines.ends_with("\n0 passed, 1 failed, 0 skipped\n"), "{lines}");
}

#[test]
fn behaviours_that_hang_are_ended_within_their_bound() {
    let begun = Instant::now();
    let mut command = conform("--only listener-never-connected --timeout 1 --net");
    command.arg(reference()).env("REFERENCE_FAULT", "hang");
    let (code, lines, _) = ended(command);
    assert_eq!(code, 1);
    assert!(lines.contains("no end within 1 s, the last stage: load and init"), "{lines}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[test]
fn json_takes_the_lines_place_or_goes_to_a_file() {
    let chosen = "--only name-is-a-word,size-is-reported,gpu-memory-registers";
    let mut command = conform(&format!("{chosen} --json --net"));
    command.arg(reference()).env("REFERENCE_FAULT", "size-off-by-one");
    let (code, text, _) = ended(command);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["format"]), (1, &Value::from("ironrail-conform/1")));
    assert_eq!(
        (&json["passed"], &json["failed"], &json["skipped"]),
        (&1.into(), &1.into(), &1.into())
    );
    assert_eq!(json["plugin"]["network"], "Reference");
    let results = json["results"].as_array().unwrap();
    let failed = results.iter().find(|result| result["result"] == "fail").unwrap();
    assert_eq!((&failed["id"], &failed["abi"]), (&"size-is-reported".into(), &12.into()));
    assert!(failed["reason"].as_str().unwrap().contains("bytes"), "{failed}");
    assert!(failed["seconds"].as_f64().unwrap() > 0.0 && failed["source"].is_string());

    let path = Path::new(TEMPORARY).join(format!("conform-{}.json", process::id()));
    let mut command = conform("--only name-is-a-word --json");
    command.arg(&path).arg("--net").arg(reference());
    let (code, lines, _) = ended(command);
    assert_eq!(
        (code, lines.as_str()),
        (0, "pass  v12  name-is-a-word\n1 passed, 0 failed, 0 skipped\n")
    );
    let json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(json["results"][0]["result"], "pass");
    fs::remove_file(path).unwrap();
}

#[test]
fn a_file_for_results_that_cannot_be_written_is_named_before_a_behaviour_runs() {
    let mut command = conform("--only name-is-a-word --json /no/such/folder/file --net");
    command.arg(reference());
    let (code, lines, errors) = ended(command);
    assert_eq!((code, lines.as_str()), (1, ""), "{errors}");
    assert!(errors.contains("a file: /no/such/folder/file: "), "{errors}");
}

#[test]
fn a_skip_says_why_and_can_be_made_a_failure() {
    let only = "--only gpu-memory-registers,name-is-a-word --net";
    let mut command = conform(only);
    command.arg(reference());
    give_gpus(&mut command);
    let (code, lines, _) = ended(command);
    assert_eq!(code, 0);
    assert!(
        lines.contains("skip  v12  gpu-memory-registers: ptrSupport has no CUDA bit"),
        "{lines}"
    );
    let mut command = conform(&format!("--no-skip {only}"));
    command.arg(reference());
    let (code, lines, _) = ended(command);
    assert_eq!(code, 1);
    assert!(lines.contains("FAIL  v12  gpu-memory-registers: not exercised: "), "{lines}");
}

#[test]
fn behaviours_are_chosen_by_id() {
    let mut command =
        conform("--only name-is-a-word,devices-are-counted --except name-is-a-word --net");
    command.arg(reference());
    let (code, lines, _) = ended(command);
    assert_eq!((code, ids(&lines, "pass")), (0, set(&["devices-are-counted"])));
    let (code, lines, _) = ended(conform("--list"));
    assert_eq!(code, 0);
    assert!(lines.lines().count() >= 60, "{lines}");
    assert!(lines.contains("\nrequest-null-when-not-now: isend that cannot post"), "{lines}");
}

#[test]
fn a_wrong_command_line_is_code_2_and_a_plugin_that_is_not_there_code_1() {
    for wrong in [
        "--net x --abi 5",
        "--net x --abi old",
        "--net x --only nothing",
        "--net x --only name-is-a-word --except name-is-a-word",
        "--net x --threads --only death-of-the-sender-is-reported",
        "--net x --jobs 0",
        "--net x --timeout 0",
        "--net x --timeout 18446744073709551615",
        "--net x --death 18446744073709551615",
        "--net x --idle 0",
        "--nothing",
    ] {
        let (code, _, errors) = ended(conform(wrong));
        assert_eq!(code, 2, "{wrong}: {errors}");
        assert!(!errors.is_empty());
    }
    let (code, _, errors) = ended(conform("--net /no/such/plugin.so"));
    assert_eq!(code, 1);
    assert!(errors.contains("/no/such/plugin.so") && errors.lines().count() == 1, "{errors}");
}

#[test]
fn the_page_of_documentation_is_the_table() {
    let (code, page, _) = ended(conform("--markdown"));
    assert_eq!(code, 0);
    let page = page + &broken::page();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conform.md");
    let made = Path::new(TEMPORARY).join("conform.md");
    let written = fs::read_to_string(&path).unwrap_or_default();
    fs::write(&made, &page).unwrap();
    assert!(written == page, "docs/conform.md is old: cp {} {}", made.display(), path.display());
}
