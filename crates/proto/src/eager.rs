//! Which receive an eager message is for: the rule by which both ends, each with what it knows, find the same line.
//!
//! A sender that has not read the advert of its first unfinished group knows neither where that ends nor its tags. So an
//! eager message names no line. It has a number among the eager ones, its tag, and its *base*, the sender's first
//! unfinished line. It belongs to the first line from its base on that has its tag and belongs to no earlier eager
//! message.
//!
//! The sender applies the rule when it reads the adverts of a group, before it sends by them. The receiver applies it when
//! eager messages arrive, in their order, and when receives are posted. Then the n-th message of a tag meets the n-th receive of that tag, eager or not (NCCL plugins/net/README.md,
//! irecv). At most E messages wait at the sender, so that the law of [`Window`](crate::Window) holds: of the lines past
//! the last advert read, no more are complete than there are eager messages without a line.

use crate::ids::Line;

/// Eager messages without a line yet, in their order. At most [`MAX`](Self::MAX).
#[derive(Clone, Debug)]
pub struct Unplaced {
    /// Whether tags count: where receives may come in groups.
    tagged: bool,
    /// The number of the next message.
    next: u32,
    waiting: [Waiting; Self::MAX],
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    number: u32,
    base: Line,
    tag: i32,
}

impl Unplaced {
    /// E of every window.
    pub const MAX: usize = 16;

    pub fn new(tagged: bool) -> Self {
        Self { tagged, next: 0, waiting: [Waiting::default(); Self::MAX], len: 0 }
    }

    /// The next eager message, by its number. None: as many as may wait do.
    pub fn push(&mut self, base: Line, tag: i32) -> Option<u32> {
        let place = self.waiting.get_mut(self.len)?;
        *place = Waiting { number: self.next, base, tag };
        self.len += 1;
        self.next = self.next.wrapping_add(1);
        Some(place.number)
    }

    /// The message that a line with this tag is for. Ask for each line once, in their order.
    pub fn take(&mut self, line: Line, tag: i32) -> Option<u32> {
        let suits = |waiting: &Waiting| {
            !waiting.base.is_after(line) && (!self.tagged || waiting.tag == tag)
        };
        let index = self.waiting[..self.len].iter().position(suits)?;
        let number = self.waiting[index].number;
        self.waiting.copy_within(index + 1..self.len, index);
        self.len -= 1;
        Some(number)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
