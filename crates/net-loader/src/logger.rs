//! The logger passed to the plugin: its lines go to the `log` crate.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::mem;
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};

use net_abi::Logger;

/// The argument of `init`.
pub(crate) fn callback() -> Logger {
    type Fixed =
        unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    type Variadic = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
    // Stable Rust cannot define a variadic function. In the System V x86-64 and AAPCS64 ABIs the first variadic pointer is passed like a
    // sixth fixed one, in a register. It is only read when the format is "%s".
    // SAFETY: both are thin function pointers, and the callee reads what the caller put there, as said above.
    Some(unsafe { mem::transmute::<Fixed, Variadic>(receive) })
}

/// Takes the last warning that the plugin logged in this thread, to be quoted in the error that follows.
pub fn take_last_warning() -> Option<String> {
    LAST_WARNING.take()
}

/// Forgets the last warning that the plugin logged in this thread: it came from a call that succeeded, and is not the cause of a later error.
pub fn forget_last_warning() {
    drop(take_last_warning());
}

/// The number of warnings so far, from all threads.
pub(crate) fn warnings() -> u64 {
    WARNINGS.load(Ordering::Relaxed)
}

/// Runs `work` while connections may end normally: the plugin's warnings in this thread are logged as information meanwhile.
pub fn expecting_ends<T>(work: impl FnOnce() -> T) -> T {
    let before = ENDS_EXPECTED.replace(true);
    let done = work();
    ENDS_EXPECTED.set(before);
    done
}

static WARNINGS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static ENDS_EXPECTED: Cell<bool> = const { Cell::new(false) };
    static LAST_WARNING: RefCell<Option<String>> = const { RefCell::new(None) };
}

unsafe extern "C" fn receive(
    level: c_int,
    _flags: c_ulong,
    file: *const c_char,
    line: c_int,
    format: *const c_char,
    first: *const c_char,
) {
    // A panic in a logger must not unwind into C.
    let _ = panic::catch_unwind(|| {
        // SAFETY: NCCL's contract: a C string or null.
        let format = unsafe { text(format) };
        let message = match &*format {
            // SAFETY: the format says that the argument is a C string.
            "%s" => unsafe { text(first) },
            _ => format,
        };
        // SAFETY: as for the format.
        let file = unsafe { text(file) };
        // A thread that is ending has no expectation any more.
        let ends_expected = ENDS_EXPECTED.try_with(Cell::get).unwrap_or(false);
        let at = match level {
            net_abi::LOG_WARN if ends_expected => log::Level::Info,
            net_abi::LOG_WARN => log::Level::Warn,
            net_abi::LOG_ABORT => log::Level::Error,
            net_abi::LOG_TRACE => log::Level::Trace,
            _ => log::Level::Info,
        };
        if at <= log::Level::Warn {
            WARNINGS.fetch_add(1, Ordering::Relaxed);
            // A thread that is ending has no last warning any more.
            let _ = LAST_WARNING.try_with(|last| last.replace(Some(message.to_string())));
        }
        log::log!(target: "plugin", at, "{message} ({file}:{line})");
    });
}

/// # Safety
///
/// `string` is null or a C string that lives as long as the answer is used.
unsafe fn text<'a>(string: *const c_char) -> Cow<'a, str> {
    if string.is_null() {
        return Cow::Borrowed("");
    }
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { CStr::from_ptr(string) }.to_string_lossy()
}
