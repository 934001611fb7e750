//! The connections of an endpoint by slot, and per channel a list of those with pending frames.

use std::collections::VecDeque;

use super::super::account::Account;
use super::super::connection::{Connection, Standing, Urgency};
use super::super::ids::{Generation, Moment, Name, PacketNumber, Slot};
use super::ChannelId;

#[derive(Debug)]
pub(super) struct Tenant<C> {
    pub(super) connection: C,
    pub(super) channel: ChannelId,
    waits: bool,
    awaits_parts: bool,
    /// The packet with the connection's newest frame.
    pub(super) newest: Option<PacketNumber>,
}

#[derive(Debug)]
struct Entry<C> {
    generation: Generation,
    tenant: Option<Tenant<C>>,
    /// The next connection in its channel's list of those with pending frames.
    next: Option<Slot>,
    linked: bool,
    /// One of the connection's actions was refused, and it is in the list `acting`.
    acting: bool,
}

/// The list of one channel's connections with pending frames, and when the first of these must leave.
#[derive(Debug, Default)]
pub(super) struct PendingList {
    first: Option<Slot>,
    /// The urgency of all their frames together.
    urgency: Urgency,
    /// How many connections wait for the peer.
    pub(super) waiting: u32,
}

impl PendingList {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn first(&self) -> Option<Slot> {
        self.first
    }

    /// Whether a packet must leave for the pending frames. May also be true for frames that have left: see [`Table::refresh`].
    #[inline]
    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.urgency.is_due(now)
    }

    /// Whether the peer waits for a frame, which must be posted before the last request is reported.
    pub(super) fn is_waited_for(&self) -> bool {
        self.urgency == Urgency::Waited
    }

    /// When a packet must leave for lazy frames, or `or` if that is earlier.
    #[inline]
    pub(super) fn until(&self, or: Moment) -> Moment {
        if let Urgency::Lazy { until, .. } = self.urgency { until.min(or) } else { or }
    }

    /// Whether a packet that leaves now takes the pending frames.
    #[inline]
    pub(super) fn joins(&self, now: Moment) -> bool {
        matches!(self.urgency, Urgency::Lazy { joins: true, .. }) || self.is_due(now)
    }
}

#[derive(Debug)]
pub(super) struct Table<C> {
    /// By slot. Grows to the most slots that were ever in use at the same time.
    entries: Vec<Entry<C>>,
    /// The slots of each channel's connections, in ascending order.
    slots: Vec<Vec<Slot>>,
    /// How many entries have a connection.
    taken: usize,
    most: usize,
    /// Connections for which something may arrive on a data rail.
    awaiting_parts: u32,
    acting: VecDeque<Slot>,
    /// For tests: how often an entry was accessed.
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

impl<C: Connection> Table<C> {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            entries: Vec::new(),
            slots: Vec::new(),
            taken: 0,
            most: slots.min(Slot::COUNT),
            awaiting_parts: 0,
            acting: VecDeque::new(),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }

    #[inline]
    fn entry(&self, slot: Slot) -> Option<&Entry<C>> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        self.entries.get(slot.index())
    }

    #[inline]
    fn entry_mut(&mut self, slot: Slot) -> Option<&mut Entry<C>> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        self.entries.get_mut(slot.index())
    }

    /// How often an entry was accessed since the last call.
    #[cfg(test)]
    pub(super) fn take_looks(&self) -> usize {
        self.looks.take()
    }

    /// The name of a free slot, which the next connection gets.
    pub(super) fn vacant(&self) -> Option<Name> {
        // A slot that is still in a list is not free.
        let free = |entry: &Entry<C>| entry.tenant.is_none() && !entry.linked && !entry.acting;
        // No search while each entry has a connection: connect and accept call this again and again on a full endpoint.
        let may_be_free = self.taken < self.entries.len();
        match may_be_free.then(|| self.entries.iter().position(free)).flatten() {
            Some(index) => {
                Some(Name { slot: Slot::new(index)?, generation: self.entries[index].generation })
            }
            None if self.entries.len() < self.most => {
                let slot = Slot::new(self.entries.len())?;
                Some(Name { slot, generation: Generation::default() })
            }
            None => None,
        }
    }

    /// Puts a connection into a slot that [`vacant`](Self::vacant) has returned.
    pub(super) fn put(&mut self, slot: Slot, channel: ChannelId, connection: C) {
        if slot.index() == self.entries.len() {
            self.entries.push(Entry {
                generation: Generation::default(),
                tenant: None,
                next: None,
                linked: false,
                acting: false,
            });
            // Reserved now, so that a refused action never allocates.
            self.acting.reserve(self.entries.len() - self.acting.len());
        }
        let index = channel.0 as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Vec::new);
        }
        let slots = &mut self.slots[index];
        slots.insert(slots.partition_point(|other| *other < slot), slot);
        self.taken += 1;
        self.entries[slot.index()].tenant =
            Some(Tenant { connection, channel, waits: false, awaits_parts: false, newest: None });
    }

    /// Frees a slot, for the next generation.
    pub(super) fn take(&mut self, slot: Slot, pending: &mut PendingList) -> Option<C> {
        let entry = self.entry_mut(slot)?;
        let tenant = entry.tenant.take()?;
        entry.generation = entry.generation.next();
        self.taken -= 1;
        let slots = &mut self.slots[tenant.channel.0 as usize];
        if let Ok(at) = slots.binary_search(&slot) {
            slots.remove(at);
        }
        pending.waiting -= u32::from(tenant.waits);
        self.awaiting_parts -= u32::from(tenant.awaits_parts);
        Some(tenant.connection)
    }

    pub(super) fn tenant(&mut self, slot: Slot) -> Option<&mut Tenant<C>> {
        self.entry_mut(slot)?.tenant.as_mut()
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&C> {
        Some(&self.entry(slot)?.tenant.as_ref()?.connection)
    }

    /// Whether something may arrive on a data rail.
    pub(super) fn awaits_parts(&self) -> bool {
        self.awaiting_parts > 0
    }

    /// The channel of the connection in a slot.
    #[inline]
    pub(super) fn channel_of(&self, slot: Slot) -> Option<ChannelId> {
        Some(self.entries.get(slot.index())?.tenant.as_ref()?.channel)
    }

    /// The connection of this name. None if the name is of an earlier generation.
    #[inline]
    pub(super) fn named(&mut self, name: Name) -> Option<&mut Tenant<C>> {
        let entry = self.entries.get_mut(name.slot.index())?;
        if entry.generation != name.generation {
            return None;
        }
        entry.tenant.as_mut()
    }

    /// The connection that an immediate names, if there is one.
    #[inline]
    pub(super) fn name_of(&self, immediate: u16) -> Option<Name> {
        let slot = Slot::new(usize::from(immediate) % Slot::COUNT)?;
        let entry = self.entries.get(slot.index())?;
        let name = Name { slot, generation: entry.generation };
        (entry.tenant.is_some() && name.in_immediate() == immediate).then_some(name)
    }

    pub(super) fn name(&self, slot: Slot) -> Name {
        let generation = self.entries.get(slot.index()).map(|entry| entry.generation);
        Name { slot, generation: generation.unwrap_or_default() }
    }

    /// The slots of a channel's connections, in ascending order.
    pub(super) fn slots_of(&self, channel: ChannelId) -> &[Slot] {
        self.slots.get(channel.0 as usize).map_or(&[], |slots| slots)
    }

    /// The first connection of a channel from this index on.
    pub(super) fn next_of(&self, channel: ChannelId, from: usize) -> Option<Slot> {
        let slots = self.slots_of(channel);
        slots.get(slots.partition_point(|slot| slot.index() < from)).copied()
    }

    /// Whether no connection of a channel has a write in flight or pending.
    pub(super) fn is_quiet(&self, channel: ChannelId) -> bool {
        self.connections_of(channel).all(C::is_quiet)
    }

    /// Whether all connections of a channel are closed: those that are left only wait for late writes.
    pub(super) fn is_closed(&self, channel: ChannelId) -> bool {
        self.connections_of(channel).all(C::is_closed)
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = &C> {
        let tenants = self.entries.iter().filter_map(|entry| entry.tenant.as_ref());
        tenants.map(|tenant| &tenant.connection)
    }

    pub(super) fn connections_of(&self, channel: ChannelId) -> impl Iterator<Item = &C> {
        self.slots_of(channel).iter().filter_map(|slot| self.get(*slot))
    }

    /// To be called after each call of a connection: updates whether it has pending frames and whether it waits. Returns
    /// whether it may have actions.
    #[inline]
    pub(super) fn touch(
        &mut self,
        slot: Slot,
        pending: &mut PendingList,
        account: &Account,
        now: Moment,
    ) -> bool {
        let Some(entry) = self.entries.get_mut(slot.index()) else { return false };
        let Some(tenant) = &mut entry.tenant else { return false };
        let Standing { urgency, waits, awaits_parts: awaits, acts } =
            tenant.connection.standing(account, now);
        if waits != tenant.waits {
            tenant.waits = waits;
            pending.waiting = if waits { pending.waiting + 1 } else { pending.waiting - 1 };
        }
        if awaits != tenant.awaits_parts {
            tenant.awaits_parts = awaits;
            self.awaiting_parts =
                if awaits { self.awaiting_parts + 1 } else { self.awaiting_parts - 1 };
        }
        if urgency == Urgency::Nothing {
            return acts;
        }
        pending.urgency = pending.urgency.and(urgency);
        if !entry.linked {
            entry.linked = true;
            entry.next = pending.first.replace(slot);
        }
        acts
    }

    pub(super) fn next_pending(&self, slot: Slot) -> Option<Slot> {
        self.entries.get(slot.index())?.next
    }

    /// Checks all listed connections again, and removes those without pending frames.
    pub(super) fn refresh(&mut self, pending: &mut PendingList, account: &Account, now: Moment) {
        let mut at = pending.first.take();
        pending.urgency = Urgency::Nothing;
        while let Some(slot) = at {
            let entry = &mut self.entries[slot.index()];
            at = entry.next.take();
            entry.linked = false;
            // A frame that has left may be followed by an action.
            if self.touch(slot, pending, account, now) {
                self.act_later(slot);
            }
        }
    }

    /// An action of this connection was refused: the next poll tries again.
    pub(super) fn act_later(&mut self, slot: Slot) {
        let Some(entry) = self.entries.get_mut(slot.index()) else { return };
        if !entry.acting {
            entry.acting = true;
            self.acting.push_back(slot);
        }
    }

    /// How many connections have actions to try again.
    pub(super) fn acting(&self) -> usize {
        self.acting.len()
    }

    pub(super) fn next_acting(&mut self) -> Option<Slot> {
        let slot = self.acting.pop_front()?;
        self.entries[slot.index()].acting = false;
        Some(slot)
    }
}

#[cfg(test)]
mod tests;
