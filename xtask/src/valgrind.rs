//! Where valgrind is, for the tests of the C interface: on the machine, or unpacked below `target/valgrind`.

use std::path::Path;
use std::process::Command;

use crate::debian::{Debian, Piece};

static VALGRIND: Piece = Piece {
    name: "valgrind",
    remedy: "apt-get install valgrind",
    packages: &["valgrind"],
    arm64_packages: &[],
};

/// Tells the tests where valgrind is; fetches it if it is missing and may be. Tests without it say so themselves.
pub(crate) fn tell(tests: &mut Command, install: bool) {
    let debian = Debian::new("valgrind", crate::target_dir("valgrind").join("debian"));
    let library = debian.root().join("usr/libexec/valgrind");
    let is_on_machine =
        |valgrind: &Path, debian: &Debian| debian.answer(valgrind, &["--version"]).is_some();
    if is_on_machine(Path::new("valgrind"), &debian) {
        return;
    }
    let unpacked = debian.root().join("usr/bin/valgrind");
    if install
        && !unpacked.exists()
        && let Err(error) = debian.fetch(&[&VALGRIND])
    {
        eprintln!("no valgrind: {error:#}");
    }
    if unpacked.exists() {
        tests.env("HUGEKIT_VALGRIND", unpacked).env("VALGRIND_LIB", library);
    }
}
