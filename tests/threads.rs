//! Threads as NCCL has them: a service and a progress thread for each communicator, at once on the same comms.
//!
//! scripts/races has valgrind's tools look at the same program.

mod support;

use support::client;

#[test]
fn eight_communicators_of_two_threads_move_checked_data() {
    client::stress(8, 2, 100, &[("IRONRAIL_PROVIDER", "net")]);
}

#[test]
fn eight_communicators_of_two_threads_move_checked_data_over_messages() {
    client::stress(8, 1, 100, &[("IRONRAIL_PROVIDER", "tcp;ofi_rxm")]);
}
