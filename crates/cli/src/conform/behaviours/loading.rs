//! Loading, init, finalize, unloading.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use net_loader::Library;
use net_loader::raw::{self, Arena, Net};
use proc_status::Status;

use super::super::behaviour::{Behaviour, one, two};
use super::super::case::{COMMUNICATOR, Case, Outcome, fail, hold, skip};
use super::super::link::{Link, trade};
use super::super::pace::soon;
use super::super::traffic::{Incoming, Manner, Message, Outgoing, arena};
use super::{begin, carry, few, holdings, talk, whole};

pub(in super::super) const ALL: &[Behaviour] = &[
    one(
        "load-with-everything-resolved",
        "dlopen with RTLD_NOW | RTLD_LOCAL succeeds and the table's symbol is found",
        "NCCL src/os/linux.cc:51-58, NCCL src/plugin/net.cc:97-138",
        load_with_everything_resolved,
    ),
    one(
        "load-table-is-data",
        "ncclNetPlugin_vN is a data symbol: a struct, not code",
        "NCCL src/plugin/net.cc:97-138 (dlsym's answer is used as the struct)",
        load_table_is_data,
    ),
    one(
        "load-beside-itself",
        "the library may be opened again while it is open: NCCL's RMA, tuner and profiler loaders do",
        "NCCL src/plugin/plugin_open.cc:166 (ncclGetNetPluginLib)",
        load_beside_itself,
    ),
    one(
        "name-is-a-word",
        "name is a non-empty printable string of less than 255 characters, there before init",
        "NCCL src/plugin/net.cc:331 (compared with NCCL_NET before init)",
        name_is_a_word,
    ),
    one(
        "name-is-the-same-in-every-table",
        "NCCL_NET selects the plugin by one name, whichever table NCCL takes",
        "NCCL src/plugin/net.cc:38-43, 331",
        name_is_the_same_in_every_table,
    ),
    one(
        "init-once-per-communicator",
        "init gives each communicator a context; finalizing one leaves the others usable",
        "NCCL src/plugin/net.cc:165-215, 321-351",
        init_once_per_communicator,
    )
    .since(11),
    one(
        "devices-are-counted",
        "devices returns 1..128, the same at every call",
        "NCCL src/plugin/net.cc:165-215; NCCL src/include/proxy.h:221 (NCCL_MAX_NETDEVS, indexed unchecked)",
        devices_are_counted,
    ),
    one(
        "finalize-frees-what-init-made",
        "descriptors and threads do not grow with communicators that come and go",
        "NCCL src/plugin/net.cc:78-95, 308-320; NCCL src/init.cc:378-384",
        finalize_frees_what_init_made,
    )
    .since(11),
    one(
        "finalize-after-abandoned-listen",
        "finalize succeeds with a listen comm left open: an abort between listen and accept leaks it",
        "NCCL src/transport/net.cc:1254 (recvProxyFree closes only what is connected)",
        finalize_after_abandoned_listen,
    )
    .since(11),
    one(
        "finalize-after-abandoned-connect",
        "finalize succeeds while a connect is pending that the peer has not accepted",
        "NCCL src/proxy.cc:1776 (abort while a connection is pending)",
        finalize_after_abandoned_connect,
    )
    .since(11),
    two(
        "finalize-with-everything-left-open",
        "finalize frees comms, regions and requests that an abort left, and the next communicator works",
        "NCCL src/transport/net.cc:1254 (recvProxyFree closes only what is connected); NCCL src/init.cc:378-384",
        finalize_with_everything_left_open,
    )
    .since(11),
    two(
        "finalize-after-aborted-connect",
        "both processes abandon connects that the other has not accepted, and finalize succeeds in either order; the next communicator works",
        "NCCL src/proxy.cc:1776 (abort while connections are pending, on every rank)",
        finalize_after_aborted_connect,
    )
    .since(11),
    one(
        "memory-is-flat",
        "resident memory and mappings do not grow over communicators that come and go: 300, or as many as there is time for",
        "NCCL src/plugin/net.cc:78-95, 308-320; NCCL src/init.cc:378-384",
        memory_is_flat,
    )
    .within(90),
    one(
        "unload-and-reload",
        "the last communicator's end closes the library, the next one loads and inits it again",
        "NCCL src/plugin/net.cc:78-95, 308-320",
        unload_and_reload,
    ),
    one(
        "unload-leaves-nothing-running",
        "after dlclose no thread of the plugin's runs in unmapped code, and the process exits normally",
        "NCCL src/plugin/net.cc:78-95 (dlclose)",
        unload_leaves_nothing_running,
    ),
    one(
        "hints-are-taken",
        "setNetAttr may come before connects and between operations",
        "NCCL src/transport/net.cc:222-280",
        hints_are_taken,
    )
    .since(11),
    one(
        "fork-in-between",
        "a fork between two messages (data loaders do it) leaves the connection usable",
        "NCCL runs inside frameworks that fork after ncclCommInitRank",
        fork_in_between,
    ),
];

fn load_with_everything_resolved(case: &mut Case) -> Outcome {
    let library = case.library()?;
    hold!(library.version() == case.version(), "the table is v{}", library.version());
    Ok(())
}

fn load_table_is_data(case: &mut Case) -> Outcome {
    let library = case.library()?;
    let Some(address) = raw::table_address(&library) else { return fail("the table is gone") };
    let maps = fs::read_to_string("/proc/self/maps")?;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let number = |text: &str| usize::from_str_radix(text, 16).unwrap_or(0);
        if (number(start)..number(end)).contains(&address) {
            hold!(!rights.contains('x'), "the symbol lies in executable memory: {line}");
            return Ok(());
        }
    }
    fail("the symbol lies in no mapping")
}

fn load_beside_itself(case: &mut Case) -> Outcome {
    let first = case.library()?;
    let net = Net::init(&first, COMMUNICATOR)?;
    let second = case.open()?;
    hold!(first.name() == second.name(), "it is {} and then {}", first.name(), second.name());
    drop(second);
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

fn name_is_a_word(case: &mut Case) -> Outcome {
    let library = case.library()?;
    let before = library.name().to_owned();
    hold!(!before.is_empty(), "the name is null or empty");
    hold!(before.len() < 255, "the name has {} characters", before.len());
    let printable = before.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    hold!(printable, "the name is not printable: {before:?}");
    let net = Net::init(&library, COMMUNICATOR)?;
    let after = case.open()?.name().to_owned();
    hold!(before == after, "the name is {before} before init and {after} after it");
    Ok(net.finalize()?)
}

fn name_is_the_same_in_every_table(case: &mut Case) -> Outcome {
    let library = case.library()?;
    for version in library.versions() {
        let other = Library::open(library.path(), Some(version))?;
        let (here, there) = (library.name(), other.name());
        hold!(here == there, "v{} is {here}, v{version} is {there}", library.version());
    }
    Ok(())
}

fn init_once_per_communicator(case: &mut Case) -> Outcome {
    let library = case.library()?;
    let nets = (0..4)
        .map(|number| Ok(Net::init(&library, COMMUNICATOR + number)?))
        .collect::<Outcome<Vec<Net>>>()?;
    let counts = nets.iter().map(|net| Ok(net.devices()?)).collect::<Outcome<Vec<_>>>()?;
    hold!(counts.iter().all(|count| *count == counts[0]), "devices differ: {counts:?}");
    for (number, net) in nets.into_iter().enumerate() {
        let link = Link::open(case, &net)?;
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        link.close()?;
        case.stage(&format!("finalize communicator {number}"));
        net.finalize()?;
    }
    Ok(())
}

fn devices_are_counted(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let count = net.devices()?;
    hold!((1..=128).contains(&count), "there are {count} devices");
    for _ in 0..10 {
        let again = net.devices()?;
        hold!(again == count, "there are {count} devices and then {again}");
    }
    Ok(net.finalize()?)
}

fn finalize_frees_what_init_made(case: &mut Case) -> Outcome {
    let library = case.library()?;
    let mut before = (0, 0);
    for cycle in 0..WARM + CYCLES {
        if cycle == WARM {
            before = holdings()?;
        }
        let net = Net::init(&library, COMMUNICATOR + cycle as u64)?;
        let link = Link::open(case, &net)?;
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        link.close()?;
        net.finalize()?;
    }
    // A thread that is about to end may need a moment.
    thread::sleep(Duration::from_millis(200));
    let after = holdings()?;
    let grew = |before: usize, after: usize| after >= before + CYCLES / 2;
    hold!(
        !grew(before.0, after.0),
        "{} descriptors before {CYCLES} communicators, {} after",
        before.0,
        after.0
    );
    hold!(
        !grew(before.1, after.1),
        "{} threads before {CYCLES} communicators, {} after",
        before.1,
        after.1
    );
    Ok(())
}

const WARM: usize = 3;
const CYCLES: usize = 12;

fn finalize_after_abandoned_listen(case: &mut Case) -> Outcome {
    let library = case.library()?;
    for cycle in 0..3 {
        let net = Net::init(&library, COMMUNICATOR + cycle)?;
        let (listener, handle) = net.listen(0)?;
        drop((listener, handle));
        soon("finalize", || Ok(net.finalize()?))?;
    }
    let net = Net::init(&library, COMMUNICATOR)?;
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

fn finalize_after_abandoned_connect(case: &mut Case) -> Outcome {
    let library = case.library()?;
    for tries in [1, 3, 50] {
        let net = Net::init(&library, COMMUNICATOR)?;
        let (listener, mut handle) = net.listen(0)?;
        for _ in 0..tries {
            // connect may complete without an accept; its comm then stays open.
            let _ = net.connect(0, &mut handle, false)?;
        }
        drop(listener);
        soon("finalize", || Ok(net.finalize()?))?;
    }
    let net = Net::init(&library, COMMUNICATOR)?;
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

fn finalize_after_aborted_connect(case: &mut Case) -> Outcome {
    let library = case.library()?;
    for (tries, first) in [(1, 0), (3, 1), (50, 0), (50, 1)] {
        let net = Net::init(&library, COMMUNICATOR)?;
        let (listener, handle) = net.listen(0)?;
        let mut theirs = trade(case, &handle)?;
        let mut comm = None;
        for _ in 0..tries {
            if comm.is_none() {
                comm = net.connect(0, &mut theirs, false)?;
            }
        }
        case.meet("both have given up")?;
        let mut open = Some((net, listener, comm));
        for role in [first, 1 - first] {
            if case.role() == role
                && let Some((net, listener, comm)) = open.take()
            {
                case.stage("finalize with a connect that was given up");
                // NCCL closes neither: recvProxyFree and sendProxyFree close only what is connected.
                drop((listener, comm));
                soon("finalize", || Ok(net.finalize()?))?;
            }
            case.meet("one is finalized")?;
        }
    }
    whole(case, &few(), Manner::LIKE_NCCL)
}

/// The library is closed and opened again, as by NCCL when its last communicator ends and a new one starts. Memory is sampled several
/// times: a leak in each cycle shows between all samples, what an allocator keeps for later shows once. The time that the first cycles take
/// decides how many there are.
fn memory_is_flat(case: &mut Case) -> Outcome {
    let memory = arena(8192)?;
    let begun = Instant::now();
    let warm_until = begun + case.left() / FLAT_WARM_SHARE;
    come_and_go(case, memory)?;
    // The first cycle may read libraries from a disk, so its time says nothing of the others.
    fits(case, begun.elapsed(), 1)?;
    let begun = Instant::now();
    let mut warm = 0;
    while warm < FLAT_WARM_LEAST || (warm < FLAT_WARM && Instant::now() < warm_until) {
        come_and_go(case, memory)?;
        warm += 1;
        let left = FLAT_WARM_LEAST.saturating_sub(warm) + FLAT_PARTS * FLAT_PART_LEAST;
        fits(case, begun.elapsed() / warm, left)?;
    }
    // A quarter is left to cycles that take longer than the first ones.
    let time = case.left() * 3 / 4 / FLAT_PARTS;
    let part = time.as_nanos() / (begun.elapsed() / warm).as_nanos().max(1);
    let part = u32::try_from(part).unwrap_or(u32::MAX).clamp(FLAT_PART_LEAST, FLAT_PART);
    let mut samples = vec![occupied()?];
    for _ in 0..FLAT_PARTS {
        for _ in 0..part {
            come_and_go(case, memory)?;
        }
        samples.push(occupied()?);
    }
    let least = |of: fn(&(usize, usize)) -> usize| {
        let grown = samples.windows(2).map(|pair| of(&pair[1]).saturating_sub(of(&pair[0])));
        grown.min().unwrap_or(0)
    };
    let part = part as usize;
    let bytes = least(|sample| sample.0);
    hold!(
        bytes < (part * BYTES_A_CYCLE).max(BYTES_LEAST),
        "{bytes} bytes more are resident after each {part} communicators, {} for each one",
        bytes / part
    );
    let mappings = least(|sample| sample.1);
    hold!(
        mappings < (part / 10).max(1),
        "there are {mappings} mappings more after each {part} communicators"
    );
    Ok(())
}

/// Skips the behaviour unless `count` cycles fit into the time that is left.
fn fits(case: &Case, cycle: Duration, count: u32) -> Outcome {
    if cycle * count < case.left() {
        return Ok(());
    }
    skip(format_args!(
        "a communicator that comes and goes takes {:.1} s, and at least {FLAT_LEAST} have to: --timeout gives them more time",
        cycle.as_secs_f64()
    ))
}

/// A communicator that begins, moves a message and ends.
fn come_and_go(case: &mut Case, memory: Arena) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let out = link.send.register(memory, 0, 4096)?;
    let into = link.receive.register(memory, 4096, 4096)?;
    carry(case, &link, (&out, (memory, 0)), (&into, (memory, 4096)), 1000)?;
    out.deregister()?;
    into.deregister()?;
    link.close()?;
    Ok(net.finalize()?)
}

/// Cycles between the very first and the first sample: after them pools have their final sizes, and the allocator its arenas. For a slow
/// plugin there are as many as fit into 1/[`FLAT_WARM_SHARE`] of the time.
const FLAT_WARM: u32 = 50;
const FLAT_WARM_SHARE: u32 = 6;
const FLAT_WARM_LEAST: u32 = 4;
/// Samples after the first: a leak shows in each of them, an arena of a provider's thread (1 MiB or more) in one or two.
const FLAT_PARTS: u32 = 3;
const FLAT_PART: u32 = 83;
const FLAT_PART_LEAST: u32 = 5;
const FLAT_LEAST: u32 = 1 + FLAT_WARM_LEAST + FLAT_PARTS * FLAT_PART_LEAST;
/// Above the allocator's own fluctuations, and below the size of any object of a communicator.
const BYTES_A_CYCLE: usize = 1024;
/// The least growth that counts as a leak after few cycles: the allocator takes and returns whole pages.
const BYTES_LEAST: usize = 4 * 4096;

/// Resident bytes of this process, and the number of its mappings.
fn occupied() -> Outcome<(usize, usize)> {
    let kib = Status::of_this_process()?.kib("RssAnon").and_then(|kib| usize::try_from(kib).ok());
    let Some(kib) = kib else { return fail("there is no RssAnon in /proc/self/status") };
    Ok((kib * 1024, fs::read_to_string("/proc/self/maps")?.lines().count()))
}

fn finalize_with_everything_left_open(case: &mut Case) -> Outcome {
    let library = case.library()?;
    for bytes in [8, 300_000] {
        let net = Net::init(&library, COMMUNICATOR)?;
        let link = Link::open(case, &net)?;
        let messages = vec![Message::of(bytes); 32];
        let mut out = Outgoing::new(&link.send, case.role(), &messages, Manner::LIKE_NCCL)?;
        let mut into = Incoming::new(&link.receive, case.source(), &messages, Manner::LIKE_NCCL)?;
        begin(&mut out, &mut into, 7)?;
        case.meet("both have requests in flight")?;
        case.stage("finalize with everything open");
        net.finalize()?;
        case.meet("both are finalized")?;
    }
    let net = Net::init(&library, COMMUNICATOR)?;
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

fn unload_and_reload(case: &mut Case) -> Outcome {
    for round in 0..3 {
        whole(case, &few(), Manner::LIKE_NCCL)?;
        case.stage(&format!("round {round} is over"));
    }
    Ok(())
}

fn unload_leaves_nothing_running(case: &mut Case) -> Outcome {
    let library = case.library()?;
    let net = Net::init(&library, COMMUNICATOR)?;
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    net.finalize()?;
    hold!(Arc::into_inner(library).is_some(), "conform still holds the library");
    case.stage("the library is closed");
    thread::sleep(Duration::from_millis(400));
    Ok(())
}

fn hints_are_taken(case: &mut Case) -> Outcome {
    let net = case.net()?;
    if !net.hint()? {
        net.finalize()?;
        return skip("the table has no setNetAttr");
    }
    let link = Link::open(case, &net)?;
    for _ in 0..3 {
        net.hint()?;
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn fork_in_between(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    for _ in 0..5 {
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        hold!(raw::fork_once(), "the forked child did not leave");
    }
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}
