//! The behaviours of `ironrail conform` about GPU memory, with our plugin over a libfabric that has dmabufs.

#[path = "conform/main.rs"]
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the tests in there are of another target"
)]
mod conform;

use std::process::ExitCode;

use conform::ours::on_gpus;
use harness::{Test, second_libfabric};

fn main() -> ExitCode {
    let second = second_libfabric().map(drop);
    harness::run([
        Test::new(gpu_memory_and_dmabufs_over_the_profile_of_cxi).needs(second.clone()),
        Test::new(gpu_memory_and_dmabufs_by_v8_over_the_profile_of_efa).needs(second),
    ])
}

fn gpu_memory_and_dmabufs_over_the_profile_of_cxi() {
    on_gpus("cxi", 12, second_libfabric().ok().as_deref(), true);
}

fn gpu_memory_and_dmabufs_by_v8_over_the_profile_of_efa() {
    on_gpus("efa", 8, second_libfabric().ok().as_deref(), true);
}
