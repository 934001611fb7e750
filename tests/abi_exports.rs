//! What the built library exports: seven tables, a call for the command, its name, and no dependency that a host may lack.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// libc's libraries, and the unwinder that every gcc runtime has.
const DEPENDENCIES: &[&str] = &[
    "libc.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-",
];

#[test]
fn the_library_exports_the_seven_tables_as_data_a_call_for_tools_and_nothing_else() {
    let listing = support::output_of(
        Command::new("nm").args(["-D", "--defined-only"]).arg(support::plugin()),
    );
    let exported: BTreeSet<(&str, &str)> = listing
        .lines()
        .map(|line| {
            let mut words = line.split_whitespace().skip(1);
            (words.next().expect("a kind"), words.next().expect("a name"))
        })
        .collect();
    let tables = net_abi::SYMBOLS.iter().map(|(_, symbol)| ("D", symbol.to_str().expect("ASCII")));
    let mut expected: BTreeSet<(&str, &str)> = tables.chain([("T", "ironrail_explain")]).collect();
    if !support::is_optimised() {
        expected.insert(("T", "ironrail_panic_in")); // tests/panics.rs asks for panics by it
    }
    assert_eq!(exported, expected);
}

#[test]
fn the_library_needs_only_libc_and_the_unwinder() {
    let needed = values(&dynamic_section(), "(NEEDED)");
    assert!(!needed.is_empty(), "readelf shows no dependency at all");
    for name in needed {
        assert!(DEPENDENCIES.iter().any(|allowed| name.starts_with(allowed)), "needs {name}");
    }
}

#[test]
fn the_library_has_nccls_name_for_it_and_is_never_unloaded() {
    let section = dynamic_section();
    assert_eq!(values(&section, "(SONAME)"), [support::PLUGIN_FILE]);
    let flags = section.lines().find(|line| line.contains("(FLAGS_1)")).unwrap_or_default();
    assert!(flags.contains("NODELETE"), "{flags}");
    assert_eq!(Path::new(&support::plugin()).file_name().expect("a file"), support::PLUGIN_FILE);
}

/// NCCL's threads must not wait for kernels, as some calls of CUDA may: those are for tools and tests.
#[test]
fn the_library_knows_of_cuda_only_calls_that_wait_for_no_kernel() {
    // Debug information contains names that the linker has left out.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let stripped = folder.join(format!("stripped-{}.so", std::process::id()));
    support::output_of(
        Command::new("strip").arg("--strip-all").arg("-o").arg(&stripped).arg(support::plugin()),
    );
    let bytes = std::fs::read(&stripped).expect("strip has written it");
    std::fs::remove_file(&stripped).expect("it is ours");
    let has = |name: &str| bytes.windows(name.len()).any(|window| window == name.as_bytes());
    assert!(has("cuPointerGetAttributes"), "its own calls are in the file by name");
    let barred = ["cuMem", "cuCtx", "cuStream", "cuEvent", "cuLaunch", "cuDevicePrimaryCtx"];
    for name in barred {
        assert!(!has(name), "the plugin names {name}…");
    }
}

fn dynamic_section() -> String {
    support::output_of(Command::new("readelf").args(["--dynamic", "--wide"]).arg(support::plugin()))
}

/// The text in brackets on the lines with this tag.
fn values(section: &str, tag: &str) -> Vec<String> {
    let value = |line: &str| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned());
    section.lines().filter(|line| line.contains(tag)).filter_map(value).collect()
}
