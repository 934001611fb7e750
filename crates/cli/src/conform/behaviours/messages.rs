//! Messages: sizes, alignment, order, pace.

use std::thread;
use std::time::Duration;

use super::super::behaviour::{Behaviour, one, two};
use super::super::case::{Case, Outcome, hold, skip};
use super::super::link::Link;
use super::super::traffic::{Flow, Incoming, Manner, Message, Outgoing, drive};
use super::{few, nudge, talk, too_long, whole, windows};

pub(in super::super) const ALL: &[Behaviour] = &[
    two(
        "message-of-no-bytes",
        "an empty message matches a receive of any size, and of none",
        "NCCL src/transport/net.cc:1414; NCCL plugins/net/README.md (isend)",
        message_of_no_bytes,
    ),
    two(
        "message-of-every-small-size",
        "messages of 1 to 300 bytes arrive whole",
        "NCCL src/transport/net.cc:1414",
        message_of_every_small_size,
    ),
    two(
        "message-sizes-around-powers",
        "messages of every power of two to 4 MiB, one byte less and one more, arrive whole",
        "NCCL src/init.cc:810-824 (buffer sizes)",
        message_sizes_around_powers,
    )
    .within(40),
    two(
        "message-of-four-mib-and-three",
        "messages of 4 MiB and 3 bytes arrive whole, a window of them outstanding",
        "NCCL src/init.cc:810-824; NCCL src/include/collectives.h:36",
        message_of_four_mib_and_three,
    )
    .within(40),
    two(
        "message-of-a-gib",
        "a message of 1 GiB arrives whole, whatever maxP2pBytes says (opt-in: --large)",
        "NCCL src/include/collectives.h:36 (NCCL_MAX_NET_SIZE); NCCL src/transport/net.cc:1398, 1550",
        message_of_a_gib,
    )
    .within(120),
    two(
        "message-at-any-address",
        "neither end's buffer need be aligned",
        "NCCL src/transport/net.cc:1398, 1550 (user buffers, slices)",
        message_at_any_address,
    ),
    two(
        "receive-of-the-exact-size",
        "a receive of exactly the message's size completes with it",
        "NCCL src/transport/net.cc:1550",
        receive_of_the_exact_size,
    ),
    two(
        "receive-larger-than-its-message",
        "receives are normally larger than what comes: a slot's size",
        "NCCL src/transport/net.cc:1550; NCCL plugins/net/README.md (irecv)",
        receive_larger_than_its_message,
    ),
    two(
        "receive-writes-only-its-message",
        "past the message's bytes the receive buffer stays as it was, and so does what lies around it",
        "NCCL src/include/device.h:75-86 (kernels poll flags inside the buffer)",
        receive_writes_only_its_message,
    ),
    two(
        "nothing-lands-after-done",
        "once a receive is done its buffer is not written again: a kernel owns it",
        "NCCL src/transport/net.cc:1617-1620",
        nothing_lands_after_done,
    ),
    two(
        "size-is-reported",
        "test reports the size of the received message, in the first entry and nowhere else",
        "NCCL src/transport/net.cc:1617-1620",
        size_is_reported,
    ),
    two(
        "receive-posted-late",
        "sends that are tried long before their receives arrive in order",
        "NCCL src/transport/net.cc:1414 (a null request is tried again)",
        receive_posted_late,
    ),
    two(
        "receive-posted-first",
        "receives that wait long before their sends get them in order",
        "NCCL src/transport/net.cc:1550 (irecv for each free slot, ahead of data)",
        receive_posted_first,
    ),
    two(
        "order-of-a-thousand",
        "a thousand messages of many sizes match their receives in posting order",
        "NCCL plugins/net/README.md (irecv: matching)",
        order_of_a_thousand,
    ),
    two(
        "window-of-eight",
        "eight requests of each end are outstanding together: NCCL_STEPS",
        "NCCL src/include/device.h:26",
        window_of_eight,
    ),
    two(
        "window-of-thirty-two",
        "32 requests of each end are outstanding together: NCCL_NET_MAX_REQUESTS",
        "NCCL src/include/plugin/nccl_net.h:37",
        window_of_thirty_two,
    ),
    two(
        "window-of-thirty-two-large",
        "32 messages of 256 KiB are outstanding together at each end",
        "NCCL src/include/plugin/nccl_net.h:37",
        window_of_thirty_two_large,
    ),
    two(
        "send-buffer-is-free-after-done",
        "when a send is done its buffer may be written again, and the receiver still gets what was sent",
        "NCCL src/transport/net.cc:1414 (a done step's slot is filled again)",
        send_buffer_is_free_after_done,
    ),
    two(
        "traffic-after-a-pause",
        "after a second without calls of the plugin, messages move as before",
        "NCCL src/proxy.cc:848-855 (the progress thread sleeps)",
        traffic_after_a_pause,
    ),
    two(
        "links-side-by-side",
        "two connections of one pair of processes carry their own messages, alternately",
        "NCCL src/proxy.cc:954 (one thread, many connections)",
        links_side_by_side,
    ),
    one(
        "too-long-send-is-contained",
        "a send larger than its receive is an error at both ends, or is cut with a warning and done at both; nothing is written past the receive",
        "NCCL plugins/net/README.md (irecv); NCCL src/transport/net_socket.cc:635-643",
        too_long::contained,
    ),
    one(
        "too-long-send-leaves-others-alone",
        "after a send that was too long, another connection still works",
        "NCCL src/transport/net_socket.cc:635-643 (an error of one comm)",
        too_long::others,
    ),
    two(
        "tags-of-a-rank",
        "all messages of a connection carry one tag, the sender's rank, or any: single receives match in order",
        "NCCL src/transport/net.cc:1414, 1575",
        tags_of_a_rank,
    ),
    two(
        "tags-above-16-bits",
        "tags are ints: ranks above 32767 and 65535 are ranks like others",
        "NCCL src/transport/net.cc:1414, 1575 (tag = rank)",
        tags_above_16_bits,
    ),
    two(
        "tags-below-zero",
        "a negative tag is a tag",
        "NCCL plugins/net/README.md (tag is an int)",
        tags_below_zero,
    ),
];

fn message_of_no_bytes(case: &mut Case) -> Outcome {
    let rooms = [0, 64, 1, 100_000];
    let messages: Vec<Message> = (0..20).map(|n| Message::of(0).in_room(rooms[n % 4])).collect();
    whole(case, &messages, Manner::LIKE_NCCL)
}

fn message_of_every_small_size(case: &mut Case) -> Outcome {
    let messages: Vec<Message> = (1..=300).map(Message::of).collect();
    whole(case, &messages, Manner::LIKE_NCCL)
}

fn message_sizes_around_powers(case: &mut Case) -> Outcome {
    let around = |power: u32| [(1 << power) - 1, 1 << power, (1 << power) + 1];
    let messages: Vec<Message> = (8..=22).flat_map(around).map(Message::of).collect();
    whole(case, &messages, Manner { window: 4, ..Manner::LIKE_NCCL })
}

fn message_of_four_mib_and_three(case: &mut Case) -> Outcome {
    whole(case, &[Message::of((4 << 20) + 3); 12], Manner::LIKE_NCCL)
}

fn message_of_a_gib(case: &mut Case) -> Outcome {
    if !case.is_large {
        return skip("not asked for: --large");
    }
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let message = [Message::of(1 << 30)];
    let manner = Manner { window: 1, ..Manner::LIKE_NCCL };
    // One direction only, which needs less memory.
    if case.role() == 0 {
        let mut out = Outgoing::new(&link.send, 0, &message, manner)?;
        drive(case, "send 1 GiB", &mut [&mut out])?;
        out.end()?;
    } else {
        let mut into = Incoming::new(&link.receive, 0, &message, manner)?;
        drive(case, "receive 1 GiB", &mut [&mut into])?;
        into.end()?;
    }
    case.meet("the message is there")?;
    link.close()?;
    Ok(net.finalize()?)
}

fn message_at_any_address(case: &mut Case) -> Outcome {
    let sizes = [1, 7, 64, 129, 4097, 100_003];
    let messages: Vec<Message> =
        (0..130).map(|n| Message::of(sizes[n % sizes.len()]).shifted(n % 65, n * 7 % 65)).collect();
    whole(case, &messages, Manner::LIKE_NCCL)
}

fn receive_of_the_exact_size(case: &mut Case) -> Outcome {
    let sizes = [1, 8, 64, 4096, 65_536, 1 << 20];
    let messages: Vec<Message> = (0..36).map(|n| Message::of(sizes[n % 6])).collect();
    whole(case, &messages, Manner::LIKE_NCCL)
}

fn receive_larger_than_its_message(case: &mut Case) -> Outcome {
    let rooms = [1, 17, 4099, 1 << 20];
    let sizes = [0, 1, 8, 4096, 65_537];
    let messages: Vec<Message> =
        (0..40).map(|n| Message::of(sizes[n % 5]).in_room(sizes[n % 5] + rooms[n % 4])).collect();
    whole(case, &messages, Manner::LIKE_NCCL)
}

fn receive_writes_only_its_message(case: &mut Case) -> Outcome {
    let messages: Vec<Message> =
        (0..60).map(|n| Message::of(n * 331).in_room(n * 331 + 5000).shifted(0, n % 17)).collect();
    whole(case, &messages, Manner { window: 4, ..Manner::LIKE_NCCL })
}

fn nothing_lands_after_done(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    let messages = vec![Message::of(60_000).in_room(70_000); 24];
    let mut out = Outgoing::new(&link.send, case.role(), &messages, Manner::LIKE_NCCL)?;
    let mut into = Incoming::new(&link.receive, case.source(), &messages, Manner::LIKE_NCCL)?;
    drive(case, "move messages", &mut [&mut out, &mut into])?;
    // `Incoming` has overwritten its buffers; they are still registered.
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    thread::sleep(Duration::from_millis(100));
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    hold!(into.is_spoilt(), "a receive buffer was written after its receive was done");
    out.end()?;
    into.end()?;
    link.close()?;
    Ok(net.finalize()?)
}

fn size_is_reported(case: &mut Case) -> Outcome {
    let messages: Vec<Message> = (0..200)
        .map(|n| Message::of(n * n % 3001).in_room(n * n % 3001 + n % 3 * 500))
        .chain([Message::of(1 << 20), Message::of(1 << 20).in_room((1 << 20) + 1)])
        .collect();
    whole(case, &messages, Manner { poisoned: true, ..Manner::LIKE_NCCL })
}

fn receive_posted_late(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    for bytes in [8, 3000, 200_000] {
        let messages = vec![Message::of(bytes).in_room(bytes + 64); 24];
        if case.role() == 0 {
            let mut out = Outgoing::new(&link.send, 0, &messages, Manner::LIKE_NCCL)?;
            out.post()?;
            case.send(b"tried")?;
            drive(case, "send early", &mut [&mut out])?;
            out.end()?;
        } else {
            case.receive("wait for the first call of isend")?;
            thread::sleep(Duration::from_millis(200));
            let mut into = Incoming::new(&link.receive, 0, &messages, Manner::LIKE_NCCL)?;
            drive(case, "receive late", &mut [&mut into])?;
            into.end()?;
        }
        case.meet("all messages are done")?;
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn receive_posted_first(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    for bytes in [8, 3000, 200_000] {
        let messages = vec![Message::of(bytes).in_room(bytes + 64); 24];
        if case.role() == 0 {
            case.receive("wait for the receives")?;
            let mut out = Outgoing::new(&link.send, 0, &messages, Manner::LIKE_NCCL)?;
            drive(case, "send late", &mut [&mut out])?;
            out.end()?;
        } else {
            let mut into = Incoming::new(&link.receive, 0, &messages, Manner::LIKE_NCCL)?;
            case.stage("receive early");
            case.during(Duration::from_millis(200), || nudge(&mut [&mut into]))?;
            hold!(into.posted() > 0, "no receive was taken in 200 ms");
            case.send(b"posted")?;
            drive(case, "receive", &mut [&mut into])?;
            into.end()?;
        }
        case.meet("all messages are done")?;
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn order_of_a_thousand(case: &mut Case) -> Outcome {
    let messages: Vec<Message> =
        (0..1000).map(|n| Message::of(n * 37 % 509 + n % 11 * 700).in_room(8192)).collect();
    windows(case, &messages, Manner::LIKE_NCCL)
}

fn window_of_eight(case: &mut Case) -> Outcome {
    windows(case, &[Message::of(100).in_room(200); 200], Manner::LIKE_NCCL)
}

fn window_of_thirty_two(case: &mut Case) -> Outcome {
    let manner = Manner { window: 32, ..Manner::LIKE_NCCL };
    windows(case, &[Message::of(100).in_room(200); 500], manner)
}

fn window_of_thirty_two_large(case: &mut Case) -> Outcome {
    let manner = Manner { window: 32, ..Manner::LIKE_NCCL };
    windows(case, &[Message::of(256 << 10).in_room(300 << 10); 96], manner)
}

fn send_buffer_is_free_after_done(case: &mut Case) -> Outcome {
    let sizes = [8, 1 << 20, 5000, 300_000];
    let messages: Vec<Message> = (0..64).map(|n| Message::of(sizes[n % 4])).collect();
    whole(case, &messages, Manner::LIKE_NCCL)
}

fn traffic_after_a_pause(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    for _ in 0..3 {
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        case.stage("call nothing for a second");
        thread::sleep(Duration::from_millis(1100));
    }
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

fn links_side_by_side(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let links = [Link::open(case, &net)?, Link::open(case, &net)?];
    let messages =
        [vec![Message::of(100).in_room(300); 200], vec![Message::of(200_000).in_room(300_000); 40]];
    let mut outs = Vec::new();
    let mut intos = Vec::new();
    for ((link, messages), salt) in links.iter().zip(&messages).zip([0, 10]) {
        outs.push(Outgoing::new(&link.send, salt + case.role(), messages, Manner::LIKE_NCCL)?);
        intos.push(Incoming::new(
            &link.receive,
            salt + case.source(),
            messages,
            Manner::LIKE_NCCL,
        )?);
    }
    let mut flows: Vec<&mut dyn Flow> = Vec::new();
    for (out, into) in outs.iter_mut().zip(&mut intos) {
        flows.push(out);
        flows.push(into);
    }
    drive(case, "move messages on two connections", &mut flows)?;
    outs.into_iter().try_for_each(Outgoing::end)?;
    intos.into_iter().try_for_each(Incoming::end)?;
    case.meet("all messages are done")?;
    links.into_iter().try_for_each(Link::close)?;
    Ok(net.finalize()?)
}

fn tags_of_a_rank(case: &mut Case) -> Outcome {
    let same = (0..40).map(|n| Message::of(n * 11).in_room(1000).tagged(5));
    let any = (0..40).map(|n| Message::of(n * 13).in_room(1000).tagged([3, 0, 9, 3][n % 4]));
    let messages: Vec<Message> = same.chain(any).collect();
    whole(case, &messages, Manner::LIKE_NCCL)
}

fn tags_above_16_bits(case: &mut Case) -> Outcome {
    let tags = [32_767, 32_768, 65_535, 65_536, 70_000, 1 << 24, i32::MAX];
    let messages: Vec<Message> =
        (0..70).map(|n| Message::of(n * 17).in_room(2000).tagged(tags[n % 7])).collect();
    whole(case, &messages, Manner::LIKE_NCCL)
}

fn tags_below_zero(case: &mut Case) -> Outcome {
    let tags = [-1, -2, -32_769, i32::MIN];
    let messages: Vec<Message> =
        (0..40).map(|n| Message::of(n * 17).in_room(2000).tagged(tags[n % 4])).collect();
    whole(case, &messages, Manner::LIKE_NCCL)
}
