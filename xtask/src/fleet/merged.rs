//! A command whose private memory the kernel may merge (KSM), and that of all it starts: by this program in a guest.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Merged {
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl Merged {
    /// Becomes the command; returns only if it cannot.
    #[allow(unsafe_code)]
    pub(crate) fn run(&self) -> Result<ExitCode> {
        // SAFETY: has this process's pages merged; no byte changes. Kept by `fork` and `execve` (Linux 6.10).
        let refused = unsafe { libc::prctl(libc::PR_SET_MEMORY_MERGE, 1, 0, 0, 0) } != 0;
        ensure!(!refused, "no merging of memory: {}", io::Error::last_os_error());
        let (program, arguments) = self.command.split_first().context("there is a command")?;
        Err(Command::new(program).args(arguments).exec()).context("cannot start it")
    }
}
