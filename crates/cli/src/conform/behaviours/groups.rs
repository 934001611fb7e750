//! Grouped receives, where maxRecvs allows them.

use super::super::behaviour::{Behaviour, two};
use super::super::case::{Case, Outcome};
use super::super::groups::{GroupIncoming, GroupOutgoing, Plan};
use super::super::link::Link;
use super::super::traffic::{Message, drive};
use super::group_most;

pub(in super::super) const ALL: &[Behaviour] = &[
    two(
        "group-of-every-size",
        "a grouped receive of 1 to maxRecvs completes when all its messages came, sent in reverse order of tags",
        "NCCL src/transport/net.cc:1470-1512",
        group_of_every_size,
    ),
    two(
        "group-sizes-are-reported-each",
        "test fills one size per receive of the group, and no more",
        "NCCL src/transport/net.cc:1617-1620",
        group_sizes_are_reported_each,
    ),
    two(
        "groups-of-differing-sizes",
        "groups of differing numbers of receives follow one another",
        "NCCL src/transport/net.cc:1470-1512 (as many as are ready)",
        groups_of_differing_sizes,
    ),
    two(
        "group-with-one-tag",
        "with one tag in all receives of a group, messages match them in order",
        "NCCL plugins/net/README.md (irecv: matching)",
        group_with_one_tag,
    ),
    two(
        "groups-outstanding-together",
        "with several groups posted, the n-th send of a tag belongs to the n-th group that has it",
        "NCCL plugins/net/README.md (irecv: matching)",
        groups_outstanding_together,
    ),
    two(
        "groups-with-different-tags",
        "two groups outstanding have different tags, and the second one's sends are tried first",
        "NCCL plugins/net/README.md (irecv: tags pick a place in the first unfinished group)",
        groups_with_different_tags,
    ),
    two(
        "group-tags-above-16-bits",
        "tags that agree in their low 16 bits distinguish receives of a group",
        "NCCL src/transport/net.cc:1414, 1575 (tag = rank)",
        group_tags_above_16_bits,
    ),
    two(
        "group-tags-below-zero",
        "negative tags distinguish receives of a group",
        "NCCL plugins/net/README.md (tag is an int)",
        group_tags_below_zero,
    ),
    two(
        "group-with-empty-messages",
        "messages of no bytes take their places in a group",
        "NCCL src/transport/net.cc:1414, 1470-1512",
        group_with_empty_messages,
    ),
    two(
        "group-of-large-messages",
        "a group of 1 MiB messages arrives whole",
        "NCCL src/transport/net.cc:1470-1512",
        group_of_large_messages,
    ),
    two(
        "groups-and-singles-in-turn",
        "groups and single receives alternate on one comm",
        "NCCL src/transport/net.cc:1470-1512",
        groups_and_singles_in_turn,
    ),
    two(
        "groups-in-a-window-of-eight",
        "eight groups are outstanding together, and all their sends: 32 times maxRecvs sends are allowed for",
        "NCCL plugins/net/README.md; NCCL src/transport/net_ib/common.h:304",
        groups_in_a_window_of_eight,
    ),
];

/// Makes groups that fit the plugin's maxRecvs, and moves them in both directions. The first window of groups is posted before anything is
/// sent, and all its sends before anything is tested.
fn groups(
    case: &mut Case,
    window: usize,
    make: impl FnOnce(usize) -> Vec<Vec<Message>>,
) -> Outcome {
    let net = case.net()?;
    let most = group_most(&net)?;
    let plan = Plan::new(make(most));
    let link = Link::open(case, &net)?;
    let mut into = GroupIncoming::new(&link.receive, case.source(), &plan, window)?;
    let mut out = GroupOutgoing::new(&link.send, case.role(), &plan, true)?;
    into.fill(case)?;
    case.meet("a window of groups is posted")?;
    out.fill(case, window, || into.poll().map(drop))?;
    drive(case, "move groups", &mut [&mut out, &mut into])?;
    out.end()?;
    into.end()?;
    case.meet("all groups are done")?;
    link.close()?;
    Ok(net.finalize()?)
}

fn tag(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// One group of `count` receives with tags 0, 2, 4…, as NCCL posts them.
fn even_tags(count: usize, bytes: impl Fn(usize) -> usize) -> Vec<Message> {
    (0..count)
        .map(|place| Message::of(bytes(place)).in_room(bytes(place) + 100).tagged(tag(2 * place)))
        .collect()
}

fn group_of_every_size(case: &mut Case) -> Outcome {
    groups(case, 1, |most| (1..=most).map(|count| even_tags(count, |place| 1000 + place)).collect())
}

fn group_sizes_are_reported_each(case: &mut Case) -> Outcome {
    groups(case, 1, |most| {
        (0..10)
            .map(|round| {
                let bytes = |place| (place * 1237 + round * 811) % 4000;
                even_tags(most, bytes).into_iter().map(|message| message.in_room(4096)).collect()
            })
            .collect()
    })
}

fn groups_of_differing_sizes(case: &mut Case) -> Outcome {
    groups(case, 3, |most| {
        (0..24)
            .map(|round| even_tags(1 + round * 5 % most, |place| (round * 401 + place * 97) % 9000))
            .collect()
    })
}

fn group_with_one_tag(case: &mut Case) -> Outcome {
    groups(case, 2, |most| {
        (0..6)
            .map(|round| {
                (0..most)
                    .map(|place| Message::of(100 * round + place).in_room(1000).tagged(4))
                    .collect()
            })
            .collect()
    })
}

fn groups_outstanding_together(case: &mut Case) -> Outcome {
    groups(case, 4, |most| {
        (0..20).map(|round| even_tags(most, |place| round * 50 + place)).collect()
    })
}

fn groups_with_different_tags(case: &mut Case) -> Outcome {
    groups(case, 2, |most| {
        let half = most.min(4);
        (0..12)
            .map(|round| {
                let base = tag(round % 2 * 100);
                (0..half)
                    .map(|place| Message::of(500 + round).in_room(1000).tagged(base + tag(place)))
                    .collect()
            })
            .collect()
    })
}

fn group_tags_above_16_bits(case: &mut Case) -> Outcome {
    groups(case, 1, |most| {
        (0..5)
            .map(|round| {
                (0..most)
                    .map(|place| Message::of(300 + round).tagged(7 + (tag(place) << 16)))
                    .collect()
            })
            .collect()
    })
}

fn group_tags_below_zero(case: &mut Case) -> Outcome {
    groups(case, 1, |most| {
        let tags =
            |place: usize| if place.is_multiple_of(2) { -1 - tag(place) } else { tag(place) };
        (0..5)
            .map(|round| {
                (0..most).map(|place| Message::of(300 + round).tagged(tags(place))).collect()
            })
            .collect()
    })
}

fn group_with_empty_messages(case: &mut Case) -> Outcome {
    groups(case, 2, |most| {
        (0..8).map(|round| even_tags(most, |place| (place + round) % 3 * 64)).collect()
    })
}

fn group_of_large_messages(case: &mut Case) -> Outcome {
    groups(case, 1, |most| {
        (0..2).map(|_| even_tags(most.min(8), |place| (1 << 20) + place)).collect()
    })
}

fn groups_and_singles_in_turn(case: &mut Case) -> Outcome {
    groups(case, 4, |most| {
        (0..24)
            .map(|round| {
                even_tags(if round % 2 == 0 { most } else { 1 }, |place| round * 91 + place)
            })
            .collect()
    })
}

fn groups_in_a_window_of_eight(case: &mut Case) -> Outcome {
    groups(case, 8, |most| {
        (0..40).map(|round| even_tags(most, |place| round + place * 10)).collect()
    })
}
