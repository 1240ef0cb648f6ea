//! Trying something in a real fork of the test.

/// Runs `child` in a forked process and returns its exit code; a child that hangs is killed by its
/// alarm.
pub(crate) fn in_a_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs hugekit, which promises to work there, and leaves by `_exit`; glibc
    // keeps its allocator usable across a fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: neither has a precondition.
        unsafe {
            libc::alarm(60);
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            libc::_exit(code.unwrap_or(101));
        }
    }
    let mut status = 0;
    // SAFETY: one status is written.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status)
}
