//! What happens at the target: keys are looked up, bytes land, messages find their receive, arrivals are reported.

use libfabric_sys as sys;

use super::flight::{Event, Message};
use super::operation::{Fate, Kind, Source};
use super::post::Receive;
use super::{Endpoint, Engine, Entry, Errno, Id, Operation, Outcome, Region};
use crate::ledger::Rule;
use crate::memory;
use crate::profile::{ArrivalContext, Progress};
use crate::settings::Settings;

impl Engine {
    /// An operation has reached the target's NIC. If it needs the target's progress, it waits for the target's next poll.
    pub(super) fn come_in(&mut self, id: Id<Operation>) {
        let Some(operation) = self.operations.get(&id) else { return };
        let by_poll =
            operation.kind == Kind::Send || self.settings.profile.progress == Progress::Software;
        match self.endpoints.get_mut(operation.target) {
            Some(target) if by_poll => target.inbox.push_back(id),
            _ => self.land(id),
        }
    }

    /// A poll of the target processes what has reached it, unless its NIC is stalled.
    pub(super) fn empty_inbox(&mut self, endpoint: Id<Endpoint>) {
        let nic = self.endpoints.get(endpoint).and_then(|endpoint| self.nics.get(endpoint.nic));
        if nic.is_some_and(|nic| nic.stalled) {
            return;
        }
        while let Some(id) = self.endpoints.get_mut(endpoint).and_then(|one| one.inbox.pop_front())
        {
            self.land(id);
        }
    }

    /// Carries the operation out at the target, and sends the acknowledgement.
    fn land(&mut self, id: Id<Operation>) {
        let Some(mut operation) = self.operations.remove(&id) else { return };
        if operation.result.is_ok() {
            operation.result = match operation.kind {
                _ if !self.is_open(operation.target) => Err(Errno(sys::FI_EHOSTUNREACH)),
                _ if self.is_dead(operation.target) => Err(Errno(sys::FI_EHOSTUNREACH)),
                _ if self.is_dead(operation.initiator) => Err(Errno(sys::FI_ENETDOWN)),
                _ if operation.vanishes => Ok(()),
                Kind::Write => self.land_write(&mut operation),
                Kind::Read => self.land_read(&mut operation),
                Kind::Send => {
                    match operation.fate {
                        Fate::Lost => operation.source = Source::Memory,
                        Fate::Doubled(later) => self.double(&operation, later),
                        Fate::Arrives => {}
                    }
                    self.land_message(&mut operation);
                    Ok(())
                }
            };
        }
        let back = if self.settings.is_virtual {
            self.endpoints
                .get(operation.target)
                .map_or(0, |target| Settings::of_nic(&self.settings.latency_ns, target.nic))
        } else {
            self.random.up_to(self.settings.profile.reorder)
        };
        self.operations.insert(id, operation);
        self.at(self.clock + back, Event::Acknowledge(id));
    }

    fn is_dead(&self, endpoint: Id<Endpoint>) -> bool {
        let nic = self.endpoints.get(endpoint).and_then(|endpoint| self.nics.get(endpoint.nic));
        nic.is_some_and(|nic| nic.dead)
    }

    fn land_write(&mut self, operation: &mut Operation) -> Outcome {
        let len = operation.local.len;
        let (region, address) = self.find_target(operation, sys::FI_REMOTE_WRITE)?;
        if let Source::Taken(bytes) = &operation.source
            && !bytes.is_empty()
        {
            let (target, line) = (operation.target, operation.line);
            operation.held = self.write_or_hold(target, region, address, bytes, line)?;
        }
        self.counters.add("bytes.written", len);
        if let Some(immediate) = operation.immediate {
            let context = match self.settings.profile.arrival_context {
                ArrivalContext::Null => 0,
                ArrivalContext::Region => self.region(region)?.context,
                ArrivalContext::Misleading => self.misleading_context(operation.target),
            };
            let true_lengths = self.settings.profile.true_lengths;
            let kind = if true_lengths { sys::FI_RMA } else { 0 };
            let flags = kind | sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA;
            let mut entry = Entry::new(operation.target, context, flags);
            entry.immediate = immediate;
            entry.source = Some(operation.initiator);
            entry.held = operation.held;
            if true_lengths {
                entry.len = len;
                entry.buffer = address;
            }
            self.counters.count("arrivals");
            let target = self.endpoint_mut(operation.target)?;
            target.arrivals += 1;
            let (arrivals, queue) = (target.arrivals, target.receive_queue);
            self.write_entry(queue, entry);
            let most = self.settings.profile.arrivals;
            if most > 0 && arrivals > most {
                let target = operation.target;
                self.broken(Rule::Overrun, || {
                    format!("endpoint {target} keeps {most} arrivals between two polls, and has {arrivals}")
                });
            }
        }
        Ok(())
    }

    fn land_read(&mut self, operation: &mut Operation) -> Outcome {
        let len = operation.local.len;
        let (region, address) = self.find_target(operation, sys::FI_REMOTE_READ)?;
        // The region contains these bytes, so memory has room for a copy.
        let mut bytes = vec![0; memory::bits(len)];
        operation.read_after = Id::of(self.last_held);
        if len > 0 {
            let Region { device, shift, .. } = *self.region(region)?;
            operation.read_device = device;
            // A NIC reads what it wrote itself, visible or not.
            self.show_over(address, len);
            if !memory::read(address.wrapping_add(shift), &mut bytes) {
                return self.refuse(Rule::FreedEarly, sys::FI_EIO, || {
                    format!("{len} bytes at {address:#x} are gone while region {region} is open")
                });
            }
            if let Ok(nic) = self.endpoint(operation.target).map(|target| target.nic) {
                self.overlay(nic, address, &mut bytes);
            }
        }
        self.counters.add("bytes.read", len);
        operation.source = Source::Taken(bytes);
        Ok(())
    }

    /// Finds the region of an operation's key at its target, and the address of the bytes in memory. fi_rma(3) exempts no length: also
    /// without bytes tcp looks the key up (libfabric prov/tcp/src/xnet_progress.c, xnet_op_write).
    fn find_target(&mut self, operation: &Operation, access: u64) -> Outcome<(Id<Region>, u64)> {
        let Operation { initiator, target, remote, .. } = *operation;
        let len = operation.local.len;
        let Endpoint { domain, accepts, .. } = *self.endpoint(target)?;
        let modes = self.domain(domain)?.modes();
        let found = self.keys.get(&(domain, remote.key)).copied();
        let said = |why: &str| {
            format!(
                "endpoint {initiator} names {len} bytes at {:#x} of endpoint {target} by key {:#x}: {why}",
                remote.address, remote.key
            )
        };
        let region = found.and_then(|id| self.regions.get(id).map(|region| (id, region.clone())));
        let Some((id, region)) = region else {
            let (rule, why) = if remote.key == sys::FI_KEY_NOTAVAIL {
                (Rule::NotEnabled, "that is FI_KEY_NOTAVAIL")
            } else if self.retired_keys.contains(&(domain, remote.key)) {
                (Rule::Closed, "its region is closed")
            } else if self.keys.keys().any(|(_, key)| *key == remote.key) {
                (Rule::WrongKey, "it is another domain's")
            } else {
                (Rule::Unknown, "no region ever had it")
            };
            return self.refuse(rule, sys::FI_EIO, || said(why));
        };
        let offset_base = if modes & sys::FI_MR_VIRT_ADDR != 0 { 0 } else { region.base };
        let address = offset_base.checked_add(remote.address);
        let broken = if region.endpoint.is_some_and(|endpoint| endpoint != target) {
            Some((Rule::WrongKey, "it is bound to another endpoint", sys::FI_EIO))
        } else if !region.enabled {
            Some((Rule::NotEnabled, "its region is not enabled", sys::FI_EIO))
        } else if !address.is_some_and(|address| region.holds(address, len)) {
            Some((Rule::Bounds, "they lie outside of its region", sys::FI_EIO))
        } else if region.access & access == 0 {
            Some((Rule::Rights, "its region was not registered for this", sys::FI_EACCES))
        } else if (access | sys::FI_RMA) & !accepts != 0 {
            Some((Rule::Rights, "the endpoint was not opened for this", sys::FI_EACCES))
        } else {
            None
        };
        match (broken, address) {
            (Some((rule, why, errno)), _) => self.refuse(rule, errno, || said(why)),
            (None, address) => Ok((id, address.unwrap_or(0))),
        }
    }

    fn land_message(&mut self, operation: &mut Operation) {
        let source = std::mem::replace(&mut operation.source, Source::Memory);
        let Source::Taken(bytes) = source else { return };
        let (from, immediate, tag) = (operation.initiator, operation.immediate, operation.tag);
        let message = Message { from, bytes, immediate, tag };
        let Some(target) = self.endpoints.get_mut(operation.target) else { return };
        let waits = target.receives.iter().position(|receive| receive.takes(tag));
        match waits.and_then(|place| target.receives.remove(place)) {
            Some(receive) if operation.breaks_off => {
                self.end_without_message(operation.target, &receive);
            }
            None if operation.breaks_off => {}
            Some(receive) => self.fill(operation.target, receive, message),
            None => {
                target.unexpected.push_back(message);
                self.counters.count(if tag.is_some() { "unexpected.tagged" } else { "unexpected" });
            }
        }
    }

    /// Matches a message with a receive. A message that is too long is truncated, and the receive ends with an error.
    pub(super) fn fill(&mut self, endpoint: Id<Endpoint>, receive: Receive, message: Message) {
        let room = memory::bits(receive.local.len);
        let len = message.bytes.len().min(room);
        let address = receive.local.place();
        let written = memory::write(address, &message.bytes[..len]);
        if !written {
            self.broken(Rule::FreedEarly, || {
                format!("{len} bytes at {address:#x} are gone before endpoint {endpoint} has received into them")
            });
        }
        self.give_context_back(receive.context);
        let data = if message.immediate.is_some() { sys::FI_REMOTE_CQ_DATA } else { 0 };
        let flags = receive.class() | sys::FI_RECV | data;
        let mut entry = Entry::new(endpoint, receive.context, flags);
        entry.len = len as u64;
        entry.buffer = address;
        entry.immediate = message.immediate.unwrap_or(0);
        entry.tag = message.tag.unwrap_or(0);
        entry.source = Some(message.from);
        entry.region = receive.region;
        if !written {
            entry.error = Some((Errno(sys::FI_EFAULT), 0));
        } else if message.bytes.len() > room {
            self.counters.count("truncated");
            entry.error = Some((Errno(sys::FI_ETRUNC), (message.bytes.len() - room) as u64));
        }
        self.counters.count("received");
        if entry.error.is_none() && !receive.signalled {
            self.end_use(receive.region);
            return;
        }
        let queue = self.endpoints.get(endpoint).and_then(|endpoint| endpoint.receive_queue);
        self.write_entry(queue, entry);
    }

    /// The context of another operation in flight on the same queue.
    fn misleading_context(&self, endpoint: Id<Endpoint>) -> u64 {
        let queue = self.endpoints.get(endpoint).and_then(|endpoint| endpoint.receive_queue);
        let shares = |one: Id<Endpoint>| {
            self.endpoints.get(one).is_some_and(|endpoint| endpoint.transmit_queue == queue)
        };
        let other = self.operations.values().find(|one| !one.silent && shares(one.initiator));
        let receive =
            || self.endpoints.get(endpoint).and_then(|endpoint| endpoint.receives.front());
        other
            .map(|operation| operation.context)
            .or_else(|| receive().map(|receive| receive.context))
            .unwrap_or(0)
    }
}
