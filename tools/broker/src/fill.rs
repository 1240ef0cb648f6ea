//! The process that populates a unit. The kernel's OOM killer may end this process, and its control
//! group is charged.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use hugekit::{PopulateError, PopulateOptions, Threads};
use hugekit_lease::{LeaseError, MemoryFile};
use hugekit_sys::thread::cpu_time;
use rustix::io::Errno;
use rustix::process::Signal;

/// The orders to the process that populates a unit. Its standard input is the file.
#[derive(Clone, Debug, Default)]
pub struct Fill {
    /// True for one thread with rests, of the lowest priority that can be raised again. False for
    /// as many threads as are useful.
    pub background: bool,
    /// True for transparent huge pages, if the file is shared memory.
    pub thp: bool,
    /// The NUMA node of the pages.
    pub node: Option<u32>,
    /// Directories of control groups that the process joins first.
    pub groups: Vec<PathBuf>,
}

/// The outcome of the process, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All of the file is populated, charged to the groups.
    Populated,
    /// All of the file is populated, but the process could not join the groups.
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

/// Populates the file that is standard input. Writes the number of bytes on huge pages to standard
/// output, and returns the exit code for the broker.
#[must_use]
pub fn fill(told: &Fill) -> u8 {
    prepare(told.background);
    let joined = told.groups.iter().all(|group| join(group).is_ok());
    match populate(told) {
        Ok(huge) => {
            // Less than a pipe holds, so that it is not waited for.
            let _ = std::io::stdout().write_all(&huge.to_le_bytes());
            let _ = std::io::stdout().flush();
            if joined { End::Populated.code() } else { End::NotJoined.code() }
        }
        Err(error) => End::Refused(errno(&error)).code(),
    }
}

/// Makes this process end with the broker, be the first victim if memory is short, and give way to
/// other programs.
pub(crate) fn prepare(background: bool) {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    if background {
        let _ = rustix::process::nice(19);
    }
}

/// Joins a control group. The text "0" means the writing process, in version 1 and in version 2.
pub(crate) fn join(group: &Path) -> std::io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

fn populate(told: &Fill) -> Result<u64, LeaseError> {
    let file = std::io::stdin().as_fd().try_clone_to_owned();
    let file = file.map_err(|source| LeaseError::Kernel { call: "dup", source })?;
    let memory = MemoryFile::check(file)?;
    // Whether shared memory is to be on huge pages is nothing that its file tells.
    let memory = if told.thp { memory } else { memory.on_base_pages() };
    if !told.background {
        return memory.populate(&PopulateOptions::new().threads(Threads::Auto), told.node);
    }
    let pace = FillPace::new();
    let rest = |done: usize, total: usize| pace.rest(done < total);
    memory.populate(&PopulateOptions::new().progress(&rest), told.node)
}

/// The time that a filler in the background rests after each chunk, as a multiple of its working
/// time.
///
/// The lowest priority keeps the filler off CPUs that other programs need, but not off the memory
/// that they share: clearing without rests used 43 % of the bandwidth of a program on another CPU
/// (docs/decisions/0024-lease.md). A waiting client is not slowed down, because another process,
/// which does not rest, then helps to populate.
const REST: u32 = 3;

/// Work and rest of the one thread that populates.
struct FillPace {
    /// CPU time of the thread at the end of the last rest. Time that the thread waited is not work.
    worked: Mutex<Duration>,
}

impl FillPace {
    fn new() -> Self {
        Self { worked: Mutex::new(cpu_time()) }
    }

    fn rest(&self, is_more_to_do: bool) {
        let mut worked = self.worked.lock().expect("no thread panics with it");
        if is_more_to_do {
            thread::sleep((cpu_time() - *worked) * REST);
        }
        *worked = cpu_time();
    }
}

fn errno(error: &LeaseError) -> Errno {
    use hugekit_bulk::parallel::JobError;
    let known = match error {
        LeaseError::Populate(JobError::Chunk { error, .. }) => match error {
            PopulateError::NothingBehind | PopulateError::OutOfMemory => Some(Errno::NOMEM),
            PopulateError::Poisoned => Some(Errno::HWPOISON),
            PopulateError::Unsupported => Some(Errno::NOSYS),
            _ => None,
        },
        LeaseError::Pages(_) => Some(Errno::NOMEM),
        other => hugekit::system_error(other).map(Errno::from_raw_os_error),
    };
    known.unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_as_long_as_the_work_was_and_none_is_after_the_last_chunk() {
        let pace = FillPace::new();
        let since = cpu_time();
        while cpu_time() - since < Duration::from_millis(5) {}
        let rested = std::time::Instant::now();
        pace.rest(true);
        assert!(rested.elapsed() >= REST * Duration::from_millis(5));
        // What was slept is no work.
        assert!(cpu_time() - *pace.worked.lock().unwrap() < Duration::from_millis(5));
        *pace.worked.lock().unwrap() = Duration::ZERO;
        pace.rest(false);
        assert!(*pace.worked.lock().unwrap() > Duration::ZERO);
    }

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
