//! The plugin's own memory: slabs of control memory, cut into units that hold one connection's rings.
//!
//! A slab is registered once per control rail, so a connection costs no registration as long as a slab has room. It has units of
//! three sizes: for rings of lines, for eager messages and for bundles.
//! Units are handed on from connection to connection: lines of an earlier tenant do not validate against the next
//! one's nonce (docs/protocol.md §2).

use std::sync::Arc;

use fabric::{CACHE_LINE_WORDS, Control, FabricError, HostBytes, LocalBytes, Pages, Region, Ring};
use proto::{Line, LineSink, LineSource};

use super::nics::Port;

/// Units of one slab: what one registration serves. A word has a bit for each.
const UNITS_PER_SLAB: u32 = u64::BITS;

/// All control memory of one endpoint.
#[derive(Debug)]
pub(crate) struct Slabs {
    slabs: Vec<Slab>,
    sizes: Sizes,
}

/// How long the units are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// A ring of lines, as long as any that a connection of this endpoint may agree on.
    pub(crate) lines: usize,
    /// A ring of eager messages.
    pub(crate) eager: usize,
    /// A ring of bundles; 0 where there are none.
    pub(crate) bundles: usize,
}

/// What a unit is for that is not a ring of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    Eager,
    Bundles,
}

impl Sizes {
    /// Of the unit, and where in a slab the first of its kind lies.
    fn of(self, short: Short) -> (usize, usize) {
        let lines = UNITS_PER_SLAB as usize * self.lines;
        match short {
            Short::Eager => (self.eager, lines),
            Short::Bundles => (self.bundles, lines + UNITS_PER_SLAB as usize * self.eager),
        }
    }
}

#[derive(Debug)]
struct Slab {
    regions: Vec<Region<Control>>,
    pages: Arc<Pages>,
    /// A bit per unit.
    free: u64,
    /// The same for short messages, which lie behind the others: eager ones, and bundles.
    free_short: [u64; 2],
}

/// One connection's share of a slab: a ring of lines, and one place more. Give it back with [`Slabs::release`].
#[derive(Debug)]
pub(crate) struct Unit {
    pages: Arc<Pages>,
    first_word: usize,
    line_words: usize,
    slab: u16,
    index: u32,
    short: Option<Short>,
}

impl Slabs {
    pub(crate) fn new(sizes: Sizes) -> Self {
        Self { slabs: Vec::new(), sizes }
    }

    /// A unit for a ring of lines of `line_words` 64-bit words.
    pub(super) fn take(
        &mut self,
        nics: &mut [Port],
        line_words: usize,
    ) -> Result<Unit, FabricError> {
        self.take_by(nics, line_words, u64::trailing_zeros)
    }

    /// The same for a ring that is hardly ever written. These lie side by side at the other end of a slab, where their
    /// pages stay untouched: a page of memory less for each connection.
    pub(super) fn take_quiet(
        &mut self,
        nics: &mut [Port],
        line_words: usize,
    ) -> Result<Unit, FabricError> {
        self.take_by(nics, line_words, |free| free.ilog2())
    }

    /// A unit for a ring of short messages, with places of `line_words`. They lie side by side, and most stay untouched.
    /// None where this endpoint has none, or there is no memory.
    pub(super) fn take_short(
        &mut self,
        nics: &mut [Port],
        short: Short,
        line_words: usize,
    ) -> Option<Unit> {
        let (size, first) = self.sizes.of(short);
        let kind = short as usize;
        if size == 0 {
            return None;
        }
        if self.slabs.iter().all(|slab| slab.free_short[kind] == 0) {
            self.grow(nics).ok()?;
        }
        let has_room = |(_, slab): &(usize, &mut Slab)| slab.free_short[kind] != 0;
        let (number, slab) =
            self.slabs.iter_mut().enumerate().find(has_room).expect("one has room now");
        let index = slab.free_short[kind].trailing_zeros();
        slab.free_short[kind] &= !(1 << index);
        Some(Unit {
            pages: Arc::clone(&slab.pages),
            first_word: (first + index as usize * size) / 8,
            line_words,
            slab: u16::try_from(number).expect("slabs are bounded by comm ids"),
            index,
            short: Some(short),
        })
    }

    fn take_by(
        &mut self,
        nics: &mut [Port],
        line_words: usize,
        choose: impl FnOnce(u64) -> u32,
    ) -> Result<Unit, FabricError> {
        if self.slabs.iter().all(|slab| slab.free == 0) {
            self.grow(nics)?;
        }
        let (number, slab) = self
            .slabs
            .iter_mut()
            .enumerate()
            .find(|(_, slab)| slab.free != 0)
            .expect("one has room now");
        let index = choose(slab.free);
        slab.free &= !(1 << index);
        Ok(Unit {
            pages: Arc::clone(&slab.pages),
            first_word: index as usize * self.sizes.lines / 8,
            line_words,
            slab: u16::try_from(number).expect("slabs are bounded by comm ids"),
            index,
            short: None,
        })
    }

    /// Takes a unit back: nobody may write to it any more.
    pub(crate) fn release(&mut self, unit: &Unit) {
        if let Some(slab) = self.slabs.get_mut(usize::from(unit.slab)) {
            let free = match unit.short {
                Some(short) => &mut slab.free_short[short as usize],
                None => &mut slab.free,
            };
            *free |= 1 << unit.index;
        }
    }

    /// Bytes of `unit` from line `place` on, as a post on control rail `rail` names them.
    #[inline]
    pub(crate) fn local(
        &self,
        rail: usize,
        unit: &Unit,
        place: u32,
        lines: u32,
    ) -> Option<LocalBytes<'_, Control>> {
        let line_bytes = unit.line_words * 8;
        let offset = unit.first_word * 8 + place as usize * line_bytes;
        self.slabs
            .get(usize::from(unit.slab))?
            .regions
            .get(rail)?
            .local(offset, lines as usize * line_bytes)
    }

    /// The first `words` words of line `place` of `unit`, as a post on control rail `rail` names them.
    pub(crate) fn local_words(
        &self,
        rail: usize,
        unit: &Unit,
        place: u32,
        words: usize,
    ) -> Option<LocalBytes<'_, Control>> {
        let region = self.slabs.get(usize::from(unit.slab))?.regions.get(rail)?;
        region.local(unit.at(place, 0) * 8, words * 8)
    }

    /// The same for a post that copies them.
    pub(crate) fn host_words(
        &self,
        unit: &Unit,
        place: u32,
        words: usize,
    ) -> Option<HostBytes<'_>> {
        let region = self.slabs.get(usize::from(unit.slab))?.regions.first()?;
        let address = unit.pages.address() + unit.at(place, 0) as u64 * 8;
        region.host_bytes(address, words * 8)
    }

    /// Whole lines for a post that copies them.
    #[inline]
    pub(crate) fn host_bytes(&self, unit: &Unit, place: u32, lines: u32) -> Option<HostBytes<'_>> {
        let line_bytes = unit.line_words * 8;
        let offset = unit.first_word * 8 + place as usize * line_bytes;
        let region = self.slabs.get(usize::from(unit.slab))?.regions.first()?;
        let address = unit.pages.address() + offset as u64;
        region.host_bytes(address, lines as usize * line_bytes)
    }

    /// The last word of line `place` of `unit`, as a post on control rail `rail` names it.
    pub(crate) fn last_word(
        &self,
        rail: usize,
        unit: &Unit,
        place: u32,
    ) -> Option<LocalBytes<'_, Control>> {
        let word = unit.first_word + (place as usize + 1) * unit.line_words - 1;
        self.slabs.get(usize::from(unit.slab))?.regions.get(rail)?.local(word * 8, 8)
    }

    /// Where the peer's writes to the start of `unit` go.
    pub(crate) fn target(&self, unit: &Unit) -> u64 {
        let address = unit.pages.address() + unit.first_word as u64 * 8;
        let regions = self.slabs.get(usize::from(unit.slab)).map(|slab| &slab.regions);
        regions
            .and_then(|regions| regions.first())
            .map_or(address, |region| region.target_address(address).unwrap_or(address))
    }

    /// The keys that let the peer write into `unit`, one per control rail.
    pub(crate) fn keys(&self, unit: &Unit) -> Vec<u64> {
        let regions = self.slabs.get(usize::from(unit.slab)).map(|slab| slab.regions.as_slice());
        regions.unwrap_or_default().iter().map(|region| region.key().to_wire()).collect()
    }

    /// A NIC that refuses undoes the ones before it.
    fn grow(&mut self, nics: &mut [Port]) -> Result<(), FabricError> {
        let Sizes { lines, eager, bundles } = self.sizes;
        let pages = Arc::new(Pages::map(UNITS_PER_SLAB as usize * (lines + eager + bundles))?);
        let controls = nics.iter_mut().filter(|port| port.nic.has_control());
        let register = |port: &mut Port| port.nic.register(Arc::clone(&pages).into());
        let regions = controls.map(register).collect::<Result<_, _>>()?;
        self.slabs.push(Slab { regions, pages, free: u64::MAX, free_short: [u64::MAX; 2] });
        Ok(())
    }
}

impl LineSource for Unit {
    #[inline]
    fn word(&self, place: u32, index: usize) -> u64 {
        self.pages.load(self.at(place, index))
    }

    #[inline(always)]
    fn words<const COUNT: usize>(&self, place: u32) -> [u64; COUNT] {
        self.pages.load_words(self.at(place, 0))
    }
}

impl LineSink for Unit {
    #[inline]
    fn store(&mut self, place: u32, index: usize, word: u64) {
        self.pages.store(self.at(place, index), word);
    }

    #[inline(always)]
    fn store_words<const COUNT: usize>(&mut self, place: u32, first: usize, words: [u64; COUNT]) {
        self.pages.store_words(self.at(place, first), words);
    }
}

/// The places of a unit whose lines are so many words long, mostly a cache line, for who knows that: the plain form.
#[derive(Debug)]
pub(crate) struct Places<const WORDS: usize = CACHE_LINE_WORDS>(Ring<WORDS>);

impl<const WORDS: usize> LineSource for Places<WORDS> {
    #[inline(always)]
    fn word(&self, place: u32, index: usize) -> u64 {
        self.0.place(place).load(index)
    }

    #[inline(always)]
    fn reader(&self, place: u32) -> impl Fn(usize) -> u64 {
        let words = self.0.place(place);
        move |index| words.load(index)
    }

    #[inline(always)]
    fn words<const COUNT: usize>(&self, place: u32) -> [u64; COUNT] {
        self.0.load_words(place)
    }
}

impl<const WORDS: usize> LineSink for Places<WORDS> {
    #[inline]
    fn store(&mut self, place: u32, index: usize, word: u64) {
        self.0.store_words(place, index, [word]);
    }

    #[inline(always)]
    fn store_words<const COUNT: usize>(&mut self, place: u32, first: usize, words: [u64; COUNT]) {
        self.0.store_words(place, first, words);
    }

    #[inline(always)]
    fn writer(&mut self, line: Line, places: u32) -> impl FnMut(usize, u64) {
        assert!(self.0.places() == places, "the ring of these lines");
        let words = self.0.place(line.number());
        move |index, word| words.store(index, word)
    }

    #[inline(always)]
    fn store_line<const COUNT: usize>(&mut self, place: u32, head: [u64; 2], rest: [u64; COUNT]) {
        self.0.store_line(place, head, rest);
    }
}

impl Unit {
    /// The same memory as so many places, a power of two.
    pub(crate) fn places<const WORDS: usize>(&self, count: u32) -> Places<WORDS> {
        let ring = Ring::new(&self.pages, self.first_word, count);
        Places(ring.expect("a unit has as much memory as it was taken for"))
    }

    /// The unit, cut anew into lines of `line_words` words: no longer ones than it was taken for.
    pub(crate) fn with_lines_of(self, line_words: usize) -> Self {
        assert!(line_words <= self.line_words, "the unit holds as many lines as before");
        Self { line_words, ..self }
    }

    /// The word `index` of line `place`, within the slab.
    #[inline(always)]
    fn at(&self, place: u32, index: usize) -> usize {
        self.first_word + place as usize * self.line_words + index
    }
}
