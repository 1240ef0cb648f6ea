//! The library, built by the oldest compiler that it promises to be built by: Debian's, unpacked below `target/`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::debian::{Debian, Suite};
use crate::testing::Count;

/// The suite whose packages for web browsers have that compiler, and these packages.
static SUITE: Suite = Suite { name: "bookworm", arm64: false };
const PACKAGES: [&str; 2] = ["rustc-web", "libstd-rust-web-dev"];

/// Of what they depend on, what a machine with a compiler may lack.
fn is_wanted(package: &str) -> bool {
    let libraries =
        ["libllvm", "libstd-rust", "libz3", "libedit", "libbsd", "libmd", "libxml2", "libicu"];
    libraries.iter().any(|library| package.starts_with(library))
}

/// Builds it, without features and with all of them. Counts as one test.
pub(crate) fn run(count: &mut Count, install: bool) -> Result<bool> {
    let debian = Debian::new("the oldest compiler", crate::target_dir("compiler").join("debian"));
    if let Err(missing) = have(&debian, install) {
        count.skip(format!("the library by its oldest compiler: {missing:#}"));
        return Ok(true);
    }
    let passed = check(&debian, &[])? && check(&debian, &["--all-features"])?;
    if passed {
        count.passed += 1;
    } else {
        count.failed += 1;
    }
    Ok(passed)
}

fn have(debian: &Debian, install: bool) -> Result<()> {
    let wanted = promised()?;
    if install && version(debian).is_none() {
        debian.fetch_from(&SUITE, &PACKAGES, is_wanted)?;
    }
    let found =
        version(debian).with_context(|| format!("no rustc {wanted} (--install fetches it)"))?;
    ensure!(
        found.starts_with(&format!("{wanted}.")),
        "{} has rustc {found}, not {wanted}",
        SUITE.name
    );
    Ok(())
}

/// The version that the library's manifest names.
fn promised() -> Result<String> {
    let manifest =
        Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates/hugekit/Cargo.toml");
    let text = fs::read_to_string(manifest)?;
    let version = text.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    Ok(version.context("no rust-version")?.trim_end_matches('"').to_owned())
}

fn version(debian: &Debian) -> Option<String> {
    let said = debian.answer(&debian.unpacked().path("rustc"), &["--version"])?;
    Some(said.split(' ').nth(1)?.to_owned())
}

fn check(debian: &Debian, features: &[&str]) -> Result<bool> {
    let mut cargo = debian.command(env!("CARGO").as_ref());
    cargo
        .args(["check", "--quiet", "--package", "hugekit", "--lib"])
        .args(features)
        .env("RUSTC", debian.unpacked().path("rustc"))
        .env("CARGO_TARGET_DIR", crate::target_dir("compiler").join("built"));
    Ok(cargo.status().context("cannot start cargo")?.success())
}
