//! `ironrail nccl` as users run it, with stand-ins for NCCL and the CUDA driver: the columns, the proof, and failures.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/built.rs"]
mod built;
#[path = "../../gpu/tests/support/mod.rs"]
mod cuda;
#[path = "../../group/tests/support/mod.rs"]
mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn ironrail() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built::library("ironrail", "libnccl_net_ironrail.so"))
}

/// The folder with the stand-in as `libnccl.so.2`.
fn nccl() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(TEMPORARY).join(format!("nccl-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let library = built::example("standin_nccl");
        fs::copy(library, folder.join("libnccl.so.2")).unwrap();
        folder
    })
}

/// The command over Ironrail and the stand-ins, small and with one rail over loopback.
fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.arg("nccl").args(arguments.split_whitespace()).arg("--nccl").arg(nccl());
    let mut folders = cuda::folder(TEMPORARY).as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.push(":");
        folders.push(others);
    }
    command.env("LD_LIBRARY_PATH", folders).env("IRONRAIL_RAILS", "127.0.0.1");
    for name in ["NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_DEBUG"] {
        command.env_remove(name);
    }
    command
}

fn over_ironrail(arguments: &str) -> Command {
    let mut command = command(arguments);
    command.arg("--net").arg(ironrail());
    command
}

struct Ended {
    code: i32,
    lines: String,
    errors: String,
    took: Duration,
}

fn ended(mut command: Command) -> Ended {
    let start = Instant::now();
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended {
        code: output.status.code().unwrap(),
        lines: text(output.stdout),
        errors: text(output.stderr),
        took: start.elapsed(),
    }
}

/// The cells of every row.
fn rows(lines: &str) -> Vec<Vec<&str>> {
    let rows = lines.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split_whitespace().collect()).collect()
}

const SMALL: &str = "-b 8 -e 64K -f 8 -n 3 -w 1";

#[test]
fn every_collective_has_nccl_tests_columns_and_nothing_wrong() {
    for test in ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"] {
        for kind in ["float", "uint8", "double"] {
            let ended = ended(over_ironrail(&format!("{test} {SMALL} -d {kind} --no-socket")));
            assert_eq!(ended.code, 0, "{test} {kind}: {}{}", ended.lines, ended.errors);
            let rows = rows(&ended.lines);
            assert_eq!(rows.len(), 5, "{}", ended.lines);
            for row in rows {
                assert_eq!(row.len(), 13, "{row:?}");
                assert_eq!((row[2], row[8]), (kind, "0"), "{row:?}");
                let in_place = if matches!(test, "alltoall" | "sendrecv") { "N/A" } else { "0" };
                assert_eq!(row[12], in_place, "{test} {row:?}");
            }
            assert!(ended.lines.contains("# Out of bounds values : 0 OK"), "{}", ended.lines);
        }
    }
}

#[test]
fn three_ranks_share_two_gpus() {
    let ended = ended(over_ironrail("all_reduce -b 1K -e 1K -n 2 -r 3 --no-socket"));
    assert_eq!(ended.code, 0, "{}", ended.errors);
    for (rank, device) in [(0, 0), (1, 1), (2, 0)] {
        let end = format!("device {device} [stand-in GPU {device}]");
        let line = ended.lines.lines().find(|line| line.contains(&format!("Rank  {rank} ")));
        assert!(line.is_some_and(|line| line.ends_with(&end)), "{}", ended.lines);
    }
}

#[test]
fn a_place_for_results_that_cannot_be_written_is_named_before_a_rank_starts() {
    let file = Path::new(TEMPORARY).join(format!("nccl-no-folder-{}", process::id()));
    fs::write(&file, "").unwrap();
    let mut command = over_ironrail("all_reduce -b 8 -e 8 -n 1");
    command.arg("--results").arg(file.join("results"));
    let ended = ended(command);
    fs::remove_file(&file).unwrap();
    assert_eq!(ended.code, 1, "{}", ended.lines);
    assert!(ended.lines.is_empty(), "{}", ended.lines);
    assert!(ended.errors.contains("making the folder of results: "), "{}", ended.errors);
    assert!(ended.errors.contains("nccl-no-folder"), "{}", ended.errors);
}

#[test]
fn networks_run_side_by_side_and_the_results_are_kept() {
    let results = Path::new(TEMPORARY).join(format!("nccl-results-{}", process::id()));
    let mut command = over_ironrail(&format!("all_reduce {SMALL}"));
    command.arg("--versus").arg(support::reference(TEMPORARY)).arg("--results").arg(&results);
    // A variable that is no text, and none of NCCL's.
    command.env("OTHERS", OsStr::from_bytes(b"\xff"));
    let ended = ended(command);
    assert_eq!(ended.code, 0, "{}{}", ended.lines, ended.errors);
    assert_eq!(rows(&ended.lines).len(), 15, "{}", ended.lines);
    let json = fs::read_to_string(results.join("nccl-all_reduce.json")).unwrap();
    let value: Value = serde_json::from_str(&json).unwrap();
    let names: Vec<_> = value["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["network"].as_str().unwrap())
        .collect();
    assert_eq!(names[..2], ["Ironrail", "Socket"]);
    assert_eq!((names.len(), value["runs"][0]["rows"].as_array().unwrap().len()), (3, 5));
    assert_eq!(value["runs"][0]["ready"]["nccl"], "2.27.7");
    let page = fs::read_to_string(results.join("nccl-all_reduce.md")).unwrap();
    assert!(page.contains("## Side by side") && page.contains("| 32768 |"), "{page}");
    assert!(page.contains("`IRONRAIL_RAILS`"), "{page}");
    assert!(page.contains("\nUsing Libfabric "), "the libfabric that carried the data: {page}");
    fs::remove_dir_all(&results).unwrap();
}

/// The command sets NCCL's variables itself, so a misspelt one of the user's does not matter.
#[test]
fn variables_that_the_user_set_for_nccl_do_not_take_the_plugin_away() {
    let mut command = over_ironrail("all_reduce -b 8 -e 8 -n 1 --no-socket");
    command.env("NCCL_NET", "Ironrial").env("NCCL_NET_PLUGIN", "none");
    let ended = ended(command);
    assert_eq!(ended.code, 0, "{}{}", ended.lines, ended.errors);
}

#[test]
fn a_plugin_that_is_missing_is_named() {
    let mut command = command("all_reduce -b 8 -e 8 -n 1");
    command.args(["--net", "no-such-plugin"]);
    let ended = ended(command);
    assert_eq!(ended.code, 1);
    assert!(ended.errors.contains("libnccl-net-no-such-plugin.so"), "{}", ended.errors);
}

/// A plugin that opens here and not in a rank, as when NCCL runs in another container.
#[test]
fn a_plugin_that_nccl_does_not_take_fails_the_run_in_nccls_words() {
    let mut command = over_ironrail("all_reduce -b 8 -e 8 -n 1 --no-socket --timeout 20");
    command.env("STANDIN_NCCL", "blind");
    let ended = ended(command);
    assert_eq!(ended.code, 1, "{}", ended.lines);
    let why = "NCCL's log has no line `Using network Ironrail`: no network was taken";
    assert!(ended.errors.contains(why), "{}", ended.errors);
    assert!(ended.errors.contains("Could not find"), "{}", ended.errors);
}

#[test]
fn a_run_around_the_network_is_no_proof() {
    let mut command = over_ironrail("all_reduce -b 8 -e 8 -n 1 --no-socket");
    command.env("STANDIN_NCCL", "p2p");
    let ended = ended(command);
    assert_eq!(ended.code, 1, "{}", ended.lines);
    assert!(ended.errors.contains("connections go via P2P/CUMEM"), "{}", ended.errors);
}

#[test]
fn wrong_data_is_counted_and_fails_the_run() {
    let mut command = over_ironrail("all_gather -b 1K -e 1K -n 1 --no-socket");
    command.env("STANDIN_NCCL", "wrong");
    let ended = ended(command);
    assert_eq!(ended.code, 1, "{}{}", ended.lines, ended.errors);
    let rows = rows(&ended.lines);
    assert_eq!((rows[0][8], rows[0][12]), ("1", "1"), "{}", ended.lines);
    assert!(ended.lines.contains("# Out of bounds values : 2 FAILED"), "{}", ended.lines);
}

#[test]
fn a_rank_that_dies_ends_the_run_and_is_named() {
    let mut command = over_ironrail("all_reduce -b 1K -e 1K --no-socket --timeout 30");
    command.env("STANDIN_NCCL", "die");
    let ended = ended(command);
    assert_eq!(ended.code, 1, "{}", ended.lines);
    assert!(ended.errors.contains("rank 1 died of signal 9"), "{}", ended.errors);
    assert!(ended.took < Duration::from_secs(25), "it waited for the dead: {:?}", ended.took);
}

#[test]
fn a_rank_that_never_joins_ends_the_run_in_time() {
    let mut command = over_ironrail("all_reduce -b 8 -e 8 --no-socket --timeout 2");
    command.env("STANDIN_NCCL", "hang");
    let ended = ended(command);
    assert_eq!(ended.code, 1, "{}", ended.lines);
    let why = "ncclCommInitRank has not returned for 2 s";
    assert!(ended.errors.contains(why), "{}", ended.errors);
    assert!(!ended.lines.contains("Out of bounds"), "nothing was checked: {}", ended.lines);
}

#[test]
fn a_collective_and_an_abort_that_do_not_return_end_the_run_in_time() {
    for word in ["stick", "stick-abort"] {
        let mut command = over_ironrail("all_reduce -b 8 -e 8 --no-socket --timeout 1");
        command.env("STANDIN_NCCL", word);
        let ended = ended(command);
        assert_eq!(ended.code, 1, "{word}: {}", ended.lines);
        let why = "a collective, or ncclCommAbort after it, has not returned for 2 s";
        assert!(ended.errors.contains(why), "{word}: {}", ended.errors);
    }
}

#[test]
fn without_a_driver_one_sentence_says_so_and_nothing_else() {
    let mut stub = cuda::folder(TEMPORARY).as_os_str().to_owned();
    stub.push(":/no-such-folder");
    let stub = stub.to_str().unwrap();
    let nothing = "no CUDA driver (libcuda.so.1: cannot open shared object file";
    let toolkits = "cuInit answered 34 (a stub of the CUDA toolkit's";
    for (folders, mode, why) in [("", "", nothing), (stub, "stub", toolkits)] {
        let mut command = over_ironrail("all_reduce -b 8 -e 8");
        command.env("LD_LIBRARY_PATH", folders).env("STANDIN_CUDA", mode);
        let ended = ended(command);
        assert_eq!((ended.code, ended.lines.as_str()), (1, ""), "{}", ended.errors);
        assert_eq!(ended.errors.lines().count(), 1, "{}", ended.errors);
        assert!(ended.errors.contains(why), "{}", ended.errors);
        assert!(ended.errors.contains("`nvidia-smi` lists"), "{}", ended.errors);
    }
}

#[test]
fn without_nccl_a_sentence_says_so() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    let nowhere = Path::new(TEMPORARY).join("there-is-no-such-folder");
    command.args(["nccl", "all_reduce", "-e", "8", "--no-socket", "--nccl"]).arg(&nowhere);
    command.arg("--net").arg(ironrail()).env("IRONRAIL_RAILS", "127.0.0.1");
    command.env("LD_LIBRARY_PATH", cuda::folder(TEMPORARY));
    let ended = ended(command);
    assert_eq!((ended.code, ended.lines.as_str()), (1, ""));
    assert!(ended.errors.contains("NCCL cannot be used: "), "{}", ended.errors);
    assert_eq!(ended.errors.lines().count(), 1, "{}", ended.errors);
}

#[test]
fn a_libfabric_that_is_given_is_the_one_that_is_opened() {
    let folder = Path::new(TEMPORARY).join(format!("no-libfabric-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut command = over_ironrail("all_reduce -b 8 -e 8 -n 1 --no-socket");
    command.arg("--libfabric").arg(&folder);
    let none = ended(command);
    assert_eq!(none.code, 2, "{}", none.errors);
    assert!(none.errors.contains("has no libfabric.so.1"), "{}", none.errors);
    // The file is no library: the plugin reports that it tried to open this one.
    let file = folder.join("libfabric.so.1");
    fs::write(&file, "nothing").unwrap();
    let mut command = over_ironrail("all_reduce -b 8 -e 8 -n 1 --no-socket --timeout 20");
    command.arg("--libfabric").arg(&folder);
    let broken = ended(command);
    assert_eq!(broken.code, 1, "{}", broken.lines);
    assert!(broken.errors.contains(file.to_str().unwrap()), "{}", broken.errors);
    fs::remove_dir_all(&folder).unwrap();
}

// ---- scripts/nccl-tests ----------------------------------------------------------------------------------------

/// A folder with a launcher and a test that print and log what real ones would, by FAKE: `well`, `socket` (NCCL fell back) or `wrong`.
fn fakes() -> PathBuf {
    use std::os::unix::fs::PermissionsExt;

    let folder = Path::new(TEMPORARY).join(format!(
        "nccl-tests-{}-{:?}",
        process::id(),
        std::thread::current().id()
    ));
    fs::create_dir_all(&folder).unwrap();
    let launcher = r##"#!/usr/bin/env bash
# Runs every context of `-np 1 PROGRAM… : -np 1 PROGRAM…` at once.
words=()
for word in "$@" :; do
    if [[ $word == : ]]; then "${words[@]:2}" & words=(); else words+=("$word"); fi
done
wait
"##;
    let test = r##"#!/usr/bin/env bash
[[ $FAKE != socket ]] || NCCL_NET=Socket
printf '%s\n' "h:1:1 [0] NCCL INFO Using network $NCCL_NET" "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/$NCCL_NET/0" >"$NCCL_DEBUG_FILE"
[[ $NCCL_HOSTID == ironrail-0 ]] || exit 0
printf 'libfabric=%s arguments=%s\n' "$IRONRAIL_LIBFABRIC" "$*"
[[ $FAKE == wrong ]] && echo "# Out of bounds values : 3 FAILED" || echo "# Out of bounds values : 0 OK"
"##;
    for (name, text) in [("mpirun", launcher), ("all_reduce_perf_mpi", test)] {
        fs::write(folder.join(name), text).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

fn script(fake: &str) -> Ended {
    let folder = fakes();
    fs::write(folder.join("libfabric.so.1"), "").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(root.join("scripts/nccl-tests"));
    command.arg(&folder).arg("--net").arg(ironrail()).args([
        "--tests",
        "all_reduce",
        "--libfabric",
    ]);
    command.arg(&folder).args(["--", "-b", "8"]);
    command.env("FAKE", fake).env("MPIRUN", folder.join("mpirun"));
    let ended = ended(command);
    fs::remove_dir_all(&folder).unwrap();
    ended
}

#[test]
fn the_script_for_nccl_tests_runs_both_networks_and_proves_them() {
    let ended = script("well");
    assert_eq!(ended.code, 0, "{}{}", ended.lines, ended.errors);
    assert_eq!(ended.lines.matches("# Out of bounds values : 0 OK").count(), 2, "{}", ended.lines);
    assert!(ended.lines.contains("/libfabric.so.1 arguments=-b 8"), "{}", ended.lines);
}

#[test]
fn the_script_for_nccl_tests_fails_where_nccl_took_sockets() {
    let ended = script("socket");
    assert_eq!(ended.code, 1, "{}", ended.lines);
    let why = "does not prove that NCCL used network Ironrail";
    assert!(ended.errors.contains(why), "{}", ended.errors);
}

#[test]
fn the_script_for_nccl_tests_fails_on_wrong_data() {
    let ended = script("wrong");
    assert_eq!(ended.code, 1, "{}", ended.lines);
    assert!(ended.errors.contains("does not end with 0 values out of bounds"), "{}", ended.errors);
}
