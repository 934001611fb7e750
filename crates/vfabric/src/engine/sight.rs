//! What has landed and cannot be seen yet.
//!
//! A write's bytes come to light cache line by cache line, in any order, within a bound of polls. These make them visible before
//! that: the target reads the arrival that came with them, the initiator reads that they were delivered, a later write or a
//! read meets the same bytes, the region or its endpoint closes. Memory that is marked stays unseen longer: until a read
//! by the same NIC completes. Of a device's, until one of memory of that device does, for no other goes the way of the writes.

use std::ffi::c_int;

use libfabric_sys as sys;

use super::flight::Event;
use super::{Engine, Outcome};
use crate::ledger::Rule;
use crate::memory;

/// One write, landed in part.
#[derive(Debug)]
pub(super) struct Held {
    endpoint: u64,
    nic: usize,
    region: u64,
    marked: bool,
    /// Of a device's memory: a read of that alone shows it.
    device: Option<c_int>,
    /// None once it was shown.
    lines: Vec<Option<Line>>,
}

#[derive(Debug)]
struct Line {
    address: u64,
    bytes: Vec<u8>,
}

impl Line {
    fn meets(&self, address: u64, len: u64) -> bool {
        self.address < address + len && address < self.address + self.bytes.len() as u64
    }
}

impl Engine {
    /// Writes `bytes`, or a part of them and the rest later. Answers what is held, if anything is.
    pub(super) fn write_or_hold(
        &mut self,
        endpoint: u64,
        region: u64,
        address: u64,
        bytes: &[u8],
    ) -> Outcome<Option<u64>> {
        let len = bytes.len() as u64;
        self.show_under(address, len);
        let meets = |(start, size): &(u64, u64)| address < start + size && *start < address + len;
        let device = self.region(region)?.device;
        let marked = device.is_some() || self.marked.iter().any(meets);
        if !marked && !self.settings.profile.hold {
            return self.put(region, address, bytes).map(|()| None);
        }
        let lines =
            if marked { vec![(0, bytes.len())] } else { self.choose_lines(address, bytes.len()) };
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
        let id = self.last_held;
        self.counters.add("held", lines.len() as u64);
        if !marked {
            for index in 0..lines.len() {
                let wait = 1 + self.random.up_to(HOLD_TURNS);
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

    /// A few cache lines of a write, in order: those that come to light later than the rest.
    fn choose_lines(&mut self, address: u64, len: usize) -> Vec<(usize, usize)> {
        let head = memory::bits(LINE - address % LINE).min(len);
        let rest = len - head;
        let line = memory::bits(LINE);
        let count = usize::from(head > 0) + rest.div_ceil(line);
        let mut chosen: Vec<usize> = (0..HELD_LINES_MAX.min(count))
            .filter_map(|place| {
                // The first and the last line matter most: users look there.
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

    fn put(&mut self, region: u64, address: u64, bytes: &[u8]) -> Outcome {
        let place = address.wrapping_add(self.shift_of(Some(region)));
        if bytes.is_empty() || memory::write(place, bytes) {
            return Ok(());
        }
        let len = bytes.len();
        self.refuse(Rule::FreedEarly, sys::FI_EIO, || {
            format!("{len} bytes at {address:#x} are gone while region {region} is open")
        })
    }

    /// One line comes to light.
    pub(super) fn show_line(&mut self, id: u64, index: usize) {
        let Some(held) = self.held.get_mut(&id) else { return };
        let line = held.lines.get_mut(index).and_then(Option::take);
        let region = held.region;
        if held.lines.iter().all(Option::is_none) {
            self.held.remove(&id);
        }
        if let Some(Line { address, bytes }) = line {
            // What was broken is written down.
            let _ = self.put(region, address, &bytes);
        }
    }

    /// All of a write comes to light.
    pub(super) fn show(&mut self, id: u64) {
        for index in 0..self.held.get(&id).map_or(0, |held| held.lines.len()) {
            self.show_line(id, index);
        }
    }

    /// The target reads the arrival of a write: its bytes are there, but for marked memory.
    pub(super) fn show_arrived(&mut self, id: u64) {
        if self.held.get(&id).is_some_and(|held| !held.marked) {
            self.show(id);
        }
    }

    pub(super) fn show_of_region(&mut self, region: u64) {
        self.show_where(|held| held.region == region);
    }

    pub(super) fn show_of_endpoint(&mut self, endpoint: u64) {
        self.show_where(|held| held.endpoint == endpoint);
    }

    /// A read by this NIC has completed, of this device's memory or the host's. It pushes what lies on its own way: a device's
    /// memory is another end of the bus.
    pub(super) fn show_by_read(&mut self, nic: usize, device: Option<c_int>) {
        self.show_where(|held| held.nic == nic && held.device.is_none_or(|of| device == Some(of)));
    }

    /// What is held of these bytes, but of a device's.
    pub(super) fn show_over(&mut self, address: u64, len: u64) {
        self.show_where(|held| {
            held.device.is_none()
                && held.lines.iter().flatten().any(|line| line.meets(address, len))
        });
    }

    /// What is held of these bytes of a device's, which come behind it.
    fn show_under(&mut self, address: u64, len: u64) {
        self.show_where(|held| held.lines.iter().flatten().any(|line| line.meets(address, len)));
    }

    /// What this NIC has written of these bytes is what it reads, seen or not.
    pub(super) fn overlay(&self, nic: usize, address: u64, bytes: &mut [u8]) {
        // In the order in which they landed.
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

    fn show_where(&mut self, which: impl Fn(&Held) -> bool) {
        if self.held.is_empty() {
            return;
        }
        let ids: Vec<u64> =
            self.held.iter().filter(|(_, held)| which(held)).map(|(id, _)| *id).collect();
        for id in ids {
            self.show(id);
        }
    }
}

/// Bytes of a cache line.
const LINE: u64 = 64;
/// Lines of one write that are held at most.
const HELD_LINES_MAX: usize = 8;
/// How long at most, in polls, and in virtual time how long a poll is.
const HOLD_TURNS: u64 = 64;
const HOLD_NS: u64 = 20;
