//! How a call of the group waits: it polls under the lock, and rests without the lock.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use crate::error::GroupError;
use crate::group::{Group, State};
use crate::mesh::{Wait, rest};
use crate::patience;

impl Group {
    /// Makes progress until `ready` returns true.
    pub(crate) fn until(
        &self,
        focus: Option<usize>,
        mut ready: impl FnMut(&mut State) -> Result<bool, GroupError>,
    ) -> Result<(), GroupError> {
        self.until_some(focus, |state| Ok(ready(state)?.then_some(())))
    }

    /// Makes progress until `find` returns a value.
    pub(crate) fn until_some<T>(
        &self,
        focus: Option<usize>,
        mut find: impl FnMut(&mut State) -> Result<Option<T>, GroupError>,
    ) -> Result<T, GroupError> {
        let mut wait = Wait::default();
        loop {
            let mut state = self.shared.enter()?;
            if let Some(found) = find(&mut state)? {
                return Ok(found);
            }
            Self::poll_and_rest(state, focus, &mut wait)?;
        }
    }

    /// Makes progress until `open` returns None: nothing is open. Until then `open` returns a count that changes whenever anything moves
    /// for the caller. Progress for other callers does not prolong the wait.
    pub(crate) fn until_over(
        &self,
        mut open: impl FnMut(&mut State) -> Result<Option<u64>, GroupError>,
    ) -> Result<(), GroupError> {
        let (mut wait, mut before) = (Wait::default(), None);
        loop {
            let mut state = self.shared.enter()?;
            let count = open(&mut state)?;
            if count.is_none() {
                return Ok(());
            }
            let moved = std::mem::replace(&mut before, count) != count;
            let idle = state.mesh.step_for_own(moved, &mut wait)?;
            Self::pause(state, idle);
        }
    }

    /// As [`Group::until_some`], for at most `limit`: returns None if the limit has passed. With a limit of zero it polls once.
    pub(crate) fn until_within<T>(
        &self,
        focus: Option<usize>,
        limit: Duration,
        mut find: impl FnMut(&mut State) -> Result<Option<T>, GroupError>,
    ) -> Result<Option<T>, GroupError> {
        let (deadline, mut wait) = (patience::deadline(limit), Wait::bounded());
        loop {
            let mut state = self.shared.enter()?;
            if let Some(found) = find(&mut state)? {
                return Ok(Some(found));
            }
            if Instant::now() >= deadline {
                state.mesh.step(focus, &mut wait)?;
                return find(&mut state);
            }
            Self::poll_and_rest(state, focus, &mut wait)?;
        }
    }

    /// One poll, then a rest if nothing moves.
    fn poll_and_rest(
        mut state: MutexGuard<'_, State>,
        focus: Option<usize>,
        wait: &mut Wait,
    ) -> Result<(), GroupError> {
        let idle = state.mesh.step(focus, wait)?;
        Self::pause(state, idle);
        Ok(())
    }

    fn pause(state: MutexGuard<'_, State>, idle: Option<Duration>) {
        let pace = state.mesh.pace();
        drop(state);
        if let Some(idle) = idle {
            rest(pace, idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use proc_status::Status;

    use super::*;
    use crate::support::{library, ranks};

    /// The number of times that this thread has given up its CPU to sleep.
    fn sleeps() -> u32 {
        let status = Status::of_this_thread().unwrap();
        status.field("voluntary_ctxt_switches").unwrap().parse().unwrap()
    }

    #[test]
    fn a_wait_with_a_limit_sleeps_as_one_without() {
        ranks(&library(), 1, |group| {
            let mut receiving = group.irecv(vec![0_u8], 0, 1).unwrap();
            let (limit, begun, slept) = (Duration::from_millis(400), Instant::now(), sleeps());
            assert!(!receiving.wait_timeout(limit).unwrap() && begun.elapsed() >= limit);
            let slept = sleeps() - slept;
            assert!(slept >= 10, "{slept} times");
        });
    }
}
