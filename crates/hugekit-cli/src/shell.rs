//! `hugekit completions` and `hugekit man`: what shells and manuals want to know of the command, made
//! of the same definitions that parse it.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::text::write_out;

/// Print what a shell needs to complete `hugekit`.
///
/// bash: `hugekit completions bash > ~/.local/share/bash-completion/completions/hugekit`
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self, mut command: Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "hugekit", &mut script);
        Ok(write_out(&String::from_utf8(script).context("completions are text")?)?)
    }
}

/// Write manual pages, one for the command and one for each subcommand.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The folder, which is made if need be, such as ~/.local/share/man/man1
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

impl Man {
    pub(crate) fn run(&self, command: Command) -> anyhow::Result<()> {
        fs::create_dir_all(&self.dir)
            .with_context(|| format!("cannot make {}", self.dir.display()))?;
        clap_mangen::generate_to(command, &self.dir)
            .with_context(|| format!("cannot write to {}", self.dir.display()))
    }
}
