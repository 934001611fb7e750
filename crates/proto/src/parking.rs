//! The unexpected message queue: inline messages whose receives are not posted yet, in one pool per channel with a list
//! per connection.
//!
//! The pool is as large as a channel's credit ([`CHANNEL_BYTES`]). A message takes one block for its header and as many
//! as its payload fills, which together are never more than its cost in credit. So there is room for every message within
//! the credit. The memory is zeroed by the allocator and used from the lowest block on, so unused blocks take no pages.

use crate::bits::{low16, low32};
use crate::line::Line;

use super::credit::{self, CHANNEL_BYTES};
use super::frame::Inline;

/// Words of a block.
const BLOCK_WORDS: usize = 4;
const BLOCK_BYTES: usize = 8 * BLOCK_WORDS;
const BLOCKS: u16 = low16(CHANNEL_BYTES as u64 / BLOCK_BYTES as u64);
/// The end of a chain. Blocks are numbered from 1, so that 0 is free for this.
const NONE: u16 = 0;

const _: () = {
    // Header and rounding, of a message without payload and of one whose last block has one byte.
    assert!(BLOCK_BYTES <= credit::MESSAGE_COST as usize);
    assert!(2 * BLOCK_BYTES - 1 <= credit::MESSAGE_COST as usize);
};

/// A parked message: its first block, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked(u16);

/// The parked messages of one connection, in the order in which they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParkedList {
    head: u16,
    tail: u16,
    messages: u16,
    cost: u32,
}

impl ParkedList {
    pub const fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub const fn len(&self) -> usize {
        self.messages as usize
    }

    /// The cost of its messages.
    pub const fn cost(&self) -> u32 {
        self.cost
    }

    /// The oldest message.
    pub fn first(&self) -> Option<Parked> {
        Parked::of(self.head)
    }
}

/// A parked message without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message's number among those sent; on a connection of single receives, its line.
    pub number: Line,
    pub base: Line,
    pub tag: i32,
    pub len: u16,
}

/// The pool of one channel.
#[derive(Debug)]
pub struct Parking {
    words: Vec<u64>,
    /// The next block of the same message, or of the free chain.
    next: Vec<u16>,
    free: u16,
    /// Blocks before this one have been used.
    fresh: u16,
    cost: u32,
}

impl Default for Parking {
    fn default() -> Self {
        Self::new()
    }
}

impl Parked {
    const fn of(block: u16) -> Option<Self> {
        if block == NONE { None } else { Some(Self(block)) }
    }
}

impl Parking {
    pub fn new() -> Self {
        let blocks = usize::from(BLOCKS);
        Self {
            words: vec![0; blocks * BLOCK_WORDS],
            next: vec![0; blocks + 1],
            free: NONE,
            fresh: 0,
            cost: 0,
        }
    }

    /// A pool without room, for a channel that has no connections any more.
    pub(crate) const fn none() -> Self {
        Self { words: Vec::new(), next: Vec::new(), free: NONE, fresh: BLOCKS, cost: 0 }
    }

    /// The cost of all parked messages of the channel.
    pub const fn cost(&self) -> u32 {
        self.cost
    }

    /// Takes room for a message at the end of a list. None if its sender has exceeded its credit.
    #[cold]
    pub fn park(&mut self, list: &mut ParkedList, inline: &Inline) -> Option<Parked> {
        let cost = credit::cost(inline.len);
        if !credit::fits(cost, list.len(), list.cost, self.cost) {
            return None;
        }
        let message = self.take()?;
        let mut last = message;
        for _ in 0..usize::from(inline.len).div_ceil(BLOCK_BYTES) {
            let block = self.take()?;
            self.next[usize::from(last)] = block;
            last = block;
        }
        self.next[usize::from(last)] = NONE;
        let header = &mut self.words[words_of(message)];
        header[0] = u64::from(inline.len);
        header[1] = u64::from(inline.line.number()) | u64::from(inline.base.number()) << 32;
        header[2] = u64::from(inline.tag.cast_unsigned());
        self.append(list, message);
        (list.cost, self.cost) = (list.cost + cost, self.cost + cost);
        Some(Parked(message))
    }

    fn append(&mut self, list: &mut ParkedList, message: u16) {
        match list.tail {
            NONE => list.head = message,
            tail => self.words[words_of(tail)][3] = u64::from(message),
        }
        self.words[words_of(message)][3] = u64::from(NONE);
        list.tail = message;
        list.messages += 1;
    }

    fn take(&mut self) -> Option<u16> {
        if self.free != NONE {
            let block = self.free;
            self.free = self.next[usize::from(block)];
            return Some(block);
        }
        if self.fresh == BLOCKS {
            return None;
        }
        self.fresh += 1;
        Some(self.fresh)
    }

    pub fn header(&self, message: Parked) -> Header {
        let words = &self.words[words_of(message.0)];
        Header {
            number: Line::new(low32(words[1])),
            base: Line::new(low32(words[1] >> 32)),
            tag: low32(words[2]).cast_signed(),
            len: low16(words[0]),
        }
    }

    /// The next message in this message's list.
    pub fn after(&self, message: Parked) -> Option<Parked> {
        Parked::of(low16(self.words[words_of(message.0)][3]))
    }

    /// Stores the payload, word by word in order.
    pub fn fill(&mut self, message: Parked, mut word: impl FnMut(usize) -> u64) {
        let count = usize::from(self.header(message).len).div_ceil(8);
        let mut block = message.0;
        for index in 0..count {
            if index % BLOCK_WORDS == 0 {
                block = self.next[usize::from(block)];
            }
            self.words[words_of(block)][index % BLOCK_WORDS] = word(index);
        }
    }

    /// Passes the payload to `word`, in order.
    pub fn read(&self, message: Parked, mut word: impl FnMut(usize, u64)) {
        let count = usize::from(self.header(message).len).div_ceil(8);
        let mut block = message.0;
        for index in 0..count {
            if index % BLOCK_WORDS == 0 {
                block = self.next[usize::from(block)];
            }
            word(index, self.words[words_of(block)][index % BLOCK_WORDS]);
        }
    }

    /// Frees the room of a message, at any place in its list. False if it is not in the list, which is a bug of the
    /// caller.
    #[must_use]
    pub fn release(&mut self, list: &mut ParkedList, message: Parked) -> bool {
        let mut before = NONE;
        let mut at = list.head;
        while at != message.0 {
            if at == NONE {
                return false;
            }
            before = at;
            at = low16(self.words[words_of(at)][3]);
        }
        let after = low16(self.words[words_of(at)][3]);
        match before {
            NONE => list.head = after,
            before => self.words[words_of(before)][3] = u64::from(after),
        }
        if list.tail == at {
            list.tail = before;
        }
        list.messages -= 1;
        let cost = credit::cost(self.header(message).len);
        (list.cost, self.cost) = (list.cost - cost, self.cost - cost);
        self.put_back(message.0);
        true
    }

    fn put_back(&mut self, first: u16) {
        let mut last = first;
        while self.next[usize::from(last)] != NONE {
            last = self.next[usize::from(last)];
        }
        self.next[usize::from(last)] = self.free;
        self.free = first;
    }

    /// Frees all messages of a connection that is over.
    pub fn clear(&mut self, list: &mut ParkedList) {
        while list.first().is_some_and(|message| self.release(list, message)) {}
    }
}

/// The words of a block.
fn words_of(block: u16) -> std::ops::Range<usize> {
    let start = (usize::from(block) - 1) * BLOCK_WORDS;
    start..start + BLOCK_WORDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Name;

    fn inline(number: u32, len: u16) -> Inline {
        Inline {
            to: Name::default(),
            line: Line::new(number),
            advertised: false,
            tag: number.cast_signed().wrapping_neg(),
            base: Line::new(number ^ 77),
            len,
        }
    }

    fn word(number: u32, index: usize) -> u64 {
        u64::from(number) << 32 | index as u64
    }

    fn check(parking: &Parking, message: Parked, number: u32, len: u16) {
        let header = parking.header(message);
        assert_eq!((header.number, header.len), (Line::new(number), len));
        assert_eq!(header.base, Line::new(number ^ 77));
        assert_eq!(header.tag, number.cast_signed().wrapping_neg());
        let mut next = 0;
        parking.read(message, |index, value| {
            assert_eq!((index, value), (next, word(number, index)));
            next += 1;
        });
        assert_eq!(next, usize::from(len).div_ceil(8));
    }

    #[test]
    fn messages_come_back_as_they_were_parked_in_any_order() {
        let mut parking = Parking::new();
        let mut lists = [ParkedList::default(); 3];
        let mut held: Vec<(usize, Parked, u32, u16)> = Vec::new();
        let mut state = 1_u64;
        for number in 0..20_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = low32(state >> 33);
            let (at, len) = (random as usize % 3, low16(u64::from(random >> 8) % 600));
            let fits =
                credit::fits(credit::cost(len), lists[at].len(), lists[at].cost(), parking.cost());
            let parked = parking.park(&mut lists[at], &inline(number, len));
            assert_eq!(parked.is_some(), fits);
            if let Some(parked) = parked {
                parking.fill(parked, |index| word(number, index));
                held.push((at, parked, number, len));
            }
            if held.len() > 40 || random.is_multiple_of(3) {
                let (at, parked, number, len) = held.remove(random as usize % held.len().max(1));
                check(&parking, parked, number, len);
                let other = (at + 1) % 3;
                assert!(!parking.release(&mut lists[other], parked), "it is in another list");
                assert!(parking.release(&mut lists[at], parked));
            }
        }
        for (index, list) in lists.iter().enumerate() {
            let mut at = list.first();
            for (_, parked, number, len) in held.iter().filter(|held| held.0 == index) {
                assert_eq!(at, Some(*parked), "a list keeps its order");
                check(&parking, *parked, *number, *len);
                at = parking.after(*parked);
            }
            assert_eq!(at, None);
            let costs = held.iter().filter(|held| held.0 == index).map(|held| credit::cost(held.3));
            assert_eq!(list.cost(), costs.sum());
        }
        assert_eq!(parking.cost(), lists.iter().map(ParkedList::cost).sum());
        lists.iter_mut().for_each(|list| parking.clear(list));
        assert_eq!((parking.cost(), lists), (0, [ParkedList::default(); 3]));
    }

    #[test]
    fn every_message_within_the_credit_finds_room() {
        for len in [0, 1, 31, 32, 33, 63, 64, 100, 512, 1000, 4096] {
            let mut parking = Parking::new();
            let mut lists = [ParkedList::default(); 70];
            let mut parked = 0;
            for list in &mut lists {
                while parking.park(list, &inline(0, len)).is_some() {
                    parked += credit::cost(len);
                }
            }
            assert_eq!(parking.cost(), parked);
            assert!(parked + credit::cost(len) > CHANNEL_BYTES, "{len}");
        }
    }

    #[test]
    fn the_blocks_are_all_of_the_pool_and_a_pool_without_room_parks_nothing() {
        assert_eq!(words_of(1).start, 0);
        assert_eq!(words_of(BLOCKS).end, Parking::new().words.len());
        assert_eq!(Parking::none().park(&mut ParkedList::default(), &inline(0, 0)), None);
    }

    #[test]
    fn one_connection_parks_no_more_than_its_own_credit() {
        let mut parking = Parking::new();
        let mut list = ParkedList::default();
        while parking.park(&mut list, &inline(0, 0)).is_some() {}
        assert_eq!(list.len(), credit::CONNECTION_MESSAGES);
        parking.clear(&mut list);
        while parking.park(&mut list, &inline(0, 4096)).is_some() {}
        assert_eq!(list.len(), 3);
    }
}
