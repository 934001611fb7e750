//! Finds libfabric without a package manager: in a file, a folder, a Debian package or a Python wheel.

use std::fs;
use std::path::{self, Path, PathBuf};
use std::process::Command;

use ironrail_group::error::GroupError;

/// The library's file at `place`; packages are unpacked below `scratch`.
pub(super) fn find(place: &Path, scratch: &Path) -> Result<PathBuf, GroupError> {
    let usage = |why: String| Err(GroupError::Usage(why));
    if place.is_dir() {
        if let Some(found) = below(place) {
            return Ok(found);
        }
        for package in packages(place) {
            let folder = unpack(&package, scratch)?;
            if let Some(found) = below(&folder) {
                return Ok(found);
            }
        }
        return usage(format!(
            "{} has no {NAME}, and no .deb or .whl that has one",
            place.display()
        ));
    }
    match place.extension().and_then(|ending| ending.to_str()) {
        Some("deb" | "whl") => below(&unpack(place, scratch)?)
            .ok_or_else(|| GroupError::Usage(format!("{} does not carry {NAME}", place.display()))),
        // The loader would search its path for a bare name.
        _ if place.is_file() => Ok(path::absolute(place).unwrap_or_else(|_| place.to_owned())),
        _ => usage(format!(
            "there is no {}: name a file, a folder, a .deb or a .whl",
            place.display()
        )),
    }
}

/// The first `libfabric.so.1` below a folder; broken links are skipped, and so are folders that cannot be read.
fn below(folder: &Path) -> Option<PathBuf> {
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for path in entries(&folder) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_file() && (name == NAME || name.starts_with(&format!("{NAME}."))) {
                return Some(path);
            }
            // A link to a folder may lead back here.
            if depth < DEPTH_MAX && path.is_dir() && !path.is_symlink() {
                folders.push((path, depth + 1));
            }
        }
    }
    None
}

/// The paths in a folder, sorted; none if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn packages(folder: &Path) -> Vec<PathBuf> {
    let is_package = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        matches!(ending, Some("deb" | "whl")) && path.is_file()
    };
    entries(folder).into_iter().filter(is_package).collect()
}

fn unpack(package: &Path, scratch: &Path) -> Result<PathBuf, GroupError> {
    let system = |what| move |error| GroupError::System { what, error };
    let name = package.file_name().unwrap_or_default();
    let folder = scratch.join(name);
    fs::create_dir_all(&folder).map_err(system("making a folder to unpack a package into"))?;
    let mut command = if package.extension().is_some_and(|ending| ending == "deb") {
        let mut command = Command::new("dpkg-deb");
        command.arg("-x").arg(package).arg(&folder);
        command
    } else {
        let mut command = Command::new("python3");
        command.args(["-m", "zipfile", "-e"]).arg(package).arg(&folder);
        command
    };
    let status =
        command.status().map_err(system("starting dpkg-deb or python3 to unpack a package"))?;
    if status.success() {
        return Ok(folder);
    }
    Err(GroupError::Usage(format!("{} cannot be unpacked: {status}", package.display())))
}

const NAME: &str = "libfabric.so.1";
/// How deep folders are searched.
const DEPTH_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::thread;

    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    use super::*;

    /// A folder of this test's own, empty.
    fn scratch(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ironrail-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_library_is_found_below_a_folder_and_a_file_is_itself() {
        let scratch = scratch("below");
        let deep = scratch.join("data/lib/mpich");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("libfabric.so.1"), "").unwrap();
        assert_eq!(find(&scratch, &scratch).unwrap(), deep.join("libfabric.so.1"));
        let file = deep.join("libfabric.so.1");
        assert_eq!(find(&file, &scratch).unwrap(), file);
        fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn a_file_in_the_current_folder_is_not_searched_by_the_loader() {
        let found = find(Path::new("Cargo.toml"), Path::new("unused")).unwrap();
        assert!(found.is_absolute() && found.ends_with("Cargo.toml"), "{}", found.display());
    }

    #[test]
    fn a_folder_that_cannot_be_read_hides_no_other() {
        let scratch = scratch("closed");
        // Folders are searched from the last one on.
        let (open, closed) = (scratch.join("a"), scratch.join("b"));
        for folder in [&open, &closed] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(open.join("libfabric.so.1"), "").unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        let place = scratch.clone();
        let as_owner = thread::spawn(move || {
            // By its capabilities root could read the folder.
            let effective = CapabilitySet::empty();
            let sets = CapabilitySets { effective, ..capabilities(None).unwrap() };
            set_capabilities(None, sets).unwrap();
            assert!(fs::read_dir(place.join("b")).is_err());
            find(&place, &place)
        });
        let found = as_owner.join().unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        fs::remove_dir_all(&scratch).unwrap();
        assert_eq!(found.unwrap(), open.join("libfabric.so.1"));
    }

    #[test]
    fn a_wheel_is_unpacked() {
        let scratch = scratch("wheel");
        let wheels = scratch.join("wheels");
        fs::create_dir_all(scratch.join("made/lib")).unwrap();
        fs::create_dir_all(&wheels).unwrap();
        fs::write(scratch.join("made/lib/libfabric.so.1"), "it").unwrap();
        let zip = Command::new("python3")
            .current_dir(scratch.join("made"))
            .args(["-m", "zipfile", "-c", "../wheels/some-1.whl", "lib/"])
            .status()
            .unwrap();
        assert!(zip.success());
        let found = find(&wheels, &scratch.join("unpacked")).unwrap();
        assert_eq!(fs::read_to_string(found).unwrap(), "it");
        fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn a_debian_package_is_unpacked() {
        let scratch = scratch("deb");
        let (tree, packages) = (scratch.join("tree"), scratch.join("packages"));
        for folder in ["DEBIAN", "usr/lib/x86_64-linux-gnu"] {
            fs::create_dir_all(tree.join(folder)).unwrap();
        }
        fs::create_dir_all(&packages).unwrap();
        // dpkg-deb wants that, whatever the umask.
        fs::set_permissions(tree.join("DEBIAN"), fs::Permissions::from_mode(0o755)).unwrap();
        let control = "Package: libfabric1\nVersion: 1.17.0-3\nArchitecture: all\nMaintainer: nobody\nDescription: test\n";
        fs::write(tree.join("DEBIAN/control"), control).unwrap();
        fs::write(tree.join("usr/lib/x86_64-linux-gnu/libfabric.so.1.19.1"), "it").unwrap();
        let package = packages.join("libfabric1.deb");
        let made = Command::new("dpkg-deb").arg("-b").arg(&tree).arg(&package).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        for place in [&package, &packages] {
            let unpacked = scratch.join("unpacked");
            let found = find(place, &unpacked).unwrap();
            assert_eq!(fs::read_to_string(found).unwrap(), "it", "{}", place.display());
            fs::remove_dir_all(unpacked).unwrap();
        }
        fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn a_place_without_a_library_is_named() {
        let scratch = scratch("none");
        let why = find(&scratch, &scratch).unwrap_err().to_string();
        assert!(why.contains("has no libfabric.so.1"), "{why}");
        let why = find(&scratch.join("missing"), &scratch).unwrap_err().to_string();
        assert!(why.starts_with("there is no "), "{why}");
        fs::remove_dir_all(&scratch).unwrap();
    }
}
