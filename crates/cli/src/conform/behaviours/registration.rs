//! regMr and deregMr.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use net_loader::raw::{Before, Receive};

use super::super::behaviour::{Behaviour, one, two};
use super::super::case::{Case, Outcome, Stop, skip};
use super::super::link::Link;
use super::super::traffic::{Incoming, Manner, Message, Outgoing, arena};
use super::{carry, few, talk, talk_beside_rounds, watch};

pub(in super::super) const ALL: &[Behaviour] = &[
    one(
        "register-host-memory",
        "regMr and deregMr of host memory succeed on both kinds of comm",
        "NCCL src/transport/net.cc:984-1015, 1157-1185",
        register_host_memory,
    ),
    one(
        "register-any-range",
        "a range need not begin or end on a page, and messages go from anywhere inside it",
        "NCCL src/transport/net.cc:984-1015, 1157-1185",
        register_any_range,
    ),
    one(
        "register-sub-ranges",
        "ranges may overlap and lie in one another; deregistering one leaves the others usable",
        "NCCL src/transport/net.cc:1925-2085 (user buffers)",
        register_sub_ranges,
    ),
    one(
        "register-on-many-comms",
        "one buffer is registered on many comms at once: the shared pool is, for every connection",
        "NCCL src/transport/net.cc:984-1015, 1157-1185",
        register_on_many_comms,
    ),
    one(
        "register-many-times",
        "one buffer is registered many times on a comm and deregistered in any order",
        "NCCL src/transport/net.cc:1925-2085, 1205-1210",
        register_many_times,
    ),
    one(
        "register-a-large-allocation",
        "64 MiB are registered at once, and messages go from its start and its end",
        "NCCL src/transport/net.cc:1925-2085 (whole allocations)",
        register_a_large_allocation,
    ),
    one(
        "register-two-gib",
        "more than 2 GiB are registered at once (opt-in: --large)",
        "NCCL src/plugin/net/net_v8.cc (sizes are size_t since v8)",
        register_two_gib,
    )
    .since(8)
    .within(60),
    one(
        "deregister-bears-null",
        "deregMr takes null, the handle of a registration that failed, and the comm works on",
        "NCCL src/transport/net.cc:1211-1213, 1266-1268 (a connection whose regMr failed counts as connected: src/proxy.cc:1620-1628)",
        deregister_bears_null,
    ),
    two(
        "register-during-traffic",
        "another thread registers and deregisters on the comm whose messages move",
        "NCCL src/transport/net.cc:1925-2085 (service thread) beside NCCL src/proxy.cc:954 (progress thread)",
        register_during_traffic,
    ),
    two(
        "deregister-in-flight-then-close",
        "on abort regions go while requests are outstanding, then the comms; the next connection works",
        "NCCL src/transport/net.cc:1196-1300",
        deregister_in_flight_then_close,
    )
    .within(40),
    two(
        "deregistered-memory-is-left-alone",
        "when deregMr returns nothing is written there any more: NCCL frees the memory right after",
        "NCCL src/transport/net.cc:1196-1300",
        deregistered_memory_is_left_alone,
    ),
];

fn register_host_memory(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let memory = arena(8192)?;
    for _ in 0..10 {
        let regions =
            [link.send.register(memory, 0, 8192)?, link.receive.register(memory, 0, 8192)?];
        for region in regions {
            region.deregister()?;
        }
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn deregister_bears_null(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    link.send.deregister_nothing()?;
    link.receive.deregister_nothing()?;
    let (here, there) = (arena(4096)?, arena(4096)?);
    let (out, into) = (link.send.register(here, 0, 4096)?, link.receive.register(there, 0, 4096)?);
    carry(case, &link, (&out, (here, 0)), (&into, (there, 0)), 64)?;
    out.deregister()?;
    into.deregister()?;
    link.close()?;
    Ok(net.finalize()?)
}

fn register_any_range(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let (here, there) = (arena(64 << 10)?, arena(64 << 10)?);
    for (at, len) in [(0, 1), (1, 1), (4095, 2), (4095, 4098), (17, 40_000), (63, 129)] {
        let out = link.send.register(here, at, len)?;
        let into = link.receive.register(there, at + 3, len)?;
        carry(case, &link, (&out, (here, at)), (&into, (there, at + 3)), len)?;
        let part = len.div_ceil(2);
        let (from, to) = (at + len - part, at + 3 + len - part);
        carry(case, &link, (&out, (here, from)), (&into, (there, to)), part)?;
        out.deregister()?;
        into.deregister()?;
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn register_sub_ranges(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let (here, there) = (arena(256 << 10)?, arena(256 << 10)?);
    let ranges = [(0, 256 << 10), (4096, 8192), (5000, 100), (100_000, 150_000)];
    let mut outs = Vec::new();
    let mut intos = Vec::new();
    for (at, len) in ranges {
        outs.push((at, len, link.send.register(here, at, len)?));
        intos.push(link.receive.register(there, at, len)?);
    }
    while !outs.is_empty() {
        for ((at, len, out), into) in outs.iter().zip(&intos) {
            carry(case, &link, (out, (here, *at)), (into, (there, *at)), *len)?;
        }
        let (_, _, out) = outs.remove(0);
        out.deregister()?;
        intos.remove(0).deregister()?;
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn register_on_many_comms(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (here, there) = (arena(128 << 10)?, arena(128 << 10)?);
    let mut all = Vec::new();
    for _ in 0..6 {
        let link = Link::open(case, &net)?;
        let out = link.send.register(here, 0, here.len())?;
        let into = link.receive.register(there, 0, there.len())?;
        all.push((link, out, into));
    }
    while !all.is_empty() {
        for (number, (link, out, into)) in all.iter().enumerate() {
            let at = number * 1000;
            carry(case, link, (out, (here, at)), (into, (there, at)), 20_000)?;
        }
        let (link, out, into) = all.swap_remove(all.len() / 2);
        out.deregister()?;
        into.deregister()?;
        link.close()?;
    }
    Ok(net.finalize()?)
}

fn register_many_times(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let (here, there) = (arena(64 << 10)?, arena(64 << 10)?);
    let mut outs = Vec::new();
    let mut intos = Vec::new();
    for _ in 0..64 {
        outs.push(link.send.register(here, 0, here.len())?);
        intos.push(link.receive.register(there, 0, there.len())?);
    }
    while let Some((out, into)) = outs.first().zip(intos.first()) {
        carry(case, &link, (out, (here, 0)), (into, (there, 0)), 5000)?;
        outs.swap_remove(outs.len() * 5 / 7).deregister()?;
        intos.swap_remove(intos.len() / 3).deregister()?;
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn register_a_large_allocation(case: &mut Case) -> Outcome {
    whole_allocation(case, 64 << 20)
}

fn register_two_gib(case: &mut Case) -> Outcome {
    if !case.is_large {
        return skip("not asked for: --large");
    }
    whole_allocation(case, (2 << 30) + 8192)
}

fn whole_allocation(case: &mut Case, bytes: usize) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let (here, there) = (arena(bytes)?, arena(bytes)?);
    let out = link.send.register(here, 0, bytes)?;
    let into = link.receive.register(there, 0, bytes)?;
    let last = bytes - 70_000;
    carry(case, &link, (&out, (here, 0)), (&into, (there, last)), 70_000)?;
    carry(case, &link, (&out, (here, last)), (&into, (there, 0)), 70_000)?;
    out.deregister()?;
    into.deregister()?;
    link.close()?;
    Ok(net.finalize()?)
}

fn register_during_traffic(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let (over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let messages = vec![Message::of(40_000).in_room(50_000); 400];
    let shared = &*case;
    thread::scope(|scope| -> Outcome {
        let service = scope.spawn(|| -> Outcome {
            let memory = arena(1 << 20)?;
            while !over.load(Ordering::Relaxed) {
                let count = rounds.load(Ordering::Relaxed);
                let at = count * 4096 % (1 << 19);
                let out = link.send.register(memory, at, 4096 + count % 9999)?;
                let into = link.receive.register(memory, at, 4096 + count % 9999)?;
                out.deregister()?;
                into.deregister()?;
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let rounds = || {
            if service.is_finished() { usize::MAX } else { rounds.load(Ordering::Relaxed) }
        };
        let moved = talk_beside_rounds(shared, &link, &messages, rounds);
        over.store(true, Ordering::Relaxed);
        service.join().map_err(|_| Stop::Fail("conform's thread died".to_owned()))??;
        moved
    })?;
    case.meet("all messages are done")?;
    link.close()?;
    Ok(net.finalize()?)
}

fn deregister_in_flight_then_close(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for round in 0..10 {
        let link = Link::open(case, &net)?;
        let messages = vec![Message::of(1 << 20); 32];
        let manner = Manner { window: 32, ..Manner::LIKE_NCCL };
        let mut out = Outgoing::new(&link.send, case.role(), &messages, manner)?;
        let mut into = Incoming::new(&link.receive, case.source(), &messages, manner)?;
        case.stage("post 32 and leave them");
        for _ in 0..32 + round * 20 {
            into.post()?;
            out.post()?;
        }
        case.meet("both have requests in flight")?;
        case.stage("deregister in flight");
        out.into_region().deregister()?;
        into.into_region().deregister()?;
        case.stage("close in flight");
        link.close()?;
        case.meet("both have aborted")?;
    }
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

/// The receiver deregisters its memory while messages to it are in flight. The sender keeps calling the plugin, on another connection if
/// need be, so the deregistration must succeed.
fn deregistered_memory_is_left_alone(case: &mut Case) -> Outcome {
    const BYTES: usize = 512 << 10;
    let net = case.net()?;
    let (link, other) = (Link::open(case, &net)?, Link::open(case, &net)?);
    let messages = vec![Message::of(BYTES); 8];
    let nothing = [Message::of(8)];
    let mut idle = Incoming::new(&other.receive, case.source(), &nothing, Manner::LIKE_NCCL)?;
    case.until("post a receive on another connection", || Ok(idle.post()?.then_some(())))?;
    if case.role() == 0 {
        let mut out = Outgoing::new(&link.send, 0, &messages, Manner::LIKE_NCCL)?;
        let mut erred = false;
        case.until("send until the message says that the receiver is gone", || {
            let gone = case.received()?.is_some();
            // The receiver's end may or may not report an error here.
            erred = erred || out.post().and_then(|_| out.poll()).is_err();
            idle.poll()?;
            Ok(gone.then_some(()))
        })?;
        out.into_region().deregister()?;
    } else {
        // One receive more than there are messages: it is outstanding when all have come.
        let memory = arena(BYTES * 9)?;
        let region = link.receive.register(memory, 0, memory.len())?;
        let mut requests = Vec::new();
        for number in 0..9 {
            let at = number * BYTES;
            let part = Receive { arena: memory, at, len: BYTES, tag: 0, region: &region };
            requests.extend(link.receive.irecv(&[part], Before::Null, true)?);
        }
        for _ in 0..50 {
            if let Some(oldest) = requests.first_mut()
                && oldest.test()?.done
            {
                requests.remove(0);
            }
        }
        region.deregister()?;
        watch(case, memory, "deregMr returned", || idle.poll().map(drop))?;
        case.send(b"gone")?;
    }
    link.close()?;
    case.meet("both are closed")?;
    idle.into_region().deregister()?;
    other.close()?;
    Ok(net.finalize()?)
}
