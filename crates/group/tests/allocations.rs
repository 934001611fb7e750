//! In steady state no call allocates, none registers memory, and what was dropped is freed.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use ironrail_group::bootstrap::{Hub, Remote};
use ironrail_group::error::GroupError;
use ironrail_group::group::{Builder, Group};
use ironrail_group::halo::FixedHalo1d;
use ironrail_group::loader::{Foreign, ForeignMut, Library, Op};
use ironrail_group::memory::Registered;
use ironrail_group::messages::Any;
use ironrail_group::objects::{Leaf, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work; counting touches no memory it manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() + layout.size()));
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Sends long messages from every rank to every other: `work` may need one direction of a connection only, and the other one would be accepted
/// while allocations are counted.
fn open_both_directions(group: &Group, registered: &[f32], unregistered: &[f32]) {
    let (rank, size) = (group.rank(), group.size());
    let mut came = vec![0.0; registered.len()];
    for shift in 1..size {
        let (to, from) = ((rank + shift) % size, (rank + size - shift) % size);
        for data in [registered, unregistered] {
            group.sendrecv(data, to, &mut came, from, 99).unwrap();
        }
    }
}

/// Runs `work` a few times, then counts the allocations and registrations of twenty more runs on this thread.
fn counted(
    size: usize,
    work: impl Fn(&Group, &mut Registered<f32>, &mut [f32]) -> Result<(), GroupError>
    + Clone
    + Send
    + 'static,
) {
    let plugin = support::loopback(env!("CARGO_TARGET_TMPDIR"));
    let library = Library::open(plugin.to_str().unwrap(), None).unwrap();
    let counts = support::ranks(&library, size, move |group| {
        let mut registered = group.buffer(100_003).unwrap();
        let mut unregistered = vec![1.0; 100_003];
        open_both_directions(&group, &registered, &unregistered);
        let mut run = |times| {
            for _ in 0..times {
                work(&group, &mut registered, &mut unregistered).unwrap();
            }
        };
        run(5);
        let (allocations, registrations) = (ALLOCATIONS.get(), group.registrations());
        run(20);
        let counted = (ALLOCATIONS.get() - allocations, group.registrations() - registrations);
        group.barrier().unwrap();
        counted
    });
    assert_eq!(counts, vec![(0, 0); size]);
}

/// The bytes that rank 0 allocates to join a group of so many.
fn joining(size: usize) -> usize {
    let library = support::library();
    let hub = Hub::start(SocketAddr::from(([127, 0, 0, 1], 0)), size, support::WAIT).unwrap();
    let joins = |meeting| {
        let library = Arc::clone(&library);
        move || {
            let place = Remote::join(meeting, support::WAIT).unwrap();
            let before = BYTES.get();
            let group = Builder::new(&library).join(place).unwrap();
            let bytes = BYTES.get() - before;
            group.meet(&[]).unwrap();
            bytes
        }
    };
    let ranks: Vec<_> = (0..size).map(|rank| thread::spawn(joins(hub.meeting(rank)))).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).next().unwrap()
}

#[test]
fn a_peer_takes_little_memory_before_its_connections() {
    let (alone, with_peers) = (joining(1), joining(17));
    let each = (with_peers - alone) / 16;
    assert!(each < 4 << 10, "{each} bytes");
}

#[test]
fn collectives_allocate_and_register_nothing() {
    counted(3, |group, registered, unregistered| {
        group.all_reduce(registered, Op::Sum)?;
        group.all_reduce(&mut unregistered[..100], Op::Max)?;
        group.all_reduce_into(unregistered, registered, Op::Avg)?;
        group.reduce_in_place(registered, Op::Sum, 1)?;
        group.broadcast(unregistered, 2)?;
        group.all_gather_in_place(&mut registered[..99_999])?;
        group.reduce_scatter(&unregistered[..99_999], &mut registered[..33_333], Op::Min)?;
        group.all_to_all(&unregistered[..999], &mut registered[..999])?;
        group.barrier()
    });
}

#[test]
fn messages_allocate_and_register_nothing() {
    counted(2, |group, registered, unregistered| {
        let peer = 1 - group.rank();
        for count in [1, 100, 100_003] {
            group.sendrecv(&unregistered[..count], peer, &mut registered[..count], peer, 5)?;
            if group.rank() == 0 {
                group.send(&registered[..count], peer, 7)?;
                group.recv(&mut unregistered[..count], Any, Any)?;
            } else {
                group.recv(&mut unregistered[..count], peer, 7)?;
                group.send(&registered[..count], peer, 9)?;
            }
        }
        group.group(|block| {
            block.send(&registered[..50_000], peer, 1)?;
            block.send(&registered[..10], group.rank(), 2)?;
            let (own, theirs) = unregistered.split_at_mut(10);
            block.recv(theirs, peer, 1)?;
            block.recv(own, group.rank(), 2)
        })
    });
}

#[test]
fn messages_that_their_receives_refuse_allocate_nothing() {
    counted(2, |group, registered, unregistered| {
        if group.rank() == 0 {
            unregistered.fill(2.0);
            registered.fill(3.0);
            group.send(unregistered, 1, 1)?;
            group.send(registered, 1, 1)?;
            return group.send(&unregistered[..50_000], 1, 1);
        }
        for _ in 0..2 {
            let refused = group.recv(&mut unregistered[..10], 0, 1);
            assert!(matches!(refused, Err(GroupError::TooLong { .. })), "{refused:?}");
        }
        assert_eq!(unregistered[..10], [1.0; 10], "it is unchanged");
        group.recv(&mut registered[..50_000], 0, 1)?;
        assert!(registered[..50_000].iter().all(|came| *came == 2.0));
        Ok(())
    });
}

#[test]
fn rounds_of_fixed_halos_allocate_and_register_nothing() {
    let plugin = support::loopback(env!("CARGO_TARGET_TMPDIR"));
    let library = Library::open(plugin.to_str().unwrap(), None).unwrap();
    for len in [100, 300_000] {
        let counts = support::ranks(&library, 3, move |group| {
            let mut halo = FixedHalo1d::<f32>::ring(&group, len, len).unwrap();
            let mut run = |times| {
                for _ in 0..times {
                    halo.round(|left, right| (left[0], right[0]) = (1.0, 2.0)).unwrap();
                }
            };
            run(5);
            let allocations = ALLOCATIONS.get();
            run(20);
            let counted = ALLOCATIONS.get() - allocations;
            group.barrier().unwrap();
            counted
        });
        assert_eq!(counts, [0; 3]);
    }
}

#[test]
fn a_long_array_of_an_object_is_not_copied_to_be_sent_and_once_to_be_reduced() {
    let plugin = support::loopback(env!("CARGO_TARGET_TMPDIR"));
    let library = Library::open(plugin.to_str().unwrap(), None).unwrap();
    support::ranks(&library, 2, |group| {
        let leaf = Leaf::from(vec![group.rank() as u64; 1 << 20]);
        let bytes = size_of_val(&leaf[..]);
        let object = (leaf, vec![1_u8; 10]);
        let counted = |work: &dyn Fn()| {
            let before = BYTES.get();
            work();
            BYTES.get() - before
        };
        let send = || {
            if group.rank() == 0 {
                group.send_obj(&object, 1, 0).unwrap();
            } else {
                let (came, _) = group.recv_obj::<(Leaf<u64>, Vec<u8>)>(0, 0).unwrap();
                assert!(came.0.iter().all(|element| *element == 0));
            }
        };
        let reduce = || drop(group.all_reduce_obj(&object, Op::Sum).unwrap());
        // The first ones make the memory of connections and collectives, which stays.
        send();
        reduce();
        // Memory of a length that a peer names is requested before it is made, so it counts twice.
        let made = bytes * 2;
        let (sent, most) = (counted(&send), if group.rank() == 0 { 0 } else { made });
        assert!(sent < most + bytes / 8, "{sent} bytes allocated for an array of {bytes}");
        let reduced = counted(&reduce);
        assert!(reduced < made + bytes / 8, "{reduced} bytes allocated for an array of {bytes}");
        group.barrier().unwrap();
    });
}

#[test]
fn an_object_of_numbers_allocates_only_what_it_is_made_of() {
    let object = vec![1.5_f64; 1000];
    let bytes = size_of_val(&object[..]);
    assert_per_object(&object, [0, bytes]);
}

/// The C library would give so long a packet's memory back to the system, and fetch it again page by page. The receiver's array refers to
/// the packet, whose memory is requested before it is made, so it counts twice.
#[test]
fn an_array_in_a_packet_leaves_in_the_memory_of_the_packet_before() {
    let object = Leaf::from(vec![1.5_f64; 8 << 10]);
    let bytes = size_of_val(&object[..]);
    assert_per_object(&object, [0, 2 * bytes]);
}

/// Sends an object often; each time sender and receiver allocate these bytes and at most 1,000 others.
fn assert_per_object<O>(object: &O, bytes: [usize; 2])
where
    O: Serialize + DeserializeOwned + Schema + PartialEq + Debug + Clone + Send + 'static,
{
    let plugin = support::loopback(env!("CARGO_TARGET_TMPDIR"));
    let library = Library::open(plugin.to_str().unwrap(), None).unwrap();
    let object = object.clone();
    support::ranks(&library, 2, move |group| {
        let exchange = |times| {
            for _ in 0..times {
                if group.rank() == 0 {
                    group.send_obj(&object, 1, 0).unwrap();
                    group.recv::<u8>(&mut [0], 1, 1).unwrap();
                } else {
                    let (came, _) = group.recv_obj::<O>(0, 0).unwrap();
                    assert_eq!(came, object);
                    group.send(&[1_u8], 0, 1).unwrap();
                }
            }
        };
        exchange(5);
        let before = BYTES.get();
        exchange(20);
        let (allocated, made) = (BYTES.get() - before, 20 * bytes[group.rank()]);
        assert!(allocated < made + 20 * 1000, "{allocated} bytes allocated, not {made}");
        group.barrier().unwrap();
    });
}

/// Memory of another library, which says when it is freed.
struct Owner {
    elements: Vec<u64>,
    is_freed: Arc<AtomicBool>,
    /// Where freeing it calls this group, too.
    calls: Option<Group>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(group) = self.calls.take() {
            let (calls, has_called) = mpsc::channel();
            // A call that does not return must not hang the test.
            thread::spawn(move || calls.send(group.registrations()));
            if has_called.recv_timeout(support::WAIT / 6).is_err() {
                return;
            }
        }
        self.is_freed.store(true, Ordering::Release);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sent {
    Elements,
    Object,
}

const COUNT: usize = 100_000;

/// Begins to send memory of another library to rank 1, and drops the send and the memory. Whether that is freed.
fn drop_a_send(group: &Group, sent: Sent) -> Arc<AtomicBool> {
    let is_freed = Arc::<AtomicBool>::default();
    let owner = Owner { elements: vec![7; COUNT], is_freed: Arc::clone(&is_freed), calls: None };
    let base = NonNull::from(&owner.elements[0]);
    // SAFETY: the elements of the vector stay where they are when it is moved, and nothing writes to them.
    let elements = unsafe { Foreign::new(base, COUNT, Box::new(owner)) };
    match sent {
        Sent::Elements => drop(group.isend(elements, 1, 1).unwrap()),
        Sent::Object => drop(group.isend_obj(&Leaf::from(elements), 1, 1).unwrap()),
    }
    is_freed
}

fn await_free(is_freed: &AtomicBool) {
    let deadline = Instant::now() + support::WAIT;
    while !is_freed.load(Ordering::Acquire) {
        assert!(Instant::now() < deadline, "it is kept");
        thread::yield_now();
    }
}

#[test]
fn the_memory_of_a_send_that_was_dropped_is_freed_once_it_was_sent() {
    support::ranks(&support::library(), 2, |group| {
        for sent in [Sent::Elements, Sent::Object].repeat(10) {
            if group.rank() == 1 {
                group.meet(&[]).unwrap();
                let last = match sent {
                    Sent::Elements => group.recv_vec::<u64>(0, 1).unwrap().0[COUNT - 1],
                    Sent::Object => group.recv_obj::<Leaf<u64>>(0, 1).unwrap().0[COUNT - 1],
                };
                assert_eq!(last, 7);
                group.send(&[1_u8], 0, 1).unwrap();
                continue;
            }
            let is_freed = drop_a_send(&group, sent);
            assert!(!is_freed.load(Ordering::Acquire), "it is still to be sent");
            group.meet(&[]).unwrap();
            // This thread's polls end the send, and nothing moves after it.
            group.recv(&mut [0_u8], Any, 1).unwrap();
            await_free(&is_freed);
        }
    });
}

#[test]
fn the_memory_of_a_receive_that_was_dropped_is_freed_once_its_message_is_there() {
    support::ranks(&support::library(), 2, |group| {
        if group.rank() == 0 {
            group.send(&vec![7_u64; COUNT], 1, 1).unwrap();
            group.send(&[1_u8], 1, 2).unwrap();
            return;
        }
        let is_freed = Arc::<AtomicBool>::default();
        let mut owner =
            Owner { elements: vec![0; COUNT], is_freed: Arc::clone(&is_freed), calls: None };
        let base = NonNull::from(&mut owner.elements[0]);
        // SAFETY: the elements of the vector stay where they are when it is moved, and nothing else accesses them.
        let elements = unsafe { ForeignMut::new(base, COUNT, Box::new(owner)) };
        // The message is there, so the receive takes it at once.
        group.probe(0, 1).unwrap();
        drop(group.irecv(elements, 0, 1).unwrap());
        group.recv(&mut [0_u8], 0, 2).unwrap();
        await_free(&is_freed);
    });
}

#[test]
fn the_memory_of_a_send_that_was_dropped_is_freed_when_the_group_fails_or_ends() {
    for (sent, fails) in [
        (Sent::Elements, true),
        (Sent::Elements, false),
        (Sent::Object, true),
        (Sent::Object, false),
    ] {
        support::ranks(&support::library(), 2, move |group| {
            // An abort ends it on both.
            let meet = |group: &Group| assert_eq!(group.meet(&[]).is_err(), fails);
            if group.rank() == 1 {
                return meet(&group);
            }
            let is_freed = drop_a_send(&group, sent);
            if fails {
                group.abort();
                await_free(&is_freed);
            }
            meet(&group);
            drop(group);
            assert!(is_freed.load(Ordering::Acquire), "{sent:?}: it is kept");
        });
    }
}

#[test]
fn memory_whose_owner_calls_the_group_is_freed() {
    support::ranks(&support::library(), 2, |group| {
        for is_dropped in [false, true] {
            if group.rank() == 1 {
                group.meet(&[]).unwrap();
                group.recv_obj::<Leaf<u64>>(0, 1).unwrap();
                group.send(&[1_u8], 0, 1).unwrap();
                continue;
            }
            let is_freed = Arc::<AtomicBool>::default();
            let calls = Some(group.clone());
            let owner = Owner { elements: vec![7; COUNT], is_freed: Arc::clone(&is_freed), calls };
            let base = NonNull::from(&owner.elements[0]);
            // SAFETY: as in `drop_a_send`.
            let leaf = Leaf::from(unsafe { Foreign::new(base, COUNT, Box::new(owner)) });
            let sending = group.isend_obj(&leaf, 1, 1).unwrap();
            drop(leaf);
            group.meet(&[]).unwrap();
            // It has ended then, as far as the other rank is concerned.
            group.recv(&mut [0_u8], Any, 1).unwrap();
            if is_dropped {
                drop(sending)
            } else {
                sending.wait().unwrap()
            }
            await_free(&is_freed);
        }
    });
}
