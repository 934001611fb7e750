//! The sender's messages that were sent before their advert, until the sender learns which line each has filled.
//!
//! On a connection for single receives the number of a message is its line. On one for groups a message belongs to the first
//! line from its base on that has its tag and belongs to no earlier message; the receiver applies the same rule.

use crate::bits::low16;
use crate::line::Line;

use super::credit::{CONNECTION_MESSAGES, cost};

/// A message that was sent before its advert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The first line that the message may belong to; with single receives, its line.
    pub base: Line,
    pub tag: i32,
    pub len: u16,
}

/// All messages that were sent before their adverts, oldest first.
#[derive(Clone, Debug)]
pub struct Unadvertised {
    /// Base and tag of each. The lengths are stored separately, so that a message takes 10 bytes and not 12.
    ring: [(Line, i32); CONNECTION_MESSAGES],
    lens: [u16; CONNECTION_MESSAGES],
    first: u16,
    count: u16,
    cost: u32,
}

impl Default for Unadvertised {
    fn default() -> Self {
        let ring = [(Line::FIRST, 0); CONNECTION_MESSAGES];
        Self { ring, lens: [0; CONNECTION_MESSAGES], first: 0, count: 0, cost: 0 }
    }
}

impl Unadvertised {
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// The messages' cost in credit.
    pub const fn cost(&self) -> u32 {
        self.cost
    }

    /// Appends a message. False if there is no room, which does not happen within the credit.
    #[inline]
    #[must_use]
    pub fn push(&mut self, sent: Sent) -> bool {
        if self.len() == CONNECTION_MESSAGES {
            return false;
        }
        self.set(self.count, sent);
        self.count += 1;
        self.cost += cost(sent.len);
        true
    }

    /// The oldest message.
    #[inline]
    pub fn first(&self) -> Option<Sent> {
        (self.count > 0).then(|| self.get(0))
    }

    /// Removes the oldest message.
    #[inline]
    pub fn pop(&mut self) -> Option<Sent> {
        let sent = self.first()?;
        self.first = low16(self.index(1) as u64);
        self.count -= 1;
        self.cost -= cost(sent.len);
        Some(sent)
    }

    /// Removes the message that belongs to a line of a group, if there is one: the oldest that has the line's tag and may
    /// belong to the line.
    pub fn take(&mut self, line: Line, tag: i32) -> Option<Sent> {
        let fits = |sent: Sent| sent.tag == tag && !sent.base.is_after(line);
        let at = (0..self.count).find(|at| fits(self.get(*at)))?;
        Some(self.remove(at))
    }

    /// Removes the message of this line, on a connection for single receives.
    pub fn take_line(&mut self, line: Line) -> Option<Sent> {
        let at = (0..self.count).find(|at| self.get(*at).base == line)?;
        Some(self.remove(at))
    }

    fn remove(&mut self, at: u16) -> Sent {
        let sent = self.get(at);
        for behind in at + 1..self.count {
            self.set(behind - 1, self.get(behind));
        }
        self.count -= 1;
        self.cost -= cost(sent.len);
        sent
    }

    /// Removes all messages, and returns their cost.
    pub fn clear(&mut self) -> u32 {
        self.count = 0;
        std::mem::take(&mut self.cost)
    }

    #[inline]
    fn get(&self, at: u16) -> Sent {
        let at = self.index(at);
        let (base, tag) = self.ring[at];
        Sent { base, tag, len: self.lens[at] }
    }

    #[inline]
    fn set(&mut self, at: u16, sent: Sent) {
        let at = self.index(at);
        self.ring[at] = (sent.base, sent.tag);
        self.lens[at] = sent.len;
    }

    #[inline]
    fn index(&self, at: u16) -> usize {
        usize::from(self.first + at) % CONNECTION_MESSAGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(base: u32, tag: i32, len: u16) -> Sent {
        Sent { base: Line::new(base), tag, len }
    }

    /// Compares every sequence of a few messages with a simple list.
    #[test]
    fn a_line_takes_the_oldest_message_of_its_tag_that_may_belong_to_it() {
        for sequence in 0..4_u32.pow(5) {
            for start in [0, 61, u32::MAX - 1] {
                let mut queue = Unadvertised::default();
                let mut plain: Vec<Sent> = Vec::new();
                // Begins anywhere in the ring.
                for _ in 0..start % 64 {
                    assert!(queue.push(sent(0, 0, 0)));
                    queue.pop();
                }
                let mut base = start;
                for digit in (0..5).map(|index| sequence / 4_u32.pow(index) % 4) {
                    base = base.wrapping_add(digit / 2);
                    let message = sent(base, (digit % 2).cast_signed(), low16(base.into()) % 500);
                    assert!(queue.push(message));
                    plain.push(message);
                }
                for ahead in 0..4 {
                    for tag in 0..3 {
                        let line = Line::new(start).plus(ahead);
                        let at = plain
                            .iter()
                            .position(|sent| sent.tag == tag && !sent.base.is_after(line));
                        let expected = at.map(|at| plain.remove(at));
                        assert_eq!(queue.take(line, tag), expected);
                        assert_eq!(
                            (queue.len(), queue.is_empty()),
                            (plain.len(), plain.is_empty())
                        );
                        assert_eq!(queue.first(), plain.first().copied());
                    }
                }
                let rest: u32 = plain.iter().map(|sent| cost(sent.len)).sum();
                assert_eq!(queue.cost(), rest);
                assert_eq!(queue.clear(), rest);
                assert!(queue.is_empty());
            }
        }
    }

    #[test]
    fn with_single_receives_a_message_is_found_by_its_line() {
        let mut queue = Unadvertised::default();
        for line in 0..64 {
            assert!(queue.push(sent(line, 5, 1)));
        }
        assert!(!queue.push(sent(64, 5, 1)), "no more than the credit allows");
        assert_eq!(queue.take_line(Line::new(64)), None);
        assert_eq!(queue.take_line(Line::new(40)), Some(sent(40, 5, 1)));
        assert_eq!(queue.take_line(Line::new(40)), None);
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|sent| sent.base).collect();
        assert_eq!(rest, (0..64).filter(|line| *line != 40).map(Line::new).collect::<Vec<_>>());
        assert_eq!(queue.cost(), 0);
    }
}
