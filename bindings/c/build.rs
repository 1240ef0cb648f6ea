//! Gives the shared library its name for the dynamic linker: programs ask for the version of the interface
//! that they were linked with.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhugekit.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
