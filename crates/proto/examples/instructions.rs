//! An 8-byte message through both flows, so that instructions per message can be counted:
//! `valgrind --tool=callgrind --toggle-collect='*count_*' <this> 1000` divided by 1000.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use proto::{
    AdvertWrite, Arrival, CommId, FlowParameters, Immediate, Line, LineSink, LineSource, Path,
    RailPlan, Receive, ReceiveFlow, ReceivePoll, SendFlow, SendPoll, Submit, Window, parts,
};

#[derive(Default)]
struct Place([AtomicU64; 8]);

struct Ring(Vec<Place>);

impl LineSource for Ring {
    #[inline]
    fn word(&self, place: u32, index: usize) -> u64 {
        self.0[place as usize].0[index].load(Ordering::Acquire)
    }

    #[inline]
    fn words<const COUNT: usize>(&self, place: u32) -> [u64; COUNT] {
        let place = &self.0[place as usize].0;
        std::array::from_fn(|index| place[index].load(Ordering::Acquire))
    }
}

impl LineSink for &Ring {
    #[inline]
    fn store(&mut self, place: u32, index: usize, word: u64) {
        self.0[place as usize].0[index].store(word, Ordering::Relaxed);
    }

    #[inline]
    fn store_words<const COUNT: usize>(&mut self, place: u32, first: usize, words: [u64; COUNT]) {
        let place = &self.0[place as usize].0;
        for (index, word) in words.into_iter().enumerate() {
            place[first + index].store(word, Ordering::Relaxed);
        }
    }
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1000);
    let proves = std::env::args().nth(2).is_none_or(|word| word == "proves");
    let parameters = FlowParameters {
        window: Window::SINGLE,
        rails: 1,
        nonce: 0x1234_5678_9abc_def1,
        comm: CommId::default(),
        path: Path::Immediate { eight: true },
        fins: true,
        true_lengths: true,
        sends_arrive_when_complete: proves,
        largest_write: 1 << 30,
        first_line: Line::FIRST,
    };
    let mut sender = SendFlow::new(parameters).expect("the parameters are valid");
    let mut receiver = ReceiveFlow::new(parameters).expect("the parameters are valid");
    let ring = Ring((0..65).map(|_| Place::default()).collect());
    let plan = RailPlan::equal(1, 65536).expect("one rail");
    let mut previous = None;
    for _ in 0..rounds {
        round(&mut sender, &mut receiver, &ring, &plan, &mut previous, proves);
    }
}

/// The mailbox is written in place: carrying it is not the protocol's work.
fn round(
    sender: &mut SendFlow,
    receiver: &mut ReceiveFlow,
    ring: &Ring,
    plan: &RailPlan,
    previous: &mut Option<Line>,
    proves: bool,
) {
    let keys = [7];
    let receive = Receive { address: 4096, len: 64, tag: 0, keys: &keys };
    let first = count_post(receiver, ring, &[receive]);
    let write = count_next_write(receiver, ring).expect("the sender is dry");
    receiver.wrote(write);
    if !proves && let Some(line) = previous.take() {
        count_observe(sender, ring);
        assert!(matches!(count_send_poll(sender, line), SendPoll::Done { len: 8 }));
    }
    let (line, immediate) = count_submit(sender, ring, plan).expect("the advert is there");
    count_written(sender, line);
    if proves {
        assert!(matches!(count_send_poll(sender, line), SendPoll::Done { len: 8 }));
    }
    *previous = Some(line);
    assert!(matches!(count_arrived(receiver, immediate), Arrival::Complete(_)));
    assert!(matches!(count_receive_poll(receiver, first), ReceivePoll::Done { count: 1 }));
    assert_eq!(receiver.size(first), 8);
}

#[inline(never)]
fn count_post(receiver: &mut ReceiveFlow, mut ring: &Ring, receives: &[Receive<'_>; 1]) -> Line {
    receiver.post(&mut ring, receives, false).expect("no failure").expect("room")
}

#[inline(never)]
fn count_next_write(receiver: &mut ReceiveFlow, mut ring: &Ring) -> Option<AdvertWrite> {
    receiver.next_write(&mut ring)
}

#[inline(never)]
fn count_submit(sender: &mut SendFlow, ring: &Ring, plan: &RailPlan) -> Option<(Line, Immediate)> {
    let Ok(Submit::Accepted(message)) = sender.submit(ring, 0, 8) else { return None };
    let line = message.line;
    let part = parts::cut(message.len, plan, 1 << 30, &mut 0).next()?;
    let immediate = message.immediate(&part);
    black_box((message.address, message.keys[0]));
    sender.posted(line, 1, 1 << part.rail);
    Some((line, immediate))
}

#[inline(never)]
fn count_written(sender: &mut SendFlow, line: Line) {
    black_box(sender.written(line));
}

#[inline(never)]
fn count_observe(sender: &mut SendFlow, ring: &Ring) {
    sender.observe(ring);
}

#[inline(never)]
fn count_send_poll(sender: &mut SendFlow, line: Line) -> SendPoll {
    sender.poll(line)
}

#[inline(never)]
fn count_arrived(receiver: &mut ReceiveFlow, immediate: Immediate) -> Arrival {
    receiver.arrived(0, immediate, 8)
}

#[inline(never)]
fn count_receive_poll(receiver: &mut ReceiveFlow, first: Line) -> ReceivePoll {
    receiver.poll(first)
}
