//! The command that this program becomes in a guest, after it has changed what the command may do.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

/// The rest of a command line.
#[derive(Debug, Args)]
pub(super) struct Rest {
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl Rest {
    /// Becomes the command; returns only if it cannot.
    pub(super) fn start(&self) -> Result<ExitCode> {
        let (program, arguments) = self.command.split_first().context("there is a command")?;
        Err(Command::new(program).args(arguments).exec()).context("cannot start it")
    }
}
