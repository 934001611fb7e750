//! The files that this process has mapped: where the loader has found a library, and which others came with it.

use std::fs;
use std::path::PathBuf;

/// The files of the process's memory map.
pub(crate) fn files() -> Vec<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files: Vec<_> =
        maps.lines().filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..]))).collect();
    files.dedup();
    files
}

/// The mapped file of this name.
pub(crate) fn file(name: &str) -> Option<PathBuf> {
    files().into_iter().find(|path| path.file_name().is_some_and(|file| file == name))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_file_of_a_mapped_program_is_found_by_its_name() {
        let own = std::env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert_eq!(super::file(name), Some(own.clone()));
        assert_eq!(super::file("libabsent.so"), None);
    }
}
