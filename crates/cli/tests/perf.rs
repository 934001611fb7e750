//! `ironrail perf` as users run it, over a small plugin with switchable faults.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/ended.rs"]
mod ended;
#[path = "../../group/tests/support/mod.rs"]
mod support;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ended::ended;
use rustix::process::{Pid, Signal, kill_process};

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn perf(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.arg("perf").args(arguments.split_whitespace());
    command.arg("--net").arg(support::loopback(TEMPORARY));
    command
}

/// The rows of the table: cells by column.
fn rows(table: &str) -> Vec<Vec<&str>> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split_whitespace().collect()).collect()
}

/// The first line that the command itself writes; log lines of a plugin are in between.
fn first_cause(errors: &str) -> &str {
    errors.lines().find(|line| line.starts_with("ironrail: ")).unwrap_or_default()
}

const WRONG: usize = 8;
/// Only a hang takes this long.
const HANGS: Duration = Duration::from_secs(60);

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(TEMPORARY).join(format!("{name}-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

#[test]
fn an_all_reduce_of_four_processes_is_right_at_every_size() {
    let (code, table, errors) = ended(perf("all_reduce -r 4 -b 8 -e 1M -f 2 -n 3 -w 1 -c 2"));
    assert_eq!(code, 0, "{table}{errors}");
    let rows = rows(&table);
    assert_eq!(rows.len(), 18);
    assert!(rows.iter().all(|row| row.len() == 11 && row[WRONG] == "0"), "{table}");
    let sizes: Vec<usize> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    assert_eq!(sizes, (3..=20).map(|power| 1 << power).collect::<Vec<_>>());
    assert!(table.contains("# Out of bounds values : 0 OK\n"), "{table}");
    assert!(table.contains("# Rail 0 lo: "), "{table}");
    assert!(errors.is_empty(), "{errors}");
}

#[test]
fn a_file_may_have_a_name_that_is_no_text() {
    let mut name = scratch("results-").into_os_string();
    name.push(OsStr::from_bytes(b"\xff.json"));
    for benchmark in ["pingpong", "tune --runs 1"] {
        let mut command = perf(&format!("{benchmark} -b 8 -e 8 -n 2"));
        command.arg("--json").arg(&name);
        let (code, _, errors) = ended(command);
        assert_eq!(code, 0, "{benchmark}: {errors}");
        let text = fs::read_to_string(&name).unwrap();
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        let last = found["args"].as_array().unwrap().last().unwrap().as_str().unwrap();
        assert!(last.ends_with("\u{fffd}.json"), "{last}");
    }
    fs::remove_file(&name).unwrap();
}

/// The launcher has three files for each rank.
#[test]
fn ranks_start_where_the_limit_of_open_files_is_lower_than_they_take_and_may_be_raised() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 24 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_ironrail")]);
    command.args(["perf", "all_reduce", "-r", "12", "-b", "8", "-e", "8", "-n", "2", "--net"]);
    command.arg(support::loopback(TEMPORARY));
    let (code, table, errors) = ended(command);
    assert_eq!((code, rows(&table).len()), (0, 1), "{table}{errors}");
}

#[test]
fn output_of_a_plugin_hides_no_row() {
    for printed in [&b"caf\xe9\n"[..], b"caf"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
        command.args(["perf", "pingpong", "-b", "8", "-e", "16", "-n", "2", "--net"]);
        command.arg(support::reference(TEMPORARY));
        command.env("REFERENCE_PRINTS", OsStr::from_bytes(printed));
        let (code, table, errors) = ended(command);
        assert_eq!((code, rows(&table).len()), (0, 2), "{table}{errors}");
        assert!(table.contains("# Using network "), "{table}{errors}");
        assert!(errors.contains("rank 0 printed: caf"), "{errors}");
    }
}

#[test]
fn every_benchmark_runs_with_processes_and_with_threads() {
    for ranks in ["-r 2", "-r 2 --threads"] {
        for benchmark in [
            "all_reduce -d int32",
            "all_gather -d uint8",
            "reduce_scatter -d double",
            "sendrecv --window 4 --recv-factor 3",
            "sendrecv --one-way",
            "pingpong -d int64",
            "pingpong --ahead 8",
            "pingpong --ahead 4 --batch 1 --recv-factor 2",
            "pingpong --late 20",
        ] {
            let (code, table, errors) =
                ended(perf(&format!("{benchmark} {ranks} -b 1 -e 300K -f 7 -n 3 -c 2")));
            assert_eq!(code, 0, "{benchmark} {ranks}: {table}{errors}");
            assert!(
                rows(&table).iter().all(|row| row[WRONG] == "0"),
                "{benchmark} {ranks}: {table}"
            );
        }
    }
}

#[test]
fn messages_go_in_groups_where_the_plugin_takes_them() {
    let over = |plugin: &Path, arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
        command.arg("perf").args(arguments.split_whitespace()).arg("--net").arg(plugin);
        ended(command)
    };
    let sizes = "-b 8 -e 64K -f 8 -n 21 -w 3 -c 2";
    for benchmark in [
        "sendrecv --group 8 --window 32",
        "sendrecv --one-way --group 3 --window 7 --recv-factor 2",
        "pingpong --group 8",
        "pingpong --group 3 --ahead 2",
    ] {
        let (code, table, errors) =
            over(support::reference(TEMPORARY), &format!("{benchmark} {sizes}"));
        assert_eq!(code, 0, "{benchmark}: {table}{errors}");
        assert!(rows(&table).iter().all(|row| row[WRONG] == "0"), "{benchmark}: {table}");
    }
    let (code, _, errors) = over(support::loopback(TEMPORARY), "pingpong --group 2");
    assert_eq!(code, 1, "{errors}");
    assert!(
        errors.contains("takes 1 in one receive by table v12, and --group asks for 2"),
        "{errors}"
    );
    let (code, _, errors) = over(support::reference(TEMPORARY), "sendrecv --group 8 --window 7");
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("--window is at least --group"), "{errors}");
}

#[test]
fn a_wrong_size_in_a_group_is_found_out() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args("perf pingpong --group 4 -b 64 -e 64 -n 20".split_whitespace()).arg("--net");
    command.arg(support::reference(TEMPORARY)).env("REFERENCE_FAULT", "size-off-by-one");
    let (code, table, errors) = ended(command);
    assert_eq!(code, 1, "{table}{errors}");
}

#[test]
fn a_byte_behind_the_last_receive_is_found_out() {
    for benchmark in ["sendrecv", "sendrecv --one-way", "pingpong"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
        command.arg("perf").args(benchmark.split_whitespace());
        command.args("-b 4K -e 4K -n 2 --net".split_whitespace());
        command.arg(support::reference(TEMPORARY)).env("REFERENCE_FAULT", "spill");
        let (code, table, errors) = ended(command);
        assert_eq!(code, 1, "{benchmark}: {table}{errors}");
        assert!(rows(&table).iter().all(|row| row[WRONG] != "0"), "{benchmark}: {table}");
    }
}

#[test]
fn odd_rings_and_refused_requests_change_nothing() {
    for ranks in [1, 3, 5] {
        let mut command = perf(&format!("all_reduce -r {ranks} -b 4 -e 200K -f 3 -n 2"));
        command.env("LOOPBACK_REFUSE", "3");
        let (code, table, errors) = ended(command);
        assert_eq!(code, 0, "{table}{errors}");
    }
}

#[test]
fn halo_rounds_among_one_two_and_three_ranks_are_right() {
    for (halo, ranks) in ["halo", "fixed_halo"].iter().flat_map(|h| [1, 2, 3].map(|r| (h, r))) {
        let (code, table, errors) =
            ended(perf(&format!("{halo} -r {ranks} -b 4 -e 100K -f 25 -n 3 -w 1 -c 2")));
        assert_eq!(code, 0, "{halo}, {ranks}: {table}{errors}");
        let rows = rows(&table);
        assert_eq!(rows.len(), 4, "{table}");
        assert!(rows.iter().all(|row| row[WRONG] == "0"), "{table}");
    }
}

#[test]
fn a_plugin_that_flips_a_bit_is_found_out() {
    for benchmark in
        ["all_reduce", "all_gather", "reduce_scatter", "sendrecv", "pingpong", "halo", "fixed_halo"]
    {
        let mut command = perf(&format!("{benchmark} -r 2 -b 64K -e 64K -n 2 -w 1 -c 4"));
        command.env("LOOPBACK_CORRUPT", "2");
        let (code, table, errors) = ended(command);
        assert_eq!(code, 1, "{benchmark}: {table}{errors}");
        let wrong: u64 = rows(&table)[0][WRONG].parse().unwrap();
        assert!(wrong > 0, "{benchmark}: {table}");
        assert!(table.contains("FAILED"), "{table}");
    }
}

#[test]
fn without_checks_nothing_is_said_of_the_data() {
    let mut command = perf("all_reduce -b 64 -e 64 -n 2 -c 0");
    command.env("LOOPBACK_CORRUPT", "1");
    let (code, table, _) = ended(command);
    assert_eq!((code, rows(&table)[0][WRONG]), (0, "N/A"));
}

#[test]
fn a_rank_that_dies_takes_the_run_with_it_at_once() {
    let mark = scratch("died");
    let mut command = perf("all_reduce -r 3 -b 8 -e 1M -n 50 --timeout 600");
    command.env("LOOPBACK_DIE", format!("100:{}", mark.display()));
    let begun = Instant::now();
    let (code, table, errors) = ended(command);
    assert_eq!(code, 1, "{table}{errors}");
    assert!(mark.exists() && errors.contains("died of signal 9"), "{errors}");
    assert!(!table.contains(" OK"), "a table that is not whole is not OK: {table}");
    assert!(table.contains("# Sizes that ran       : ") && table.contains(" of 18\n"), "{table}");
    assert!(begun.elapsed() < HANGS, "{:?}", begun.elapsed());
    fs::remove_file(mark).unwrap();
}

#[test]
fn percentiles_of_a_stream_are_called_percentiles_of_gaps() {
    let (_, table, _) = ended(perf("sendrecv -b 8 -e 8 -n 2"));
    assert!(
        table.contains("# p50 and p99 are of the times from the end of one message"),
        "{table}"
    );
    let (_, table, _) = ended(perf("all_reduce -b 8 -e 8 -n 2"));
    assert!(!table.contains("# p50"), "{table}");
}

/// The plugin moves bytes only while their request is tested, and sockets do not hold the message.
#[test]
fn a_pingpong_tests_its_sends_while_it_waits_for_the_answer() {
    let (code, table, errors) = ended(perf("pingpong -b 64M -e 64M -n 2 -w 0 -c 0"));
    assert_eq!(code, 0, "{table}{errors}");
}

#[test]
fn the_head_has_the_iterations_of_the_sizes() {
    for (arguments, iterations) in [
        ("all_reduce -b 8 -e 16", "iters: 20 warmup iters: 5 "),
        ("all_reduce -b 8 -e 16 -n 3 -w 2", "iters: 3 warmup iters: 2 "),
        ("pingpong -b 2K -e 2M -f 1024 -c 0", "iters: 512 to 1000 warmup iters: 51 to 100 "),
    ] {
        let (code, table, errors) = ended(perf(arguments));
        assert_eq!(code, 0, "{table}{errors}");
        assert!(table.lines().next().unwrap().contains(iterations), "{table}");
    }
}

#[test]
fn a_rank_that_dies_after_the_last_size_is_not_okay() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["perf", "sendrecv", "-b", "8", "-e", "8", "-n", "2", "--json", "-", "--net"]);
    command.arg(support::reference(TEMPORARY)).env("REFERENCE_FAULT", "crash-closeSend");
    let (code, text, errors) = ended(command);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, json["results"].as_array().map(Vec::len)), (1, Some(1)), "{errors}");
    assert_eq!(json["out_of_bounds"]["okay"], false, "{errors}");
}

#[test]
fn calls_that_hang_are_given_up_within_their_bound_and_named_before_the_consequences() {
    let stands_still = |fault, names, ranks| {
        let mut command = perf(&format!("all_reduce {ranks} -b 1K -e 1K --timeout 3"));
        command.env(fault, "20");
        let begun = Instant::now();
        let (code, table, errors) = ended(command);
        assert_eq!(code, 1, "{fault} {ranks}: {table}{errors}");
        assert!(first_cause(&errors).contains(names), "{fault} {ranks}: {errors}");
        assert!(begun.elapsed() < HANGS, "{fault} {ranks}: {:?}", begun.elapsed());
    };
    thread::scope(|scope| {
        for ranks in ["-r 2", "-r 3 --threads"] {
            scope.spawn(move || stands_still("LOOPBACK_STALL", "waiting for", ranks));
            scope.spawn(move || stands_still("LOOPBACK_DEAF", "to connect", ranks));
        }
    });
}

/// With a limit of 12 the launcher cannot hold its own pipes. From which limit on four ranks run
/// depends on how many descriptors the test inherited.
#[test]
fn a_shortage_of_descriptors_is_named_and_no_rank_is_taken_for_two() {
    for limit in 12..=24 {
        let perf = perf("all_reduce -r 4 -b 8 -e 8 -n 3 --timeout 60");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {limit} && exec \"$@\""), "sh"]);
        command.arg(perf.get_program()).args(perf.get_args());
        let (code, table, errors) = ended(command);
        assert!(!errors.contains("two ranks"), "{limit}: {errors}");
        if code == 0 && limit > 12 {
            continue;
        }
        assert_eq!(code, 1, "{limit}: {table}{errors}");
        assert!(errors.contains("Too many open files"), "{limit}: {errors}");
    }
}

#[test]
fn the_cause_is_reported_before_its_effects_on_the_other_ranks() {
    for ranks in ["-r 3", "-r 3 --threads"] {
        for _ in 0..5 {
            let mut command = perf(&format!("all_reduce {ranks} -b 1K -e 1K"));
            command.env("LOOPBACK_ERROR", "9");
            let (code, _, errors) = ended(command);
            assert_eq!(code, 1);
            assert!(first_cause(&errors).contains("isend returned ncclSystemError"), "{errors}");
        }
    }
}

#[test]
fn ranks_that_are_threads_are_one_group_in_one_process() {
    let carried = |ranks: &str| {
        let (code, table, errors) = ended(perf(&format!("all_reduce {ranks} -b 64 -e 64 -n 3")));
        assert_eq!(code, 0, "{table}{errors}");
        table.lines().find(|line| line.starts_with("# Rail 0")).unwrap().to_owned()
    };
    assert_eq!(carried("-r 3 --threads"), carried("-r 3"));
}

#[test]
fn an_error_of_all_ranks_is_one_line_and_nothing_is_said_of_data() {
    for ranks in ["-r 4", "-r 4 --threads"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
        command.args(["perf", "all_reduce", "-e", "8"]).args(ranks.split_whitespace());
        command.arg("--net").arg(support::reference(TEMPORARY)).env("REFERENCE_DEVICES", "0");
        let (code, table, errors) = ended(command);
        assert_eq!(code, 1, "{ranks}: {errors}");
        let own = errors.lines().filter(|line| line.starts_with("ironrail: ")).count();
        assert_eq!(own, 1, "{ranks}: {errors}");
        assert_eq!(table, "# Sizes that ran       : 0 of 1\n", "{ranks}");
    }
}

#[test]
fn a_warning_of_several_ranks_is_shown_once() {
    for (warning, shown) in [("no setting", "no setting"), ("one\ntwo", "one\n    two")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
        command.args(["perf", "all_reduce", "-e", "8", "-n", "2", "-r", "4"]);
        command.arg("--net").arg(support::reference(TEMPORARY)).env("REFERENCE_WARNS", warning);
        let (code, table, errors) = ended(command);
        assert_eq!(code, 0, "{table}{errors}");
        assert_eq!(errors, format!("[WARN  plugin] {shown} (reference:0)\n"));
    }
}

#[test]
fn an_error_of_the_plugin_is_quoted() {
    let mut command = perf("sendrecv -b 1K -e 1K");
    command.env("LOOPBACK_ERROR", "9");
    let (code, _, errors) = ended(command);
    assert_eq!(code, 1);
    assert!(
        errors
            .contains("isend returned ncclSystemError; it said: loopback: an error was asked for"),
        "{errors}"
    );
}

#[test]
fn a_warning_of_a_call_that_has_succeeded_is_not_quoted_with_a_later_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["perf", "sendrecv", "-b", "8", "-e", "8"]);
    command.arg("--net").arg(support::reference(TEMPORARY)).env("REFERENCE_MUTE", "1");
    command.env("REFERENCE_WARNS", "no setting").env("REFERENCE_FAULT", "fail-isend");
    let (code, _, errors) = ended(command);
    assert_eq!(code, 1);
    assert!(errors.contains("isend returned ncclSystemError\n"), "{errors}");
}

#[test]
fn a_plugin_that_forgets_to_answer_breaks_the_contract() {
    let mut command = perf("sendrecv -b 1K -e 1K");
    command.env("LOOPBACK_FORGET", "1");
    let (code, _, errors) = ended(command);
    assert_eq!(code, 1);
    assert!(errors.contains("without writing its request"), "{errors}");
}

#[test]
fn json_takes_the_tables_place_or_goes_to_a_file() {
    let (code, text, errors) = ended(perf("all_reduce -b 8 -e 64 -n 2 --json"));
    assert_eq!(code, 0, "{errors}");
    check_json(&text, 4);
    let path = scratch("results");
    let (code, table, _) =
        ended(perf(&format!("pingpong -b 8 -e 16 -n 2 --json {}", path.display())));
    assert_eq!((code, rows(&table).len()), (0, 2));
    check_json(&fs::read_to_string(&path).unwrap(), 2);
    fs::remove_file(path).unwrap();
}

#[test]
fn in_json_warm_ups_are_numbers_by_size_and_for_all_sizes_where_these_have_the_same() {
    for (arguments, of_all, of_sizes) in [
        ("all_reduce -b 8 -e 16 -n 2", Some(5), [5, 5]),
        ("all_reduce -b 8 -e 16 -n 2 -w 3", Some(3), [3, 3]),
        ("pingpong -b 2K -e 2M -f 1024 -c 0", None, [100, 51]),
    ] {
        let (code, text, errors) = ended(perf(&format!("{arguments} --json")));
        assert_eq!(code, 0, "{errors}");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["config"]["warmup_iters"].as_u64(), of_all, "{arguments}");
        for (size, warmups) in of_sizes.into_iter().enumerate() {
            assert_eq!(json["results"][size]["warmup_iters"], warmups, "{arguments}");
        }
    }
}

fn check_json(text: &str, sizes: usize) {
    let json: serde_json::Value = serde_json::from_str(text).unwrap();
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), sizes);
    for result in results {
        let numbers = &result["out_of_place"];
        assert!(
            numbers["time"].as_f64().unwrap() > 0.0
                && numbers["p99"].as_f64() >= numbers["p50"].as_f64()
        );
        assert_eq!(numbers["nwrong"], 0);
        assert!(result["size"].as_u64() >= Some(8) && result["type"] == "float");
    }
    assert_eq!(json["format"], "ironrail-perf/1");
    assert_eq!(json["out_of_bounds"]["okay"], true);
    assert_eq!(json["network"]["table"], 12);
    assert_eq!(json["rails"][0]["percent"], 100.0);
}

/// What the plugin of the tests counts, a line per rank, in the file that `variable` names.
fn counted(variable: &str, benchmark: &str) -> String {
    counted_by(2, variable, benchmark)
}

fn counted_by(ranks: usize, variable: &str, benchmark: &str) -> String {
    // Tests run side by side.
    let file = scratch(&format!("{variable}-{ranks}"));
    let mut command = perf(benchmark);
    command.env(variable, &file);
    let (code, table, errors) = ended(command);
    assert_eq!(code, 0, "{table}{errors}");
    let counted = fs::read_to_string(&file).unwrap();
    fs::remove_file(file).unwrap();
    assert_eq!(counted.lines().count(), ranks, "one line per rank: {counted}");
    counted
}

/// The plugin of the tests counts outstanding irecvs and isends.
#[test]
fn a_ping_pong_has_one_receive_posted_unless_more_are_asked_for() {
    for (more, posted) in
        [("", 1), (" --ahead 1", 1), (" --ahead 8", 8), (" --ahead 8 --batch 2", 8)]
    {
        let most = counted("LOOPBACK_AHEAD", &format!("pingpong{more} -b 8 -e 8 -n 40 -c 0"));
        assert!(most.lines().all(|line| line.trim() == posted.to_string()), "{more}: {most}");
    }
}

/// A plugin may announce a receive at its first poll only, and over sockets isend copies: a peer would wait for both.
#[test]
fn a_long_send_is_posted_alone_and_after_the_receives_were_polled() {
    for benchmark in
        ["all_gather", "alltoall", "reduce_scatter", "all_reduce", "broadcast", "gather"]
    {
        let order =
            counted("LOOPBACK_ORDER", &format!("{benchmark} -b 256K -e 8M -f 32 -n 3 -c 0"));
        // The first messages may be posted in the poll that finds their connections open.
        let kept = |[early, together]: [u64; 2]| early <= 2 && together <= 1;
        assert!(order.lines().map(numbers).all(kept), "{benchmark}: {order}");
        assert!(order.lines().any(|line| numbers::<2>(line)[1] == 1), "no long sends: {order}");
    }
}

/// The counts of a line.
fn numbers<const N: usize>(line: &str) -> [u64; N] {
    let numbers: Vec<_> = line.split(' ').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

fn tests_counted(ranks: usize, benchmark: &str) -> Vec<[u64; 3]> {
    counted_by(ranks, "LOOPBACK_TESTS", benchmark).lines().map(numbers).collect()
}

/// A test that finds nothing is a poll of the network.
#[test]
fn a_rank_that_has_what_it_waits_for_does_not_test_for_more() {
    for benchmark in ["all_reduce", "all_gather", "alltoall"] {
        let counts = tests_counted(2, &format!("{benchmark} -b 8 -e 8 -n 300 -c 0"));
        for [sent, found, needless] in counts {
            // Every few idle polls everything is looked for.
            let few = needless * 4 < found;
            assert!(few, "{benchmark}: {sent} sent, {found} found, {needless} tests for more");
        }
    }
}

#[test]
fn of_short_blocks_four_ranks_send_two_messages_each() {
    for benchmark in ["all_gather", "alltoall", "all_reduce", "reduce_scatter"] {
        let sent = |count: u32| {
            let counts =
                tests_counted(4, &format!("{benchmark} -r 4 -b 64 -e 64 -w 1 -n {count} -c 0"));
            counts.into_iter().map(|[sent, ..]| sent).sum::<u64>()
        };
        let (few, many) = (sent(10), sent(110));
        let each = (many - few) as f64 / (100.0 * 4.0);
        assert!((2.0..2.1).contains(&each), "{benchmark}: {each}");
    }
}

#[test]
fn writes_per_message_are_those_that_the_plugin_counts() {
    for (benchmark, messages) in [
        ("pingpong -n 40 -w 7 -c 2", 2 * 49),
        ("pingpong -r 2 --threads -n 40 -w 7 -c 2", 2 * 49),
        ("sendrecv --one-way --window 4 -n 40 -w 6 -c 1", 40 + 6 + 4),
        ("sendrecv --window 4 -n 40 -c 0", 2 * (40 + 5)),
    ] {
        let (code, table, errors) = ended(perf(&format!("{benchmark} -b 8 -e 8 --writes")));
        assert_eq!(code, 0, "{table}{errors}");
        let line = table.lines().find(|line| line.starts_with("# Writes per message")).unwrap();
        let said = format!(": 1.000 by the plugin's counters, {messages} for {messages} messages");
        assert!(line.contains(&said), "{benchmark}: {line}");
        let (_, text, _) = ended(perf(&format!("{benchmark} -b 8 -e 8 --writes --json")));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["writes"][0]["posts"]["data"]["sends"], messages, "{text}");
    }
}

#[test]
fn files_of_counters_that_the_user_asks_for_stay_at_the_users_place() {
    let folder = scratch("counters");
    fs::create_dir(&folder).unwrap();
    let rails = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().any(|line| line.starts_with("# Rail "))
    };
    let pingpong = || perf("pingpong -b 8 -e 8 -n 2");
    assert!(!rails(pingpong().env("IRONRAIL_STATS_FILE", folder.join("rank"))));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "a file for each rank");
    assert!(rails(pingpong().env("IRONRAIL_STATS_FILE", "")));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn writes_of_a_plugin_that_counts_no_posts_are_unknown() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args("perf pingpong --writes -b 8 -e 8 -n 20".split_whitespace()).arg("--net");
    command.arg(support::reference(TEMPORARY));
    let (code, table, errors) = ended(command);
    assert_eq!(code, 0, "{table}{errors}");
    assert!(
        table.contains("# Writes per message   : unknown: the plugin writes no counters"),
        "{table}"
    );
    let (_, table, _) = ended(perf("pingpong -b 8 -e 8 -n 20"));
    assert!(!table.contains("Writes per message"), "it was not asked for: {table}");
}

#[test]
fn a_version_of_the_table_can_be_asked_for() {
    for version in 6..=12 {
        let (code, table, errors) =
            ended(perf(&format!("all_reduce -b 4K -e 4K -n 2 --abi {version}")));
        assert_eq!(code, 0, "{errors}");
        assert!(table.contains(&format!("Using network Loopback, table v{version},")), "{table}");
    }
    let (code, text, _) = ended(perf("all_reduce --version-table"));
    assert_eq!(code, 0);
    assert!(text.contains("tables   v12 v11 v10 v9 v8 v7 v6\ntaken    v12"), "{text}");
}

#[test]
fn a_wrong_command_line_is_code_2_and_a_plugin_that_is_not_there_code_1() {
    for wrong in [
        "all_reduce -b 8X",
        "all_reduce -b 64 -e 8",
        "pingpong -r 3",
        "all_reduce --abi 5",
        "all_reduce -d halves",
        "all_reduce -d complex64 -o min",
        "sendrecv --window 33",
        "pingpong --writes -b 8 -e 16",
        "all_reduce --root 2",
        "all_reduce -r 1025",
        "all_reduce -b 8 -e 64 -i 0",
        "all_reduce -b 0 -e 64",
        "all_reduce -b 1 -e 1000G -i 1",
        "all_reduce -e 8 -w 18446744073709551615",
        "all_reduce -e 8 -c 18446744073709551615",
        "broadcast --algorithm ring",
        "all_gather --tuning /no/such/file",
        "pingpong --in-place",
        "versus-raw -r 4",
        "versus-raw -b 9 -e 8",
        "versus-raw --threads",
        "versus-raw -e 1025M",
        "versus-raw --latency -e 1G --recv-factor 2",
        "versus-raw --window 7 --group 8",
        "pingpong -e 1025M",
        "sendrecv -e 1G --recv-factor 2",
        "nothing",
    ] {
        let (code, _, errors) = ended(perf(wrong));
        assert_eq!(code, 2, "{wrong}: {errors}");
        assert!(!errors.is_empty());
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["perf", "all_reduce", "--net", "/no/such/plugin.so"]);
    let (code, _, errors) = ended(command);
    assert_eq!(code, 1);
    assert_eq!(errors.lines().count(), 1, "one sentence, not one per rank: {errors}");
}

#[test]
fn a_size_that_no_memory_has_room_for_is_an_error_of_all_ranks() {
    for benchmark in ["all_reduce", "halo", "fixed_halo"] {
        let size = "-b 1048576G -e 1048576G";
        let (code, _, errors) = ended(perf(&format!("{benchmark} {size} -n 1 -w 0 -c 1")));
        assert_eq!(code, 1, "{benchmark}: {errors}");
        let words = "allocating a buffer: out of memory";
        assert!(first_cause(&errors).ends_with(words), "{benchmark}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{benchmark}: {errors}");
    }
}

#[test]
fn a_missing_cpu_is_named_with_the_available_ones_before_a_rank_starts() {
    for benchmark in ["all_reduce", "all_reduce --threads", "versus-raw", "tune"] {
        let (code, table, errors) = ended(perf(&format!("{benchmark} --cpus 1000")));
        assert_eq!((code, table.as_str()), (2, ""), "{benchmark}: {errors}");
        assert!(errors.contains("may not run on CPU 1000, but on "), "{benchmark}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{benchmark}: {errors}");
    }
}

#[test]
fn a_file_that_cannot_be_used_is_named_before_a_rank_starts() {
    let table = scratch("no-table");
    fs::write(&table, "2 bytes ring\n").unwrap();
    for (arguments, file) in [
        ("all_reduce --json", "/no/such/folder/file"),
        ("all_reduce --report", "/no/such/folder/file"),
        ("tune --json", "/no/such/folder/file"),
        ("versus-raw --json", "/no/such/folder/file"),
        ("all_reduce --tuning", "/no/such/folder/file"),
        ("all_reduce --tuning", table.to_str().unwrap()),
    ] {
        let (code, said, errors) = ended(perf(&format!("{arguments} {file}")));
        assert_eq!((code, said.as_str()), (1, ""), "{arguments}: {errors}");
        assert!(errors.contains(&format!("a file: {file}: ")), "{arguments}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{arguments}: {errors}");
    }
    fs::remove_file(table).unwrap();
}

#[test]
fn a_folder_for_temporary_files_that_is_not_there_is_named() {
    let mut command = perf("all_reduce -e 8");
    command.env("TMPDIR", "/no/such/folder");
    let (code, _, errors) = ended(command);
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("directory: /no/such/folder/ironrail-"), "{errors}");
}

#[test]
fn a_barrier_has_no_size_and_one_row() {
    let (code, table, errors) = ended(perf("barrier -n 3 -w 1"));
    assert_eq!(code, 0, "{table}{errors}");
    let rows = rows(&table);
    assert_eq!((rows.len(), rows[0][0]), (1, "0"), "{table}");
    assert!(table.contains(" minBytes 0 maxBytes 0 "), "{table}");
}

#[test]
fn ranks_are_stopped_and_continued_with_their_launcher() {
    let mut command = perf("all_reduce -r 2 -b 8 -e 8 -n 100000000");
    // Not at the terminal of the tests: some ignore TSTP there.
    let mut launcher = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut job: Vec<u32> = lines
        .filter_map(|line| line.split_once(" Pid ")?.1.split_whitespace().next()?.parse().ok())
        .take(2)
        .collect();
    job.push(launcher.id());
    for (signal, stopped) in [(Signal::TSTP, true), (Signal::CONT, false)] {
        kill_process(Pid::from_child(&launcher), signal).unwrap();
        let is_stopped = |process: &u32| {
            // proc_pid_stat(5): the state follows the name, which is in parentheses.
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        let deadline = Instant::now() + HANGS;
        while job.iter().any(|process| is_stopped(process) != stopped) {
            assert!(Instant::now() < deadline, "stopped is to be {stopped}");
            thread::sleep(Duration::from_millis(20));
        }
    }
    launcher.kill().unwrap();
    launcher.wait().unwrap();
}

#[test]
fn no_rank_outlives_its_launcher_and_nothing_is_left_of_it() {
    let mut command = perf("all_reduce -r 3 -b 8 -e 8 -n 100000000");
    let folder = scratch("temporary");
    fs::create_dir(&folder).unwrap();
    command.env("TMPDIR", &folder);
    let mut launcher = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap);
    let ranks: Vec<u32> = lines
        .filter_map(|line| line.split_once(" Pid ")?.1.split_whitespace().next()?.parse().ok())
        .take(3)
        .collect();
    let runs = |rank: &u32| {
        // A zombie of a former parent; it has no arguments any more.
        fs::read(format!("/proc/{rank}/cmdline")).is_ok_and(|arguments| !arguments.is_empty())
    };
    assert!(ranks.len() == 3 && ranks.iter().all(runs), "{ranks:?}");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let deadline = Instant::now() + HANGS;
    while ranks.iter().any(runs) {
        assert!(Instant::now() < deadline, "a rank outlived its launcher");
        thread::sleep(Duration::from_millis(20));
    }
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    fs::remove_dir_all(folder).unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn tune_prints_a_table_of_the_fastest_that_the_library_and_perf_take() {
    let path = scratch("tuned");
    let arguments = "tune -r 3 --runs 2 -b 64 -e 256K -f 16 -n 5 -w 1";
    let mut command = perf(arguments);
    command.arg("--json").arg(&path);
    let (code, table, errors) = ended(command);
    assert_eq!(code, 0, "{table}{errors}");
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let measured = json["measured"].as_array().unwrap();
    // Sizes of 64 B, 1 KiB, 16 KiB and 256 KiB, among 2 and 3 ranks; doubling takes powers of two only.
    assert_eq!(measured.len(), 2 * 4);
    for row in measured {
        let ways = if row["ranks"] == 2 { 4 } else { 3 };
        let times = row["us"].as_object().unwrap();
        assert_eq!(times.len(), ways, "{row}");
        assert!(times.values().all(|time| time.as_f64().unwrap() > 0.0), "{row}");
    }
    fs::write(&path, &table).unwrap();
    let mut command = perf("all_reduce -r 3 -b 8 -e 64K -f 8 -n 2");
    command.arg("--tuning").arg(&path);
    let (code, table, errors) = ended(command);
    assert_eq!(code, 0, "{table}{errors}");
    fs::remove_file(path).unwrap();
    for wrong in ["tune -r 1", "tune --algorithm mesh", "tune --in-place"] {
        let (code, _, errors) = ended(perf(wrong));
        assert_eq!(code, 2, "{wrong}: {errors}");
    }
}

#[test]
fn tune_shows_the_log_of_the_plugin_where_that_is_asked_for() {
    for (asked, shown) in [("-v", true), ("", false)] {
        let (code, _, errors) = ended(perf(&format!("tune {asked} --runs 1 -b 8 -e 8 -n 2 -w 0")));
        assert_eq!(code, 0, "{errors}");
        assert_eq!(errors.contains("[INFO "), shown, "{errors}");
    }
}

#[test]
fn an_option_that_a_command_refuses_is_not_in_its_help() {
    let both = ["--algorithm ring", "--tuning /f", "--in-place", "--report /f", "--writes"];
    let unchecked = ["--version-table", "-c 1", "--root 1"];
    for (command, others) in [("tune", &[][..]), ("versus-raw", &["--threads", "-o prod"])] {
        let (code, help, _) = ended(perf(&format!("{command} --help")));
        assert_eq!(code, 0);
        assert!(help.contains("--minbytes") && help.contains("--json"), "{help}");
        for option in both.iter().chain(&unchecked).chain(others) {
            let (code, _, errors) = ended(perf(&format!("{command} {option}")));
            assert_eq!(code, 2, "{command} {option}: {errors}");
            let name = option.split(' ').next().unwrap();
            let listed = |line: &str| line.split([' ', ',']).any(|word| word == name);
            let option_lines = |line: &&str| line.trim_start().starts_with('-');
            assert!(!help.lines().filter(option_lines).any(listed), "{command} lists {option}");
        }
    }
}
