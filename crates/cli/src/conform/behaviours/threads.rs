//! NCCL's threads: a service and a progress thread per communicator, several communicators.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use net_loader::raw::Net;

use super::super::behaviour::{Behaviour, one, two};
use super::super::case::{COMMUNICATOR, Case, Outcome, Stop, hold};
use super::super::link::{Link, trade};
use super::super::traffic::{Manner, Message, arena};
use super::{few, pass, talk, talk_alone, talk_beside_rounds};

pub(in super::super) const ALL: &[Behaviour] = &[
    two(
        "threads-service-beside-progress",
        "a service thread listens, connects, registers and closes while the progress thread moves data",
        "NCCL src/proxy.cc:1713, 2081 (service), 954, 1035 (progress)",
        threads_service_beside_progress,
    ),
    two(
        "threads-of-four-communicators",
        "four communicators, each with its service and its progress thread, use the plugin at once",
        "NCCL src/proxy.cc:1713, 954; init, properties and listen of different communicators overlap",
        threads_of_four_communicators,
    )
    .within(40),
    one(
        "threads-connect-at-once",
        "four threads connect, move data and close at once",
        "NCCL src/proxy.cc:1713 (a service thread per communicator)",
        threads_connect_at_once,
    ),
    one(
        "threads-hand-comms-over",
        "a comm opened by one thread is used by another and closed by a third",
        "NCCL src/proxy.cc:1713, 954",
        threads_hand_comms_over,
    ),
    one(
        "threads-ask-for-properties",
        "properties are asked for while other threads listen and close",
        "NCCL src/proxy.cc:1713 (the proxies' getProperties and listen hold no common lock)",
        threads_ask_for_properties,
    ),
];

fn died<T>(_: T) -> Stop {
    Stop::Fail("conform's thread died".to_owned())
}

/// The loop of a service thread until it is stopped. Counts its rounds.
fn serve(case: &Case, net: &Net, link: &Link, over: &AtomicBool, rounds: &AtomicUsize) -> Outcome {
    let memory = arena(1 << 18)?;
    while !over.load(Ordering::Relaxed) {
        let out = link.send.register(memory, 0, 1 << 18)?;
        let into = link.receive.register(memory, 4096, 1 << 17)?;
        let (listener, handle) = net.listen(0)?;
        let other = Link::finish(case, net, 0, listener, handle)?;
        pass(case, &other.send, &other.receive, 50 + rounds.load(Ordering::Relaxed))?;
        out.deregister()?;
        other.close()?;
        into.deregister()?;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn threads_service_beside_progress(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let (over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let messages = vec![Message::of(60_000).in_room(70_000); 400];
    let shared = &*case;
    thread::scope(|scope| -> Outcome {
        let service = scope.spawn(|| serve(shared, &net, &link, &over, &rounds));
        let rounds = || {
            if service.is_finished() { usize::MAX } else { rounds.load(Ordering::Relaxed) }
        };
        let moved = talk_beside_rounds(shared, &link, &messages, rounds);
        over.store(true, Ordering::Relaxed);
        service.join().map_err(died)??;
        moved
    })?;
    case.meet("all messages are done")?;
    link.close()?;
    Ok(net.finalize()?)
}

fn threads_of_four_communicators(case: &mut Case) -> Outcome {
    let library = case.library()?;
    let mut communicators = Vec::new();
    for number in 0..4 {
        let net = Net::init(&library, COMMUNICATOR + number)?;
        let link = Link::open(case, &net)?;
        communicators.push((net, link));
    }
    let over: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
    let messages: Vec<Message> =
        (0..200).map(|n| Message::of(n * 331 % 50_000).in_room(60_000)).collect();
    let shared = &*case;
    thread::scope(|scope| -> Outcome {
        let mut threads = Vec::new();
        for ((net, link), over) in communicators.iter().zip(&over) {
            let messages = &messages;
            let progress = scope.spawn(move || {
                let moved = talk_alone(shared, link, messages, Manner::LIKE_NCCL);
                over.store(true, Ordering::Relaxed);
                moved
            });
            let service = scope.spawn(move || serve(shared, net, link, over, &AtomicUsize::new(0)));
            threads.push((progress, service));
        }
        let mut ends = Vec::new();
        for (progress, service) in threads {
            ends.push(progress.join().map_err(died)?);
            ends.push(service.join().map_err(died)?);
        }
        ends.into_iter().collect()
    })?;
    case.meet("all messages are done")?;
    for (net, link) in communicators {
        link.close()?;
        net.finalize()?;
    }
    Ok(())
}

fn threads_connect_at_once(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let shared = &*case;
    let ready = Barrier::new(4);
    thread::scope(|scope| -> Outcome {
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (net, ready) = (&net, &ready);
                scope.spawn(move || -> Outcome {
                    ready.wait();
                    for round in 0..10 {
                        let (listener, handle) = net.listen(0)?;
                        let link = Link::finish(shared, net, 0, listener, handle)?;
                        pass(shared, &link.send, &link.receive, number * 10 + round)?;
                        link.close()?;
                    }
                    Ok(())
                })
            })
            .collect();
        let ends: Vec<Outcome> =
            threads.into_iter().map(|thread| thread.join().map_err(died)?).collect();
        ends.into_iter().collect()
    })?;
    Ok(net.finalize()?)
}

fn threads_hand_comms_over(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (listener, handle) = net.listen(0)?;
    let handle = trade(case, &handle)?;
    let shared = &*case;
    let link = thread::scope(|scope| {
        scope.spawn(|| Link::finish(shared, &net, 0, listener, handle)).join().map_err(died)?
    })?;
    let link = thread::scope(|scope| {
        let moves = move || -> Outcome<Link> {
            talk_alone(shared, &link, &few(), Manner::LIKE_NCCL)?;
            Ok(link)
        };
        scope.spawn(moves).join().map_err(died)?
    })?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    thread::scope(|scope| scope.spawn(|| link.close()).join().map_err(died)?)?;
    Ok(net.finalize()?)
}

fn threads_ask_for_properties(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let first = net.properties(0)?;
    let (over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| -> Outcome {
        let asks = scope.spawn(|| -> Outcome {
            while !over.load(Ordering::Relaxed) {
                hold!(net.properties(0)? == first, "properties change while others listen");
                asked.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let listens = || -> Outcome {
            let mut listens = 0;
            case.until("listen while another thread asks for properties", || {
                net.listen(0)?.0.close()?;
                listens += 1;
                let enough = asked.load(Ordering::Relaxed) >= ASKED || asks.is_finished();
                Ok((listens >= LISTENS && enough).then_some(()))
            })
        };
        let listened = listens();
        over.store(true, Ordering::Relaxed);
        asks.join().map_err(died)??;
        listened
    })?;
    Ok(net.finalize()?)
}

const LISTENS: usize = 200;
const ASKED: usize = 1000;
