//! The trial of scripts/soak: rounds of a checked job with random lengths, groups that are made anew, links that fail at random, and ranks that
//! are killed; memory is watched.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;

use crate::chance::Chance;
use crate::job::{Fabric, Job, Plan};
use crate::lap::now_micros;
use crate::network::{Deed, NONE_DESTROYED, Network};
use crate::record::Record;
use crate::{Outcome, say};

/// Runs rounds for so many hours, and prints what was survived.
#[derive(Debug, Args)]
pub(crate) struct Soak {
    /// The plugin's file
    plugin: String,
    /// How long, in hours
    #[arg(default_value_t = 0.1, value_parser = crate::above_zero)]
    hours: f64,
    #[command(flatten)]
    fabric: Fabric,
    /// Where all chance starts [default: the time]
    #[arg(long)]
    seed: Option<u64>,
}

/// Sums over all rounds.
#[derive(Debug, Default)]
struct Sum {
    rounds: u32,
    laps: usize,
    groups: usize,
    wrong: usize,
    failed: u32,
    /// Ranks that were killed, and the longest time until the other one had ended, in seconds.
    killed: u32,
    slowest_end: f64,
    /// Deeds by name.
    deeds: BTreeMap<&'static str, u32>,
    /// Sockets that were destroyed.
    destroyed: usize,
    longest_pause_ms: f64,
    /// The most that a rank's memory grew after the warm-up of a round, in KiB.
    growth_kib: i64,
    moved: u64,
}

impl Soak {
    /// Runs the rounds. Returns whether nothing was lost, no rank failed that was not killed, and no rank's memory grew.
    pub(crate) fn run(&self) -> Outcome<bool> {
        let seed = self.seed.unwrap_or_else(now_micros);
        say(format_args!("soak of {} h, --seed {seed}", self.hours));
        let mut chance = Chance(seed);
        let network = Network::new(RAILS, MBIT)?;
        let end = Instant::now() + Duration::from_secs_f64(self.hours * 3600.0);
        let mut sum = Sum::default();
        while sum.rounds == 0 || Instant::now() < end {
            self.round(&network, &mut chance, &mut sum)?;
        }
        sum.tell();
        sum.check_resets()?;
        Ok(sum.wrong == 0 && sum.failed == 0 && sum.growth_kib <= GROWTH_KIB)
    }

    fn round(&self, network: &Network, chance: &mut Chance, sum: &mut Sum) -> Outcome<()> {
        sum.rounds += 1;
        let number = sum.rounds;
        network.wait_until_up()?;
        let plan = Plan {
            chance: chance.next(),
            laps_per_group: 200 + chance.below(400),
            ..Plan::default()
        };
        let mut job = Job::start(network, RAILS, &self.fabric, &self.plugin, &plan)?;
        job.wait_for_laps()?;
        let mut record = Record::default();
        // One rail stays whole: the others may be lost all at once.
        let spared = chance.below(RAILS);
        let (mut lives, mut memory) = (true, Vec::new());
        for _ in 0..DEEDS_PER_ROUND {
            let pause = Duration::from_millis(200 + chance.below(2500) as u64);
            lives = lives && job.run(&mut record, pause);
            memory.push(job.memory_kib());
            let rail = (spared + 1 + chance.below(RAILS - 1)) % RAILS;
            let (name, deed, undo) = DEEDS[chance.below(DEEDS.len())];
            sum.destroyed += network.act(rail, deed)?;
            *sum.deeds.entry(name).or_default() += 1;
            let harm = Duration::from_millis(50 + chance.below(2000) as u64);
            lives = lives && job.run(&mut record, harm);
            if let Some(undo) = undo {
                network.act(rail, undo)?;
            }
        }
        let kills = chance.below(4) == 0 && lives;
        let whole = if kills {
            sum.killed += 1;
            let (took, failed) = job.kill_one(chance.below(2));
            sum.slowest_end = sum.slowest_end.max(took.as_secs_f64());
            job.abandon(&mut record);
            took < NOTICED && failed
        } else {
            job.end(&mut record) && lives
        };
        sum.add(&record, &memory);
        if !whole || record.wrong > 0 {
            sum.failed += 1;
            say(format_args!(
                "round {number} failed, killed: {kills}, chance {}; last:",
                plan.chance
            ));
            for (_, rank, line) in record.log.iter().rev().take(LINES).rev() {
                say(format_args!("  rank {rank}: {line}"));
            }
        }
        Ok(())
    }
}

impl Sum {
    fn add(&mut self, record: &Record, memory: &[[i64; 2]]) {
        self.laps += record.laps.len();
        self.groups += record.groups;
        self.wrong += record.wrong;
        self.moved += record.last().moved;
        if let (Some(first), Some(last)) = (record.laps.first(), record.laps.last()) {
            self.longest_pause_ms =
                self.longest_pause_ms.max(record.longest_pause_ms(&(*first..last + 1)));
        }
        // Until then libfabric allocates memory for bursts of new endpoints, which it keeps.
        let warm = memory.len() / 2;
        if let (Some(from), Some(to)) = (memory.get(warm), memory.last()) {
            let grown = (0..2).map(|rank| to[rank] - from[rank]).max().unwrap_or_default();
            self.growth_kib = self.growth_kib.max(grown);
        }
    }

    /// Fails if no reset has destroyed a socket: then there was none.
    fn check_resets(&self) -> Outcome<()> {
        if self.destroyed == 0 && self.deeds.contains_key(RESET) {
            return Err(NONE_DESTROYED.into());
        }
        Ok(())
    }

    fn tell(&self) {
        let row = |what: &str, value: String| say(format_args!("| {what:<48} | {value:>12} |"));
        row("survived", String::new());
        row("rounds", self.rounds.to_string());
        row("rounds that failed", self.failed.to_string());
        row("all-reduces, every byte checked", self.laps.to_string());
        row("elements that were wrong", self.wrong.to_string());
        row("groups made and closed", self.groups.to_string());
        for (deed, times) in &self.deeds {
            row(&format!("a link {deed}"), times.to_string());
        }
        row("sockets destroyed", self.destroyed.to_string());
        row("parts that went by another rail", self.moved.to_string());
        row("longest time without progress, ms", format!("{:.0}", self.longest_pause_ms));
        row("ranks killed", self.killed.to_string());
        row("longest until the other one had ended, s", format!("{:.1}", self.slowest_end));
        row("largest growth of a rank in a round, KiB", self.growth_kib.to_string());
    }
}

/// For each: the name, the deed, and the one that undoes it. Addresses do not change: a communicator that opens while a rail has no address fails.
const DEEDS: &[(&str, Deed, Option<Deed>)] = &[
    (RESET, Deed::Reset, None),
    ("went down and up", Deed::Down, Some(Deed::Up)),
    ("dropped all for a while", Deed::Cut, Some(Deed::Join)),
    ("was slow for a while", Deed::Slow, Some(Deed::Fast)),
];
const RESET: &str = "had its sockets destroyed";
const RAILS: usize = 4;
const MBIT: u32 = 640;
/// The lines of the log that are shown of a round that failed.
const LINES: usize = 8;
const DEEDS_PER_ROUND: u32 = 36;
/// The plugin's time-out for a peer, and what a loaded machine adds.
const NOTICED: Duration = Duration::from_secs(25);
/// A rank may still hold the connections of a group that was just closed: only more than that is growth.
const GROWTH_KIB: i64 = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_that_destroy_no_socket_are_an_error() {
        let sum = |name, destroyed| Sum {
            deeds: BTreeMap::from([(name, 3)]),
            destroyed,
            ..Sum::default()
        };
        assert!(sum(RESET, 0).check_resets().is_err());
        assert!(sum(RESET, 1).check_resets().is_ok());
        assert!(sum("was slow for a while", 0).check_resets().is_ok());
    }
}
