//! Examples, as cargo builds them.

use std::env::current_exe;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The manifest that `cargo test` reads in the repository's folder.
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");

/// Builds an example, and returns the command that runs it. Cargo builds it for the packages of `cargo test`, which has
/// built it already: for one package cargo would compile everything again, with fewer features.
///
/// # Errors
/// It cannot be built.
pub fn build(name: &str) -> Result<Command> {
    let test = current_exe()?;
    let target = test.ancestors().nth(3).context("a test is in target/debug/deps")?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--manifest-path", WORKSPACE, "--example", name]);
    cargo.arg("--target-dir").arg(target);
    let built = cargo.output()?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Ok(Command::new(target.join("debug/examples").join(name)))
}
