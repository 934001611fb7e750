//! The environment, and the variables that NCCL's files add to it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::doctor::machine::SettingsFile;

/// Variables that matter to NCCL, libfabric and plugins; none that may be a secret.
pub(in crate::doctor) fn variables() -> BTreeMap<String, String> {
    let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value)));
    all.filter(|(name, _)| matters(name)).map(hidden).collect()
}

fn matters(name: &str) -> bool {
    const PREFIXES: [&str; 8] = [
        "NCCL_",
        "FI_",
        "OFI_NCCL_",
        "IRONRAIL_",
        "SLINGSHOT_",
        "RDMAV_",
        "VFABRIC_",
        "CUDA_VISIBLE",
    ];
    const NAMES: [&str; 6] = [
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "SLURM_JOB_ID",
        "SLURM_NETWORK",
        "SLURM_NNODES",
        "SLURM_NTASKS",
    ];
    // Variables of the tests.
    !name.starts_with("IRONRAIL_TEST_")
        && (PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name))
}

/// The value that is shown in place of a secret.
pub(in crate::doctor) const HIDDEN: &str = "(hidden)";

fn hidden((name, value): (String, String)) -> (String, String) {
    const SECRET: [&str; 4] = ["SECRET", "TOKEN", "PASSWORD", "CREDENTIAL"];
    let is_secret = SECRET.iter().any(|word| name.contains(word));
    (name, if is_secret { HIDDEN.to_owned() } else { value })
}

/// NCCL's files, to be shown. Values of variables that do not matter are hidden too, as they may be secrets.
pub(super) fn files(root: &Path) -> Vec<SettingsFile> {
    let mut files = whole_files(root);
    for settings in files.iter_mut().filter_map(|file| file.settings.as_mut()) {
        *settings = std::mem::take(settings).into_iter().map(shown).collect();
    }
    files
}

fn shown((name, value): (String, String)) -> (String, String) {
    if matters(&name) { hidden((name, value)) } else { (name, HIDDEN.to_owned()) }
}

/// NCCL's files by precedence: NCCL_CONF_FILE, or else the user's own, then the machine's (NCCL src/misc/param.cc).
fn whole_files(root: &Path) -> Vec<SettingsFile> {
    let mut files = Vec::new();
    match std::env::var_os("NCCL_CONF_FILE").filter(|path| !path.is_empty()) {
        Some(path) => files.push(read(Path::new(&path), true)),
        None => {
            if let Some(home) = std::env::var_os("HOME") {
                files.push(read(&Path::new(&home).join(".nccl.conf"), false));
            }
        }
    }
    files.push(read(&root.join("etc/nccl.conf"), false));
    // A file that no variable names need not exist.
    files.retain(|file| file.named || file.settings.is_some());
    files
}

/// The variables that NCCL's files add before it loads a plugin; existing variables stay.
pub(in crate::doctor) fn settings_of_files() -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    for file in whole_files(Path::new("/")) {
        for (name, value) in file.settings.into_iter().flatten() {
            let is_name = !name.is_empty() && !name.contains('\0') && !value.contains('\0');
            if is_name && std::env::var_os(&name).is_none() && !name.starts_with("LD_") {
                settings.entry(name).or_insert(value);
            }
        }
    }
    settings
}

fn read(path: &Path, named: bool) -> SettingsFile {
    // NCCL reads the bytes of a file in any encoding.
    let settings =
        crate::files::bytes(path).ok().map(|bytes| parse(&String::from_utf8_lossy(&bytes)));
    SettingsFile { path: path.to_owned(), named, settings }
}

/// Lines of NAME=VALUE; nothing is trimmed, as in NCCL. The first value of a name counts.
fn parse(text: &str) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    let lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    for line in lines.filter(|line| !line.starts_with('#')) {
        if let Some((name, value)) = line.split_once('=') {
            settings.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_nccl_reads_it() {
        let settings = parse(
            "# NCCL_NET=IB\nNCCL_NET=Socket\r\nNCCL_NET=IB\nNCCL_DEBUG = INFO\nnothing\nNCCL_ALGO=Ring\r",
        );
        let pairs: Vec<_> =
            settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            pairs,
            [("NCCL_ALGO", "Ring"), ("NCCL_DEBUG ", " INFO"), ("NCCL_NET", "Socket")]
        );
    }

    #[test]
    fn only_variables_that_matter_are_read_and_no_secret_is_shown() {
        assert!(
            matters("FI_PROVIDER")
                && matters("LD_LIBRARY_PATH")
                && !matters("HOME")
                && !matters("AWS_SECRET")
        );
        let of = |name: &str| shown((name.to_owned(), "abc".to_owned())).1;
        assert_eq!(of("NCCL_SITE_TOKEN"), "(hidden)");
        assert_eq!(of("NCCL_SITE_WORD"), "abc");
        assert_eq!(of("SITE_WORD"), "(hidden)");
    }

    #[test]
    fn a_secret_in_a_file_is_a_setting_and_is_not_shown() {
        let root = std::env::temp_dir().join(format!("ironrail-secret-{}", std::process::id()));
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::write(root.join("etc/nccl.conf"), "NCCL_SITE_TOKEN=abc\nNCCL_NET=IB\n").unwrap();
        let of = |files: Vec<SettingsFile>| files.last().unwrap().settings.clone().unwrap();
        let (shown, whole) = (of(files(&root)), of(whole_files(&root)));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!((&*shown["NCCL_SITE_TOKEN"], &*shown["NCCL_NET"]), ("(hidden)", "IB"));
        assert_eq!(&*whole["NCCL_SITE_TOKEN"], "abc");
    }
}
