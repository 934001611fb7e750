//! Operations in flight: each departs, lands and is acknowledged at its time, unless a NIC stalls or dies, or the script interferes.

use std::ffi::c_int;

use libfabric_sys as sys;

use super::held::Held;
use super::operation::{Kind, Operation, Source};
use super::{Endpoint, Engine, Errno, Id};
use crate::faults::{self, Effect, Fault};
use crate::ledger::Rule;
use crate::memory;
use crate::profile::Progress;
use crate::settings::Settings;

/// A message that has arrived.
#[derive(Debug)]
pub(crate) struct Message {
    pub(super) from: Id<Endpoint>,
    pub(super) bytes: Vec<u8>,
    pub(super) immediate: Option<u64>,
    pub(super) tag: Option<u64>,
}

/// All operations from one endpoint to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stream {
    pub(super) from: Id<Endpoint>,
    pub(super) to: Id<Endpoint>,
}

/// When the last operations of a stream depart and land, by their kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastTimes {
    departs: [u64; Kind::ALL.len()],
    lands: [u64; Kind::ALL.len()],
}

/// What happens at a time. An event of an operation that is gone does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Depart(Id<Operation>),
    Land(Id<Operation>),
    Acknowledge(Id<Operation>),
    /// Held bytes become visible.
    Show(Id<Held>, usize),
}

impl Engine {
    /// Schedules an event. Of two at the same time, the one scheduled first comes first.
    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.last_event += 1;
        self.events.insert((time, self.last_event), event);
    }

    /// Gives an operation its number, its fate and its departure.
    pub(super) fn accept(&mut self, mut operation: Operation) {
        self.accepted += u64::from(!operation.silent);
        let number = self.accepted;
        if !operation.silent {
            let Self { faults, counters, .. } = &mut *self;
            let mut happens = |effect, name| {
                let taken = faults::take(faults, effect, number, operation.local.len);
                if taken {
                    counters.count(name);
                }
                taken
            };
            if happens(Effect::Fail, "faults.fail") {
                operation.result = Err(Errno(sys::FI_EIO));
            }
            operation.fails_late |= happens(Effect::FailLate, "faults.fail_late");
            operation.vanishes |= happens(Effect::Vanish, "faults.vanish");
            operation.breaks_off |= happens(Effect::Sever, "faults.sever");
            operation.delay = self.delay_of(number);
        }
        operation.fate = self.fate(operation.kind);
        if let Some(region) = operation.region.and_then(|region| self.regions.get_mut(region)) {
            region.uses += 1;
        }
        if let Some(endpoint) = self.endpoints.get_mut(operation.initiator) {
            endpoint.outstanding += 1;
        }
        self.last_operation += 1;
        let id = Id::of(self.last_operation);
        let waits = self.settings.profile.progress == Progress::Software;
        operation.reported &= operation.result.is_ok() && !operation.fails_late;
        let (initiator, reported) = (operation.initiator, operation.reported);
        operation.was_read = !operation.signalled;
        self.operations.insert(id, operation);
        if reported {
            self.report(id);
        }
        if !waits {
            self.schedule(id);
            return;
        }
        let lingers = self.random.chance(self.settings.linger_permille);
        let Some(endpoint) = self.endpoints.get_mut(initiator) else { return };
        if lingers || !endpoint.outbox.is_empty() {
            endpoint.outbox.push_back(id);
        } else {
            self.schedule(id);
        }
    }

    /// Writes the completion of an operation whose bytes have not left.
    fn report(&mut self, id: Id<Operation>) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let (signalled, region) = (operation.signalled, operation.region.take());
        let (initiator, context) = (operation.initiator, operation.context);
        let mut entry = operation.entry();
        entry.region = region;
        entry.operation = Some(id);
        if !operation.silent {
            self.give_context_back(context);
        }
        let Some(endpoint) = self.endpoints.get(initiator) else { return };
        if signalled {
            self.counters.count("completions");
            self.write_entry(endpoint.transmit_queue, entry);
        } else {
            self.end_use(region);
        }
    }

    /// Schedules the departures of an endpoint's operations, in order: each with the poll after the one that reported its completion.
    pub(super) fn empty_outbox(&mut self, endpoint: Id<Endpoint>) {
        while let Some(id) =
            self.endpoints.get(endpoint).and_then(|one| one.outbox.front().copied())
        {
            let ready = self
                .operations
                .get(&id)
                .is_none_or(|operation| operation.was_read || !operation.reported);
            if !ready {
                return;
            }
            if let Some(endpoint) = self.endpoints.get_mut(endpoint) {
                endpoint.outbox.pop_front();
            }
            self.schedule(id);
        }
    }

    /// Schedules the departure: after a random delay, or when the transmitter is free.
    fn schedule(&mut self, id: Id<Operation>) {
        let Some(operation) = self.operations.get(&id) else { return };
        let len = operation.local.len;
        let Some(endpoint) = self.endpoints.get(operation.initiator) else { return };
        let nic = endpoint.nic;
        let departs = if self.settings.is_virtual {
            let start = self.clock.max(self.nics[nic].transmitter_free);
            let mbps = Settings::of_nic(&self.settings.bandwidth_mbps, nic);
            self.nics[nic].transmitter_free = start + len.saturating_mul(8000) / mbps;
            start
        } else {
            self.clock + self.random.up_to(self.settings.profile.reorder / 4)
        };
        let departs = self.in_order(id, departs, |last| &mut last.departs);
        self.nics[nic].bytes += len;
        self.at(departs, Event::Depart(id));
    }

    /// The NIC takes the bytes and sends them.
    pub(super) fn depart(&mut self, id: Id<Operation>) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.departed = true;
        let len = memory::bits(operation.local.len);
        if operation.kind != Kind::Read && matches!(operation.source, Source::Memory) {
            let mut bytes = vec![0; len];
            let (address, endpoint) = (operation.local.place(), operation.initiator);
            if memory::read(address, &mut bytes) {
                operation.source = Source::Taken(bytes);
            } else {
                operation.result = Err(Errno(sys::FI_EFAULT));
                self.broken(Rule::FreedEarly, || {
                    format!("{len} bytes at {address:#x} are gone before endpoint {endpoint} has sent them")
                });
            }
        }
        let Some(operation) = self.operations.get(&id) else { return };
        let (len, delay) = (operation.local.len, operation.delay);
        let nics = self.nics_of(operation);
        let lands = if self.settings.is_virtual {
            self.flight_time(nics, len)
        } else {
            self.clock + self.random.up_to(self.settings.profile.reorder)
        };
        let lands = self.in_order(id, lands + delay, |last| &mut last.lands);
        self.at(lands, Event::Land(id));
    }

    /// The time at which an operation departs or lands: not before the earlier operations that its endpoint's orders keep it behind.
    fn in_order(
        &mut self,
        id: Id<Operation>,
        time: u64,
        of: impl FnOnce(&mut LastTimes) -> &mut [u64; Kind::ALL.len()],
    ) -> u64 {
        let Some(operation) = self.operations.get(&id) else { return time };
        let Operation { initiator: from, target: to, kind, .. } = *operation;
        let orders = self.endpoints.get(from).map_or(0, |endpoint| endpoint.orders);
        if orders == 0 {
            return time;
        }
        let last = of(self.last_times.entry(Stream { from, to }).or_default());
        let behind = Kind::ALL.iter().zip(*last);
        let behind = behind.filter(|(earlier, _)| orders & kind.after(**earlier) != 0);
        let time = behind.map(|(_, last)| last).fold(time, u64::max);
        let own = &mut last[kind as usize];
        *own = time.max(*own);
        time
    }

    fn delay_of(&mut self, number: u64) -> u64 {
        let delay = self.faults.iter().find_map(|fault| match fault {
            Fault::Delay(which, by) if *which == number => Some(*by),
            _ => None,
        });
        if delay.is_some() {
            self.counters.count("faults.delay");
        }
        delay.unwrap_or(0)
    }

    /// When bytes that depart now will have landed, by the bandwidth of both NICs and the latency.
    fn flight_time(&mut self, nics: [Option<usize>; 2], len: u64) -> u64 {
        let time_on = |engine: &Self, nic: usize| {
            len.saturating_mul(8000) / Settings::of_nic(&engine.settings.bandwidth_mbps, nic)
        };
        let [from, to] = nics;
        let sent = self.clock + from.map_or(0, |nic| time_on(self, nic));
        let latency = from.map_or(0, |nic| Settings::of_nic(&self.settings.latency_ns, nic));
        let mut lands = sent + latency;
        if let Some(nic) = to {
            let begins = self.nics[nic].receiver_free.max(self.clock + latency);
            lands = lands.max(begins + time_on(self, nic));
            self.nics[nic].receiver_free = lands;
        }
        lands
    }

    /// The initiator learns that the operation has ended.
    pub(super) fn acknowledge(&mut self, id: Id<Operation>) {
        let Some(mut operation) = self.operations.remove(&id) else { return };
        let endpoint = operation.initiator;
        if operation.fails_late {
            operation.result = Err(Errno(sys::FI_EIO));
        }
        if operation.kind == Kind::Read && operation.result.is_ok() {
            self.finish_read(&mut operation);
        }
        if operation.delivery
            && let Some(held) = operation.held
        {
            self.show_arrived(held);
        }
        self.check_print(&operation);
        let Some(state) = self.endpoints.get_mut(endpoint) else { return };
        state.outstanding = state.outstanding.saturating_sub(1);
        let queue = state.transmit_queue;
        if operation.reported {
            if operation.result.is_err() {
                self.counters.count("lost");
            }
            return;
        }
        if !operation.silent {
            self.give_context_back(operation.context);
        }
        let mut entry = operation.entry();
        entry.region = operation.region;
        if let Err(errno) = operation.result {
            self.counters.count("errors");
            entry.error = Some((errno, 0));
        } else if operation.signalled {
            self.counters.count("completions");
        } else {
            self.end_use(operation.region);
            return;
        }
        self.write_entry(queue, entry);
    }

    fn finish_read(&mut self, operation: &mut Operation) {
        let Source::Taken(bytes) = &operation.source else { return };
        let (address, len, endpoint) = (operation.local.place(), bytes.len(), operation.initiator);
        self.show_over(address, len as u64);
        if !memory::write(address, bytes) {
            operation.result = Err(Errno(sys::FI_EFAULT));
            self.broken(Rule::FreedEarly, || {
                format!("{len} bytes at {address:#x} are gone before endpoint {endpoint} has read into them")
            });
        }
        // A read flushes the earlier writes by the same NIC to the memory that it reads.
        if let [Some(reader), Some(read)] = self.nics_of(operation)
            && reader == read
        {
            self.show_by_read(reader, operation.read_device, operation.read_after);
        }
    }

    /// Reports a buffer that changed before its operation completed.
    fn check_print(&mut self, operation: &Operation) {
        let Some(print) = operation.print.filter(|_| !operation.reported) else { return };
        let (address, len) = (operation.local.place(), operation.local.len);
        if memory::print(address, memory::bits(len)) != Some(print) {
            self.broken(Rule::FreedEarly, || {
                format!(
                    "{len} bytes at {address:#x} were freed or changed before endpoint {} had sent them",
                    operation.initiator
                )
            });
        }
    }

    /// Fails every operation from or to a NIC that died.
    pub(super) fn fail_operations_of(&mut self, nic: usize) {
        let ids: Vec<_> = self.operations.keys().copied().collect();
        for id in ids {
            let Some(operation) = self.operations.get(&id) else { continue };
            let [here, there] = self.nics_of(operation).map(|end| end == Some(nic));
            if here || there {
                self.fail(id, if here { sys::FI_ENETDOWN } else { sys::FI_EHOSTUNREACH });
            }
        }
        self.unpark(nic);
    }

    /// Schedules again what has waited for a stalled NIC.
    pub(super) fn unpark(&mut self, nic: usize) {
        let Some(nic) = self.nics.get_mut(nic) else { return };
        for event in std::mem::take(&mut nic.parked) {
            self.at(self.clock, event);
        }
    }

    /// Ends an operation with an error now, whatever its state.
    pub(super) fn fail(&mut self, id: Id<Operation>, errno: c_int) {
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.result = Err(Errno(errno));
            self.acknowledge(id);
        }
    }

    /// Drops the operations that a closed endpoint had in flight, without a completion. Bytes that it has sent are in the network, and arrive
    /// unless their target closes, too; the answer to a read is dropped.
    pub(super) fn abandon_operations_of(&mut self, endpoint: Id<Endpoint>) {
        let is_other = |end: Id<Endpoint>| end != endpoint && self.is_open(end);
        let is_over = |one: &Operation| match one.initiator == endpoint {
            true => !(one.departed && one.kind != Kind::Read && is_other(one.target)),
            false => one.target == endpoint && !self.is_open(one.initiator),
        };
        let ids: Vec<_> = self
            .operations
            .iter()
            .filter(|(_, operation)| is_over(operation))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(operation) = self.operations.remove(&id) {
                self.counters.count("abandoned");
                self.contexts.remove(&operation.context);
                self.end_use(operation.region);
            }
        }
        // An operation that still arrives has a copy of its bytes: the user may reuse memory and context.
        let mut regions = Vec::new();
        for operation in self.operations.values_mut().filter(|one| one.initiator == endpoint) {
            operation.print = None;
            regions.extend(operation.region.take());
            if !operation.reported {
                self.contexts.remove(&operation.context);
            }
        }
        regions.into_iter().for_each(|region| self.end_use(Some(region)));
    }
}
