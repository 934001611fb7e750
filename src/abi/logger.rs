//! NCCL's logger as the sink of the `log` crate.
//!
//! NCCL passes its logger to every `init`; the newest one is used. Lines before the first `init` are dropped: the plugin prints nothing
//! itself.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::AtomicPtr;

use log::{Level, LevelFilter, Log, Metadata, Record};
use net_abi::{LOG_INFO, LOG_TRACE, LOG_WARN, Logger, SUBSYSTEM_INIT, SUBSYSTEM_NET};

use super::published::Published;

type Call = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// The logger in use.
static CURRENT: Published<Call> = Published(AtomicPtr::new(ptr::null_mut()));

/// Sends the log to NCCL's logger. May be called often, with the same logger, another, or none (which changes nothing).
pub(super) fn install(logger: Logger) {
    let Some(call) = logger else { return };
    if CURRENT.get().map(|call| call as usize) != Some(call as usize) {
        // One small leak per distinct logger, of which a process has one or two.
        CURRENT.publish(call);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Refused only if this library has a logger already, and nothing else here sets one.
        if log::set_logger(&Forward).is_ok() {
            log::set_max_level(if cfg!(debug_assertions) {
                LevelFilter::Trace
            } else {
                LevelFilter::Debug
            });
        }
    });
}

struct Forward;

impl Log for Forward {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        CURRENT.get().is_some()
    }

    fn log(&self, record: &Record<'_>) {
        let Some(call) = CURRENT.get() else { return };
        let text = c_text(&format!("NET/Ironrail : {}", record.args()));
        let file = c_text(record.file().unwrap_or_else(|| record.target()));
        let line = record.line().and_then(|line| c_int::try_from(line).ok()).unwrap_or(0);
        // SAFETY: NCCL's logger, which lives as long as NCCL; "%s" takes exactly the one string that follows.
        unsafe {
            call(
                level(record.level()),
                SUBSYSTEMS,
                file.as_ptr(),
                line,
                FORMAT.as_ptr(),
                text.as_ptr(),
            )
        };
    }

    fn flush(&self) {}
}

fn level(level: Level) -> c_int {
    match level {
        Level::Error | Level::Warn => LOG_WARN,
        Level::Info => LOG_INFO,
        Level::Debug | Level::Trace => LOG_TRACE,
    }
}

/// Text for C, without the NULs that would end it early.
fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{2400}")).unwrap_or_default()
}

const FORMAT: &CStr = c"%s";
const SUBSYSTEMS: c_ulong = SUBSYSTEM_NET | SUBSYSTEM_INIT;

#[cfg(test)]
pub(super) mod tests {
    use std::cell::RefCell;
    use std::sync::atomic::Ordering;

    use super::*;

    thread_local! {
        static LINES: RefCell<Vec<(c_int, String)>> = const { RefCell::new(Vec::new()) };
    }

    /// Captures what this thread logs, with NCCL's levels.
    pub(in crate::abi) struct Captured;

    impl Captured {
        pub(in crate::abi) fn start() -> Self {
            install(Some(variadic(capture)));
            LINES.take();
            Self
        }

        pub(in crate::abi) fn lines(&self) -> Vec<(c_int, String)> {
            LINES.take()
        }
    }

    type Fixed =
        unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);

    /// A logger for tests. Rust cannot define a variadic function, but on 64-bit Linux one with a single further pointer
    /// is called as this one is.
    pub(in crate::abi) fn variadic(call: Fixed) -> Call {
        // SAFETY: see above.
        unsafe { std::mem::transmute::<Fixed, Call>(call) }
    }

    unsafe extern "C" fn capture(
        level: c_int,
        flags: c_ulong,
        file: *const c_char,
        line: c_int,
        format: *const c_char,
        text: *const c_char,
    ) {
        assert_eq!(flags, 0x11);
        assert!(line > 0);
        // SAFETY: a C string.
        assert!(unsafe { CStr::from_ptr(file) }.to_bytes().ends_with(b".rs"));
        // SAFETY: a C string.
        assert_eq!(unsafe { CStr::from_ptr(format) }, c"%s");
        // SAFETY: a C string.
        let text = unsafe { CStr::from_ptr(text) }.to_str().expect("UTF-8").to_owned();
        LINES.with_borrow_mut(|lines| lines.push((level, text)));
    }

    #[test]
    fn levels_are_nccls() {
        let levels =
            [Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace].map(level);
        assert_eq!(levels, [2, 2, 3, 5, 5]);
        let captured = Captured::start();
        log::warn!("two");
        log::info!("three");
        let logged: Vec<_> = captured.lines().into_iter().map(|(level, _)| level).collect();
        assert_eq!(logged, [2, 3]);
    }

    #[test]
    fn a_line_is_one_string_with_our_name_in_front_whatever_it_holds() {
        let captured = Captured::start();
        log::info!("100% of \0 and {}", "%n");
        assert_eq!(captured.lines(), [(3, "NET/Ironrail : 100% of \u{2400} and %n".to_owned())]);
    }

    #[test]
    fn the_same_logger_again_allocates_nothing() {
        install(Some(variadic(capture)));
        let place = CURRENT.0.load(Ordering::Acquire);
        install(Some(variadic(capture)));
        assert_eq!(place, CURRENT.0.load(Ordering::Acquire));
    }
}
