//! Builds the test plugins with the C compiler that links Rust programs.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{self, Command};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;
use std::{env, fs};

/// plugins/loopback.c, built: `libnccl-net-loopback.so`, below `directory` (a test's CARGO_TARGET_TMPDIR).
#[allow(dead_code, reason = "shared by tests that use one plugin or both")]
pub(crate) fn loopback(directory: &str) -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build(directory, "loopback", "../group/tests/plugins/loopback.c", &[]))
}

/// The plugin of crates/cli/tests/plugins/reference.c, which keeps the contract unless REFERENCE_FAULT is set, and supports grouped
/// receives.
#[allow(dead_code, reason = "shared by tests that use one plugin or both")]
pub(crate) fn reference(directory: &str) -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build(directory, "reference", REFERENCE, &[]))
}

/// The same with a call of a function that no library has, which fails at binding.
#[allow(dead_code, reason = "shared by tests that use one plugin or both")]
pub(crate) fn unresolved(directory: &str) -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let lazily = ["-DUNRESOLVED", "-Wl,-z,lazy"];
    BUILT.get_or_init(|| build(directory, "unresolved", REFERENCE, &lazily))
}

#[allow(dead_code, reason = "shared by tests that use one plugin or both")]
const REFERENCE: &str = "../cli/tests/plugins/reference.c";

fn build(directory: &str, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let folder = Path::new(directory).join(name);
    fs::create_dir_all(&folder).unwrap();
    let plugin = folder.join(format!("libnccl-net-{name}.so"));
    // The tests of one binary share the result; another binary may be building it at the same time.
    let own = folder.join(format!("{}.so", process::id()));
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC"])
        .args(options)
        .arg("-o")
        .arg(&own)
        .arg(&source)
        .args(["-lpthread", "-ldl"])
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "{compiler} cannot build {}",
        source.display()
    );
    fs::rename(&own, &plugin).unwrap();
    plugin
}

/// Runs a function on every rank of a group of threads, over this plugin.
#[allow(dead_code, reason = "shared by tests that use one plugin or both")]
pub(crate) fn ranks<T: Send + 'static>(
    library: &Arc<ironrail_group::loader::Library>,
    size: usize,
    work: impl Fn(ironrail_group::group::Group) -> T + Clone + Send + 'static,
) -> Vec<T> {
    ranks_within(library, size, WAIT, work)
}

/// The same with another limit of waits.
#[allow(dead_code, reason = "shared by tests that use one plugin or both")]
pub(crate) fn ranks_within<T: Send + 'static>(
    library: &Arc<ironrail_group::loader::Library>,
    size: usize,
    timeout: std::time::Duration,
    work: impl Fn(ironrail_group::group::Group) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let builder = ironrail_group::group::Builder::new(library).timeout(timeout);
    ranks_built(&builder, size, work)
}

/// The same with groups as this makes them.
#[allow(dead_code, reason = "shared by tests that use one plugin or both")]
pub(crate) fn ranks_built<T: Send + 'static>(
    builder: &ironrail_group::group::Builder,
    size: usize,
    work: impl Fn(ironrail_group::group::Group) -> T + Clone + Send + 'static,
) -> Vec<T> {
    use ironrail_group::bootstrap::{Hub, Remote};
    let loopback = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let hub = Hub::start(loopback, size, WAIT).unwrap();
    let threads: Vec<_> = (0..size)
        .map(|rank| {
            let (builder, work, meeting) = (builder.clone(), work.clone(), hub.meeting(rank));
            thread::spawn(move || {
                let place = Remote::join(meeting, WAIT).unwrap();
                work(builder.join(place).unwrap())
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Only a hang takes this long.
#[allow(dead_code, reason = "shared by tests that use one plugin or both")]
pub(crate) const WAIT: std::time::Duration = std::time::Duration::from_secs(30);

/// The plugin in IRONRAIL_GROUP_TEST_NET, by version IRONRAIL_GROUP_TEST_ABI of its table or the newest; otherwise the C plugin of the
/// tests.
#[allow(dead_code, reason = "shared by tests that use one plugin or both")]
pub(crate) fn library() -> Arc<ironrail_group::loader::Library> {
    use ironrail_group::loader::Library;
    static LIBRARY: OnceLock<Arc<Library>> = OnceLock::new();
    let open = || match env::var("IRONRAIL_GROUP_TEST_NET") {
        Ok(named) => {
            let version = env::var("IRONRAIL_GROUP_TEST_ABI").ok();
            Library::open(&named, version.map(|version| version.parse().unwrap())).unwrap()
        }
        Err(_) => buffering(),
    };
    LIBRARY.get_or_init(open).clone()
}

/// The C plugin of the tests in any case: for those that set bytes of its handle, or need what NCCL's contract does not promise, that a connect
/// ends before its accept, or a long send before its receive is posted.
#[allow(dead_code, reason = "shared by tests, of which few need it")]
pub(crate) fn buffering() -> Arc<ironrail_group::loader::Library> {
    use ironrail_group::loader::Library;
    static LIBRARY: OnceLock<Arc<Library>> = OnceLock::new();
    let open = || Library::open(loopback(&folder()).to_str().unwrap(), None).unwrap();
    LIBRARY.get_or_init(open).clone()
}

/// The C plugin of the tests, by which what has come is received though a later receive has failed.
#[allow(dead_code, reason = "shared by tests, of which few need it")]
pub(crate) fn keeping() -> Arc<ironrail_group::loader::Library> {
    static LIBRARY: OnceLock<Arc<ironrail_group::loader::Library>> = OnceLock::new();
    LIBRARY.get_or_init(|| loopback_with("keeping", "-DKEEPS_WHAT_CAME")).clone()
}

/// The C plugin of the tests, with which a registration takes longer than a copy.
#[allow(dead_code, reason = "shared by tests, of which few need it")]
pub(crate) fn pinning() -> Arc<ironrail_group::loader::Library> {
    static LIBRARY: OnceLock<Arc<ironrail_group::loader::Library>> = OnceLock::new();
    LIBRARY.get_or_init(|| loopback_with("pinning", "-DPINS")).clone()
}

/// The C plugin of the tests, built with this flag.
#[allow(dead_code, reason = "shared by tests, of which few need it")]
fn loopback_with(name: &str, flag: &str) -> Arc<ironrail_group::loader::Library> {
    let plugin = build(&folder(), name, "../group/tests/plugins/loopback.c", &[flag]);
    ironrail_group::loader::Library::open(plugin.to_str().unwrap(), None).unwrap()
}

/// Where plugins are built. Cargo names no folder to the tests in the crate itself.
#[allow(dead_code, reason = "shared by tests that name a folder or do not")]
fn folder() -> String {
    let own = env::current_exe().unwrap();
    let beside = own.parent().and_then(Path::to_str);
    option_env!("CARGO_TARGET_TMPDIR").or(beside).unwrap().to_owned()
}

/// A connection of this process to itself. `alter` changes the handle before the connect.
#[allow(dead_code, reason = "shared by tests, of which few have bare connections")]
pub(crate) fn connected(
    library: &Arc<ironrail_group::loader::Library>,
    alter: impl FnOnce(&mut ironrail_group::loader::Handle),
) -> (ironrail_group::loader::SendComm, ironrail_group::loader::ReceiveComm) {
    let net = ironrail_group::loader::Net::init(library, 1).unwrap();
    let (listener, mut handle) = net.listen(0).unwrap();
    alter(&mut handle);
    let (mut sender, mut receiver) = (None, None);
    let deadline = Instant::now() + WAIT;
    loop {
        if sender.is_none() {
            sender = net.connect(0, &mut handle).unwrap();
        }
        if receiver.is_none() {
            receiver = listener.accept().unwrap();
        }
        match (sender.take(), receiver.take()) {
            (Some(sender), Some(receiver)) => return (sender, receiver),
            ends => (sender, receiver) = ends,
        }
        assert!(Instant::now() < deadline, "it does not connect");
        thread::yield_now();
    }
}

/// The simplest executor: the thread parks until it is woken.
#[allow(dead_code, reason = "shared by tests, of which some have no futures")]
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    let deadline = Instant::now() + WAIT;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park_timeout(WAIT);
        // Before the next poll, which might find that it has ended.
        assert!(Instant::now() < deadline, "no waker woke it in time");
    }
}

/// Bytes that differ from place to place, and for every seed.
#[allow(dead_code, reason = "shared by tests, of which some send no long messages")]
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| u8::try_from(((i.wrapping_mul(2_654_435_761) >> 7) % 251) ^ (seed % 251)).unwrap())
        .collect()
}
