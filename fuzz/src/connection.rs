//! Targets of wire version 2: HELLO, the handle, and both flows of a connection whose peer is hostile.

use proto::Line;
use proto::capabilities::{Capabilities, ImmediateWidth};
use proto::codec::{ENVELOPE_BYTES, check_of};
use proto::connection::Which;
use proto::credit::CHANNEL_BYTES;
use proto::frame::FRAME_WORDS_MAX;
use proto::limits::HANDLE_BYTES;
use proto::packet::Ring;
use proto::receive::Place;
use proto::send::Outgoing;
use proto::setup::{
    EndpointId, HANDLE_ADDRESS_BYTES, Handle, Heard, Hello, Host, MAX_HELLO_BYTES, Offers, Peers,
    Presence,
};
use proto::split::Cutting;
use proto::window::WINDOW;
use proto::{
    Account, Frame, Immediate, InlineLimits, Moment, Name, Posting, Receive, ReceiveFlow,
    ReceivePoll, SendFlow, SendPoll, Source, Submit, Target, Terms,
};

use super::Script;

/// What listen wrote and NCCL's bootstrap carried. One byte says whether the check is made to fit.
pub(super) fn handle(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else { return };
    let mut bytes = [0; HANDLE_BYTES];
    for (place, byte) in bytes.iter_mut().zip(rest) {
        *place = *byte;
    }
    if mode & 1 != 0 {
        bytes[..8].copy_from_slice(b"Ironrail");
        bytes[12..16].fill(0);
        let check = check_of(&bytes[..HANDLE_BYTES - 16]);
        bytes[12..16].copy_from_slice(&check.to_le_bytes());
    }
    if let Ok(handle) = Handle::decode(&bytes) {
        for turn in 0..2 {
            assert!(handle.control.at(turn).as_bytes().len() <= HANDLE_ADDRESS_BYTES);
        }
        assert_eq!(Handle::decode(&handle.encode()), Ok(handle));
    }
}

/// A two-sided message. One byte says whether magic, length and check are made to fit.
pub(super) fn hello(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else { return };
    let mut bytes = rest.to_vec();
    if mode & 1 != 0 && bytes.len() >= ENVELOPE_BYTES {
        bytes[..4].copy_from_slice(b"IRRL");
        let len = u32::try_from(bytes.len()).expect("inputs are short");
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..16].fill(0);
        let check = check_of(&bytes);
        bytes[12..16].copy_from_slice(&check.to_le_bytes());
    }
    let mut peers = Peers::new(presence(), Never);
    let heard = peers.heard(&bytes, &mut || 1);
    assert!(matches!(heard, Heard::Nothing(_)), "no peer is known");
    if let Ok(hello) = Hello::decode(&bytes) {
        let us = EndpointId([1; 16]);
        assert!(!hello.is_proven(&us, Some(1), |_, _| None, &Never), "nothing proves it");
        let again = hello.encode().expect("what was read can be written");
        assert!(again.len() <= MAX_HELLO_BYTES);
        assert_eq!(Hello::decode(&again), Ok(hello));
    }
}

fn presence() -> Presence {
    Presence {
        id: EndpointId([1; 16]),
        capabilities: Capabilities {
            immediate: ImmediateWidth::Eight,
            true_lengths: true,
            self_read: true,
            proves_arrival: false,
            messages: false,
            arrival_times: true,
            delivery_complete: true,
            virtual_addresses: true,
            largest_write: 1 << 20,
        },
        rails: Vec::new(),
        host: Host::default(),
        offers: Offers { ring: Ring::LONG, inline_bytes_max: 0, shared_from: 0 },
    }
}

/// No listener is open, so no proof is asked for.
struct Never;

impl proto::setup::Prove for Never {
    fn prove(&self, _: &proto::setup::Secret, _: &[u64]) -> proto::setup::Proof {
        panic!("no secret is known");
    }
}

fn terms(script: &mut Script<'_>) -> Terms {
    let rails = 1 + script.small(16) as usize;
    let unadvertised = [0, 64, 4096][script.small(3) as usize];
    Terms {
        peer: Name::default(),
        own: Name::default(),
        cutting: Cutting::new(rails, 1 << script.small(20), 128 << script.small(24))
            .expect("there are rails, and a write holds a part"),
        grouped: script.small(2) == 0,
        immediates: [ImmediateWidth::None, ImmediateWidth::Four, ImmediateWidth::Eight]
            [script.small(3) as usize],
        true_lengths: script.small(2) == 0,
        delivery: true,
        proves_arrival: script.small(2) == 0,
        messages: false,
        inline: InlineLimits { unadvertised, host: unadvertised.max(64) },
    }
}

/// A frame as a peer would write it, near the lines that the flow has, or as a hostile peer would.
fn frame(script: &mut Script<'_>, near: Line) -> Option<Frame> {
    let mut words = [0; FRAME_WORDS_MAX];
    words.iter_mut().for_each(|word| *word = script.word());
    if script.small(4) != 0 {
        let line = near.plus(script.small(80).wrapping_sub(8));
        words[0] = words[0] & 0xffff_ffff | u64::from(line.number()) << 32;
        words[1] &= 0xffff;
        if words[0] & 15 == 4 {
            words[1] &= 3;
        }
        if words[0] & 15 == 5 {
            words[2] = u64::from(near.plus(script.small(3)).number());
        }
    }
    Frame::decode(&words).ok()
}

/// A sender and a receiver, each of which hears whatever the script says.
pub(super) fn connection(input: &[u8]) {
    let mut script = Script(input);
    let terms = terms(&mut script);
    let first = Line::FIRST.plus([0, u32::MAX - 20][script.small(2) as usize]);
    let mut sender = SendFlow::starting_at(terms, first);
    let mut receiver = ReceiveFlow::starting_at(terms, first);
    let [mut ours, mut theirs] = [(); 2].map(|()| Account::new(terms.cutting.rails));
    let keys = vec![7; terms.cutting.rails.into()];
    let (mut sends, mut receives, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    let mut now = Moment::from_nanos(0);
    // A breach fails the channel, and nothing is heard any more.
    let mut breached = [false; 2];
    while let Some(step) = script.byte() {
        now = now.plus(std::time::Duration::from_micros(script.small(64).into()));
        match step % 9 {
            0 => {
                let len = script.word() >> script.small(64);
                let one = Receive {
                    target: Target::default(),
                    address: 0,
                    len,
                    tag: script.small(4).cast_signed(),
                    host: script.small(2) == 0,
                };
                let count = if terms.grouped { 1 + script.small(8) as usize } else { 1 };
                let how = Posting { cut: script.small(2) == 0, optional: script.small(2) == 0 };
                if let Ok(Some(line)) =
                    receiver.post(&[one; 8][..count], &keys.repeat(count), how, &theirs, now)
                {
                    receives.push((line, len));
                }
            }
            1 => {
                let (tag, len) = (script.small(4).cast_signed(), script.word() >> script.small(64));
                let host = script.small(2) == 0;
                let message = Outgoing { tag, len, source: Source::default(), host };
                match sender.submit(&message, script.small(600) as usize, &mut ours) {
                    Ok(Submit::Inline { message, .. }) => {
                        sender.inline_left(message);
                        sends.push(message);
                    }
                    Ok(Submit::Parts { message, .. }) => sends.push(message),
                    Ok(Submit::NotNow) | Err(_) => {}
                }
            }
            2 => {
                let near = receiver.done();
                if let Some(frame) = frame(&mut script, near).filter(|_| !breached[1]) {
                    let place = receiver.received(&frame, &mut theirs, now);
                    breached[1] = place.is_err();
                    if let Ok(Some(place)) = place {
                        if let Place::Parked(parked) = place {
                            theirs.parking.fill(parked, |_| 5);
                        }
                        receiver.copied(place, &mut theirs, now);
                    }
                }
            }
            3 => {
                if let Some(frame) = frame(&mut script, first).filter(|_| !breached[0]) {
                    breached[0] = sender.received(&frame, &mut ours).is_err();
                }
            }
            4 => {
                let immediate = Immediate::from_bits(script.word());
                let (rail, len) = (script.small(16), script.word() >> script.small(64));
                let rail = u8::try_from(rail).expect("below 16");
                receiver.arrived(rail, immediate, len, &mut theirs, now);
            }
            5 => {
                if let Some(write) = sender.next_part(&ours) {
                    assert!(write.len <= terms.cutting.longest);
                    sender.posted(&write, &mut ours);
                    writes.push((write.message, write.part));
                }
                if let Some((message, part)) = writes.get(script.small(64) as usize) {
                    sender.written(*message, *part, &mut ours, Moment::default());
                }
            }
            6 => {
                let words = script.small(40) as usize;
                for which in [Which::Adverts, Which::Others] {
                    for frame in [
                        sender.next_frame(which, words),
                        receiver.next_frame(which, words, &mut theirs, now),
                    ] {
                        assert!(frame.is_none_or(|frame| frame.words() <= words));
                    }
                }
                receiver.urgency(&theirs, now);
            }
            7 => {
                while let Some(copy) = receiver.next_copy(&theirs.parking) {
                    theirs.parking.read(copy.from, |_, word| assert_eq!(word, 5));
                    receiver.unparked(copy, &mut theirs, now);
                }
                match script.small(16) {
                    0 => receiver.withdraw(),
                    1 => receiver.close(&mut theirs),
                    2 => sender.close(),
                    _ => {}
                }
            }
            _ => {
                sends.retain(|message| matches!(sender.poll(*message), SendPoll::Pending));
                receives.retain(|(line, len)| match receiver.poll(*line) {
                    ReceivePoll::Done { count } => {
                        (0..count).for_each(|at| assert!(receiver.size(line.plus(at)) <= *len));
                        false
                    }
                    ReceivePoll::Pending => true,
                    ReceivePoll::Failed(_) => false,
                });
            }
        }
        assert!(theirs.parking.cost() <= CHANNEL_BYTES && ours.sent <= CHANNEL_BYTES);
        assert!(receiver.next().distance(receiver.done()) <= WINDOW);
        assert!(receiver.exposed() <= WINDOW);
    }
}
