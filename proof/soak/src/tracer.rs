//! A signal at every system call of every thread: at its beginning, where it has a wait return EINTR, and at
//! its end. The tracer is the traced process's parent, which needs no privilege.

use std::collections::HashMap;
use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

/// By this signal, sent to itself, the traced process begins and ends to be interrupted.
pub const TOGGLE: c_int = libc::SIGUSR2;

/// A system call that is repeated from the same place because it was interrupted each time is let through after this
/// many attempts: `clone` makes no thread while a signal is pending.
const MOST_REPEATS: u32 = 32;

/// A thread of the traced process.
#[derive(Debug, Default)]
struct Thread {
    /// The signals whose handlers it is in.
    handlers: Vec<c_int>,
    /// True if the current system call ends a handler.
    is_returning: bool,
    last_call: (u64, u64),
    repeats: u32,
}

/// Runs a program and interrupts it; returns what `waitpid` said of its end.
///
/// # Errors
/// The kernel's error where it does not permit it.
pub fn run(mut command: Command) -> io::Result<c_int> {
    // SAFETY: the call is async-signal-safe.
    unsafe { command.pre_exec(|| ptrace(libc::PTRACE_TRACEME, 0, 0).map(|_| ())) };
    let traced = command.spawn()?.id() as i32;
    let mut status = 0;
    // SAFETY: one status is written.
    unsafe { libc::waitpid(traced, &raw mut status, 0) };
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
    ptrace(libc::PTRACE_SETOPTIONS, traced, options as usize)?;
    let _ = ptrace(libc::PTRACE_SYSCALL, traced, 0);
    follow(traced)
}

fn follow(traced: i32) -> io::Result<c_int> {
    let (mut threads, mut is_on) = (HashMap::<i32, Thread>::new(), false);
    loop {
        let mut status = 0;
        // SAFETY: one status is written.
        let stopped = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        if stopped < 0 {
            return Err(io::Error::last_os_error());
        }
        if !libc::WIFSTOPPED(status) {
            threads.remove(&stopped);
            if stopped == traced {
                return Ok(status);
            }
            continue;
        }
        let thread = threads.entry(stopped).or_default();
        let signal = thread.resumed_with(stopped, status, &mut is_on);
        // A thread may have been killed meanwhile.
        let _ = ptrace(libc::PTRACE_SYSCALL, stopped, signal as usize);
    }
}

impl Thread {
    /// The signal that the thread goes on with, or 0.
    fn resumed_with(&mut self, id: i32, status: c_int, is_on: &mut bool) -> c_int {
        match libc::WSTOPSIG(status) {
            _ if status >> 16 != 0 => 0,
            signal if signal == libc::SIGTRAP | 0x80 => {
                if self.at_call(id) && *is_on {
                    libc::SIGUSR1
                } else {
                    0
                }
            }
            TOGGLE => {
                *is_on = !*is_on;
                0
            }
            libc::SIGSTOP | libc::SIGTRAP => 0,
            signal => {
                if matches!(signal, libc::SIGUSR1 | libc::SIGBUS | libc::SIGSEGV) {
                    self.handlers.push(signal);
                }
                signal
            }
        }
    }

    /// Returns true if the system call that it begins or ends is to be interrupted. This is false for the handler's own
    /// calls, and for the call that ends the handler, after which it would be called for ever.
    fn at_call(&mut self, id: i32) -> bool {
        let Some(call) = begun_call(id) else { return !self.is_returning && !self.is_in_handler() };
        self.is_returning = call.0 == libc::SYS_rt_sigreturn as u64;
        if self.is_returning {
            self.handlers.pop();
            return false;
        }
        if self.is_in_handler() {
            return false;
        }
        self.repeats = if call == self.last_call { self.repeats + 1 } else { 0 };
        self.last_call = call;
        self.repeats < MOST_REPEATS
    }

    fn is_in_handler(&self) -> bool {
        self.handlers.contains(&libc::SIGUSR1)
    }
}

/// The number of the system call that a stopped thread begins, and where; `None` if it ends one.
fn begun_call(thread: i32) -> Option<(u64, u64)> {
    // SAFETY: zeroed, the structure is a valid one; the kernel writes as much as it is told there is.
    unsafe {
        let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
        let said = libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            thread,
            size_of_val(&info) as *mut c_void,
            &raw mut info,
        );
        let begins = said > 0 && info.op == libc::PTRACE_SYSCALL_INFO_ENTRY;
        begins.then_some((info.u.entry.nr, info.instruction_pointer))
    }
}

fn ptrace(request: libc::c_uint, thread: i32, data: usize) -> io::Result<c_long> {
    // SAFETY: a thread that this one traces, or its own request to be traced; no memory is written.
    let said = unsafe { libc::ptrace(request, thread, ptr::null_mut::<c_void>(), data) };
    if said < 0 { Err(io::Error::last_os_error()) } else { Ok(said) }
}

/// Begins, or ends, to be interrupted.
pub fn toggle() {
    // SAFETY: the tracer keeps the signal to itself.
    unsafe { libc::raise(TOGGLE) };
}
