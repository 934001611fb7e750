//! What the two applications mean to do: receives in groups, the messages for them, and the terms of the connection.

use proto::bundle::PAYLOAD_WORDS;
use proto::{CommId, FlowParameters, Line, Path, RailPlan, Window};

use crate::random::Random;

/// One sub-receive and its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) tag: i32,
    pub(crate) posted: u64,
    pub(crate) sent: u64,
}

/// A group of entries, and the batch it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) batch: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) parameters: FlowParameters,
    pub(crate) plan: RailPlan,
    pub(crate) entries: Vec<Entry>,
    pub(crate) groups: Vec<Group>,
    /// The receiver truncates what is too long.
    pub(crate) cut: bool,
    /// A batch begins when both ends have finished the one before, and each end is silent in between.
    pub(crate) batches_wait: bool,
    /// Requests are tested in any order, not only the oldest.
    pub(crate) any_order: bool,
    pub(crate) refuse_percent: u32,
    pub(crate) duplicate_percent: u32,
    pub(crate) inject_percent: u32,
    pub(crate) tear_percent: u32,
    /// How often a receive that stands alone is one whose completion is optional.
    pub(crate) optional_percent: u32,
    /// Up to how many bytes messages may travel eagerly.
    pub(crate) eager_limit: Option<u64>,
    /// Up to how many bytes messages may travel in bundles.
    pub(crate) bundle_limit: Option<u64>,
    /// How often one that may is held back for it.
    pub(crate) bundle_percent: u32,
    /// How many receives the application keeps posted at most.
    pub(crate) depth: usize,
}

impl Script {
    pub(crate) fn of(random: &mut Random) -> Self {
        let parameters = parameters(random);
        let grouped = random.percent(40);
        let cut = random.percent(20);
        let too_long = random.percent(8);
        let lines = match random.below(20) {
            0 => random.between(100, 300),
            1..=5 => random.between(20, 100),
            _ => random.between(1, 20),
        } as usize;
        let mut script = Self {
            plan: plan(random, parameters.rails),
            parameters,
            entries: Vec::new(),
            groups: Vec::new(),
            cut,
            batches_wait: random.percent(50),
            any_order: random.percent(30),
            refuse_percent: random.pick(&[0, 0, 5, 30, 60]),
            duplicate_percent: random.pick(&[0, 0, 10, 40]),
            inject_percent: random.pick(&[0, 50, 100]),
            tear_percent: random.pick(&[0, 10, 60]),
            optional_percent: random.pick(&[0, 0, 50, 100]),
            eager_limit: random.pick(&[None, None, Some(0), Some(8), Some(40), Some(128)]),
            depth: random.pick(&[1, 2, 8, 32, 200]),
            bundle_limit: random.pick(&[None, Some(8), Some(16), Some(1000)]),
            bundle_percent: random.pick(&[20, 80, 100]),
        };
        let lens = Lens::of(random, parameters.largest_write);
        let largest_group = (parameters.window.outstanding() as usize).min(8);
        let tags = random.between(1, 10) as i32;
        let mut batch = 0;
        while script.entries.len() < lines {
            let count = if grouped { random.between(1, largest_group as u64) as usize } else { 1 };
            let first = script.entries.len();
            script.groups.push(Group { first, count, batch });
            batch += usize::from(random.percent(15));
            for _ in 0..count {
                let posted = lens.draw(random);
                let sent = if random.percent(50) { posted } else { lens.draw(random) };
                let sent = if cut { sent } else { sent.min(posted) };
                let tag = random.below(tags as usize) as i32 - 2;
                script.entries.push(Entry { tag, posted, sent });
            }
        }
        // Tags choose where receives come in groups, and the window says whether they do.
        if !script.parameters.window.is_grouped()
            && script.groups.iter().any(|group| group.count > 1)
        {
            script.eager_limit = None;
        }
        if too_long && !cut {
            let victim = random.below(script.entries.len());
            let entry = &mut script.entries[victim];
            if random.percent(30) {
                entry.posted = 8;
            }
            let most = random.pick(&[20, 1000]);
            entry.sent = entry.posted + random.between(1, most);
            // Who has been told of everything does not ask, and would not hear of it.
            script.optional_percent = 0;
        }
        script
    }

    pub(crate) fn line(&self, entry: usize) -> Line {
        self.parameters.first_line.plus(entry as u32)
    }

    pub(crate) fn entry_of(&self, line: Line) -> usize {
        line.distance(self.parameters.first_line) as usize
    }

    /// What arrives of an entry's message.
    pub(crate) fn size(&self, entry: usize) -> u64 {
        let Entry { posted, sent, .. } = self.entries[entry];
        if self.cut { sent.min(posted) } else { sent }
    }

    pub(crate) fn is_too_long(&self, entry: usize) -> bool {
        !self.cut && self.entries[entry].sent > self.entries[entry].posted
    }

    /// The bytes of an entry's message, where somebody looks at them.
    pub(crate) fn payload(&self, entry: usize) -> Vec<u8> {
        (0..self.entries[entry].sent as usize).map(|index| Self::byte(entry, index)).collect()
    }

    fn byte(entry: usize, index: usize) -> u8 {
        (entry * 31 + index) as u8
    }

    /// The first `len` of them, as words.
    pub(crate) fn payload_words(&self, entry: usize, len: u64) -> [u64; PAYLOAD_WORDS] {
        let len = len.min(self.size(entry));
        let byte = |index: usize| if (index as u64) < len { Self::byte(entry, index) } else { 0 };
        std::array::from_fn(|word| {
            u64::from_le_bytes(std::array::from_fn(|index| byte(word * 8 + index)))
        })
    }

    pub(crate) fn address(entry: usize) -> u64 {
        0x10_0000_0000 * (entry as u64 + 1)
    }

    pub(crate) fn key(entry: usize, rail: usize) -> u64 {
        (entry as u64) << 8 | (rail as u64 + 1)
    }
}

fn parameters(random: &mut Random) -> FlowParameters {
    let window = match random.below(6) {
        0 => Window::SINGLE,
        1 => Window::GROUPED,
        2 => Window::new(8, 2, 6).unwrap(),
        3 => Window::new(16, 4, 12).unwrap(),
        4 => Window::new(16, 8, 8).unwrap(),
        _ => Window::new(4, 1, 3).unwrap(),
    };
    let near = random.between(0, 40) as u32;
    let first_line = match random.below(6) {
        0 => Line::FIRST,
        1 => Line::new(1024_u32.wrapping_sub(near)),
        2 => Line::new(65536_u32.wrapping_sub(near)),
        3 => Line::new(u32::MAX.wrapping_sub(near)),
        4 => Line::new(0x8000_0000_u32.wrapping_sub(near)),
        _ => Line::new(random.next() as u32),
    };
    let path = match random.below(3) {
        0 => Path::Fin,
        1 => Path::Immediate { eight: false },
        _ => Path::Immediate { eight: true },
    };
    FlowParameters {
        window,
        rails: match random.below(40) {
            0..10 => 1,
            10..36 => random.between(1, 8) as usize,
            _ => random.between(9, 16) as usize,
        },
        nonce: random.next(),
        comm: CommId::new(random.below(usize::from(CommId::COUNT)) as u16).unwrap(),
        path,
        fins: true,
        true_lengths: random.percent(50),
        sends_arrive_when_complete: random.percent(40),
        largest_write: random.pick(&[128, 200, 256, 1024, 4096, 1 << 30]),
        first_line,
    }
}

fn plan(random: &mut Random, rails: usize) -> RailPlan {
    let stripe = random.pick(&[0, 1, 256, 4096, u64::MAX]);
    let mut weights: Vec<u16> = (0..rails).map(|_| random.below(4) as u16).collect();
    weights[random.below(rails)] = 1;
    if random.percent(60) {
        weights.fill(1);
    }
    RailPlan::weighted(&weights, stripe).unwrap()
}

/// How long messages are in one world.
#[derive(Clone, Copy, Debug)]
struct Lens {
    largest_write: u64,
    long_percent: u32,
}

impl Lens {
    fn of(random: &mut Random, largest_write: u64) -> Self {
        Self { largest_write, long_percent: random.pick(&[0, 5, 30]) }
    }

    fn draw(self, random: &mut Random) -> u64 {
        if random.percent(self.long_percent) {
            return match random.below(4) {
                0 => self.largest_write * 64,
                // Past what 64 parts hold; past what 32 bits tell.
                1 => self.largest_write * random.between(60, 70) + random.between(0, 129),
                _ => random.between(0, self.largest_write * 6),
            };
        }
        match random.below(6) {
            0 => 0,
            5 => random.between(0, 41),
            1 => 8,
            2 => random.pick(&[1, 127, 128, 129]),
            _ => random.between(0, 2000.min(self.largest_write * 4)),
        }
    }
}
