//! What each profile promises, demands and leaves open, tested by raw calls.

mod support;

use std::ffi::CStr;

use libfabric_sys as sys;
use support::{AGAIN, Buffer, EVERY_ACCESS, EVERY_MODE, End, Polled, Rig, To, context, posted};

const PROFILES: [&str; 4] = ["cxi", "efa", "tcp", "adversary"];

/// Two ends, each with 4 KiB registered.
fn pair<T>(settings: &str, test: impl FnOnce(&Pair<'_>) -> T) -> T {
    let rig = Rig::new(settings);
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::new(4096), Buffer::new(4096));
    let pattern: Vec<u8> = (0..4096_u32).map(|byte| (byte % 251) as u8).collect();
    source.put(0, &pattern);
    let (to_b, to_a) = (a.know(&b), b.know(&a));
    let ours = a.register(&source, EVERY_ACCESS);
    let theirs = b.register(&target, EVERY_ACCESS);
    let from = source.with(4096, &ours);
    let there = theirs.at(to_b, 0);
    let into = target.with(4096, &theirs);
    test(&Pair {
        rig: &rig,
        a: &a,
        b: &b,
        source: &source,
        target: &target,
        from,
        there,
        into,
        to_a,
    })
}

struct Pair<'a> {
    rig: &'a Rig,
    a: &'a End<'a>,
    b: &'a End<'a>,
    source: &'a Buffer,
    target: &'a Buffer,
    from: support::From,
    there: To,
    into: support::From,
    to_a: u64,
}

impl Pair<'_> {
    fn from(&self, len: usize) -> support::From {
        support::From { len, ..self.from }
    }

    #[track_caller]
    fn posted(&self, post: impl Fn() -> isize) {
        posted([self.a, self.b], post);
    }

    fn arrived(&self, len: usize) -> bool {
        self.target.bytes(0, len) == self.source.bytes(0, len)
    }
}

#[test]
fn every_profile_moves_bytes_by_every_call() {
    for profile in PROFILES {
        let settings = format!("profile={profile} immediates=1");
        pair(&settings, |pair| {
            let Pair { rig, a, b, from, there, .. } = pair;
            pair.posted(|| a.write(*from, *there));
            assert_eq!(a.wait_with(&[b]).done().flags, sys::FI_RMA | sys::FI_WRITE);
            let most = rig.injected_write(profile);
            pair.posted(|| a.inject_write(pair.from(most), *there));
            pair.posted(|| a.write_data(*from, *there, 0x1234));
            let mut completed = false;
            let arrival = loop {
                if let Polled::Done(entry) = b.poll() {
                    break entry;
                }
                completed |= matches!(a.poll(), Polled::Done(_));
            };
            assert_eq!(arrival.data, 0x1234, "{profile}");
            assert_ne!(arrival.flags & sys::FI_REMOTE_WRITE, 0);
            assert!(pair.arrived(4096), "{profile}: what came with an arrival is there");
            if !completed {
                a.wait_with(&[b]).done();
            }
            pair.target.put(0, &[0; 4096]);
            let flags = sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION;
            pair.posted(|| a.write_message(*from, *there, flags));
            a.wait_with(&[b]).done();
            assert!(pair.arrived(4096), "{profile}: what is delivered is there");
            pair.source.put(0, &[0; 4096]);
            pair.posted(|| a.read(*from, *there));
            a.wait_with(&[b]).done();
            assert!(pair.arrived(4096), "{profile}: what was read is there");
            assert_eq!(rig.count(), 0, "{:?}", rig.violations());
            assert_eq!(rig.number("counter.posts.writedata"), 1);
        });
    }
}

#[test]
fn messages_find_their_receives_before_and_after() {
    for profile in PROFILES {
        pair(&format!("profile={profile} linger=0"), |pair| {
            let Pair { rig, a, b, into, there, .. } = pair;
            let waiting = context();
            assert_eq!(b.receive_in(*into, waiting), 0);
            pair.posted(|| a.send(pair.from(100), there.peer));
            let received = b.wait().done();
            assert_eq!((received.op_context, received.len), (waiting, 100));
            assert_eq!(received.flags, sys::FI_MSG | sys::FI_RECV);
            assert!(pair.arrived(100));
            a.wait_with(&[b]).done();
            // This time the message arrives first.
            pair.posted(|| a.inject(pair.from(32), there.peer));
            b.idle(200);
            assert_eq!(rig.number("counter.unexpected"), 1);
            assert_eq!(b.receive(*into), 0);
            assert_eq!(b.wait().done().len, 32);
            assert_eq!(rig.count(), 0, "{:?}", rig.violations());
        });
    }
}

#[test]
fn a_message_longer_than_its_receive_is_cut_and_an_error() {
    pair("profile=cxi", |pair| {
        let Pair { a, b, there, .. } = pair;
        let room = support::From { len: 60, ..pair.into };
        assert_eq!(b.receive(room), 0);
        assert_eq!(a.send(pair.from(100), there.peer), 0);
        let error = b.wait().failed();
        assert_eq!((error.err, error.len, error.olen), (sys::FI_ETRUNC, 60, 40));
        assert!(pair.arrived(60));
        assert_eq!(pair.target.bytes(60, 40), [0; 40], "no byte beyond");
        a.wait().done();
    });
}

#[test]
fn a_cancelled_receive_completes_with_an_error_and_a_missing_one_is_an_error_of_the_cancel() {
    pair("profile=cxi", |pair| {
        let waiting = context();
        assert_eq!(pair.b.receive_in(pair.into, waiting), 0);
        assert_eq!(pair.b.cancel(waiting), 0);
        let error = pair.b.wait().failed();
        assert_eq!((error.err, error.op_context), (sys::FI_ECANCELED, waiting));
        assert_eq!(pair.b.cancel(waiting), -(sys::FI_ENOENT as isize));
        assert_eq!(pair.b.error_text(error.prov_errno), pair.rig.error_text(sys::FI_ECANCELED));
    });
}

#[test]
fn cxi_promises_immediates_and_refuses_them_unless_set_otherwise() {
    let refused = -(sys::FI_ENOSYS as isize);
    pair("profile=cxi", |pair| {
        let data = sys::FI_REMOTE_CQ_DATA;
        assert_eq!(pair.a.write_data(pair.from, pair.there, 1), refused);
        assert_eq!(pair.a.write_message(pair.from, pair.there, data), refused);
        assert_eq!(pair.rig.number("counter.refused.immediate"), 2);
        // SAFETY: an info is whole.
        let domain = unsafe { (*pair.rig.info(0)).domain_attr };
        // SAFETY: as above.
        assert_eq!(unsafe { (*domain).cq_data_size }, 8);
    });
    pair("profile=cxi immediates=1", |pair| {
        assert_eq!(pair.a.write_data(pair.from, pair.there, u64::MAX), 0);
        let arrival = pair.b.wait().done();
        assert_eq!(arrival.data, u64::MAX);
        assert_eq!(arrival.op_context, pair.target.pointer(0), "the region's context");
        assert_eq!((arrival.len, arrival.buf), (4096, pair.target.pointer(0)));
        let flags = sys::FI_RMA | sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA;
        assert_eq!(arrival.flags, flags);
        assert_eq!(pair.there.address, 0, "an offset");
    });
}

#[test]
fn efa_carries_four_bytes_of_an_immediate_and_true_lengths() {
    pair("profile=efa", |pair| {
        assert_eq!(pair.a.write_data(pair.from, pair.there, 0x1_2345_6789), 0);
        let arrival = pair.b.wait().done();
        assert_eq!((arrival.data, arrival.len), (0x2345_6789, 4096));
        assert_eq!(pair.there.address, pair.target.address());
    });
}

#[test]
fn efa_keeps_no_order() {
    pair("profile=efa", |pair| {
        for data in 0..64 {
            assert_eq!(pair.a.write_data(pair.from(64), pair.there, data), 0);
        }
        let order: Vec<u64> = (0..64).map(|_| pair.b.wait_arrival(pair.a)).collect();
        assert_ne!(order, (0..64).collect::<Vec<_>>());
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..64).collect::<Vec<_>>(), "and loses nothing");
    });
}

impl End<'_> {
    /// The immediate of the next arrival, while the sender reads its completions.
    fn wait_arrival(&self, sender: &End<'_>) -> u64 {
        loop {
            sender.poll();
            if let Polled::Done(entry) = self.poll() {
                return entry.data;
            }
        }
    }
}

#[test]
fn tcp_reports_no_true_lengths_and_keeps_order() {
    pair("profile=tcp", |pair| {
        pair.posted(|| pair.a.write_data(pair.from, pair.there, 0));
        for data in 1..64 {
            assert_eq!(pair.a.write_data(pair.from(64), pair.there, data), 0);
        }
        for data in 0..64 {
            assert_eq!(pair.b.wait_arrival(pair.a), data);
        }
    });
    pair("profile=tcp linger=0", |pair| {
        pair.posted(|| pair.a.write_data(pair.from, pair.there, 5));
        let arrival = pair.b.wait().done();
        assert_eq!((arrival.len, arrival.buf.is_null()), (0, true));
        assert_eq!(arrival.flags, sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA);
    });
}

#[test]
fn tcp_connects_first_and_both_ends_must_poll() {
    pair("profile=tcp", |pair| {
        for _ in 0..100 {
            assert_eq!(pair.a.write(pair.from, pair.there), AGAIN);
            pair.a.idle(1);
        }
        pair.b.idle(2);
        pair.a.idle(1);
        assert_eq!(pair.a.write(pair.from, pair.there), 0);
        assert_eq!(pair.rig.number("counter.refused.connect"), 100);
        // The other direction is up too.
        assert_eq!(pair.b.send(support::From { len: 8, ..pair.into }, pair.to_a), 0);
    });
}

#[test]
fn tcp_completes_before_anything_has_left() {
    pair("profile=tcp", |pair| {
        pair.posted(|| pair.a.write(pair.from, pair.there));
        pair.b.idle(100);
        pair.a.poll().done();
        pair.b.idle(100);
        assert!(!pair.arrived(4096), "the sender has not polled again");
        pair.a.idle(1);
        assert!(!pair.arrived(4096), "the target has not polled");
        pair.b.idle(1);
        assert!(pair.arrived(4096));
    });
}

#[test]
fn tcp_loses_what_has_not_left_when_its_endpoint_closes() {
    pair("profile=tcp", |pair| {
        pair.posted(|| pair.a.write(pair.from, pair.there));
        pair.a.poll().done();
        assert_eq!(pair.a.close_endpoint(), 0);
        pair.b.idle(100);
        assert!(!pair.arrived(4096));
        assert_eq!(pair.rig.number("counter.abandoned"), 1);
    });
}

#[test]
fn tcp_delivers_what_has_left_when_its_endpoint_closes() {
    pair("profile=tcp", |pair| {
        pair.posted(|| pair.a.write(pair.from, pair.there));
        pair.a.poll().done();
        pair.a.idle(1);
        assert_eq!(pair.a.close_endpoint(), 0);
        assert!(!pair.arrived(4096), "the target has not polled");
        pair.b.idle(1);
        assert!(pair.arrived(4096));
        assert_eq!(pair.rig.number("counter.abandoned"), 0);
    });
    pair("profile=tcp", |pair| {
        pair.posted(|| pair.a.write(pair.from, pair.there));
        pair.a.poll().done();
        pair.a.idle(1);
        assert_eq!(pair.a.close_endpoint(), 0);
        assert_eq!(pair.rig.number("open.operations"), 1);
        assert_eq!(pair.b.close_endpoint(), 0);
        assert_eq!(pair.rig.number("open.operations"), 0, "no endpoint is left to receive it");
    });
}

/// The answer that comes back later is dropped.
#[test]
fn a_read_ends_when_its_endpoint_closes() {
    pair("profile=tcp", |pair| {
        pair.posted(|| pair.a.read(pair.from, pair.there));
        pair.a.idle(1);
        let before = pair.source.bytes(0, 8);
        assert_ne!(before, pair.target.bytes(0, 8));
        assert_eq!(pair.a.close_endpoint(), 0);
        pair.b.idle(100);
        assert_eq!(pair.source.bytes(0, 8), before);
        assert_eq!(pair.rig.number("counter.abandoned"), 1);
    });
}

#[test]
fn the_adversary_gives_arrivals_misleading_contexts() {
    pair("profile=adversary", |pair| {
        let waiting = context();
        assert_eq!(pair.b.receive_in(pair.into, waiting), 0);
        assert_eq!(pair.a.write_data(pair.from, pair.there, 7), 0);
        let arrival = pair.b.wait().done();
        assert_eq!((arrival.op_context, arrival.data, arrival.len), (waiting, 7, 0));
        assert_eq!(pair.b.cancel(waiting), 0, "the receive is still there");
        pair.b.wait().failed();
    });
}

#[test]
fn vectors_of_one_piece_move_bytes_and_longer_ones_are_refused() {
    for profile in PROFILES {
        pair(&format!("profile={profile}"), |pair| {
            let Pair { rig, a, b, from, there, .. } = pair;
            let refused = -(sys::FI_EINVAL as isize);
            assert_eq!(a.write_vector(*from, *there, 2), refused, "{profile}");
            assert_eq!(a.read_vector(*from, *there, 2), refused, "{profile}");
            pair.posted(|| a.write_vector(*from, *there, 1));
            a.wait_with(&[b]).done();
            pair.source.put(0, &[0; 4096]);
            pair.posted(|| a.read_vector(*from, *there, 1));
            a.wait_with(&[b]).done();
            assert_ne!(pair.source.bytes(0, 4096), [0; 4096], "{profile}");
            assert!(pair.arrived(4096), "{profile}: what was written is read");
            assert_eq!(rig.count(), 0, "{:?}", rig.violations());
        });
    }
}

#[test]
fn landed_bytes_stay_unseen_torn_at_cache_lines() {
    let mut torn = 0;
    for seed in 0..50 {
        pair(&format!("profile=cxi seed={seed}"), |pair| {
            assert_eq!(pair.a.write(pair.from, pair.there), 0);
            pair.a.wait().done();
            let seen = pair.target.bytes(0, 4096);
            let wanted = pair.source.bytes(0, 4096);
            for (seen, wanted) in seen.chunks(64).zip(wanted.chunks(64)) {
                assert!(seen == wanted || seen == [0; 64], "lines come whole");
            }
            torn += u64::from(seen != wanted);
            pair.a.idle(100);
            assert!(pair.arrived(4096), "within a bound");
        });
    }
    assert!(torn > 10, "{torn}");
    pair("profile=cxi hold=0 reorder=0", |pair| {
        assert_eq!(pair.a.write(pair.from, pair.there), 0);
        pair.a.wait().done();
        assert!(pair.arrived(4096));
    });
}

/// fi_efa(7), FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES: the plugin lets NCCL poll such lines.
#[test]
fn lines_that_are_granted_in_order_come_whole() {
    let option = sys::FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES;
    let torn = |asks: bool| {
        let mut torn = 0;
        for seed in 0..50 {
            pair(&format!("profile=efa lines=1 seed={seed}"), |pair| {
                let writer = pair.a.sibling();
                if asks {
                    assert_eq!(writer.set_option(option, &[1]), 0);
                }
                writer.enable();
                let there = To { peer: writer.know(pair.b), ..pair.there };
                assert_eq!(writer.write(pair.from, there), 0);
                let wanted = pair.source.bytes(0, 4096);
                for _ in 0..100 {
                    let seen = pair.target.bytes(0, 4096);
                    let lines = seen.chunks(128).zip(wanted.chunks(128));
                    let is_torn = |(seen, wanted)| seen != wanted && seen != [0; 128];
                    torn += lines.filter(|line| is_torn(*line)).count();
                    writer.poll();
                }
                assert!(pair.arrived(4096), "within a bound");
            });
        }
        torn
    };
    assert_eq!(torn(true), 0);
    assert_ne!(torn(false), 0, "an endpoint that has not asked for it");
}

#[test]
fn marked_memory_stays_unseen_until_a_read_by_the_same_nic() {
    let rig = Rig::new("profile=cxi immediates=1");
    let (a, b, c) = (rig.end(0), rig.end(1), rig.end(2));
    let (source, target, page) = (Buffer::of(64, b"gpu"), Buffer::new(64), Buffer::new(64));
    rig.mark(target.address(), 64);
    let region = b.register(&target, EVERY_ACCESS);
    let there = region.at(a.know(&b), 0);
    assert_eq!(a.write_data(source.bare(64), there, 1), 0);
    b.wait().done();
    b.idle(1000);
    assert_eq!(target.bytes(0, 3), [0; 3], "its arrival does not show it");
    // A read by another NIC does not show it.
    let elsewhere = c.register(&page, EVERY_ACCESS).at(c.know(&c), 0);
    assert_eq!(c.read(page.bare(8), elsewhere), 0);
    c.wait().done();
    assert_eq!(target.bytes(0, 3), [0; 3]);
    let own = b.register(&page, EVERY_ACCESS).at(b.know(&b), 0);
    assert_eq!(b.read(page.bare(8), own), 0);
    assert_eq!(target.bytes(0, 3), [0; 3], "posted is not completed");
    b.wait().done();
    assert_eq!(target.bytes(0, 3), *b"gpu");
    rig.mark(0, 0);
    a.wait().done();
    assert_eq!(rig.count(), 0, "{:?}", rig.violations());
}

/// A PCIe read pushes only the writes before it.
#[test]
fn a_read_shows_nothing_that_landed_after_it_had_read() {
    let rig = Rig::new("profile=cxi clock=virtual latency=10000 faults='delay=3:5000'");
    let (a, b) = (rig.end(0), rig.end(1));
    let source = Buffer::of(64, b"gpu");
    let (target, page) = (Buffer::new(128), Buffer::new(64));
    rig.mark(target.address(), 128);
    let region = b.register(&target, EVERY_ACCESS);
    let own = b.register(&page, EVERY_ACCESS).at(b.know(&b), 0);
    let to_b = a.know(&b);
    let flush = || {
        assert_eq!(b.read(page.bare(8), own), 0);
        b.wait().done();
    };
    assert_eq!(a.write(source.bare(64), region.at(to_b, 0)), 0);
    a.wait().done();
    // The read takes 10 µs there and 10 µs back; the second write lands in between.
    assert_eq!(b.read(page.bare(8), own), 0);
    assert_eq!(a.write(source.bare(64), region.at(to_b, 64)), 0);
    b.wait().done();
    let seen = || [0, 64].map(|at| target.bytes(at, 3) == *b"gpu");
    assert_eq!(rig.number("counter.bytes.written"), 128, "both have landed");
    assert_eq!(seen(), [true, false]);
    flush();
    assert_eq!(seen(), [true, true]);
    assert_eq!(rig.count(), 0, "{:?}", rig.violations());
}

#[test]
fn a_devices_memory_is_marked_by_its_registration() {
    let rig = Rig::new("profile=cxi hmem=1");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"gpu"), Buffer::new(64));
    let region = b.register_device(&target, 0).unwrap();
    assert_eq!((region.bind(&b), region.enable()), (0, 0));
    assert_eq!(a.write(source.bare(64), region.at(a.know(&b), 0)), 0);
    a.wait().done();
    a.idle(1000);
    assert_eq!(target.bytes(0, 3), [0; 3]);
    // A read of another device's memory, or of the host's, goes another way.
    let page = Buffer::new(64);
    let own = b.register(&page, EVERY_ACCESS).at(b.know(&b), 0);
    assert_eq!(b.read(page.bare(8), own), 0);
    b.wait().done();
    let other = Buffer::new(64);
    let elsewhere = b.register_device(&other, 1).unwrap();
    assert_eq!((elsewhere.bind(&b), elsewhere.enable()), (0, 0));
    assert_eq!(b.read(page.bare(8), elsewhere.at(b.know(&b), 0)), 0);
    b.wait().done();
    assert_eq!(target.bytes(0, 3), [0; 3]);
    assert_eq!(b.read(page.bare(8), region.at(b.know(&b), 0)), 0);
    b.wait().done();
    assert_eq!(target.bytes(0, 3), *b"gpu");
    assert_eq!(page.bytes(0, 3), *b"gpu", "a NIC reads what it has written");
    assert_eq!(rig.count(), 0, "{:?}", rig.violations());
    drop((a, b));
    drop(rig);
    let host_only = Rig::new("profile=cxi");
    assert_eq!(host_only.end(0).register_device(&target, 0).err(), Some(-sys::FI_ENOSYS));
}

/// FI_OPT_SHARED_MEMORY_PERMITTED is efa's alone (prov/efa/src/rdm/efa_rdm_ep_fiops.c), and a bool.
#[test]
fn an_option_of_efas_is_unknown_elsewhere() {
    let option = sys::FI_OPT_SHARED_MEMORY_PERMITTED;
    for profile in ["cxi", "efa", "tcp", "adversary", "messages"] {
        let rig = Rig::new(&format!("profile={profile}"));
        let enabled = rig.end(0);
        let a = enabled.sibling();
        let taken = profile == "efa";
        let code = a.set_option(option, &[0]);
        assert_eq!(code, if taken { 0 } else { -sys::FI_ENOPROTOOPT }, "{profile}");
        assert_eq!(rig.number("counter.options.shared_memory"), u64::from(taken));
        if taken {
            assert_eq!(a.set_option(option, &[0; 4]), -sys::FI_EINVAL, "it is a bool");
            assert_eq!(a.set_option(option, &[1]), 0);
            assert_eq!(rig.number("counter.options.shared_memory"), 1, "turned off once");
        }
    }
}

#[test]
fn bytes_of_a_device_are_never_injected() {
    let rig = Rig::new("profile=tcp hmem=1");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"gpu"), Buffer::new(64));
    a.register_device(&source, 0).unwrap();
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    assert_eq!(a.write(source.bare(64), there), -(sys::FI_EFAULT as isize));
    rig.caught("no_descriptor", 1);
}

#[test]
fn keys_and_addresses_are_as_the_profile_says() {
    for (profile, ours, offsets) in [
        ("cxi", true, true),
        ("efa", true, false),
        ("tcp", false, true),
        ("adversary", false, false),
    ] {
        pair(&format!("profile={profile}"), |pair| {
            assert_eq!(pair.there.address == 0, offsets, "{profile}");
            assert_eq!(pair.there.key > u64::from(u32::MAX), ours, "{profile}");
        });
    }
}

#[test]
fn a_mode_that_is_needed_has_to_be_offered() {
    for (profile, needed) in [
        ("cxi", sys::FI_MR_ENDPOINT),
        ("efa", sys::FI_MR_LOCAL),
        ("adversary", sys::FI_MR_VIRT_ADDR),
    ] {
        let settings = format!("profile={profile}");
        let missing = Rig::with_modes(&settings, EVERY_MODE & !needed);
        assert_eq!(missing.err(), Some(-sys::FI_ENODATA), "{profile}");
    }
    let basic = Rig::with_modes("profile=tcp", sys::FI_MR_BASIC.cast_signed()).ok().unwrap();
    assert_eq!(basic.modes(), sys::FI_MR_BASIC.cast_signed());
    let end = basic.end(0);
    let buffer = Buffer::new(64);
    let region = end.register_only(&buffer, EVERY_ACCESS, 3).unwrap();
    assert!(region.key() > u64::from(u32::MAX), "keys are ours");
    let not_basic = || Rig::with_modes("profile=cxi", sys::FI_MR_BASIC.cast_signed());
    drop(end);
    drop(basic);
    assert_eq!(not_basic().err(), Some(-sys::FI_ENODATA));
}

#[test]
fn regions_that_belong_to_the_domain_cannot_be_bound() {
    let rig = Rig::new("profile=efa");
    let end = rig.end(0);
    let buffer = Buffer::new(64);
    let region = end.register(&buffer, EVERY_ACCESS);
    assert_eq!((region.bind(&end), region.enable()), (-sys::FI_ENOSYS, -sys::FI_ENOSYS));
}

#[test]
fn an_address_vector_of_efa_is_for_one_endpoint_and_takes_addresses_while_that_is_open() {
    for (profile, outcome) in
        [("tcp", [0, 0, 1, 1, 0]), ("efa", [0, -sys::FI_ENOSYS, 1, 0, -sys::FI_ENOSYS])]
    {
        let rig = Rig::new(&format!("profile={profile}"));
        let (end, other) = (rig.end(0), rig.end(1));
        assert_eq!(end.bind_in_turn(&other), outcome, "{profile}");
        match profile {
            "efa" => rig.caught("bind_order", 1),
            _ => assert!(rig.violations().is_empty()),
        }
    }
}

#[test]
fn endpoints_of_a_nic_are_few() {
    let rig = Rig::new("profile=cxi endpoints=1 nics=1");
    let end = rig.end(0);
    let mut other = std::ptr::null_mut();
    // SAFETY: the domain is open, and the place valid.
    let code =
        unsafe { sys::fi_endpoint(end.domain, rig.info(0), &raw mut other, std::ptr::null_mut()) };
    assert_eq!(code, -sys::FI_ENOSPC);
}

#[test]
fn infos_and_their_copies_have_the_bus_address_of_the_nic() {
    let rig = Rig::new(
        "profile=cxi nics=3 pci=0000:3b:00.0,0000:5e:00.0,0001:86:01.2 speed=100,200,400000",
    );
    let copy = rig.copy(rig.info(2));
    for info in [rig.info(2), copy] {
        // SAFETY: an info is whole, with its NIC, and so below.
        let nic = unsafe { (*info).nic };
        // SAFETY: as above.
        let nic = unsafe { &*nic };
        // SAFETY: as above.
        let bus = unsafe { (*nic.bus_attr).attr };
        // SAFETY: the union has no other member.
        let bus = unsafe { bus.pci };
        assert_eq!((bus.domain_id, bus.bus_id, bus.device_id, bus.function_id), (1, 0x86, 1, 2));
        // SAFETY: as above.
        assert_eq!(unsafe { (*nic.link_attr).speed }, 400_000_000_000);
        // SAFETY: as above.
        let name = unsafe { (*nic.device_attr).name };
        // SAFETY: a C string.
        let name = unsafe { CStr::from_ptr(name) };
        assert_eq!(name, c"vnic2");
    }
    rig.free(copy);
    for nic in 0..3 {
        rig.end(nic);
    }
}

#[test]
fn fi_open_ops_also_returns_the_control_table() {
    let rig = Rig::new("profile=cxi");
    let end = rig.end(0);
    let mut ops = std::ptr::null_mut();
    let domain = end.domain.cast();
    let (name, none) = (support::table::NAME.as_ptr(), std::ptr::null_mut());
    // SAFETY: the domain is open, and the place valid.
    assert_eq!(unsafe { sys::fi_open_ops(domain, name, 0, &raw mut ops, none) }, 0);
    assert_eq!(ops.cast_const().cast(), std::ptr::from_ref(rig.control));
    // SAFETY: as above.
    let code = unsafe { sys::fi_open_ops(domain, c"other".as_ptr(), 0, &raw mut ops, none) };
    assert_eq!(code, -sys::FI_EINVAL);
}

/// fi_close cannot recall what is in the network. The user may reuse its memory all the same.
#[test]
fn operations_from_a_closed_endpoint_land_if_their_bytes_have_left() {
    for profile in ["cxi", "efa", "adversary"] {
        for (polls, lands) in [(0, 0), (1, 1)] {
            let quick = "regions=none hold=0 reorder=0 faults='delay=1:50'";
            pair(&format!("profile={profile} {quick}"), |pair| {
                let (rig, sent) = (pair.rig, pair.source.bytes(0, 4096));
                assert_eq!(pair.a.write(pair.from, pair.there), 0);
                pair.a.idle(polls);
                assert_eq!(pair.a.close_endpoint(), 0);
                pair.a.close_regions();
                pair.source.put(0, &[0; 4096]);
                assert_eq!(rig.number("open.operations"), lands, "{profile}");
                pair.b.idle(100);
                assert_eq!(u64::from(pair.target.bytes(0, 4096) == sent), lands, "{profile}");
                assert_eq!(rig.number("counter.abandoned"), 1 - lands, "{profile}");
                assert_eq!(rig.number("open.operations"), 0, "{profile}");
                assert_eq!(rig.count(), 0, "{profile}: {:?}", rig.violations());
            });
        }
    }
}

#[test]
fn operations_to_a_closed_endpoint_fail() {
    pair("profile=efa", |pair| {
        assert_eq!(pair.b.close_endpoint(), 0);
        assert_eq!(pair.a.write(pair.from, pair.there), 0);
        assert_eq!(pair.a.wait().failed().err, sys::FI_EHOSTUNREACH, "the endpoint is closed");
        assert_eq!(pair.rig.count(), 0, "{:?}", pair.rig.violations());
    });
}
