//! Processes: possibly fatal attempts in a child, and facts about this process.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use super::injection::{Call, pass};
use rustix::io;
use rustix::process::{DumpableBehavior, Pid, WaitOptions, set_dumpable_behavior, waitpid};

/// Returns true if a process survives `attempt`. The attempt runs in a forked child that leaves no
/// core dump.
///
/// # Safety
/// `attempt` is async-signal-safe: it runs between `fork` and `_exit`, when another thread may have
/// held any lock at the fork.
pub unsafe fn survives(attempt: fn()) -> io::Result<bool> {
    pass(Call::Fork)?;
    // SAFETY: the child calls `attempt`, which is async-signal-safe by contract, system calls of rustix, which take no locks,
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

/// Returns the approximate number of bytes of all thread-local variables in each thread. Alignment
/// is not counted.
pub fn thread_local_bytes() -> usize {
    extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, sum: *mut c_void) -> c_int {
        // SAFETY: the loader describes one object, with so many headers; `sum` is what was given below.
        unsafe {
            let headers =
                std::slice::from_raw_parts((*info).dlpi_phdr, usize::from((*info).dlpi_phnum));
            let own = headers.iter().filter(|header| header.p_type == libc::PT_TLS);
            *sum.cast::<usize>() += own.map(|header| header.p_memsz as usize).sum::<usize>();
        }
        0
    }
    let mut sum = 0_usize;
    // SAFETY: `add` is called with the pointer given here, before this returns.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut sum).cast()) };
    sum
}

/// Returns true if the calling thread has a system-call filter.
pub fn is_filtered() -> bool {
    // SAFETY: answers with a number and takes no pointer; without seccomp, with an error.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) == 2 }
}

/// Returns true if the calling thread may read the CPU's clock directly. `prctl(PR_SET_TSC)` can
/// make such a read end in SIGSEGV. Without this setting the thread may.
pub fn may_read_ticks() -> bool {
    let mut state: c_int = libc::PR_TSC_ENABLE;
    // SAFETY: writes one number at most; where the request is not known, nothing.
    unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut state) };
    state == libc::PR_TSC_ENABLE
}

fn lived(child: Pid) -> io::Result<bool> {
    let waited = io::retry_on_intr(|| {
        pass(Call::Waitpid)?;
        waitpid(Some(child), WaitOptions::empty())
    })?;
    Ok(waited.is_some_and(|(_, status)| status.exited()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_a_killed_child_is_told_from_an_exit() {
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
