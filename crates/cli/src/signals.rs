//! Signals to a command whose ranks lead process groups, which a terminal's keys do not reach.

use std::io;
use std::os::unix::process::parent_id;
use std::process;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ironrail_group::error::GroupError;
use proc_status::{Belonging, Status};
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, exit};

/// Makes the kernel keep the status of ended children, if this command's parent has left CHLD ignored: otherwise the kernel drops the
/// status, and every wait for a child fails (wait(2)). Sandboxes with a kernel of their own do not say what is ignored. execve(2) resets a
/// handler, so programs that this command starts have the default.
pub(crate) fn keep_children() {
    let chld = Signal::CHILD.as_raw();
    if ignored().is_none_or(|ignored| is_in(ignored, chld)) {
        // A handler without an effect: the flag is not read.
        let _ = flag::register(chld, Arc::default());
    }
}

/// Makes a write beyond the limit of files' sizes (RLIMIT_FSIZE) fail, so that this command can name the file: otherwise SIGXFSZ ends the
/// process. Programs that this command starts have the default, or ignore the signal, as this command's parent has left it.
pub(crate) fn survive_long_files() {
    let xfsz = Signal::XFSZ.as_raw();
    if ignored().is_none_or(|ignored| !is_in(ignored, xfsz)) {
        // As above.
        let _ = flag::register(xfsz, Arc::default());
    }
}

/// Lets signals that end a process also end the first one of a container, with the exit code that a shell gives it: the kernel discards those for
/// which the first process of a PID namespace has no handler (pid_namespaces(7)). For commands that handle no such signal themselves.
pub(crate) fn end_as_first_process() {
    if !is_first_process() {
        return;
    }
    let ignored = ignored().unwrap_or_default();
    for signal in ENDING.map(Signal::as_raw) {
        if !is_in(ignored, signal) {
            let always = Arc::new(AtomicBool::new(true));
            let _ = flag::register_conditional_shutdown(signal, 128 + signal, always);
        }
    }
}

/// Ends this process by a signal, so that a shell sees the signal.
pub(crate) fn end_by(signal: i32) {
    if is_first_process() {
        exit(128 + signal);
    }
    let _ = emulate_default_handler(signal);
}

/// Whether this is the first process of a PID namespace, as of a container.
fn is_first_process() -> bool {
    process::id() == 1
}

/// The signals that this process ignores, as bits. `None`: the system does not say.
fn ignored() -> Option<u64> {
    Status::of_this_process().ok()?.signals("SigIgn")
}

fn is_in(signals: u64, signal: i32) -> bool {
    signals >> (signal - 1) & 1 == 1
}

/// Makes the kernel kill this process when `launcher`, which has started it, dies, or when the launcher's thread that has started it ends
/// (PR_SET_PDEATHSIG(2const)). prctl(2) acts on the calling process, and a call between fork(2) and execve(2) would be unsafe code. Returns
/// false if the launcher is dead already. If a sandbox refuses the call, this process outlives a launcher that SIGKILL ends.
pub(crate) fn end_with(launcher: u32) -> bool {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    parent_id() == launcher
}

/// Signals that no longer end or stop this process, but are kept here, from the creation of this object on.
pub(crate) struct Heeded(Signals);

impl Heeded {
    pub(crate) fn new(signals: &[Signal]) -> Result<Self, GroupError> {
        Self::of(signals).map_err(|error| GroupError::System { what: "handling signals", error })
    }

    fn of(signals: &[Signal]) -> io::Result<Self> {
        // nohup(1) ignores HUP, and a shell script INT and QUIT for what it starts in the background.
        let ignored = ignored().unwrap_or_default();
        let heeded = signals.iter().map(|signal| signal.as_raw());
        Signals::new(heeded.filter(|signal| !is_in(ignored, *signal))).map(Self)
    }

    /// The signals that have come since the last call. CONT removes TSTP, as in the kernel: their order is not known here, and a running
    /// job can be stopped again. Without a shell that would continue the job TSTP is ignored, as the kernel does by default.
    pub(crate) fn pending(&mut self) -> Vec<Signal> {
        let mut pending: Vec<_> = self.0.pending().filter_map(Signal::from_named_raw).collect();
        if pending.contains(&Signal::CONT)
            || (pending.contains(&Signal::TSTP) && is_alone_at_terminal())
        {
            pending.retain(|signal| *signal != Signal::TSTP);
        }
        pending
    }

    /// Stops the ranks and this process, or continues the ranks, if a signal for that has come.
    pub(crate) fn follow(&mut self, ranks: &[u32]) {
        for signal in self.pending() {
            for &rank in ranks {
                pass(signal, i32::try_from(rank).ok().and_then(Pid::from_raw));
            }
            if signal == Signal::TSTP {
                stop();
            }
        }
    }
}

/// Whether this process has the terminal, and no shell there that could continue it: of `ssh -t HOST ironrail run`, and of the first process of
/// a container. A launcher that batch systems suspend by TSTP has no terminal. False if that cannot be read.
fn is_alone_at_terminal() -> bool {
    let own = Belonging::of_this_process().ok();
    own.is_some_and(|own| own.foreground == Some(own.group) && is_orphaned(own))
}

/// Whether the process group is orphaned (credentials(7)): where the parents of its members leave the group, they leave the session, too. This
/// follows one line of parents, since a shell starts all members of a group. False if that cannot be read.
fn is_orphaned(own: Belonging) -> bool {
    // Led from outside of the PID namespace, where a shell may be.
    if own.session == 0 {
        return false;
    }
    let mut parent = own.parent;
    loop {
        if parent == 0 {
            return true;
        }
        let Ok(above) = Belonging::of(parent) else { return false };
        if above.session != own.session {
            return true;
        }
        if above.group != own.group {
            return false;
        }
        parent = above.parent;
    }
}

/// Passes a signal on to the process group that a rank leads.
pub(crate) fn pass(signal: Signal, rank: Option<Pid>) {
    // The call fails if the group has only a process that has ended.
    let _ = rank.map(|rank| kill_process_group(rank, signal));
}

/// Stops this process until CONT: by SIGSTOP, to this thread, so that it is stopped before this returns.
pub(crate) fn stop() {
    let _ = emulate_default_handler(Signal::TSTP.as_raw());
}

/// The signals that end a process.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// The signals that stop and continue a command.
pub(crate) const STOPPING: [Signal; 2] = [Signal::TSTP, Signal::CONT];
