//! The same plugin file over every software provider, on both libraries, and by every path of the protocol.
//!
//! Cases of the second library are ignored if it is not there.

#[path = "vfabric/fabric.rs"]
#[allow(dead_code, reason = "shared with the tests over the virtual fabric")]
mod fabric;
mod support;
#[path = "../crates/vfabric/tests/support/provider.rs"]
mod vfabric;

use std::process::ExitCode;

use fabric::Fabric;
use harness::{Test, second_libfabric};
use support::client;

fn main() -> ExitCode {
    let second = second_libfabric().map(drop);
    let tests = [
        Test::new(net_moves_data),
        Test::new(rxm_moves_data),
        Test::new(sockets_moves_data),
        Test::new(shm_moves_data),
        Test::new(tcp_of_the_second_library_moves_data).needs(second.clone()),
        Test::new(rxm_of_the_second_library_moves_data).needs(second.clone()),
        Test::new(sockets_of_the_second_library_moves_data).needs(second.clone()),
        Test::new(shm_of_the_second_library_moves_data).needs(second.clone()),
        Test::new(the_fin_path_moves_data),
        Test::new(the_fin_path_moves_data_over_shm),
        Test::new(virtual_addresses_and_provider_keys_move_data),
        Test::new(small_writes_make_many_parts_and_then_fins),
        Test::new(messages_that_never_travel_inline_move_data),
        Test::new(ends_with_unequal_rails_use_the_common_ones),
        Test::new(up_to_eight_rails_move_data),
        Test::new(the_second_library_moves_data_over_every_profile).needs(second.clone()),
        Test::new(efa_is_asked_for_its_options_on_the_rails_that_they_are_for)
            .needs(second.clone()),
        Test::new(only_efa_is_asked_for_its_options).needs(second.clone()),
        Test::new(writes_that_are_made_of_messages_move_data_with_one_warning)
            .needs(second.clone()),
        Test::new(nccl_gets_simple_alone_where_efa_makes_writes_of_messages).needs(second.clone()),
        Test::new(completions_prove_arrival_only_where_protocol_and_options_say_so)
            .needs(second.clone()),
        Test::new(the_log_says_by_what_completions_prove_arrival).needs(second),
    ];
    harness::run(tests)
}

/// v12 is the native table, v8 the one with `int` sizes and truncation.
fn both_ways(settings: &[(&str, &str)]) {
    client::run(12, "pair", settings);
    client::run(12, "self", settings);
    client::run(8, "pair", settings);
}

/// The same with the second library.
fn on_the_second_library(settings: &[(&str, &str)]) {
    let library = second();
    both_ways(&[settings, &[("IRONRAIL_LIBFABRIC", &*library)]].concat());
}

fn second() -> String {
    let file = second_libfabric().expect("the test runs only where it is");
    file.into_os_string().into_string().expect("its path is text")
}

fn net_moves_data() {
    both_ways(&[("IRONRAIL_PROVIDER", "net")]);
}

fn rxm_moves_data() {
    both_ways(&[("IRONRAIL_PROVIDER", "tcp;ofi_rxm")]);
}

fn sockets_moves_data() {
    both_ways(&[("IRONRAIL_PROVIDER", "sockets")]);
}

fn shm_moves_data() {
    both_ways(&[("IRONRAIL_PROVIDER", "shm"), ("IRONRAIL_RAILS", "")]);
}

fn tcp_of_the_second_library_moves_data() {
    on_the_second_library(&[("IRONRAIL_PROVIDER", "tcp")]);
}

fn rxm_of_the_second_library_moves_data() {
    on_the_second_library(&[("IRONRAIL_PROVIDER", "tcp;ofi_rxm")]);
}

fn sockets_of_the_second_library_moves_data() {
    on_the_second_library(&[("IRONRAIL_PROVIDER", "sockets")]);
}

fn shm_of_the_second_library_moves_data() {
    on_the_second_library(&[("IRONRAIL_PROVIDER", "shm"), ("IRONRAIL_RAILS", "")]);
}

fn the_fin_path_moves_data() {
    for provider in ["net", "tcp;ofi_rxm", "sockets"] {
        both_ways(&[("IRONRAIL_PROVIDER", provider), ("IRONRAIL_FORCE_FIN", "1")]);
    }
}

fn the_fin_path_moves_data_over_shm() {
    let settings =
        [("IRONRAIL_PROVIDER", "shm"), ("IRONRAIL_RAILS", ""), ("IRONRAIL_FORCE_FIN", "1")];
    both_ways(&settings);
}

fn virtual_addresses_and_provider_keys_move_data() {
    for provider in ["net", "tcp;ofi_rxm"] {
        both_ways(&[("IRONRAIL_PROVIDER", provider), ("IRONRAIL_BASIC_REGIONS", "1")]);
    }
}

fn small_writes_make_many_parts_and_then_fins() {
    for bytes in ["4096", "65536"] {
        both_ways(&[("IRONRAIL_PROVIDER", "net"), ("IRONRAIL_LARGEST_WRITE", bytes)]);
    }
}

fn messages_that_never_travel_inline_move_data() {
    for provider in ["net", "tcp;ofi_rxm"] {
        both_ways(&[("IRONRAIL_PROVIDER", provider), ("IRONRAIL_INLINE_MAX_SIZE", "0")]);
    }
}

fn ends_with_unequal_rails_use_the_common_ones() {
    let three = "127.0.0.1,127.0.0.2,127.0.0.3";
    for (ours, theirs) in
        [("127.0.0.1", three), (three, "127.0.0.1"), (three, "127.0.0.4,127.0.0.5")]
    {
        client::run(12, "pair", &[("IRONRAIL_RAILS", ours), ("CLIENT_OTHER_RAILS", theirs)]);
    }
}

fn up_to_eight_rails_move_data() {
    for rails in [1, 2, 3, 4, 5, 8] {
        let names: Vec<_> = (1..=rails).map(|rail| format!("127.0.0.{rail}")).collect();
        let most = rails.to_string();
        client::run(
            12,
            "pair",
            &[("IRONRAIL_RAILS", &names.join(",")), ("IRONRAIL_MAX_RAILS", &most)],
        );
    }
}

fn the_second_library_moves_data_over_every_profile() {
    let library = second();
    let second = ("IRONRAIL_LIBFABRIC", &*library);
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        Fabric::client(profile, 12, &[second]).is_clean();
        Fabric::all_reduce(profile, &[second]).is_clean();
    }
}

/// EFA's wire by the virtual fabric, which does not write lines in order: the option is set on every rail, and data
/// rails tolerate the refusal.
fn efa_is_asked_for_its_options_on_the_rails_that_they_are_for() {
    let library = second();
    let report = Fabric::client("efa", 12, &[("IRONRAIL_LIBFABRIC", &*library)]);
    report.is_clean();
    // Of each of the four NICs one endpoint finds out whether lines are written in order, and is closed again.
    let tried = 4;
    let endpoints = report.number("opened endpoints") - tried;
    assert!(endpoints > 0);
    assert_eq!(report.number("counter options.shared_memory"), endpoints);
    assert_eq!(report.number("counter options.lines_refused"), endpoints / 2 + tried, "data rails");
}

fn only_efa_is_asked_for_its_options() {
    let library = second();
    for profile in ["cxi", "tcp", "adversary"] {
        let report = Fabric::client(profile, 12, &[("IRONRAIL_LIBFABRIC", &*library)]);
        for name in ["shared_memory", "lines_refused"] {
            assert_eq!(report.number(&format!("counter options.{name}")), 0, "{profile}: {name}");
        }
    }
}

/// The device is asked for lines in order whether or not its writes are used.
fn nccl_gets_simple_alone_where_efa_makes_writes_of_messages() {
    let library = second();
    for (lines, emulated, is_simple) in
        [("0", "0", true), ("1", "0", false), ("1", "1", true), ("1", "unreadable", true)]
    {
        let settings = [
            ("IRONRAIL_LIBFABRIC", &*library),
            ("VFABRIC_LINES", lines),
            ("VFABRIC_EMULATED", emulated),
        ];
        let fabric = Fabric::new("efa", &settings);
        let output = fabric.perf("sendrecv").arg("--verbose").output().expect("the command runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains("NCCL_PROTO=Simple is set"), is_simple, "{settings:?}: {said}");
        let report = fabric.report();
        report.is_clean();
        assert_eq!(report.number("counter options.lines") > 0, lines == "1");
    }
}

fn writes_that_are_made_of_messages_move_data_with_one_warning() {
    let library = second();
    let settings = [("IRONRAIL_LIBFABRIC", &*library), ("VFABRIC_EMULATED", "1")];
    let fabric = Fabric::new("efa", &settings);
    let output = fabric.perf("sendrecv").arg("--verbose").output().expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("emulates writes by messages").count(), 1, "{said}");
    fabric.report().is_clean();
}

/// Profile, what is said of it, and whether completions prove arrival then; with it what the log says.
const PROOFS: [(&str, &str, &str, bool, &str); 11] = [
    (
        "efa",
        "VFABRIC_EMULATED",
        "0",
        true,
        "by FI_PROTO_EFA version 4, FI_OPT_EFA_EMULATED_WRITE = false",
    ),
    ("efa", "VFABRIC_EMULATED", "1", false, "FI_OPT_EFA_EMULATED_WRITE reads true"),
    ("efa", "VFABRIC_EMULATED", "unreadable", false, "FI_OPT_EFA_EMULATED_WRITE cannot be read"),
    ("efa", "VFABRIC_SHARED_MEMORY", "read", true, "FI_OPT_SHARED_MEMORY_PERMITTED = false"),
    ("efa", "VFABRIC_SHARED_MEMORY", "stuck", false, "FI_OPT_SHARED_MEMORY_PERMITTED reads true"),
    (
        "efa",
        "VFABRIC_SHARED_MEMORY",
        "refused",
        false,
        "FI_OPT_SHARED_MEMORY_PERMITTED cannot be set to false",
    ),
    ("efa", "VFABRIC_PROTOCOL", "20.5", false, "FI_PROTO_EFA version 5 is not in the table"),
    ("cxi", "VFABRIC_PROTOCOL", "29", true, "by FI_PROTO_CXI_RNR version 1"),
    ("cxi", "VFABRIC_PROTOCOL", "24.2", false, "FI_PROTO_CXI version 2 is not in the table"),
    ("cxi", "VFABRIC_PROTOCOL", "63", false, "protocol 63 is not in the table"),
    ("cxi", "VFABRIC_PROTOCOL", "11", false, "FI_PROTO_RXM"),
];

/// A receive of optional completion ends early only where completions prove arrival, and nothing may come without an advert.
fn completions_prove_arrival_only_where_protocol_and_options_say_so() {
    let library = second();
    for (profile, name, value, proven, _) in PROOFS {
        let file = format!("providers-{profile}-{name}-{value}-{}", std::process::id());
        let stats = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
        let settings = [
            ("IRONRAIL_LIBFABRIC", &*library),
            ("IRONRAIL_STATS_FILE", stats.to_str().expect("the target folder is text")),
            ("IRONRAIL_INLINE_MAX_SIZE", "0"),
            (name, value),
        ];
        Fabric::client(profile, 12, &settings).is_clean();
        let text = std::fs::read_to_string(&stats).expect("the plugin leaves its counters");
        std::fs::remove_file(&stats).expect("it is a file");
        let counted: serde_json::Value = serde_json::from_str(&text).expect("the file is JSON");
        let early = counted["counters"]["early_receives"].as_u64().expect("it is counted");
        assert_eq!(early > 0, proven, "{profile}, {name}={value}: {early}");
    }
}

fn the_log_says_by_what_completions_prove_arrival() {
    let library = second();
    for (profile, name, value, proven, why) in PROOFS.into_iter().step_by(2) {
        let settings =
            [("IRONRAIL_LIBFABRIC", &*library), ("IRONRAIL_LOG_LEVEL", "debug"), (name, value)];
        let fabric = Fabric::new(profile, &settings);
        let output = fabric.perf("sendrecv").env("RUST_LOG", "plugin=trace").output();
        let output = output.expect("the command runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let verb = if proven { "prove arrival, " } else { "do not prove arrival, " };
        let says = |line: &str| line.contains(verb) && line.contains(why);
        assert!(said.lines().any(says), "{profile}, {name}={value}: {said}");
        fabric.report().is_clean();
    }
}
