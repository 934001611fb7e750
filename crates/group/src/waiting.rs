//! How a call of the group waits: it polls under the lock, and rests without it.

use std::time::{Duration, Instant};

use crate::error::GroupError;
use crate::group::{Group, State};
use crate::mesh::{Pace, Wait, rest};
use crate::patience::deadline;

impl Group {
    /// Makes progress until `ready`.
    pub(crate) fn until(
        &self,
        focus: Option<usize>,
        mut ready: impl FnMut(&mut State) -> Result<bool, GroupError>,
    ) -> Result<(), GroupError> {
        self.until_some(focus, |state| Ok(ready(state)?.then_some(())))
    }

    /// Makes progress until `find` has found something.
    pub(crate) fn until_some<T>(
        &self,
        focus: Option<usize>,
        mut find: impl FnMut(&mut State) -> Result<Option<T>, GroupError>,
    ) -> Result<T, GroupError> {
        let mut wait = Wait::default();
        loop {
            let mut state = self.shared.lock();
            if let Some(found) = find(&mut state)? {
                return Ok(found);
            }
            let idle = state.mesh.step(focus, &mut wait)?;
            let pace = state.mesh.pace();
            drop(state);
            if let Some(idle) = idle {
                rest(pace, idle);
            }
        }
    }

    /// How it rests.
    pub(crate) fn pace(&self) -> Pace {
        self.shared.lock().mesh.pace()
    }
}

/// Tests until `limit` has passed.
pub(crate) fn test_until(
    pace: Pace,
    limit: Duration,
    mut test: impl FnMut() -> Result<bool, GroupError>,
) -> Result<bool, GroupError> {
    let deadline = deadline(limit);
    while !test()? {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        rest(pace, Duration::ZERO);
    }
    Ok(true)
}
