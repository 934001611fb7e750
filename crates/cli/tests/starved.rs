//! The command on machines that lack something: threads, `/proc`, room for files, its parents' numbers. It fails with a sentence, or goes on without.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "../../group/tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::{env, fs, process};

use harness::{Need, Test};

const COMMAND: &str = env!("CARGO_BIN_EXE_ironrail");
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn main() -> ExitCode {
    harness::run([
        Test::new(a_command_that_can_start_no_more_threads_says_so),
        Test::new(a_file_that_the_limit_cuts_is_named),
        Test::new(a_machine_without_proc_is_reported_as_one).needs(namespaces()),
        Test::new(a_parent_whose_session_has_no_number_here_keeps_no_terminal).wants(numbers()),
    ])
}

/// plugins/threads.c, built.
fn shim() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plugins/threads.c");
    let library = Path::new(TEMPORARY).join(format!("threads.{}.so", process::id()));
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut compile = Command::new(&compiler);
    compile.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o"]);
    let built = compile.arg(&library).arg(source).arg("-ldl").output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

fn a_command_that_can_start_no_more_threads_says_so() {
    let (shim, plugin) = (shim(), support::reference(TEMPORARY).to_str().unwrap());
    let only = "init-once-per-communicator,devices-are-counted";
    let commands: [(&[&str], usize); 5] = [
        (&["run", "-n", "2", "--", "true"], 8),
        (&["run", "-n", "1", "--", "false"], 8),
        (&["doctor", "--net", plugin], 4),
        (&["conform", "--net", plugin, "-j", "2", "--only", only], 8),
        (&["perf", "sendrecv", "--net", plugin, "--threads", "-e", "8", "--timeout", "1"], 8),
    ];
    for (command, most) in commands {
        let mut refused = 0;
        for threads in 0..most {
            let mut starved = Command::new(COMMAND);
            starved.args(command).env("LD_PRELOAD", &shim).env("THREADS", threads.to_string());
            let Output { status, stdout, stderr } = starved.output().unwrap();
            let said = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
            let place = format!("{command:?}, {threads} threads: {status}\n{said}");
            assert!(matches!(status.code(), Some(0 | 1)), "{place}");
            assert!(!said.contains("panicked"), "{place}");
            refused += usize::from(said.contains("Resource temporarily unavailable"));
        }
        assert!(refused > 0, "{command:?} has lacked no thread");
    }
    fs::remove_file(shim).unwrap();
}

fn a_file_that_the_limit_cuts_is_named() {
    let folder = Path::new(TEMPORARY).join(format!("long-files.{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0 && exec \"$0\" man --folder \"$1\"", COMMAND]).arg(&folder);
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{status} {said}");
    assert!(said.starts_with("ironrail: writing a manual page: "), "{said}");
    assert!(said.contains(folder.to_str().unwrap()) && said.contains("File too large"), "{said}");
    fs::remove_dir_all(folder).unwrap();
}

/// Runs the rest of the command line where another, empty file system covers `/proc`.
fn without_proc() -> Command {
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    command.args(["-rm", "sh", "-c", script, "sh"]);
    command
}

fn namespaces() -> Need {
    match without_proc().arg("true").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err("mount namespaces (unshare -rm)".to_owned()),
    }
}

fn a_machine_without_proc_is_reported_as_one() {
    let plugin = support::reference(TEMPORARY).to_str().unwrap();
    let commands: [(&[&str], &str); 2] = [
        (&["doctor", "--net", plugin], "mount /proc where there is none"),
        (&["run", "-n", "1", "--", "true"], "Is /proc mounted?"),
    ];
    for (command, reason) in commands {
        let Output { status, stdout, stderr } =
            without_proc().arg(COMMAND).args(command).output().unwrap();
        let said = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        assert_eq!(status.code(), Some(1), "{command:?} {said}");
        assert!(said.contains(reason), "{command:?} {said}");
    }
}

/// Runs the rest of the command line in a PID namespace of its own. With a user namespace, which most users need, the kernel mounts no new
/// `/proc` where a part of the old one is covered, as in containers.
fn numbered_anew() -> Option<Command> {
    ["-pf", "-rpf"].into_iter().find_map(|namespaces| {
        let command = || {
            let mut command = Command::new("unshare");
            command.args([namespaces, "--mount-proc"]);
            command
        };
        let tried = command().arg("true").output();
        tried.is_ok_and(|output| output.status.success()).then(command)
    })
}

fn numbers() -> Need {
    numbered_anew().map(drop).ok_or_else(|| "PID namespaces (unshare -rpf --mount-proc)".to_owned())
}

/// The session of script(1) is led from outside of the namespace: its number there is 0. The launcher leads the session of script's terminal.
fn a_parent_whose_session_has_no_number_here_keeps_no_terminal() {
    let rank = "kill -TSTP $PPID; kill -INT $PPID; exec sleep 25";
    let job = format!("exec env --default-signal '{COMMAND}' run -n1 -- sh -c '{rank}'");
    let mut command = numbered_anew().unwrap();
    command.args(["timeout", "20", "script", "-qec", &job, "/dev/null"]).stdin(Stdio::null());
    let Output { status, stdout, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(130), "{status} {}", String::from_utf8_lossy(&stdout));
}
