//! `ironrail doctor` against machines with one thing wrong each, and a healthy one. The table is misconfigurations.md.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod bench;
#[path = "../support/built.rs"]
mod built;
mod described;
mod files;
mod ranks;
mod real;
mod table;

use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use harness::{Need, Test};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

use table::Row;

/// How a machine is made, and what that needs.
pub(crate) struct Case {
    name: &'static str,
    make: fn() -> Value,
    needs: fn() -> Need,
}

impl Case {
    const fn new(name: &'static str, make: fn() -> Value) -> Self {
        Self { name, make, needs: || Ok(()) }
    }

    const fn needing(name: &'static str, make: fn() -> Value, needs: fn() -> Need) -> Self {
        Self { name, make, needs }
    }
}

fn main() -> ExitCode {
    // A machine with a small soft limit alone is healthy: jobs raise it.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let cases: Vec<_> = real::CASES.iter().chain(files::CASES).chain(described::CASES).collect();
    let rows = table::rows();
    let named = |name: &str| cases.iter().find(|case| case.name == name);
    let mut tests: Vec<_> = rows
        .iter()
        .map(|row| {
            let row = row.clone();
            match named(&row.case) {
                Some(case) => {
                    let make = case.make;
                    Test::variant(is_named, &row.case.clone(), move || misconfigured(&row, make))
                        .needs((case.needs)())
                }
                None => Test::variant(is_named, &row.case.clone(), move || no_machine(&row)),
            }
        })
        .collect();
    tests.push(Test::new(there_is_a_line_for_each_machine_and_a_machine_for_each_line));
    tests.push(Test::new(a_healthy_machine_gives_no_warn_and_no_fail));
    tests.push(Test::new(the_exit_code_shows_a_fail_and_with_strict_a_warn));
    tests.push(Test::new(a_description_is_judged_as_the_machine_itself));
    tests.push(Test::new(settings_that_no_plugin_has_checked_are_counted_as_such));
    tests.push(Test::new(a_file_that_cannot_be_read_is_named_and_no_wrong_command_line));
    tests.push(Test::new(described::nics_of_a_provider_that_is_not_chosen_fail_nothing));
    tests.push(Test::new(described::a_pair_of_no_rank_of_its_file_is_refused));
    tests.push(Test::new(described::messages_between_machines_described_apart_are_not_asked_for));
    tests.push(Test::new(described::a_plugin_that_fails_is_left_for_the_next_one));
    tests
        .push(Test::new(described::a_provider_of_messages_alone_is_as_usable_as_the_protocol_says));
    tests.push(Test::new(a_wrong_command_line_is_code_2_and_checks_nothing));
    tests.push(Test::new(a_plugin_that_prints_bytes_that_are_no_text_is_still_heard));
    tests.push(Test::new(a_plugin_that_prints_for_ever_is_ended_like_a_silent_one));
    tests.push(Test::new(a_process_that_a_plugin_leaves_holds_up_nothing));
    tests.push(Test::new(a_plugin_that_hangs_does_not_outlive_the_command));
    tests.push(Test::new(info_hears_a_plugin_that_prints));
    let bare = Test::new(a_container_without_sys_has_interfaces_all_the_same);
    tests.push(bare.needs(bench::namespaces()));
    tests.push(Test::new(files::a_container_with_ipc_lock_needs_no_memlock));
    tests.push(Test::new(ranks::a_process_that_the_shell_leaves_holds_up_nothing));
    tests.push(Test::new(ranks::a_host_that_prints_for_ever_is_ended));
    tests.push(Test::new(ranks::a_secret_is_not_handed_on_in_another_form));
    tests.push(Test::new(ranks::equal_ranks_exchange_messages_and_give_no_warn));
    tests.push(Test::new(ranks::a_variable_that_one_host_lacks_comes_first));
    tests.push(Test::new(ranks::pairs_that_are_not_tried_come_after_the_ranks_own_findings));
    tests.push(Test::new(ranks::a_host_that_cannot_be_entered_is_named_with_the_shells_last_line));
    tests.push(Test::new(
        ranks::a_host_whose_address_is_not_known_does_not_get_it_as_the_rendezvous,
    ));
    tests.push(Test::new(ranks::lines_of_a_shell_around_the_answer_hide_nothing));
    tests.push(Test::new(ranks::pairs_have_the_settings_of_nccls_files_too));
    let many =
        ranks::ranks_start_where_the_limit_of_open_files_is_lower_than_they_take_and_may_be_raised;
    tests.push(Test::new(many));
    tests.push(Test::new(ranks::a_rank_that_dies_takes_no_others_result_with_it));
    tests.push(Test::new(ranks::a_lone_host_that_cannot_be_entered_is_the_only_finding));
    tests.push(Test::new(ranks::devices_exchange_messages_with_those_of_their_number));
    let broken = ranks::a_device_that_is_broken_on_one_rank_is_found_and_its_rank_named;
    tests.push(Test::new(broken));
    tests.push(Test::new(ranks::devices_of_different_networks_are_no_failure));
    tests.push(Test::new(real::each_device_moves_bytes_to_itself_and_one_that_does_not_is_named));
    tests.push(Test::new(real::devices_that_fail_do_not_take_longer_than_three_of_them));
    tests.push(Test::new(described::a_broken_rank_among_many_is_named));
    tests
        .push(Test::new(described::ranks_that_differ_keep_their_numbers_beside_one_without_answer));
    tests.push(Test::new(described::a_nic_with_another_number_on_one_rank_is_named));
    tests.push(Test::new(described::for_tables_without_networks_the_report_says_what_is_assumed));
    let apart = Test::new(ranks::isolated_ranks_are_a_pair_that_does_not_communicate);
    tests.push(apart.needs(bench::namespaces()));
    harness::run(tests)
}

/// The function that the table's tests are named after.
fn is_named() {}

/// The finding is there, at its level, with its words, and no finding before it is as bad.
fn misconfigured(row: &Row, make: fn() -> Value) {
    let report = make();
    let findings = report["findings"].as_array().expect("findings");
    let text = |finding: &Value| {
        let part = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
        [part("looked_at"), part("found"), part("do")].join(" ")
    };
    let is_it = |finding: &&Value| finding["check"] == row.finding && finding["level"] == row.level;
    let found = findings.iter().find(is_it);
    let found = found.unwrap_or_else(|| panic!("no {} {} in {report:#}", row.level, row.finding));
    for words in &row.says {
        assert!(text(found).contains(words), "no `{words}` in {found:#}");
    }
    assert!(found["do"].is_string(), "no cure in {found:#}");
    // A reader from the top meets the cause before its consequences.
    let bad = |finding: &&Value| finding["level"] == "FAIL" || finding["level"] == row.level;
    let first = findings.iter().find(bad).expect("one at least");
    assert_eq!(first["check"], row.finding, "before it stands {first:#}");
}

fn no_machine(row: &Row) {
    panic!("{} has no machine", row.case);
}

fn there_is_a_line_for_each_machine_and_a_machine_for_each_line() {
    let rows = table::rows();
    let cases = real::CASES.iter().chain(files::CASES).chain(described::CASES);
    for case in cases {
        assert!(rows.iter().any(|row| row.case == case.name), "{} stands on no line", case.name);
    }
    let made = |made: &str| rows.iter().filter(|row| row.made == made).count();
    assert_eq!(made("real"), real::CASES.len());
    assert_eq!(made("files"), files::CASES.len());
    assert_eq!(made("described"), described::CASES.len());
    assert_eq!(made("real") + made("files") + made("described"), rows.len());
}

fn a_healthy_machine_gives_no_warn_and_no_fail() {
    for network in [None, Some("ironrail"), Some("IRONRAIL")] {
        let mut command = bench::doctor();
        command.envs(network.map(|network| ("NCCL_NET", network)));
        let report = bench::report(command);
        let findings = report["findings"].as_array().unwrap();
        assert!(findings.len() > 10, "{report:#}");
        assert!(findings.iter().all(|finding| finding["level"] == "ok"), "{report:#}");
        assert!(findings.iter().any(|finding| finding["check"] == "transfer.loopback"));
    }
}

fn the_exit_code_shows_a_fail_and_with_strict_a_warn() {
    let code = |name: &str, value: &str, strict: bool| {
        let mut command = bench::doctor();
        command.env(name, value).args(strict.then_some("--strict"));
        command.output().unwrap().status.code()
    };
    assert_eq!(code("IRONRAIL_JOB", "a", true), Some(0));
    assert_eq!(code("OFI_NCCL_PROTOCOL", "RDMA", false), Some(0));
    assert_eq!(code("OFI_NCCL_PROTOCOL", "RDMA", true), Some(1));
    assert_eq!(code("IRONRAIL_MAX_RAILS", "77", false), Some(1));
}

fn settings_that_no_plugin_has_checked_are_counted_as_such() {
    let known = |change: &dyn Fn(&mut Command)| {
        let mut command = bench::doctor();
        command.env("IRONRAIL_CQ_ENTRIES", "5").env("NCCL_DEBUG", "WARN");
        change(&mut command);
        let report = bench::report(command);
        let findings = report["findings"].as_array().unwrap();
        let known = findings.iter().find(|finding| finding["check"] == "variables.known");
        known.map(|known| known["found"].as_str().unwrap().to_owned())
    };
    let without = known(&|command| _ = command.env_remove("NCCL_NET_PLUGIN"));
    let words = "1 set, no problem found; 1 of IRONRAIL_* not checked: that is done by the plugin, which was not started";
    assert_eq!(without.as_deref(), Some(words));
    assert_eq!(known(&|_| ()), None, "the plugin refuses 5");
    let right = known(&|command| _ = command.env("IRONRAIL_CQ_ENTRIES", "2048"));
    assert_eq!(right.as_deref(), Some("3 set, no problem found"));
}

fn a_file_that_cannot_be_read_is_named_and_no_wrong_command_line() {
    let folder = bench::scratch("unreadable");
    let (none, text) = (folder.join("none.json"), folder.join("text.json"));
    let empty = folder.join("empty.json");
    fs::write(&empty, "{\"ranks\": []}").unwrap();
    let _ = fs::remove_file(&none);
    fs::write(&text, "no description").unwrap();
    for (option, file) in
        [("--machine", &none), ("--machine", &text), ("--machine", &empty), ("--hosts", &none)]
    {
        let output = bench::doctor().arg(option).arg(file).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(file.to_str().unwrap()), "{errors}");
    }
    fs::write(&text, "localhost slot=4\n").unwrap();
    let output = bench::doctor().arg("--hosts").arg(&text).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("text.json, line 1: slot=4 is not slots=NUMBER"), "{errors}");
}

fn a_wrong_command_line_is_code_2_and_checks_nothing() {
    for wrong in [
        &["--peer", ""][..],
        &["--peer", "node2,"],
        &["--peer=-v"],
        &["--peer", "node2", "--rsh", " "],
        &["--machine", "node.json", "-n", "2"],
        &["--machine", "node.json", "--peer", "node2"],
        &["--machine", "node.json", "--net", "ofi"],
        &["-n", "0"],
        &["-n", "18446744073709551615"],
        &["--timeout", "nan"],
    ] {
        let output = bench::doctor().args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{wrong:?}");
    }
}

fn a_description_is_judged_as_the_machine_itself() {
    let file = bench::scratch("describe").join("node.json");
    let mut command = bench::doctor();
    command.env("FI_PROVIDER", "efa").arg("--describe").arg(&file);
    assert!(command.output().unwrap().status.success());
    let mut elsewhere = bench::doctor();
    elsewhere.arg("--machine").arg(&file);
    let report = bench::report(elsewhere);
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["check"] == "libfabric.filter"), "{report:#}");
}

/// The finding of this name about a stub's start.
fn stub_starts(name: &str, options: &[&str], more: &[&str], pipe: Option<&bench::Pipe>) -> Value {
    let folder = bench::stub(name, options);
    let mut command = bench::bounded();
    command.args(more);
    command.env("NCCL_NET_PLUGIN", name).env("LD_LIBRARY_PATH", folder);
    command.envs(pipe.map(|pipe| ("STUB_LEAVES", &pipe.path)));
    let report = bench::report(command);
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["check"] == "plugin.starts");
    found.unwrap_or_else(|| panic!("{report:#}")).clone()
}

fn a_plugin_that_prints_bytes_that_are_no_text_is_still_heard() {
    let starts = stub_starts("prints", &["-DPRINTS"], &[], None);
    assert_eq!(starts["level"], "ok", "{starts:#}");
}

fn a_plugin_that_prints_for_ever_is_ended_like_a_silent_one() {
    let starts = stub_starts("noisy", &["-DNOISY"], &["--timeout", "2"], None);
    assert_eq!(starts["level"], "FAIL", "{starts:#}");
    assert!(starts["found"].as_str().unwrap().contains("init has not returned"), "{starts:#}");
}

fn a_process_that_a_plugin_leaves_holds_up_nothing() {
    let pipe = bench::Pipe::new("leaves");
    let starts = stub_starts("leaves", &["-DLEAVES"], &[], Some(&pipe));
    assert_eq!(starts["level"], "ok", "{starts:#}");
}

fn a_container_without_sys_has_interfaces_all_the_same() {
    let report = bench::report(bench::apart("-nm", "ip link set lo up; mount -t tmpfs tmpfs /sys"));
    let findings = report["findings"].as_array().unwrap();
    let usable = findings.iter().find(|finding| finding["check"] == "nic.usable").unwrap();
    assert_eq!(usable["level"], "warn", "{report:#}");
    assert!(usable["found"].as_str().unwrap().contains("only lo is up"), "{report:#}");
}

/// Also where the command is killed.
fn a_plugin_that_hangs_does_not_outlive_the_command() {
    let folder = bench::stub("outlives", &["-DHANGS"]);
    let pipe = bench::scratch("pipes").join("outlives");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = bench::doctor();
    command.env("NCCL_NET_PLUGIN", "outlives").env("LD_LIBRARY_PATH", folder);
    command.env("STUB_HOLDS", &pipe).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    // Opened once the plugin hangs, and at its end where the plugin's process has ended.
    let (send, ended) = mpsc::channel();
    thread::spawn(move || {
        let mut pipe = fs::File::open(pipe).unwrap();
        send.send(()).unwrap();
        std::io::copy(&mut pipe, &mut std::io::sink()).unwrap();
        send.send(()).unwrap();
    });
    ended.recv_timeout(WAIT).expect("the plugin is started");
    child.kill().unwrap();
    child.wait().unwrap();
    ended.recv_timeout(WAIT).expect("its process ends");
}

/// Only a hang takes so long.
const WAIT: Duration = Duration::from_secs(60);

fn info_hears_a_plugin_that_prints() {
    let folder = bench::stub("informs", &["-DPRINTS"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["info", "--net"]).arg(folder.join("libnccl-net-informs.so"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("Stub"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
