//! Control memory: the inboxes that peers write into, and the shadows that our packets leave from.
//!
//! Units are cut from slabs, each registered once per control rail. A unit holds a ring and the cell behind it. Units are an odd number of
//! cache lines apart, so that the first lines of many inboxes do not fall into the same set of the cache.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use fabric::{Control, FabricError, LocalBytes, Pages, Region};
use proto::memory::{InboxMemory, MemoryId, ShadowMemory};
use proto::packet::Ring;

use super::nics::Port;

/// Units of one slab.
const UNITS: u32 = 8;
const LINE_BYTES: usize = 64;

/// One registration per control rail.
#[derive(Debug)]
struct Slab {
    /// In the order of the NICs that have a control rail.
    regions: Vec<Region<Control>>,
}

/// An inbox or a shadow, with its cell.
#[derive(Debug)]
pub(super) struct Unit {
    pages: Arc<Pages>,
    first_word: usize,
}

/// All control memory of an endpoint.
#[derive(Debug)]
pub(super) struct ControlMemory {
    /// The ring that fits into a unit: no channel of the endpoint has a longer one.
    ring: Ring,
    slabs: Vec<Slab>,
    /// The next slab, while a NIC refuses to register it.
    unfinished: Option<(Arc<Pages>, Slab)>,
    units: Vec<Unit>,
    free: Vec<MemoryId>,
    /// Free units that were inboxes, the oldest first. Late writes may still land there. Another inbox ignores them, by its nonce; a shadow
    /// would be damaged.
    lent: VecDeque<MemoryId>,
    /// The last allocation has failed.
    is_short: bool,
}

impl ControlMemory {
    /// Empty, for units with this ring.
    pub(super) fn new(ring: Ring) -> Self {
        Self {
            ring,
            slabs: Vec::new(),
            unfinished: None,
            units: Vec::new(),
            free: Vec::new(),
            lent: VecDeque::new(),
            is_short: false,
        }
    }

    pub(super) fn unit_bytes(&self) -> usize {
        unit_bytes(self.ring)
    }

    /// Allocates a unit. None: no memory is available. The caller tries again later, so a shortage is logged when it begins and when it
    /// ends.
    pub(super) fn take(&mut self, nics: &mut [Port]) -> Option<MemoryId> {
        let taken = match self.free.pop() {
            Some(id) => Ok(id),
            None => self.grow(nics),
        };
        match &taken {
            Err(error) if !self.is_short => {
                log::warn!("no memory for an inbox or a shadow: {error}; trying again");
            }
            Ok(_) if self.is_short => log::warn!("there is memory for inboxes and shadows again"),
            _ => {}
        }
        self.is_short = taken.is_err();
        taken.ok()
    }

    /// Allocates a unit for an inbox: preferably one that was an inbox before.
    pub(super) fn take_inbox(&mut self, nics: &mut [Port]) -> Option<MemoryId> {
        self.lent.pop_front().or_else(|| self.take(nics))
    }

    /// Frees a unit. The caller does not use it any more, and no peer can write to it.
    pub(super) fn release(&mut self, id: MemoryId) {
        self.free.push(id);
    }

    /// Frees a unit that was an inbox. The caller does not use it any more.
    pub(super) fn release_inbox(&mut self, id: MemoryId) {
        self.lent.push_back(id);
    }

    /// # Panics
    ///
    /// For a unit of another endpoint.
    #[inline]
    pub(super) fn unit(&mut self, id: MemoryId) -> &mut Unit {
        &mut self.units[id.0 as usize]
    }

    /// `len` bytes of a unit from offset `at`, for a post on control rail `control`.
    #[inline]
    pub(super) fn local(
        &self,
        id: MemoryId,
        control: usize,
        at: usize,
        len: usize,
    ) -> Option<LocalBytes<'_, Control>> {
        let unit = self.units.get(id.0 as usize)?;
        self.slab_of(id)?.regions.get(control)?.local(unit.first_word * 8 + at, len)
    }

    /// The address and key by which a peer writes to the unit on control rail `control`.
    pub(super) fn target(&self, id: MemoryId, control: usize) -> Option<(u64, u64)> {
        let unit = self.units.get(id.0 as usize)?;
        let region = self.slab_of(id)?.regions.get(control)?;
        let address = unit.pages.address() + unit.first_word as u64 * 8;
        Some((region.target_address(address)?, region.key().to_wire()))
    }

    fn slab_of(&self, id: MemoryId) -> Option<&Slab> {
        self.slabs.get((id.0 / UNITS) as usize)
    }

    /// Makes another slab, and allocates its first unit. If a NIC refuses to register the slab, the next call goes on with the same pages:
    /// dropped pages would stay mapped until their rails close ([`fabric::Nic::deregister`]).
    #[cold]
    fn grow(&mut self, nics: &mut [Port]) -> Result<MemoryId, FabricError> {
        let unit_bytes = self.unit_bytes();
        let (pages, mut slab) = match self.unfinished.take() {
            Some(unfinished) => unfinished,
            None => {
                let pages = Arc::new(Pages::map(UNITS as usize * unit_bytes)?);
                (pages, Slab { regions: Vec::new() })
            }
        };
        let controls = nics.iter_mut().filter(|port| port.nic.has_control());
        for port in controls.skip(slab.regions.len()) {
            match port.nic.register(Arc::clone(&pages).into()) {
                Ok(region) => slab.regions.push(region),
                Err(error) => {
                    self.unfinished = Some((pages, slab));
                    return Err(error);
                }
            }
        }
        let first = u32::try_from(self.units.len()).expect("2³² units are more than all memory");
        for unit in 0..UNITS {
            let first_word = unit as usize * unit_bytes / 8;
            self.units.push(Unit { pages: Arc::clone(&pages), first_word });
        }
        self.free.extend((first + 1..first + UNITS).rev().map(MemoryId));
        self.slabs.push(slab);
        Ok(MemoryId(first))
    }
}

impl Unit {
    /// The offset in the pages of a word of the ring.
    #[inline]
    pub(super) fn offset(&self, word: usize) -> usize {
        (self.first_word + word) * 8
    }

    #[inline]
    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }
}

impl InboxMemory for Unit {
    #[inline]
    fn load(&self, word: usize) -> u64 {
        self.pages.load(self.first_word + word)
    }

    #[inline]
    fn store(&mut self, word: usize, value: u64) {
        self.pages.store_relaxed(self.first_word + word, value);
    }

    #[inline]
    fn load_eight(&self, word: usize) -> [u64; 8] {
        self.pages.load_words(self.first_word + word)
    }

    #[inline]
    fn fill(&mut self, words: Range<usize>, value: u64) {
        self.pages.fill_words(self.first_word + words.start..self.first_word + words.end, value);
    }
}

impl ShadowMemory for Unit {
    #[inline]
    fn load(&self, word: usize) -> u64 {
        let [loaded] = self.pages.load_words(self.first_word + word);
        loaded
    }

    #[inline]
    fn store(&mut self, word: usize, value: u64) {
        self.pages.store_relaxed(self.first_word + word, value);
    }

    #[inline]
    fn prefetch(&self, word: usize) {
        self.pages.prefetch(self.first_word + word);
    }

    #[inline]
    fn load_eight(&self, word: usize) -> [u64; 8] {
        self.pages.load_words(self.first_word + word)
    }
}

/// A ring, and a cache line for its cell.
const fn unit_bytes(ring: Ring) -> usize {
    ring.bytes() as usize + LINE_BYTES
}

const _: () = {
    assert!(
        (unit_bytes(Ring::LONG) / LINE_BYTES) % 2 == 1,
        "units are staggered by an odd number of lines"
    );
    assert!(
        (unit_bytes(Ring::SHORT) / LINE_BYTES) % 2 == 1,
        "units are staggered by an odd number of lines"
    );
};

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proto::channel::{Channel, Parameters};
    use proto::polled::PolledTime;
    use proto::{Account, PacketNumber};

    use super::*;

    /// Inbox, shadow and the channel's state. Parking is not counted: its pages are touched only when inline messages use them.
    fn peer_bytes(ring: Ring) -> usize {
        2 * unit_bytes(ring) + channel(ring).memory_bytes() + size_of::<Account>()
    }

    fn channel(ring: Ring) -> Channel {
        let parameters = Parameters {
            ring,
            rails: 1,
            data_rails: 1,
            locals: [0; 16],
            failover: false,
            tries: false,
            closes: false,
            quarantine: 4,
            measure_by_arrival: false,
            rail: 0,
            key: 1,
            peer_timeout: Duration::from_secs(15),
            first: PacketNumber::new(1),
        };
        Channel::new(parameters, PolledTime::START).expect("one rail is possible")
    }

    #[test]
    fn a_channel_and_its_account_take_3_kib_beside_their_memory_for_packets() {
        let names = 1024 * 6 + 64 * 32;
        let bytes = channel(Ring::LONG).memory_bytes() + size_of::<Account>();
        assert!(bytes <= names + (3 << 10), "{bytes} bytes");
    }

    #[test]
    fn a_peer_costs_150_kib_and_24_where_only_adverts_travel() {
        let (long, short) = (peer_bytes(Ring::LONG), peer_bytes(Ring::SHORT));
        assert!(long <= 150 << 10, "{long} bytes");
        assert!(short <= 24 << 10, "{short} bytes");
    }
}
