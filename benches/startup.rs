//! Measures what a process pays once: `listen`, the first connection and the first message, in time and in resident memory,
//! for the plugin and for bare libfabric, alternating.
//!
//! Two processes each time. The clock of the plugin's runs before `listen`, when `init` is over; that of bare libfabric
//! before fi_fabric(3), when fi_getinfo(3) is over. It stops when 8 bytes have arrived, and their sender knows it. Bare
//! libfabric is what `ironrail perf raw` opens: one endpoint, one queue.
//!
//! `cargo bench --bench startup [-- WORDS]`: the number of alternating runs (11), and `--check` to fail above a bound.
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use fabric::{
    Data, Delivery, Event, Library, Nic, NicOptions, Pages, Post, Query, Region, RemoteBytes,
    RemoteKey, Write as DataWrite,
};
use proc_status::Status;
use support::net::{self, Handle, Memory, Net};
use support::traffic::End;

const RUNS: usize = 11;
const MESSAGE_BYTES: usize = 8;
/// As `ironrail perf raw` has it.
const RAW_QUEUE_ENTRIES: usize = 4096;
/// What a message between the two sides of a run is padded to.
const CARD_BYTES: usize = 256;
/// Cards that each side gives: an empty one when it is ready, and its address.
const EXCHANGES: usize = 2;

/// The first word of a side's own process.
const SIDE: &str = "--side";
const SECONDS_MOST: u32 = 60;

const SECOND_LIBFABRIC: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/libfabric-2.5.1/data/lib/mpich/libfabric.so.1");
const FIRST_LIBFABRIC: &str = "libfabric.so.1";
/// Where the figures are taken: libfabric and its provider.
const PLACES: [Place; 3] = [
    Place { libfabric: FIRST_LIBFABRIC, provider: "net" },
    Place { libfabric: SECOND_LIBFABRIC, provider: "tcp" },
    Place { libfabric: SECOND_LIBFABRIC, provider: "tcp;ofi_rxm" },
];

/// The first connection takes at most so many times what bare libfabric takes in the same run.
const RATIO_BOUND: f64 = 1.5;
/// The plugin's second endpoint and the greeting of the two sides may take so long.
const GREETING_MS: f64 = 1.0;
/// Memory below this has no bound: rings and buffers for messages are there for all connections.
const MIB_SMALL: f64 = 1.0;
/// `listen` takes at most so much longer than bare libfabric takes to open as many endpoints as the plugin has: one for data
/// and one for control.
const LISTEN_MS_BOUND: f64 = 5.0;
const ENDPOINTS: f64 = 2.0;

#[derive(Clone, Copy, Debug)]
struct Place {
    libfabric: &'static str,
    provider: &'static str,
}

/// What one side found. Of bare libfabric "listen" is the opening of its endpoint.
#[derive(Clone, Copy, Debug)]
struct Report {
    listen_ms: f64,
    first_ms: f64,
    first_mib: f64,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [word, side, first, file, place] = words.as_slice()
        && word == SIDE
    {
        net::give_up_after(SECONDS_MOST);
        let place = PLACES[place.parse::<usize>().expect("a number")];
        let is_first = first == "first";
        let report = match side.as_str() {
            "plugin" => plugin_side(Path::new(file), is_first),
            _ => raw_side(place, is_first),
        };
        let Report { listen_ms, first_ms, first_mib } = report;
        tell(format!("{listen_ms} {first_ms} {first_mib}").as_bytes());
        return ExitCode::SUCCESS;
    }
    let check = words.iter().any(|word| word == "--check");
    let runs = words.iter().find_map(|word| word.parse().ok()).unwrap_or(RUNS);
    measure(runs, check)
}

fn measure(runs: usize, check: bool) -> ExitCode {
    let plugin = support::optimised_plugin();
    println!("the first connection and its first message, medians of {runs} alternating runs");
    println!(
        "{:>18} | {:>10} {:>10} {:>6} | {:>10} {:>10} {:>6} | {:>11} {:>13}",
        "provider",
        "first (ms)",
        "raw (ms)",
        "ratio",
        "MiB",
        "raw (MiB)",
        "ratio",
        "listen (ms)",
        "raw opens (ms)",
    );
    let mut kept = true;
    for (index, place) in PLACES.iter().enumerate() {
        let name = match place.libfabric {
            FIRST_LIBFABRIC => place.provider.to_owned(),
            second if Path::new(second).exists() => format!("{} of 2.5.1", place.provider),
            second => {
                println!("{:>18} | not measured: there is no {second}", place.provider);
                kept = false;
                continue;
            }
        };
        let rounds: Vec<[[Report; 2]; 2]> =
            (0..runs).map(|_| ["plugin", "raw"].map(|side| pair(&plugin, side, index))).collect();
        let median = |of: &dyn Fn(&[[Report; 2]; 2]) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let worse = |sides: &[Report; 2], of: fn(&Report) -> f64| of(&sides[0]).max(of(&sides[1]));
        let of_each = |of: fn(&Report) -> f64| {
            [0, 1].map(|who| median(&|round: &[[Report; 2]; 2]| worse(&round[who], of)))
        };
        let [ms, raw_ms] = of_each(|side| side.first_ms);
        let [mib, raw_mib] = of_each(|side| side.first_mib);
        let [listen_ms, raw_listen_ms] = of_each(|side| side.listen_ms);
        let within = ms <= RATIO_BOUND * raw_ms + GREETING_MS
            && mib <= RATIO_BOUND * raw_mib.max(MIB_SMALL)
            && listen_ms <= ENDPOINTS * raw_listen_ms + LISTEN_MS_BOUND;
        kept &= within;
        println!(
            "{name:>18} | {ms:>10.1} {raw_ms:>10.1} {:>6.2} | {mib:>10.1} {raw_mib:>10.1} {:>6.2} | {listen_ms:>11.1} {raw_listen_ms:>13.1}{}",
            ms / raw_ms,
            mib / raw_mib,
            if within { "" } else { " FAILED" },
        );
    }
    if check && !kept { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Two processes, and what passes between them until each has reported. The first one listens.
fn pair(plugin: &Path, side: &str, place: usize) -> [Report; 2] {
    let mut children = ["first", "second"].map(|which| start(plugin, side, which, place));
    for _ in 0..EXCHANGES {
        let mut cards = [[0; CARD_BYTES]; 2];
        for (child, card) in children.iter_mut().zip(&mut cards) {
            let out = child.stdout.as_mut().expect("it is piped");
            out.read_exact(card).expect("the side lives");
        }
        for (child, card) in children.iter_mut().zip(cards.iter().rev()) {
            let into = child.stdin.as_mut().expect("it is piped");
            into.write_all(card).expect("the side lives");
        }
    }
    children.map(|mut child| {
        let mut text = String::new();
        let out = child.stdout.as_mut().expect("it is piped");
        out.read_to_string(&mut text).expect("a side reports");
        assert!(child.wait().expect("a side ends").success(), "a side failed");
        let numbers: Vec<f64> =
            text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let [listen_ms, first_ms, first_mib] = numbers.try_into().expect("three numbers");
        Report { listen_ms, first_ms, first_mib }
    })
}

fn start(plugin: &Path, side: &str, which: &str, place: usize) -> Child {
    let Place { libfabric, provider } = PLACES[place];
    let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
    command.args([SIDE, side, which]).arg(plugin).arg(place.to_string());
    command.env("IRONRAIL_RAILS", "127.0.0.1").env("IRONRAIL_PROVIDER", provider);
    command.env("IRONRAIL_LIBFABRIC", libfabric);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("this program runs again")
}

/// Both sides listen, so that each has opened its endpoint; one connects.
fn plugin_side(file: &Path, is_first: bool) -> Report {
    let net = Net::open(file);
    let memory = Memory::new(4096);
    let before_kib = resident_kib();
    let start = start_together();
    let (listener, handle) = net.listen();
    let listen_ms = milliseconds(start.elapsed());
    let mut theirs: Handle = handle;
    let card = exchange(&handle);
    theirs.copy_from_slice(&card[..handle.len()]);
    let (mut there, mut back) = (None, None);
    // The message goes one way over one connection: a second one would make it two first connections.
    while there.is_none() && back.is_none() {
        if is_first {
            back = net.accept(&listener, &memory);
        } else {
            there = net.connect(&mut theirs, &memory);
        }
    }
    let mut end = match (there, back) {
        (Some(comm), _) => End::sending(&net, comm),
        (_, Some(comm)) => End::receiving(&net, comm),
        _ => unreachable!("the loop ends with one of them"),
    };
    end.run(MESSAGE_BYTES, 1, 1);
    let first_ms = milliseconds(start.elapsed());
    Report { listen_ms, first_ms, first_mib: (resident_kib() - before_kib) / 1024.0 }
}

/// Writes a message with an immediate, and waits for the other's.
fn raw_side(place: Place, is_first: bool) -> Report {
    let library = Library::open(&[place.libfabric]).expect("libfabric loads");
    let query = Query {
        provider: Some(place.provider.to_owned()),
        source: Some("127.0.0.1".to_owned()),
        ..Query::default()
    };
    let found = library.find(&query).expect("fi_getinfo");
    let info = found.into_iter().find(|info| info.provider() == place.provider);
    let info = info.expect("libfabric has the provider");
    let before_kib = resident_kib();
    let start = start_together();
    let entries = RAW_QUEUE_ENTRIES;
    let options = NicOptions { data: Some(&[]), entries, operations: 1, ..NicOptions::default() };
    let mut nic = Nic::open(&info, &options).expect("a NIC");
    let listen_ms = milliseconds(start.elapsed());
    let pages = Pages::map(2 * MESSAGE_BYTES).expect("memory");
    let region: Region<Data> = nic.register(pages.into()).expect("fi_mr_reg");
    let name = nic.data_name().to_vec();
    let mut card = region.remote_base().to_le_bytes().to_vec();
    card.extend(region.key().to_wire().to_le_bytes());
    card.push(u8::try_from(name.len()).expect("a short name"));
    card.extend(name);
    let card = exchange(&card);
    let word = |index: usize| {
        u64::from_le_bytes(card[index * 8..index * 8 + 8].try_into().expect("eight bytes"))
    };
    let len = usize::from(card[16]);
    let peer = nic.add_peer::<Data>(&card[17..17 + len]).expect("fi_av_insert");
    let remote = RemoteBytes::<Data> {
        address: word(0) + MESSAGE_BYTES as u64,
        key: RemoteKey::from_wire(word(1)),
    };
    let (mut ended, mut arrived) = (false, false);
    let poll = |nic: &mut Nic, ended: &mut bool, arrived: &mut bool| {
        if nic.poll_data().is_empty() {
            return;
        }
        while let Some(event) = nic.next_data() {
            match event {
                Event::Arrived { .. } => *arrived = true,
                Event::Ended { .. } => *ended = true,
                event => panic!("{event:?}"),
            }
        }
    };
    if !is_first {
        while !arrived {
            poll(&mut nic, &mut ended, &mut arrived);
        }
    }
    let local = region.local(0, MESSAGE_BYTES).expect("the region holds it");
    let write = DataWrite { local, remote, peer, delivery: Delivery::Default };
    while nic.write(&write, Some(1), 0).expect("fi_writedata") != Post::Accepted {
        poll(&mut nic, &mut ended, &mut arrived);
    }
    while !(ended && arrived) {
        poll(&mut nic, &mut ended, &mut arrived);
    }
    let report = Report {
        listen_ms,
        first_ms: milliseconds(start.elapsed()),
        first_mib: (resident_kib() - before_kib) / 1024.0,
    };
    // What a provider still holds of the last write leaves by later polls.
    for _ in 0..1000 {
        poll(&mut nic, &mut ended, &mut arrived);
    }
    report
}

/// The start of the clock, when both sides are ready. Loading libfabric takes tens of milliseconds, and one side's would otherwise
/// count as the other's wait.
fn start_together() -> Instant {
    exchange(&[]);
    Instant::now()
}

/// Gives the other side a card, and takes its.
fn exchange(card: &[u8]) -> [u8; CARD_BYTES] {
    let mut padded = [0; CARD_BYTES];
    padded[..card.len()].copy_from_slice(card);
    tell(&padded);
    let mut theirs = [0; CARD_BYTES];
    std::io::stdin().lock().read_exact(&mut theirs).expect("the bench speaks");
    theirs
}

fn tell(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).expect("the bench listens");
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The resident memory of this process alone.
fn resident_kib() -> f64 {
    let status = Status::of_this_process().expect("the system tells it");
    status.kib("VmRSS").expect("VmRSS is there") as f64
}
