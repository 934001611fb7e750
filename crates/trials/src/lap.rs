//! A lap: the elements of one all-reduce or message, and the line by which a rank says that it has ended.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The elements of one lap; the first says whether it is the last one.
pub(crate) fn fill(data: &mut [i32], lap: u32, last: bool) {
    for (at, value) in (0_u32..).zip(data.iter_mut()) {
        *value = pattern(at, lap);
    }
    data[0] = i32::from(last);
}

/// The number of wrong elements, and whether it was the last lap, which the first element says.
pub(crate) fn check(data: &[i32], expected: impl Fn(u32) -> i32) -> (usize, bool) {
    let others = (1_u32..).zip(&data[1..]);
    let wrong = others.filter(|&(at, &value)| value != expected(at)).count();
    (wrong, data[0] != 0)
}

/// The end of one all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lap {
    /// By [`now_micros`].
    pub(crate) at_micros: u64,
    /// The number of elements that are not the sum.
    pub(crate) wrong: usize,
    /// How many groups there were so far.
    pub(crate) groups: usize,
}

impl Lap {
    pub(crate) fn line(self) -> String {
        format!("lap {} {} {}", self.at_micros, self.wrong, self.groups)
    }

    /// Parses the line of a lap.
    pub(crate) fn of(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("lap ")?.split(' ');
        let at_micros = words.next()?.parse().ok()?;
        let mut number = || words.next()?.parse().ok();
        Some(Self { at_micros, wrong: number()?, groups: number()? })
    }
}

/// Microseconds by the kernel's monotonic clock: all processes of a machine have the same one, and it is never set.
pub(crate) fn now_micros() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    let number = |count: i64| u64::try_from(count).unwrap_or_default();
    number(tv_sec) * 1_000_000 + number(tv_nsec) / 1000
}

/// Small enough that a sum over some ranks does not overflow; another one in each lap, so that old bytes are wrong.
pub(crate) fn pattern(at: u32, lap: u32) -> i32 {
    let mixed = at.wrapping_add(lap.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
    i32::try_from(mixed >> 8).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lap_is_read_as_it_was_written() {
        let lap = Lap { at_micros: 12, wrong: 3, groups: 2 };
        assert_eq!(Lap::of(&lap.line()), Some(lap));
        assert_eq!(Lap::of("lap x 3"), None);
    }

    #[test]
    fn another_lap_has_another_pattern_nearly_everywhere() {
        let equal = (0..1000).filter(|&at| pattern(at, 7) == pattern(at, 8)).count();
        assert!(equal < 5, "{equal}");
    }
}
