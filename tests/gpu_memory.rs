//! GPU memory over the virtual fabric, on both libraries.

#[path = "vfabric/gpu.rs"]
mod gpu;
mod support;
#[path = "vfabric/together.rs"]
mod together;
#[path = "../crates/vfabric/tests/support/provider.rs"]
mod vfabric;
#[path = "vfabric/world.rs"]
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    harness::run(gpu::tests())
}
