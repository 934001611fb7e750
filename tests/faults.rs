//! Faults that NCCL's own proxies and users' programs met over the plugin, each by the smallest play that shows it. FAULT_RUNS sets how often those run that
//! show a fault only sometimes (100 for a reliable count); each prints in how many of its runs it did.

mod support;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use harness::{Test, second_libfabric};
use net_abi::ResultCode;
use proc_status::Status;
use support::calls::{Failure, Net, Object};
use support::link::{self, Link, SLOT, from_text, to_text};
use support::stage::{Part, play, play_each};
use support::{say, sockets};

fn main() -> ExitCode {
    let second = || second_libfabric().map(drop);
    harness::run([
        Test::new(finalize_after_an_aborted_connect_over_shm)
            .ignored("shm of 1.17 crashes when a process that has requested a connection is gone"),
        Test::new(buffers_are_given_back_after_a_death_over_shm)
            .ignored("over shm writes to the dead never end"),
        Test::new(groups_are_received_over_rxd),
        Test::new(a_data_connection_that_net_mends_silently_fails_both_ends),
        Test::new(signals_stay_with_the_program),
        Test::new(a_killed_peer_is_noticed_within_a_second)
            .ignored("a death is noticed by what the provider says, or by the keepalive"),
        Test::new(a_survivor_under_load_lives_over_rxm_of_the_second_library)
            .ignored("rxm of 2.5.1 crashes sometimes")
            .needs(second()),
    ])
}

const BOUND: Duration = Duration::from_secs(240);
/// Longer than the detection of any death that is detected at all.
const DEADLINE: Duration = Duration::from_secs(60);
/// Requests that are outstanding when the peer dies.
const OUTSTANDING: usize = 8;
/// Attempts to find a connection with unread bytes.
const ROUNDS: usize = 20;
/// Unread in a connection that carries messages; letters and packets are shorter.
const UNREAD: i32 = 64 << 10;
/// The start of the line with the figures.
const REPORT: &str = "faults: ";

fn open(part: &Part) -> (Net, Object) {
    let net = Net::open(&part.plugin());
    (net, net.init().expect("init"))
}

/// One run, or FAULT_RUNS.
fn runs(usual: usize) -> usize {
    std::env::var("FAULT_RUNS").map_or(usual, |text| text.parse().expect("FAULT_RUNS is a number"))
}

fn report(said: &str) {
    said.lines().filter(|line| line.contains(REPORT)).for_each(say);
}

/// Messages in both directions, many at once, until a call fails; returns the time since `start`.
fn exchange_until_it_fails(net: Net, link: &Link, start: Instant) -> Duration {
    let Link { send, receive, out, input, .. } = link;
    let (mut sends, mut receives) = (VecDeque::new(), VecDeque::new());
    loop {
        if receives.len() < OUTSTANDING {
            match net.irecv(*receive, input.slot(receives.len()), SLOT, 0, input.region) {
                Ok(request) => receives.extend(request),
                Err(_) => return start.elapsed(),
            }
        }
        if sends.len() < OUTSTANDING {
            match net.isend(*send, out.slot(sends.len()), SLOT, 0, out.region) {
                Ok(request) => sends.extend(request),
                Err(_) => return start.elapsed(),
            }
        }
        for requests in [&mut sends, &mut receives] {
            match requests.front().map(|oldest| net.test(*oldest)) {
                Some(Ok(Some(_))) => drop(requests.pop_front()),
                Some(Err(_)) => return start.elapsed(),
                Some(Ok(None)) | None => {}
            }
        }
        assert!(start.elapsed() < DEADLINE, "not noticed within {DEADLINE:?}");
        std::thread::yield_now();
    }
}

/// A peer that is killed under load.
fn victim(part: &Part) {
    let (net, context) = open(part);
    let link = Link::to_peer(net, context, &mut { part });
    part.say("ready");
    exchange_until_it_fails(net, &link, Instant::now());
}

/// A link to a peer that is killed under load, and the time until a call failed.
fn with_a_victim(part: &Part, net: Net, context: Object) -> (Link, Duration) {
    let mut victim = part.cast("victim", &[]);
    let link = Link::to_peer(net, context, &mut victim);
    assert_eq!(victim.receive(), "ready");
    let killer = std::thread::spawn(move || {
        // It is killed at any point in the middle of its messages.
        std::thread::sleep(Duration::from_millis(50));
        victim.kill();
        Instant::now()
    });
    let start = Instant::now();
    let failed = start + exchange_until_it_fails(net, &link, start);
    let killed = killer.join().expect("it kills");
    (link, failed.saturating_duration_since(killed))
}

/// NCCL abandons a connect, and finalizes.
fn finalize_after_an_aborted_connect_over_shm() {
    let settings = [("PROVIDER", "shm"), ("CLOSE_TIMEOUT_MS", "500")];
    play(&settings, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "listener" {
            let (handle, listener) = net.listen(context, 0).expect("listen");
            part.say(&to_text(&handle));
            part.receive();
            net.close_listen(listener).expect("closeListen");
            return net.finalize(context).expect("finalize");
        }
        let mut listener = part.cast("listener", &[]);
        let mut handle = from_text(&listener.receive());
        for _ in 0..100 {
            assert_eq!(net.connect(context, 0, &mut handle).expect("connect"), None);
        }
        net.finalize(context).expect("finalize");
        listener.say("end");
        listener.finish();
    });
}

/// NCCL deregisters nothing after the first error.
fn buffers_are_given_back_after_a_death_over_shm() {
    let settings = [("PROVIDER", "shm"), ("PEER_TIMEOUT_MS", "2000"), ("CLOSE_TIMEOUT_MS", "500")];
    play(&settings, BOUND, |part| {
        if part.name == "victim" {
            return victim(part);
        }
        let (net, context) = open(part);
        let (link, _) = with_a_victim(part, net, context);
        net.deregister(link.send, link.out.region).expect("deregMr of what is sent");
        net.deregister(link.receive, link.input.region).expect("deregMr of what is received");
        net.close_send(link.send).expect("closeSend");
        net.close_recv(link.receive).expect("closeRecv");
        net.finalize(context).expect("finalize");
    });
}

/// The receiver's socket of a data connection is reset while bytes are unread. The provider connects again and reports nothing, and
/// what was under way is gone. The receiver polls, or its plugin alone does; the sender's messages may have been done by then.
fn a_data_connection_that_net_mends_silently_fails_both_ends() {
    let settings = [("PROVIDER", "net"), ("RAILS", "127.0.0.1"), ("PEER_TIMEOUT_MS", "3000")];
    play_each(
        &["both poll", "the sender idles", "the receiver idles"],
        &settings,
        BOUND,
        |part, which| {
            let (net, context) = open(part);
            if part.name == "receiver" {
                let mut link = Link::to_peer(net, context, &mut { part });
                link.works();
                return is_cut_off(part, net, &link, which == "the receiver idles");
            }
            let mut receiver = part.cast("receiver", &[]);
            let mut link = Link::to_peer(net, context, &mut receiver);
            link.works();
            let posts = || net.isend(link.send, link.out.slot(0), SLOT, 0, link.out.region);
            while receiver.receive() == "posted" {
                for _ in 0..OUTSTANDING {
                    // It may have failed by now, which is checked below.
                    link::wait("isend", || posts().map_or(true, |request| request.is_some()));
                }
            }
            if which == "the sender idles" {
                assert_eq!(receiver.receive(), "failed");
            }
            let failure = fails("the sender", || posts().err());
            assert_eq!(failure.code, ResultCode::REMOTE_ERROR, "{failure:?}");
            receiver.say("failed");
            receiver.finish();
        },
    );
}

/// Posts receives, and cuts the connection by which their bytes come; idles until the sender has failed, or polls.
fn is_cut_off(part: &Part, net: Net, link: &Link, idles: bool) {
    let Link { receive, input, .. } = link;
    let posts = |at| net.irecv(*receive, input.slot(at), SLOT, 0, input.region);
    let mut requests = Vec::new();
    let mut is_cut = false;
    for _ in 0..ROUNDS {
        requests = (0..OUTSTANDING).map(|at| posts(at).expect("irecv").expect("room")).collect();
        let ends = |request: &Object| net.test(*request).expect("test").is_some();
        assert!(!requests.iter().any(ends), "nothing is sent yet");
        part.say("posted");
        // The plugin's own thread may have read all of it before this one sees any.
        let start = Instant::now();
        while !is_cut && start.elapsed() < Duration::from_secs(2) {
            is_cut = sockets::reset_one_that_holds(UNREAD);
        }
        if is_cut {
            break;
        }
        link::wait("the messages", || {
            requests.retain(|request| !ends(request));
            requests.is_empty()
        });
    }
    assert!(is_cut, "no bytes were unread in any of {ROUNDS} rounds");
    part.say("cut");
    // Messages before the cut may still arrive.
    let polls = || {
        let mut failure = None;
        requests.retain(|request| match net.test(*request) {
            Ok(done) => done.is_none(),
            Err(error) => failure.replace(error).is_none(),
        });
        failure
    };
    if idles {
        assert_eq!(part.receive(), "failed");
    }
    let failure = fails("the receiver", polls);
    assert_eq!(failure.code, ResultCode::REMOTE_ERROR, "{failure:?}");
    if !idles {
        part.say("failed");
        assert_eq!(part.receive(), "failed");
    }
}

/// The failure of a call, which comes in time.
fn fails(side: &str, mut call: impl FnMut() -> Option<Failure>) -> Failure {
    let (start, mut failure) = (Instant::now(), None);
    link::wait(side, || {
        failure = call();
        failure.is_some()
    });
    say(&format!("{REPORT}{side} failed after {:?}", start.elapsed()));
    failure.expect("it has failed")
}

/// A library of the provider psm takes those of ends and crashes, as libfabric is loaded.
fn signals_stay_with_the_program() {
    play(&[("RAILS", "127.0.0.1")], BOUND, |part| {
        let handled = || {
            let status = Status::of_this_process().expect("proc is mounted");
            status.signals("SigCgt").expect("a set of signals")
        };
        let before = handled();
        let (net, context) = open(part);
        Link::to_self(net, context).works();
        assert_eq!(format!("{:#x}", handled()), format!("{before:#x}"));
        net.finalize(context).expect("finalize");
    });
}

/// A message of a group, between two ends of one process.
fn groups_are_received_over_rxd() {
    let settings = [("PROVIDER", "udp;ofi_rxd"), ("RAILS", "127.0.0.1")];
    play(&settings, BOUND, |part| {
        let (net, context) = open(part);
        let link = Link::to_self(net, context);
        let Link { send, receive, out, input, .. } = &link;
        let into = [0, 1].map(|slot| (input.slot(slot), SLOT, 7));
        let mut group = None;
        link::wait("irecv", || {
            group = net.irecv_each(*receive, &into, input.region).expect("irecv");
            group.is_some()
        });
        for slot in [0, 1] {
            let mut request = None;
            link::wait("isend", || {
                request = net.isend(*send, out.slot(slot), SLOT, 7, out.region).expect("isend");
                request.is_some()
            });
        }
        let group = group.expect("posted");
        link::wait("the group", || net.test_each(group, 2).expect("test").is_some());
    });
}

fn a_killed_peer_is_noticed_within_a_second() {
    let settings = [("PROVIDER", "net"), ("RAILS", "127.0.0.1")];
    let said = play(&settings, 10 * BOUND, |part| {
        if part.name == "victim" {
            return victim(part);
        }
        let (net, context) = open(part);
        let mut slow = 0;
        for _ in 0..runs(5) {
            let (_, took) = with_a_victim(part, net, context);
            say(&format!("{REPORT}noticed after {took:?}"));
            slow += usize::from(took > Duration::from_secs(1));
        }
        say(&format!("{REPORT}{slow} of {} took longer than a second", runs(5)));
        assert!(slow == 0 || part.name != "main", "{slow} were slow");
    });
    report(&said);
}

fn a_survivor_under_load_lives_over_rxm_of_the_second_library() {
    let library = second_libfabric().expect("the test runs only where it is");
    let library = library.to_str().expect("its path is text");
    let settings = [
        ("PROVIDER", "tcp;ofi_rxm"),
        ("LIBFABRIC", library),
        ("RAILS", "127.0.0.1"),
        ("PEER_TIMEOUT_MS", "2000"),
    ];
    let said = play(&settings, 10 * BOUND, |part| match part.name.as_str() {
        "victim" => victim(part),
        "survivor" => {
            let (net, context) = open(part);
            with_a_victim(part, net, context);
        }
        _ => {
            let lived = || part.cast("survivor", &[]).ended(DEADLINE).success();
            let died = (0..runs(5)).filter(|_| !lived()).count();
            say(&format!("{REPORT}{died} of {} survivors died", runs(5)));
            assert_eq!(died, 0);
        }
    });
    report(&said);
}
