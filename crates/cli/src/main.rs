//! The `ironrail` command.
fn main() {}
