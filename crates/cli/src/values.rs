//! Values of options. The error of a wrong value says which values are allowed.

use std::fmt::Display;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

/// A parser of whole numbers within bounds, both included.
pub(crate) fn whole<N>(
    from: N,
    to: N,
) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: Copy + Display + PartialOrd + FromStr + Send + Sync + 'static,
{
    move |text| match text.parse() {
        Ok(number) if (from..=to).contains(&number) => Ok(number),
        _ => Err(format!("expected a whole number from {from} to {to}")),
    }
}

/// A parser of seconds within bounds, both included.
pub(crate) fn seconds(
    from: f64,
    to: f64,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse() {
        Ok(seconds) if (from..=to).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("expected seconds, from {from} to {to}")),
    }
}

/// The largest number of iterations and other counts.
pub(crate) const COUNT_MAX: usize = 1_000_000_000;
/// The largest index of a device or a CPU.
pub(crate) const INDEX_MAX: usize = 65_535;

pub(crate) fn process(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(process) => Ok(process),
        Err(_) => Err("expected the number of a process".to_owned()),
    }
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    match text.parse() {
        Ok(address) => Ok(address),
        Err(_) => Err("expected an address with a port, such as 127.0.0.1:9417".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_within_their_bounds() {
        let parse = seconds(0.01, 3600.0);
        assert_eq!(parse("0.01"), Ok(Duration::from_millis(10)));
        assert_eq!(parse("3600"), Ok(Duration::from_secs(3600)));
        for wrong in ["", "x", "0", "0.009", "-1", "3600.1", "inf", "NaN", "1s"] {
            assert_eq!(parse(wrong).unwrap_err(), "expected seconds, from 0.01 to 3600", "{wrong}");
        }
    }
}
