//! C programs that load the plugin as NCCL does: compiled once with the header that C users get, run with the settings of a test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn program() -> &'static Path {
    static CLIENT: OnceLock<PathBuf> = OnceLock::new();
    CLIENT.get_or_init(|| compile("tests/c_client/client.c"))
}

fn stress_program() -> &'static Path {
    static STRESS: OnceLock<PathBuf> = OnceLock::new();
    STRESS.get_or_init(|| compile("tests/stress/stress.c"))
}

fn compile(source: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join(source);
    let name = source.file_stem().expect("a source has a name").to_str().expect("ours is text");
    let name = format!("{name}.{}", std::process::id());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-g", "-pthread", "-I"]);
    compiler.arg(root.join("include")).arg(source).arg("-o").arg(&program).arg("-ldl");
    super::output_of(&mut compiler);
    program
}

/// Runs the client over two rails of the loopback interface, unless `settings` or the environment say otherwise. The client bounds its own
/// waits.
pub(crate) fn run(version: u32, mode: &str, settings: &[(&str, &str)]) {
    as_nccl(Command::new(program()).args([&version.to_string(), mode]), settings);
}

/// Runs the stress program: `communicators` of two threads each, and `messages` from each in every round.
pub(crate) fn stress(
    communicators: usize,
    rounds: usize,
    messages: usize,
    settings: &[(&str, &str)],
) {
    let words = [communicators, rounds, messages].map(|number| number.to_string());
    as_nccl(Command::new(stress_program()).args(words), settings);
}

fn as_nccl(client: &mut Command, settings: &[(&str, &str)]) {
    let folder = super::plugin().parent().expect("a file is in a folder").to_owned();
    let inherited = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    // cargo adds the folder of the command `ironrail`, which NCCL would find by the plugin's word.
    let built = folder.parent().expect("the folder is in cargo's").to_owned();
    let inherited = std::env::split_paths(&inherited).filter(|folder| !folder.starts_with(&built));
    let folders = std::env::join_paths(std::iter::once(folder).chain(inherited));
    client.env("NCCL_NET_PLUGIN", "ironrail");
    client.env("LD_LIBRARY_PATH", folders.expect("no folder has a colon"));
    if std::env::var_os("IRONRAIL_RAILS").is_none() {
        client.env("IRONRAIL_RAILS", "127.0.0.1,127.0.0.2");
    }
    client.envs(settings.iter().copied());
    super::output_of(client);
}
