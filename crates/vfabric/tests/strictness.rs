//! Every rule, broken by raw calls and detected.

mod support;

use std::path::Path;
use std::process::{self, Command};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fabric::page_bytes;
use libfabric_sys as sys;
use support::{Buffer, EVERY_ACCESS, End, From, Rig, To, close};

const INVALID: i32 = -sys::FI_EINVAL;
const BUSY: i32 = -sys::FI_EBUSY;

fn size(code: i32) -> isize {
    code as isize
}

#[test]
fn a_descriptor_of_another_endpoint_is_caught() {
    let rig = Rig::new("profile=cxi nics=2");
    let (a, b) = (rig.end(0), rig.end(1));
    let other = a.sibling();
    other.enable();
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    let bound_elsewhere = other.register(&source, EVERY_ACCESS);
    let answer = a.write(source.with(64, &bound_elsewhere), there);
    assert_eq!(answer, size(-sys::FI_EACCES));
    rig.caught("wrong_descriptor", 1);
}

#[test]
fn a_descriptor_of_another_domain_is_caught() {
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        let rig = Rig::new(&format!("profile={profile}"));
        let (a, b) = (rig.end(0), rig.end(1));
        let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
        let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
        let elsewhere = b.register(&source, EVERY_ACCESS);
        assert_eq!(a.write(source.with(64, &elsewhere), there), size(-sys::FI_EACCES));
        rig.caught("wrong_descriptor", 1);
    }
}

#[test]
fn a_key_at_another_endpoint_is_caught() {
    let rig = Rig::new("profile=cxi");
    let (a, b) = (rig.end(0), rig.end(1));
    let other = b.sibling();
    other.enable();
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let from = source.with(64, &a.register(&source, EVERY_ACCESS));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&other), 0);
    assert_eq!(a.write(from, there), 0);
    assert_eq!(a.wait().failed().err, sys::FI_EIO);
    assert_eq!(target.bytes(0, 1), [0]);
    rig.caught("wrong_key", 1);
}

#[test]
fn a_key_of_another_domain_is_caught() {
    let rig = Rig::new("profile=efa");
    let (a, b, c) = (rig.end(0), rig.end(1), rig.end(2));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let from = source.with(64, &a.register(&source, EVERY_ACCESS));
    let there = c.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    assert_eq!(a.write(from, there), 0);
    assert_eq!(a.wait().failed().err, sys::FI_EIO);
    rig.caught("wrong_key", 1);
}

#[test]
fn keys_and_descriptors_that_never_existed_are_caught() {
    let rig = Rig::new("profile=cxi");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let from = source.with(64, &a.register(&source, EVERY_ACCESS));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    let garbage = From { descriptor: source.pointer(8), ..from };
    assert_eq!(a.write(garbage, there), size(INVALID));
    rig.caught("unknown", 1);
    assert_eq!(a.write(from, To { key: 77, ..there }), 0);
    a.wait().failed();
    rig.caught("unknown", 2);
}

#[test]
fn an_operation_without_bytes_names_its_memory_too() {
    let flags = sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION;
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        let rig = Rig::new(&format!("profile={profile} linger=0"));
        let (a, b) = (rig.end(0), rig.end(1));
        let target = Buffer::new(64);
        let nothing = target.bare(0);
        let theirs = b.register(&target, EVERY_ACCESS);
        let there = theirs.at(a.know(&b), 0);
        let posted = |answer: &dyn Fn() -> isize| {
            while answer() != 0 {
                a.idle(1);
                b.idle(1);
            }
        };
        posted(&|| a.write_message(nothing, there, flags));
        a.wait_with(&[&b]).done();
        posted(&|| a.read(nothing, theirs.at(there.peer, 64)));
        a.wait_with(&[&b]).done();
        rig.caught("unknown", 0);
        let unknown = To { key: 77, ..there };
        posted(&|| a.write_message(nothing, unknown, flags));
        assert_eq!(a.wait_with(&[&b]).failed().err, sys::FI_EIO, "{profile}");
        posted(&|| a.read(nothing, unknown));
        assert_eq!(a.wait_with(&[&b]).failed().err, sys::FI_EIO, "{profile}");
        rig.caught("unknown", 2);
    }
}

#[test]
fn a_region_that_is_not_enabled_is_caught() {
    let rig = Rig::new("profile=cxi");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let registered = a.register_only(&source, EVERY_ACCESS, 0).unwrap();
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    assert_eq!(a.write(source.with(64, &registered), there), size(-sys::FI_EACCES));
    rig.caught("not_enabled", 1);
    assert_eq!(registered.bind(&a), 0);
    assert_eq!(a.write(source.with(64, &registered), there), size(-sys::FI_EACCES));
    rig.caught("not_enabled", 2);
    assert_eq!(registered.enable(), 0);
    let early = b.register_only(&target, EVERY_ACCESS, 0).unwrap();
    assert_eq!(early.key(), sys::FI_KEY_NOTAVAIL);
    assert_eq!(a.write(source.with(64, &registered), early.at(there.peer, 0)), 0);
    a.wait().failed();
    rig.caught("not_enabled", 3);
}

#[test]
fn a_chosen_key_is_no_use_before_its_region_is_enabled() {
    let rig = Rig::new("profile=adversary");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let from = source.with(64, &a.register(&source, EVERY_ACCESS));
    let early = b.register_only(&target, EVERY_ACCESS, 9).unwrap();
    assert_eq!(early.key(), 9);
    assert_eq!(a.write(from, early.at(a.know(&b), 0)), 0);
    a.wait().failed();
    rig.caught("not_enabled", 1);
}

#[test]
fn a_use_of_a_closed_object_is_caught() {
    for profile in ["cxi", "efa", "adversary"] {
        let rig = Rig::new(&format!("profile={profile}"));
        let (a, b) = (rig.end(0), rig.end(1));
        let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
        let (ours, theirs) = (a.register(&source, EVERY_ACCESS), b.register(&target, EVERY_ACCESS));
        let (from, there) = (source.with(64, &ours), theirs.at(a.know(&b), 0));
        assert_eq!(theirs.close(), 0);
        assert_eq!(a.write(from, there), 0);
        assert_eq!(a.wait().failed().err, sys::FI_EIO);
        rig.caught("closed", 1);
        assert_eq!(ours.close(), 0);
        assert_eq!(a.write(from, there), size(INVALID));
        rig.caught("closed", 2);
        assert_eq!(close(ours.region.cast()), INVALID, "a second close");
        rig.caught("closed", 3);
    }
}

#[test]
fn a_key_used_twice_or_too_long_is_caught() {
    let rig = Rig::new("profile=adversary");
    let a = rig.end(0);
    let buffer = Buffer::new(64);
    let first = a.register_only(&buffer, EVERY_ACCESS, 5).unwrap();
    assert_eq!(a.register_only(&buffer, EVERY_ACCESS, 5).err(), Some(-sys::FI_ENOKEY));
    rig.caught("key_twice", 1);
    let long = a.register_only(&buffer, EVERY_ACCESS, 1 << 16).err();
    assert_eq!(long, Some(-sys::FI_EKEYREJECTED));
    rig.caught("key_twice", 2);
    assert_eq!(first.close(), 0);
    assert!(a.register_only(&buffer, EVERY_ACCESS, 5).is_ok(), "it is free again");
    assert!(rig.end(1).register_only(&buffer, EVERY_ACCESS, 5).is_ok(), "another domain");
    rig.caught("key_twice", 2);
}

#[test]
fn bytes_outside_of_a_region_are_caught_at_both_ends() {
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        let rig = Rig::new(&format!("profile={profile} linger=0"));
        let (a, b) = (rig.end(0), rig.end(1));
        let (source, target) = (Buffer::of(128, b"x"), Buffer::new(64));
        let (ours, theirs) = (a.register(&source, EVERY_ACCESS), b.register(&target, EVERY_ACCESS));
        let to_b = a.know(&b);
        let from = source.with(128, &ours);
        let beyond = From { pointer: source.pointer(1), ..from };
        assert_eq!(a.write(beyond, theirs.at(to_b, 0)), size(-sys::FI_EACCES));
        rig.caught("bounds", 1);
        let flags = sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION;
        let mut expected = 1;
        // One byte beyond the end, before the start, and so far that the sum overflows.
        for (offset, len) in [(1, 64), (0, 65), (u64::MAX, 2), (u64::MAX - 7, 64)] {
            let mut there = theirs.at(to_b, 0);
            there.address = there.address.wrapping_add(offset);
            while a.write_message(From { len, ..from }, there, flags) != 0 {
                a.idle(1);
                b.idle(1);
            }
            assert_eq!(a.wait_with(&[&b]).failed().err, sys::FI_EIO);
            expected += 1;
            rig.caught("bounds", expected);
        }
        assert_eq!(target.bytes(0, 64), [0; 64]);
    }
}

#[test]
fn a_region_serves_only_what_it_was_registered_for() {
    let rig = Rig::new("profile=cxi");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let to_b = a.know(&b);
    let mut expected = 0;
    let all = a.register(&source, EVERY_ACCESS);
    let there = b.register(&target, EVERY_ACCESS).at(to_b, 0);
    for missing in [sys::FI_WRITE, sys::FI_READ, sys::FI_SEND, sys::FI_RECV] {
        let part = a.register(&source, EVERY_ACCESS & !missing);
        let from = source.with(64, &part);
        let answer = match missing {
            sys::FI_WRITE => a.write(from, there),
            sys::FI_READ => a.read(from, there),
            sys::FI_SEND => a.send(from, to_b),
            _ => a.receive(from),
        };
        assert_eq!(answer, size(-sys::FI_EACCES));
        expected += 1;
        rig.caught("rights", expected);
    }
    let closed_to_writes = b.register(&target, sys::FI_REMOTE_READ).at(to_b, 0);
    assert_eq!(a.write(source.with(64, &all), closed_to_writes), 0);
    assert_eq!(a.wait().failed().err, sys::FI_EACCES);
    let closed_to_reads = b.register(&target, sys::FI_REMOTE_WRITE).at(to_b, 0);
    assert_eq!(a.read(source.with(64, &all), closed_to_reads), 0);
    assert_eq!(a.wait().failed().err, sys::FI_EACCES);
    rig.caught("rights", expected + 2);
}

#[test]
fn a_missing_descriptor_is_caught_where_one_is_asked_for() {
    for (profile, asked) in [("cxi", false), ("efa", true), ("tcp", false), ("adversary", true)] {
        let rig = Rig::new(&format!("profile={profile}"));
        let (a, b) = (rig.end(0), rig.end(1));
        let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
        let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
        let answer = a.write(source.bare(64), there);
        assert_eq!(answer == size(INVALID), asked, "{profile}: {answer}");
        rig.caught("no_descriptor", u64::from(asked));
        assert_ne!(a.write(source.bare(0), there), size(INVALID), "no bytes, no region");
        rig.caught("no_descriptor", u64::from(asked));
    }
}

#[test]
fn a_region_closed_under_an_operation_is_caught() {
    let rig = Rig::new("profile=cxi");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let ours = a.register(&source, EVERY_ACCESS);
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    assert_eq!(a.write(source.with(64, &ours), there), 0);
    assert_eq!(ours.close(), 0);
    rig.caught("freed_early", 1);
    let ours = a.register(&source, EVERY_ACCESS);
    assert_eq!(a.receive(source.with(64, &ours)), 0);
    assert_eq!(ours.close(), 0);
    rig.caught("freed_early", 2);
}

#[test]
fn a_region_may_close_once_its_last_completion_was_read() {
    let rig = Rig::new("profile=cxi");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let ours = a.register(&source, EVERY_ACCESS);
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    assert_eq!(a.write(source.with(64, &ours), there), 0);
    a.wait().done();
    let waiting = support::context();
    assert_eq!(a.receive_in(source.with(64, &ours), waiting), 0);
    assert_eq!(a.cancel(waiting), 0);
    assert_eq!(a.wait().failed().err, sys::FI_ECANCELED);
    assert_eq!(ours.close(), 0);
    rig.caught("freed_early", 0);
}

#[test]
fn a_buffer_that_is_changed_or_gone_is_caught() {
    let rig = Rig::new("profile=cxi reorder=40");
    let (a, b) = (rig.end(0), rig.end(1));
    let target = Buffer::new(64);
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    let changed = Buffer::of(64, b"x");
    assert_eq!(a.write(changed.bare(64), there), 0);
    changed.put(3, b"y");
    a.wait();
    rig.caught("freed_early", 1);
    // Two checks may see it: the NIC, which reads too late, and the one at completion.
    for _ in 0..20 {
        let gone = Buffer::of(4096, b"x");
        assert_eq!(a.write(gone.bare(64), there), 0);
        gone.unmap();
        a.wait();
    }
    assert!(rig.broken("freed_early") > 20, "{:?}", rig.violations());
    let (source, landing) = (Buffer::of(64, b"x"), Buffer::new(4096));
    let gone = b.register(&landing, EVERY_ACCESS).at(there.peer, 0);
    landing.unmap();
    let before = rig.broken("freed_early");
    assert_eq!(a.write(source.bare(64), gone), 0);
    a.wait();
    for _ in 0..100 {
        a.poll();
    }
    assert!(rig.broken("freed_early") > before);
}

#[test]
fn a_completion_queue_that_is_not_read_overruns() {
    let rig = Rig::new("profile=cxi");
    let (a, b) = (rig.end_with(0, 2), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    for writes in 0..4_u64 {
        rig.caught("overrun", writes.saturating_sub(2));
        assert_eq!(a.write(source.bare(64), there), 0);
        b.idle(100);
    }
    rig.caught("overrun", 2);
}

#[test]
fn more_arrivals_between_two_polls_than_the_profile_keeps_are_caught() {
    let rig = Rig::new("profile=cxi immediates=1 arrivals=2");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    for round in 1..=2 {
        for arrivals in 1..=3 {
            assert_eq!(a.write_data(source.bare(64), there, 7), 0);
            a.wait();
            let (before, now) = (round - 1, u64::from(arrivals == 3));
            rig.caught("overrun", before + now);
        }
        // The first poll takes one entry, and makes room for two more arrivals.
        b.poll().done();
    }
}

/// Raw pointers, for threads that must not share them.
struct Shared(*mut sys::fid_cq, *mut sys::fid_ep);

// SAFETY: that they are used by two threads at once is what the test is about; the provider locks.
unsafe impl Sync for Shared {}

impl Shared {
    fn poll(&self) {
        let mut entry = sys::fi_cq_data_entry::default();
        // SAFETY: an open queue, and a valid place.
        unsafe { sys::fi_cq_read(self.0, (&raw mut entry).cast(), 1) };
    }

    fn cancel(&self) {
        // SAFETY: an open endpoint; nothing has this context.
        unsafe { sys::fi_cancel(self.1, ptr::null_mut()) };
    }
}

/// Runs both at once, until `is_over`, which gets the number of calls of `other`.
fn at_once(one: impl Fn() + Sync, other: impl Fn() + Sync, mut is_over: impl FnMut(usize) -> bool) {
    let (begun, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                one();
                begun.store(true, Ordering::Relaxed);
            }
        });
        while !begun.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        for calls in 1.. {
            other();
            if is_over(calls) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Checks that both may run at once: no rule is broken.
fn are_apart(rig: &Rig, one: impl Fn() + Sync, other: impl Fn() + Sync) {
    at_once(one, other, |calls| calls == 200_000 || rig.count() > 0);
    assert_eq!(rig.count(), 0, "of their own: {:?}", rig.violations());
}

/// Checks that both must not run at once: the rule is broken when they meet, which may take long on a busy machine.
fn meet(rig: &Rig, one: impl Fn() + Sync, other: impl Fn() + Sync) {
    let begun = Instant::now();
    at_once(one, other, |_| rig.count() > 0 || begun.elapsed() > NEVER);
    assert!(rig.broken("threads") > 0, "they have not met for {NEVER:?}");
    assert_eq!(rig.broken("threads"), rig.count());
}

/// Only calls that do not clash take this long.
const NEVER: Duration = Duration::from_secs(60);

#[test]
fn two_threads_at_once_on_one_queues_objects_are_caught() {
    let rig = Rig::new("profile=cxi");
    let (a, b) = (rig.end(0), rig.end(1));
    let (of_a, of_b) = (Shared(a.queue, a.endpoint), Shared(b.queue, b.endpoint));
    are_apart(&rig, || of_a.poll(), || of_b.poll());
    meet(&rig, || of_a.poll(), || of_a.cancel());
}

#[test]
fn two_threads_at_once_in_a_domain_that_is_serialised_as_a_whole_are_caught() {
    let rig = Rig::with_threading("profile=cxi", sys::FI_THREAD_DOMAIN);
    let (a, b) = (rig.end(0), rig.end(1));
    let beside_a = a.sibling();
    let of = |end: &End<'_>| Shared(end.queue, end.endpoint);
    let (of_a, of_b, of_sibling) = (of(&a), of(&b), of(&beside_a));
    are_apart(&rig, || of_a.poll(), || of_b.poll());
    meet(&rig, || of_a.poll(), || of_sibling.cancel());
}

#[test]
fn objects_close_from_the_inside_out() {
    let rig = Rig::new("profile=cxi");
    let a = rig.end(0);
    let buffer = Buffer::new(64);
    let region = a.register(&buffer, EVERY_ACCESS);
    assert_eq!(a.close_endpoint(), BUSY, "a region is bound to it");
    assert_eq!(close(a.queue.cast()), BUSY);
    assert_eq!(close(a.vector.cast()), BUSY);
    assert_eq!(close(a.domain.cast()), BUSY);
    rig.caught("close_order", 4);
    assert_eq!(region.close(), 0);
    drop(a);
    rig.caught("close_order", 4);
}

#[test]
fn an_endpoint_is_opened_by_an_info_of_its_domains_nic() {
    let rig = Rig::new("profile=cxi nics=2");
    let a = rig.end(0);
    assert_eq!(a.opens_by(0), 0);
    assert_eq!(a.opens_by(1), INVALID);
    rig.caught("arguments", 1);
}

#[test]
fn an_endpoint_has_no_more_room_than_it_asked_for() {
    let rig = Rig::new("profile=cxi");
    rig.ask_for_depth(0, 2);
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    let posted: Vec<_> = (0..3).map(|_| a.write(source.bare(64), there)).collect();
    assert_eq!(posted, [0, 0, size(-sys::FI_EAGAIN)]);
    a.wait();
    assert_eq!(a.write(source.bare(64), there), 0);
}

#[test]
fn an_error_of_an_endpoint_without_an_event_queue_is_caught() {
    let rig = Rig::new("profile=efa");
    let a = rig.end(0);
    let with = a.sibling();
    let queue = rig.open_event_queue().unwrap();
    assert_eq!(with.bind_events(queue), 0);
    with.enable();
    rig.fault("unwell=1 unwell=2");
    a.poll();
    rig.caught("no_event_queue", 1);
    assert_eq!(rig.event_error(queue), None, "its own queue is not polled yet");
    with.poll();
    assert_eq!(rig.event_error(queue), Some(sys::FI_EHOSTUNREACH));
    assert_eq!(rig.event_error(queue), None);
    assert_eq!(rig.number("counter.faults.unwell"), 2);
    rig.caught("no_event_queue", 1);
    drop((with, a));
    assert_eq!(close(queue.cast()), 0);
}

#[test]
fn an_event_queue_closes_between_its_endpoints_and_its_fabric() {
    let rig = Rig::new("profile=efa");
    let a = rig.end(0);
    let bound = a.sibling();
    let queue = rig.open_event_queue().unwrap();
    assert_eq!(bound.bind_events(queue), 0);
    assert_eq!(close(queue.cast()), BUSY);
    drop((bound, a));
    assert_eq!(rig.close_fabric(), BUSY);
    rig.caught("close_order", 2);
    assert_eq!(close(queue.cast()), 0);
}

#[test]
fn only_a_fabric_of_efa_has_event_queues() {
    for profile in ["cxi", "tcp", "adversary", "messages"] {
        let rig = Rig::new(&format!("profile={profile}"));
        assert_eq!(rig.open_event_queue(), Err(-sys::FI_ENOSYS), "{profile}");
    }
}

#[test]
fn a_fabric_closes_after_its_domains() {
    let rig = Rig::new("profile=cxi");
    let a = rig.end(0);
    assert_eq!(rig.close_fabric(), BUSY, "a domain is open on it");
    rig.caught("close_order", 1);
    drop(a);
}

#[test]
fn regions_are_bound_to_enabled_endpoints_then_enabled_once() {
    let rig = Rig::new("profile=cxi");
    let a = rig.end(0);
    let later = a.sibling();
    let buffer = Buffer::new(64);
    let region = a.register_only(&buffer, EVERY_ACCESS, 0).unwrap();
    assert_eq!(region.enable(), INVALID, "before it is bound");
    assert_eq!(region.bind(&later), INVALID, "to an endpoint that is not enabled");
    assert_eq!(region.bind(&a), 0);
    assert_eq!(region.bind(&a), INVALID, "twice");
    assert_eq!(region.enable(), 0);
    assert_eq!(region.enable(), INVALID, "twice");
    rig.caught("bind_order", 4);
}

#[test]
fn peers_that_the_vector_does_not_have_are_caught() {
    let rig = Rig::new("profile=cxi");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let to_b = a.know(&b);
    let there = b.register(&target, EVERY_ACCESS).at(to_b, 0);
    assert_eq!(a.write(source.bare(64), To { peer: 17, ..there }), size(INVALID));
    rig.caught("unknown_peer", 1);
    assert_eq!(a.write(source.bare(64), there), 0);
    assert_eq!(a.forget(to_b), 0);
    rig.caught("unknown_peer", 2);
    a.wait();
    assert_eq!(a.write(source.bare(64), there), size(INVALID), "it is gone");
    assert_eq!(a.forget(to_b), INVALID);
    rig.caught("unknown_peer", 4);
}

/// efa numbers messages from 0 again, and its peer does not.
#[test]
fn operations_to_a_peer_that_was_forgotten_are_caught() {
    for (profile, caught) in [("efa", 1), ("cxi", 0)] {
        let rig = Rig::new(&format!("profile={profile}"));
        let (a, b) = (rig.end(0), rig.end(1));
        let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
        let (ours, theirs) = (a.register(&source, EVERY_ACCESS), b.register(&target, EVERY_ACCESS));
        let first = a.know(&b);
        assert_eq!(a.forget(first), 0, "nothing was posted to it");
        let second = a.know(&b);
        assert_eq!(a.write(source.with(64, &ours), theirs.at(second, 0)), 0);
        a.wait();
        assert_eq!(a.forget(second), 0);
        let third = a.know(&b);
        rig.caught("forgotten_peer", 0);
        assert_eq!(a.write(source.with(64, &ours), theirs.at(third, 0)), 0);
        rig.caught("forgotten_peer", caught);
        a.wait();
    }
}

#[test]
fn a_post_of_bytes_that_are_gone_leaves_its_context_free() {
    let rig = Rig::new("profile=adversary");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, gone, target) = (Buffer::of(64, b"x"), Buffer::new(4096), Buffer::new(64));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    let (own, flags) = (support::context(), sys::FI_INJECT | sys::FI_COMPLETION);
    gone.unmap();
    let refused = a.write_message_in(gone.bare(64), there, flags, own);
    assert_eq!(refused, size(-sys::FI_EFAULT));
    rig.caught("freed_early", 1);
    assert_eq!(a.write_message_in(source.bare(64), there, flags, own), 0);
    a.wait().done();
    rig.caught("freed_early", 1);
}

#[test]
fn contexts_are_each_operations_own() {
    let rig = Rig::new("profile=adversary");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let from = source.with(64, &a.register(&source, EVERY_ACCESS));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    assert_eq!(a.write_in(from, there, ptr::null_mut()), 0);
    a.wait();
    rig.caught("context", 1);
    let pages = Buffer::new(4096);
    assert_eq!(a.write_in(from, there, pages.pointer(0)), 0);
    assert_eq!(a.receive_in(from, pages.pointer(0)), 0);
    a.wait();
    rig.caught("context", 2);
    assert_eq!(a.write_in(from, there, pages.pointer(128)), 0);
    assert_ne!(pages.bytes(128, 64), [0; 64], "the provider uses it");
    pages.put(130, b"mine");
    a.wait();
    rig.caught("context", 3);
    assert_eq!(a.write_in(from, there, pages.pointer(256)), 0);
    a.wait();
    rig.caught("context", 3);
}

#[test]
fn an_option_that_is_set_on_an_enabled_endpoint_is_caught() {
    let rig = Rig::new("profile=efa hmem=1 lines=1");
    let enabled = rig.end(0);
    let other = enabled.sibling();
    for (option, times) in [
        (sys::FI_OPT_CUDA_API_PERMITTED, 1),
        (sys::FI_OPT_SHARED_MEMORY_PERMITTED, 2),
        (sys::FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES, 3),
    ] {
        assert_eq!(other.set_option(option, &[0]), 0);
        assert_eq!(enabled.set_option(option, &[0]), -sys::FI_EOPBADSTATE);
        rig.caught("arguments", times);
    }
}

#[test]
fn operations_that_are_too_long_are_caught() {
    let rig = Rig::new("profile=adversary");
    let (a, b) = (rig.end(0), rig.end(1));
    let len = (64 << 10) + 4096;
    let (source, target) = (Buffer::of(len, b"x"), Buffer::new(len));
    let ours = a.register(&source, EVERY_ACCESS);
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    let too_long = size(-sys::FI_EMSGSIZE);
    assert_eq!(a.inject_write(source.bare(65), there), too_long);
    assert_eq!(a.inject(source.bare(65), there.peer), too_long);
    assert_eq!(a.write(source.with((64 << 10) + 1, &ours), there), too_long);
    rig.caught("too_long", 3);
    assert_eq!(a.inject_write(source.bare(64), there), 0);
    assert_eq!(a.write(source.with(64 << 10, &ours), there), 0);
    a.wait().done();
    rig.caught("too_long", 3);
}

/// efa cuts a longer write, and its immediate arrives with each piece.
#[test]
fn a_write_whose_immediate_would_arrive_several_times_is_caught() {
    let rig = Rig::new("profile=efa");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    let ours = a.register(&source, EVERY_ACCESS);
    let answer = a.write_data(source.with((1 << 30) + 1, &ours), there, 7);
    assert_eq!(answer, size(-sys::FI_EMSGSIZE));
    rig.caught("too_long", 1);
    assert_eq!(a.write_data(source.with(64, &ours), there, 7), 0);
    rig.caught("too_long", 1);
}

#[test]
fn arguments_that_no_page_allows_are_caught() {
    let rig = Rig::new("profile=cxi");
    let (a, b) = (rig.end(0), rig.end(1));
    let early = a.sibling();
    let buffer = Buffer::of(64, b"x");
    assert_eq!(early.send(buffer.bare(64), 0), size(-sys::FI_EOPBADSTATE), "not enabled");
    // SAFETY: open objects; that they are of two domains is the test.
    let bound = unsafe { sys::fi_ep_bind(early.endpoint, b.vector.cast(), 0) };
    assert_eq!(bound, INVALID);
    let region = a.register_only(&buffer, EVERY_ACCESS, 0).unwrap();
    assert_eq!(region.bind(&b), INVALID, "another domain's endpoint");
    rig.caught("arguments", 3);
}

/// fi_av(3), and util_verify_av_attr of libfabric: the type must be the domain's.
#[test]
fn an_address_vector_of_another_type_than_its_domains_is_caught() {
    let rig = Rig::new("profile=cxi");
    let end = rig.end(0);
    assert_eq!(end.opens_vector(sys::FI_AV_TABLE), 0);
    assert_eq!(end.opens_vector(sys::FI_AV_UNSPEC), 0);
    rig.caught("arguments", 0);
    assert_eq!(end.opens_vector(sys::FI_AV_MAP), INVALID);
    rig.caught("arguments", 1);
}

/// fi_rma(3) and fi_msg(3): each flag is for some of the calls.
#[test]
fn flags_that_are_for_another_call_are_caught() {
    let rig = Rig::new("profile=efa");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let from = source.with(16, &a.register(&source, EVERY_ACCESS));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    let refused = size(-sys::FI_EBADFLAGS);
    assert_eq!(a.read_message(source.bare(16), there, sys::FI_INJECT), refused);
    assert_eq!(a.read_message(from, there, sys::FI_REMOTE_CQ_DATA), refused);
    assert_eq!(a.write_message(from, there, sys::FI_MULTI_RECV), refused);
    assert_eq!(a.message(from, there.peer, sys::FI_MULTI_RECV, true), refused);
    assert_eq!(a.message(from, there.peer, sys::FI_MULTI_RECV, false), refused);
    assert_eq!(a.message(from, there.peer, sys::FI_INJECT, false), refused);
    rig.caught("arguments", 6);
    assert_eq!(a.read_message(from, there, sys::FI_COMPLETION), 0);
    a.wait().done();
    rig.caught("arguments", 6);
}

/// xnet_rma_writemsg of libfabric asserts it; cxi refuses any other number of pieces than one.
#[test]
fn a_write_has_as_many_bytes_there_as_here() {
    let rig = Rig::new("profile=cxi");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    for (expected, lens) in [&[32][..], &[128], &[]].into_iter().enumerate() {
        assert_eq!(a.write_pieces(source.bare(64), there, lens, 0), size(INVALID), "{lens:?}");
        rig.caught("arguments", expected as u64 + 1);
    }
    assert_eq!(a.write_pieces(source.bare(64), there, &[64], 0), 0);
    a.wait().done();
}

/// `cq_data_size` is 0 there: fi_domain(3).
#[test]
fn data_for_a_completion_is_refused_where_completions_have_none() {
    let rig = Rig::new("profile=messages");
    let (a, b) = (rig.end(0), rig.end(1));
    let source = Buffer::of(64, b"x");
    let (from, to_b) = (source.with(16, &a.register(&source, EVERY_ACCESS)), a.know(&b));
    assert_eq!(a.message(from, to_b, sys::FI_REMOTE_CQ_DATA, true), size(INVALID));
    rig.caught("arguments", 1);
}

/// Registration pins the pages: FI_MR_ALLOCATED in fi_mr(3).
#[test]
fn unmapped_memory_is_refused_where_registration_pins_it() {
    for (profile, asked) in [("cxi", true), ("efa", true), ("tcp", false), ("adversary", false)] {
        let rig = Rig::new(&format!("profile={profile}"));
        let a = rig.end(0);
        let page = page_bytes();
        let buffer = Buffer::new(3 * page);
        assert_eq!(a.try_register(buffer.pointer(100), 2 * page), 0, "{profile}");
        buffer.unmap_page(2);
        assert_eq!(a.try_register(buffer.pointer(100), 2 * page - 100), 0, "{profile}");
        let code = a.try_register(buffer.pointer(100), 2 * page);
        assert_eq!(
            code,
            if asked { -sys::FI_EFAULT } else { 0 },
            "{profile}: its last page is gone"
        );
        rig.caught("arguments", u64::from(asked));
        buffer.unmap();
    }
}

/// The kind of memory is ignored unless FI_HMEM was asked for: `iface` in fi_mr(3).
#[test]
fn device_memory_is_refused_where_it_was_not_asked_for() {
    let rig = Rig::without_device_memory("profile=efa hmem=1");
    let buffer = Buffer::new(4096);
    let a = rig.end(0);
    assert_eq!(a.register_device(&buffer, 0).err(), Some(INVALID));
    rig.caught("arguments", 1);
}

/// In a process of its own, which ends: libfabric's destructor calls the cleanup of its providers, and a call of another thread then is
/// caught.
#[test]
fn a_call_while_the_process_ends_is_caught() {
    let Ok(report) = std::env::var(ENDS) else { return ends() };
    let rig = Rig::new(&format!("profile=cxi cleanup=2000 report={report}"));
    let a = rig.end(0);
    a.idle(1);
    thread::spawn(|| process::exit(0));
    while rig.count() == 0 {
        a.idle(1);
    }
    rig.caught("after_cleanup", 1);
    // The provider is unloaded next.
    loop {
        thread::park();
    }
}

fn ends() {
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ends.{}", process::id()));
    let mut command = Command::new(std::env::current_exe().expect("this binary has a name"));
    command.args(["--exact", "a_call_while_the_process_ends_is_caught", "--nocapture"]);
    let output = command.env(ENDS, &report).output().expect("this binary starts again");
    assert!(output.status.success(), "{output:?}");
    let said = std::fs::read_to_string(&report).expect("the provider has cleaned up");
    std::fs::remove_file(&report).expect("ours");
    assert!(said.lines().any(|line| line == "violations 1"), "{said}");
}

/// The file for the report of the process that ends.
const ENDS: &str = "TEST_ENDS";

#[test]
fn a_tolerated_rule_fails_no_test() {
    let rig = Rig::new("profile=cxi tolerate=close_order,bounds");
    let a = rig.end(0);
    assert_eq!(close(a.domain.cast()), BUSY);
    rig.caught("close_order", 0);
    assert_eq!(rig.number("counter.tolerated"), 1);
}

#[test]
fn every_rule_of_the_page_is_broken_here() {
    let page = include_str!("../../../docs/vfabric.md");
    let (_, rules) = page.split_once("| rule | broken by |").unwrap();
    let rows = rules.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut count = 0;
    for row in rows {
        let rule = row.split('`').nth(1).unwrap();
        assert!(
            include_str!("strictness.rs").contains(&format!("caught(\"{rule}\""))
                || rule == "threads"
        );
        count += 1;
    }
    assert_eq!(count, 21);
}
