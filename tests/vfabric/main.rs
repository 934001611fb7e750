//! The plugin over the virtual fabric: every profile moves its data, and no rule of the provider is broken.
//!
//! The strict provider reports that itself, in a file that each run leaves (docs/vfabric.md): broken rules, counters, and what is open at
//! the end.

mod any_order;
mod census;
mod classes;
mod closing;
mod connecting;
mod counted;
mod deaf;
mod exits;
mod fabric;
mod flush;
mod fused;
mod gone;
mod hung;
mod inline;
mod lines;
mod link;
mod lost;
mod missing;
mod mixed;
mod nameless;
mod probing;
mod rails;
mod sharing;
mod silence;
mod stalls;
#[path = "../support/mod.rs"]
mod support;
mod together;
#[path = "../../crates/vfabric/tests/support/provider.rs"]
mod vfabric;
mod world;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fabric::Fabric;
use support::stage::play;
use together::close_together;
use world::{End, World, provider};

/// Longer than any run takes on a busy machine.
const HANG: Duration = Duration::from_secs(120);

#[track_caller]
fn moves_data(profile: &str) {
    Fabric::client(profile, 12, &[]).is_clean();
    Fabric::client(profile, 8, &[]).is_clean();
    for operation in ["all_reduce", "all_gather", "reduce_scatter", "sendrecv"] {
        Fabric::two_threads(operation, profile, &[]).is_clean();
    }
}

/// Two calls at once on objects that libfabric permits one thread at a time (FI_THREAD_DOMAIN) are a broken rule.
#[test]
fn service_and_progress_threads_never_meet_in_the_provider() {
    for profile in ["cxi", "adversary"] {
        Fabric::stress(profile).is_clean();
    }
}

#[test]
fn cxi_moves_data() {
    moves_data("cxi");
}

#[test]
fn efa_moves_data() {
    moves_data("efa");
}

#[test]
fn tcp_moves_data() {
    moves_data("tcp");
}

#[test]
fn the_adversary_moves_data() {
    moves_data("adversary");
}

/// Immediates granted and refused, regions addressed by offsets and by addresses, on endpoints of their own.
#[test]
fn every_form_of_cxi_moves_data() {
    for immediates in ["0", "1"] {
        for regions in ["endpoint,prov_key,allocated", "endpoint,virt_addr", "endpoint,local"] {
            let settings = [("VFABRIC_IMMEDIATES", immediates), ("VFABRIC_REGIONS", regions)];
            let report = Fabric::client("cxi", 12, &settings);
            report.is_clean();
            assert_eq!(report.number("counter arrivals") > 0, immediates == "1", "{regions}");
        }
    }
}

/// cxi grants immediates to a process that has the variable when libfabric loads it. The plugin sets it before, unless the user gave it a
/// value.
#[test]
fn variables_that_a_provider_reads_when_it_loads_are_set_before() {
    let immediates = ("VFABRIC_IMMEDIATES", "variable");
    let report = Fabric::client("cxi", 12, &[immediates]);
    report.is_clean();
    assert!(report.number("counter arrivals") > 0, "{report:#?}");
    let report = Fabric::client("cxi", 12, &[immediates, ("FI_CXI_ENABLE_WRITEDATA", "0")]);
    report.is_clean();
    assert_eq!(report.number("counter arrivals"), 0, "a user's value stays: {report:#?}");
}

/// Once per process, whatever the number of communicators; what a site sets otherwise is not changed.
#[test]
fn variables_that_are_set_for_providers_are_logged_once() {
    let said = play(&[provider()], Duration::from_secs(60), |part| {
        let World { nets, fabric } = World::open_and_say(part, "cxi", [1, 1], "info");
        let ends = nets.map(End::open);
        close_together(ends);
        let value = |name: &str| std::env::var(name).ok();
        assert_eq!(value("FI_CXI_ENABLE_WRITEDATA").as_deref(), Some("1"));
        assert_eq!(value("FI_MR_CACHE_MONITOR"), None);
        fabric.is_clean();
    });
    let lines = said.lines().filter(|line| line.contains("FI_CXI_ENABLE_WRITEDATA=1 is set"));
    assert_eq!(lines.count(), 1, "{said}");
    assert!(!said.contains("FI_MR_CACHE_MONITOR"), "{said}");
}

#[test]
fn refused_posts_lose_nothing() {
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        for seed in ["1", "2"] {
            let settings = [("VFABRIC_EAGAIN", "300"), ("VFABRIC_SEED", seed)];
            let report = Fabric::client(profile, 12, &settings);
            report.is_clean();
            assert!(report.number("counter faults.refuse_random") > 20, "{report:#?}");
        }
    }
}

/// The C client marks most of its receives so. They complete early where writes land by themselves, completions prove it, and no message is
/// sent before its receive. Whether efa's completions prove it depends on libfabric: tests/providers.rs.
#[test]
fn receives_whose_completion_is_optional_end_early_where_no_call_is_needed() {
    for (profile, early) in [("cxi", true), ("tcp", false)] {
        let stats = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("vfabric-early-{profile}-{}", std::process::id()));
        let path = stats.to_str().expect("the target folder is text");
        let settings = [("IRONRAIL_STATS_FILE", path), ("IRONRAIL_INLINE_MAX_SIZE", "0")];
        Fabric::client(profile, 12, &settings).is_clean();
        let text = std::fs::read_to_string(&stats).expect("the plugin leaves its counters");
        std::fs::remove_file(&stats).expect("it is a file");
        let counted: serde_json::Value = serde_json::from_str(&text).expect("the file is JSON");
        let counted = counted["counters"]["early_receives"].as_u64().expect("it is counted");
        assert_eq!(counted > 0, early, "{profile}: {counted}");
    }
}

/// By two ledgers: the posts that libfabric accepted, counted by the plugin, and those that the provider accepted, with and without refused
/// posts.
#[test]
fn the_plugin_counts_the_posts_that_the_fabric_accepted() {
    let kinds: [(&str, &[&str]); 6] = [
        ("writes", &["write", "writedata"]),
        ("injected_writes", &["inject_write", "inject_writedata"]),
        ("sends", &["send"]),
        ("injected_sends", &["inject"]),
        ("reads", &["read"]),
        ("receives", &["recv"]),
    ];
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        for eagain in ["0", "300"] {
            let stats = Path::new(env!("CARGO_TARGET_TMPDIR"))
                .join(format!("vfabric-posts-{profile}-{eagain}-{}", std::process::id()));
            let path = stats.to_str().expect("the target folder is text");
            let settings = [("IRONRAIL_STATS_FILE", path), ("VFABRIC_EAGAIN", eagain)];
            let report = Fabric::client(profile, 12, &settings);
            report.is_clean();
            let text = std::fs::read_to_string(&stats).expect("the plugin leaves its counters");
            std::fs::remove_file(&stats).expect("it is a file");
            let json: serde_json::Value = serde_json::from_str(&text).expect("the file is JSON");
            let rails = json["rails"].as_array().expect("a list of rails");
            let counted = |side: &str, kind: &str| -> u64 {
                rails
                    .iter()
                    .map(|rail| rail[side][kind].as_u64().expect("each kind is named"))
                    .sum()
            };
            let mut all = 0;
            for (kind, names) in kinds {
                let ours = counted("data", kind) + counted("control", kind);
                let accepted = |name: &&str| report.number(&format!("counter accepted.{name}"));
                let theirs: u64 = names.iter().map(accepted).sum();
                assert_eq!(ours, theirs, "{profile}, {eagain}, {kind}: {text}{report:#?}");
                all += ours;
            }
            let refused = report.number("counter faults.refuse_random");
            assert!(all > 100 && (refused > 20) == (eagain != "0"), "{profile}: {report:#?}");
        }
    }
}

/// The first posts of an endpoint are the receives for peers' messages: without them it could receive nothing.
#[test]
fn receives_that_were_refused_are_posted_later() {
    let report = Fabric::all_reduce("cxi", &[("VFABRIC_FAULTS", "refuse=1-300")]);
    report.is_clean();
    assert_eq!(report.number("counter faults.refuse"), 300);
}

/// The end of such a run: it ends, with success or a named error, has no wrong element, and breaks no rule. After a failure, a peer's late
/// write may target a region that its owner has closed: the key is refused, and no byte lands.
fn fails(profile: &str, faults: &'static str) {
    let settings = [("VFABRIC_FAULTS", faults), ("VFABRIC_TOLERATE", "closed")];
    let fabric = Fabric::new(profile, &settings);
    let (output, ended) = output_within(&mut fabric.perf("all_reduce"), HANG);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(ended, "{profile}, {faults}: it hangs: {said}");
    let named = said.lines().any(|line| line.starts_with("ironrail: "));
    assert!(output.status.success() || named, "{profile}, {faults}: {}: {said}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    let wrong = printed.lines().find_map(|line| line.strip_prefix("# Out of bounds values : "));
    let none = wrong.is_none_or(|wrong| wrong.starts_with("0 "));
    assert!(none, "{profile}, {faults}: {printed}");
    let report = fabric.report();
    assert_eq!(report.number("violations"), 0, "{profile}, {faults}: {:#?}", report.violations);
    let fault = faults.split('=').next().expect("a split has a first piece");
    assert_eq!(report.number(&format!("counter faults.{fault}")), 1, "{profile}, {faults}");
}

/// What a command that prints little has printed, and whether it ended in time; else it is killed.
fn output_within(command: &mut Command, bound: Duration) -> (Output, bool) {
    let mut command =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let start = Instant::now();
    let ended = loop {
        if command.try_wait().expect("it is our child").is_some() {
            break true;
        }
        if start.elapsed() > bound {
            command.kill().expect("it is our child");
            break false;
        }
        thread::sleep(Duration::from_millis(5));
    };
    (command.wait_with_output().expect("it is our child"), ended)
}

#[test]
fn failures_end_in_time_and_break_no_rule() {
    for profile in ["cxi", "efa", "adversary"] {
        fails(profile, "fail=60");
        fails(profile, "fail_late=60");
        fails(profile, "reject=300");
    }
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        fails(profile, "kill=1@200");
    }
}

#[test]
fn virtual_time_moves_data() {
    let settings =
        [("VFABRIC_CLOCK", "virtual"), ("VFABRIC_BANDWIDTH", "100000,100000,10000,50000")];
    let report = Fabric::all_reduce("efa", &settings);
    report.is_clean();
    assert!(report.number("clock") > 100_000, "{report:#?}");
}

/// In profile tcp an operation's bytes wait for one more poll of a sender that has read its completion. A receiver that has reported its
/// last message makes none, like ranks that wait for each other outside of the plugin.
#[test]
fn the_last_done_leaves_before_its_receive_is_reported() {
    Fabric::all_reduce("tcp", &[]).is_clean();
}
