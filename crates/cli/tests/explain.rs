//! `ironrail explain` and `ironrail info` over the plugin of this tree, and over one without an explanation.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/built.rs"]
mod built;
#[path = "support/ended.rs"]
mod ended;
#[path = "../../group/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use ended::ended;
use serde_json::Value;

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn plugin() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built::library("ironrail", "libnccl_net_ironrail.so"))
}

fn ironrail(arguments: &str, variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.env_clear().envs(variables.iter().copied()).args(arguments.split_whitespace());
    if !arguments.contains("--net") {
        command.arg("--net").arg(plugin());
    }
    ended(command)
}

fn setting(shown: &Value, name: &str) -> Value {
    let settings = shown["settings"].as_array().unwrap();
    settings.iter().find(|setting| setting["name"] == name).unwrap().clone()
}

#[test]
fn the_plugin_that_a_file_of_nccls_names_is_the_one_that_is_asked() {
    let file = Path::new(TEMPORARY).join(format!("explain-plugin-{}.conf", std::process::id()));
    let other = support::loopback(TEMPORARY);
    fs::write(&file, format!("NCCL_NET_PLUGIN={}\n", other.display())).unwrap();
    let info = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
        command.env_clear().envs(variables.iter().copied()).arg("info");
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let named = ("NCCL_CONF_FILE", file.to_str().unwrap());
    assert!(info(&[named]).starts_with("Loopback"), "{}", info(&[named]));
    let environment = ("NCCL_NET_PLUGIN", plugin().to_str().unwrap());
    assert!(info(&[named, environment]).starts_with("Ironrail"), "the environment is first");
    fs::remove_file(file).unwrap();
}

#[test]
fn each_setting_says_its_value_and_which_of_five_places_it_is_from() {
    let file = Path::new(TEMPORARY).join(format!("explain-{}.conf", std::process::id()));
    fs::write(&file, "IRONRAIL_JOB=seven\nIRONRAIL_MAX_RAILS=8\nOFI_NCCL_MIN_STRIPE_SIZE=4096\n")
        .unwrap();
    let variables = [
        ("NCCL_CONF_FILE", file.to_str().unwrap()),
        ("IRONRAIL_MAX_RAILS", "2"),
        ("OFI_NCCL_CQ_SIZE", "2048"),
    ];
    let (code, json, errors) = ironrail("explain --json", &variables);
    assert_eq!(code, 0, "{errors}");
    let shown: Value = serde_json::from_str(&json).unwrap();
    for (name, value, source) in [
        ("IRONRAIL_MAX_RAILS", "2", "environment"),
        ("IRONRAIL_CQ_ENTRIES", "2048", "alias"),
        ("IRONRAIL_JOB", "seven", "file"),
        ("IRONRAIL_STRIPE_MIN", "4096", "file"),
        ("IRONRAIL_CLOSE_TIMEOUT_MS", "1500", "default"),
    ] {
        let setting = setting(&shown, name);
        assert_eq!(
            (&setting["value"], &setting["source"]),
            (&value.into(), &source.into()),
            "{name}"
        );
    }
    let shown = ironrail("explain", &variables).1;
    assert!(
        shown.contains("IRONRAIL_JOB=seven  (from a file of NCCL's; default unset)"),
        "{shown}"
    );
    assert!(shown.contains("FI_TCP_MAX_RX_SIZE=128  (set by Ironrail, for tcp)"), "{shown}");
    fs::remove_file(file).unwrap();
}

#[test]
fn a_setting_is_explained_by_its_name_in_any_form_and_a_wrong_name_gets_similar_ones() {
    for name in ["stripe_min", "STRIPE_MIN", "IRONRAIL_STRIPE_MIN"] {
        let (code, shown, _) = ironrail(&format!("explain {name}"), &[]);
        assert_eq!(code, 0);
        assert!(shown.starts_with("IRONRAIL_STRIPE_MIN=128K  (default"), "{shown}");
        assert!(!shown.contains("MAX_RAILS"), "{shown}");
    }
    let (code, _, errors) = ironrail("explain rails_of", &[]);
    assert_eq!(code, 2);
    assert!(errors.contains("no setting IRONRAIL_RAILS_OF"), "{errors}");
}

#[test]
fn the_prefix_of_all_settings_makes_none_of_them_similar() {
    let (code, _, errors) = ironrail("explain rail", &[]);
    assert_eq!(code, 2, "{errors}");
    let names = "IRONRAIL_RAILS, IRONRAIL_MAX_RAILS, IRONRAIL_MAX_CONTROL_RAILS\n";
    assert!(errors.ends_with(&format!("there is {names}")), "{errors}");
}

#[test]
fn an_empty_name_of_a_plugin_is_a_wrong_command_line() {
    for command in ["explain", "info", "doctor", "conform", "perf all_reduce", "nccl all_reduce"] {
        for name in ["", ","] {
            let mut process = Command::new(env!("CARGO_BIN_EXE_ironrail"));
            process.args(command.split(' ')).args(["--net", name]);
            let Output { status, stderr, .. } = process.output().unwrap();
            let errors = String::from_utf8(stderr).unwrap();
            assert_eq!(status.code(), Some(2), "{command} {name:?}: {errors}");
            assert!(errors.contains("expected the name or file of a plugin"), "{errors}");
        }
    }
}

#[test]
fn the_first_of_a_list_of_plugins_is_explained() {
    let list = format!(",{},other", plugin().display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["explain", "max_rails"]).env("NCCL_NET_PLUGIN", list);
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(0), "{}", String::from_utf8_lossy(&stderr));
}

#[test]
fn an_inline_size_beyond_what_a_packet_has_room_for_is_shown_as_what_it_is_cut_to() {
    for (value, shown) in [("1M", "1M, in effect 4096"), ("4K", "4K"), ("40", "40")] {
        let (code, said, errors) =
            ironrail("explain inline_max_size", &[("IRONRAIL_INLINE_MAX_SIZE", value)]);
        assert_eq!(code, 0, "{errors}");
        let start = format!("IRONRAIL_INLINE_MAX_SIZE={shown}  (from the environment; default 4K)");
        assert!(said.starts_with(&start), "{said}");
    }
}

#[test]
fn a_negative_size_is_out_of_range() {
    let (code, _, errors) = ironrail("explain --size -1", &[]);
    assert_eq!(code, 2);
    assert!(errors.contains("expected bytes"), "{errors}");
}

#[test]
fn a_wrong_value_is_said_as_the_start_would_say_it() {
    for command in ["explain", "info"] {
        let (code, _, errors) = ironrail(command, &[("IRONRAIL_MAX_RAILS", "77")]);
        assert_eq!(code, 1, "{command}");
        assert!(
            errors.contains("IRONRAIL_MAX_RAILS=77 is not a value Ironrail can use"),
            "{errors}"
        );
    }
}

#[test]
fn info_shows_rails_what_was_probed_of_them_and_properties_for_nccl() {
    let rails = [("IRONRAIL_RAILS", "127.0.0.1,127.0.0.2")];
    let (code, json, errors) = ironrail("info --json", &rails);
    assert_eq!(code, 0, "{errors}");
    let found: Value = serde_json::from_str(&json).unwrap();
    let device = &found["explanation"]["devices"][0];
    assert_eq!(device["rails"].as_array().unwrap().len(), 2, "{json}");
    assert_eq!(device["rails"][1]["address"], "127.0.0.2");
    assert!(device["probed"]["immediate_bytes"].is_number(), "the probe is over: {json}");
    assert_eq!(found["properties"][0]["name"], "127.0.0.1+127.0.0.2");
    let shown = ironrail("info", &rails).1;
    assert!(shown.contains("device 0: 127.0.0.1+127.0.0.2\n"), "{shown}");
    assert!(shown.contains("for NCCL: 20000 Mb/s, memory of host"), "{shown}");
}

#[test]
fn info_names_the_commit_that_the_plugin_was_built_from() {
    let commit = option_env!("IRONRAIL_COMMIT").unwrap_or("unknown commit");
    let (_, shown, errors) = ironrail("info", &[]);
    assert!(shown.contains(&format!(" ({commit}, ")), "{shown}{errors}");
    let (_, json, _) = ironrail("explain --json", &[]);
    let shown: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(shown["commit"], commit);
}

/// Where the provider has no RMA, or IRONRAIL_PROTOCOL asks for messages.
#[test]
fn by_messages_a_size_and_the_device_are_explained_without_a_probe() {
    let sendrecv = [("IRONRAIL_PROTOCOL", "sendrecv"), ("IRONRAIL_RAILS", "127.0.0.1")];
    let (code, shown, errors) = ironrail("explain --size 1M", &sendrecv);
    assert_eq!(code, 0, "{errors}");
    assert!(shown.contains("whole, as a tagged message into its posted receive"), "{shown}");
    let (code, json, _) = ironrail("explain --size 100 --json", &sendrecv);
    let ways: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (code, &ways[0]["protocol"], &ways[0]["inline"]),
        (0, &"sendrecv".into(), &true.into())
    );
    let shown = ironrail("info", &sendrecv).1;
    assert!(shown.contains("sends tagged messages of up to"), "{shown}");
}

#[test]
fn another_plugin_has_properties_for_nccl_and_no_settings() {
    let other = support::loopback(TEMPORARY);
    let (code, shown, errors) = ironrail(&format!("info --net {}", other.display()), &[]);
    assert_eq!(code, 0, "{errors}");
    assert!(shown.starts_with("Loopback, ") && shown.contains("for NCCL: "), "{shown}");
    let (code, _, errors) = ironrail(&format!("explain --net {}", other.display()), &[]);
    assert_eq!(code, 2);
    assert!(errors.contains("is Loopback, which cannot explain itself"), "{errors}");
}

#[test]
fn a_plugin_is_looked_for_beside_the_command_and_not_in_the_current_folder() {
    let name = format!("built-by-others-{}", std::process::id());
    let current = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    for folder in ["target/release/plugin", "target/release", "target/debug", "plugin"] {
        let folder = current.join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("libnccl-net-ironrail.so"), "anybody's").unwrap();
    }
    // Alone, for nothing else is looked at where a plugin lies beside it.
    let alone =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("alone-{}", std::process::id()));
    fs::create_dir_all(&alone).unwrap();
    let command = alone.join("ironrail");
    fs::hard_link(env!("CARGO_BIN_EXE_ironrail"), &command).unwrap();
    let found = Command::new(&command).arg("path").current_dir(&current).output().unwrap();
    fs::remove_dir_all(&current).unwrap();
    fs::remove_dir_all(&alone).unwrap();
    assert!(!found.status.success() && found.stdout.is_empty(), "{found:?}");
}
