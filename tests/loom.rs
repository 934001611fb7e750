//! What threads share without a lock, tried by loom in every order that the memory model allows.
//!
//! It runs with `--cfg loom` (scripts/races loom), and is empty else. The types stand in files that are compiled here a
//! second time, over loom's atomics.
#![cfg(loom)]

#[path = "../crates/fabric/src/lockless.rs"]
#[allow(dead_code, reason = "the plugin uses all of it")]
mod lockless;
#[path = "../src/abi/published.rs"]
mod published;

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

use atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use lockless::{Count, Numbers, load_words, store_words};
use loom::sync::Arc;
use loom::thread;
use proto::mailbox::Mailbox;
use proto::{
    CommId, FlowParameters, Line, LineSink, LineSource, Path, Receive, ReceiveFlow, Window,
};
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

/// Another logger than the last may be seen for a while, but none that is not ready.
#[test]
fn what_was_written_before_publishing_is_seen_with_it() {
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

/// A line of a mailbox, which a provider's thread or process writes while we read it.
#[derive(Debug)]
struct Place([AtomicU64; WORDS]);

const WORDS: usize = 8;

impl LineSource for &Place {
    fn word(&self, place: u32, index: usize) -> u64 {
        assert_eq!(place, 0);
        self.0[index].load(Ordering::Acquire)
    }

    fn words<const COUNT: usize>(&self, place: u32) -> [u64; COUNT] {
        assert_eq!(place, 0);
        load_words(self.0.first_chunk().expect("a line is this long"))
    }
}

/// What a receiver writes its adverts into before they travel.
struct Staging([u64; WORDS]);

impl LineSource for Staging {
    fn word(&self, _: u32, index: usize) -> u64 {
        self.0[index]
    }
}

impl LineSink for Staging {
    fn store(&mut self, _: u32, index: usize, word: u64) {
        self.0[index] = word;
    }
}

fn parameters() -> FlowParameters {
    FlowParameters {
        window: Window::SINGLE,
        rails: 1,
        nonce: 0x0123_4567_89ab_cdef,
        comm: CommId::new(5).expect("it has 14 bits"),
        path: Path::Immediate { eight: true },
        fins: true,
        true_lengths: true,
        sends_arrive_when_complete: false,
        largest_write: 1 << 20,
        first_line: Line::FIRST,
    }
}

/// The words that travel for the first receive, of this address.
fn advert(address: u64) -> [u64; WORDS] {
    let mut flow = ReceiveFlow::new(parameters()).expect("the parameters are valid");
    let mut staging = Staging([0; WORDS]);
    let receive = Receive { address, len: !address, tag: 7, keys: &[address ^ 0x55] };
    flow.post(&mut staging, &[receive], false).expect("the flow is well").expect("there is room");
    flow.next_write(&mut staging).expect("an advert waits");
    staging.0
}

/// Nothing orders a peer's words: the check alone tells a line that has landed from one that is landing.
#[test]
fn a_line_is_read_whole_or_not_at_all() {
    const ADDRESS: u64 = 0x7f00_1234_5000;
    let mut model = loom::model::Builder::new();
    // All orders of sixteen accesses are too many: this many switches between the threads are enough to tear a line.
    model.preemption_bound = Some(3);
    model.check(|| {
        // The ring was another connection's before: what lies there is sealed, by another nonce.
        let place = Arc::new(Place(std::array::from_fn(|index| AtomicU64::new(index as u64))));
        let written = Arc::clone(&place);
        let writer = thread::spawn(move || store_words(&written.0, advert(ADDRESS)));
        let mut mailbox = Mailbox::new(&parameters());
        if mailbox.advert(&&*place, Line::FIRST) {
            assert_eq!((mailbox.address(), mailbox.posted()), (ADDRESS, !ADDRESS));
            assert_eq!(mailbox.keys(), [ADDRESS ^ 0x55]);
        }
        writer.join().unwrap();
        assert!(mailbox.advert(&&*place, Line::FIRST), "a line that has landed is there");
    });
}
