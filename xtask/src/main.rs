//! Chores that a contributor would otherwise do by hand: `cargo xtask test`, `check` and `ci`.

mod aarch64;
mod book;
mod chromium;
mod compiler;
mod debian;
mod dist;
mod emulators;
mod environment;
mod faults;
mod fleet;
mod fuzz;
mod header;
mod install;
mod layers;
mod older;
mod on;
mod operations;
mod packaging;
mod prose;
mod python;
mod redis;
mod sanitize;
mod settings;
mod soak;
mod testing;
mod valgrind;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Parser;

/// Tests that take long, of a gigabyte, run where this is set: in the parts that are slow anyway.
const SLOW: &str = "HUGEKIT_SLOW";

/// Chores of the hugekit repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
enum Task {
    Test(testing::Test),
    Faults(faults::Faults),
    Fleet(fleet::Fleet),
    /// What a guest of the fleet runs that forbids userfaultfd(2)
    #[command(hide = true)]
    WithoutUserfaultfd(fleet::WithoutUserfaultfd),
    /// What a guest of the fleet runs whose equal pages are merged
    #[command(hide = true)]
    Merged(fleet::Merged),
    /// Runs a command as on another machine, as far as its processor's name and caches go (needs to mount):
    /// `cargo xtask on amd-milan cargo xtask test`
    On(on::On),
    /// Fetch the browser that the lab's pages are tested in, as `test --install` does
    Chromium,
    /// Everything that can be checked without running a test: format, clippy, layers, words, documentation
    Check,
    Fuzz(fuzz::Fuzz),
    Sanitize(sanitize::Sanitize),
    Soak(soak::Soak),
    /// Wraps Markdown whose lines are too long
    Wrap,
    /// Generates `hugekit.h` from the C interface's sources
    Header,
    /// Builds and installs the libraries for C, with files for pkg-config, CMake and GDB, and the command
    Install(install::Install),
    Dist(dist::Dist),
    Book(book::Book),
    /// `check` and `test --all`: the one command before a push
    Ci {
        /// As for `test`
        #[arg(long)]
        install: bool,
    },
}

fn main() -> Result<ExitCode> {
    match Task::parse() {
        Task::Test(test) => test.run(),
        Task::Faults(faults) => faults.run(),
        Task::Fleet(fleet) => fleet.run(),
        Task::WithoutUserfaultfd(command) => command.run(),
        Task::Merged(command) => command.run(),
        Task::On(on) => on.run(),
        Task::Chromium => chromium::install().map(|()| ExitCode::SUCCESS),
        Task::Install(install) => install.run().map(|()| ExitCode::SUCCESS),
        Task::Dist(dist) => dist.run(),
        Task::Book(book) => book.run().map(|()| ExitCode::SUCCESS),
        Task::Fuzz(fuzz) => fuzz.run(),
        Task::Sanitize(sanitize) => sanitize.run(),
        Task::Soak(soak) => soak.run(),
        Task::Wrap => prose::wrap().map(|()| ExitCode::SUCCESS),
        Task::Header => header::generate().map(|()| ExitCode::SUCCESS),
        Task::Check => check().map(|()| ExitCode::SUCCESS),
        Task::Ci { install } => check().and_then(|()| testing::Test::all(install).run()),
    }
}

fn check() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])?;
    let injected =
        ["clippy", "--package", "hugekit", "--all-targets", "--features", faults::INJECTION];
    cargo(&[&injected[..], &["--", "--deny", "warnings"]].concat())?;
    header::check()?;
    layers::check()?;
    packaging::check()?;
    prose::check()?;
    documentation()
}

fn documentation() -> Result<()> {
    let mut rustdoc = command(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
    succeed(rustdoc.env("RUSTDOCFLAGS", "--deny warnings"))
}

/// A folder below `target/`.
fn target_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target").join(name)
}

/// Where cargo puts what it builds, as it says itself: `CARGO_TARGET_DIR` or a configuration file may name another folder
/// than `target/`.
fn build_dir(metadata: &serde_json::Value) -> Result<PathBuf> {
    let folder =
        metadata["target_directory"].as_str().context("cargo names no target directory")?;
    Ok(folder.into())
}

/// What cargo says of the workspace.
fn metadata() -> Result<serde_json::Value> {
    answer(&mut metadata_command())
}

fn metadata_command() -> Command {
    command(&["metadata", "--format-version", "1", "--no-deps"])
}

/// The JSON that a command prints.
fn answer(command: &mut Command) -> Result<serde_json::Value> {
    let said = command.output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(said.status.success(), "{command:?} failed");
    Ok(serde_json::from_slice(&said.stdout)?)
}

fn cargo(arguments: &[&str]) -> Result<()> {
    succeed(&mut command(arguments))
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments);
    command
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_builds_is_looked_for_where_the_environment_says() -> Result<()> {
        let folder = build_dir(&answer(metadata_command().env("CARGO_TARGET_DIR", "/elsewhere"))?)?;
        assert_eq!(folder, Path::new("/elsewhere"));
        Ok(())
    }
}
