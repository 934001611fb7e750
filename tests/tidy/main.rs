//! Checks what the compiler does not: the dependencies between layers, where unsafe code is, what files may contain. It does not check size
//! or style. `errors` compares the pages of errors with the sources.

mod errors;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A layer, and what its code must not name: the layers to its left in the picture of src/lib.rs, and the crates that belong to another
/// layer.
const FENCES: &[(&str, &[&str])] = &[
    // What is imported in braces would not be found.
    ("src", &["crate::{", "super::abi", "super::plugin", "super::endpoint"]),
    ("src/abi", &["crate::endpoint", "fabric::", "proto::", "libfabric_sys"]),
    ("src/plugin", &["crate::abi", "libfabric_sys"]),
    ("src/endpoint", &["crate::abi", "crate::plugin", "libfabric_sys"]),
    ("src/types", BELOW_ALL),
    ("src/counter_pages.rs", BELOW_ALL),
    ("src/error.rs", BELOW_ALL),
    ("src/object_id.rs", BELOW_ALL),
    ("src/label.rs", BELOW_ALL),
    (
        "crates/proto/src",
        &["std::net", "std::thread", "std::env", "std::fs", "std::io", "Instant", "SystemTime"],
    ),
    ("crates/proto/src", &["fabric::", "libc::", "log::"]),
    ("crates/topology/src", &["std::net", "std::thread", "fabric::", "proto::", "log::"]),
    ("crates/fabric/src", &["proto::", "net_abi"]),
    ("crates/libfabric-sys/src", &["fabric::", "proto::"]),
];

/// Modules shared by all layers name none of them.
const BELOW_ALL: &[&str] = &["crate::abi", "crate::plugin", "crate::endpoint", "libfabric_sys"];

/// The only places where `unsafe` may appear. The shared tables are `Sync` by hand; `set_var` is unsafe.
const UNSAFE_HOMES: &[&str] = &[
    "src/abi",
    "src/plugin/environment.rs",
    "crates/fabric",
    "crates/libfabric-sys",
    "crates/gpu",
    "crates/nccl",
    "crates/vfabric",
    "crates/net-abi",
    "crates/net-loader",
    "crates/signals",
    "crates/group/src/loader",
    "crates/python/src/memory",
    "tests/support",
    // An allocator that counts.
    "crates/group/tests/allocations.rs",
    // It lists the words that it searches for.
    "tests/tidy",
];

/// The plugin, and the crates of this workspace that are linked into it.
const LINKED: &[&str] = &[
    "src",
    "crates/counters/src",
    "crates/fabric/src",
    "crates/gpu/src",
    "crates/libfabric-sys/src",
    "crates/net-abi/src",
    "crates/proto/src",
    "crates/signals/src",
    "crates/topology/src",
];

/// A word and the one file of the plugin that may use it: the environment is read once and written once.
const ONE_HOME: &[(&str, &str)] = &[
    ("set_var", "src/plugin/environment.rs"),
    ("env::var", "src/plugin/config.rs"),
    ("env::remove_var", ""),
];

/// Packages that must not be linked into the plugin.
const NOT_IN_THE_PLUGIN: &[&str] = &[
    "clap",
    "serde",
    "serde_json",
    "postcard",
    "ndarray",
    "arrow-array",
    "arrow-buffer",
    "arrow-ipc",
    "arrow-schema",
    "ironrail-group-arrow",
    "bytes",
    "env_logger",
    "indicatif",
    "ironrail-group",
    "nccl",
    "net-loader",
    "pyo3",
];

/// Prefixes of paths that exist on one machine only. In two pieces, so that this file does not contain them.
const MACHINE_PATHS: &[(&str, &str)] =
    &[("/ho", "me/"), ("/ro", "ot/"), ("/Us", "ers/"), ("/wo", "rk/"), ("/tm", "p/target")];

#[test]
fn layers_only_point_to_the_right() {
    for (layer, forbidden) in FENCES {
        let sources = sources(layer);
        assert!(!sources.is_empty(), "there is no {layer}");
        for (path, text) in sources {
            for (number, line) in code(&text) {
                let named = forbidden.iter().find(|word| names(line, word));
                assert!(named.is_none(), "{}:{number} names {named:?}", path.display());
            }
        }
    }
}

#[test]
fn unsafe_code_stays_home() {
    for (path, text) in ["src", "crates", "tests", "benches"].iter().flat_map(|root| sources(root))
    {
        if UNSAFE_HOMES.iter().any(|home| path.starts_with(home)) {
            continue;
        }
        for (number, line) in code(&text) {
            let found = [
                "unsafe {",
                "unsafe impl",
                "unsafe fn",
                "unsafe extern",
                "unsafe trait",
                "unsafe(",
            ]
            .iter()
            .any(|word| line.contains(word));
            assert!(!found, "{}:{number} is unsafe code outside its homes", path.display());
        }
    }
}

/// Without cargo's harness the compiler drops such a function, so that it never runs.
#[test]
fn a_target_that_lists_its_tests_leaves_none_to_cargos_harness() {
    let names = |line: &str| line.replace("harness::again(", "").contains("harness::");
    let lists = |text: &str| code(text).any(|(_, line)| names(line));
    let (mut listed, mut targets) = (0, 0);
    for root in ["crates", "tests"] {
        let all = sources(root);
        let of_folder = |path: &Path| {
            let main = path.with_file_name("main.rs");
            all.iter().any(|(other, text)| *other == main && text.contains("harness::run("))
        };
        for (path, text) in &all {
            if path.starts_with("crates/harness")
                || path.starts_with("tests/tidy")
                || !(lists(text) || of_folder(path))
            {
                continue;
            }
            listed += 1;
            for (number, line) in code(text) {
                assert!(line.trim() != concat!("#[te", "st]"), "{}:{number}", path.display());
            }
            if text.contains("harness::run(") {
                targets += 1;
                assert!(is_without_harness(path), "{} runs under cargo's harness", path.display());
            }
        }
    }
    assert!(listed > 10 && targets > 10, "{listed} files of {targets} targets list their tests");
}

/// Whether the package of a test target says that cargo's harness does not run it.
fn is_without_harness(target: &Path) -> bool {
    let named = if target.ends_with("main.rs") { target.parent() } else { Some(target) };
    let name = named.and_then(Path::file_stem).expect("a target has a name").to_string_lossy();
    let folder = target.iter().position(|part| part == "tests").expect("it is a test");
    let package: PathBuf = target.iter().take(folder).collect();
    let manifest = read(&root().join(package).join("Cargo.toml"));
    let mut entries = manifest.split("[[test]]").skip(1);
    let entry = entries.find(|entry| entry.contains(&format!("name = \"{name}\"")));
    let entry = entry.and_then(|entry| entry.split("\n[").next());
    entry.is_some_and(|entry| entry.lines().any(|line| line == "harness = false"))
}

/// Tests that are always ignored are listed in docs/testing.md; what a machine lacks is a failure where scripts/test runs.
#[test]
fn every_ignored_test_is_on_the_page() {
    let mut ignored = BTreeSet::new();
    for (path, text) in ["src", "crates", "tests"].iter().flat_map(|root| sources(root)) {
        if path.starts_with("tests/tidy") || path.starts_with("crates/harness") {
            continue;
        }
        for piece in text.split("#[ignore").skip(1) {
            let (_, name) = piece.split_once("fn ").expect("it is of a function");
            ignored.insert(name.split('(').next().expect("a name").to_owned());
        }
        let pieces: Vec<_> = text.split(".ignored(").collect();
        for before in &pieces[..pieces.len() - 1] {
            let (_, name) = before.rsplit_once("Test::new(").expect("it is of a test");
            ignored.insert(name.split(')').next().expect("a name").to_owned());
        }
    }
    let page = fs::read_to_string("docs/testing.md").expect("the page is there");
    let (_, list) = page.split_once("\n## Ignored tests\n").expect("the page has the list");
    let list = list.split("\n## ").next().expect("a split has a first piece");
    let row = |line: &str| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned());
    let listed: BTreeSet<_> = list.lines().filter_map(row).collect();
    assert_eq!(ignored, listed);
}

#[test]
fn every_file_says_what_it_is_for() {
    for (path, text) in ["src", "crates", "tests", "benches"].iter().flat_map(|root| sources(root))
    {
        assert!(text.starts_with("//! "), "{} has no header", path.display());
    }
}

#[test]
fn the_environment_is_read_in_one_place_and_written_in_one() {
    for (path, text) in LINKED.iter().flat_map(|root| sources(root)) {
        for (word, home) in ONE_HOME {
            if path != Path::new(home) {
                for (number, line) in code(&text) {
                    // A test that runs again in a process of its own.
                    if !line.contains("FABRIC_TEST_ALONE") {
                        assert!(!line.contains(word), "{}:{number} has {word}", path.display());
                    }
                }
            }
        }
    }
}

#[test]
fn the_protocol_and_the_fabric_do_not_know_each_other() {
    let named = |package: &str| {
        let manifest = read(&root().join("crates").join(package).join("Cargo.toml"));
        let (_, rest) = manifest.split_once("[dependencies]").expect("the section is there");
        let lines = rest.split("\n[").next().expect("a split has a first piece").lines();
        let name = |line: &str| line.split(['=', ' ', '.']).next().map(str::to_owned);
        lines.filter_map(name).filter(|name| !name.is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(named("proto"), [""; 0], "it has no dependency");
    let fabrics = named("fabric");
    assert!(!fabrics.is_empty());
    for other in ["proto", "net-abi"] {
        assert!(!fabrics.iter().any(|name| name == other), "fabric depends on {other}");
    }
    assert!(read(&root().join("crates/proto/src/lib.rs")).contains("#![forbid(unsafe_code)]"));
}

#[test]
fn the_plugin_carries_no_tools() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args([
        "tree",
        "--package",
        "ironrail",
        "--edges",
        "normal",
        "--prefix",
        "none",
    ]);
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("text");
    let packages: Vec<&str> =
        tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(packages.contains(&"net-abi"), "{packages:?}");
    for package in NOT_IN_THE_PLUGIN {
        assert!(
            !packages.contains(package),
            "the plugin carries {package}: see cargo tree -p ironrail -e normal"
        );
    }
}

#[test]
fn no_file_names_a_place_on_one_machine() {
    for path in files(&root()) {
        // A provider's library leaves such a trace where a process crashed, as conform's broken plugins do.
        if path.extension().is_some_and(|kind| kind == "btr") {
            continue;
        }
        // A file that is not text cannot name a path.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            for (start, end) in MACHINE_PATHS {
                let found = line.match_indices(&format!("{start}{end}")).any(|(at, _)| {
                    !line[..at].ends_with(|before: char| {
                        before.is_alphanumeric() || "._-}~".contains(before)
                    })
                });
                assert!(!found, "{}:{number} names {start}{end}", path.display());
            }
        }
    }
}

/// `lib.sh` is sourced. The other two are edited together with the lists that they read.
const SCRIPTS_WITHOUT_TIME: &[&str] = &["fuzz", "lib.sh", "mutants"];

#[test]
fn every_script_says_in_its_first_line_what_it_is_for_and_how_long_it_takes() {
    let mut scripts = 0;
    for entry in fs::read_dir(root().join("scripts")).expect("the folder is there") {
        let path = entry.expect("the entry is readable").path();
        let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
        if path.is_dir() || SCRIPTS_WITHOUT_TIME.contains(&name.as_str()) {
            continue;
        }
        scripts += 1;
        let text = read(&path);
        let line = text.lines().nth(1).unwrap_or_default();
        let says = line.starts_with(['#', '"'])
            && ["second", "minute", "hour", "HOURS"].iter().any(|unit| line.contains(unit));
        assert!(says, "scripts/{name} begins with {line:?}");
    }
    assert!(scripts > 10, "{scripts} scripts");
}

/// A script may have more rows than one, of its parts.
#[test]
fn every_script_is_on_the_page_about_testing() {
    let entries = fs::read_dir(root().join("scripts")).expect("the folder is there");
    let paths = entries.map(|entry| entry.expect("the entry is readable").path());
    let name = |path: PathBuf| path.file_name().expect("it has one").to_string_lossy().into_owned();
    let scripts: BTreeSet<_> = paths.filter(|path| path.is_file()).map(name).collect();
    let page = read(&root().join("docs/testing.md"));
    let (_, section) = page.split_once("\n## The scripts\n").expect("the page has the list");
    let section = section.split("\n## ").next().expect("a split has a first piece");
    let row =
        |line: &str| Some(line.strip_prefix("| `scripts/")?.split(['`', ' ']).next()?.to_owned());
    let listed: BTreeSet<_> = section.lines().filter_map(row).collect();
    assert_eq!(scripts, listed);
}

/// A script that takes `--help` for something else would run, perhaps for hours, so it is stopped.
#[test]
fn every_script_answers_help_with_its_head_and_does_nothing_else() {
    let entries = fs::read_dir(root().join("scripts")).expect("the folder is there");
    let is_run = |path: &PathBuf| path.is_file() && !path.ends_with("lib.sh");
    let paths = entries.map(|entry| entry.expect("the entry is readable").path()).filter(is_run);
    let mut answered = 0;
    for path in paths {
        let mut help = Command::new("timeout");
        let output = help.arg("30").arg(&path).arg("--help").output().expect("timeout runs");
        let name = path.display();
        assert!(output.status.success(), "{name}: {output:?}");
        let said = String::from_utf8(output.stdout).expect("text");
        let first = said.lines().next().unwrap_or_default();
        let text = read(&path);
        let head = text.lines().nth(1).expect("it has a head");
        let head = head.trim_start_matches("# ").trim_start_matches("\"\"\"");
        assert!(!first.is_empty() && first == head, "{name}: {said}");
        for line in said.lines().filter(|line| !line.is_empty()) {
            assert!(text.contains(line), "{name} does more than show its head: {line}");
        }
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{name}");
        answered += 1;
    }
    assert!(answered > 0);
}

#[test]
fn every_page_is_in_the_index_once() {
    let mut pages = Vec::new();
    for folder in ["", "decisions/"] {
        let entries = fs::read_dir(root().join("docs").join(folder)).expect("the folder is there");
        for entry in entries {
            let name = entry.expect("the entry is readable").file_name();
            let name = name.to_string_lossy();
            if name.ends_with(".md") && name != "README.md" {
                pages.push(format!("{folder}{name}"));
            }
        }
    }
    pages.sort();
    let index = read(&root().join("docs/README.md"));
    let row = |line: &str| {
        let (_, link) = line.strip_prefix("| [")?.split_once("](")?;
        Some(link.split(')').next()?.to_owned())
    };
    let mut listed: Vec<_> = index.lines().filter_map(row).collect();
    listed.sort();
    assert_eq!(pages, listed);
}

/// A constant is named there as `module::NAME`, and found in a file or a folder of that name.
#[test]
fn constants_that_the_page_about_architecture_names_are_in_the_sources() {
    let all: Vec<_> = ["src", "crates"].iter().flat_map(|root| sources(root)).collect();
    let page = read(&root().join("docs/architecture.md"));
    let mut named = 0;
    for quoted in page.split('`').skip(1).step_by(2) {
        let Some((module, name)) = quoted.split_once("::") else { continue };
        if name.is_empty()
            || !name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
        {
            continue;
        }
        named += 1;
        let is_home = |path: &Path| {
            let file = path.file_stem().is_some_and(|stem| stem == module);
            file || path.parent().is_some_and(|folder| folder.ends_with(module))
        };
        let declared = [format!("static {name}:"), format!("const {name}:")];
        let found = all.iter().filter(|(path, _)| is_home(path)).any(|(_, text)| {
            code(text).any(|(_, line)| declared.iter().any(|declared| line.contains(declared)))
        });
        assert!(found, "no source has {quoted}");
    }
    assert!(named > 3, "{named} constants");
}

/// Names of findings are literals of two words with a dot between them.
#[test]
fn every_finding_of_the_doctor_is_on_its_page() {
    let is_name = |text: &str| {
        let is_word =
            |word: &str| !word.is_empty() && word.chars().all(|one| one.is_ascii_lowercase());
        text.split_once('.').is_some_and(|(subject, check)| is_word(subject) && is_word(check))
    };
    let mut in_sources = BTreeSet::new();
    for (_, text) in sources("crates/cli/src/doctor/checks") {
        for (_, line) in code(&text) {
            let literals = line.split('"').skip(1).step_by(2).filter(|text| is_name(text));
            in_sources.extend(literals.map(str::to_owned));
        }
    }
    let page = read(&root().join("docs/doctor.md"));
    let (_, section) = page.split_once("\n## Findings\n").expect("the page has the table");
    let first_cell = |line: &str| Some(line.strip_prefix("| `")?.split_once(" | ")?.0.to_owned());
    let cells: Vec<_> = section.lines().filter_map(first_cell).collect();
    let names = cells.iter().flat_map(|cell| cell.split(['`', ',', ' ']));
    let on_page: BTreeSet<_> = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    assert_eq!(in_sources, on_page);
}

/// Whether a line uses a path that starts with this word: `fabric::` is not in `my_fabric::`.
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
    })
}

/// The lines that are not comments, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// The Rust files below a folder of the repository, by their path in it.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let root = root();
    let rust = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "rs");
    let found = files(&root.join(folder)).into_iter().filter(rust);
    found
        .map(|path| (path.strip_prefix(&root).expect("below the root").to_owned(), read(&path)))
        .collect()
}

/// The build scripts of the plugin and of the command read IRONRAIL_COMMIT.
#[test]
fn the_recipe_for_spack_names_the_commit_as_the_scripts_do() {
    let scripts = read(&root().join("scripts/lib.sh"));
    let recipe = read(&root().join("packaging/spack/package.py"));
    let line = scripts.lines().find(|line| line.contains("IRONRAIL_COMMIT=$(git "));
    let (_, call) = line.and_then(|line| line.split_once("$(git ")).expect("it asks git");
    let words = call.split_whitespace().take_while(|word| !word.starts_with("2>"));
    for word in words {
        let quoted = format!("\"{}\"", word.replace('\'', ""));
        assert!(recipe.contains(&quoted), "packaging/spack/package.py lacks {quoted}");
    }
    assert!(recipe.contains("os.environ[\"IRONRAIL_COMMIT\"] = "));
}

/// Every file below a folder, except those that are built or fetched; or the file itself.
fn files(folder: &Path) -> Vec<PathBuf> {
    if folder.is_file() {
        return vec![folder.to_owned()];
    }
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("the entry is readable").path()) {
        let name = path.file_name().expect("an entry has a name");
        if ["target", ".git", ".cache", "__pycache__"].iter().any(|built| name == *built) {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
