//! What fi_getinfo grants is done, and what the fabric does not do is refused: fi_getinfo(3), fi_endpoint(3), fi_domain(3).

mod support;

use libfabric_sys as sys;
use support::{
    Buffer, EVERY_ACCESS, EVERY_MODE, End, From, Hints, Polled, Rig, To, context, posted,
};

const PROFILES: [&str; 5] = ["cxi", "efa", "tcp", "adversary", "messages"];

const ABSENT: isize = -(sys::FI_ENOSYS as isize);

const NO_DATA: Option<i32> = Some(-sys::FI_ENODATA);

/// Two ends with 4 KiB each, of which the first posts to the second.
struct Pair<'a> {
    rig: &'a Rig,
    a: &'a End<'a>,
    b: &'a End<'a>,
    source: &'a Buffer,
    target: &'a Buffer,
    from: From,
    there: To,
    into: From,
}

/// Both ends are bound to their queues with `flags` besides FI_TRANSMIT and FI_RECV.
fn pair(settings: &str, flags: u64, hints: impl FnOnce(Hints<'_>), test: impl FnOnce(&Pair<'_>)) {
    let rig = Rig::with_hints(settings, hints).expect("the fabric has what is asked for");
    ends(&rig, flags, test);
}

fn ends(rig: &Rig, flags: u64, test: impl FnOnce(&Pair<'_>)) {
    let bound = sys::FI_TRANSMIT | sys::FI_RECV | flags;
    let (a, b) = (rig.end_bound(0, 1024, bound), rig.end_bound(1, 1024, bound));
    let (source, target) = (Buffer::of(4096, b"sent"), Buffer::new(4096));
    let ours = a.register(&source, EVERY_ACCESS);
    let theirs = b.register(&target, EVERY_ACCESS);
    let from = source.with(8, &ours);
    let there = theirs.at(a.know(&b), 0);
    let into = From { pointer: target.pointer(2048), ..target.with(64, &theirs) };
    let (a, b, source, target) = (&a, &b, &source, &target);
    test(&Pair { rig, a, b, source, target, from, there, into });
    assert_eq!(rig.count(), 0, "{:?}", rig.violations());
}

impl Pair<'_> {
    /// Posts again after -FI_EAGAIN, while both ends poll.
    #[track_caller]
    fn posted(&self, post: impl Fn() -> isize) {
        posted([self.a, self.b], post);
    }

    fn has_landed(&self) -> bool {
        self.target.bytes(0, 4) == *b"sent"
    }
}

#[test]
fn capabilities_are_those_asked_for_with_all_directions_where_none_is() {
    let messages = sys::FI_SEND | sys::FI_RECV;
    let access = sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
    let always = sys::FI_SOURCE | sys::FI_LOCAL_COMM;
    for (asked, directions) in [
        (sys::FI_MSG, messages),
        (sys::FI_TAGGED, messages),
        (sys::FI_RMA, access),
        (sys::FI_MSG | sys::FI_RMA, messages | access),
        (sys::FI_MSG | sys::FI_RMA | sys::FI_SEND, access),
        (sys::FI_MSG | sys::FI_RMA | sys::FI_READ, messages),
        (sys::FI_MSG | sys::FI_RMA | sys::FI_RECV | sys::FI_WRITE, 0),
    ] {
        let rig = Rig::with_hints("profile=cxi", |hints| *hints.caps = asked).unwrap();
        let all = asked | directions | always;
        let here = sys::FI_RECV | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE | always;
        let there = sys::FI_SEND | sys::FI_READ | sys::FI_WRITE | sys::FI_LOCAL_COMM;
        assert_eq!(rig.caps(), [all, all & !here, all & !there], "{asked:#x}");
    }
}

#[test]
fn an_endpoint_posts_and_receives_only_what_it_was_opened_for() {
    let (msg, tagged, rma) = (sys::FI_MSG, sys::FI_TAGGED, sys::FI_RMA);
    for (caps, works) in [
        (msg | sys::FI_SEND, [true, false, false, false, false, false]),
        (msg | sys::FI_RECV, [false, true, false, false, false, false]),
        (tagged, [false, false, true, true, false, false]),
        (rma | sys::FI_WRITE, [false, false, false, false, true, false]),
        (rma | sys::FI_READ, [false, false, false, false, false, true]),
        (rma | sys::FI_REMOTE_WRITE, [false; 6]),
        (msg | rma, [true, true, false, false, true, true]),
    ] {
        let rig = Rig::new("profile=cxi");
        rig.ask_for_caps(0, caps);
        ends(&rig, 0, |Pair { a, source, from, there, .. }| {
            let posts = [
                a.send(*from, there.peer),
                a.receive(source.bare(64)),
                a.send_tagged(*from, there.peer, 1),
                a.receive_tagged(source.bare(64), 1, 0, context()),
                a.write(*from, *there),
                a.read(*from, *there),
            ];
            assert_eq!(posts, works.map(|works| if works { 0 } else { ABSENT }), "{caps:#x}");
            if !works[0] {
                assert_eq!(a.inject(*from, there.peer), ABSENT);
            }
        });
    }
}

#[test]
fn a_context_has_its_own_part_of_the_capabilities() {
    let sends = |hints: Hints<'_>| hints.transmit.caps = sys::FI_MSG;
    pair("profile=cxi", 0, sends, |Pair { rig, a, from, there, .. }| {
        assert_eq!(rig.caps()[1], sys::FI_MSG | sys::FI_SEND);
        assert_eq!(a.send(*from, there.peer), 0);
        assert_eq!(a.write(*from, *there), ABSENT);
    });
    let receives = |hints: Hints<'_>| hints.receive.caps = sys::FI_TAGGED;
    pair("profile=cxi", 0, receives, |Pair { a, source, .. }| {
        assert_eq!(a.receive(source.bare(64)), ABSENT);
        assert_eq!(a.receive_tagged(source.bare(64), 1, 0, context()), 0);
    });
}

#[test]
fn a_peer_reaches_the_memory_of_an_endpoint_only_in_the_direction_that_it_is_opened_for() {
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        for (direction, reads) in [(sys::FI_REMOTE_READ, true), (sys::FI_REMOTE_WRITE, false)] {
            let rig = Rig::new(&format!("profile={profile} linger=0 tolerate=rights"));
            rig.ask_for_caps(1, sys::FI_RMA | direction);
            ends(&rig, 0, |pair| {
                let Pair { rig, a, b, from, there, .. } = pair;
                pair.posted(|| a.read(*from, *there));
                let read = a.wait_with(&[b]);
                let flags = sys::FI_DELIVERY_COMPLETE;
                pair.posted(|| a.write_message(*from, *there, flags));
                let (well, refused) = match (reads, a.wait_with(&[b])) {
                    (true, written) => (read, written),
                    (false, written) => (written, read),
                };
                well.done();
                assert_eq!(refused.failed().err, sys::FI_EACCES, "{profile}");
                assert_eq!(rig.number("counter.tolerated"), 1);
            });
        }
    }
}

#[test]
fn an_endpoint_needs_a_queue_only_for_its_directions() {
    for (caps, flags) in [
        (sys::FI_MSG | sys::FI_SEND, sys::FI_TRANSMIT),
        (sys::FI_RMA | sys::FI_READ, sys::FI_TRANSMIT),
        (sys::FI_MSG | sys::FI_RECV, sys::FI_RECV),
    ] {
        let rig = Rig::new("profile=cxi");
        rig.ask_for_caps(0, caps);
        // This asserts that the endpoint is enabled.
        rig.end_bound(0, 16, flags);
    }
    let rig = Rig::new("profile=cxi");
    let end = rig.end(0);
    let sibling = end.sibling_bound(sys::FI_TRANSMIT);
    assert_eq!(sibling.try_enable(), -sys::FI_ENOCQ);
}

#[test]
fn attributes_that_the_fabric_lacks_are_refused() {
    type Change = fn(Hints<'_>);
    let refused: &[(&str, Change)] = &[
        ("atomics", |hints| *hints.caps |= sys::FI_ATOMIC),
        ("fences", |hints| *hints.caps |= sys::FI_FENCE),
        ("other hosts", |hints| *hints.caps |= sys::FI_REMOTE_COMM),
        ("a direction of nothing", |hints| *hints.caps = sys::FI_MSG | sys::FI_READ),
        ("a direction of no message", |hints| *hints.caps = sys::FI_RMA | sys::FI_RECV),
        ("more than the endpoint has", |hints| {
            *hints.caps = sys::FI_MSG;
            hints.transmit.caps = sys::FI_MSG | sys::FI_TAGGED;
        }),
        ("the same to receive", |hints| {
            *hints.caps = sys::FI_MSG | sys::FI_SEND;
            hints.receive.caps = sys::FI_MSG | sys::FI_RECV;
        }),
        ("shared address vectors", |hints| hints.domain.caps = sys::FI_SHARED_AV),
        ("lasting memory", |hints| hints.transmit.op_flags = sys::FI_COMMIT_COMPLETE),
        ("fenced operations", |hints| hints.transmit.op_flags = sys::FI_FENCE),
        ("many messages in one receive", |hints| hints.receive.op_flags = sys::FI_MULTI_RECV),
        ("injected receives", |hints| hints.receive.op_flags = sys::FI_INJECT),
        ("writes behind reads", |hints| hints.transmit.msg_order = sys::FI_ORDER_WAR),
        ("the same to receive", |hints| hints.receive.msg_order = sys::FI_ORDER_WAR),
        ("completions in order", |hints| hints.transmit.comp_order = STRICT),
        ("receives in order", |hints| hints.receive.comp_order = STRICT),
        ("progress without polls", |hints| hints.domain.data_progress = sys::FI_PROGRESS_AUTO),
        ("control without polls", |hints| hints.domain.control_progress = sys::FI_PROGRESS_AUTO),
        ("addresses of the Internet", |hints| *hints.address_format = sys::FI_SOCKADDR_IN),
        ("vectors of another kind", |hints| hints.domain.av_type = sys::FI_AV_MAP),
        ("long keys", |hints| hints.domain.mr_key_size = 9),
        ("a deeper queue", |hints| hints.transmit.size = 1025),
        ("the same to receive", |hints| hints.receive.size = 1025),
        ("two pieces", |hints| hints.transmit.iov_limit = 2),
        ("two pieces there", |hints| hints.transmit.rma_iov_limit = 2),
        ("two pieces to receive", |hints| hints.receive.iov_limit = 2),
        ("guarded queues", |hints| hints.domain.resource_mgmt = sys::FI_RM_ENABLED),
    ];
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        let settings = format!("profile={profile}");
        for (what, change) in refused {
            assert_eq!(Rig::with_hints(&settings, change).err(), NO_DATA, "{profile}: {what}");
        }
    }
    let in_order = |hints: Hints<'_>| hints.receive.comp_order = sys::FI_ORDER_DATA;
    assert_eq!(Rig::with_hints("profile=cxi", in_order).err(), NO_DATA, "bytes come torn");
    assert!(Rig::with_hints("profile=tcp", in_order).is_ok());
    let own = |hints: Hints<'_>| hints.transmit.mode = sys::FI_CONTEXT;
    assert_eq!(Rig::with_hints("profile=adversary", own).err(), NO_DATA, "FI_CONTEXT2 is needed");
    assert!(Rig::with_hints("profile=cxi", own).is_ok());
}

#[test]
fn attributes_that_the_fabric_has_are_granted_up_to_their_limits() {
    type Change = fn(Hints<'_>, bool);
    // The adversary's limits, and one more than each.
    let limits: &[(&str, Change)] = &[
        ("keys", |hints, more| hints.domain.mr_key_size = 2 + usize::from(more)),
        ("the transmit queue", |hints, more| hints.transmit.size = 16 + usize::from(more)),
        ("the receive queue", |hints, more| hints.receive.size = 64 + usize::from(more)),
    ];
    for (what, change) in limits {
        let asked = |more| Rig::with_hints("profile=adversary", |hints| change(hints, more)).err();
        assert_eq!((asked(false), asked(true)), (None, NO_DATA), "{what}");
    }
    for profile in PROFILES {
        let all = |hints: Hints<'_>| {
            *hints.address_format = sys::FI_ADDR_STR;
            hints.domain.av_type = sys::FI_AV_TABLE;
            (hints.transmit.iov_limit, hints.transmit.rma_iov_limit) = (1, 1);
            hints.receive.iov_limit = 1;
        };
        assert!(Rig::with_hints(&format!("profile={profile}"), all).is_ok(), "{profile}");
    }
}

/// FI_ORDER_STRICT of fi_endpoint(3).
const STRICT: u64 = 1 << 0;

#[test]
fn device_memory_has_descriptors_in_every_profile() {
    for profile in PROFILES {
        let settings = format!("profile={profile} hmem=1");
        let rig = Rig::new(&settings);
        assert_ne!(rig.modes() & sys::FI_MR_HMEM, 0, "{profile}");
        drop(rig);
        assert_eq!(Rig::with_modes(&settings, EVERY_MODE).err(), NO_DATA, "{profile}");
    }
}

#[test]
fn calls_without_flags_have_those_of_the_endpoint() {
    let inject = |hints: Hints<'_>| hints.transmit.op_flags = sys::FI_INJECT;
    // Writes that efa injects are as long as the library says: tests/injected.rs.
    for profile in ["cxi", "tcp", "adversary"] {
        pair(&format!("profile={profile} linger=0 reorder=4"), 0, inject, |pair| {
            let Pair { a, b, source, from, there, .. } = pair;
            pair.posted(|| a.write(*from, *there));
            source.put(0, b"more");
            a.wait_with(&[b]).done();
            b.idle(100);
            assert!(pair.has_landed(), "{profile}: the buffer was free at once");
        });
    }
    let delivery = |hints: Hints<'_>| hints.transmit.op_flags = sys::FI_DELIVERY_COMPLETE;
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        pair(&format!("profile={profile}"), 0, delivery, |pair| {
            let Pair { a, b, from, there, .. } = pair;
            pair.posted(|| a.write(*from, *there));
            a.wait_with(&[b]).done();
            assert!(pair.has_landed(), "{profile}");
            // A read completes with its bytes; no other flag applies to it.
            pair.posted(|| a.read(*from, *there));
            a.wait_with(&[b]).done();
        });
    }
    pair("profile=tcp", 0, delivery, |pair| {
        let Pair { a, b, from, there, .. } = pair;
        pair.posted(|| a.write_message(*from, *there, 0));
        a.poll().done();
        b.idle(100);
        assert!(!pair.has_landed(), "flags of a call take the place of the endpoint's");
    });
}

#[test]
fn an_operation_with_transmit_complete_has_reached_the_peer() {
    pair(
        "profile=tcp",
        0,
        |_| {},
        |pair| {
            let Pair { a, b, from, there, .. } = pair;
            pair.posted(|| a.write_message(*from, *there, sys::FI_TRANSMIT_COMPLETE));
            a.idle(100);
            a.wait_with(&[b]).done();
            assert!(pair.has_landed());
        },
    );
}

#[test]
fn with_selective_completion_only_operations_that_ask_for_it_complete() {
    let selective = sys::FI_SELECTIVE_COMPLETION;
    for profile in ["cxi", "efa", "adversary"] {
        let settings = format!("profile={profile}");
        for defaults in [0, sys::FI_COMPLETION] {
            let flags = |hints: Hints<'_>| hints.transmit.op_flags = defaults;
            pair(&settings, selective, flags, |Pair { rig, a, b, from, there, .. }| {
                // The context of an operation without a completion is ignored: fi_endpoint(3), NOTES.
                let none = std::ptr::null_mut();
                let by_call = if defaults == 0 { none } else { context() };
                assert_eq!(a.write_in(*from, *there, by_call), 0);
                match defaults {
                    0 => [a, b].iter().for_each(|end| end.idle(200)),
                    _ => assert_eq!(a.wait().done().op_context, by_call, "{profile}"),
                }
                assert_eq!(a.write_message_in(*from, *there, 0, none), 0);
                a.idle(200);
                let asked = context();
                let flags = sys::FI_COMPLETION;
                assert_eq!(a.write_message_in(*from, *there, flags, asked), 0);
                assert_eq!(a.wait().done().op_context, asked, "{profile}");
                let short = From { len: rig.injected_write(profile).min(from.len), ..*from };
                assert_eq!(a.inject_write(short, *there), 0);
                a.idle(200);
            });
        }
        pair(
            &format!("{settings} faults='fail=1'"),
            selective,
            |_| {},
            |Pair { a, from, there, .. }| {
                assert_eq!(a.write_message_in(*from, *there, 0, std::ptr::null_mut()), 0);
                assert_eq!(
                    a.wait().failed().err,
                    sys::FI_EIO,
                    "{profile}: errors come all the same"
                );
            },
        );
    }
}

#[test]
fn with_selective_completion_only_receives_that_ask_for_it_complete() {
    let selective = sys::FI_SELECTIVE_COMPLETION;
    for profile in PROFILES {
        for defaults in [0, sys::FI_COMPLETION] {
            let flags = |hints: Hints<'_>| hints.receive.op_flags = defaults;
            pair(&format!("profile={profile} linger=0"), selective, flags, |pair| {
                let Pair { a, b, from, there, into, target, .. } = pair;
                let sent = || pair.posted(|| a.send(*from, there.peer));
                assert_eq!(b.receive(*into), 0);
                sent();
                match defaults {
                    0 => b.idle(200),
                    _ => assert_eq!(b.wait().done().len, 8, "{profile}"),
                }
                assert_eq!(target.bytes(2048, 4), *b"sent", "{profile}: it has come");
                assert_eq!(b.message(*into, 0, 0, false), 0);
                sent();
                b.idle(200);
                assert_eq!(b.message(*into, 0, sys::FI_COMPLETION, false), 0);
                sent();
                assert_eq!(b.wait().done().len, 8, "{profile}");
                assert_eq!(b.message(From { len: 4, ..*into }, 0, 0, false), 0);
                sent();
                assert_eq!(b.wait().failed().err, sys::FI_ETRUNC, "{profile}: an error comes");
            });
        }
    }
}

/// A kind of operation, for orders.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Read,
    Write,
    Send,
}

impl Pair<'_> {
    fn post(&self, kind: Kind) {
        let Pair { a, from, there, .. } = self;
        match kind {
            Kind::Read => assert_eq!(a.read(*from, *there), 0),
            Kind::Write => assert_eq!(a.write(*from, *there), 0),
            Kind::Send => assert_eq!(a.send(*from, there.peer), 0),
        }
    }

    /// Whether an operation of kind `later`, posted behind a delayed one of kind `earlier`, overtakes it.
    fn overtakes(&self, later: Kind, earlier: Kind) -> bool {
        let Pair { rig, a, b, there, into, target, .. } = self;
        // The ends connect first.
        assert_eq!(b.receive(*into), 0);
        self.posted(|| a.send(self.from, there.peer));
        while !matches!(b.poll(), Polled::Done(_)) {
            let _ = a.poll();
        }
        assert_eq!(b.receive(*into), 0);
        rig.fault(&format!("delay={}:1000", rig.number("counter.operations") + 1));
        self.post(earlier);
        // The later one is for another place, where its bytes show its arrival.
        let place = To { address: there.address + 64, ..*there };
        Pair { there: place, ..*self }.post(later);
        let mut seen = false;
        for _ in 0..400 {
            let (here, there) = (a.poll(), b.poll());
            seen |= match later {
                Kind::Read => {
                    matches!(here, Polled::Done(entry) if entry.flags & sys::FI_READ != 0)
                }
                Kind::Write => target.bytes(64, 4) == *b"sent",
                Kind::Send => matches!(there, Polled::Done(_)),
            };
        }
        seen
    }
}

#[test]
fn every_order_that_is_granted_is_kept() {
    let pairs = [
        (Kind::Read, Kind::Read, sys::FI_ORDER_RAR),
        (Kind::Read, Kind::Write, sys::FI_ORDER_RAW),
        (Kind::Read, Kind::Send, sys::FI_ORDER_RAS),
        (Kind::Write, Kind::Read, sys::FI_ORDER_WAR),
        (Kind::Write, Kind::Write, sys::FI_ORDER_WAW),
        (Kind::Write, Kind::Send, sys::FI_ORDER_WAS),
        (Kind::Send, Kind::Read, sys::FI_ORDER_SAR),
        (Kind::Send, Kind::Write, sys::FI_ORDER_SAW),
        (Kind::Send, Kind::Send, sys::FI_ORDER_SAS),
    ];
    for (later, earlier, order) in pairs {
        for (profile, asked) in [
            ("tcp", 0),
            ("efa", 0),
            ("efa", sys::FI_ORDER_SAS),
            ("cxi", sys::FI_ORDER_RAR),
            ("cxi", sys::FI_ORDER_WAW),
            ("cxi", sys::FI_ORDER_SAS | sys::FI_ORDER_WAW),
        ] {
            let settings = format!("profile={profile} linger=0");
            pair(
                &settings,
                0,
                |hints| hints.transmit.msg_order = asked,
                |pair| {
                    let kept = pair.rig.orders() & order != 0;
                    let overtakes = pair.overtakes(later, earlier);
                    assert_eq!(
                        overtakes, !kept,
                        "{profile} {asked:#x}: {later:?} after {earlier:?}"
                    );
                },
            );
        }
    }
}
