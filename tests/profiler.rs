//! Events for NCCL's profiler: one per message, from its acceptance to the report of its end, and none if no profiler asks.

#[path = "support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::time::Duration;

use net_abi::{NetEventV1, PROFILER_START, PROFILER_UPDATE_AND_STOP};
use support::calls::{Net, Object};
use support::link::{Link, SLOT, wait};
use support::profiler::{self, Recorded, recorded};
use support::stage::{play, play_each};

/// How long a play may take on a busy machine.
const BOUND: Duration = Duration::from_secs(120);
/// Short messages, which travel in packets, empty ones, and long ones over both rails.
const LENGTHS: [usize; 4] = [0, 8, 5000, SLOT - 7];
const RAILS: [(&str, &str); 2] = [("PROVIDER", "net"), ("RAILS", "127.0.0.1,127.0.0.2")];
/// Parents of sends and of receives.
const SENDS: usize = 0x10_0000;
const RECEIVES: usize = 0x20_0000;

#[test]
fn every_message_has_one_event_from_its_acceptance_to_its_end() {
    play_each(&["10", "11", "12"], &RAILS, BOUND, |part, version| {
        let net = Net::open_version(&part.plugin(), version.parse().expect("a version"));
        let context = net.init_profiled(profiler::profiler()).expect("init");
        let link = Link::to_self(net, context);
        let rounds = 40;
        for round in 0..rounds {
            for (at, len) in LENGTHS.into_iter().enumerate() {
                let number = round * LENGTHS.len() + at;
                transfer(net, &link, len, (SENDS + number, RECEIVES + number));
            }
        }
        let recorded = recorded();
        let pairs = pairs(&recorded);
        assert_eq!(pairs.len(), 2 * rounds * LENGTHS.len(), "one event per message and side");
        for (start, stop) in pairs {
            assert_eq!((start.data.failed, start.data.rails), (0, 0));
            assert_eq!((stop.data.failed, stop.data.device), (0, 0));
            let is_send = start.parent < RECEIVES;
            let len = LENGTHS[(start.parent & 0xffff) % LENGTHS.len()];
            let (kind, begun) = match is_send {
                true => (NetEventV1::SEND, len),
                false => (NetEventV1::RECEIVE, SLOT),
            };
            assert_eq!((start.data.kind, start.data.bytes), (kind, begun as u64));
            assert_eq!((stop.data.kind, stop.data.bytes), (kind, len as u64));
            let rails = if len > 4096 { 1..4 } else { 0..1 };
            assert!(rails.contains(&stop.data.rails), "{len} bytes: {stop:?}");
        }
        let stops = recorded.iter().filter(|recorded| recorded.kind == PROFILER_UPDATE_AND_STOP);
        let rails = stops.fold(0, |rails, stop| rails | stop.data.rails);
        assert_eq!(rails, 3, "long messages use both rails");
        let names: HashSet<_> = recorded
            .iter()
            .map(|recorded| (recorded.data.kind, recorded.data.endpoint, recorded.data.connection))
            .collect();
        assert_eq!(names.len(), 2, "two comms");
        link.close();
        if context != Object(0) {
            net.finalize(context).expect("finalize");
        }
    });
}

#[test]
fn a_group_has_an_event_for_each_receive_that_has_a_parent() {
    play(&RAILS, BOUND, |part| {
        let net = Net::open(&part.plugin());
        let context = net.init_profiled(profiler::profiler()).expect("init");
        let link = Link::to_self(net, context);
        let lens = [8, 5000, 0];
        let into = |at: usize| (link.input.slot(at), SLOT, 0, link.input.region);
        let parents = [RECEIVES, 0, RECEIVES + 2];
        let mut receive = None;
        wait("irecv", || {
            receive = net
                .irecv_profiled(link.receive, &[into(0), into(1), into(2)], &parents)
                .expect("irecv");
            receive.is_some()
        });
        let sends = lens.into_iter().enumerate().map(|(at, len)| {
            let from = (link.out.slot(at), len, 0, link.out.region);
            accepted(|| net.isend_profiled(link.send, from, SENDS + at).expect("isend"))
        });
        for send in sends.collect::<Vec<_>>() {
            wait("a send", || net.test(send).expect("test").is_some());
        }
        let mut sizes = None;
        wait("the group", || {
            sizes = net.test_each(receive.expect("posted"), 3).expect("test");
            sizes.is_some()
        });
        assert_eq!(sizes.expect("done"), lens);
        let recorded = recorded();
        let found = pairs(&recorded);
        let mut found: Vec<_> =
            found.iter().map(|(start, stop)| (start.parent, stop.data.bytes)).collect();
        found.sort_unstable();
        assert_eq!(
            found,
            [(SENDS, 8), (SENDS + 1, 5000), (SENDS + 2, 0), (RECEIVES, 8), (RECEIVES + 2, 0)]
        );
        link.close();
        net.finalize(context).expect("finalize");
    });
}

#[test]
fn nothing_is_called_without_a_callback_or_without_a_parent() {
    play(&RAILS, BOUND, |part| {
        let net = Net::open(&part.plugin());
        let context = net.init().expect("init");
        let mut link = Link::to_self(net, context);
        transfer(net, &link, 5000, (SENDS, RECEIVES));
        // NCCL's bootstrap passes no parents.
        let second = net.init_profiled(profiler::profiler()).expect("init");
        link.works();
        assert_eq!(recorded(), []);
        link.close();
        net.finalize(second).expect("finalize");
        net.finalize(context).expect("finalize");
    });
}

#[test]
fn tables_before_v10_call_nothing() {
    play_each(&["6", "7", "8", "9"], &RAILS, BOUND, |part, version| {
        let newest = Net::open(&part.plugin());
        let context = newest.init_profiled(profiler::profiler()).expect("init");
        let net = Net::open_version(&part.plugin(), version.parse().expect("a version"));
        let none = net.init_profiled(profiler::profiler()).expect("init");
        let link = Link::to_self(net, none);
        for len in LENGTHS {
            transfer(net, &link, len, (SENDS, RECEIVES));
        }
        assert_eq!(recorded(), []);
        link.close();
        newest.finalize(context).expect("finalize");
    });
}

#[test]
fn a_profiler_that_fails_or_has_no_room_changes_no_transfer() {
    play_each(&["fails", "is full"], &RAILS, BOUND, |part, case| {
        match case {
            "fails" => profiler::fail(),
            _ => profiler::be_full(),
        }
        let net = Net::open(&part.plugin());
        let context = net.init_profiled(profiler::profiler()).expect("init");
        let link = Link::to_self(net, context);
        for len in LENGTHS {
            transfer(net, &link, len, (SENDS, RECEIVES));
        }
        let recorded = recorded();
        assert_eq!(recorded.len(), 2 * LENGTHS.len());
        assert!(
            recorded.iter().all(|recorded| recorded.kind == PROFILER_START),
            "nothing ends: {recorded:?}"
        );
        link.close();
        net.finalize(context).expect("finalize");
    });
}

#[test]
fn a_request_that_fails_ends_its_event_as_failed() {
    play(&RAILS, BOUND, |part| {
        let net = Net::open(&part.plugin());
        let context = net.init_profiled(profiler::profiler()).expect("init");
        let link = Link::to_self(net, context);
        // A message that is longer than its receive fails both.
        let into = (link.input.slot(0), 8, 0, link.input.region);
        let receive =
            accepted(|| net.irecv_profiled(link.receive, &[into], &[RECEIVES]).expect("irecv"));
        let from = (link.out.slot(0), 5000, 0, link.out.region);
        // The send is refused at once where the receive is known already, and has no event then.
        let mut send = Ok(None);
        wait("isend", || {
            send = net.isend_profiled(link.send, from, SENDS);
            !matches!(send, Ok(None))
        });
        if let Ok(Some(send)) = send {
            wait("the send's failure", || net.test(send).is_err());
        }
        wait("the receive's failure", || net.test(receive).is_err());
        assert!(net.test(receive).is_err(), "and again, without another event");
        let recorded = recorded();
        let pairs = pairs(&recorded);
        assert!(pairs.iter().all(|(_, stop)| stop.data.failed == 1), "{pairs:?}");
        assert!(pairs.iter().any(|(start, _)| start.parent == RECEIVES), "{pairs:?}");
        link.close();
        net.finalize(context).expect("finalize");
    });
}

#[test]
fn a_comm_that_closes_calls_nothing_for_its_open_requests() {
    play(&RAILS, BOUND, |part| {
        let net = Net::open(&part.plugin());
        let context = net.init_profiled(profiler::profiler()).expect("init");
        let link = Link::to_self(net, context);
        let into = (link.input.slot(0), SLOT, 0, link.input.region);
        accepted(|| net.irecv_profiled(link.receive, &[into], &[RECEIVES]).expect("irecv"));
        link.close();
        net.finalize(context).expect("finalize");
        let recorded = recorded();
        assert_eq!(recorded.len(), 1, "{recorded:?}");
        assert_eq!((recorded[0].kind, recorded[0].parent), (PROFILER_START, RECEIVES));
    });
}

/// One message, with these parents, to its end at both sides.
fn transfer(net: Net, link: &Link, len: usize, (sending, receiving): (usize, usize)) {
    let into = (link.input.slot(0), SLOT, 0, link.input.region);
    let receive =
        accepted(|| net.irecv_profiled(link.receive, &[into], &[receiving]).expect("irecv"));
    let from = (link.out.slot(0), len, 0, link.out.region);
    let send = accepted(|| net.isend_profiled(link.send, from, sending).expect("isend"));
    wait("the send", || net.test(send).expect("test").is_some());
    let mut size = None;
    wait("the receive", || {
        size = net.test(receive).expect("test");
        size.is_some()
    });
    assert_eq!(size, Some(len));
}

/// Repeats a call that may answer "not now".
fn accepted(mut call: impl FnMut() -> Option<Object>) -> Object {
    let mut request = None;
    wait("a request", || {
        request = call();
        request.is_some()
    });
    request.expect("accepted")
}

/// Each start with its stop: every event has exactly one of both, and all are the plugin's.
fn pairs(recorded: &[Recorded]) -> Vec<(&Recorded, &Recorded)> {
    let (starts, stops): (Vec<&Recorded>, Vec<&Recorded>) =
        recorded.iter().partition(|recorded| recorded.kind == PROFILER_START);
    assert_eq!(starts.len(), stops.len(), "{recorded:#?}");
    let stop_of = |start: &Recorded| {
        let mut found = stops.iter().filter(|stop| stop.event == start.event);
        let stop = *found.next().unwrap_or_else(|| panic!("{start:?} has no stop"));
        assert_eq!((found.next(), stop.kind, stop.parent), (None, PROFILER_UPDATE_AND_STOP, 0));
        assert_eq!((start.plugin, stop.plugin), (NetEventV1::PLUGIN, NetEventV1::PLUGIN));
        let name = |recorded: &Recorded| {
            (recorded.data.kind, recorded.data.endpoint, recorded.data.connection)
        };
        assert_eq!(name(start), name(stop));
        stop
    };
    starts.into_iter().map(|start| (start, stop_of(start))).collect()
}
