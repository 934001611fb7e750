//! Whether a vector is registered for the time of one message, and so moves without a copy.
//!
//! With plugins over sockets a registration is an entry in a table; with NICs the driver pins page by page, which takes longer than a copy. No
//! call of a plugin says so, so it is measured, once per device.

use std::time::{Duration, Instant};

use super::lane::PIECE;
use crate::error::GroupError;
use crate::loader::{Buffer, End};

/// From how many bytes on the vectors of messages are registered on a device.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// By device. None: not measured.
    least: Vec<Option<usize>>,
}

impl Lending {
    /// Measures a device, by a comm of it, unless that was done before.
    pub(super) fn measure<E: End>(&mut self, device: usize, end: &E) -> Result<(), GroupError> {
        let measured = self.measured(device);
        if measured.is_none() {
            *measured = Some(least(end)?);
        }
        Ok(())
    }

    fn measured(&mut self, device: usize) -> &mut Option<usize> {
        if self.least.len() <= device {
            self.least.resize(device + 1, None);
        }
        &mut self.least[device]
    }

    #[cfg(test)]
    pub(super) fn has_measured(&mut self, device: usize) -> bool {
        self.measured(device).is_some()
    }

    #[cfg(test)]
    pub(super) fn lend_from(&mut self, device: usize, bytes: usize) {
        *self.measured(device) = Some(bytes);
    }

    /// Whether a message of so many bytes to or from a peer on this device is in registered memory.
    pub(super) fn lends(&self, device: usize, bytes: usize) -> bool {
        self.least.get(device).copied().flatten().is_some_and(|least| bytes >= least)
    }
}

/// From how many bytes on a registration and its end take less time than half of the copy that they save. The other half is for the
/// announcement of the receive, which staging memory needs none of.
fn least<E: End>(end: &E) -> Result<usize, GroupError> {
    // Memory that was registered before may still be known to a cache below the plugin, so none is registered twice.
    let buffers = [Buffer::new(PIECE)?, Buffer::new(PIECE)?, Buffer::new(PIECE)?];
    let (mut registered, mut copied) = (Duration::MAX, Duration::MAX);
    for index in 0..buffers.len() {
        let (from, to) = (&buffers[index], &buffers[(index + 1) % buffers.len()]);
        let begun = Instant::now();
        // A plugin may refuse what it has no room for, and messages are then copied.
        let Ok(region) = end.register(from.memory()) else { return Ok(usize::MAX) };
        drop(region);
        registered = registered.min(begun.elapsed());
        let begun = Instant::now();
        to.memory().place().copy_from(from.memory().place());
        copied = copied.min(begun.elapsed());
    }
    let worth = 2 * registered.as_nanos() * PIECE as u128 / copied.as_nanos().max(1);
    let worth = usize::try_from(worth).unwrap_or(usize::MAX);
    Ok(if worth > PIECE { usize::MAX } else { worth.max(LEAST) })
}

/// Shorter messages are copied on any device: the announcement of a receive takes longer than the copies.
const LEAST: usize = 192 << 10;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::loader::Library;
    use crate::support::{buffering, connected, pinning};

    const TRIES: usize = 20;

    #[test]
    fn memory_is_lent_only_where_it_takes_less_time_to_register_than_to_copy() {
        let lends = |library: Arc<Library>| {
            let (sender, receiver) = connected(&library, |_| {});
            let mut lending = Lending::default();
            assert!(!lending.lends(1, PIECE), "a device that was not measured");
            lending.measure(1, &sender).unwrap();
            lending.measure(0, &receiver).unwrap();
            [(0, LEAST - 1), (0, PIECE), (1, PIECE)].map(|(device, len)| lending.lends(device, len))
        };
        // On a busy machine a process may be stopped at any time, also while it measures.
        let lends = |library: fn() -> Arc<Library>, expected: [bool; 3]| {
            (0..TRIES).any(|_| lends(library()) == expected)
        };
        assert!(lends(buffering, [false, true, true]));
        assert!(lends(pinning, [false; 3]));
    }
}
