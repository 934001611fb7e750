//! Libraries of this tree, built by cargo for the test that asks: other files in the target folder are ignored.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use escargot::CargoBuild;
use escargot::format::Message;

/// The file `name` of a package's library.
pub(crate) fn library(package: &str, name: &str) -> PathBuf {
    build(CargoBuild::new().package(package).arg("--lib"), name)
}

/// The file of an example that is a library, with the features that the whole workspace uses, so that nothing is compiled again.
pub(crate) fn example(name: &str) -> PathBuf {
    build(CargoBuild::new().arg("--workspace").example(name), &format!("lib{name}.so"))
}

fn build(cargo: CargoBuild, name: &str) -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let mut found = None;
    for message in cargo.manifest_path(manifest).exec().unwrap() {
        let message = message.unwrap();
        if let Ok(Message::CompilerArtifact(artifact)) = message.decode() {
            let named = |file: &&Cow<'_, Path>| file.ends_with(name);
            let library = artifact.filenames.iter().find(named);
            found = library.map(|file| file.to_path_buf()).or(found);
        }
    }
    found.unwrap()
}
