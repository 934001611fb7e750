//! Processes that are stopped, and processes that die.

use std::process::{self, Command};
use std::thread;
use std::time::{Duration, Instant};

use net_loader::raw::Net;
use rustix::process::{Signal, getpid, kill_process};

use super::super::behaviour::{Behaviour, two, victim};
use super::super::case::{Case, Idle, Outcome, Stop, fail, hold};
use super::super::link::Link;
use super::super::traffic::{Flow, Incoming, Manner, Message, Outgoing, drive};
use super::{few, nudge, pass, talk};

pub(in super::super) const ALL: &[Behaviour] = &[
    victim(
        "silence-after-small-sends",
        "a sender that is stopped right after its last small send was done: every message still arrives",
        "NCCL src/proxy.cc:848-855 (the progress thread sleeps and does not call the plugin)",
        silence_after_small_sends,
    ),
    victim(
        "silence-after-large-sends",
        "a sender that is stopped right after its last large send was done: every message still arrives",
        "NCCL src/proxy.cc:848-855",
        silence_after_large_sends,
    ),
    victim(
        "silence-after-receives",
        "a receiver that is stopped right after its last receive was done: every send still completes",
        "NCCL src/proxy.cc:848-855",
        silence_after_receives,
    ),
    victim(
        "death-of-the-sender-is-reported",
        "receives from a process that was killed end in an error within a bound (--death)",
        "NCCL src/proxy.cc:980-984 (an error becomes the communicator's)",
        death_of_the_sender_is_reported,
    )
    .within(30),
    victim(
        "death-of-the-receiver-is-reported",
        "sends to a process that was killed end in an error within a bound (--death)",
        "NCCL src/proxy.cc:980-984 (an error becomes the communicator's)",
        death_of_the_receiver_is_reported,
    )
    .within(30),
    victim(
        "death-leaves-others-alone",
        "a connection to a living process still works when another's peer is killed",
        "NCCL src/init.cc (communicators are independent)",
        death_leaves_others_alone,
    )
    .within(30),
    victim(
        "close-after-death",
        "after a peer's death deregMr, closes and finalize succeed, within seconds",
        "NCCL src/transport/net.cc:1196-1300 (abort)",
        close_after_death,
    )
    .within(30),
    victim(
        "death-under-load-is-reported",
        "when a peer is killed with messages in flight in both directions, the survivor gets an error on each connection within a bound (--death), closes, and uses others",
        "NCCL src/proxy.cc:980-984 (an error becomes the communicator's); NCCL src/transport/net.cc:1196-1300 (abort)",
        death_under_load_is_reported,
    )
    .within(40),
    two(
        "idle-peer-is-alive",
        "a peer that does not call the plugin for a long time (--idle) is not declared dead: its kernel still answers",
        "NCCL src/proxy.cc:848-855 (the progress thread sleeps and does not call the plugin)",
        idle_peer_is_alive,
    )
    .idle(),
];

/// Sends the signal to this process by the shell, as users do; the calling thread does not return.
fn signal_oneself(which: &str) -> Outcome {
    Command::new("sh").arg("-c").arg(format!("kill -{which} {}", process::id())).status()?;
    thread::sleep(Duration::from_secs(600));
    fail(format_args!("SIG{which} did nothing"))
}

fn silence_after_small_sends(case: &mut Case) -> Outcome {
    silent_sender(case, &[8, 1, 2000, 0, 8])
}

fn silence_after_large_sends(case: &mut Case) -> Outcome {
    silent_sender(case, &[400_000, 1 << 20, 8])
}

/// Role 1 sends and is then stopped; role 0 polls late.
fn silent_sender(case: &mut Case, sizes: &[usize]) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let messages: Vec<Message> =
        (0..24).map(|n| Message::of(sizes[n % sizes.len()]).in_room(1 << 20)).collect();
    if case.role() == 1 {
        let mut out = Outgoing::new(&link.send, 1, &messages, Manner::LIKE_NCCL)?;
        drive(case, "send", &mut [&mut out])?;
        case.send(b"sent")?;
        return signal_oneself("STOP");
    }
    let manner = Manner { window: 24, ..Manner::LIKE_NCCL };
    let mut into = Incoming::new(&link.receive, 1, &messages, manner)?;
    case.stage("receive, polling rarely");
    let mut stopped = false;
    while !into.is_finished() {
        into.step()?;
        stopped = stopped || case.received()?.is_some();
        // Lets the sender run ahead, finish and be stopped.
        thread::sleep(Duration::from_millis(if stopped { 0 } else { 4 }));
        case.in_time(|| {
            format!("{}; the sender is {}", into.says(), if stopped { "done" } else { "at work" })
        })?;
    }
    if !stopped {
        // This side has no outstanding request, so NCCL would not call the plugin here.
        case.receive("wait until the sender's sends are done")?;
    }
    into.end()
}

/// Role 1 receives and is then stopped; role 0 must be able to complete its sends.
fn silence_after_receives(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let messages: Vec<Message> = (0..24).map(|n| Message::of([8, 3000, 300_000][n % 3])).collect();
    if case.role() == 1 {
        let mut into = Incoming::new(&link.receive, 0, &messages, Manner::LIKE_NCCL)?;
        drive(case, "receive", &mut [&mut into])?;
        return signal_oneself("STOP");
    }
    let mut out = Outgoing::new(&link.send, 0, &messages, Manner::LIKE_NCCL)?;
    drive(case, "send to a receiver that falls silent when it has all", &mut [&mut out])?;
    out.end()
}

/// Connects, moves messages, and ends role 1. Returns role 0's link.
fn bereave(case: &mut Case, net: &Net) -> Outcome<Link> {
    let link = Link::open(case, net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    if case.role() == 1 {
        case.send(b"dying")?;
        signal_oneself("KILL")?;
    }
    case.receive("wait for the peer's death")?;
    Ok(link)
}

/// Makes progress on a flow until the plugin returns an error. Fails if the plugin completes a request with a wrong result, as a size that
/// was never sent.
fn until_it_errs(case: &Case, flow: &mut dyn Flow) -> Outcome<String> {
    let begun = Instant::now();
    case.stage("wait for an error");
    let mut idle = Idle::default();
    while begun.elapsed() < case.death_limit {
        match flow.step() {
            Err(Stop::Code(why)) => return Ok(why),
            Err(other) => return Err(other),
            Ok(true) => idle.end(),
            Ok(false) => idle.pass(),
        }
        hold!(!flow.is_finished(), "messages were done with a process that is dead");
    }
    fail(format_args!("no error in {} s: {}", case.death_limit.as_secs(), flow.says()))
}

fn death_of_the_sender_is_reported(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = bereave(case, &net)?;
    let messages = vec![Message::of(5000); 64];
    let mut into = Incoming::new(&link.receive, 1, &messages, Manner::LIKE_NCCL)?;
    until_it_errs(case, &mut into).map(drop)
}

fn death_of_the_receiver_is_reported(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = bereave(case, &net)?;
    // More than any socket buffer holds.
    let messages = vec![Message::of(1 << 20); 4096];
    let mut out = Outgoing::new(&link.send, 0, &messages, Manner::LIKE_NCCL)?;
    until_it_errs(case, &mut out).map(drop)
}

fn death_leaves_others_alone(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = bereave(case, &net)?;
    let (listener, handle) = net.listen(0)?;
    let alive = Link::finish(case, &net, 0, listener, handle)?;
    let own = |case: &Case| -> Outcome {
        let mut out = Outgoing::new(&alive.send, 7, &few(), Manner::LIKE_NCCL)?;
        let mut into = Incoming::new(&alive.receive, 7, &few(), Manner::LIKE_NCCL)?;
        drive(case, "move messages among the living", &mut [&mut out, &mut into])?;
        out.end()?;
        into.end()
    };
    own(case)?;
    let messages = vec![Message::of(5000); 64];
    let mut into = Incoming::new(&link.receive, 1, &messages, Manner::LIKE_NCCL)?;
    until_it_errs(case, &mut into)?;
    own(case)?;
    into.into_region().deregister()?;
    link.close()?;
    own(case)?;
    alive.close()?;
    Ok(net.finalize()?)
}

fn close_after_death(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = bereave(case, &net)?;
    let messages = vec![Message::of(5000); 64];
    let mut out = Outgoing::new(&link.send, 0, &messages, Manner::LIKE_NCCL)?;
    let mut into = Incoming::new(&link.receive, 1, &messages, Manner::LIKE_NCCL)?;
    case.until("wait until the peer is dead", || {
        Ok((case.received() == Err(Stop::Left)).then_some(()))
    })?;
    let _ = case.during(Duration::from_millis(300), || nudge(&mut [&mut out, &mut into]));
    let begun = Instant::now();
    case.stage("deregister, close, finalize");
    out.into_region().deregister()?;
    into.into_region().deregister()?;
    link.close()?;
    net.finalize()?;
    let took = begun.elapsed();
    hold!(took < SECONDS_TO_CLOSE, "deregMr, the closes and finalize took {took:.1?}");
    Ok(())
}

const SECONDS_TO_CLOSE: Duration = Duration::from_secs(10);

/// Two connections in each direction with full windows, as in NCCL; the peer dies in the middle.
fn death_under_load_is_reported(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let links = [Link::open(case, &net)?, Link::open(case, &net)?];
    for link in &links {
        talk(case, link, &few(), Manner::LIKE_NCCL)?;
    }
    let sizes = [256 << 10, 8, 40_000, 1 << 20, 300, 128 << 10];
    let messages: Vec<Message> = (0..1 << 20).map(|n| Message::of(sizes[n % 6])).collect();
    let (mut outs, mut intos) = (Vec::new(), Vec::new());
    for (link, salt) in links.iter().zip([0, 10]) {
        outs.push(Outgoing::new(&link.send, salt + case.role(), &messages, Manner::LIKE_NCCL)?);
        intos.push(Incoming::new(
            &link.receive,
            salt + case.source(),
            &messages,
            Manner::LIKE_NCCL,
        )?);
    }
    case.meet("both are about to send")?;
    if case.role() == 1 {
        thread::spawn(|| {
            thread::sleep(Duration::from_millis(250));
            // Immediately, and possibly in the middle of a call.
            kill_process(getpid(), Signal::KILL)
        });
    }
    let mut flows: Vec<&mut dyn Flow> = Vec::new();
    for (out, into) in outs.iter_mut().zip(&mut intos) {
        flows.push(out);
        flows.push(into);
    }
    case.stage("move messages until the peer dies, and every connection has its error");
    let mut erred = vec![false; flows.len()];
    let mut first = None;
    while !erred.iter().all(|erred| *erred) {
        for (flow, erred) in flows.iter_mut().zip(&mut erred).filter(|(_, erred)| !**erred) {
            match flow.step() {
                Ok(_) => {}
                Err(Stop::Code(_)) => *erred = true,
                Err(other) => return Err(other),
            }
        }
        if erred.contains(&true) && first.is_none() {
            first = Some(Instant::now());
        }
        // The peer is dead once the channel to it is closed.
        if first.is_none() && case.received() == Err(Stop::Left) {
            first = Some(Instant::now());
        }
        let silent: Vec<String> = flows
            .iter()
            .zip(&erred)
            .filter(|(_, erred)| !**erred)
            .map(|(flow, _)| flow.says())
            .collect();
        hold!(
            first.is_none_or(|at| at.elapsed() < case.death_limit),
            "no error in {} s: {}",
            case.death_limit.as_secs(),
            silent.join("; ")
        );
        case.in_time(|| silent.join("; "))?;
    }
    let begun = Instant::now();
    case.stage("deregister and close");
    for (out, into) in outs.into_iter().zip(intos) {
        out.into_region().deregister()?;
        into.into_region().deregister()?;
    }
    links.into_iter().try_for_each(Link::close)?;
    let took = begun.elapsed();
    hold!(took < SECONDS_TO_CLOSE, "deregMr and the closes took {took:.1?}");
    let (listener, handle) = net.listen(0)?;
    let alive = Link::finish(case, &net, 0, listener, handle)?;
    pass(case, &alive.send, &alive.receive, 5)?;
    alive.close()?;
    Ok(net.finalize()?)
}

/// One side calls the plugin all the time, with a receive and a send outstanding; the other side makes no call.
fn idle_peer_is_alive(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    let messages = [Message::of(100_000), Message::of(8), Message::of(3000)];
    let mut out = Outgoing::new(&link.send, case.role(), &messages, Manner::LIKE_NCCL)?;
    let mut into = Incoming::new(&link.receive, case.source(), &messages, Manner::LIKE_NCCL)?;
    if case.role() == 1 {
        case.stage("call nothing");
        thread::sleep(case.idle);
    } else {
        case.stage("wait for a peer that is idle");
        let end = Instant::now() + case.idle;
        while Instant::now() < end {
            nudge(&mut [&mut out, &mut into])?;
            // As rarely as a busy progress thread polls, so that behaviours that run beside this one get the CPU.
            thread::sleep(Duration::from_millis(2));
        }
    }
    drive(case, "move messages after that", &mut [&mut out, &mut into])?;
    out.end()?;
    into.end()?;
    case.meet("all messages are done")?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}
