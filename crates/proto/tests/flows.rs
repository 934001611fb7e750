//! A sender's and a receiver's flow against each other: every message arrives once, in order, however frames, parts and
//! time are disturbed.

#![allow(clippy::print_stderr, reason = "a seed that fails has to be seen")]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "flows/closing.rs"]
mod closing;
#[path = "flows/hostile.rs"]
mod hostile;
#[path = "flows/pair.rs"]
mod pair;
#[path = "flows/program.rs"]
mod program;
#[path = "flows/random.rs"]
mod random;

use std::time::Duration;

use closing::End;
use pair::{Counters, Pair, Receiving, Sending};
use program::{Item, Program, terms};
use proto::capabilities::ImmediateWidth;
use proto::connection::{ChannelEnd, Which};
use proto::credit::CONNECTION_MESSAGES;
use proto::frame::{Fin, FinStatus, RailNote, RailState};
use proto::ids::Moment;
use proto::split::Cutting;
use proto::{Fault, Frame, InlineLimits, Line, PartWrite, SendPoll, Terms};
use random::Random;

/// Prints the seed if the test ends early.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

fn first_line(random: &mut Random) -> u32 {
    random.of(&[0, 0, 60, 250, u32::MAX - 30])
}

fn pair_of(seed: u64) -> Pair {
    let mut random = Random::new(seed);
    let program = Program::random(&mut random);
    let first = first_line(&mut random);
    Pair::new(program, random, first)
}

#[test]
fn every_message_arrives_once_in_order() {
    let mut all = Counters::default();
    for seed in 0..600 {
        let _seed = Seed(seed);
        let mut pair = pair_of(seed);
        let steps = pair.random.below(2000);
        (0..steps).for_each(|_| pair.step());
        assert!(pair.run_to_rest(), "all requests complete: {:?} {:?}", pair.sender, pair.receiver);
        assert_eq!(pair.fault(), None);
        assert!(pair.sends.iter().all(|send| send.state == Sending::Done));
        for receive in &pair.receives {
            assert!(matches!(receive.state, Receiving::Done(_) | Receiving::Early));
        }
        assert_eq!(pair.accounts[1].parking.cost(), 0);
        assert_eq!(pair.accounts[1].entries_freed, pair.charged);
        assert_eq!(pair.accounts[0].counts.completed, pair.accounts[1].counts.seen);
        assert_eq!(pair.receiver.entries_held(), 0);
        assert_eq!(pair.receiver.dropped(), proto::receive::Dropped::default());
        assert!(close_after(&mut pair), "{:?} {:?}", pair.sender, pair.receiver);
        pair.check_early();
        add(&mut all, pair.counts);
    }
    for (name, count) in [
        ("adverts", all.advert_frames),
        ("dones", all.done_frames),
        ("fins", all.fin_frames),
        ("inline by line", all.inline_named),
        ("inline without an advert", all.inline_free),
        ("parked", all.parked),
        ("early", all.early),
        ("refused posts", all.refused),
        ("parts", all.parts),
        ("messages by tag", all.tagged),
        ("receives cancelled at the provider", all.cancelled),
        ("messages before their receive", all.unexpected),
    ] {
        assert!(count > 100, "{name}: {count}");
    }
}

fn close_after(pair: &mut Pair) -> bool {
    let rest = pair.close_to_rest();
    pair.check_ended();
    rest
}

#[test]
fn an_end_at_any_time_leaves_nothing_behind_and_nothing_lands_late() {
    let ends =
        [End::SenderCloses, End::ReceiverCloses, End::BothClose, End::Withdraw, End::WriteFails];
    for seed in 0..1000 {
        let _seed = Seed(seed);
        let mut pair = pair_of(seed);
        let steps = pair.random.below(700);
        (0..steps).for_each(|_| pair.step());
        let how = pair.random.of(&ends);
        pair.end(how);
        for _ in 0..pair.random.below(300) {
            pair.guard();
            pair.step();
        }
        assert!(close_after(&mut pair), "{how:?} {:?} {:?}", pair.sender, pair.receiver);
    }
}

/// Parts that were in flight still complete lines.
#[test]
fn a_receiver_that_has_failed_returns_each_entry_once() {
    let (mut given, mut late) = (0, 0);
    for seed in 0..600 {
        let _seed = Seed(seed);
        let mut pair = pair_of(seed);
        // Receives that are posted at the provider stay there until they are cancelled.
        if pair.receiver.terms().messages {
            continue;
        }
        let steps = pair.random.below(700);
        (0..steps).for_each(|_| pair.step());
        pair.end(End::Withdraw);
        let freed = pair.accounts[1].entries_freed;
        let now = pair.receiver.release_entries();
        assert_eq!((freed + now, pair.receiver.entries_held()), (pair.charged, 0));
        let done = pair.receiver.done();
        (0..300).for_each(|_| pair.step());
        assert_eq!(pair.accounts[1].entries_freed, freed, "{:?}", pair.receiver);
        given += u32::from(now > 0);
        late += u32::from(pair.receiver.done() != done);
    }
    assert!(given > 100 && late > 10, "{given} {late}");
}

/// A message that is too long, with the sender knowing that from the advert, or not. Then its receiver may withdraw its receives, or
/// close, before the adverts that explain it have left.
#[test]
fn a_message_that_is_too_long_is_an_error_on_both_ends() {
    let mut ended = [0; 2];
    for seed in 0..1800 {
        let _seed = Seed(seed);
        let mut pair = pair_of(seed);
        if pair.program.cut {
            continue;
        }
        let at = pair.random.index(pair.sends.len());
        pair.sends[at].item.len += 1 + pair.receives[at].item.room;
        let steps = pair.random.below(1500);
        (0..steps).for_each(|_| pair.step());
        let mut rounds = 0;
        let mut end = match seed % 3 {
            0 => None,
            1 => Some(0),
            _ => Some(1),
        };
        while pair.sender.fault().is_none() || pair.receiver.fault().is_none() {
            pair.step();
            pair.guard();
            rounds += 1;
            assert!(rounds < 200_000, "{:?} {:?}", pair.sender, pair.receiver);
            if pair.receiver.fault().is_some()
                && pair.sender.fault().is_none()
                && let Some(how) = end.take()
            {
                ended[how] += 1;
                pair.end([End::Withdraw, End::ReceiverCloses][how]);
            }
        }
        for fault in [pair.sender.fault(), pair.receiver.fault()] {
            let Some(Fault::TooLong { sent, posted, .. }) = fault else { panic!("{fault:?}") };
            assert_eq!(sent, pair.sends[at].item.len);
            assert_eq!(posted, pair.receives[at].item.room);
        }
        assert!(pair.close_to_rest(), "{:?} {:?}", pair.sender, pair.receiver);
        pair.check_ended();
    }
    assert!(ended.iter().all(|ended| *ended > 20), "{ended:?}");
}

fn add(all: &mut Counters, one: Counters) {
    all.tagged += one.tagged;
    all.cancelled += one.cancelled;
    all.unexpected += one.unexpected;
    all.advert_frames += one.advert_frames;
    all.done_frames += one.done_frames;
    all.fin_frames += one.fin_frames;
    all.inline_named += one.inline_named;
    all.inline_free += one.inline_free;
    all.parked += one.parked;
    all.early += one.early;
    all.refused += one.refused;
    all.parts += one.parts;
}

fn program(terms: Terms, count: usize, item: Item) -> Program {
    let groups = vec![vec![item]; count];
    Program { terms, groups, cut: false, optional: false, source_host: true }
}

const SHORT: Item = Item { tag: 0, room: 64, len: 8, host: true };
const LONG: Item = Item { tag: 0, room: 65_536, len: 65_536, host: true };

/// The room in the packet differs at each try.
fn send(pair: &mut Pair, index: usize) {
    for _ in 0..100 {
        if pair.sends[index].state == Sending::Waiting {
            pair.submit();
        }
    }
    assert_ne!(pair.sends[index].state, Sending::Waiting, "{:?}", pair.sender);
}

fn settle(pair: &mut Pair) {
    for _ in 0..3 {
        pair.pull_sender();
        pair.pull_urgent();
        while !(pair.frames[0].is_empty() && pair.frames[1].is_empty()) {
            pair.deliver(0);
            pair.deliver(1);
        }
    }
}

#[test]
fn a_ping_that_is_received_inline_needs_neither_advert_nor_done() {
    for grouped in [false, true] {
        let mut pair =
            Pair::new(program(Terms { grouped, ..terms() }, 20, SHORT), Random::new(1), 0);
        for round in 0..20 {
            pair.now = pair.now.plus(Duration::from_micros(5));
            pair.post();
            send(&mut pair, round);
            settle(&mut pair);
            pair.packet_left();
            pair.poll();
            assert_eq!(pair.receives[round].state, Receiving::Done(8));
            assert_eq!(pair.sends[round].state, Sending::Done);
        }
        // For the first receive there is no earlier message to predict an inline one from.
        assert!(pair.counts.advert_frames <= 1, "{:?}", pair.counts);
        assert_eq!(pair.counts.done_frames, 0);
    }
}

#[test]
fn a_stream_of_short_messages_needs_a_done_for_half_of_the_credit() {
    let mut pair = Pair::new(program(terms(), 320, SHORT), Random::new(1), 0);
    for round in 0..320 {
        pair.now = pair.now.plus(Duration::from_micros(1));
        pair.post();
        send(&mut pair, round);
        settle(&mut pair);
        pair.packet_left();
        pair.poll();
    }
    let dones = pair.counts.done_frames;
    assert!((8..=11).contains(&dones), "{:?}", pair.counts);
}

#[test]
fn adverts_of_long_messages_travel_by_halves() {
    let mut pair = Pair::new(program(terms(), 80, LONG), Random::new(1), 0);
    let mut packets = 0;
    let mut before = 0;
    while !pair.is_at_rest() {
        while pair.next_group < 80 && pair.posted.len() < 8 {
            pair.post();
        }
        pair.pull_urgent();
        packets += u64::from(pair.counts.advert_frames > before);
        before = pair.counts.advert_frames;
        pair.deliver(1);
        (0..8).for_each(|_| pair.submit());
        pair.post_part();
        pair.land();
        pair.complete();
        pair.poll();
    }
    assert_eq!(pair.counts.advert_frames, 80);
    assert!(packets <= 40, "{packets} packets for 80 adverts");
}

/// Plays ping-pong with `ahead` receives posted ahead, posted again when all of them are complete.
fn bounce(pair: &mut Pair, rounds: std::ops::Range<usize>, ahead: usize) {
    for round in rounds {
        pair.now = pair.now.plus(Duration::from_micros(5));
        if round % ahead == 0 {
            (0..ahead).for_each(|_| pair.post());
        }
        settle(pair);
        send(pair, round);
        settle(pair);
        while pair.sends[round].state != Sending::Done {
            pair.post_part();
            pair.land();
            pair.complete();
            pair.packet_left();
            pair.poll();
        }
    }
}

#[test]
fn messages_above_3_kib_are_written_where_receives_are_posted_ahead_and_inline_where_one_is() {
    let long = Item { tag: 0, room: 4096, len: 4096, host: true };
    let inline = InlineLimits { unadvertised: 4096, host: 4096 };
    let most = proto::COPIED_AT_MOST;
    for (len, ahead, written) in [(4096, 8, 80), (most + 1, 8, 80), (most, 8, 0), (4096, 1, 0)] {
        let item = Item { len, ..long };
        let terms = Terms { inline, ..terms() };
        let mut pair = Pair::new(program(terms, 80, item), Random::new(1), 0);
        bounce(&mut pair, 0..80, ahead);
        assert_eq!(pair.counts.parts, written, "{len} bytes, {ahead} posted: {:?}", pair.counts);
    }
}

#[test]
fn a_sender_notices_that_receives_are_not_posted_ahead_any_more() {
    let item = Item { tag: 0, room: 4096, len: 4096, host: true };
    let inline = InlineLimits { unadvertised: 4096, host: 4096 };
    let terms = Terms { inline, ..terms() };
    let mut pair = Pair::new(program(terms, 80, item), Random::new(1), 0);
    bounce(&mut pair, 0..16, 8);
    bounce(&mut pair, 16..80, 1);
    let written = pair.counts.parts - 16;
    assert!((1..=8).contains(&written), "{written} of 64 were written, each upon its own advert");
}

#[test]
fn a_lazy_advert_leaves_after_its_wait_and_not_before() {
    let mut pair = Pair::new(program(terms(), 4, SHORT), Random::new(1), 0);
    pair.post();
    send(&mut pair, 0);
    settle(&mut pair);
    let sent = pair.counts.advert_frames;
    pair.accounts[1].set_round_trip(Duration::from_micros(25));
    pair.post();
    let until = pair.now.plus(Duration::from_micros(100));
    let urgency = |pair: &Pair, now: Moment| pair.receiver.urgency(&pair.accounts[1], now);
    assert_eq!(urgency(&pair, pair.now), proto::Urgency::Lazy { until, joins: false });
    pair.now = pair.now.plus(Duration::from_nanos(99_999));
    settle(&mut pair);
    assert_eq!(pair.counts.advert_frames, sent);
    pair.now = until;
    assert_eq!(urgency(&pair, until), proto::Urgency::Urgent);
    settle(&mut pair);
    assert_eq!(pair.counts.advert_frames, sent + 1);
}

#[test]
fn a_done_joins_packets_once_it_returns_an_eighth_of_the_credit() {
    let mut pair = Pair::new(program(terms(), 10, SHORT), Random::new(1), 0);
    // The first message has its advert, and so takes no credit.
    bounce(&mut pair, 0..1, 1);
    for round in 1..10 {
        bounce(&mut pair, round..round + 1, 1);
        let urgency = pair.receiver.urgency(&pair.accounts[1], pair.now);
        let lazy = |joins| matches!(urgency, proto::Urgency::Lazy { joins: is, .. } if is == joins);
        assert!(lazy(8 * round >= CONNECTION_MESSAGES), "after {round}: {urgency:?}");
    }
}

#[test]
fn messages_that_64_parts_cannot_hold_are_delivered_in_rounds() {
    for rails in [1, 3] {
        let cutting = Cutting::new(rails, 512, 256).unwrap();
        let inline = InlineLimits { unadvertised: 0, host: 0 };
        let terms = Terms { cutting, inline, ..terms() };
        for len in [64 * 256, 64 * 256 + 1, 128 * 256, 200 * 256 + 77] {
            let item = Item { tag: 0, room: len + 5, len, host: true };
            let mut pair = Pair::new(program(terms, 2, item), Random::new(len), 7);
            assert!(pair.run_to_rest());
            assert_eq!(pair.fault(), None);
            let parts = 2 * len.div_ceil(256);
            assert_eq!(pair.counts.parts, parts);
            assert_eq!(pair.counts.fin_frames, if len > 64 * 256 { 2 } else { 0 });
        }
    }
}

#[test]
fn a_refused_isend_waits_for_the_peer() {
    let mut pair = Pair::new(program(terms(), 2, LONG), Random::new(1), 0);
    assert!(!pair.sender.waits());
    pair.submit();
    assert!(pair.sender.waits(), "there is no advert, and the peer may be silent");
    pair.post();
    settle(&mut pair);
    send(&mut pair, 0);
    assert!(!pair.sender.waits());
}

/// The receiver learns of it before CLOSE, also if the write fails while the sender closes.
#[test]
fn a_write_that_fails_while_its_sender_closes_is_reported() {
    for closes_first in [false, true] {
        let mut pair = Pair::new(program(terms(), 2, LONG), Random::new(1), 0);
        pair.post();
        settle(&mut pair);
        send(&mut pair, 0);
        let part = pair.sender.next_part(&pair.accounts[0]).unwrap();
        pair.sender.posted(&part, &mut pair.accounts[0]);
        if closes_first {
            pair.sender.close();
            settle(&mut pair);
        }
        pair.sender.write_failed(part.message, part.part, 5, &mut pair.accounts[0]);
        pair.sender.close();
        settle(&mut pair);
        assert!(matches!(pair.receiver.fault(), Some(Fault::PeerFailed { .. })));
        assert!(pair.sender.has_closed());
    }
}

/// The write of a long message fails after a short one behind it has proved too long.
#[test]
fn a_fin_reports_the_fault_of_its_own_message_and_not_the_first_one() {
    let too_long = Item { len: 64, room: 8, ..SHORT };
    let groups = vec![vec![LONG], vec![too_long]];
    let program =
        Program { terms: terms(), groups, cut: false, optional: false, source_host: true };
    let mut pair = Pair::new(program, Random::new(1), 0);
    pair.post();
    settle(&mut pair);
    send(&mut pair, 0);
    let part = pair.sender.next_part(&pair.accounts[0]).unwrap();
    pair.sender.posted(&part, &mut pair.accounts[0]);
    send(&mut pair, 1);
    pair.post();
    while pair.sender.fault().is_none() {
        pair.pull_receiver();
        pair.deliver(1);
        pair.now = pair.now.plus(Duration::from_millis(1));
    }
    assert!(matches!(pair.sender.fault(), Some(Fault::TooLong { .. })));
    pair.sender.write_failed(part.message, part.part, 5, &mut pair.accounts[0]);
    let fin = pair.sender.next_frame(Which::Others, 40);
    assert!(
        matches!(fin, Some(Frame::Fin(Fin { line, status: FinStatus::Failed, .. })) if line == Line::FIRST),
        "{fin:?}"
    );
}

/// The receiver fenced the rail and reported what it lacks before our END came.
#[test]
fn a_part_that_a_lost_rail_lacks_is_not_posted_behind_end() {
    for ends in [false, true] {
        let terms = Terms { cutting: Cutting::new(2, 64 << 10, 1 << 30).unwrap(), ..terms() };
        let mut pair = Pair::new(program(terms, 1, LONG), Random::new(1), 0);
        pair.post();
        settle(&mut pair);
        send(&mut pair, 0);
        let part = pair.sender.next_part(&pair.accounts[0]).unwrap();
        while pair.sender.next_part(&pair.accounts[0]).is_some() {
            pair.post_part();
        }
        while pair.sender.in_flight() > 0 {
            pair.complete();
        }
        pair.sender.rail_left(part.rail);
        assert!(pair.sender.is_quiet());
        if ends {
            pair.sender.end_said();
        }
        list(&mut pair, part.rail, 0);
        assert_eq!(pair.sender.next_part(&pair.accounts[0]).is_some(), !ends);
        if ends {
            pair.sender.ended(ChannelEnd::ByPeer);
            pair.poll();
            assert_eq!(pair.sends[0].state, Sending::Failed);
        }
    }
}

/// A message on the FIN path is posted in rounds of 64 parts. Its memory is deregistered while all of a round are in flight.
#[test]
fn no_further_round_is_posted_from_memory_that_was_given_up() {
    let cutting = Cutting::new(1, 512, 256).unwrap();
    let inline = InlineLimits { unadvertised: 0, host: 0 };
    let terms = Terms { cutting, inline, ..terms() };
    let item = Item { tag: 0, room: 128 * 256, len: 128 * 256, host: true };
    let mut pair = Pair::new(program(terms, 1, item), Random::new(1), 0);
    pair.post();
    settle(&mut pair);
    send(&mut pair, 0);
    while pair.sender.next_part(&pair.accounts[0]).is_some() {
        pair.post_part();
    }
    assert_eq!(pair.sender.in_flight(), 64);
    assert!(pair.sender.feeds_from(0), "the second round is pending");
    assert!(!pair.sender.feeds_from(1), "that is another region");
    pair.sender.give_up_region(0);
    assert!(!pair.sender.feeds_from(0));
    while !pair.wire.is_empty() {
        pair.land();
        pair.complete();
    }
    assert_eq!(pair.sender.next_part(&pair.accounts[0]), None);
    pair.poll();
    assert_eq!(pair.sends[0].state, Sending::Failed);
}

/// Posts all parts of a message over two rails, of which the one of its first part is lost when that part has completed.
/// `all`: the other part has completed, too. Returns the rail.
fn lose_rail_of_first_part(pair: &mut Pair, all: bool) -> u8 {
    pair.post();
    settle(pair);
    send(pair, 0);
    let first = pair.sender.next_part(&pair.accounts[0]).unwrap();
    while let Some(write) = pair.sender.next_part(&pair.accounts[0]) {
        pair.sender.posted(&write, &mut pair.accounts[0]);
        if all || write == first {
            let PartWrite { message, part, .. } = write;
            pair.sender.written(message, part, &mut pair.accounts[0], Moment::default());
        }
    }
    pair.sender.rail_left(first.rail);
    first.rail
}

/// The receiver reports how many parts have arrived by a rail, and that it has no other lines.
fn list(pair: &mut Pair, rail: u8, seen: u32) {
    let to = pair.sender.terms().own;
    let state = RailState::Listed { to, lines: Line::FIRST, seen };
    let listed = RailNote { rail, state };
    pair.sender.received(&Frame::Rail(listed), &mut pair.accounts[0]).unwrap();
}

fn two_rails() -> Pair {
    let terms = Terms { cutting: Cutting::new(2, 64 << 10, 1 << 30).unwrap(), ..terms() };
    Pair::new(program(terms, 1, LONG), Random::new(1), 0)
}

/// Its buffer may hold something else by then.
#[test]
fn a_part_of_a_send_that_was_reported_as_failed_is_not_posted_again() {
    for landed in [true, false] {
        let mut pair = two_rails();
        let rail = lose_rail_of_first_part(&mut pair, landed);
        if landed {
            pair.receiver.withdraw();
            settle(&mut pair);
            assert_eq!(pair.sender.fault(), Some(Fault::Withdrawn));
        } else {
            pair.sender.fail("a bug");
        }
        pair.poll();
        assert_eq!(pair.sends[0].state, Sending::Failed);
        list(&mut pair, rail, 0);
        assert_eq!(pair.sender.next_part(&pair.accounts[0]), None, "landed: {landed}");
        assert!(!pair.sender.feeds_from(0));
        assert_eq!(pair.sender.is_quiet(), landed, "END waits for what is in flight only");
    }
}

#[test]
fn a_part_that_waits_to_be_posted_again_is_dropped_with_its_send() {
    let mut pair = two_rails();
    let rail = lose_rail_of_first_part(&mut pair, true);
    list(&mut pair, rail, 0);
    assert!(pair.sender.next_part(&pair.accounts[0]).is_some() && !pair.sender.is_quiet());
    pair.sender.give_up_region(0);
    assert_eq!(pair.sender.next_part(&pair.accounts[0]), None);
    assert!(!pair.sender.feeds_from(0) && pair.sender.is_quiet());
}

/// Its rail may still be lost, and its parts be posted again, until the receiver has reported its line.
#[test]
fn the_memory_of_a_message_is_in_use_until_its_done() {
    let mut pair = two_rails();
    pair.post();
    settle(&mut pair);
    send(&mut pair, 0);
    while pair.sender.next_part(&pair.accounts[0]).is_some() {
        pair.post_part();
    }
    assert!(pair.sender.feeds_from(0), "its writes may fail");
    for _ in 0..20 {
        pair.land();
        pair.complete();
    }
    assert_eq!((pair.sender.in_flight(), pair.wire.len()), (0, 0));
    assert!(pair.sender.feeds_from(0), "they may be lost");
    assert!(!pair.sender.feeds_from(1));
    settle(&mut pair);
    assert!(!pair.sender.feeds_from(0), "the receiver has it");
    pair.poll();
    assert_eq!(pair.sends[0].state, Sending::Done);
}

/// Its send is reported as failed with the next test.
#[test]
fn a_message_that_has_landed_is_not_sent_again_once_its_connection_has_failed() {
    let mut pair = two_rails();
    let rail = lose_rail_of_first_part(&mut pair, true);
    assert!(pair.sender.feeds_from(0));
    pair.receiver.withdraw();
    settle(&mut pair);
    assert!(!pair.sender.feeds_from(0));
    list(&mut pair, rail, 0);
    assert_eq!(pair.sender.next_part(&pair.accounts[0]), None);
}

/// A lost rail lacks a part, the receiver has not reported it, and the other part is in flight or has completed.
#[test]
fn no_message_is_sent_again_from_memory_that_was_given_up() {
    for all in [false, true] {
        let mut pair = two_rails();
        let rail = lose_rail_of_first_part(&mut pair, all);
        assert!(pair.sender.feeds_from(0));
        pair.sender.give_up_region(0);
        assert!(!pair.sender.feeds_from(0));
        list(&mut pair, rail, 0);
        assert_eq!(pair.sender.next_part(&pair.accounts[0]), None);
        pair.poll();
        assert_eq!(pair.sends[0].state, Sending::Failed);
    }
}

/// Nothing is posted again by then, so its memory may be deregistered.
#[test]
fn a_sender_that_has_closed_or_ended_sends_from_no_memory() {
    let ends: [fn(&mut Pair); 3] = [
        |pair| pair.sender.close(),
        |pair| pair.sender.ended(ChannelEnd::ByPeer),
        |pair| pair.sender.ended(ChannelEnd::Failed),
    ];
    for end in ends {
        let mut pair = two_rails();
        let rail = lose_rail_of_first_part(&mut pair, true);
        list(&mut pair, rail, 0);
        assert!(pair.sender.feeds_from(0), "a part is to be posted again");
        end(&mut pair);
        assert_eq!(pair.sender.next_part(&pair.accounts[0]), None);
        assert!(!pair.sender.feeds_from(0));
    }
}

/// Completions prove arrival, says the provider, so a send is reported with them.
#[test]
fn a_part_that_is_missing_although_its_send_was_reported_fails_both_ends() {
    for arrived in [0, 1] {
        let cutting = Cutting::new(2, 64 << 10, 1 << 30).unwrap();
        let terms = Terms { cutting, proves_arrival: true, ..terms() };
        let mut pair = Pair::new(program(terms, 1, LONG), Random::new(1), 0);
        pair.post();
        settle(&mut pair);
        send(&mut pair, 0);
        let part = pair.sender.next_part(&pair.accounts[0]).unwrap();
        while let Some(PartWrite { message, part, .. }) = pair.sender.next_part(&pair.accounts[0]) {
            pair.post_part();
            pair.sender.written(message, part, &mut pair.accounts[0], Moment::default());
        }
        assert_eq!(pair.sender.poll(part.message), SendPoll::Done { len: LONG.len });
        pair.sender.rail_left(part.rail);
        list(&mut pair, part.rail, arrived);
        let expected = (arrived == 0).then_some(Fault::PartsLost { rail: part.rail });
        assert_eq!(pair.sender.fault(), expected, "{arrived} of one part have arrived");
        settle(&mut pair);
        let reported = matches!(pair.receiver.fault(), Some(Fault::PeerFailed { .. }));
        assert_eq!(reported, arrived == 0, "{arrived} of one part have arrived");
    }
}

#[test]
fn a_message_that_has_arrived_is_no_error_where_its_receiver_ends_before_its_packet_has_left() {
    for (len, ends) in [(8, false), (8, true), (65_536, false), (65_536, true)] {
        let item = Item { len, ..LONG };
        let mut pair = Pair::new(program(terms(), 1, item), Random::new(1), 0);
        pair.post();
        if len > 8 {
            settle(&mut pair);
        }
        send(&mut pair, 0);
        while pair.sender.next_part(&pair.accounts[0]).is_some() {
            pair.post_part();
        }
        settle(&mut pair);
        pair.land();
        pair.poll();
        assert_eq!(pair.receives[0].state, Receiving::Done(len));
        pair.receiver.close(&mut pair.accounts[1]);
        settle(&mut pair);
        assert_eq!(pair.sender.fault(), Some(Fault::Closed));
        pair.poll();
        assert!(matches!(pair.sends[0].state, Sending::Under(_)), "it has not completed");
        if ends {
            pair.sender.ended(ChannelEnd::ByPeer);
            pair.poll();
            assert!(matches!(pair.sends[0].state, Sending::Under(_)), "nor has the channel failed");
        }
        pair.packet_left();
        pair.complete();
        pair.poll();
        assert_eq!(pair.sends[0].state, Sending::Done, "{len} bytes");
    }
}

#[test]
fn a_message_of_a_channel_that_fails_past_its_end_is_an_error() {
    let mut pair = Pair::new(program(terms(), 1, SHORT), Random::new(1), 0);
    send(&mut pair, 0);
    pair.sender.ended(ChannelEnd::ByPeer);
    pair.sender.ended(ChannelEnd::Failed);
    pair.poll();
    assert_eq!(pair.sends[0].state, Sending::Failed);
}

#[test]
fn no_rail_takes_more_than_four_parts_however_busy_the_others_are() {
    for rails in [2, 3, 4, 16_u8] {
        let cutting = Cutting::new(rails.into(), 0, 1 << 30).unwrap();
        let terms = Terms { cutting, ..terms() };
        let len = u64::from(rails) << 22;
        let item = Item { tag: 0, room: len, len, host: true };
        let mut pair = Pair::new(program(terms, 1, item), Random::new(1), 0);
        for rail in 1..cutting.rails {
            pair.accounts[0].loads.posted(rail, 1 << 50);
        }
        pair.post();
        settle(&mut pair);
        send(&mut pair, 0);
        let mut taken = [0; 16];
        while let Some(part) = pair.sender.next_part(&pair.accounts[0]) {
            pair.sender.posted(&part, &mut pair.accounts[0]);
            taken[usize::from(part.rail)] += 1;
        }
        assert!(taken.iter().all(|parts| *parts <= 4), "{taken:?}");
        assert_eq!(taken.iter().sum::<u64>(), 4 * u64::from(rails));
    }
}

#[test]
fn a_message_whose_size_no_immediate_can_carry_takes_the_fin_path() {
    let eight = |immediates, true_lengths| {
        let inline = InlineLimits { unadvertised: 0, host: 0 };
        let terms = Terms { immediates, true_lengths, inline, ..terms() };
        let part = Item { tag: 0, room: 1000, len: 900, host: true };
        let whole = Item { len: 1000, ..part };
        [part, whole].map(|item| {
            let mut pair = Pair::new(program(terms, 1, item), Random::new(3), 0);
            assert!(pair.run_to_rest());
            pair.counts.fin_frames
        })
    };
    assert_eq!(eight(ImmediateWidth::Eight, false), [0, 0]);
    assert_eq!(eight(ImmediateWidth::Four, true), [0, 0]);
    assert_eq!(eight(ImmediateWidth::Four, false), [1, 0]);
    assert_eq!(eight(ImmediateWidth::None, true), [1, 1]);
}

#[test]
fn a_connection_costs_at_most_six_kib_on_either_side() {
    let (sender, receiver) = (
        proto::SendFlow::new(terms()).memory_bytes(),
        proto::ReceiveFlow::new(terms()).memory_bytes(),
    );
    assert!(sender <= 6 << 10 && receiver <= 6 << 10, "{sender} {receiver}");
    let least = proto::window::WINDOW as usize * size_of::<u64>();
    assert!(sender >= least && receiver >= least, "a word per line at the least");
}

#[test]
fn the_bytes_of_a_connection_are_those_of_its_table_in_the_protocols_page() {
    let bytes = |rails| {
        let terms = Terms { cutting: Cutting::new(rails, 0, 1 << 30).unwrap(), ..terms() };
        [proto::SendFlow::new(terms).memory_bytes(), proto::ReceiveFlow::new(terms).memory_bytes()]
    };
    let flows = [size_of::<proto::SendFlow>(), size_of::<proto::ReceiveFlow>()];
    for (side, flow) in flows.into_iter().enumerate() {
        let row = |name: &str| documented(name)[side];
        let rows = ["adverts or slots", "keys", "records of sends", "the flow itself"].map(row);
        let [one, further, parts] =
            ["**one data rail**", "each further rail", "rails of parts"].map(row);
        assert_eq!(rows.iter().sum::<usize>(), one, "{rows:?}");
        assert_eq!(flow, row("the flow itself"));
        for rails in 1..=4 {
            let parts = if rails > 1 { parts } else { 0 };
            let documented = one + (rails - 1) * further + parts;
            assert_eq!(bytes(rails)[side], documented, "{rails} rails");
        }
    }
}

/// The bytes of a sender and a receiver in one row of docs/protocol.md, section 16: what follows the last `=` of a cell; none are 0.
fn documented(name: &str) -> [usize; 2] {
    let page = include_str!("../../../docs/protocol.md");
    let (_, table) = page.split_once("**Memory of a connection**").unwrap();
    let row = table.lines().find(|line| line.starts_with(&format!("| {name}"))).unwrap();
    let number = |cell: &str| {
        let sum = cell.rsplit('=').next().unwrap().trim().trim_start_matches('*');
        let digits = sum.chars().take_while(|letter| letter.is_ascii_digit() || *letter == ',');
        digits.filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
    };
    let cells: Vec<_> = row.split('|').skip(2).take(2).map(number).collect();
    cells.try_into().unwrap()
}
