//! Processes: what may be fatal tried in a child, and whose environment can be trusted.
#![allow(unsafe_code)]

use rustix::io;
use rustix::process::{DumpableBehavior, Pid, WaitOptions, set_dumpable_behavior, waitpid};

/// Whether a process lives through `attempt`, found out by a forked child that leaves no core dump.
///
/// # Safety
/// `attempt` must be async-signal-safe: it runs between `fork` and `_exit`, where another thread may have held
/// any lock when the process was copied.
pub(crate) unsafe fn survives(attempt: fn()) -> io::Result<bool> {
    // SAFETY: the child calls only what the caller vouches for, system calls of rustix, which take no locks,
    // and `_exit`, which runs no destructors and flushes no buffers of the parent.
    match unsafe { libc::fork() } {
        0 => {
            let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
            attempt();
            // SAFETY: `_exit` has no precondition; it does not return.
            unsafe { libc::_exit(0) }
        }
        child => lived(Pid::from_raw(child).ok_or(io::Errno::AGAIN)?),
    }
}

/// Whether the process runs with more privilege than who started it, and chose its environment.
pub(crate) fn is_secure_execution() -> bool {
    // SAFETY: reads a vector that the kernel put into this process; an unknown key answers 0.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether a system-call filter is in force for the calling thread.
pub(crate) fn is_filtered() -> bool {
    // SAFETY: answers with a number and takes no pointer; without seccomp, with an error.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) == 2 }
}

fn lived(child: Pid) -> io::Result<bool> {
    let waited = io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
    Ok(waited.is_some_and(|(_, status)| status.exited()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_told_from_an_exit() {
        // SAFETY: nothing at all is async-signal-safe.
        assert_eq!(unsafe { survives(|| ()) }, Ok(true));
        let die = || {
            // SAFETY: `raise` is async-signal-safe by signal-safety(7).
            unsafe { libc::raise(libc::SIGKILL) };
        };
        // SAFETY: see `die`.
        assert_eq!(unsafe { survives(die) }, Ok(false));
    }
}
