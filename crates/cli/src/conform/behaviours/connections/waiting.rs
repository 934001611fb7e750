//! Either side calls first, and no call blocks.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use net_loader::raw::{HandlePlace, Net, SendComm};

use super::finish;
use crate::conform::behaviours::{give, named, pass, take};
use crate::conform::case::{COMMUNICATOR, Case, Outcome, Stop, hold};
use crate::conform::link::{Opening, accept, connect, place};
use crate::conform::pace::{BLOCKS, at_once, timed};

pub(super) fn accept_answers_null_until_connected(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (listener, _) = net.listen(0)?;
    case.stage("accept without a peer");
    let accepted = poll(case, "accept", || Ok(listener.accept(false)?))?;
    hold!(accepted.is_none(), "accept gave a comm without a peer");
    listener.close()?;
    Ok(net.finalize()?)
}

/// Connects first alone, then beside another communicator of the process, whose thread connects to itself at the same time.
pub(super) fn connect_does_not_block(case: &mut Case) -> Outcome {
    let net = case.net()?;
    if case.role() == 0 {
        let opened = (0..CONNECTS).map(|_| Ok(net.listen(0)?)).collect::<Outcome<Vec<_>>>()?;
        let handles: Vec<u8> = opened.iter().flat_map(|(_, handle)| handle.bytes()).collect();
        case.send(&handles)?;
        case.receive("wait, without accepting, while the peer connects")?;
        for (number, (listener, _)) in opened.into_iter().enumerate() {
            let comm = accept(case, &listener)?;
            listener.close()?;
            hold!(take(case, &comm, 256, 0)? == named(number), "message {number} is wrong");
            case.meet("the message is there")?;
            comm.close()?;
        }
    } else {
        let bytes = case.receive("wait for the handles")?;
        let mut handles = bytes.chunks(128).map(place).collect::<Outcome<Vec<_>>>()?;
        case.stage("connect while the peer does not accept");
        let alone = poll(case, "connect", || Ok(net.connect(0, &mut handles[0], false)?))?;
        let mut comms = vec![alone];
        comms.extend(connect_beside(case, &net, &mut handles[1..])?);
        case.send(b"tried")?;
        for (number, (comm, handle)) in comms.into_iter().zip(&mut handles).enumerate() {
            let comm = comm.map_or_else(|| connect(case, &net, handle), Ok)?;
            give(case, &comm, &named(number), 0)?;
            case.meet("the message is there")?;
            comm.close()?;
        }
    }
    Ok(net.finalize()?)
}

const CONNECTS: usize = 4;

/// Polls a call for a while, or until it gives a comm. No call may block, and most must not even sleep briefly: one thread polls all
/// pending connections.
fn poll<T>(
    case: &Case,
    name: &str,
    mut call: impl FnMut() -> Outcome<Option<T>>,
) -> Outcome<Option<T>> {
    let (mut comm, mut calls, mut dozed) = (None, 0, Vec::new());
    case.during(POLLED, || {
        if comm.is_none() {
            let (answer, took) = timed(&mut call)?;
            hold!(took.own < BLOCKS, "{name} took {:.2} s of its own", took.own.as_secs_f64());
            comm = answer;
            calls += 1;
            if took.slept > DOZE {
                dozed.push(took.slept);
            }
        }
        Ok(())
    })?;
    hold!(
        dozed.len() < 2 || dozed.len() * 2 <= calls,
        "{} of {calls} calls of {name} slept, up to {:.0?}",
        dozed.len(),
        dozed.iter().max().copied().unwrap_or_default()
    );
    Ok(comm)
}

/// Polls connect for each handle, while another thread opens and closes connections.
fn connect_beside(
    case: &Case,
    net: &Net,
    handles: &mut [HandlePlace],
) -> Outcome<Vec<Option<SendComm>>> {
    let other = Net::init(&case.library()?, COMMUNICATOR + 1)?;
    let (over, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    let comms = thread::scope(|scope| -> Outcome<Vec<Option<SendComm>>> {
        let beside = scope.spawn(|| -> Outcome {
            while !over.load(Ordering::Relaxed) {
                let number = opened.load(Ordering::Relaxed);
                open_watched(case, &other, number)?;
                opened.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let mut tries = || -> Outcome<Vec<Option<SendComm>>> {
            handles
                .iter_mut()
                .map(|handle| {
                    let before = opened.load(Ordering::Relaxed);
                    let (begun, mut comm) = (Instant::now(), None);
                    case.until(
                        "connect while another thread does, and the peer does not accept",
                        || {
                            if comm.is_none() {
                                comm = at_once("connect", || Ok(net.connect(0, handle, false)?))?;
                            }
                            let others =
                                opened.load(Ordering::Relaxed) > before || beside.is_finished();
                            Ok((begun.elapsed() > POLLED && others).then_some(()))
                        },
                    )?;
                    Ok(comm)
                })
                .collect()
        };
        let comms = tries();
        over.store(true, Ordering::Relaxed);
        beside.join().map_err(|_| Stop::Fail("conform's thread died".to_owned()))??;
        comms
    })?;
    other.finalize()?;
    Ok(comms)
}

/// A connection to this process; none of its calls may block.
fn open_watched(case: &Case, net: &Net, number: usize) -> Outcome {
    let beside = |name| format!("{name}, beside a connect that is pending,");
    let (listener, handle) = at_once(&beside("listen"), || Ok(net.listen(0)?))?;
    let mut copy = HandlePlace::of(handle.bytes());
    let mut opening = Opening::default();
    case.until("connect beside a connect that is pending", || {
        let connect = || Ok(net.connect(0, &mut copy, false)?);
        opening.connect(|| at_once(&beside("connect"), connect))?;
        let accept = || Ok(listener.accept(false)?);
        Ok(opening.accept(|| at_once(&beside("accept"), accept))?.then_some(()))
    })?;
    listener.close()?;
    let link = opening.link()?;
    pass(case, &link.send, &link.receive, number)?;
    link.close()
}

const POLLED: Duration = Duration::from_millis(400);
/// Longer than any sleep of a call that only polls.
const DOZE: Duration = Duration::from_millis(20);

pub(super) fn connect_before_accept(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (listener, handle) = net.listen(0)?;
    let mut copy = HandlePlace::of(handle.bytes());
    let mut opening = Opening::default();
    case.stage("connect alone");
    case.during(Duration::from_millis(200), || {
        opening.connect(|| Ok(net.connect(0, &mut copy, false)?))?;
        Ok(())
    })?;
    case.until("connect and accept", || {
        opening.accept(|| Ok(listener.accept(false)?))?;
        Ok(opening.connect(|| Ok(net.connect(0, &mut copy, false)?))?.then_some(()))
    })?;
    finish(case, net, listener, opening)
}

pub(super) fn accept_before_connect(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (listener, handle) = net.listen(0)?;
    let mut copy = HandlePlace::of(handle.bytes());
    case.during(Duration::from_millis(200), || {
        hold!(listener.accept(false)?.is_none(), "accept gave a comm without a peer");
        Ok(())
    })?;
    let mut opening = Opening::default();
    case.until("accept and connect", || {
        opening.accept(|| Ok(listener.accept(false)?))?;
        Ok(opening.connect(|| Ok(net.connect(0, &mut copy, false)?))?.then_some(()))
    })?;
    finish(case, net, listener, opening)
}
