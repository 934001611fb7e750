//! Files that the command line names. Each error has the file's name.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use ironrail_group::error::GroupError;

use crate::output;

/// The text of a file.
pub(crate) fn read(path: &Path) -> Result<String, GroupError> {
    let text = bytes(path).and_then(|bytes| {
        let no_text = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        String::from_utf8(bytes).map_err(no_text)
    });
    text.map_err(|error| GroupError::System { what: "reading a file", error: of(path, error) })
}

/// All bytes of a file. The path may come from another user: the file may be a device, or have no end.
pub(crate) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MIB_MAX * MIB + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MIB_MAX * MIB {
        let why = format!("it has more than {MIB_MAX} MiB");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// The longest file in MiB. A run of `perf` with a hundred thousand sizes has less.
const MIB_MAX: u64 = 256;
const MIB: u64 = 1 << 20;

/// The error for a file with other content than expected. The cause may quote the file.
pub(crate) fn unusable(path: &Path, why: impl Display) -> GroupError {
    let error = io::Error::new(io::ErrorKind::InvalidData, output::shown(&why.to_string()));
    GroupError::System { what: "reading a file", error: of(path, error) }
}

/// Writes a file, or standard output where the path is `-`.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), GroupError> {
    Destination::open(path)?.write(text)
}

/// Replaces a file whole, by a new file in the same folder with the same owner and permissions: a reader finds the old file or the new one.
/// The new file has a hidden name with another extension until then, so that programs which read the folder skip it. A device, a pipe or a
/// link is not replaced.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), GroupError> {
    let written = || {
        let before = match fs::symlink_metadata(path) {
            Ok(found) if found.is_file() => Some(found),
            Ok(_) => return Err(io::Error::other("it is not a regular file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mode = before.as_ref().map_or(READABLE, |before| before.mode() & 0o777);
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let new = path.with_file_name(hidden);
        // An earlier process of this number may have left a file, or a link, which must not be written to.
        let _left_behind = fs::remove_file(&new);
        let mut file = File::create_new(&new)?;
        if let Some(before) = before {
            // Only root can replace a file of another user, and keep the owner; for others this fails, or changes nothing.
            let _ours = fchown(&file, Some(before.uid()), Some(before.gid()));
        }
        let replaced = file
            .write_all(text.as_bytes())
            .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
            .and_then(|()| fs::rename(&new, path));
        replaced.inspect_err(|_| {
            let _left_behind = fs::remove_file(&new);
        })
    };
    written().map_err(|error| unwritable(path, error))
}

/// The mode of a new file: its reader may be another user.
const READABLE: u32 = 0o644;

/// A file for results, or standard output: opened before they are measured, so that a path that cannot be written costs no measurement.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    /// `None`: standard output.
    file: Option<File>,
    /// Whether the file was not there before, and has no results yet.
    is_new: bool,
}

impl Destination {
    /// `-` is standard output. A file that exists keeps its content until results are written.
    pub(crate) fn open(path: &Path) -> Result<Self, GroupError> {
        if path == Path::new("-") {
            return Ok(Self { path: path.to_owned(), file: None, is_new: false });
        }
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let (opened, is_new) = match File::create_new(path) {
            // The file exists, or the path is a link, whose target may not.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (options.open(path), false)
            }
            opened => (opened, true),
        };
        let file = opened.map_err(|error| unwritable(path, error))?;
        Ok(Self { path: path.to_owned(), file: Some(file), is_new })
    }

    /// Whether results go to standard output.
    pub(crate) const fn is_output(&self) -> bool {
        self.file.is_none()
    }

    pub(crate) fn write(&mut self, text: &str) -> Result<(), GroupError> {
        let Some(file) = &mut self.file else {
            output::line(text.trim_end());
            return Ok(());
        };
        self.is_new = false;
        // A pipe has no length.
        let mut replace = || {
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(text.as_bytes())
        };
        replace().map_err(|error| unwritable(&self.path, error))
    }
}

impl Drop for Destination {
    /// Removes a new file without results, unless another command has written its own results into it meanwhile.
    fn drop(&mut self) {
        let is_empty = || fs::metadata(&self.path).is_ok_and(|file| file.len() == 0);
        if self.is_new && is_empty() {
            let _left_behind = fs::remove_file(&self.path);
        }
    }
}

/// Makes a private folder of this process, for temporary files. An earlier process of the same number may have left one.
pub(crate) fn private_folder(name: &str) -> io::Result<PathBuf> {
    let base = std::env::temp_dir();
    for attempt in 0..100 {
        let path = base.join(format!("{name}-{}-{attempt}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                let why = format!("{error}; TMPDIR names another folder");
                return Err(of(&path, io::Error::new(error.kind(), why)));
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn unwritable(path: &Path, error: io::Error) -> GroupError {
    GroupError::System { what: "writing a file", error: of(path, error) }
}

/// The error with the name of its file.
pub(crate) fn of(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_content_until_a_shorter_one_replaces_it() {
        let path = std::env::temp_dir().join(format!("ironrail-files-{}", std::process::id()));
        fs::write(&path, "a longer text").unwrap();
        let mut destination = Destination::open(&path).unwrap();
        assert_eq!(read(&path).unwrap(), "a longer text");
        destination.write("short\n").unwrap();
        assert_eq!(read(&path).unwrap(), "short\n");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_reader_of_a_file_that_is_replaced_has_the_old_one_whole_and_errors_leave_it() {
        let folder = private_folder("ironrail-replaced").unwrap();
        let path = folder.join("metrics.prom");
        replace(&path, "old").unwrap();
        let mut opened = File::open(&path).unwrap();
        replace(&path, "new").unwrap();
        let mut before = String::new();
        opened.read_to_string(&mut before).unwrap();
        assert_eq!((before.as_str(), read(&path).unwrap().as_str()), ("old", "new"));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&path), 0o644);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        replace(&path, "newer").unwrap();
        assert_eq!(mode(&path), 0o640);
        let (taken, link) = (folder.join("folder"), folder.join("link"));
        fs::create_dir(&taken).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for other in [&taken, &link, Path::new("/dev/null")] {
            let error = replace(other, "text").unwrap_err().to_string();
            assert!(error.contains("it is not a regular file"), "{error}");
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3, "no temporary file is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_a_dead_process_of_this_number_has_left_is_not_used() {
        let [left, ours] = [0, 1].map(|_| private_folder("ironrail-left-behind").unwrap());
        assert_ne!(left, ours);
        for folder in [left, ours] {
            fs::remove_dir(folder).unwrap();
        }
    }

    #[test]
    fn a_file_without_results_is_removed_only_if_it_is_new() {
        let path = std::env::temp_dir().join(format!("ironrail-no-results-{}", std::process::id()));
        drop(Destination::open(&path).unwrap());
        assert!(!path.exists(), "an empty file is no JSON");
        let ours = Destination::open(&path).unwrap();
        fs::write(&path, "another's").unwrap();
        drop(ours);
        assert_eq!(read(&path).unwrap(), "another's");
        fs::write(&path, "").unwrap();
        drop(Destination::open(&path).unwrap());
        assert_eq!(read(&path).unwrap(), "", "a file that existed before stays");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_endless_file_is_an_error_that_says_how_many_bytes_are_read() {
        let error = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.ends_with("/dev/zero: it has more than 256 MiB"), "{error}");
    }

    #[test]
    fn text_of_a_file_in_an_error_gives_the_terminal_no_command() {
        let error = unusable(Path::new("node7.json"), "unknown stage `\u{1b}[2J\u{9b}2J`");
        assert!(error.to_string().ends_with("node7.json: unknown stage `?[2J?2J`"), "{error:?}");
    }

    #[test]
    fn an_error_has_the_name_of_its_file() {
        let path = Path::new("/no/such/file.json");
        let errors = [
            read(path).unwrap_err(),
            write(path, "text").unwrap_err(),
            unusable(path, "it is no description"),
        ];
        for error in errors {
            assert!(error.to_string().contains("a file: /no/such/file.json: "), "{error}");
            assert!(!error.is_usage(), "{error}");
        }
    }
}
