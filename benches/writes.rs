//! Counts how many writes, sends and injects of both processes a message takes: back and forth with one receive posted, and one
//! way with windows of 8 and 32.
//!
//! `ironrail perf --writes` counts them, and two runs of different length are subtracted, so that connecting and closing cancel
//! out. Over the virtual fabric its own ledger is printed, and the plugin's counters have to agree with it.
//!
//! `cargo bench --bench writes [-- PROVIDER…]`: providers of libfabric, or `vfabric:` and a profile. Without any, `net` (or what
//! IRONRAIL_PROVIDER names) and two profiles.
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../crates/vfabric/tests/support/provider.rs"]
mod vfabric;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What is measured, as perf spells it.
const PATTERNS: [(&str, &[&str]); 3] = [
    ("ping-pong, 1 posted", &["pingpong", "--ahead", "1"]),
    ("window 8", &["sendrecv", "--one-way", "--window", "8"]),
    ("window 32", &["sendrecv", "--one-way", "--window", "32"]),
];
const SIZES: [(&str, &str); 2] = [("8 B", "8"), ("64 KiB", "64K")];
/// Iterations of the two runs: multiples of every window.
const SHORT: u32 = 3_200;
const LONG: u32 = 16_000;

fn main() -> ExitCode {
    let mut over: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if over.is_empty() {
        over.push(std::env::var("IRONRAIL_PROVIDER").unwrap_or_else(|_| "net".to_owned()));
        over.extend(["vfabric:tcp".to_owned(), "vfabric:cxi".to_owned()]);
    }
    let (command, plugin, fabric) =
        (command(), support::optimised_plugin(), vfabric::optimised_file());
    println!(
        "writes, sends and injects of both processes per message, {SHORT} iterations taken from {LONG}"
    );
    print!("{:<14}", "over");
    for (pattern, _) in PATTERNS {
        for (size, _) in SIZES {
            print!(" | {:>26}", format!("{size} {pattern}"));
        }
    }
    println!();
    let mut agree = true;
    for name in &over {
        print!("{name:<14}");
        for (_, pattern) in PATTERNS {
            for (_, size) in SIZES {
                let run = |iterations: u32| {
                    let mut perf = Command::new(&command);
                    perf.arg("perf").args(pattern).args(["-b", size, "-e", size, "-c", "0"]);
                    perf.args(["-w", "320", "-n", &iterations.to_string(), "--writes", "--net"]);
                    perf.arg(&plugin);
                    over_fabric(&mut perf, name, &fabric);
                    ledgers(&support::output_of(&mut perf))
                };
                let (short, long) = (run(SHORT), run(LONG));
                assert_eq!(short.len(), long.len(), "{name}: the same is counted in each run");
                let each: Vec<_> = short.iter().zip(&long).map(|(a, b)| b.less(*a)).collect();
                // The fabric's is the last.
                let last = each.last().expect("the plugin counts its posts");
                print!(" | {last:>26.3}");
                agree &= long.iter().all(|ledger| *ledger == long[0]);
            }
        }
        println!();
    }
    if !agree {
        println!("the plugin counts other posts than the virtual fabric has accepted");
    }
    if agree { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The optimised command.
fn command() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/cli/Cargo.toml");
    let build = escargot::CargoBuild::new().manifest_path(manifest).bin("ironrail").release();
    build.run().expect("the command builds").path().to_owned()
}

/// The virtual fabric's ranks are threads of one process.
fn over_fabric(perf: &mut Command, name: &str, fabric: &Path) {
    match name.strip_prefix("vfabric:") {
        Some(profile) => {
            let folder = fabric.parent().expect("a file lies in a folder");
            perf.arg("--threads").env("FI_PROVIDER_PATH", folder).env("FI_PROVIDER", "vfabric");
            perf.env("VFABRIC_PROFILE", profile).env("IRONRAIL_RAILS", "vnic0");
            perf.env_remove("IRONRAIL_PROVIDER");
        }
        None => {
            perf.env("IRONRAIL_PROVIDER", name);
            if std::env::var_os("IRONRAIL_RAILS").is_none() {
                perf.env("IRONRAIL_RAILS", "127.0.0.1");
            }
        }
    }
}

/// What one ledger of a run says.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Posted {
    posts: u32,
    messages: u32,
}

impl Posted {
    fn less(self, other: Self) -> f64 {
        f64::from(self.posts - other.posts) / f64::from(self.messages - other.messages)
    }
}

/// The lines `# Writes per message   : 3.004 by …, 33010 for 22002 messages: …`, the plugin's first.
fn ledgers(table: &str) -> Vec<Posted> {
    let lines = table.lines().filter(|line| line.starts_with("# Writes per message"));
    let posted = lines.map(|line| {
        let (before, after) = line.split_once(" for ").expect("posts for messages");
        let number = |word: Option<&str>| word.and_then(|word| word.parse().ok());
        let posts = number(before.rsplit(' ').next());
        let messages = number(after.split(' ').next());
        let said = posts.zip(messages).map(|(posts, messages)| Posted { posts, messages });
        said.unwrap_or_else(|| panic!("{line}"))
    });
    posted.collect()
}
