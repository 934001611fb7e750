//! Every collective, in every form, of every type and operation.

use std::marker::PhantomData;

use ironrail_group::check::sample;
use ironrail_group::group::Group;
use ironrail_group::loader::{DataType, Element, Op};
use ironrail_group::tuning::Algorithm;
use ironrail_group::with_element;

use super::Step;
use super::random::{Memory, Random, check};

pub(super) fn any(step: Step<'_>) {
    let kind = step.common.pick(&DataType::ALL);
    with_element!(kind, T => typed::<T>(step));
}

/// Bytes of a block; all blocks of all ranks are checked.
const BLOCK_MOST: usize = 600 << 10;

fn typed<T: Element>(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    let size = group.size();
    let op = common.pick(&Op::ALL);
    let op = if T::TYPE.supports(op) { op } else { Op::Sum };
    let count = common.count::<T>(if size > 4 { BLOCK_MOST / 4 } else { BLOCK_MOST });
    let root = common.below(size);
    let calls = Calls::<T> { group, op, count, number, root, element: PhantomData };
    match common.below(11) {
        0 | 1 => calls.all_reduce(common, own),
        2 => calls.reduce(common, own),
        3 => calls.broadcast(common, own),
        4 => calls.all_gather(common, own),
        5 => calls.gather(own),
        6 => calls.scatter(own),
        7 => calls.reduce_scatter(common, own),
        8 => calls.all_to_all(own),
        9 => calls.all_to_all_v(common, own),
        _ => group.barrier().unwrap(),
    }
}

struct Calls<'a, T> {
    group: &'a Group,
    op: Op,
    count: usize,
    number: usize,
    root: usize,
    element: PhantomData<T>,
}

impl<T: Element> Calls<'_, T> {
    /// `blocks` blocks of a rank's input.
    fn input_of(
        &self,
        rank: usize,
        blocks: usize,
    ) -> impl ExactSizeIterator<Item = T> + use<'_, T> {
        (0..blocks * self.count).map(move |index| sample(self.op, rank, index, self.number))
    }

    fn input(&self, own: &mut Random, blocks: usize) -> Memory<T> {
        Memory::filled(self.group, own, self.input_of(self.group.rank(), blocks))
    }

    fn output(&self, own: &mut Random, blocks: usize) -> Memory<T> {
        Memory::new(self.group, own, blocks * self.count)
    }

    /// The reduction of all ranks' inputs, from a block on.
    fn reduced(&self, blocks: usize) -> Vec<T> {
        let size = self.group.size();
        let mut whole: Vec<T> = self.input_of(0, blocks).collect();
        for rank in 1..size {
            let terms: Vec<T> = self.input_of(rank, blocks).collect();
            T::reduce(self.op, &mut whole, &terms);
        }
        if self.op == Op::Avg {
            T::divide(&mut whole, u32::try_from(size).unwrap());
        }
        whole
    }

    /// What a rank's block of the reduction is.
    fn reduced_block(&self, rank: usize) -> impl ExactSizeIterator<Item = T> {
        let whole = self.reduced(self.group.size());
        let start = rank * self.count;
        (start..start + self.count).map(move |index| whole[index])
    }

    fn check_input(&self, input: &Memory<T>, blocks: usize) {
        check(input, self.input_of(self.group.rank(), blocks));
    }

    fn is_root(&self) -> bool {
        self.group.rank() == self.root
    }

    fn all_reduce(self, common: &mut Random, own: &mut Random) {
        let (group, op) = (self.group, self.op);
        let mut input = self.input(own, 1);
        let algorithm = common.pick(&Algorithm::ALL);
        let form = common.below(3);
        if form == 0 {
            group.all_reduce(&mut input, op).unwrap();
            check(&input, self.reduced(1).into_iter());
            return;
        }
        let mut output = self.output(own, 1);
        if form == 1 && algorithm.takes(group.size()) {
            group.all_reduce_by(algorithm, &input, &mut output, op).unwrap();
        } else {
            group.all_reduce_into(&input, &mut output, op).unwrap();
        }
        check(&output, self.reduced(1).into_iter());
        self.check_input(&input, 1);
    }

    fn reduce(self, common: &mut Random, own: &mut Random) {
        let (group, op, root) = (self.group, self.op, self.root);
        let mut input = self.input(own, 1);
        if common.one_in(2) {
            group.reduce_in_place(&mut input, op, root).unwrap();
            if self.is_root() {
                check(&input, self.reduced(1).into_iter());
            } else {
                self.check_input(&input, 1);
            }
            return;
        }
        let mut output = self.output(own, 1);
        let given = (self.is_root() || own.one_in(2)).then_some(&mut output[..]);
        group.reduce(&input, given, op, root).unwrap();
        self.check_input(&input, 1);
        if self.is_root() {
            check(&output, self.reduced(1).into_iter());
        }
    }

    fn broadcast(self, common: &mut Random, own: &mut Random) {
        let (group, root) = (self.group, self.root);
        let mut output = self.output(own, 1);
        let in_place = common.one_in(2);
        let input = self.is_root().then(|| self.input(own, 1));
        if in_place {
            if let Some(input) = &input {
                output.copy_from_slice(input);
            }
            group.broadcast(&mut output, root).unwrap();
        } else {
            group.broadcast_into(input.as_deref(), &mut output, root).unwrap();
        }
        check(&output, self.input_of(root, 1));
    }

    fn all_inputs(&self) -> impl ExactSizeIterator<Item = T> {
        let all: Vec<T> = (0..self.group.size()).flat_map(|rank| self.input_of(rank, 1)).collect();
        all.into_iter()
    }

    fn all_gather(self, common: &mut Random, own: &mut Random) {
        let (group, size) = (self.group, self.group.size());
        let input = self.input(own, 1);
        let mut output = self.output(own, size);
        if common.one_in(2) {
            let start = group.rank() * self.count;
            output[start..start + self.count].copy_from_slice(&input);
            group.all_gather_in_place(&mut output).unwrap();
        } else {
            group.all_gather(&input, &mut output).unwrap();
        }
        check(&output, self.all_inputs());
        self.check_input(&input, 1);
    }

    fn gather(self, own: &mut Random) {
        let (group, size) = (self.group, self.group.size());
        let input = self.input(own, 1);
        let mut output = self.output(own, if self.is_root() { size } else { 1 });
        let given = self.is_root().then_some(&mut output[..]);
        group.gather(&input, given, self.root).unwrap();
        self.check_input(&input, 1);
        if self.is_root() {
            check(&output, self.all_inputs());
        }
    }

    fn scatter(self, own: &mut Random) {
        let (group, size, rank) = (self.group, self.group.size(), self.group.rank());
        let input = self.is_root().then(|| self.input(own, size));
        let mut output = self.output(own, 1);
        group.scatter(input.as_deref(), &mut output, self.root).unwrap();
        let start = rank * self.count;
        let block =
            (start..start + self.count).map(|at| sample(self.op, self.root, at, self.number));
        check(&output, block);
        if let Some(input) = &input {
            self.check_input(input, size);
        }
    }

    fn reduce_scatter(self, common: &mut Random, own: &mut Random) {
        let (group, op, size, rank) = (self.group, self.op, self.group.size(), self.group.rank());
        let mut input = self.input(own, size);
        if common.one_in(2) {
            group.reduce_scatter_in_place(&mut input, op).unwrap();
            let mut expected: Vec<T> = self.input_of(rank, size).collect();
            for (place, value) in self.reduced_block(rank).enumerate() {
                expected[rank * self.count + place] = value;
            }
            check(&input, expected.into_iter());
            return;
        }
        let mut output = self.output(own, 1);
        group.reduce_scatter(&input, &mut output, op).unwrap();
        check(&output, self.reduced_block(rank));
        self.check_input(&input, size);
    }

    fn all_to_all(self, own: &mut Random) {
        let (group, size) = (self.group, self.group.size());
        let input = self.input(own, size);
        let mut output = self.output(own, size);
        group.all_to_all(&input, &mut output).unwrap();
        let counts = vec![self.count; size];
        self.check_dealt(&output, &vec![self.count * group.rank(); size], &counts);
        self.check_input(&input, size);
    }

    /// The block of each rank that was for this one: from element `starts[rank]` of its input.
    fn check_dealt(&self, output: &Memory<T>, starts: &[usize], counts: &[usize]) {
        let of = |rank: usize| {
            let range = starts[rank]..starts[rank] + counts[rank];
            range.map(move |index| sample(self.op, rank, index, self.number))
        };
        let expected: Vec<T> = (0..counts.len()).flat_map(of).collect();
        check(output, expected.into_iter());
    }

    fn all_to_all_v(mut self, common: &mut Random, own: &mut Random) {
        let (group, size, rank) = (self.group, self.group.size(), self.group.rank());
        // Row r: what rank r sends to each.
        let most = BLOCK_MOST / size;
        let rows: Vec<Vec<usize>> =
            (0..size).map(|_| (0..size).map(|_| common.count::<T>(most)).collect()).collect();
        let (sends, whole) = (&rows[rank], rows[rank].iter().sum::<usize>());
        let receives: Vec<usize> = rows.iter().map(|row| row[rank]).collect();
        self.count = whole;
        let input = self.input(own, 1);
        self.count = receives.iter().sum();
        let mut output = self.output(own, 1);
        group.all_to_all_v(&input, sends, &mut output, &receives).unwrap();
        let starts: Vec<usize> = rows.iter().map(|row| row[..rank].iter().sum()).collect();
        self.check_dealt(&output, &starts, &receives);
        self.count = whole;
        self.check_input(&input, 1);
    }
}
