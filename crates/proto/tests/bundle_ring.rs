//! Messages in the bundle ring: in which order they are taken, what is not taken for one, and what fails the connection.

mod pair;

use pair::bundles::{BUNDLED, Bundles};
use pair::parameters;
use proto::bundle::{BUNDLE_PLACES, BUNDLED_BYTES_MAX};
use proto::receive::Pace;
use proto::{Begun, FlowParameters, Immediate, Line, ProtocolError, Violation, Window};

fn lines(found: &[(Line, Vec<u8>)]) -> Vec<u32> {
    found.iter().map(|(line, _)| line.number()).collect()
}

/// A message that goes by itself: its immediate.
fn send_alone(world: &mut Bundles) -> Immediate {
    let (_, immediate) = world.pair.send(0, 16).expect("its receive is advertised");
    immediate
}

#[test]
fn messages_are_taken_in_order_up_to_the_first_that_is_missing() {
    for shortly in [false, true] {
        let mut world = Bundles::new(parameters());
        let take = |world: &mut Bundles| {
            let found = if shortly { world.take_shortly() } else { world.take_all() };
            lines(&found)
        };
        world.post(5);
        world.hold(&[0; 8]).unwrap();
        world.carry_all();
        let alone = send_alone(&mut world);
        world.hold_many(2);
        world.carry_all();
        assert!(world.pair.receiver.has_bundled(&world.ring));
        assert_eq!(take(&mut world), [0], "line 1 is missing");
        assert!(!world.pair.receiver.has_bundled(&world.ring));
        assert_eq!(take(&mut world), []);
        world.pair.receiver.arrived(0, alone, 16);
        assert!(world.pair.receiver.has_bundled(&world.ring));
        assert_eq!(take(&mut world), [2, 3]);
        assert!(!world.pair.receiver.has_bundled(&world.ring), "line 4 was not sent");
    }
}

#[test]
fn messages_of_a_bundle_keep_no_rails_busy() {
    let mut world = Bundles::new(parameters());
    world.pair.receiver.set_pace(Pace { busy_bytes: 25, ..Pace::default() });
    world.post(6);
    let alone = send_alone(&mut world);
    world.pair.receiver.arrived(0, alone, 16);
    world.hold_many(2);
    world.carry_all();
    assert_eq!(lines(&world.take_shortly()), [1, 2]);
    for _ in 0..3 {
        assert_eq!(world.pair.advertise(), None);
        world.pair.post(&[(BUNDLED_BYTES_MAX, 0)], false).expect("there is room");
    }
    assert_eq!(world.pair.advertise(), Some(3), "as many as the sender has left");
}

#[test]
fn messages_behind_a_missing_one_are_taken_when_every_one_is_asked_for() {
    let mut world = Bundles::new(parameters());
    world.post(5);
    world.pair.send(0, 16).expect("its receive is advertised");
    world.hold_many(1);
    world.carry_all();
    world.pair.send(0, 16).expect("its receive is advertised");
    world.hold_many(2);
    world.carry_all();
    assert_eq!(world.take(false), None, "line 0 is missing");
    let found: Vec<_> = std::iter::from_fn(|| world.take(true)).collect();
    assert_eq!(lines(&found), [1, 3, 4]);
    assert_eq!(world.pair.receiver.done(), Line::new(0));
}

#[test]
fn a_line_that_was_completed_before_its_turn_is_in_nobodys_way() {
    let mut world = Bundles::new(parameters());
    world.post(3);
    world.hold_many(1);
    world.carry_all();
    let alone = send_alone(&mut world);
    world.hold_many(1);
    world.carry_all();
    world.pair.receiver.arrived(0, alone, 16);
    assert_eq!(lines(&world.take_all()), [0, 2]);
}

#[test]
fn nothing_is_taken_for_a_line_with_parts() {
    for shortly in [false, true] {
        let mut world = Bundles::new(parameters());
        world.post(1);
        let (line, immediate) = world.pair.send(0, 16).expect("its receive is advertised");
        let first = Immediate::new(immediate.comm(), line, 0, false, true, 16);
        world.pair.receiver.arrived(0, first, 8);
        world.forge(line, BUNDLED | 8, 4);
        let found = if shortly { world.take_shortly() } else { world.take_all() };
        assert_eq!(found, []);
    }
}

#[test]
fn nothing_is_taken_for_a_line_that_is_not_advertised() {
    let mut world = Bundles::new(parameters());
    world.forge(Line::new(0), BUNDLED | 8, 4);
    assert!(!world.pair.receiver.has_bundled(&world.ring));
    assert_eq!((world.take_all(), world.take(true)), (vec![], None));
    world.pair.post(&[(8, 0)], false).unwrap();
    assert_eq!((world.take_all(), world.take(true)), (vec![], None), "its advert is here");
    world.advertise();
    // Of the next line, and of the next lap.
    world.forge(Line::new(1), BUNDLED | 8, 4);
    world.forge(Line::new(BUNDLE_PLACES), BUNDLED | 8, 4);
    assert_eq!((world.take_all(), world.take(true)), (vec![], None));
    assert_eq!(world.pair.receiver.counters().violations, 0);
}

#[test]
fn what_has_not_landed_whole_is_not_there() {
    for len in [8, 16] {
        let mut world = Bundles::new(parameters());
        world.post(1);
        assert_eq!(world.take_all(), [], "memory that was never written is no message");
        let mut other = Bundles::new(parameters());
        other.post(1);
        other.hold(&vec![9; len]).unwrap();
        other.carry_all();
        for bit in 0..4 * 64 {
            world.ring = other.ring.clone();
            world.ring.words[bit / 64] ^= 1 << (bit % 64);
            assert_eq!((world.take_all(), world.take(true)), (vec![], None), "bit {bit}");
        }
        assert_eq!(world.pair.receiver.counters().violations, 0);
        assert_eq!(world.pair.receiver.failure(), None);
        world.ring = other.ring;
        assert_eq!(world.take_all(), [(Line::new(0), vec![9; len])]);
    }
}

#[test]
fn messages_of_an_earlier_tenant_are_not_taken() {
    let mut earlier =
        Bundles::new(FlowParameters { nonce: parameters().nonce ^ 1, ..parameters() });
    let mut world = Bundles::new(parameters());
    for len in [8, 16] {
        world.post(1);
        earlier.post(1);
        earlier.hold(&vec![9; len]).unwrap();
        earlier.carry_all();
    }
    world.ring = earlier.ring;
    assert_eq!((world.take_all(), world.take(true)), (vec![], None));
}

#[test]
fn what_no_sender_writes_is_not_there() {
    // Longer than a place holds; of other kinds; with bits that mean nothing.
    let too_long = (17..=0xffff).step_by(61).map(|len| BUNDLED | len);
    let kinds = (0..8).filter(|kind| *kind != 5).map(|kind| kind << 24 | 8);
    for form in too_long.chain(kinds) {
        let mut world = Bundles::new(parameters());
        world.post(2);
        world.forge(Line::new(0), form, 4);
        assert_eq!((world.take_all(), world.take(true)), (vec![], None), "{form:#x}");
        assert_eq!(world.pair.receiver.failure(), None);
    }
}

#[test]
fn a_message_longer_than_its_receive_fails_the_connection() {
    for (posted, len) in [(0, 1), (7, 8), (15, BUNDLED_BYTES_MAX)] {
        let mut world = Bundles::new(parameters());
        let line = world.pair.post(&[(posted, 0)], false).unwrap();
        world.advertise();
        world.forge(line, BUNDLED | len, 4);
        assert_eq!(world.take_shortly(), [], "the short way leaves it to the other");
        assert_eq!(world.take_all(), []);
        let cause = ProtocolError::Violation(Violation::Size { said: len, posted });
        assert_eq!(world.pair.receiver.failure(), Some(cause));
        assert_eq!(world.pair.receiver.counters().violations, 1);
        assert!(!world.pair.receiver.is_complete(line));
    }
}

#[test]
fn a_receive_may_be_longer_than_its_message() {
    for shortly in [false, true] {
        let mut world = Bundles::new(parameters());
        let line = world.pair.post(&[(1 << 30, 0)], false).unwrap();
        world.advertise();
        world.hold(&[4; 5]).expect("it is short");
        world.carry_all();
        let found = if shortly { world.take_shortly() } else { world.take_all() };
        assert_eq!(found, [(line, vec![4; 5])]);
        assert_eq!(world.pair.receiver.size(line), 5);
    }
}

#[test]
fn what_cannot_be_copied_stays_and_nothing_behind_it_is_taken() {
    let mut world = Bundles::new(parameters());
    world.post(3);
    world.hold_many(3);
    world.carry_all();
    let mut asked = Vec::new();
    let taken = world.pair.receiver.take_bundled(&world.ring, |line, _, _| {
        asked.push(line.number());
        line.number() < 1
    });
    assert_eq!((taken, asked), (1, vec![0, 1]));
    assert_eq!(world.pair.receiver.done(), Line::new(1));
    assert_eq!(lines(&world.take_all()), [1, 2]);
}

#[test]
fn a_group_is_complete_when_all_its_messages_are_copied() {
    for shortly in [false, true] {
        let mut world = Bundles::new(FlowParameters { window: Window::GROUPED, ..parameters() });
        let first = world.pair.post(&[(8, 1), (8, 1)], false).unwrap();
        world.advertise();
        for expected in [false, true] {
            let (line, may) = world.submit(1, 8).unwrap();
            assert!(may);
            world.pair.sender.hold(&mut world.staging, line, 8, [7; 2]);
            world.carry_all();
            let found = if shortly { world.take_shortly() } else { world.take_all() };
            assert_eq!(lines(&found), [line.number()]);
            assert_eq!(world.pair.receiver.is_complete(first), expected);
        }
    }
}

#[test]
fn a_flow_that_has_failed_takes_only_what_was_begun() {
    let mut world = Bundles::new(parameters());
    world.post(5);
    // Line 0 is begun and will not come; lines 1 and 2 are under way.
    world.pair.send(0, 16).expect("its receive is advertised");
    world.hold_many(2);
    world.carry_all();
    world.pair.receiver.withdraw();
    world.pair.receiver.fenced(world.pair.sender.begun());
    // What says that it is of line 3 came from nobody who may say so.
    world.forge(Line::new(3), BUNDLED | 8, 4);
    assert_eq!(world.take_shortly(), [], "the short way is for what is well");
    let found: Vec<_> = std::iter::from_fn(|| world.take(true)).collect();
    assert_eq!(lines(&found), [1, 2]);
    let exposed: Vec<u32> = world.pair.receiver.exposed().map(Line::number).collect();
    assert_eq!(exposed, [0]);
}

#[test]
fn before_the_sender_says_what_it_has_begun_everything_may_be() {
    let mut world = Bundles::new(parameters());
    world.post(3);
    world.hold_many(2);
    world.pair.receiver.withdraw();
    world.carry_all();
    assert_eq!(lines(&world.take_all()), [0, 1]);
    let mut nothing = Bundles::new(parameters());
    nothing.post(3);
    nothing.forge(Line::new(0), BUNDLED | 8, 4);
    nothing.pair.receiver.withdraw();
    nothing.pair.receiver.fenced(Begun::NOTHING);
    assert_eq!((nothing.take_all(), nothing.take(true)), (vec![], None));
}

/// Its memory is gone. The lines behind it have theirs.
#[test]
fn a_message_that_cannot_be_copied_is_offered_once_and_exposes_nothing() {
    let mut world = Bundles::new(parameters());
    world.post(3);
    world.hold_many(3);
    world.carry_all();
    world.pair.receiver.withdraw();
    let lost = world.pair.receiver.next_bundled(&world.ring, true).expect("it is there").line;
    world.pair.receiver.lose(lost);
    let found: Vec<_> = std::iter::from_fn(|| world.take(true)).collect();
    assert_eq!(lines(&found), [1, 2]);
    assert_eq!(world.pair.receiver.exposed().count(), 0);
    // Nobody is told that it is there.
    assert_eq!(world.pair.receiver.done(), lost);
    assert!(!world.pair.receiver.is_complete(lost));
    let failed = proto::ReceivePoll::Failed(ProtocolError::Withdrawn);
    assert_eq!(world.pair.receiver.poll(lost), failed);
}
