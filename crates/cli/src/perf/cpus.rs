//! Which CPU a rank runs on.

use std::io;

use ironrail_group::error::GroupError;
use ironrail_group::patience;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Binds this thread, and those that it starts, to the CPU of `rank`: `cpus`, repeated. Without CPUs, it does nothing.
///
/// # Errors
///
/// The process may not use the CPU: sched_setaffinity(2).
pub(super) fn settle(cpus: &[usize], rank: usize) -> Result<(), GroupError> {
    let Some(cpu) = own(cpus, rank) else { return Ok(()) };
    if cpu >= CpuSet::MAX_CPU {
        return Err(GroupError::Usage(format!("--cpus: no machine has a CPU {cpu}")));
    }
    // Count the CPUs before the thread is bound to one.
    patience::cpus();
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).map_err(|error| GroupError::System {
        what: "taking the CPU that --cpus names",
        error: io::Error::from(error),
    })
}

fn own(cpus: &[usize], rank: usize) -> Option<usize> {
    cpus.get(rank.checked_rem(cpus.len())?).copied()
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::*;

    #[test]
    fn ranks_take_the_cpus_in_turn() {
        assert_eq!([0, 1, 2].map(|rank| own(&[4, 7], rank)), [Some(4), Some(7), Some(4)]);
        assert_eq!(own(&[], 3), None);
    }

    #[test]
    fn a_rank_stays_on_its_cpu_and_one_that_there_is_not_is_an_error() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let last = (0..CpuSet::MAX_CPU).rfind(|cpu| before.is_set(*cpu)).unwrap();
            settle(&[last], 5).unwrap();
            let after = sched_getaffinity(None).unwrap();
            assert!(after.is_set(last) && after.count() == 1);
            assert!(settle(&[CpuSet::MAX_CPU - 1], 0).is_err());
            assert!(settle(&[usize::MAX], 0).is_err());
        })
        .join()
        .unwrap();
    }
}
