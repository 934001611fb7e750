//! `ironrail perf raw` and `versus-raw`, and what the plugin counts, over this machine's libfabric; ignored where that lacks the provider.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/built.rs"]
mod built;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use fabric::{Library, Query};
use harness::{Need, Test, network_namespaces, second_libfabric};

fn main() -> ExitCode {
    harness::run([
        Test::new(bare_writes_move_over_net).needs(offers("net")),
        Test::new(bare_writes_move_over_rxm).needs(offers("tcp;ofi_rxm")),
        Test::new(bare_writes_move_over_sockets).needs(offers("sockets")),
        Test::new(bare_writes_move_over_shm).needs(offers("shm")),
        Test::new(endpoints_are_opened_as_the_plugin_opens_them_on_cxi).needs(opens()),
        Test::new(endpoints_are_opened_as_the_plugin_opens_them_on_efa)
            .needs(second_libfabric().map(drop)),
        Test::new(a_libfabric_that_is_not_there_is_said_in_one_sentence),
        Test::new(where_the_loopback_interface_is_down_the_error_says_so)
            .needs(network_namespaces()),
        Test::new(empty_variables_are_as_if_they_were_unset).needs(offers("net")),
        Test::new(each_way_of_bare_libfabric_takes_the_posts_that_it_says).needs(offers("net")),
        Test::new(each_size_has_the_memory_that_its_slots_take).needs(offers("net")),
        Test::new(the_counters_of_all_ranks_are_summed).needs(offers("net")),
        Test::new(an_algorithm_is_that_of_every_form_of_all_reduce).needs(offers("net")),
        Test::new(the_plugin_of_this_tree_is_held_to_every_way_of_bare_libfabric_by_pairs_of_runs)
            .needs(offers("net")),
        Test::new(options_that_do_not_go_together_are_a_wrong_command_line),
    ])
}

/// Whether this machine's libfabric has the provider.
fn offers(provider: &str) -> Need {
    let library =
        Library::open(&["libfabric.so.1"]).map_err(|error| format!("libfabric ({error})"))?;
    let query = Query { provider: Some(provider.to_owned()), ..Query::default() };
    let found =
        library.find(&query).map_err(|error| format!("libfabric that answers ({error})"))?;
    if found.iter().any(|info| info.provider() == provider) {
        return Ok(());
    }
    Err(format!("a libfabric {} with the provider {provider}", library.version()))
}

/// Whether this machine has a libfabric.
fn opens() -> Need {
    let opened = Library::open(&["libfabric.so.1"]);
    opened.map(drop).map_err(|error| format!("libfabric ({error})"))
}

fn perf(arguments: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.arg("perf").args(arguments.split_whitespace());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn rows(table: &str) -> usize {
    table.lines().filter(|line| !line.starts_with('#')).count()
}

fn bare_writes_move_over_net() {
    bare_writes_move_in_bulk_and_back_and_forth("--provider net");
}

fn bare_writes_move_over_rxm() {
    bare_writes_move_in_bulk_and_back_and_forth("--provider tcp;ofi_rxm");
}

fn bare_writes_move_over_sockets() {
    bare_writes_move_in_bulk_and_back_and_forth("--provider sockets");
}

fn bare_writes_move_over_shm() {
    bare_writes_move_in_bulk_and_back_and_forth("--provider shm --source none");
}

fn bare_writes_move_in_bulk_and_back_and_forth(provider: &str) {
    for mode in [
        "",
        "--latency",
        "--latency --no-inject",
        "--latency --ahead 8",
        "--window 32",
        "--answered --window 3",
        "--two-sided",
        "--two-sided --unanswered --window 3",
        "--two-sided --latency",
        "--two-sided --latency --no-inject --ahead 8",
        "--rendezvous",
        "--rendezvous --window 32 --no-inject",
        "--rendezvous --latency",
        "--rendezvous --latency --no-inject --ahead 8",
    ] {
        let (code, table, errors) =
            perf(&format!("raw {provider} {mode} -b 8 -e 512K -f 16 -n 40"));
        assert_eq!(code, 0, "{provider} {mode}: {table}{errors}");
        assert_eq!(rows(&table), 5, "{provider} {mode}: {table}");
    }
}

/// The figures are the reference for the plugin's.
fn endpoints_are_opened_as_the_plugin_opens_them_on_cxi() {
    for said in reports("cxi", Path::new("libfabric.so.1")) {
        assert!(said.contains("\ncounter endpoints.with_descriptors 1\n"), "{said}");
        assert!(!said.contains("\ncounter endpoints.receiving "), "{said}");
    }
}

/// The options are newer than libfabric 1.17.
fn endpoints_are_opened_as_the_plugin_opens_them_on_efa() {
    for said in reports("efa", &second_libfabric().unwrap()) {
        assert!(said.contains("\ncounter options.shared_memory 1\n"), "{said}");
        assert!(said.contains("\ncounter options.lines"), "granted or refused: {said}");
    }
}

/// What the virtual fabric counts in this profile. Its ranks, two processes, do not meet there, and one may be killed before it has written.
fn reports(profile: &str, libfabric: &Path) -> Vec<String> {
    let provider = built::library("vfabric", "libvfabric_fi.so");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("raw-{profile}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    let arguments = "perf raw --provider vfabric --source none --timeout 2 -b 8 -e 8 -n 2";
    command.args(arguments.split(' ')).arg("--libfabric").arg(libfabric);
    command.env("FI_PROVIDER_PATH", provider.parent().unwrap()).env("FI_PROVIDER", "vfabric");
    command.env("VFABRIC_PROFILE", profile).env("VFABRIC_REPORT", folder.join("%p"));
    let Output { stderr, .. } = command.output().unwrap();
    let files = fs::read_dir(&folder).unwrap();
    let said: Vec<_> =
        files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    assert!(!said.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    said
}

fn a_libfabric_that_is_not_there_is_said_in_one_sentence() {
    let output = Command::new(env!("CARGO_BIN_EXE_ironrail"))
        .args(["perf", "raw", "--libfabric", "/no/such/libfabric.so.1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    let sentence = "ranks 0, 1: no usable libfabric: /no/such/libfabric.so.1: cannot open";
    assert_eq!(errors.matches(sentence).count(), 1, "{errors}");
}

/// Ranks of this machine meet there. A new network namespace has the interface, down.
fn where_the_loopback_interface_is_down_the_error_says_so() {
    let mut command = Command::new("unshare");
    command.arg("-rn").arg(env!("CARGO_BIN_EXE_ironrail")).args(["perf", "raw"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("`ip link set lo up`"), "{errors}");
}

/// As a container may pass them on, and as the plugin takes them.
fn empty_variables_are_as_if_they_were_unset() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["perf", "raw", "-b", "8", "-e", "8", "-n", "3"]);
    command.env("IRONRAIL_PROVIDER", "").env("IRONRAIL_LIBFABRIC", "");
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{errors}");
}

/// The posts of 40 and 5 messages of each of two ranks, and of as many warm-ups as were asked for.
fn each_way_of_bare_libfabric_takes_the_posts_that_it_says() {
    for (mode, messages, posts) in [
        ("--latency", 90, 90),
        ("--latency --two-sided", 90, 90),
        ("--latency --rendezvous", 90, 180),
        ("--latency --rendezvous --no-inject --ahead 8", 90, 180),
        ("", 45, 45),
        ("--rendezvous --window 3", 45, 90),
        // Every half window, and once at the end of each round, is acknowledged.
        ("--answered", 45, 45 + 2 + 10),
        ("--two-sided", 45, 45 + 2 + 10),
    ] {
        for bytes in ["8", "64K"] {
            let arguments = format!("raw {mode} -b {bytes} -e {bytes} -n 40 -w 5 --writes --json");
            let (code, text, errors) = perf(&arguments);
            assert_eq!(code, 0, "{mode}: {text}{errors}");
            let json: serde_json::Value = serde_json::from_str(&text).unwrap();
            let writes = &json["writes"][0];
            let found = (&writes["by"], &writes["messages"], &writes["outgoing"]);
            let expected = (&"raw".into(), &messages.into(), &posts.into());
            assert_eq!(found, expected, "{mode}, {bytes}: {text}");
        }
    }
}

/// Of 64 MiB four slots are used, of 100 MiB two; the last size is no whole number of elements, and of the whole ones one more fits.
fn each_size_has_the_memory_that_its_slots_take() {
    let net = format!(" --net {}", plugin().display());
    for arguments in [
        "raw --two-sided -b 64M -e 100M -i 36M",
        "raw -b 33554433 -e 33554433",
        "raw --rendezvous -b 33554433 -e 33554433",
        "sendrecv -c 0 -b 33554433 -e 33554433",
        "pingpong -c 0 --ahead 8 -b 33554433 -e 33554433",
    ] {
        let net = if arguments.starts_with("raw") { String::new() } else { net.clone() };
        let (code, table, errors) = perf(&format!("{arguments} -n 8 -w 0{net}"));
        assert_eq!(code, 0, "{arguments}: {table}{errors}");
    }
}

/// The plugin of this tree.
fn plugin() -> PathBuf {
    built::library("ironrail", "libnccl_net_ironrail.so")
}

/// Of both ranks: one rank sends half of the messages of a ping-pong.
fn the_counters_of_all_ranks_are_summed() {
    for (benchmark, messages) in [("pingpong", 90), ("sendrecv --one-way --window 5", 45)] {
        let arguments = format!(
            "{benchmark} -b 64K -e 64K -n 40 -w 5 -c 0 --writes --json --net {}",
            plugin().display()
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
        command.arg("perf").args(arguments.split_whitespace());
        let Output { status, stdout, .. } =
            command.env("IRONRAIL_RAILS", "127.0.0.1").output().unwrap();
        let text = String::from_utf8(stdout).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let (rail, writes) = (&json["rails"][0], &json["writes"][0]);
        assert!(status.success(), "{text}");
        // The probe of each rank writes little, and a few times.
        let bytes = rail["data_bytes"].as_u64().unwrap();
        assert!((messages << 16..(messages << 16) + 4096).contains(&bytes), "{text}");
        assert_eq!((&writes["by"], &writes["messages"]), (&"plugin".into(), &messages.into()));
        let data = writes["posts"]["data"]["writes"].as_u64().unwrap();
        assert!((messages..messages + 20).contains(&data), "{text}");
        assert!(writes["outgoing"].as_u64() > Some(data), "the receiver announces: {text}");
    }
}

/// One-phase sends three times the bytes that the built-in table's mesh does among four ranks, half of each.
fn an_algorithm_is_that_of_every_form_of_all_reduce() {
    for form in ["", "--in-place"] {
        let arguments = format!(
            "all_reduce {form} --algorithm one-phase -r 4 -b 1M -e 1M -n 5 -w 0 -c 0 --json --net {}",
            plugin().display()
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
        command.arg("perf").args(arguments.split_whitespace());
        let output = command.env("IRONRAIL_RAILS", "127.0.0.1").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let bytes = json["rails"][0]["data_bytes"].as_u64().unwrap();
        assert_eq!(bytes >> 20, 4 * 3 * 5, "{form}: {text}");
    }
}

fn the_plugin_of_this_tree_is_held_to_every_way_of_bare_libfabric_by_pairs_of_runs() {
    let plugin = plugin();
    for mode in [
        "--latency",
        "--latency --ahead 8",
        "--latency --two-sided",
        "--latency --rendezvous",
        "--window 4 --answered",
        "--rate --window 32",
    ] {
        let arguments =
            format!("versus-raw {mode} --runs 6 --precision 0.01 -b 64 -e 64 -n 50 --json --net");
        let (code, text, errors) = perf(&format!("{arguments} {}", plugin.display()));
        assert_eq!(code, 0, "{mode}: {text}{errors}");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let row = &json["results"][0];
        let [low, high] = [&row["interval"][0], &row["interval"][1]].map(|end| end.as_f64());
        let ratio = row["ratio"].as_f64();
        assert!(low <= ratio && ratio <= high && low > Some(0.0), "{mode}: {text}");
        let pairs = row["ratios"].as_array().unwrap().len();
        assert_eq!((&row["pairs"], pairs), (&6.into(), 6), "{mode}: {text}");
        let sides = ["plugin", "raw"].repeat(3);
        assert_eq!(json["first_of_pair"], serde_json::json!(sides), "{mode}: {text}");
        // No machine is that quiet.
        let why = row["refused"].as_str().unwrap();
        assert!(row["verdict"].is_null() && why.contains("0.01 % is asked"), "{mode}: {text}");
    }
    for (kind, size) in [("int8", "3"), ("float", "6")] {
        let odd = format!("versus-raw --latency --runs 1 -d {kind} -b {size} -e {size} -n 5 --net");
        let (code, table, errors) = perf(&format!("{odd} {}", plugin.display()));
        assert_eq!((code, rows(&table)), (0, 1), "{kind}: {table}{errors}");
    }
    let few =
        format!("versus-raw -v --latency --runs 3 -b 8 -e 8 -n 20 --net {}", plugin.display());
    let (code, table, errors) = perf(&few);
    assert_eq!((code, rows(&table)), (0, 1), "{table}{errors}");
    assert!(table.contains("# 8 bytes, no verdict: no interval of 95 %"), "{table}");
    assert!(errors.contains("pair 1 of 3\n") && errors.contains("pair 3 of 3\n"), "{errors}");
    assert!(errors.contains("[INFO  plugin] "), "{errors}");
}

fn options_that_do_not_go_together_are_a_wrong_command_line() {
    for wrong in [
        "raw -r 1",
        "raw -r 3 --latency",
        "raw --latency --window 8",
        "raw --ahead 2",
        "raw --rendezvous --two-sided",
        "raw --rendezvous --answered",
        "raw --two-sided --latency --unanswered",
        "raw --writes -b 8 -e 16",
        "raw --threads -b 8 -e 8",
        "raw --version-table",
        "raw -c 1",
        "raw -o sum",
        "raw --root 0",
        "raw --net plugin.so",
        "raw --abi 12",
        "raw --device 0",
        "versus-raw --latency --window 8",
        "versus-raw --ahead 8",
        "versus-raw --rendezvous --rate",
        "versus-raw --precision 0",
        "versus-raw --bound -1",
        "versus-raw --writes -b 8 -e 8",
        "versus-raw --report page.html",
    ] {
        let (code, _, errors) = perf(wrong);
        assert_eq!(code, 2, "{wrong}: {errors}");
    }
}
