//! Eager messages and the receives that they are for: both ends find the same, whatever either knows when.

#![allow(clippy::cast_possible_truncation, reason = "small numbers, all of them")]

use std::collections::VecDeque;

use proto::Line;
use proto::eager::Unplaced;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}

/// A sender that reads groups late, and a receiver that posts and hears late.
struct World {
    first_line: Line,
    tagged: bool,
    groups: Vec<Vec<i32>>,
    posted: usize,
    read: usize,
    sender: Unplaced,
    receiver: Unplaced,
    /// What the sender still sends, by tag, in order: messages by their numbers.
    streams: Vec<(i32, VecDeque<usize>)>,
    /// Of the group read last: its lines that no message has.
    free: Vec<usize>,
    /// Eager messages on their way: message, base, tag.
    wire: VecDeque<(usize, Line, i32)>,
    /// Writes on their way, which overtake each other and what is eager: message, line.
    writes: Vec<(usize, usize)>,
    /// Lines that wait for a message, at the receiver.
    open: Vec<usize>,
    eager: Vec<usize>,
    arrived: Vec<usize>,
    /// The message that each end finds for each line.
    sent: Vec<Option<usize>>,
    received: Vec<Option<usize>>,
}

impl World {
    fn of(random: &mut Random, tagged: bool) -> Self {
        let tags = 1 + random.below(4);
        let groups: Vec<Vec<i32>> = (0..1 + random.below(12))
            .map(|_| {
                let count = if tagged { 1 + random.below(8) } else { 1 };
                (0..count).map(|_| random.below(tags) as i32).collect()
            })
            .collect();
        let lines: Vec<i32> = groups.iter().flatten().copied().collect();
        // The n-th message of a tag is for the n-th line of it: so numbered, every message has its line's number.
        let streams = if tagged {
            let of = |tag: i32| (0..lines.len()).filter(|line| lines[*line] == tag).collect();
            (0..tags as i32).map(|tag| (tag, of(tag))).collect()
        } else {
            vec![(7, (0..lines.len()).collect())]
        };
        let first_line = Line::new(u32::MAX.wrapping_sub(random.below(40) as u32));
        Self {
            first_line,
            tagged,
            posted: 0,
            read: 0,
            sender: Unplaced::new(tagged),
            receiver: Unplaced::new(tagged),
            streams,
            free: Vec::new(),
            wire: VecDeque::new(),
            writes: Vec::new(),
            open: Vec::new(),
            eager: Vec::new(),
            arrived: Vec::new(),
            sent: vec![None; lines.len()],
            received: vec![None; lines.len()],
            groups,
        }
    }

    fn lines(&self, group: usize) -> std::ops::Range<usize> {
        let first = self.groups[..group].iter().map(Vec::len).sum();
        first..first + self.groups[group].len()
    }

    fn tag(&self, line: usize) -> i32 {
        self.groups.iter().flatten().copied().nth(line).expect("a line")
    }

    fn line(&self, line: usize) -> Line {
        self.first_line.plus(line as u32)
    }

    fn post(&mut self) {
        if self.posted == self.groups.len() {
            return;
        }
        for line in self.lines(self.posted) {
            match self.receiver.take(self.line(line), self.tag(line)) {
                Some(number) => self.received[line] = Some(self.arrived[number as usize]),
                None => self.open.push(line),
            }
        }
        self.posted += 1;
    }

    fn hear(&mut self) {
        let Some((message, base, tag)) = self.wire.pop_front() else { return };
        self.arrived.push(message);
        self.receiver.push(base, tag).expect("no more wait than at the sender");
        let open = self.open.clone();
        for line in open {
            if let Some(number) = self.receiver.take(self.line(line), self.tag(line)) {
                self.received[line] = Some(self.arrived[number as usize]);
                self.open.retain(|other| *other != line);
            }
        }
    }

    /// A write names its line.
    fn land(&mut self, random: &mut Random) {
        if !self.writes.is_empty() {
            let (message, line) = self.writes.swap_remove(random.below(self.writes.len()));
            assert_eq!(self.received[line].replace(message), None, "line {line} has a message");
            self.open.retain(|other| *other != line);
        }
    }

    /// What the window relies on: no more receives are complete past those that the sender has read than E.
    fn check(&self) {
        let first = self.groups[..self.read].iter().map(Vec::len).sum();
        let ahead = self.received[first..].iter().flatten().count();
        assert!(ahead <= Unplaced::MAX, "{ahead} lines are complete that the sender has not read");
    }

    /// Reads the group that the sender is at, if it is there.
    fn read(&mut self) {
        while self.free.is_empty() && self.read < self.posted {
            for line in self.lines(self.read) {
                match self.sender.take(self.line(line), self.tag(line)) {
                    Some(number) => self.sent[line] = Some(self.eager[number as usize]),
                    None => self.free.push(line),
                }
            }
            self.read += 1;
        }
    }

    fn send(&mut self, stream: usize) {
        let (tag, waiting) = &self.streams[stream];
        let (tag, Some(message)) = (*tag, waiting.front().copied()) else { return };
        if self.free.is_empty() {
            let base = self.line(self.lines(self.read.min(self.groups.len() - 1)).start);
            if self.read == self.groups.len() || self.sender.push(base, tag).is_none() {
                return;
            }
            self.eager.push(message);
            self.wire.push_back((message, base, tag));
        } else {
            let suits = |line: &usize| !self.tagged || self.tag(*line) == tag;
            let Some(index) = self.free.iter().position(suits) else { return };
            let line = self.free.remove(index);
            self.sent[line] = Some(message);
            self.writes.push((message, line));
        }
        self.streams[stream].1.pop_front();
    }

    fn play(&mut self, random: &mut Random) {
        let mut idle = 0;
        while self.sent.contains(&None) || self.received.contains(&None) {
            let before = (self.sent.clone(), self.received.clone(), self.posted, self.eager.len());
            match random.below(7) {
                0 => self.post(),
                1 => self.read(),
                2 => self.hear(),
                3 => self.land(random),
                _ => self.send(random.below(self.streams.len())),
            }
            self.check();
            let after = (&self.sent, &self.received, self.posted, self.eager.len());
            let same = (&before.0, &before.1, before.2, before.3) == after;
            idle = if same { idle + 1 } else { 0 };
            assert!(idle < 10_000, "hangs: sent {:?}, received {:?}", self.sent, self.received);
        }
        for line in 0..self.sent.len() {
            assert_eq!(self.sent[line], Some(line), "the sender's view of line {line}");
            assert_eq!(self.received[line], Some(line), "the receiver's view of line {line}");
        }
    }
}

#[test]
fn both_ends_find_the_same_receive_for_every_eager_message() {
    let (mut eager, mut all) = (0, 0);
    for seed in 1..=4000 {
        for tagged in [true, false] {
            let mut random = Random(seed);
            let mut world = World::of(&mut random, tagged);
            world.play(&mut random);
            eager += world.eager.len();
            all += world.sent.len();
        }
    }
    assert!(eager * 5 > all && eager * 5 < all * 4, "{eager} of {all} were eager");
}

#[test]
fn no_more_messages_wait_than_the_window_allows_for() {
    let mut unplaced = Unplaced::new(false);
    assert!(Unplaced::MAX <= proto::Window::GROUPED.eager() as usize);
    for number in 0..Unplaced::MAX as u32 {
        assert_eq!(unplaced.push(Line::FIRST, 0), Some(number));
    }
    assert_eq!(unplaced.push(Line::FIRST, 0), None);
    assert_eq!(unplaced.take(Line::FIRST, 0), Some(0));
    assert_eq!(unplaced.push(Line::FIRST, 0), Some(Unplaced::MAX as u32));
}
