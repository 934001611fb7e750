//! Tagged messages, over every software provider, between two ends in one process.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]
#![allow(dead_code, reason = "the helpers serve other tests, too")]

mod support;

use std::process::ExitCode;
use std::time::Instant;

use fabric::{CompletionError, Data, Event, Nic, Tags};
use harness::Test;
use support::{LOOPBACK, Pair, Provider, bytes_of, pattern};

/// The receives that one poll of a queue has returned: token, length and tag.
type Received = Vec<(u64, usize, u64)>;

fn poll_receives(nic: &mut Nic, of_data: bool) -> Result<Received, CompletionError> {
    let polled = if of_data { nic.poll_data() } else { nic.poll_control() };
    let mut found = Vec::new();
    while !polled.is_empty() {
        let event = if of_data { nic.next_data() } else { nic.next_control() };
        match event {
            None => break,
            Some(Event::Ended { token, len, tag }) => found.push((token, len, tag)),
            Some(Event::Failed(failed)) => return Err(failed.error),
            Some(other) => panic!("{other:?}"),
        }
    }
    Ok(found)
}

/// Polls both ends until the far one has so many receives.
fn received(pair: &mut Pair, count: usize) -> Received {
    let start = Instant::now();
    let mut found = Vec::new();
    while found.len() < count {
        for of_data in [true, false] {
            poll_receives(&mut pair.near.nic, of_data).unwrap();
            found.extend(poll_receives(&mut pair.far.nic, of_data).unwrap());
        }
        assert!(start.elapsed() < support::PATIENCE, "{} of {count} messages", found.len());
    }
    found
}

fn a_message_fills_the_receive_of_its_tag_and_reports_its_length(provider: Provider) {
    let mut pair = Pair::open(provider, false);
    // From empty to longer than any provider copies.
    let lens = [0, 1, 64, 4096, 65_536, 262_144];
    let sent = pattern(3, 262_144);
    pair.near.data_pages.copy_in(0, &sent);
    for (tag, len) in (0x7fff_0000_0000_u64..).zip(lens) {
        for wanted in [tag + 100, tag] {
            pair.post(|_, far| {
                let room = far.data_region.local(4096, 300_000).unwrap();
                far.nic.receive_tagged(room, Tags::only(wanted), wanted)
            });
        }
        pair.post(|near, _| {
            let (local, peer) = (near.data_region.local(0, len).unwrap(), near.data_peer());
            near.nic.send_tagged(local, peer, tag, 1)
        });
        assert_eq!(received(&mut pair, 1), [(tag, len, tag)]);
        assert_eq!(bytes_of(&pair.far.data_pages, 4096, len), sent[..len]);
    }
    assert_eq!(pair.far.nic.receives_in_flight(), lens.len(), "those of the other tags wait");
    let carried = lens.iter().map(|len| *len as u64).sum::<u64>();
    while pair.near.nic.in_flight() > 0 {
        poll_receives(&mut pair.near.nic, true).unwrap();
    }
    assert_eq!(pair.near.nic.traffic().bytes, carried);
    pair.far.nic.cancel(|_| true);
    let start = Instant::now();
    while pair.far.nic.in_flight() > 0 && start.elapsed() < support::PATIENCE {
        drop(poll_receives(&mut pair.far.nic, true));
    }
    assert_eq!(pair.far.nic.in_flight(), 0, "cancelled receives end");
}

fn a_receive_of_any_tag_reports_the_tag_and_ignores_untagged_messages(provider: Provider) {
    let mut pair = Pair::open(provider, false);
    pair.post(|_, far| far.nic.receive(far.control_region.local(0, 64).unwrap(), 1));
    for token in [2, 3] {
        pair.post(|_, far| {
            let room = far.control_region.local(4096 * token, 4096).unwrap();
            far.nic.receive_tagged(room, Tags::ANY, token as u64)
        });
    }
    pair.near.control_pages.copy_in(0, &pattern(9, 4096));
    for tag in [0x1234_5678_9abc, 7] {
        pair.post(|near, _| {
            let (local, peer) = (near.control_region.local(0, 56).unwrap(), near.control_peer());
            near.nic.send_tagged(local, peer, tag, 4)
        });
    }
    assert_eq!(received(&mut pair, 2), [(2, 56, 0x1234_5678_9abc), (3, 56, 7)]);
    pair.post(|near, _| {
        let (local, peer) = (near.control_region.local(0, 40).unwrap(), near.control_peer());
        near.nic.send(local, peer, 5)
    });
    let (token, len, _) = received(&mut pair, 1)[0];
    assert_eq!((token, len), (1, 40), "the untagged receive was left alone until then");
}

fn a_cancelled_receive_leaves_its_message_to_the_next(provider: Provider) {
    let mut pair = Pair::open(provider, false);
    let room = |far: &mut support::Side, at, token| {
        let local = far.data_region.local(at, 4096).unwrap();
        far.nic.receive_tagged(local, Tags::only(8), token)
    };
    let place = pair.far.nic.next_place().expect("the table has room");
    pair.post(|_, far| room(far, 0, 1));
    let other = pair.far.nic.next_place().expect("the table has room");
    pair.far.nic.cancel_one(place, 2);
    pair.far.nic.cancel_one(other, 1);
    assert!(poll_receives(&mut pair.far.nic, true).is_ok(), "neither names the receive");
    assert_eq!(pair.far.nic.receives_in_flight(), 1);
    pair.far.nic.cancel_one(place, 1);
    let start = Instant::now();
    let error = loop {
        if let Err(error) = poll_receives(&mut pair.far.nic, true) {
            break error;
        }
        assert!(start.elapsed() < support::PATIENCE, "a cancelled receive does not end");
    };
    assert!(error.is_cancelled(), "{error}");
    assert_eq!(pair.far.nic.uses_of(&pair.far.data_region), 0);
    pair.post(|_, far| room(far, 4096, 2));
    pair.near.data_pages.copy_in(0, b"tagged");
    pair.post(|near, _| {
        let (local, peer) = (near.data_region.local(0, 6).unwrap(), near.data_peer());
        near.nic.send_tagged::<Data>(local, peer, 8, 3)
    });
    assert_eq!(received(&mut pair, 1), [(2, 6, 8)]);
    assert_eq!(bytes_of(&pair.far.data_pages, 4096, 6), b"tagged");
}

macro_rules! providers {
    ($($module:ident: $name:literal, $source:expr;)*) => {
        fn main() -> ExitCode {
            harness::run([$($module::tests()),*].into_iter().flatten())
        }
        $(
        mod $module {
            use super::*;
            providers! { @laws Provider { name: $name, source: $source, messages: true };
                a_message_fills_the_receive_of_its_tag_and_reports_its_length
                a_receive_of_any_tag_reports_the_tag_and_ignores_untagged_messages
                a_cancelled_receive_leaves_its_message_to_the_next
            }
        }
        )*
    };
    (@laws $provider:expr; $($law:ident)*) => {
        $(
            fn $law() {
                if let Some(library) = support::other_library($provider) {
                    return harness::again($law, &[(support::LIBRARY, library.as_os_str())]);
                }
                super::$law($provider);
            }
        )*
        pub(super) fn tests() -> Vec<Test> {
            let need = support::offers($provider, false);
            vec![$(Test::new($law).needs(need.clone())),*]
        }
    };
}

providers! {
    net: "net", LOOPBACK;
    tcp: "tcp", LOOPBACK;
    tcp_rxm: "tcp;ofi_rxm", LOOPBACK;
    udp_rxd: "udp;ofi_rxd", LOOPBACK;
    shm: "shm", None;
}
