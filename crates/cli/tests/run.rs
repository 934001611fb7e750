//! `ironrail run`: output, exit codes, and which processes are killed.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "../../group/tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn run(ranks: usize, script: &str) -> (i32, String, String, Duration) {
    let begun = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["run", "-n", &ranks.to_string(), "--", "sh", "-c", script]);
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr), begun.elapsed())
}

/// Only a hang takes this long.
const HANGS: Duration = Duration::from_secs(30);

#[test]
fn every_line_has_its_rank_and_every_rank_its_variables() {
    let (code, out, errors, _) =
        run(3, "echo $RANK of $WORLD_SIZE; echo bad >&2; test -n \"$IRON_GROUP_MEETING\"");
    assert_eq!(code, 0, "{errors}");
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 0 of 3", "[1] 1 of 3", "[2] 2 of 3"]);
    assert_eq!(errors.lines().filter(|line| line.ends_with("] bad")).count(), 3);
}

#[test]
fn the_first_code_that_is_not_0_wins_and_the_rest_is_killed() {
    let (code, _, errors, took) = run(3, "test $RANK = 1 && exit 7; exec sleep 600");
    assert_eq!(code, 7, "{errors}");
    assert!(errors.contains("rank 1 ended with code 7"), "{errors}");
    assert!(took < HANGS, "{took:?}");
}

#[test]
fn a_rank_that_is_killed_ends_the_job_with_its_signal() {
    let (code, _, errors, took) = run(2, "test $RANK = 0 && kill -9 $$; exec sleep 600");
    assert_eq!(code, 137, "{errors}");
    assert!(errors.contains("rank 0 died of signal 9"), "{errors}");
    assert!(took < HANGS, "{took:?}");
}

#[test]
fn a_program_that_is_not_there_and_a_wrong_number_are_code_2() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    let output = command.args(["run", "-n", "2", "--", "/no/such/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("/no/such/program cannot be started"), "{errors}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    let output = command.args(["run", "-n", "0", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Builds an example of any package by cargo, with the features that the whole workspace uses: other features would compile the
/// dependencies again.
fn example(name: &str) -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let cargo =
        escargot::CargoBuild::new().manifest_path(manifest).arg("--workspace").example(name);
    cargo.run().unwrap().path().to_owned()
}

fn lines_of(name: &str, ranks: usize) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["run", "-n", &ranks.to_string(), "--"]).arg(example(name));
    command.arg(support::loopback(env!("CARGO_TARGET_TMPDIR")));
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, errors) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{errors}");
    let mut lines: Vec<_> = out.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn the_example_of_averaging_finds_the_line_on_every_rank() {
    let found = (0..3).map(|rank| format!("[{rank}] rank {rank} of 3: y = 3.000 x + 1.000"));
    assert_eq!(lines_of("averaging", 3), found.collect::<Vec<_>>());
}

#[test]
fn the_example_of_a_ping_pong_gets_every_ball_back() {
    let answers = (1..3).flat_map(|rank| {
        (0..5).map(move |ball: u64| {
            format!("[0] rank {rank} answers {} to ball {ball}", (ball + 10).pow(2))
        })
    });
    assert_eq!(lines_of("ping_pong", 3), answers.collect::<Vec<_>>());
}

#[test]
fn the_example_of_heat_writes_the_same_picture_in_one_band_and_in_three() {
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("heat.ppm");
    let draw = |ranks: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
        command.args(["run", "-n", ranks, "--"]).arg(example("heat"));
        command.arg(support::loopback(env!("CARGO_TARGET_TMPDIR"))).arg(&picture);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(&picture).unwrap()
    };
    let (one, three) = (draw("1"), draw("3"));
    assert!(one.starts_with(b"P6 128 128 255\n"));
    assert_eq!(one.len(), 15 + 3 * 128 * 128);
    assert!(one == three);
}

#[test]
fn the_example_of_a_gather_of_record_batches_brings_every_row() {
    let lines = [
        "[0] rank 0: 1 rows, 0 nulls, sum 0",
        "[0] rank 1: 1001 rows, 100 nulls, sum 225350",
        "[0] rank 2: 2001 rows, 200 nulls, sum 900700",
    ];
    assert_eq!(lines_of("ragged_batches", 3), lines);
}

#[test]
fn the_example_of_a_ragged_gather_brings_everything() {
    let lines = lines_of("ragged", 3);
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(lines[0], "[0] 3003 places in all, 0.833 on average");
    for (rank, line) in lines[1..].iter().enumerate() {
        let places = rank * 1000 + 1;
        assert!(line.starts_with(&format!("[0] rank {rank}: {places} places")), "{line}");
        assert!(line.contains(&format!("only {rank}'s")), "{line}");
        assert_eq!(line.contains("something to say"), rank == 1, "{line}");
    }
}
