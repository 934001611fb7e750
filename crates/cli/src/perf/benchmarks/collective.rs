//! all_reduce, all_gather and reduce_scatter over a ring.

use ironrail_group::check::{self, Expected};
use ironrail_group::collectives::{self, WINDOW, Workspace};
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::loader::{DataType, Op};
use ironrail_group::plan::{self, Cut, Plan};

use super::{GUARD_BYTES, Shape, Workload};
use crate::perf::arguments::{Benchmark, Options};
use crate::perf::statistics::Stopwatch;

pub(super) struct Collective {
    benchmark: Benchmark,
    kind: DataType,
    operation: Op,
    cut: Cut,
    workspace: Workspace,
    plan: Plan,
    /// Elements of this rank's input and output.
    input: usize,
    output: usize,
}

impl Collective {
    pub(super) fn new(
        benchmark: &Benchmark,
        options: &Options,
        communicator: &Communicator,
    ) -> Result<Self, GroupError> {
        let ranks = communicator.ring().size;
        let cut = Cut {
            piece_bytes: options.piece,
            piece_bytes_min: options.piece.min(PIECE_BYTES_MIN),
            depth: options.depth,
        };
        let whole = options.last();
        let (input, output) = match benchmark {
            Benchmark::AllGather => (whole / ranks, whole),
            Benchmark::ReduceScatter => (whole, whole / ranks),
            _ => (whole, whole),
        };
        let staging = cut.slots() * cut.piece_bytes;
        let mut workspace = Workspace::new(communicator, input, output + GUARD_BYTES, staging)?;
        // Every page is there before the clock runs.
        check::poison(&mut workspace.input)?;
        check::poison(&mut workspace.output)?;
        Ok(Self {
            benchmark: benchmark.clone(),
            kind: options.kind,
            operation: options.operation,
            cut,
            workspace,
            plan: Plan::default(),
            input: 0,
            output: 0,
        })
    }

    fn window(&self) -> usize {
        WINDOW.min(self.cut.slots())
    }

    fn once(&mut self, communicator: &mut Communicator) -> Result<(), GroupError> {
        let window = self.window();
        let elements = (self.kind, self.operation);
        collectives::run(communicator, &mut self.workspace, &self.plan, elements, window)
    }
}

/// Below it, a message costs more than its bytes.
const PIECE_BYTES_MIN: usize = 32 << 10;

impl Workload for Collective {
    #[allow(clippy::cast_precision_loss, reason = "a few ranks")]
    fn begin(&mut self, communicator: &Communicator, bytes: usize) -> Shape {
        let ring = communicator.ring();
        let width = self.kind.bytes();
        let (all, ranks) = (bytes / width, ring.size);
        let share = (ranks - 1) as f64 / ranks as f64;
        let (count, whole, bus_factor);
        (self.plan, self.input, self.output, count, whole, bus_factor) = match self.benchmark {
            Benchmark::AllGather => {
                let each = all / ranks;
                (
                    plan::all_gather(ring, each, width, self.cut),
                    each,
                    each * ranks,
                    each,
                    each * ranks,
                    share,
                )
            }
            Benchmark::ReduceScatter => {
                let each = all / ranks;
                (
                    plan::reduce_scatter(ring, each, width, self.cut),
                    each * ranks,
                    each,
                    each,
                    each * ranks,
                    share,
                )
            }
            _ => (plan::all_reduce(ring, all, width, self.cut), all, all, all, all, 2.0 * share),
        };
        Shape { bytes: whole * width, count, bus_factor }
    }

    fn run(
        &mut self,
        communicator: &mut Communicator,
        iterations: usize,
        watch: &mut Stopwatch,
    ) -> Result<(), GroupError> {
        watch.start();
        for _ in 0..iterations {
            self.once(communicator)?;
            watch.lap();
        }
        Ok(())
    }

    fn check(
        &mut self,
        communicator: &mut Communicator,
        iteration: usize,
    ) -> Result<u64, GroupError> {
        let ring = communicator.ring();
        let (rank, ranks, kind) = (ring.rank, ring.size, self.kind);
        let op = self.operation;
        let elements =
            if self.benchmark == Benchmark::AllGather { (kind, Op::Sum) } else { (kind, op) };
        check::fill_for(&mut self.workspace.input, elements, 0, self.input, rank, iteration)?;
        check::poison(&mut self.workspace.output)?;
        self.once(communicator)?;
        let expected = match self.benchmark {
            Benchmark::AllGather => Expected::Inputs { ranks, each: self.input },
            Benchmark::ReduceScatter => Expected::Reduced { op, ranks, first: rank * self.output },
            _ => Expected::Reduced { op, ranks, first: 0 },
        };
        let output = &self.workspace.output;
        let end = self.output * kind.bytes();
        let wrong = check::count_wrong(output, kind, 0, self.output, expected, iteration)?;
        Ok(wrong + check::count_unpoisoned(output, end..output.len())?)
    }
}
