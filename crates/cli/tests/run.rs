//! `ironrail run`: output, exit codes, and which processes are killed.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/ended.rs"]
mod ended;
#[path = "../../group/tests/support/mod.rs"]
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use ended::ended;
use ironrail_group::launch::MEETING_VARIABLE;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

fn run(ranks: usize, script: &str) -> (i32, String, String, Duration) {
    run_for(0, ranks, script)
}

/// With `--timeout`.
fn run_for(seconds: u64, ranks: usize, script: &str) -> (i32, String, String, Duration) {
    let begun = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["run", "-n", &ranks.to_string(), "--timeout", &seconds.to_string()]);
    command.args(["--", "sh", "-c", script]);
    let (code, output, errors) = ended(command);
    (code, output, errors, begun.elapsed())
}

/// Only a hang takes this long.
const HANGS: Duration = Duration::from_secs(30);

/// O_NOCTTY: a terminal that is opened does not become this process's.
const NOCTTY: i32 = OpenptFlags::NOCTTY.bits().cast_signed();

/// Less than the 25 s that processes in the background sleep below, and more than a slow machine takes.
const SOON: Duration = Duration::from_secs(12);

/// The numbers at the end of lines: processes that print their ids.
fn processes(out: &str) -> Vec<i32> {
    out.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

/// The state of a process by proc_pid_stat(5), or X if it is gone.
fn state(process: i32) -> char {
    // It follows the name, which is in parentheses.
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('X')
}

/// Whether a process runs; one that has ended is not, even if its parent has not asked for its status.
fn runs(process: i32) -> bool {
    !matches!(state(process), 'Z' | 'X')
}

/// Waits until all of them are stopped, or until none is.
#[track_caller]
fn wait_until_stopped(processes: &[i32], stopped: bool) {
    let deadline = Instant::now() + HANGS;
    while processes.iter().any(|&process| (state(process) == 'T') != stopped) {
        let states: Vec<_> = processes.iter().map(|&process| state(process)).collect();
        assert!(Instant::now() < deadline, "stopped is to be {stopped}: {states:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
fn assert_ended(processes: &[i32]) {
    let deadline = Instant::now() + SOON;
    while processes.iter().any(|&process| runs(process)) {
        assert!(Instant::now() < deadline, "of {processes:?} one still runs");
        thread::sleep(Duration::from_millis(10));
    }
}

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

/// A parent that does not wait for its children may leave the signal ignored, and then nothing is left to wait for.
#[test]
fn a_job_ends_where_the_signal_of_ended_children_is_ignored() {
    let mut command = Command::new("env");
    command.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_ironrail"), "run", "-n", "2"]);
    command.args(["--timeout", "20", "--", "sh", "-c", "echo here; exit $RANK"]);
    let Output { status, stdout, stderr } = command.output().unwrap();
    let errors = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.contains("rank 1 ended with code 1"), "{errors}");
    assert_eq!(String::from_utf8(stdout).unwrap().lines().count(), 2);
}

#[test]
fn the_launcher_has_as_many_files_as_it_may_and_the_ranks_what_it_was_started_with() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 24 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_ironrail")]);
    // All ranks run at once.
    let last_is_here =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("last.{}", std::process::id()));
    let script =
        "test $RANK = 11 && : > $LAST; until test -e $LAST; do sleep 0.02; done; ulimit -Sn";
    command.args(["run", "-n", "12", "--timeout", "60", "--", "sh", "-c", script]);
    command.env("LAST", &last_is_here);
    let Output { status, stdout, stderr } = command.output().unwrap();
    let _ = fs::remove_file(last_is_here);
    let errors = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(0), "{errors}");
    let out = String::from_utf8(stdout).unwrap();
    assert_eq!(out.lines().filter(|line| line.ends_with("] 24")).count(), 12, "{out}");
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
fn a_timeout_that_no_clock_can_count_to_never_comes() {
    let (code, out, errors, _) = run_for(u64::MAX, 1, "echo here");
    assert_eq!((code, out.as_str()), (0, "[0] here\n"), "{errors}");
}

#[test]
fn processes_that_a_rank_leaves_in_the_background_end_at_the_timeout() {
    let (code, out, errors, took) = run_for(1, 2, "sleep 25 & echo $!; exit 0");
    assert_eq!(code, 124, "{errors}");
    assert!(took < SOON, "{took:?}");
    let left = processes(&out);
    assert_eq!(left.len(), 2, "{out}");
    assert_ended(&left);
}

#[test]
fn processes_that_ranks_have_started_end_when_one_rank_fails() {
    let script = "sleep 25 & echo $!; if [ $RANK = 0 ]; then exit 3; else wait; fi";
    let (code, out, errors, took) = run(2, script);
    assert_eq!(code, 3, "{errors}");
    assert!(took < SOON, "{took:?}");
    let started = processes(&out);
    assert_eq!(started.len(), 2, "{out}");
    assert_ended(&started);
}

#[test]
fn output_of_a_rank_is_shown_though_a_process_outside_its_group_keeps_the_pipe() {
    let (code, out, errors, took) = run(1, "setsid sleep 25 & echo $!; printf unfinished; exit 3");
    assert_eq!(code, 3, "{errors}");
    assert!(took < SOON, "{took:?}");
    let (first, last) = out.split_once('\n').unwrap();
    let _ = kill_process(Pid::from_raw(processes(first)[0]).unwrap(), Signal::KILL);
    assert_eq!(last, "[0] unfinished\n");
}

/// A launcher that runs, and the lines of its output. Dropped, it is killed.
struct Launcher {
    process: Child,
    out: Receiver<String>,
    errors: Receiver<String>,
}

/// Starts a launcher by way of env(1), which says what signals do: the tests may run where some are ignored.
fn launch(signals: &str, ranks: usize, script: &str) -> Launcher {
    launch_with(signals, &[], ranks, script)
}

fn launch_with(signals: &str, options: &[&str], ranks: usize, script: &str) -> Launcher {
    let mut command = Command::new("env");
    command.args([signals, env!("CARGO_BIN_EXE_ironrail"), "run", "-n", &ranks.to_string()]);
    command.args(options);
    command.args(["--", "sh", "-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Not at the terminal of the tests: some ignore TSTP there.
    command.process_group(0);
    start(command)
}

fn start(mut command: Command) -> Launcher {
    let mut process = command.spawn().unwrap();
    let out = lines(process.stdout.take().unwrap());
    let errors = lines(process.stderr.take().unwrap());
    Launcher { process, out, errors }
}

/// Reads no line before the one before it has been received.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(0);
    thread::spawn(move || {
        let mut lines = BufReader::new(from).lines().map_while(Result::ok);
        lines.try_for_each(|line| sender.send(line))
    });
    receiver
}

impl Launcher {
    fn kill(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Reads lines that end with ids of processes.
    fn processes(&self, count: usize) -> Vec<i32> {
        (0..count).flat_map(|_| processes(&self.out.recv_timeout(HANGS).unwrap())).collect()
    }

    #[track_caller]
    fn code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + HANGS;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the launcher hangs");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_signal_to_the_launcher_ends_the_ranks_and_what_they_have_started() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let mut launcher = launch("--default-signal", 2, "sleep 25 & echo $!; echo $$; wait");
        let ranks = launcher.processes(4);
        launcher.kill(signal);
        assert_ended(&ranks);
        assert_eq!(launcher.code(), Some(128 + signal.as_raw()), "{signal:?}");
    }
}

#[test]
fn ranks_see_the_signal_that_the_launcher_got_and_may_clean_up() {
    let script =
        "trap 'echo cleaned; exit 0' TERM; echo $$; for i in $(seq 1000); do sleep 0.01; done";
    let mut launcher = launch("--default-signal", 2, script);
    let ranks = launcher.processes(2);
    launcher.kill(Signal::TERM);
    let mut last: Vec<_> = launcher.out.iter().collect();
    last.sort_unstable();
    assert_eq!(last, ["[0] cleaned", "[1] cleaned"]);
    assert_eq!(launcher.code(), Some(143));
    assert_ended(&ranks);
}

#[test]
fn a_job_is_stopped_and_continued_whole() {
    let mut launcher = launch("--default-signal", 2, "sleep 25 & echo $!; echo $$; wait");
    let mut job = launcher.processes(4);
    job.push(Pid::from_child(&launcher.process).as_raw_pid());
    for _ in 0..2 {
        launcher.kill(Signal::TSTP);
        wait_until_stopped(&job, true);
        launcher.kill(Signal::CONT);
        wait_until_stopped(&job, false);
    }
    launcher.kill(Signal::TERM);
    assert_eq!(launcher.code(), Some(143));
    assert_ended(&job);
}

#[test]
fn ctrl_z_is_ignored_where_no_shell_could_continue_the_job() {
    let mut keys = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap());
    grantpt(&keys).unwrap();
    unlockpt(&keys).unwrap();
    let name = PathBuf::from(ptsname(&keys, Vec::new()).unwrap().into_string().unwrap());
    let own = OpenOptions::new().read(true).write(true).custom_flags(NOCTTY).open(name).unwrap();
    let mut command = Command::new("env");
    // The launcher leads a session, as sshd(8) starts it.
    command.args(["--default-signal", "setsid", "--ctty", env!("CARGO_BIN_EXE_ironrail"), "run"]);
    command.args(["-n2", "--", "sh", "-c", "echo $$; exec sleep 25"]);
    command.stdin(own).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut launcher = start(command);
    let ranks = launcher.processes(2);
    keys.write_all(b"\x1a\x03").unwrap();
    assert_eq!(launcher.code(), Some(130));
    assert_ended(&ranks);
}

#[test]
fn a_job_that_is_stopped_spends_no_time_of_its_timeout() {
    let script = "trap 'echo continued; exit 0' CONT; echo $$; while :; do sleep 0.01; done";
    let mut launcher = launch_with("--default-signal", &["--timeout", "3"], 1, script);
    let job = launcher.processes(1);
    launcher.kill(Signal::TSTP);
    wait_until_stopped(&job, true);
    thread::sleep(Duration::from_secs(3)); // all of the timeout
    launcher.kill(Signal::CONT);
    assert_eq!(launcher.out.recv_timeout(HANGS).unwrap(), "[0] continued");
    assert_eq!(launcher.code(), Some(0));
}

#[test]
fn a_launcher_that_is_killed_leaves_no_rank() {
    let launcher = launch("--default-signal", 2, "echo $$; exec sleep 25");
    let ranks = launcher.processes(2);
    launcher.kill(Signal::KILL);
    assert_ended(&ranks);
}

#[test]
fn a_signal_that_the_launcher_ignores_ends_nothing() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hung-up");
    let _ = fs::remove_file(&file);
    let script = format!("echo $$; until test -e {}; do sleep 0.1; done", file.display());
    let mut launcher = launch("--ignore-signal=HUP", 1, &script);
    launcher.processes(1);
    launcher.kill(Signal::HUP);
    fs::write(&file, "").unwrap();
    assert_eq!(launcher.code(), Some(0));
}

/// 15,000 lines with their rank do not fit a pipe, and a rank can write them while the pipe is not read.
#[test]
fn output_that_is_read_late_is_whole_though_the_rank_failed() {
    let mut launcher = launch("--default-signal", 1, "echo $$ >&2; seq 15000; exit 3");
    let rank = processes(&launcher.errors.recv_timeout(HANGS).unwrap());
    let ended = launcher.errors.recv_timeout(HANGS).unwrap();
    assert_eq!(ended, "ironrail: rank 0 ended with code 3");
    // It is waited for when all have been killed.
    let deadline = Instant::now() + HANGS;
    while Path::new(&format!("/proc/{}", rank[0])).exists() {
        assert!(Instant::now() < deadline, "it is not waited for");
        thread::sleep(Duration::from_millis(10));
    }
    for number in 1..=15000 {
        assert_eq!(launcher.out.recv_timeout(HANGS).unwrap(), format!("[0] {number}"));
    }
    assert_eq!(launcher.code(), Some(3));
}

/// What two ranks write to standard error fills its pipe.
#[test]
fn a_job_is_killed_at_its_timeout_though_standard_error_is_not_read() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["run", "-n", "2", "--timeout", "1", "--", "sh", "-c", "yes >&2"]);
    let mut launcher = command.stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + HANGS;
    let ended = loop {
        if let Some(ended) = launcher.try_wait().unwrap() {
            break ended;
        }
        if Instant::now() >= deadline {
            launcher.kill().unwrap();
            panic!("it is not killed");
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(ended.code(), Some(124));
}

#[test]
fn an_error_of_writing_output_is_reported_beside_the_end_of_the_rank() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args([
        "run",
        "-n",
        "1",
        "--timeout",
        "60",
        "--",
        "sh",
        "-c",
        "while echo a; do :; done",
    ]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let Output { status, stderr, .. } = command.stdout(full).output().unwrap();
    let errors = String::from_utf8(stderr).unwrap();
    assert!(status.code().is_some_and(|code| code > 0), "{status}");
    assert!(errors.contains("writing to standard output: No space left on device"), "{errors}");
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

/// Every rank is in the launcher's group, and by another process in one of its own coordinator at the same time.
#[test]
fn ranks_of_one_job_may_be_in_two_groups_at_once() {
    let (program, plugin) = (example("averaging"), support::loopback(env!("CARGO_TARGET_TMPDIR")));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = format!("{} {}", program.display(), plugin.display());
    let other = format!("{MEETING_VARIABLE}= IRONRAIL_GROUP_COORDINATOR={free} {run}");
    let (code, out, errors, _) = run_for(300, 3, &format!("{other} & {run} && wait $!"));
    assert_eq!(code, 0, "{out}{errors}");
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    let found = (0..3).map(|rank| format!("[{rank}] rank {rank} of 3: y = 3.000 x + 1.000"));
    assert_eq!(lines, found.flat_map(|line| [line.clone(), line]).collect::<Vec<_>>());
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
        fs::read(&picture).unwrap()
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
