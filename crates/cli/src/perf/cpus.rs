//! The CPU on which a rank runs.

use ironrail_group::error::GroupError;
use ironrail_group::patience;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Checks that this process may run on all of these CPUs.
///
/// # Errors
///
/// If the process may not run on one of them, by sched_getaffinity(2).
pub(super) fn check(cpus: &[usize]) -> Result<(), GroupError> {
    if cpus.is_empty() {
        return Ok(());
    }
    let allowed = sched_getaffinity(None)
        .map_err(|error| GroupError::System { what: "reading the CPUs", error: error.into() })?;
    let is_allowed = |cpu: usize| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu);
    let Some(cpu) = cpus.iter().find(|cpu| !is_allowed(**cpu)) else { return Ok(()) };
    let allowed: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| is_allowed(*cpu)).collect();
    Err(GroupError::Usage(format!(
        "--cpus: this process may not run on CPU {cpu}, but on {}",
        shown(&allowed)
    )))
}

/// Numbers in ascending order, as `0-3,8`.
fn shown(cpus: &[usize]) -> String {
    let spans = cpus.chunk_by(|cpu, next| cpu + 1 == *next).map(|span| match span {
        [first, .., last] => format!("{first}-{last}"),
        _ => span[0].to_string(),
    });
    spans.collect::<Vec<_>>().join(",")
}

/// Binds this thread, and those that it starts, to the CPU of `rank`: ranks take those of `cpus` in turn. Without CPUs, it does nothing.
///
/// # Errors
///
/// The process may not use the CPU: sched_setaffinity(2).
pub(super) fn settle(cpus: &[usize], rank: usize) -> Result<(), GroupError> {
    let Some(cpu) = own(cpus, rank) else { return Ok(()) };
    check(&[cpu])?;
    // Count the CPUs before the thread is bound to one.
    patience::cpus();
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).map_err(|error| GroupError::System {
        what: "taking the CPU that --cpus names",
        error: error.into(),
    })
}

fn own(cpus: &[usize], rank: usize) -> Option<usize> {
    cpus.get(rank.checked_rem(cpus.len())?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_in_a_row_are_shown_as_one() {
        assert_eq!(shown(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(shown(&[]), "");
    }

    #[test]
    fn ranks_take_the_cpus_in_turn() {
        assert_eq!([0, 1, 2].map(|rank| own(&[4, 7], rank)), [Some(4), Some(7), Some(4)]);
        assert_eq!(own(&[], 3), None);
    }

    #[test]
    fn a_rank_stays_on_its_cpu_and_a_missing_cpu_is_an_error() {
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
