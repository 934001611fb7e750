//! Who sends what, in which order: ring schedules as plain lists, the same for every transport. Pure.
//!
//! Rank r receives from r − 1 and sends to r + 1. A collective over n ranks cuts its data into n chunks, and travels in
//! *laps* of at most `depth` pieces per chunk. In the reducing half of a lap, step s brings rank r the partial sum of
//! chunk r − s − 2; it is added up in its staging slot and goes on from there, and the last one comes out whole at its
//! owner, rank r for chunk r. In the gathering half whole chunks go round, straight into place.
//!
//! Laps, not one long run of steps: a slot is taken until its sum has gone on, and a rank whose slots are all taken by
//! sums that wait behind its own first sends can wait for ever, in a ring of ranks that all do. With
//! `slots ≥ 2 · depth` the send that frees a slot never comes after the send that waits for it (tested exhaustively).

use std::ops::Range;

/// One rank's part in a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// A copy that needs nobody else: input bytes, and where they go in the output.
    pub copy: Option<(Range<usize>, usize)>,
    pub sends: Vec<Send>,
    pub receives: Vec<Receive>,
}

/// A message to the next rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    pub from: Place,
    pub bytes: Range<usize>,
    /// How many receives must have been worked up before.
    pub after_receives: usize,
}

/// A message from the previous rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    pub to: Place,
    pub bytes: Range<usize>,
    /// How many sends must be done before it may be posted.
    pub after_sends: usize,
    pub then: Then,
}

/// What is done with a message that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Nothing,
    /// Add the input's bytes from here on, in the slot.
    AddInput {
        input: usize,
    },
    /// Write the sum of the slot and the input's bytes from `input` on to the output from `output` on.
    Finish {
        input: usize,
        output: usize,
    },
}

/// Which of a rank's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Input,
    Output,
    Staging,
}

/// How messages are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Largest piece, in bytes; a multiple of every element size.
    pub piece_bytes: usize,
    /// Chunks are cut for the sake of overlap, but not shorter than this; also such a multiple.
    pub piece_bytes_min: usize,
    /// Pieces of one chunk on their way at once.
    pub depth: usize,
}

impl Cut {
    /// Slots that staging must have; each holds `piece_bytes`.
    pub fn slots(self) -> usize {
        2 * self.depth
    }
}

/// A rank in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    pub rank: usize,
    pub size: usize,
}

impl Ring {
    pub fn next(self) -> usize {
        (self.rank + 1) % self.size
    }

    pub fn previous(self) -> usize {
        self.back(1)
    }

    /// The rank `steps` behind this one.
    fn back(self, steps: usize) -> usize {
        (self.rank + self.size - steps % self.size) % self.size
    }
}

/// Every rank ends with the sum of all inputs. `count` elements of `width` bytes.
pub fn all_reduce(ring: Ring, count: usize, width: usize, cut: Cut) -> Plan {
    let chunks = chunks(count, width, ring.size);
    let mut plan = Plan::default();
    if ring.size == 1 {
        plan.copy = copy_of(0..count * width, 0);
        return plan;
    }
    lay(&mut plan, ring, &chunks, cut, true, Gather::Sums);
    plan
}

/// Rank r ends with the sum of part r of all inputs. `count` elements per part.
pub fn reduce_scatter(ring: Ring, count: usize, width: usize, cut: Cut) -> Plan {
    let bytes = count * width;
    let mut plan = Plan::default();
    if ring.size == 1 {
        plan.copy = copy_of(0..bytes, 0);
        return plan;
    }
    let chunks: Vec<_> = (0..ring.size).map(|rank| rank * bytes..(rank + 1) * bytes).collect();
    lay(&mut plan, ring, &chunks, cut, true, Gather::No);
    plan
}

/// Every rank ends with all inputs, one after the other. `count` elements per input.
pub fn all_gather(ring: Ring, count: usize, width: usize, cut: Cut) -> Plan {
    let bytes = count * width;
    let mut plan = Plan { copy: copy_of(0..bytes, ring.rank * bytes), ..Plan::default() };
    let chunks: Vec<_> = (0..ring.size).map(|rank| rank * bytes..(rank + 1) * bytes).collect();
    if ring.size > 1 {
        lay(&mut plan, ring, &chunks, cut, false, Gather::Inputs);
    }
    plan
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gather {
    No,
    /// The gathering half starts from the sums in the output.
    Sums,
    /// It starts from the inputs.
    Inputs,
}

fn copy_of(bytes: Range<usize>, to: usize) -> Option<(Range<usize>, usize)> {
    (!bytes.is_empty()).then_some((bytes, to))
}

/// Cuts `count` elements into `parts` chunks, in bytes. All but the last ones are equal and keep lines whole, so short
/// messages make few chunks.
fn chunks(count: usize, width: usize, parts: usize) -> Vec<Range<usize>> {
    let line = (LINE_BYTES / width).max(1);
    let each = count.div_ceil(parts).next_multiple_of(line);
    let edge = |part: usize| (part * each).min(count) * width;
    (0..parts).map(|part| edge(part)..edge(part + 1)).collect()
}

/// Chunks start on lines of this many bytes.
const LINE_BYTES: usize = 128;

/// The bytes of piece `piece` of a chunk: pieces are equal, the last ones shorter or empty.
fn piece_of(chunk: &Range<usize>, piece: usize, piece_bytes: usize) -> Range<usize> {
    let edge = |piece: usize| (chunk.start + piece * piece_bytes).min(chunk.end);
    edge(piece)..edge(piece + 1)
}

/// Lays the reducing half, the gathering half or both, lap by lap.
fn lay(
    plan: &mut Plan,
    ring: Ring,
    chunks: &[Range<usize>],
    cut: Cut,
    reduce: bool,
    gather: Gather,
) {
    let largest = chunks.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let spread = largest.div_ceil(cut.depth).next_multiple_of(LINE_BYTES);
    let piece_bytes = spread.max(cut.piece_bytes_min).min(cut.piece_bytes);
    let pieces = largest.div_ceil(piece_bytes);
    let mut laps = Laps { ring, chunks, cut, piece_bytes, gather, staged: Vec::new() };
    for first in (0..pieces).step_by(cut.depth) {
        laps.lay(plan, first..(first + cut.depth).min(pieces), reduce);
    }
}

struct Laps<'a> {
    ring: Ring,
    chunks: &'a [Range<usize>],
    cut: Cut,
    piece_bytes: usize,
    gather: Gather,
    /// For each receive into staging, in order: how many sends must be done before its slot is free again.
    staged: Vec<usize>,
}

/// A piece that has come and goes on in the next step.
#[derive(Clone, Copy)]
struct Held {
    place: Place,
    start: usize,
    /// How many receives there were with it.
    receives: usize,
    /// Its number among the receives into staging.
    staged: Option<usize>,
}

impl Laps<'_> {
    fn lay(&mut self, plan: &mut Plan, pieces: Range<usize>, reduce: bool) {
        let steps = self.ring.size - 1;
        let mut held = vec![None; pieces.len()];
        if reduce {
            for step in 0..steps {
                self.send(plan, self.ring.back(step + 1), &pieces, &mut held);
                self.reduce(plan, self.ring.back(step + 2), step + 1 == steps, &pieces, &mut held);
            }
        }
        if self.gather != Gather::No {
            for step in 0..steps {
                self.send(plan, self.ring.back(step), &pieces, &mut held);
                self.gather(plan, self.ring.back(step + 1), &pieces, &mut held);
            }
        }
    }

    /// Sends on what the step before brought; in the first step, the input.
    fn send(
        &mut self,
        plan: &mut Plan,
        owner: usize,
        pieces: &Range<usize>,
        held: &mut [Option<Held>],
    ) {
        for (piece, held) in pieces.clone().zip(held) {
            let bytes = self.bytes(owner, piece);
            if bytes.is_empty() {
                continue;
            }
            let Some(held) = held.take() else {
                // An all-gather's input is the rank's own chunk and nothing else.
                let base = if self.gather == Gather::Inputs { self.chunks[owner].start } else { 0 };
                let bytes = bytes.start - base..bytes.end - base;
                plan.sends.push(Send { from: Place::Input, bytes, after_receives: 0 });
                continue;
            };
            plan.sends.push(Send {
                from: held.place,
                bytes: held.start..held.start + bytes.len(),
                after_receives: held.receives,
            });
            if let Some(staged) = held.staged {
                self.staged[staged] = plan.sends.len();
            }
        }
    }

    /// Receives partial sums of `owner`'s chunk; `last`: they come whole with our input.
    fn reduce(
        &mut self,
        plan: &mut Plan,
        owner: usize,
        last: bool,
        pieces: &Range<usize>,
        held: &mut [Option<Held>],
    ) {
        for (piece, held) in pieces.clone().zip(held) {
            let bytes = self.bytes(owner, piece);
            if bytes.is_empty() {
                continue;
            }
            let number = self.staged.len();
            let slots = self.cut.slots();
            let after_sends = number.checked_sub(slots).map_or(0, |tenant| self.staged[tenant]);
            let slot = number % slots * self.cut.piece_bytes;
            let input = bytes.start;
            let receives = plan.receives.len() + 1;
            let (then, next) = if last {
                let output = self.output_of(&bytes);
                let held = Held { place: Place::Output, start: output, receives, staged: None };
                (Then::Finish { input, output }, held)
            } else {
                let staged = Some(number);
                let held = Held { place: Place::Staging, start: slot, receives, staged };
                (Then::AddInput { input }, held)
            };
            let bytes = slot..slot + bytes.len();
            plan.receives.push(Receive { to: Place::Staging, bytes, after_sends, then });
            self.staged.push(0);
            *held = Some(next);
        }
    }

    /// Receives `owner`'s whole chunk, straight into place.
    fn gather(
        &self,
        plan: &mut Plan,
        owner: usize,
        pieces: &Range<usize>,
        held: &mut [Option<Held>],
    ) {
        for (piece, held) in pieces.clone().zip(held) {
            let bytes = self.bytes(owner, piece);
            if bytes.is_empty() {
                continue;
            }
            let start = bytes.start;
            let then = Then::Nothing;
            plan.receives.push(Receive { to: Place::Output, bytes, after_sends: 0, then });
            let receives = plan.receives.len();
            *held = Some(Held { place: Place::Output, start, receives, staged: None });
        }
    }

    fn bytes(&self, owner: usize, piece: usize) -> Range<usize> {
        piece_of(&self.chunks[owner], piece, self.piece_bytes)
    }

    /// Where a finished piece of the own chunk goes.
    fn output_of(&self, bytes: &Range<usize>) -> usize {
        let own = if self.gather == Gather::No { self.chunks[self.ring.rank].start } else { 0 };
        bytes.start - own
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const WIDTH: usize = 8;

    /// One rank of a ring of plans over plain vectors. A send ends only when the peer's receive is posted, as in a
    /// rendezvous: the strictest transport there is.
    struct Rank {
        plan: Plan,
        input: Vec<u64>,
        output: Vec<u64>,
        staging: Vec<u64>,
        posted: usize,
        worked_up: usize,
        sent: usize,
        arrived: VecDeque<Vec<u64>>,
    }

    impl Rank {
        fn buffer(&mut self, place: Place) -> &mut Vec<u64> {
            match place {
                Place::Input => &mut self.input,
                Place::Output => &mut self.output,
                Place::Staging => &mut self.staging,
            }
        }
    }

    fn elements(bytes: &Range<usize>) -> Range<usize> {
        assert!(bytes.start.is_multiple_of(WIDTH) && bytes.end.is_multiple_of(WIDTH));
        bytes.start / WIDTH..bytes.end / WIDTH
    }

    /// Runs the plans until nothing moves, `window` receives ahead, and hands back the outputs.
    fn run(
        plans: Vec<Plan>,
        inputs: &[Vec<u64>],
        outputs: usize,
        cut: Cut,
        window: usize,
    ) -> Vec<Vec<u64>> {
        let staging = cut.slots() * cut.piece_bytes / WIDTH;
        let mut ranks: Vec<_> = plans
            .into_iter()
            .zip(inputs)
            .map(|(plan, input)| Rank {
                plan,
                input: input.clone(),
                output: vec![u64::MAX; outputs],
                staging: vec![u64::MAX; staging],
                posted: 0,
                worked_up: 0,
                sent: 0,
                arrived: VecDeque::new(),
            })
            .collect();
        for rank in &mut ranks {
            if let Some((from, to)) = rank.plan.copy.clone() {
                let (from, to) = (elements(&from), to / WIDTH);
                rank.output[to..to + from.len()].copy_from_slice(&rank.input[from]);
            }
        }
        let size = ranks.len();
        loop {
            let mut moved = false;
            for me in 0..size {
                moved |= turn(&mut ranks, me, window);
            }
            if !moved {
                break;
            }
        }
        for rank in &ranks {
            assert_eq!(rank.sent, rank.plan.sends.len(), "a send that never could go");
            assert_eq!(rank.worked_up, rank.plan.receives.len(), "a receive that never came");
        }
        ranks.into_iter().map(|rank| rank.output).collect()
    }

    fn turn(ranks: &mut [Rank], me: usize, window: usize) -> bool {
        let mut moved = false;
        let next = (me + 1) % ranks.len();
        // Post ahead.
        let rank = &mut ranks[me];
        while let Some(receive) = rank.plan.receives.get(rank.posted) {
            if rank.posted - rank.worked_up >= window || rank.sent < receive.after_sends {
                break;
            }
            rank.posted += 1;
            moved = true;
        }
        // Send one, if the peer has posted its receive.
        if let Some(send) = rank.plan.sends.get(rank.sent).cloned()
            && rank.worked_up >= send.after_receives
        {
            let number = rank.sent;
            let data = rank.buffer(send.from)[elements(&send.bytes)].to_vec();
            if ranks[next].posted > number {
                assert_eq!(elements(&ranks[next].plan.receives[number].bytes).len(), data.len());
                ranks[next].arrived.push_back(data);
                ranks[me].sent += 1;
                moved = true;
            }
        }
        // Work up one.
        let rank = &mut ranks[me];
        if let Some(data) = rank.arrived.pop_front() {
            let receive = rank.plan.receives[rank.worked_up].clone();
            let range = elements(&receive.bytes);
            rank.buffer(receive.to)[range.clone()].copy_from_slice(&data);
            match receive.then {
                Then::Nothing => {}
                Then::AddInput { input } => {
                    for (index, at) in range.enumerate() {
                        rank.staging[at] += rank.input[input / WIDTH + index];
                    }
                }
                Then::Finish { input, output } => {
                    for (index, at) in range.enumerate() {
                        rank.output[output / WIDTH + index] =
                            rank.staging[at] + rank.input[input / WIDTH + index];
                    }
                }
            }
            rank.worked_up += 1;
            moved = true;
        }
        moved
    }

    fn value(rank: usize, index: usize) -> u64 {
        (rank as u64 + 1) * 1_000_003 + (index as u64) * 7919
    }

    fn inputs(size: usize, count: usize) -> Vec<Vec<u64>> {
        (0..size).map(|rank| (0..count).map(|index| value(rank, index)).collect()).collect()
    }

    /// Every ring of 1 to 8, counts around every edge, several cuts and windows.
    fn everywhere(mut test: impl FnMut(usize, usize, Cut, usize)) {
        for size in 1..=8 {
            for count in (0..=70).chain([127, 128, 129, 255, 257, 1000, 1023]) {
                for (piece_bytes, piece_bytes_min, depth) in
                    [(128, 128, 1), (128, 128, 3), (256, 128, 2), (1024, 256, 4)]
                {
                    let cut = Cut { piece_bytes, piece_bytes_min, depth };
                    for window in [1, 2, depth, cut.slots()] {
                        test(size, count, cut, window);
                    }
                }
            }
        }
    }

    #[test]
    fn every_all_reduce_ends_with_the_sum_everywhere() {
        everywhere(|size, count, cut, window| {
            let plans =
                (0..size).map(|rank| all_reduce(Ring { rank, size }, count, WIDTH, cut)).collect();
            let expected: Vec<u64> =
                (0..count).map(|index| (0..size).map(|rank| value(rank, index)).sum()).collect();
            for output in run(plans, &inputs(size, count), count, cut, window) {
                assert_eq!(output, expected, "size {size} count {count} {cut:?} window {window}");
            }
        });
    }

    #[test]
    fn every_reduce_scatter_ends_with_its_part_of_the_sum() {
        everywhere(|size, count, cut, window| {
            let plans = (0..size)
                .map(|rank| reduce_scatter(Ring { rank, size }, count, WIDTH, cut))
                .collect();
            let outputs = run(plans, &inputs(size, size * count), count, cut, window);
            for (me, output) in outputs.into_iter().enumerate() {
                let expected: Vec<u64> = (me * count..(me + 1) * count)
                    .map(|index| (0..size).map(|rank| value(rank, index)).sum())
                    .collect();
                assert_eq!(
                    output, expected,
                    "rank {me} of {size} count {count} {cut:?} window {window}"
                );
            }
        });
    }

    #[test]
    fn every_all_gather_ends_with_all_inputs_in_order() {
        everywhere(|size, count, cut, window| {
            let plans =
                (0..size).map(|rank| all_gather(Ring { rank, size }, count, WIDTH, cut)).collect();
            let expected: Vec<u64> = inputs(size, count).concat();
            for output in run(plans, &inputs(size, count), size * count, cut, window) {
                assert_eq!(output, expected, "size {size} count {count} {cut:?} window {window}");
            }
        });
    }

    #[test]
    fn no_more_bytes_travel_than_a_ring_needs() {
        let cut = Cut { piece_bytes: 1024, piece_bytes_min: 128, depth: 4 };
        for size in 2..=8 {
            let count = size * 4096;
            for rank in 0..size {
                let plan = all_reduce(Ring { rank, size }, count, WIDTH, cut);
                let sent: usize = plan.sends.iter().map(|send| send.bytes.len()).sum();
                assert_eq!(sent, 2 * (size - 1) * count / size * WIDTH);
            }
        }
    }

    #[test]
    fn no_message_is_longer_than_a_piece_and_none_is_empty() {
        let cut = Cut { piece_bytes: 512, piece_bytes_min: 128, depth: 2 };
        for count in [1, 100, 999] {
            let plan = all_reduce(Ring { rank: 1, size: 3 }, count, WIDTH, cut);
            assert!(plan.sends.iter().all(|send| (1..=512).contains(&send.bytes.len())));
            assert!(plan.receives.iter().all(|receive| (1..=512).contains(&receive.bytes.len())));
        }
    }
}
