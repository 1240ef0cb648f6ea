//! Signals that one thread waits for, and no handler runs for.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signal {
    pub(super) number: i32,
    /// Sent by the kernel, as those of a terminal's keys are: then every process of the group has got it.
    pub(super) is_kernels: bool,
}

/// Signals that are blocked in the thread that made this value, and in threads that it starts later.
#[derive(Clone, Copy)]
pub(super) struct Signals {
    blocked: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    /// Blocks these, but not those that the process was started to ignore (`nohup`). Call it before other threads run,
    /// because one that does not block a signal gets it.
    pub(super) fn block(numbers: &[i32]) -> io::Result<Self> {
        let taken = numbers.iter().copied().filter(|&number| !is_ignored(number));
        let mut blocked = empty();
        let mut before = empty();
        for number in taken {
            // SAFETY: the set is initialised.
            unsafe { libc::sigaddset(&raw mut blocked, number) };
        }
        // SAFETY: both sets are initialised, and the calling thread's mask is its own.
        let failed =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut before) };
        if failed == 0 {
            Ok(Self { blocked, before })
        } else {
            Err(io::Error::from_raw_os_error(failed))
        }
    }

    /// Has a program start with the signals blocked that this process was started with.
    pub(super) fn restore_in(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: between fork and exec the closure calls one function, which is async-signal-safe, on a set of its own.
        unsafe {
            command.pre_exec(move || {
                match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) {
                    0 => Ok(()),
                    failed => Err(io::Error::from_raw_os_error(failed)),
                }
            });
        }
    }

    /// Waits for the next one.
    pub(super) fn wait(&self) -> Signal {
        loop {
            let mut told = MaybeUninit::<libc::siginfo_t>::uninit();
            // SAFETY: the set is initialised, and the kernel writes one `siginfo_t` before it returns a number.
            let number = unsafe { libc::sigwaitinfo(&raw const self.blocked, told.as_mut_ptr()) };
            if number > 0 {
                // SAFETY: written, because there is a number.
                let code = unsafe { told.assume_init() }.si_code;
                return Signal { number, is_kernels: code == libc::SI_KERNEL };
            }
            // EINTR: the process was stopped and continued.
        }
    }
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call initialises the set, and cannot fail.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// SIGCHLD that is ignored has the kernel reap children, whose status is lost then: it is made as it is by default.
fn is_ignored(number: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call changes nothing and writes the action, unless the number is no signal's. For SIGCHLD the default
    // action is set, which runs no code.
    unsafe {
        if libc::sigaction(number, ptr::null(), action.as_mut_ptr()) != 0
            || action.assume_init().sa_sigaction != libc::SIG_IGN
        {
            return false;
        }
        if number == libc::SIGCHLD {
            libc::signal(number, libc::SIG_DFL);
        }
    }
    number != libc::SIGCHLD
}
