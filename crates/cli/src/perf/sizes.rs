//! Sizes in nccl-tests' syntax: `8`, `64K`, `128M`, `1G`.

use ironrail_group::error::GroupError;

/// Parses a size; suffixes are powers of 1024. The limit is so low that the size of all ranks, with guard bytes, can be computed without an
/// overflow.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let wrong = || format!("{text} is no size up to 1 PiB; write for example 8, 64K, 128M, 1G");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: usize = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let whole: Option<usize> = digits.parse().ok();
    let bytes = match whole {
        Some(whole) => whole.checked_mul(unit),
        None => fraction(number, unit),
    };
    bytes.filter(|bytes| *bytes <= SIZE_MAX).ok_or_else(wrong)
}

/// The largest size. No machine has as much memory.
const SIZE_MAX: usize = 1 << 50;

/// The bytes of a fraction such as `0.5M`, if they are a whole number.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be whole and small"
)]
fn fraction(number: f64, unit: usize) -> Option<usize> {
    let bytes = number * unit as f64;
    ((0.0..1e15).contains(&bytes) && bytes.fract() == 0.0).then_some(bytes as usize)
}

/// Checks that there are sizes from `first` to `last`. With a factor, all sizes from 0 on would be 0.
///
/// # Errors
///
/// [`GroupError::Usage`] if there are no such sizes, or too many.
pub(crate) fn check(first: usize, last: usize, step: Option<usize>) -> Result<(), GroupError> {
    let usage = |why: String| Err(GroupError::Usage(why));
    if last < first {
        return usage(format!("the last size, {last}, is below the first, {first}"));
    }
    if first == 0 && last > 0 && step.is_none() {
        return usage("a factor cannot raise size 0: give -b above 0, or -e 0".to_owned());
    }
    let steps = step.map_or(0, |step| (last - first) / step.max(1));
    if steps >= SIZES_MAX {
        return usage(format!("-i makes {SIZES_MAX} sizes at most: a larger step, or fewer bytes"));
    }
    Ok(())
}

/// The most sizes. Each is measured: more would take days.
const SIZES_MAX: usize = 1_000_000;

/// The sizes from `first` to `last`, each `factor` times the one before, or larger by `step`.
pub(crate) fn sequence(
    first: usize,
    last: usize,
    factor: usize,
    step: Option<usize>,
) -> Vec<usize> {
    let next = |size: &usize| match step {
        Some(step) => size.checked_add(step),
        None => size.checked_mul(factor),
    };
    let mut sizes = vec![first];
    while let Some(size) = sizes.last().and_then(next) {
        if size > last || sizes.last() == Some(&size) {
            break;
        }
        sizes.push(size);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("8", 8),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("128M", 128 << 20),
            ("1G", 1 << 30),
            ("0.5M", 512 << 10),
            ("3KiB", 3072),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse("1048576G"), Ok(SIZE_MAX));
        for wrong in [
            "",
            "K",
            "8X",
            "-1",
            "1.3",
            "99999999999G",
            "1048577G",
            "18446744073709551615",
            "8 K",
            "ninety",
            "inf",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_from_zero_on_have_a_step_or_are_zero_alone() {
        assert!(check(0, 0, None).is_ok());
        assert!(check(0, 8, Some(4)).is_ok());
        assert!(check(8, 8, None).is_ok());
        for (first, last) in [(0, 8), (9, 8)] {
            assert!(check(first, last, None).unwrap_err().is_usage(), "{first} to {last}");
        }
    }

    #[test]
    fn a_sequence_ends_at_the_last_size_it_does_not_pass() {
        assert_eq!(sequence(8, 64, 2, None), [8, 16, 32, 64]);
        assert_eq!(sequence(8, 63, 2, None), [8, 16, 32]);
        assert_eq!(sequence(8, 30, 2, Some(10)), [8, 18, 28]);
        assert_eq!(sequence(8, 8, 2, None), [8]);
        assert_eq!(sequence(0, 8, 2, None), [0]);
        assert_eq!(sequence(8, 8, 1, None), [8]);
    }
}
