//! Tagged messages, tested by raw calls, and the profile that has no one-sided access.

mod support;

use libfabric_sys as sys;
use support::{AGAIN, Buffer, EVERY_ACCESS, End, Polled, Rig, context, posted};

const PROFILES: [&str; 5] = ["cxi", "efa", "tcp", "adversary", "messages"];

/// Two ends with 4 KiB each: the first sends, the second receives.
struct Pair<'a> {
    rig: &'a Rig,
    a: &'a End<'a>,
    b: &'a End<'a>,
    source: &'a Buffer,
    target: &'a Buffer,
    from: support::From,
    into: support::From,
    to_b: u64,
}

fn pair(settings: &str, test: impl FnOnce(&Pair<'_>)) {
    let rig = Rig::new(settings);
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::new(4096), Buffer::new(4096));
    let pattern: Vec<u8> = (0..4096_u32).map(|byte| (byte % 251) as u8).collect();
    source.put(0, &pattern);
    let to_b = a.know(&b);
    let ours = a.register(&source, EVERY_ACCESS);
    let theirs = b.register(&target, EVERY_ACCESS);
    let (from, into) = (source.with(4096, &ours), target.with(4096, &theirs));
    let (rig, a, b, source, target) = (&rig, &a, &b, &source, &target);
    test(&Pair { rig, a, b, source, target, from, into, to_b });
}

impl Pair<'_> {
    fn from(&self, len: usize) -> support::From {
        support::From { len, ..self.from }
    }

    fn into(&self, at: usize, len: usize) -> support::From {
        let pointer = self.into.pointer.wrapping_byte_add(at);
        support::From { pointer, len, ..self.into }
    }

    #[track_caller]
    fn posted(&self, post: impl Fn() -> isize) {
        posted([self.a, self.b], post);
    }

    /// Polls both ends until the receiver has `count` entries.
    fn received(&self, count: usize) -> Vec<sys::fi_cq_tagged_entry> {
        let mut entries = Vec::new();
        for _ in 0..100_000 {
            if let Polled::Done(entry) = self.b.poll() {
                entries.push(entry);
            }
            if entries.len() == count {
                return entries;
            }
            let _ = self.a.poll();
        }
        panic!("{} of {count} messages came", entries.len());
    }
}

#[test]
fn a_message_goes_to_the_receive_of_its_tag_whichever_came_first() {
    for profile in PROFILES {
        pair(&format!("profile={profile} linger=0"), |pair| {
            let Pair { rig, a, b, to_b, .. } = pair;
            let (first, second) = (context(), context());
            assert_eq!(b.receive_tagged(pair.into(0, 1024), 1, 0, first), 0);
            assert_eq!(b.receive_tagged(pair.into(1024, 1024), 2, 0, second), 0);
            // An untagged message takes neither.
            pair.posted(|| a.send(pair.from(8), *to_b));
            pair.posted(|| a.send_tagged(pair.from(100), *to_b, 2));
            let entry = pair.received(1)[0];
            assert_eq!((entry.op_context, entry.len, entry.tag), (second, 100, 2), "{profile}");
            assert_eq!(entry.flags, sys::FI_TAGGED | sys::FI_RECV);
            assert_eq!(pair.target.bytes(1024, 100), pair.source.bytes(0, 100));
            pair.posted(|| a.inject_tagged(pair.from(16), *to_b, 7));
            for _ in 0..200 {
                let _ = a.poll();
                b.idle(1);
            }
            assert_eq!(rig.number("counter.unexpected.tagged"), 1);
            let late = context();
            assert_eq!(b.receive_tagged(pair.into(2048, 64), 5, 2, late), 0);
            let entry = pair.received(1)[0];
            assert_eq!((entry.op_context, entry.len, entry.tag), (late, 16, 7), "{profile}");
            assert_eq!(rig.number("counter.posts.tsend"), 1);
            assert_eq!(rig.number("counter.posts.tinject"), 1);
            assert_eq!(rig.number("counter.accepted.trecv"), 3);
            assert_eq!(b.cancel(first), 0);
            assert_eq!(b.wait().failed().err, sys::FI_ECANCELED);
            assert_eq!(rig.count(), 0, "{profile}: {:?}", rig.violations());
        });
    }
}

#[test]
fn a_tagged_message_that_is_longer_than_its_receive_is_cut_and_an_error() {
    pair("profile=messages", |pair| {
        let Pair { a, b, to_b, .. } = pair;
        assert_eq!(b.receive_tagged(pair.into(0, 64), 9, 0, context()), 0);
        pair.posted(|| a.send_tagged(pair.from(100), *to_b, 9));
        let failed = loop {
            if let Polled::Failed(failed) = b.poll() {
                break failed;
            }
            let _ = a.poll();
        };
        assert_eq!((failed.err, failed.len, failed.olen), (sys::FI_ETRUNC, 64, 36));
        assert_eq!(failed.tag, 9);
    });
}

/// As over tcp when the connection ends meanwhile.
#[test]
fn a_receive_whose_message_breaks_off_ends_as_if_it_were_cancelled() {
    pair("profile=messages faults='sever=1 sever=next:50'", |pair| {
        let Pair { rig, a, b, to_b, .. } = pair;
        let receive = context();
        assert_eq!(b.receive_tagged(pair.into(0, 64), 9, 0, receive), 0);
        pair.posted(|| a.send_tagged(pair.from(8), *to_b, 9));
        let failed = b.wait().failed();
        assert_eq!((failed.err, failed.op_context), (sys::FI_ECANCELED, receive));
        assert_eq!(pair.target.bytes(0, 8), [0; 8]);
        // This one finds no receive, and is gone.
        pair.posted(|| a.send_tagged(pair.from(50), *to_b, 9));
        b.idle(200);
        a.wait().done();
        a.wait().done();
        assert_eq!(b.receive_tagged(pair.into(0, 64), 9, 0, context()), 0);
        pair.posted(|| a.send_tagged(pair.from(16), *to_b, 9));
        assert_eq!(pair.received(1)[0].len, 16);
        assert_eq!(rig.number("counter.faults.sever"), 2);
        assert_eq!(rig.count(), 0, "{:?}", rig.violations());
    });
}

#[test]
fn a_tagged_message_brings_its_immediate_along() {
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        pair(&format!("profile={profile} linger=0"), |pair| {
            let Pair { rig, a, b, to_b, .. } = pair;
            assert_eq!(b.receive_tagged(pair.into(0, 64), 9, 0, context()), 0);
            pair.posted(|| a.send_tagged_with_data(pair.from(8), *to_b, 9, 77));
            let entry = pair.received(1)[0];
            assert_eq!((entry.len, entry.tag, entry.data), (8, 9, 77), "{profile}");
            let flags = sys::FI_TAGGED | sys::FI_RECV | sys::FI_REMOTE_CQ_DATA;
            assert_eq!(entry.flags, flags, "{profile}");
            assert_eq!(rig.count(), 0, "{profile}: {:?}", rig.violations());
        });
    }
}

#[test]
fn every_call_of_tagged_messages_moves_one_piece() {
    for profile in ["cxi", "efa", "tcp", "adversary"] {
        pair(&format!("profile={profile} linger=0"), |pair| {
            let Pair { rig, a, b, to_b, .. } = pair;
            let with_data = sys::FI_TAGGED | sys::FI_RECV | sys::FI_REMOTE_CQ_DATA;
            let without = sys::FI_TAGGED | sys::FI_RECV;
            type Post = fn(&End<'_>, support::From, u64) -> isize;
            let posts: [(Post, u64, u64); 3] = [
                (|a, from, to| a.send_tagged_pieces(from, to, 9, 1), without, 0),
                (|a, from, to| a.send_tagged_by_data(from, to, 9, 77), with_data, 77),
                (|a, from, to| a.inject_tagged_with_data(from, to, 9, 78), with_data, 78),
            ];
            for (post, flags, data) in posts {
                pair.target.put(0, &[0; 8]);
                assert_eq!(b.receive_tagged_pieces(pair.into(0, 64), 9, 1), 0, "{profile}");
                pair.posted(|| post(a, pair.from(8), *to_b));
                let entry = pair.received(1)[0];
                assert_eq!((entry.len, entry.tag, entry.flags), (8, 9, flags), "{profile}");
                assert_eq!(if flags == with_data { entry.data } else { 0 }, data, "{profile}");
                assert_eq!(pair.target.bytes(0, 8), pair.source.bytes(0, 8), "{profile}");
            }
            assert_eq!(rig.count(), 0, "{profile}: {:?}", rig.violations());
            // `iov_limit` is 1.
            let refused = -(sys::FI_EINVAL as isize);
            assert_eq!(a.send_tagged_pieces(pair.from(8), *to_b, 9, 2), refused);
            assert_eq!(b.receive_tagged_pieces(pair.into(0, 64), 9, 2), refused);
        });
    }
}

#[test]
fn tagged_posts_are_refused_and_fail_as_the_script_says() {
    pair("profile=messages faults='refuse=1 refuse=2 fail=1'", |pair| {
        let Pair { rig, a, b, to_b, .. } = pair;
        assert_eq!(b.receive_tagged(pair.into(0, 64), 9, 0, context()), AGAIN);
        assert_eq!(a.send_tagged(pair.from(8), *to_b, 9), AGAIN);
        assert_eq!(b.receive_tagged(pair.into(0, 64), 9, 0, context()), 0);
        assert_eq!(a.send_tagged(pair.from(8), *to_b, 9), 0);
        assert_eq!(a.wait_with(&[b]).failed().err, sys::FI_EIO);
        assert_eq!(rig.number("counter.faults.refuse"), 2);
        assert_eq!(rig.number("counter.faults.fail"), 1);
        b.idle(100);
    });
}

/// As on cxi, whose sends refuse it as its receives do (prov/cxi/src/cxip_msg_hpc.c).
#[test]
fn a_tag_of_more_than_48_bits_is_refused_at_both_ends() {
    pair("profile=messages", |pair| {
        let Pair { a, b, to_b, .. } = pair;
        let (tag, refused) = (1 << 48, -(sys::FI_EINVAL as isize));
        assert_eq!(b.receive_tagged(pair.into(0, 64), tag, 0, context()), refused);
        assert_eq!(a.send_tagged(pair.from(8), *to_b, tag), refused);
        assert_eq!(a.inject_tagged(pair.from(8), *to_b, tag), refused);
    });
}

#[test]
fn the_profile_of_messages_has_no_one_sided_access() {
    pair("profile=messages", |pair| {
        let to = support::To { peer: pair.to_b, address: 0, key: 0 };
        let absent = -(sys::FI_ENOSYS as isize);
        assert_eq!(pair.a.write(pair.from(8), to), absent);
        assert_eq!(pair.a.read(pair.from(8), to), absent);
        assert_eq!(pair.a.inject_write(pair.from(8), to), absent);
    });
}

#[test]
fn a_receive_of_memory_that_is_bound_elsewhere_is_caught() {
    pair("profile=messages", |pair| {
        let Pair { rig, a, .. } = pair;
        assert_ne!(a.receive_tagged(pair.into(0, 64), 9, 0, context()), 0);
        rig.caught("wrong_descriptor", 1);
    });
}
