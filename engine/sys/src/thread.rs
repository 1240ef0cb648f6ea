//! Threads: their CPUs, their priorities, and the signals that reach them.
//!
//! Affinity does not use rustix, because its sets end at 1,024 CPUs.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulong, c_void};
use std::io::Write as _;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, size_of_val};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io;
use rustix::time::{ClockId, clock_gettime};

use super::injection::{Call, pass};
use super::{last_error, mapping};
use crate::cpu_set::CpuSet;

const BITS: usize = c_ulong::BITS as usize;

/// Words of an affinity mask that suffice for 1,024 CPUs, glibc's own limit.
const USUAL_WORDS: usize = 1024 / BITS;

/// Words for 2²⁰ CPUs. A kernel that refuses this many has another reason.
const MOST_WORDS: usize = (1 << 20) / BITS;

/// Returns the CPU time of the calling thread.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("time spent is not negative")
}

/// Returns the CPUs that the calling thread may run on.
pub fn affinity() -> io::Result<CpuSet> {
    let mut words: Vec<c_ulong> = vec![0; USUAL_WORDS];
    loop {
        let bytes = size_of_val(words.as_slice());
        let mut ask = || {
            pass(Call::SchedGetaffinity)?;
            // SAFETY: the kernel writes at most `bytes` bytes to `words`, which holds as many.
            last_error(unsafe { libc::sched_getaffinity(0, bytes, words.as_mut_ptr().cast()) } != 0)
        };
        match ask() {
            Ok(()) => return Ok(set_of(&words)),
            // The kernel's own mask is longer.
            Err(io::Errno::INVAL) if words.len() < MOST_WORDS => words.resize(2 * words.len(), 0),
            Err(error) => return Err(error),
        }
    }
}

/// Restricts the calling thread to these CPUs.
pub fn set_affinity(cpus: &CpuSet) -> io::Result<()> {
    let words = words_of(cpus);
    let bytes = size_of_val(words.as_slice());
    pass(Call::SchedSetaffinity)?;
    // SAFETY: the kernel reads `bytes` bytes from `words`, which holds as many.
    let refused = unsafe { libc::sched_setaffinity(0, bytes, words.as_ptr().cast()) } != 0;
    last_error(refused)
}

/// Restricts the calling thread to this CPU. Allocates nothing, because threads that handle faults
/// must not allocate: they may handle faults of the allocator's memory.
pub fn pin_to(cpu: u32) -> io::Result<()> {
    const WORDS: usize = 1024;
    let (word, mut words) = (cpu as usize / BITS, [0 as c_ulong; WORDS]);
    *words.get_mut(word).ok_or(io::Errno::INVAL)? = 1 << (cpu as usize % BITS);
    let bytes = size_of_val(&words[..=word]);
    pass(Call::SchedSetaffinity)?;
    // SAFETY: the kernel reads `bytes` bytes from `words`, which holds more.
    let refused = unsafe { libc::sched_setaffinity(0, bytes, words.as_ptr().cast()) } != 0;
    last_error(refused)
}

/// Returns the CPU on which the calling thread runs at this moment.
pub fn current_cpu() -> u32 {
    u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(0)
}

/// Another thread of this process, whose CPU can be read.
#[derive(Debug)]
pub struct Watched {
    thread: u32,
    stat: OwnedFd,
}

impl Watched {
    /// Opens a thread; `None` if there is no such thread, or no /proc. Allocates nothing.
    pub fn new(thread: u32) -> Option<Self> {
        let (mut path, len) = ([0; 64], 64);
        let mut rest = &mut path[..];
        write!(rest, "/proc/self/task/{thread}/stat").ok()?;
        let len = len - rest.len();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        pass(Call::Open).ok()?;
        let stat = rustix::fs::open(&path[..len], flags, Mode::empty()).ok()?;
        Some(Self { thread, stat })
    }

    pub fn is(&self, thread: u32) -> bool {
        self.thread == thread
    }

    /// Returns the CPU on which the thread runs or last ran.
    pub fn cpu(&self) -> Option<u32> {
        let mut line = [0; 1024];
        pass(Call::Pread).ok()?;
        let len = rustix::io::pread(&self.stat, &mut line[..], 0).ok()?;
        cpu_of(std::str::from_utf8(&line[..len]).ok()?)
    }
}

/// Returns the 39th field of a line of `proc_pid_stat(5)`. The second field is a name in
/// parentheses that may contain any character.
fn cpu_of(stat: &str) -> Option<u32> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// Returns the address of a thread's list of robust locks. In glibc the list is part of the thread's descriptor, which
/// lies with its thread-local variables at the top of its stack. `None` if the C library keeps no list.
pub fn descriptor_of(thread: u32) -> Option<usize> {
    let (mut head, mut len) = (std::ptr::null_mut::<c_void>(), 0_usize);
    pass(Call::GetRobustList).ok()?;
    // SAFETY: writes one pointer and one length.
    let refused =
        unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut len) }
            != 0;
    (!refused && !head.is_null()).then(|| head.addr())
}

/// Makes the calling thread run only when no other thread needs the CPU: by `SCHED_IDLE`, or by the
/// highest nice value if that is refused. An unprivileged thread cannot undo this.
pub fn yield_to_all_threads() -> io::Result<()> {
    run_idly().or_else(|_| {
        pass(Call::Setpriority)?;
        rustix::process::setpriority_process(None, 19)
    })
}

fn run_idly() -> io::Result<()> {
    // The kernel's `struct sched_param`; musl's own is longer.
    let parameter: libc::c_int = 0;
    pass(Call::SchedSetscheduler)?;
    // SAFETY: the kernel reads one integer. musl's wrapper always refuses, so the
    // system call is made directly; 0 is the calling thread.
    let refused = unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_IDLE, &raw const parameter)
    } != 0;
    last_error(refused)
}

/// The number of mappings that a thread needs at its start: its stack, a stack for signals, and
/// memory of the allocator, each with a guard.
pub(super) const MAPPINGS: usize = 12;

/// Starts a thread that never runs the program's own signal handlers, and waits until the thread
/// runs. In a started thread, Rust's runtime ends the process if a mapping is missing, so the
/// calling thread must not use the last mappings meanwhile.
///
/// # Errors
/// The system's error. `ENOMEM` if the process has too few mappings left for a thread.
pub fn spawn(
    name: &str,
    life: impl FnOnce(&SignalsBlocked) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    start(|runs| {
        let runs_and_lives = move || {
            drop(runs);
            life(&SignalsBlocked::inherited());
        };
        Builder::new().name(name.to_owned()).spawn(runs_and_lives)
    })
}

/// Like [`spawn`], for a thread that ends before its scope.
///
/// # Errors
/// The errors of [`spawn`].
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    life: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<ScopedJoinHandle<'scope, T>> {
    start(|runs| {
        let runs_and_lives = move || {
            drop(runs);
            life()
        };
        Builder::new().name(name.to_owned()).spawn_scoped(scope, runs_and_lives)
    })
}

/// Starts a thread that drops its argument as soon as it runs.
fn start<H>(spawn: impl FnOnce(Sender<()>) -> std::io::Result<H>) -> std::io::Result<H> {
    mapping::check_room(MAPPINGS)?;
    pass(Call::Clone)?;
    let (runs, is_running) = channel();
    let started = without_signals(|_| spawn(runs))?;
    // Nothing is sent: the other end has gone when the thread runs.
    let _ = is_running.recv();
    Ok(started)
}

/// A proof that the calling thread has blocked every signal that is not caused by an instruction,
/// for as long as this is borrowed. So no handler of the program interrupts the thread. A thread
/// must show this proof to claim a word, to enter a gate, to count as a reader, or to lock a mutex
/// for which a fault may wait. Otherwise a handler could touch memory whose fault waits for the
/// interrupted thread, and would wait for ever. The proof belongs to one thread and cannot be sent
/// to another.
#[derive(Debug)]
pub struct SignalsBlocked {
    of_this_thread: PhantomData<*const ()>,
}

impl SignalsBlocked {
    const HERE: Self = Self { of_this_thread: PhantomData };

    /// Makes the proof in a thread that began with these signals blocked and never unblocks them.
    pub(super) fn inherited() -> Self {
        // Of real-time signals an emulator keeps some for itself, and says that they are open.
        const STANDARD: u64 = u32::MAX as u64 >> 1;
        debug_assert_eq!(STANDARD & ASYNCHRONOUS & !change_mask(libc::SIG_BLOCK, 0), 0);
        Self::HERE
    }

    /// Makes the proof in a model, which has no signals.
    #[cfg(all(test, loom))]
    pub const fn in_a_model() -> Self {
        Self::HERE
    }
}

/// Runs `act` with every signal blocked that is not caused by an instruction. A thread that `act`
/// starts never runs the program's own handlers. Async-signal-safe. If these signals are blocked
/// already, the call needs one system call.
pub fn without_signals<R>(act: impl FnOnce(&SignalsBlocked) -> R) -> R {
    let before = change_mask(libc::SIG_BLOCK, ASYNCHRONOUS);
    let result = act(&SignalsBlocked::HERE);
    if ASYNCHRONOUS & !before != 0 {
        change_mask(libc::SIG_SETMASK, before);
    }
    result
}

/// Like [`SignalMask::asynchronous`], a bit for each of the kernel's signals: handlers have little stack, and a C
/// library's set takes 128 bytes of it.
const ASYNCHRONOUS: u64 = {
    let (mut set, mut at) = (!0, 0);
    while at < LEFT_OUT.len() {
        set &= !(1 << (LEFT_OUT[at] - 1));
        at += 1;
    }
    set
};

/// Signals that are never blocked: those of a thread's own faults, those that cannot be blocked,
/// and those of the C library.
const LEFT_OUT: [c_int; 11] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGKILL,
    libc::SIGSTOP,
    32,
    33,
    if cfg!(target_env = "musl") { 34 } else { 33 },
];

/// Returns true if the calling thread has blocked a signal. Async-signal-safe.
pub fn is_blocked(signal: c_int) -> bool {
    change_mask(libc::SIG_BLOCK, 0) >> (signal - 1) & 1 == 1
}

/// Blocks a signal in the calling thread until the running handler has returned. Async-signal-safe.
pub(super) fn hold_back(signal: c_int) {
    change_mask(libc::SIG_BLOCK, 1 << (signal - 1));
}

/// Calls `rt_sigprocmask(2)`, and returns the signals that were blocked before.
fn change_mask(how: c_int, set: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: one set of so many bytes is read and one written, and `how` is valid.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const set,
            &raw mut before,
            size_of::<u64>(),
        );
    }
    before
}

/// A set of signals.
#[derive(Clone)]
pub(super) struct SignalMask(pub(super) libc::sigset_t);

impl SignalMask {
    /// Returns all signals except those that a thread's own instructions cause. Blocked, those
    /// would end the process.
    pub(super) fn asynchronous() -> Self {
        let own =
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigfillset` initialises the set, which the other function changes.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            for signal in own {
                libc::sigdelset(set.as_mut_ptr(), signal);
            }
            Self(set.assume_init())
        }
    }

    /// Returns the signals that the interrupted thread had blocked.
    ///
    /// # Safety
    /// `context` is the argument that the kernel gave to a handler.
    pub(super) unsafe fn of_context(context: *const c_void) -> Self {
        // SAFETY: `context` is the `ucontext_t` that the kernel gave to a handler: the contract of this function.
        Self(unsafe { (*context.cast::<libc::ucontext_t>()).uc_sigmask })
    }

    /// Adds the signals that an action blocks while it runs for a signal.
    pub(super) fn with(mut self, action: &libc::sigaction, signal: c_int) -> Self {
        // SAFETY: both sets are initialised, and every number asked for is a signal's or refused.
        unsafe {
            for other in 1..=libc::SIGRTMAX() {
                if libc::sigismember(&raw const action.sa_mask, other) == 1 {
                    libc::sigaddset(&raw mut self.0, other);
                }
            }
            if action.sa_flags & libc::SA_NODEFER == 0 {
                libc::sigaddset(&raw mut self.0, signal);
            }
        }
        self
    }

    /// Blocks these signals and no others.
    pub(super) fn set(&self) {
        // SAFETY: the set is initialised, and none is written.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}

fn set_of(words: &[c_ulong]) -> CpuSet {
    let bits = (0..words.len() * BITS).filter(|bit| words[bit / BITS] >> (bit % BITS) & 1 == 1);
    bits.map(|bit| bit as u32).collect()
}

fn words_of(cpus: &CpuSet) -> Vec<c_ulong> {
    let mut words = vec![0; USUAL_WORDS];
    for cpu in cpus.iter().map(|cpu| cpu as usize).take_while(|cpu| cpu / BITS < MOST_WORDS) {
        words.resize(words.len().max(cpu / BITS + 1), 0);
        words[cpu / BITS] |= 1 << (cpu % BITS);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_any_length_go_there_and_back() {
        for list in ["", "0", "0-3,8", "63-64", "1023", "0-4095", "65536"] {
            let cpus: CpuSet = list.parse().unwrap();
            assert_eq!(set_of(&words_of(&cpus)), cpus, "{list}");
        }
    }

    #[test]
    fn affinity_of_a_nonsense_set_costs_no_memory() {
        assert!(words_of(&"0-4294967295".parse().unwrap()).len() <= MOST_WORDS);
    }

    #[test]
    fn pin_of_a_thread_is_where_it_may_run_alone() {
        std::thread::spawn(|| {
            let allowed = affinity().unwrap();
            let one: CpuSet = allowed.iter().take(1).collect();
            set_affinity(&one).unwrap();
            assert_eq!(affinity().unwrap(), one);
            assert_eq!(Some(current_cpu()), one.first());
            assert_eq!(set_affinity(&"1048575".parse().unwrap()), Err(io::Errno::INVAL));
            assert_eq!(affinity().unwrap(), one);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn set_of_asynchronous_signals_is_the_c_librarys() {
        let all = SignalMask::asynchronous();
        for signal in (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
            // SAFETY: the set is initialised.
            let is_in = unsafe { libc::sigismember(&raw const all.0, signal) } == 1;
            assert_eq!(ASYNCHRONOUS >> (signal - 1) & 1 == 1, is_in, "{signal}");
        }
    }

    #[test]
    fn start_without_signals_blocks_them_in_the_thread_alone() {
        let before = is_blocked(libc::SIGUSR1);
        let thread = without_signals(|_| {
            std::thread::spawn(move || (is_blocked(libc::SIGUSR1), is_blocked(libc::SIGBUS)))
        });
        assert_eq!(thread.join().unwrap(), (true, false));
        assert_eq!(is_blocked(libc::SIGUSR1), before);
    }

    #[test]
    fn thread_that_is_watched_is_where_it_says() {
        std::thread::spawn(|| {
            let Some(watched) = Watched::new(rustix::thread::gettid().as_raw_pid() as u32) else {
                return; // A sandbox without /proc: no thread is followed then.
            };
            for cpu in affinity().unwrap().iter() {
                pin_to(cpu).unwrap();
                assert_eq!(affinity().unwrap(), std::iter::once(cpu).collect());
                assert_eq!(watched.cpu(), Some(cpu));
            }
        })
        .join()
        .unwrap();
        assert_eq!(cpu_of("7 (a) b) S 1"), None);
    }

    #[test]
    fn yield_by_any_thread_is_permitted() {
        std::thread::spawn(|| assert_eq!(yield_to_all_threads(), Ok(()))).join().unwrap();
    }
}
