//! Stands around every call: a panic, an error, a success become NCCL's code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use net_abi::ResultCode;

use crate::error::{Error, Kind, Result};

/// Runs the body of a call. An error is logged here, once: what follows from it carries `logged`.
///
/// The body may be unwound out of: what it shares with other calls stands behind locks, whose poison the plugin reads.
pub(super) fn guard(call: &'static str, body: impl FnOnce() -> Result<()>) -> ResultCode {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ResultCode::SUCCESS,
        Ok(Err(error)) => failed(call, &error),
        // The hook has said what happened, and where.
        Err(_) => ResultCode::INTERNAL_ERROR,
    }
}

/// The common case of a call, which takes few instructions: no error is worded there.
#[inline(always)]
pub(super) fn plainly<T>(body: impl FnOnce() -> T) -> Option<T> {
    // The hook has said what happened, and where.
    catch_unwind(AssertUnwindSafe(body)).ok()
}

#[cold]
fn failed(call: &str, error: &Error) -> ResultCode {
    if !error.logged {
        log::error!("{call}: {}", error.sentence);
    }
    code(error.kind)
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

/// Sends panics to NCCL's log instead of the standard error. Only the hook knows the place of a panic, and only it sees
/// those on threads of our own. The hook is this library's: Rust's runtime is linked into it, and no other's.
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
        for (kind, code) in [
            (Kind::System, 2),
            (Kind::Internal, 3),
            (Kind::InvalidArgument, 4),
            (Kind::InvalidUsage, 5),
            (Kind::Remote, 6),
        ] {
            let captured = Captured::start();
            assert_eq!(guard("test", || Err(Error::new(kind, "rank 3 is gone"))).0, code);
            assert_eq!(
                captured.lines(),
                [(net_abi::LOG_WARN, "NET/Ironrail : test: rank 3 is gone".to_owned())]
            );
        }
    }

    #[test]
    fn an_error_that_was_logged_keeps_quiet() {
        let captured = Captured::start();
        let mut sticky = Error::new(Kind::Remote, "rank 3 is gone");
        sticky.logged = true;
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
