//! The messages that a connection is to move.

use std::sync::LazyLock;

use super::memory::ROOM;
use crate::support::random::Random;

/// Short ones go inline, long ones are striped.
const LENS: [usize; 9] = [0, 1, 8, 100, 511, 4096, 4097, 20_000, 70_000];
const COUNT: usize = 24;
const GROUP_MAX: usize = 8;

/// Random bytes, of which each message has another part.
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random::new(0);
    (0..ROOM / 4).flat_map(|_| random.next().to_le_bytes()).collect()
});

#[derive(Clone, Copy)]
pub(super) struct Message {
    /// In the run.
    pub(super) number: usize,
    pub(super) len: usize,
    /// The length of its receive.
    pub(super) room: usize,
    pub(super) tag: i32,
}

impl Message {
    pub(super) fn bytes(&self) -> &'static [u8] {
        let start = self.number * 1009 % ROOM;
        &BYTES[start..start + self.len]
    }
}

/// Those of the connection of this number, and the sizes of their groups, from the last one on.
pub(super) fn draw(connection: usize, random: &mut Random) -> (Vec<Message>, Vec<usize>) {
    let is_grouped = random.one_in(3);
    let (mut messages, mut groups) = (Vec::new(), Vec::new());
    while messages.len() < COUNT {
        let count = if is_grouped { 1 + random.below(GROUP_MAX) } else { 1 };
        groups.push(count);
        for tag in (0..).take(count) {
            let number = connection * (COUNT + GROUP_MAX) + messages.len();
            let len = random.pick(&LENS);
            let room = if random.one_in(2) { len } else { ROOM };
            messages.push(Message { number, len, room, tag });
        }
    }
    groups.reverse();
    (messages, groups)
}
