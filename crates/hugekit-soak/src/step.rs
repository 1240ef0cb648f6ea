//! A signal after every instruction.
//!
//! The processor's trap flag has a thread trap after each instruction; the handler of the trap sends its own
//! thread SIGUSR1, which is delivered right there unless it is blocked. Code that blocks every signal, SIGTRAP
//! too, would be killed by a trap: where such a system call comes next the flag is cleared, and the signal that
//! is pending meanwhile sets it again as soon as it is delivered. Only x86-64 has such a flag.

use std::ffi::c_void;

/// Whether this CPU's threads can be stepped by themselves.
pub const POSSIBLE: bool = cfg!(target_arch = "x86_64");

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::cell::Cell;
    use std::ffi::{c_int, c_void};
    use std::ptr;

    const TRAP_FLAG: i64 = 1 << 8;

    thread_local! {
        /// Instructions from one signal to the next; 0 if this thread is not stepped.
        static EVERY: Cell<u32> = const { Cell::new(0) };
        static LEFT: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) fn install() {
        // SAFETY: `on_trap` allocates nothing and takes no lock. It runs on the interrupted thread's stack,
        // and SIGUSR1 is delivered when it returns.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_trap as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
            assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, ptr::null_mut()), 0);
        }
    }

    /// The calling thread is stepped until this is dropped.
    pub(super) struct Stepped;

    impl Stepped {
        pub(super) fn new(every: u32) -> Self {
            LEFT.set(every);
            EVERY.set(every);
            interrupt(); // The handler of the signal sets the flag.
            Self
        }
    }

    /// The calling thread is not stepped until this is dropped.
    pub(super) struct Paused(u32);

    impl Paused {
        pub(super) fn new() -> Self {
            Self(EVERY.replace(0))
        }
    }

    impl Drop for Paused {
        fn drop(&mut self) {
            if self.0 > 0 {
                std::mem::forget(Stepped::new(self.0));
            }
        }
    }

    impl Drop for Stepped {
        fn drop(&mut self) {
            EVERY.set(0); // The next trap clears the flag.
        }
    }

    fn interrupt() {
        // SAFETY: a signal to the calling thread.
        unsafe {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGUSR1);
        }
    }

    extern "C" fn on_trap(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel's context; the address of the calling thread's errno.
        unsafe {
            let errno = *libc::__errno_location();
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            let is_blind = EVERY.get() == 0 || blocks_traps(registers);
            if is_blind {
                registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
            }
            LEFT.set(LEFT.get().saturating_sub(1));
            if EVERY.get() > 0 && (is_blind || LEFT.get() == 0) {
                LEFT.set(EVERY.get());
                interrupt();
            }
            *libc::__errno_location() = errno;
        }
    }

    /// Whether the next instruction is a system call that blocks SIGTRAP.
    ///
    /// # Safety
    /// The registers of a thread that is about to execute what they point to.
    unsafe fn blocks_traps(registers: &[i64; 23]) -> bool {
        let register = |index: c_int| registers[index as usize];
        // SAFETY: the next instruction is readable, being executed, and so is a set that is handed to the kernel.
        unsafe {
            let next = register(libc::REG_RIP) as *const [u8; 2];
            let set = register(libc::REG_RSI) as *const u64;
            next.read_unaligned() == [0x0f, 0x05]
                && register(libc::REG_RAX) == libc::SYS_rt_sigprocmask
                && register(libc::REG_RDI) != i64::from(libc::SIG_UNBLOCK)
                && !set.is_null()
                && set.read_unaligned() >> (libc::SIGTRAP - 1) & 1 == 1
        }
    }

    /// # Safety
    /// What the kernel gave to a handler.
    pub(super) unsafe fn go_on(context: *mut c_void) {
        if EVERY.get() > 0 {
            // SAFETY: the caller's to promise.
            let registers =
                unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
            registers[libc::REG_EFL as usize] |= TRAP_FLAG;
        }
    }
}

/// To be called once, before anything is stepped.
pub fn install() {
    #[cfg(target_arch = "x86_64")]
    x86::install();
}

/// Runs `work` with a signal after every so many instructions of this thread; as it is where that is 0, or
/// where threads cannot be stepped.
pub fn every<R>(instructions: u32, work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    let _stepped = (instructions > 0).then(|| x86::Stepped::new(instructions));
    work()
}

/// Runs what touches none of the memory concerned, and takes long, without stepping this thread.
pub fn paused<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    let _paused = x86::Paused::new();
    work()
}

/// Has an interrupted thread go on as it was stepped before. Async-signal-safe.
///
/// # Safety
/// What the kernel gave to a handler.
pub(crate) unsafe fn go_on(context: *mut c_void) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's to promise.
    unsafe {
        x86::go_on(context);
    }
}
