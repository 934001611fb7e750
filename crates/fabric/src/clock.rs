//! The monotonic clock, read in each poll.

/// Nanoseconds of CLOCK_MONOTONIC (clock_gettime(2)), the clock of `std::time::Instant`. Reading it is cheaper than computing the
/// difference of two instants.
#[inline]
pub fn monotonic_nanos() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place of ours for the answer; the clock exists on every Linux, so that the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_clock_is_that_of_instants() {
        let (before, start) = (Instant::now(), monotonic_nanos());
        while monotonic_nanos() - start < 2_000_000 {}
        assert!(before.elapsed().as_nanos() >= 2_000_000);
        let (start, before) = (monotonic_nanos(), Instant::now());
        while before.elapsed().as_nanos() < 2_000_000 {}
        assert!(monotonic_nanos() - start >= 2_000_000);
    }
}
