//! The parts of a channel on their own, over a wire on which every write lands at once.

use std::cell::Cell;

use super::*;
use crate::bits::low8;
use crate::bound::{CELL_AFTER_PACKETS, REFUSED_FOR_GOOD};
use crate::counts::Counts;
use crate::frame::{Frame, Inline};
use crate::ids::{Name, Nonce};
use crate::letter::{About, Body, Hello, Letter, Query, RailNumbers, Trial};
use crate::line::Line;
use crate::memory::{Lease, Words};
use crate::message::MessageId;
use crate::packet::{POISON, START_BYTES, check};
use crate::stall::ConnectionState;

impl Words {
    fn store_cell(&mut self, nonce: Nonce, acknowledged: PacketNumber) {
        self.0[ring().words()] = nonce.cell(acknowledged);
    }
}

fn clock(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

/// The same time by both clocks.
fn both(ms: u64) -> Now {
    Now { clock: clock(ms), polled: at(ms) }
}

struct Memories(Vec<Words>);

impl Shadows for Memories {
    type Shadow = Words;

    fn shadow(&mut self, id: MemoryId) -> &mut Words {
        &mut self.0[id.0 as usize]
    }
}

/// One direction: a shadow, the inbox that it writes into, and the reader's acknowledgements.
struct Direction {
    ring: Ring,
    shadow: Shadow,
    memories: Memories,
    inbox: Inbox,
    landed: Words,
    acknowledgement: Acknowledgement,
}

const FIRST: PacketNumber = PacketNumber::new(u32::MAX - 20);
const BEFORE: PacketNumber = FIRST.plus(u32::MAX);

fn lease(epoch: u32) -> Lease {
    let nonce = Nonce(0x5eed_0000_feed_5eed + 0x1_0000_0001 * u64::from(epoch));
    Lease { epoch: Epoch(epoch), nonce, rail: 0, address: 0, key: 0 }
}

fn ring() -> Ring {
    Ring::new(2 << 10).unwrap()
}

fn words() -> Words {
    Words(vec![7; Ring::LONG.words() + 8])
}

impl Direction {
    fn new() -> Self {
        Self::with(ring())
    }

    fn with(ring: Ring) -> Self {
        let mut memories = Memories(vec![words(), words()]);
        let mut landed = words();
        let mut shadow = Shadow::new(ring, FIRST);
        shadow.adopt(&mut memories, (lease(1), MemoryId(0)), BEFORE, |_| {}).unwrap();
        let inbox = Inbox::new(ring, lease(1), (MemoryId(9), &mut landed), BEFORE, BEFORE);
        let acknowledgement = Acknowledgement::new(ring, BEFORE);
        Self { ring, shadow, memories, inbox, landed, acknowledgement }
    }

    /// Sends an INLINE of `bytes` bytes in a packet of its own. False if there is no room.
    fn say(&mut self, bytes: u16) -> bool {
        let id = self.shadow.memory().unwrap();
        let memory = self.memories.shadow(id);
        let (to, line) = (Name::default(), Line::new(3));
        let inline = Inline { to, line, advertised: true, tag: 5, base: line, len: bytes };
        let sent = Sent { from: to, message: MessageId::new(1) };
        let room = self.shadow.inline_room_words();
        let fits = 3 + inline.payload_words() <= room;
        let payload = self.shadow.append_inline(memory, &inline, sent);
        assert_eq!(payload.is_some(), fits, "room for {room} words, {bytes} bytes");
        self.shadow.seal(memory)
    }

    /// Posts all packets; they land, and complete if `complete`.
    fn post(&mut self, complete: bool) -> Vec<PacketWrite> {
        let mut posted = Vec::new();
        while let Some(write) = self.shadow.next_post() {
            let (at, end) = (write.at as usize / 8, (write.at + write.bytes) as usize / 8);
            self.landed.0[at..end]
                .copy_from_slice(&self.memories.0[write.memory.0 as usize].0[at..end]);
            self.shadow.posted(Moment::default());
            posted.push(write);
        }
        for write in &posted {
            if complete {
                self.shadow.wrote(write.number, true, |_| {});
            }
        }
        posted
    }

    fn read(&mut self) {
        while let Some(mut arrived) = self.inbox.next(&self.landed) {
            while arrived.next_frame(&self.landed).unwrap().is_some() {}
            self.inbox.consume(&mut self.landed, &arrived);
            let header = arrived.header();
            self.acknowledgement.consumed(header.number, header.span(), Moment::default());
        }
    }

    /// The next packet comes into the inbox of a channel.
    fn arrives(&mut self, channel: &mut Channel) {
        assert!(self.say(8));
        self.post(true);
        let packet = self.inbox.next(&self.landed).unwrap();
        channel.consumed(&mut self.landed, &packet, both(0), |_| {});
        self.inbox.consume(&mut self.landed, &packet);
    }

    fn acknowledge(&mut self) -> usize {
        let mut left = 0;
        let consumed = self.inbox.consumed();
        self.shadow.acknowledge(consumed, |_| left += 1).unwrap();
        left
    }
}

#[test]
fn packets_start_on_a_cache_line_and_neither_wrap_nor_pass_a_quarter_of_the_ring() {
    let mut direction = Direction::new();
    let mut pads = 0;
    for round in 0..2000_u32 {
        let bytes = u16::try_from(round * 37 % 464).unwrap();
        assert!(direction.say(bytes), "{round}");
        for write in direction.post(true) {
            assert_eq!(write.at % START_BYTES, 0);
            assert!(write.bytes <= ring().packet_bytes_max());
            assert!(write.at + write.bytes <= ring().bytes());
            pads += u32::from(write.bytes == 24);
        }
        direction.read();
        direction.acknowledge();
        assert!(direction.landed.0[..ring().words()].iter().all(|word| *word == POISON));
    }
    assert!(pads > 10);
}

/// Records the word whose line is fetched.
struct Fetched(Cell<Option<usize>>);

impl ShadowMemory for Fetched {
    fn load(&self, _: usize) -> u64 {
        unreachable!("a hint reads nothing")
    }

    fn store(&mut self, _: usize, _: u64) {
        unreachable!("a hint writes nothing")
    }

    fn prefetch(&self, word: usize) {
        self.0.set(Some(word));
    }
}

#[test]
fn the_line_that_is_fetched_is_where_the_next_packet_starts() {
    let mut direction = Direction::new();
    let mut passed = 0;
    while passed < 3 {
        let fetched = Fetched(Cell::new(None));
        direction.shadow.prefetch(&fetched);
        assert!(direction.say(200));
        // A packet behind a pad starts at the next lap.
        let packet = direction.post(true).pop().unwrap();
        let word = fetched.0.get().unwrap();
        assert!(word < ring().words(), "{word}");
        if packet.at > 0 || word == 0 {
            assert_eq!(word, packet.at as usize / 8);
        }
        passed += usize::from(packet.at == 0);
        direction.read();
        direction.acknowledge();
    }
}

#[test]
fn a_cell_is_written_before_its_number_is_half_of_all_numbers_ago() {
    let mut acknowledgement = Acknowledgement::new(ring(), BEFORE);
    let (mut in_cell, mut cells) = (BEFORE, 0);
    for packets in 1..=5 * CELL_AFTER_PACKETS {
        let number = BEFORE.plus(packets);
        acknowledgement.consumed(number, 64, Moment::default());
        acknowledgement.acknowledged();
        if acknowledgement.is_due(false, Moment::default()) {
            acknowledgement.cell_posted();
            acknowledgement.cell_written();
            (in_cell, cells) = (number, cells + 1);
        }
        assert!(number.distance(in_cell) < CELL_AFTER_PACKETS, "{packets}");
    }
    assert_eq!(cells, 5);
}

/// As docs/protocol.md argues: when a writer has to wait, the write of the reader's cell is due.
#[test]
fn a_writer_and_a_reader_never_deadlock() {
    for seed in 0..400_u32 {
        let mut direction = Direction::new();
        let mut random = seed;
        for step in 0..300 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let bytes = match seed % 4 {
                0 => random >> 16,
                1 => 464,
                2 => 0,
                _ => [8, 464, 300][random as usize % 3],
            };
            let bytes = u16::try_from(bytes % 465).unwrap();
            while !direction.say(bytes) {
                direction.post(true);
                direction.read();
                let due = direction.acknowledgement.is_due(false, Moment::default());
                assert!(
                    due,
                    "seed {seed}, step {step}: the writer waits, and no acknowledgement is due"
                );
                direction.acknowledgement.acknowledged();
                direction.acknowledge();
            }
            direction.post(true);
            if random.is_multiple_of(3) {
                direction.read();
            }
        }
    }
}

#[test]
fn a_shadow_is_free_when_its_packet_is_acknowledged_and_its_write_has_ended() {
    for acknowledged_first in [false, true] {
        let mut direction = Direction::new();
        let mut count = 0;
        while direction.say(400) {
            count += 1;
        }
        let writes = direction.post(false);
        direction.read();
        for half in 0..2 {
            assert!(!direction.say(400), "only one of the two conditions");
            if acknowledged_first == (half == 0) {
                direction.acknowledge();
            } else {
                for write in &writes {
                    direction.shadow.wrote(write.number, true, |_| {});
                }
            }
        }
        assert!(direction.say(400));
        assert!(count >= 3);
    }
}

/// Acknowledgements do not matter: they may be any number of packets further.
#[test]
fn the_unfinished_write_is_that_of_the_oldest_packet_that_is_kept() {
    let mut direction = Direction::new();
    assert!(direction.say(400));
    let mut writes = direction.post(false);
    assert!(direction.say(400));
    writes.extend(direction.post(false));
    direction.read();
    assert_eq!(direction.acknowledge(), 2);
    for write in writes {
        assert_eq!(direction.shadow.writing(), Some(write.number));
        direction.shadow.wrote(write.number, true, |_| {});
    }
    assert_eq!(direction.shadow.writing(), None);
}

#[test]
fn a_message_has_left_once_when_its_write_completes_or_its_packet_is_acknowledged() {
    let mut direction = Direction::new();
    assert!(direction.say(8) && direction.say(8) && direction.say(8));
    let writes = direction.post(false);
    let mut left = 0;
    direction.shadow.wrote(writes[1].number, true, |_| left += 1);
    assert_eq!(left, 1);
    direction.shadow.wrote(writes[2].number, false, |_| left += 1);
    assert_eq!(left, 1, "a failed write is not reported");
    direction.read();
    assert_eq!(direction.acknowledge(), 2);
    direction.shadow.wrote(writes[0].number, true, |_| left += 1);
    assert_eq!(left, 1, "it was reported before");
}

#[test]
fn no_more_than_64_packets_are_unacknowledged() {
    let mut direction = Direction::with(Ring::LONG);
    let mut said = 0;
    while said < 100 && direction.say(0) {
        said += 1;
        direction.post(true);
    }
    // One place is kept for a pad.
    assert_eq!((said, direction.shadow.unacknowledged()), (63, 63));
    assert_eq!(direction.shadow.room_words(), 0);
    direction.read();
    direction.acknowledge();
    assert_eq!(direction.shadow.room_words() * 8, direction.ring.packet_bytes_max() as usize - 24);
}

#[test]
fn the_bytes_behind_a_payload_are_zero() {
    let mut direction = Direction::new();
    assert!(direction.say(5));
    let words = &direction.memories.0[0].0;
    // Header, INLINE, and the word that the payload is copied into.
    assert_eq!(words[6..8], [0, 7]);
}

#[test]
fn a_frame_may_not_pass_the_end_of_its_packet() {
    for (bytes, words) in [(8, 1), (100, 13), (400, 50)] {
        let mut direction = Direction::new();
        assert!(direction.say(bytes));
        let write = direction.post(true)[0];
        // The same packet without its last word, with a new header and check.
        let header =
            Header { number: FIRST, bytes: write.bytes - 8, acknowledged: BEFORE, pad: false };
        let landed = &mut direction.landed.0;
        landed[1..3].copy_from_slice(&header.words());
        landed[0] = check(
            lease(1).nonce,
            header.words(),
            header.written_words(),
            |word| landed[word],
            |word| std::array::from_fn(|index| landed[word + index]),
        );
        assert_eq!(header.written_words(), 6 + words - 1);
        let mut arrived = direction.inbox.next(&direction.landed).unwrap();
        assert_eq!(arrived.next_frame(&direction.landed), Err(Malformed::Short));
    }
}

#[test]
fn a_packet_that_was_never_posted_cannot_be_acknowledged() {
    let mut direction = Direction::new();
    assert!(direction.say(8) && direction.say(8));
    assert_eq!(direction.shadow.acknowledge(FIRST, |_| {}), Err(NeverSent));
    direction.post(true);
    assert_eq!(direction.shadow.acknowledge(FIRST.plus(2), |_| {}), Err(NeverSent));
    assert!(direction.shadow.acknowledge(FIRST.plus(1), |_| {}).unwrap().is_some());
    assert_eq!(
        direction.shadow.acknowledge(FIRST, |_| {}),
        Ok(None),
        "a later packet is acknowledged already"
    );
    assert_eq!(direction.shadow.acknowledge(FIRST.plus(1), |_| {}), Ok(None));
}

#[test]
fn a_new_inbox_takes_the_unacknowledged_packets_under_the_same_numbers() {
    for consumed in 0..12 {
        let mut direction = Direction::new();
        // A lap, so that there is a pad among them.
        for _ in 0..4 {
            assert!(direction.say(400));
            direction.post(true);
            direction.read();
            direction.acknowledge();
        }
        let mut said = 0;
        while direction.say(120) {
            said += 1;
        }
        let writes = direction.post(false);
        direction.shadow.wrote(writes[0].number, true, |_| {});
        let kept = consumed.min(writes.len());
        let upto = writes[0].number.plus(u32::MAX).plus(u32::try_from(kept).unwrap());
        let target = (lease(2), MemoryId(1));
        let abandoned =
            direction.shadow.adopt(&mut direction.memories, target, upto, |_| {}).unwrap().unwrap();
        assert_eq!(
            abandoned.writes as usize,
            writes.len() - 1,
            "they continue from the old shadow"
        );
        assert_eq!(direction.shadow.acknowledged(), upto);
        let mut landed = words();
        direction.inbox = Inbox::new(ring(), lease(2), (MemoryId(9), &mut landed), upto, BEFORE);
        direction.landed = landed;
        let again = direction.post(true);
        assert_eq!(again.len(), writes.len() - kept, "{said} said");
        assert!(again.iter().zip(&writes[kept..]).all(|(one, other)| one.number == other.number));
        direction.read();
        assert_eq!(direction.inbox.consumed(), writes[writes.len() - 1].number);
        direction.acknowledge();
        assert_eq!(direction.shadow.unacknowledged(), 0);
    }
}

#[test]
fn a_watch_sees_the_next_packet_and_a_later_acknowledgement_and_nothing_else() {
    let mut direction = Direction::new();
    let watch = |direction: &Direction, acknowledged| {
        Watch::new(ring(), &direction.inbox, acknowledged).has_news(&direction.landed)
    };
    for _ in 0..30 {
        assert!(!watch(&direction, None));
        assert!(direction.say(120));
        direction.post(true);
        assert!(watch(&direction, None));
        direction.read();
        direction.acknowledge();
    }
    let [ours, earlier] = [1, 0].map(|epoch| lease(epoch).nonce);
    for (nonce, cell, is_later) in [
        (ours, BEFORE, false),
        (ours, FIRST, false),
        (ours, FIRST.plus(1), true),
        (earlier, FIRST.plus(1), false),
    ] {
        direction.landed.store_cell(nonce, cell);
        assert_eq!(watch(&direction, Some(FIRST)), is_later, "{cell:?}");
        assert!(!watch(&direction, None), "everything is acknowledged");
    }
}

/// Such a write would acknowledge packets that were not read, or never sent.
#[test]
fn a_late_acknowledgement_for_an_earlier_inbox_in_the_same_memory_has_no_effect() {
    let (mut channel, mut memories) = greeted(1);
    write_packet(&mut channel, &mut memories);
    let nonce = channel.inbox().unwrap().lease().nonce;
    let earlier = Nonce(nonce.0 ^ 1 << 32);
    let mut memory = words();
    for (late, number) in [(earlier, FIRST), (earlier, FIRST.plus(7)), (nonce, FIRST)] {
        assert_eq!(channel.shadow().unacknowledged(), 1);
        memory.store_cell(late, number);
        channel.read_cell(&memory, at(1), |_| {});
    }
    assert_eq!((channel.shadow().unacknowledged(), channel.is_failing()), (0, None));
}

#[test]
fn a_cell_is_due_past_half_of_the_ring_or_of_the_packets_or_after_a_while() {
    let at = |nanos| Moment::from_nanos(nanos);
    let mut one = Acknowledgement::new(ring(), BEFORE);
    assert!(!one.is_due(true, at(1 << 40)), "nothing is consumed");
    one.consumed(FIRST, 64, at(5));
    assert!(!one.is_due(false, at(4_000_004)));
    assert!(one.is_due(false, at(4_000_005)));
    assert!(one.is_due(true, at(5)), "the peer has said END");
    one.consumed(FIRST.plus(1), ring().bytes() / 2 - 64, at(5));
    assert!(one.is_due(false, at(5)));
    one.cell_posted();
    assert!(one.is_complete() && !one.is_settled());
    one.consumed(FIRST.plus(2), ring().bytes(), at(5));
    assert!(!one.is_due(true, at(1 << 40)), "one write at a time");
    one.consumed(FIRST.plus(2), u32::MAX, at(5)); // The peer waits for no acknowledgement.
    one.cell_written();
    assert!(one.is_due(false, at(5)));
    one.acknowledged();
    for number in 3..35 {
        assert!(!one.is_due(false, at(5)));
        one.consumed(FIRST.plus(number), 0, at(5));
    }
    assert!(one.is_due(false, at(5)), "half of the packets");
    one.acknowledged();
    assert!(one.is_settled());
    assert!(!one.moved(at(5)));
    assert!(!one.is_complete(), "the new cell has no acknowledgement yet");
}

#[test]
fn end_is_heard_when_its_packet_is_acknowledged() {
    let mut ending = Ending::default();
    assert!(!ending.is_in(FIRST));
    ending.begin();
    assert!(ending.is_pending() && ending.is_begun() && !ending.is_said());
    ending.said(FIRST.plus(1));
    ending.begin();
    assert!(ending.is_said() && !ending.is_pending());
    assert!(!ending.is_in(FIRST));
    assert!(ending.is_in(FIRST.plus(1)) && ending.is_in(FIRST.plus(60)));
}

fn channel(rails: u8) -> Channel {
    let parameters = Parameters {
        ring: ring(),
        rails,
        data_rails: 1,
        locals: [0; 16],
        failover: false,
        tries: false,
        closes: false,
        measure_by_arrival: false,
        rail: 0,
        key: 5,
        peer_timeout: Duration::from_secs(5),
        quarantine: 4,
        first: FIRST,
    };
    Channel::new(parameters, PolledTime::START).unwrap()
}

/// Lends an inbox, if one is needed. Returns its rail.
fn lend(channel: &mut Channel) -> Option<u8> {
    lend_memory(channel, MemoryId(7)).map(|(rail, _)| rail)
}

fn lend_memory(channel: &mut Channel, id: MemoryId) -> Option<(u8, OldInboxes)> {
    let rail = channel.needs_inbox(PolledTime::START)?;
    let mut memory = words();
    Some((rail, channel.lend((id, &mut memory), rail, (0, 0, Nonce(3)))))
}

/// A HELLO that lends the inbox of this epoch.
fn hello_of(epoch: u32) -> Hello {
    Hello { lease: lease(epoch), key: 9, consumed: BEFORE, echo: Epoch(1), requests_echo: false }
}

/// A QUERY about the inbox of this epoch, for a packet that was not consumed there.
fn query_of(epoch: u32, lost: bool) -> Query {
    Query {
        epoch: Epoch(epoch),
        completed: FIRST,
        lost,
        rail: 0,
        counts: PeerCounts::default(),
        about: None,
    }
}

#[test]
fn a_rail_that_cost_sixteen_inboxes_without_a_packet_lends_no_more() {
    let mut channel = channel(2);
    assert_eq!(lend(&mut channel), Some(0));
    assert_eq!(lend(&mut channel), None, "one inbox is enough");
    let lost = |epoch| query_of(epoch, true);
    for epoch in 1..=32 {
        channel.query_arrived(&lost(epoch - 1), None, Duration::ZERO);
        assert_eq!(lend(&mut channel), None, "the QUERY is about an older inbox");
        channel.query_arrived(&lost(epoch), None, Duration::ZERO);
        if epoch == 32 {
            break;
        }
        // A packet was lost on the rail of the old one: the other rail is tried.
        let new = if epoch % 2 == 1 { 1 } else { 0 };
        assert_eq!(lend(&mut channel), Some(new));
    }
    assert_eq!(channel.in_vain, [16, 15, 0, 0]);
    assert_eq!(lend(&mut channel), Some(1), "rail 0 gets no more");
    assert!(!channel.is_lost(0) && !channel.is_lost(1) && channel.is_alive());
    channel.query_arrived(&lost(33), None, Duration::ZERO);
    assert_eq!(lend(&mut channel), None, "nor does the other rail");
}

#[test]
fn a_rail_on_which_packets_come_between_losses_always_gets_another_inbox() {
    let mut channel = channel(1);
    let mut direction = Direction::new();
    for epoch in 1..=100 {
        assert_eq!(lend(&mut channel), Some(0), "{epoch}");
        direction.arrives(&mut channel);
        direction.acknowledge();
        let completed = channel.consumed_last().plus(1);
        let query = Query { completed, ..query_of(epoch, true) };
        channel.query_arrived(&query, None, Duration::ZERO);
    }
    assert!(channel.is_alive());
}

#[test]
fn rails_that_are_lost_and_come_back_always_get_another_inbox() {
    let mut channel = channel(2);
    assert_eq!(lend(&mut channel), Some(0));
    let trial = Trial { rail: 1, number: 1, answers: false };
    for flaps in 1..=100 {
        // Both rails were lost and are back.
        let rails = RailNumbers::new([2 * flaps, 2 * flaps, 0, 0]);
        let letter = Letter { key: 5, rails, body: Body::Trial(trial) };
        channel.letter_arrived(&letter, both(0));
        assert!(lend(&mut channel).is_some(), "{flaps}");
    }
    assert!(channel.is_alive());
}

#[test]
fn no_inbox_is_adopted_while_completions_could_be_of_a_shadow_of_256_epochs_ago() {
    let (mut channel, mut memories) = greeted(1);
    write_packet(&mut channel, &mut memories);
    assert_eq!(channel.adopt(&mut memories, &hello_of(2), MemoryId(1), both(1), |_| {}), None);
    assert!(channel.would_adopt(&hello_of(256), at(0)));
    assert!(!channel.would_adopt(&hello_of(257), at(0)));
    assert!(!channel.would_adopt(&hello_of(257), at(4999)) && channel.is_alive());
    assert!(!channel.would_adopt(&hello_of(257), at(5000)));
    assert_eq!(channel.is_failing(), Some(Cause::NoRail));
}

#[test]
fn the_last_four_old_inboxes_stay_in_quarantine_and_a_channel_that_is_forgotten_gives_up_all() {
    let mut channel = channel(1);
    let ids = |range: std::ops::RangeInclusive<u32>| range.map(MemoryId).collect::<Vec<_>>();
    for epoch in 1..=7 {
        let id = MemoryId(epoch);
        let (_, old) = lend_memory(&mut channel, id).unwrap();
        let before = |back: u32| epoch.checked_sub(back).filter(|id| *id > 0).map(MemoryId);
        assert_eq!(old, OldInboxes { retired: before(1), released: before(5) });
        channel.query_arrived(&query_of(epoch, true), None, Duration::ZERO);
    }
    assert_eq!(channel.quarantine, ids(3..=6));
    assert_eq!(channel.over(), Some(MemoryId(7)));
    assert_eq!(channel.give_up(), (ids(3..=7).into(), None));
    assert_eq!(channel.give_up(), Default::default(), "once");
}

/// The losses may have been delays.
#[test]
fn without_another_inbox_a_packet_is_waited_for_as_long_as_a_peer_may_be_silent() {
    let (mut fails, mut recovers) = (channel(1), channel(1));
    for channel in [&mut fails, &mut recovers] {
        for epoch in 1..=17 {
            assert!(lend(channel).is_some());
            channel.query_arrived(&query_of(epoch, true), None, Duration::ZERO);
        }
        assert_eq!([0, 4999].map(|ms| channel.needs_inbox(at(ms))), [None; 2]);
        assert_eq!(channel.is_failing(), None);
    }
    assert_eq!(fails.needs_inbox(at(5000)), None);
    assert_eq!(fails.is_failing(), Some(Cause::NoInbox));

    let mut direction = Direction::new();
    recovers.starves(at(4999));
    direction.arrives(&mut recovers);
    assert_eq!(recovers.needs_inbox, epoch::NeedsInbox::No);
    assert!(recovers.starved.is_none(), "the need is over");
    let query = Query { completed: FIRST.plus(1), ..query_of(17, true) };
    recovers.query_arrived(&query, None, Duration::ZERO);
    assert_eq!(recovers.needs_inbox(at(9000)), Some(0), "a packet has come");
}

/// The packet is waited for, since there is no room for another inbox.
#[test]
fn a_packet_that_counts_as_lost_is_queried_less_and_less_often() {
    let (mut channel, mut memories) = greeted(1);
    let packet = write_packet(&mut channel, &mut memories);
    channel.wrote(packet.write, 0, true, |_| {});
    let mut losses = Vec::new();
    for ms in 1..5000 {
        if let Some(Body::Query(query)) = letter_at(&mut channel, ms) {
            losses.push(query.lost);
            let status = crate::letter::Status { asked: FIRST, ..answer() };
            assert_eq!(channel.status_arrived(&status, true, at(ms), |_| {}), None);
        }
    }
    assert_eq!(losses[..3], [false, false, true]);
    assert!(losses.len() < 15 && losses[2..].iter().all(|lost| *lost), "{losses:?}");
}

#[test]
fn a_lost_rail_whose_inbox_no_other_rail_can_replace_fails_the_channel_at_once() {
    let mut channel = channel(2);
    channel.in_vain = [16, 16, 0, 0];
    channel.needs_inbox = epoch::NeedsInbox::Yes;
    assert_eq!(channel.needs_inbox(at(0)), None);
    assert_eq!(channel.is_failing(), Some(Cause::NoInbox));
}

#[test]
fn a_rail_that_was_lost_and_came_back_unnoticed_costs_its_inbox() {
    let mut channel = channel(2);
    assert_eq!(lend(&mut channel), Some(0));
    let trial = Trial { rail: 1, number: 1, answers: false };
    for (numbers, lent) in [([0, 2, 0, 0], None), ([2, 2, 0, 0], Some(0)), ([3, 2, 0, 0], Some(1))]
    {
        let rails = RailNumbers::new(numbers);
        let letter = Letter { key: 5, rails, body: Body::Trial(trial) };
        channel.letter_arrived(&letter, both(0));
        assert_eq!(lend(&mut channel), lent, "{numbers:?}");
    }
}

/// The rail is lost, and is back, before the second of two writes has failed.
#[test]
fn a_write_that_fails_after_the_return_of_its_rail_does_not_lose_the_rail_again() {
    for peers_loss in [false, true] {
        let (mut channel, mut memories) = greeted(2);
        let frame = &Frame::Done { to: Name::default(), lines: Line::FIRST };
        let mut written = |channel: &mut Channel, memory| {
            assert!(channel.shadow_mut().append(memories.shadow(memory), frame));
            channel.seal(memories.shadow(memory));
            let packet = channel.next_post().unwrap();
            channel.posted(&packet, clock(0));
            packet.write
        };
        let writes = [(); 2].map(|()| written(&mut channel, MemoryId(0)));
        let numbers = channel.rail_numbers();
        if peers_loss {
            let letter = Letter {
                key: 5,
                rails: RailNumbers::new([1, 0, 0, 0]),
                body: Body::Query(query_of(1, false)),
            };
            channel.letter_arrived(&letter, both(0));
            channel.wrote(writes[0], 0, true, |_| {});
        } else {
            channel.wrote(writes[0], 0, false, |_| {});
        }
        assert!(channel.is_lost(0));
        assert!(!channel.is_late(writes[1].epoch, 0) && !channel.letter_failed(0, numbers));
        channel.tried(&Trial { rail: 0, number: 1, answers: true }, clock(1));
        assert!(!channel.is_lost(0));
        let mut memories = Memories(vec![words(), words()]);
        assert!(channel.adopt(&mut memories, &hello_of(2), MemoryId(1), both(1), |_| {}).is_none());
        assert!(channel.is_late(writes[1].epoch, 0) && channel.letter_failed(0, numbers));
        assert_eq!(
            channel.wrote(writes[1], 0, false, |_| {}),
            Some(MemoryId(0)),
            "its shadow is free"
        );
        assert!(!channel.is_lost(0));
        let packet = channel.next_post().unwrap();
        channel.posted(&packet, clock(2));
        channel.wrote(packet.write, 0, false, |_| {});
        assert!(channel.is_lost(0), "one that was posted since");
        channel.tried(&Trial { rail: 0, number: 3, answers: true }, clock(3));
        assert!(!channel.letter_failed(0, channel.rail_numbers()) && channel.is_lost(0));
    }
}

#[test]
fn a_channel_has_one_to_four_rails_and_begins_on_one_of_them() {
    let mut parameters = channel(1).parameters;
    for (rails, rail, possible) in
        [(0, 0, false), (1, 0, true), (1, 1, false), (4, 3, true), (5, 0, false)]
    {
        (parameters.rails, parameters.rail) = (rails, rail);
        let channel = Channel::new(parameters, PolledTime::START);
        assert_eq!(channel.is_some(), possible);
        let lends_on = channel.and_then(|mut channel| channel.needs_inbox(PolledTime::START));
        assert_eq!(lends_on, possible.then_some(rail));
    }
}

/// The letter that leaves at this time.
fn letter_at(channel: &mut Channel, ms: u64) -> Option<Body> {
    let due = channel.next_letter(&PeerCounts::default(), false, at(ms))?;
    channel.letter_posted(&due, at(ms));
    Some(due.letter.body)
}

#[test]
fn hello_lends_a_new_inbox_at_once_and_again_when_the_peer_queries_an_older_one() {
    let (mut channel, _) = greeted(1);
    assert!(letter_at(&mut channel, 1).is_none());
    channel.query_arrived(&query_of(1, true), None, Duration::ZERO);
    assert!(matches!(letter_at(&mut channel, 2), Some(Body::Status(_))));
    lend(&mut channel).unwrap();
    let tells = |body: Option<Body>| {
        matches!(body, Some(Body::Hello(Hello { lease: Lease { epoch: Epoch(2), .. }, .. })))
    };
    assert!(tells(letter_at(&mut channel, 3)));
    assert!(letter_at(&mut channel, 4).is_none());
    channel.query_arrived(&query_of(1, false), None, Duration::ZERO);
    assert!(tells(letter_at(&mut channel, 5)));
    assert!(matches!(letter_at(&mut channel, 6), Some(Body::Status(_))));
}

#[test]
fn an_old_shadow_is_kept_until_the_writes_of_its_packets_and_of_its_cell_have_ended() {
    let mut channel = channel(1);
    let mut memories = Memories(vec![words(), words()]);
    let now = both(0);
    lend(&mut channel);
    assert!(channel.would_adopt(&hello_of(1), now.polled));
    assert_eq!(channel.adopt(&mut memories, &hello_of(1), MemoryId(0), now, |_| {}), None);
    assert!(!channel.would_adopt(&hello_of(1), now.polled), "the inbox is known");
    let frame = Frame::End;
    assert!(channel.shadow_mut().append(memories.shadow(MemoryId(0)), &frame));
    channel.seal(memories.shadow(MemoryId(0)));
    let packet = channel.next_post().unwrap();
    channel.posted(&packet, now.clock);
    channel.acknowledgement.consumed(FIRST, 1 << 20, now.clock);
    let cell = channel.cell_post(&mut memories, now.clock).unwrap();
    channel.posted(&cell, now.clock);
    assert_eq!(channel.adopt(&mut memories, &hello_of(2), MemoryId(1), now, |_| {}), None);
    assert_eq!(channel.wrote(packet.write, 0, true, |_| {}), None);
    assert_eq!(channel.wrote(cell.write, 0, true, |_| {}), Some(MemoryId(0)));
    assert_eq!(channel.shadow().unacknowledged(), 1, "the packet is retransmitted");
}

#[test]
fn a_stranger_has_no_effect() {
    let channel = channel(1);
    let hello =
        Hello { lease: lease(1), key: 9, consumed: BEFORE, echo: Epoch(0), requests_echo: true };
    let query = query_of(1, true);
    for (key, proven, greets, asks) in [
        (5, false, true, true),
        (0, true, true, false),
        (0, false, false, false),
        (6, true, false, false),
    ] {
        let letter = |body| Letter { key, rails: RailNumbers::default(), body };
        assert_eq!(channel.believes(&letter(Body::Hello(hello)), proven), greets);
        assert_eq!(channel.believes(&letter(Body::Query(query)), proven), asks);
    }
}

fn at(ms: u64) -> PolledTime {
    PolledTime::START.plus(Duration::from_millis(ms))
}

/// A channel with an inbox of the peer, and its own HELLO echoed.
fn greeted(rails: u8) -> (Channel, Memories) {
    greeted_by(rails, 0)
}

/// The peer's inbox is on this rail, ours on rail 0.
fn greeted_by(rails: u8, rail: u8) -> (Channel, Memories) {
    let mut channel = channel(rails);
    let mut memories = Memories(vec![words(), words()]);
    lend(&mut channel);
    let echo = channel.inbox().unwrap().lease().epoch;
    let lease = Lease { rail, ..lease(1) };
    let hello = Hello { lease, key: 9, consumed: BEFORE, echo, requests_echo: false };
    let now = both(0);
    assert_eq!(channel.adopt(&mut memories, &hello, MemoryId(0), now, |_| {}), None);
    channel.hello_arrived(&hello);
    (channel, memories)
}

fn query_by(rail: u8) -> Query {
    let counts = PeerCounts::default();
    Query { epoch: Epoch(1), completed: BEFORE, lost: false, rail, counts, about: None }
}

/// A STATUS without any progress.
fn answer() -> crate::letter::Status {
    crate::letter::Status {
        epoch: Epoch(1),
        consumed: BEFORE,
        asked: BEFORE,
        counts: PeerCounts::default(),
        waits: false,
        failed: false,
        idle_ms: 0,
        about: None,
    }
}

#[test]
fn a_status_goes_by_the_rail_that_the_query_came_by_if_that_lives() {
    let counts = PeerCounts::default();
    for (rail, lost, by) in
        [(0, None, 0), (1, None, 1), (1, Some(1), 0), (2, None, 0), (7, None, 0)]
    {
        let (mut channel, _) = greeted(2);
        lost.into_iter().for_each(|rail| channel.rail_lost(rail));
        channel.query_arrived(&query_by(rail), None, Duration::ZERO);
        let due = channel.next_letter(&counts, false, at(1)).unwrap();
        assert!(matches!(due.letter.body, Body::Status(_)), "{due:?}");
        assert_eq!(due.rail, by, "query by {rail}, lost: {lost:?}");
    }
}

#[test]
fn a_query_names_its_rail() {
    let (mut channel, _) = greeted(2);
    let counts = PeerCounts::default();
    let mut rails = Vec::new();
    for ms in [50, 150, 350, 800] {
        let due = channel.next_letter(&counts, true, at(ms)).unwrap();
        let Body::Query(query) = &due.letter.body else { panic!("{due:?}") };
        assert_eq!(query.rail, due.rail);
        channel.letter_posted(&due, at(ms));
        rails.push(due.rail);
    }
    assert_eq!(rails, [0, 1, 0, 1]);
}

/// The peer's packets do not arrive, and the rail of our own inbox delivers nothing.
#[test]
fn letters_stay_on_the_rail_by_which_a_status_came_also_where_it_acknowledges_packets() {
    let (mut channel, mut memories) = greeted(4);
    write_packet(&mut channel, &mut memories);
    let counts = PeerCounts::default();
    let query_at = |channel: &mut Channel, ms| {
        let due = channel.next_letter(&counts, true, at(ms)).unwrap();
        channel.letter_posted(&due, at(ms));
        due.rail
    };
    assert!(channel.next_letter(&counts, true, at(1)).is_none());
    assert_eq!([50, 150].map(|ms| query_at(&mut channel, ms)), [0, 1]);
    let status = crate::letter::Status { consumed: FIRST, ..answer() };
    assert_eq!(channel.status_arrived(&status, true, at(151), |_| {}), None);
    assert_eq!(channel.shadow().acknowledged(), FIRST);
    assert_eq!(query_at(&mut channel, 300), 1);
}

/// Posts a packet with END.
fn write_packet(channel: &mut Channel, memories: &mut Memories) -> Post {
    assert!(channel.shadow_mut().append(memories.shadow(MemoryId(0)), &Frame::End));
    channel.seal(memories.shadow(MemoryId(0)));
    let packet = channel.next_post().unwrap();
    channel.posted(&packet, clock(0));
    packet
}

/// The first of these answers with which a control rail is lost.
fn lost_with(channel: &mut Channel, rail: u8, answers: &[u64]) -> Option<u64> {
    answers.iter().copied().find(|ms| {
        assert_eq!(channel.status_arrived(&answer(), true, at(*ms), |_| {}), None);
        channel.is_lost(rail)
    })
}

#[test]
fn the_first_answers_of_a_peer_that_was_stopped_lose_no_control_rail() {
    let (mut channel, mut memories) = greeted(2);
    write_packet(&mut channel, &mut memories);
    let answers = [1, 100, 3000, 3001, 3200, 3400, 3499, 3500];
    assert_eq!(lost_with(&mut channel, 0, &answers), Some(3500));
}

#[test]
fn a_control_rail_that_takes_over_the_packets_of_a_hanging_one_has_the_whole_time() {
    let (mut channel, mut memories) = greeted(3);
    write_packet(&mut channel, &mut memories);
    assert_eq!(lost_with(&mut channel, 0, &[1, 101, 201, 301, 401, 501]), Some(501));
    let lease = Lease { rail: 1, ..lease(2) };
    let hello = Hello { lease, key: 9, consumed: BEFORE, echo: Epoch(1), requests_echo: false };
    assert_eq!(channel.adopt(&mut memories, &hello, MemoryId(1), both(510), |_| {}), None);
    let packet = channel.next_post().unwrap();
    assert_eq!(packet.rail, 1);
    channel.posted(&packet, clock(510));
    let answers = [511, 611, 711, 811, 911, 1010, 1011];
    assert_eq!(lost_with(&mut channel, 1, &answers), Some(1011));
}

/// The peer answers, but the write of a packet to it does not complete.
#[test]
fn a_control_rail_on_which_a_write_hangs_is_lost_and_the_only_one_after_the_peer_timeout() {
    for (rails, rail, lost_after) in [(2, 0, 500), (2, 1, 500), (1, 0, 5000)] {
        let (mut channel, mut memories) = greeted_by(rails, rail);
        write_packet(&mut channel, &mut memories);
        let answers: Vec<u64> = (1..=lost_after + 1).step_by(100).collect();
        assert_eq!(lost_with(&mut channel, rail, &answers), Some(lost_after + 1));
        let failing = (rails == 1).then_some(Cause::NoRail);
        assert_eq!(channel.is_failing(), failing);
    }
}

/// Parts of a lost rail were posted again on another one just before the STATUS.
#[test]
fn parts_that_were_just_written_are_not_lost_with_those_of_a_rail_without_progress() {
    let (mut channel, _) = greeted(1);
    let mut counts = PeerCounts::default();
    let mut status = answer();
    let mut ask = |channel: &mut Channel, counts: &PeerCounts, ms: u64| {
        channel.query_at_once();
        let due = channel.next_letter(counts, true, at(ms)).unwrap();
        assert!(matches!(due.letter.body, Body::Query(_)), "{due:?}");
        channel.letter_posted(&due, at(ms));
        status.counts.seen = Counts::default();
        channel.status_arrived(&status, true, at(ms), |_| {})
    };
    counts.completed.add(0);
    assert_eq!(ask(&mut channel, &counts, 100), None);
    assert_eq!(ask(&mut channel, &counts, 300), None);
    assert_eq!(ask(&mut channel, &counts, 500), None);
    counts.completed.add(1);
    assert_eq!(ask(&mut channel, &counts, 600), Some(0));
    channel.ignore_counts_of(0);
    assert_eq!(ask(&mut channel, &counts, 700), None, "the parts were written 100 ms ago");
    assert_eq!(ask(&mut channel, &counts, 900), None);
    assert_eq!(ask(&mut channel, &counts, 1099), None);
    assert_eq!(ask(&mut channel, &counts, 1100), Some(1));
}

/// The peer was stopped. It answers all QUERYs that came meanwhile before it polls its data rails.
#[test]
fn the_first_answers_of_a_peer_that_was_stopped_lose_no_parts() {
    let lost_at = |answers: &[u64]| {
        let (mut channel, _) = greeted(1);
        let mut counts = PeerCounts::default();
        let status = answer();
        counts.completed.add(0);
        answers.iter().copied().find(|ms| {
            channel.query_at_once();
            let due = channel.next_letter(&counts, true, at(*ms)).unwrap();
            channel.letter_posted(&due, at(*ms));
            channel.status_arrived(&status, true, at(*ms), |_| {}).is_some()
        })
    };
    assert_eq!(lost_at(&[5, 10, 3000, 3001, 3200, 3400, 3499, 3500]), Some(3500));
    assert_eq!(lost_at(&[5, 10, 1000, 2000]), Some(2000), "a keeper answers once a second");
}

/// An end without control rails ends when the peer's END has come. It may still receive letters, and only its answer reaches the
/// peer.
#[test]
fn an_end_whose_own_end_did_not_arrive_answers_that_it_has_failed() {
    let failed = |(_, letter): (u8, Letter)| match letter.body {
        Body::Status(status) => status.failed,
        other => panic!("{other:?}"),
    };
    let (mut channel, _) = greeted(1);
    channel.ending_mut().begin();
    channel.ending_mut().peer_said();
    channel.rail_lost(0);
    assert!(channel.has_ended(at(1)));
    channel.over();
    assert!(failed(channel.last_letter(&PeerCounts::default()).unwrap()));

    let status = crate::letter::Status { failed: true, ..answer() };
    for (said, failure) in [(false, Some(Cause::Peer)), (true, None)] {
        let (mut channel, _) = greeted(1);
        if said {
            channel.ending_mut().peer_said();
        }
        assert_eq!(channel.status_arrived(&status, false, at(1), |_| {}), None);
        assert_eq!(channel.is_failing(), failure);
        assert_eq!(channel.has_ended(at(1)), said);
    }
}

/// The peer's last acknowledgement may be lost when its endpoint closes. But until our END has left, the peer waits for it.
#[test]
fn the_acknowledgement_of_end_is_waited_for_briefly_once_the_peer_has_sent_its_own_end() {
    let (mut channel, mut memories) = greeted(1);
    let at = |time: Duration| PolledTime::START.plus(time);
    channel.ending_mut().begin();
    let packet = write_packet(&mut channel, &mut memories);
    channel.ending_mut().said(FIRST);
    let timeout = channel.peer_timeout();
    channel.ending_mut().peer_said();
    assert!(!channel.may_be_left(at(timeout)), "END has not completed");
    channel.wrote(packet.write, 0, true, |_| {});
    assert!(!channel.may_be_left(at(END_UNANSWERED - Duration::from_millis(1))));
    assert!(channel.may_be_left(at(END_UNANSWERED)));
    assert!(
        !channel.has_ended(at(END_UNANSWERED)),
        "nothing is given up while the endpoint stays open"
    );

    let (mut channel, mut memories) = greeted(1);
    channel.ending_mut().begin();
    let packet = write_packet(&mut channel, &mut memories);
    channel.ending_mut().said(FIRST);
    channel.wrote(packet.write, 0, true, |_| {});
    assert!(!channel.may_be_left(at(timeout)), "the peer may have more to say");
}

/// The keeper polls soon only if something is pending.
#[test]
fn a_packet_that_is_not_acknowledged_is_pending_and_so_is_a_failure_that_the_peer_does_not_know_of()
{
    let counts = PeerCounts::default();
    let (mut channel, mut memories) = greeted(1);
    assert!(!channel.has_pending(&counts));
    assert!(channel.shadow_mut().append(memories.shadow(MemoryId(0)), &Frame::End));
    assert!(channel.has_pending(&counts), "the packet is open");
    channel.seal(memories.shadow(MemoryId(0)));
    let packet = channel.next_post().unwrap();
    channel.posted(&packet, clock(0));
    assert!(channel.has_pending(&counts), "it is posted");
    let (mut channel, _) = greeted(1);
    channel.query_arrived(&query_of(1, false), None, Duration::ZERO);
    assert!(channel.has_pending(&counts), "the peer waits for an answer");
    assert!(letter_at(&mut channel, 1).is_some());
    assert!(!channel.has_pending(&counts));
    channel.fail(Cause::Connection);
    assert!(channel.has_pending(&counts), "the peer has to be informed");
}

/// No connection begins on an ending channel.
#[test]
fn a_channel_is_ending_once_either_side_has_begun_to_end_it() {
    for (ours, theirs) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut channel, _) = greeted(1);
        if ours {
            channel.ending_mut().begin();
        }
        if theirs {
            channel.ending_mut().peer_said();
        }
        assert_eq!(channel.is_ending(), ours || theirs);
    }
}

/// Rails take packets that they never complete, are lost and come back. The peer answers, so it is not silent.
#[test]
fn a_channel_fails_that_has_no_room_for_an_old_shadow_for_as_long_as_a_peer_may_be_silent() {
    let (mut channel, mut memories) = greeted(2);
    let lent = |epoch: u32| {
        let lease = Lease { rail: low8(epoch.into()) % 2, ..lease(epoch) };
        Hello { lease, key: 9, consumed: BEFORE, echo: Epoch(1), requests_echo: true }
    };
    write_packet(&mut channel, &mut memories);
    for epoch in 2..10 {
        let (hello, shadow) = (lent(epoch), MemoryId(epoch - 1));
        memories.0.push(words());
        assert!(channel.would_adopt(&hello, at(0)));
        assert_eq!(channel.adopt(&mut memories, &hello, shadow, both(0), |_| {}), None);
        let packet = channel.next_post().unwrap();
        channel.posted(&packet, clock(0));
    }
    for (ms, failing) in [(100, None), (5099, None), (5100, Some(Cause::NoRail))] {
        assert!(!channel.would_adopt(&lent(10), at(ms)));
        assert_eq!(channel.status_arrived(&answer(), true, at(ms), |_| {}), None);
        assert_eq!(channel.is_failing(), failing, "after {ms} ms");
    }
}

#[test]
fn a_hello_that_waits_for_an_old_shadow_is_adopted_when_its_write_has_ended() {
    let (mut channel, mut memories) = greeted(1);
    let first = write_packet(&mut channel, &mut memories);
    for epoch in 2..10 {
        memories.0.push(words());
        let shadow = MemoryId(epoch - 1);
        channel.adopt(&mut memories, &hello_of(epoch), shadow, both(0), |_| {});
        let packet = channel.next_post().unwrap();
        channel.posted(&packet, clock(0));
    }
    assert!(!channel.would_adopt(&hello_of(10), at(100)));
    assert_eq!(channel.wrote(first.write, 0, true, |_| {}), Some(MemoryId(0)));
    assert!(channel.would_adopt(&hello_of(10), at(4000)));
    channel.adopt(&mut memories, &hello_of(10), MemoryId(0), both(4000), |_| {});
    let packet = channel.next_post().unwrap();
    channel.posted(&packet, clock(4000));
    assert!(
        !channel.would_adopt(&hello_of(11), at(6000)) && channel.is_alive(),
        "the time is another one"
    );
}

/// A connection's progress in the peer's STATUS.
fn about(begun: u32) -> About {
    let state = ConnectionState { begun, ..ConnectionState::default() };
    About { name: Name::default(), state }
}

#[test]
fn a_query_of_the_peers_progress_leaves_at_once_and_its_answer_is_kept() {
    let (mut channel, _) = greeted(1);
    let counts = PeerCounts::default();
    assert!(channel.next_letter(&counts, false, at(1)).is_none(), "nothing is waited for");
    channel.query_progress(Some(Name::default()));
    let due = channel.next_letter(&counts, false, at(2)).unwrap();
    let Body::Query(query) = &due.letter.body else { panic!("{due:?}") };
    assert_eq!(query.about, Some(Name::default()));
    channel.letter_posted(&due, at(2));
    assert!(channel.next_letter(&counts, false, at(60)).is_none(), "it leaves once");
    assert!(channel.peer_report().is_none());
    let status = crate::letter::Status { idle_ms: 30, about: Some(about(4)), ..answer() };
    assert_eq!(channel.status_arrived(&status, true, at(65), |_| {}), None);
    let report = *channel.peer_report().unwrap();
    assert_eq!((report.at, report.idle), (at(65), Duration::from_millis(30)));
    assert_eq!(report.about, Some((at(65), about(4))));
    // A STATUS without the connection replaces everything else.
    assert_eq!(channel.status_arrived(&answer(), true, at(69), |_| {}), None);
    let report = *channel.peer_report().unwrap();
    assert_eq!(
        (report.at, report.idle, report.about),
        (at(69), Duration::ZERO, Some((at(65), about(4))))
    );
    channel.query_progress(None);
    let due = channel.next_letter(&counts, false, at(70)).unwrap();
    assert!(matches!(due.letter.body, Body::Query(Query { about: None, .. })), "{due:?}");
}

#[test]
fn a_peers_silence_counts_from_when_it_is_waited_for() {
    let (mut channel, _) = greeted(1);
    let counts = PeerCounts::default();
    assert!(channel.next_letter(&counts, false, at(1000)).is_none());
    assert!(channel.next_letter(&counts, true, at(1500)).is_some());
    assert_eq!(channel.silence(at(1700)), Duration::from_millis(700));
    let letter = Letter { key: 5, rails: RailNumbers::default(), body: Body::Status(answer()) };
    channel.letter_arrived(&letter, both(1800));
    assert_eq!(channel.silence(at(1900)), Duration::from_millis(100));
}

#[test]
fn a_peer_to_which_letters_are_refused_is_lost_in_time_after_it_was_heard_or_one_was_accepted() {
    // What happens to the letter at 3 s.
    type Relief = fn(&mut Channel, &letters::Due, PolledTime);
    let refused: Relief = |channel, due, now| channel.letter_refused(due, now);
    let heard: Relief = |channel, due, now| {
        channel.letter_refused(due, now);
        channel.recovery.heard(now);
    };
    let accepted: Relief = |channel, due, now| channel.letter_posted(due, now);
    // After that one the next is due in 100 ms.
    let reliefs = [(refused, 100), (heard, 3000), (accepted, 3100)];
    let bound = u64::try_from(REFUSED_FOR_GOOD.as_millis()).unwrap();
    for (relief, since) in reliefs {
        let (mut channel, _) = greeted(2);
        channel.parameters.peer_timeout = 5 * REFUSED_FOR_GOOD;
        let counts = PeerCounts::default();
        let mut times = (100..2 * bound).step_by(50);
        let lost = times.find(|ms| {
            if let Some(due) = channel.next_letter(&counts, true, at(*ms)) {
                let then = if *ms == 3000 { relief } else { refused };
                then(&mut channel, &due, at(*ms));
            }
            channel.is_failing().is_some()
        });
        assert_eq!((lost, channel.is_failing()), (Some(since + bound), Some(Cause::Refused)));
    }
}

#[test]
fn a_channel_that_ends_queries_once_for_parts_that_are_not_confirmed() {
    let mut counts = PeerCounts::default();
    assert!(greeted(1).0.confirms(&counts));
    let (mut channel, _) = greeted(1);
    counts.completed.add(0);
    let asks = |channel: &mut Channel, ms| {
        assert!(!channel.confirms(&counts));
        let due = channel.next_letter(&counts, true, at(ms));
        due.map(|due| channel.letter_posted(&due, at(ms))).is_some()
    };
    assert!(asks(&mut channel, 1), "at once");
    assert!(
        !asks(&mut channel, 2),
        "the answer may be under way, or the timer sends the next QUERY"
    );
}

#[test]
fn a_packet_that_follows_a_long_wait_is_queried_as_soon_as_any_other() {
    let (mut channel, mut memories) = greeted(2);
    // Connections wait, and the intervals grow.
    let queries = |channel: &mut Channel, from: u64, until: u64| -> Vec<u64> {
        let times = from..until;
        times
            .filter(|ms| {
                let due = channel.next_letter(&PeerCounts::default(), true, at(*ms));
                due.map(|due| channel.letter_posted(&due, at(*ms))).is_some()
            })
            .collect()
    };
    assert_eq!(queries(&mut channel, 0, 3000), [40, 120, 280, 600, 1240, 2240]);
    write_packet(&mut channel, &mut memories);
    assert_eq!(queries(&mut channel, 3000, 3200), [3040, 3120]);
}

#[test]
fn no_frame_is_appended_behind_end_or_once_the_channel_fails() {
    let (mut channel, _) = greeted(1);
    assert!(channel.may_write());
    channel.ending_mut().said(FIRST);
    assert!(!channel.may_write());
    let (mut channel, _) = greeted(1);
    channel.fail(Cause::Connection);
    assert!(!channel.may_write());
}

/// A channel whose END has left. `acknowledged`: the peer has it; `heard`: the peer's END has come.
fn said_end(acknowledged: bool, heard: bool) -> Channel {
    let (mut channel, mut memories) = greeted(1);
    channel.ending_mut().begin();
    let packet = write_packet(&mut channel, &mut memories);
    channel.ending_mut().said(FIRST);
    channel.wrote(packet.write, 0, true, |_| {});
    if heard {
        channel.ending_mut().peer_said();
    }
    let consumed = if acknowledged { FIRST } else { BEFORE };
    let status = crate::letter::Status { consumed, ..answer() };
    assert_eq!(channel.status_arrived(&status, true, at(1), |_| {}), None);
    channel
}

#[test]
fn a_channel_has_ended_once_both_ends_have_arrived_unless_it_fails() {
    for (acknowledged, heard) in [(true, true), (true, false), (false, true)] {
        let mut channel = said_end(acknowledged, heard);
        assert_eq!(channel.has_ended(at(1)), acknowledged && heard);
        channel.fail(Cause::Connection);
        assert!(!channel.has_ended(at(1)));
    }
}

#[test]
fn a_channel_that_is_over_returns_its_inbox_and_answers_that_it_has_not_failed() {
    let mut channel = said_end(true, true);
    assert_eq!(channel.over(), Some(MemoryId(7)));
    let (_, letter) = channel.last_letter(&PeerCounts::default()).unwrap();
    assert!(matches!(letter.body, Body::Status(status) if !status.failed), "{letter:?}");
}

#[test]
fn a_begun_end_unconfirmed_parts_and_a_lost_inbox_are_pending() {
    let none = PeerCounts::default();
    let mut counts = none;
    counts.completed.add(0);
    let (channel, _) = greeted(2);
    assert!(!channel.has_pending(&none) && channel.has_pending(&counts));
    let (mut channel, _) = greeted(2);
    channel.ending_mut().begin();
    assert!(channel.has_pending(&none));
    let (mut channel, _) = greeted(2);
    channel.rail_lost(0);
    assert!(channel.has_pending(&none));
}

#[test]
fn a_channel_is_due_at_once_if_it_ends_needs_an_inbox_or_has_a_letter_to_send() {
    let quiet = || {
        let (mut channel, _) = greeted(2);
        assert!(letter_at(&mut channel, 1).is_none());
        channel
    };
    let due = |channel: &Channel| channel.due_at(&PeerCounts::default(), false, both(5));
    assert_eq!(due(&quiet()), None);
    let mut channel = quiet();
    channel.ending_mut().peer_said();
    assert_eq!(due(&channel), Some(clock(5)));
    let mut channel = quiet();
    channel.query_arrived(&query_of(1, true), None, Duration::ZERO);
    assert!(letter_at(&mut channel, 2).is_some());
    assert_eq!(due(&channel), Some(clock(5)), "the peer has lost a packet");
    let mut channel = quiet();
    channel.query_arrived(&query_by(0), None, Duration::ZERO);
    assert_eq!(due(&channel), Some(clock(5)));
}

#[test]
fn a_peer_is_queried_that_has_to_lend_another_inbox_or_to_end() {
    for ends in [false, true] {
        let (mut channel, _) = greeted_by(2, 1);
        assert!(letter_at(&mut channel, 1).is_none());
        match ends {
            true => channel.ending_mut().begin(),
            false => channel.rail_lost(1),
        }
        assert!(matches!(letter_at(&mut channel, 50), Some(Body::Query(_))), "{ends}");
    }
}

/// Set-up has timeouts of its own, and after its END a peer may be gone.
#[test]
fn a_silent_peer_fails_a_channel_unless_it_is_unknown_or_has_sent_its_end() {
    let (mut unknown, mut ended) = (channel(1), greeted(1).0);
    lend(&mut unknown);
    ended.ending_mut().peer_said();
    for (mut channel, failure) in
        [(unknown, None), (ended, None), (greeted(1).0, Some(Cause::Silent))]
    {
        let counts = PeerCounts::default();
        let due = channel.next_letter(&counts, true, at(50)).unwrap();
        channel.letter_refused(&due, at(50));
        channel.next_letter(&counts, true, at(60_000));
        assert_eq!(channel.is_failing(), failure);
    }
}

#[test]
fn hello_acknowledges_the_peers_end_and_nothing_before_it() {
    for ended in [false, true] {
        let (mut channel, _) = greeted(1);
        channel.acknowledgement.consumed(FIRST, 64, clock(0));
        if ended {
            channel.ending_mut().peer_said();
        }
        channel.query_arrived(&query_of(0, false), None, Duration::ZERO);
        assert!(matches!(letter_at(&mut channel, 2), Some(Body::Hello(_))));
        assert_eq!(channel.acknowledgement.is_complete(), ended);
    }
}

#[test]
fn a_hello_requests_an_echo_until_one_has_come() {
    let requests = |channel: &mut Channel| match letter_at(channel, 1) {
        Some(Body::Hello(hello)) => hello.requests_echo,
        other => panic!("{other:?}"),
    };
    let mut first = channel(1);
    lend(&mut first);
    assert!(requests(&mut first));
    let (mut channel, _) = greeted(1);
    channel.hello_arrived(&Hello {
        lease: lease(1),
        key: 9,
        consumed: BEFORE,
        echo: Epoch(1),
        requests_echo: true,
    });
    assert!(!requests(&mut channel), "it only echoes");
}

#[test]
fn a_lost_rail_is_not_tried_before_the_peer_is_known_nor_once_the_channel_ends_or_fails() {
    let tries = |channel: &mut Channel| {
        channel.rail_lost(1);
        assert_eq!(channel.next_trial(clock(0)), None);
        channel.next_trial(clock(60_000)).is_some()
    };
    let (mut ends, mut fails, mut unknown) = (greeted(2).0, greeted(2).0, channel(2));
    assert!(tries(&mut greeted(2).0));
    ends.ending_mut().peer_said();
    assert!(!tries(&mut ends));
    fails.fail(Cause::Connection);
    assert!(!tries(&mut fails));
    lend(&mut unknown);
    assert!(!tries(&mut unknown));
}

#[test]
fn only_a_newer_inbox_on_a_rail_of_the_channel_is_adopted_and_only_while_it_lives() {
    let (mut channel, _) = greeted(2);
    let hello = |epoch, rail| {
        let lease = Lease { rail, ..lease(epoch) };
        Hello { lease, key: 9, consumed: BEFORE, echo: Epoch(1), requests_echo: false }
    };
    assert!(channel.would_adopt(&hello(2, 1), at(1)));
    assert!(!channel.would_adopt(&hello(1, 1), at(1)), "it is in use");
    assert!(!channel.would_adopt(&hello(2, 2), at(1)), "there is no such rail");
    channel.fail(Cause::Connection);
    assert!(!channel.would_adopt(&hello(2, 1), at(1)));
}

#[test]
fn a_data_rail_of_a_channel_may_have_another_index_at_its_endpoint() {
    let mut channel = channel(1);
    (channel.parameters.locals[0], channel.parameters.locals[1]) = (3, 1);
    assert_eq!([0, 1].map(|rail| channel.local_rail(rail)), [3, 1]);
}

#[test]
fn a_channel_that_has_ended_is_idle_once_no_write_of_its_own_reads_a_shadow() {
    let fails = |channel: &mut Channel| {
        assert!(!channel.is_idle());
        channel.fail(Cause::Connection);
        assert!(!channel.is_idle(), "its inbox is still to be drained");
        channel.failed();
    };
    let (mut channel, _) = greeted(2);
    fails(&mut channel);
    assert!(channel.is_idle());

    let (mut channel, mut memories) = greeted(2);
    let packet = write_packet(&mut channel, &mut memories);
    fails(&mut channel);
    assert!(!channel.is_idle());
    channel.wrote(packet.write, 0, true, |_| {});
    assert!(channel.is_idle());

    let (mut channel, mut memories) = greeted(2);
    channel.acknowledgement.consumed(FIRST, 1 << 20, clock(0));
    let cell = channel.cell_post(&mut memories, clock(0)).unwrap();
    channel.posted(&cell, clock(0));
    fails(&mut channel);
    assert!(!channel.is_idle());
    channel.wrote(cell.write, 0, true, |_| {});
    assert!(channel.is_idle());

    let (mut channel, mut memories) = greeted(2);
    let packet = write_packet(&mut channel, &mut memories);
    assert_eq!(channel.adopt(&mut memories, &hello_of(2), MemoryId(1), both(1), |_| {}), None);
    fails(&mut channel);
    assert!(!channel.is_idle(), "the old shadow is written from");
    assert_eq!(channel.wrote(packet.write, 0, true, |_| {}), Some(MemoryId(0)));
    assert!(channel.is_idle());
}

#[test]
fn the_last_letter_goes_by_the_inboxes_rail_if_none_lives() {
    for rail in [0, 1] {
        let (mut channel, _) = greeted(2);
        channel.rail_lost(1 - rail);
        lend(&mut channel);
        channel.rail_lost(rail);
        let by =
            |channel: &Channel| channel.last_letter(&PeerCounts::default()).map(|(rail, _)| rail);
        assert_eq!(by(&channel), Some(rail));
    }
}
