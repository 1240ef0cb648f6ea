//! A command on a machine that is not this one: the same descriptions that tests run through, mounted over the
//! kernel's files for one process and its children. What the processor says of itself stays as it is.

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;
use hugekit_invented_machines::MACHINES;

/// Runs a command as on another machine, as far as its processor's name and caches go (needs to mount):
/// `cargo xtask on amd-milan cargo xtask test`
#[derive(Debug, Args)]
pub(crate) struct On {
    /// Which machine
    #[arg(value_parser = PossibleValuesParser::new(MACHINES.map(|machine| machine.name)))]
    machine: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl On {
    /// Ends as the command does.
    pub(crate) fn run(&self) -> Result<bool> {
        let machine = MACHINES.into_iter().find(|machine| machine.name == self.machine);
        let files = machine.context("one of the possible values")?.files()?;
        let words: Vec<&str> = self.command.iter().map(String::as_str).collect();
        let (program, arguments) = words.split_first().context("there is a command")?;
        let command = files.over_the_kernels(program, arguments);
        let mut command =
            command.context("no caches to mount: either machine describes none in /sys")?;
        let status = command.status().context("cannot start unshare")?;
        drop(files);
        std::process::exit(status.code().unwrap_or(1))
    }
}
