//! What a contributor would otherwise do by hand: `cargo xtask test`, `check` and `ci`.

mod aarch64;
mod chromium;
mod debian;
mod settings;
mod testing;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Parser;

/// Chores of the hugekit repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Everything that tests: unit, integration and documentation tests, models of what threads may
    /// do, and aarch64 emulated
    Test {
        /// Fetch missing Debian packages and, as root, reserve huge pages while the tests run,
        /// instead of skipping what needs them
        #[arg(long)]
        install: bool,
    },
    /// Fetch the browser that the lab's pages are tested in, as `test --install` does
    Chromium,
    /// What can be said without running anything: format, clippy, documentation
    Check,
    /// `check` and `test`: the one command before a push
    Ci {
        /// As for `test`
        #[arg(long)]
        install: bool,
    },
}

fn main() -> Result<ExitCode> {
    match Task::parse() {
        Task::Test { install } => testing::run(install),
        Task::Chromium => chromium::install().map(|()| ExitCode::SUCCESS),
        Task::Check => check().map(|()| ExitCode::SUCCESS),
        Task::Ci { install } => check().and_then(|()| testing::run(install)),
    }
}

/// Where everything goes that can be made again.
fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target")
}

fn check() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])?;
    documentation()
}

fn documentation() -> Result<()> {
    let mut rustdoc = command(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
    succeed(rustdoc.env("RUSTDOCFLAGS", "--deny warnings"))
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
