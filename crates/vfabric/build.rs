//! How the provider is unloaded: not at all.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Libfabric closes the file at exit, before the process's other destructors have run.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
