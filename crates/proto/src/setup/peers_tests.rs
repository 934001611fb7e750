//! The handshake of two endpoints by handles, without the progress loop: what each end accepts.

use std::time::Duration;

use super::*;
use crate::account::Account;
use crate::capabilities::ImmediateWidth;
use crate::codec::{Address, Name as Text, Writer};
use crate::connection::{Connection, Standing, Urgency};
use crate::frame::{Frame, Refusal};
use crate::ids::{Epoch, Generation, Nonce, PacketNumber, Slot};
use crate::letter;
use crate::memory::Lease;
use crate::packet::Ring;
use crate::setup::presence::Offers;
use crate::setup::proof::{Mixing, Role};
use crate::stall::WaitsFor;

const NOW: Moment = Moment::from_nanos(1);

fn presence(id: u8, fabric: &str) -> Presence {
    let address = Address::new(&[id; 16]);
    let rail = Rail { fabric: Text::cut(fabric), nic: 0, data: address.unwrap(), control: address };
    Presence {
        id: EndpointId([id; 16]),
        capabilities: Capabilities {
            immediate: ImmediateWidth::Eight,
            true_lengths: true,
            self_read: true,
            proves_arrival: false,
            messages: false,
            arrival_times: true,
            delivery_complete: true,
            virtual_addresses: true,
            largest_write: 1 << 30,
        },
        rails: vec![rail],
        host: Host { process: id.into(), ..Host::default() },
        offers: Offers { ring: Ring::LONG, inline_bytes_max: 512, shared_from: 1 << 16 },
    }
}

/// One endpoint, and its random numbers.
struct End {
    peers: Peers<Mixing>,
    seed: u64,
}

impl End {
    fn new(id: u8) -> Self {
        Self { peers: Peers::new(presence(id, "f"), Mixing), seed: u64::from(id) * 1000 }
    }

    fn listen(&mut self) -> Handle {
        let secret = Secret([self.peers.us.id.0[0] + 50; 16]);
        let control = ControlAddresses::new([&[9; 16][..]].into_iter()).unwrap();
        self.peers.listen(secret, control, 1).unwrap()
    }

    fn meet(&mut self, handle: &Handle) -> PeerId {
        self.peers.meet(handle, &mut || step(&mut self.seed))
    }

    fn hears(&mut self, bytes: &[u8]) -> Heard {
        self.peers.heard(bytes, &mut || step(&mut self.seed))
    }

    /// The HELLO that is due.
    fn first_hello(&mut self) -> Vec<u8> {
        next_hello(&self.peers, NOW).expect("a HELLO is due").bytes
    }

    fn meet_and_send(&mut self, handle: &Handle) -> Vec<u8> {
        self.meet(handle);
        self.first_hello()
    }

    /// Makes the channel, and returns the HELLO that lends its first inbox.
    fn joins(&mut self, peer: PeerId, channel: u32, key: u64) -> Vec<u8> {
        self.peers.join(peer, ChannelId(channel));
        let mut bytes = Vec::new();
        assert!(self.peers.message(ChannelId(channel), &lending(key), &mut bytes));
        bytes
    }
}

/// A HELLO that is due to a peer that is not met.
fn next_hello(peers: &Peers<Mixing>, now: Moment) -> Option<FirstHello> {
    (0..count32(peers.meetings.len())).find_map(|peer| peers.hello_to(PeerId(peer), now))
}

fn step(seed: &mut u64) -> u64 {
    *seed += 1;
    *seed
}

fn lending(key: u64) -> Letter {
    let lease = Lease { epoch: Epoch(1), nonce: Nonce(8), rail: 0, address: 4096, key: 2 };
    let consumed = PacketNumber::new(0);
    let hello = letter::Hello { lease, key: 77, consumed, echo: Epoch(0), requests_echo: true };
    Letter { key, rails: letter::RailNumbers::default(), body: Body::Hello(hello) }
}

fn name(slot: usize) -> Name {
    Name { slot: Slot::new(slot).unwrap(), generation: Generation::new(1) }
}

#[test]
fn a_handle_and_two_hellos_make_a_channel_on_both_sides() {
    let (mut one, mut other) = (End::new(1), End::new(2));
    let handle = other.listen();
    let there = one.meet(&handle);
    assert_eq!(one.meet(&handle), there, "requested again");
    let hello = one.first_hello();
    let Heard::Meets { peer: here, letter: None } = other.hears(&hello) else { panic!() };
    assert_eq!(other.hears(&hello), Heard::Meets { peer: here, letter: None }, "until it joins");
    let answer = other.joins(here, 5, 0);
    assert_eq!(other.hears(&hello), Heard::Nothing(Ignored::Known));
    let heard = one.hears(&answer);
    assert_eq!(heard, Heard::Meets { peer: there, letter: Some(lending(0)) });
    assert!(
        next_hello(&one.peers, NOW).is_some(),
        "its channel may be impossible yet, and so may ours"
    );
    let echo = one.joins(there, 6, 0);
    assert!(next_hello(&one.peers, NOW.plus(Duration::from_secs(9))).is_none());
    let expected = Heard::Letter { channel: ChannelId(5), letter: lending(0), proven: true };
    assert_eq!(other.hears(&echo), expected);
    assert_eq!(one.peers.agreement(there), other.peers.agreement(here));
    assert_eq!(one.peers.host(there).map(|host| host.process), Some(2));
    assert_eq!(other.peers.channel(here), Some(ChannelId(5)));
    assert_eq!(one.peers.peer(ChannelId(6)), Some(there));
}

/// Each side has connects to `connects` listeners of the other before a HELLO arrives.
fn hellos_that_cross(connects: usize) {
    let (mut one, mut other) = (End::new(1), End::new(2));
    let to_one: Vec<_> = (0..connects).map(|_| one.listen()).collect();
    let to_other: Vec<_> = (0..connects).map(|_| other.listen()).collect();
    let there = to_other.iter().map(|handle| one.meet(handle)).last().unwrap();
    let here = to_one.iter().map(|handle| other.meet(handle)).last().unwrap();
    let (a, b) = (one.first_hello(), other.first_hello());
    assert_eq!(one.hears(&b), Heard::Meets { peer: there, letter: None });
    assert_eq!(other.hears(&a), Heard::Meets { peer: here, letter: None });
    let (a, b) = (one.joins(there, 0, 0), other.joins(here, 0, 0));
    for (end, bytes) in [(&mut one, b), (&mut other, a)] {
        let letter = lending(0);
        let expected = Heard::Letter { channel: ChannelId(0), letter, proven: true };
        assert_eq!(end.hears(&bytes), expected);
    }
}

#[test]
fn hellos_that_cross_make_one_channel() {
    hellos_that_cross(1);
}

/// NCCL opens its channels at the same time.
#[test]
fn hellos_that_cross_are_proven_however_many_connects_are_pending() {
    hellos_that_cross(64);
}

/// The peer's control rail may be lost hours later, and its HELLO has to be proven then.
#[test]
fn a_peer_that_was_met_is_known_after_its_listener_is_forgotten() {
    let Met { mut one, mut other, handle, there, .. } = Met::new();
    let _closed = other.peers.close(handle.listener).count();
    for _ in 0..2000 {
        let another = other.listen();
        let _closed = other.peers.close(another.listener).count();
    }
    let later = one.joins(there, 6, 0);
    let expected = Heard::Letter { channel: ChannelId(5), letter: lending(0), proven: true };
    assert_eq!(other.hears(&later), expected);
    let stranger = End::new(3).meet_and_send(&handle);
    assert_eq!(other.hears(&stranger), Heard::Nothing(Ignored::Unproven));
}

/// The peer learns of listeners only by HELLOs, and may have received none since.
#[test]
fn a_hello_that_names_the_first_listener_alone_is_proven_after_many_later_connects() {
    let Met { mut one, mut other, there, here, .. } = Met::new();
    one.joins(there, 6, 0);
    for _ in 0..100 {
        let another = other.listen();
        assert_eq!(one.meet(&another), there);
    }
    let later = other.joins(here, 5, 0);
    let expected = Heard::Letter { channel: ChannelId(6), letter: lending(0), proven: true };
    assert_eq!(one.hears(&later), expected);
}

#[test]
fn an_endpoint_that_meets_itself_is_two_peers() {
    let mut end = End::new(1);
    let handle = end.listen();
    let first = end.meet(&handle);
    let hello = end.first_hello();
    let Heard::Meets { peer: second, letter: None } = end.hears(&hello) else { panic!() };
    assert_ne!(first, second);
    let answer = end.joins(second, 1, 0);
    let heard = end.hears(&answer);
    assert_eq!(heard, Heard::Meets { peer: first, letter: Some(lending(0)) });
    let echo = end.joins(first, 0, 0);
    let expected = Heard::Letter { channel: ChannelId(1), letter: lending(0), proven: true };
    assert_eq!(end.hears(&echo), expected);
    assert_eq!(end.meet(&handle), first);
}

#[test]
fn a_hello_is_repeated_with_back_off_until_the_peer_is_met() {
    let mut end = End::new(1);
    let handle = End::new(2).listen();
    end.meet(&handle);
    let mut said = Vec::new();
    for millis in 0..3000 {
        let now = Moment::from_nanos(millis * 1_000_000);
        if let Some(hello) = next_hello(&end.peers, now) {
            assert_eq!(hello.control.as_bytes(), [9; 16]);
            // A refused post is due again at once.
            assert!(next_hello(&end.peers, now).is_some());
            end.peers.hello_posted(hello.peer, now);
            said.push(millis);
        }
    }
    assert_eq!(said, [0, 20, 60, 140, 300, 620, 1260, 2260]);
}

/// Two ends meet as long as each has a control rail left, whether or not their networks are connected.
#[test]
fn hellos_to_a_handle_go_by_each_rail_of_ours_to_each_of_its_addresses() {
    let ways = |control: [bool; 3], addresses: &[&[u8]]| {
        let mut us = presence(1, "f");
        us.rails = vec![us.rails[0]; 3];
        for (rail, has) in us.rails.iter_mut().zip(control) {
            rail.control = rail.control.filter(|_| has);
        }
        let mut end = End { peers: Peers::new(us, Mixing), seed: 1 };
        let control = ControlAddresses::new(addresses.iter().copied()).unwrap();
        end.meet(&Handle { control, ..End::new(2).listen() });
        let mut found = Vec::new();
        for second in 0..12 {
            let now = Moment::from_nanos(second * 1_000_000_000);
            let hello = next_hello(&end.peers, now).unwrap();
            end.peers.hello_posted(hello.peer, now);
            found.push((hello.rail, hello.control.as_bytes()[0]));
        }
        found
    };
    let two: &[&[u8]] = &[&[7; 16], &[8; 16]];
    assert_eq!(ways([true; 3], two)[..6], [(0, 7), (1, 8), (1, 7), (2, 8), (2, 7), (0, 8)]);
    assert_eq!(ways([true; 3], two)[6..8], [(0, 7), (1, 8)]);
    assert_eq!(ways([false, true, true], two)[..4], [(1, 7), (2, 8), (2, 7), (1, 8)]);
    assert_eq!(ways([true, false, true], &two[..1])[..3], [(0, 7), (2, 7), (0, 7)]);
    assert_eq!(ways([true, false, false], two)[..3], [(0, 7), (0, 8), (0, 7)]);
}

/// The control rail at the peer's first address may have been lost between the two handles.
#[test]
fn hellos_go_to_the_addresses_in_the_newest_handle_of_a_peer_in_any_order_of_handles() {
    let handles = |peer: &mut End, order: [usize; 2]| {
        let both = [7, 8].map(|address| {
            let control = ControlAddresses::new([&[address; 16][..]].into_iter()).unwrap();
            peer.peers.listen(Secret([1; 16]), control, 1).unwrap()
        });
        order.map(|index| both[index])
    };
    for order in [[0, 1], [1, 0]] {
        let (mut end, mut peer) = (End::new(1), End::new(2));
        let [first, second] = handles(&mut peer, order);
        end.meet(&first);
        let hello = next_hello(&end.peers, NOW).unwrap();
        end.peers.hello_posted(hello.peer, NOW);
        end.meet(&second);
        let hello = next_hello(&end.peers, NOW.plus(Duration::from_secs(1))).unwrap();
        assert_eq!(hello.control.as_bytes()[0], 8, "{order:?}");
    }
}

/// As over sockets while a connection is attempted to a host that does not answer.
#[test]
fn a_hello_that_is_refused_for_20_ms_goes_another_way() {
    let mut us = presence(1, "f");
    us.rails = vec![us.rails[0]; 2];
    let mut end = End { peers: Peers::new(us, Mixing), seed: 1 };
    let peer = end.meet(&End::new(2).listen());
    let mut goes_by = |millis: u64, refused: bool| {
        let now = Moment::from_nanos(millis * 1_000_000);
        let hello = next_hello(&end.peers, now).unwrap();
        if refused {
            end.peers.hello_refused(peer, now);
        } else {
            end.peers.hello_posted(peer, now);
        }
        hello.rail
    };
    assert_eq!([0, 10, 20, 21, 40].map(|millis| goes_by(millis, true)), [0, 0, 0, 1, 1]);
    assert_eq!([41, 42].map(|millis| goes_by(millis, true)), [1, 0]);
    assert_eq!([50, 70].map(|millis| goes_by(millis, false)), [0, 1]);
}

#[test]
fn a_hello_is_due_though_that_to_an_earlier_peer_is_refused() {
    let mut end = End::new(1);
    let [refused, other] = [2, 3].map(|id| end.meet(&End::new(id).listen()));
    assert_eq!(next_hello(&end.peers, NOW).map(|hello| hello.peer), Some(refused));
    for peer in [other, refused] {
        assert_eq!(end.peers.hello_to(peer, NOW).map(|hello| hello.peer), Some(peer));
        end.peers.hello_posted(peer, NOW);
        assert_eq!(end.peers.hello_to(peer, NOW), None);
    }
    assert_eq!(next_hello(&end.peers, NOW), None);
}

#[test]
fn a_peer_without_a_secret_of_ours_makes_no_channel_and_is_not_remembered() {
    let mut other = End::new(2);
    let handle = other.listen();
    let forged = Handle { secret: Secret([1; 16]), ..handle };
    let unknown = Handle { listener: ListenerId(99), ..handle };
    let elsewhere = Handle { endpoint: EndpointId([3; 16]), ..handle };
    for wrong in [forged, unknown, elsewhere] {
        let mut one = End::new(1);
        one.meet(&wrong);
        let hello = one.first_hello();
        assert_eq!(other.hears(&hello), Heard::Nothing(Ignored::Unproven));
        assert!(other.peers.meetings.is_empty());
    }
    assert!(matches!(other.hears(&[1; 99]), Heard::Nothing(Ignored::Bytes(_))));
}

/// `connect` of that version refuses our handle before it sends anything.
#[test]
fn a_request_of_version_1_is_no_message() {
    let mut request = Writer::default();
    request.field(1, &77_u64.to_le_bytes());
    request.field(2, &[9; 16]);
    let heard = End::new(1).hears(&request.seal_as(1, 1).unwrap());
    let version = HandshakeError::Version { theirs: 1 };
    assert_eq!(heard, Heard::Nothing(Ignored::Bytes(version)));
}

#[test]
fn a_peers_first_nonce_is_fixed_and_it_lends_nothing_before_it_knows_ours() {
    let (mut one, mut other) = (End::new(1), End::new(2));
    let handle = other.listen();
    one.meet(&handle);
    let hello = one.first_hello();
    let Heard::Meets { peer: here, .. } = other.hears(&hello) else { panic!() };
    other.joins(here, 5, 0);
    let mut again = End { seed: 555, ..End::new(1) };
    again.meet(&handle);
    let hello = again.first_hello();
    assert_eq!(other.hears(&hello), Heard::Nothing(Ignored::Unproven), "another nonce");
    // The right nonce, and an inbox, although the peer has never seen our nonce.
    let meeting = &one.peers.meetings[0];
    let bold = meeting.hello(&one.peers.us, Some(&lending(0)), &Mixing).encode().unwrap();
    assert_eq!(other.hears(&bold), Heard::Nothing(Ignored::Known));
}

#[test]
fn a_late_hello_makes_no_second_channel_after_the_first_has_ended() {
    let (mut one, mut other) = (End::new(1), End::new(2));
    let handle = other.listen();
    one.meet(&handle);
    let hello = one.first_hello();
    let Heard::Meets { peer: here, .. } = other.hears(&hello) else { panic!() };
    other.joins(here, 5, 0);
    other.peers.ended(ChannelId(5));
    assert_eq!(other.hears(&hello), Heard::Nothing(Ignored::Known));
    assert_eq!(other.peers.close(handle.listener).count(), 0);
    assert_eq!(other.hears(&hello), Heard::Nothing(Ignored::Known));
}

#[test]
fn ends_without_a_common_rail_do_not_meet() {
    let (mut one, mut other) = (End::new(1), End::new(2));
    one.peers.us = presence(1, "g");
    let handle = other.listen();
    one.meet(&handle);
    let hello = one.first_hello();
    let Heard::Nothing(Ignored::NoRail(peer)) = other.hears(&hello) else { panic!() };
    assert_eq!(
        (other.peers.apart(peer), other.peers.agreement(peer)),
        (Some(&Apart::Networks), None)
    );
}

/// Two ends of which one has connected to the other, which has answered; the channel is 5 there.
struct Met {
    one: End,
    other: End,
    handle: Handle,
    /// Each end's id of the other.
    there: PeerId,
    here: PeerId,
}

impl Met {
    fn new() -> Self {
        Self::between(End::new(1), End::new(2))
    }

    fn between(mut one: End, mut other: End) -> Self {
        let handle = other.listen();
        let there = one.meet(&handle);
        let hello = one.first_hello();
        let Heard::Meets { peer: here, .. } = other.hears(&hello) else { panic!() };
        let answer = other.joins(here, 5, 0);
        one.hears(&answer);
        Self { one, other, handle, there, here }
    }
}

/// Two ends whose channel is made: 6 at the one, 5 at the other.
fn met() -> (End, End, Handle, PeerId) {
    let Met { mut one, other, handle, there, .. } = Met::new();
    one.joins(there, 6, 0);
    (one, other, handle, there)
}

fn open_of(flow: &mut Flow) -> Open {
    let Flow::Connecting(connecting) = flow else { panic!("it is open already") };
    match connecting.next_frame(16, NOW) {
        Some(Frame::Open(open)) => open,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_open_is_proven_by_its_listener_and_answered_by_accept() {
    let (one, mut other, handle, there) = met();
    let features = Features { groups: true, fin_only: false };
    let mut flow = one.peers.connecting(there, name(3), &handle, features).unwrap();
    let open = open_of(&mut flow);
    assert_eq!(other.peers.open_arrived(ChannelId(5), &open), None);
    let forged = Open { proof: [1, 2], ..open };
    let refused = other.peers.open_arrived(ChannelId(5), &forged).unwrap();
    assert_eq!(refused.why, Refusal::Proof);
    let queued = other.peers.accept(handle.listener).unwrap();
    assert_eq!(other.peers.accept(handle.listener), None);
    let Some(Flow::Receive(accepted)) = other.peers.accepting(&queued, name(8), features, 99)
    else {
        panic!("it can be accepted");
    };
    let terms = *accepted.terms();
    assert_eq!((terms.own, terms.peer, terms.grouped), (name(8), name(3), true));
    assert_eq!((terms.inline.unadvertised, terms.inline.host), (99, 512));
}

#[test]
fn a_closed_listener_refuses_queued_and_later_opens() {
    let (one, mut other, handle, there) = met();
    let features = Features::default();
    let mut flows =
        [1, 2].map(|slot| one.peers.connecting(there, name(slot), &handle, features).unwrap());
    let [early, late] = flows.each_mut().map(open_of);
    assert_eq!(other.peers.open_arrived(ChannelId(5), &early), None);
    let refused: Vec<_> = other.peers.close(handle.listener).collect();
    let expected = Refused { to: name(1), why: Refusal::Closed, detail: 0 };
    assert_eq!(refused, [(ChannelId(5), expected)]);
    let refused = other.peers.open_arrived(ChannelId(5), &late).unwrap();
    assert_eq!(refused, Refused { to: name(2), ..expected });
    assert_eq!(other.peers.accept(handle.listener), None);
}

/// What the progress loop and stall reports ask of it.
#[test]
fn a_connect_sends_its_open_then_waits_for_accept_and_is_lost_if_the_listener_is_closed() {
    let (one, mut other, handle, there) = met();
    let mut flow = one.peers.connecting(there, name(3), &handle, Features::default()).unwrap();
    let mut account = Account::new(1);
    let stands = |flow: &Flow| {
        let Standing { urgency, waits, .. } = flow.standing(&Account::new(1), NOW);
        (urgency, waits, flow.connection_state().waits_for)
    };
    assert_eq!(stands(&flow), (Urgency::Waited, false, WaitsFor::Room));
    let open = open_of(&mut flow);
    assert_eq!(stands(&flow), (Urgency::Nothing, true, WaitsFor::Accept));
    assert!(flow.connection_state().open && flow.is_quiet() && !flow.is_lost());
    assert_eq!(other.peers.close(handle.listener).count(), 0);
    let refused = other.peers.open_arrived(ChannelId(5), &open).unwrap();
    assert_eq!(flow.received(&Frame::Refused(refused), &mut account, NOW), Ok(None));
    assert!(flow.is_lost() && !flow.is_over());
    flow.close(&mut account);
    assert!(flow.is_over());
}

/// A handle is enough for HELLOs under any number of names.
#[test]
fn a_hello_of_one_peer_too_many_is_dropped_and_known_peers_continue() {
    let mut other = End::new(2);
    other.peers.most = 2;
    let handle = other.listen();
    let hellos = [3, 4, 5].map(|id| End::new(id).meet_and_send(&handle));
    for hello in &hellos[..2] {
        assert!(matches!(other.hears(hello), Heard::Meets { .. }));
    }
    assert_eq!(other.hears(&hellos[2]), Heard::Nothing(Ignored::Full));
    assert!(matches!(other.hears(&hellos[0]), Heard::Meets { .. }));
    assert_eq!(other.peers.meetings.len(), 2);
}

/// The longest HELLO has to fit a message, and an end may know only one of the listeners.
#[test]
fn a_hello_names_the_oldest_and_the_newest_listeners_of_each_role_once() {
    let (mut one, mut other) = (End::new(1), End::new(2));
    let ours: Vec<_> = (0..20).map(|_| one.listen()).collect();
    let theirs: Vec<_> = (0..20).map(|_| other.listen()).collect();
    let (mut there, mut here) = (None, None);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        for _ in 0..2 {
            there = Some(one.meet(theirs));
            here = Some(other.meet(ours));
            let (a, b) = (one.first_hello(), other.first_hello());
            assert!(matches!(one.hears(&b), Heard::Meets { .. }));
            assert!(matches!(other.hears(&a), Heard::Meets { .. }));
        }
    }
    let hello = |end: &End, peer: Option<PeerId>| {
        let meeting = end.peers.meeting(peer.unwrap()).unwrap();
        let hello = meeting.hello(&end.peers.us, None, &Mixing);
        [Role::Connects, Role::Listens].map(|role| {
            let entries = hello.entries.as_slice().iter();
            let named = entries.filter(|entry| entry.role == Some(role));
            named.map(|entry| entry.listener.0).collect::<Vec<_>>()
        })
    };
    for found in [hello(&one, there), hello(&other, here)].as_flattened() {
        assert_eq!(found[..], [1, 14, 15, 16, 17, 18, 19, 20]);
    }
}

/// Two channels that were made with the same handle: a peer may send on its own what it has received on another.
#[test]
fn an_open_is_proven_on_the_channel_that_it_was_made_for_and_no_other() {
    let (one, mut other, handle, there) = met();
    let mut third = End::new(3);
    let hello = third.meet_and_send(&handle);
    let Heard::Meets { peer, .. } = other.hears(&hello) else { panic!() };
    other.joins(peer, 9, 0);
    let open =
        open_of(&mut one.peers.connecting(there, name(3), &handle, Features::default()).unwrap());
    let refused = other.peers.open_arrived(ChannelId(9), &open).map(|refused| refused.why);
    assert_eq!(refused, Some(Refusal::Proof));
    assert_eq!(other.peers.waiting(handle.listener), None);
    assert_eq!(other.peers.open_arrived(ChannelId(5), &open), None);
    assert_eq!(other.peers.waiting(handle.listener), Some(ChannelId(5)));
}

#[test]
fn an_open_of_a_channel_that_has_ended_is_not_accepted() {
    let (one, mut other, handle, there) = met();
    let mut flow = one.peers.connecting(there, name(3), &handle, Features::default()).unwrap();
    assert_eq!(other.peers.open_arrived(ChannelId(5), &open_of(&mut flow)), None);
    other.peers.ended(ChannelId(4));
    assert_eq!(other.peers.waiting(handle.listener), Some(ChannelId(5)));
    other.peers.ended(ChannelId(5));
    assert_eq!(other.peers.accept(handle.listener), None);
}

/// A data rail gets another address when it is opened again.
#[test]
fn a_hello_has_the_capabilities_that_were_found_and_the_newest_addresses() {
    let (mut one, mut other) = (End::new(1), End::new(2));
    let (address, capabilities) = (Address::new(&[77; 16]).unwrap(), one.peers.us.capabilities);
    one.peers.settle(Capabilities { immediate: ImmediateWidth::Four, ..capabilities });
    one.peers.rename(0, address);
    one.peers.rename(1, address);
    let hello = one.meet_and_send(&other.listen());
    let Heard::Meets { peer, .. } = other.hears(&hello) else { panic!() };
    assert_eq!(other.peers.rails(peer).unwrap()[0].data, address);
    let agreement = other.peers.agreement(peer).unwrap();
    assert_eq!(agreement.capabilities.immediate, ImmediateWidth::Four);
}

/// What two ends agree on, which must be the same for both.
fn agreed(ends: [Presence; 2]) -> (Agreement, Parameters) {
    let [one, mut other] = ends.map(|us| End { peers: Peers::new(us, Mixing), seed: 0 });
    other.seed = 1000;
    let Met { one, other, there, here, .. } = Met::between(one, other);
    let timeout = Duration::from_secs(9);
    let [ours, theirs] = [(&one, there), (&other, here)].map(|(end, peer)| {
        let parameters = end.peers.parameters(peer, timeout).unwrap();
        (end.peers.agreement(peer).unwrap().clone(), parameters)
    });
    assert_eq!((&ours.0, ours.1.measure_by_arrival), (&theirs.0, theirs.1.measure_by_arrival));
    ours
}

#[test]
fn both_ends_use_the_smaller_of_each_offer() {
    let small = Offers { ring: Ring::SHORT, inline_bytes_max: 100, shared_from: 1 << 12 };
    let large = Offers { ring: Ring::LONG, inline_bytes_max: 4096, shared_from: 1 << 20 };
    let of = |id, offers| Presence { offers, ..presence(id, "f") };
    for [ours, theirs] in [[small, large], [large, small]] {
        let (agreement, parameters) = agreed([of(1, ours), of(2, theirs)]);
        let Agreement { ring, inline_bytes_max, shared_from, .. } = agreement;
        assert_eq!((ring, inline_bytes_max, shared_from), (Ring::SHORT, 100, 1 << 12));
        assert_eq!(parameters.ring, Ring::SHORT);
    }
}

/// An end whose reports are not needed must not send them.
#[test]
fn speeds_are_measured_by_arrival_if_it_is_reported_and_completions_do_not_prove_it() {
    type Case = (fn(&mut Presence), bool, bool);
    let cases: [Case; 6] = [
        (|_| {}, true, true),
        (|us| us.rails.truncate(1), false, true),
        (|us| us.capabilities.arrival_times = false, false, true),
        (|us| us.capabilities.immediate = ImmediateWidth::None, false, false),
        (|us| us.capabilities.proves_arrival = true, false, true),
        (|us| us.capabilities.messages = true, false, true),
    ];
    for (at, (change, by_arrival, tries)) in cases.into_iter().enumerate() {
        let ends = [1, 2].map(|id| {
            let mut us = presence(id, "f");
            us.rails = vec![us.rails[0]; 2];
            change(&mut us);
            us
        });
        let (_, parameters) = agreed(ends);
        assert_eq!((parameters.measure_by_arrival, parameters.tries), (by_arrival, tries), "{at}");
    }
}

/// Otherwise the inboxes of all channels would share one NIC.
#[test]
fn the_first_inboxes_of_the_channels_to_many_peers_are_spread_over_the_control_rails() {
    let mut us = presence(1, "f");
    us.rails = vec![us.rails[0]; 3];
    let mut one = End { peers: Peers::new(us, Mixing), seed: 1 };
    let mut rails = Vec::new();
    for id in 2..8 {
        let mut us = presence(id, "f");
        us.rails = vec![us.rails[0]; 3];
        let mut other = End { peers: Peers::new(us, Mixing), seed: u64::from(id) };
        let handle = one.listen();
        let hello = other.meet_and_send(&handle);
        let Heard::Meets { peer, .. } = one.hears(&hello) else { panic!() };
        rails.push(one.peers.parameters(peer, Duration::from_secs(1)).unwrap().rail);
    }
    assert_eq!(rails, [0, 1, 2, 0, 1, 2]);
}
