//! The command as one file that needs nothing of the system but its kernel.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::musl;
use super::roots::{self, Root};
use super::tools::{PROFILE, Tools};
use super::{Place, Tried, VERSION};

/// More would be too much to fetch for a look.
const MOST_MEGABYTES: f64 = 10.0;

/// With glibc, whose `memset` and `memcpy` choose by CPU: the library leaves lengths to them, and the lab compares with
/// them.
pub(super) fn make(place: &Place) -> Result<Tried> {
    let program = build(place)?;
    let file = place.dir.join(format!("hugekit-{VERSION}-{ARCH}-linux"));
    crate::install::copy(&program, &file, 0o755)?;
    try_out(place, &file)
}

/// The command, linked with all that it needs.
pub(super) fn build(place: &Place) -> Result<PathBuf> {
    let target = Tools::target();
    let mut cargo = crate::command(&["build", "--profile", PROFILE, "--package", "hugekit-cli"]);
    cargo.args(["--target", &target]).env("RUSTFLAGS", "-C target-feature=+crt-static");
    crate::succeed(&mut cargo)?;
    Ok(place.tools.build_dir.join(target).join(PROFILE).join("hugekit"))
}

/// With musl, whose `memset` and `memcpy` are simpler, so that what the lab compares with them gains more.
pub(super) fn make_with_musl(place: &Place) -> Result<Tried> {
    let mut cargo = match musl::compiler(&place.tools) {
        Ok(cargo) => cargo,
        Err(error) => return Ok(Tried::Skipped(format!("{error:#}"))),
    };
    crate::succeed(&mut cargo)?;
    let file = place.dir.join(format!("hugekit-{VERSION}-{ARCH}-linux-musl"));
    crate::install::copy(&musl::program(&place.tools), &file, 0o755)?;
    try_out(place, &file)
}

fn try_out(place: &Place, file: &Path) -> Result<Tried> {
    let size = super::megabytes(file)?;
    ensure!(size < MOST_MEGABYTES, "{} has {size:.1} MB", file.display());
    if let Some(obstacle) = roots::obstacle() {
        return Ok(Tried::Works(format!("{size:.1} MB, not tried: {obstacle}")));
    }
    let root = Root::empty(place, &[file])?;
    let name = file.file_name().and_then(|name| name.to_str()).context("a file has a name")?;
    let program = format!("/{name}");
    let version = root.run(&[&program, "--version"])?;
    ensure!(version.contains(VERSION), "it says that it is {version}");
    let findings = root.run(&[&program, "doctor"])?;
    ensure!(findings.contains("transparent huge pages"), "doctor says\n{findings}");
    let measured = root.run(&[&program, "lab", "--quick", "stores"])?;
    ensure!(measured.contains("Summary"), "lab says\n{measured}");
    Ok(Tried::Works(format!("{size:.1} MB; doctor and lab work in an empty root")))
}
