//! `ironrail perf raw` and `versus-raw` over the libfabric of this machine; skipped, with a line, where there is none.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::io::Write;
use std::process::{Command, Output};

fn perf(arguments: &str) -> Option<(i32, String, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.arg("perf").args(arguments.split_whitespace());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (code, table, errors) = (status.code().unwrap(), text(stdout), text(stderr));
    if errors.contains("no libfabric") || errors.contains("has none of") {
        let _ = write!(std::io::stderr(), "SKIPPED: {errors}");
        return None;
    }
    Some((code, table, errors))
}

fn rows(table: &str) -> usize {
    table.lines().filter(|line| !line.starts_with('#')).count()
}

#[test]
fn bare_writes_move_in_bulk_and_back_and_forth() {
    for provider in
        ["", "--provider tcp;ofi_rxm", "--provider sockets", "--provider shm --source none"]
    {
        for mode in [
            "",
            "--latency",
            "--latency --no-inject",
            "--window 32",
            "--answered --window 3",
            "--two-sided",
            "--two-sided --unanswered --window 3",
        ] {
            let Some((code, table, errors)) =
                perf(&format!("raw {provider} {mode} -b 8 -e 512K -f 16 -n 40"))
            else {
                continue;
            };
            assert_eq!(code, 0, "{provider} {mode}: {table}{errors}");
            assert_eq!(rows(&table), 5, "{provider} {mode}: {table}");
        }
    }
}

#[test]
fn a_libfabric_that_is_not_there_is_said_in_one_sentence_per_rank() {
    let output = Command::new(env!("CARGO_BIN_EXE_ironrail"))
        .args(["perf", "raw", "--libfabric", "/no/such/libfabric.so.1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("no libfabric") && errors.contains("/no/such/libfabric.so.1"),
        "{errors}"
    );
}
