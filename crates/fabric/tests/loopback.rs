//! Every operation, over every software provider, between two ends in one process.
//!
//! FABRIC_TEST_LIBRARY names another libfabric than the system's, to run the same tests on a later release.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/measure.rs"]
mod measure;
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use fabric::{Control, Data, Pages};
use fabric::{Delivery, NotDeregistered, Post, Region, Write};
use harness::Test;
use support::{BYTES, LOOPBACK, OPERATIONS, Pair, Provider, QueueEvent, Side, bytes_of, pattern};

/// Posts a write of `len` bytes at `from` of the near side's data to the same place of the far side's.
fn write(
    near: &mut Side,
    far: &Side,
    (from, len): (usize, usize),
    immediate: Option<u64>,
    token: u64,
) -> Result<Post, fabric::FabricError> {
    let (local, remote) = (near.data_region.local(from, len).unwrap(), far.data_at(from));
    let peer = near.data_peer();
    near.nic.write(&Write { local, remote, peer, delivery: Delivery::Default }, immediate, token)
}

fn a_write_with_immediate_arrives_with_its_data_and_bytes(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    for (round, len) in [0, 1, 8, 4096, 65_537, BYTES].into_iter().enumerate() {
        let sent = pattern(round + 1, len);
        pair.near.data_pages.copy_in(0, &sent);
        pair.far.data_pages.fill(0, BYTES, 0);
        let immediate = 0xfedc_ba98_0000_0000 + round as u64;
        pair.post(|near, far| write(near, far, (0, len), Some(immediate), round as u64));
        let (arrived, _) = pair.wait_arrival();
        pair.wait_near(round as u64);
        assert_eq!(arrived, immediate, "{len} bytes");
        assert_eq!(bytes_of(&pair.far.data_pages, 0, len), sent, "{len} bytes");
        assert!(bytes_of(&pair.far.data_pages, len, BYTES - len).iter().all(|byte| *byte == 0));
    }
    assert_eq!(pair.near.nic.in_flight(), 0);
    assert_eq!(pair.near.nic.traffic().writes, 6);
}

fn injected_writes_arrive(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    let most = pair.near.nic.inject_bytes::<Data>();
    for (round, len) in [0, 1, 48, most].into_iter().enumerate() {
        let sent = pattern(round + 1, len);
        pair.near.data_pages.copy_in(128, &sent);
        pair.post(|near, far| {
            let from = near.data_region.memory().address() + 128;
            let local = near.data_region.host_bytes(from, len).unwrap();
            let peer = near.data_peer.unwrap();
            near.nic.inject(local, far.data_at(4096), peer, round as u64)
        });
        assert_eq!(pair.wait_arrival().0, round as u64);
        assert_eq!(bytes_of(&pair.far.data_pages, 4096, len), sent);
    }
    assert!(
        pair.near_events.is_empty(),
        "an injected write completes nowhere: {:?}",
        pair.near_events
    );
    assert_eq!(pair.near.nic.traffic().bytes, (1 + 48 + most) as u64);
}

fn a_read_brings_the_peers_bytes(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    for (round, len) in [1, 4096, BYTES - 64].into_iter().enumerate() {
        let held = pattern(round + 9, len);
        pair.far.data_pages.copy_in(64, &held);
        pair.post(|near, far| {
            let (local, peer) = (near.data_region.local(32, len).unwrap(), near.data_peer.unwrap());
            near.nic.read(local, far.data_at(64), peer, round as u64)
        });
        pair.wait_near(round as u64);
        assert_eq!(bytes_of(&pair.near.data_pages, 32, len), held);
    }
}

fn a_read_from_oneself_works(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    let name = pair.near.nic.data_name().to_vec();
    let oneself = pair.near.nic.add_peer::<Data>(&name).unwrap();
    let held = pattern(5, 64);
    pair.near.data_pages.copy_in(0, &held);
    pair.post(|near, _| {
        let (local, remote) = (near.data_region.local(4096, 64).unwrap(), near.data_at(0));
        near.nic.read(local, remote, oneself, 7)
    });
    pair.wait_near(7);
    assert_eq!(bytes_of(&pair.near.data_pages, 4096, 64), held);
    pair.near.nic.remove_peer::<Data>(oneself);
}

fn an_injected_write_beyond_the_limit_is_refused(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    let Pair { near, far, .. } = &mut pair;
    let from = near.data_region.memory().address();
    let too_many = near.nic.inject_bytes::<Data>() + 1;
    let local = near.data_region.host_bytes(from, too_many).unwrap();
    let peer = near.data_peer.unwrap();
    let refused = near.nic.inject(local, far.data_at(0), peer, 0).unwrap_err();
    assert_eq!(refused.errno(), 90);
    assert_eq!(near.nic.traffic().writes, 0);
}

fn messages_fill_posted_receives_in_order(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    const LEN: usize = 256;
    for index in 0..4 {
        pair.post(|_, far| {
            let room = far.control_region.local(index * 4096, 4096).unwrap();
            far.nic.receive(room, index as u64)
        });
    }
    assert_eq!((pair.far.nic.in_flight(), pair.far.nic.receives_in_flight()), (4, 4));
    for index in 0..4 {
        pair.near.control_pages.copy_in(index * LEN, &pattern(index, LEN));
        pair.post(|near, _| {
            let local = near.control_region.local(index * LEN, LEN - index).unwrap();
            near.nic.send(local, near.control_peer.unwrap(), index as u64)
        });
        pair.wait_near(index as u64);
        pair.wait("a message", |pair| !pair.far_events.is_empty());
        let events = pair.far_events.pop().unwrap();
        assert_eq!(events, QueueEvent::Ended { token: index as u64, len: LEN - index });
        let bytes = bytes_of(&pair.far.control_pages, index * 4096, LEN - index);
        assert_eq!(bytes, pattern(index, LEN)[..LEN - index]);
    }
}

fn a_delivery_complete_write_completes_with_its_bytes_there(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    for (round, len) in [8, 4096, BYTES].into_iter().enumerate() {
        let sent = pattern(round + 77, len);
        pair.near.data_pages.copy_in(0, &sent);
        pair.near.control_pages.copy_in(0, &sent);
        pair.post(|near, far| {
            let (local, remote) = (near.data_region.local(0, len).unwrap(), far.data_at(0));
            let peer = near.data_peer();
            near.nic.write(&Write { local, remote, peer, delivery: Delivery::Complete }, None, 0)
        });
        pair.wait_near(0);
        assert_eq!(bytes_of(&pair.far.data_pages, 0, len), sent);
        pair.post(|near, far| {
            let (local, remote) = (near.control_region.local(0, len).unwrap(), far.control_at(0));
            let peer = near.control_peer();
            near.nic.write_control(&Write { local, remote, peer, delivery: Delivery::Complete }, 1)
        });
        pair.wait_near(1);
        assert_eq!(bytes_of(&pair.far.control_pages, 0, len), sent);
    }
}

fn an_injected_control_write_leaves_its_bytes_free_at_once(provider: Provider, basic: bool) {
    const LONG: usize = BYTES / 2;
    const NOTHING: u8 = 0xee;
    let mut pair = Pair::open_injecting(provider, basic);
    let most = pair.near.nic.inject_bytes::<Control>();
    let write = |near: &mut Side, far: &mut Side, (at, len): (usize, usize), token: u64| {
        let local = near.control_region.local(at, len).unwrap();
        let (remote, peer) = (far.control_at(at), near.control_peer());
        let delivery = Delivery::Default;
        near.nic.write_control(&Write { local, remote, peer, delivery }, token)
    };
    for (round, len) in [1, most, most + 1].into_iter().enumerate() {
        let sent = pattern(round + 3, len);
        pair.far.control_pages.fill(LONG, len, NOTHING);
        // Behind more than a socket takes, it waits.
        for token in 0..24 {
            pair.post(|near, far| write(near, far, (0, LONG), token));
        }
        pair.near.control_pages.copy_in(LONG, &sent);
        pair.post(|near, far| write(near, far, (LONG, len), 99));
        if len <= most {
            pair.near.control_pages.fill(LONG, len, 0);
        }
        for token in (0..24).chain([99]) {
            pair.wait_near(token);
        }
        pair.wait("its bytes", |pair| {
            bytes_of(&pair.far.control_pages, LONG + len - 1, 1) != [NOTHING]
        });
        assert_eq!(bytes_of(&pair.far.control_pages, LONG, len), sent, "{len} bytes");
    }
}

fn a_cancelled_receive_ends(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    pair.post(|near, _| near.nic.receive(near.control_region.local(0, 64).unwrap(), 9));
    pair.near.nic.cancel(|token| token == 9);
    let start = Instant::now();
    loop {
        match pair.near.poll() {
            Ok(events) => assert!(events.is_empty(), "{events:?}"),
            Err(error) => {
                assert!(error.is_cancelled(), "{error}");
                assert_eq!(pair.near.nic.in_flight(), 0);
                return;
            }
        }
        assert!(start.elapsed() < support::PATIENCE, "a cancelled receive does not end");
    }
}

fn keys_are_unique_and_reused_only_after_a_close(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    let pages = Arc::new(Pages::map(4096).unwrap());
    let mut keys = Vec::new();
    for _ in 0..100 {
        let nic = &mut pair.near.nic;
        let kept: Vec<Region<Data>> =
            (0..3).map(|_| nic.register(Arc::clone(&pages).into()).unwrap()).collect();
        let mut now: Vec<u64> = kept.iter().map(|region| region.key().to_wire()).collect();
        now.push(pair.near.data_region.key().to_wire());
        now.push(pair.near.control_region.key().to_wire());
        now.sort_unstable();
        now.dedup();
        assert_eq!(now.len(), 5);
        keys.extend(now);
        for region in kept {
            pair.near.nic.deregister(region).unwrap();
        }
    }
    assert!(keys.iter().all(|key| *key != u64::MAX));
    pair.near.nic.fence::<Data>().unwrap();
    assert_eq!(Arc::strong_count(&pages), 1, "a share stays behind");
}

fn a_peer_or_a_region_of_another_nic_is_refused(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    let Pair { near, far, .. } = &mut pair;
    let (remote, delivery) = (far.data_at(0), Delivery::Default);
    let (ours, theirs) = (&near.data_region, &far.data_region);
    let [near_peer, far_peer] = [near.data_peer.unwrap(), far.data_peer.unwrap()];
    for (region, peer) in [(theirs, near_peer), (ours, far_peer)] {
        let local = region.local(0, 8).unwrap();
        let refused =
            near.nic.write(&Write { local, remote, peer, delivery }, None, 0).unwrap_err();
        assert_eq!((refused.call(), refused.errno()), ("fi_write", 22));
    }
    let local = ours.host_bytes(ours.memory().address(), 8).unwrap();
    assert_eq!(near.nic.inject(local, remote, far_peer, 0).unwrap_err().errno(), 22);
    assert_eq!((near.nic.in_flight(), near.nic.uses_of(ours), near.nic.uses_of(theirs)), (0, 0, 0));
    let other = Side::open(&info_of(provider, basic), false);
    let Side { data_region, nic: gone, .. } = other;
    drop(gone);
    // Its memory stays valid as long as the region does, and every other NIC refuses it.
    let held = data_region.host_bytes(data_region.memory().address(), 8).unwrap();
    assert!(held.put(0, &[1]));
    assert!(matches!(near.nic.deregister(data_region), Err(NotDeregistered::InUse(_))));
}

fn info_of(provider: Provider, basic: bool) -> fabric::Info {
    support::info(&support::library().unwrap(), provider, basic).unwrap()
}

fn a_region_in_use_is_neither_deregistered_nor_closed(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    let pages = Arc::new(Pages::map(4096).unwrap());
    let region: Region<Control> = pair.near.nic.register(Arc::clone(&pages).into()).unwrap();
    pair.post(|near, _| near.nic.receive(region.local(0, 4096).unwrap(), 3));
    assert_eq!(pair.near.nic.uses_of(&region), 1);
    assert_eq!(pair.near.nic.tokens_on(&region).collect::<Vec<_>>(), [3]);
    let Err(NotDeregistered::InUse(region)) = pair.near.nic.deregister(region) else {
        panic!("a receive is posted there");
    };
    pair.near.control_pages.copy_in(0, b"it is filled");
    pair.post(|near, far| {
        let (local, peer) = (far.control_region.local(0, 12).unwrap(), far.control_peer.unwrap());
        far.control_pages.copy_in(0, b"it is filled");
        let _ = near;
        far.nic.send(local, peer, 1)
    });
    pair.wait_near(3);
    assert_eq!(bytes_of(&pages, 0, 12), b"it is filled");
    pair.near.nic.deregister(region).unwrap();
    assert_eq!(Arc::strong_count(&pages), 2, "a peer may be writing there");
    pair.near.nic.fence::<Control>().unwrap();
    assert_eq!(Arc::strong_count(&pages), 1);
}

fn a_region_that_is_dropped_closes_once_nothing_touches_it(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    let pages = Arc::new(Pages::map(4096).unwrap());
    let region: Region<Control> = pair.near.nic.register(Arc::clone(&pages).into()).unwrap();
    pair.post(|near, _| near.nic.receive(region.local(0, 4096).unwrap(), 3));
    // In another thread: nothing is closed there.
    std::thread::spawn(move || drop(region)).join().unwrap();
    pair.near.nic.close_dropped();
    assert_eq!(Arc::strong_count(&pages), 2, "a receive is posted there");
    pair.near.nic.cancel(|token| token == 3);
    let start = Instant::now();
    while pair.near.nic.in_flight() > 0 {
        drop(pair.near.poll());
        assert!(start.elapsed() < support::PATIENCE, "a cancelled receive does not end");
    }
    pair.near.nic.close_dropped();
    // Its registration, and then what a peer may have begun.
    pair.near.nic.fence::<Control>().unwrap();
    assert_eq!(Arc::strong_count(&pages), 1);
}

fn a_full_table_refuses_and_blames_no_peer(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    for token in 0..OPERATIONS {
        pair.post(|near, _| {
            near.nic.receive(near.control_region.local(0, 64).unwrap(), token.into())
        });
    }
    let Pair { near, far, .. } = &mut pair;
    assert_eq!(near.nic.room(), 0);
    assert_eq!(write(near, far, (0, 8), None, 99), Ok(Post::Full));
    assert_eq!(near.nic.uses_of(&near.data_region), 0);
}

fn a_fenced_rail_ends_its_operations_and_the_nic_lives_on(provider: Provider, basic: bool) {
    let mut pair = Pair::open(provider, basic);
    pair.post(|near, _| near.nic.receive(near.control_region.local(0, 64).unwrap(), 3));
    pair.post(|near, far| write(near, far, (0, 65_536), None, 4));
    assert_eq!(pair.near.nic.fence::<Control>().unwrap(), [3]);
    assert_eq!(pair.near.nic.uses_of(&pair.near.control_region), 0);
    let Side { nic, control_region, control_peer, .. } = &mut pair.near;
    let local = control_region.local(0, 8).unwrap();
    assert_eq!(nic.send(local, control_peer.unwrap(), 5).unwrap_err().errno(), 108);
    assert!(nic.poll_control().is_empty() && !nic.has_control());
    assert!(nic.register::<Control>(Pages::map(1).unwrap().into()).is_err());
    pair.wait_near(4);
    pair.post(|near, far| write(near, far, (64, 8), Some(11), 6));
    assert_eq!(pair.wait_arrival().0, 11);
}

fn everything_closes_in_whatever_order_it_is_dropped(provider: Provider, basic: bool) {
    let Pair { near, far, .. } = Pair::open(provider, basic);
    let Side { nic, data_region, control_region, .. } = near;
    let failed = fabric::census().failed_closes;
    drop(control_region);
    nic.close().unwrap();
    drop(data_region);
    let Side { mut nic, data_region, control_region, .. } = far;
    nic.deregister(data_region).unwrap();
    nic.deregister(control_region).unwrap();
    drop(nic);
    assert_eq!(fabric::census().failed_closes, failed);
}

macro_rules! laws {
    ($provider:expr, $basic:expr; $($law:ident)*) => {$(
        fn $law() {
            if let Some(library) = support::other_library($provider) {
                return harness::again($law, &[(support::LIBRARY, library.as_os_str())]);
            }
            super::$law($provider, $basic);
        }
    )*
        pub(super) fn tests() -> Vec<Test> {
            let need = support::offers($provider, $basic);
            vec![$(Test::new($law).needs(need.clone())),*]
        }
    };
}

macro_rules! providers {
    ($($module:ident: $name:literal, $source:expr, $basic:literal;)*) => {
        fn main() -> ExitCode {
            harness::run([$($module::tests()),*, measure::tests()].into_iter().flatten())
        }
        $(
        mod $module {
            use super::*;
            laws! {
                Provider { name: $name, source: $source, messages: false }, $basic;
                a_write_with_immediate_arrives_with_its_data_and_bytes
                injected_writes_arrive
                a_read_brings_the_peers_bytes
                a_read_from_oneself_works
                messages_fill_posted_receives_in_order
                a_delivery_complete_write_completes_with_its_bytes_there
                an_injected_control_write_leaves_its_bytes_free_at_once
                a_cancelled_receive_ends
                keys_are_unique_and_reused_only_after_a_close
                an_injected_write_beyond_the_limit_is_refused
                everything_closes_in_whatever_order_it_is_dropped
                a_region_in_use_is_neither_deregistered_nor_closed
                a_region_that_is_dropped_closes_once_nothing_touches_it
                a_peer_or_a_region_of_another_nic_is_refused
                a_full_table_refuses_and_blames_no_peer
                a_fenced_rail_ends_its_operations_and_the_nic_lives_on
            }
        }
    )*};
}

providers! {
    net: "net", LOOPBACK, false;
    net_basic: "net", LOOPBACK, true;
    tcp: "tcp", LOOPBACK, false;
    tcp_rxm: "tcp;ofi_rxm", LOOPBACK, false;
    tcp_rxm_basic: "tcp;ofi_rxm", LOOPBACK, true;
    sockets: "sockets", LOOPBACK, false;
    sockets_basic: "sockets", LOOPBACK, true;
    shm: "shm", None, false;
    shm_basic: "shm", None, true;
}
