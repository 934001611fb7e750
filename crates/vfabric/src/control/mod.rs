//! The calls by which tests control the fabric.

mod table;

use std::ffi::{CStr, c_char, c_int};

use libfabric_sys as sys;

use crate::counters::Counters;
use crate::engine::{Errno, Outcome, engine};
use crate::faults::{self, NicAction};
use crate::ledger::Ledger;
use crate::report;
use crate::settings::Settings;
use table::Control;

pub(crate) use table::NAME;

static TABLE: Control = Control {
    size: size_of::<Control>(),
    configure,
    fault,
    nic,
    now,
    advance,
    violations,
    violation,
    number,
    mark,
    forget,
};

/// The process's only table.
pub(crate) fn table() -> &'static Control {
    &TABLE
}

/// The control table, for a test that has not opened a domain yet.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn vfabric_control() -> *const Control {
    table()
}

fn code(outcome: Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(Errno(code)) => -code,
    }
}

/// # Safety
///
/// `raw` must be null or a C string.
unsafe fn text(raw: *const c_char) -> String {
    if raw.is_null() {
        return String::new();
    }
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned()
}

unsafe extern "C" fn configure(settings: *const c_char) -> c_int {
    // SAFETY: the caller gives a C string.
    let settings = unsafe { text(settings) };
    match Settings::of_text(&settings) {
        Ok(settings) => code(engine().configure(settings)),
        Err(_) => -sys::FI_EINVAL,
    }
}

unsafe extern "C" fn fault(script: *const c_char) -> c_int {
    // SAFETY: the caller gives a C string.
    let script = unsafe { text(script) };
    match faults::parse(&script) {
        Ok(faults) => code(engine().add_faults(faults)),
        Err(_) => -sys::FI_EINVAL,
    }
}

unsafe extern "C" fn nic(nic: u32, action: *const c_char) -> c_int {
    // SAFETY: the caller gives a C string.
    let action = unsafe { text(action) };
    match NicAction::named(&action) {
        Some(action) => code(engine().change_nic(nic as usize, action)),
        None => -sys::FI_EINVAL,
    }
}

unsafe extern "C" fn now() -> u64 {
    engine().now()
}

unsafe extern "C" fn advance(by: u64) -> u64 {
    engine().advance(by)
}

unsafe extern "C" fn violations() -> u64 {
    engine().ledger.len()
}

unsafe extern "C" fn violation(index: usize, buffer: *mut c_char, len: usize) -> isize {
    let engine = engine();
    let Some((rule, words)) = engine.ledger.texts().get(index) else {
        return -(sys::FI_ENOENT as isize);
    };
    let text = format!("{rule}: {words}");
    let fits = text.len().min(len.saturating_sub(1));
    if !buffer.is_null() && len > 0 {
        // SAFETY: the caller's buffer is as long as they say.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, fits) };
        // SAFETY: as above.
        let end = unsafe { buffer.add(fits) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    text.len().cast_signed()
}

unsafe extern "C" fn number(name: *const c_char) -> u64 {
    // SAFETY: the caller gives a C string.
    let name = unsafe { text(name) };
    let numbers = report::numbers(&engine());
    numbers.into_iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| value)
}

unsafe extern "C" fn mark(address: u64, len: u64) {
    if len == 0 {
        engine().unmark();
    } else {
        engine().mark(address, len);
    }
}

unsafe extern "C" fn forget() {
    let mut engine = engine();
    engine.ledger = Ledger::new(engine.settings.tolerated.clone());
    engine.counters = Counters::default();
}
