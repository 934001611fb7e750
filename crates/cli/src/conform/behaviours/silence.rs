//! Processes that fall silent, and processes that die.

use std::process::{self, Command};
use std::thread;
use std::time::{Duration, Instant};

use ironrail_group::loader::raw::Net;
use rustix::process::{Signal, getpid, kill_process};

use super::super::behaviour::{Behaviour, two, victim};
use super::super::case::{Case, Outcome, Stop, fail, hold};
use super::super::link::Link;
use super::super::traffic::{Flow, Incoming, Manner, Message, Outgoing, drive};
use super::{few, nudge, pass, talk};

pub(in super::super) const ALL: &[Behaviour] = &[
    victim(
        "silence-after-small-sends",
        "a sender that is stopped right after its last small send was done owes the receiver nothing",
        "NCCL src/proxy.cc:848-855 (the progress thread sleeps; nobody calls the plugin)",
        silence_after_small_sends,
    ),
    victim(
        "silence-after-large-sends",
        "a sender that is stopped right after its last large send was done owes the receiver nothing",
        "NCCL src/proxy.cc:848-855",
        silence_after_large_sends,
    ),
    victim(
        "silence-after-receives",
        "a receiver that is stopped right after its last receive was done owes the sender nothing",
        "NCCL src/proxy.cc:848-855",
        silence_after_receives,
    ),
    victim(
        "death-of-the-sender-is-told",
        "receives from a process that was killed end in an error within a bound (--death)",
        "NCCL src/proxy.cc:980-984 (an error becomes the communicator's)",
        death_of_the_sender_is_told,
    )
    .within(30),
    victim(
        "death-of-the-receiver-is-told",
        "sends to a process that was killed end in an error within a bound (--death)",
        "NCCL src/proxy.cc:980-984 (an error becomes the communicator's)",
        death_of_the_receiver_is_told,
    )
    .within(30),
    victim(
        "death-leaves-others-alone",
        "a connection to a living process goes on when another's peer is killed",
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
        "death-under-load-is-told",
        "when a peer is killed with messages under way in both directions, the survivor gets an error on each connection within a bound (--death), closes, and goes on with others",
        "NCCL src/proxy.cc:980-984 (an error becomes the communicator's); NCCL src/transport/net.cc:1196-1300 (abort)",
        death_under_load_is_told,
    )
    .within(40),
    two(
        "idle-peer-is-alive",
        "a peer that does not call the plugin for a long time (--idle) is not taken for dead: its kernel is still at work",
        "NCCL src/proxy.cc:848-855 (the progress thread sleeps; nobody calls the plugin)",
        idle_peer_is_alive,
    )
    .idle(),
];

/// By the shell, as users do it; the caller's thread does not return from it.
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

/// Role 1 sends and is stopped; role 0 is slow to look.
fn silent_sender(case: &mut Case, sizes: &[usize]) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let messages: Vec<Message> =
        (0..24).map(|n| Message::of(sizes[n % sizes.len()]).in_room(1 << 20)).collect();
    if case.role() == 1 {
        let mut out = Outgoing::new(&link.send, 1, &messages, Manner::PLAIN)?;
        drive(case, "send", &mut [&mut out])?;
        case.tell(b"sent")?;
        return signal_oneself("STOP");
    }
    let manner = Manner { window: 24, ..Manner::PLAIN };
    let mut into = Incoming::new(&link.receive, 1, &messages, manner)?;
    case.stage("receive, looking seldom");
    let mut told = false;
    while !into.is_finished() {
        into.step()?;
        told = told || case.heard()?.is_some();
        // Time for the sender to run ahead, be done and be stopped.
        thread::sleep(Duration::from_millis(if told { 0 } else { 4 }));
        case.in_time(|| {
            format!("{}; the sender is {}", into.says(), if told { "done" } else { "at work" })
        })?;
    }
    if !told {
        // Nothing of ours is outstanding, so NCCL would not call the plugin here.
        case.hear("wait until the sender's sends are done")?;
    }
    into.end()
}

/// Role 1 receives and is stopped; role 0 must come to the end of its sends.
fn silence_after_receives(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let messages: Vec<Message> = (0..24).map(|n| Message::of([8, 3000, 300_000][n % 3])).collect();
    if case.role() == 1 {
        let mut into = Incoming::new(&link.receive, 0, &messages, Manner::PLAIN)?;
        drive(case, "receive", &mut [&mut into])?;
        return signal_oneself("STOP");
    }
    let mut out = Outgoing::new(&link.send, 0, &messages, Manner::PLAIN)?;
    drive(case, "send to a receiver that falls silent when it has all", &mut [&mut out])?;
    out.end()
}

/// Connects, talks, and ends role 1. Role 0 gets the link back.
fn bereave(case: &mut Case, net: &Net) -> Outcome<Link> {
    let link = Link::open(case, net)?;
    talk(case, &link, &few(), Manner::PLAIN)?;
    if case.role() == 1 {
        case.tell(b"dying")?;
        signal_oneself("KILL")?;
    }
    case.hear("wait for the peer's death")?;
    Ok(link)
}

/// Turns a flow until it errs.
fn until_it_errs(case: &Case, flow: &mut dyn Flow) -> Outcome<String> {
    let begun = Instant::now();
    case.stage("wait for an error");
    while begun.elapsed() < case.death_is_told {
        match flow.step() {
            Err(Stop::Fail(why)) => return Ok(why),
            Err(other) => return Err(other),
            Ok(_) => thread::yield_now(),
        }
        hold!(!flow.is_finished(), "messages were done with a process that is dead");
    }
    fail(format_args!("no error in {} s: {}", case.death_is_told.as_secs(), flow.says()))
}

fn death_of_the_sender_is_told(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = bereave(case, &net)?;
    let messages = vec![Message::of(5000); 64];
    let mut into = Incoming::new(&link.receive, 1, &messages, Manner::PLAIN)?;
    until_it_errs(case, &mut into).map(drop)
}

fn death_of_the_receiver_is_told(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = bereave(case, &net)?;
    // More than any socket takes in.
    let messages = vec![Message::of(1 << 20); 4096];
    let mut out = Outgoing::new(&link.send, 0, &messages, Manner::PLAIN)?;
    until_it_errs(case, &mut out).map(drop)
}

fn death_leaves_others_alone(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = bereave(case, &net)?;
    let (listener, handle) = net.listen(0)?;
    let alive = Link::finish(case, &net, listener, handle)?;
    let own = |case: &Case| -> Outcome {
        let mut out = Outgoing::new(&alive.send, 7, &few(), Manner::PLAIN)?;
        let mut into = Incoming::new(&alive.receive, 7, &few(), Manner::PLAIN)?;
        drive(case, "move messages among the living", &mut [&mut out, &mut into])?;
        out.end()?;
        into.end()
    };
    own(case)?;
    let messages = vec![Message::of(5000); 64];
    let mut into = Incoming::new(&link.receive, 1, &messages, Manner::PLAIN)?;
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
    let mut out = Outgoing::new(&link.send, 0, &messages, Manner::PLAIN)?;
    let mut into = Incoming::new(&link.receive, 1, &messages, Manner::PLAIN)?;
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

/// Two connections each way, as full as NCCL has them, of which the peer dies in the middle.
fn death_under_load_is_told(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let links = [Link::open(case, &net)?, Link::open(case, &net)?];
    for link in &links {
        talk(case, link, &few(), Manner::PLAIN)?;
    }
    let sizes = [256 << 10, 8, 40_000, 1 << 20, 300, 128 << 10];
    let messages: Vec<Message> = (0..1 << 20).map(|n| Message::of(sizes[n % 6])).collect();
    let (mut outs, mut intos) = (Vec::new(), Vec::new());
    for (link, salt) in links.iter().zip([0, 10]) {
        outs.push(Outgoing::new(&link.send, salt + case.role(), &messages, Manner::PLAIN)?);
        intos.push(Incoming::new(&link.receive, salt + case.source(), &messages, Manner::PLAIN)?);
    }
    case.meet("both are about to send")?;
    if case.role() == 1 {
        thread::spawn(|| {
            thread::sleep(Duration::from_millis(250));
            // At once, and in the middle of a call.
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
                Err(Stop::Fail(why)) if why.contains(" returned nccl") => *erred = true,
                Err(other) => return Err(other),
            }
        }
        if erred.contains(&true) && first.is_none() {
            first = Some(Instant::now());
        }
        // The peer is dead when the channel to it is closed.
        if first.is_none() && case.heard() == Err(Stop::Left) {
            first = Some(Instant::now());
        }
        let silent: Vec<String> = flows
            .iter()
            .zip(&erred)
            .filter(|(_, erred)| !**erred)
            .map(|(flow, _)| flow.says())
            .collect();
        hold!(
            first.is_none_or(|at| at.elapsed() < case.death_is_told),
            "no error in {} s: {}",
            case.death_is_told.as_secs(),
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
    let alive = Link::finish(case, &net, listener, handle)?;
    pass(case, &alive.send, &alive.receive, 5)?;
    alive.close()?;
    Ok(net.finalize()?)
}

/// One side calls the plugin all the time, with a receive and a send outstanding; the other not at all.
fn idle_peer_is_alive(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::PLAIN)?;
    let messages = [Message::of(100_000), Message::of(8), Message::of(3000)];
    let mut out = Outgoing::new(&link.send, case.role(), &messages, Manner::PLAIN)?;
    let mut into = Incoming::new(&link.receive, case.source(), &messages, Manner::PLAIN)?;
    if case.role() == 1 {
        case.stage("call nothing");
        thread::sleep(case.idle);
    } else {
        case.stage("wait for a peer that is idle");
        let end = Instant::now() + case.idle;
        while Instant::now() < end {
            nudge(&mut [&mut out, &mut into])?;
            // As seldom as a busy progress thread comes to it, and leaving the machine to the behaviours beside.
            thread::sleep(Duration::from_millis(2));
        }
    }
    drive(case, "move messages after that", &mut [&mut out, &mut into])?;
    out.end()?;
    into.end()?;
    case.meet("all messages are done")?;
    talk(case, &link, &few(), Manner::PLAIN)?;
    link.close()?;
    Ok(net.finalize()?)
}
