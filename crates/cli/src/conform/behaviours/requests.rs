//! The contents of *request, *done and sizes, and the order in which requests are tested.

use std::time::{Duration, Instant};

use net_loader::raw::{Before, Receive};

use super::super::behaviour::{Behaviour, one, two};
use super::super::case::{Case, Outcome, hold, skip};
use super::super::groups::{GroupIncoming, GroupOutgoing, Plan};
use super::super::link::Link;
use super::super::traffic::{
    Flow, GUARD_BYTES, Incoming, Manner, Message, Outgoing, arena, check, clear, drive, pattern,
};
use super::{few, give, group_most, take, talk, whole, windows};

pub(in super::super) const ALL: &[Behaviour] = &[
    one(
        "request-null-when-not-now",
        "isend that cannot post writes null over the older request that NCCL leaves in its place",
        "NCCL src/transport/net.cc:1414 (sub->requests + buffSlot is not cleared)",
        request_null_when_not_now,
    ),
    two(
        "isend-overwrites-an-old-request",
        "every isend writes its place, in which an older request stands",
        "NCCL src/transport/net.cc:1414",
        isend_overwrites_an_old_request,
    ),
    two(
        "irecv-overwrites-its-word",
        "irecv writes its place, in which (void*)1 stands when completion is optional: NCCL would call test(1)",
        "NCCL src/transport/net.cc:1585-1589",
        irecv_overwrites_its_word,
    )
    .since(9),
    one(
        "optional-completion-still-delivers",
        "a receive whose completion is optional has a request that ends, and its data lands",
        "NCCL src/transport/net.cc:1585-1589",
        optional_completion_still_delivers,
    )
    .since(9),
    two(
        "test-bears-null-sizes",
        "test takes null for sizes, on sends and receives",
        "NCCL src/bootstrap.cc:174, 189; NCCL src/transport/net.cc:1700",
        test_bears_null_sizes,
    ),
    two(
        "test-writes-done-every-time",
        "test writes *done at every call, whatever stands there",
        "NCCL src/transport/net.cc:1617-1620 (nothing is set beforehand)",
        test_writes_done_every_time,
    ),
    one(
        "test-is-patient",
        "a receive without a message stays undone over thousands of tests, and completes afterwards",
        "NCCL src/proxy.cc:954 (the progress loop)",
        test_is_patient,
    ),
    two(
        "test-of-the-oldest-is-enough",
        "all requests complete when only the oldest of each side is tested",
        "NCCL src/transport/net.cc:1617-1620",
        test_of_the_oldest_is_enough,
    ),
    two(
        "test-in-any-order",
        "requests on one comm are tested in any order: connections that share it are independent",
        "NCCL src/transport/net.cc:862-878, 1048-1064 (shared comms)",
        test_in_any_order,
    ),
    two(
        "test-seldom-is-enough",
        "a large message completes though its ends are tested rarely, between those of another connection",
        "NCCL src/proxy.cc:954 (one thread serves all connections in turn)",
        test_seldom_is_enough,
    ),
    two(
        "profiler-handles-may-be-null",
        "irecv takes null for the array of profiler handles",
        "NCCL src/bootstrap.cc:159-190 (null phandles)",
        profiler_handles_may_be_null,
    )
    .since(10),
    two(
        "sizes-are-int-up-to-v8",
        "irecv reads its sizes as an array of int, one per receive",
        "NCCL src/plugin/net/net_v8.cc",
        sizes_have_their_width,
    )
    .until(8),
    two(
        "sizes-are-size-t-since-v9",
        "irecv reads its sizes as an array of size_t, one per receive",
        "NCCL src/plugin/net/net_v9.cc",
        sizes_have_their_width,
    )
    .since(9),
];

fn request_null_when_not_now(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let mut refused = 0;
    for bytes in [8, 100_000] {
        let messages = vec![Message::of(bytes).in_room(bytes + 8); 32];
        let manner = Manner { window: 32, before: Before::Stale, ..Manner::LIKE_NCCL };
        let mut out = Outgoing::new(&link.send, case.role(), &messages, manner)?;
        let receives = Manner { window: 32, ..Manner::LIKE_NCCL };
        let mut into = Incoming::new(&link.receive, case.source(), &messages, receives)?;
        case.stage("isend without a receive");
        case.during(Duration::from_millis(100), || {
            if out.posted() < 32 && !out.post()? {
                refused += 1;
            }
            Ok(())
        })?;
        drive(case, "receive what was sent", &mut [&mut out, &mut into])?;
        out.end()?;
        into.end()?;
    }
    link.close()?;
    net.finalize()?;
    if refused == 0 {
        return skip("32 sends were taken without a receive: nothing was ever refused");
    }
    Ok(())
}

fn isend_overwrites_an_old_request(case: &mut Case) -> Outcome {
    let messages: Vec<Message> = (0..300).map(|n| Message::of(n * 101).in_room(40_000)).collect();
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let stale = Manner { before: Before::Stale, ..Manner::LIKE_NCCL };
    let mut out = Outgoing::new(&link.send, case.role(), &messages, stale)?;
    let mut into = Incoming::new(&link.receive, case.source(), &messages, Manner::LIKE_NCCL)?;
    drive(case, "send over old requests", &mut [&mut out, &mut into])?;
    out.end()?;
    into.end()?;
    case.meet("all messages are done")?;
    link.close()?;
    Ok(net.finalize()?)
}

/// Receives with optional completion have no sizes, and their data may arrive after "done": this checks the fields only.
fn irecv_overwrites_its_word(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let memory = arena(1 << 16)?;
    let (out, into) =
        (link.send.register(memory, 0, 1 << 15)?, link.receive.register(memory, 1 << 15, 1 << 15)?);
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    let (mut sent, mut received) = (0, 0);
    case.until("receive with optional completion", || {
        let part = Receive { arena: memory, at: 1 << 15, len: 4096, tag: 0, region: &into };
        if received + receives.len() < ROUNDS && receives.len() < 8 {
            receives.extend(link.receive.irecv(&[part], Before::Optional, true)?);
        }
        if sent + sends.len() < ROUNDS && sends.len() < 8 {
            sends.extend(link.send.isend((memory, 0, 1000), 0, &out, Before::Stale)?);
        }
        for (requests, done) in [(&mut sends, &mut sent), (&mut receives, &mut received)] {
            if let Some(oldest) = requests.first_mut()
                && oldest.test()?.done
            {
                requests.remove(0);
                *done += 1;
            }
        }
        Ok((sent == ROUNDS && received == ROUNDS).then_some(()))
    })?;
    case.meet("all are done")?;
    out.deregister()?;
    into.deregister()?;
    link.close()?;
    Ok(net.finalize()?)
}

const ROUNDS: usize = 100;

fn optional_completion_still_delivers(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    for bytes in [8, 1000, 60_000] {
        let stride = bytes + 2 * GUARD_BYTES;
        let (here, there) = (arena(8 * bytes)?, arena(8 * stride)?);
        let out = link.send.register(here, 0, here.len())?;
        let into = link.receive.register(there, 0, there.len())?;
        let mut receives = Vec::new();
        for number in 0..8 {
            here.write(number * bytes, &pattern(9, number, bytes));
            let at = number * stride + GUARD_BYTES;
            clear(there, at, bytes);
            let part = Receive { arena: there, at, len: bytes, tag: 0, region: &into };
            receives.push(case.until("post receives of optional completion", || {
                Ok(link.receive.irecv(&[part], Before::Optional, true)?)
            })?);
        }
        let mut sends = Vec::new();
        let mut next = 0;
        case.until("move messages whose completion is optional", || {
            if next < 8 {
                let place = (here, next * bytes, bytes);
                if let Some(request) = link.send.isend(place, 0, &out, Before::Stale)? {
                    sends.push(request);
                    next += 1;
                }
            }
            for requests in [&mut sends, &mut receives] {
                if let Some(oldest) = requests.first_mut() {
                    let tested = oldest.test()?;
                    if tested.done {
                        let said = usize::try_from(tested.sizes[0]);
                        let fits = said.is_ok_and(|said| said == 0 || said == bytes);
                        hold!(fits, "test reports {} of {bytes} bytes", tested.sizes[0]);
                        requests.remove(0);
                    }
                }
            }
            Ok((next == 8 && sends.is_empty() && receives.is_empty()).then_some(()))
        })?;
        case.until("wait until the data of all has landed", || {
            let landed = (0..8).all(|number| {
                let expected = pattern(9, number, bytes);
                check(there, number * stride + GUARD_BYTES, &expected, bytes).is_ok()
            });
            Ok(landed.then_some(()))
        })?;
        out.deregister()?;
        into.deregister()?;
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn test_bears_null_sizes(case: &mut Case) -> Outcome {
    let messages: Vec<Message> = (0..100).map(|n| Message::of(n * 77).in_room(8000)).collect();
    whole(case, &messages, Manner { bare: true, ..Manner::LIKE_NCCL })
}

fn test_writes_done_every_time(case: &mut Case) -> Outcome {
    let messages: Vec<Message> = (0..100).map(|n| Message::of(n * 997).in_room(100_000)).collect();
    let manner = Manner { poisoned: true, ..Manner::LIKE_NCCL };
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let mut out = Outgoing::new(&link.send, case.role(), &messages, manner)?;
    let mut into = Incoming::new(&link.receive, case.source(), &messages, manner)?;
    case.until("post a receive", || Ok(into.post()?.then_some(())))?;
    hold!(!into.poll()?, "a receive is done without a message");
    case.meet("both have tested a receive")?;
    drive(case, "move messages", &mut [&mut out, &mut into])?;
    out.end()?;
    into.end()?;
    case.meet("all messages are done")?;
    link.close()?;
    Ok(net.finalize()?)
}

fn test_is_patient(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let message = [Message::of(5000)];
    let mut into = Incoming::new(&link.receive, case.source(), &message, Manner::LIKE_NCCL)?;
    case.until("post a receive", || Ok(into.post()?.then_some(())))?;
    for _ in 0..5000 {
        hold!(!into.poll()?, "a receive is done without a message");
    }
    let mut out = Outgoing::new(&link.send, case.role(), &message, Manner::LIKE_NCCL)?;
    drive(case, "send at last", &mut [&mut out, &mut into])?;
    out.end()?;
    into.end()?;
    link.close()?;
    Ok(net.finalize()?)
}

fn test_of_the_oldest_is_enough(case: &mut Case) -> Outcome {
    let sizes = [1 << 20, 8, 300_000, 0, 8, 64_000];
    let messages: Vec<Message> = (0..90).map(|n| Message::of(sizes[n % 6])).collect();
    whole(case, &messages, Manner::LIKE_NCCL)
}

fn test_in_any_order(case: &mut Case) -> Outcome {
    let net = case.net()?;
    group_most(&net)?;
    net.finalize()?;
    let sizes = [200_000, 8, 30_000, 0, 8, 64_000];
    let messages: Vec<Message> = (0..120).map(|n| Message::of(sizes[n % 6])).collect();
    windows(case, &messages, Manner { newest_first: true, ..Manner::LIKE_NCCL })
}

fn test_seldom_is_enough(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let links = [Link::open(case, &net)?, Link::open(case, &net)?];
    let large = [Message::of(3 << 20)];
    let mut out = Outgoing::new(&links[0].send, case.role(), &large, Manner::LIKE_NCCL)?;
    let mut into = Incoming::new(&links[0].receive, case.source(), &large, Manner::LIKE_NCCL)?;
    let mut tested = Instant::now();
    case.stage("test seldom");
    // Both sides continue on the other connection until both have finished with this one.
    let mut over = false;
    while !over {
        if tested.elapsed() > Duration::from_millis(20) {
            tested = Instant::now();
            for flow in [&mut out as &mut dyn Flow, &mut into] {
                if !flow.is_finished() {
                    flow.step()?;
                }
            }
        }
        let mine = out.is_finished() && into.is_finished();
        let message = [u8::from(mine); 64];
        let other = &links[1];
        let theirs = if case.role() == 0 {
            give(case, &other.send, &message, 0)?;
            take(case, &other.receive, 64, 0)?
        } else {
            let theirs = take(case, &other.receive, 64, 0)?;
            give(case, &other.send, &message, 0)?;
            theirs
        };
        hold!(theirs.len() == 64, "a message of {} bytes, not 64", theirs.len());
        over = mine && theirs[0] == 1;
        case.in_time(|| format!("{}; {}", out.says(), into.says()))?;
    }
    out.end()?;
    into.end()?;
    case.meet("all messages are done")?;
    links.into_iter().try_for_each(Link::close)?;
    Ok(net.finalize()?)
}

fn profiler_handles_may_be_null(case: &mut Case) -> Outcome {
    whole(case, &few(), Manner { parents: false, ..Manner::LIKE_NCCL })
}

/// The sizes array is filled with garbage, so that a size written with the wrong width shows: the first one up to v8, the second one of a
/// group since v9.
fn sizes_have_their_width(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let messages: Vec<Message> = (0..30).map(|n| Message::of(n * 500).in_room(20_000)).collect();
    talk(case, &link, &messages, Manner::LIKE_NCCL)?;
    if net.properties(0)?.group_max > 1 {
        let group = |round: usize| -> Vec<Message> {
            (0..2).map(|tag| Message::of(700 + round).in_room(20_000).tagged(tag)).collect()
        };
        let plan = Plan::new((0..8).map(group).collect());
        let mut into = GroupIncoming::new(&link.receive, case.source(), &plan, 4)?;
        let mut out = GroupOutgoing::new(&link.send, case.role(), &plan, false)?;
        drive(case, "move groups of two", &mut [&mut out, &mut into])?;
        out.end()?;
        into.end()?;
        case.meet("all groups are done")?;
    }
    link.close()?;
    Ok(net.finalize()?)
}
