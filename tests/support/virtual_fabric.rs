//! The virtual fabric in this process: its settings, its faults and its report, by its control table (docs/vfabric.md).

use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

#[path = "../../crates/vfabric/src/control/table.rs"]
mod table;

/// The fabric, once libfabric has loaded it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VirtualFabric(&'static table::Control);

impl VirtualFabric {
    /// From the provider's `file`, which libfabric has loaded.
    pub(crate) fn of(file: &Path) -> Self {
        let name = CString::new(file.as_os_str().as_bytes()).expect("no zero byte");
        // SAFETY: the file is loaded already, so nothing runs.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        assert!(!library.is_null(), "libfabric has not loaded {}", file.display());
        // SAFETY: the library is open.
        let symbol = unsafe { libc::dlsym(library, c"vfabric_control".as_ptr()) };
        assert!(!symbol.is_null(), "{} has no control table", file.display());
        let get: *const c_void = symbol;
        // SAFETY: the provider defines it so; a symbol's address is a function pointer.
        let get =
            unsafe { (&raw const get).cast::<extern "C" fn() -> *const table::Control>().read() };
        // SAFETY: the table is static, and libfabric never unloads it.
        Self(unsafe { &*get() })
    }

    /// Starts again with other settings, while nothing is open.
    pub(crate) fn configure(self, settings: &str) {
        let text = CString::new(settings).expect("no zero byte");
        // SAFETY: a C string.
        let code = unsafe { (self.0.configure)(text.as_ptr()) };
        assert_eq!(code, 0, "{settings}");
    }

    /// Adds to the script of faults.
    pub(crate) fn fault(self, script: &str) {
        let text = CString::new(script).expect("no zero byte");
        // SAFETY: a C string.
        assert_eq!(unsafe { (self.0.fault)(text.as_ptr()) }, 0, "{script}");
    }

    /// Polls all ends until nothing is posted any more: some acknowledgements are sent after a time, not after a number of polls, and a
    /// fault for the next operation would hit them.
    ///
    /// Polls are counted before that time and after it: on a busy machine it may pass between two polls.
    pub(crate) fn settle(self, poll: impl Fn()) {
        loop {
            let posts = self.number("counter.posts");
            (0..POLLS).for_each(|_| poll());
            thread::sleep(QUIET);
            (0..POLLS).for_each(|_| poll());
            if self.number("counter.posts") == posts {
                return;
            }
        }
    }

    /// Injects the fault `word` at the next post or operation of at least `least` bytes, whatever else is posted before.
    pub(crate) fn fault_next(self, word: &str, least: usize) {
        self.fault(&format!("{word}=next:{least}"));
    }

    /// The next operation lands this many polls later.
    pub(crate) fn delay_next(self, polls: u32) {
        self.fault(&format!("delay={}:{polls}", self.number("counter.operations") + 1));
    }

    /// Stalls, resumes, kills or revives a NIC.
    pub(crate) fn change(self, nic: u32, action: &str) {
        let text = CString::new(action).expect("no zero byte");
        // SAFETY: a C string.
        assert_eq!(unsafe { (self.0.nic)(nic, text.as_ptr()) }, 0, "{action}");
    }

    /// A number of its report by its name.
    pub(crate) fn number(self, name: &str) -> u64 {
        let text = CString::new(name).expect("no zero byte");
        // SAFETY: a C string.
        unsafe { (self.0.number)(text.as_ptr()) }
    }

    /// Memory in which received bytes stay invisible until a read by the same NIC, as a GPU's may.
    pub(crate) fn mark(self, address: usize, len: usize) {
        // SAFETY: the fabric compares the numbers with those of writes.
        unsafe { (self.0.mark)(address as u64, len as u64) };
    }

    /// The broken rules.
    pub(crate) fn violations(self) -> Vec<String> {
        // SAFETY: it takes nothing.
        let count = unsafe { (self.0.violations)() };
        let words = |index| {
            let mut text = vec![0_u8; 512];
            // SAFETY: the buffer is as long as we say.
            let len = unsafe { (self.0.violation)(index, text.as_mut_ptr().cast(), text.len()) };
            let len = usize::try_from(len).unwrap_or(0).min(text.len() - 1);
            String::from_utf8_lossy(&text[..len]).into_owned()
        };
        (0..usize::try_from(count).expect("a count")).map(words).collect()
    }

    /// No rule was broken, and nothing is open.
    #[track_caller]
    pub(crate) fn is_clean(self) {
        assert_eq!(self.violations(), Vec::<String>::new());
        self.is_closed();
    }

    /// Nothing is open.
    #[track_caller]
    pub(crate) fn is_closed(self) {
        for kind in ["domains", "endpoints", "queues", "vectors", "regions", "peers", "operations"]
        {
            assert_eq!(self.number(&format!("open.{kind}")), 0, "{kind} are left open");
        }
    }
}

/// Changes the environment, for a plugin or a provider that is loaded later.
pub(crate) fn set(name: &str, value: &str) {
    // SAFETY: a part of a play is one thread that does something, and this is it.
    unsafe { std::env::set_var(name, value) };
}

/// Longer than an acknowledgement waits for a packet to travel with.
const QUIET: Duration = Duration::from_millis(10);
/// More than it takes until what is posted has come, and until the clock is read.
const POLLS: u32 = 500;
