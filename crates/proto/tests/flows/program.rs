//! What the two applications do: receives in groups, sends by tag, and the terms of the connection.

use proto::capabilities::ImmediateWidth;
use proto::ids::{Generation, Name, Slot};
use proto::split::Cutting;
use proto::{InlineLimits, Terms};

use crate::random::Random;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) tag: i32,
    pub(crate) room: u64,
    pub(crate) len: u64,
    pub(crate) host: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) terms: Terms,
    pub(crate) groups: Vec<Vec<Item>>,
    pub(crate) cut: bool,
    pub(crate) optional: bool,
    pub(crate) source_host: bool,
}

pub(crate) fn name(slot: usize, generation: u8) -> Name {
    Name { slot: Slot::new(slot).unwrap(), generation: Generation::new(generation) }
}

pub(crate) fn terms() -> Terms {
    Terms {
        peer: name(3, 5),
        own: name(9, 2),
        cutting: Cutting::new(1, 64 << 10, 1 << 30).unwrap(),
        grouped: false,
        immediates: ImmediateWidth::Eight,
        true_lengths: false,
        delivery: true,
        proves_arrival: false,
        messages: false,
        inline: InlineLimits { unadvertised: 512, host: 512 },
    }
}

impl Program {
    pub(crate) fn random(random: &mut Random) -> Self {
        let rails = random.of(&[1, 1, 2, 3, 4, 16]);
        let largest = random.of(&[128, 300, 1 << 10, 1 << 30]);
        let unadvertised = random.of(&[0, 8, 512, 4096]);
        let terms = Terms {
            cutting: Cutting::new(rails, random.of(&[0, 512, 4096, u64::MAX]), largest).unwrap(),
            grouped: random.one_in(2),
            immediates: random.of(&[
                ImmediateWidth::None,
                ImmediateWidth::Four,
                ImmediateWidth::Eight,
                ImmediateWidth::Eight,
            ]),
            true_lengths: random.one_in(2),
            proves_arrival: random.one_in(3),
            inline: InlineLimits {
                unadvertised,
                host: random.of(&[unadvertised, 512]).max(unadvertised),
            },
            ..terms()
        };
        // SENDRECV: one part, into a posted receive; the size is the completion's length.
        let terms = match random.one_in(4) {
            false => terms,
            true => Terms {
                cutting: Cutting::new(1, 64 << 10, 1 << 30).unwrap(),
                immediates: ImmediateWidth::Four,
                true_lengths: true,
                delivery: false,
                proves_arrival: false,
                messages: true,
                ..terms
            },
        };
        // GPU memory only if no message may come without an advert.
        let gpu = unadvertised == 0 && random.one_in(2);
        let cut = random.one_in(3);
        let (few_tags, longest) = (random.one_in(2), random.of(&[0, 8, 64, 64, 600, 600, 5000]));
        let count = 1 + random.index(80);
        let mut groups = Vec::new();
        for _ in 0..count {
            let members = if terms.grouped && random.one_in(3) { 1 + random.index(8) } else { 1 };
            let group = (0..members).map(|_| {
                let len = random.below(longest + 1);
                Item {
                    tag: random.below(if few_tags { 2 } else { 6 }).try_into().unwrap(),
                    room: match random.below(3) {
                        0 => len,
                        1 if cut => random.below(len + 1),
                        _ => len + random.below(longest + 1),
                    },
                    len,
                    host: !gpu || random.one_in(2),
                }
            });
            groups.push(group.collect());
        }
        let optional = terms.proves_arrival && random.one_in(2);
        let source_host = !random.one_in(4);
        Self { terms, groups, cut, optional, source_host }
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = Item> {
        self.groups.iter().flatten().copied()
    }
}
