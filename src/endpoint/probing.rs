//! Runs the probe (`endpoint::probe`) on an endpoint. Its operations are posted and polled like all others, so their contexts and memory
//! live as long as the endpoint, even if the provider completes them late.
//!
//! Connections wait for the probe's result. The first endpoint of a device that needs the result runs the probe; the others wait, and drive
//! it too ([`Endpoint::push_probe`]), since NCCL may not be calling the first one. An endpoint that closes, or on which not even a write
//! works, leaves the probe to the next.
//!
//! A NIC that fails while it is probed is not closed: connections handle it as any lost rail, and try it again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fabric::{Delivery, FabricError, Memory, Pages, Post, RemoteBytes, RemoteKey, Write};
use proto::budget::{Budget, CAPACITY_MIN};
use proto::limits::MAX_DATA_RAILS;
use proto::{Capabilities, ImmediateWidth};

use super::Endpoint;
use super::executor::Executor;
use super::probe::{PROBE_BYTES, PROBE_IMMEDIATE, Probe, Step};
use super::purpose::{Attempt, Purpose};
use crate::error::{Cause, Result};
use crate::label::Label;

/// Offsets in the landing page that the probe reads and writes. Flushes use its beginning.
const SOURCE: usize = 1024;
const TARGET: usize = SOURCE + PROBE_BYTES;
/// From this offset on each NIC has its own source and target for writes whose bytes are checked, so that a late write by one NIC is not
/// taken for another's.
const WRITTEN: usize = 2048;
/// The value of each of their words.
const PATTERN: u64 = 0x5ca1_ab1e_0ddb_a115;

const _: () = assert!(
    WRITTEN + 2 * PROBE_BYTES * MAX_DATA_RAILS <= 4096,
    "sources and targets fit into a page"
);

impl Endpoint {
    /// Whether the device's capabilities are known. If not, drives the probe.
    pub(super) fn ensure_capabilities(&mut self) -> Result<bool> {
        if !self.is_probed {
            self.learn_capabilities();
            self.check_alive()?;
        }
        Ok(self.is_probed)
    }

    #[cold]
    pub(super) fn learn_capabilities(&mut self) {
        // SENDRECV needs no probe.
        if self.executor.sends_messages() {
            self.adopt(*self.executor.capabilities());
            self.is_probed = true;
            return;
        }
        if self.device.probed.capabilities().is_none() && self.device.probed.take_probe(self.number)
        {
            let nics = u8::try_from(self.executor.nics.len()).unwrap_or(u8::MAX);
            self.probe = Some(Probe::new(nics, Instant::now()));
        }
        self.drive_probe();
        if let Some(known) = self.device.probed.capabilities() {
            self.adopt(known);
            self.is_probed = true;
        }
    }

    /// The number of the endpoint whose probe this endpoint waits for.
    pub(crate) fn waits_for(&self) -> Option<u16> {
        if self.is_probed {
            None
        } else {
            self.device.probed.prober().filter(|number| *number != self.number)
        }
    }

    /// Drives this endpoint's probe for another endpoint's caller, which waits for its result.
    pub(crate) fn push_probe(&mut self) {
        if self.probe.is_some() {
            self.progress();
            self.drive_probe();
        }
    }

    /// Stops the probe. Another endpoint may start it again.
    pub(super) fn leave_probe(&mut self) {
        if self.probe.take().is_some() {
            self.device.probed.leave_probe(self.number);
        }
    }

    fn drive_probe(&mut self) {
        while let Some(probe) = &mut self.probe {
            let nic = probe.nic();
            if probe.awaits_bytes() && has_landed(&self.executor, nic) {
                probe.landed();
            }
            match probe.step(Instant::now()) {
                Step::Wait => return,
                Step::Post(attempt) => {
                    let posted = self.attempt(nic, attempt);
                    let Some(probe) = &mut self.probe else { return };
                    match posted {
                        Ok(Post::Accepted) => probe.posted(),
                        Ok(Post::Again | Post::Full) => return,
                        Err(error) => probe.refused(error),
                    }
                }
                Step::Lost(nic, fault) => log::warn!(
                    "device {}: {} does not work: {fault}; the next rail is probed",
                    self.device.label,
                    self.rail_label(nic)
                ),
                Step::Over(Ok(found)) => {
                    self.probe = None;
                    self.device
                        .probed
                        .learned(self.number, found.with(*self.executor.capabilities()));
                }
                Step::Over(Err(fault)) => {
                    self.leave_probe();
                    let (device, interface) = (self.device.label, self.rail_label(nic));
                    self.fail_all(Cause::CannotUse { device, interface, fault }.into());
                }
            }
        }
    }

    fn rail_label(&self, nic: u8) -> Label {
        let port = self.executor.nics.get(usize::from(nic));
        port.map_or_else(|| self.label(), |port| Label::of(&port.label))
    }

    fn attempt(&mut self, nic: u8, attempt: Attempt) -> std::result::Result<Post, FabricError> {
        let [source, target] = match attempt {
            Attempt::Write => written(nic),
            _ => [SOURCE, TARGET],
        };
        if attempt == Attempt::Write
            && let Some(pages) = landing_pages(&self.executor)
        {
            pages.fill_words(words(source), PATTERN);
            pages.fill_words(words(target), 0);
        }
        let token = Purpose::Probe { nic, attempt }.token();
        let nic = usize::from(nic);
        let Executor { nics, landing, .. } = &mut self.executor;
        let port = nics.get_mut(nic).ok_or(FabricError::NO_RAIL)?;
        let peer = port.myself()?;
        let local = landing.local(nic, landing.address() + source as u64, PROBE_BYTES);
        let local = local.ok_or(FabricError::OUTSIDE)?;
        let remote = RemoteBytes {
            address: landing.target(landing.address() + target as u64),
            key: RemoteKey::from_wire(landing.key(nic)),
        };
        let write = Write { local, remote, peer, delivery: Delivery::Default };
        match attempt {
            Attempt::Write => port.nic.write(&write, None, token),
            Attempt::WriteWithImmediate => port.nic.write(&write, Some(PROBE_IMMEDIATE), token),
            Attempt::Read => port.nic.read(local, remote, peer, token),
            Attempt::WriteDeliveryComplete => {
                let write = Write { delivery: Delivery::Complete, ..write };
                port.nic.write(&write, None, token)
            }
        }
    }

    /// An operation of the probe has ended.
    pub(super) fn probe_ended(
        &mut self,
        nic: u8,
        attempt: Attempt,
        outcome: std::result::Result<(), i32>,
    ) {
        if let Some(probe) = &mut self.probe {
            probe.ended(nic, attempt, outcome);
        }
    }

    /// Whether a write with an immediate for no connection was the probe's.
    pub(super) fn probe_arrived(&mut self, nic: usize, len: u64, immediate: u64) -> bool {
        let Some(probe) = &mut self.probe else { return false };
        probe.arrived(u8::try_from(nic).unwrap_or(u8::MAX), len, immediate);
        true
    }

    /// Takes over the capabilities, as far as the settings allow.
    fn adopt(&mut self, found: Capabilities) {
        // Whether completions prove arrival depends on the options of each libfabric endpoint, and another endpoint may have run the probe.
        let proves_arrival = found.proves_arrival && self.executor.capabilities().proves_arrival;
        let mut allowed = Capabilities { proves_arrival, ..found };
        if self.settings.force_fin && !found.messages {
            allowed.immediate = ImmediateWidth::None;
        }
        if allowed.immediate != ImmediateWidth::None
            && !found.messages
            && let Some(most) = self.device.arrivals_max
        {
            if most >= CAPACITY_MIN {
                self.budget = Budget::new(most.min(self.budget.capacity()));
            } else {
                warn_of_few_arrivals(&self.device.provider, most);
                allowed.immediate = ImmediateWidth::None;
            }
        }
        if self.settings.largest_write != 0 {
            allowed.largest_write = self.settings.largest_write.min(allowed.largest_write);
        }
        self.executor.settle(allowed);
    }
}

/// Logs once that no writes have immediates, since the provider keeps too few of those that arrive.
#[cold]
fn warn_of_few_arrivals(provider: &str, most: u32) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        log::warn!(
            "{provider} has room for {most} writes that arrive between two polls, and {CAPACITY_MIN} are needed: each message ends with a FIN frame instead; FI_UNIVERSE_SIZE and FI_CXI_CTRL_RX_EQ_MAX_SIZE set that room"
        );
    }
}

/// Whether the bytes of this NIC's last write without an immediate are in its target.
fn has_landed(executor: &Executor, nic: u8) -> bool {
    let [_, target] = written(nic);
    landing_pages(executor)
        .is_some_and(|pages| words(target).all(|word| pages.load(word) == PATTERN))
}

fn landing_pages(executor: &Executor) -> Option<&Arc<Pages>> {
    match executor.landing.memory() {
        Memory::Pages(pages) => Some(pages),
        Memory::User(_) => None,
    }
}

/// The source and the target of this NIC's writes without an immediate.
fn written(nic: u8) -> [usize; 2] {
    let source = WRITTEN + usize::from(nic) * 2 * PROBE_BYTES;
    [source, source + PROBE_BYTES]
}

/// The words of the bytes at this offset.
fn words(offset: usize) -> Range<usize> {
    offset / 8..(offset + PROBE_BYTES) / 8
}
