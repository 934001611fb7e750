//! Waits within a bound.

use std::time::{Duration, Instant};

/// How often a wait checks what it waits for.
pub(super) const LOOKS_EVERY: Duration = Duration::from_millis(1);

/// Waits until `is_so`, within a bound. Returns whether it is.
pub(super) fn wait_until(bound: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if began.elapsed() >= bound {
            return false;
        }
        std::thread::sleep(LOOKS_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_what_it_waits_for_is_so_or_at_its_bound() {
        let mut looks = 0;
        let mut third = || {
            looks += 1;
            looks == 3
        };
        assert!(wait_until(Duration::MAX, &mut third));
        assert!(!wait_until(LOOKS_EVERY, || false));
        assert!(wait_until(Duration::ZERO, || true), "without a bound it looks once");
    }
}
