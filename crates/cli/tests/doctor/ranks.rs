//! Several ranks at once: equal, different, unreachable, and isolated from each other.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::bench::{Pipe, after, bounded, doctor, loopback, report, scratch};

pub(crate) fn equal_ranks_exchange_messages_and_give_no_warn() {
    let mut command = doctor();
    command.args(["-n", "3"]);
    let report = report(command);
    assert!(all(&report).iter().all(|finding| finding["level"] == "ok"), "{report:#}");
    let messages = found(&report, "rank.transfer");
    assert!(messages.starts_with("6 messages among 3 ranks by device 0 ("), "{report:#}");
    assert!(messages.ends_with("), all right"), "{report:#}");
    assert!(found(&report, "rank.differs").contains("the same on 3 ranks"), "{report:#}");
}

pub(crate) fn a_variable_that_one_host_lacks_comes_first() {
    let shell = shell("other-variable", "NCCL_BUFFSIZE=7 exec sh -c \"$*\"");
    let mut command = doctor();
    command.args(["--peer", HERE, "--rsh"]).arg(shell);
    let report = report(command);
    let first = &all(&report)[0];
    assert_eq!((&first["check"], &first["level"]), (&"rank.differs".into(), &"warn".into()));
    assert!(
        found(&report, "rank.differs")
            .contains("NCCL_BUFFSIZE is unset on most ranks, and 7 on rank 1")
    );
    assert!(found(&report, "rank.transfer").contains("2 messages between 2 ranks"), "{report:#}");
}

pub(crate) fn a_host_that_cannot_be_entered_is_named_with_the_shells_last_line() {
    let shell = shell("no-entry", "echo Permission denied, please try again >&2; exit 255");
    let mut command = doctor();
    command.args(["--peer", "node2", "--rsh"]).arg(shell);
    let report = report(command);
    let first = &all(&report)[0];
    assert_eq!(first["check"], "rank.reached", "{report:#}");
    assert!(first["do"].as_str().unwrap().starts_with("check the host's name"), "{report:#}");
    assert!(found(&report, "rank.reached").contains("Permission denied"), "{report:#}");
}

pub(crate) fn pairs_that_are_not_tried_come_after_the_ranks_own_findings() {
    let mut command = doctor();
    command.env("NCCL_NET_PLUGIN", "no-such").args(["-n", "2"]);
    let report = report(command);
    let last = all(&report).last().unwrap();
    assert_eq!(last["check"], "rank.transfer", "{report:#}");
    assert!(last["found"].as_str().unwrap().starts_with("not tried: 0 of 2 ranks"), "{report:#}");
    let first = all(&report).iter().find(|finding| finding["level"] == "FAIL").unwrap();
    assert_eq!(first["check"], "plugin.found", "{report:#}");
}

/// It would fill this machine's memory.
pub(crate) fn a_host_that_prints_for_ever_is_ended() {
    let mut command = bounded();
    command.args(["--peer", "node2", "--rsh"]).arg(shell("floods", "exec yes"));
    let report = report(command);
    assert_eq!(found(&report, "rank.reached"), "it has printed more than 16 MiB", "{report:#}");
}

/// As the master of a shared ssh connection, which keeps standard error open.
pub(crate) fn a_process_that_the_shell_leaves_holds_up_nothing() {
    let pipe = Pipe::new("master");
    let line = "cat \"$STUB_LEAVES\" >/dev/null & echo no such command >&2; exit 127";
    let shell = shell("master", line);
    let mut command = bounded();
    command.env("STUB_LEAVES", &pipe.path).args(["--peer", "node2", "--rsh"]).arg(shell);
    let report = report(command);
    assert!(found(&report, "rank.reached").contains("no such command"), "{report:#}");
}

pub(crate) fn a_secret_is_not_handed_on_in_another_form() {
    let seen = scratch("secret").join("seen");
    let line = format!("echo \"$*\" > {}; exit 1", seen.display());
    let mut command = doctor();
    command.env("NCCL_SITE_TOKEN", "abc").env("NCCL_SITE_WORD", "abc");
    command.args(["--peer", "node2", "--rsh"]).arg(shell("secret", &line));
    report(command);
    let seen = fs::read_to_string(seen).unwrap();
    assert!(seen.contains("NCCL_SITE_WORD=abc") && !seen.contains("NCCL_SITE_TOKEN"), "{seen}");
}

/// Nothing is known of it, so there is no other finding.
pub(crate) fn a_lone_host_that_cannot_be_entered_is_the_only_finding() {
    let shell = shell("no-lone-entry", "echo Connection timed out >&2; exit 255");
    let hosts = scratch("lone").join("hosts");
    fs::write(&hosts, "node2\n").unwrap();
    let mut command = doctor();
    command.arg("--hosts").arg(hosts).arg("--rsh").arg(shell);
    let report = report(command);
    assert!(found(&report, "rank.reached").contains("Connection timed out"), "{report:#}");
    assert_eq!(all(&report).len(), 1, "{report:#}");
}

/// Network namespaces without a connection, as behind a firewall.
pub(crate) fn isolated_ranks_are_a_pair_that_does_not_communicate() {
    let shell = shell("apart", "exec unshare -rn sh -c \"ip link set lo up; $*\"");
    let mut command = doctor();
    command.args(["--timeout", "4", "--peer", HERE, "--rsh"]).arg(shell);
    let report = report(command);
    let pairs = found(&report, "rank.transfer");
    assert!(pairs.contains("2 of 2 messages between 2 ranks failed"), "{report:#}");
}

/// Such as an alias in ssh's configuration.
pub(crate) fn a_host_whose_address_is_not_known_does_not_get_it_as_the_rendezvous() {
    let mut command = doctor();
    command.args(["--peer", "node2.invalid,127.0.0.1", "--rsh"]).arg(shell("alias", RUN));
    let report = report(command);
    let pairs = found(&report, "rank.transfer");
    assert!(pairs.contains("4 of 6 messages among 3 ranks failed"), "{report:#}");
    assert!(pairs.contains("no IPv4 address for node2.invalid"), "{report:#}");
}

pub(crate) fn lines_of_a_shell_around_the_answer_hide_nothing() {
    let line = "echo Welcome; echo '{'; sh -c \"$*\"; echo '}'; echo Bye";
    let mut command = doctor();
    command.args(["--peer", HERE, "--rsh"]).arg(shell("banner", line));
    let report = report(command);
    let messages = found(&report, "rank.transfer");
    assert!(messages.starts_with("2 messages between 2 ranks by device 0 ("), "{report:#}");
    assert!(messages.ends_with("), all right"), "{report:#}");
}

/// The file has what corrupts messages, for the plugin's own transfer and for the pairs'.
pub(crate) fn pairs_have_the_settings_of_nccls_files_too() {
    let folder = loopback("pairs-files", "libnccl-net-other.so", "Other");
    let seen = folder.join("seen");
    let line = format!("NCCL_NET_PLUGIN=other\nLOOPBACK_TESTS={}\n", seen.display());
    fs::write(folder.join("nccl.conf"), line).unwrap();
    let mut command = doctor();
    command.env_remove("NCCL_NET_PLUGIN").env("LD_LIBRARY_PATH", &folder);
    command.env("NCCL_CONF_FILE", folder.join("nccl.conf")).args(["-n", "2"]);
    let report = report(command);
    let messages = found(&report, "rank.transfer");
    assert_eq!(messages, "2 messages between 2 ranks by device 0 (lo0), all right");
    // A line of each process: two that describe, and two of the pairs.
    assert_eq!(fs::read_to_string(seen).unwrap().lines().count(), 4);
}

/// The process that starts them has three files for each. They keep the limit, which is one of the findings.
pub(crate) fn ranks_start_where_the_limit_of_open_files_is_lower_than_they_take_and_may_be_raised()
{
    let mut command = after("ulimit -Sn 32");
    command.env("NCCL_NET_PLUGIN", "no-such").args(["-n", "16"]);
    let report = report(command);
    assert!(all(&report).iter().all(|finding| finding["check"] != "rank.reached"), "{report:#}");
    assert!(found(&report, "rank.transfer").starts_with("not tried: 0 of 16 ranks"), "{report:#}");
    assert!(found(&report, "limits.files").starts_with("32 files"), "{report:#}");
}

/// It dies at the first message to the others.
pub(crate) fn a_rank_that_dies_takes_no_others_result_with_it() {
    let folder = loopback("pairs-death", "libnccl-net-other.so", "Other");
    let (hosts, mark) = (folder.join("hosts"), folder.join("died"));
    fs::write(&hosts, format!("localhost slots=2\n{HERE}\n")).unwrap();
    let dies =
        format!("case \"$*\" in *--probe*) export LOOPBACK_DIE=1:{} ;; esac", mark.display());
    let mut command = doctor();
    command.env("NCCL_NET_PLUGIN", "other").env("LD_LIBRARY_PATH", &folder);
    command.args(["--timeout", "4", "--rsh"]).arg(shell("dies", &format!("{dies}\n{RUN}")));
    let report = report({
        command.arg("--hosts").arg(hosts);
        command
    });
    let pairs = found(&report, "rank.transfer");
    assert!(pairs.contains("4 of 6 messages among 3 ranks failed"), "{report:#}");
    assert!(mark.exists());
}

/// Ranks over the socket plugin with this many devices, the last of them with other variables as it exchanges messages.
fn devices(name: &str, ranks: usize, count: usize, planes: &str, last: &str) -> Value {
    let folder = loopback(name, "libnccl-net-other.so", "Other");
    let hosts = folder.join("hosts");
    fs::write(&hosts, format!("localhost slots={}\n{HERE}\n", ranks - 1)).unwrap();
    let line = format!("case \"$*\" in *--probe*) {last} ;; esac\n{RUN}");
    let mut command = doctor();
    command.env("NCCL_NET_PLUGIN", "other").env("LD_LIBRARY_PATH", &folder);
    command.env("LOOPBACK_DEVICES", count.to_string()).env("LOOPBACK_PLANES", planes);
    command.args(["--timeout", "4", "--rsh"]).arg(shell(name, &line));
    command.arg("--hosts").arg(hosts);
    report(command)
}

pub(crate) fn devices_exchange_messages_with_those_of_their_number() {
    let report = devices("pairs-devices", 3, 2, "1,2", ":");
    let messages = found(&report, "rank.transfer");
    let all = "12 messages among 3 ranks by devices 0 (lo0), 1 (lo1), all right";
    assert_eq!(messages, all, "{report:#}");
}

pub(crate) fn a_device_that_is_broken_on_one_rank_is_found_and_its_rank_named() {
    let report = devices("pairs-broken", 4, 4, "", "export LOOPBACK_DEAD=1");
    let finding = all(&report).iter().find(|finding| finding["check"] == "rank.transfer").unwrap();
    let messages = finding["found"].as_str().unwrap();
    let failed = "6 of 48 messages among 4 ranks failed, all of them to or from rank 3 (";
    assert!(messages.starts_with(failed), "{finding:#}");
    assert!(messages.contains(") by device 1 (lo1): it has not "), "{finding:#}");
    assert_eq!(finding["ranks"], json!([3]), "{finding:#}");
    let ends = |pair: &Value| ["from", "to", "device"].map(|end| pair[end].as_u64().unwrap());
    let pairs: Vec<_> = finding["pairs"].as_array().unwrap().iter().map(ends).collect();
    let broken = [[0, 3, 1], [1, 3, 1], [2, 3, 1], [3, 0, 1], [3, 1, 1], [3, 2, 1]];
    assert_eq!(pairs, broken, "{finding:#}");
}

pub(crate) fn devices_of_different_networks_are_no_failure() {
    let other = "export LOOPBACK_PLANES=1,3";
    let report = devices("pairs-networks", 2, 2, "1,2", other);
    let messages = found(&report, "rank.transfer");
    let some = "2 messages between 2 ranks by device 0 (lo0), all right; 2 more not tried, between devices of different networks";
    assert_eq!(messages, some, "{report:#}");

    let report = devices("pairs-apart", 2, 2, "1,2", "export LOOPBACK_PLANES=2,1");
    let finding = all(&report).iter().find(|finding| finding["check"] == "rank.transfer").unwrap();
    assert_eq!(finding["level"], "warn", "{finding:#}");
    assert!(finding["found"].as_str().unwrap().starts_with("2 of 2 pairs not tried"));
}

/// A host that this one reaches at itself.
const HERE: &str = "127.0.0.1";
/// What a remote shell does.
const RUN: &str = "exec sh -c \"$*\"";

fn all(report: &Value) -> &Vec<Value> {
    report["findings"].as_array().unwrap()
}

/// The text of the first finding with this name.
fn found(report: &Value, check: &str) -> String {
    let one = all(report).iter().find(|finding| finding["check"] == check);
    one.unwrap_or_else(|| panic!("no {check} in {report:#}"))["found"].as_str().unwrap().to_owned()
}

/// A remote shell that runs a line on this machine: its first argument is the host.
fn shell(name: &str, line: &str) -> PathBuf {
    let file = scratch("shells").join(name);
    fs::write(&file, format!("#!/bin/sh\nshift\n{line}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    file
}
