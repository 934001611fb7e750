//! The loader's folders in order, and the plugins and libfabrics in them.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::doctor::machine::Copy;

/// LD_LIBRARY_PATH, then the folders of /etc/ld.so.conf, then the loader's own.
fn folders(environment: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let path = environment.get("LD_LIBRARY_PATH").filter(|path| !path.is_empty());
    // An empty name among others, as behind a colon at the end, is the working directory (ld.so(8)).
    let named = |folder: &str| PathBuf::from(if folder.is_empty() { "." } else { folder });
    let mut folders: Vec<PathBuf> =
        path.into_iter().flat_map(|path| path.split([':', ';'])).map(named).collect();
    configured(Path::new("/etc/ld.so.conf"), &mut folders, 0);
    folders.extend(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from));
    let mut seen = Vec::new();
    folders.retain(|folder| {
        let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
        let new = !seen.contains(&real);
        seen.push(real);
        new
    });
    folders
}

/// The file that the loader finds for a name without a folder.
pub(in crate::doctor) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let environment = BTreeMap::from([("LD_LIBRARY_PATH".to_owned(), path)]);
    folders(&environment).into_iter().map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Reads a file of folders, with lines that include others by a pattern that ends in `*.conf`.
fn configured(file: &Path, folders: &mut Vec<PathBuf>, depth: usize) {
    let text = fs::read_to_string(file).unwrap_or_default();
    for line in
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let Some(pattern) = line.strip_prefix("include ").filter(|_| depth < 3) else {
            folders.push(PathBuf::from(line));
            continue;
        };
        let Some(folder) = Path::new(pattern.trim()).parent() else { continue };
        let mut files: Vec<_> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        files.sort();
        for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "conf"))
        {
            configured(file, folders, depth + 1);
        }
    }
}

/// Plugins by their file names.
pub(super) fn plugins(environment: &BTreeMap<String, String>) -> Vec<Copy> {
    let beside = std::env::current_exe().ok().and_then(|file| Some(file.parent()?.to_owned()));
    let mut folders = folders(environment);
    let searched = folders.len();
    // The folders of a build or a package: used in cures only, since the loader does not search there.
    folders.extend(
        beside
            .iter()
            .flat_map(|folder| [folder.join("plugin"), folder.with_file_name("lib/ironrail")]),
    );
    let mut found = Vec::new();
    for (place, folder) in folders.into_iter().enumerate() {
        let mut files: Vec<_> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        files.sort();
        for path in files {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            if (name == "libnccl-net.so" || name.starts_with("libnccl-net-"))
                && name.ends_with(".so")
            {
                let bytes = fs::read(&path).unwrap_or_default();
                let mut hasher = DefaultHasher::new();
                bytes.hash(&mut hasher);
                let processor = processor(&bytes);
                let searched = place < searched;
                found.push(Copy { path, digest: hasher.finish(), searched, processor });
            }
        }
    }
    found
}

/// Files of libfabric.so.1, where the loader searches and where vendors install it.
pub(super) fn libfabrics(environment: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let mut folders = folders(environment);
    folders.push(PathBuf::from("/opt/amazon/efa/lib"));
    folders.push(PathBuf::from("/opt/amazon/efa/lib64"));
    let cray = fs::read_dir("/opt/cray/libfabric").into_iter().flatten().flatten();
    folders.extend(cray.map(|entry| entry.path().join("lib64")));
    let mut found: Vec<PathBuf> = Vec::new();
    for folder in folders {
        if let Ok(real) = fs::canonicalize(folder.join("libfabric.so.1"))
            && !found.contains(&real)
        {
            found.push(real);
        }
    }
    found
}

/// The processor in an ELF header, by elf.h, in this machine's byte order.
fn processor(bytes: &[u8]) -> String {
    if !bytes.starts_with(b"\x7fELF") {
        return String::new();
    }
    let number =
        bytes.get(18..20).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_ne_bytes);
    match number {
        62 => "x86_64".to_owned(),
        183 => "aarch64".to_owned(),
        21 => "powerpc64".to_owned(),
        other => format!("processor {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_name_among_the_folders_is_the_working_directory() {
        let first = |path: &str| {
            let environment = BTreeMap::from([("LD_LIBRARY_PATH".to_owned(), path.to_owned())]);
            folders(&environment).into_iter().take(2).collect::<Vec<_>>()
        };
        assert_eq!(first("/proc:"), ["/proc", "."].map(PathBuf::from));
        assert_eq!(first(":/proc"), [".", "/proc"].map(PathBuf::from));
        assert!(!first("").contains(&PathBuf::from(".")));
    }
}
