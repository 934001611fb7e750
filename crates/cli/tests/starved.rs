//! The command on machines that lack something: threads, `/proc` or parts of it, room for files. It fails with a sentence, or goes on without.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "../../group/tests/support/mod.rs"]
mod support;

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::{env, fs, process};

use harness::{Need, Test, network_namespaces};

const COMMAND: &str = env!("CARGO_BIN_EXE_ironrail");
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn main() -> ExitCode {
    harness::run([
        Test::new(a_command_that_can_start_no_more_threads_says_so),
        Test::new(a_file_that_the_limit_cuts_is_named),
        Test::new(a_folder_for_temporary_files_that_takes_none_is_named_with_its_variable),
        Test::new(a_machine_without_proc_is_reported_as_one).needs(namespaces()),
        Test::new(a_report_has_the_name_of_a_host_without_proc).needs(namespaces()),
        Test::new(a_job_is_refused_at_once_where_the_loopback_interface_is_down)
            .needs(network_namespaces()),
        Test::new(a_rank_ends_where_nothing_says_that_the_ends_of_children_are_ignored)
            .needs(namespaces()),
        Test::new(a_parent_whose_session_has_no_number_here_keeps_no_terminal).wants(numbers()),
        Test::new(a_page_whose_number_is_another_process_in_proc_is_not_stale).wants(numbers()),
        Test::new(a_signal_ends_a_command_that_is_the_first_process_of_a_container)
            .wants(numbers()),
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

/// As of a container whose root file system is read-only.
fn a_folder_for_temporary_files_that_takes_none_is_named_with_its_variable() {
    let mut command = Command::new(COMMAND);
    command.args(["perf", "raw", "-b", "8", "-e", "8", "-n", "3"]).env("TMPDIR", "/proc");
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{status} {said}");
    assert!(said.contains("/proc/ironrail-") && said.contains("TMPDIR"), "{said}");
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

/// Its ranks would try to meet there for as long as their group's timeout. A new network namespace has the interface, down.
fn a_job_is_refused_at_once_where_the_loopback_interface_is_down() {
    let mut command = Command::new("unshare");
    command.args(["-rn", COMMAND, "run", "-n", "2", "--timeout", "20", "--", "sleep", "25"]);
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{status} {said}");
    assert!(said.contains("`ip link set lo up`"), "{said}");
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

/// The option of unshare(1) for a PID namespace with a `/proc` of its own. With a user namespace, which most users need, the kernel mounts no
/// new `/proc` where a part of the old one is covered, as in containers.
fn numbered_anew() -> Result<&'static str, String> {
    let is_possible = |namespaces: &&str| {
        let tried = Command::new("unshare").args([namespaces, "--mount-proc", "true"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let lacks = || "PID namespaces (unshare -rpf --mount-proc)".to_owned();
    ["-pf", "-rpf"].into_iter().find(is_possible).ok_or_else(lacks)
}

fn numbers() -> Need {
    numbered_anew().map(drop)
}

/// The session of script(1) is led from outside of the namespace: its number there is 0. The launcher leads the session of script's terminal.
fn a_parent_whose_session_has_no_number_here_keeps_no_terminal() {
    let rank = "kill -TSTP $PPID; kill -INT $PPID; exec sleep 25";
    let job = format!("exec env --default-signal '{COMMAND}' run -n1 -- sh -c '{rank}'");
    let mut command = Command::new("unshare");
    command.args([numbered_anew().unwrap(), "--mount-proc"]);
    command.args(["timeout", "20", "script", "-qec", &job, "/dev/null"]).stdin(Stdio::null());
    let Output { status, stdout, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(130), "{status} {}", String::from_utf8_lossy(&stdout));
}

fn a_report_has_the_name_of_a_host_without_proc() {
    let plugin = support::reference(TEMPORARY).to_str().unwrap();
    let mut command = without_proc();
    let Output { stdout, .. } =
        command.args([COMMAND, "doctor", "--net", plugin]).output().unwrap();
    let said = String::from_utf8(stdout).unwrap();
    let sum = said.lines().last().unwrap();
    assert!(sum.starts_with(&format!("{}: ", fabric::host_name())), "{said}");
}

/// As in sandboxes with a kernel of their own, whose `/proc/…/status` has fewer fields.
fn a_rank_ends_where_nothing_says_that_the_ends_of_children_are_ignored() {
    let status = Path::new(TEMPORARY).join(format!("status.{}", process::id()));
    fs::write(&status, "Name:\tironrail\n").unwrap();
    let script = "mount --bind \"$1\" /proc/$$/status && exec env --ignore-signal=CHLD \"$2\" run -n1 --timeout 20 -- sh -c 'exit 3'";
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, "sh"]).arg(&status).arg(COMMAND);
    let Output { status: ended, stderr, .. } = command.output().unwrap();
    assert_eq!(ended.code(), Some(3), "{ended} {}", String::from_utf8_lossy(&stderr));
    fs::remove_file(status).unwrap();
}

/// In a PID namespace with the `/proc` of the one above. The page's process is alive, as its lock shows.
fn a_page_whose_number_is_another_process_in_proc_is_not_stale() {
    let folder = Path::new(TEMPORARY).join(format!("pages.{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let script = "stat -Lc %i /proc/self/ns/pid && read go && exec \"$0\" stats --folder \"$1\"";
    let mut command = Command::new("unshare");
    command.args(["-rpf", "timeout", "20", "sh", "-c", script, COMMAND]).arg(&folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut namespace = String::new();
    BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut namespace).unwrap();
    let namespace = namespace.trim().parse().unwrap();
    let path = folder.join(counters::file_name(fabric::user_id(), NO_PROCESS, namespace, 0));
    let mut page = File::create_new(&path).unwrap();
    page.set_permissions(Permissions::from_mode(0o600)).unwrap();
    let mut words = vec![0; counters::page_words()];
    words[counters::head::MAGIC] = counters::MAGIC;
    words[counters::head::LAYOUT] = counters::LAYOUT;
    words[counters::head::ROW_WORDS] = counters::ROW_WORDS as u64;
    words[counters::head::ROWS] = counters::ROWS as u64;
    words[counters::head::PROCESS] = u64::from(NO_PROCESS);
    words[counters::head::NAMESPACE] = namespace;
    let bytes: Vec<_> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    page.write_all(&bytes).unwrap();
    page.lock_shared().unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(status.success() && said.contains(&format!("process {NO_PROCESS} on ")), "{said}");
    assert!(!said.contains("stale"), "{said}");
    fs::remove_dir_all(folder).unwrap();
}

/// The kernel discards signals to such a process that it has no handler for.
fn a_signal_ends_a_command_that_is_the_first_process_of_a_container() {
    let folder = Path::new(TEMPORARY).join(format!("no-pages.{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let script = folder.join("first.sh");
    // A signal that comes too early has no effect.
    let text = "while kill \"-$1\" 1; do sleep 0.1; done 2>/dev/null & shift; exec \"$@\"";
    fs::write(&script, text).unwrap();
    let (script, pages) = (script.display(), folder.display());
    let namespaces = numbered_anew().unwrap();
    let commands = [
        ("top", "INT", 130),
        ("top", "TERM", 143),
        ("stats --serve 127.0.0.1:0", "HUP", 129),
        ("stats --serve 127.0.0.1:0", "TERM", 143),
    ];
    for (command, signal, code) in commands {
        let job = format!(
            "exec unshare {namespaces} --mount-proc --kill-child sh '{script}' {signal} '{COMMAND}' {command} --folder '{pages}'"
        );
        let mut at_terminal = Command::new("timeout");
        at_terminal.args(["20", "script", "-qec", &job, "/dev/null"]).stdin(Stdio::null());
        let Output { status, stdout, .. } = at_terminal.output().unwrap();
        let said = String::from_utf8_lossy(&stdout);
        assert_eq!(status.code(), Some(code), "{command} {signal}: {status} {said}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// Linux has no process with this number: they are below 2^22.
const NO_PROCESS: u32 = 4_194_305;
