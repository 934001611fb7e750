//! A job of two ranks, one in each namespace, and their output.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Args;
use proc_status::Status;

use crate::Outcome;
use crate::lap::{Lap, now_micros};
use crate::network::Network;
use crate::pages;
use crate::rank::COORDINATOR;
use crate::record::{Record, Sample};

/// A provider of one libfabric.
#[derive(Clone, Debug, Args)]
pub(crate) struct Fabric {
    /// libfabric's provider
    #[arg(long, default_value = "net")]
    pub(crate) provider: String,
    /// libfabric's file [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub(crate) libfabric: Option<PathBuf>,
}

/// What the ranks do besides all-reduces of one length in one group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Bytes of each all-reduce. None: the rank's default.
    pub(crate) bytes: Option<usize>,
    /// Messages both ways instead of all-reduces.
    pub(crate) stream: bool,
    /// Where random lengths start; 0: all have the same.
    pub(crate) chance: u64,
    /// The number of all-reduces after which the group is closed and made anew; 0: never.
    pub(crate) laps_per_group: usize,
}

/// Both ranks, killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Job {
    ranks: [Child; 2],
    readers: Vec<JoinHandle<()>>,
    heard: Arc<Mutex<Heard>>,
    rails: usize,
}

/// The output of the ranks.
#[derive(Debug, Default)]
struct Heard {
    laps: [Vec<Lap>; 2],
    log: Vec<(u64, usize, String)>,
}

impl Job {
    /// Starts both ranks with `plugin`; it does not wait for them.
    pub(crate) fn start(
        network: &Network,
        rails: usize,
        fabric: &Fabric,
        plugin: &str,
        plan: &Plan,
    ) -> Outcome<Self> {
        let program = std::env::current_exe()?;
        let spawn = |rank: usize| {
            let mut command = network.command(rank, &program);
            command.args(["rank", plugin]);
            if plan.stream {
                command.arg("--stream");
            }
            if let Some(bytes) = plan.bytes {
                command.args(["--bytes", &bytes.to_string()]);
            }
            command.args(["--chance", &plan.chance.to_string()]);
            command.args(["--laps-per-group", &plan.laps_per_group.to_string()]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
            command.env(COORDINATOR, network.meeting());
            // With one arena a rank's memory is what it uses. With one for each thread, malloc keeps 10 MiB of free memory in each.
            command.env("MALLOC_ARENA_MAX", "1");
            command.env("IRONRAIL_RAILS", network.rails());
            command.env("IRONRAIL_PROVIDER", &fabric.provider);
            if let Some(file) = &fabric.libfabric {
                command.env("IRONRAIL_LIBFABRIC", file);
            }
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let ranks = [spawn(0)?, spawn(1)?];
        let mut job = Self { ranks, readers: Vec::new(), heard: Arc::default(), rails };
        for rank in 0..2 {
            let (output, errors) = (job.ranks[rank].stdout.take(), job.ranks[rank].stderr.take());
            job.listen(output, move |heard, line| match Lap::of(&line) {
                Some(lap) => heard.laps[rank].push(lap),
                None => heard.log.push((now_micros(), rank, line)),
            });
            job.listen(errors, move |heard, line| heard.log.push((now_micros(), rank, line)));
        }
        Ok(job)
    }

    /// Waits until all-reduces end.
    ///
    /// # Errors
    ///
    /// A rank has ended, or no all-reduce has ended within [`START`].
    pub(crate) fn wait_for_laps(&mut self) -> Outcome<()> {
        let deadline = Instant::now() + START;
        while self.heard().laps[0].len() < 3 {
            if Instant::now() > deadline || !self.lives() {
                let said =
                    |(_, rank, line): &(u64, usize, String)| format!("\n  rank {rank}: {line}");
                let said: String = self.heard().log.iter().map(said).collect();
                return Err(format!("the job did not start; its ranks have said:{said}").into());
            }
            thread::sleep(SAMPLE);
        }
        Ok(())
    }

    /// Lets the job run for `length`, with samples of the traffic of its rails. Returns whether both ranks live.
    pub(crate) fn run(&mut self, record: &mut Record, length: Duration) -> bool {
        let deadline = Instant::now() + length;
        while Instant::now() < deadline {
            if let Some(sums) = pages::sums(self.ranks[0].id(), self.rails) {
                record.samples.push(Sample { at_micros: now_micros(), sums });
            }
            if !self.lives() {
                return false;
            }
            thread::sleep(SAMPLE);
        }
        true
    }

    /// Makes both ranks leave, and moves their output into `record`. Returns whether both left in time, without an error.
    pub(crate) fn end(mut self, record: &mut Record) -> bool {
        self.ranks.iter_mut().for_each(|rank| drop(rank.stdin.take()));
        let deadline = Instant::now() + END;
        while Instant::now() < deadline && self.ranks.iter_mut().any(is_running) {
            thread::sleep(SAMPLE);
        }
        let well = self
            .ranks
            .iter_mut()
            .all(|rank| matches!(rank.try_wait(), Ok(Some(status)) if status.success()));
        self.abandon(record);
        well
    }

    /// Kills the ranks that still run, and moves their output into `record`.
    pub(crate) fn abandon(mut self, record: &mut Record) {
        self.kill();
        self.readers.drain(..).for_each(|reader| drop(reader.join()));
        let heard = std::mem::take(&mut *self.heard());
        record.wrong = heard.laps.iter().flatten().map(|lap| lap.wrong).sum();
        record.laps = heard.laps[0].iter().map(|lap| lap.at_micros).collect();
        record.groups = heard.laps[0].last().map_or(0, |lap| lap.groups);
        record.log = heard.log;
    }

    /// Kills a rank. Returns how long the other one lives on, at most half a minute, and whether it ended by itself, with an exit code.
    pub(crate) fn kill_one(&mut self, rank: usize) -> (Duration, bool) {
        let start = Instant::now();
        let _ = self.ranks[rank].kill();
        let _ = self.ranks[rank].wait();
        let other = &mut self.ranks[1 - rank];
        while start.elapsed() < END && is_running(other) {
            thread::sleep(SAMPLE);
        }
        (start.elapsed(), has_failed(other))
    }

    /// The memory of each rank in KiB; 0 for a rank that has ended.
    pub(crate) fn memory_kib(&self) -> [i64; 2] {
        [0, 1].map(|rank: usize| {
            let kib = Status::of(self.ranks[rank].id()).ok().and_then(|status| status.kib("VmRSS"));
            kib.and_then(|kib| i64::try_from(kib).ok()).unwrap_or_default()
        })
    }

    fn lives(&mut self) -> bool {
        self.ranks.iter_mut().all(is_running)
    }

    fn heard(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(
        &mut self,
        from: Option<impl Read + Send + 'static>,
        hear: impl Fn(&mut Heard, String) + Send + 'static,
    ) {
        let Some(from) = from else { return };
        let heard = Arc::clone(&self.heard);
        self.readers.push(thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                hear(&mut heard.lock().unwrap_or_else(PoisonError::into_inner), line);
            }
        }));
    }

    fn kill(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether the rank has ended with the exit code of an error, and not by a signal, as after a crash.
fn has_failed(rank: &mut Child) -> bool {
    let Ok(Some(status)) = rank.try_wait() else { return false };
    status.code().is_some_and(|code| code != 0)
}

fn is_running(rank: &mut Child) -> bool {
    matches!(rank.try_wait(), Ok(None))
}

/// How often counters are read.
const SAMPLE: Duration = Duration::from_millis(20);
const START: Duration = Duration::from_secs(30);
/// Twice as long as the plugin's own waits for a peer that is gone.
const END: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_rank_that_crashed_has_not_reported_an_error() {
        let ends = |line: &str| {
            let mut rank = Command::new("sh").args(["-c", line]).spawn().unwrap();
            rank.wait().unwrap();
            has_failed(&mut rank)
        };
        assert_eq!(["exit 1", "kill -SEGV $$", "exit 0"].map(ends), [true, false, false]);
    }
}
