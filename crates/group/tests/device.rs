//! GPU memory, with the driver without a GPU. A process cannot change its driver, so each test runs in a process of its own.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "../../gpu/tests/support/later.rs"]
mod later;
#[path = "../../gpu/tests/support/mod.rs"]
mod standin;
mod support;

use std::env;
use std::process::Command;

use gpu::{DeviceMemory, Devices, Stream};
use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::loader::Op;
use ironrail_group::messages::{DeviceSlice, DeviceStaging};

/// Set in the process that a test starts for itself.
const WITHIN: &str = "DEVICE_TEST_WITHIN";

/// Runs `body` in a process that finds the driver without a GPU, with `words` in STANDIN_CUDA.
fn with(words: &str, test: &str, body: fn()) {
    if env::var_os(WITHIN).is_some() {
        return body();
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(WITHIN, "1")
        .env("LD_LIBRARY_PATH", standin::folder(env!("CARGO_TARGET_TMPDIR")))
        .env("STANDIN_CUDA", words)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(ran, "no test is named {test}");
}

/// Two ranks with a device each.
fn pair<T: Send + 'static>(
    work: impl Fn(&Group, &Devices, DeviceStaging) -> T + Clone + Send + 'static,
) -> Vec<T> {
    support::ranks(&support::library(), 2, move |group| {
        let devices = Devices::open().unwrap();
        let device = i32::try_from(group.rank()).unwrap();
        let staging = group.device_staging(&devices, device).unwrap();
        work(&group, &devices, staging)
    })
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 31 + i / 251 + seed) % 256).unwrap()).collect()
}

fn allocate(devices: &Devices, group: &Group, bytes: usize) -> DeviceMemory {
    devices.allocate(i32::try_from(group.rank()).unwrap(), bytes).unwrap()
}

#[test]
fn messages_between_devices_keep_every_byte() {
    with("", "messages_between_devices_keep_every_byte", || {
        pair(|group, devices, mut staging| {
            // Fewer pieces than the pool has, as many, and more; with and without a partial one.
            for (round, len) in
                [0, 1, 1 << 20, (1 << 20) + 1, 3 << 20, (7 << 20) + 12_345].into_iter().enumerate()
            {
                let memory = allocate(devices, group, len + 16);
                let whole = DeviceSlice::<u8>::new(&memory, 16, len).unwrap();
                if group.rank() == 0 {
                    memory.write(16, &pattern(len, round)).unwrap();
                    staging.send(whole, 1, 5).unwrap();
                    staging.recv(whole, 1, 6).unwrap();
                    assert_eq!(memory.read(16, len).unwrap(), pattern(len, round + 100));
                } else {
                    staging.recv(whole, 0, 5).unwrap();
                    assert_eq!(memory.read(16, len).unwrap(), pattern(len, round));
                    assert_eq!(memory.read(0, 16).unwrap(), [0; 16]);
                    memory.write(16, &pattern(len, round + 100)).unwrap();
                    staging.send(whole, 0, 6).unwrap();
                }
            }
            let memory = allocate(devices, group, 7);
            assert!(DeviceSlice::<u32>::new(&memory, 0, 2).is_err());
            assert!(DeviceSlice::<u8>::new(&memory, usize::MAX, 2).is_err());
        });
    });
}

#[test]
fn collectives_of_devices_are_right() {
    with("", "collectives_of_devices_are_right", || {
        pair(|group, devices, mut staging| {
            let count = (2 << 18) + 77;
            let memory = allocate(devices, group, count * 4);
            let of = |factor: u32| -> Vec<u8> {
                (0..count)
                    .flat_map(|i| (factor * u32::try_from(i).unwrap()).to_le_bytes())
                    .collect()
            };
            memory.write(0, &of(u32::try_from(group.rank()).unwrap() + 1)).unwrap();
            let whole = DeviceSlice::<u32>::new(&memory, 0, count).unwrap();
            staging.all_reduce(whole, Op::Sum).unwrap();
            assert!(memory.read(0, count * 4).unwrap() == of(3));
            if group.rank() == 1 {
                memory.write(0, &of(9)).unwrap();
            }
            staging.broadcast(whole, 1).unwrap();
            assert!(memory.read(0, count * 4).unwrap() == of(9));
        });
    });
}

#[test]
fn bytes_that_a_stream_still_has_to_write_are_sent() {
    with("", "bytes_that_a_stream_still_has_to_write_are_sent", || {
        pair(|group, devices, mut staging| {
            let memory = allocate(devices, group, 5);
            let whole = DeviceSlice::<u8>::new(&memory, 0, 5).unwrap();
            if group.rank() == 0 {
                let stream = Stream::new(devices, 0).unwrap();
                memory.write(0, b"stale").unwrap();
                later::write_later(&stream, memory.address(), b"fresh");
                staging.send(whole.after(&stream), 1, 0).unwrap();
            } else {
                staging.recv(whole, 0, 0).unwrap();
                assert_eq!(memory.read(0, 5).unwrap(), b"fresh");
            }
        });
    });
}

#[test]
fn a_copy_that_fails_is_an_error_of_its_call() {
    with("no-copies", "a_copy_that_fails_is_an_error_of_its_call", || {
        let said = pair(|group, devices, mut staging| {
            let memory = allocate(devices, group, 3 << 20);
            let part = |len| DeviceSlice::<u8>::new(&memory, 0, len).unwrap();
            if group.rank() == 0 {
                let [error, _] = [100, 3 << 20].map(|len| {
                    let error = staging.send(part(len), 1, 0).unwrap_err();
                    // Nothing was sent of what was not copied.
                    group.send(&[7_u8], 1, 0).unwrap();
                    error
                });
                error
            } else {
                for _ in 0..2 {
                    let mut data = [0_u8];
                    group.recv(&mut data, 0, 0).unwrap();
                    assert_eq!(data, [7]);
                }
                staging.all_reduce(part(100), Op::Sum).unwrap_err()
            }
        });
        for error in said {
            assert!(matches!(error, GroupError::Device(_)), "{error}");
            assert!(error.to_string().starts_with("cuMemcpyDtoH answered 999"), "{error}");
        }
    });
}

/// One rank alone has work of a stream to wait for.
#[test]
fn a_collective_whose_stream_has_failed_ends_at_every_rank() {
    with("failed-work", "a_collective_whose_stream_has_failed_ends_at_every_rank", || {
        type Call = fn(&mut DeviceStaging, DeviceSlice<'_, u8>) -> Result<(), GroupError>;
        let calls: [Call; 3] = [
            |staging, data| staging.all_reduce(data, Op::Sum),
            |staging, data| staging.broadcast(data, 0),
            |staging, data| staging.broadcast(data, 1),
        ];
        for call in calls {
            let said = pair(move |group, devices, mut staging| {
                let memory = allocate(devices, group, 100);
                let data = DeviceSlice::<u8>::new(&memory, 0, 100).unwrap();
                // All connections are open, and both ranks know it.
                staging.all_reduce(data, Op::Sum).unwrap();
                group.meet(&[]).unwrap();
                let stream = Stream::new(devices, 0).unwrap();
                let data = if group.rank() == 0 { data.after(&stream) } else { data };
                // A root may have sent its data before the other rank has failed.
                call(&mut staging, data).and_then(|()| group.barrier()).unwrap_err()
            });
            assert!(matches!(&said[0], GroupError::Device(error) if error.code == 719), "{said:?}");
            assert!(matches!(said[1], GroupError::Aborted { .. }), "{said:?}");
        }
    });
}

/// Device 0 can copy no more than the first piece.
fn next_message_after_a_copy_that_fails(sender: usize) {
    pair(move |group, devices, mut staging| {
        const PIECE: usize = 1 << 20;
        let memory = allocate(devices, group, 6 * PIECE);
        let part = |len| DeviceSlice::<u8>::new(&memory, 0, len).unwrap();
        for pieces in [2, 3, 6] {
            let ended = if group.rank() == sender {
                let ended = staging.send(part(pieces * PIECE), 1 - sender, 0);
                memory.write(0, &pattern(PIECE, pieces)).unwrap();
                staging.send(part(PIECE), 1 - sender, 0).unwrap();
                ended
            } else {
                let ended = staging.recv(part(pieces * PIECE), sender, 0);
                staging.recv(part(PIECE), sender, 0).unwrap();
                assert!(memory.read(0, PIECE).unwrap() == pattern(PIECE, pieces));
                ended
            };
            match ended {
                Err(GroupError::Device(_)) if group.rank() == 0 => {}
                Err(GroupError::Mismatch { rank: 0, .. }) if sender == 0 => {}
                Ok(()) if sender == 1 && group.rank() == 1 => {}
                other => panic!("{pieces} pieces of rank {sender}: {other:?}"),
            }
        }
    });
}

#[test]
fn the_rest_of_a_message_whose_copy_fails_at_its_sender_is_not_taken_for_the_next_one() {
    const TEST: &str =
        "the_rest_of_a_message_whose_copy_fails_at_its_sender_is_not_taken_for_the_next_one";
    with("first-copies", TEST, || next_message_after_a_copy_that_fails(0));
}

#[test]
fn the_rest_of_a_message_whose_copy_fails_at_its_receiver_is_not_taken_for_the_next_one() {
    const TEST: &str =
        "the_rest_of_a_message_whose_copy_fails_at_its_receiver_is_not_taken_for_the_next_one";
    with("first-copies", TEST, || next_message_after_a_copy_that_fails(1));
}

#[test]
fn another_number_of_elements_is_an_error_of_the_receiver() {
    with("", "another_number_of_elements_is_an_error_of_the_receiver", || {
        pair(|group, devices, mut staging| {
            let memory = allocate(devices, group, 100);
            if group.rank() == 0 {
                let part = DeviceSlice::<u8>::new(&memory, 0, 60).unwrap();
                staging.send(part, 1, 0).unwrap();
                staging.send(DeviceSlice::<u8>::new(&memory, 0, 0).unwrap(), 1, 0).unwrap();
                staging.send(part, 1, 0).unwrap();
            } else {
                let whole = DeviceSlice::<u8>::new(&memory, 0, 100).unwrap();
                for _ in 0..2 {
                    let error = staging.recv(whole, 0, 0).unwrap_err();
                    assert!(matches!(error, GroupError::Mismatch { rank: 0, .. }), "{error}");
                }
                // The pool is free, and the next message arrives.
                let part = DeviceSlice::<u8>::new(&memory, 0, 60).unwrap();
                staging.recv(part, 0, 0).unwrap();
            }
            assert!(matches!(
                staging.send(DeviceSlice::<u8>::new(&memory, 0, 1).unwrap(), 2, 0),
                Err(GroupError::InvalidArgument(_))
            ));
        });
    });
}

#[test]
fn a_message_of_more_pieces_than_its_receive_is_an_error_and_none_after_it() {
    with("", "a_message_of_more_pieces_than_its_receive_is_an_error_and_none_after_it", || {
        pair(|group, devices, mut staging| {
            const PIECE: usize = 1 << 20;
            let memory = allocate(devices, group, 6 * PIECE);
            let part = |len| DeviceSlice::<u8>::new(&memory, 0, len).unwrap();
            for (sent, received) in [(2, 1), (6, 1), (6, 5), (2, 5), (6, 2)] {
                // The last piece is the whole one of the other, or not.
                for more in [0, 3] {
                    let (sent, received) = (sent * PIECE - more, received * PIECE);
                    if group.rank() == 0 {
                        staging.send(part(sent), 1, 0).unwrap();
                        memory.write(0, &pattern(PIECE, sent)).unwrap();
                        staging.send(part(PIECE), 1, 0).unwrap();
                    } else {
                        let error = staging.recv(part(received), 0, 0).unwrap_err();
                        assert!(matches!(error, GroupError::Mismatch { rank: 0, .. }), "{error}");
                        staging.recv(part(PIECE), 0, 0).unwrap();
                        assert_eq!(memory.read(0, PIECE).unwrap(), pattern(PIECE, sent));
                    }
                }
            }
        });
    });
}
