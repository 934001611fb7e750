//! What a kernel of NCCL sees that polls flags inside the receive buffer: LL's words and LL128's lines, while messages land. Where lines
//! are torn, NCCL_PROTO must have kept NCCL from LL128.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crate::support::calls::Buffer;
use crate::support::stage::{Part, play};
use crate::support::virtual_fabric::set;
use crate::together::close_together;
use crate::world::{End, World, connect, provider};

const BOUND: Duration = Duration::from_secs(60);
/// Words of 8 bytes: data in the low half, the flag in the high half (NCCL src/include/device.h:75-86).
const WORD: usize = 8;
/// Fifteen words of data, and a word with the flag.
const LINE: usize = 128;
const BYTES: usize = 16 << 10;
const MESSAGES: u32 = 60;

#[test]
fn the_profile_of_cxi_tears_lines_and_keeps_nccl_from_polling_them() {
    play(&[provider()], BOUND, |part| tears(part, "cxi"));
}

#[test]
fn the_profile_of_efa_tears_lines_and_keeps_nccl_from_polling_them() {
    play(&[provider()], BOUND, |part| tears(part, "efa"));
}

#[test]
fn the_adversary_tears_lines_and_keeps_nccl_from_polling_them() {
    play(&[provider()], BOUND, |part| tears(part, "adversary"));
}

/// LL128 would fail here, which is why the variable is set. No memory tears words.
fn tears(part: &Part, profile: &str) {
    let (words, lines) = torn(part, profile);
    assert!(lines > 0, "{profile} tears no line any more");
    assert_eq!(words, 0, "{profile}");
    assert_eq!(protocols(), "Simple");
}

#[test]
fn a_fabric_that_keeps_the_order_leaves_nccl_its_protocols() {
    play(&[provider()], BOUND, |part| {
        assert_eq!(torn(part, "tcp"), (0, 0));
        assert_eq!(protocols(), "");
    });
}

#[test]
fn lines_that_efa_grants_are_not_torn_and_leave_nccl_its_protocols() {
    play(&[provider()], BOUND, |part| {
        set("VFABRIC_LINES", "1");
        assert_eq!(torn(part, "efa"), (0, 0));
        assert_eq!(protocols(), "");
    });
}

#[test]
fn a_users_protocols_stay() {
    play(&[provider()], BOUND, |part| {
        set("NCCL_PROTO", "LL,Simple");
        World::open(part, "efa", [2, 2]);
        assert_eq!(protocols(), "LL,Simple");
    });
}

fn protocols() -> String {
    std::env::var("NCCL_PROTO").unwrap_or_default()
}

/// How many words and lines were seen with their flag and without their data.
fn torn(part: &Part, profile: &str) -> (usize, usize) {
    // Empty counts as not set.
    set("NCCL_PROTO", "");
    set("IRONRAIL_STRIPE_MIN", "4K");
    let world = World::open(part, profile, [2, 2]);
    let ends = world.nets.map(End::open);
    let (send, receive) = connect(&ends[0], &ends[1]);
    let net = world.nets[0];
    let (out, into) = (aligned(), aligned());
    let region = net.register(send, out).expect("regMr");
    let target = net.register(receive, into).expect("regMr");
    let (mut words, mut lines) = (0, 0);
    for flag in 1..=MESSAGES {
        out.write(0, &message(flag));
        let received = net.irecv(receive, into.address(), BYTES, 0, target).expect("irecv");
        let received = received.expect("a request");
        // What a kernel sees between the landing of the first byte and the end.
        let mut look = || {
            let bytes = seen(into);
            words += torn_words(&bytes, flag);
            lines += torn_lines(&bytes, flag);
        };
        let mut sent = None;
        while sent.is_none() {
            sent = net.isend(send, out.address(), BYTES, 0, region).expect("isend");
            for end in &ends {
                look();
                end.poll();
            }
        }
        let mut done = false;
        while !done {
            look();
            done = net.test(received).expect("test").is_some();
            look();
            ends[0].poll();
        }
        let sent = sent.expect("the loop ended");
        while net.test(sent).expect("test").is_none() {
            ends.iter().for_each(End::poll);
        }
        assert_eq!(into.read(0, BYTES), message(flag));
    }
    net.deregister(send, region).expect("deregMr");
    net.deregister(receive, target).expect("deregMr");
    net.close_send(send).expect("closeSend");
    net.close_recv(receive).expect("closeRecv");
    close_together(ends);
    (words, lines)
}

/// Each line's flag, then its data: the keeper may land bytes meanwhile, in ascending order.
fn seen(into: Buffer) -> Vec<u8> {
    let line = |at: usize| {
        let flag = into.read(at + LINE - WORD, WORD);
        fence(Ordering::Acquire);
        [into.read(at, LINE - WORD), flag].concat()
    };
    (0..BYTES).step_by(LINE).flat_map(line).collect()
}

/// On a line's boundary, as NCCL's buffers are.
fn aligned() -> Buffer {
    let room = Buffer::new(BYTES + LINE);
    room.part(room.address().next_multiple_of(LINE) - room.address(), BYTES)
}

/// Every word has the flag in its high half and, so that both tests can read it, the flag's double in its low half.
fn message(flag: u32) -> Vec<u8> {
    let word = u64::from(flag) << 32 | u64::from(flag * 2);
    word.to_le_bytes().repeat(BYTES / WORD)
}

fn torn_words(bytes: &[u8], flag: u32) -> usize {
    let torn = |word: &&[u8; WORD]| {
        let [d0, d1, d2, d3, f0, f1, f2, f3] = **word;
        let data = u32::from_le_bytes([d0, d1, d2, d3]);
        u32::from_le_bytes([f0, f1, f2, f3]) == flag && data != flag * 2
    };
    bytes.as_chunks().0.iter().filter(torn).count()
}

fn torn_lines(bytes: &[u8], flag: u32) -> usize {
    let whole = u64::from(flag) << 32 | u64::from(flag * 2);
    let torn = |line: &&[u8]| {
        let words = line.as_chunks::<WORD>().0.iter().map(|word| u64::from_le_bytes(*word));
        let words: Vec<u64> = words.collect();
        words.last() == Some(&whole) && words.iter().any(|word| *word != whole)
    };
    bytes.chunks(LINE).filter(torn).count()
}
