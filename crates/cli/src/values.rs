//! Values of options. The error of a wrong value says which values are allowed.

use std::fmt::Display;
use std::net::SocketAddr;
use std::str::FromStr;

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
