//! The timed loop allocates nothing once it runs.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread;
use std::time::Duration;

use ironrail_group::bootstrap::Local;
use ironrail_group::collectives::{self, WINDOW, Workspace};
use ironrail_group::communicator::Communicator;
use ironrail_group::loader::{DataType, Library, Op};
use ironrail_group::plan::{self, Cut};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work; counting touches no memory it manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn an_all_reduce_allocates_nothing() {
    const WAIT: Duration = Duration::from_secs(20);
    let plugin = support::loopback(env!("CARGO_TARGET_TMPDIR"));
    let library = Library::open(plugin.to_str().unwrap(), None).unwrap();
    let cut = Cut { piece_bytes: 4096, piece_bytes_min: 1024, depth: 4 };
    let (kind, count) = (DataType::F32, 100_003);
    let ranks: Vec<_> = Local::group(3)
        .into_iter()
        .map(|mut place| {
            let library = library.clone();
            thread::spawn(move || {
                let mut communicator =
                    Communicator::connect(&library, &mut place, None, WAIT).unwrap();
                let bytes = count * kind.bytes();
                let staging = cut.slots() * cut.piece_bytes;
                let mut workspace = Workspace::new(&communicator, bytes, bytes, staging).unwrap();
                let plan = plan::all_reduce(communicator.ring(), count, kind.bytes(), cut);
                let before = ALLOCATIONS.get();
                for _ in 0..20 {
                    collectives::run(
                        &mut communicator,
                        &mut workspace,
                        &plan,
                        (kind, Op::Sum),
                        WINDOW,
                    )
                    .unwrap();
                }
                let after = ALLOCATIONS.get();
                place.leave();
                after - before
            })
        })
        .collect();
    for rank in ranks {
        assert_eq!(rank.join().unwrap(), 0);
    }
}
