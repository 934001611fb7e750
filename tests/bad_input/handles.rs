//! Handles that are damaged, or of another version, job or process.

use harness::Test;
use std::time::Instant;

use net_abi::ResultCode;

use crate::support::calls::{Failure, Handle, Net, Object};
use crate::support::link::{Link, from_text, to_text, wait};
use crate::support::stage::play;
use crate::support::stranger::wire_handle;
use crate::{BOUND, DEADLINE, SETTINGS, SLACK, open, refused};

fn a_handle_with_any_byte_changed_is_refused() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        for at in 0..112 {
            for flip in [1, 0x80, 0xff] {
                let mut bad = handle;
                bad[at] ^= flip;
                refused(
                    net.connect(context, 0, &mut bad),
                    ResultCode::INVALID_ARGUMENT,
                    "a handle that is not usable",
                );
            }
        }
        refused(net.connect(context, 0, &mut [0; 128]), ResultCode::INVALID_ARGUMENT, "not usable");
        net.close_listen(listener).expect("close");
        link.works();
        link.close();
        net.finalize(context).expect("finalize");
    });
}

fn a_handle_of_another_protocol_version_is_refused_by_that_name() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (handle, _) = net.listen(context, 0).expect("listen");
        let ours = proto::setup::VERSION;
        // The newest version that the peer supports, and the oldest one, which version 1 does not contain.
        for (version, oldest) in [(1, 0), (1, 1), (ours + 1, low8(ours) + 1), (u16::MAX, u8::MAX)] {
            let mut bad = handle;
            bad[8..10].copy_from_slice(&version.to_le_bytes());
            bad[11] = oldest;
            bad[12..16].fill(0);
            let check = proto::codec::check_of(&bad[..112]);
            bad[12..16].copy_from_slice(&check.to_le_bytes());
            refused(
                net.connect(context, 0, &mut bad),
                ResultCode::INVALID_USAGE,
                &format!("version {version} of the protocol"),
            );
        }
        link.works();
        net.finalize(context).expect("finalize");
    });
}

fn low8(version: u16) -> u8 {
    u8::try_from(version).expect("the first versions")
}

/// Connects and accepts until connect fails.
fn fails_to_connect(net: Net, context: Object, handle: &mut Handle, listener: Object) -> Failure {
    let start = Instant::now();
    loop {
        match net.connect(context, 0, handle) {
            Err(failure) => return failure,
            Ok(comm) => assert_eq!(comm, None, "it must not connect"),
        }
        assert_eq!(net.accept(listener), Ok(None));
        assert!(start.elapsed() < DEADLINE + SLACK, "connect does not end");
    }
}

fn a_handle_with_another_secret_is_refused_by_the_listener() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let mut stale = wire_handle(&handle);
        stale.secret.0[3] ^= 1;
        let failure = fails_to_connect(net, context, &mut stale.encode(), listener);
        assert_eq!(failure.code, ResultCode::REMOTE_ERROR);
        assert!(failure.said[0].contains("not of an open listener of this job"), "{failure:?}");
        link.works();
        net.finalize(context).expect("finalize");
    });
}

/// A HELLO without a valid proof has no effect, not even an answer.
fn a_handle_of_another_job_makes_no_connection() {
    // Accept is polled until the stranger has given up, some time after its process has started.
    let settings = [SETTINGS, &[("CONNECT_TIMEOUT_MS", "60000")]].concat();
    play(&settings, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "stranger" {
            let mut handle = from_text(&part.receive());
            let start = Instant::now();
            let failure = loop {
                match net.connect(context, 0, &mut handle) {
                    Err(failure) => break failure,
                    Ok(comm) => assert_eq!(comm, None, "it must not connect"),
                }
                assert!(start.elapsed() < DEADLINE + SLACK, "connect does not end");
            };
            assert_eq!(failure.code, ResultCode::REMOTE_ERROR);
            assert!(failure.said[0].contains("IRONRAIL_JOB"), "{failure:?}");
            let warnings = crate::support::calls::warnings();
            let waiting = warnings.iter().filter(|line| line.contains("has waited"));
            let names_it = |line: &String| line.contains("for an answer of the process at ");
            assert_eq!(waiting.map(names_it).collect::<Vec<_>>(), [true], "{warnings:?}");
            part.say("refused");
            net.finalize(context).expect("finalize");
            return;
        }
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let mut stranger = part.cast(
            "stranger",
            &[("JOB", "another"), ("CONNECT_TIMEOUT_MS", "6000"), ("CONNECT_WARN_MS", "1000")],
        );
        stranger.say(&to_text(&handle));
        wait("the refusal", || {
            assert_eq!(net.accept(listener), Ok(None));
            stranger.try_receive().is_some_and(|line| line == "refused")
        });
        link.works();
        net.close_listen(listener).expect("close");
        net.finalize(context).expect("finalize");
        stranger.finish();
    });
}

fn a_handle_with_garbage_for_scratch_is_refused() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        // A connect in progress, for a nonce of ours.
        let mut under_way = handle;
        assert_eq!(net.connect(context, 0, &mut under_way), Ok(None));
        let mut garbage = Vec::new();
        for at in 112..128 {
            garbage.push((at, 0x40));
            garbage.push((at, 1));
        }
        for (at, flip) in garbage {
            let mut bad = under_way;
            bad[at] ^= flip;
            refused(net.connect(context, 0, &mut bad), ResultCode::INVALID_ARGUMENT, "fresh copy");
        }
        let mut bad = handle;
        bad[112..].fill(0xff);
        refused(net.connect(context, 0, &mut bad), ResultCode::INVALID_ARGUMENT, "fresh copy");
        // The one in progress continues.
        let (mut send, mut receive) = (None, None);
        wait("connect and accept", || {
            send = send.or_else(|| net.connect(context, 0, &mut under_way).expect("connect"));
            receive = receive.or_else(|| net.accept(listener).expect("accept"));
            send.is_some() && receive.is_some()
        });
        Link::of(net, send.expect("connected"), receive.expect("accepted")).works();
        link.works();
        net.finalize(context).expect("finalize");
    });
}

fn a_handle_with_the_scratch_of_another_process_is_refused() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "other" {
            let given = from_text(&part.receive());
            let mut handle = given;
            // The connection begins once the device has been probed.
            wait("a scratch", || {
                assert_eq!(net.connect(context, 0, &mut handle), Ok(None));
                handle != given
            });
            part.say(&to_text(&handle));
            part.receive();
            return;
        }
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let mut other = part.cast("other", &[]);
        other.say(&to_text(&handle));
        let mut theirs = from_text(&other.receive());
        assert_ne!(theirs, handle);
        refused(net.connect(context, 0, &mut theirs), ResultCode::INVALID_ARGUMENT, "fresh copy");
        other.say("end");
        other.finish();
        net.close_listen(listener).expect("close");
        link.works();
        net.finalize(context).expect("finalize");
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(a_handle_with_any_byte_changed_is_refused),
        Test::new(a_handle_of_another_protocol_version_is_refused_by_that_name),
        Test::new(a_handle_with_another_secret_is_refused_by_the_listener),
        Test::new(a_handle_of_another_job_makes_no_connection),
        Test::new(a_handle_with_garbage_for_scratch_is_refused),
        Test::new(a_handle_with_the_scratch_of_another_process_is_refused),
    ]
}
