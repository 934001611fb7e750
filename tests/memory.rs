//! A communicator that was opened, used and finalized leaks no memory: NCCL makes and ends many in one process.
//!
//! Counted is the memory that malloc has handed out, over some windows of many cycles of init, listen, connect, accept, close and finalize.
//! A leak grows in every window, a cache only in some, so the window that grew least is judged. Known leaks of providers are subtracted by
//! their size.

mod support;

use std::process::ExitCode;
use std::time::Duration;

use harness::{Test, second_libfabric};
use support::calls::{Buffer, Net};
use support::heap::handed_out;
use support::link;
use support::say;
use support::stage::{Part, play};

const BOUND: Duration = Duration::from_secs(300);
/// Cycles that fill the caches, before the first window.
const WARM_UP: usize = 150;
/// Cycles in a window.
const CYCLES: usize = 75;
const WINDOWS: usize = 3;
/// What the caches of malloc and of the providers may grow by in every window, and malloc's rounding of what `net` leaks.
const SLACK: usize = 12 << 10;
/// A device of one rail has two endpoints: for data and for control.
const ENDPOINTS: usize = 2;
/// `net` of libfabric 1.17 never frees a copy of fi_info for each endpoint (xnet_init_rdm; 1.18 does).
const NET_ENDPOINT: usize = 672;
/// Nor one for each accepted connection; each endpoint has one to itself.
const NET_CONNECTION: usize = 704;
/// `shm` never frees the name of an endpoint's memory before the process ends (smr_create), nor what was queued when it closed: 304 to 464
/// bytes in runs of one build.
const SHM_ENDPOINT: usize = 480;

fn main() -> ExitCode {
    harness::run([
        Test::new(cycles_over_rxm_leave_nothing),
        Test::new(cycles_over_sockets_leave_nothing),
        Test::new(cycles_over_net_leave_what_its_provider_leaks),
        Test::new(cycles_over_shm_leave_what_its_provider_leaks),
        Test::new(cycles_over_tcp_of_the_second_library_leave_nothing)
            .needs(second_libfabric().map(drop)),
    ])
}

fn cycles_over_rxm_leave_nothing() {
    let settings = [("PROVIDER", "tcp;ofi_rxm"), ("RAILS", "127.0.0.1")];
    report(&play(&settings, BOUND, |part| leaves(part, 0)));
}

fn cycles_over_sockets_leave_nothing() {
    let settings = [("PROVIDER", "sockets"), ("RAILS", "127.0.0.1")];
    report(&play(&settings, BOUND, |part| leaves(part, 0)));
}

fn cycles_over_net_leave_what_its_provider_leaks() {
    let settings = [("PROVIDER", "net"), ("RAILS", "127.0.0.1")];
    let known = ENDPOINTS * NET_ENDPOINT + ENDPOINTS * NET_CONNECTION;
    report(&play(&settings, BOUND, |part| leaves(part, known)));
}

fn cycles_over_shm_leave_what_its_provider_leaks() {
    let settings = [("PROVIDER", "shm")];
    report(&play(&settings, BOUND, |part| leaves(part, ENDPOINTS * SHM_ENDPOINT)));
}

fn cycles_over_tcp_of_the_second_library_leave_nothing() {
    let library = second_libfabric().expect("the test runs only where it is");
    let library = library.to_str().expect("its path is text");
    let settings = [("LIBFABRIC", library), ("PROVIDER", "tcp"), ("RAILS", "127.0.0.1")];
    report(&play(&settings, BOUND, |part| leaves(part, 0)));
}

/// `known`: bytes per cycle that the provider leaks.
fn leaves(part: &Part, known: usize) {
    let net = Net::open(&part.plugin());
    let buffer = Buffer::new(1 << 16);
    (0..WARM_UP).for_each(|_| cycle(net, buffer));
    let windows: [usize; WINDOWS] = std::array::from_fn(|_| {
        let before = handed_out();
        (0..CYCLES).for_each(|_| cycle(net, buffer));
        handed_out().saturating_sub(before)
    });
    say(&format!("{REPORT}{windows:?} bytes in windows of {CYCLES} cycles"));
    let grown = windows.into_iter().min().expect("there are windows");
    let most = SLACK + known * CYCLES;
    assert!(grown <= most, "{grown} bytes more in each {CYCLES} cycles, and not {most} at most");
}

fn cycle(net: Net, buffer: Buffer) {
    let context = net.init().expect("init");
    let (mut handle, listener) = net.listen(context, 0).expect("listen");
    let (mut send, mut receive) = (None, None);
    link::wait("connect and accept", || {
        send = send.or_else(|| net.connect(context, 0, &mut handle).expect("connect"));
        receive = receive.or_else(|| net.accept(listener).expect("accept"));
        send.is_some() && receive.is_some()
    });
    let (send, receive) = (send.expect("connected"), receive.expect("accepted"));
    let region = net.register(send, buffer).expect("regMr");
    net.deregister(send, region).expect("deregMr");
    net.close_send(send).expect("closeSend");
    net.close_recv(receive).expect("closeRecv");
    net.close_listen(listener).expect("closeListen");
    net.finalize(context).expect("finalize");
}

fn report(said: &str) {
    said.lines().filter(|line| line.starts_with(REPORT)).for_each(say);
}

/// The start of the line with the figures.
const REPORT: &str = "memory: ";
