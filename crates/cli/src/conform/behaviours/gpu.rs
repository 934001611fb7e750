//! GPU memory: registered, sent from, received into, flushed. These behaviours are skipped, with the reason, where there is no GPU or the
//! plugin does not announce support.

use std::collections::HashSet;

use net_loader::raw::{Arena, Before, Net, Receive, Region};

use super::super::behaviour::{Behaviour, one, two};
use super::super::case::{Case, Outcome, hold, skip};
use super::super::link::Link;
use super::super::traffic::{Incoming, Manner, Memory, Message, Outgoing, arena, gpus, pattern};
use super::{carry, few, flush, group_most, talk, talk_between};

pub(in super::super) const ALL: &[Behaviour] = &[
    one(
        "gpu-memory-registers",
        "regMr takes device memory where ptrSupport says so, of every GPU, and ranges inside it",
        "NCCL src/transport/net.cc:984-1015",
        memory_registers,
    ),
    one(
        "gpu-dmabuf-registers",
        "regMrDmaBuf takes a descriptor that NCCL closes right after the call",
        "NCCL src/transport/net.cc:1000",
        dmabuf_registers,
    ),
    one(
        "gpu-memory-is-refused",
        "where ptrSupport does not say so, regMr of device memory is an error, and the comm still works",
        "NCCL src/transport/net.cc:1944-1963 (user buffers: a failure is tolerated)",
        memory_is_refused,
    ),
    two(
        "gpu-memory-carries-messages",
        "messages of every size go between host and device memory, either at either end",
        "NCCL src/transport/net.cc:984-1015, 1398-1420, 1550-1600",
        memory_carries_messages,
    ),
    one(
        "gpu-memory-in-groups",
        "the receives of a group may be of several GPUs and of the host, and one flush is for all of them",
        "NCCL src/transport/net.cc:1470-1512, 1641-1687",
        memory_in_groups,
    )
    .since(9),
    one(
        "gpu-flush-makes-visible",
        "after a flush the GPU sees what came",
        "NCCL src/graph/paths.cc:572-597",
        flush_makes_visible,
    ),
    one(
        "gpu-buffer-on-many-comms",
        "a GPU's buffer is registered on many comms at once: the shared pool is, for every connection",
        "NCCL src/transport/net.cc:984-1015, 1157-1185",
        buffer_on_many_comms,
    ),
    one(
        "gpu-address-used-again",
        "a buffer at the address of one that was freed is registered anew, also while that one is still registered",
        "NCCL src/transport/net.cc:1205-1210 (user buffers are deregistered late)",
        address_used_again,
    ),
    two(
        "gpu-deregister-in-flight",
        "on abort GPU memory is freed right after deregMr, with requests outstanding; the next connection works",
        "NCCL src/transport/net.cc:1196-1300",
        deregister_in_flight,
    )
    .within(40),
];

// NCCL src/include/plugin/nccl_net.h.
const PTR_CUDA: i32 = 2;
const PTR_DMABUF: i32 = 4;

/// The plugin, and the GPUs whose memory it supports.
fn ground(case: &Case) -> Outcome<(Net, Vec<i32>)> {
    let gpus = gpus()?;
    let net = case.net()?;
    if net.properties(0)?.memory_kinds & PTR_CUDA == 0 {
        return skip("ptrSupport has no CUDA bit");
    }
    Ok((net, (0..gpus.count()).collect()))
}

/// The ways of registering memory of this GPU.
fn ways(net: &Net, gpu: i32) -> Outcome<Vec<Memory>> {
    let mut ways = vec![Memory::Gpu(gpu)];
    if net.properties(0)?.memory_kinds & PTR_DMABUF != 0
        && Memory::Gpu(gpu).allocate(1)?.dmabuf().is_ok()
    {
        ways.push(Memory::Dmabuf(gpu));
    }
    Ok(ways)
}

fn memory_registers(case: &mut Case) -> Outcome {
    let (net, gpus) = ground(case)?;
    let link = Link::open(case, &net)?;
    for gpu in gpus {
        case.stage(&format!("memory of GPU {gpu}"));
        register(case, &link, Memory::Gpu(gpu))?;
        let memory = [Memory::Gpu(gpu).allocate(256 << 10)?, Memory::Gpu(gpu).allocate(256 << 10)?];
        for (at, len) in [(0, 1), (4097, 70_000), (65_536, 8), (262_000, 144)] {
            let out = link.send.register(memory[0], at, len)?;
            let into = link.receive.register(memory[1], at, len)?;
            carry(case, &link, (&out, (memory[0], at)), (&into, (memory[1], at)), len)?;
            out.deregister()?;
            into.deregister()?;
        }
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn dmabuf_registers(case: &mut Case) -> Outcome {
    let (net, gpus) = ground(case)?;
    if net.properties(0)?.memory_kinds & PTR_DMABUF == 0 {
        return skip("ptrSupport has no DMABUF bit");
    }
    let link = Link::open(case, &net)?;
    for gpu in gpus {
        case.stage(&format!("dmabufs of GPU {gpu}"));
        register(case, &link, Memory::Dmabuf(gpu))?;
    }
    link.close()?;
    Ok(net.finalize()?)
}

/// Registers whole buffers on both kinds of comm, several times, and moves messages from their starts and up to their ends.
fn register(case: &Case, link: &Link, memory: Memory) -> Outcome {
    const BYTES: usize = 300_000;
    let (here, there) = (memory.allocate(BYTES)?, memory.allocate(BYTES)?);
    for _ in 0..3 {
        let out = memory.register(&link.send, here)?;
        let into = memory.register(&link.receive, there)?;
        for len in [8, 40, 4096, 100_001] {
            carry(case, link, (&out, (here, 0)), (&into, (there, BYTES - len)), len)?;
            carry(case, link, (&out, (here, BYTES - len)), (&into, (there, 0)), len)?;
        }
        out.deregister()?;
        into.deregister()?;
    }
    here.free();
    there.free();
    Ok(())
}

fn memory_is_refused(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let kinds = net.properties(0)?.memory_kinds;
    if kinds & PTR_CUDA != 0 {
        return skip("ptrSupport has the CUDA bit");
    }
    let link = Link::open(case, &net)?;
    // Without a GPU, host memory declared as device memory is used: no plugin may break because of it.
    let memory = match gpus() {
        Ok(_) => Memory::Gpu(0).allocate(8192)?,
        Err(_) => arena(8192)?,
    };
    for _ in 0..3 {
        hold!(
            link.send.register_as_device(memory).is_err(),
            "regMr of device memory succeeded on a send comm, and ptrSupport is {kinds:#x}"
        );
        hold!(
            link.receive.register_as_device(memory).is_err(),
            "regMr of device memory succeeded on a receive comm, and ptrSupport is {kinds:#x}"
        );
    }
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

/// Short messages in bursts, long ones, and short ones between long ones.
fn of_every_size() -> Vec<Message> {
    let burst = [8, 8, 40, 8, 1, 16, 8, 64];
    let long = [4096, 8, 65_536, 40, 65_537, 1 << 20, 8, (1 << 20) + 4097, 0, 8];
    let sizes = burst.into_iter().cycle().take(32).chain(long);
    let message = |(number, bytes)| {
        let message = Message::of(bytes).shifted(number % 4 * 8, number % 3 * 8);
        // Some messages fill their receives, others do not.
        if number % 5 == 4 { message.in_room(bytes + 100) } else { message }
    };
    sizes.enumerate().map(message).collect()
}

fn memory_carries_messages(case: &mut Case) -> Outcome {
    let (net, gpus) = ground(case)?;
    let link = Link::open(case, &net)?;
    // The two ends of a connection use different GPUs, if there are two.
    let gpu = |end: usize| gpus[end % gpus.len()];
    let mut pairs = vec![(Memory::Host, Memory::Host)];
    let last = ways(&net, gpu(0))?.len();
    for way in 0..last {
        let of = |end: usize| -> Outcome<Memory> { Ok(ways(&net, gpu(end))?[way]) };
        pairs.push((of(0)?, Memory::Host));
        pairs.push((Memory::Host, of(1)?));
        pairs.push((of(0)?, of(1)?));
    }
    for (from, to) in pairs {
        case.stage(&format!("from {from:?} to {to:?}"));
        let sends = Manner { memory: from, ..Manner::LIKE_NCCL };
        let receives = Manner { memory: to, poisoned: true, ..Manner::LIKE_NCCL };
        talk_between(case, &link, &of_every_size(), sends, receives)?;
        case.meet("all messages of a pair are done")?;
    }
    link.close()?;
    Ok(net.finalize()?)
}

/// One receive of a group.
struct Place {
    memory: Arena,
    len: usize,
    out: Region,
    into: Region,
    source: Arena,
}

fn memory_in_groups(case: &mut Case) -> Outcome {
    let (net, gpus) = ground(case)?;
    let most = group_most(&net)?.min(8);
    let link = Link::open(case, &net)?;
    for (round, count) in [most, 2, most].into_iter().enumerate() {
        let mut places = Vec::new();
        for number in 0..count {
            let gpu = Memory::Gpu(gpus[number / 2 % gpus.len()]);
            let kind = if number % 4 == 3 { Memory::Host } else { gpu };
            let len = if (number + round) % 2 == 0 { 8 + number } else { 70_000 + number };
            let (memory, source) = (kind.allocate(ROOM)?, arena(ROOM)?);
            memory.fill(0, ROOM, 0);
            source.write(0, &pattern(round, number, len));
            let into = kind.register(&link.receive, memory)?;
            places.push(Place {
                memory,
                len,
                out: link.send.register(source, 0, ROOM)?,
                into,
                source,
            });
        }
        group(case, &link, &places)?;
        for (number, place) in places.into_iter().enumerate() {
            let seen = place.memory.read(0, place.len);
            hold!(
                seen == pattern(round, number, place.len),
                "place {number} of a group of {count} is wrong after its flush"
            );
            place.out.deregister()?;
            place.into.deregister()?;
            place.memory.free();
        }
    }
    link.close()?;
    Ok(net.finalize()?)
}

const ROOM: usize = 100_000;

/// Moves one group with all of its messages, and flushes once.
fn group(case: &Case, link: &Link, places: &[Place]) -> Outcome {
    let parts: Vec<Receive<'_>> = (0..)
        .zip(places)
        .map(|(tag, place)| {
            let (arena, region) = (place.memory, &place.into);
            Receive { arena, at: 0, len: ROOM, tag, region }
        })
        .collect();
    let mut receive =
        case.until("post a group", || Ok(link.receive.irecv(&parts, Before::Null, true)?))?;
    let mut sends = Vec::new();
    for (tag, place) in (0..).zip(places) {
        let bytes = (place.source, 0, place.len);
        sends.push(case.until("post a send", || {
            Ok(link.send.isend(bytes, tag, &place.out, Before::Null)?)
        })?);
    }
    case.until("receive a group", || Ok(receive.test()?.done.then_some(())))?;
    // NCCL passes the parts that need a flush, but the sizes of all parts: the two do not match (NCCL src/transport/net.cc:1641-1687).
    let flushed: Vec<Receive<'_>> = parts
        .iter()
        .filter(|part| part.arena.is_on_device())
        .zip(places)
        .map(|(part, place)| Receive { len: place.len, ..*part })
        .collect();
    flush(case, link, &flushed)?;
    for send in &mut sends {
        case.until("wait for a send", || Ok(send.test()?.done.then_some(())))?;
    }
    Ok(())
}

fn flush_makes_visible(case: &mut Case) -> Outcome {
    let (net, gpus) = ground(case)?;
    let link = Link::open(case, &net)?;
    for memory in gpus.into_iter().map(|gpu| ways(&net, gpu)).collect::<Outcome<Vec<_>>>()?.concat()
    {
        // First one message outstanding, so that only its own flush makes it visible; then several.
        for window in [1, 8] {
            let sizes = [8, 1, 64, 4096, 8, 100_000, 16, 65_536, 40, 300_000];
            let messages: Vec<Message> = sizes.into_iter().map(Message::of).collect();
            let sends = Manner { window, ..Manner::LIKE_NCCL };
            let receives = Manner { window, memory, poisoned: true, ..Manner::LIKE_NCCL };
            case.stage(&format!("{window} outstanding, to {memory:?}"));
            talk_between(case, &link, &messages, sends, receives)?;
        }
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn buffer_on_many_comms(case: &mut Case) -> Outcome {
    let (net, gpus) = ground(case)?;
    for memory in ways(&net, gpus[gpus.len() - 1])? {
        let (here, there) = (memory.allocate(128 << 10)?, memory.allocate(128 << 10)?);
        let mut all = Vec::new();
        for _ in 0..4 {
            let link = Link::open(case, &net)?;
            let out = memory.register(&link.send, here)?;
            let into = memory.register(&link.receive, there)?;
            all.push((link, out, into));
        }
        while !all.is_empty() {
            for (number, (link, out, into)) in all.iter().enumerate() {
                let at = number * 1000;
                carry(case, link, (out, (here, at)), (into, (there, at)), 20_000)?;
                carry(case, link, (out, (here, at)), (into, (there, at)), 8)?;
            }
            let (link, out, into) = all.swap_remove(all.len() / 2);
            out.deregister()?;
            into.deregister()?;
            link.close()?;
        }
    }
    Ok(net.finalize()?)
}

fn address_used_again(case: &mut Case) -> Outcome {
    const BYTES: usize = 1 << 20;
    let (net, gpus) = ground(case)?;
    let link = Link::open(case, &net)?;
    let host = arena(BYTES)?;
    let (host_out, host_into) =
        (link.send.register(host, 0, BYTES)?, link.receive.register(host, 0, BYTES)?);
    for memory in ways(&net, gpus[0])? {
        let mut seen = HashSet::new();
        let mut again = 0;
        let mut held = Vec::new();
        for round in 0..8 {
            let buffer = memory.allocate(BYTES)?;
            again += usize::from(!seen.insert(buffer.address()));
            let into = memory.register(&link.receive, buffer)?;
            let out = memory.register(&link.send, buffer)?;
            carry(case, &link, (&host_out, (host, 0)), (&into, (buffer, 4096)), 50_000)?;
            carry(case, &link, (&out, (buffer, 200_000)), (&host_into, (host, 100_000)), 50_000)?;
            held.extend([into, out]);
            // Regions of even rounds are deregistered one round later: their memory was freed, and its address may be in use again.
            if round % 2 == 1 {
                for region in held.drain(..) {
                    region.deregister()?;
                }
            }
            buffer.free();
        }
        if again == 0 {
            return skip("the driver gave no address twice");
        }
    }
    host_out.deregister()?;
    host_into.deregister()?;
    link.close()?;
    Ok(net.finalize()?)
}

fn deregister_in_flight(case: &mut Case) -> Outcome {
    let (net, gpus) = ground(case)?;
    for round in 0..4 {
        let link = Link::open(case, &net)?;
        let memory = Memory::Gpu(gpus[round % gpus.len()]);
        let messages = vec![Message::of(1 << 20); 16];
        let manner = Manner { window: 16, memory, ..Manner::LIKE_NCCL };
        let mut out = Outgoing::new(&link.send, case.role(), &messages, manner)?;
        let mut into = Incoming::new(&link.receive, case.source(), &messages, manner)?;
        case.stage("post 16 and leave them");
        for _ in 0..16 + round * 10 {
            into.post()?;
            out.post()?;
        }
        case.meet("both have requests in flight")?;
        for (region, memory) in [out.into_parts(), into.into_parts()] {
            region.deregister()?;
            memory.free();
        }
        link.close()?;
        case.meet("both have aborted")?;
    }
    let link = Link::open(case, &net)?;
    let manner = Manner { memory: Memory::Gpu(gpus[0]), ..Manner::LIKE_NCCL };
    talk(case, &link, &few(), manner)?;
    link.close()?;
    Ok(net.finalize()?)
}
