//! What a rank does: an all-reduce after another, every byte checked, a line for each, until standard input ends.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use ironrail_group::group::{Builder, Group};
use ironrail_group::loader::{Library, Op};
use ironrail_group::start::Start;

use crate::chance::Chance;
use crate::lap::{Lap, check, fill, now_micros, pattern};
use crate::{Outcome, say, stream};

/// One of two ranks. It finds the other by the variables of crates/group/src/start.rs.
#[derive(Debug, Args)]
pub(crate) struct Rank {
    /// The plugin's file
    plugin: String,
    /// Bytes of each all-reduce
    #[arg(long, default_value_t = 2 << 20)]
    bytes: usize,
    /// Messages of so many bytes both ways, 32 outstanding, instead of all-reduces
    #[arg(long)]
    stream: bool,
    /// Where random lengths start; 0: all have that length
    #[arg(long, default_value_t = 0)]
    chance: u64,
    /// After so many the group is closed, and made anew; 0: never
    #[arg(long, default_value_t = 0)]
    laps_per_group: usize,
}

impl Rank {
    /// Runs until rank 0's standard input ends. Both leave after the same all-reduce.
    pub(crate) fn run(&self) -> Outcome<()> {
        let library = Library::open(&self.plugin, None)?;
        let (ended, mut lap, mut groups) = (input_ends(), 0_u32, 0);
        if self.stream {
            let wants_end = || ended.load(Ordering::Relaxed);
            return stream::run(&library, &start(0)?, self.bytes, PATIENCE, wants_end);
        }
        loop {
            groups += 1;
            let (place, hub) = start(groups)?.join(PATIENCE)?;
            let group = Builder::new(&library).timeout(PATIENCE).join_with(place, hub)?;
            let mut data = group.buffer::<i32>(self.bytes / size_of::<i32>())?;
            for _ in 0..self.laps_of_a_group() {
                lap = lap.wrapping_add(1);
                let wants_end = group.rank() == 0 && ended.load(Ordering::Relaxed);
                let len = self.length(lap, data.len());
                let (wrong, over) = one(&group, &mut data[..len], lap, wants_end)?;
                say(Lap { at_micros: now_micros(), wrong, groups }.line());
                if over {
                    return Ok(());
                }
            }
        }
    }

    fn laps_of_a_group(&self) -> usize {
        if self.laps_per_group == 0 { usize::MAX } else { self.laps_per_group }
    }

    /// The number of elements of a lap, at most `all`: both ranks compute it from the lap's number. Short laps are as frequent as long ones.
    fn length(&self, lap: u32, all: usize) -> usize {
        if self.chance == 0 {
            return all;
        }
        let mut chance = Chance(self.chance ^ u64::from(lap));
        let most = all >> chance.below(all.ilog2() as usize);
        1 + chance.below(most)
    }
}

/// Each group meets at a port of its own, since the hub of the previous group may still listen at its port.
fn start(group: usize) -> Outcome<Start> {
    let port = |text: String| {
        let (host, port) = text.rsplit_once(':')?;
        Some(format!("{host}:{}", port.parse::<usize>().ok()? + group % PORTS))
    };
    let variable = |name: &str| {
        let value = std::env::var(name).ok()?;
        if name == COORDINATOR { port(value) } else { Some(value) }
    };
    Ok(Start::from_variables(variable)?)
}

/// Does one all-reduce. Returns the number of wrong elements, and whether it was the last one, which the first element says.
fn one(group: &Group, data: &mut [i32], lap: u32, wants_end: bool) -> Outcome<(usize, bool)> {
    fill(data, lap, wants_end);
    group.all_reduce(data, Op::Sum)?;
    let ranks = i32::try_from(group.size()).unwrap_or(i32::MAX);
    Ok(check(data, |at| pattern(at, lap) * ranks))
}

/// Turns true at the end of standard input.
fn input_ends() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Relaxed);
        let _ = std::io::stdout().flush();
    });
    ended
}

/// Where rank 0 listens for its first group.
pub(crate) const COORDINATOR: &str = "IRONRAIL_GROUP_COORDINATOR";
const PORTS: usize = 1000;
/// How long a rank waits for the other: less than the time in which a survivor must end in `scripts/soak`.
const PATIENCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_lengths_are_the_same_on_both_ranks_and_of_all_magnitudes() {
        let rank =
            Rank { plugin: String::new(), bytes: 0, stream: false, chance: 7, laps_per_group: 0 };
        let lengths: Vec<_> = (0..1000).map(|lap| rank.length(lap, 1 << 19)).collect();
        assert!(lengths.iter().all(|len| (1..=1 << 19).contains(len)));
        for magnitude in 0..19 {
            assert!(lengths.iter().any(|len| len.ilog2() == magnitude), "{magnitude}");
        }
    }
}
