//! What leaves at once: laws about calls and polls of two endpoints on a wire without faults. The random schedules come to rest even if a
//! frame waits for the next poll or for a timer.

use std::time::Duration;

use proto::frame::{Refusal, Refused};
use proto::{ChannelId, Event, Name, ProgressLoop, Slot, SubmitError, Urgency};

use crate::faults::Fault;
use crate::hands::Hands;
use crate::talk::{Happened, LONG, Message, Planned, Talk};
use crate::world::World;

/// Node 0 of a world whose channel is open and rests.
struct Caller {
    world: World,
    slot: Slot,
    channel: ChannelId,
}

impl Caller {
    fn new(seed: u64) -> Self {
        let mut world = World::of_two(seed);
        let (slot, channel) = (world.nodes[0].slots[0], world.nodes[0].channels[0]);
        for _ in 0..200 {
            world.pass(Duration::from_millis(1));
            world.progress(1);
        }
        Self { world, slot, channel }
    }

    fn with<R>(
        &mut self,
        call: impl FnOnce(&mut ProgressLoop<Talk>, &mut Hands<'_, crate::talks::Talks>) -> R,
    ) -> R {
        let World { wire, nodes, .. } = &mut self.world;
        call(&mut nodes[0].endpoint, &mut Hands { node: 0, wire })
    }

    fn submit(&mut self) {
        self.submit_of(16);
    }

    fn submit_of(&mut self, len: usize) {
        let (slot, now) = (self.slot, self.world.moment());
        let message = Message { seed: 7, len };
        self.with(|endpoint, hands| endpoint.submit(hands, slot, &message, now)).unwrap();
    }

    fn plan(&mut self, urgency: Urgency) {
        let (slot, now) = (self.slot, self.world.moment());
        let planned = Planned { kind: 0, urgency };
        self.with(|endpoint, hands| endpoint.with(hands, slot, now, |talk, _| talk.plan(planned)));
    }

    fn must_send_first(&self) -> bool {
        self.world.nodes[0].endpoint.must_send_first()
    }

    /// How many packets both nodes have posted.
    fn packets(&self) -> u64 {
        self.world.wire.faults.count(Fault::PacketWritten)
    }
}

#[test]
fn a_short_message_leaves_in_its_call_and_the_next_ones_share_the_packet_of_the_next_poll() {
    for seed in 0..20 {
        let mut caller = Caller::new(seed);
        caller.world.progress(0);
        let before = caller.packets();
        caller.submit();
        assert_eq!(caller.packets(), before + 1, "seed {seed}");
        caller.submit();
        caller.submit();
        assert_eq!(caller.packets(), before + 1, "seed {seed}");
        caller.world.progress(0);
        assert_eq!(caller.packets(), before + 2, "seed {seed}");
    }
}

/// Over sockets the post of a long part copies it, and the peer would wait for that.
#[test]
fn due_frames_leave_before_a_long_message_is_posted_and_otherwise_in_the_next_poll() {
    for seed in 0..20 {
        for (len, left) in [(LONG, 1), (LONG - 1, 0)] {
            let mut caller = Caller::new(seed);
            caller.world.progress(0);
            caller.plan(Urgency::Urgent);
            let before = caller.packets();
            caller.submit_of(len);
            assert_eq!(caller.packets(), before + left, "seed {seed}");
            let parts = &caller.world.wire.data.parts;
            assert_eq!(parts.len(), 1, "seed {seed}");
            assert_eq!(parts[0].packets_before, before + left, "seed {seed}");
            caller.world.progress(0);
            assert_eq!(caller.packets(), before + 1, "seed {seed}");
        }
    }
}

#[test]
fn a_frame_that_a_peer_waits_for_leaves_when_it_is_asked_to_and_is_reported_until_then() {
    for seed in 0..20 {
        let mut caller = Caller::new(seed);
        assert!(!caller.must_send_first(), "seed {seed}: nothing is to be sent");
        caller.plan(Urgency::Waited);
        assert!(caller.must_send_first(), "seed {seed}");
        let before = caller.packets();
        let (slot, now) = (caller.slot, caller.world.moment());
        caller.with(|endpoint, hands| endpoint.send_urgent(hands, slot, now));
        assert_eq!(caller.packets(), before + 1, "seed {seed}");
        assert!(!caller.must_send_first(), "seed {seed}");
    }
}

#[test]
fn frames_that_no_peer_waits_for_delay_no_report() {
    let mut caller = Caller::new(1);
    let until = caller.world.moment().plus(Duration::from_secs(1));
    caller.plan(Urgency::Lazy { until, joins: true });
    assert!(!caller.must_send_first());
}

#[test]
fn a_message_in_an_open_packet_and_one_whose_post_was_refused_are_to_be_sent_first() {
    for seed in 0..20 {
        let mut caller = Caller::new(seed);
        caller.world.progress(0);
        caller.submit();
        assert!(!caller.must_send_first(), "seed {seed}: it has left");
        caller.submit();
        assert!(caller.must_send_first(), "seed {seed}: its packet is open");
        caller.world.progress(0);
        assert!(!caller.must_send_first(), "seed {seed}");
        caller.world.progress(0);
        caller.world.wire.setup.refuse = 100;
        caller.submit();
        assert!(caller.must_send_first(), "seed {seed}: its post was refused");
        caller.world.wire.setup.refuse = 0;
        caller.world.progress(0);
        assert!(!caller.must_send_first(), "seed {seed}");
    }
}

#[test]
fn a_refusal_is_to_be_sent_first() {
    let mut caller = Caller::new(2);
    let (slot, channel) = (caller.slot, caller.channel);
    let to = caller.world.nodes[0].endpoint.connection(slot).unwrap().to();
    let refused = Refused { to, why: Refusal::Closed, detail: 0 };
    caller.with(|endpoint, _| endpoint.refuse(channel, refused));
    assert!(caller.must_send_first());
    caller.world.progress(0);
    assert!(!caller.must_send_first());
}

/// The end is reported to the connections only later.
#[test]
fn no_message_is_taken_once_the_channel_is_to_end() {
    let mut caller = Caller::new(4);
    let (slot, channel, now) = (caller.slot, caller.channel, caller.world.moment());
    caller.world.progress(0);
    let before = caller.packets();
    caller.with(|endpoint, _| endpoint.end(channel));
    let message = Message { seed: 7, len: 16 };
    let submitted = caller.with(|endpoint, hands| endpoint.submit(hands, slot, &message, now));
    assert_eq!(submitted.map(drop), Err(SubmitError::Ended));
    assert_eq!(caller.packets(), before);
}

/// Parts and letters: also those for a connection that was there before.
#[test]
fn parts_and_letters_for_no_connection_are_counted_and_dropped() {
    let mut caller = Caller::new(3);
    let Name { slot, generation } =
        caller.world.nodes[1].endpoint.connection(caller.slot).unwrap().to();
    let event = Happened::Arrived { rail: 0 };
    let strays = [
        Event::Arrived { connection: u16::MAX, event },
        Event::Connection { slot, generation: generation.next(), event },
        Event::Arrived { connection: u16::MAX, event },
    ];
    for (count, stray) in (1..).zip(strays) {
        caller.world.wire.nodes[0].events.push_back(stray);
        caller.world.progress(0);
        let endpoint = &caller.world.nodes[0].endpoint;
        assert_eq!(endpoint.stale(), count);
        assert_eq!(endpoint.connection(slot).unwrap().parts_seen, 0);
    }
    let (before, channel) = (caller.world.nodes[0].endpoint.stale(), caller.channel);
    caller.world.forge_letters(0, channel);
    caller.world.progress(0);
    assert_eq!(caller.world.nodes[0].endpoint.stale(), before + 2);
    assert_eq!(caller.world.wire.nodes[0].outcomes[channel.0 as usize], None);
}
