//! The processor's trap flag has a thread trap after each instruction; the handler of the trap sends its own
//! thread SIGUSR1, which is delivered right there unless it is blocked. Two kinds of instructions the handler
//! carries out itself: those that block SIGTRAP, after which a trap would be death, and those that repeat
//! themselves for each byte.

use std::arch::asm;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

pub const POSSIBLE: bool = true;

const TRAP_FLAG: i64 = 1 << 8;

/// Bytes of code of a string instruction that repeats itself, and of a system call.
const REPEATED: i64 = 2;
const SYSTEM_CALL: i64 = 2;

thread_local! {
    /// Instructions from one signal to the next; 0 if this thread is not stepped.
    static EVERY: Cell<u32> = const { Cell::new(0) };
    static LEFT: Cell<u32> = const { Cell::new(0) };
    /// Instructions that are left of a stretch.
    static STRETCH: Cell<u32> = const { Cell::new(0) };
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

/// The calling thread is not stepped until this is dropped: for long work of the scenario itself.
#[derive(Debug)]
pub struct Paused(u32);

impl Paused {
    #[must_use]
    pub fn new() -> Self {
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
        let context = &mut *context.cast::<libc::ucontext_t>();
        if EVERY.get() == 0 || STRETCH.get() == 0 || !crate::exposed::is_owner() {
            // The end of it, or a thread or process that was started meanwhile.
            context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
        } else {
            STRETCH.set(STRETCH.get() - 1);
            LEFT.set(LEFT.get().saturating_sub(1));
            // The last one of a stretch must not begin another.
            if LEFT.get() == 0 && STRETCH.get() > 0 {
                LEFT.set(EVERY.get());
                interrupt();
            }
            carry_out(context);
        }
        *libc::__errno_location() = errno;
    }
}

/// Carries out the next instruction, if it must not be stepped: one that repeats itself would trap each time,
/// and a system call that blocks SIGTRAP would have the next trap kill the process.
///
/// # Safety
/// The context of a thread that is about to execute the instruction that it points to.
unsafe fn carry_out(context: &mut libc::ucontext_t) {
    // SAFETY: the next instruction is readable, being executed.
    let next = unsafe {
        (context.uc_mcontext.gregs[libc::REG_RIP as usize] as *const [u8; 3]).read_unaligned()
    };
    // SAFETY: what the thread is about to do itself, with its own registers.
    unsafe {
        match next {
            [0xf3, 0xa4, _] => repeat(context, |mut to, mut from, count| {
                asm!("rep movsb", inout("rdi") to, inout("rsi") from, inout("rcx") count => _);
                (to, from)
            }),
            [0xf3, 0xaa, _] => {
                let byte = context.uc_mcontext.gregs[libc::REG_RAX as usize];
                repeat(context, |mut to, from, count| {
                    asm!("rep stosb", inout("rdi") to, inout("rcx") count => _, in("rax") byte);
                    (to, from)
                });
            }
            [0x0f, 0x05, _] => change_mask(context),
            _ => {}
        }
    }
}

/// A string instruction on the registers that it is about: `repeat` returns where it ended.
fn repeat(context: &mut libc::ucontext_t, repeat: impl FnOnce(i64, i64, i64) -> (i64, i64)) {
    let registers = &mut context.uc_mcontext.gregs;
    let [to, from, count] =
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RCX].map(|register| registers[register as usize]);
    let (to, from) = repeat(to, from, count);
    registers[libc::REG_RDI as usize] = to;
    registers[libc::REG_RSI as usize] = from;
    registers[libc::REG_RCX as usize] = 0;
    registers[libc::REG_RIP as usize] += REPEATED;
}

/// Does what `rt_sigprocmask` would, but for SIGTRAP, if that is the system call that comes next and it would
/// block that. The mask is active when the handler returns.
///
/// # Safety
/// The conditions of [`carry_out`].
unsafe fn change_mask(context: &mut libc::ucontext_t) {
    let register = |index: c_int| context.uc_mcontext.gregs[index as usize];
    let (how, set) = (register(libc::REG_RDI), register(libc::REG_RSI) as *const u64);
    let is_change = register(libc::REG_RAX) == libc::SYS_rt_sigprocmask && !set.is_null();
    if !is_change || how == i64::from(libc::SIG_UNBLOCK) {
        return;
    }
    // SAFETY: a set that is about to be handed to the kernel; the kernel's part of the context's mask.
    let (set, mask) =
        unsafe { (set.read_unaligned(), (&raw mut context.uc_sigmask).cast::<u64>()) };
    let trap = 1 << (libc::SIGTRAP - 1);
    if set & trap == 0 {
        return;
    }
    let before = register(libc::REG_RDX) as *mut u64;
    // SAFETY: where the caller wants to be told what was blocked, if it does.
    unsafe {
        let blocked = mask.read_unaligned();
        if !before.is_null() {
            before.write_unaligned(blocked);
        }
        let blocks_more = how == i64::from(libc::SIG_BLOCK);
        mask.write_unaligned((if blocks_more { blocked | set } else { set }) & !trap);
    }
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = 0;
    context.uc_mcontext.gregs[libc::REG_RIP as usize] += SYSTEM_CALL;
}

/// # Safety
/// The data that the kernel gave to a handler.
pub(super) unsafe fn go_on(context: *mut c_void) {
    if EVERY.get() > 0 {
        if STRETCH.get() == 0 {
            STRETCH.set(super::STRETCH.load(Ordering::Relaxed));
        }
        // SAFETY: `context` is the `ucontext_t` that the kernel gave to the calling handler, which alone has it until
        // it returns.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        registers[libc::REG_EFL as usize] |= TRAP_FLAG;
    }
}
