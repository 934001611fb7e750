//! Messages in the eager ring: what they wait for, what bounds them, and what is not taken for one.

mod pair;

use pair::{Pair, Ring, parameters};
use proto::eager::{EAGER_BYTES_MAX, EAGER_PLACE_WORDS, FIRST_EAGER, FIRST_PAYLOAD};
use proto::{
    FlowParameters, Line, LineSink, LineSource, ProtocolError, SendPoll, Violation, Window,
};

/// A pair whose sender may send eagerly, and the ring that its receiver lends.
struct Eager {
    pair: Pair,
    ring: Ring,
}

fn eager(parameters: FlowParameters) -> Eager {
    let mut pair = Pair::new(parameters);
    pair.sender.allow_eager(EAGER_BYTES_MAX);
    assert!(pair.receiver.allow_eager());
    let places = parameters.window.eager_places();
    Eager { pair, ring: Ring::new(places, EAGER_PLACE_WORDS) }
}

impl Eager {
    /// Sends; answers the low bits of the message's number.
    fn send(&mut self, tag: i32, payload: &[u8]) -> Option<u16> {
        let Self { pair, ring } = self;
        let write = pair.sender.pack_eagerly(&pair.mailbox, ring, tag, payload)?;
        pair.sender.eager_posted(write, false);
        Some(u16::try_from(write.number & 0xffff).expect("16 bits"))
    }

    fn post(&mut self, receives: &[(u64, i32)]) -> Line {
        let line = self.pair.post(receives, false).expect("there is room");
        while self.pair.advertise().is_some() {}
        line
    }

    /// Takes the next message: its line and first byte.
    fn take(&mut self) -> Option<(Line, u8)> {
        let arrival = self.pair.receiver.next_eager(&self.ring)?;
        let [first, ..] = self.ring.word(arrival.place, FIRST_PAYLOAD).to_le_bytes();
        self.pair.receiver.copied(arrival.line, arrival.len);
        Some((arrival.line, first))
    }

    fn poll(&mut self, request: u16) -> Option<SendPoll> {
        self.pair.sender.observe(&self.pair.mailbox);
        self.pair.sender.poll_eager(request)
    }
}

#[test]
fn a_message_without_a_receive_waits_for_it_at_the_receiver() {
    let mut world = eager(parameters());
    let request = world.send(7, &[42; 8]).expect("nothing is advertised");
    assert_eq!(world.take(), None, "no receive is posted");
    assert_eq!(world.poll(request), Some(SendPoll::Pending));
    let line = world.post(&[(8, 0)]);
    assert_eq!(world.take(), Some((line, 42)));
    assert!(world.pair.receiver.is_complete(line));
    assert_eq!((world.pair.receiver.size(line), world.pair.receiver.carried(line)), (8, 0));
    // The next advert tells that it was taken.
    assert_eq!(world.poll(request), Some(SendPoll::Pending));
    world.post(&[(8, 0)]);
    assert_eq!(world.poll(request), Some(SendPoll::Done { len: 8 }));
    assert_eq!(world.poll(request), None, "done is said once");
}

#[test]
fn a_message_whose_receive_is_advertised_is_not_sent_eagerly() {
    let mut world = eager(parameters());
    world.post(&[(8, 0)]);
    assert_eq!(world.send(0, &[1; 8]), None);
    assert_eq!(world.send(0, &[1; 41]), None, "it is too long");
}

#[test]
fn a_slow_receiver_bounds_the_sender() {
    for proves in [false, true] {
        let mut world =
            eager(FlowParameters { sends_arrive_when_complete: proves, ..parameters() });
        let most = Window::SINGLE.eager_places();
        let requests: Vec<u16> = (0..most).map(|_| world.send(0, &[1]).expect("room")).collect();
        for _ in 0..3 {
            assert_eq!(world.send(0, &[1]), None, "all places are taken");
            world.pair.sender.observe(&world.pair.mailbox);
        }
        for _ in 0..most {
            world.post(&[(8, 0)]);
        }
        world.pair.sender.observe(&world.pair.mailbox);
        assert_eq!(world.send(0, &[1]), None, "no message is known to have been taken");
        while world.take().is_some() {}
        world.post(&[(8, 0)]);
        assert!(world.pair.send(0, 8).is_some(), "its advert says how far the receiver is");
        for request in requests {
            assert_eq!(world.poll(request), Some(SendPoll::Done { len: 1 }));
        }
        assert!(world.send(0, &[1]).is_some(), "the places are free again");
    }
}

#[test]
fn what_has_not_landed_whole_is_not_taken() {
    let mut world = eager(parameters());
    world.post(&[(20, 0)]);
    assert!(!world.pair.receiver.has_eager(&world.ring), "memory that was never written");
    assert_eq!(world.take(), None);
    let mut other = eager(parameters());
    other.send(0, &[9; 20]).expect("nothing is advertised there");
    let words = FIRST_PAYLOAD + 3;
    for bit in 0..words * 64 {
        world.ring = other.ring.clone();
        *world.ring.at(FIRST_EAGER, bit / 64) ^= 1 << (bit % 64);
        assert_eq!(world.take(), None, "bit {bit}");
    }
    assert_eq!(world.pair.receiver.counters().violations, 0);
    world.ring = other.ring;
    assert!(world.take().is_some());
}

#[test]
fn a_message_in_a_place_that_is_not_free_fails_the_connection() {
    let mut world = eager(parameters());
    let places = Window::SINGLE.eager_places();
    for _ in 0..places {
        world.send(0, &[1]).expect("there is room");
    }
    assert_eq!(world.take(), None);
    // The same place again, with the next number: the peer knows the nonce.
    let place = FIRST_EAGER % places;
    let mut words: Vec<u64> = (0..4).map(|index| world.ring.word(place, index)).collect();
    words[0] = u64::from(FIRST_EAGER + places) << 32;
    proto::wire::seal_line(world.pair.parameters.nonce, &mut words);
    (0..4).for_each(|index| world.ring.store(place, index, words[index]));
    assert_eq!(world.take(), None);
    let failure = Some(ProtocolError::Violation(Violation::LineKind));
    assert_eq!(world.pair.receiver.failure(), failure);
}

#[test]
fn an_eager_message_too_long_fails_both_ends_with_both_sizes() {
    for proves in [false, true] {
        let mut world =
            eager(FlowParameters { sends_arrive_when_complete: proves, ..parameters() });
        let request = world.send(0, &[1; 9]).expect("nothing is advertised");
        let line = world.post(&[(8, 0)]);
        let cause = ProtocolError::TooLong { line, sent: 9, posted: 8 };
        assert_eq!(world.take(), None);
        assert_eq!(world.pair.receiver.failure(), Some(cause));
        assert_eq!(world.poll(request), Some(SendPoll::Failed(cause)));
    }
}

#[test]
fn tags_choose_the_receive_of_an_eager_message() {
    let mut world = eager(FlowParameters { window: Window::GROUPED, ..parameters() });
    for (tag, byte) in [(2, 20), (1, 10), (2, 21)] {
        world.send(tag, &[byte]).expect("nothing is advertised");
    }
    let first = world.post(&[(8, 1), (8, 2)]);
    assert_eq!(world.take(), Some((first, 10)));
    assert_eq!(world.take(), Some((first.plus(1), 20)));
    assert_eq!(world.take(), None, "the third is for a later group");
    let next = world.post(&[(8, 3), (8, 2)]);
    // The sender finds the same lines before it sends on.
    assert_eq!(world.pair.send(3, 8).map(|(line, _)| line), Some(next));
    assert_eq!(world.take(), Some((next.plus(1), 21)));
}

#[test]
fn no_receive_is_told_early_while_an_eager_message_may_come() {
    let mut world = eager(FlowParameters { sends_arrive_when_complete: true, ..parameters() });
    world.send(0, &[5]).expect("nothing is advertised");
    assert!(world.pair.receiver.refuse_eager(), "the sender is to be asked");
    assert!(!world.pair.receiver.refuse_eager(), "once");
    let first = world.post(&[(8, 0)]);
    let second = world.post(&[(8, 0)]);
    assert!(!world.pair.receiver.poll_early(second));
    let end = world.pair.sender.cease_eager();
    world.pair.receiver.eager_ends(end);
    assert!(world.pair.receiver.is_eager_due());
    assert!(!world.pair.receiver.poll_early(second), "one is on its way");
    assert_eq!(world.take(), Some((first, 5)));
    assert!(!world.pair.receiver.is_eager_due());
    assert!(world.pair.receiver.poll_early(second));
    assert_eq!(world.send(0, &[5]), None, "the sender sends none any more");
}

#[test]
fn a_receive_that_was_taken_back_gets_no_eager_message() {
    let mut world = eager(parameters());
    world.send(0, &[5]).expect("nothing is advertised");
    world.post(&[(8, 0)]);
    world.pair.receiver.withdraw();
    world.pair.receiver.fenced(proto::Begun::NOTHING);
    assert_eq!(world.take(), None, "the sender has begun nothing");
}
