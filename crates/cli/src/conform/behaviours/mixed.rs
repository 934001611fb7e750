//! Short and long messages mixed, sent before and after their receives are posted: errors that are likely in plugins with eager messages.

use std::thread;
use std::time::Duration;

use net_loader::raw::Net;

use super::super::behaviour::{Behaviour, two};
use super::super::case::{Case, Outcome, Stop};
use super::super::groups::{GroupIncoming, GroupOutgoing, Plan};
use super::super::link::Link;
use super::super::traffic::{Manner, Message, drive};
use super::{group_most, nudge, talk_alone, talk_in_windows};

pub(in super::super) const ALL: &[Behaviour] = &[
    two(
        "early-short-sends",
        "short sends that are tried before their receives are posted arrive whole and in order",
        "NCCL src/transport/net.cc:1414 (isend may answer null, and may not)",
        early_short_sends,
    ),
    two(
        "early-sends-fill-the-queue",
        "more short sends than a plugin can hold are tried before any receive, and none is lost",
        "NCCL src/transport/net.cc:1414 (a null request is tried again)",
        early_sends_fill_the_queue,
    ),
    two(
        "short-sends-one-at-a-time",
        "each short message is done at both ends before the next is begun",
        "NCCL src/transport/net.cc:1414, 1617-1620",
        short_sends_one_at_a_time,
    ),
    two(
        "sizes-around-eager-limits",
        "sizes around which plugins change their way of sending arrive whole, sent early",
        "NCCL src/transport/net.cc:1414 (any size up to the slot's)",
        sizes_around_eager_limits,
    ),
    two(
        "early-short-and-long-in-turn",
        "short and long messages alternate, and all keep their order",
        "NCCL plugins/net/README.md (irecv: matching)",
        early_short_and_long_in_turn,
    ),
    two(
        "transfer-of-ten-size-pairs",
        "32 requests outstanding together of each of ten pairs of sizes, sent into receives as large or larger",
        "NCCL src/include/plugin/nccl_net.h:37; NCCL src/transport/net.cc:1550",
        transfer_of_ten_size_pairs,
    )
    .within(60),
    two(
        "transfer-by-four-threads",
        "32 requests of each of ten pairs of sizes by four threads at once, each with its communicator",
        "NCCL src/proxy.cc:954, 1035 (a progress thread per communicator)",
        transfer_by_four_threads,
    )
    .within(60),
    two(
        "early-sends-of-a-group",
        "all messages of a group are short and tried before it is posted",
        "NCCL src/transport/net.cc:1470-1512",
        early_sends_of_a_group,
    ),
    two(
        "early-short-and-long-in-a-group",
        "a group has short and long messages, tried before it is posted",
        "NCCL src/transport/net.cc:1470-1512",
        early_short_and_long_in_a_group,
    ),
    two(
        "early-sends-over-a-single-and-a-group",
        "short sends run ahead over a single receive and the group behind it",
        "NCCL plugins/net/README.md (irecv: matching)",
        early_sends_over_a_single_and_a_group,
    ),
    two(
        "early-sends-of-a-later-group",
        "sends whose tags only a later group has are tried first, and wait for it",
        "NCCL plugins/net/README.md (irecv: tags pick a place in the first unfinished group)",
        early_sends_of_a_later_group,
    ),
    two(
        "every-mixture-over-two-groups",
        "two tags over two groups, in all sixteen mixtures of short and long",
        "NCCL plugins/net/README.md (irecv: matching)",
        every_mixture_over_two_groups,
    ),
    two(
        "order-of-a-tag-over-four-groups",
        "each tag's messages keep their order over four groups that are outstanding together",
        "NCCL plugins/net/README.md (irecv: matching)",
        order_of_a_tag_over_four_groups,
    ),
    two(
        "mixtures-over-three-groups",
        "three groups of as many receives as there may be take all short, all long and mixed messages",
        "NCCL src/transport/net.cc:1470-1512",
        mixtures_over_three_groups,
    ),
    two(
        "singles-and-groups-with-early-sends",
        "singles and groups alternate under sends that run ahead",
        "NCCL src/transport/net.cc:1470-1512",
        singles_and_groups_with_early_sends,
    ),
    two(
        "rotated-tags-fill-the-queue",
        "tags in another order than their receives fill the queue, and each receive gets its own size",
        "NCCL plugins/net/README.md (irecv: matching)",
        rotated_tags_fill_the_queue,
    ),
    two(
        "groups-uniform-and-varied-in-turn",
        "groups of one size and groups of many follow one another, twelve of them, five times",
        "NCCL src/transport/net.cc:1470-1512",
        groups_uniform_and_varied_in_turn,
    ),
    two(
        "groups-of-an-alltoall",
        "thirteen phases of groups of growing and shrinking numbers and sizes, as an all-to-all posts them",
        "NCCL src/transport/net.cc:862-878 (shared comms), 1470-1512",
        groups_of_an_alltoall,
    ),
];

/// Sizes that most plugins send eagerly, and one that none does.
const SHORT: [usize; 4] = [8, 0, 100, 4000];
const LONG: usize = 100_000;
/// How long senders run ahead of the receives.
const HEAD_START: Duration = Duration::from_millis(20);

/// Moves groups in both directions. The sends are attempted for a while before the first receive is posted.
fn early(case: &mut Case, link: &Link, groups: Vec<Vec<Message>>, window: usize) -> Outcome {
    let plan = Plan::new(groups);
    let mut into = GroupIncoming::new(&link.receive, case.source(), &plan, window)?;
    let mut out = GroupOutgoing::new(&link.send, case.role(), &plan, true)?;
    case.meet("both have registered")?;
    case.stage("send early");
    // On a slow machine too, every send is tried before the first receive.
    for _ in plan.messages() {
        nudge(&mut [&mut out])?;
    }
    case.during(HEAD_START, || nudge(&mut [&mut out]))?;
    drive(case, "receive what was sent early", &mut [&mut out, &mut into])?;
    out.end()?;
    into.end()?;
    case.meet("all messages are done")
}

/// Opens a communicator and a connection for `run`, which gets maxRecvs.
fn with_link(
    case: &mut Case,
    grouped: bool,
    run: impl FnOnce(&mut Case, &Link, usize) -> Outcome,
) -> Outcome {
    let net = case.net()?;
    let most = if grouped { group_most(&net)? } else { 1 };
    let link = Link::open(case, &net)?;
    run(case, &link, most)?;
    link.close()?;
    Ok(net.finalize()?)
}

fn message(bytes: usize, tag: usize) -> Message {
    Message::of(bytes).in_room(bytes + 64).tagged(i32::try_from(tag).unwrap_or(i32::MAX))
}

fn short(number: usize) -> usize {
    SHORT[number % SHORT.len()] + number % 7
}

fn singles(count: usize, bytes: impl Fn(usize) -> usize) -> Vec<Vec<Message>> {
    (0..count).map(|number| vec![message(bytes(number), 0)]).collect()
}

fn early_short_sends(case: &mut Case) -> Outcome {
    with_link(case, false, |case, link, _| {
        (0..3).try_for_each(|_| early(case, link, singles(8, short), 8))
    })
}

fn early_sends_fill_the_queue(case: &mut Case) -> Outcome {
    with_link(case, false, |case, link, _| {
        (0..2).try_for_each(|_| early(case, link, singles(200, short), 32))
    })
}

fn short_sends_one_at_a_time(case: &mut Case) -> Outcome {
    with_link(case, false, |case, link, _| {
        (0..4).try_for_each(|number| early(case, link, singles(1, |_| short(number)), 1))
    })
}

fn sizes_around_eager_limits(case: &mut Case) -> Outcome {
    let limits = [64, 192, 255, 1024, 4096, 8184, 8192, 16_384, 65_536];
    let sizes: Vec<usize> =
        limits.iter().flat_map(|limit| [limit - 1, *limit, limit + 1]).collect();
    with_link(case, false, |case, link, _| {
        early(case, link, singles(sizes.len(), |number| sizes[number]), 8)
    })
}

fn early_short_and_long_in_turn(case: &mut Case) -> Outcome {
    with_link(case, false, |case, link, _| {
        let bytes = |number: usize| if number % 3 == 1 { LONG + number } else { short(number) };
        early(case, link, singles(60, bytes), 8)
    })
}

/// Pairs of the bytes that are sent and the bytes of the receive.
const PAIRS: [(usize, usize); 10] = [
    (512, 512),
    (512, 1024),
    (4096, 4096),
    (4096, 16_384),
    (8192, 8192),
    (65_536, 65_536),
    (131_072, 262_144),
    (262_144, 262_144),
    (1 << 20, 1 << 20),
    (1 << 20, 2 << 20),
];

/// Moves 32 messages of each pair. `together`: all 32 are outstanding at once. With threads the two sides cannot meet, so as many as
/// possible are.
fn pairs(case: &Case, link: &Link, together: bool) -> Outcome {
    PAIRS.iter().try_for_each(|(sent, room)| {
        let messages = vec![Message::of(*sent).in_room(*room); 32];
        let manner = Manner { window: 32, ..Manner::LIKE_NCCL };
        if together {
            talk_in_windows(case, link, &messages, manner)
        } else {
            talk_alone(case, link, &messages, manner)
        }
    })
}

fn transfer_of_ten_size_pairs(case: &mut Case) -> Outcome {
    with_link(case, false, |case, link, _| pairs(case, link, true))
}

fn transfer_by_four_threads(case: &mut Case) -> Outcome {
    let library = case.library()?;
    let mut communicators = Vec::new();
    for number in 0..4 {
        let net = Net::init(&library, super::super::case::COMMUNICATOR + number)?;
        let link = Link::open(case, &net)?;
        communicators.push((net, link));
    }
    let shared = &*case;
    thread::scope(|scope| -> Outcome {
        let begin = |link| scope.spawn(move || pairs(shared, link, false));
        let threads: Vec<_> = communicators.iter().map(|(_, link)| begin(link)).collect();
        let died = |_| Stop::Fail("conform's thread died".to_owned());
        let ends: Vec<Outcome> =
            threads.into_iter().map(|thread| thread.join().map_err(died)?).collect();
        ends.into_iter().collect()
    })?;
    case.meet("all messages are done")?;
    for (net, link) in communicators {
        link.close()?;
        net.finalize()?;
    }
    Ok(())
}

fn early_sends_of_a_group(case: &mut Case) -> Outcome {
    with_link(case, true, |case, link, most| {
        [1, 2, most].into_iter().try_for_each(|count| {
            let group = (0..count).map(|place| message(short(place), 2 * place)).collect();
            early(case, link, vec![group], 1)
        })
    })
}

fn early_short_and_long_in_a_group(case: &mut Case) -> Outcome {
    with_link(case, true, |case, link, most| {
        let bytes = |place: usize| if place.is_multiple_of(2) { short(place) } else { LONG };
        let group: Vec<_> = (0..most).map(|place| message(bytes(place), place)).collect();
        early(case, link, vec![group; 4], 2)
    })
}

fn early_sends_over_a_single_and_a_group(case: &mut Case) -> Outcome {
    with_link(case, true, |case, link, most| {
        let single = vec![message(40, 0)];
        let group = (0..most).map(|place| message(short(place), place)).collect();
        early(case, link, vec![single.clone(), group, single], 3)
    })
}

fn early_sends_of_a_later_group(case: &mut Case) -> Outcome {
    with_link(case, true, |case, link, most| {
        // The tags are sent in reverse order of their receives.
        let group = |base: usize| -> Vec<_> {
            (0..most.min(4)).map(|place| message(short(place), base + place)).collect()
        };
        early(case, link, vec![group(0), group(100), group(0), group(200)], 4)
    })
}

fn every_mixture_over_two_groups(case: &mut Case) -> Outcome {
    with_link(case, true, |case, link, _| {
        (0..16_usize).try_for_each(|mixture| {
            let bytes = |place: usize| {
                if mixture >> place & 1 == 0 { 50 + place } else { LONG + place }
            };
            let group = |first: usize| vec![message(bytes(first), 1), message(bytes(first + 1), 2)];
            early(case, link, vec![group(0), group(2)], 2)
        })
    })
}

fn order_of_a_tag_over_four_groups(case: &mut Case) -> Outcome {
    with_link(case, true, |case, link, most| {
        let bytes = |number: usize| {
            if number % 5 == 3 { LONG + number } else { 16 * (number + 1) }
        };
        let group = |round: usize| -> Vec<_> {
            (0..most.min(4)).map(|place| message(bytes(4 * round + place), place)).collect()
        };
        early(case, link, (0..4).map(group).collect(), 4)
    })
}

fn mixtures_over_three_groups(case: &mut Case) -> Outcome {
    with_link(case, true, |case, link, most| {
        let all_short = |number: usize| short(number);
        let all_long = |number: usize| LONG + number;
        let mixed = |number: usize| if number.is_multiple_of(3) { LONG } else { short(number) };
        let kinds: [&dyn Fn(usize) -> usize; 3] = [&all_short, &all_long, &mixed];
        kinds.into_iter().try_for_each(|bytes| {
            let group = |round: usize| -> Vec<_> {
                (0..most).map(|place| message(bytes(round * most + place), place)).collect()
            };
            early(case, link, (0..3).map(group).collect(), 3)
        })
    })
}

fn singles_and_groups_with_early_sends(case: &mut Case) -> Outcome {
    with_link(case, true, |case, link, most| {
        let group = |round: usize| -> Vec<_> {
            let count = if round.is_multiple_of(2) { 1 } else { most };
            (0..count).map(|place| message(short(round + place), place)).collect()
        };
        early(case, link, (0..24).map(group).collect(), 4)
    })
}

fn rotated_tags_fill_the_queue(case: &mut Case) -> Outcome {
    with_link(case, true, |case, link, most| {
        // A tag's place changes from group to group, so that the sends of a tag never have the order of the receives.
        let group = |round: usize| -> Vec<_> {
            let tag = |place: usize| (place + round) % most;
            (0..most).map(|place| message(8 * (1 + tag(place)) + round, tag(place))).collect()
        };
        early(case, link, (0..24).map(group).collect(), 8)
    })
}

fn groups_uniform_and_varied_in_turn(case: &mut Case) -> Outcome {
    with_link(case, true, |case, link, most| {
        (0..5).try_for_each(|repeat: usize| {
            let group = |round: usize| -> Vec<_> {
                let count = 1 + (round * 5 + repeat) % most;
                let bytes = |place: usize| match round % 2 {
                    0 => 4096,
                    _ => (place * 4099 + round * 911) % (1 << 16),
                };
                (0..count).map(|place| message(bytes(place), place)).collect()
            };
            early(case, link, (0..12).map(group).collect(), 3)
        })
    })
}

fn groups_of_an_alltoall(case: &mut Case) -> Outcome {
    with_link(case, true, |case, link, most| {
        let counts = [1, 2, 4, most, most, 3, 1, most, 2, 1, 4, most, 1];
        let group = |(phase, count): (usize, usize)| -> Vec<_> {
            let bytes = (1 << (phase % 7 * 2 + 3)) + phase;
            (0..count.min(most)).map(|place| message(bytes, 2 * place)).collect()
        };
        early(case, link, counts.into_iter().enumerate().map(group).collect(), 8)
    })
}
