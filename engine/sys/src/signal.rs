//! Signal handlers: their installation, the former handler, and passing a signal on to it.
//!
//! rustix leaves handlers to libc, which must know them.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use rustix::io;

use super::injection::{Call, pass};
use super::last_error;
use super::thread::{SignalMask, hold_back};

/// A signal handler that gets all arguments of the kernel.
pub type SignalHandler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The disposition of a process for a signal.
#[derive(Clone)]
pub struct Disposition(libc::sigaction);

/// The origin of a signal, as its code names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel could not perform an access to this address.
    Fault(usize),
    /// The memory at this address is defective.
    BrokenMemory(usize),
    /// A process sent the signal, or it has another origin.
    Other,
}

/// Returns the current action of a signal.
pub fn in_force(signal: c_int) -> io::Result<Disposition> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    pass(Call::Sigaction)?;
    // SAFETY: one structure is written; zeroed, it is a valid one.
    let refused = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0;
    last_error(refused)?;
    // SAFETY: all-zero bytes are a valid `sigaction`, and a successful call has filled it.
    Ok(Disposition(unsafe { action.assume_init() }))
}

/// Installs a handler. It runs on the thread's alternate stack if there is one. All signals are
/// blocked while it runs, except signals that an instruction causes, this signal included.
///
/// # Safety
/// The handler is async-signal-safe.
pub unsafe fn install(signal: c_int, handler: SignalHandler) -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    pass(Call::Sigaction)?;
    // SAFETY: all-zero bytes are a valid `sigaction`, whose fields are then set. The handler is async-signal-safe: the
    // contract of this function.
    let refused = unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        action.sa_mask = SignalMask::asynchronous().0;
        libc::sigaction(signal, action, ptr::null_mut())
    } != 0;
    last_error(refused)
}

/// Returns the origin of a SIGBUS.
///
/// # Safety
/// `info` is the argument that the kernel gave to a handler of SIGBUS.
pub unsafe fn cause(info: *const libc::siginfo_t) -> Cause {
    // SAFETY: `info` is what the kernel gave to a handler, so it is valid. With these codes the kernel sets `si_addr`.
    unsafe {
        let address = || (*info).si_addr() as usize;
        match (*info).si_code {
            libc::BUS_ADRERR => Cause::Fault(address()),
            libc::BUS_MCEERR_AR | libc::BUS_MCEERR_AO => Cause::BrokenMemory(address()),
            _ => Cause::Other,
        }
    }
}

/// Returns the address of the access if the rights of a mapping forbade it; `None` for other
/// reasons of a SIGSEGV.
///
/// # Safety
/// `info` is the argument that the kernel gave to a handler of SIGSEGV.
pub unsafe fn forbidden(info: *const libc::siginfo_t) -> Option<usize> {
    /// `SEGV_ACCERR`, the same on all architectures.
    const RIGHTS: c_int = 2;
    // SAFETY: `info` is what the kernel gave to a handler, so it is valid. With this code the kernel sets `si_addr`.
    unsafe { ((*info).si_code == RIGHTS).then(|| (*info).si_addr() as usize) }
}

/// Acts as the disposition demands, as if the kernel had done it. Async-signal-safe.
///
/// # Safety
/// The handler of that signal calls this, with the arguments from the kernel.
pub unsafe fn pass_on(
    to: &Disposition,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let action = &to.0;
    // SAFETY: `info` is what the kernel gave to the calling handler, so it is valid. Only the kernel uses codes above
    // 0.
    let forced = unsafe { (*info).si_code } > 0;
    match action.sa_sigaction {
        // What the kernel forces cannot be ignored.
        libc::SIG_IGN if !forced => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the calling handler handles this signal, and `info` is what the kernel gave it: the contract of
            // this function.
            unsafe { die_of(signal, info) }
        }
        handler => {
            // SAFETY: `info` and `context` are what the kernel gave to the calling handler. `handler` is neither
            // SIG_DFL nor SIG_IGN, so it is the function that the program installed, and it is called by the signature
            // that its flags name.
            unsafe {
                SignalMask::of_context(context).with(action, signal).set();
                if action.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler = std::mem::transmute::<usize, SignalHandler>(handler);
                    handler(signal, info, context);
                } else {
                    let handler = std::mem::transmute::<usize, extern "C" fn(c_int)>(handler);
                    handler(signal);
                }
            }
        }
    }
}

/// Lets the default action happen at the place where the signal interrupted the thread, so that a
/// core dump shows it. The same signal is sent again, and waits until the handler has returned. A
/// repetition of the access would not be sufficient, because there may be none: the kernel also
/// reports memory that failed after a system call that read it.
///
/// # Safety
/// The conditions of [`pass_on`].
#[cold]
#[inline(never)] // what it needs of a signal stack is not there for each fault
unsafe fn die_of(signal: c_int, info: *mut libc::siginfo_t) {
    hold_back(signal);
    // SAFETY: the default needs no handler. The information is the kernel's and goes back as it is; where
    // that is refused (it may not pretend to be the kernel's towards others), the bare signal does.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        let information = info.cast_const();
        let again =
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, information);
        if again != 0 {
            libc::raise(signal);
        }
    }
}

impl Disposition {
    /// The disposition of a process that has set none.
    // SAFETY: zeroed, the structure is a valid one, and that is the default.
    pub const DEFAULT: Self = Self(unsafe { std::mem::zeroed() });

    /// Returns true if the disposition is this handler.
    pub fn is(&self, handler: SignalHandler) -> bool {
        self.0.sa_sigaction == handler as *const () as usize
    }

    /// Returns true if the disposition is the default.
    pub fn is_default(&self) -> bool {
        self.0.sa_sigaction == libc::SIG_DFL
    }

    /// Returns true if the disposition is a function, not the default and not to ignore the signal.
    pub fn is_function(&self) -> bool {
        !matches!(self.0.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
    }

    /// Returns true if the kernel resets the disposition after one call (`SA_RESETHAND`).
    pub fn is_for_once(&self) -> bool {
        self.0.sa_flags & libc::SA_RESETHAND != 0
    }
}

impl std::fmt::Debug for Disposition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Disposition").field(&self.0.sa_sigaction).finish()
    }
}

/// The calling thread's `errno`, which a drop restores, because the interrupted code may be about
/// to read it.
#[derive(Debug)]
pub struct ErrnoKept(c_int);

impl ErrnoKept {
    pub fn new() -> Self {
        // SAFETY: the address of the calling thread's errno is valid for as long as it lives.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for ErrnoKept {
    fn drop(&mut self) {
        // SAFETY: the address of the calling thread's errno is valid for as long as the thread lives. It is written
        // only if it has to be: the thread's variables may lie in memory that is being protected, and each store would
        // be one more fault within the handler.
        unsafe {
            let errno = libc::__errno_location();
            if *errno != self.0 {
                *errno = self.0;
            }
        }
    }
}
