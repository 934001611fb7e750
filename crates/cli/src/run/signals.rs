//! Signals that end a job, or stop and continue it.

use std::io;

use ironrail_group::status::Status;
use rustix::process::Signal;
use signal_hook::iterator::Signals;

/// From its creation on these signals no longer end or stop this process, but are kept here.
pub(super) struct Heeded(Signals);

impl Heeded {
    pub(super) fn new() -> io::Result<Self> {
        // nohup(1) ignores HUP, and a shell script INT and QUIT for what it starts in the background.
        let ignored = Status::of_this_process()?.signals("SigIgn").unwrap_or_default();
        let heeded = HEEDED.iter().map(|signal| signal.as_raw());
        Signals::new(heeded.filter(|signal| ignored >> (signal - 1) & 1 == 0)).map(Self)
    }

    /// Those that have come since the last call. CONT undoes TSTP, as in the kernel: their order is not known here, and a job that runs can be
    /// stopped again.
    pub(super) fn pending(&mut self) -> Vec<Signal> {
        let mut pending: Vec<_> = self.0.pending().filter_map(Signal::from_named_raw).collect();
        if pending.contains(&Signal::CONT) {
            pending.retain(|signal| *signal != Signal::TSTP);
        }
        pending
    }
}

const HEEDED: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::TSTP, Signal::CONT];
