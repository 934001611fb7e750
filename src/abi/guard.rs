//! Wraps every call: turns a panic, an error or a success into NCCL's result code.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use net_abi::ResultCode;

use super::profiler;
use crate::error::{Error, Kind, Result, SetupError};
use crate::fault;
use crate::object_id::RawId;
use crate::plugin::{self, Locked};

/// Runs the body of a call. An error is logged here, once: later errors with the same cause carry `logged`.
///
/// Unwinding out of the body is safe: what it shares with other calls is behind locks, and a panic under one of those is caught there
/// (`plugin::registry`).
pub(super) fn guard(call: &'static str, body: impl FnOnce() -> Result<()>) -> ResultCode {
    guarded(call, body).unwrap_or(ResultCode::INTERNAL_ERROR)
}

/// As [`guard`], for a call about one comm, which fails for good if the call panics.
pub(super) fn guard_comm(
    call: &'static str,
    comm: RawId,
    body: impl FnOnce() -> Result<()>,
) -> ResultCode {
    guarded(call, body).unwrap_or_else(|| {
        plugin::panicked(comm);
        ResultCode::INTERNAL_ERROR
    })
}

/// As [`guard`], for a call that begins a connection.
pub(super) fn guard_setup(
    call: &'static str,
    body: impl FnOnce() -> Result<(), SetupError>,
) -> ResultCode {
    guarded(call, body).unwrap_or(ResultCode::INTERNAL_ERROR)
}

/// None: a panic, which the hook has logged with its file and line.
fn guarded<E: Failure>(
    call: &'static str,
    body: impl FnOnce() -> Result<(), E>,
) -> Option<ResultCode> {
    let call_body = || {
        fault::point(call);
        body()
    };
    match catch_unwind(AssertUnwindSafe(call_body)).ok()? {
        Ok(()) => Some(ResultCode::SUCCESS),
        Err(error) => Some(failed(call, &error)),
    }
}

/// As [`guard`], for a call that holds its endpoint's lock throughout: after a panic the endpoint's state may be inconsistent, so it fails
/// for good.
#[inline(always)]
pub(super) fn guard_locked(
    call: &'static str,
    mut endpoint: Locked,
    body: impl FnOnce(&mut Locked) -> Result<()>,
) -> ResultCode {
    let call_body = || {
        fault::point(call);
        body(&mut endpoint)
    };
    match catch_unwind(AssertUnwindSafe(call_body)) {
        Ok(Ok(())) => ResultCode::SUCCESS,
        Ok(Err(error)) => {
            profiler::ended(&mut endpoint);
            // Logging may block, so the lock is released first.
            drop(endpoint);
            failed(call, &error)
        }
        Err(_) => {
            endpoint.panicked();
            ResultCode::INTERNAL_ERROR
        }
    }
}

#[cold]
fn failed(call: &str, error: &impl Failure) -> ResultCode {
    if !error.is_logged() {
        log::error!("{call}: {error}");
    }
    code(error.kind())
}

/// The errors of calls.
trait Failure: Display {
    fn kind(&self) -> Kind;

    /// Whether its sentence is already logged.
    fn is_logged(&self) -> bool;
}

impl Failure for Error {
    fn kind(&self) -> Kind {
        self.kind()
    }

    fn is_logged(&self) -> bool {
        self.logged
    }
}

impl Failure for SetupError {
    fn kind(&self) -> Kind {
        self.kind()
    }

    fn is_logged(&self) -> bool {
        matches!(self, Self::General(error) if error.logged)
    }
}

fn code(kind: Kind) -> ResultCode {
    match kind {
        Kind::System => ResultCode::SYSTEM_ERROR,
        Kind::Internal => ResultCode::INTERNAL_ERROR,
        Kind::InvalidArgument => ResultCode::INVALID_ARGUMENT,
        Kind::InvalidUsage => ResultCode::INVALID_USAGE,
        Kind::Remote => ResultCode::REMOTE_ERROR,
    }
}

/// Sends panics to NCCL's log instead of the standard error. Only the hook knows a panic's file and line, and only it runs for panics on our
/// own threads. It replaces no other library's hook: the plugin has a Rust runtime of its own linked in.
pub(super) fn report_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            log::error!(
                "a bug in Ironrail: {}. Please report it with this line.",
                one_line(&info.to_string())
            );
            // A failing test needs its message where the test harness collects it.
            if cfg!(test) {
                previous(info);
            }
        }));
    });
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::logger::tests::Captured;
    use crate::error::Cause;

    #[test]
    fn a_panic_becomes_an_internal_error_and_one_line() {
        let captured = Captured::start();
        report_panics();
        assert_eq!(guard("isend", || panic!("the rails\nare bent")), ResultCode::INTERNAL_ERROR);
        let lines = captured.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].1.contains("the rails are bent"), "{lines:?}");
        assert!(lines[0].1.contains("src/abi/guard.rs"), "{lines:?}");
        assert_eq!(lines[0].0, net_abi::LOG_WARN);
    }

    #[test]
    fn an_error_becomes_its_code_and_one_line() {
        for (cause, code, sentence) in [
            (
                Cause::AddressNotInHandle,
                2,
                "the provider's address does not fit into NCCL's handle",
            ),
            (Cause::Misuse("a bug"), 3, "a bug"),
            (Cause::NoHandle, 4, "NCCL passed a null handle"),
            (Cause::NotInitialised, 5, "NCCL has not called init, or it failed"),
            (Cause::Ended, 6, "the process has ended"),
        ] {
            let captured = Captured::start();
            assert_eq!(guard("test", || Err(Error::from(cause))).0, code);
            assert_eq!(
                captured.lines(),
                [(net_abi::LOG_WARN, format!("NET/Ironrail : test: {sentence}"))]
            );
        }
    }

    #[test]
    fn an_error_that_was_logged_keeps_quiet() {
        let captured = Captured::start();
        let sticky = Error { logged: true, ..Cause::Ended.into() };
        assert_eq!(guard("test", || Err(sticky)), ResultCode::REMOTE_ERROR);
        assert_eq!(captured.lines(), []);
    }

    #[test]
    fn success_is_zero_and_quiet() {
        let captured = Captured::start();
        assert_eq!(guard("test", || Ok(())).0, 0);
        assert_eq!(captured.lines(), []);
    }
}
