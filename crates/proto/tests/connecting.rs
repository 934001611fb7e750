//! One asks for connections and one answers, over a network that loses, repeats and reorders what they say: each connection
//! comes about, once.

#![expect(clippy::unwrap_used, reason = "a sample that cannot be made is a failed test")]

use std::time::Duration;

use proto::asking::Step;
use proto::codec::{Address, Name};
use proto::handshake::{Identity, Message, RefusalReason, Ring};
use proto::limits::{ASK_AGAIN, ASK_AGAIN_MAX, ASK_SOON_MAX, ASKING_TURN_MAX, CLOSED_REQUESTS};
use proto::rails::{Pairing, Rail, RailPair};
use proto::{
    Answered, Asking, Capabilities, CommId, ConnectionId, ImmediateWidth, Refusal, Reply, Request,
    Standing, Window,
};

const CAPABILITIES: Capabilities = Capabilities {
    immediate: ImmediateWidth::Eight,
    true_lengths: false,
    self_read: true,
    proves_arrival: false,
    delivery_complete: true,
    virtual_addresses: false,
    rma_inject_bytes: 64,
    largest_write: 1 << 30,
};
const TURN: Duration = Duration::from_millis(10);

fn request(connection: u64) -> Request {
    Request {
        connection: ConnectionId(connection),
        reply_to: Address::new(b"192.0.2.1:4711").unwrap(),
        listener: 1,
        listener_nonce: 2,
        nonce: 3,
        capabilities: CAPABILITIES,
        rails: Vec::new(),
        mailbox: Ring::default(),
        window: Window::SINGLE,
        max_group: 1,
        eager_bytes: 0,
        bundle_bytes: 0,
        identity: Identity::default(),
    }
}

fn reply(comm: u16) -> Message {
    let address = Address::new(b"there").unwrap();
    let rail = Rail { fabric: Name::cut("f"), nic: 0, data: address, control: Some(address) };
    let pairs = vec![RailPair { sender: 0, receiver: 0 }];
    Message::Reply(Box::new(Reply {
        connection: ConnectionId(1),
        comm: CommId::new(comm).unwrap(),
        nonce: 7,
        capabilities: CAPABILITIES,
        rails: vec![rail],
        pairing: Pairing { data: pairs.clone(), control: pairs },
        fins: Ring::default(),
        window: Window::SINGLE,
        fin_only: false,
        eager: None,
        bundles: None,
        identity: Identity::default(),
    }))
}

fn refusal(reason: RefusalReason) -> Message {
    Message::Refusal(Refusal { connection: ConnectionId(1), reason, text: "no".to_owned() })
}

/// One whose request was sent.
fn waiting() -> Asking {
    let mut asking = Asking::default();
    assert_eq!(asking.step(Duration::ZERO), Step::Post);
    asking.posted();
    asking.sent();
    asking
}

/// How long it waits before it posts.
fn wait(asking: &mut Asking) -> Duration {
    let most = 2 * ASK_AGAIN_MAX.as_millis() / TURN.as_millis();
    for turn in 1..=u32::try_from(most).unwrap() {
        if asking.step(TURN) == Step::Post {
            return TURN * turn;
        }
    }
    panic!("it never asks again: {asking:?}");
}

#[test]
fn a_request_without_answer_is_sent_again_after_a_growing_wait() {
    let mut asking = waiting();
    let mut expected = ASK_AGAIN;
    for repeats in 1..20 {
        assert_eq!(wait(&mut asking), expected);
        asking.posted();
        asking.sent();
        assert_eq!(asking.repeats(), repeats);
        expected = (expected * 2).min(ASK_AGAIN_MAX);
    }
    assert!(asking.heard(reply(1)), "however late");
}

#[test]
fn a_request_in_flight_is_not_sent_again() {
    let mut asking = Asking::default();
    assert_eq!(asking.step(TURN), Step::Post);
    assert_eq!(asking.step(TURN), Step::Post, "its post was refused");
    asking.posted();
    assert!((0..10_000).all(|_| asking.step(TURN) == Step::Wait));
    asking.sent();
    assert_eq!(wait(&mut asking), ASK_AGAIN);
}

#[test]
fn a_request_that_could_not_be_sent_is_sent_soon() {
    let mut asking = Asking::default();
    let mut last = Duration::ZERO;
    for _ in 0..20 {
        let waited = wait(&mut asking);
        assert!(waited <= ASK_SOON_MAX && waited >= last.min(ASK_SOON_MAX), "{waited:?}");
        last = waited;
        asking.posted();
        asking.failed();
    }
    assert_eq!(last, ASK_SOON_MAX);
    asking.sent();
    asking.failed();
    assert_eq!(wait(&mut asking), ASK_SOON_MAX, "what has ended cannot end again");
}

#[test]
fn time_in_which_nobody_called_counts_for_little() {
    let mut asking = waiting();
    assert_eq!(asking.step(Duration::from_secs(3600)), Step::Wait);
    let calls = ASK_AGAIN.as_millis() / ASKING_TURN_MAX.as_millis();
    let waits = (1..).take_while(|_| asking.step(Duration::from_secs(1)) == Step::Wait).count();
    assert_eq!(waits as u128 + 2, calls);
}

#[test]
fn an_answer_is_taken_once_in_whatever_state_the_request_is() {
    let in_flight = || {
        let mut asking = Asking::default();
        asking.posted();
        asking
    };
    let failed = || {
        let mut asking = in_flight();
        asking.failed();
        asking
    };
    let late = || {
        let mut asking = waiting();
        wait(&mut asking);
        asking
    };
    for mut asking in [in_flight(), waiting(), failed(), late()] {
        assert!(asking.heard(reply(9)), "{asking:?}");
        assert!(!asking.heard(reply(9)), "{asking:?}");
        asking.posted();
        asking.sent();
        asking.failed();
        match asking.step(TURN) {
            Step::Open(reply) => assert_eq!(reply.comm.get(), 9),
            step => panic!("{step:?}"),
        }
        assert!(!asking.heard(reply(9)));
        assert_eq!(asking.step(TURN), Step::Wait);
    }
}

#[test]
fn an_answer_that_was_not_asked_for_is_dropped() {
    let mut asking = Asking::default();
    assert!(!asking.heard(reply(1)));
    assert!(!asking.heard(refusal(RefusalReason::Nonce)));
    assert_eq!(asking.step(TURN), Step::Post);
    asking.posted();
    let question = Message::Request(Box::new(request(1)));
    assert!(!asking.heard(question), "that is no answer");
}

#[test]
fn a_listener_without_room_is_asked_again_once_for_each_time_that_it_says_so() {
    let mut asking = waiting();
    for _ in 0..10 {
        assert!(asking.heard(refusal(RefusalReason::Busy)));
        assert!(!asking.heard(refusal(RefusalReason::Busy)), "said of a repeat");
        assert!(wait(&mut asking) <= ASK_SOON_MAX);
        asking.posted();
        asking.sent();
    }
    asking.heard(refusal(RefusalReason::Busy));
    assert!(asking.heard(reply(1)), "of one that had found room");
    assert!(matches!(asking.step(TURN), Step::Open(_)));
}

#[test]
fn any_other_refusal_is_the_end() {
    for reason in [RefusalReason::Version, RefusalReason::Nonce, RefusalReason::Closed] {
        let mut asking = waiting();
        assert!(asking.heard(refusal(reason)));
        assert!(!asking.heard(reply(1)));
        assert!(matches!(asking.step(TURN), Step::Fail(refusal) if refusal.reason == reason));
    }
}

#[test]
fn every_part_of_a_request_that_tells_it_from_others_changes_its_mark() {
    let one = request(1);
    assert_eq!(one.mark(), one.clone().mark());
    for bit in 0..64 {
        let nonce = Request { nonce: one.nonce ^ 1 << bit, ..one.clone() };
        let connection =
            Request { connection: ConnectionId(one.connection.0 ^ 1 << bit), ..one.clone() };
        assert_ne!(nonce.mark(), one.mark());
        assert_ne!(connection.mark(), one.mark());
    }
    let from = |name: &[u8]| Request { reply_to: Address::new(name).unwrap(), ..request(1) }.mark();
    let mut address = *b"192.0.2.1:4711";
    for bit in 0..address.len() * 8 {
        address[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(from(&address), one.mark());
        address[bit / 8] ^= 1 << (bit % 8);
    }
    assert_ne!(from(b"192.0.2.1:4711\0"), one.mark());
    assert_eq!(from(&address), one.mark());
}

#[test]
fn a_closed_connection_is_remembered_until_many_others_have_closed() {
    let mut answered = Answered::default();
    let mark = |number: usize| request(number as u64).mark();
    let comm = CommId::new(5).unwrap();
    for number in 0..=CLOSED_REQUESTS {
        assert_eq!(answered.standing(mark(number)), Standing::New);
        answered.wait(mark(number));
        answered.open(mark(number), comm);
        assert_eq!(answered.standing(mark(number)), Standing::Open(comm));
        answered.close(mark(number));
        answered.close(mark(number));
        answered.forget(mark(number));
    }
    assert_eq!(answered.standing(mark(0)), Standing::New);
    let closed = |number: usize| answered.standing(mark(number)) == Standing::Closed;
    assert!((1..=CLOSED_REQUESTS).all(closed));
}

/// The side that answers: accepts what waits, one at a time, and says no when its queue is full.
#[derive(Default)]
struct Listener {
    answered: Answered,
    queue: Vec<Request>,
    /// Which connection each comm is of.
    comms: Vec<u64>,
    dropped: u32,
}

impl Listener {
    fn hear(&mut self, request: Request, room: usize) -> Option<Message> {
        match self.answered.standing(request.mark()) {
            Standing::New if self.queue.len() < room => {
                self.answered.wait(request.mark());
                self.queue.push(request);
                None
            }
            Standing::New => Some(refusal(RefusalReason::Busy)),
            Standing::Waiting => {
                self.dropped += 1;
                None
            }
            Standing::Open(comm) => Some(reply(comm.get())),
            Standing::Closed => Some(refusal(RefusalReason::Closed)),
        }
    }

    fn accept(&mut self) -> Option<(u64, Message)> {
        let request = (!self.queue.is_empty()).then(|| self.queue.remove(0))?;
        let comm = u16::try_from(self.comms.len()).unwrap();
        self.comms.push(request.connection.0);
        self.answered.open(request.mark(), CommId::new(comm).unwrap());
        Some((request.connection.0, reply(comm)))
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// What is on its way: a request, or the answer to one.
enum Letter {
    Request(usize),
    Answer(usize, Message),
}

/// Loses, doubles and keeps back what is sent; tells of a loss by an error, now and then, or wrongly.
fn carry(random: &mut Random, network: &mut Vec<Letter>, letter: impl Fn() -> Letter) -> bool {
    let copies = [0, 1, 1, 1, 2, 3][usize::try_from(random.below(6)).unwrap()];
    network.extend((0..copies).map(|_| letter()));
    random.below(4) > 0
}

#[test]
fn over_a_network_that_loses_and_repeats_each_connection_comes_about_once() {
    const CONNECTIONS: usize = 6;
    let (mut lost_replies, mut dropped) = (0, 0);
    for seed in 1..=2000 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let mut askers: Vec<Asking> = (0..CONNECTIONS).map(|_| Asking::default()).collect();
        let mut opened = [None; CONNECTIONS];
        let mut listener = Listener::default();
        let mut network: Vec<Letter> = Vec::new();
        for _ in 0..100_000 {
            let at = usize::try_from(random.below(CONNECTIONS as u64)).unwrap();
            match askers[at].step(TURN) {
                Step::Post if random.below(8) > 0 => {
                    askers[at].posted();
                    if carry(&mut random, &mut network, || Letter::Request(at)) {
                        askers[at].sent();
                    } else {
                        askers[at].failed();
                    }
                }
                Step::Post | Step::Wait => {}
                Step::Open(reply) => assert_eq!(opened[at].replace(reply.comm.get()), None),
                Step::Fail(refusal) => panic!("seed {seed}: {refusal:?}"),
            }
            if random.below(3) == 0
                && let Some((connection, message)) = listener.accept()
            {
                let at = usize::try_from(connection).unwrap();
                let before = network.len();
                carry(&mut random, &mut network, || Letter::Answer(at, message.clone()));
                lost_replies += u32::from(network.len() == before);
            }
            if !network.is_empty() && random.below(2) == 0 {
                let index = usize::try_from(random.below(network.len() as u64)).unwrap();
                match network.swap_remove(index) {
                    Letter::Request(at) => {
                        if let Some(answer) = listener.hear(request(at as u64), 2) {
                            carry(&mut random, &mut network, || Letter::Answer(at, answer.clone()));
                        }
                    }
                    Letter::Answer(at, message) => {
                        askers[at].heard(message);
                    }
                }
            }
            if network.is_empty() && listener.queue.is_empty() && opened.iter().all(Option::is_some)
            {
                break;
            }
        }
        assert_eq!(listener.comms.len(), CONNECTIONS, "seed {seed}: {:?}", listener.comms);
        for (at, comm) in opened.into_iter().enumerate() {
            let comm = comm.unwrap_or_else(|| panic!("seed {seed}: {at} has no comm"));
            assert_eq!(listener.comms[usize::from(comm)], at as u64, "seed {seed}");
        }
        dropped += listener.dropped;
    }
    assert!(lost_replies > 500 && dropped > 500, "{lost_replies} {dropped}");
}
