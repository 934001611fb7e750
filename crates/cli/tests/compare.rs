//! `ironrail perf --report` and `ironrail perf compare` as users run them, and the page as a browser draws it.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/ended.rs"]
mod ended;
#[path = "../../group/tests/support/mod.rs"]
mod support;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ended::ended;
use harness::Test;
use serde_json::{Value, json};

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn main() -> ExitCode {
    harness::run([
        Test::new(a_run_leaves_a_page_and_files_that_compare_and_merge),
        Test::new(a_side_that_is_slower_is_worse_and_the_code_says_so),
        Test::new(files_may_have_names_that_are_no_text),
        Test::new(runs_that_cannot_be_compared_are_reported),
        Test::new(barriers_are_compared_by_their_times),
        Test::new(a_size_that_one_side_alone_has_is_said_not_to_be_compared),
        Test::new(runs_that_have_failed_are_counted),
        Test::new(a_browser_draws_the_page).wants(browser().map(drop)),
    ])
}

fn perf<A: AsRef<OsStr>>(arguments: &[A]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.arg("perf").args(arguments);
    ended(command)
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(TEMPORARY).join(format!("compare-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Files of four runs, whose bandwidths are around `bandwidth`, separated by commas.
fn side(folder: &Path, name: &str, benchmark: &str, bandwidth: f64) -> String {
    let file = |run: u32| {
        let bandwidth = bandwidth * (1.0 + f64::from(run) / 100.0);
        let row = json!({ "size": 1024, "out_of_place": {
            "time": 1.0 / bandwidth, "p50": 1.0, "p99": 2.0, "bus_bw": bandwidth, "nwrong": 0 } });
        let run = json!({ "format": "ironrail-perf/1", "benchmark": benchmark, "results": [row] });
        let path = folder.join(format!("{name}{}.json", fs::read_dir(folder).unwrap().count()));
        fs::write(&path, run.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    (0..4).map(file).collect::<Vec<_>>().join(",")
}

fn a_run_leaves_a_page_and_files_that_compare_and_merge() {
    let folder = scratch("run");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let plugin = support::loopback(TEMPORARY).to_str().unwrap();
    for name in ["a", "b"] {
        let (json, page) = (path(&format!("{name}.json")), path(&format!("{name}.html")));
        let (code, said, errors) = perf(&[
            "sendrecv", "-b", "8", "-e", "4K", "-f", "8", "-n", "3", "--net", plugin, "--json",
            &json, "--report", &page,
        ]);
        assert_eq!(code, 0, "{said}{errors}");
        let page = fs::read_to_string(page).unwrap();
        assert!(
            page.contains("<svg") && page.contains("Loopback") && page.contains("no wrong byte")
        );
    }
    let (code, said, errors) = perf(&["compare", &path("a.json"), &path("b.json")]);
    assert_eq!(code, 0, "{errors}");
    let rows: Vec<_> = said.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(rows.len(), 4, "{said}");
    assert!(rows.iter().all(|row| row.ends_with("none: 3 more runs a side")), "{said}");

    let merged = path("merged.json");
    let (code, _, errors) =
        perf(&["compare", "--merge", &merged, &path("a.json"), &path("b.json")]);
    assert_eq!(code, 0, "{errors}");
    let said = perf(&["compare", &merged, &path("a.json")]).1;
    assert!(said.contains("merged: 2 runs of sendrecv"), "{said}");
    fs::remove_dir_all(folder).unwrap();
}

fn a_side_that_is_slower_is_worse_and_the_code_says_so() {
    let folder = scratch("worse");
    let (fast, slow) =
        (side(&folder, "fast", "all_reduce", 10.0), side(&folder, "slow", "all_reduce", 8.0));
    let (code, said, _) = perf(&["compare", &fast, &slow]);
    assert_eq!(code, 1, "{said}");
    assert!(said.lines().last().unwrap().ends_with("0.800  worse"), "{said}");
    let (code, said, _) = perf(&["compare", &slow, &fast]);
    assert_eq!(code, 0, "{said}");
    assert!(said.lines().last().unwrap().ends_with("better"), "{said}");
    let (code, json, _) = perf(&["compare", &fast, &slow, "--time", "--json"]);
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (code, &found["results"][0]["verdict"]),
        (1, &"worse".into()),
        "of times, more is worse"
    );
    fs::remove_dir_all(folder).unwrap();
}

fn files_may_have_names_that_are_no_text() {
    let folder = scratch("names");
    let run = side(&folder, "run", "sendrecv", 1.0).split(',').next().unwrap().to_owned();
    let mut name = OsString::from(&run);
    name.push(OsStr::from_bytes(b"\xff"));
    fs::copy(&run, &name).unwrap();
    let mut both = OsString::from(&run);
    both.push(",");
    both.push(&name);
    let (code, said, errors) = perf(&[OsStr::new("compare"), &name, &both]);
    assert_eq!(code, 0, "{said}{errors}");
    assert!(said.contains("1 run of sendrecv") && said.contains("2 runs of sendrecv"), "{said}");
    fs::remove_dir_all(folder).unwrap();
}

fn runs_that_cannot_be_compared_are_reported() {
    let folder = scratch("wrong");
    let (one, other) =
        (side(&folder, "one", "all_reduce", 1.0), side(&folder, "other", "sendrecv", 1.0));
    let text = folder.join("text.json");
    fs::write(&text, "{}").unwrap();
    for (arguments, ends, words) in [
        (vec![one.as_str(), other.as_str()], 2, "all_reduce is not compared with sendrecv"),
        (vec![one.as_str()], 2, "two sides are compared"),
        (
            vec![&one, &one, &one, "--json", "/dev/null", "--report", "/dev/null"],
            2,
            "--json has the comparison of two sides",
        ),
        (
            vec![one.as_str(), text.to_str().unwrap()],
            1,
            "text.json: it is not what `ironrail perf --json` writes",
        ),
        (vec![one.as_str(), "nope.json"], 1, "nope.json: No such file or directory"),
    ] {
        let arguments: Vec<_> = ["compare"].into_iter().chain(arguments).collect();
        let (code, _, errors) = perf(&arguments);
        assert_eq!(code, ends, "{errors}");
        assert!(errors.contains(words), "{errors}");
    }
    let page = folder.join("page.html");
    let (code, ..) = perf(&["compare", &one, &other, "--report", page.to_str().unwrap()]);
    assert!(code == 2 && !page.exists(), "a refused comparison leaves no page");
    fs::remove_dir_all(folder).unwrap();
}

/// A file of four runs with rows of these sizes, bandwidths and times.
fn runs_of(folder: &Path, name: &str, benchmark: &str, rows: &[(u64, f64, f64)]) -> String {
    let run = |at: u32| {
        let by = 1.0 + f64::from(at) / 100.0;
        let row = |(size, bandwidth, time): &(u64, f64, f64)| {
            json!({ "size": size, "out_of_place": {
                "time": time * by, "p50": time, "p99": time, "bus_bw": bandwidth / by, "nwrong": 0 } })
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        json!({ "format": "ironrail-perf/1", "benchmark": benchmark, "results": rows })
    };
    let runs: Vec<_> = (0..4).map(run).collect();
    let path = folder.join(format!("{name}.json"));
    fs::write(&path, json!({ "format": "ironrail-perf-runs/1", "runs": runs }).to_string())
        .unwrap();
    path.to_str().unwrap().to_owned()
}

fn barriers_are_compared_by_their_times() {
    let folder = scratch("barrier");
    let fast = runs_of(&folder, "fast", "barrier", &[(0, 0.0, 10.0)]);
    let slow = runs_of(&folder, "slow", "barrier", &[(0, 0.0, 20.0)]);
    let (code, said, errors) = perf(&["compare", &fast, &slow]);
    assert_eq!(code, 1, "{said}{errors}");
    assert!(said.contains("# time (us), medians"), "{said}");
    assert!(said.lines().last().unwrap().ends_with("2.000  worse"), "{said}");
    let (_, said, _) = perf(&["compare", &fast, &slow, "--json"]);
    let found: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(found["quantity"], "time_us");
    fs::remove_dir_all(folder).unwrap();
}

fn a_size_that_one_side_alone_has_is_said_not_to_be_compared() {
    let folder = scratch("alone");
    let whole = runs_of(&folder, "whole", "all_reduce", &[(8, 0.1, 1.0), (1024, 1.0, 2.0)]);
    let torn = runs_of(&folder, "torn", "all_reduce", &[(8, 0.1, 1.0), (16, 0.2, 1.0)]);
    let other = runs_of(&folder, "other", "all_reduce", &[(4, 0.1, 1.0)]);
    let (code, said, errors) = perf(&["compare", &whole, &torn]);
    assert_eq!(code, 0, "{said}{errors}");
    assert!(said.contains("# not compared, since one side has no figure: 16, 1024\n"), "{said}");
    let (_, said, _) = perf(&["compare", &whole, &torn, "--json"]);
    let found: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(found["not_compared"], json!([16, 1024]));
    let page = folder.join("page.html");
    let (code, said, errors) =
        perf(&["compare", &whole, &other, "--report", page.to_str().unwrap()]);
    assert_eq!(code, 2, "nothing was compared: {said}{errors}");
    assert!(
        errors.contains("whole and other have no size in common") && !page.exists(),
        "{errors}"
    );
    fs::remove_dir_all(folder).unwrap();
}

/// Figures of a run with wrong data, or of one that ended early, are worth less than others.
fn runs_that_have_failed_are_counted() {
    let folder = scratch("failed");
    let well = runs_of(&folder, "well", "all_reduce", &[(8, 0.1, 1.0)]);
    let mut runs: Value = serde_json::from_str(&fs::read_to_string(&well).unwrap()).unwrap();
    for run in &mut runs["runs"].as_array_mut().unwrap()[..3] {
        run["out_of_bounds"] = json!({ "count": 2, "okay": false });
    }
    let failed = folder.join("failed.json");
    fs::write(&failed, runs.to_string()).unwrap();
    let failed = failed.to_str().unwrap();
    let (code, said, errors) = perf(&["compare", &well, failed]);
    assert_eq!(code, 0, "{said}{errors}");
    assert!(said.contains("# second failed: 3 of them failed"), "{said}");
    assert!(!said.contains("# first  well: 0"), "{said}");
    let (_, said, _) = perf(&["compare", &well, failed, "--json"]);
    let found: Value = serde_json::from_str(&said).unwrap();
    assert_eq!([0, 1].map(|side| found["sides"][side]["failed_runs"].clone()), [0, 3]);
    fs::remove_dir_all(folder).unwrap();
}

/// A headless browser.
fn browser() -> Result<String, String> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let works = |name: &&str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    names
        .iter()
        .find(|name| works(name))
        .map(|name| (*name).to_owned())
        .ok_or_else(|| "chromium".to_owned())
}

/// A person judges the picture; the test only checks by its size that it is not an empty page.
fn a_browser_draws_the_page() {
    let folder = scratch("browser");
    let (page, picture) = (folder.join("page.html"), folder.join("page.png"));
    let (one, other) =
        (side(&folder, "one", "all_reduce", 1.0), side(&folder, "other", "all_reduce", 2.0));
    let (code, _, errors) = perf(&["compare", &one, &other, "--report", page.to_str().unwrap()]);
    assert_eq!(code, 0, "{errors}");
    let draw = |page: &Path| {
        let mut command = Command::new(browser().unwrap());
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1100,1400"]);
        // Without what it does on the network by itself.
        command.args(["--disable-quic", "--no-first-run", "--disable-background-networking"]);
        command.args(["--disable-component-update", "--disable-sync"]);
        command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
        command.arg(format!("--screenshot={}", picture.display()));
        let output = command.arg(format!("file://{}", page.display())).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::metadata(&picture).unwrap().len()
    };
    let empty = folder.join("empty.html");
    fs::write(&empty, "<!doctype html><title>x</title>").unwrap();
    let (whole, nothing) = (draw(&page), draw(&empty));
    assert!(whole > 4 * nothing, "{whole} bytes, and {nothing} of an empty page");
    fs::remove_dir_all(folder).unwrap();
}
