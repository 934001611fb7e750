//! The table on its own, with connections that only report pending frames.

use std::time::Duration;

use super::*;
use crate::connection::{Submit, Which};
use crate::frame::Frame;
use crate::message::MessageId;

#[derive(Debug)]
struct Quiet {
    owes: Owes,
    waits: bool,
}

impl Connection for Quiet {
    type Message = ();
    type Place = ();
    type Action = ();
    type Event = ();
    type Fault = ();
    type Error = ();

    fn owes(&self, _: &Account, _: Moment) -> Owes {
        self.owes
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

    fn waits(&self) -> bool {
        self.waits
    }

    fn awaits_parts(&self) -> bool {
        false
    }

    fn ended(&mut self, _: bool, _: Moment) {}

    fn peer(&self) -> Option<Name> {
        None
    }
}

const CHANNEL: ChannelId = ChannelId(0);
const NOW: Moment = Moment::from_nanos(1000);

fn table(owes: &[Owes]) -> Table<Quiet> {
    let mut table = Table::new(owes.len());
    for owes in owes {
        let name = table.vacant().unwrap();
        table.put(name.slot, CHANNEL, Quiet { owes: *owes, waits: true });
    }
    table
}

fn slots(table: &Table<Quiet>, owing: &Owing) -> Vec<usize> {
    let mut listed = Vec::new();
    let mut at = owing.first();
    while let Some(slot) = at {
        listed.push(slot.index());
        at = table.next_owing(slot);
    }
    listed.sort_unstable();
    listed
}

#[test]
fn a_frame_for_an_earlier_generation_finds_no_connection() {
    let mut table = table(&[Owes::Nothing]);
    let mut owing = Owing::default();
    let slot = Slot::new(0).unwrap();
    for turn in 0..Generation::COUNT {
        let name = table.name(slot);
        assert_eq!(name.generation.get(), turn);
        assert!(table.named(name).is_some());
        for other in 1..Generation::COUNT {
            let generation = Generation::new(turn + other);
            assert!(table.named(Name { slot, generation }).is_none());
        }
        assert!(table.take(slot, &mut owing).is_some());
        assert!(table.named(name).is_none());
        let next = table.vacant().unwrap();
        assert_eq!(next, Name { slot, generation: name.generation.next() });
        table.put(slot, CHANNEL, Quiet { owes: Owes::Nothing, waits: false });
    }
}

#[test]
fn a_slot_that_is_still_in_a_list_is_not_reused() {
    let mut table = table(&[Owes::Urgent, Owes::Nothing]);
    let mut owing = Owing::default();
    let account = Account::new(1);
    let slot = Slot::new(0).unwrap();
    table.touch(slot, &mut owing, &account, NOW);
    assert!(table.take(slot, &mut owing).is_some());
    assert_eq!(table.vacant(), None);
    table.refresh(&mut owing, &account, NOW);
    assert!(owing.is_empty());
    assert_eq!(table.vacant().map(|name| name.slot), Some(slot));
    let slot = Slot::new(1).unwrap();
    table.act_later(slot);
    assert!(table.take(slot, &mut owing).is_some());
    assert_eq!(table.vacant().map(|name| name.slot.index()), Some(0));
    assert_eq!(table.next_acting(), Some(slot));
    assert_eq!(table.acting(), 0);
}

#[test]
fn the_list_is_due_when_its_most_urgent_connection_is() {
    let later = Owes::Lazy { until: NOW.plus(Duration::from_micros(5)) };
    let latest = Owes::Lazy { until: NOW.plus(Duration::from_micros(9)) };
    for (owes, due, due_later, waited) in [
        (vec![Owes::Nothing], false, false, false),
        (vec![latest, later], false, true, false),
        (vec![later, Owes::Nothing, Owes::Urgent], true, true, false),
        (vec![Owes::Waited, later], true, true, true),
    ] {
        let mut table = table(&owes);
        let (mut owing, account) = (Owing::default(), Account::new(1));
        for _ in 0..2 {
            for index in 0..owes.len() {
                table.touch(Slot::new(index).unwrap(), &mut owing, &account, NOW);
            }
            let listed: Vec<usize> =
                (0..owes.len()).filter(|index| owes[*index] != Owes::Nothing).collect();
            assert_eq!(slots(&table, &owing), listed, "each is listed once");
            assert_eq!(owing.is_due(NOW), due);
            assert_eq!(owing.is_due(NOW.plus(Duration::from_micros(5))), due_later);
            assert_eq!((owing.waited, owing.waiting as usize), (waited, owes.len()));
            table.refresh(&mut owing, &account, NOW);
            assert_eq!((owing.is_due(NOW), slots(&table, &owing)), (due, listed));
        }
        for index in 0..owes.len() {
            let slot = Slot::new(index).unwrap();
            let tenant = table.tenant(slot).unwrap();
            (tenant.connection.owes, tenant.connection.waits) = (Owes::Nothing, false);
            table.touch(slot, &mut owing, &account, NOW);
        }
        table.refresh(&mut owing, &account, NOW);
        assert!(owing.is_empty() && !owing.is_due(Moment::from_nanos(u64::MAX)));
        assert_eq!(owing.waiting, 0);
    }
}
