//! Tests of several processes, each with its own settings: the plugin reads the environment once per process.
//!
//! A test that plays starts its own binary again, for this test only, as the part "main"; that one casts (starts) the other parts in the
//! same way. Parts exchange lines, over the standard input and output of the part that was cast. A part whose caster is gone ends, and the
//! whole play ends within its bound.

use std::any::type_name;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Runs `body` as a play: in another process, with `settings` (without their prefix), to its end within `bound`. Returns what was printed
/// there.
pub(crate) fn play<F: Fn(&Part)>(settings: &[(&str, &str)], bound: Duration, body: F) -> String {
    perform(test_name::<F>(), settings, bound, body)
}

/// The same once for each case, which is passed to the body; returns what each printed. A loop around [`play`] would play the first case again and again, since the
/// other process begins at the start of the test.
pub(crate) fn play_each<F: Fn(&Part, &str)>(
    cases: &[impl AsRef<str>],
    settings: &[(&str, &str)],
    bound: Duration,
    body: F,
) -> Vec<String> {
    let one = |case: &str| {
        perform(test_name::<F>(), &[settings, &[(CASE, case)]].concat(), bound, |part| {
            let case = std::env::var(format!("IRONRAIL_{CASE}")).expect("it was just set");
            body(part, &case);
        })
    };
    cases.iter().map(|case| one(case.as_ref())).collect()
}

fn perform(
    test: &'static str,
    settings: &[(&str, &str)],
    bound: Duration,
    body: impl Fn(&Part),
) -> String {
    if let Ok(name) = std::env::var(PART) {
        let part = Part::begin(name, test);
        body(&part);
        part.end();
    }
    // A test may be played twice at once.
    static PLAYS: AtomicU32 = AtomicU32::new(0);
    let name = format!("{test}.{}.{}", process::id(), PLAYS.fetch_add(1, Ordering::Relaxed));
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = File::create(&log).expect("the target folder takes a file");
    let mut main = command(test, "main", settings);
    main.env(PLUGIN, super::plugin()).stdin(Stdio::piped());
    main.stdout(output.try_clone().expect("a file")).stderr(output);
    let mut main = main.spawn().expect("this binary starts again");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = main.try_wait().expect("it is our child") {
            break Some(status);
        }
        if start.elapsed() > bound {
            main.kill().expect("it is our child");
            main.wait().expect("it is our child");
            break None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let mut text = String::new();
    File::open(&log).expect("just written").read_to_string(&mut text).expect("text");
    fs::remove_file(&log).expect("ours");
    match status {
        Some(status) if status.success() && text.lines().any(|line| line.ends_with(PLAYED)) => text,
        Some(status) => panic!("{test}: {status}\n{text}"),
        None => panic!("{test} did not end within {bound:?}\n{text}"),
    }
}

/// One process of a play.
pub(crate) struct Part {
    /// "main", or the name by which it was cast.
    pub(crate) name: String,
    test: &'static str,
    caster: Lines,
}

/// Another process of the play. It is killed when dropped.
pub(crate) struct Cast {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines,
}

impl Part {
    fn begin(name: String, test: &'static str) -> Self {
        Self { name, test, caster: Lines::of_caster() }
    }

    fn end(self) -> ! {
        super::say(PLAYED);
        process::exit(0)
    }

    /// The file of the plugin under test.
    pub(crate) fn plugin(&self) -> PathBuf {
        std::env::var_os(PLUGIN).expect("the play sets it").into()
    }

    /// Starts another part. Settings that are not named are as here.
    pub(crate) fn cast(&self, name: &str, settings: &[(&str, &str)]) -> Cast {
        let mut command = command(self.test, name, settings);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this binary starts again");
        let input = child.stdin.take();
        let lines = Lines::of_cast(child.stdout.take().expect("it is piped"));
        Cast { child, input, lines }
    }

    /// Sends a line to the caster.
    pub(crate) fn say(&self, line: &str) {
        super::say(&format!("{MARK}{line}"));
    }

    /// Waits for a line of the caster.
    pub(crate) fn receive(&self) -> String {
        self.caster.next().unwrap_or_else(|| process::exit(3))
    }

    /// The next line, if there is one.
    pub(crate) fn try_receive(&self) -> Option<String> {
        self.caster.waiting()
    }

    /// SIGSTOP: the process is stopped until the caster calls [`Cast::resume`].
    pub(crate) fn stop(&self) {
        // SAFETY: no handler can catch the signal.
        assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0);
    }
}

impl Cast {
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it is piped");
        writeln!(input, "{line}").expect("the part is alive");
    }

    pub(crate) fn receive(&self) -> String {
        self.lines.next().expect("the part says something")
    }

    pub(crate) fn try_receive(&self) -> Option<String> {
        self.lines.waiting()
    }

    /// Waits until the part is stopped.
    pub(crate) fn wait_for_stop(&self) {
        let start = Instant::now();
        let path = format!("/proc/{}/stat", self.child.id());
        loop {
            // The state follows the name, which is in brackets and may contain blanks.
            let stat = fs::read_to_string(&path).expect("it is our child");
            if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "a part does not stop");
            thread::yield_now();
        }
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL: no destructor runs.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }

    /// SIGSTOP: it lives, and does nothing. On a busy machine its threads go on until the one that gets the signal runs.
    pub(crate) fn pause(&mut self) {
        self.signal("STOP");
        self.wait_for_stop();
    }

    /// SIGCONT, after a pause or a stop.
    pub(crate) fn resume(&mut self) {
        self.signal("CONT");
    }

    /// A shell has this built in; a program of the name need not exist.
    fn signal(&mut self, name: &str) {
        let line = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &line]).status().expect("there is a shell");
        assert!(status.success(), "{line}: {status}");
    }

    /// Waits for the part to end in any way.
    pub(crate) fn ended(mut self, bound: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status;
            }
            assert!(start.elapsed() < bound, "a part does not end");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the part to end successfully.
    pub(crate) fn finish(mut self) {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                assert!(status.success(), "a part ended with {status}");
                return;
            }
            assert!(start.elapsed() < PATIENCE, "a part does not end");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Stops this process for so long, half a second from now; then continues it and `others`, which are stopped.
pub(crate) fn suspend(others: &[u32], how_long: Duration) -> Suspended {
    let (me, seconds) = (process::id(), how_long.as_secs_f32());
    let others: String = others.iter().map(|other| format!(" {other}")).collect();
    let script = format!("sleep 0.5; kill -STOP {me}; sleep {seconds}; kill -CONT {me}{others}");
    Suspended(Command::new("sh").args(["-c", &script]).spawn().expect("there is a shell"))
}

/// The shell that stops and continues this process.
pub(crate) struct Suspended(Child);

impl Suspended {
    /// Waits until this process was stopped and continued.
    pub(crate) fn end(mut self) {
        assert!(self.0.wait().expect("it is our child").success());
    }
}

/// Lines read by a thread, so that waiting for one has a bound.
struct Lines(Receiver<String>);

impl Lines {
    /// The lines of the caster. When the caster is gone this part ends, since nothing bounds it any more.
    fn of_caster() -> Self {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                drop(sender.send(line));
            }
            process::exit(3);
        });
        Self(receiver)
    }

    /// The lines that a part sends to its caster. Its other output goes to the log of the play.
    fn of_cast(output: ChildStdout) -> Self {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                match line.strip_prefix(MARK) {
                    Some(line) => drop(sender.send(line.to_owned())),
                    None => super::say(&format!("    {line}")),
                }
            }
        });
        Self(receiver)
    }

    fn next(&self) -> Option<String> {
        self.0.recv_timeout(PATIENCE).ok()
    }

    fn waiting(&self) -> Option<String> {
        self.0.try_recv().ok()
    }
}

/// How long a part waits for a line of another.
const PATIENCE: Duration = Duration::from_secs(60);
/// Settings of the tests' own begin so: the plugin leaves them alone.
const PART: &str = "IRONRAIL_TEST_PART";
const PLUGIN: &str = "IRONRAIL_TEST_PLUGIN";
/// Begins a line for the caster.
const MARK: &str = "@ ";
/// A setting, without its prefix: which of the cases is played.
const CASE: &str = "TEST_CASE";
/// Ends a play that came to its end.
const PLAYED: &str = "the play is over";

fn command(test: &str, part: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary has a name"));
    command
        .args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(PART, part);
    let theirs = is_over_shm() && settings.iter().all(|(name, _)| *name != "PROVIDER");
    for (name, value) in settings.iter().filter(|(name, _)| !(theirs && *name == "RAILS")) {
        command.env(format!("IRONRAIL_{name}"), value);
        if *name == super::gpu::DRIVER {
            // The plugin tries other names before libcuda.so.1, and a host with a GPU has them.
            let inherited = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
            let folder = Path::new(value).parent().expect("a file is in a folder");
            command.env("LD_LIBRARY_PATH", format!("{}:{inherited}", folder.display()));
        }
    }
    command
}

/// Whether the environment selects shared memory, which has no addresses and one rail.
pub(crate) fn is_over_shm() -> bool {
    is_over("shm")
}

/// Whether the environment selects this provider.
pub(crate) fn is_over(provider: &str) -> bool {
    std::env::var("IRONRAIL_PROVIDER").is_ok_and(|asked| asked == provider)
}

/// The test around a closure, by its name in the harness: the closure's type is `binary::test::{{closure}}`.
fn test_name<F>() -> &'static str {
    let path = type_name::<F>().trim_end_matches("::{{closure}}");
    path.split_once("::").expect("a test is in a crate").1
}
