//! Parts and fins: when a line is complete, how much it received, what is dropped.

mod pair;

use pair::{Pair, parameters};
use proto::{
    Arrival, FlowParameters, Immediate, Line, Path, ProtocolError, ReceivePoll, Violation, parts,
};
use proto::{RailPlan, Submit, WriteOutcome};

fn part(pair: &Pair, index: u32, last: bool) -> Immediate {
    Immediate::new(pair.parameters.comm, Line::FIRST, index, last, false, 500)
}

fn posted(parameters: FlowParameters) -> Pair {
    let mut pair = Pair::new(parameters);
    pair.post(&[(1000, 0)], false);
    pair.advertise();
    pair
}

fn permutations(items: &[u32]) -> Vec<Vec<u32>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let mut rest = items.to_vec();
        rest.remove(index);
        all.extend(permutations(&rest).into_iter().map(|tail| [&[*item], &tail[..]].concat()));
    }
    all
}

#[test]
fn parts_complete_a_line_in_every_order() {
    for count in 1..=6 {
        for order in permutations(&(0..count).collect::<Vec<_>>()) {
            let mut pair = posted(parameters());
            for (seen, index) in (1..).zip(&order) {
                let immediate = part(&pair, *index, *index + 1 == count);
                let arrival = pair.receiver.arrived(*index % 2, immediate, 7);
                let complete = Arrival::Complete(Line::FIRST);
                assert_eq!(arrival, if seen == count { complete } else { Arrival::Progress });
            }
            assert_eq!(pair.receiver.size(Line::FIRST), 500);
            assert_eq!(pair.receiver.carried(Line::FIRST), if count == 1 { 1 } else { 3 });
        }
    }
}

#[test]
fn all_sixty_four_parts_complete_a_line() {
    let mut pair = posted(parameters());
    for index in (0..64).rev() {
        let immediate = part(&pair, index, index == 63);
        let arrival = pair.receiver.arrived(0, immediate, 1);
        assert_eq!(matches!(arrival, Arrival::Complete(_)), index == 0);
    }
}

#[test]
fn a_repeated_part_is_dropped() {
    let mut pair = posted(parameters());
    let (first, last) = (part(&pair, 0, false), part(&pair, 1, true));
    assert_eq!(pair.receiver.arrived(0, first, 1), Arrival::Progress);
    assert_eq!(pair.receiver.arrived(0, first, 1), Arrival::Duplicate);
    assert_eq!(pair.receiver.arrived(0, last, 1), Arrival::Complete(Line::FIRST));
    assert_eq!(pair.receiver.arrived(0, last, 1), Arrival::Late);
    let counters = pair.receiver.counters();
    assert_eq!((counters.duplicates, counters.late, counters.violations), (1, 1, 0));
}

#[test]
fn a_part_of_a_line_complete_before_its_turn_is_a_repeat() {
    let mut pair = Pair::new(parameters());
    pair.post(&[(8, 0), (8, 0)], false);
    pair.advertise();
    let second = Immediate::new(pair.parameters.comm, Line::new(1), 0, true, true, 8);
    assert_eq!(pair.receiver.arrived(0, second, 8), Arrival::Complete(Line::new(1)));
    assert_eq!(pair.receiver.arrived(0, second, 8), Arrival::Duplicate);
    assert_eq!(pair.receiver.done(), Line::FIRST);
}

#[test]
fn a_part_that_cannot_be_is_dropped_and_counted() {
    // Past the last; a second last; a last below a part that is there.
    let past_last = [((2, true), (3, false)), ((2, true), (1, true))];
    let below_seen = [((2, false), (1, true)), ((1, false), (0, true))];
    for (seen, wrong) in past_last.into_iter().chain(below_seen) {
        let mut pair = posted(parameters());
        let (seen, wrong) = (part(&pair, seen.0, seen.1), part(&pair, wrong.0, wrong.1));
        assert_eq!(pair.receiver.arrived(0, seen, 1), Arrival::Progress);
        assert_eq!(pair.receiver.arrived(0, wrong, 1), Arrival::Violation);
        assert_eq!(pair.receiver.counters().violations, 1);
        assert_eq!(pair.receiver.poll(Line::FIRST), ReceivePoll::Pending);
    }
}

#[test]
fn a_line_that_has_a_part_is_no_common_case() {
    let mut pair = posted(parameters());
    let seen = part(&pair, 1, false);
    assert_eq!(pair.receiver.arrived(0, seen, 1), Arrival::Progress);
    let comm = pair.parameters.comm;
    let all = Immediate::new(comm, Line::FIRST, 0, true, true, 0);
    assert_eq!(pair.receiver.arrived_plainly(1, all), None);
    assert_eq!(pair.receiver.arrived(0, all, 1000), Arrival::Violation);
}

#[test]
fn nothing_is_the_common_case_of_a_flow_that_wants_none() {
    let mut pair = posted(parameters());
    pair.receiver.end_plain_arrivals();
    let all = Immediate::new(pair.parameters.comm, Line::FIRST, 0, true, true, 0);
    assert_eq!(pair.receiver.arrived_plainly(1, all), None);
    assert_eq!(pair.receiver.arrived(0, all, 1000), Arrival::Complete(Line::FIRST));
}

#[test]
fn a_message_shorter_than_its_receive_is_a_common_case_where_its_immediate_tells_the_length() {
    let (four, eight) = (Path::Immediate { eight: false }, Path::Immediate { eight: true });
    let part = parts::Part { rail: 1, offset: 0, len: 0, index: 0, last: true };
    for (path, len) in [eight, four, Path::Fin]
        .into_iter()
        .flat_map(|path| [0, 1, 500, 999, 1000, 1001].map(|len| (path, len)))
    {
        let parameters = FlowParameters { path, ..parameters() };
        let (mut plain, mut general) = (posted(parameters), posted(parameters));
        let found = plain.sender.match_plainly::<_, 6>(&plain.mailbox, 0, len, &1);
        let may = path == eight && len <= 1000 || path == four && len == 1000;
        assert_eq!(found.is_some(), may, "{path:?}, {len} bytes");
        let Some(found) = found else { continue };
        let Ok(Submit::Accepted(message)) = general.sender.submit(&general.mailbox, 0, len) else {
            panic!("the receive is advertised");
        };
        assert_eq!(found.immediate, message.immediate(&part), "{path:?}, {len} bytes");
        assert_eq!((found.line, found.len), (message.line, len));
        assert_eq!((found.address, found.key), (message.address, message.keys[1]));
        plain.sender.posted_plainly(&found);
        assert_eq!(plain.receiver.arrived(1, found.immediate, 0), Arrival::Complete(Line::FIRST));
        assert_eq!(plain.receiver.size(Line::FIRST), len);
    }
}

#[test]
fn the_size_is_the_receive_or_the_high_half_or_the_sum() {
    let four = Path::Immediate { eight: false };
    let eight = Path::Immediate { eight: true };
    for (path, whole, size) in [(four, true, 1000), (eight, true, 1000), (eight, false, 500)] {
        for true_lengths in [false, true] {
            let mut pair = posted(FlowParameters { path, true_lengths, ..parameters() });
            let comm = pair.parameters.comm;
            let immediate = Immediate::new(comm, Line::FIRST, 0, true, whole, 500);
            pair.receiver.arrived(0, immediate, 77);
            assert_eq!(pair.receiver.size(Line::FIRST), size);
        }
    }
    let mut pair = posted(FlowParameters { path: four, ..parameters() });
    for index in 0..3 {
        pair.receiver.arrived(0, part(&pair, index, index == 2), 70 + u64::from(index));
    }
    assert_eq!(pair.receiver.size(Line::FIRST), 213);
}

#[test]
fn more_bytes_than_the_receive_holds_fail_the_flow() {
    let mut pair = posted(parameters());
    let comm = pair.parameters.comm;
    let immediate = Immediate::new(comm, Line::FIRST, 0, true, false, 1001);
    assert_eq!(pair.receiver.arrived(0, immediate, 1001), Arrival::Violation);
    let cause = ProtocolError::Violation(Violation::Size { said: 1001, posted: 1000 });
    assert_eq!(pair.receiver.poll(Line::FIRST), ReceivePoll::Failed(cause));
    pair.receiver.fail(ProtocolError::Transport { code: 5 });
    assert_eq!(pair.receiver.failure(), Some(cause), "the first cause stays");
}

#[test]
fn an_empty_message_arrives_and_names_no_rail() {
    let mut pair = posted(parameters());
    let (_, immediate) = pair.send(0, 0).unwrap();
    assert!(matches!(pair.receiver.arrived(1, immediate, 0), Arrival::Complete(_)));
    assert_eq!((pair.receiver.size(Line::FIRST), pair.receiver.carried(Line::FIRST)), (0, 0));
}

#[test]
fn a_fin_follows_the_last_part_and_is_read_only_when_it_is_whole() {
    let plan = RailPlan::equal(2, 128).unwrap();
    for missing in 0..4 {
        let mut pair = posted(FlowParameters { path: Path::Fin, ..parameters() });
        let Ok(Submit::Accepted(message)) = pair.sender.submit(&pair.mailbox, 0, 600) else {
            panic!("the advert is there");
        };
        let line = message.line;
        assert_eq!(message.path, Path::Fin);
        let count = parts::cut_unbounded(600, &plan, 128, &mut 0).count();
        pair.sender.posted(line, u32::try_from(count).unwrap(), 0b11);
        for left in (0..count).rev() {
            let outcome = pair.sender.written(line);
            let expected = if left == 0 { WriteOutcome::NeedsFin } else { WriteOutcome::Pending };
            assert_eq!(outcome, expected);
        }
        let mut words = pair.sender.fin_words(line);
        let word = std::mem::replace(&mut words[missing], 99);
        pair.write_fin(0, &words);
        assert_eq!(pair.receiver.read_fins(&pair.fins), 0, "word {missing}");
        words[missing] = word;
        pair.write_fin(0, &words);
        assert_eq!(pair.receiver.read_fins(&pair.fins), 1);
        assert_eq!(pair.receiver.read_fins(&pair.fins), 0);
        assert_eq!((pair.receiver.size(line), pair.receiver.carried(line)), (600, 0b11));
    }
}

#[test]
fn what_immediates_cannot_tell_takes_the_fin_path() {
    let gib = 1 << 30;
    let four = Path::Immediate { eight: false };
    let eight = Path::Immediate { eight: true };
    // (path, lengths are true, posted, sent, by immediates)
    let cases = [
        (four, false, 100, 100, true),
        (four, false, 100, 99, false),
        (four, true, 100, 99, true),
        (eight, false, 100, 99, true),
        (eight, true, 8 * gib, 4 * gib - 1, true),
        (eight, true, 8 * gib, 4 * gib, false),
        (eight, true, 8 * gib, 8 * gib, true),
        (eight, true, 64 * gib, 64 * gib, true),
        (four, true, 64 * gib + 1, 64 * gib + 1, false),
    ];
    for (path, true_lengths, posted, sent, by_immediates) in cases {
        let terms = FlowParameters { path, true_lengths, largest_write: gib + 127, ..parameters() };
        let mut pair = Pair::new(terms);
        pair.post(&[(posted, 0)], false);
        pair.advertise();
        let Ok(Submit::Accepted(message)) = pair.sender.submit(&pair.mailbox, 0, sent) else {
            panic!("the advert is there");
        };
        assert_eq!(message.path == Path::Fin, !by_immediates, "{posted} {sent} {path:?}");
    }
}

#[test]
fn without_fins_what_cannot_be_told_is_an_error() {
    let path = Path::Immediate { eight: false };
    let terms = FlowParameters { path, fins: false, true_lengths: false, ..parameters() };
    let mut pair = posted(terms);
    let error = pair.sender.submit(&pair.mailbox, 0, 5).unwrap_err();
    assert_eq!(error, ProtocolError::Unsendable { len: 5 });
    assert_eq!(pair.sender.submit(&pair.mailbox, 0, 1000).unwrap_err(), error, "it sticks");
}
