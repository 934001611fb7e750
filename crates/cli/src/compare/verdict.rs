//! Whether two sides differ, decided by the ranks of their values, so that neither an outlier nor a skewed distribution decides.
//!
//! If both sides were the same, every order of their runs would be equally likely. The verdict counts the orders that are at least as
//! extreme as the observed one (the exact rank-sum test of Mann and Whitney): below one in twenty, the difference counts as real. That
//! takes at least four runs a side.

use crate::median;

/// The verdict on one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The second side is better.
    Better,
    /// The second side is worse.
    Worse,
    /// No difference beyond noise.
    Same,
    /// Each side needs this many more runs.
    TooFew { more: usize },
}

impl Verdict {
    pub(super) fn words(self) -> String {
        match self {
            Self::Better => "better".to_owned(),
            Self::Worse => "worse".to_owned(),
            Self::Same => "no difference seen".to_owned(),
            Self::TooFew { more } => format!("none: {more} more runs a side"),
        }
    }
}

/// Both sides at one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Comparison {
    /// Medians.
    pub(super) first: f64,
    pub(super) second: f64,
    /// The difference of the largest and the smallest value, in percent of the median. None for a single run.
    pub(super) spreads: (Option<f64>, Option<f64>),
    /// The second side's median divided by the first's.
    pub(super) ratio: f64,
    pub(super) verdict: Verdict,
}

impl Comparison {
    /// Compares two sides. None unless both have a value, and one of them a median above 0. `more`: larger values are better.
    pub(super) fn of(first: &[f64], second: &[f64], more: bool) -> Option<Self> {
        let (one, other) = (median::of(first)?, median::of(second)?);
        if one <= 0.0 && other <= 0.0 {
            return None;
        }
        let fewest = first.len().min(second.len());
        let verdict = if fewest < RUNS_MIN {
            Verdict::TooFew { more: RUNS_MIN - fewest }
        } else if chance(first, second) > CHANCE {
            Verdict::Same
        } else if second_is_larger(first, second) == more {
            Verdict::Better
        } else {
            Verdict::Worse
        };
        let ratio = if one > 0.0 { other / one } else { f64::NAN };
        Some(Self {
            first: one,
            second: other,
            spreads: (spread(first), spread(second)),
            ratio,
            verdict,
        })
    }
}

/// With three runs a side, the most extreme order has a probability of one in ten.
const RUNS_MIN: usize = 4;
const CHANCE: f64 = 0.05;

fn spread(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match median::of(values) {
        Some(middle) if middle > 0.0 => Some(100.0 * (most - least) / middle),
        _ => Some(0.0),
    }
}

/// A spread as text.
pub(super) fn percent(spread: Option<f64>) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| format!("{spread:.1}%"))
}

/// The probability that equal sides lie at least this far apart, in either direction.
#[allow(
    clippy::cast_precision_loss,
    reason = "orders of at most 20 and 20 runs fit a float well enough"
)]
fn chance(first: &[f64], second: &[f64]) -> f64 {
    let (first, second) = (kept(first), kept(second));
    let (wins, pairs) = (wins(first, second), first.len() * second.len());
    // Half a pair is rounded towards the middle: equal values are no reason for a verdict.
    let far = wins.min(2 * pairs - wins).div_ceil(2);
    let orders = orders(first.len(), second.len());
    let all: f64 = orders.iter().sum();
    let tail: f64 = orders.iter().take(far + 1).sum();
    (2.0 * tail / all).min(1.0)
}

/// Whether the second side's runs are the larger ones. Ranks decide, as for the verdict: the medians may be equal, or say the opposite.
fn second_is_larger(first: &[f64], second: &[f64]) -> bool {
    let (first, second) = (kept(first), kept(second));
    wins(first, second) > first.len() * second.len()
}

/// The runs that decide: at most 20. More runs add nothing, and the number of orders would exceed the precision of a float.
fn kept(side: &[f64]) -> &[f64] {
    &side[..side.len().min(20)]
}

/// Twice the number of pairs in which the second side's value is larger; an equal pair counts half.
fn wins(first: &[f64], second: &[f64]) -> usize {
    let twice = |one: &f64, other: &f64| if other > one { 2 } else { usize::from(other == one) };
    first.iter().flat_map(|one| second.iter().map(move |other| twice(one, other))).sum()
}

/// The number of orders of `first` and `second` runs in which the second side is larger in 0, 1, 2… pairs.
fn orders(first: usize, second: usize) -> Vec<f64> {
    // Indexed by the number of runs of the first side: the last run of an order belongs to one side or the other.
    let mut table = vec![vec![vec![0.0; first * second + 1]; second + 1]; first + 1];
    for one in 0..=first {
        for other in 0..=second {
            if one == 0 || other == 0 {
                table[one][other][0] = 1.0;
                continue;
            }
            for wins in 0..=one * other {
                let mut count = table[one - 1][other][wins];
                if wins >= one {
                    count += table[one][other - 1][wins - one];
                }
                table[one][other][wins] = count;
            }
        }
    }
    table.swap_remove(first).swap_remove(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_orders_are_counted_as_tables_of_the_test_have_them() {
        assert_eq!(orders(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(orders(4, 4).iter().sum::<f64>(), 70.0);
        assert_eq!(orders(20, 20).iter().sum::<f64>(), 137_846_528_820.0);
        let apart = chance(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]);
        assert!((apart - 2.0 / 70.0).abs() < 1e-12, "{apart}");
        assert_eq!(chance(&[1.0; 4], &[1.0; 4]), 1.0);
    }

    #[test]
    fn a_verdict_takes_four_runs_a_side_that_do_not_mix() {
        let of =
            |first: &[f64], second: &[f64]| Comparison::of(first, second, true).unwrap().verdict;
        assert_eq!(of(&[1.0, 1.1, 0.9, 1.0], &[2.0, 2.1, 1.9, 2.2]), Verdict::Better);
        assert_eq!(of(&[2.0, 2.1, 1.9, 2.2], &[1.0, 1.1, 0.9, 1.0]), Verdict::Worse);
        assert_eq!(of(&[1.0, 1.1, 0.9, 1.0], &[1.0, 2.1, 0.8, 1.1]), Verdict::Same);
        assert_eq!(of(&[1.0], &[2.0]), Verdict::TooFew { more: 3 });
        let times = Comparison::of(&[1.0, 1.1, 0.9, 1.0], &[2.0, 2.1, 1.9, 2.2], false).unwrap();
        assert_eq!(times.verdict, Verdict::Worse, "smaller times are better");
        assert!((times.ratio - 2.05).abs() < 1e-9 && times.spreads.0 > Some(19.0));
        assert_eq!(Comparison::of(&[], &[1.0], true), None);
    }

    #[test]
    fn a_verdict_has_the_direction_of_the_ranks_where_the_medians_are_equal() {
        let low = [1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0, 5.0];
        let high = [5.0, 5.0, 5.0, 5.0, 5.0, 9.0, 9.0, 9.0, 9.0];
        let of = |first, second, more| Comparison::of(first, second, more).unwrap().verdict;
        assert_eq!(of(&low, &high, true), Verdict::Better);
        assert_eq!(of(&high, &low, true), Verdict::Worse);
        assert_eq!(of(&low, &high, false), Verdict::Worse);
        assert_eq!(of(&high, &low, false), Verdict::Better);
    }

    /// Every way to deal eight values to two sides of four is equally likely if the sides are the same.
    #[test]
    fn the_chance_of_a_difference_with_equal_values_is_not_underestimated() {
        let far = |first: &[f64], second: &[f64]| {
            let twice = |one: &f64, other: &f64| {
                if other > one { 2 } else { i32::from(other == one) }
            };
            let wins: i32 = first
                .iter()
                .flat_map(|one| second.iter().map(move |other| twice(one, other)))
                .sum();
            (wins - 16).abs()
        };
        for code in 0..3_usize.pow(8) {
            let all: Vec<_> =
                (0..8).map(|place| [1.0, 2.0, 3.0][code / 3_usize.pow(place) % 3]).collect();
            if !all.is_sorted_by(|a, b| a <= b) && code % 7 != 0 {
                continue;
            }
            let seen = far(&all[..4], &all[4..]);
            let deals = (0..256_u32).filter(|deal| deal.count_ones() == 4).map(|deal| {
                let side = |own: u32| {
                    (0..8)
                        .filter(|place| deal >> place & 1 == own)
                        .map(|place| all[place])
                        .collect()
                };
                let (one, other): (Vec<f64>, Vec<f64>) = (side(1), side(0));
                f64::from(u8::from(far(&one, &other) >= seen))
            });
            let exact = deals.sum::<f64>() / 70.0;
            let said = chance(&all[..4], &all[4..]);
            assert!(said > CHANCE || exact <= CHANCE, "{all:?}: {said}, and exactly {exact}");
        }
    }

    /// Sides that are the same get a verdict at most one time in twenty.
    #[test]
    fn noise_alone_gives_a_verdict_in_at_most_one_of_twenty_runs() {
        let mut state = 1_u64;
        let mut draw = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            f64::from(u32::try_from(state >> 33).unwrap())
        };
        let mut differing = 0;
        for _ in 0..2000 {
            let sides: [Vec<f64>; 2] = std::array::from_fn(|_| (0..6).map(|_| draw()).collect());
            let verdict = Comparison::of(&sides[0], &sides[1], true).unwrap().verdict;
            differing += u32::from(verdict != Verdict::Same);
        }
        assert!((20..=110).contains(&differing), "{differing} of 2000");
    }
}
