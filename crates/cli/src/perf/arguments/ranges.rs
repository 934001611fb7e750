//! What values of options may be.

use crate::perf::sizes;
use crate::values::{COUNT_MAX, whole};

pub(super) fn positive(text: &str) -> Result<usize, String> {
    whole(1, COUNT_MAX)(text)
}

/// A step is not 0: all sizes would be the first one.
pub(super) fn step(text: &str) -> Result<usize, String> {
    match sizes::parse(text)? {
        0 => Err("expected a size above 0".to_owned()),
        step => Ok(step),
    }
}

/// NCCL_NET_MAX_REQUESTS bounds what a connection has outstanding.
pub(super) fn requests(text: &str) -> Result<usize, String> {
    whole(1, 32)(text)
}

pub(super) fn ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (0.001..=1000.0).contains(&ratio) => Ok(ratio),
        _ => Err("expected a ratio from 0.001 to 1000".to_owned()),
    }
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.01..=100.0).contains(&percent) => Ok(percent),
        _ => Err("expected percent, from 0.01 to 100".to_owned()),
    }
}
