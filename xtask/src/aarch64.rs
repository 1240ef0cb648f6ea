//! The library's tests on aarch64, emulated.
//!
//! That takes a compiler with the target's standard library, a linker with its C library, and an emulator. Each is the
//! machine's if the machine has it (`rustup target add`, and two packages), and otherwise unpacked from Debian's archive.
//! Programs are linked statically, so that the emulator needs no libraries to find.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::count::skip;
use crate::fetch::Package;
use crate::run::{self, target_dir};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Emulated CPUs that differ in the bytes that `dc zva` clears: 512, 256 and 64, and the tests of each.
const CPUS: [(&str, &[&str]); 3] = [("max", &TESTS), ("a64fx", &DC_ZVA), ("cortex-a72", &DC_ZVA)];

/// None of these tests needs system calls that the emulator lacks, such as userfaultfd; tests that do are ignored there.
const TESTS: [&str; 3] = ["--lib", "--test", "routines"];
const DC_ZVA: [&str; 3] = ["--test", "routines", "dc_zva"];

/// The engine's crates, without `hugekit-` before each.
const ENGINE: &str = "sys machine bulk lease regions snapshots";

/// The three pieces, each as a name on the path or as an unpacked program.
#[derive(Debug)]
struct Toolchain {
    packages: [Package; 3],
    rustc: PathBuf,
    linker: PathBuf,
    emulator: PathBuf,
}

/// Compiles the engine and `hugekit-pte` for aarch64 and runs their tests under emulation.
pub(crate) fn test() -> Result<bool> {
    let found = if cfg!(target_arch = "aarch64") {
        Err(anyhow::anyhow!("this machine is aarch64 itself"))
    } else {
        Toolchain::find()
    };
    let toolchain = match found {
        Ok(toolchain) => toolchain,
        Err(error) => {
            skip("aarch64 under emulation", &format!("{error:#}"));
            return Ok(true);
        }
    };
    for (cpu, tests) in CPUS {
        let mut cargo = toolchain.cargo_test(&["hugekit-pte"]);
        let passed = run::passes(cargo.args(tests).env("QEMU_CPU", cpu))?;
        ensure!(passed, "the library's tests failed on aarch64 (QEMU_CPU={cpu})");
    }
    Ok(true)
}

/// Builds the tests of the engine and of these packages for aarch64, and returns what cargo prints of its artifacts.
pub(crate) fn build_tests(packages: &[&str]) -> Result<String> {
    let mut cargo = Toolchain::find()?.cargo_test(packages);
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    run::output(&mut cargo)
}

impl Toolchain {
    fn find() -> Result<Self> {
        let packages =
            ["aarch64-compiler", "aarch64-linker", "aarch64-emulator"].map(Package::named);
        let [compiler, linker, emulator] = packages;
        let packages = [compiler?, linker?, emulator?];
        let piece = |package: &Package, names: &[&str], suits: fn(&Path, &Package) -> bool| {
            let find = || names.iter().find_map(|name| package.either(name, suits));
            package.have(|| find().is_some())?;
            find().context("it was found before")
        };
        Ok(Self {
            rustc: piece(&packages[0], &["rustc"], has_target)?,
            linker: piece(&packages[1], &["aarch64-linux-gnu-gcc"], has_libc)?,
            emulator: piece(
                &packages[2],
                &["qemu-aarch64", "qemu-aarch64-static"],
                |program, package| package.said(program, &["--version"]).is_some(),
            )?,
            packages,
        })
    }

    /// Optimised a little, because every instruction is emulated.
    fn cargo_test(&self, packages: &[&str]) -> Command {
        let mut command = run::cargo(&["test", "--target", TARGET]);
        // Only the target is compiled with these, not what runs at build time.
        let mut flags = "-Dwarnings\x1f-Ctarget-feature=+crt-static".to_owned();
        let root = self.packages[1].path("");
        if self.linker.starts_with(&root) {
            let sysroot = format!("--sysroot={}", root.display());
            flags += &format!("\x1f-Clink-arg={sysroot}");
            command.env("CFLAGS_aarch64_unknown_linux_gnu", sysroot);
        }
        let libraries = self.packages.iter().flat_map(Package::libraries);
        command
            .args(packages.iter().flat_map(|package| ["--package", package]))
            .args(ENGINE.split(' ').map(|name| format!("--package=hugekit-{name}")))
            .env("LD_LIBRARY_PATH", std::env::join_paths(libraries).unwrap_or_default())
            .env("CARGO_TARGET_DIR", target_dir("aarch64"))
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", flags)
            .env("RUSTC", &self.rustc)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", &self.linker)
            // Some libraries contain C.
            .env("CC_aarch64_unknown_linux_gnu", &self.linker)
            .env("AR_aarch64_unknown_linux_gnu", self.linker.with_file_name("aarch64-linux-gnu-ar"))
            .arg("--config")
            .arg(format!("target.{TARGET}.runner=[{:?}]", self.emulator));
        command
    }
}

/// Returns true if the compiler has the target's standard library, and is recent enough for this workspace.
fn has_target(rustc: &Path, package: &Package) -> bool {
    let library = package.said(rustc, &["--print", "target-libdir", "--target", TARGET]);
    let version = package.said(rustc, &["--version"]);
    library.is_some_and(|path| Path::new(&path).is_dir())
        && version.and_then(|version| minor(version.split(' ').nth(1)?))
            >= minor(env!("CARGO_PKG_RUST_VERSION"))
}

/// The 89 of 1.89.
fn minor(version: &str) -> Option<u32> {
    version.split('.').nth(1)?.parse().ok()
}

/// Returns true if the linker has a C library, which is a package of its own. The linker prints a file that it does not
/// find as its bare name.
fn has_libc(linker: &Path, package: &Package) -> bool {
    let found = package.said(linker, &["-print-file-name=libc.a"]);
    found.is_some_and(|path| Path::new(&path).is_absolute())
}
