//! A program that is killed before one of its calls that change files. The kernel lets it begin the call, and the call
//! is not carried out.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;

/// Runs a program, and kills it before it makes its call of this number that changes files. Calls on descriptors count
/// if the file is in `folder`, and the folder itself counts. Returns the call. `None` if the program has ended before
/// it.
///
/// # Errors
/// The kernel permits no tracing.
pub(crate) fn killed_before(
    mut command: Command,
    folder: &Path,
    number: usize,
) -> io::Result<Option<&'static str>> {
    // SAFETY: the call is async-signal-safe.
    unsafe { command.pre_exec(|| ptrace(libc::PTRACE_TRACEME, 0, 0).map(|_| ())) };
    let program = command.spawn()?.id().cast_signed();
    wait(program)?;
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    ptrace(libc::PTRACE_SETOPTIONS, program, options as usize)?;
    ptrace(libc::PTRACE_SYSCALL, program, 0)?;
    let (mut calls, mut last) = (0, None);
    loop {
        // Of the threads of the program: other tests of this process have children, too.
        let (thread, status) = wait(-1)?;
        if !libc::WIFSTOPPED(status) {
            if thread == program {
                assert!(last.is_some() || status == 0, "the program failed: {status:#x}");
                return Ok(last);
            }
            continue;
        }
        let signal = match libc::WSTOPSIG(status) {
            _ if status >> 16 != 0 => 0,
            libc::SIGSTOP | libc::SIGTRAP => 0,
            signal if signal == libc::SIGTRAP | 0x80 => {
                if last.is_none()
                    && let Some(call) = begun_change(thread, folder)
                {
                    if calls == number {
                        last = Some(call);
                        // SAFETY: a child of this thread that was not waited for.
                        unsafe { libc::kill(program, libc::SIGKILL) };
                    }
                    calls += 1;
                }
                0
            }
            signal => signal,
        };
        // The kill may have ended the thread.
        let _ = ptrace(libc::PTRACE_SYSCALL, thread, signal as usize);
    }
}

/// The call that a stopped thread begins, if it changes files.
fn begun_change(thread: i32, folder: &Path) -> Option<&'static str> {
    // SAFETY: zeroed, the structure is a valid one; the kernel writes as much as it is told there is.
    let (call, arguments) = unsafe {
        let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
        let size = size_of_val(&info) as *mut c_void;
        let said = libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, &raw mut info);
        if said <= 0 || info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return None;
        }
        (info.u.entry.nr as c_long, info.u.entry.args)
    };
    let is_there = |descriptor: u64| {
        let link = fs::read_link(format!("/proc/{thread}/fd/{descriptor}"));
        link.is_ok_and(|path| path.starts_with(folder))
    };
    #[cfg(target_arch = "x86_64")]
    match call {
        libc::SYS_rename => return Some("rename"),
        libc::SYS_unlink => return Some("unlink"),
        _ => {}
    }
    match call {
        libc::SYS_openat if arguments[2] as c_int & libc::O_CREAT != 0 => Some("open"),
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev | libc::SYS_pwritev
            if is_there(arguments[0]) =>
        {
            Some("write")
        }
        libc::SYS_ftruncate if is_there(arguments[0]) => Some("truncate"),
        libc::SYS_fsync | libc::SYS_fdatasync if is_there(arguments[0]) => Some("fsync"),
        libc::SYS_renameat | libc::SYS_renameat2 => Some("rename"),
        libc::SYS_unlinkat => Some("unlink"),
        _ => None,
    }
}

/// The thread that stopped or ended, and how: a child of this thread.
fn wait(process: i32) -> io::Result<(i32, c_int)> {
    let mut status = 0;
    // SAFETY: one status is written.
    let thread =
        unsafe { libc::waitpid(process, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
    if thread < 0 { Err(io::Error::last_os_error()) } else { Ok((thread, status)) }
}

fn ptrace(request: libc::c_uint, thread: i32, data: usize) -> io::Result<c_long> {
    // SAFETY: a thread that this one traces, or its own request to be traced; no memory is written.
    let said = unsafe { libc::ptrace(request, thread, ptr::null_mut::<c_void>(), data) };
    if said < 0 { Err(io::Error::last_os_error()) } else { Ok(said) }
}
