//! Listeners and connects that are given up, and what is left of connections.

use std::time::Duration;

use net_loader::raw::{ReceiveComm, SendComm};

use crate::conform::behaviours::{few, give, holdings, named, take, talk};
use crate::conform::case::{Case, Outcome, hold};
use crate::conform::link::{Link, accept, connect, place, trade};
use crate::conform::traffic::{Manner, Message};

pub(super) fn close_listen_right_after_accept(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for round in 0..10 {
        // In odd rounds the message is sent after the close, in even rounds at any time.
        let after_close = round % 2 == 1;
        if case.role() == 1 {
            let (listener, handle) = net.listen(0)?;
            case.send(&handle.bytes())?;
            let comm = accept(case, &listener)?;
            listener.close()?;
            if after_close {
                case.send(b"closed")?;
            }
            hold!(take(case, &comm, 300, 0)? == named(1), "the message is wrong");
            case.meet("a message is there")?;
            comm.close()?;
        } else {
            let mut handle = place(&case.receive("wait for the handle")?)?;
            let comm = connect(case, &net, &mut handle)?;
            if after_close {
                case.receive("wait for the close of the listener")?;
            }
            give(case, &comm, &named(1), 0)?;
            case.meet("a message is there")?;
            comm.close()?;
        }
    }
    Ok(net.finalize()?)
}

pub(super) fn abandoned_listen_is_harmless(case: &mut Case) -> Outcome {
    let net = case.net()?;
    // In turn the listener is closed at any time, and when the peer's connect is under way.
    for both_first in [false, true, false, true] {
        let (listener, handle) = net.listen(0)?;
        let mut theirs = trade(case, &handle)?;
        let mut comm = None;
        case.during(Duration::from_millis(60), || {
            // An error is allowed too: the peer has closed.
            if comm.is_none() {
                comm = net.connect(0, &mut theirs, false).unwrap_or(None);
            }
            Ok(())
        })?;
        if both_first {
            case.meet("both have called connect")?;
        }
        listener.close()?;
        case.meet("both listeners are closed")?;
        comm.map_or(Ok(()), SendComm::close)?;
        let link = Link::open(case, &net)?;
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        link.close()?;
    }
    Ok(net.finalize()?)
}

pub(super) fn abandoned_connect_is_harmless(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for tries in [1, 3, 50] {
        let (listener, handle) = net.listen(0)?;
        let mut theirs = trade(case, &handle)?;
        let mut comm = None;
        for _ in 0..tries {
            if comm.is_none() {
                comm = net.connect(0, &mut theirs, false)?;
            }
        }
        case.meet("both have given up")?;
        let mut accepted = None;
        case.during(Duration::from_millis(60), || {
            if accepted.is_none() {
                accepted = listener.accept(false)?;
            }
            Ok(())
        })?;
        case.meet("both have tried to accept")?;
        listener.close()?;
        comm.map_or(Ok(()), SendComm::close)?;
        accepted.map_or(Ok(()), ReceiveComm::close)?;
        let link = Link::open(case, &net)?;
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        link.close()?;
    }
    Ok(net.finalize()?)
}

pub(super) fn connections_leak_no_descriptors(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let mut before = (0, 0);
    for cycle in 0..WARM + CYCLES {
        if cycle == WARM {
            before = holdings()?;
        }
        let link = Link::open(case, &net)?;
        talk(case, &link, &[Message::of(100)], Manner::LIKE_NCCL)?;
        link.close()?;
    }
    case.meet("all cycles are over")?;
    let after = holdings()?;
    let (descriptors, threads) = (before.0 + SLACK, before.1 + SLACK);
    hold!(
        after.0 <= descriptors,
        "{} descriptors before {CYCLES} connections, {} after",
        before.0,
        after.0
    );
    hold!(
        after.1 <= threads,
        "{} threads before {CYCLES} connections, {} after",
        before.1,
        after.1
    );
    Ok(net.finalize()?)
}

const WARM: usize = 10;
const CYCLES: usize = 50;
/// Less than one for every five connections.
const SLACK: usize = 9;
