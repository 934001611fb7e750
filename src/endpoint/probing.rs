//! Runs the probe (`endpoint::probe`) on an endpoint. Its operations are posted and polled like all others, so their contexts and their
//! memory live as long as the endpoint's, should the provider be late.
//!
//! Connections wait for its result. The first endpoint of a device that needs it runs it; the others wait, and drive it too
//! ([`Endpoint::push_probe`]), since that endpoint's own caller may be away. An endpoint that closes, or on which not even a write works,
//! leaves the probe to the next.

use std::time::Instant;

use fabric::{Delivery, FabricError, Post, RemoteBytes, RemoteKey, Write};
use proto::Capabilities;

use super::Endpoint;
use super::executor::Executor;
use super::probe::{PROBE_BYTES, PROBE_IMMEDIATE, Probe, Step};
use super::purpose::{Attempt, Purpose};
use crate::error::{Cause, Result};

/// Offsets in the landing page that the probe reads and writes. Flushes use its beginning.
const SOURCE: u64 = 1024;
const TARGET: u64 = 2048;
/// The probe uses the first NIC.
const PROBED: usize = 0;

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
        if self.executor.sendrecv.is_some() {
            self.adopt(self.executor.capabilities);
            self.is_probed = true;
            return;
        }
        if self.device.probed.capabilities().is_none() && self.device.probed.take_probe(self.number)
        {
            self.probe = Some(Probe::new(Instant::now()));
        }
        self.drive_probe();
        if let Some(known) = self.device.probed.capabilities() {
            self.adopt(known);
            self.is_probed = true;
        }
    }

    /// The endpoint that runs the probe that this one waits for.
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
            match probe.step(Instant::now()) {
                Step::Wait => return,
                Step::Post(attempt) => {
                    let posted = self.attempt(attempt);
                    let Some(probe) = &mut self.probe else { return };
                    match posted {
                        Ok(Post::Accepted) => probe.posted(),
                        Ok(Post::Again | Post::Full) => return,
                        Err(error) => probe.refused(error),
                    }
                }
                Step::Over(Ok(found)) => {
                    self.probe = None;
                    self.device.probed.learned(self.number, found.with(self.executor.capabilities));
                }
                Step::Over(Err(error)) => {
                    self.leave_probe();
                    let (device, interface) = (self.device.label, self.device.interface);
                    self.fail_all(Cause::CannotUse { device, interface, fault: error }.into());
                }
            }
        }
    }

    fn attempt(&mut self, attempt: Attempt) -> std::result::Result<Post, FabricError> {
        let Executor { nics, landing, .. } = &mut self.executor;
        let port = nics.get_mut(PROBED).ok_or(FabricError::NO_RAIL)?;
        let peer = port.myself()?;
        let local = landing.local(PROBED, landing.address() + SOURCE, PROBE_BYTES);
        let local = local.ok_or(FabricError::OUTSIDE)?;
        let remote = RemoteBytes {
            address: landing.target(landing.address() + TARGET),
            key: RemoteKey::from_wire(landing.key(PROBED)),
        };
        let token = Purpose::Probe { attempt }.token();
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
    pub(super) fn probe_ended(&mut self, attempt: Attempt, well: bool) {
        if let Some(probe) = &mut self.probe {
            probe.ended(attempt, well);
        }
    }

    /// Whether an arrival for no connection was the probe's.
    pub(super) fn probe_arrived(&mut self, len: u64, immediate: u64) -> bool {
        let Some(probe) = &mut self.probe else { return false };
        probe.arrived(len, immediate);
        true
    }

    /// Takes over the capabilities, as far as the settings allow.
    fn adopt(&mut self, found: Capabilities) {
        // What completions prove depends on the options of each libfabric endpoint, and the result may be another endpoint's.
        let proves_arrival = found.proves_arrival && self.executor.capabilities.proves_arrival;
        self.executor.capabilities = Capabilities { proves_arrival, ..found };
        if self.settings.force_fin && !found.messages {
            self.executor.capabilities.immediate = proto::ImmediateWidth::None;
        }
        if self.settings.largest_write != 0 {
            let largest = &mut self.executor.capabilities.largest_write;
            *largest = self.settings.largest_write.min(*largest);
        }
        self.executor.peers.settle(self.executor.capabilities);
    }
}
