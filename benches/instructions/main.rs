//! Counts instructions per message: in the plugin, in the libc that it calls, and in libfabric and below.
//!
//! One process is connected to itself over one rail, and moves messages under callgrind: irecv, isend and tests, the
//! empty polls and NULL answers included. Two runs of different length are subtracted, so that set-up cancels out.
//!
//! `cargo bench --bench instructions [-- WORDS]`, where the words are: `--functions N` and `--lines N` for the N dearest
//! functions and source lines of the plugin, a size to measure that alone.
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

mod profile;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use profile::{Function, Profile};
use support::net::{self, Memory, Net};
use support::traffic;

/// What is measured: messages of a size, so many outstanding.
#[derive(Clone, Copy, PartialEq)]
struct Case {
    bytes: usize,
    window: usize,
}

/// The sizes that are measured where none is named.
const SIZES: [usize; 2] = [8, 1 << 20];
const WINDOWS: [usize; 3] = [1, 8, 32];

/// What the peer (aws-ofi-nccl, RDMA protocol) took, in its plugin and in libc, where that was measured.
const PEER: [(Case, [f64; 2]); 4] = [
    (Case { bytes: 8, window: 1 }, [2051.0, 626.0]),
    (Case { bytes: 8, window: 8 }, [1921.0, 626.0]),
    (Case { bytes: 1 << 20, window: 1 }, [2111.0, 633.0]),
    (Case { bytes: 1 << 20, window: 8 }, [1967.0, 633.0]),
];

/// The first word of a run that callgrind watches.
const DRIVE: &str = "--drive";
const SECONDS_MOST: u32 = 600;

#[derive(Debug, Default)]
struct Wanted {
    functions: usize,
    lines: usize,
    bytes: Option<usize>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [word, file, bytes, window, count] = words.as_slice()
        && word == DRIVE
    {
        drive(Path::new(file), number(bytes), number(window), number(count));
        return ExitCode::SUCCESS;
    }
    let wanted = wanted(&words);
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("valgrind is missing: install the package of that name, then run this again.");
        return ExitCode::FAILURE;
    }
    measure(&wanted)
}

fn wanted(words: &[String]) -> Wanted {
    let mut wanted = Wanted::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--functions" => wanted.functions = number(words.next().expect("--functions N")),
            "--lines" => wanted.lines = number(words.next().expect("--lines N")),
            // Cargo's own.
            "--bench" => {}
            bytes => wanted.bytes = Some(number(bytes)),
        }
    }
    wanted
}

fn number(word: &str) -> usize {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

/// What callgrind watches.
fn drive(file: &Path, bytes: usize, window: usize, count: usize) {
    net::give_up_after(SECONDS_MOST);
    let net = Net::open(file);
    let [out, into] = [Memory::new(bytes), Memory::new(bytes)];
    let mut ends = traffic::to_itself(&net, &out, &into);
    traffic::exchange(&mut ends, bytes, window, count);
    let [send, receive] = ends.each_ref().map(|end| end.calls);
    println!("{send:?} {receive:?}");
    let [send, receive] = ends.map(|end| end.comm);
    net.close_send(send);
    net.close_receive(receive);
    net.finalize();
}

fn measure(wanted: &Wanted) -> ExitCode {
    let plugin = support::optimised_plugin();
    println!("instructions per message: irecv, isend and tests, one rail");
    println!(
        "{:>8} {:>6} | {:>7} {:>6} {:>7} | {:>7} {:>6} {:>6} | {:>9} | calls per message",
        "bytes", "window", "plugin", "libc", "sum", "peer", "libc", "ratio", "libfabric"
    );
    let sizes = wanted.bytes.map_or_else(|| SIZES.to_vec(), |bytes| vec![bytes]);
    let of_size = |bytes| WINDOWS.map(|window| Case { bytes, window });
    for case in sizes.into_iter().flat_map(of_size) {
        // Far apart: what setting up takes differs by some ten thousand from run to run.
        let (fewer, more) = (1000, 9000);
        let (short, _) = run(&plugin, case, fewer);
        let (long, calls) = run(&plugin, case, more);
        let profile = long.beyond(&short, (more - fewer) as f64);
        let (own, libc, below) = sums(&profile, &plugin);
        let sum = own + libc;
        let peer = PEER.iter().find(|(known, _)| *known == case).map_or_else(
            || format!("{:>7} {:>6} {:>6}", "-", "-", "-"),
            |(_, [plugin, libc])| {
                format!("{plugin:>7.0} {libc:>6.0} {:>6.2}", sum / (plugin + libc))
            },
        );
        println!(
            "{:>8} {:>6} | {own:>7.0} {libc:>6.0} {sum:>7.0} | {peer} | {below:>9.0} | {}",
            case.bytes,
            case.window,
            per_message(&calls, more),
        );
        print_functions(&profile, &plugin, wanted.functions);
        print_lines(&profile, &plugin, wanted.lines);
    }
    ExitCode::SUCCESS
}

/// One run under callgrind: its profile, and the calls that it says it made.
fn run(plugin: &Path, case: Case, count: usize) -> (Profile, String) {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("callgrind.{}.{}.{count}", case.bytes, case.window));
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no", "--quiet"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(std::env::current_exe().expect("this program has a file"))
        .arg(DRIVE)
        .arg(plugin)
        .args([case.bytes, case.window, count].map(|number| number.to_string()));
    for (name, value) in [("IRONRAIL_RAILS", "127.0.0.1"), ("IRONRAIL_PROVIDER", "net")] {
        if std::env::var_os(name).is_none() {
            valgrind.env(name, value);
        }
    }
    let calls = support::output_of(&mut valgrind);
    (Profile::read(&file), calls)
}

/// Instructions in the plugin, in libc on its behalf, and below it.
fn sums(profile: &Profile, plugin: &Path) -> (f64, f64, f64) {
    let own =
        profile.own.iter().filter(|((object, _), _)| is(object, plugin)).map(|(_, c)| c).sum();
    let (mut libc, mut below) = (0.0, 0.0);
    for (((from, _), (to, _)), cost) in &profile.calls {
        if is(from, plugin) && !is(to, plugin) {
            *(if is_libc(to) { &mut libc } else { &mut below }) += cost;
        }
    }
    (own, libc, below)
}

fn is(object: &str, plugin: &Path) -> bool {
    Path::new(object).file_name() == plugin.file_name()
}

/// libc's libraries, and the loader that binds its symbols.
fn is_libc(object: &str) -> bool {
    let name = object.rsplit('/').next().unwrap_or(object);
    ["libc.", "libc-", "libm.", "libm-", "libpthread", "libgcc_s", "ld-linux", "ld-2"]
        .iter()
        .any(|start| name.starts_with(start))
}

fn print_functions(profile: &Profile, plugin: &Path, count: usize) {
    let ours = |function: &&Function| is(&function.0, plugin);
    let mut rows: Vec<_> = profile
        .own
        .keys()
        .filter(ours)
        .map(|function| {
            let own = profile.own[function];
            let called: f64 = profile
                .calls
                .iter()
                .filter(|((from, _), _)| from == function)
                .map(|(_, c)| c)
                .sum();
            (own, own + called, &function.1)
        })
        .collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (own, inclusive, name) in rows.iter().take(count).filter(|row| row.0 >= 0.5) {
        println!("    {own:>6.1} own {inclusive:>8.1} with calls  {name}");
    }
    let mut rows: Vec<_> = profile
        .calls
        .iter()
        .filter(|((from, to), cost)| is(&from.0, plugin) && is_libc(&to.0) && **cost >= 0.5)
        .collect();
    rows.sort_by(|a, b| b.1.total_cmp(a.1));
    for ((from, to), cost) in rows.iter().take(count) {
        println!("    {cost:>6.1} libc  {} from {}", to.1, from.1);
    }
}

fn print_lines(profile: &Profile, plugin: &Path, count: usize) {
    let mut rows: Vec<_> =
        profile.lines.iter().filter(|((object, ..), _)| is(object, plugin)).collect();
    rows.sort_by(|a, b| b.1.total_cmp(a.1));
    for ((_, file, line), cost) in rows.iter().take(count).filter(|row| *row.1 >= 0.5) {
        println!("    {cost:>6.1}  {file}:{line}");
    }
}

/// The driver's counts, divided by its messages.
fn per_message(calls: &str, count: usize) -> String {
    let sides = calls.trim().split("Calls").filter(|side| !side.trim().is_empty());
    let texts = sides.zip(["send", "receive"]).map(|(side, name)| {
        let numbers: Vec<f64> = side
            .split(|other: char| !other.is_ascii_digit())
            .filter_map(|word| word.parse().ok())
            .map(|calls: f64| calls / count as f64)
            .collect();
        match numbers.as_slice() {
            [posts, refused, tests, empty] => format!(
                "{name} {posts:.2} posts, {refused:.2} refused, {tests:.2} tests, {empty:.2} empty"
            ),
            _ => side.to_owned(),
        }
    });
    texts.collect::<Vec<_>>().join("; ")
}
