//! Emulators of whole machines, and the assemblers of their programs, for the tests of `hugekit-pte` that have a CPU
//! walk its tables. These find them on the path, or where they are unpacked here, and otherwise are skipped.

use std::path::Path;

use crate::debian::{Debian, Piece};

static EMULATORS: Piece = Piece {
    name: "emulators of aarch64 and riscv64",
    remedy: "apt-get install qemu-system-arm qemu-system-misc",
    packages: &["qemu-system-arm", "qemu-system-misc"],
    arm64_packages: &[],
};

static ASSEMBLERS: Piece = Piece {
    name: "assemblers of aarch64 and riscv64",
    remedy: "apt-get install binutils-aarch64-linux-gnu binutils-riscv64-linux-gnu",
    packages: &["binutils-aarch64-linux-gnu", "binutils-riscv64-linux-gnu"],
    arm64_packages: &[],
};

const PROGRAMS: [&str; 6] = [
    "qemu-system-aarch64",
    "qemu-system-riscv64",
    "aarch64-linux-gnu-as",
    "aarch64-linux-gnu-objcopy",
    "riscv64-linux-gnu-as",
    "riscv64-linux-gnu-objcopy",
];

/// Fetches them if one is missing. Without success, the tests say what they lack.
pub(crate) fn fetch() {
    let debian = Debian::new("emulators", crate::target_dir("emulators"));
    let runs = |program: &Path, debian: &Debian| debian.answer(program, &["--version"]).is_some();
    if PROGRAMS.iter().all(|name| debian.either(name, runs).is_some()) {
        return;
    }
    if let Err(error) = debian.fetch(&[&EMULATORS, &ASSEMBLERS]) {
        eprintln!("no emulators: {error:#}");
    }
}
