//! A C program that loads the plugin as NCCL does and moves checked data, by every version's table.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Compiled once, against the header that C users get.
fn client() -> &'static Path {
    static CLIENT: OnceLock<PathBuf> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_client");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-g", "-I"])
            .arg(root.join("include"));
        compiler.arg(root.join("tests/c_client/client.c")).arg("-o").arg(&program).arg("-ldl");
        support::output_of(&mut compiler);
        program
    })
}

/// Two rails over the loopback interface, unless the environment says otherwise. The program bounds its own waits.
fn run(version: u32, mode: &str) {
    let folder = support::plugin().parent().expect("a file lies in a folder").to_owned();
    let inherited = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders =
        std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&inherited)));
    let mut client = Command::new(client());
    client.args([&version.to_string(), mode]);
    client
        .env("NCCL_NET_PLUGIN", "ironrail")
        .env("LD_LIBRARY_PATH", folders.expect("no folder has a colon"));
    if std::env::var_os("IRONRAIL_RAILS").is_none() {
        client.env("IRONRAIL_RAILS", "127.0.0.1,127.0.0.2");
    }
    support::output_of(&mut client);
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
