//! Measures reductions of two inputs in bytes per second: f16 and bf16 beside f32, in the L2 cache, in the L3 cache and in memory.
//!
//! `cargo bench -p ironrail-group --bench reduce [-- --check]`: `--check` fails if a sum takes more than [`BOUND`] times as long for the same
//! bytes in the L2 cache, on a CPU with F16C.
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use ironrail_group::loader::{DataType, Element, Op, bf16, f16};

/// Bytes of one input; both are touched.
const SIZES: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];
/// Bytes that one measurement moves at the least.
const BYTES: usize = 16 << 20;
/// The types run in turns, and their medians count.
const RUNS: usize = 25;
const BOUND: f64 = 1.2;

fn main() -> ExitCode {
    let check = std::env::args().any(|word| word == "--check");
    println!("{:>6} {:>10} {:>10} {:>8} {:>12}", "op", "type", "bytes", "GB/s", "time / f32");
    let mut well = true;
    for op in [Op::Sum, Op::Prod, Op::Min, Op::Max] {
        for bytes in SIZES {
            let (mut whole, mut half) =
                (Inputs::<f32>::new(op, bytes), Inputs::<f16>::new(op, bytes));
            let mut brain = Inputs::<bf16>::new(op, bytes);
            let mut times = [const { Vec::new() }; 3];
            for _ in 0..RUNS {
                times[0].push(whole.seconds());
                times[1].push(half.seconds());
                times[2].push(brain.seconds());
            }
            let medians = times.map(|mut times: Vec<f64>| {
                times.sort_by(f64::total_cmp);
                times[RUNS / 2]
            });
            for (kind, time) in
                [DataType::F32, DataType::F16, DataType::BF16].into_iter().zip(medians)
            {
                let (speed, ratio) = (gigabytes(bytes) / time, time / medians[0]);
                println!("{op:>6} {:>10} {bytes:>10} {speed:>8.2} {ratio:>12.2}", kind.name());
                well &= op != Op::Sum || bytes > SIZES[0] || ratio <= BOUND;
            }
        }
    }
    if !check || well || !has_f16c() {
        return ExitCode::SUCCESS;
    }
    println!("beyond {BOUND}");
    ExitCode::FAILURE
}

fn has_f16c() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("f16c");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn gigabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e9
}

struct Inputs<T> {
    op: Op,
    into: Vec<T>,
    terms: Vec<T>,
}

impl<T: Element> Inputs<T> {
    fn new(op: Op, bytes: usize) -> Self {
        let count = bytes / size_of::<T>();
        let of = |index: usize| T::from_small(u32::try_from(index % 3).unwrap_or(0));
        // Repeated reductions must not change the first input. Written one by one: zeros from the system would be one page, which stays in
        // the L1 cache.
        let neutral = u32::from(op != Op::Sum);
        let terms = (0..count).map(|_| T::from_small(black_box(neutral))).collect();
        Self { op, into: (0..count).map(of).collect(), terms }
    }

    /// Of one call.
    #[allow(clippy::cast_precision_loss, reason = "calls are few")]
    fn seconds(&mut self) -> f64 {
        let calls = (BYTES / size_of_val(self.into.as_slice())).max(1);
        let begun = Instant::now();
        for _ in 0..calls {
            T::reduce(self.op, black_box(&mut self.into), black_box(&self.terms));
        }
        begun.elapsed().as_secs_f64() / calls as f64
    }
}
