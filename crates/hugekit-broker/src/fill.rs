//! The process that populates a unit: what the kernel's OOM killer ends, and what a control group is charged for.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hugekit::lease::{LeaseError, MemoryFile};
use hugekit::{PopulateError, PopulateOptions, Threads};
use rustix::io::Errno;
use rustix::process::Signal;

/// What the process is told; its standard input is the file.
#[derive(Clone, Debug, Default)]
pub struct Fill {
    /// By one thread of the lowest priority that it can be raised from, instead of as many as pay off.
    pub background: bool,
    /// The node that the pages come from.
    pub node: Option<u32>,
    /// Directories of control groups that the process joins before.
    pub groups: Vec<PathBuf>,
}

/// How the process ends, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All of it is populated, charged to the groups.
    Populated,
    /// All of it is populated, but it could not join the groups.
    NotJoined,
    /// The kernel refused.
    Refused(Errno),
}

impl End {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Populated => 0,
            Self::NotJoined => 1,
            Self::Refused(errno) => u8::try_from(errno.raw_os_error() + 2).unwrap_or(u8::MAX),
        }
    }

    pub(crate) fn of_code(code: i32) -> Self {
        match code {
            0 => Self::Populated,
            1 => Self::NotJoined,
            other => Self::Refused(Errno::from_raw_os_error((other - 2).max(1))),
        }
    }
}

/// Populates the file that is standard input, and returns the exit code that the broker understands.
#[must_use]
pub fn fill(told: &Fill) -> u8 {
    prepare(told);
    let joined = told.groups.iter().all(|group| join(group).is_ok());
    match populate(told) {
        Ok(()) if joined => End::Populated.code(),
        Ok(()) => End::NotJoined.code(),
        Err(error) => End::Refused(errno(&error)).code(),
    }
}

/// Ends with the broker, before it if memory is short, and gives way to other programs.
fn prepare(told: &Fill) {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    if told.background {
        let _ = rustix::process::nice(19);
    }
}

/// In version 2 "0" is the process that writes; in version 1 too.
fn join(group: &Path) -> std::io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

fn populate(told: &Fill) -> Result<(), LeaseError> {
    let file = std::io::stdin().as_fd().try_clone_to_owned();
    let file = file.map_err(|source| LeaseError::Kernel { call: "dup", source })?;
    let threads = if told.background { Threads::One } else { Threads::Auto };
    MemoryFile::check(file)?.populate(&PopulateOptions::new().threads(threads), told.node)
}

fn errno(error: &LeaseError) -> Errno {
    use hugekit::parallel::JobError;
    let known = match error {
        LeaseError::Populate(JobError::Chunk { error, .. }) => match error {
            PopulateError::NothingBehind | PopulateError::OutOfMemory => Some(Errno::NOMEM),
            PopulateError::Poisoned => Some(Errno::HWPOISON),
            PopulateError::Unsupported => Some(Errno::NOSYS),
            _ => None,
        },
        LeaseError::Pages { .. } => Some(Errno::NOMEM),
        other => hugekit::system_error(other).map(Errno::from_raw_os_error),
    };
    known.unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_filler_is_told_by_its_exit_code() {
        let ends = [End::Populated, End::NotJoined, End::Refused(Errno::NOMEM)];
        for end in ends.into_iter().chain([End::Refused(Errno::HWPOISON)]) {
            assert_eq!(End::of_code(end.code().into()), end);
        }
        // As of a program that panics.
        assert!(matches!(End::of_code(101), End::Refused(_)));
    }
}
