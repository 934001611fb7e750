//! Every collective of the group library, out of place or in place.

use ironrail_group::check::{self, Expected};
use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::loader::{Buffer, DataType, Element, Op};
use ironrail_group::with_element;

use super::{GUARD_BYTES, Shape, Workload, buffer};
use crate::perf::arguments::{Collective, Options};
use crate::perf::statistics::Stopwatch;

pub(super) struct Collectives {
    group: Group,
    what: Collective,
    options: Options,
    kind: DataType,
    input: Buffer,
    output: Buffer,
    /// Elements of this rank's input and output.
    give: usize,
    take: usize,
}

impl Collectives {
    pub(super) fn new(
        what: Collective,
        options: &Options,
        group: &Group,
    ) -> Result<Self, GroupError> {
        let (input, output) = (buffer(options.last())?, buffer(options.last() + GUARD_BYTES)?);
        group.register(&input);
        group.register(&output);
        Ok(Self {
            group: group.clone(),
            what,
            options: options.clone(),
            kind: options.kind,
            input,
            output,
            give: 0,
            take: 0,
        })
    }

    fn once(&mut self) -> Result<(), GroupError> {
        with_element!(self.kind, T => self.call::<T>())
    }

    fn call<T: Element>(&mut self) -> Result<(), GroupError> {
        let Self { group, options, give, take, .. } = self;
        let (op, root) = (options.operation(), options.root());
        let bytes = |count: usize| 0..count * size_of::<T>();
        let is_root = group.rank() == root;
        if options.in_place {
            let data = self.output.slice_mut::<T>(bytes((*give).max(*take)))?;
            return match self.what {
                Collective::AllReduce => group.all_reduce(data, op),
                Collective::Reduce => group.reduce_in_place(data, op, root),
                Collective::Broadcast => group.broadcast(data, root),
                Collective::AllGather => group.all_gather_in_place(data),
                Collective::ReduceScatter => group.reduce_scatter_in_place(data, op),
                Collective::Barrier => group.barrier(),
                Collective::Gather
                | Collective::Scatter
                | Collective::AllToAll
                | Collective::Halo
                | Collective::FixedHalo => {
                    Err(GroupError::Usage(format!("{} is out of place only", self.what.name())))
                }
            };
        }
        let input = self.input.slice::<T>(bytes(*give))?;
        let output = self.output.slice_mut::<T>(bytes(*take))?;
        match self.what {
            Collective::AllReduce => group.all_reduce_into(input, output, op),
            Collective::Reduce => group.reduce(input, is_root.then_some(output), op, root),
            Collective::Broadcast => group.broadcast_into(is_root.then_some(input), output, root),
            Collective::AllGather => group.all_gather(input, output),
            Collective::Gather => group.gather(input, is_root.then_some(output), root),
            Collective::Scatter => group.scatter(is_root.then_some(input), output, root),
            Collective::ReduceScatter => group.reduce_scatter(input, output, op),
            Collective::AllToAll => group.all_to_all(input, output),
            Collective::Barrier => group.barrier(),
            Collective::Halo | Collective::FixedHalo => {
                Err(GroupError::Usage("a halo is no collective".to_owned()))
            }
        }
    }

    /// Whether the collective writes this rank's output.
    fn takes(&self) -> bool {
        !matches!(self.what, Collective::Reduce | Collective::Gather)
            || self.group.rank() == self.options.root()
    }

    /// The operation for which the sample data is made.
    fn operation(&self) -> Op {
        if self.what.reduces() { self.options.operation() } else { Op::Sum }
    }

    fn expected(&self) -> Expected {
        let (rank, ranks, op) = (self.group.rank(), self.group.size(), self.options.operation());
        match self.what {
            Collective::AllReduce | Collective::Reduce => Expected::Reduced { op, ranks, first: 0 },
            Collective::ReduceScatter => Expected::Reduced { op, ranks, first: rank * self.take },
            Collective::AllGather | Collective::Gather => {
                Expected::Inputs { ranks, each: self.give }
            }
            Collective::Broadcast
            | Collective::Barrier
            | Collective::Halo
            | Collective::FixedHalo => Expected::Input { rank: self.options.root() },
            Collective::Scatter => {
                Expected::Part { rank: self.options.root(), first: rank * self.take }
            }
            Collective::AllToAll => Expected::Dealt { to: rank, each: self.take / ranks },
        }
    }
}

impl Workload for Collectives {
    #[allow(clippy::cast_precision_loss, reason = "a few ranks")]
    fn begin(&mut self, bytes: usize) -> Result<Shape, GroupError> {
        let width = self.kind.bytes();
        let (all, ranks) = (bytes / width, self.group.size());
        let share = (ranks - 1) as f64 / ranks as f64;
        let each = all / ranks;
        let count;
        (self.give, self.take, count) = match self.what {
            Collective::AllGather | Collective::Gather => (each, each * ranks, each),
            Collective::ReduceScatter | Collective::Scatter => (each * ranks, each, each),
            Collective::AllToAll => (each * ranks, each * ranks, each),
            Collective::Barrier => (0, 0, 0),
            _ => (all, all, all),
        };
        let bus_factor = match self.what {
            Collective::AllReduce => 2.0 * share,
            Collective::Reduce | Collective::Broadcast | Collective::Barrier => 1.0,
            _ => share,
        };
        Ok(Shape { bytes: self.give.max(self.take) * width, count, bus_factor })
    }

    fn run(&mut self, iterations: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        watch.start();
        for _ in 0..iterations {
            self.once()?;
            watch.lap();
        }
        Ok(())
    }

    fn check(&mut self, iteration: usize) -> Result<u64, GroupError> {
        let (rank, width) = (self.group.rank(), self.kind.bytes());
        let ranks = if self.what.reduces() { self.group.size() } else { 1 };
        let elements = (self.kind, self.operation(), ranks);
        check::fill_for(&mut self.input, elements, 0, self.give, rank, iteration)?;
        check::poison(&mut self.output)?;
        let mut start = 0;
        if self.options.in_place {
            // Where this rank's input begins in the output; for reduce_scatter, `start`: where its output begins.
            let at = if self.what == Collective::AllGather { rank * self.give * width } else { 0 };
            check::fill_for(&mut self.output, elements, at, self.give, rank, iteration)?;
            if self.what == Collective::ReduceScatter {
                start = rank * self.take * width;
            }
        }
        self.once()?;
        if !self.takes() {
            let own = if self.options.in_place { self.give * width } else { 0 };
            return check::count_unpoisoned(&self.output, own..self.output.len())
                .map_err(Into::into);
        }
        let expected = self.expected();
        let wrong =
            check::count_wrong(&self.output, self.kind, start, self.take, expected, iteration)?;
        let end = if self.options.in_place { self.give.max(self.take) } else { self.take } * width;
        Ok(wrong + check::count_unpoisoned(&self.output, end..self.output.len())?)
    }
}
