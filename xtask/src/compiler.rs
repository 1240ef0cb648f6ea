//! The library, built by the oldest compiler that it promises: Debian's, unpacked below `target/`.

use std::fs;

use anyhow::{Context, Result};

use crate::count::skip;
use crate::fetch::Package;
use crate::run::{self, crate_folder, target_dir};

/// Builds the library without features and with all of them.
pub(crate) fn run() -> Result<bool> {
    let package = Package::named("oldest-compiler")?;
    let rustc = package.path("usr/bin/rustc");
    let promised = format!("rustc {}.", promised()?);
    let suits =
        || package.said(&rustc, &["--version"]).is_some_and(|said| said.starts_with(&promised));
    if let Err(error) = package.have(suits) {
        skip(&promised, &format!("{error:#}"));
        return Ok(true);
    }
    for features in [&[][..], &["--all-features"]] {
        let mut cargo = run::cargo(&["check", "--quiet", "--package", "hugekit", "--lib"]);
        package.unpacked().lend_libraries(&mut cargo);
        cargo.args(features).env("RUSTC", &rustc);
        run::succeed(cargo.env("CARGO_TARGET_DIR", target_dir("compiler").join("built")))?;
    }
    Ok(true)
}

/// The version that the library's manifest names.
fn promised() -> Result<String> {
    let text = fs::read_to_string(crate_folder("hugekit").join("Cargo.toml"))?;
    let version = text.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    Ok(version.context("no rust-version")?.trim_end_matches('"').to_owned())
}
