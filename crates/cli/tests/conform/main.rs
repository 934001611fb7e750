//! `ironrail conform` as users run it: sound plugins pass, ours among them, and each broken one is found out by name.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod broken;
mod ours;
#[path = "../../../group/tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{self, Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn reference() -> &'static Path {
    support::reference(TEMPORARY)
}

fn conform(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.arg("conform").args(arguments.split_whitespace());
    command
}

fn ended(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// The ids of the lines that begin with this word.
fn ids(lines: &str, word: &str) -> BTreeSet<String> {
    lines
        .lines()
        .filter(|line| line.starts_with(word))
        .map(|line| line.split_whitespace().nth(2).unwrap().trim_end_matches(':').to_owned())
        .collect()
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

// ---- sound plugins ---------------------------------------------------------------------------------------------

/// What needs a GPU, gigabytes, a second device, global regions, or a plugin that refuses.
const LACKING: [&str; 9] = [
    "properties-ports-differ",
    "properties-global-regions-are-global",
    "register-two-gib",
    "message-of-a-gib",
    "request-null-when-not-now",
    "sizes-are-int-up-to-v8",
    "gpu-memory-registers",
    "gpu-dmabuf-registers",
    "gpu-flush-makes-visible",
];

#[test]
fn the_reference_passes_and_skips_only_what_it_lacks() {
    let mut command = conform("--jobs 2 --net");
    command.arg(reference());
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 0, "{lines}{errors}");
    assert_eq!(ids(&lines, "skip"), set(&LACKING), "{lines}");
    assert!(ids(&lines, "pass").len() >= 120, "{lines}");
    assert!(lines.trim_end().ends_with("149 passed, 0 failed, 9 skipped"), "{lines}");
}

#[test]
fn the_reference_passes_by_its_v8_table_too() {
    let mut command = conform("--jobs 2 --abi 8 --net");
    command.arg(reference());
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 0, "{lines}{errors}");
    assert!(ids(&lines, "pass").contains("sizes-are-int-up-to-v8"), "{lines}");
    assert!(ids(&lines, "skip").contains("group-of-every-size"), "{lines}");
}

#[test]
fn a_plugin_without_groups_passes() {
    let mut command = conform("--jobs 2 --net");
    command.arg(support::loopback(TEMPORARY));
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 0, "{lines}{errors}");
    assert!(lines.contains("group-of-every-size: maxRecvs is 1: no grouped receives"), "{lines}");
}

#[test]
fn all_tables_are_held_one_after_the_other() {
    let few = "--only properties-write-every-field,properties-stay-the-same,message-of-no-bytes,";
    let more = "size-is-told,isend-overwrites-an-old-request,load-table-is-data,unload-and-reload";
    let mut command = conform(&format!("--abi all {few}{more} --net"));
    command.arg(reference());
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 0, "{lines}{errors}");
    assert!(lines.ends_with("49 passed, 0 failed, 0 skipped\n"), "{lines}");
    let tables: Vec<&str> =
        lines.lines().filter_map(|line| line.split_whitespace().nth(1)).step_by(7).collect();
    assert_eq!(tables[..7], ["v12", "v11", "v10", "v9", "v8", "v7", "v6"]);
}

// ---- the command -----------------------------------------------------------------------------------------------

#[test]
fn a_failure_says_what_was_seen_what_nccl_expects_and_where() {
    let mut command = conform("--only size-is-told --net");
    command.arg(reference()).env("REFERENCE_FAULT", "size-off-by-one");
    let (code, lines, _) = ended(command);
    assert_eq!(code, 1);
    let line = lines.lines().next().unwrap();
    assert!(line.starts_with("FAIL  v12  size-is-told: process "), "{line}");
    assert!(line.contains("test says that message 0 has 1 bytes, it has 0"), "{line}");
    assert!(line.contains("[NCCL expects: test tells a receive the size"), "{line}");
    assert!(line.ends_with("NCCL src/transport/net.cc:1617-1620]"), "{line}");
    assert!(lines.ends_with("\n0 passed, 1 failed, 0 skipped\n"), "{lines}");
}

#[test]
fn what_hangs_is_ended_within_its_bound() {
    let begun = Instant::now();
    let mut command = conform("--only listener-never-connected --timeout 1 --net");
    command.arg(reference()).env("REFERENCE_FAULT", "hang");
    let (code, lines, _) = ended(command);
    assert_eq!(code, 1);
    assert!(lines.contains("no end within 1 s, the last stage: load and init"), "{lines}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[test]
fn json_takes_the_lines_place_or_goes_to_a_file() {
    let chosen = "--only name-is-a-word,size-is-told,gpu-memory-registers";
    let mut command = conform(&format!("{chosen} --json --net"));
    command.arg(reference()).env("REFERENCE_FAULT", "size-off-by-one");
    let (code, text, _) = ended(command);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["format"]), (1, &Value::from("ironrail-conform/1")));
    assert_eq!(
        (&json["passed"], &json["failed"], &json["skipped"]),
        (&1.into(), &1.into(), &1.into())
    );
    assert_eq!(json["plugin"]["network"], "Reference");
    let results = json["results"].as_array().unwrap();
    let failed = results.iter().find(|result| result["result"] == "fail").unwrap();
    assert_eq!((&failed["id"], &failed["abi"]), (&"size-is-told".into(), &12.into()));
    assert!(failed["reason"].as_str().unwrap().contains("bytes"), "{failed}");
    assert!(failed["seconds"].as_f64().unwrap() > 0.0 && failed["source"].is_string());

    let path = Path::new(TEMPORARY).join(format!("conform-{}.json", process::id()));
    let mut command = conform("--only name-is-a-word --json");
    command.arg(&path).arg("--net").arg(reference());
    let (code, lines, _) = ended(command);
    assert_eq!(
        (code, lines.as_str()),
        (0, "pass  v12  name-is-a-word\n1 passed, 0 failed, 0 skipped\n")
    );
    let json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(json["results"][0]["result"], "pass");
    fs::remove_file(path).unwrap();
}

#[test]
fn a_skip_says_why_and_can_be_made_a_failure() {
    let only = "--only gpu-memory-registers,name-is-a-word --net";
    let mut command = conform(only);
    command.arg(reference());
    let (code, lines, _) = ended(command);
    assert_eq!(code, 0);
    assert!(
        lines.contains("skip  v12  gpu-memory-registers: conform has host memory only"),
        "{lines}"
    );
    let mut command = conform(&format!("--no-skip {only}"));
    command.arg(reference());
    let (code, lines, _) = ended(command);
    assert_eq!(code, 1);
    assert!(lines.contains("FAIL  v12  gpu-memory-registers: not exercised: "), "{lines}");
}

#[test]
fn behaviours_are_chosen_by_id() {
    let mut command =
        conform("--only name-is-a-word,devices-are-counted --except name-is-a-word --net");
    command.arg(reference());
    let (code, lines, _) = ended(command);
    assert_eq!((code, ids(&lines, "pass")), (0, set(&["devices-are-counted"])));
    let (code, lines, _) = ended(conform("--list"));
    assert_eq!(code, 0);
    assert!(lines.lines().count() >= 60, "{lines}");
    assert!(lines.contains("\nrequest-null-when-not-now: isend that cannot post"), "{lines}");
}

#[test]
fn a_wrong_command_line_is_code_2_and_a_plugin_that_is_not_there_code_1() {
    for wrong in ["", "--net x --abi 5", "--net x --abi old", "--net x --only nothing", "--nothing"]
    {
        let (code, _, errors) = ended(conform(wrong));
        assert_eq!(code, 2, "{wrong}: {errors}");
        assert!(!errors.is_empty());
    }
    let (code, _, errors) = ended(conform("--net /no/such/plugin.so"));
    assert_eq!(code, 1);
    assert!(errors.contains("/no/such/plugin.so") && errors.lines().count() == 1, "{errors}");
}

#[test]
fn the_page_of_documentation_is_the_table() {
    let (code, page, _) = ended(conform("--markdown"));
    assert_eq!(code, 0);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conform.md");
    let written = fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/conform.md is old: ironrail conform --markdown > docs/conform.md"
    );
}
