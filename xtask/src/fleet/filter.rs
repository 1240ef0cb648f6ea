//! A command behind a system-call filter that refuses `userfaultfd(2)`, as the filters of containers do: what a guest
//! that forbids it runs, by this program in the guest.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use super::become_command::Rest;

#[derive(Debug, Args)]
pub(crate) struct WithoutUserfaultfd {
    #[command(flatten)]
    rest: Rest,
}

impl WithoutUserfaultfd {
    /// Becomes the command; returns only if it cannot.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let refused = BTreeMap::from([(libc::SYS_userfaultfd, Vec::new())]);
        let refusal = SeccompAction::Errno(u32::try_from(libc::EPERM)?);
        let filter = SeccompFilter::new(refused, SeccompAction::Allow, refusal, ARCH.try_into()?)?;
        apply_filter(&BpfProgram::try_from(filter)?)?;
        self.rest.start()
    }
}
