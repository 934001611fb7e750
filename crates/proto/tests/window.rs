//! The window and its adverts: how many there are, when they travel, when they are believed.

mod pair;

use pair::{Pair, parameters};
use proto::limits::{BUSY_IDLE_TURNS, MAX_RING};
use proto::receive::Pace;
use proto::{
    Arrival, FlowParameters, Line, LineSource, Path, ReceivePoll, SendPoll, Submit, Window,
    ids::RESIDUES,
};

#[test]
fn no_more_than_the_window_is_posted() {
    for window in [Window::SINGLE, Window::GROUPED] {
        let mut pair = Pair::new(FlowParameters { window, ..parameters() });
        for _ in 0..window.outstanding() {
            assert!(pair.post(&[(8, 0)], false).is_some());
        }
        assert_eq!(pair.post(&[(8, 0)], false), None);
    }
}

#[test]
fn no_message_is_short_or_long_where_none_is_plain() {
    // Parts of 1 MiB, 64 at most.
    let most = 64 << 20;
    for (path, rails) in
        [1, 2, 3, 4, 5, 16].into_iter().flat_map(|rails| PATHS.map(|path| (path, rails)))
    {
        let mut pair = Pair::new(FlowParameters { path, rails, ..parameters() });
        pair.sender.set_spans(100, 101..u64::MAX);
        // Lines of two keys have the forms for it, and messages with immediates.
        let may = rails <= 2 && path != Path::Fin;
        for len in [1, 100] {
            assert_eq!((pair.sender.is_short(len), pair.sender.is_long(len)), (may, false));
        }
        for len in [101, most] {
            assert_eq!((pair.sender.is_short(len), pair.sender.is_long(len)), (false, may));
        }
        for len in [0, most + 1, u64::MAX] {
            assert!(!pair.sender.is_short(len) && !pair.sender.is_long(len), "{len}");
        }
        pair.sender.end_plainly();
        assert!(!pair.sender.is_short(100) && !pair.sender.is_long(101));
    }
}

#[test]
fn a_group_is_posted_whole_or_not_at_all() {
    let mut pair = Pair::new(parameters());
    for _ in 0..5 {
        assert!(pair.post(&[(8, 0); 8], false).is_some());
    }
    assert!(pair.post(&[(8, 0); 1], false).is_some());
    assert_eq!(pair.post(&[(8, 0); 8], false), None);
    assert!(pair.post(&[(8, 0); 7], false).is_some());
    assert_eq!(pair.receiver.outstanding(), 7);
}

#[test]
fn a_receive_that_was_not_reported_keeps_its_place() {
    let mut pair = Pair::new(parameters());
    let first = pair.exchange();
    for _ in 1..MAX_RING {
        let line = pair.exchange();
        pair.sender.observe(&pair.mailbox);
        let before = line.plus(u32::MAX);
        assert_eq!(pair.sender.poll(before), SendPoll::Done { len: 8 });
        assert_eq!(pair.receiver.poll(line), ReceivePoll::Done { count: 1 });
    }
    assert_eq!(pair.post(&[(8, 0)], false), None, "its slot is the first line's");
    assert_eq!(pair.receiver.poll(first), ReceivePoll::Done { count: 1 });
    assert_eq!(pair.post(&[(8, 0)], false), Some(Line::new(MAX_RING)));
}

#[test]
fn a_send_that_was_not_polled_keeps_its_place() {
    let sends_arrive_when_complete = true;
    let mut pair = Pair::new(FlowParameters { sends_arrive_when_complete, ..parameters() });
    for _ in 0..64 {
        let line = pair.exchange();
        assert_eq!(pair.receiver.poll(line), ReceivePoll::Done { count: 1 });
    }
    pair.post(&[(8, 0)], false).unwrap();
    pair.advertise().unwrap();
    assert_eq!(pair.send(0, 8), None);
    assert_eq!(pair.sender.poll(Line::FIRST), SendPoll::Done { len: 8 });
    assert_eq!(pair.send(0, 8).map(|(line, _)| line), Some(Line::new(64)));
}

#[test]
fn the_first_receive_is_advertised_at_once_and_later_ones_together() {
    let mut pair = Pair::new(parameters());
    let mut writes = Vec::new();
    for _ in 0..16 {
        pair.post(&[(8, 0)], false);
        writes.extend(pair.advertise());
    }
    assert_eq!(writes, [1, 1, 2, 4, 8]);
}

#[test]
fn adverts_travel_before_the_sender_runs_dry() {
    let sends_arrive_when_complete = true;
    let mut pair = Pair::new(FlowParameters { sends_arrive_when_complete, ..parameters() });
    for _ in 0..8 {
        pair.post(&[(8, 0)], false);
        while pair.advertise().is_some() {}
    }
    for _ in 0..100 {
        let (line, immediate) = pair.send(0, 8).expect("an advert is always there");
        pair.receiver.arrived(0, immediate, 8);
        pair.sender.written(line);
        assert_eq!(pair.receiver.poll(line), ReceivePoll::Done { count: 1 });
        pair.post(&[(8, 0)], false);
        while pair.advertise().is_some() {}
        assert_eq!(pair.sender.poll(line), SendPoll::Done { len: 8 });
    }
}

/// A pair that messages stream through, into receives of which 8 are posted at a time.
struct Stream {
    pair: Pair,
    /// The oldest line whose send was not said to be done.
    polled: Line,
}

impl Stream {
    fn new(busy_bytes: u64, room: u64) -> Self {
        let mut pair = Pair::new(parameters());
        pair.receiver.set_pace(Pace { busy_bytes, ..Pace::default() });
        for _ in 0..8 {
            pair.post(&[(room, 0)], false);
            while pair.advertise().is_some() {}
        }
        Self { polled: pair.parameters.first_line, pair }
    }

    /// Messages of `len` bytes, for each of which a receive of `room` is posted; how many adverts travelled at once. The sender
    /// never lacks one.
    fn run(&mut self, len: u64, room: u64, messages: u32) -> Vec<u32> {
        let Self { pair, polled } = self;
        let mut writes = Vec::new();
        for _ in 0..messages {
            let (line, immediate) = pair.send(0, len).expect("an advert is always there");
            let due = pair.receiver.arrived_plainly(0, immediate).unwrap_or_else(|| {
                assert!(matches!(pair.receiver.arrived(0, immediate, len), Arrival::Complete(_)));
                false
            });
            pair.sender.written(line);
            assert_eq!(pair.receiver.poll(line), ReceivePoll::Done { count: 1 });
            pair.post(&[(room, 0)], false).expect("there is room");
            let mut together = 0;
            while let Some(count) = pair.advertise() {
                together += count; // Two writes where the ring ends.
            }
            assert!(!due || together > 0, "what is due is written");
            writes.extend(Some(together).filter(|together| *together > 0));
            pair.sender.observe(&pair.mailbox);
            while pair.sender.poll(*polled) == (SendPoll::Done { len }) {
                *polled = polled.plus(1);
            }
        }
        writes
    }
}

#[test]
fn adverts_wait_longer_while_what_the_sender_has_left_keeps_the_rails_busy() {
    for (len, together) in [(8, 4), (32 << 10, 5), (64 << 10, 6), (1 << 20, 6)] {
        let writes = Stream::new(2 * (64 << 10), len).run(len, len, 240);
        assert!(writes.iter().all(|count| *count == together), "{len} bytes: {writes:?}");
        assert_eq!(writes.iter().sum::<u32>(), 240);
    }
    let writes = Stream::new(u64::MAX, 1 << 20).run(1 << 20, 1 << 20, 240);
    assert!(writes.iter().all(|count| *count == 4), "where nobody is taken for busy: {writes:?}");
}

#[test]
fn adverts_that_wait_for_busy_rails_wait_no_longer_than_a_few_idle_turns() {
    let mut stream = Stream::new(1 << 16, 1 << 20);
    assert_eq!(stream.run(1 << 20, 1 << 20, 4), []);
    let pair = &mut stream.pair;
    for turn in 1..BUSY_IDLE_TURNS {
        assert!(pair.receiver.rests(1), "turn {turn}");
        assert_eq!(pair.advertise(), None, "turn {turn}");
    }
    assert!(!pair.receiver.rests(1));
    pair.receiver.idle_turn();
    assert_eq!(
        pair.advertise(),
        Some(4),
        "the sender may be waiting for the done that comes along"
    );
}

#[test]
fn short_messages_behind_long_ones_are_not_taken_for_long() {
    // Into receives that are as short, and into long ones: the latter are no common case.
    for room in [8, 1 << 20] {
        let mut stream = Stream::new(1 << 17, 1 << 20);
        stream.run(1 << 20, 1 << 20, 12);
        let writes = stream.run(8, room, 40);
        assert!(writes[2..].iter().all(|count| *count == 4), "{room}: {writes:?}");
    }
}

#[test]
fn a_group_split_by_the_end_of_the_ring_is_written_to_its_end() {
    let window = Window::new(16, 4, 12).unwrap();
    for first in 0..16 {
        let first_line = Line::new(first);
        let mut pair = Pair::new(FlowParameters { window, first_line, ..parameters() });
        pair.post(&[(8, 0)], false);
        pair.advertise();
        pair.post(&[(8, 0); 8], false);
        let mut written = 0;
        while let Some(count) = pair.advertise() {
            written += count;
        }
        assert_eq!(written, 8, "first line {first}");
    }
}

#[test]
fn the_last_advert_of_a_write_carries_the_newest_done() {
    let window = Window::new(16, 4, 12).unwrap();
    for (first, before, after) in
        (0..16).flat_map(|first| (1..6).flat_map(move |b| (0..6).map(move |a| (first, b, a))))
    {
        let first_line = Line::new(first);
        let mut pair = Pair::new(FlowParameters { window, first_line, ..parameters() });
        pair.post(&[(8, 0)], false);
        pair.advertise();
        let (line, immediate) = pair.send(0, 8).unwrap();
        (0..before).for_each(|_| assert!(pair.post(&[(8, 0)], false).is_some()));
        pair.receiver.arrived(0, immediate, 8);
        (0..after).for_each(|_| assert!(pair.post(&[(8, 0)], false).is_some()));
        let mut written = 0;
        while let Some(write) = pair.receiver.next_write(&mut pair.staging) {
            let last = pair.staging.word(write.place + write.count - 1, 1) & 0xffff;
            assert_eq!(last, u64::from(first + 1), "{first} {before} {after}");
            (write.place..write.place + write.count).for_each(|place| pair.carry(place));
            pair.receiver.wrote(write);
            written += write.count;
        }
        assert_eq!(written, before + after);
        pair.sender.written(line);
        pair.sender.observe(&pair.mailbox);
        assert_eq!(pair.sender.poll(line), SendPoll::Done { len: 8 });
    }
}

#[test]
fn a_refused_advert_is_sealed_again_with_the_newest_done() {
    let mut pair = Pair::new(parameters());
    pair.post(&[(8, 0)], false);
    pair.advertise();
    let (_, immediate) = pair.send(0, 8).unwrap();
    pair.post(&[(8, 0)], false);
    let refused = pair.receiver.next_write(&mut pair.staging).unwrap();
    pair.receiver.arrived(0, immediate, 8);
    pair.post(&[(8, 0)], false);
    let accepted = pair.receiver.next_write(&mut pair.staging).unwrap();
    assert_eq!((refused.place, refused.count), (1, 1));
    assert_eq!((accepted.place, accepted.count), (1, 2));
    assert_eq!(pair.staging.word(1, 1) & 0xffff, 0);
    assert_eq!(pair.staging.word(2, 1) & 0xffff, 1);
    assert!(pair.receiver.owes_done());
    pair.receiver.wrote(accepted);
    assert!(!pair.receiver.owes_done());
}

#[test]
fn an_advert_is_there_only_when_every_word_is() {
    for rails in [1, 4, 5, 12, 13, 16] {
        let path = Path::Fin;
        for missing in 0..(FlowParameters { rails, ..parameters() }).format().words() {
            let mut pair = Pair::new(FlowParameters { rails, path, ..parameters() });
            pair.mailbox.words.fill(0x5555_0000_0000_0000);
            pair.post(&[(8, 0)], false);
            pair.advertise().unwrap();
            let word = std::mem::replace(pair.mailbox.at(0, missing), 0x1234_5678_0000_4321);
            assert!(pair.send(0, 8).is_none(), "{rails} rails, word {missing}");
            *pair.mailbox.at(0, missing) = word;
            assert!(pair.send(0, 8).is_some());
        }
    }
}

#[test]
fn an_advert_of_another_nonce_or_another_lap_is_not_there() {
    let mut pair = Pair::new(parameters());
    let mut other = Pair::new(FlowParameters { nonce: 1, ..parameters() });
    other.post(&[(8, 0)], false);
    other.advertise();
    pair.mailbox = other.mailbox.clone();
    assert!(matches!(pair.sender.submit(&pair.mailbox, 0, 8), Ok(Submit::NotYet)));

    let lap = Line::new(64);
    let mut later = Pair::new(FlowParameters { first_line: lap, ..parameters() });
    later.post(&[(8, 0)], false);
    later.advertise();
    pair.mailbox = later.mailbox.clone();
    assert!(matches!(pair.sender.submit(&pair.mailbox, 0, 8), Ok(Submit::NotYet)));
}

#[test]
fn an_immediate_reaches_only_the_lines_that_are_advertised() {
    for first in [0, 1000, 1022, 65534, u32::MAX - 1] {
        let first_line = Line::new(first);
        for residue in 0..RESIDUES {
            let mut pair = Pair::new(FlowParameters { first_line, ..parameters() });
            for _ in 0..4 {
                pair.post(&[(8, 0)], false);
            }
            while pair.advertise().is_some() {}
            pair.post(&[(8, 0)], false);
            let comm = pair.parameters.comm;
            let line = Line::new(residue);
            let immediate = proto::Immediate::new(comm, line, 0, true, true, 8);
            let arrival = pair.receiver.arrived(0, immediate, 8);
            let ahead = residue.wrapping_sub(first) % RESIDUES;
            let complete = Arrival::Complete(first_line.plus(ahead));
            assert_eq!(arrival, if ahead < 4 { complete } else { Arrival::Late });
        }
    }
}

#[test]
fn flows_keep_to_their_budget_of_memory() {
    let mut pair = Pair::new(parameters());
    assert!(pair.sender.memory_bytes() <= 2656, "{}", pair.sender.memory_bytes());
    assert!(pair.receiver.memory_bytes() <= 5648, "{}", pair.receiver.memory_bytes());
    pair.sender.allow_eager(40);
    assert!(pair.receiver.allow_eager());
    assert!(pair.sender.memory_bytes() <= 3334, "{}", pair.sender.memory_bytes());
    assert!(pair.receiver.memory_bytes() <= 5880, "{}", pair.receiver.memory_bytes());
}

const PATHS: [Path; 3] =
    [Path::Immediate { eight: true }, Path::Immediate { eight: false }, Path::Fin];
