//! Measures a sum of two inputs in bytes per second: f16 and bf16 beside f32, in the L2 cache and in memory.
//!
//! `cargo bench -p ironrail-group --bench reduce [-- --check]`: `--check` fails if one takes more than [`BOUND`] times as long for the same
//! bytes in the cache, on a CPU with F16C.
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use ironrail_group::loader::{DataType, Element, Op, bf16, f16};

/// A piece that collectives reduce at a time, and a size beyond all caches.
const SIZES: [usize; 2] = [128 << 10, 64 << 20];
/// Bytes that one measurement moves.
const BYTES: usize = 64 << 20;
/// The fastest run counts: disturbances only make a run slower.
const RUNS: usize = 25;
const BOUND: f64 = 1.2;

fn main() -> ExitCode {
    let check = std::env::args().any(|word| word == "--check");
    println!("{:>10} {:>10} {:>8} {:>12}", "type", "bytes", "GB/s", "time / f32");
    let mut well = true;
    for bytes in SIZES {
        let whole = measured::<f32>(bytes);
        for (kind, speed) in [
            (DataType::F32, whole),
            (DataType::F16, measured::<f16>(bytes)),
            (DataType::BF16, measured::<bf16>(bytes)),
        ] {
            println!("{:>10} {bytes:>10} {speed:>8.2} {:>12.2}", kind.name(), whole / speed);
            well &= bytes > SIZES[0] || whole / speed <= BOUND;
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

/// GB of one input per second.
#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn measured<T: Element>(bytes: usize) -> f64 {
    let count = bytes / size_of::<T>();
    let of = |index: usize| T::from_small(u32::try_from(index % 3).unwrap_or(0));
    let mut into: Vec<T> = (0..count).map(of).collect();
    // Zeros: repeated sums do not change them. Written one by one: zeros from the system would be one page, which stays in the L1 cache.
    let terms: Vec<T> = (0..count).map(|_| T::from_small(black_box(0))).collect();
    let calls = BYTES / bytes;
    let fastest = (0..RUNS)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..calls {
                T::reduce(Op::Sum, black_box(&mut into), black_box(&terms));
            }
            begun.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    (calls * bytes) as f64 / fastest / 1e9
}
