//! Faults that the faulting thread serves itself, in a handler of SIGBUS.
//!
//! The handler is installed with the first region that needs it and stays. A SIGBUS is ours if this is
//! the process that installed it, the kernel raised it for an access, and the address lies in a range of
//! ours; every other one goes to whoever was there before.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::late::Late;
use super::registry::{Registry, Table};
use super::{Access, Faults};
use crate::arch;
use crate::pool::FaultError;
use crate::sys::fork_mark::ForkMark;
use crate::sys::own::Own;
use crate::sys::signal::{self, Cause, Disposition, ErrnoKept};

/// What one process serves in place. A forked child that wants to serve regions of its own makes
/// another: locks of the first may be held by threads that the child has not.
#[derive(Debug)]
struct Process {
    mark: ForkMark,
    ranges: Registry<dyn Faults>,
    late: Late,
    /// Who had SIGBUS before us; null before the handler is installed. Never freed, because a handler
    /// may be reading it.
    previous: AtomicPtr<Disposition>,
    /// Whether our handler was installed, by this process or one that it was forked from.
    installed: AtomicBool,
    /// Held by whoever installs the handler.
    installer: Mutex<()>,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// A range that is served in place for as long as this lives.
#[derive(Debug)]
pub(crate) struct Registration {
    process: &'static Process,
    start: usize,
}

impl Registration {
    /// Serves the faults at these addresses.
    pub(crate) fn new(
        addresses: Range<usize>,
        served: Arc<dyn Faults>,
    ) -> Result<Self, FaultError> {
        let process = Process::ready()?;
        let start = addresses.start;
        process.ranges.add(addresses, served);
        Ok(Self { process, start })
    }

    /// Ends serving what lies behind the first `len` bytes. Nobody is at it any more when this returns.
    pub(crate) fn cut(&self, len: usize) {
        self.process.ranges.cut(self.start, len);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.process.mark.is_ours() {
            self.process.ranges.cut(self.start, 0);
        }
    }
}

/// What this process serves in place, for those whose ranges come, go and overlap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranges(&'static Process);

impl Ranges {
    /// Those of the calling process, whose handler is installed. From now on a signal that comes after its
    /// range has gone is told from a foreign one.
    pub(crate) fn of_this_process() -> Result<Self, FaultError> {
        let process = Process::ready()?;
        process.late.begin()?;
        Ok(Self(process))
    }

    /// As [`of_this_process`](Self::of_this_process), whoever has SIGBUS now and whether or not it is blocked.
    pub(crate) fn known() -> rustix::io::Result<Self> {
        Process::current().map(Self)
    }

    /// As [`Registry::change`].
    pub(crate) fn change(self, change: impl FnOnce(&mut Table<dyn Faults>)) {
        self.0.ranges.change(change);
    }

    /// As [`Registry::settle`].
    pub(crate) fn settle(self) {
        self.0.ranges.settle();
    }
}

/// Puts hugekit's handler of SIGBUS back over the one that has replaced it
/// ([`FaultError::HandlerReplaced`]). A signal that is not hugekit's then goes to whoever had SIGBUS *before*
/// hugekit, and the one that replaced it is not called any more: calling each other for ever cannot happen.
/// Nothing happens while the handler is in force, or was never installed.
///
/// For who knows that he can do without the other handler, such as a debugging aid that shows where a process
/// dies.
///
/// # Errors
/// What `sigaction` answered.
pub fn take_back_sigbus() -> std::io::Result<()> {
    Ok(Process::current()?.take_back()?)
}

impl Process {
    /// That of the calling process, with its handler installed.
    fn ready() -> Result<&'static Self, FaultError> {
        if signal::is_blocked(libc::SIGBUS) {
            return Err(FaultError::Blocked);
        }
        let process = Self::current()
            .map_err(|errno| FaultError::Kernel { call: "mmap", source: errno.into() })?;
        process.see_that_handler_is_installed()?;
        Ok(process)
    }

    /// That of the calling process.
    fn current() -> rustix::io::Result<&'static Self> {
        loop {
            let seen = CURRENT.load(Ordering::Acquire);
            // SAFETY: null, or made below and never freed.
            let found = unsafe { seen.as_ref() };
            if let Some(process) = found.filter(|process| process.mark.is_ours()) {
                return Ok(process);
            }
            let fresh = Own::new(Self::after(found))?;
            let here = std::ptr::from_ref(&*fresh).cast_mut();
            let taken = CURRENT.compare_exchange(seen, here, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                return Ok(fresh.leak());
            }
        }
    }

    /// One that serves nothing yet, in a process that was forked from `parent`'s if there is one.
    fn after(parent: Option<&Self>) -> Self {
        let (previous, installed) = parent.map_or((std::ptr::null_mut(), false), |parent| {
            (parent.previous.load(Ordering::Acquire), parent.installed.load(Ordering::Acquire))
        });
        Self {
            mark: ForkMark::new(),
            ranges: Registry::new(),
            late: Late::new(),
            previous: AtomicPtr::new(previous),
            installed: AtomicBool::new(installed),
            installer: Mutex::new(()),
        }
    }

    /// Installs the handler if nobody is asked to handle SIGBUS but whom we know.
    fn see_that_handler_is_installed(&self) -> Result<(), FaultError> {
        let _installer = self.installer.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |errno: rustix::io::Errno| FaultError::Kernel {
            call: "sigaction",
            source: errno.into(),
        };
        let in_force = signal::in_force(libc::SIGBUS).map_err(failed)?;
        if in_force.is(on_sigbus) {
            return Ok(());
        }
        if self.installed.load(Ordering::Acquire) {
            // Whoever it is may call us for what he does not know, and we would call him.
            if in_force.is_function() {
                return Err(FaultError::HandlerReplaced);
            }
            tracing::warn!("hugekit's SIGBUS handler had been taken away, and is put back");
        }
        // Known before the first signal can come.
        self.previous.store(Box::into_raw(Box::new(in_force)), Ordering::Release);
        // SAFETY: `on_sigbus` does only what signal-safety(7) allows.
        unsafe { signal::install(libc::SIGBUS, on_sigbus) }.map_err(failed)?;
        self.installed.store(true, Ordering::Release);
        Ok(())
    }

    /// Installs the handler over whoever has replaced it.
    fn take_back(&self) -> rustix::io::Result<()> {
        let _installer = self.installer.lock().unwrap_or_else(PoisonError::into_inner);
        let is_replaced = !signal::in_force(libc::SIGBUS)?.is(on_sigbus);
        if self.installed.load(Ordering::Acquire) && is_replaced {
            // SAFETY: as when it was installed first.
            unsafe { signal::install(libc::SIGBUS, on_sigbus) }?;
        }
        Ok(())
    }

    /// Serves the access that a signal tells of, if that is ours to serve.
    fn serve(&self, cause: Cause, access: Access) -> bool {
        if !self.mark.is_ours() {
            return false;
        }
        match cause {
            Cause::Fault(address) => {
                let served =
                    self.ranges.with(address, |faults| faults.serve(address, access).is_ok());
                served.unwrap_or_else(|| self.late.may_be_tried_again(address))
            }
            Cause::BrokenMemory(address) => {
                self.ranges.with(address, |faults| faults.break_(address));
                false
            }
            Cause::Other => false,
        }
    }

    /// # Safety
    /// Called by the handler, with what the kernel gave it.
    unsafe fn pass_on(&self, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: null, or made by `Box::into_raw` and never freed.
        let Some(previous) = (unsafe { self.previous.load(Ordering::Acquire).as_ref() }) else {
            return; // Only before the handler was installed.
        };
        let previous = if previous.is_for_once() { self.take_for_once(previous) } else { previous };
        // SAFETY: the caller's to promise.
        unsafe { signal::pass_on(previous, signal, info, context) }
    }

    /// A handler that asked to be called once is; whoever comes later finds the default.
    fn take_for_once<'a>(&self, previous: &'a Disposition) -> &'a Disposition {
        static DEFAULT: Disposition = Disposition::DEFAULT;
        let (seen, default) =
            (std::ptr::from_ref(previous).cast_mut(), (&raw const DEFAULT).cast_mut());
        let taken =
            self.previous.compare_exchange(seen, default, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_ok() { previous } else { &DEFAULT }
    }
}

/// Async-signal-safe: allocates nothing, locks nothing that a thread could hold while it faults, keeps
/// `errno`, and needs less than 2 KiB of stack.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let _errno = ErrnoKept::new();
    // SAFETY: not null, because it was stored before the handler was installed; never freed.
    let process = unsafe { &*CURRENT.load(Ordering::Acquire) };
    // SAFETY: what the kernel gave us.
    unsafe {
        let access = match arch::is_write(context) {
            Some(true) => Access::Write,
            Some(false) => Access::Read,
            None => Access::Unknown,
        };
        if !process.serve(signal::cause(info), access) {
            process.pass_on(signal, info, context);
        }
    }
}
