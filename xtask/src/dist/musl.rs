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

/// Of the standard library: what unwinds is a part of its own.
const STANDARD_LIBRARY: &str = "build-std=std,panic_unwind";

fn target() -> String {
    format!("{ARCH}-unknown-linux-musl")
}

/// What builds the command; the error is why nothing can.
pub(super) fn compiler(tools: &Tools) -> Result<Command> {
    let mut cargo = if has_standard_library()? { of_this_machine() } else { of_debian(tools)? };
    cargo.arg("--target-dir").arg(target_dir(tools));
    Ok(cargo)
}

/// Where it leaves the command.
pub(super) fn program(tools: &Tools) -> PathBuf {
    target_dir(tools).join(target()).join(PROFILE).join("hugekit")
}

fn target_dir(tools: &Tools) -> PathBuf {
    tools.build_dir.join("musl")
}

fn of_this_machine() -> Command {
    let mut cargo = crate::command(&["build"]);
    cargo.args(arguments()).env("RUSTFLAGS", "-C target-feature=+crt-static");
    cargo
}

/// zig brings what begins a program, so that the compiler must not, which it does not know of by itself.
fn of_debian(tools: &Tools) -> Result<Command> {
    let debian = Debian::new("dist", tools.scratch("rust"));
    let rustc = debian.root().join("usr/bin/rustc");
    if !rustc.exists() {
        debian.fetch(&[&COMPILER]).context(COMPILER.remedy)?;
    }
    let runs = debian.answer(&rustc, &["--version"]).is_some();
    ensure!(runs, "no {} ({})", COMPILER.name, COMPILER.remedy);
    let mut cargo = tools.environment()?.command("cargo-zigbuild");
    cargo.args(["zigbuild", "-Z", STANDARD_LIBRARY]).args(arguments());
    debian.unpacked().lend_libraries(&mut cargo);
    cargo.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static -C link-self-contained=no");
    Ok(cargo)
}

fn arguments() -> [String; 6] {
    ["--profile", PROFILE, "--package", "hugekit-cli", "--target", &target()].map(str::to_owned)
}

/// Whether this machine's compiler can.
fn has_standard_library() -> Result<bool> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", &target()]);
    let said = rustc.output().context("cannot start rustc")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    Ok(folder.read_dir().is_ok_and(|mut files| files.next().is_some()))
}
