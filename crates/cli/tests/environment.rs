//! A newcomer's first steps: `ironrail env`, then `ironrail doctor`; completions and manual pages.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/built.rs"]
mod built;
#[path = "support/ended.rs"]
mod ended;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ended::ended;
use harness::{Need, Test};

const IRONRAIL: &str = env!("CARGO_BIN_EXE_ironrail");

fn main() -> ExitCode {
    harness::run([
        Test::new(doctor_finds_nothing_with_the_environment_that_env_prints),
        Test::new(a_folder_named_from_here_is_printed_from_the_root),
        Test::new(a_folder_that_the_loader_would_take_for_two_is_a_wrong_command_line),
        Test::new(each_line_of_env_has_a_reason_before_it_in_every_form),
        Test::new(completions_know_the_commands),
        Test::new(bash_takes_the_completions).needs(bash()),
        Test::new(there_is_a_manual_page_for_each_command_with_its_examples),
        Test::new(every_command_shows_examples_and_no_colour_where_there_is_no_terminal),
    ])
}

/// A folder with the plugin only.
fn plugin(name: &str) -> PathBuf {
    let built = built::library("ironrail", "libnccl_net_ironrail.so");
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::copy(built, folder.join("libnccl-net-ironrail.so")).unwrap();
    folder
}

fn shell(script: &str, plugin: &Path) -> (i32, String, String) {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("IRON", IRONRAIL).env("PLUGIN", plugin);
    ended(command)
}

fn doctor_finds_nothing_with_the_environment_that_env_prints() {
    let plugin = plugin("environment");
    let doctor = "\"$IRON\" doctor --timeout 60";
    let (code, said, _) = shell(doctor, &plugin);
    assert_eq!(code, 1, "without it: {said}");
    let (code, said, errors) =
        shell(&format!("eval \"$(\"$IRON\" env --plugin \"$PLUGIN\")\"; {doctor}"), &plugin);
    assert_eq!(code, 0, "{said}{errors}");
    // The machine itself may lack something, such as a network.
    let of_environment =
        |line: &&str| [" plugin.", " network.", " variables."].iter().any(|of| line.contains(of));
    let found: Vec<_> = said.lines().filter(of_environment).collect();
    assert!(found.len() > 2 && found.iter().all(|line| line.starts_with("ok ")), "{said}");
    assert!(said.contains("it is the plugin's name"), "NCCL_NET is set: {said}");
    fs::remove_dir_all(plugin).unwrap();
}

fn a_folder_named_from_here_is_printed_from_the_root() {
    let (code, said, errors) = shell("cd /opt; \"$IRON\" env --plugin x/plugin", Path::new("/"));
    assert_eq!(code, 0, "{errors}");
    assert!(said.contains("LD_LIBRARY_PATH=/opt/x/plugin${"), "{said}");
}

/// ld.so(8) takes each of the first two for the end of a folder.
fn a_folder_that_the_loader_would_take_for_two_is_a_wrong_command_line() {
    for name in ["/opt/a:b", "/opt/a;b", "/opt/a\nb"] {
        let (code, said, errors) = shell("\"$IRON\" env --plugin \"$PLUGIN\"", Path::new(name));
        assert_eq!(code, 2, "{said}");
        assert!(errors.contains("cannot be in LD_LIBRARY_PATH"), "{errors}");
    }
}

fn each_line_of_env_has_a_reason_before_it_in_every_form() {
    for form in ["", "--dockerfile", "--enroot", "--apptainer", "--slurm"] {
        let (code, said, errors) =
            shell(&format!("\"$IRON\" env --plugin /opt/x {form}"), Path::new("/"));
        assert_eq!(code, 0, "{errors}");
        let lines: Vec<_> = said.lines().map(str::trim).collect();
        let settings = (1..lines.len())
            .filter(|at| lines[*at].contains("NCCL_NET") && !lines[*at].starts_with('#'));
        let settings: Vec<_> = settings.collect();
        assert_eq!(settings.len(), 2, "{form}: {said}");
        assert!(settings.iter().all(|at| lines[at - 1].starts_with("# ")), "{form}: {said}");
    }
    let (code, _, errors) = shell("\"$IRON\" env --slurm --enroot", Path::new("/"));
    assert_eq!(code, 2, "{errors}");
}

fn completions_know_the_commands() {
    for name in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, said, errors) = shell(&format!("\"$IRON\" completions {name}"), Path::new("/"));
        assert_eq!(code, 0, "{errors}");
        assert!(said.contains("doctor") && said.contains("all_reduce"), "{name}");
    }
}

fn bash() -> Need {
    let ran = Command::new("bash").args(["-nc", "true"]).status();
    if ran.is_ok_and(|status| status.success()) { Ok(()) } else { Err("bash".to_owned()) }
}

fn bash_takes_the_completions() {
    let (code, _, errors) = shell("\"$IRON\" completions bash | bash -n", Path::new("/"));
    assert_eq!((code, errors.as_str()), (0, ""));
}

fn there_is_a_manual_page_for_each_command_with_its_examples() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("man-{}", std::process::id()));
    let (code, _, errors) =
        shell(&format!("\"$IRON\" man --folder {}", folder.display()), Path::new("/"));
    assert_eq!(code, 0, "{errors}");
    for page in
        ["ironrail", "ironrail-doctor", "ironrail-env", "ironrail-perf", "ironrail-perf-all_reduce"]
    {
        let text = fs::read_to_string(folder.join(format!("{page}.1"))).unwrap();
        assert!(
            text.contains(".TH") && text.contains(page.split('-').next_back().unwrap()),
            "{page}: {text}"
        );
    }
    let text = fs::read_to_string(folder.join("ironrail-doctor.1")).unwrap();
    assert!(text.contains("node7.json"), "{text}");
    fs::remove_dir_all(folder).unwrap();
}

fn every_command_shows_examples_and_no_colour_where_there_is_no_terminal() {
    for command in ["", "doctor", "env", "info", "explain", "perf", "conform", "nccl", "topo"] {
        let (code, said, errors) = shell(&format!("\"$IRON\" {command} --help"), Path::new("/"));
        assert_eq!(code, 0, "{errors}");
        assert!(said.contains("Examples:\n  ") && said.contains("ironrail "), "{command}: {said}");
        assert!(!said.contains('\u{1b}'), "{command}");
    }
    let (_, said, _) = shell("\"$IRON\" doctor", Path::new("/"));
    assert!(said.contains("FAIL  plugin.found") && !said.contains('\u{1b}'), "{said}");
}
