//! Priorities of other processes. Processes that populate ahead run only when no other thread needs
//! the CPU, until a client waits.
#![allow(unsafe_code)]

use rustix::io;
use rustix::process::{Pid, Resource, getrlimit, setpriority_process};
use rustix::thread::{CapabilitySet, capabilities};

/// Returns true if this process may raise a priority that it has lowered. An unprivileged process
/// may not. A process of `SCHED_IDLE` that cannot be raised would make a client wait as long as
/// other programs need the CPUs: 17.8 s in a trial.
pub(crate) fn may_raise() -> bool {
    let privileged =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
    // A nice value of 0 is 20 there.
    privileged || getrlimit(Resource::Nice).current.is_none_or(|limit| limit >= 20)
}

/// Makes the process's one thread run only when no other thread needs the CPU.
pub(crate) fn lower(process: Pid) -> io::Result<()> {
    schedule(process, libc::SCHED_IDLE)
}

/// Gives the process the usual priority again.
pub(crate) fn raise(process: Pid) -> io::Result<()> {
    schedule(process, libc::SCHED_OTHER)?;
    setpriority_process(Some(process), 0)
}

fn schedule(process: Pid, policy: libc::c_int) -> io::Result<()> {
    // The kernel's `struct sched_param`; musl's own is longer.
    let parameter: libc::c_int = 0;
    let pid = process.as_raw_nonzero().get();
    // SAFETY: the kernel reads one integer, and no memory of this process changes. (libc's own function fails on musl.)
    let answer =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, pid, policy, &raw const parameter) };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(io::Errno::PERM))
    }
}
