//! The table of adverts that have come and are not used yet.

use crate::bits::count32;
use crate::fault::Violation;
use crate::frame;
use crate::limits::MAX_GROUP;
use crate::line::Line;
use crate::window::{WINDOW, bit, place};

/// Where a line's message may be written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Advert {
    pub(super) address: u64,
    pub(super) len: u64,
    pub(super) tag: i32,
    /// A longer message is truncated.
    pub(super) cut: bool,
    /// The receive is in host memory: its message may go inline.
    pub(super) host: bool,
}

/// A table of one window of lines. A used advert keeps its place until the next advert for that place comes, which the
/// receiver sends only when the line is complete.
#[derive(Debug)]
pub(super) struct Adverts {
    /// A bit per place with an unused advert.
    present: u64,
    /// A bit per place whose line ends its group.
    ends: u64,
    lines: Box<[Advert; WINDOW as usize]>,
    keys: Box<[u64]>,
    rails: usize,
}

impl Adverts {
    pub(super) fn new(rails: usize) -> Self {
        Self {
            present: 0,
            ends: 0,
            lines: Box::new([Advert::default(); WINDOW as usize]),
            keys: vec![0; WINDOW as usize * rails].into_boxed_slice(),
            rails,
        }
    }

    /// Stores the advert of a line of the window.
    pub(super) fn store(&mut self, advert: &frame::Advert) -> Result<(), Violation> {
        let (at, mask) = (place(advert.line), bit(advert.line));
        if self.present & mask != 0 {
            return Err(Violation::AdvertLine);
        }
        let keys = advert.keys.as_slice();
        if keys.len() != self.rails {
            return Err(Violation::Keys);
        }
        let &frame::Advert { address, len, tag, cut, host, .. } = advert;
        self.lines[at] = Advert { address, len, tag, cut, host };
        for (kept, key) in self.keys[at * self.rails..].iter_mut().zip(keys) {
            *kept = *key;
        }
        self.present |= mask;
        self.ends = if advert.ends_group { self.ends | mask } else { self.ends & !mask };
        Ok(())
    }

    /// The key of a line on a rail has changed.
    #[cold]
    pub(super) fn rekey(&mut self, line: Line, rail: u8, key: u64) {
        self.keys[place(line) * self.rails + usize::from(rail) % self.rails] = key;
    }

    #[inline]
    pub(super) const fn has(&self, line: Line) -> bool {
        self.present & bit(line) != 0
    }

    /// Whether there is an unused advert.
    pub(super) const fn is_any(&self) -> bool {
        self.present != 0
    }

    #[inline]
    pub(super) fn get(&self, line: Line) -> &Advert {
        &self.lines[place(line)]
    }

    #[inline]
    pub(super) fn key(&self, line: Line, rail: u8) -> u64 {
        self.keys[place(line) * self.rails + usize::from(rail) % self.rails]
    }

    /// Marks the advert of a line as used.
    #[inline]
    pub(super) const fn take(&mut self, line: Line) {
        self.present &= !bit(line);
    }

    /// The length of the group that begins at `first`; 0 while one of its adverts is missing.
    #[inline]
    pub(super) fn group(&self, first: Line) -> Result<u32, Violation> {
        if self.has(first) && self.ends & bit(first) != 0 {
            return Ok(1);
        }
        for index in 0..count32(MAX_GROUP) {
            let line = first.plus(index);
            if !self.has(line) {
                return Ok(0);
            }
            if self.ends & bit(line) != 0 {
                return Ok(index + 1);
            }
        }
        Err(Violation::Group)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.lines) + size_of_val(&*self.keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Name;

    #[test]
    fn a_new_key_is_that_of_one_line_on_one_rail() {
        let mut adverts = Adverts::new(3);
        let first = Line::new(WINDOW - 4);
        let lines = || (0..8).map(|ahead| first.plus(ahead));
        for line in lines() {
            let advert = frame::Advert::of_line(Name::default(), line, 8, &[1, 2, 3]);
            adverts.store(&advert).unwrap();
        }
        let changed = first.plus(6);
        adverts.rekey(changed, 1, 9);
        for line in lines() {
            let keys = [0, 1, 2].map(|rail| adverts.key(line, rail));
            assert_eq!(keys, if line == changed { [1, 9, 3] } else { [1, 2, 3] }, "{line:?}");
        }
    }
}
