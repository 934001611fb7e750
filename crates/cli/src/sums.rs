//! Sums of what ranks and files report. Their numbers are another program's: a sum that wraps could be 0, which is a verdict.

/// The sum, or the largest number there is.
pub(crate) fn saturating(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, u64::saturating_add)
}
