//! libnccl.so.2, opened at run time, and why it cannot be used.

use std::error::Error;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::path::{self, Path};
use std::sync::Arc;
use std::time::Duration;

use gpu::{DriverError, StreamError};
use libloading::os::unix;

/// NCCL_UNIQUE_ID_BYTES.
pub const UNIQUE_ID_BYTES: usize = 128;

/// An open NCCL. It stays loaded until the process ends: its threads may outlive a communicator.
#[derive(Debug)]
pub struct Nccl {
    pub(crate) calls: Calls,
    file: String,
}

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [c_char; UNIQUE_ID_BYTES]);

pub(crate) type Handle = *mut c_void;
type Stream = *mut c_void;
type OneBuffer = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, Stream) -> c_int;

/// NCCL's functions, as nccl.h declares them; an enumeration is an `int` here.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub(crate) get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub(crate) get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Since 2.13.
    pub(crate) get_last_error: Option<unsafe extern "C" fn(Handle) -> *const c_char>,
    pub(crate) comm_init_rank: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int,
    pub(crate) comm_destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub(crate) comm_abort: unsafe extern "C" fn(Handle) -> c_int,
    pub(crate) comm_get_async_error: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    pub(crate) all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Handle,
        Stream,
    ) -> c_int,
    pub(crate) all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, Stream) -> c_int,
    pub(crate) reduce_scatter: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Handle,
        Stream,
    ) -> c_int,
    pub(crate) send: OneBuffer,
    pub(crate) receive:
        unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, Stream) -> c_int,
    pub(crate) group_start: unsafe extern "C" fn() -> c_int,
    pub(crate) group_end: unsafe extern "C" fn() -> c_int,
}

impl Nccl {
    /// Opens NCCL: `libnccl.so.2` as the loader finds it, or in the folder given, or the file given.
    ///
    /// # Errors
    ///
    /// The loader's words, or the function that the file lacks.
    pub fn open(place: Option<&Path>) -> Result<Arc<Self>, NcclError> {
        let name = match place {
            None => OsStr::new(NAME).to_owned(),
            Some(folder) if folder.is_dir() => folder.join(NAME).into_os_string(),
            // The loader would search its path for a bare name.
            Some(file) if file.is_file() => {
                path::absolute(file).unwrap_or_else(|_| file.to_owned()).into_os_string()
            }
            Some(file) => file.as_os_str().to_owned(),
        };
        let shown = name.to_string_lossy().into_owned();
        // The loader's words are the source of libloading's.
        let unavailable = |error: libloading::Error| {
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            NcclError::Unavailable { file: shown.clone(), why }
        };
        // NCCL opens the CUDA driver and plugins itself, by its own handles, so nothing of it needs to be global.
        // SAFETY: NCCL's initialisers only set up its own state.
        let library =
            unsafe { unix::Library::open(Some(&name), unix::RTLD_NOW | unix::RTLD_LOCAL) }
                .map_err(unavailable)?;
        let calls = Calls::of(&library, &shown)?;
        // NCCL's threads run on after the last communicator, so it is never closed.
        let _ = library.into_raw();
        Ok(Arc::new(Self { calls, file: shown }))
    }

    /// The file, or the name that the loader found it by.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// NCCL's version, as `2.27.7`.
    ///
    /// # Errors
    ///
    /// NCCL's.
    pub fn version(&self) -> Result<String, NcclError> {
        let mut code = 0;
        // SAFETY: the place lives through the call.
        self.check("ncclGetVersion", unsafe { (self.calls.get_version)(&raw mut code) })?;
        // NCCL_VERSION in nccl.h: two digits a place since 2.9, one for the minor number before.
        let (major, minor) = if code < 10_000 {
            (code / 1000, code % 1000 / 100)
        } else {
            (code / 10_000, code % 10_000 / 100)
        };
        Ok(format!("{major}.{minor}.{}", code % 100))
    }

    /// A new communicator's id, for all its ranks. NCCL serves the ranks that meet by it from a thread of this process.
    ///
    /// # Errors
    ///
    /// NCCL's.
    pub fn unique_id(&self) -> Result<[u8; UNIQUE_ID_BYTES], NcclError> {
        let mut id = UniqueId([0; UNIQUE_ID_BYTES]);
        // SAFETY: the place lives through the call.
        self.check("ncclGetUniqueId", unsafe { (self.calls.get_unique_id)(&raw mut id) })?;
        // A C char is signed on x86-64 and unsigned on aarch64.
        Ok(id.0.map(|byte| byte.to_ne_bytes()[0]))
    }

    /// An error for whatever is neither success nor "in progress".
    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<(), NcclError> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: any number is answered with a static text.
        let word = unsafe { (self.calls.get_error_string)(code) };
        // The argument is not used: NCCL keeps one text per process.
        // SAFETY: null stands for no communicator.
        let last = self.calls.get_last_error.map(|call| unsafe { call(std::ptr::null_mut()) });
        let said = last.map(text).unwrap_or_default();
        Err(NcclError::Failed { call, code, word: text(word), said })
    }
}

fn text(place: *const c_char) -> String {
    if place.is_null() {
        return String::new();
    }
    // SAFETY: NCCL answers with a C string, which stays until its next error.
    unsafe { CStr::from_ptr(place) }.to_string_lossy().trim().to_owned()
}

impl Calls {
    fn of(library: &unix::Library, file: &str) -> Result<Self, NcclError> {
        macro_rules! symbol {
            ($name:literal) => {{
                // SAFETY: the field that takes it is declared as nccl.h declares this function.
                let found = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                *found.map_err(|_| NcclError::Unavailable {
                    file: file.to_owned(),
                    why: concat!("it has no ", $name).to_owned(),
                })?
            }};
        }
        // SAFETY: as above.
        let get_last_error = unsafe { library.get(b"ncclGetLastError\0") };
        Ok(Self {
            get_version: symbol!("ncclGetVersion"),
            get_unique_id: symbol!("ncclGetUniqueId"),
            get_error_string: symbol!("ncclGetErrorString"),
            get_last_error: get_last_error.ok().map(|found| *found),
            comm_init_rank: symbol!("ncclCommInitRank"),
            comm_destroy: symbol!("ncclCommDestroy"),
            comm_abort: symbol!("ncclCommAbort"),
            comm_get_async_error: symbol!("ncclCommGetAsyncError"),
            all_reduce: symbol!("ncclAllReduce"),
            all_gather: symbol!("ncclAllGather"),
            reduce_scatter: symbol!("ncclReduceScatter"),
            send: symbol!("ncclSend"),
            receive: symbol!("ncclRecv"),
            group_start: symbol!("ncclGroupStart"),
            group_end: symbol!("ncclGroupEnd"),
        })
    }
}

/// Why NCCL cannot do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NcclError {
    /// It cannot be loaded.
    Unavailable {
        /// What was opened.
        file: String,
        /// The loader's words, or what the file lacks.
        why: String,
    },
    /// A call failed.
    Failed {
        /// The call.
        call: &'static str,
        /// ncclResult_t.
        code: i32,
        /// NCCL's name for the code.
        word: String,
        /// NCCL's last warning, if it keeps any.
        said: String,
    },
    /// The stream did not become idle in time.
    Timeout(Duration),
    /// The CUDA driver failed.
    Driver(DriverError),
    /// There is no stream.
    Stream(StreamError),
    /// A range lies outside of its memory.
    Range {
        /// Bytes that the collective needs there.
        needed: usize,
        /// Bytes that there are.
        there: usize,
    },
}

impl From<DriverError> for NcclError {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<StreamError> for NcclError {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

impl fmt::Display for NcclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { file, why } => write!(f, "NCCL cannot be used: {file}: {why}"),
            Self::Failed { call, code, word, said } => {
                write!(f, "{call} returned {code} ({word})")?;
                if said.is_empty() { Ok(()) } else { write!(f, "; NCCL's last warning: {said}") }
            }
            Self::Timeout(limit) => {
                write!(f, "the collective did not end within {:.0} s", limit.as_secs_f64())
            }
            Self::Driver(error) => error.fmt(f),
            Self::Stream(error) => error.fmt(f),
            Self::Range { needed, there } => {
                write!(f, "the collective needs {needed} bytes where there are {there}")
            }
        }
    }
}

impl Error for NcclError {}

const NAME: &str = "libnccl.so.2";
// ncclResult_t in nccl.h.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_nccl_is_named_in_the_loaders_words() {
        let place = std::env::temp_dir().join("there-is-no-such-file.so");
        let why = Nccl::open(Some(&place)).unwrap_err().to_string();
        assert!(why.starts_with("NCCL cannot be used: ") && why.contains("No such file"), "{why}");
    }

    #[test]
    fn a_file_in_the_current_folder_is_not_searched_by_the_loader() {
        let why = Nccl::open(Some(Path::new("Cargo.toml"))).unwrap_err().to_string();
        let file = path::absolute("Cargo.toml").unwrap();
        assert!(why.contains(&format!("used: {}: ", file.display())), "{why}");
    }

    #[test]
    fn a_library_that_is_not_nccl_is_named_by_what_it_lacks() {
        let why = Nccl::open(Some(Path::new("libc.so.6"))).unwrap_err().to_string();
        assert_eq!(why, "NCCL cannot be used: libc.so.6: it has no ncclGetVersion");
    }
}
