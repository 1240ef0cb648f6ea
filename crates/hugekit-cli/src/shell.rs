//! `hugekit completions` and `hugekit man`: completions and manual pages, made of the definitions
//! that parse the arguments.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::text::write_out;

/// Print completions of `hugekit` for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit completions zsh > ~/.zfunc/_hugekit")]
pub(crate) struct Completions {
    /// The shell
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

/// Write the manual pages of all commands.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit man --dir ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// The folder; it is made if it does not exist
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
