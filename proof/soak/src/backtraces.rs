//! The stack of every thread of a hung process, from outside of it.

use std::ffi::c_int;
use std::process::{Command, Stdio};
use std::ptr;
use std::time::{Duration, Instant};

use crate::storm::threads_of;

/// Has this process print a thread's backtrace on SIGXCPU, for where there is no debugger, and lets any
/// process debug it.
pub fn allow() {
    // SAFETY: the handler is meant for a process that is about to be killed.
    unsafe {
        libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = print_own as *const () as usize;
        libc::sigaction(libc::SIGXCPU, &raw const action, ptr::null_mut());
    }
}

extern "C" fn print_own(_: c_int) {
    // SAFETY: no precondition.
    let thread = unsafe { libc::gettid() };
    eprintln!("thread {thread}:\n{}", std::backtrace::Backtrace::force_capture());
}

/// Prints each thread's state, as the kernel reports it, and its backtrace.
pub fn print(process: i32) {
    for thread in threads_of(process) {
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/{name}"));
            text.unwrap_or_default().trim().replace('\n', " < ")
        };
        eprintln!(
            "thread {thread} ({}): waits in {:?}, system call {}, kernel stack {}",
            read("comm"),
            read("wchan"),
            read("syscall"),
            read("stack")
        );
    }
    if !debugger_prints(process) {
        for thread in threads_of(process) {
            // SAFETY: a signal to a thread of a child.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGXCPU) };
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

/// Returns true if gdb was started and came to an end.
fn debugger_prints(process: i32) -> bool {
    let gdb = Command::new("gdb")
        .args(["-nx", "-batch", "-ex", "set print frame-arguments none"])
        .args(["-ex", "thread apply all backtrace 24", "-p"])
        .arg(process.to_string())
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut gdb) = gdb else { return false };
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        if let Ok(Some(status)) = gdb.try_wait() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = gdb.kill();
    let _ = gdb.wait();
    false
}
