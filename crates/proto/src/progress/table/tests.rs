//! The table on its own, with connections that only report pending frames.

use std::time::Duration;

use super::*;
use crate::connection::{ChannelEnd, Submit, Which};
use crate::frame::Frame;
use crate::message::MessageId;

#[derive(Debug)]
struct Quiet {
    urgency: Urgency,
    waits: bool,
}

impl Connection for Quiet {
    type Message = ();
    type Place = ();
    type Action = ();
    type Event = ();
    type Fault = ();
    type Error = ();

    fn standing(&self, _: &Account, _: Moment) -> Standing {
        Standing { urgency: self.urgency, waits: self.waits, ..Standing::default() }
    }

    fn next_frame(&mut self, _: Which, _: usize, _: &mut Account, _: Moment) -> Option<Frame> {
        None
    }

    fn submit(&mut self, (): &(), _: usize, _: &mut Account, _: Moment) -> Result<Submit, ()> {
        Ok(Submit::NotNow)
    }

    fn received(&mut self, _: &Frame, _: &mut Account, _: Moment) -> Result<Option<()>, ()> {
        Ok(None)
    }

    fn copied(&mut self, (): (), _: &mut Account, _: Moment) {}

    fn inline_left(&mut self, _: MessageId) {}

    fn next_action(&mut self, _: &mut Account, _: Moment) -> Option<()> {
        None
    }

    fn acted(&mut self, (): &(), _: bool, _: &mut Account, _: Moment) {}

    fn happened(&mut self, (): (), _: &mut Account, _: Moment) -> Result<(), ()> {
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        true
    }

    fn ended(&mut self, _: ChannelEnd) {}

    fn peer(&self) -> Option<Name> {
        None
    }
}

const CHANNEL: ChannelId = ChannelId(0);
const NOW: Moment = Moment::from_nanos(1000);

fn table(urgency: &[Urgency]) -> Table<Quiet> {
    let mut table = Table::new(urgency.len());
    for urgency in urgency {
        let name = table.vacant().unwrap();
        table.put(name.slot, CHANNEL, Quiet { urgency: *urgency, waits: true });
    }
    table
}

fn slots(table: &Table<Quiet>, pending: &PendingList) -> Vec<usize> {
    let mut listed = Vec::new();
    let mut at = pending.first();
    while let Some(slot) = at {
        listed.push(slot.index());
        at = table.next_pending(slot);
    }
    listed.sort_unstable();
    listed
}

#[test]
fn a_frame_for_an_earlier_generation_finds_no_connection() {
    let mut table = table(&[Urgency::Nothing]);
    let mut pending = PendingList::default();
    let slot = Slot::new(0).unwrap();
    for round in 0..Generation::COUNT {
        let name = table.name(slot);
        assert_eq!(name.generation.get(), round);
        assert!(table.named(name).is_some());
        for other in 1..Generation::COUNT {
            let generation = Generation::new(round + other);
            assert!(table.named(Name { slot, generation }).is_none());
        }
        assert!(table.take(slot, &mut pending).is_some());
        assert!(table.named(name).is_none());
        let next = table.vacant().unwrap();
        assert_eq!(next, Name { slot, generation: name.generation.next() });
        table.put(slot, CHANNEL, Quiet { urgency: Urgency::Nothing, waits: false });
    }
}

#[test]
fn a_slot_that_is_still_in_a_list_is_not_reused() {
    let mut table = table(&[Urgency::Urgent, Urgency::Nothing]);
    let mut pending = PendingList::default();
    let account = Account::new(1);
    let slot = Slot::new(0).unwrap();
    table.touch(slot, &mut pending, &account, NOW);
    assert!(table.take(slot, &mut pending).is_some());
    assert_eq!(table.vacant(), None);
    table.refresh(&mut pending, &account, NOW);
    assert!(pending.is_empty());
    assert_eq!(table.vacant().map(|name| name.slot), Some(slot));
    let slot = Slot::new(1).unwrap();
    table.act_later(slot);
    assert!(table.take(slot, &mut pending).is_some());
    assert_eq!(table.vacant().map(|name| name.slot.index()), Some(0));
    assert_eq!(table.next_acting(), Some(slot));
    assert_eq!(table.acting(), 0);
}

/// Each connection of a channel is found again by a search.
#[test]
fn the_slots_of_a_channel_stay_in_ascending_order_as_connections_come_and_go() {
    let mut table = table(&[Urgency::Nothing; 6]);
    let mut pending = PendingList::default();
    let quiet = || Quiet { urgency: Urgency::Nothing, waits: false };
    let of = |table: &Table<Quiet>, channel| -> Vec<usize> {
        table.slots_of(channel).iter().map(|slot| slot.index()).collect()
    };
    for taken in [4, 1, 2, 0] {
        assert!(table.take(Slot::new(taken).unwrap(), &mut pending).is_some());
    }
    assert_eq!(of(&table, CHANNEL), [3, 5]);
    for (channel, slot) in [(CHANNEL, 0), (ChannelId(1), 1), (CHANNEL, 2), (ChannelId(1), 4)] {
        assert_eq!(table.vacant().map(|name| name.slot.index()), Some(slot));
        table.put(Slot::new(slot).unwrap(), channel, quiet());
    }
    assert_eq!((of(&table, CHANNEL), of(&table, ChannelId(1))), (vec![0, 2, 3, 5], vec![1, 4]));
    assert_eq!(table.next_of(CHANNEL, 1).map(Slot::index), Some(2));
    assert!(table.take(Slot::new(3).unwrap(), &mut pending).is_some());
    assert_eq!(of(&table, CHANNEL), [0, 2, 5]);
}

#[test]
fn the_list_is_due_when_its_most_urgent_connection_is() {
    let later = Urgency::Lazy { until: NOW.plus(Duration::from_micros(5)), joins: false };
    let latest = Urgency::Lazy { until: NOW.plus(Duration::from_micros(9)), joins: true };
    for (urgency, joins, due, due_later, waited) in [
        (vec![Urgency::Nothing], false, false, false, false),
        (vec![later, later], false, false, true, false),
        (vec![latest, later], true, false, true, false),
        (vec![later, Urgency::Nothing, Urgency::Urgent], true, true, true, false),
        (vec![Urgency::Waited, later], true, true, true, true),
    ] {
        let mut table = table(&urgency);
        let (mut pending, account) = (PendingList::default(), Account::new(1));
        for _ in 0..2 {
            for index in 0..urgency.len() {
                table.touch(Slot::new(index).unwrap(), &mut pending, &account, NOW);
            }
            let listed: Vec<usize> =
                (0..urgency.len()).filter(|index| urgency[*index] != Urgency::Nothing).collect();
            assert_eq!(slots(&table, &pending), listed, "each is listed once");
            assert_eq!((pending.joins(NOW), pending.is_due(NOW)), (joins, due));
            assert_eq!(pending.joins(NOW.plus(Duration::from_micros(5))), joins || due_later);
            assert_eq!(pending.is_due(NOW.plus(Duration::from_micros(5))), due_later);
            assert_eq!(
                (pending.is_waited_for(), pending.waiting as usize),
                (waited, urgency.len())
            );
            table.refresh(&mut pending, &account, NOW);
            assert_eq!((pending.joins(NOW), pending.is_due(NOW)), (joins, due));
            assert_eq!(slots(&table, &pending), listed);
        }
        for index in 0..urgency.len() {
            let slot = Slot::new(index).unwrap();
            let tenant = table.tenant(slot).unwrap();
            (tenant.connection.urgency, tenant.connection.waits) = (Urgency::Nothing, false);
            table.touch(slot, &mut pending, &account, NOW);
        }
        table.refresh(&mut pending, &account, NOW);
        assert!(pending.is_empty() && !pending.joins(Moment::from_nanos(u64::MAX)));
        assert_eq!(pending.waiting, 0);
    }
}
