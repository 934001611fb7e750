//! `ironrail run`: starts a program once per rank, as one job.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ironrail_group::bootstrap::Hub;
use ironrail_group::error::GroupError;
use ironrail_group::launch::MEETING_VARIABLE;

use crate::output;

/// Starts a program once per rank. Each finds its rank and the others by its environment, as ironrail-group reads it; RANK, WORLD_SIZE and
/// LOCAL_RANK are set too. Lines of output begin with their rank. When a rank fails, the others are killed; the exit code is the first one
/// that is not 0.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// How many ranks
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = ranks)]
    ranks: usize,
    /// Seconds after which ranks that still run are killed, with code 124; 0: never
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    timeout: u64,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn ranks(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(ranks @ 1..=1024) => Ok(ranks),
        _ => Err("a whole number from 1 to 1024 is asked for".to_owned()),
    }
}

impl Run {
    /// Runs all ranks to their end. Returns the exit code of the job.
    pub(crate) fn run(&self) -> Result<ExitCode, GroupError> {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let hub = Hub::start(loopback, self.ranks, JOINING)?;
        let mut job = Job { ranks: Vec::with_capacity(self.ranks), code: 0 };
        for rank in 0..self.ranks {
            job.ranks.push(Some(self.start(rank, &hub)?));
        }
        let deadline =
            (self.timeout > 0).then(|| Instant::now() + Duration::from_secs(self.timeout));
        while job.runs() {
            job.reap();
            if job.code != 0 {
                job.end();
            } else if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                output::print_error(format_args!("the job still runs after {} s", self.timeout));
                job.code = TIMED_OUT;
                job.end();
            }
            thread::sleep(WATCH);
        }
        Ok(ExitCode::from(job.code))
    }

    fn start(&self, rank: usize, hub: &Hub) -> Result<Rank, GroupError> {
        let (program, arguments) = self.program.split_first().expect("clap requires one");
        let mut child = Command::new(program)
            .args(arguments)
            .env(MEETING_VARIABLE, hub.meeting(rank).to_string())
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", self.ranks.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                let name = program.to_string_lossy();
                GroupError::Usage(format!("{name} cannot be started: {error}"))
            })?;
        let readers = [
            child.stdout.take().map(|from| relay(rank, from, || Box::new(std::io::stdout()))),
            child.stderr.take().map(|from| relay(rank, from, || Box::new(std::io::stderr()))),
        ];
        Ok(Rank { number: rank, child, readers: readers.into_iter().flatten().collect() })
    }
}

/// Copies whole lines, each with its rank before it.
fn relay(
    rank: usize,
    from: impl Read + Send + 'static,
    to: impl Fn() -> Box<dyn Write> + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let whole = [format!("[{rank}] ").as_bytes(), &line, b"\n"].concat();
            if to().write_all(&whole).is_err() {
                return;
            }
        }
    })
}

struct Rank {
    number: usize,
    child: Child,
    readers: Vec<thread::JoinHandle<()>>,
}

/// The processes of a job. Dropped, it kills those that still run.
struct Job {
    ranks: Vec<Option<Rank>>,
    /// The first exit code that was not 0.
    code: u8,
}

impl Job {
    fn runs(&self) -> bool {
        self.ranks.iter().any(Option::is_some)
    }

    fn reap(&mut self) {
        for place in &mut self.ranks {
            let Some(rank) = place else { continue };
            let Ok(Some(status)) = rank.child.try_wait() else { continue };
            let number = rank.number;
            if let Some(rank) = place.take() {
                rank.readers.into_iter().for_each(|reader| _ = reader.join());
            }
            let code = code(status);
            if code != 0 && self.code == 0 {
                self.code = code;
                output::print_error(match status.signal() {
                    Some(signal) => format!("rank {number} died of signal {signal}"),
                    None => format!("rank {number} ended with code {code}"),
                });
            }
        }
    }

    /// Gives the others a moment to report the failure themselves, then kills them.
    fn end(&mut self) {
        let deadline = Instant::now() + LAST_WORDS;
        while self.runs() && Instant::now() < deadline {
            thread::sleep(WATCH);
            self.reap();
        }
        for rank in self.ranks.iter_mut().flatten() {
            let _ = rank.child.kill();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for mut rank in self.ranks.iter_mut().filter_map(Option::take) {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

/// As in shells: 128 and the signal.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

const WATCH: Duration = Duration::from_millis(10);
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long ranks may take to reach the rendezvous.
const JOINING: Duration = Duration::from_secs(60);
const TIMED_OUT: u8 = 124;
