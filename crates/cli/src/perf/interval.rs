//! The precision of a ratio: the median of paired ratios, its 95 % interval, and the verdict that the interval allows.
//!
//! A pair is one run of each side, one right after the other, so that disturbances of the machine affect both. The interval is that of the
//! sign test: it reaches from one of the sorted ratios to another, and contains the true median with a probability of at least 95 % for any
//! distribution; on a busy machine the distribution is skewed and bimodal. A percentile bootstrap of the median is less reliable with so
//! few pairs.

use crate::median;

/// The median of paired ratios, and an interval for the true median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) ratio: f64,
    pub(super) pairs: usize,
    /// None with too few pairs.
    pub(super) interval: Option<Interval>,
}

/// An interval that contains the true median with a probability of at least 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) high: f64,
}

/// Whether a small ratio is good, as of times, or a large one, as of bandwidths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    AtMost,
    AtLeast,
}

/// The verdict on a bound.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Kept,
    Broken,
    /// The bound lies within an interval that is as narrow as required.
    Open,
    /// No verdict, with the reason and the conditions for one.
    Refused(String),
}

impl Verdict {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Broken => "broken",
            Self::Open => "open",
            Self::Refused(_) => "none",
        }
    }
}

impl Interval {
    /// Half its width in percent of `ratio`.
    pub(super) fn percent_of(self, ratio: f64) -> f64 {
        100.0 * (self.high - self.low) / (2.0 * ratio)
    }
}

impl Estimate {
    /// The estimate from the ratios of pairs; None without pairs.
    pub(super) fn of(ratios: &[f64]) -> Option<Self> {
        let mut sorted = ratios.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(Self { ratio: median::of(ratios)?, pairs: sorted.len(), interval: by_signs(&sorted) })
    }

    /// Compares the ratio with `bound`, if the interval is no wider than `precision` percent to each side.
    pub(super) fn verdict(&self, goal: Goal, bound: f64, precision: f64) -> Verdict {
        let Some(Interval { low, high }) = self.interval else {
            return Verdict::Refused(format!(
                "no interval of 95 % comes of {} pairs of runs: it takes {PAIRS_MIN} at least (--runs)",
                self.pairs
            ));
        };
        let reaches = Interval { low, high }.percent_of(self.ratio);
        if reaches > precision {
            return Verdict::Refused(format!(
                "the ratio is known to {reaches:.1} % only ({low:.3} to {high:.3} of {} pairs), and {precision} % is asked: \
                 it takes about {} pairs (--runs) on a machine as busy as now, or a quieter one",
                self.pairs,
                pairs_for(self.pairs, reaches / precision)
            ));
        }
        let (well, badly) = match goal {
            Goal::AtMost => (high <= bound, low > bound),
            Goal::AtLeast => (low >= bound, high < bound),
        };
        match (well, badly) {
            (true, _) => Verdict::Kept,
            (_, true) => Verdict::Broken,
            _ => Verdict::Open,
        }
    }
}

/// The least number of pairs with an interval. The lowest and the highest ratio of five pairs contain the median with a probability of 94
/// %, of six with 97 %.
const PAIRS_MIN: usize = 6;

/// The number of pairs for an interval that is now too wide by this factor: its width falls with the square root of the pairs.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rough number of runs"
)]
fn pairs_for(pairs: usize, times_too_wide: f64) -> usize {
    (pairs as f64 * times_too_wide * times_too_wide).ceil() as usize
}

/// The interval by the sign test. Each ratio lies below or above the true median with equal probability, so that `outside` ratios or fewer
/// on one side of it are too improbable.
fn by_signs(sorted: &[f64]) -> Option<Interval> {
    let outside = outside(sorted.len())?;
    Some(Interval { low: sorted[outside], high: sorted[sorted.len() - 1 - outside] })
}

/// How many of `pairs` ratios lie beyond each end of the interval; None if even the lowest and the highest are too improbable to contain
/// the median.
#[allow(clippy::cast_precision_loss, reason = "runs are far below 2^53")]
fn outside(pairs: usize) -> Option<usize> {
    let coins = pairs as f64;
    // Logarithms, since 0.5 to the power of 1000 underflows a float.
    let mut chance = -coins * std::f64::consts::LN_2;
    let mut below = 0.0;
    for heads in 0..=pairs {
        below += chance.exp();
        if 2.0 * below > MISSES {
            return heads.checked_sub(1);
        }
        chance += ((coins - heads as f64) / (heads as f64 + 1.0)).ln();
    }
    None
}

/// The probability that the interval misses the true median.
const MISSES: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    /// Steele, Lea and Flood's generator.
    struct SplitMix(u64);

    impl SplitMix {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut word = self.0;
            word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            word ^ (word >> 31)
        }
    }

    /// A number around 1 from a skewed distribution whose median is 1.
    #[allow(clippy::cast_precision_loss, reason = "53 bits are taken")]
    fn around_one(random: &mut SplitMix, spread: f64) -> f64 {
        let uniform = |random: &mut SplitMix| ((random.next() >> 11) as f64 + 0.5) / 2f64.powi(53);
        let (a, b) = (uniform(random), uniform(random));
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        (spread * normal).exp()
    }

    #[test]
    fn the_interval_holds_the_true_median_95_times_of_a_hundred() {
        let mut random = SplitMix(7);
        for pairs in [6, 9, 21, 40] {
            let mut held = 0;
            for _ in 0..4000 {
                let ratios: Vec<_> = (0..pairs).map(|_| around_one(&mut random, 0.2)).collect();
                let Interval { low, high } = Estimate::of(&ratios).unwrap().interval.unwrap();
                held += u32::from(low <= 1.0 && 1.0 <= high);
            }
            // From 95 % to the probability of an interval two ranks wider, with the scatter of 4000 trials.
            assert!((3780..=3930).contains(&held), "{held} of 4000 with {pairs} pairs");
        }
    }

    /// From tables of the sign test: the lower end, counted from 1, is this plus one.
    #[test]
    fn the_ends_are_the_ranks_that_tables_give() {
        for (pairs, rank) in
            [(6, 1), (8, 1), (9, 2), (15, 4), (21, 6), (25, 8), (50, 18), (100, 40)]
        {
            assert_eq!(outside(pairs), Some(rank - 1), "{pairs}");
        }
        assert_eq!((0..PAIRS_MIN).find_map(outside), None);
        // 1.96 standard deviations from half a million: beyond the exponent of a float if computed directly.
        let rank = outside(1_000_000).unwrap();
        assert!((499_000..=499_030).contains(&rank), "{rank}");
    }

    #[test]
    fn more_pairs_narrow_the_interval_by_their_square_root() {
        let mut random = SplitMix(3);
        let mut width = |pairs: usize| {
            let widths = (0..40).map(|_| {
                let ratios: Vec<_> = (0..pairs).map(|_| around_one(&mut random, 0.1)).collect();
                let estimate = Estimate::of(&ratios).unwrap();
                estimate.interval.unwrap().percent_of(estimate.ratio)
            });
            median::of(&widths.collect::<Vec<_>>()).unwrap()
        };
        let quarter = width(25) / width(100);
        assert!((1.6..=2.5).contains(&quarter), "{quarter}");
    }

    #[test]
    fn the_ratio_is_the_median_and_pairs_that_are_equal_leave_no_doubt() {
        let ratios = [1.2, 0.9, 1.1, 1.0, 1.3, 0.8, 1.05];
        assert_eq!(Estimate::of(&ratios).unwrap().ratio, 1.05);
        assert_eq!(Estimate::of(&ratios[..6]).unwrap().ratio, 1.05);
        let same = Estimate::of(&[1.5; 8]).unwrap();
        assert_eq!(same.interval, Some(Interval { low: 1.5, high: 1.5 }));
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn one_wild_pair_of_21_moves_neither_the_ratio_nor_the_interval_far() {
        let mut ratios = vec![1.0; 10];
        ratios.extend([1.01; 10]);
        ratios.push(50.0);
        let estimate = Estimate::of(&ratios).unwrap();
        assert_eq!(estimate.ratio, 1.01);
        assert!(estimate.interval.unwrap().high <= 1.01, "{estimate:?}");
    }

    fn verdict(low: f64, high: f64, goal: Goal) -> Verdict {
        let interval = Some(Interval { low, high });
        Estimate { ratio: f64::midpoint(low, high), pairs: 21, interval }.verdict(goal, 1.0, 5.0)
    }

    #[test]
    fn a_bound_is_kept_broken_or_within_the_interval() {
        for (low, high, of_times, of_bandwidths) in [
            (0.90, 0.98, Verdict::Kept, Verdict::Broken),
            (1.02, 1.08, Verdict::Broken, Verdict::Kept),
            (0.97, 1.03, Verdict::Open, Verdict::Open),
            (0.96, 1.00, Verdict::Kept, Verdict::Open),
            (1.00, 1.04, Verdict::Open, Verdict::Kept),
        ] {
            assert_eq!(verdict(low, high, Goal::AtMost), of_times, "{low} to {high}");
            assert_eq!(verdict(low, high, Goal::AtLeast), of_bandwidths, "{low} to {high}");
        }
    }

    #[test]
    fn an_interval_wider_than_asked_allows_no_verdict_and_the_reason_names_the_pairs_for_one() {
        let Verdict::Refused(why) = verdict(0.5, 0.7, Goal::AtMost) else {
            panic!("the interval reaches 16.7 % to each side, and 5 % was asked");
        };
        for part in ["16.7 %", "0.500 to 0.700 of 21 pairs", "5 % is asked", "about 234 pairs"] {
            assert!(why.contains(part), "{why}");
        }
        let few = Estimate::of(&[0.5; 5]).unwrap();
        assert_eq!(few.interval, None);
        let Verdict::Refused(why) = few.verdict(Goal::AtMost, 1.0, 5.0) else {
            panic!("five pairs have no interval");
        };
        assert!(why.contains("of 5 pairs") && why.contains("6 at least"), "{why}");
        assert!(Estimate::of(&[0.5; PAIRS_MIN]).unwrap().interval.is_some());
    }
}
