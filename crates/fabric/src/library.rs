//! The loaded libfabric, and the API version that we request.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use libfabric_sys as sys;
use sys::{Attempt, LoadError, Symbols};

/// A libfabric release, or a version of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The 1 of 1.17.
    pub major: u16,
    /// The 17 of 1.17.
    pub minor: u16,
}

impl Version {
    /// `major.minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    pub(crate) fn from_raw(raw: u32) -> Self {
        let [major_high, major_low, minor_high, minor_low] = raw.to_be_bytes();
        Self::new(
            u16::from_be_bytes([major_high, major_low]),
            u16::from_be_bytes([minor_high, minor_low]),
        )
    }

    pub(crate) const fn raw(self) -> u32 {
        sys::version(self.major, self.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// API versions that may be requested, oldest first. A version changes the behaviour of providers, not only layouts (efa turns device RDMA
/// on from 1.18; DMA-BUF comes with 1.20). So only versions that were tested are listed and requested.
const TESTED: [Version; 6] = [
    OLDEST,
    Version::new(1, 18),
    Version::new(1, 20),
    Version::new(1, 22),
    Version::new(2, 0),
    Version::new(2, 5),
];

/// The oldest usable release: earlier ones lack calls that the plugin needs.
const OLDEST: Version = Version::new(1, 17);

/// A libfabric that was loaded at run time. It stays loaded until the process ends.
#[derive(Debug)]
pub struct Library {
    symbols: Symbols,
    version: Version,
    api: Version,
}

impl Library {
    /// Loads the first of `candidates` (paths, or names such as `libfabric.so.1` for the loader to search) that is a
    /// libfabric of 1.17 or later.
    ///
    /// # Errors
    ///
    /// Why each candidate failed.
    pub fn open<C: AsRef<OsStr>>(candidates: &[C]) -> Result<Arc<Self>, LoadError> {
        let mut attempts = Vec::new();
        for candidate in candidates {
            match Self::open_one(candidate.as_ref()) {
                Ok(library) => return Ok(Arc::new(library)),
                Err(refused) => attempts.extend(refused),
            }
        }
        Err(LoadError::new(attempts))
    }

    /// The release that was loaded: fi_version(3).
    pub fn version(&self) -> Version {
        self.version
    }

    /// The API version that is requested of every provider: the latest tested version that the loaded release supports.
    pub fn api(&self) -> Version {
        self.api
    }

    /// The file that was loaded, for logs.
    pub fn path(&self) -> &Path {
        self.symbols.path()
    }

    pub(crate) fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    fn open_one(candidate: &OsStr) -> Result<Self, Vec<Attempt>> {
        let symbols = Symbols::load(&[candidate]).map_err(|error| error.attempts().to_vec())?;
        // SAFETY: fi_version has no preconditions.
        let version = Version::from_raw(unsafe { (symbols.fi_version)() });
        let Some(api) = latest_tested(version) else {
            let reason = format!("it is libfabric {version}, and {OLDEST} or later is needed");
            return Err(vec![Attempt { candidate: candidate.to_owned(), reason }]);
        };
        Ok(Self { symbols, version, api })
    }
}

fn latest_tested(version: Version) -> Option<Version> {
    TESTED.into_iter().rev().find(|tested| *tested <= version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requested_api_version_is_tested_and_never_newer_than_the_release() {
        for (release, asked) in [
            ((1, 17), Some((1, 17))),
            ((1, 19), Some((1, 18))),
            ((1, 22), Some((1, 22))),
            ((2, 4), Some((2, 0))),
            ((3, 0), Some((2, 5))),
            ((1, 16), None),
        ] {
            let release = Version::new(release.0, release.1);
            assert_eq!(
                latest_tested(release),
                asked.map(|(major, minor)| Version::new(major, minor))
            );
        }
    }

    #[test]
    fn versions_unpack_as_they_pack() {
        assert_eq!(Version::from_raw(Version::new(1, 17).raw()), Version::new(1, 17));
        assert_eq!(Version::from_raw(0x0002_0005), Version::new(2, 5));
    }
}
