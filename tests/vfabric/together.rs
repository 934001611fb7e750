//! Ends that close at the same time, as ranks do.

use std::thread;

use crate::world::End;

/// Closes ends at the same time, as ranks do: each waits for the farewells of the others.
pub(crate) fn close_together(ends: impl IntoIterator<Item = End>) {
    thread::scope(|scope| {
        let closing: Vec<_> =
            ends.into_iter().map(|end| scope.spawn(move || end.close())).collect();
        closing.into_iter().for_each(|end| end.join().expect("finalize"));
    });
}
