//! Landed bytes that are not visible yet.
//!
//! The bytes of a write become visible line by line, in any order, within a bounded number of polls: cache line by cache line, or in blocks of
//! 128 bytes where the writer was granted these in order. They become visible at
//! once when the target reads the completion that came with them, when the initiator reads a delivery completion, when a later write or a
//! read meets the same bytes, or when the region or its endpoint closes. Marked memory stays invisible longer: until a read by the same NIC
//! completes that read after the bytes had landed, since a PCIe read pushes only the writes before it. For memory of a device that must be a
//! read of the same device's memory, since no other read takes the same way over the bus.

use std::ffi::c_int;

use libfabric_sys as sys;

use super::flight::Event;
use super::held::{Held, Line};
use super::{Endpoint, Engine, Id, Outcome, Region};
use crate::ledger::Rule;
use crate::memory;

impl Engine {
    /// Writes `bytes`, or a part of them now and the rest later, by lines of so many bytes. Returns the id of what is held, if anything is.
    pub(super) fn write_or_hold(
        &mut self,
        endpoint: Id<Endpoint>,
        region: Id<Region>,
        address: u64,
        bytes: &[u8],
        line: u64,
    ) -> Outcome<Option<Id<Held>>> {
        let len = bytes.len() as u64;
        self.show_under(address, len);
        let meets = |(start, size): &(u64, u64)| address < start + size && *start < address + len;
        let device = self.region(region)?.device;
        let marked = device.is_some() || self.marked.iter().any(meets);
        if !marked && !self.settings.profile.hold {
            return self.put(region, address, bytes).map(|()| None);
        }
        let lines = if marked {
            vec![(0, bytes.len())]
        } else {
            self.choose_lines(address, bytes.len(), line)
        };
        let mut shown = 0;
        for (from, to) in &lines {
            self.put(region, address + shown as u64, &bytes[shown..*from])?;
            shown = *to;
        }
        self.put(region, address + shown as u64, &bytes[shown..])?;
        if lines.is_empty() {
            return Ok(None);
        }
        let nic = self.endpoint(endpoint)?.nic;
        self.last_held += 1;
        let id = Id::of(self.last_held);
        self.counters.add("held", lines.len() as u64);
        if !marked {
            for index in 0..lines.len() {
                let wait = 1 + self.random.up_to(HOLD_POLLS_MAX);
                let unit = if self.settings.is_virtual { HOLD_NS } else { 1 };
                self.at(self.clock + wait * unit, Event::Show(id, index));
            }
        }
        let lines = lines
            .into_iter()
            .map(|(from, to)| {
                Some(Line { address: address + from as u64, bytes: bytes[from..to].to_vec() })
            })
            .collect();
        self.held.insert(id, Held { endpoint, nic, region, marked, device, lines });
        Ok(Some(id))
    }

    /// Chooses a few lines of a write, in order, that become visible later than the rest.
    fn choose_lines(&mut self, address: u64, len: usize, line: u64) -> Vec<(usize, usize)> {
        let head = memory::bits(line - address % line).min(len);
        let rest = len - head;
        let line = memory::bits(line);
        let count = usize::from(head > 0) + rest.div_ceil(line);
        let mut chosen: Vec<usize> = (0..HELD_LINES_MAX.min(count))
            .filter_map(|place| {
                // The first and the last line matter most: users poll there.
                let which = match place {
                    0 => 0,
                    1 => count - 1,
                    _ => usize::try_from(self.random.up_to(count as u64 - 1)).unwrap_or(0),
                };
                self.random.chance(500).then_some(which)
            })
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
        let bounds = |which: usize| {
            if which == 0 {
                (0, head)
            } else {
                (head + (which - 1) * line, (head + which * line).min(len))
            }
        };
        chosen.into_iter().map(bounds).collect()
    }

    fn put(&mut self, region: Id<Region>, address: u64, bytes: &[u8]) -> Outcome {
        let place = address.wrapping_add(self.shift_of(Some(region)));
        if bytes.is_empty() || memory::write(place, bytes) {
            return Ok(());
        }
        let len = bytes.len();
        self.refuse(Rule::FreedEarly, sys::FI_EIO, || {
            format!("{len} bytes at {address:#x} are gone while region {region} is open")
        })
    }

    /// Makes one line visible.
    pub(super) fn show_line(&mut self, id: Id<Held>, index: usize) {
        let Some(held) = self.held.get_mut(&id) else { return };
        let line = held.lines.get_mut(index).and_then(Option::take);
        let region = held.region;
        if held.lines.iter().all(Option::is_none) {
            self.held.remove(&id);
        }
        if let Some(Line { address, bytes }) = line {
            // A failure is recorded by `put`.
            let _ = self.put(region, address, &bytes);
        }
    }

    /// Makes all of a write visible.
    pub(super) fn show(&mut self, id: Id<Held>) {
        for index in 0..self.held.get(&id).map_or(0, |held| held.lines.len()) {
            self.show_line(id, index);
        }
    }

    /// The target has read the completion of a write: its bytes become visible, marked memory excepted.
    pub(super) fn show_arrived(&mut self, id: Id<Held>) {
        if self.held.get(&id).is_some_and(|held| !held.marked) {
            self.show(id);
        }
    }

    pub(super) fn show_of_region(&mut self, region: Id<Region>) {
        self.show_where(|_, held| held.region == region);
    }

    pub(super) fn show_of_endpoint(&mut self, endpoint: Id<Endpoint>) {
        self.show_where(|_, held| held.endpoint == endpoint);
    }

    /// A read by this NIC, of this device's memory or of the host's, has completed: bytes that went the same way over the bus become visible,
    /// up to the newest that had landed when it read.
    pub(super) fn show_by_read(&mut self, nic: usize, device: Option<c_int>, newest: Id<Held>) {
        self.show_where(|id, held| {
            id <= newest && held.nic == nic && held.device.is_none_or(|of| device == Some(of))
        });
    }

    /// Makes visible what is held of these bytes, device memory excepted.
    pub(super) fn show_over(&mut self, address: u64, len: u64) {
        self.show_where(|_, held| {
            held.device.is_none()
                && held.lines.iter().flatten().any(|line| line.meets(address, len))
        });
    }

    /// Makes visible what is held of these bytes of device memory before a later write reaches them.
    fn show_under(&mut self, address: u64, len: u64) {
        self.show_where(|_, held| held.lines.iter().flatten().any(|line| line.meets(address, len)));
    }

    /// Overwrites `bytes` with those that this NIC has written there, visible or not.
    pub(super) fn overlay(&self, nic: usize, address: u64, bytes: &mut [u8]) {
        // In the order of landing.
        for held in self.held.values().filter(|held| held.nic == nic) {
            for line in held.lines.iter().flatten() {
                let from = line.address.max(address);
                let to = (line.address + line.bytes.len() as u64).min(address + bytes.len() as u64);
                if from < to {
                    let place = |base: u64| memory::bits(from - base)..memory::bits(to - base);
                    bytes[place(address)].copy_from_slice(&line.bytes[place(line.address)]);
                }
            }
        }
    }

    fn show_where(&mut self, which: impl Fn(Id<Held>, &Held) -> bool) {
        if self.held.is_empty() {
            return;
        }
        let ids: Vec<_> =
            self.held.iter().filter(|(id, held)| which(**id, held)).map(|(id, _)| *id).collect();
        for id in ids {
            self.show(id);
        }
    }
}

/// Bytes of a cache line.
pub(super) const LINE: u64 = 64;
/// Bytes of a block that is written in order where that is granted (FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES).
pub(super) const ORDERED_LINE: u64 = 128;
/// The most lines of one write that are held.
const HELD_LINES_MAX: usize = 8;
/// The longest hold, in polls; and in virtual time, the length of a poll.
const HOLD_POLLS_MAX: u64 = 64;
const HOLD_NS: u64 = 20;
