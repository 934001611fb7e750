//! A mixed workload from a seed, over a fabric that refuses posts at random: every byte is checked, and so are the provider's counts.
//!
//! One thread drives both ends, so that a seed gives the same run again. A workload has several connections in both directions, with
//! messages of no bytes, a few, many, and so many that they are striped; receives that fit and receives that are larger, alone and in
//! groups; flushes of memory that the fabric hides until they are made; buffers that are registered again.
//!
//! `MIXED_SEEDS=n` sets the number of seeds, `MIXED_FIRST=n` the first one. `scripts/matrix` runs many of them by the test `as_configured`:
//! MIXED_PROFILE names the profile, MIXED_RAILS=4/2 the rails of both ends, MIXED_EAGAIN the refusals per thousand, VFABRIC_* further
//! settings of the fabric; with MIXED_POSTS=1 every single post of one workload is refused once instead.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::support::calls::{Buffer, Net, Object};
use crate::support::random::Random;
use crate::support::say;
use crate::support::stage::{Part, play};
use crate::support::virtual_fabric::{VirtualFabric, set};
use crate::together::close_together;
use crate::world::{End, World, connect_by, provider};

/// The settings of a run.
#[derive(Clone, Debug)]
struct Run {
    profile: String,
    /// Rails of the two ends. If they differ, each end is a plugin of its own, loaded from a file of its own.
    rails: [usize; 2],
    /// Refused posts per thousand.
    eagain: u32,
    seeds: u64,
}

impl Run {
    fn new(profile: &str, rails: [usize; 2]) -> Self {
        Self { profile: profile.to_owned(), rails, eagain: 300, seeds: SEEDS }
    }
}

/// Seeds of each test, unless MIXED_SEEDS is set: 200 in all.
const SEEDS: u64 = 50;

#[test]
fn refusals_by_cxi_lose_nothing() {
    play(&[provider()], BOUND, |part| run(part, &Run::new("cxi", [2, 2])));
}

#[test]
fn refusals_by_efa_lose_nothing() {
    play(&[provider()], BOUND, |part| run(part, &Run::new("efa", [4, 4])));
}

#[test]
fn refusals_by_tcp_lose_nothing() {
    play(&[provider()], BOUND, |part| run(part, &Run::new("tcp", [2, 2])));
}

#[test]
fn refusals_by_the_adversary_lose_nothing() {
    play(&[provider()], BOUND, |part| run(part, &Run::new("adversary", [4, 4])));
}

/// Each post takes ten attempts, so that anything a refusal keeps is soon used up, or got anew.
#[test]
fn refusals_keep_nothing() {
    play(&[provider()], BOUND, |part| {
        let regions = [0, 900]
            .map(|eagain| regions_left(part, &Run { seeds: 4, eagain, ..Run::new("cxi", [1, 1]) }));
        assert_eq!(regions[0], regions[1], "regions by seed, without refusals and with");
    });
}

#[test]
fn ends_with_unequal_rails_use_the_common_ones() {
    play(&[provider()], BOUND, |part| {
        run(part, &Run { seeds: 10, ..Run::new("cxi", [4, 2]) });
    });
}

/// Eight rails have longer lines than three.
#[test]
fn ends_with_unequal_lines_use_the_shorter_ones() {
    play(&[provider()], BOUND, |part| {
        run(part, &Run { seeds: 10, ..Run::new("adversary", [8, 3]) });
    });
}

#[test]
#[ignore = "scripts/matrix says what to run"]
fn as_configured() {
    let said = play(&[provider()], BOUND * 30, |part| {
        let rails = variable("MIXED_RAILS").unwrap_or_else(|| "4".to_owned());
        let mut rails = rails.split('/').map(|count| count.parse().expect("MIXED_RAILS=4/2"));
        let first = rails.next().expect("a split has a first piece");
        let profile = variable("MIXED_PROFILE").unwrap_or_else(|| "cxi".to_owned());
        let eagain = number("MIXED_EAGAIN").and_then(|count| u32::try_from(count).ok());
        let settings = Run::new(&profile, [first, rails.next().unwrap_or(first)]);
        let settings = Run { eagain: eagain.unwrap_or(settings.eagain), ..settings };
        if number("MIXED_POSTS").is_some() {
            refuse_each(part, &settings)
        } else {
            run(part, &settings)
        }
    });
    for line in said.lines().filter(|line| line.starts_with(REPORT)) {
        say(line);
    }
}

/// Some seeds, in a process of its own.
fn run(part: &Part, settings: &Run) {
    regions_left(part, settings);
}

/// The same. Returns by seed how many regions were open when all connections had closed.
fn regions_left(part: &Part, settings: &Run) -> Vec<u64> {
    let first = number("MIXED_FIRST").unwrap_or(1);
    let seeds = number("MIXED_SEEDS").unwrap_or(settings.seeds);
    let mut stage = Stage::open(part, settings);
    let one = |seed| {
        say(&format!("seed {seed} of {}", settings.profile));
        stage.play(seed, &format!("eagain={} seed={seed}", settings.eagain))
    };
    let regions = (first..first + seeds).map(one).collect();
    let Books { messages, bytes, striped, grouped, flushes, posts, refused, .. } = stage.total;
    say(&format!(
        "{REPORT}{seeds} seeds: {messages} messages, {striped} of them striped, {grouped} groups, {bytes} bytes, {flushes} flushes, {posts} posts, {refused} refused"
    ));
    assert_eq!(messages, seeds * COMMS_MAX as u64 * MESSAGES);
    assert!(striped > 0 && grouped > 0 && flushes > 0, "the workload is mixed");
    let expected = posts * u64::from(settings.eagain) / 1000;
    assert!(refused >= expected * 8 / 10, "{refused} of {posts} posts were refused");
    regions
}

/// Every single post of one workload is refused once, until a run ends before the post that should be refused.
fn refuse_each(part: &Part, settings: &Run) {
    let mut stage = Stage::open(part, settings);
    for post in 1.. {
        say(&format!("post {post} of {}", settings.profile));
        stage.play(1, &format!("faults=refuse={post}"));
        if stage.fabric.number("counter.faults.refuse") == 0 {
            say(&format!("{REPORT}posts 1 to {} refused, one at a time", post - 1));
            return;
        }
    }
}

/// What workloads run on, one after the other.
struct Stage {
    nets: [Net; 2],
    fabric: VirtualFabric,
    arena: Buffer,
    settings: String,
    total: Books,
}

impl Stage {
    fn open(part: &Part, settings: &Run) -> Self {
        set("IRONRAIL_STRIPE_MIN", "16K");
        let World { nets, fabric } = World::open(part, &settings.profile, settings.rails);
        let inherited = ["REGIONS", "IMMEDIATES", "CLOCK", "BANDWIDTH", "DEPTH"].map(|name| {
            let value = variable(&format!("VFABRIC_{name}"));
            value.map(|value| format!(" {}={value}", name.to_ascii_lowercase())).unwrap_or_default()
        });
        let settings = format!("profile={} nics=16{}", settings.profile, inherited.concat());
        let arena = Buffer::new(COMMS_MAX * 2 * SIDE_BYTES);
        Self { nets, fabric, arena, settings, total: Books::default() }
    }

    /// Returns how many regions were open when all connections had closed.
    fn play(&mut self, seed: u64, more: &str) -> u64 {
        let Self { nets, fabric, arena, settings, total } = self;
        fabric.configure(&format!("{settings} {more}"));
        let mut workload = Workload::new(*nets, *fabric, *arena, seed);
        workload.run();
        total.add(&workload.books);
        total.posts += fabric.number("counter.posts");
        total.refused += fabric.number("counter.faults.refuse_random");
        fabric.is_clean();
        workload.books.regions
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u64> {
    variable(name).map(|value| value.parse().expect("a number"))
}

/// The start of the result of a run.
const REPORT: &str = "mixed: ";

/// Counts of what was done.
#[derive(Debug, Default)]
struct Books {
    messages: u64,
    bytes: u64,
    striped: u64,
    grouped: u64,
    flushes: u64,
    posts: u64,
    refused: u64,
    /// That are open when all connections have closed.
    regions: u64,
}

impl Books {
    fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.striped += other.striped;
        self.grouped += other.grouped;
        self.flushes += other.flushes;
    }
}

/// One seed's run.
struct Workload {
    fabric: VirtualFabric,
    ends: [End; 2],
    comms: Vec<Comm>,
    random: Random,
    books: Books,
    /// The last call that moved something.
    moved: Instant,
}

/// One connection, with both its ends.
struct Comm {
    sender: Net,
    receiver: Net,
    send: Object,
    receive: Object,
    out: Buffer,
    out_region: Object,
    into: Buffer,
    into_region: Object,
    /// Whether received bytes are hidden until they are flushed.
    hidden: bool,
    plans: Vec<Plan>,
    sent: usize,
    posted: usize,
    window: usize,
    sending: VecDeque<(usize, Object)>,
    receiving: VecDeque<(Range<usize>, Object)>,
    flushing: Option<(Range<usize>, Object)>,
    finished: usize,
}

/// One message: its length, the length of its receive, and whether a flush follows it.
#[derive(Clone, Copy)]
struct Plan {
    len: usize,
    room: usize,
    flush: bool,
    /// Its receive begins a group of this many, if there is room.
    group: usize,
}

impl Workload {
    fn new(nets: [Net; 2], fabric: VirtualFabric, arena: Buffer, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let ends = nets.map(End::open);
        let comms = (0..COMMS_MAX).map(|index| Comm::open(ends, arena, index, fabric, &mut random));
        let comms = comms.collect();
        Self { fabric, ends, comms, random, books: Books::default(), moved: Instant::now() }
    }

    fn run(&mut self) {
        while let Some(comm) = self.pick() {
            let choice = self.random.up_to(6);
            let moved = self.comms[comm].step(choice, &mut self.books);
            if moved {
                self.moved = Instant::now();
            }
            let idle = self.moved.elapsed();
            assert!(idle < IDLE_MAX, "nothing moves: {}", self.comms[comm].state());
            if self.random.up_to(40) == 0 {
                self.comms[comm].register_again();
            }
        }
        self.close();
    }

    /// A connection that is not finished.
    fn pick(&mut self) -> Option<usize> {
        let open = |comm: &Comm| !comm.is_through();
        let left = self.comms.iter().filter(|comm| open(comm)).count();
        let nth = self.random.up_to(left.checked_sub(1)? as u64);
        let mut open = (0..COMMS_MAX).filter(|index| open(&self.comms[*index]));
        open.nth(usize::try_from(nth).expect("small"))
    }

    fn close(&mut self) {
        while !self.comms.is_empty() {
            let index = self.random.below(self.comms.len());
            self.comms.swap_remove(index).close();
        }
        self.fabric.mark(0, 0);
        self.books.regions = self.fabric.number("open.regions");
        // The ends receive each other's farewell, which a refused post may delay.
        for poll in 0..SETTLE_POLLS {
            self.ends.iter().for_each(End::poll);
            if poll > SETTLE_POLLS / 2 && self.fabric.number("open.operations") == 0 {
                break;
            }
        }
        close_together(self.ends);
    }
}

impl Comm {
    /// Connects: most from the first end to the second, some back, and one to itself.
    fn open(
        ends: [End; 2],
        arena: Buffer,
        index: usize,
        fabric: VirtualFabric,
        random: &mut Random,
    ) -> Self {
        let (from, to) = [(0, 1), (1, 0), (0, 1), (0, 0)][index % 4];
        let (sender, receiver) = (ends[from], ends[to]);
        let (send, receive) = connect_by(&sender, &receiver, || random.up_to(1) == 0);
        let side = |number: usize| arena.part((2 * index + number) * SIDE_BYTES, SIDE_BYTES);
        let (out, into) = (side(0), side(1));
        let hidden = index % 2 == 1;
        if hidden {
            fabric.mark(into.address(), into.len);
        }
        Self {
            sender: sender.net,
            receiver: receiver.net,
            send,
            receive,
            out,
            out_region: sender.net.register(send, out).expect("regMr"),
            into,
            into_region: receiver.net.register(receive, into).expect("regMr"),
            hidden,
            plans: (0..MESSAGES).map(|_| Plan::from(random, hidden)).collect(),
            sent: 0,
            posted: 0,
            window: 1 + random.below(SLOTS),
            sending: VecDeque::new(),
            receiving: VecDeque::new(),
            flushing: None,
            finished: 0,
        }
    }

    fn is_through(&self) -> bool {
        self.finished == self.plans.len()
            && self.sent == self.plans.len()
            && self.sending.is_empty()
    }

    fn state(&self) -> String {
        format!(
            "{} of {} messages were sent, {} receives posted, {} finished; {} sends and {} receives are outstanding",
            self.sent,
            self.plans.len(),
            self.posted,
            self.finished,
            self.sending.len(),
            self.receiving.len()
        )
    }

    /// One call, as a proxy thread would make it. True if something made progress.
    fn step(&mut self, choice: u64, books: &mut Books) -> bool {
        match choice {
            0 => self.post_receive(),
            1 => self.post_send(),
            2 | 3 => self.test_receive(books),
            4 => self.test_send(books),
            _ => self.test_flush(books),
        }
    }

    fn post_receive(&mut self) -> bool {
        if self.posted == self.plans.len() || self.posted - self.finished >= self.window {
            return false;
        }
        let end = self.plans.len().min(self.finished + self.window);
        let group = self.posted..end.min(self.posted + self.plans[self.posted].group);
        let receive = |index: usize| {
            let (room, slot) = (self.plans[index].room, self.into.part(at(index), SLOT));
            slot.write(0, &vec![POISON; room]);
            (slot.address(), room, tag(index))
        };
        let receives: Vec<_> = group.clone().map(receive).collect();
        let request = self.receiver.irecv_each(self.receive, &receives, self.into_region);
        let Some(request) = request.expect("irecv") else { return false };
        self.posted = group.end;
        self.receiving.push_back((group, request));
        true
    }

    fn post_send(&mut self) -> bool {
        if self.sent == self.plans.len() || self.sending.len() >= self.window {
            return false;
        }
        let (index, slot) = (self.sent, self.out.part(at(self.sent), SLOT));
        let len = self.plans[index].len;
        slot.write(0, &pattern(self.salt(), index, len));
        let request =
            self.sender.isend(self.send, slot.address(), len, tag(index), self.out_region);
        let Some(request) = request.expect("isend") else { return false };
        self.sending.push_back((index, request));
        self.sent += 1;
        true
    }

    fn test_send(&mut self, books: &mut Books) -> bool {
        let Some((index, request)) = self.sending.front().copied() else { return false };
        let Some(size) = self.sender.test(request).expect("test") else { return false };
        let len = self.plans[index].len;
        assert_eq!(size, len, "the size of send {index}");
        let kept = self.out.part(at(index), SLOT).read(0, len);
        assert!(kept == pattern(self.salt(), index, len), "send {index} was changed");
        self.sending.pop_front();
        books.messages += 1;
        books.bytes += len as u64;
        books.striped += u64::from(len >= 16 << 10);
        true
    }

    fn test_receive(&mut self, books: &mut Books) -> bool {
        if self.flushing.is_some() {
            return false;
        }
        let Some((group, request)) = self.receiving.front().cloned() else { return false };
        let sizes = self.receiver.test_each(request, group.len()).expect("test");
        let Some(sizes) = sizes else { return false };
        let sent: Vec<usize> = self.plans[group.clone()].iter().map(|plan| plan.len).collect();
        assert_eq!(sizes, sent, "the sizes of receives {group:?}");
        self.receiving.pop_front();
        books.grouped += u64::from(group.len() > 1);
        if !self.plans[group.clone()].iter().any(|plan| plan.flush) {
            group.for_each(|index| self.check(index));
            return true;
        }
        let slot = self.into.part(at(group.start), SLOT);
        let flush = self.receiver.iflush(self.receive, slot.address(), sizes[0], self.into_region);
        match flush.expect("iflush") {
            Some(request) => {
                books.flushes += 1;
                self.flushing = Some((group, request));
            }
            None => group.for_each(|index| self.check(index)),
        }
        true
    }

    fn test_flush(&mut self, _books: &mut Books) -> bool {
        let Some((group, request)) = self.flushing.clone() else { return false };
        if !self.receiver.test_flush(request).expect("test") {
            return false;
        }
        self.flushing = None;
        group.for_each(|index| self.check(index));
        true
    }

    /// Checks every byte of the message, and that none behind it has changed.
    fn check(&mut self, index: usize) {
        let Plan { len, room, .. } = self.plans[index];
        let bytes = self.into.part(at(index), SLOT).read(0, room);
        let expected = pattern(self.salt(), index, len);
        let wrong = bytes[..len].iter().zip(&expected).position(|(is, should)| is != should);
        assert_eq!(wrong, None, "message {index} of {len} bytes, hidden: {}", self.hidden);
        assert!(bytes[len..].iter().all(|byte| *byte == POISON), "bytes behind message {index}");
        self.finished += 1;
    }

    /// Registers buffers again that have nothing in flight.
    fn register_again(&mut self) {
        if self.sending.is_empty() {
            self.sender.deregister(self.send, self.out_region).expect("deregMr");
            self.out_region = self.sender.register(self.send, self.out).expect("regMr");
        }
        if self.receiving.is_empty() && self.flushing.is_none() {
            self.receiver.deregister(self.receive, self.into_region).expect("deregMr");
            self.into_region = self.receiver.register(self.receive, self.into).expect("regMr");
        }
    }

    fn close(self) {
        self.sender.deregister(self.send, self.out_region).expect("deregMr");
        self.receiver.deregister(self.receive, self.into_region).expect("deregMr");
        self.sender.close_send(self.send).expect("closeSend");
        self.receiver.close_recv(self.receive).expect("closeRecv");
    }

    /// Distinguishes the messages of one connection from another's.
    fn salt(&self) -> u64 {
        self.out.address() as u64
    }
}

impl Plan {
    fn from(random: &mut Random, hidden: bool) -> Self {
        let mut between = |low: u64, high: u64| low + random.up_to(high - low);
        let len = match between(0, 9) {
            0 => 0,
            1..=3 => between(1, 256),
            4..=6 => between(257, 16 << 10),
            7 => 4096 * between(1, 8),
            _ => between(16 << 10, SLOT as u64 - 4096),
        };
        let room = len + [0, between(1, 4096)][usize::from(between(0, 1) == 1)];
        let size = |bytes| usize::try_from(bytes).expect("small");
        Self {
            len: size(len),
            room: size(room),
            flush: hidden || between(0, 3) == 0,
            group: size(between(1, 2) * between(1, 4)),
        }
    }
}

/// The offset of a message in its side's buffer.
fn at(index: usize) -> usize {
    index % SLOTS * SLOT
}

fn tag(index: usize) -> i32 {
    i32::try_from(index % 7).expect("small")
}

fn pattern(salt: u64, index: usize, len: usize) -> Vec<u8> {
    let mut random = Random::new(salt ^ (index as u64) << 32);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

const BOUND: Duration = Duration::from_secs(120);
const COMMS_MAX: usize = 4;
/// Per connection.
const MESSAGES: u64 = 12;
/// The largest receive, and how many of them a side has.
const SLOT: usize = 64 << 10;
const SLOTS: usize = 8;
const SIDE_BYTES: usize = SLOT * SLOTS;
const POISON: u8 = 0xee;
/// Without progress for longer, it hangs. An end whose messages are all done makes no calls: its keeper posts what was refused, and
/// polls every 10 ms until it has arrived.
const IDLE_MAX: Duration = Duration::from_secs(10);
const SETTLE_POLLS: u32 = 1000;
