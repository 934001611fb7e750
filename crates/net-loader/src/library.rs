//! A plugin's file, opened as NCCL does.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use net_abi::{CommConfig, NEWEST, OLDEST, ResultCode, UNDEFINED};

use crate::calls::Calls;
use crate::logger;
use crate::properties::text;

/// An open plugin and the table taken from it.
#[derive(Debug)]
pub struct Library {
    object: Object, // The calls point into it.
    path: String,
    calls: Calls,
    /// Up to v10 `init` is called once per process.
    initialised: Mutex<bool>,
}

impl Library {
    /// Opens `name`, a file or a word as in NCCL_NET_PLUGIN, and takes its newest table, or the requested version.
    pub fn open(name: &str, version: Option<u32>) -> Result<Arc<Self>, LoadError> {
        Self::open_by(name, version, libc::RTLD_NOW)
    }

    /// As [`Self::open`] with the newest table, and with lazy binding: to inspect a file that NCCL cannot open.
    pub fn open_lazily(name: &str) -> Result<Arc<Self>, LoadError> {
        Self::open_by(name, None, libc::RTLD_LAZY)
    }

    /// The names that NCCL passes to dlopen for `name`, each with the loader's error; empty if one can be opened.
    pub fn refusals(name: &str) -> Vec<(String, String)> {
        let mut refused = Vec::new();
        for candidate in candidates(name) {
            match Object::open(&candidate, libc::RTLD_NOW) {
                Ok(_) => return Vec::new(),
                Err(reason) => refused.push((candidate, reason)),
            }
        }
        refused
    }

    fn open_by(name: &str, version: Option<u32>, binding: c_int) -> Result<Arc<Self>, LoadError> {
        let mut reasons = Vec::new();
        for candidate in candidates(name) {
            match Object::open(&candidate, binding) {
                Ok(object) => return Self::take(object, candidate, version).map(Arc::new),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(LoadError(format!(
            "the plugin {name} cannot be opened: {}; name a file, or make the loader find it (LD_LIBRARY_PATH)",
            reasons.join("; ")
        )))
    }

    fn take(object: Object, path: String, version: Option<u32>) -> Result<Self, LoadError> {
        let wanted = |&(number, _): &(u32, &CStr)| version.is_none_or(|version| version == number);
        let found = net_abi::SYMBOLS
            .into_iter()
            .filter(wanted)
            .find_map(|(number, name)| Some((number, object.symbol(name)?)));
        let Some((number, symbol)) = found else {
            let what = version.map_or_else(
                || format!("a table of NCCL's net interface, v{OLDEST} to v{NEWEST}"),
                |version| match Calls::symbol(version) {
                    Some(name) => format!("the table {}", name.to_string_lossy()),
                    None => format!("a table v{version}; there are v{OLDEST} to v{NEWEST}"),
                },
            );
            return Err(LoadError(format!("{path} does not export {what}")));
        };
        // SAFETY: by its name, the symbol is a table of this version.
        let calls = unsafe { Calls::read(number, symbol.as_ptr()) }
            .map_err(|why| LoadError(format!("{path}: {why}")))?;
        log::info!("{path}: net plugin {}, table v{number}", calls.name);
        Ok(Self { object, path, calls, initialised: Mutex::new(false) })
    }

    /// The file, or the name by which the loader found it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The name of the plugin's network.
    pub fn name(&self) -> &str {
        &self.calls.name
    }

    /// The version of the table in use.
    pub fn version(&self) -> u32 {
        self.calls.version
    }

    /// The versions the file exports, newest first.
    pub fn versions(&self) -> Vec<u32> {
        let exported =
            net_abi::SYMBOLS.into_iter().filter(|(_, name)| self.object.symbol(name).is_some());
        exported.map(|(number, _)| number).collect()
    }

    /// The plugin's explanation of its settings, and of its devices once it has started, as JSON; None for a plugin other than Ironrail.
    pub fn explanation(&self) -> Option<String> {
        type Explain = unsafe extern "C" fn(*mut c_char, usize) -> usize;
        let symbol = self.object.symbol(c"ironrail_explain")?;
        // SAFETY: the symbol's name says that it is this function (include/ironrail.h).
        let explain = unsafe { std::mem::transmute::<*mut c_void, Explain>(symbol.as_ptr()) };
        let mut text = vec![0_u8; 64 << 10];
        loop {
            // SAFETY: there is room for as many bytes as are passed as the length.
            let whole = unsafe { explain(text.as_mut_ptr().cast(), text.len()) };
            if whole < text.len() {
                text.truncate(whole);
                return String::from_utf8(text).ok().filter(|text| !text.is_empty());
            }
            text.resize(whole + 1, 0);
        }
    }

    /// Calls `init`: for every communicator since v11, once per library before that. Returns the plugin's context, or `context` if it writes none.
    pub fn init(
        &self,
        communicator: u64,
        mut context: *mut c_void,
    ) -> Result<*mut c_void, ResultCode> {
        let mut config = CommConfig { traffic_class: UNDEFINED };
        let (logger, calls) = (logger::callback(), self.calls());
        let mut initialised = self.initialised.lock().unwrap_or_else(PoisonError::into_inner);
        if !*initialised || calls.has_contexts() {
            // SAFETY: both places live through the call.
            let code = unsafe {
                calls.init(&raw mut context, communicator, &raw mut config, logger, None)
            };
            if !code.is_success() {
                return Err(code);
            }
            logger::forget_last_warning();
        }
        *initialised = true;
        Ok(context)
    }

    /// The address of the table in use.
    pub(crate) fn table(&self) -> Option<NonNull<c_void>> {
        self.object.symbol(Calls::symbol(self.calls.version)?)
    }

    /// The raw calls of the table in use.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }
}

/// Why a plugin cannot be used, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError(pub String);

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}

/// The names that NCCL passes to dlopen for `name`, in order: the name itself, then the file name made of the word (NCCL
/// src/plugin/plugin_open.cc).
pub fn candidates(name: &str) -> Vec<String> {
    let is_file = name.contains('/') || (name.starts_with("lib") && name.ends_with(".so"));
    let mut candidates = vec![name.to_owned()];
    if !is_file {
        candidates.push(format!("libnccl-net-{name}.so"));
    } else if !name.contains('/') && Path::new(name).is_file() {
        candidates.push(format!("./{name}")); // dlopen searches for bare names on the loader's path only.
    }
    candidates
}

/// An open shared object.
#[derive(Debug)]
struct Object(NonNull<c_void>);

// SAFETY: dlsym and dlclose may be called from any thread (dlopen(3)).
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    fn open(name: &str, binding: c_int) -> Result<Self, String> {
        let name = CString::new(name).map_err(|_| "a name with a zero byte".to_owned())?;
        // SAFETY: runs the object's initialisers, which is what opening a plugin means.
        let handle = unsafe { libc::dlopen(name.as_ptr(), binding | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Self).ok_or_else(last_error)
    }

    fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the object is open.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, closed here only; callers into the object hold a share of its `Library`.
        if unsafe { libc::dlclose(self.0.as_ptr()) } != 0 {
            log::warn!("dlclose: {}", last_error());
        }
    }
}

fn last_error() -> String {
    // SAFETY: dlerror(3) answers for the last call of this thread.
    let text = unsafe { libc::dlerror() };
    // SAFETY: null or a C string that lives until this thread's next call.
    unsafe { self::text(text) }.unwrap_or_else(|| "dlopen failed without a reason".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_becomes_a_file_name_as_in_nccl_and_a_file_name_stays_itself() {
        assert_eq!(candidates("ironrail"), ["ironrail", "libnccl-net-ironrail.so"]);
        assert_eq!(candidates("/a/b.so"), ["/a/b.so"]);
        assert_eq!(candidates("libnccl-net-x.so"), ["libnccl-net-x.so"]);
        assert_eq!(candidates("libx"), ["libx", "libnccl-net-libx.so"]);
    }

    #[test]
    fn a_library_that_is_no_plugin_is_refused_in_a_sentence() {
        let why = Library::open("libc.so.6", None).unwrap_err().to_string();
        assert!(why.contains("does not export a table of NCCL's net interface"), "{why}");
        let why = Library::open("no-such-plugin", None).unwrap_err().to_string();
        assert!(why.contains("libnccl-net-no-such-plugin.so"), "{why}");
    }
}
