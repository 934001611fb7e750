//! Finds libfabric at run time: its six real symbols, by their versions of 1.17.
//!
//! A symbol's version decides the layout of the structures it handles, and without one it depends on the call: an unversioned reference
//! binds to the oldest, dlsym to the newest. So each is asked for by name: fi_getinfo, fi_dupinfo and fi_freeinfo as FABRIC_1.3 has
//! them, the structures of 1.17 and of the compatibility wrappers of every later release.

use std::error::Error;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::ptr;

use crate::bindings::{fi_fabric_attr, fi_info, fid_fabric};

/// The calls that are real symbols. The library stays loaded until the process ends.
#[derive(Debug)]
pub struct Symbols {
    path: PathBuf,
    /// fi_getinfo(3).
    pub fi_getinfo: GetInfo,
    /// fi_getinfo(3); of null, an empty one.
    pub fi_dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    /// fi_getinfo(3); takes the whole list.
    pub fi_freeinfo: unsafe extern "C" fn(*mut fi_info),
    /// fi_fabric(3).
    pub fi_fabric:
        unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    /// fi_version(3): major in the high half.
    pub fi_version: unsafe extern "C" fn() -> u32,
    /// fi_errno(3); of a positive number, static text.
    pub fi_strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

type GetInfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int;

impl Symbols {
    /// Loads the first of `candidates` (paths, or names for the loader's search) that is a libfabric with these symbols.
    ///
    /// # Errors
    ///
    /// What the loader said of each candidate, in order.
    pub fn load<C: AsRef<OsStr>>(candidates: &[C]) -> Result<Self, LoadError> {
        let mut attempts = Vec::new();
        for candidate in candidates {
            let candidate = candidate.as_ref();
            match Self::load_one(candidate) {
                Ok(symbols) => return Ok(symbols),
                Err(reason) => attempts.push(Attempt { candidate: candidate.to_owned(), reason }),
            }
        }
        Err(LoadError { attempts })
    }

    /// The file that was loaded, as the loader names it.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    fn load_one(candidate: &OsStr) -> Result<Self, String> {
        let name = CString::new(candidate.as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: libfabric's constructors may run in any thread.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(loader_message());
        }
        // From here on the library stays: providers start threads and keep pointers into it, so unloading is never safe.
        let getinfo = versioned(library, c"fi_getinfo", c"FABRIC_1.3")?;
        let dupinfo = versioned(library, c"fi_dupinfo", c"FABRIC_1.3")?;
        let freeinfo = versioned(library, c"fi_freeinfo", c"FABRIC_1.3")?;
        let fabric = versioned(library, c"fi_fabric", c"FABRIC_1.1")?;
        let version = versioned(library, c"fi_version", c"FABRIC_1.0")
            .or_else(|_| plain(library, c"fi_version"))?;
        let strerror = versioned(library, c"fi_strerror", c"FABRIC_1.0")
            .or_else(|_| plain(library, c"fi_strerror"))?;
        Ok(Self {
            path: file_of(getinfo).unwrap_or_else(|| candidate.into()),
            // SAFETY: rdma/fabric.h declares fi_getinfo so, at this symbol version.
            fi_getinfo: unsafe { call(getinfo) },
            // SAFETY: as above, fi_dupinfo.
            fi_dupinfo: unsafe { call(dupinfo) },
            // SAFETY: as above, fi_freeinfo.
            fi_freeinfo: unsafe { call(freeinfo) },
            // SAFETY: as above, fi_fabric.
            fi_fabric: unsafe { call(fabric) },
            // SAFETY: as above, fi_version.
            fi_version: unsafe { call(version) },
            // SAFETY: rdma/fi_errno.h declares fi_strerror so.
            fi_strerror: unsafe { call(strerror) },
        })
    }
}

/// A symbol as the function it is.
///
/// # Safety
///
/// `F` must be a function pointer of the symbol's own type.
unsafe fn call<F: Copy>(symbol: *mut c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the sizes agree, and POSIX makes a symbol's address a function pointer of its type.
    unsafe { (&raw const symbol).cast::<F>().read() }
}

fn versioned(library: *mut c_void, name: &CStr, version: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the library is open, and both are C strings.
    let symbol = unsafe { libc::dlvsym(library, name.as_ptr(), version.as_ptr()) };
    found(symbol)
}

fn plain(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the library is open, and the name is a C string.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    found(symbol)
}

fn found(symbol: *mut c_void) -> Result<*mut c_void, String> {
    if symbol.is_null() { Err(loader_message()) } else { Ok(symbol) }
}

/// What the loader last said in this thread.
fn loader_message() -> String {
    // SAFETY: dlerror has no preconditions.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the loader gave no reason".to_owned();
    }
    // SAFETY: a C string of the loader's, valid until this thread's next call of it.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// The file that `symbol` was loaded from.
fn file_of(symbol: *mut c_void) -> Option<PathBuf> {
    let mut found = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: the place is valid, and any address may be asked for.
    let known = unsafe { libc::dladdr(symbol, &raw mut found) } != 0;
    if !known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gave a C string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(OsString::from_vec(name.to_bytes().to_vec()).into())
}

/// No candidate was a libfabric that we can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    attempts: Vec<Attempt>,
}

impl LoadError {
    /// The same, for reasons found after loading.
    pub fn new(attempts: Vec<Attempt>) -> Self {
        Self { attempts }
    }

    /// What was tried, in order.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }
}

/// A candidate that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The path or name that was tried.
    pub candidate: OsString,
    /// Why it cannot be used, usually in the loader's words.
    pub reason: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.attempts.is_empty() {
            return f.write_str("no libfabric to load: no path was given");
        }
        f.write_str("no usable libfabric: ")?;
        for (index, Attempt { candidate, reason }) in self.attempts.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "; " })?;
            // The loader's message mostly begins with the name.
            if !reason.contains(&*candidate.to_string_lossy()) {
                write!(f, "{}: ", candidate.display())?;
            }
            f.write_str(reason)?;
        }
        Ok(())
    }
}

impl Error for LoadError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_load_names_every_candidate_and_its_reason() {
        let error = Symbols::load(&["/nonexistent/libfabric.so.1", "libc.so.6"]).unwrap_err();
        assert_eq!(error.attempts().len(), 2);
        let text = error.to_string();
        assert_eq!(text.matches("/nonexistent/libfabric.so.1: ").count(), 1, "{text}");
        assert!(text.contains("fi_getinfo"), "{text}");
    }

    #[test]
    fn a_name_with_a_nul_is_refused_in_words() {
        let error = Symbols::load(&["lib\0fabric"]).unwrap_err();
        assert!(error.to_string().contains("nul"), "{error}");
    }
}
