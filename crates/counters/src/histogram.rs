//! Latency in buckets of powers of two: from 256 ns to 275 s.

/// Buckets of a histogram.
pub const BUCKETS: usize = 32;
/// The first bucket ends at 2 to this power, in nanoseconds.
const FIRST_BITS: u32 = 8;

/// The bucket of a latency. The last one takes whatever is longer.
#[inline]
pub const fn bucket_of(nanos: u64) -> usize {
    let bits = u64::BITS - nanos.leading_zeros();
    let bucket = bits.saturating_sub(FIRST_BITS) as usize;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// Latencies of a bucket are below this, in nanoseconds. None: the last bucket has no end.
pub const fn bucket_upper_nanos(bucket: usize) -> Option<u64> {
    if bucket + 1 < BUCKETS { Some(1 << (bucket + FIRST_BITS as usize)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_below_the_end_of_its_bucket_and_not_below_that_of_the_one_before() {
        let mut nanos = vec![0, 1, u64::MAX];
        nanos.extend((0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit]));
        for nanos in nanos {
            let bucket = bucket_of(nanos);
            assert!(bucket_upper_nanos(bucket).is_none_or(|end| nanos < end), "{nanos}");
            if let Some(before) = bucket.checked_sub(1) {
                assert!(bucket_upper_nanos(before).is_some_and(|end| nanos >= end), "{nanos}");
            }
        }
    }
}
