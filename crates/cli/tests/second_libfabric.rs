//! The behaviours of `ironrail conform`, with our plugin over libfabric 2.5.1: those about GPU memory, since 1.17 has no dmabufs, and all of
//! them over profiles of the virtual fabric and, by v8, over tcp.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "conform/main.rs"]
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the tests in there are of another target"
)]
mod conform;

use std::path::PathBuf;
use std::process::ExitCode;

use conform::ours::{LOOPBACK, alike_by_any_table, holds, on_gpus, profile};
use harness::Test;

fn main() -> ExitCode {
    let library = harness::second_libfabric().map(drop);
    let tests = [
        Test::new(gpu_memory_and_dmabufs_over_the_profile_of_cxi),
        Test::new(gpu_memory_and_dmabufs_by_v8_over_the_profile_of_efa),
        Test::new(gpu_memory_over_the_profile_of_cxi),
        Test::new(gpu_memory_over_the_profile_of_tcp),
        Test::new(it_passes_over_the_profile_of_cxi),
        Test::new(it_passes_over_the_profile_of_efa),
        Test::new(it_passes_over_the_adversary),
        Test::new(it_passes_over_a_profile_that_has_messages_alone),
        Test::new(by_v8_over_tcp),
        Test::new(by_v8_over_the_profile_of_cxi),
        Test::new(by_v8_over_the_profile_of_efa),
        Test::new(by_v8_over_the_profile_of_tcp),
        Test::new(by_v8_over_the_adversary),
    ];
    harness::run(tests.map(|test| test.needs(library.clone())))
}

fn library() -> PathBuf {
    harness::second_libfabric().unwrap()
}

fn gpu_memory_and_dmabufs_over_the_profile_of_cxi() {
    on_gpus("cxi", 12, Some(&library()), true);
}

fn gpu_memory_and_dmabufs_by_v8_over_the_profile_of_efa() {
    on_gpus("efa", 8, Some(&library()), true);
}

fn gpu_memory_over_the_profile_of_cxi() {
    on_gpus("cxi", 12, Some(&library()), false);
}

fn gpu_memory_over_the_profile_of_tcp() {
    on_gpus("tcp", 12, Some(&library()), false);
}

fn it_passes_over_the_profile_of_cxi() {
    profile("cxi", 12, Some(&library()));
}

fn it_passes_over_the_profile_of_efa() {
    profile("efa", 12, Some(&library()));
}

fn it_passes_over_the_adversary() {
    profile("adversary", 12, Some(&library()));
}

/// Without a setting: the profile has nothing else. Its regions are bound to endpoints.
fn it_passes_over_a_profile_that_has_messages_alone() {
    profile("messages", 12, Some(&library()));
}

fn by_v8_over_tcp() {
    let library = library();
    let mut environment = LOOPBACK.to_vec();
    environment.push(("IRONRAIL_PROVIDER", "tcp"));
    environment.push(("IRONRAIL_LIBFABRIC", library.to_str().unwrap()));
    let alike = alike_by_any_table();
    holds(&format!("--except {}", alike.trim_start_matches(',')), 8, &environment, &[]);
}

fn by_v8_over_the_profile_of_cxi() {
    profile("cxi", 8, Some(&library()));
}

fn by_v8_over_the_profile_of_efa() {
    profile("efa", 8, Some(&library()));
}

fn by_v8_over_the_profile_of_tcp() {
    profile("tcp", 8, Some(&library()));
}

fn by_v8_over_the_adversary() {
    profile("adversary", 8, Some(&library()));
}
