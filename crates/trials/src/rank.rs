//! What a rank does: an all-reduce after another, every byte checked, a line for each, until standard input ends.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use clap::Args;
use ironrail_group::group::Builder;
use ironrail_group::loader::{Library, Op};
use ironrail_group::start::Start;

use crate::{Outcome, say};

/// One of two ranks. It finds the other by the variables of crates/group/src/start.rs.
#[derive(Debug, Args)]
pub(crate) struct Rank {
    /// The plugin's file
    plugin: String,
    /// Bytes of each all-reduce
    #[arg(long, default_value_t = 2 << 20)]
    bytes: usize,
}

impl Rank {
    /// Runs until rank 0's standard input ends. Both leave after the same all-reduce.
    pub(crate) fn run(&self) -> Outcome<()> {
        let library = Library::open(&self.plugin, None)?;
        let (place, hub) = Start::from_environment()?.join(PATIENCE)?;
        let group = Builder::new(&library).timeout(PATIENCE).join_with(place, hub)?;
        let ended = input_ends();
        let mut data = group.buffer::<i32>(self.bytes / size_of::<i32>())?;
        for lap in 0_u32.. {
            for (at, value) in (0_u32..).zip(data.iter_mut()) {
                *value = pattern(at, lap);
            }
            let is_over = group.rank() == 0 && ended.load(Ordering::Relaxed);
            data[0] = i32::from(is_over);
            group.all_reduce(&mut data, Op::Sum)?;
            let sum = |at| pattern(at, lap) * i32::try_from(group.size()).unwrap_or(i32::MAX);
            let others = (1_u32..).zip(&data[1..]);
            let wrong = others.filter(|&(at, &value)| value != sum(at)).count();
            say(Lap { at_micros: now_micros(), wrong }.line());
            if data[0] != 0 {
                break;
            }
        }
        Ok(())
    }
}

/// The end of one all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lap {
    /// Since 1970.
    pub(crate) at_micros: u64,
    /// Elements that are not the sum.
    pub(crate) wrong: usize,
}

impl Lap {
    fn line(self) -> String {
        format!("lap {} {}", self.at_micros, self.wrong)
    }

    /// Out of such a line.
    pub(crate) fn of(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("lap ")?.split(' ');
        let mut next = || words.next();
        Some(Self { at_micros: next()?.parse().ok()?, wrong: next()?.parse().ok()? })
    }
}

/// Microseconds since 1970: all processes of a machine have the same.
pub(crate) fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Small enough that a sum over some ranks does not overflow; another one in each lap, so that old bytes are wrong.
fn pattern(at: u32, lap: u32) -> i32 {
    let mixed = at.wrapping_add(lap.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
    i32::try_from(mixed >> 8).unwrap_or_default()
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

/// How long a rank waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lap_is_read_as_it_was_said() {
        let lap = Lap { at_micros: 12, wrong: 3 };
        assert_eq!(Lap::of(&lap.line()), Some(lap));
        assert_eq!(Lap::of("lap x 3"), None);
    }

    #[test]
    fn another_lap_has_another_pattern_nearly_everywhere() {
        let equal = (0..1000).filter(|&at| pattern(at, 7) == pattern(at, 8)).count();
        assert!(equal < 5, "{equal}");
    }
}
