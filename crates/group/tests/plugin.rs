//! The loader, the channels and the collectives over a real plugin: every version of the table, through the C ABI.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ironrail_group::bootstrap::Local;
use ironrail_group::check;
use ironrail_group::communicator::Communicator;
use ironrail_group::error::{GroupError, MemoryError};
use ironrail_group::loader::{Buffer, Library, Net, Op};
use ironrail_group::patience::Patience;

const WAIT: Duration = Duration::from_secs(20);

fn open(version: u32) -> Arc<Library> {
    let plugin = support::loopback(env!("CARGO_TARGET_TMPDIR"));
    Library::open(plugin.to_str().unwrap(), Some(version)).unwrap()
}

/// Runs one function on every rank of a group of threads.
fn group<T: Send + 'static>(
    version: u32,
    size: usize,
    work: impl Fn(Communicator) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let library = open(version);
    let rank = |mut place: Local| {
        let (library, work) = (Arc::clone(&library), work.clone());
        thread::spawn(move || {
            let communicator = Communicator::connect(&library, &mut place, None, WAIT).unwrap();
            let out = work(communicator);
            place.leave();
            out
        })
    };
    let ranks: Vec<_> = Local::group(size).into_iter().map(rank).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn every_version_of_the_table_carries_an_all_reduce() {
    for version in 6..=12 {
        support::ranks(&open(version), 3, |group| {
            for count in [1, 5_000, 100_003] {
                let input: Vec<f64> =
                    (0..count).map(|i| check::sample(Op::Sum, group.rank(), i, 1)).collect();
                let mut output = vec![0.0; count];
                group.all_reduce_into(&input, &mut output, Op::Sum).unwrap();
                for (index, sum) in output.iter().enumerate() {
                    let all = (0..3).map(|rank| check::sample::<f64>(Op::Sum, rank, index, 1));
                    assert_eq!(*sum, all.sum::<f64>());
                }
            }
        });
    }
}

#[test]
fn properties_are_read_from_every_version() {
    for version in 6..=12 {
        let net = Net::init(&open(version), 1).unwrap();
        assert_eq!((net.devices().unwrap(), net.library().version()), (1, version));
        let properties = net.properties(0).unwrap();
        assert_eq!((&*properties.name, properties.guid, properties.speed_mbps), ("lo0", 7, 25_000));
        assert_eq!((properties.port, properties.latency_us, properties.comms_max), (1, 12.0, 1024));
        assert_eq!(properties.rail, (version == 12).then_some(3));
        assert_eq!(properties.plane, None);
        assert_eq!(properties.parts, if version >= 9 { vec![0] } else { vec![] });
        assert!(net.properties(1).is_err());
    }
}

#[test]
fn the_newest_table_is_taken_unless_one_is_asked_for() {
    let plugin = support::loopback(env!("CARGO_TARGET_TMPDIR")).to_str().unwrap();
    let library = Library::open(plugin, None).unwrap();
    assert_eq!(library.version(), 12);
    assert_eq!(library.versions(), [12, 11, 10, 9, 8, 7, 6]);
    let why = Library::open(plugin, Some(13)).unwrap_err().to_string();
    assert!(why.contains("there are v6 to v12"), "{why}");
}

#[test]
fn sizes_come_back_and_receives_may_be_larger_than_sends() {
    group(12, 2, |mut communicator| {
        let mut input = Buffer::new(4096).unwrap();
        let mut output = Buffer::new(8 * 4096).unwrap();
        let send = communicator.next.register(&input).unwrap();
        let receive = communicator.previous.register(&output).unwrap();
        input.slice_mut::<u8>(0..4096).unwrap().fill(7);
        let sizes = [0, 1, 4095, 4096, 17];
        let mut patience = Patience::new(WAIT, 32);
        for (slot, _) in sizes.iter().enumerate() {
            let room = slot * 4096..(slot + 1) * 4096;
            assert!(communicator.previous.receive(&mut output, room, &receive).unwrap());
        }
        for len in sizes {
            assert!(communicator.next.send(&input, 0..len, &send).unwrap());
        }
        for (slot, len) in sizes.into_iter().enumerate() {
            assert_eq!(
                output.slice::<u8>(slot * 4096..slot * 4096 + 1),
                Err(MemoryError::InFlight)
            );
            let came = loop {
                match communicator.previous.poll().unwrap() {
                    Some(came) => break came,
                    None => patience.idle(|| "a message".to_owned()).unwrap(),
                }
            };
            assert_eq!(came, len);
            let room = output.slice::<u8>(slot * 4096..(slot + 1) * 4096).unwrap();
            assert!(
                room[..len].iter().all(|byte| *byte == 7)
                    && room[len..].iter().all(|byte| *byte == 0)
            );
        }
        while communicator.next.outstanding() > 0 {
            communicator.next.poll().unwrap();
        }
    });
}

#[test]
fn memory_of_another_buffer_is_refused_before_the_plugin_sees_it() {
    group(12, 2, |mut communicator| {
        let (here, there) = (Buffer::new(64).unwrap(), Buffer::new(64).unwrap());
        let region = communicator.next.register(&here).unwrap();
        let refused = communicator.next.send(&there, 0..64, &region);
        assert!(matches!(refused, Err(GroupError::Memory(MemoryError::ForeignRegion))));
        let refused = communicator.next.send(&here, 0..65, &region);
        assert!(matches!(refused, Err(GroupError::Memory(MemoryError::OutOfRange))));
    });
}

#[test]
fn an_error_of_the_plugin_carries_what_it_said() {
    let both = Arc::new(Barrier::new(2));
    let said = group(12, 2, move |mut communicator| {
        let (input, mut output) = (Buffer::new(64).unwrap(), Buffer::new(64).unwrap());
        let send = communicator.next.register(&input).unwrap();
        let receive = communicator.previous.register(&output).unwrap();
        let mut ended = Ok(());
        if communicator.ring().rank == 0 {
            // One byte more than the receive has room for: the plugin refuses it.
            ended = communicator.next.send(&input, 0..9, &send).map(drop);
        } else {
            let deadline = Instant::now() + WAIT;
            while ended.is_ok() && Instant::now() < deadline {
                ended = communicator.previous.receive(&mut output, 0..8, &receive).map(drop);
                ended = ended.and_then(|()| communicator.previous.poll().map(drop));
            }
        }
        both.wait();
        ended.err().map(|error| error.to_string())
    });
    assert_eq!(said[0], None);
    let error = said[1].as_deref().unwrap();
    assert!(error.contains("returned ncclInvalidUsage"), "{error}");
    assert!(error.contains("a message longer than its receive"), "{error}");
}

#[test]
fn a_rank_that_does_not_accept_is_named() {
    let library = open(12);
    let mut places = Local::group(2);
    let mut absent = places.pop().unwrap();
    let mut here = places.pop().unwrap();
    let (gives_up, has_given_up) = mpsc::channel();
    // Rank 1 publishes a handle and then makes no call.
    let listener = thread::spawn({
        let library = Arc::clone(&library);
        move || {
            let net = Net::init(&library, 1).unwrap();
            let (_listener, handle) = net.listen(0).unwrap();
            ironrail_group::bootstrap::Bootstrap::all_gather(&mut absent, &handle.0, WAIT).unwrap();
            let _ = has_given_up.recv();
            absent.leave();
        }
    });
    let error =
        Communicator::connect(&library, &mut here, None, Duration::from_secs(2)).unwrap_err();
    assert!(error.to_string().ends_with("rank 1 to connect"), "{error}");
    gives_up.send(()).unwrap();
    listener.join().unwrap();
}
