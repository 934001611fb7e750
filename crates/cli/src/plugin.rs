//! Names of plugins, the plugin to use if none is named, and the communicator for which one is started.

use std::path::PathBuf;

use crate::output;

/// The id of the communicator for which this command starts a plugin, to ask it or to try it. Any number; NCCL uses a hash.
pub(crate) const COMMUNICATOR: u64 = 0x1d0c;

/// The number of devices that fail after which no further one is tried: each may take the whole wait.
pub(crate) const FAILURES_MAX: usize = 3;

/// The value of `--net`: a script may pass a variable that is empty.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if names(text).next().is_none() {
        return Err("expected the name or file of a plugin".to_owned());
    }
    Ok(text.to_owned())
}

/// The plugins that a value of NCCL_NET_PLUGIN names: NCCL takes a list.
pub(crate) fn names(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').filter(|name| !name.is_empty())
}

/// The file of Ironrail's plugin, or its name for the loader if this command finds no file.
pub(crate) fn ours() -> String {
    let found = folder().map(|folder| folder.join(FILE));
    found.map_or_else(|| "ironrail".to_owned(), |path| path.to_string_lossy().into_owned())
}

/// The folder of Ironrail's plugin: that of this command, the one above, a folder of the plugin's own, or that of a package. It never
/// depends on the current folder: any user may have put a file there, which would run with the rights of this user.
pub(crate) fn folder() -> Option<PathBuf> {
    let here = std::env::current_exe().unwrap_or_default();
    let mut beside =
        here.ancestors().skip(1).take(2).flat_map(|folder| {
            [folder.join("plugin"), folder.to_owned(), folder.join("lib/ironrail")]
        });
    beside.find(|folder| folder.join(FILE).is_file())
}

/// Prints the folder. Returns whether there is one.
pub(crate) fn print_folder() -> bool {
    let found = folder();
    match &found {
        Some(folder) => output::line(folder.display()),
        None => output::print_error(format_args!(
            "{FILE} does not lie beside this command, nor in ../lib/ironrail"
        )),
    }
    found.is_some()
}

const FILE: &str = "libnccl-net-ironrail.so";
