//! The trials of scripts/rails: a job for each, something is done to one rail's link, and undone; what happened is reported.

use std::time::Duration;

use clap::Args;

use crate::chart::{self, Phase};
use crate::job::{Fabric, Job, Plan};
use crate::lap::now_micros;
use crate::network::{Deed, NONE_DESTROYED, Network};
use crate::record::Record;
use crate::{Outcome, say};

/// Does to one of several links what happens to links, under a checked all-reduce of two ranks.
#[derive(Debug, Args)]
pub(crate) struct Rails {
    /// The plugin's file
    plugin: String,
    #[command(flatten)]
    fabric: Fabric,
    /// Links
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=16))]
    rails: u8,
    /// To which one it is done; control messages go by the first, while it lives
    #[arg(long, default_value_t = 1)]
    rail: u8,
    /// The speed of each, in Mbit/s
    #[arg(long, default_value_t = 320)]
    mbit: u32,
    /// Bytes of each all-reduce [default: 2 MiB]
    #[arg(long)]
    bytes: Option<usize>,
    /// Messages both ways, 32 outstanding, instead of all-reduces
    #[arg(long)]
    stream: bool,
    /// Seconds before, during and after
    #[arg(long, default_value_t = 3.0, value_parser = crate::above_zero)]
    seconds: f64,
    /// How often sockets are destroyed in the trial `reset`, within one stretch of time
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    resets: u32,
    /// How often a link goes down and up in the trial `flaps`, as long each time
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    flaps: u32,
    /// Trials [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
}

/// One thing that happens to a link.
#[derive(Debug)]
struct Trial {
    name: &'static str,
    /// What was done, for a sentence that begins with the rail.
    done: &'static str,
    deed: Deed,
    /// What undoes it.
    undo: Option<Deed>,
    /// The most milliseconds without progress.
    bound_ms: f64,
    times: u32,
    /// Whether it is done before the ranks connect.
    early: bool,
}

impl Trial {
    /// The first phase: for an early trial, the one in which it is done.
    fn first_phase(&self) -> usize {
        usize::from(!self.early)
    }
}

impl Rails {
    /// Runs all trials. Returns whether nothing was lost in any, and each stayed within its bound.
    pub(crate) fn run(&self) -> Outcome<bool> {
        if self.rail >= self.rails {
            return Err(format!("there is no rail {} among {}", self.rail, self.rails).into());
        }
        let trials = self.chosen()?;
        let network = Network::new(self.rails.into(), self.mbit)?;
        let mut well = true;
        for trial in trials {
            well &= self.one(&network, &trial)?;
        }
        Ok(well)
    }

    /// The trials that --only names, or all of them.
    fn chosen(&self) -> Outcome<Vec<Trial>> {
        let mut trials = self.trials();
        let names: Vec<_> = trials.iter().map(|trial| trial.name).collect();
        if let Some(wrong) = self.only.iter().find(|name| !names.contains(&name.as_str())) {
            return Err(format!("there is no trial {wrong}, but {}", names.join(", ")).into());
        }
        trials.retain(|trial| {
            self.only.is_empty() || self.only.iter().any(|name| name == trial.name)
        });
        Ok(trials)
    }

    fn one(&self, network: &Network, trial: &Trial) -> Outcome<bool> {
        let (rails, rail) = (usize::from(self.rails), usize::from(self.rail));
        say(format_args!("== {}, rail {rail}: {} ==", trial.name, self.fabric.provider));
        network.wait_until_up()?;
        if trial.early {
            network.act(rail, trial.deed)?;
        }
        let plan = Plan { bytes: self.bytes, stream: self.stream, ..Plan::default() };
        let mut job = Job::start(network, rails, &self.fabric, &self.plugin, &plan)?;
        job.wait_for_laps()?;
        let mut record = Record::default();
        let mut phases = Vec::new();
        let mut lives = true;
        let mut stretch = |job: &mut Job, record: &mut Record, name, seconds| {
            let from = now_micros();
            lives = lives && job.run(record, Duration::from_secs_f64(seconds));
            phases.push(Phase { name, time: from..now_micros() });
        };
        if !trial.early {
            stretch(&mut job, &mut record, "before", self.seconds);
        }
        let sockets = network.sockets(rail)?;
        // What cannot be undone is done quickly.
        let hurry = if trial.undo.is_none() { f64::from(trial.times) } else { 1.0 };
        let mut destroyed = 0;
        for _ in 0..trial.times {
            if !trial.early {
                destroyed += network.act(rail, trial.deed)?;
            }
            stretch(&mut job, &mut record, trial.name, self.seconds / hurry);
            if let Some(undo) = trial.undo {
                network.act(rail, undo)?;
                stretch(&mut job, &mut record, "mended", self.seconds);
            }
        }
        let whole = job.end(&mut record) && lives;
        if trial.deed == Deed::Reset && destroyed == 0 {
            return Err(NONE_DESTROYED.into());
        }
        say(chart::table(&record, rails, &phases).trim_end());
        say(chart::picture(&record, rails, &phases).trim_end());
        let began = phases[trial.first_phase()].time.start;
        for (at, rank, line) in record.log.iter().filter(|(at, _, _)| *at >= began).take(LINES) {
            say(format_args!("  {:>6} ms, rank {rank}: {line}", (at - began) / 1000));
        }
        Ok(self.tell(&record, &phases, trial, (sockets, whole)))
    }

    /// Prints what was lost and what survived. Returns whether all is as promised.
    fn tell(
        &self,
        record: &Record,
        phases: &[Phase],
        trial: &Trial,
        (sockets, whole): (usize, bool),
    ) -> bool {
        let fate = if whole { "both ranks ended well" } else { "THE JOB FAILED" };
        let rail = usize::from(self.rail);
        say(format_args!(
            "  rail {rail} ({sockets} connections) {}: {fate}; #wrong {} in {} {}",
            trial.done,
            record.wrong,
            record.laps.len(),
            if self.stream { "messages" } else { "all-reduces" }
        ));
        let harmed = phases[trial.first_phase()].time.start..phases[phases.len() - 1].time.end;
        let pause = record.longest_pause_ms(&harmed);
        let sums = record.last();
        say(format_args!(
            "  longest time without progress {pause:.0} ms (bound {:.0}, a usual {} {:.1}); {} parts failed, {} went by another rail",
            trial.bound_ms,
            if self.stream { "message" } else { "all-reduce" },
            record.usual_lap_ms(),
            sums.failed,
            sums.moved
        ));
        // A rail to which nothing was done, for comparison.
        let whole_rail = if trial.early { (rail + 1) % usize::from(self.rails) } else { rail };
        let before = record.rate(whole_rail, &phases[0].time);
        for phase in phases.iter().filter(|phase| phase.name == "mended") {
            let end = phase.time.end;
            say(match record.back_at(rail, phase.time.start, before / 2.0) {
                Some(at) if at < end => format!(
                    "  the rail carries half of its share or more {:.1} s after it was mended",
                    (at - phase.time.start) as f64 / 1e6
                ),
                _ => "  the rail carries nothing like its share after it was mended".to_owned(),
            });
        }
        let shared = trial.name != "slow" || self.tell_share(record, rail, phases);
        whole && record.wrong == 0 && pause <= trial.bound_ms && shared
    }

    /// Prints the share of the links' bandwidth that the rails used together while one had a quarter of its speed, by their traffic before.
    /// Returns whether it is as promised for messages as NCCL sends them; all-reduces of this length wait for each other.
    fn tell_share(&self, record: &Record, rail: usize, phases: &[Phase]) -> bool {
        let rails = usize::from(self.rails);
        let rate =
            |phase: &Phase| (0..rails).map(|rail| record.rate(rail, &phase.time)).sum::<f64>();
        let could = rate(&phases[0]) * (rails as f64 - 0.75) / rails as f64;
        let carried = rate(&phases[1]) / could.max(f64::MIN_POSITIVE);
        say(format_args!(
            "  meanwhile the rails carried {carried:.2} of what their links could (bound {SHARE}, of a stream)"
        ));
        let slow = record.last().slow_millis;
        say(format_args!("  the counters say that the rails were slow for {slow:?} ms"));
        !self.stream || carried >= SHARE && slow.get(rail).is_some_and(|time| *time > SLOW_MILLIS)
    }

    fn trials(&self) -> Vec<Trial> {
        let trial = |name, done, deed, undo, bound_ms, times| Trial {
            name,
            done,
            deed,
            undo,
            bound_ms,
            times,
            early: false,
        };
        let early = Trial {
            early: true,
            ..trial(
                "early",
                "dropped every packet from before the ranks connected",
                Deed::Cut,
                Some(Deed::Join),
                SILENT_MS,
                1,
            )
        };
        vec![
            trial("reset", "had its sockets destroyed", Deed::Reset, None, SILENT_MS, self.resets),
            trial("down", "went down", Deed::Down, Some(Deed::Up), SILENT_MS, 1),
            trial("cut", "dropped every packet", Deed::Cut, Some(Deed::Join), SILENT_MS, 1),
            trial("slow", "had a quarter of its speed", Deed::Slow, Some(Deed::Fast), SLOW_MS, 1),
            trial(
                "readdress",
                "got another address",
                Deed::Readdress,
                Some(Deed::Address),
                SILENT_MS,
                1,
            ),
            trial("flaps", "went down and up", Deed::Down, Some(Deed::Up), SILENT_MS, self.flaps),
            early,
        ]
    }
}

/// The bound of docs/failover.md for failures that no provider reports, and for a link that only became slower.
const SILENT_MS: f64 = 1000.0;
const SLOW_MS: f64 = 250.0;
/// The share of their common bandwidth that links of unequal speed must carry.
const SHARE: f64 = 0.93;
/// The least time that must be counted of the four seconds in which a rail is slow.
const SLOW_MILLIS: u64 = 1000;
/// Lines of the ranks' logs that are shown.
const LINES: usize = 24;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        rails: Rails,
    }

    fn chosen(only: &[&str]) -> Result<Vec<&'static str>, String> {
        let line = Line::parse_from(["trials", "plugin.so"].iter().chain(only));
        let names = |trials: Vec<Trial>| trials.iter().map(|trial| trial.name).collect();
        line.rails.chosen().map(names).map_err(|error| error.to_string())
    }

    #[test]
    fn a_trial_that_would_do_nothing_is_a_wrong_command_line() {
        for wrong in ["--resets=0", "--flaps=0", "--seconds=nan", "--seconds=0", "--seconds=inf"] {
            assert!(Line::try_parse_from(["trials", "plugin.so", wrong]).is_err(), "{wrong}");
        }
        assert!(Line::try_parse_from(["trials", "plugin.so", "--seconds=0.5"]).is_ok());
    }

    #[test]
    fn a_trial_that_does_not_exist_is_an_error_and_no_run_of_none() {
        assert_eq!(chosen(&["--only", "slow,cut"]).unwrap(), ["cut", "slow"]);
        assert_eq!(chosen(&[]).unwrap().len(), 7);
        let error = chosen(&["--only", "slow,cuts"]).unwrap_err();
        assert!(error.starts_with("there is no trial cuts, but reset, down, cut, "), "{error}");
    }
}
