//! The command that this program becomes in a guest, after a change that the command inherits.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

#[derive(Debug, Args)]
pub(crate) struct Become {
    /// A system-call filter refuses userfaultfd(2), as the filters of containers do
    #[arg(long)]
    without_userfaultfd: bool,
    /// The kernel may merge the private memory (KSM)
    #[arg(long)]
    merged: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl Become {
    /// Becomes the command; returns only if it cannot.
    pub(crate) fn run(&self) -> Result<bool> {
        if self.without_userfaultfd {
            refuse_userfaultfd()?;
        }
        if self.merged {
            permit_merging()?;
        }
        let (program, arguments) = self.command.split_first().context("there is a command")?;
        Err(Command::new(program).args(arguments).exec()).context("cannot start it")
    }
}

fn refuse_userfaultfd() -> Result<()> {
    let refused = BTreeMap::from([(libc::SYS_userfaultfd, Vec::new())]);
    let refusal = SeccompAction::Errno(u32::try_from(libc::EPERM)?);
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, refusal, ARCH.try_into()?)?;
    Ok(apply_filter(&BpfProgram::try_from(filter)?)?)
}

#[allow(unsafe_code)]
fn permit_merging() -> Result<()> {
    // SAFETY: the call takes no pointer, and merged pages keep their bytes. `execve` keeps the setting (Linux 6.10).
    let refused = unsafe { libc::prctl(libc::PR_SET_MEMORY_MERGE, 1, 0, 0, 0) } != 0;
    ensure!(!refused, "no merging of memory: {}", io::Error::last_os_error());
    Ok(())
}
