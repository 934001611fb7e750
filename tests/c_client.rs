//! A C program that loads the plugin as NCCL does and moves checked data with every version's table.

mod support;

use support::client;

fn run(version: u32, mode: &str) {
    client::run(version, mode, &[]);
}

/// The ends negotiate what a connection can carry: the older table has no groups, and truncates to its receives.
#[test]
fn ends_of_different_versions_move_data() {
    for (version, other) in [(12, "8"), (9, "6"), (8, "12")] {
        client::run(version, "pair", &[("CLIENT_OTHER_VERSION", other)]);
    }
}

macro_rules! versions {
    ($($version:literal $alone:ident $pair:ident)*) => {
        $(
            #[test]
            fn $alone() {
                run($version, "self");
            }

            #[test]
            fn $pair() {
                run($version, "pair");
            }
        )*
    };
}

versions! {
    6 v6_moves_data_to_itself v6_moves_data_between_two_processes
    7 v7_moves_data_to_itself v7_moves_data_between_two_processes
    8 v8_moves_data_to_itself v8_moves_data_between_two_processes
    9 v9_moves_data_to_itself v9_moves_data_between_two_processes
    10 v10_moves_data_to_itself v10_moves_data_between_two_processes
    11 v11_moves_data_to_itself v11_moves_data_between_two_processes
    12 v12_moves_data_to_itself v12_moves_data_between_two_processes
}
