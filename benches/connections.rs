//! Measures what a connection costs: time to set it up, memory per side after a thousand messages.
//!
//! Two processes, one endpoint each; all connections lead from the one to the other. The first connection pays for the
//! endpoint, and carries enough messages to have been round its queues, whose memory would else come with the later
//! ones. What counts is the rest: K − 1 more, set up at once, then a thousand messages on each.
//!
//! `cargo bench --bench connections [-- WORDS]`: numbers of connections to try, `--check` to fail above a bound. `--many`
//! tries as many comms as an endpoint has ids for instead, over the virtual fabric, in one process: no call may stall.
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../crates/vfabric/tests/support/provider.rs"]
mod vfabric;

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use proc_status::Status;
use support::net::{self, Handle, Listener, Memory, Net};
use support::traffic::End;

const MESSAGES: usize = 1000;
/// What the first connection carries: more completions than a queue has entries, the queue of control, too, which has one for
/// several messages.
const MESSAGES_FIRST: usize = 250_000;
const MESSAGE_BYTES: usize = 8;
const WINDOW: usize = 8;
/// Connections under way at once.
const WAVE: usize = 64;
/// Of several runs the median counts. More connections than the bound on time is for are tried once: memory does not
/// vary, and a million messages take their time.
const RUNS: usize = 5;

/// The bound, and what the peer (aws-ofi-nccl, RDMA protocol on tcp) takes at 64 connections.
const KIB_BOUND: f64 = 16.0;
const KIB_PEER: f64 = 150.0;
const MICROSECONDS_BOUND: f64 = 60.0;
const MICROSECONDS_PEER: f64 = 149.0;
/// The number of connections that the bound on time is for.
const TIMED: usize = 64;
/// So many connections come about within this, all together.
const CROWD: usize = 2000;
const CROWD_BOUND: Duration = Duration::from_millis(500);

/// Connections of a process to itself for as many comms as one endpoint has ids for: each has two.
const MANY: usize = (1 << 14) / 2;
/// The longest that a call may take among them, and all calls together.
const CALL_BOUND: Duration = Duration::from_millis(100);
const MANY_BOUND: Duration = Duration::from_secs(60);

/// The first word of a side's own process.
const SIDE: &str = "--side";
const SECONDS_MOST: u32 = 300;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [word, side, file, count] = words.as_slice()
        && word == SIDE
    {
        net::give_up_after(SECONDS_MOST);
        let count = count.parse().expect("a number");
        match side.as_str() {
            "send" => connecting(Path::new(file), count),
            "many" => many(Path::new(file), count),
            _ => accepting(Path::new(file), count),
        }
        return ExitCode::SUCCESS;
    }
    let check = words.iter().any(|word| word == "--check");
    let mut counts: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if words.iter().any(|word| word == "--many") {
        return measure_many(counts.first().copied().unwrap_or(MANY), check);
    }
    if counts.is_empty() {
        counts = vec![8, 64, 256, 1000];
    }
    measure(&counts, check)
}

fn measure(counts: &[usize], check: bool) -> ExitCode {
    let plugin = support::optimised_plugin();
    println!(
        "per connection beyond the first, after {MESSAGES} messages on each; median of {RUNS}"
    );
    println!(
        "{:>11} | {:>10} {:>10} | {:>9} {:>9} {:>6} {:>6} | {:>8} {:>6} {:>6}",
        "connections",
        "first (us)",
        "first (MB)",
        "send KiB",
        "recv KiB",
        "bound",
        "peer",
        "us each",
        "bound",
        "peer"
    );
    let mut kept = true;
    for count in counts.iter().copied().filter(|count| *count > 1) {
        let runs = if count <= TIMED { RUNS } else { 1 };
        let runs: Vec<[Report; 2]> = (0..runs).map(|_| pair(&plugin, count)).collect();
        let median = |value: &dyn Fn(&[Report; 2]) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let others = (count - 1) as f64;
        let kib = |side: usize| median(&|run| (run[side].all_kib - run[side].first_kib) / others);
        let (send, receive) = (kib(0), kib(1));
        let each = median(&|run| run[0].others_us.max(run[1].others_us) / others);
        let in_time = match count {
            TIMED => each <= MICROSECONDS_BOUND,
            CROWD => each * others <= CROWD_BOUND.as_secs_f64() * 1e6,
            _ => true,
        };
        kept &= send.max(receive) <= KIB_BOUND && in_time;
        println!(
            "{count:>11} | {:>10.0} {:>10.1} | {send:>9.1} {receive:>9.1} {KIB_BOUND:>6.0} {KIB_PEER:>6.0} | {each:>8.1} {MICROSECONDS_BOUND:>6.0} {MICROSECONDS_PEER:>6.0}",
            median(&|run| run[0].first_us.max(run[1].first_us)),
            median(&|run| (run[0].first_kib - run[0].none_kib) / 1024.0),
        );
    }
    if check && !kept { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What one side found.
#[derive(Debug, Default)]
struct Report {
    none_kib: f64,
    first_kib: f64,
    all_kib: f64,
    first_us: f64,
    others_us: f64,
}

/// Two processes, and what passes between them until each has reported.
fn pair(plugin: &Path, count: usize) -> [Report; 2] {
    let [mut send, mut receive] = ["send", "receive"].map(|side| start(plugin, side, count));
    let (mut send_in, mut send_out) = pipes(&mut send);
    let (mut receive_in, mut receive_out) = pipes(&mut receive);
    for wave in waves(count) {
        let mut handles = vec![0; wave * size_of::<Handle>()];
        receive_out.read_exact(&mut handles).expect("the receiving side listens");
        send_in.write_all(&handles).expect("the sending side lives");
        // Both have finished the wave before the next begins, or memory is measured.
        rendezvous(&mut [(&mut send_in, &mut send_out), (&mut receive_in, &mut receive_out)]);
    }
    rendezvous(&mut [(&mut send_in, &mut send_out), (&mut receive_in, &mut receive_out)]);
    let reports = [&mut send_out, &mut receive_out].map(|out| {
        let mut text = String::new();
        out.read_to_string(&mut text).expect("a side reports");
        report(&text)
    });
    for mut side in [send, receive] {
        assert!(side.wait().expect("a side ends").success(), "a side failed");
    }
    reports
}

fn start(plugin: &Path, side: &str, count: usize) -> Child {
    let mut command = again(plugin, side, count);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    for (name, value) in [
        ("IRONRAIL_RAILS", "127.0.0.1"),
        ("IRONRAIL_PROVIDER", "net"),
        // Queues are the endpoint's. Long ones would be touched for the first time while other connections are weighed.
        ("IRONRAIL_CQ_ENTRIES", "1536"),
    ] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command.spawn().expect("this program runs again")
}

fn again(plugin: &Path, side: &str, count: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
    command.args([SIDE, side]).arg(plugin).arg(count.to_string());
    command
}

fn measure_many(count: usize, check: bool) -> ExitCode {
    let plugin = support::optimised_plugin();
    let mut command = again(&plugin, "many", count);
    let provider = vfabric::optimised_file();
    command.env("FI_PROVIDER_PATH", provider.parent().expect("a file lies in a folder"));
    for (name, value) in
        [("FI_PROVIDER", "vfabric"), ("VFABRIC_PROFILE", "cxi"), ("IRONRAIL_RAILS", "vnic0")]
    {
        command.env(name, value);
    }
    let output = command.output().expect("this program runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", output.status);
    if check && text.contains("FAILED") { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn pipes(side: &mut Child) -> (ChildStdin, ChildStdout) {
    (side.stdin.take().expect("it is piped"), side.stdout.take().expect("it is piped"))
}

/// Waits for a byte of each side, then gives each one.
fn rendezvous(sides: &mut [(&mut ChildStdin, &mut ChildStdout)]) {
    for (_, out) in sides.iter_mut() {
        out.read_exact(&mut [0]).expect("the side lives");
    }
    for (into, _) in sides {
        into.write_all(b".").expect("the side lives");
    }
}

fn report(text: &str) -> Report {
    let numbers: Vec<f64> =
        text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [none_kib, first_kib, all_kib, first_us, others_us] =
        numbers.try_into().expect("five numbers");
    Report { none_kib, first_kib, all_kib, first_us, others_us }
}

/// The first connection, then the others, in waves.
fn waves(count: usize) -> impl Iterator<Item = usize> {
    std::iter::once(1).chain((1..count).step_by(WAVE).map(move |first| WAVE.min(count - first)))
}

fn connecting(file: &Path, count: usize) {
    let net = Net::open(file);
    side(count, |wave, memory| {
        let mut handles: Vec<Handle> = (0..wave).map(|_| hear()).collect();
        let start = Instant::now();
        let mut comms: Vec<_> = handles.iter().map(|_| None).collect();
        while comms.iter().any(Option::is_none) {
            for (comm, handle) in comms.iter_mut().zip(&mut handles) {
                if comm.is_none() {
                    *comm = net.connect(handle, memory);
                }
            }
        }
        let took = start.elapsed().as_secs_f64() * 1e6;
        (comms.into_iter().flatten().map(|comm| End::sending(&net, comm)).collect(), took)
    });
}

/// Connections of one process to itself, and what each step of their lives takes.
fn many(file: &Path, count: usize) {
    let net = Net::open(file);
    let (out, into) = (Memory::new(4096), Memory::new(4096));
    println!("{count} connections of a process to itself, over the virtual fabric");
    let mut ends: Vec<[End<'_>; 2]> = Vec::with_capacity(count);
    let mut connect = Step::new("connect and accept");
    let (listener, handle) = connect.time(|| net.listen());
    while ends.len() < count {
        let wave = WAVE.min(count - ends.len());
        let mut handles = vec![handle; wave];
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        let mut asking: Vec<_> = (0..wave).collect();
        while sends.len() < wave || receives.len() < wave {
            asking.retain(|place| {
                let comm = connect.time(|| net.connect(&mut handles[*place], &out));
                let done = comm.is_some();
                sends.extend(comm);
                !done
            });
            receives.extend(connect.time(|| net.accept(&listener, &into)));
        }
        let pair = |(send, receive)| [End::sending(&net, send), End::receiving(&net, receive)];
        // The n-th connect that came about need not be the n-th accept, and here that does not matter.
        ends.extend(sends.into_iter().zip(receives).map(pair));
    }
    net.close_listen(listener);
    connect.print(count);

    // A message on each, all of them outstanding at once.
    let mut post = Step::new("irecv and isend");
    let mut unsent: Vec<usize> = (0..count).collect();
    for [_, receive] in &mut ends {
        while !post.time(|| receive.post(MESSAGE_BYTES)) {}
    }
    while !unsent.is_empty() {
        unsent.retain(|index| !post.time(|| ends[*index][0].post(MESSAGE_BYTES)));
    }
    post.print(count);
    let mut test = Step::new("test");
    let mut open: Vec<(usize, usize)> = (0..count).flat_map(|end| [(end, 0), (end, 1)]).collect();
    while !open.is_empty() {
        open.retain(|(end, side)| !test.time(|| ends[*end][*side].test(MESSAGE_BYTES)));
    }
    test.print(count);

    let mut close = Step::new("close");
    let (sends, receives): (Vec<_>, Vec<_>) = ends.into_iter().map(<[_; 2]>::into).unzip();
    for send in sends {
        close.time(|| net.close_send(send.comm));
    }
    for receive in receives {
        close.time(|| net.close_receive(receive.comm));
    }
    close.print(count);
    let mut finalize = Step::new("finalize");
    finalize.time(|| net.finalize());
    finalize.print(1);
}

/// What the calls of one kind took of the processor, together and at most: so other busy processes do not matter.
struct Step {
    name: &'static str,
    calls: usize,
    all: Duration,
    longest: Duration,
}

impl Step {
    fn new(name: &'static str) -> Self {
        Self { name, calls: 0, all: Duration::ZERO, longest: Duration::ZERO }
    }

    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = net::processor_time();
        let answer = call();
        let took = net::processor_time() - start;
        self.calls += 1;
        self.all += took;
        self.longest = self.longest.max(took);
        answer
    }

    fn print(&self, connections: usize) {
        let Self { name, calls, all, longest } = self;
        let kept = *all <= MANY_BOUND && (*longest <= CALL_BOUND || connections == 1);
        println!(
            "{name:>20} | {calls:>9} calls | {:>8.3} s | {:>8.1} us each | longest {:>9.3} ms{}",
            all.as_secs_f64(),
            all.as_secs_f64() * 1e6 / connections as f64,
            longest.as_secs_f64() * 1e3,
            if kept { "" } else { " FAILED" }
        );
    }
}

fn accepting(file: &Path, count: usize) {
    let net = Net::open(file);
    side(count, |wave, memory| {
        let start = Instant::now();
        let listeners: Vec<Listener> = (0..wave).map(|_| listen(&net)).collect();
        let mut comms: Vec<_> = listeners.iter().map(|_| None).collect();
        while comms.iter().any(Option::is_none) {
            for (comm, listener) in comms.iter_mut().zip(&listeners) {
                if comm.is_none() {
                    *comm = net.accept(listener, memory);
                }
            }
        }
        let took = start.elapsed().as_secs_f64() * 1e6;
        listeners.into_iter().for_each(|listener| net.close_listen(listener));
        (comms.into_iter().flatten().map(|comm| End::receiving(&net, comm)).collect(), took)
    });
}

fn listen(net: &Net) -> Listener {
    let (listener, handle) = net.listen();
    tell(&handle);
    listener
}

/// What both sides do, in step: `open` makes a wave of connections, and says how many microseconds that took.
fn side<'net>(count: usize, open: impl Fn(usize, &Memory) -> (Vec<End<'net>>, f64)) {
    let memory = Memory::new(4096);
    let mut ends: Vec<End<'net>> = Vec::with_capacity(count);
    let none_kib = resident_kib();
    let (mut first_kib, mut first_us, mut others_us) = (0.0, 0.0, 0.0);
    for wave in waves(count) {
        let (opened, took) = open(wave, &memory);
        meet();
        if ends.is_empty() {
            first_us = took;
            ends.extend(opened);
            ends[0].run(MESSAGE_BYTES, WINDOW, MESSAGES_FIRST);
            first_kib = resident_kib();
        } else {
            others_us += took;
            ends.extend(opened);
        }
    }
    for end in &mut ends[1..] {
        end.run(MESSAGE_BYTES, WINDOW, MESSAGES);
    }
    let all_kib = resident_kib();
    meet();
    tell(format!("{none_kib} {first_kib} {all_kib} {first_us} {others_us}").as_bytes());
}

fn tell(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).expect("the bench listens");
}

fn hear<const BYTES: usize>() -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    std::io::stdin().lock().read_exact(&mut bytes).expect("the bench speaks");
    bytes
}

fn meet() {
    tell(b".");
    let [_] = hear::<1>();
}

/// The resident memory of this process alone.
fn resident_kib() -> f64 {
    let status = Status::of_this_process().expect("the system tells it");
    status.kib("VmRSS").expect("VmRSS is there") as f64
}
