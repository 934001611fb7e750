//! The probe of a device (`plugin::probe`), carried out on its first endpoint: posted there, polled with everything else, and
//! ended like every operation. So its contexts and its memory live as long as any of ours, should the provider be late.
//!
//! Connections wait for what it finds. One endpoint of a device probes, whichever is first; the others wait for it, and its
//! own caller may be away meanwhile, so they also push it on ([`Endpoint::push_probe`]). An endpoint that closes, or finds that not
//! even a plain write works, leaves the probe to the next.

use std::time::Instant;

use fabric::{Delivery, FabricError, Post, RemoteBytes, RemoteKey};
use proto::Capabilities;

use super::Endpoint;
use super::nics::refused;
use crate::error::Result;
use crate::plugin::{PROBE_BYTES, PROBE_IMMEDIATE, Probe, ProbeStep};
use crate::rail::{Attempt, Purpose};

/// Where the endpoint's own page is read and written: flushes use its beginning.
const SOURCE: u64 = 1024;
const TARGET: u64 = 2048;
/// It is the first NIC that probes.
const PROBED: usize = 0;

impl Endpoint {
    /// Whether it is known what the device can do. Else finding out has gone on.
    pub(super) fn is_settled(&mut self) -> Result<bool> {
        if !self.settled {
            self.settle();
            self.check_alive()?;
        }
        Ok(self.settled)
    }

    #[cold]
    pub(super) fn settle(&mut self) {
        if self.device.capabilities().is_none() && self.device.take_probe(self.number) {
            self.probe = Some(Probe::new(Instant::now()));
        }
        self.drive_probe();
        if let Some(known) = self.device.capabilities() {
            self.adopt(known);
            self.settled = true;
        }
    }

    /// The endpoint whose probe this one waits for.
    pub(crate) fn waits_for(&self) -> Option<u16> {
        if self.settled {
            None
        } else {
            self.device.prober().filter(|number| *number != self.number)
        }
    }

    /// The same for an endpoint whose caller is busy elsewhere: another one's caller waits for it.
    pub(crate) fn push_probe(&mut self) {
        if self.probe.is_some() {
            self.progress();
            self.drive_probe();
        }
    }

    /// Whoever needs the probe may begin anew.
    pub(super) fn leave_probe(&mut self) {
        if self.probe.take().is_some() {
            self.device.leave_probe(self.number);
        }
    }

    fn drive_probe(&mut self) {
        while let Some(probe) = &mut self.probe {
            match probe.step(Instant::now()) {
                ProbeStep::Wait => return,
                ProbeStep::Post(attempt) => {
                    let posted = self.attempt(attempt);
                    let Some(probe) = &mut self.probe else { return };
                    match posted {
                        Ok(Post::Accepted) => probe.posted(),
                        Ok(Post::Again) => return,
                        Err(error) => probe.refused(error),
                    }
                }
                ProbeStep::Over(Ok(found)) => {
                    self.probe = None;
                    self.device.learned(self.number, found.with(self.capabilities));
                }
                ProbeStep::Over(Err(error)) => {
                    self.leave_probe();
                    let interface = self.device.plan.rails.get(PROBED);
                    let interface = interface.map_or("", |rail| rail.interface.as_str());
                    let error = refused(self.device, interface, error);
                    self.fail_all(error);
                }
            }
        }
    }

    fn attempt(&mut self, attempt: Attempt) -> std::result::Result<Post, FabricError> {
        let Self { nics, landing, .. } = self;
        let absent = FabricError { call: "a probe without a rail", code: -22 };
        let nic = nics.get_mut(PROBED).ok_or(absent)?;
        let myself = nic.myself()?;
        let local = landing.local(PROBED, landing.address() + SOURCE, PROBE_BYTES).ok_or(absent)?;
        let remote = RemoteBytes {
            address: landing.target(landing.address() + TARGET),
            key: RemoteKey::from_wire(landing.key(PROBED)),
        };
        let Some((operation, context)) = nic.operations.begin(Purpose::Probe { attempt }) else {
            return Ok(Post::Again);
        };
        let rail = nic.data.endpoint();
        let posted = match attempt {
            Attempt::Write => rail.write(local, remote, myself, Delivery::Default, context),
            Attempt::WriteWithImmediate => rail.write_with_immediate(
                local,
                remote,
                myself,
                PROBE_IMMEDIATE,
                Delivery::Default,
                context,
            ),
            Attempt::Read => rail.read(local, remote, myself, context),
            Attempt::WriteToTheEnd => {
                rail.write(local, remote, myself, Delivery::Complete, context)
            }
        };
        if !matches!(posted, Ok(Post::Accepted)) {
            nic.operations.end_at(operation);
        }
        posted
    }

    /// An operation of the probe has ended.
    pub(super) fn probe_ended(&mut self, attempt: Attempt, well: bool) {
        if let Some(probe) = &mut self.probe {
            probe.ended(attempt, well);
        }
    }

    /// Whether an arrival that no connection waits for was the probe's.
    pub(super) fn probe_arrived(&mut self, len: u64, immediate: u64) -> bool {
        let Some(probe) = &mut self.probe else { return false };
        probe.arrived(len, immediate);
        true
    }

    /// Takes what was found, within what the settings allow.
    fn adopt(&mut self, found: Capabilities) {
        self.capabilities = found;
        if self.settings.force_fin {
            self.capabilities.immediate = proto::ImmediateWidth::None;
        }
        if self.settings.largest_write != 0 {
            let largest = &mut self.capabilities.largest_write;
            *largest = self.settings.largest_write.min(*largest);
        }
    }
}
