//! Messages that are held back to travel together: which may be, what a write takes, and when they are done.

mod pair;

use pair::bundles::Bundles;
use pair::{Pair, parameters};
use proto::bundle::{BUNDLE_PLACE_WORDS, BUNDLE_PLACES, BUNDLED_BYTES_MAX};
use proto::{BundleWrite, FlowParameters, Line, ProtocolError, SendPoll, Window};

const ONE_LAP: u32 = BUNDLE_PLACES;

fn grouped() -> FlowParameters {
    FlowParameters { window: Window::GROUPED, ..parameters() }
}

#[test]
fn a_held_message_is_done_when_the_receivers_done_has_passed_it() {
    let mut world = Bundles::new(parameters());
    world.post(2);
    let line = world.hold(&[3; 8]).expect("its receive allows it");
    assert!(world.pair.sender.holds_back() && world.pair.sender.holds(line));
    assert_eq!(world.take(false), None, "it was not written");
    world.carry(false).expect("a message is held");
    assert!(!world.pair.sender.holds_back());
    assert_eq!(world.poll(line), SendPoll::Pending);
    assert_eq!(world.take(false), Some((line, vec![3; 8])));
    assert!(world.pair.receiver.is_complete(line));
    assert_eq!((world.pair.receiver.size(line), world.pair.receiver.carried(line)), (8, 0));
    assert_eq!(world.poll(line), SendPoll::Pending, "the receiver has not said so");
    world.tell();
    assert_eq!(world.poll(line), SendPoll::Done { len: 8 });
    assert_eq!(world.poll(line), SendPoll::Pending, "it is said once");
}

#[test]
fn a_message_of_any_length_is_whole_whatever_lay_in_its_place_before() {
    for len in 0..=usize::try_from(BUNDLED_BYTES_MAX).unwrap() {
        let mut world = Bundles::new(parameters());
        world.staging.words.fill(u64::MAX);
        world.ring.words.fill(u64::MAX);
        world.post(2);
        let payload: Vec<u8> = (1..=len).map(|byte| u8::try_from(byte).unwrap()).collect();
        let first = world.hold(&payload).unwrap();
        let second = world.hold(&payload).unwrap();
        let write = world.carry(false).unwrap();
        let words = 2 * BUNDLE_PLACE_WORDS;
        assert_eq!(write, BundleWrite { first, count: 2, place: 0, words });
        assert_eq!(world.take_all(), [(first, payload.clone()), (second, payload)], "{len} bytes");
    }
}

#[test]
fn a_place_is_free_when_the_line_a_lap_before_is_done() {
    let mut world = Bundles::new(grouped());
    world.post(ONE_LAP + 8);
    assert_eq!(world.hold_many(ONE_LAP), 32);
    world.carry_all();
    let next = Line::new(ONE_LAP);
    assert!(!world.pair.sender.may_hold(next, 8), "no message is known to have been taken");
    assert_eq!(world.take_all().len(), 32);
    assert!(!world.pair.sender.may_hold(next, 8), "the sender does not know that they were");
    world.tell();
    assert_eq!(world.hold_many(8), 8);

    // Whatever the lines' numbers, and whatever an old look has found: here none was made yet.
    for first in [1, 31, i32::MAX as u32, 1 << 31, (1 << 31) + 5, u32::MAX - 70, u32::MAX - 16] {
        let first_line = Line::new(first);
        let mut world = Bundles::new(FlowParameters { first_line, ..grouped() });
        world.post(ONE_LAP + 8);
        assert_eq!(world.hold_many(ONE_LAP + 8), 32, "from line {first} on");
    }

    // Exactly as many as are done.
    for taken in 1..ONE_LAP {
        let mut world = Bundles::new(grouped());
        world.post(2 * ONE_LAP);
        world.hold_many(ONE_LAP);
        world.carry_all();
        (0..taken).for_each(|_| assert!(world.take(false).is_some()));
        world.tell();
        assert!(world.pair.sender.may_hold(Line::new(ONE_LAP + taken - 1), 8));
        assert!(!world.pair.sender.may_hold(Line::new(ONE_LAP + taken), 8), "{taken} were taken");
        let held = (0..ONE_LAP).take_while(|_| world.hold(&[1; 8]).is_some());
        assert_eq!(held.count(), taken as usize);
    }
}

#[test]
fn a_place_is_not_written_to_while_a_write_may_read_from_it() {
    let mut world = Bundles::new(grouped());
    world.post(ONE_LAP + 8);
    world.hold_many(4);
    world.carry(true).expect("messages are held");
    world.hold_many(ONE_LAP - 4);
    world.carry(true).expect("messages are held");
    assert_eq!(world.take_all().len(), 32);
    world.tell();
    let next = Line::new(ONE_LAP);
    assert!(!world.pair.sender.may_hold(next, 8), "two writes are under way");
    world.pair.sender.bundle_written();
    assert!(!world.pair.sender.may_hold(next, 8), "one is");
    world.pair.sender.bundle_written();
    assert_eq!(world.hold_many(8), 8, "none is");
}

#[test]
fn a_write_ends_where_the_ring_ends() {
    let mut world = Bundles::new(grouped());
    for start in 0..3 * ONE_LAP {
        let from = start % ONE_LAP;
        world.post(ONE_LAP);
        world.hold_many(ONE_LAP);
        let write = world.carry(false).unwrap();
        assert_eq!((write.place, write.count), (from, ONE_LAP - from));
        if from > 0 {
            let write = world.carry(false).unwrap();
            assert_eq!((write.place, write.count), (0, from));
        }
        assert_eq!(world.carry(false), None);
        // One place further in the next round.
        let taken = world.take_all();
        world.report(&taken);
        world.tell();
        polled(&mut world, &taken);
        one_more(&mut world);
    }
}

/// One message alone.
fn one_more(world: &mut Bundles) {
    world.post(1);
    world.hold_many(1);
    world.carry_all();
    let taken = world.take_all();
    world.report(&taken);
    world.tell();
    polled(world, &taken);
}

fn polled(world: &mut Bundles, lines: &[(Line, Vec<u8>)]) {
    for (line, payload) in lines {
        assert_eq!(world.poll(*line), SendPoll::Done { len: payload.len() as u64 });
    }
}

#[test]
fn two_writes_are_under_way_at_most() {
    let mut world = Bundles::new(parameters());
    world.post(8);
    for _ in 0..2 {
        world.hold_many(1);
        assert!(world.carry(true).is_some());
    }
    world.hold_many(2);
    assert_eq!(world.carry(true), None, "two are under way");
    assert!(world.pair.sender.holds_back());
    world.pair.sender.bundle_written();
    assert_eq!(world.carry(true).map(|write| write.count), Some(2));
    // One that the provider has copied is not under way.
    world.pair.sender.bundle_written();
    for _ in 0..3 {
        world.hold_many(1);
        assert!(world.carry(false).is_some());
    }
    assert_eq!(world.take_all().len(), 7);
}

#[test]
fn a_refused_write_is_asked_for_again_with_what_came_since() {
    let mut world = Bundles::new(parameters());
    world.post(4);
    world.hold_many(2);
    let refused = world.pair.sender.next_bundle().unwrap();
    assert_eq!(world.pair.sender.next_bundle(), Some(refused));
    world.hold_many(1);
    assert_eq!(
        world.carry(false).map(|write| (write.first, write.count)),
        Some((refused.first, 3))
    );
    assert_eq!(world.take_all().len(), 3);
}

#[test]
fn held_messages_are_of_lines_that_follow_each_other() {
    let mut world = Bundles::new(parameters());
    world.post(4);
    world.hold(&[1; 8]).unwrap();
    // One that goes by itself, as those do that are in memory of a device.
    assert_eq!(world.submit(0, 8), Some((Line::new(1), true)));
    assert_eq!(world.hold(&[1; 8]), None, "line 1 lies between");
    assert_eq!(world.carry(false).map(|write| write.count), Some(1));
    assert!(world.hold(&[1; 8]).is_some(), "nothing is held any more");
}

#[test]
fn the_lines_of_a_group_are_held_in_their_order_alone() {
    let mut world = Bundles::new(grouped());
    world.pair.post(&[(8, 0), (8, 1), (8, 2), (8, 3)], false).unwrap();
    world.advertise();
    let mut hold = |tag: i32| {
        let (line, may) = world.submit(tag, 8).expect("its receive is advertised");
        if may {
            world.pair.sender.hold(&mut world.staging, line, 8, [7; 2]);
        } else {
            world.pair.sender.posted(line, 1, 1);
        }
        may
    };
    assert!(hold(1) && hold(2), "line 2 follows line 1");
    assert!(!hold(0), "line 0 does not follow line 2");
    assert!(hold(3));
    let write = world.carry(false).unwrap();
    assert_eq!((write.first, write.count), (Line::new(1), 3));
}

#[test]
fn nothing_is_held_unless_both_ends_allow_it() {
    let may = |allow: &dyn Fn(&mut Pair), len: u64| {
        let mut pair = Pair::new(parameters());
        allow(&mut pair);
        pair.post(&[(len, 0)], false).unwrap();
        pair.advertise();
        let plain = pair.sender.match_plainly::<_, 6>(&pair.mailbox, 0, len, &0).expect("plain");
        let may = plain.copies && pair.sender.may_hold(plain.line, plain.len);
        let Ok(proto::Submit::Accepted(message)) = pair.sender.submit(&pair.mailbox, 0, len) else {
            panic!("its receive is advertised");
        };
        assert_eq!(message.may_be_held, may, "both forms say the same");
        may
    };
    assert!(!may(&|_| {}, 8));
    assert!(!may(&|pair| pair.sender.allow_bundles(16), 8), "the receiver has lent no ring");
    assert!(!may(&|pair| pair.receiver.allow_bundles(), 8), "the sender has none");
    for (limit, longest) in [(1, 1), (8, 8), (15, 15), (16, 16), (17, 16), (u64::MAX, 16)] {
        let both = |pair: &mut Pair| {
            pair.sender.allow_bundles(limit.min(1 << 40));
            pair.receiver.allow_bundles();
        };
        assert!(may(&both, longest), "{longest} bytes of {limit}");
        assert!(!may(&both, longest + 1), "{} bytes of {limit}", longest + 1);
    }
}

#[test]
fn where_completions_prove_arrival_nothing_is_held_or_taken() {
    let mut world =
        Bundles::new(FlowParameters { sends_arrive_when_complete: true, ..parameters() });
    world.post(2);
    assert_eq!(world.hold(&[1; 8]), None);
    world.forge(Line::new(0), pair::bundles::BUNDLED | 8, 4);
    assert!(!world.pair.receiver.has_bundled(&world.ring));
    assert_eq!(world.take_all(), []);
    assert_eq!(world.take(true), None);
}

#[test]
fn from_a_receive_that_no_copy_reaches_on_no_advert_allows_any() {
    let mut world = Bundles::new(parameters());
    world.post(2);
    world.pair.receiver.refuse_copies();
    world.post(2);
    let held: Vec<bool> = (0..4).map(|_| world.hold(&[1; 8]).is_some()).collect();
    assert_eq!(held, [true, true, false, false]);
    // One that was posted before it, and is sealed anew after it, is refused as well: nothing says which is which.
    for refuse in [false, true] {
        let mut world = Bundles::new(parameters());
        world.post(1);
        world.hold_many(1);
        world.carry_all();
        world.pair.post(&[(16, 0)], false).unwrap();
        world.take(false).expect("it was written");
        if refuse {
            world.pair.receiver.refuse_copies();
        }
        world.advertise();
        assert_eq!(world.hold(&[1; 8]).is_none(), refuse);
    }
}

#[test]
fn a_message_that_is_cut_is_held_at_its_receives_length() {
    let mut world = Bundles::new(parameters());
    world.pair.post(&[(8, 0)], true).unwrap();
    world.advertise();
    assert_eq!(world.submit(0, 1000), Some((Line::new(0), true)));
}

#[test]
fn a_failed_sender_holds_nothing_more_and_has_begun_what_it_holds() {
    let mut world = Bundles::new(parameters());
    world.post(3);
    let first = world.hold(&[5; 8]).unwrap();
    world.pair.sender.fail(ProtocolError::Withdrawn);
    assert!(!world.pair.sender.may_hold(first.plus(1), 8));
    let begun = world.pair.sender.begun();
    assert!(begun.has(first) && !begun.has(first.plus(1)));
    world.carry(false).expect("what is held is still written");
    assert_eq!(world.take(false), Some((first, vec![5; 8])));
    world.tell();
    assert_eq!(world.poll(first), SendPoll::Done { len: 8 }, "it has arrived");
}

#[test]
fn what_is_dropped_is_not_written_and_was_not_begun() {
    let mut world = Bundles::new(parameters());
    world.post(3);
    world.hold_many(2);
    assert!(world.pair.sender.begun().has(Line::new(1)));
    world.pair.sender.drop_held();
    world.pair.sender.fail(ProtocolError::Transport { code: 0 });
    assert!(!world.pair.sender.holds_back());
    assert_eq!(world.carry(false), None);
    let begun = world.pair.sender.begun();
    assert!([0, 1, 2].iter().all(|line| !begun.has(Line::new(*line))), "nobody waits for them");

    // Where a later one went by itself, all count as begun: what is said has no room for more.
    let mut world = Bundles::new(parameters());
    world.post(3);
    world.hold_many(2);
    world.submit(0, 8).expect("its receive is advertised");
    world.pair.sender.drop_held();
    assert!(world.pair.sender.begun().has(Line::new(2)));
}

#[test]
fn lines_go_on_past_the_largest_number() {
    for window in [Window::SINGLE, Window::GROUPED] {
        let first_line = Line::new(u32::MAX - 70);
        let mut world = Bundles::new(FlowParameters { first_line, window, ..parameters() });
        let (mut expected, mut held) = (first_line, 0);
        for round in 0..60_u32 {
            let count = 1 + round % 7;
            world.post(count);
            let payload = vec![u8::try_from(round).unwrap(); (round % 17) as usize];
            for _ in 0..count {
                held += u32::from(world.hold(&payload).is_some());
            }
            while world.carry(round % 3 == 0).is_some() {
                if round % 3 == 0 {
                    world.pair.sender.bundle_written();
                }
            }
            let taken = world.take_all();
            assert_eq!(taken.len(), count as usize);
            for (line, found) in &taken {
                assert_eq!((*line, found), (expected, &payload));
                expected = expected.plus(1);
            }
            world.report(&taken);
            world.tell();
            polled(&mut world, &taken);
        }
        assert_eq!(held, expected.distance(first_line));
        assert!(expected.number() < 200, "the numbers have wrapped");
    }
}
