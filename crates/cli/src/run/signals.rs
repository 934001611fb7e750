//! Signals that end a job, or stop and continue it.

use std::fs;
use std::io;

use rustix::process::Signal;
use signal_hook::iterator::Signals;

/// From its creation on these signals no longer end or stop this process, but are kept here.
pub(super) struct Heeded(Signals);

impl Heeded {
    pub(super) fn new() -> io::Result<Self> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status")?);
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

/// The signals that this process was started to ignore, a bit each: nohup(1) ignores HUP, and a shell script INT and QUIT for what it starts in
/// the background.
fn ignored(status: &str) -> u64 {
    // proc_pid_status(5)
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

const HEEDED: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::TSTP, Signal::CONT];
