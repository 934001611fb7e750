//! What threads share without a lock, tested by loom in every order that the memory model permits.
//!
//! It runs with `--cfg loom` (scripts/races loom), and is empty otherwise. The types are in files that are compiled here a second time,
//! with loom's atomics.
#![cfg(loom)]

#[path = "../crates/group/src/loader/claims.rs"]
#[allow(dead_code, reason = "the group library uses all of it")]
mod claims;
#[path = "../crates/fabric/src/lockless.rs"]
#[allow(dead_code, unreachable_pub, reason = "the plugin uses all of it")]
mod lockless;
#[path = "../src/abi/published.rs"]
mod published;

mod atomic {
    pub(crate) use loom::sync::atomic::{
        AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

use atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use claims::{Claims, Use};
use lockless::{Count, Numbers, after_polls, load_words, store_in_order, store_words};
use loom::sync::Arc;
use loom::thread;
use proto::packet::{HEADER_BYTES, Header, POISON, Ring, check};
use proto::{InboxMemory, Nonce, PacketNumber};
use published::Published;

/// Two more threads than this one, each with `body` and its number.
fn beside(body: impl Fn(u64) + Send + Sync + 'static) -> [thread::JoinHandle<()>; 2] {
    let body = std::sync::Arc::new(body);
    [1, 2].map(|number| {
        let body = std::sync::Arc::clone(&body);
        thread::spawn(move || body(number))
    })
}

fn meet(threads: [thread::JoinHandle<()>; 2]) {
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_count_loses_nothing() {
    loom::model(|| {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let shared = Arc::clone(&count);
        let threads = beside(move |number| {
            shared.up();
            shared.up();
            assert!((1..=4).contains(&shared.value()));
            if number == 1 {
                shared.down();
            }
        });
        assert!(count.value() <= 4);
        meet(threads);
        assert_eq!(count.value(), 3);
    });
}

#[test]
fn numbers_are_given_once() {
    loom::model(|| {
        let numbers = Arc::new(Numbers(AtomicU32::new(u32::MAX)));
        let given = Arc::new(loom::sync::Mutex::new(Vec::new()));
        let shared = (Arc::clone(&numbers), Arc::clone(&given));
        let threads = beside(move |_| {
            let number = shared.0.next();
            shared.1.lock().unwrap().push(number);
        });
        let mine = numbers.next();
        meet(threads);
        let mut all = given.lock().unwrap().clone();
        all.push(mine);
        all.sort_unstable();
        assert_eq!(all, [0, 1, u32::MAX]);
    });
}

/// Another logger than the last one may be seen for a while, but none that is incomplete.
#[test]
fn words_written_before_a_publish_are_seen_with_it() {
    loom::model(|| {
        let published = Arc::new(Published(AtomicPtr::new(std::ptr::null_mut())));
        let ready = Arc::new([1, 2].map(|_| AtomicU64::new(0)));
        let shared = (Arc::clone(&published), Arc::clone(&ready));
        let threads = beside(move |number| {
            let mine = usize::try_from(number - 1).unwrap();
            shared.1[mine].store(number, Ordering::Relaxed);
            shared.0.publish(mine);
            assert!(shared.0.get().is_some());
        });
        if let Some(seen) = published.get() {
            assert_eq!(ready[seen].load(Ordering::Relaxed), seen as u64 + 1);
        }
        meet(threads);
        assert!(published.get().is_some());
    });
}

/// As NCCL's kernels poll the flag at the end of a line of LL128.
#[test]
fn words_in_order_are_seen_with_those_before_them() {
    loom::model(|| {
        let places = Arc::new([0, 1, 2].map(|_| AtomicU64::new(0)));
        let shared = Arc::clone(&places);
        let writer = thread::spawn(move || store_in_order(&*shared, [1, 2, 3]));
        let [.., flag] = &*places;
        if flag.load(Ordering::Acquire) == 3 {
            assert_eq!(load_words(&*places), [1, 2, 3]);
        }
        writer.join().unwrap();
    });
}

/// As NCCL's proxy polls what a kernel writes, and calls isend.
#[test]
fn what_was_polled_without_an_order_is_followed_by_what_it_announces() {
    loom::model(|| {
        let shared = Arc::new(([0, 1].map(|_| AtomicU64::new(0)), AtomicU64::new(0)));
        let of_kernel = Arc::clone(&shared);
        let kernel = thread::spawn(move || {
            let (data, flag) = &*of_kernel;
            store_words(data, [1, 2]);
            flag.store(1, Ordering::Release);
        });
        let (data, flag) = &*shared;
        if flag.load(Ordering::Relaxed) == 1 {
            after_polls();
            assert_eq!(data.each_ref().map(|word| word.load(Ordering::Relaxed)), [1, 2]);
        }
        kernel.join().unwrap();
    });
}

/// Its entry may be taken by another claim meanwhile.
#[test]
fn what_a_claim_wrote_is_seen_by_a_use_that_it_excludes_no_more() {
    loom::model(|| {
        let shared = Arc::new((Claims::new(), AtomicU64::new(0)));
        let (claims, byte) = &*shared;
        let writes = claims.claim(&(4..8), Use::Write).unwrap();
        let others = Arc::clone(&shared);
        let other = thread::spawn(move || {
            let (claims, byte) = &*others;
            byte.store(1, Ordering::Relaxed);
            claims.release(writes);
            assert_eq!(claims.claim(&(0..1), Use::Read), Some(writes), "the same entry");
        });
        if claims.allow(&(4..8), Use::Read) {
            assert_eq!(byte.load(Ordering::Relaxed), 1);
        }
        other.join().unwrap();
    });
}

/// An inbox of a few words, which a peer writes in any order, and which are read in any.
struct Inbox(Arc<Vec<AtomicU64>>);

impl InboxMemory for Inbox {
    fn load(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Relaxed)
    }

    fn store(&mut self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Relaxed);
    }
}

#[test]
fn a_packet_is_read_whole_or_not_at_all() {
    const NONCE: Nonce = Nonce(0x5eed);
    const BODY: [u64; 2] = [7, 9];
    let bytes = HEADER_BYTES + 8 * 2;
    let (number, acknowledged) = (PacketNumber::new(1), PacketNumber::new(0));
    let header = Header { number, bytes, acknowledged, pad: false };
    let [one, two] = header.words();
    let words = [0, one, two, BODY[0], BODY[1]];
    let sum = check(NONCE, [one, two], words.len(), |word| words[word], |_| [0; 8]);
    loom::model(move || {
        let shared = Arc::new((0..5).map(|_| AtomicU64::new(POISON)).collect::<Vec<_>>());
        let written = Arc::clone(&shared);
        let writer = thread::spawn(move || {
            for (place, word) in written.iter().zip([sum, one, two, BODY[0], BODY[1]]) {
                place.store(word, Ordering::Relaxed);
            }
        });
        let inbox = Inbox(Arc::clone(&shared));
        let seen = Header::validate(&inbox, Ring::SHORT, 0, number, NONCE);
        if seen.is_some() {
            assert_eq!([3, 4].map(|word| inbox.load(word)), BODY, "what was checked is there");
        }
        writer.join().unwrap();
        assert_eq!(Header::validate(&inbox, Ring::SHORT, 0, number, NONCE), Some(header));
    });
}
