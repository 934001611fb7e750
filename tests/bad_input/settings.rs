//! Invalid settings: init fails, with one sentence that says what to do.

use harness::Test;
use std::time::Instant;

use crate::support::calls::{Net, Object, warnings};
use crate::support::link::Link;
use crate::support::stage::play;
use crate::{BOUND, SLACK, open};

/// A setting, its value, and words that the sentence must contain.
const CASES: &[(&str, &str, &str)] = &[
    ("FORCE_FIN", "maybe", "or unset it"),
    ("MAX_RAILS", "0", "1 to 16"),
    ("MAX_RAILS", "17", "1 to 16"),
    ("MAX_RAILS", "two", "1 to 16"),
    ("MAX_RAILS", "99999999999999999999", "1 to 16"),
    ("LARGEST_WRITE", "12Q", "or unset it"),
    ("LARGEST_WRITE", "1", "or unset it"),
    ("STRIPE_MIN", "-1", "or unset it"),
    ("CONNECT_TIMEOUT_MS", "0", "or unset it"),
    ("CLOSE_TIMEOUT_MS", "soon", "or unset it"),
    ("LOG_LEVEL", "loud", "or unset it"),
    ("RAILS", "127.0.0.1,,127.0.0.2", "or unset it"),
    ("RAILS", "203.0.113.7", "name some of these"),
    ("RAILS", "no-such-interface", "name some of these"),
    ("PROVIDER", "nonsense", "name one of these"),
    ("PROVIDER", "\u{1f6e4}", "name one of these"),
    ("LIBFABRIC", "/nonexistent", "correct IRONRAIL_LIBFABRIC"),
    ("LIBFABRIC", "/proc/self/exe", "IRONRAIL_LIBFABRIC"),
    ("LIBFABRIC", "libc.so.6", "IRONRAIL_LIBFABRIC"),
];

fn a_setting_that_cannot_be_followed_fails_init_with_one_sentence() {
    for (name, value, words) in CASES {
        let test = [("TEST_NAME", *name), ("TEST_WORDS", *words)];
        let settings = [&[("PROVIDER", ""), ("RAILS", "127.0.0.1"), (*name, *value)], &test[..]];
        play(&settings.concat(), BOUND, |part| {
            let name = format!("IRONRAIL_{}", std::env::var("IRONRAIL_TEST_NAME").expect("set"));
            let words = std::env::var("IRONRAIL_TEST_WORDS").expect("set");
            let net = Net::open(&part.plugin());
            let start = Instant::now();
            let failure = net.init().expect_err("it cannot be followed");
            assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
            assert_eq!(failure.said.len(), 1, "{failure:?}");
            assert!(failure.said[0].contains(&name), "{failure:?}");
            assert!(failure.said[0].contains(&words), "{failure:?}");
            // A second call returns the same code, without filling the log.
            assert_eq!(net.init().expect_err("as before").code, failure.code);
            assert_eq!(net.init_v8().expect_err("as before").code, failure.code);
            assert_eq!(net.devices().expect_err("as before").code, failure.code);
            // NCCL 2.28.3 to 2.29.3 calls finalize after an init that failed, with the null that its place held.
            assert_eq!(net.finalize(Object(0)).expect_err("as before").code, failure.code);
            assert_eq!(warnings().len(), 1, "{:?}", warnings());
        });
    }
}

fn an_address_for_a_rail_of_shared_memory_fails_init() {
    let settings = [("PROVIDER", "shm"), ("RAILS", "127.0.0.1")];
    play(&settings, BOUND, |part| {
        let failure = Net::open(&part.plugin()).init().expect_err("shm has no addresses");
        assert!(failure.said[0].contains("IRONRAIL_RAILS names 127.0.0.1"), "{failure:?}");
    });
}

fn a_setting_that_is_not_known_is_a_warning_that_names_the_nearest() {
    let settings = [("RAILS", "127.0.0.1"), ("MAX_RIALS", "2")];
    play(&settings, BOUND, |part| {
        let net = Net::open(&part.plugin());
        let context = net.init().expect("init");
        assert_eq!(warnings().len(), 1, "{:?}", warnings());
        assert!(warnings()[0].contains("did you mean IRONRAIL_MAX_RAILS?"), "{:?}", warnings());
        net.finalize(context).expect("finalize");
    });
}

fn settings_that_differ_are_one_warning_on_each_side_however_many_connections_there_are() {
    let settings = [("RAILS", "127.0.0.1"), ("STRIPE_MIN", "64K")];
    play(&settings, BOUND, |part| {
        let (net, context) = open(part);
        let mut cast = (part.name == "main").then(|| part.cast("other", &[("STRIPE_MIN", "32K")]));
        for _ in 0..20 {
            let mut link = match &mut cast {
                Some(other) => Link::to_peer(net, context, other),
                None => Link::to_peer(net, context, &mut { part }),
            };
            link.works();
        }
        assert_eq!(warnings().len(), 1, "{:?}", warnings());
        let said = &warnings()[0];
        assert!(said.contains("other values than we have for IRONRAIL_STRIPE_MIN:"), "{said}");
        assert!(said.contains("process ") && said.contains("on all ranks"), "{said}");
        if let Some(other) = cast {
            other.finish();
        }
    });
}

fn a_traffic_class_of_more_than_a_byte_is_one_warning_however_often_connect_is_polled() {
    play(&[("RAILS", "127.0.0.1")], BOUND, |part| {
        let net = Net::open(&part.plugin());
        net.init_v10().expect("init");
        let (mut handle, listener) = net.listen_v10(0).expect("listen");
        for _ in 0..50 {
            // Nothing accepts.
            assert_eq!(net.connect_v10(0, 300, &mut handle).expect("connect"), None);
        }
        assert_eq!(warnings().len(), 1, "{:?}", warnings());
        assert!(warnings()[0].contains("traffic class 300 is ignored"), "{:?}", warnings());
        net.close_listen(listener).expect("closeListen");
    });
}

fn a_traffic_class_is_taken_or_left_out_and_messages_move_all_the_same() {
    play(&[("RAILS", "127.0.0.1")], BOUND, |part| {
        let net = Net::open(&part.plugin());
        let context = net.init_in_class(104).expect("init");
        let mut link = Link::to_self(net, context);
        link.works();
        assert!(warnings().len() <= 1, "{:?}", warnings());
        net.finalize(context).expect("finalize");
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(a_setting_that_cannot_be_followed_fails_init_with_one_sentence),
        Test::new(an_address_for_a_rail_of_shared_memory_fails_init),
        Test::new(a_setting_that_is_not_known_is_a_warning_that_names_the_nearest),
        Test::new(
            settings_that_differ_are_one_warning_on_each_side_however_many_connections_there_are,
        ),
        Test::new(
            a_traffic_class_of_more_than_a_byte_is_one_warning_however_often_connect_is_polled,
        ),
        Test::new(a_traffic_class_is_taken_or_left_out_and_messages_move_all_the_same),
    ]
}
