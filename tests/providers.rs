//! The same plugin file over every software provider, on both libraries, and by every path of the protocol.
//!
//! What this machine lacks is said, and the case passes without having run.

mod support;

use std::path::Path;

use support::client;

/// libfabric 2.5.1, as scripts/setup brings it (the wheel mpich 5.0.2 carries it).
const SECOND_LIBFABRIC: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/libfabric-2.5.1/data/lib/mpich/libfabric.so.1");

/// v12 is the native table, v8 the one with narrow sizes and truncation.
fn both_ways(settings: &[(&str, &str)]) {
    client::run(12, "pair", settings);
    client::run(12, "self", settings);
    client::run(8, "pair", settings);
}

/// The same with the second library, if it is there.
fn on_the_second_library(settings: &[(&str, &str)]) {
    if !Path::new(SECOND_LIBFABRIC).exists() {
        support::say("not run: there is no libfabric 2.5.1; scripts/setup brings it");
        return;
    }
    let mut settings = settings.to_vec();
    settings.push(("IRONRAIL_LIBFABRIC", SECOND_LIBFABRIC));
    both_ways(&settings);
}

#[test]
fn net_moves_data() {
    both_ways(&[("IRONRAIL_PROVIDER", "net")]);
}

#[test]
fn rxm_moves_data() {
    both_ways(&[("IRONRAIL_PROVIDER", "tcp;ofi_rxm")]);
}

#[test]
fn sockets_moves_data() {
    both_ways(&[("IRONRAIL_PROVIDER", "sockets")]);
}

#[test]
fn shm_moves_data() {
    both_ways(&[("IRONRAIL_PROVIDER", "shm"), ("IRONRAIL_RAILS", "")]);
}

#[test]
fn tcp_of_the_second_library_moves_data() {
    on_the_second_library(&[("IRONRAIL_PROVIDER", "tcp")]);
}

#[test]
fn rxm_of_the_second_library_moves_data() {
    on_the_second_library(&[("IRONRAIL_PROVIDER", "tcp;ofi_rxm")]);
}

#[test]
fn sockets_of_the_second_library_moves_data() {
    on_the_second_library(&[("IRONRAIL_PROVIDER", "sockets")]);
}

#[test]
fn shm_of_the_second_library_moves_data() {
    on_the_second_library(&[("IRONRAIL_PROVIDER", "shm"), ("IRONRAIL_RAILS", "")]);
}

#[test]
fn the_fin_path_moves_data() {
    for provider in ["net", "tcp;ofi_rxm", "sockets"] {
        both_ways(&[("IRONRAIL_PROVIDER", provider), ("IRONRAIL_FORCE_FIN", "1")]);
    }
}

#[test]
fn the_fin_path_moves_data_over_shm() {
    let settings =
        [("IRONRAIL_PROVIDER", "shm"), ("IRONRAIL_RAILS", ""), ("IRONRAIL_FORCE_FIN", "1")];
    both_ways(&settings);
}

#[test]
fn virtual_addresses_and_provider_keys_move_data() {
    for provider in ["net", "tcp;ofi_rxm"] {
        both_ways(&[("IRONRAIL_PROVIDER", provider), ("IRONRAIL_BASIC_REGIONS", "1")]);
    }
}

#[test]
fn small_writes_make_many_parts_and_then_fins() {
    for bytes in ["4096", "65536"] {
        both_ways(&[("IRONRAIL_PROVIDER", "net"), ("IRONRAIL_LARGEST_WRITE", bytes)]);
    }
}

#[test]
fn adverts_that_do_not_wait_move_data() {
    both_ways(&[("IRONRAIL_ADVERT_BATCHING", "0"), ("IRONRAIL_LONE_DONE_TURNS", "0")]);
}

#[test]
fn ends_with_unequal_rails_use_the_common_ones() {
    let three = "127.0.0.1,127.0.0.2,127.0.0.3";
    for (ours, theirs) in
        [("127.0.0.1", three), (three, "127.0.0.1"), (three, "127.0.0.4,127.0.0.5")]
    {
        client::run(12, "pair", &[("IRONRAIL_RAILS", ours), ("CLIENT_OTHER_RAILS", theirs)]);
    }
}

#[test]
fn up_to_eight_rails_move_data() {
    for rails in [1, 2, 3, 4, 5, 8] {
        let names: Vec<_> = (1..=rails).map(|rail| format!("127.0.0.{rail}")).collect();
        let most = rails.to_string();
        client::run(
            12,
            "pair",
            &[("IRONRAIL_RAILS", &names.join(",")), ("IRONRAIL_MAX_RAILS", &most)],
        );
    }
}
