//! Closing: with requests in flight, right after the last one, in any order.

use std::thread;
use std::time::Duration;

use net_loader::raw::Net;

use super::super::behaviour::{Behaviour, one, two};
use super::super::case::{COMMUNICATOR, Case, Outcome, Stop, fail, hold, skip};
use super::super::link::Link;
use super::super::pace::soon;
use super::super::traffic::{Flow, Incoming, Manner, Message, Outgoing, drive};
use super::{begin, few, give_back_beside_silence, nudge, talk, watch};

pub(in super::super) const ALL: &[Behaviour] = &[
    two(
        "close-with-requests-in-flight",
        "closes succeed with requests outstanding, and the next connection works",
        "NCCL src/transport/net.cc:1196-1300 (abort)",
        close_with_requests_in_flight,
    ),
    two(
        "close-right-after-the-last-send",
        "a comm closed right after its last send was done has lost nothing",
        "NCCL src/transport/net.cc:1196-1300 (ncclCommDestroy right after the last operation)",
        close_right_after_the_last_send,
    ),
    two(
        "exit-right-after-the-last-send",
        "a process that closes, finalizes and ends right after its last send was done has lost nothing",
        "NCCL src/init.cc:378-384 (the communicator's end is the program's)",
        exit_right_after_the_last_send,
    ),
    two(
        "close-receiver-first",
        "the receiving end may close first",
        "NCCL src/transport/net.cc:1196-1300 (no order between ranks)",
        close_receiver_first,
    ),
    two(
        "close-sender-first",
        "the sending end may close first",
        "NCCL src/transport/net.cc:1196-1300 (no order between ranks)",
        close_sender_first,
    ),
    one(
        "close-in-any-order",
        "the comms of a process close in any order",
        "NCCL src/transport/net.cc:1196-1300",
        close_in_any_order,
    ),
    one(
        "close-bears-null",
        "closeSend, closeRecv and closeListen take null, the comm of a connection that did not come about",
        "NCCL src/bootstrap.cc:1323-1326 (NCCL_OOB_NET_ENABLE=1, an init that fails)",
        close_bears_null,
    ),
    two(
        "close-while-the-peer-sends",
        "when a receiver closes, its sender can close within seconds",
        "NCCL src/proxy.cc:980-984 (abort of one rank)",
        close_while_the_peer_sends,
    ),
    two(
        "close-of-one-link-leaves-the-other",
        "of two connections of a pair one is aborted in flight, and the other continues",
        "NCCL src/init.cc (ncclCommAbort of one communicator of several)",
        close_of_one_link_leaves_the_other,
    ),
    two(
        "abort-leaves-other-communicators-alone",
        "one of two communicators is aborted with requests in flight; the other continues",
        "NCCL src/init.cc (ncclCommAbort); NCCL src/proxy.cc:980-984 (its progress thread stops)",
        abort_leaves_other_communicators_alone,
    ),
];

fn close_with_requests_in_flight(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for (round, bytes) in [8, 5000, 1 << 20, 8, 300_000].into_iter().enumerate() {
        let link = Link::open(case, &net)?;
        let messages = vec![Message::of(bytes); 64];
        let mut out = Outgoing::new(&link.send, case.role(), &messages, Manner::LIKE_NCCL)?;
        let mut into = Incoming::new(&link.receive, case.source(), &messages, Manner::LIKE_NCCL)?;
        for _ in 0..round * 7 {
            nudge(&mut [&mut out, &mut into])?;
            into.post()?;
        }
        into.post()?;
        case.meet("both have requests in flight")?;
        case.stage("close in flight");
        soon("closeSend", || Ok(link.send.close()?))?;
        soon("closeRecv", || Ok(link.receive.close()?))?;
        case.meet("both are closed")?;
    }
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

/// The receiver posts everything, then polls rarely.
fn receive_slowly(case: &Case, link: &Link, messages: &[Message]) -> Outcome {
    let manner = Manner { window: messages.len().min(32), ..Manner::LIKE_NCCL };
    let mut into = Incoming::new(&link.receive, 0, messages, manner)?;
    case.stage("receive slowly");
    while !into.is_finished() {
        while into.posted() < messages.len() && into.post()? {}
        thread::sleep(Duration::from_millis(3));
        into.poll()?;
        case.in_time(|| into.says())?;
    }
    into.end()
}

fn send_and_close(case: &Case, link: Link, messages: &[Message]) -> Outcome {
    let mut out = Outgoing::new(&link.send, 0, messages, Manner::LIKE_NCCL)?;
    drive(case, "send", &mut [&mut out])?;
    hold!(out.done() == messages.len(), "sends are missing");
    out.end()?;
    case.stage("close right after the last send");
    link.send.close()?;
    Ok(link.receive.close()?)
}

fn close_right_after_the_last_send(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for bytes in [8, 1, 3000, 100_000, 8] {
        let link = Link::open(case, &net)?;
        let messages = vec![Message::of(bytes).in_room(bytes + 50); 17];
        if case.role() == 1 {
            send_and_close(case, link, &messages)?;
        } else {
            receive_slowly(case, &link, &messages)?;
            link.close()?;
        }
        case.meet("all is there, and closed")?;
    }
    Ok(net.finalize()?)
}

fn exit_right_after_the_last_send(case: &mut Case) -> Outcome {
    if case.in_threads {
        return skip("by --threads both sides are one process, which does not end");
    }
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let messages = vec![Message::of(2000).in_room(3000); 20];
    if case.role() == 1 {
        send_and_close(case, link, &messages)?;
    } else {
        receive_slowly(case, &link, &messages)?;
        link.close()?;
    }
    Ok(net.finalize()?)
}

fn close_receiver_first(case: &mut Case) -> Outcome {
    close_one_first(case, 1)
}

fn close_sender_first(case: &mut Case) -> Outcome {
    close_one_first(case, 0)
}

/// Messages from role 0 to role 1; role `first` closes its end while the other makes no calls.
fn close_one_first(case: &mut Case, first: usize) -> Outcome {
    let net = case.net()?;
    for _ in 0..5 {
        let link = Link::open(case, &net)?;
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        let Link { send, receive } = link;
        // First the ends of the connection from role 0 to role 1 are closed, one after the other, then those of the other connection.
        let mut ends = (Some(send), Some(receive));
        for role in [first, 1 - first] {
            if case.role() == role {
                if role == 0 {
                    ends.0.take().map_or(Ok(()), |send| send.close())?;
                } else {
                    ends.1.take().map_or(Ok(()), |receive| receive.close())?;
                }
            }
            case.meet("one end is closed")?;
        }
        ends.0.map_or(Ok(()), |send| send.close())?;
        ends.1.map_or(Ok(()), |receive| receive.close())?;
    }
    Ok(net.finalize()?)
}

fn close_bears_null(case: &mut Case) -> Outcome {
    let net = case.net()?;
    net.close_nothing()?;
    let link = Link::open(case, &net)?;
    net.close_nothing()?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

fn close_in_any_order(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for order in 0..4 {
        let (listener, _handle) = net.listen(0)?;
        let links = [Link::open(case, &net)?, Link::open(case, &net)?];
        for link in &links {
            talk(case, link, &few(), Manner::LIKE_NCCL)?;
        }
        let [first, second] = links;
        match order {
            0 => {
                first.send.close()?;
                second.receive.close()?;
                listener.close()?;
                first.receive.close()?;
                second.send.close()?;
            }
            1 => {
                listener.close()?;
                second.receive.close()?;
                first.receive.close()?;
                second.send.close()?;
                first.send.close()?;
            }
            2 => {
                second.close()?;
                first.close()?;
                listener.close()?;
            }
            _ => {
                first.receive.close()?;
                talk(case, &second, &few(), Manner::LIKE_NCCL)?;
                first.send.close()?;
                listener.close()?;
                second.close()?;
            }
        }
    }
    Ok(net.finalize()?)
}

fn close_while_the_peer_sends(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (link, other) = (Link::open(case, &net)?, Link::open(case, &net)?);
    let messages = vec![Message::of(200_000); 400];
    let nothing = [Message::of(8)];
    let mut idle = Incoming::new(&other.receive, case.source(), &nothing, Manner::LIKE_NCCL)?;
    case.until("post a receive on another connection", || Ok(idle.post()?.then_some(())))?;
    if case.role() == 0 {
        let mut out = Outgoing::new(&link.send, 0, &messages, Manner::LIKE_NCCL)?;
        let mut erred = false;
        // Either an error (the peer has gone) or silence is allowed; a close that blocks is not. In both cases the plugin is called on the
        // other connection.
        let mut step = || {
            erred = erred || nudge(&mut [&mut out]).is_err();
            idle.poll().map(drop)
        };
        case.until("send until the peer has gone", || {
            step()?;
            Ok(case.received()?.map(drop))
        })?;
        case.stage("send on to a receiver that has gone");
        case.during(Duration::from_millis(200), step)?;
        if out.is_finished() {
            return fail("400 messages were done and 20 received");
        }
        // The peer no longer polls. If its polls are needed to complete this side's writes, the provider may go on reading from the buffer.
        give_back_beside_silence(out.into_region())?;
    } else {
        let mut into = Incoming::new(&link.receive, 0, &messages, Manner::LIKE_NCCL)?;
        for _ in 0..20 {
            case.until("receive a few", || Ok(into.step()?.then_some(())))?;
        }
        into.into_region().deregister()?;
    }
    let Link { send, receive } = link;
    case.stage("close");
    soon("closeRecv", || Ok(receive.close()?))?;
    if case.role() == 1 {
        case.send(b"gone")?;
    }
    soon("closeSend", || Ok(send.close()?))?;
    case.meet("both are closed")?;
    idle.into_region().deregister()?;
    other.close()?;
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

/// Requests of the aborted connection are tested until it is closed, as NCCL does.
fn close_of_one_link_leaves_the_other(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for first in [0, 1, 0] {
        let (bad, good) = (Link::open(case, &net)?, Link::open(case, &net)?);
        abort_beside(case, first, bad, &good)?;
        good.close()?;
    }
    Ok(net.finalize()?)
}

/// Each communicator has a context and a service thread that connects.
fn abort_leaves_other_communicators_alone(case: &mut Case) -> Outcome {
    let library = case.library()?;
    for first in [0, 1, 0] {
        let net = Net::init(&library, COMMUNICATOR)?;
        let good = Link::open(case, &net)?;
        let (other, bad) = thread::scope(|scope| {
            let shared = &mut *case;
            let open = || -> Outcome<(Net, Link)> {
                let other = Net::init(&library, COMMUNICATOR + 1)?;
                let bad = Link::open(shared, &other)?;
                Ok((other, bad))
            };
            let opened = scope.spawn(open).join();
            opened.map_err(|_| Stop::Fail("conform's thread died".to_owned()))?
        })?;
        let messages = vec![Message::of(300_000); 16];
        let mut out = Outgoing::new(&bad.send, case.role(), &messages, Manner::LIKE_NCCL)?;
        let mut into = Incoming::new(&bad.receive, case.source(), &messages, Manner::LIKE_NCCL)?;
        begin(&mut out, &mut into, 6)?;
        case.meet("both have requests in flight")?;
        // The progress thread of the aborted communicator has stopped: its requests are not tested any more.
        let buffers = [out.into_parts(), into.into_parts()];
        let mut whole = Some((other, bad, buffers));
        for role in [first, 1 - first] {
            if case.role() == role
                && let Some((other, bad, [sent, received])) = whole.take()
            {
                case.stage("abort one communicator");
                give_back_beside_silence(sent.0)?;
                let memory = received.1;
                if give_back_beside_silence(received.0)? {
                    watch(case, memory, "deregMr returned", || Ok(()))?;
                }
                bad.close()?;
                other.finalize()?;
                // NCCL deregisters nothing after an error, but the user may free the memory once the communicator is gone.
                watch(case, memory, "its communicator was finalized", || Ok(()))?;
            }
            talk(case, &good, &few(), Manner::LIKE_NCCL)?;
        }
        good.close()?;
        net.finalize()?;
    }
    Ok(())
}

fn abort_beside(case: &mut Case, first: usize, bad: Link, good: &Link) -> Outcome {
    let messages = vec![Message::of(300_000); 16];
    let mut out = Outgoing::new(&bad.send, case.role(), &messages, Manner::LIKE_NCCL)?;
    let mut into = Incoming::new(&bad.receive, case.source(), &messages, Manner::LIKE_NCCL)?;
    begin(&mut out, &mut into, 6)?;
    case.meet("both have requests in flight")?;
    if case.role() != first {
        // The close by the peer may be reported as an error, on the aborted connection only.
        let mut step = || {
            let _ = nudge(&mut [&mut out]);
            let _ = nudge(&mut [&mut into]);
            Ok(())
        };
        talk_beside(case, good, &mut step)?;
    }
    // The peer still calls the plugin for the other connection, or has closed its end.
    out.into_region().deregister()?;
    into.into_region().deregister()?;
    bad.close()?;
    if case.role() == first {
        talk_beside(case, good, &mut || Ok(()))?;
    }
    talk(case, good, &few(), Manner::LIKE_NCCL)
}

/// Moves messages, and calls `step` in between.
fn talk_beside(case: &mut Case, link: &Link, step: &mut dyn FnMut() -> Outcome) -> Outcome {
    let mut out = Outgoing::new(&link.send, case.role(), &few(), Manner::LIKE_NCCL)?;
    let mut into = Incoming::new(&link.receive, case.source(), &few(), Manner::LIKE_NCCL)?;
    case.stage("move messages beside an aborted connection");
    while !(out.is_finished() && into.is_finished()) {
        nudge(&mut [&mut out, &mut into])?;
        step()?;
        case.in_time(|| format!("{}; {}", out.says(), into.says()))?;
    }
    out.end()?;
    into.end()?;
    case.meet_while("messages are done beside an aborted connection", step)
}
