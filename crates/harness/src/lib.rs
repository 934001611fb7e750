//! Runs the tests of one target, and reports those that cannot run on this machine as ignored, with what they lack.
//!
//! cargo's own harness has `#[ignore]`, which is settled when a test is compiled: a test that looks for a second libfabric, or
//! for a provider, could only pass without having run. A target with `harness = false` lists its tests instead:
//!
//! ```no_run
//! # fn rxm_moves_data() {}
//! # fn tcp_of_the_second_library_moves_data() {}
//! use harness::{Test, second_libfabric};
//!
//! fn main() -> std::process::ExitCode {
//!     harness::run([
//!         Test::new(rxm_moves_data),
//!         Test::new(tcp_of_the_second_library_moves_data).needs(second_libfabric().map(drop)),
//!     ])
//! }
//! ```
//!
//! A function that is not listed is dead code, which the lints refuse. With IRONRAIL_TEST_WHOLE=1, as scripts/test sets it, a
//! machine is meant to have everything: a test that lacks something fails.

use std::any::type_name;
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use escargot::CargoBuild;
use escargot::format::Message;
use libtest_mimic::{Arguments, Trial};

/// What a test needs of the machine: there, or what is lacking, as in "libfabric 2.5.1".
pub type Need = Result<(), String>;

/// A test, by the name that its function has in its target.
pub struct Test {
    name: String,
    body: Box<dyn Fn() + Send>,
    lacks: Option<String>,
    /// Whether its needs may be lacking even with IRONRAIL_TEST_WHOLE=1.
    may_lack: bool,
    ignored: Option<&'static str>,
}

impl Test {
    /// A test that runs everywhere. `body` is a function by its name, which the test gets.
    pub fn new<F: Fn() + Send + 'static>(body: F) -> Self {
        Self {
            name: name_of::<F>(),
            body: Box::new(body),
            lacks: None,
            may_lack: false,
            ignored: None,
        }
    }

    /// The test `of`, run by `body` under other conditions, which `name` adds to its name.
    pub fn variant<F: Fn() + 'static>(
        _of: F,
        name: &str,
        body: impl Fn() + Send + 'static,
    ) -> Self {
        let name = format!("{}::{name}", name_of::<F>());
        Self { name, body: Box::new(body), lacks: None, may_lack: false, ignored: None }
    }

    /// Makes the test ignored where `need` is not met.
    #[must_use]
    pub fn needs(mut self, need: Need) -> Self {
        if let Err(what) = need {
            // What must not be lacking is named before what may.
            self.lacks = self.lacks.filter(|_| !self.may_lack).or(Some(what));
            self.may_lack = false;
        }
        self
    }

    /// As [`Self::needs`], but also with IRONRAIL_TEST_WHOLE=1: for a need that no script can meet on every machine, such as a network.
    #[must_use]
    pub fn wants(mut self, need: Need) -> Self {
        if let (Err(what), None) = (need, &self.lacks) {
            (self.lacks, self.may_lack) = (Some(what), true);
        }
        self
    }

    /// Makes the test ignored everywhere, as with `#[ignore]`: it shows a fault that is known, or is run by hand. docs/testing.md lists it.
    #[must_use]
    pub fn ignored(mut self, reason: &'static str) -> Self {
        self.ignored = Some(reason);
        self
    }

    /// `whole`: IRONRAIL_TEST_WHOLE is 1.
    fn fate(&self, whole: bool) -> Fate {
        match (self.ignored, &self.lacks) {
            (Some(reason), _) => Fate::Ignored(reason.to_owned()),
            (None, None) => Fate::Runs,
            (None, Some(what)) if whole && !self.may_lack => Fate::Fails(format!(
                "it lacks {what}, and IRONRAIL_TEST_WHOLE says that nothing is lacking"
            )),
            (None, Some(what)) => Fate::Lacks(what.clone()),
        }
    }

    fn into_trial(self, whole: bool) -> Trial {
        let fate = self.fate(whole);
        let Self { name, body, .. } = self;
        match fate {
            Fate::Runs => trial(name, body),
            Fate::Ignored(reason) => trial(name, body).with_ignored_flag(true).with_kind(reason),
            Fate::Fails(why) => Trial::test(name, move || Err(why.into())),
            Fate::Lacks(what) => {
                let unmet = format!("it lacks {what}");
                Trial::test(name, move || Err(unmet.into()))
                    .with_ignored_flag(true)
                    .with_kind(format!("lacks {what}"))
            }
        }
    }
}

/// What becomes of a test on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Runs,
    /// It runs only if it is asked for by hand.
    Ignored(String),
    /// It is reported as ignored: the machine lacks this.
    Lacks(String),
    /// It fails for this reason, without running.
    Fails(String),
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, lacks, ignored, .. } = self;
        f.debug_struct("Test")
            .field("name", name)
            .field("lacks", lacks)
            .field("ignored", ignored)
            .finish_non_exhaustive()
    }
}

fn trial(name: String, body: Box<dyn Fn() + Send>) -> Trial {
    Trial::test(name, move || {
        body();
        Ok(())
    })
}

/// Whether this machine is meant to have everything that tests need (IRONRAIL_TEST_WHOLE=1).
pub fn is_whole() -> bool {
    env::var_os("IRONRAIL_TEST_WHOLE").is_some_and(|value| value == "1")
}

/// An executable of this workspace, a command or a test target, by its name: built by cargo for the test that calls this, so that other files
/// in the target folder are ignored. `alone` are the arguments that build it alone. After scripts/test has built all tests of the
/// workspace, its executable is used: a package built alone has other features, and would be built again.
///
/// # Panics
///
/// cargo does not run or does not build it.
pub fn executable(name: &str, alone: &[&str]) -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let arguments = if is_whole() { &["--workspace", "--tests"] } else { alone };
    let cargo = CargoBuild::new().manifest_path(manifest).args(arguments);
    let mut found = None;
    for message in cargo.exec().expect("cargo runs") {
        let message = message.expect("it is built");
        let Ok(Message::CompilerArtifact(artifact)) = message.decode() else { continue };
        // The unit tests of a command have its name.
        let is_test = artifact.target.kind.iter().any(|kind| kind == "test");
        if artifact.target.name == name && artifact.profile.test == is_test {
            found = artifact.executable.map(|file| file.into_owned()).or(found);
        }
    }
    found.expect("cargo says where it left the executable")
}

/// Runs the tests that the command line asks for, and reports as cargo's own harness does: RUST_TEST_THREADS of them at a time, without
/// `--test-threads`.
///
/// # Panics
///
/// RUST_TEST_THREADS is no number.
pub fn run(tests: impl IntoIterator<Item = Test>) -> ExitCode {
    let whole = is_whole();
    let trials = tests.into_iter().map(|test| test.into_trial(whole)).collect();
    let mut arguments = Arguments::from_args();
    let threads = || env::var("RUST_TEST_THREADS").ok();
    let number = |text: String| text.parse().expect("RUST_TEST_THREADS is a number of threads");
    arguments.test_threads = arguments.test_threads.or_else(|| threads().map(number));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Network namespaces, which unshare(1) makes; a new one has the loopback interface, down.
///
/// # Errors
///
/// They cannot be made here.
pub fn network_namespaces() -> Need {
    match Command::new("unshare").args(["-rn", "true"]).output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err("network namespaces (unshare -rn)".to_owned()),
    }
}

/// libfabric 2.5.1, as scripts/setup brings it (the wheel mpich 5.0.2 carries it), or where IRONRAIL_TEST_SECOND_LIBFABRIC says.
///
/// # Errors
///
/// It is not there.
pub fn second_libfabric() -> Result<PathBuf, String> {
    let file = match env::var_os("IRONRAIL_TEST_SECOND_LIBFABRIC") {
        Some(file) => PathBuf::from(file),
        None => PathBuf::from(SECOND_LIBFABRIC),
    };
    if file.is_file() {
        Ok(file)
    } else {
        Err("libfabric 2.5.1 (scripts/setup brings it)".to_owned())
    }
}

/// Runs the calling test again, alone in a process of its own, with these settings. It has to pass there.
///
/// # Panics
///
/// When it does not pass.
pub fn again<F: Fn() + 'static>(_test: F, settings: &[(&str, &std::ffi::OsStr)]) {
    let name = name_of::<F>();
    let program = env::current_exe().expect("this program has a name");
    let mut command = Command::new(program);
    command.args(["--exact", &name, "--include-ignored", "--test-threads=1"]);
    command.envs(settings.iter().copied());
    let output = command.output().expect("this program starts again");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    let ran = said.contains("1 passed");
    assert!(output.status.success() && ran, "{name}: {}\n{said}{errors}", output.status);
}

/// A function's path in its crate: the name of a test, also for cargo's own harness.
fn name_of<F>() -> String {
    let path = type_name::<F>();
    path.split_once("::").map_or(path, |(_, rest)| rest).to_owned()
}

const SECOND_LIBFABRIC: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../.cache/libfabric-2.5.1/data/lib/mpich/libfabric.so.1"
);

#[cfg(test)]
mod tests {
    use super::*;

    fn test(make: impl Fn(Test) -> Test) -> [Fate; 2] {
        [false, true].map(|whole| make(Test::new(|| ())).fate(whole))
    }

    fn lacking() -> Need {
        Err("a second network".to_owned())
    }

    #[test]
    fn a_test_that_lacks_something_is_ignored_except_where_nothing_may_be_lacking() {
        let why = "it lacks a second network, and IRONRAIL_TEST_WHOLE says that nothing is lacking";
        let [lacks, fails] =
            [Fate::Lacks("a second network".to_owned()), Fate::Fails(why.to_owned())];
        assert_eq!(test(|test| test.needs(Ok(())).wants(Ok(()))), [Fate::Runs, Fate::Runs]);
        for more in [Ok(()), lacking()] {
            let needs = test(|test| test.needs(lacking()).needs(more.clone()));
            assert_eq!(needs, [lacks.clone(), fails.clone()]);
            let needs = test(|test| test.needs(lacking()).wants(more.clone()));
            assert_eq!(needs, [lacks.clone(), fails.clone()]);
        }
        assert_eq!(test(|test| test.wants(lacking())), [lacks.clone(), lacks.clone()]);
        let needs = test(|test| test.wants(Err("a NIC".to_owned())).needs(lacking()));
        assert_eq!(needs, [lacks, fails], "in any order");
    }

    #[test]
    fn a_test_that_is_ignored_everywhere_neither_runs_nor_fails() {
        for need in [Ok(()), lacking()] {
            let fates = test(|test| test.needs(need.clone()).ignored("by hand"));
            assert_eq!(fates, [(); 2].map(|()| Fate::Ignored("by hand".to_owned())));
        }
    }
}
