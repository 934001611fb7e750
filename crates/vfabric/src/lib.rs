//! The virtual fabric: a libfabric provider in one process, for tests and demos.
//!
//! Libfabric finds it as `libvfabric_fi.so` through FI_PROVIDER_PATH. Ranks are threads of one process; up to sixteen virtual
//! NICs move their bytes. What it promises and demands is a `profile`; how it misbehaves is chance from a seed, or a script
//! (`faults`). It is strict: rules that its user breaks are written down (`ledger`), and a test fails by them.
//!
//! ```text
//!   libfabric ──C tables──▶ provider ──▶ engine ──▶ profile, faults, random, ledger, counters
//!   tests ─────C table────▶ control ───────┘
//! ```
//! `provider` and `control` know C, and one call of theirs is one call of the engine's, under its lock. The engine knows nothing of C.
//!
//! docs/vfabric.md is the page for users.

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
