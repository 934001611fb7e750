//! Faults come when the script or the seed says so, and virtual time follows the NICs' bandwidth and latency.

mod support;

use libfabric_sys as sys;
use support::{AGAIN, Buffer, EVERY_ACCESS, End, From, Polled, Rig, To, posted};

struct Sides<'rig> {
    a: End<'rig>,
    b: End<'rig>,
    source: Buffer,
    target: Buffer,
    there: To,
}

/// `a` on NIC 0 can write to `b` on NIC 1, without descriptors.
fn sides(rig: &Rig) -> Sides<'_> {
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(1 << 20, b"bytes"), Buffer::new(1 << 20));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    Sides { a, b, source, target, there }
}

impl Sides<'_> {
    fn write(&self, len: usize) -> isize {
        self.a.write(self.source.bare(len), self.there)
    }

    fn has_arrived(&self) -> bool {
        self.target.bytes(0, 5) == *b"bytes"
    }
}

#[test]
fn the_nth_post_is_refused_and_nothing_was_posted() {
    let rig = Rig::new("profile=cxi faults='refuse=2 refuse=4-5'");
    let sides = sides(&rig);
    let answers: Vec<isize> = (0..6).map(|_| sides.write(64)).collect();
    assert_eq!(answers, [0, AGAIN, 0, AGAIN, AGAIN, 0]);
    for _ in 0..3 {
        sides.a.wait().done();
    }
    sides.a.idle(100);
    assert_eq!(rig.number("counter.faults.refuse"), 3);
    assert_eq!(rig.number("counter.posts"), 6);
}

/// Its own posts, and posts to others, still work.
#[test]
fn an_endpoint_that_is_shut_takes_nothing_until_it_is_opened() {
    let rig = Rig::new("profile=efa regions=none");
    let sides = sides(&rig);
    let (b, c) = (rig.number("opened.endpoints"), rig.end(1));
    let elsewhere = c.register(&sides.target, EVERY_ACCESS).at(sides.a.know(&c), 0);
    let send = |to: &End<'_>| sides.a.send(sides.source.bare(8), sides.a.know(to));
    rig.fault(&format!("shut={b}"));
    assert_eq!((sides.write(64), send(&sides.b)), (AGAIN, AGAIN));
    assert_eq!(sides.a.write(sides.source.bare(64), elsewhere), 0);
    assert_eq!(send(&c), 0);
    let back = sides.a.register(&sides.source, EVERY_ACCESS).at(sides.b.know(&sides.a), 0);
    assert_eq!(sides.b.write(sides.target.bare(8), back), 0);
    sides.b.wait().done();
    let posts = rig.number("counter.posts");
    rig.fault(&format!("open={b}@{}", posts + 2));
    assert_eq!([sides.write(64), sides.write(64)], [AGAIN, 0]);
    assert_eq!(rig.number("counter.faults.shut"), 3);
    assert_eq!(rig.number("counter.faults.open"), 1);
}

/// Receives that are posted stay, and its own sends still work.
#[test]
fn an_endpoint_that_is_deaf_takes_no_receives_until_it_hears() {
    let rig = Rig::new("profile=efa regions=none");
    let sides = sides(&rig);
    let (b, into) = (rig.number("opened.endpoints"), || sides.target.bare(8));
    let failed = -(sys::FI_EIO as isize);
    assert_eq!(sides.b.receive(into()), 0);
    rig.fault(&format!("deaf={b}"));
    let tagged = |end: &End<'_>| end.receive_tagged(into(), 7, 0, support::context());
    assert_eq!((sides.b.receive(into()), tagged(&sides.b)), (failed, failed));
    assert_eq!((sides.a.receive(into()), tagged(&sides.a)), (0, 0));
    assert_eq!(sides.a.send(sides.source.bare(8), sides.a.know(&sides.b)), 0);
    sides.b.wait().done();
    assert_eq!(sides.b.send(sides.target.bare(8), sides.b.know(&sides.a)), 0);
    let posts = rig.number("counter.posts");
    rig.fault(&format!("hears={b}@{}", posts + 2));
    assert_eq!([sides.b.receive(into()), sides.b.receive(into())], [failed, 0]);
    assert_eq!(rig.number("counter.faults.deaf"), 3);
    assert_eq!(rig.number("counter.faults.hears"), 1);
}

#[test]
fn a_rejected_post_is_an_error_and_nothing_was_posted() {
    let rig = Rig::new("profile=cxi faults='reject=1'");
    let sides = sides(&rig);
    assert_eq!(sides.write(64), -(sys::FI_EIO as isize));
    sides.a.idle(100);
    assert_eq!(rig.number("counter.faults.reject"), 1);
    assert_eq!(sides.write(64), 0);
    sides.a.wait().done();
}

#[test]
fn posts_are_refused_as_often_as_asked_and_alike_for_the_same_seed() {
    let run = |seed| {
        let rig = Rig::new(&format!("profile=cxi eagain=300 seed={seed}"));
        let sides = sides(&rig);
        let refused: Vec<bool> = (0..1000)
            .map(|_| {
                let refused = sides.write(8) == AGAIN;
                if !refused {
                    sides.a.wait().done();
                }
                refused
            })
            .collect();
        let count = refused.iter().filter(|refused| **refused).count();
        assert_eq!(rig.number("counter.faults.refuse_random"), count as u64);
        assert!((240..360).contains(&count), "{count}");
        refused
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn an_operation_fails_before_its_bytes_land_or_after() {
    for profile in ["efa", "tcp"] {
        for (fault, lands) in [("fail=2", false), ("fail_late=2", true)] {
            let rig = Rig::new(&format!("profile={profile} hold=0 reorder=0 regions=none"));
            let sides = sides(&rig);
            rig.fault(fault);
            let elsewhere = To { address: sides.there.address + 4096, ..sides.there };
            posted([&sides.a, &sides.b], || sides.a.write(sides.source.bare(8), elsewhere));
            sides.a.wait_with(&[&sides.b]).done();
            assert_eq!(sides.write(64), 0);
            let error = sides.a.wait_with(&[&sides.b]).failed();
            assert_eq!(error.err, sys::FI_EIO, "{profile}: {fault}");
            assert_eq!(sides.has_arrived(), lands, "{profile}: {fault}");
            assert_eq!(sides.write(64), 0);
            sides.a.wait_with(&[&sides.b]).done();
            assert_eq!(rig.count(), 0);
        }
    }
}

#[test]
fn a_late_operation_is_overtaken() {
    let rig = Rig::new("profile=efa regions=none faults='delay=1:500'");
    let sides = sides(&rig);
    assert_eq!(sides.a.write_data(sides.source.bare(8), sides.there, 1), 0);
    assert_eq!(sides.a.write_data(sides.source.bare(8), sides.there, 2), 0);
    assert_eq!(sides.b.wait().done().data, 2);
    let before = rig.now();
    assert_eq!(sides.b.wait().done().data, 1);
    assert!(rig.now() - before > 400);
    assert_eq!(rig.number("counter.faults.delay"), 1);
}

/// Whether an operation completed with success.
fn well(polled: Polled) -> bool {
    match polled {
        Polled::Nothing => false,
        Polled::Done(_) => true,
        Polled::Failed(error) => panic!("{}", error.err),
    }
}

/// Sends messages of one byte from `a` to `b`, each after the completion of the one before. Returns what has arrived after many polls.
fn messages(rig: &Rig, count: u8) -> Vec<u8> {
    let sides = sides(rig);
    let peer = sides.a.know(&sides.b);
    let rooms = usize::from(count) * 2;
    for room in 0..rooms {
        let pointer = sides.target.bare(1).pointer.wrapping_byte_add(room);
        assert_eq!(sides.b.receive(From { pointer, ..sides.target.bare(1) }), 0);
    }
    for number in 1..=count {
        let one = Buffer::of(1, &[number]);
        while sides.a.send(one.bare(1), peer) == AGAIN {
            sides.a.idle(1);
            sides.b.idle(1);
        }
        while !well(sides.a.poll()) {
            well(sides.b.poll());
        }
    }
    for _ in 0..5000 {
        well(sides.a.poll());
        well(sides.b.poll());
    }
    sides.target.bytes(0, rooms).into_iter().filter(|byte| *byte != 0).collect()
}

#[test]
fn a_lost_or_doubled_message_completes_at_its_sender() {
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        let rig = Rig::new(&format!(
            "profile={profile} regions=none faults='lose=1 double=2 lose=4 double=5:500'"
        ));
        let mut came = messages(&rig, 6);
        came.sort_unstable();
        assert_eq!(came, [2, 2, 3, 5, 5, 6], "{profile}");
        assert_eq!(rig.number("counter.messages"), 6);
        assert_eq!(rig.number("counter.faults.lose"), 2);
        assert_eq!(rig.number("counter.faults.double"), 2);
        assert_eq!(rig.number("open.operations"), 0);
        assert_eq!(rig.count(), 0, "{:?}", rig.violations());
    }
}

/// The copy has no completion that could fail.
#[test]
fn a_doubled_message_that_fails_late_is_one_error_and_arrives_twice() {
    let rig = Rig::new("profile=efa regions=none faults='fail_late=1 double=1:50'");
    let sides = sides(&rig);
    let into = || sides.b.receive(sides.target.bare(8));
    assert_eq!([into(), into()], [0, 0]);
    assert_eq!(sides.a.send(sides.source.bare(8), sides.a.know(&sides.b)), 0);
    for _ in 0..2 {
        sides.b.wait().done();
    }
    assert_eq!(sides.a.wait().failed().err, sys::FI_EIO);
    sides.a.idle(200);
    assert_eq!(rig.number("counter.errors"), 1);
    assert_eq!(rig.number("counter.lost"), 0);
    assert_eq!(rig.number("open.operations"), 0);
    assert_eq!(rig.count(), 0, "{:?}", rig.violations());
}

#[test]
fn messages_are_lost_and_doubled_as_often_as_asked_and_alike_for_the_same_seed() {
    let run = |seed| {
        let rig = Rig::new(&format!("profile=cxi regions=none lose=300 double=300 seed={seed}"));
        let came = messages(&rig, 100);
        let fired = |name: &str| rig.number(&format!("counter.faults.{name}"));
        let (lost, doubled) = (fired("lose"), fired("double"));
        assert_eq!(came.len() as u64, 100 - lost + doubled);
        assert!((20..=40).contains(&lost) && (10..=32).contains(&doubled), "{lost} {doubled}");
        came
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn a_stalled_nic_moves_nothing_and_fails_nothing() {
    let rig = Rig::new("profile=cxi");
    let sides = sides(&rig);
    rig.nic(1, "stall");
    assert_eq!(sides.write(64), 0);
    sides.a.idle(2000);
    sides.b.idle(2000);
    assert!(!sides.has_arrived());
    rig.nic(1, "resume");
    sides.a.wait().done();
    sides.a.idle(100);
    assert!(sides.has_arrived());
}

/// An operation that has reached the target's NIC waits there for the target's poll.
#[test]
fn a_nic_that_is_stalled_delivers_nothing_that_has_reached_it() {
    let rig = Rig::new("profile=efa regions=none");
    let sides = sides(&rig);
    assert_eq!(sides.b.receive(sides.target.bare(8)), 0);
    assert_eq!(sides.a.send(sides.source.bare(8), sides.a.know(&sides.b)), 0);
    sides.a.idle(100);
    rig.nic(1, "stall");
    sides.b.idle(100);
    assert_eq!(sides.target.bytes(0, 5), [0; 5]);
    rig.nic(1, "resume");
    sides.b.wait().done();
    assert!(sides.has_arrived());
}

#[test]
fn a_fault_of_a_nic_at_a_post_that_has_passed_happens_at_the_next_post() {
    let rig = Rig::new("profile=cxi");
    let sides = sides(&rig);
    assert_eq!((sides.write(64), sides.write(64)), (0, 0));
    sides.a.wait().done();
    sides.a.wait().done();
    rig.fault("revive=1@2 kill=1@1");
    assert_eq!(sides.write(64), 0);
    sides.a.wait().done();
    let fired = ["kill", "revive"].map(|name| rig.number(&format!("counter.faults.{name}")));
    assert_eq!(fired, [1, 1], "in the order of their posts, and once");
    assert_eq!(sides.write(64), 0);
    sides.a.wait().done();
}

#[test]
fn a_script_that_names_a_missing_nic_is_refused() {
    let rig = Rig::new("profile=cxi nics=2");
    // SAFETY: a C string.
    let code = |script: &std::ffi::CStr| unsafe { (rig.control.fault)(script.as_ptr()) };
    assert_eq!(code(c"kill=2@1"), -sys::FI_EINVAL);
    assert_eq!(code(c"kill=1@1000"), 0);
}

#[test]
fn a_full_queue_refuses_more() {
    let rig = Rig::new("profile=cxi depth=3");
    let sides = sides(&rig);
    rig.nic(0, "stall");
    let answers: Vec<isize> = (0..4).map(|_| sides.write(64)).collect();
    assert_eq!(answers, [0, 0, 0, AGAIN]);
    assert_eq!(rig.number("counter.refused.full"), 1);
    rig.nic(0, "resume");
    sides.a.wait().done();
    assert_eq!(sides.write(64), 0);
}

#[test]
fn a_dead_nic_fails_what_it_has_and_comes_back() {
    let rig = Rig::new("profile=cxi faults='kill=1@3 revive=1@5'");
    let sides = sides(&rig);
    assert_eq!((sides.write(64), sides.write(64)), (0, 0));
    // The third post finds it dead; the first two were in flight, and fail too.
    assert_eq!(sides.write(64), 0);
    for _ in 0..3 {
        assert_eq!(sides.a.wait().failed().err, sys::FI_EHOSTUNREACH);
    }
    assert_eq!(sides.b.send(From { len: 1, ..sides.target.bare(1) }, sides.b.know(&sides.a)), 0);
    assert_eq!(sides.b.wait().failed().err, sys::FI_ENETDOWN);
    assert!(!sides.has_arrived());
    assert_eq!(sides.write(64), 0);
    sides.a.wait().done();
    sides.a.idle(100);
    assert!(sides.has_arrived());
    assert_eq!((rig.number("counter.faults.kill"), rig.number("counter.faults.revive")), (1, 1));
    assert_eq!(rig.count(), 0, "{:?}", rig.violations());
}

#[test]
fn a_stalled_nic_that_is_killed_fails_what_is_posted_later() {
    let rig = Rig::new("profile=cxi");
    let sides = sides(&rig);
    rig.nic(1, "stall");
    assert_eq!(sides.write(64), 0);
    sides.a.idle(100);
    rig.nic(1, "kill");
    assert_eq!(sides.a.wait().failed().err, sys::FI_EHOSTUNREACH);
    assert_eq!(sides.write(64), 0);
    assert_eq!(sides.a.wait().failed().err, sys::FI_EHOSTUNREACH);
    assert_eq!(sides.b.send(From { len: 1, ..sides.target.bare(1) }, sides.b.know(&sides.a)), 0);
    assert_eq!(sides.b.wait().failed().err, sys::FI_ENETDOWN);
    rig.nic(1, "revive");
    assert_eq!(sides.write(64), 0);
    sides.a.idle(100);
    rig.nic(1, "resume");
    sides.a.wait().done();
}

/// Its target has closed, so it is no longer an operation to that NIC.
#[test]
fn an_operation_that_waits_for_a_stalled_nic_ends_when_that_is_killed() {
    let rig = Rig::new("profile=efa regions=none");
    let sides = sides(&rig);
    rig.nic(1, "stall");
    assert_eq!(sides.write(64), 0);
    sides.a.idle(100);
    assert_eq!(sides.b.close_endpoint(), 0);
    sides.a.idle(100);
    rig.nic(1, "kill");
    assert_eq!(sides.a.wait().failed().err, sys::FI_EHOSTUNREACH);
    assert_eq!(rig.number("open.operations"), 0);
}

/// The completions, poll by poll, with their times.
fn trace(settings: &str) -> Vec<(u64, u64, u64)> {
    let rig = Rig::new(settings);
    let sides = sides(&rig);
    let mut trace = Vec::new();
    let mut posted = 0;
    while trace.len() < 200 {
        if posted < 100 {
            let data =
                sides.a.write_data(sides.source.bare(64 << (posted % 8)), sides.there, posted);
            posted += u64::from(data == 0);
        }
        for end in [&sides.a, &sides.b] {
            match end.poll() {
                Polled::Nothing => {}
                Polled::Done(entry) => trace.push((rig.now(), entry.flags, entry.data)),
                Polled::Failed(error) => {
                    trace.push((rig.now(), 0, error.err.unsigned_abs().into()))
                }
            }
        }
    }
    trace
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for settings in
        ["profile=efa regions=none eagain=100", "profile=efa regions=none clock=virtual"]
    {
        let of = |seed: u64| trace(&format!("{settings} seed={seed}"));
        assert_eq!(of(3), of(3), "{settings}");
    }
    let of = |seed: u64| trace(&format!("profile=efa regions=none eagain=100 seed={seed}"));
    assert_ne!(of(3), of(4));
}

/// The time in ns to write 1 MiB `writes` times from each of the NICs to NIC 3.
fn makespan(settings: &str, nics: &[usize], writes: usize) -> u64 {
    let rig = Rig::new(&format!("profile=cxi nics=4 clock=virtual hold=0 {settings}"));
    let source = Buffer::new(1 << 20);
    let targets = [Buffer::new(1 << 20), Buffer::new(1 << 20)];
    let receivers = [rig.end(3), rig.end(2)];
    let senders: Vec<End<'_>> = nics.iter().map(|nic| rig.end(*nic)).collect();
    for (index, sender) in senders.iter().enumerate() {
        let receiver = &receivers[index];
        let there = receiver.register(&targets[index], EVERY_ACCESS).at(sender.know(receiver), 0);
        for _ in 0..writes {
            assert_eq!(sender.write(source.bare(1 << 20), there), 0);
        }
    }
    for sender in &senders {
        for _ in 0..writes {
            sender.wait().done();
        }
    }
    rig.now()
}

#[test]
fn virtual_time_is_length_by_bandwidth_and_the_way_there_and_back() {
    // 1 MiB at 8 Gb/s, one byte per ns.
    let wire = 1 << 20;
    let one = makespan("bandwidth=8000 latency=1000", &[0], 1);
    assert_eq!(one, wire + 2000);
    let ten = makespan("bandwidth=8000 latency=1000", &[0], 10);
    assert_eq!(ten, 10 * wire + 2000, "one after the other");
    let two_nics = makespan("bandwidth=8000 latency=1000", &[0, 1], 10);
    assert_eq!(two_nics, 10 * wire + 2000, "side by side");
    let slow = makespan("bandwidth=8000,800,8000,8000 latency=1000", &[0, 1], 10);
    assert_eq!(slow, 100 * wire + 2000, "the slow one takes ten times as long");
    for writes in [1, 10] {
        let slow = makespan("bandwidth=8000,8000,8000,800 latency=1000", &[0], writes);
        assert_eq!(
            slow,
            10 * writes as u64 * wire + 2000,
            "also where it receives, from the first"
        );
    }
}

#[test]
fn virtual_time_advances_by_the_control_table() {
    let rig = Rig::new("profile=cxi clock=virtual bandwidth=8000 latency=1000");
    let sides = sides(&rig);
    assert_eq!(sides.write(1000), 0);
    // SAFETY: it takes any number.
    assert_eq!(unsafe { (rig.control.advance)(500) }, 500);
    assert!(!sides.has_arrived());
    // SAFETY: as above.
    assert_eq!(unsafe { (rig.control.advance)(10_000) }, 10_500);
    assert!(sides.has_arrived());
    sides.a.poll().done();
    assert_eq!(rig.number("nic.0.bytes"), 1000);
}
