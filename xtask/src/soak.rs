//! `cargo xtask soak`: every operation at once, in one process, under signals, for as long as it is told.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::settings::Settings;

/// Runs every operation at once on all CPUs, under signals, beside child processes and advice, and verifies every
/// byte; at the end memory, descriptors, mappings and threads must be what they were at the start
#[derive(Debug, Args)]
pub(crate) struct Soak {
    /// How long
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The number that decides which operations are run, as an earlier soak said
    #[arg(long)]
    seed: Option<u64>,
    /// As root, reserve huge pages and have khugepaged scan without rest meanwhile
    #[arg(long)]
    setup: bool,
}

impl Soak {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let _settings = self.setup.then(Settings::for_soak).transpose()?;
        let went_well = run("--release", self.minutes, self.seed)?;
        Ok(if went_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The short form, with the checks of a debug build.
pub(crate) fn short() -> Result<bool> {
    run("--profile=dev", 0.5, None)
}

fn run(profile: &str, minutes: f64, seed: Option<u64>) -> Result<bool> {
    let mut cargo = crate::command(&["run", profile, "--package", "hugekit-soak", "--"]);
    cargo.args(["--minutes", &minutes.to_string()]);
    cargo.args(seed.into_iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]));
    let status = cargo.status().with_context(|| format!("cannot start {cargo:?}"))?;
    Ok(status.success())
}
