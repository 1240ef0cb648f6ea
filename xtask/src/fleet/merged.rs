//! A command whose private memory the kernel may merge (KSM), and that of all it starts: by this program in a guest.

use std::io;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;

use super::become_command::Rest;

#[derive(Debug, Args)]
pub(crate) struct Merged {
    #[command(flatten)]
    rest: Rest,
}

impl Merged {
    /// Becomes the command; returns only if it cannot.
    #[allow(unsafe_code)]
    pub(crate) fn run(&self) -> Result<ExitCode> {
        // SAFETY: has this process's pages merged; no byte changes. Kept by `fork` and `execve` (Linux 6.10).
        let refused = unsafe { libc::prctl(libc::PR_SET_MEMORY_MERGE, 1, 0, 0, 0) } != 0;
        ensure!(!refused, "no merging of memory: {}", io::Error::last_os_error());
        self.rest.start()
    }
}
