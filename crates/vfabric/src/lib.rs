//! The virtual fabric: a libfabric provider in one process, for tests and demos.
//!
//! Libfabric finds it as `libvfabric_fi.so` through FI_PROVIDER_PATH. Ranks are threads of one process; up to sixteen virtual NICs move
//! their bytes. A `profile` says what it promises and demands; a seed or a script (`faults`) says how it misbehaves. It is strict: it
//! records rules that its user breaks (`ledger`), and a test fails by them.
//!
//! ```text
//!   libfabric ──C tables──▶ provider ──▶ engine ──▶ profile, faults, random, ledger, counters
//!   tests ─────C table────▶ control ───────┘
//! ```
//! `provider` and `control` know C; each of their calls is one call of the engine, under its lock. The engine knows libfabric's
//! constants, and no pointer to its objects.
//!
//! docs/vfabric.md is the page for users.

mod calls;
mod control;
mod counters;
mod engine;
mod faults;
mod ledger;
mod memory;
mod profile;
mod provider;
mod random;
mod report;
mod serial;
mod settings;
