//! Trying something in a real fork of the test.
#![allow(unsafe_code)]
use std::time::Duration;

/// Runs `child` in a forked process and returns its exit code; a child that hangs is killed by its
/// alarm.
pub fn in_a_child(child: impl FnOnce() -> i32) -> i32 {
    let status = wait_for(fork(child));
    assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status)
}

/// Runs `child`, which does not end by itself, in a forked process, and kills it after a while.
pub fn killed(after: Duration, child: impl FnOnce() -> i32) {
    let pid = fork(child);
    std::thread::sleep(after);
    // SAFETY: a child of this process that no thread has waited for yet.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    let status = wait_for(pid);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status:#x}");
}

/// The signal that ends a forked process that runs `child`, if one does: its alarm if it hangs.
pub fn died_of(child: impl FnOnce()) -> Option<i32> {
    let status = wait_for(fork(|| {
        child();
        0
    }));
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

fn fork(child: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child runs hugekit, which promises to work there, and leaves by `_exit`; glibc
    // keeps its allocator usable across a fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: neither has a precondition.
        unsafe {
            libc::alarm(240);
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            libc::_exit(code.unwrap_or(101));
        }
    }
    pid
}

fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: one status is written.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}
