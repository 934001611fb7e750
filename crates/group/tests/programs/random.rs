//! Random numbers, lengths and memory.

use std::ops::Range;

use ironrail_group::group::Group;
use ironrail_group::loader::Element;
use ironrail_group::memory::Registered;

/// splitmix64.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        random.next();
        random
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    pub(super) fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }

    /// A number of elements, often around a length at which something changes: a message travels inline, in a slot, or announced; a
    /// collective is done in pieces or in another way. At most `most` bytes.
    pub(super) fn count<T>(&mut self, most: usize) -> usize {
        const EDGES: [usize; 14] = [
            8,
            256,
            512,
            2 << 10,
            4 << 10,
            8 << 10,
            16 << 10,
            32 << 10,
            64 << 10,
            128 << 10,
            192 << 10,
            256 << 10,
            512 << 10,
            1 << 20,
        ];
        let around = |random: &mut Self, bytes: usize| {
            // No element is longer than the first edge.
            bytes / size_of::<T>() + random.below(3) - 1
        };
        let count = match self.below(16) {
            0 => 0,
            1..4 => 1 + self.below(16),
            4..8 => self.below(3000) / size_of::<T>(),
            8..13 => {
                let edge = self.pick(&EDGES[..9]);
                around(self, edge)
            }
            13 => {
                let edge = self.pick(&EDGES);
                around(self, edge)
            }
            _ => self.below(150_000) / size_of::<T>(),
        };
        count.min(most / size_of::<T>())
    }
}

/// A user's memory, registered or not, aligned or not, between elements that must not be written.
#[derive(Debug)]
pub(super) struct Memory<T: Element> {
    owner: Owner<T>,
    range: Range<usize>,
}

#[derive(Debug)]
enum Owner<T: Element> {
    Vec(Vec<T>),
    Registered(Registered<T>),
}

/// What memory has before data comes.
pub(super) fn poison<T: Element>() -> T {
    T::from_small(127)
}

impl<T: Element> Memory<T> {
    pub(super) fn new(group: &Group, own: &mut Random, count: usize) -> Self {
        let (before, after) = (own.below(5), own.below(3));
        let whole = before + count + after;
        let mut owner = if own.one_in(2) {
            Owner::Vec(vec![poison(); whole])
        } else {
            Owner::Registered(group.buffer(whole.max(1)).unwrap())
        };
        owner.all_mut().fill(poison());
        Self { owner, range: before..before + count }
    }

    pub(super) fn filled(
        group: &Group,
        own: &mut Random,
        data: impl ExactSizeIterator<Item = T>,
    ) -> Self {
        let mut memory = Self::new(group, own, data.len());
        memory.iter_mut().zip(data).for_each(|(place, value)| *place = value);
        memory
    }

    /// Whether the elements around it are as they were.
    pub(super) fn is_untouched_around(&self) -> bool {
        let all = self.owner.all();
        let around = all[..self.range.start].iter().chain(&all[self.range.end..]);
        around.copied().all(|element| element == poison())
    }
}

impl<T: Element> Owner<T> {
    fn all(&self) -> &[T] {
        match self {
            Self::Vec(memory) => memory,
            Self::Registered(memory) => memory,
        }
    }

    fn all_mut(&mut self) -> &mut [T] {
        match self {
            Self::Vec(memory) => memory,
            Self::Registered(memory) => memory,
        }
    }
}

impl<T: Element> std::ops::Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.owner.all()[self.range.clone()]
    }
}

impl<T: Element> std::ops::DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.owner.all_mut()[self.range.clone()]
    }
}

/// Whether memory has this data, and what is around it is untouched.
#[track_caller]
pub(super) fn check<T: Element>(found: &Memory<T>, expected: impl ExactSizeIterator<Item = T>) {
    assert_eq!(found.len(), expected.len());
    let wrong = found.iter().zip(expected).position(|(found, expected)| *found != expected);
    assert!(wrong.is_none(), "element {} of {} is wrong", wrong.unwrap(), found.len());
    assert!(found.is_untouched_around(), "something beside the output was written");
}
