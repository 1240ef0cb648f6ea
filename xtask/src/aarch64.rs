//! The library's tests on aarch64, emulated.
//!
//! Three pieces make that possible: a compiler with the target's standard library, a linker with
//! its C library, and an emulator. Each is taken from the machine where the machine has it, which
//! is the usual case: `rustup target add`, and two packages. A machine whose rustup cannot reach
//! its servers takes what it lacks from Debian's archive, compiler and standard library included,
//! because these must match exactly; `debian.rs` says how.
//!
//! Programs are linked statically, so that the emulator needs no libraries to find.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::debian::{Debian, Piece, remedies};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Emulated CPUs that differ in what `dc zva` clears: 512, 256 and 64 bytes.
const CPUS: [&str; 3] = ["max", "a64fx", "cortex-a72"];

/// The tests that are run: none that needs system calls the emulator lacks, as userfaultfd.
const TESTS: [&str; 3] = ["--lib", "--test", "routines"];

/// How the tests ended, if none failed.
#[derive(Debug)]
pub(crate) enum Outcome {
    Passed,
    Skipped { reason: String },
}

/// Compiles `hugekit` and `hugekit-pte` for aarch64 and runs its tests under emulation. What is missing is fetched
/// if `install`, and otherwise named in the reason for skipping.
pub(crate) fn test(install: bool) -> Result<Outcome> {
    if cfg!(target_arch = "aarch64") {
        return Ok(skipped("this machine is aarch64 itself"));
    }
    match Toolchain::here(install) {
        Ok((toolchain, debian)) => toolchain.test(&debian).map(|()| Outcome::Passed),
        Err(reason) => Ok(skipped(&reason)),
    }
}

/// Builds the tests of these packages for aarch64, and returns what cargo says of its artifacts; the error says what is missing.
pub(crate) fn build_tests(packages: &[&str], install: bool) -> Result<String> {
    let (toolchain, debian) = Toolchain::here(install).map_err(anyhow::Error::msg)?;
    let mut cargo = toolchain.cargo_test(&debian, packages);
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = cargo.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "the tests do not compile for aarch64");
    Ok(String::from_utf8(output.stdout)?)
}

fn skipped(reason: &str) -> Outcome {
    Outcome::Skipped { reason: reason.to_owned() }
}

fn target_dir() -> PathBuf {
    crate::target_dir("aarch64")
}

static COMPILER: Piece = Piece {
    name: "standard library for aarch64",
    remedy: "rustup target add aarch64-unknown-linux-gnu",
    packages: &["rustc-web"],
    arm64_packages: &["libstd-rust-web-dev:arm64"],
};

static LINKER: Piece = Piece {
    name: "linker and C library for aarch64",
    remedy: "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    packages: &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
    arm64_packages: &[],
};

static EMULATOR: Piece = Piece {
    name: "emulator of aarch64",
    remedy: "apt-get install qemu-user",
    packages: &["qemu-user"],
    arm64_packages: &[],
};

/// The three pieces, each as a name to be found on the path or as an unpacked program.
#[derive(Debug)]
struct Toolchain {
    rustc: PathBuf,
    linker: PathBuf,
    emulator: PathBuf,
}

impl Toolchain {
    /// This machine's, or a fetched one if `install`; the error is why there is none.
    fn here(install: bool) -> Result<(Self, Debian), String> {
        let debian = Debian::new("aarch64", target_dir().join("debian"));
        let toolchain = match Self::find(&debian) {
            Err(missing) if install => match debian.fetch(&missing) {
                Ok(()) => Self::find(&debian),
                Err(error) => return Err(format!("{}; {error:#}", remedies(&missing))),
            },
            found => found,
        };
        toolchain.map(|toolchain| (toolchain, debian)).map_err(|missing| remedies(&missing))
    }

    fn find(debian: &Debian) -> Result<Self, Vec<&'static Piece>> {
        let rustc = debian.either("rustc", has_target);
        let linker = debian.either("aarch64-linux-gnu-gcc", has_libc);
        let emulator = debian
            .either("qemu-aarch64", runs)
            .or_else(|| debian.either("qemu-aarch64-static", runs));
        match (rustc, linker, emulator) {
            (Some(rustc), Some(linker), Some(emulator)) => Ok(Self { rustc, linker, emulator }),
            (rustc, linker, emulator) => Err([
                rustc.is_none().then_some(&COMPILER),
                linker.is_none().then_some(&LINKER),
                emulator.is_none().then_some(&EMULATOR),
            ]
            .into_iter()
            .flatten()
            .collect()),
        }
    }

    fn test(&self, debian: &Debian) -> Result<()> {
        for cpu in CPUS {
            let status = self
                .cargo_test(debian, &["hugekit", "hugekit-pte"])
                .args(TESTS)
                .env("QEMU_CPU", cpu)
                .status()
                .context("cannot start cargo")?;
            ensure!(status.success(), "the library's tests failed on aarch64 (QEMU_CPU={cpu})");
        }
        Ok(())
    }

    /// Optimised a little, because every instruction is emulated.
    fn cargo_test(&self, debian: &Debian, packages: &[&str]) -> Command {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = debian.command(&cargo);
        command
            .args(["test", "--target", TARGET])
            .args(packages.iter().flat_map(|package| ["--package", package]))
            .env("CARGO_TARGET_DIR", target_dir())
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", self.rustflags(debian))
            .env("RUSTC", &self.rustc)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", &self.linker)
            .arg("--config")
            .arg(format!("target.{TARGET}.runner=[{:?}]", self.emulator));
        command
    }

    /// Only the target is compiled with these, not what runs at build time.
    fn rustflags(&self, debian: &Debian) -> OsString {
        let mut flags = OsString::from("-Dwarnings\x1f-Ctarget-feature=+crt-static");
        if self.linker.starts_with(debian.root()) {
            flags.push("\x1f-Clink-arg=--sysroot=");
            flags.push(debian.root());
        }
        flags
    }
}

/// Whether the compiler has the target's standard library, and is recent enough for this workspace.
fn has_target(rustc: &Path, debian: &Debian) -> bool {
    let library = debian.answer(rustc, &["--print", "target-libdir", "--target", TARGET]);
    let version = debian.answer(rustc, &["--version"]);
    library.is_some_and(|path| Path::new(&path).is_dir())
        && version.and_then(|version| minor(version.split(' ').nth(1)?))
            >= minor(env!("CARGO_PKG_RUST_VERSION"))
}

/// The 89 of 1.89.
fn minor(version: &str) -> Option<u32> {
    version.split('.').nth(1)?.parse().ok()
}

/// Whether the linker has a C library: the compiler is packaged apart from it. A file that is not
/// found is answered with its bare name.
fn has_libc(linker: &Path, debian: &Debian) -> bool {
    debian
        .answer(linker, &["-print-file-name=libc.a"])
        .is_some_and(|path| Path::new(&path).is_absolute())
}

fn runs(emulator: &Path, debian: &Debian) -> bool {
    debian.answer(emulator, &["--version"]).is_some()
}
