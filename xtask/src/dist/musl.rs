//! A compiler for musl: that of this machine, where rustup has the target. A machine whose rustup cannot reach its servers
//! takes from Debian's archive a compiler and the sources of its standard library, which is compiled too then, and musl
//! itself from zig.

use std::env::consts::ARCH;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::tools::{PROFILE, Tools};
use crate::debian::{Debian, Piece};

static COMPILER: Piece = Piece {
    name: "standard library for musl",
    remedy: "rustup target add x86_64-unknown-linux-musl",
    packages: &["rustc-web", "rust-web-src"],
    arm64_packages: &[],
};

/// What wheels for musl are for: Alpine 3.13 and later.
pub(super) const POLICY: &str = "musllinux_1_2";

/// Of the standard library: what unwinds is a part of its own.
const STANDARD_LIBRARY: &str = "build-std=std,panic_unwind";

fn target() -> String {
    format!("{ARCH}-unknown-linux-musl")
}

/// What builds the command; the error is why nothing can.
pub(super) fn compiler(tools: &Tools) -> Result<Command> {
    let mut cargo = if has_standard_library()? {
        crate::command(&["build"])
    } else {
        let mut cargo = tools.environment()?.command("cargo-zigbuild");
        cargo.arg("zigbuild");
        cargo
    };
    lend_compiler(tools, &mut cargo, "+crt-static")?;
    cargo.args(["--profile", PROFILE, "--package", "hugekit-cli", "--target", &target()]);
    cargo.arg("--target-dir").arg(target_dir(tools));
    Ok(cargo)
}

/// What builds the Python module, which loads the musl of its interpreter; the error is why nothing can.
pub(super) fn maturin(tools: &Tools) -> Result<Command> {
    let mut maturin = tools.environment()?.command("maturin");
    maturin.args(["build", "--zig", "--compatibility", POLICY, "--profile", PROFILE]);
    lend_compiler(tools, &mut maturin, "-crt-static")?;
    maturin.args(["--target", &target(), "--target-dir"]).arg(tools.build_dir.join("musl-python"));
    Ok(maturin)
}

/// The name that musl has for dynamic linkers, on the systems that wheels are for; zig calls it `libc.so`.
pub(super) fn soname() -> String {
    format!("libc.musl-{ARCH}.so.1")
}

/// Where it leaves the command.
pub(super) fn program(tools: &Tools) -> PathBuf {
    target_dir(tools).join(target()).join(PROFILE).join("hugekit")
}

fn target_dir(tools: &Tools) -> PathBuf {
    tools.build_dir.join("musl")
}

/// Has a build compile for musl, `+crt-static` for all of it in the program.
fn lend_compiler(tools: &Tools, build: &mut Command, feature: &str) -> Result<()> {
    let linked = format!("-C target-feature={feature}");
    if has_standard_library()? {
        build.env("RUSTFLAGS", linked);
        return Ok(());
    }
    let debian = Debian::new("dist", tools.scratch("rust"));
    let rustc = debian.root().join("usr/bin/rustc");
    if !rustc.exists() {
        debian.fetch(&[&COMPILER]).context(COMPILER.remedy)?;
    }
    let runs = debian.answer(&rustc, &["--version"]).is_some();
    ensure!(runs, "no {} ({})", COMPILER.name, COMPILER.remedy);
    debian.unpacked().lend_libraries(build);
    build.args(["-Z", STANDARD_LIBRARY]).env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
    // zig brings what begins a program, so that the compiler must not, which it does not know of by itself.
    build.env("RUSTFLAGS", format!("{linked} -C link-self-contained=no"));
    Ok(())
}

/// Whether this machine's compiler can.
fn has_standard_library() -> Result<bool> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", &target()]);
    let said = rustc.output().context("cannot start rustc")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    Ok(folder.read_dir().is_ok_and(|mut files| files.next().is_some()))
}
