//! Prints what each provider does, without asserting it: run with `--ignored`.

use std::time::{Duration, Instant};

use fabric::{Data, error_text};
use fabric::{Delivery, Write};

use harness::Test;

use crate::support::{LOOPBACK, Pair, Provider, bytes_of, info, library, pattern, print_line};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(what_providers_do).ignored("prints facts, asserts nothing")]
}

fn what_providers_do() {
    for (name, source) in [
        ("net", LOOPBACK),
        ("tcp", LOOPBACK),
        ("tcp;ofi_rxm", LOOPBACK),
        ("sockets", LOOPBACK),
        ("udp;ofi_rxd", LOOPBACK),
        ("shm", None),
        ("sm2", None),
    ] {
        for basic in [false, true] {
            print_facts(Provider { name, source, messages: false }, basic);
        }
    }
}

fn print_facts(provider: Provider, basic: bool) {
    let library = library().unwrap();
    let modes = if basic { "FI_MR_BASIC" } else { "all modes" };
    let heading = format!(
        "libfabric {} api {} {} ({modes})",
        library.version(),
        library.api(),
        provider.name
    );
    let Some(found) = info(&library, provider, basic) else {
        print_line(&format!("{heading}: not offered"));
        return;
    };
    print_line(&format!("{heading}: {:?}", found.region_mode()));
    print_line(&format!(
        "  inject {} depth {}/{} immediate {} key {} max {:#x} domain {} fabric {} format {} nic {:?}",
        found.inject_bytes(),
        found.transmit_depth(),
        found.receive_depth(),
        found.immediate_bytes(),
        found.key_bytes(),
        found.max_message(),
        found.domain_name(),
        found.fabric_name(),
        found.address_format(),
        found.nic(),
    ));
    let mut pair = Pair::open(provider, basic);
    print_line(&format!("  name is {} bytes", pair.near.nic.data_name().len()));
    if !warm_up(&mut pair) {
        print_line("  first write: no completion");
        return;
    }
    for delivery in [Delivery::Default, Delivery::Complete] {
        for immediate in [None, Some(7)] {
            for len in [8, 4096, 65_536, 1 << 20] {
                alone(&mut pair, delivery, immediate, len);
            }
        }
    }
}

/// Connects both ways, and shows an arrival.
fn warm_up(pair: &mut Pair) -> bool {
    pair.post(|near, far| {
        let (local, remote) = (near.data_region.local(0, 100).unwrap(), far.data_at(0));
        let peer = near.data_peer();
        let write = Write { local, remote, peer, delivery: Delivery::Default };
        near.nic.write(&write, Some(1), 0)
    });
    let (_, len) = pair.wait_arrival();
    print_line(&format!("  arrival of 100 bytes: len {len}"));
    pair.wait("our own completion", |pair| !pair.near_events.is_empty());
    print_line(&format!("  injected writes up to {}", pair.near.nic.inject_bytes::<Data>()));
    settle(pair);
    true
}

fn settle(pair: &mut Pair) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        pair.progress();
    }
    pair.near_events.clear();
    pair.far_events.clear();
}

/// Writes, and polls the initiator only.
fn alone(pair: &mut Pair, delivery: Delivery, immediate: Option<u64>, len: usize) {
    let sent = pattern(len + 5, len);
    pair.near.data_pages.copy_in(0, &sent);
    pair.far.data_pages.fill(0, len, 0);
    pair.post(|near, far| {
        let (local, remote) = (near.data_region.local(0, len).unwrap(), far.data_at(0));
        let write = Write { local, remote, peer: near.data_peer(), delivery };
        near.nic.write(&write, immediate, 1)
    });
    let what = format!("  {delivery:?} write of {len} bytes, immediate {}", immediate.is_some());
    let start = Instant::now();
    let mut alone = None;
    while alone.is_none() && start.elapsed() < Duration::from_millis(300) {
        match pair.near.poll() {
            Ok(events) if events.is_empty() => {}
            Ok(_) => alone = Some(format!("completed after {:?}", start.elapsed())),
            Err(error) => alone = Some(format!("failed: {error} {}", error_text(error.errno))),
        }
    }
    let there = bytes_of(&pair.far.data_pages, 0, len) == sent;
    let outcome = alone.clone().unwrap_or_else(|| "did not complete".to_owned());
    print_line(&format!("{what}: alone {outcome}; bytes there: {there}"));
    if alone.is_none() {
        pair.wait_near(1);
        let there = bytes_of(&pair.far.data_pages, 0, len) == sent;
        print_line(&format!("      completed once the target was polled; bytes there: {there}"));
    }
    settle(pair);
}
