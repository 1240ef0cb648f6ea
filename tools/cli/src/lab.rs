//! `hugekit lab`: starts the program `hugekit-lab`, which is installed separately.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use hugekit_terminal::outcome::Remedied;

const PROGRAM: &str = "hugekit-lab";

/// Measure this machine, and compare with published figures.
///
/// The arguments go to the program `hugekit-lab`, which is looked for beside this one and then in PATH.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, after_help = "Example: hugekit lab snapshot --memory 1GiB")]
pub(crate) struct LabCommand {
    /// Arguments; `--help` lists them
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl LabCommand {
    /// Returns only if the program cannot be started.
    pub(crate) fn run(&self) -> anyhow::Error {
        let this = env::current_exe().unwrap_or_default();
        let beside = this.with_file_name(PROGRAM);
        let program = if beside.is_file() { beside } else { PathBuf::from(PROGRAM) };
        // The lab starts `hugekit` for some experiments.
        let error = Command::new(&program).args(&self.arguments).env("HUGEKIT", this).exec();
        let (message, remedy) = match error.kind() {
            io::ErrorKind::NotFound => (
                format!("{PROGRAM} is not installed"),
                format!(
                    "cargo install --locked --git {} {PROGRAM}, or in a checkout: cargo build --release",
                    env!("CARGO_PKG_REPOSITORY")
                ),
            ),
            _ => (
                format!("cannot start {}: {error}", program.display()),
                "let this user run it, or remove it".to_owned(),
            ),
        };
        Remedied { message, remedy }.into()
    }
}
