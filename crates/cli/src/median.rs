//! The median, in which every table, page and choice of the command summarises runs.

/// The median; for an even number of values, the mean of the middle two.
pub(crate) fn of(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let high = *sorted.get(half)?;
    let is_even = sorted.len().is_multiple_of(2);
    Some(if is_even { f64::midpoint(sorted[half - 1], high) } else { high })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_is_the_middle_value_or_the_mean_of_the_middle_two() {
        assert_eq!(super::of(&[]), None);
        assert_eq!(super::of(&[4.0]), Some(4.0));
        assert_eq!(super::of(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(super::of(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
