//! Links the provider so that it is never unloaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Libfabric closes the file at exit, before other destructors of the process have run.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
