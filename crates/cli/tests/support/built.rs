//! Libraries of this tree, built by cargo for the test that asks: other files in the target folder are ignored.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The file `name` of a package's library.
pub(crate) fn library(package: &str, name: &str) -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let cargo = escargot::CargoBuild::new().manifest_path(manifest).package(package).arg("--lib");
    let mut found = None;
    for message in cargo.exec().unwrap() {
        let message = message.unwrap();
        if let Ok(escargot::format::Message::CompilerArtifact(artifact)) = message.decode() {
            let named = |file: &&Cow<'_, Path>| file.ends_with(name);
            let library = artifact.filenames.iter().find(named);
            found = library.map(|file| file.to_path_buf()).or(found);
        }
    }
    found.unwrap()
}
