//! Faults that the faulting thread itself handles, in a handler of SIGBUS, or of SIGSEGV if the
//! rights of a mapping hold writes back.
//!
//! A handler is installed with the first region that needs it, and stays. A signal is hugekit's if
//! this process installed the handler, if the kernel raised the signal for an access, and if the
//! address lies in a range of hugekit's. Every other signal goes to the former handler.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::hook::Hook;
use super::late::Late;
use super::registry::{HeldTable, RangeTable, Registry};
use super::{Access, Faults, Forbidden};
use crate::pool::FaultError;
use hugekit_bulk::arch::{self, abandonable};
use hugekit_sys::fork_mark::ForkMark;
use hugekit_sys::private_pages::Private;
use hugekit_sys::signal::{self, Cause, ErrnoKept};
use hugekit_sys::sync::{OfProcess, PerProcess};
use hugekit_sys::thread::{SignalsBlocked, is_blocked, without_signals};

/// The faults that one process handles in place. A forked child that handles faults of its own
/// regions makes another value, because locks of the parent's may be held by threads that the child
/// does not have.
///
/// Regions and snapshots have separate tables. A snapshot that is being made waits until no handler
/// reads the table of snapshots. A handler that handles a region's fault may itself write to memory
/// that the snapshot protects, or wait for a thread that does, and so it may wait for the snapshot.
#[derive(Debug)]
struct ProcessFaults {
    mark: ForkMark,
    regions: Registry<dyn Faults>,
    snapshots: Registry<dyn Faults>,
    hooks: Private<Hooks>,
    /// Locked by the thread that installs a handler.
    installer: Mutex<()>,
}

/// The words that handlers write.
#[derive(Debug)]
struct Hooks {
    late: Late,
    bus: Hook,
    /// Installed only if copies can be abandoned, or if rights hold writes back.
    segv: Hook,
}

static CURRENT: PerProcess<ProcessFaults> = PerProcess::new();

impl OfProcess for ProcessFaults {
    fn mark(&self) -> &ForkMark {
        &self.mark
    }
}

/// A range whose faults are handled in place as long as this value exists.
#[derive(Debug)]
pub struct Registration {
    process: &'static ProcessFaults,
    start: usize,
}

impl Registration {
    /// Serves the faults at these addresses.
    pub(crate) fn new(
        addresses: Range<usize>,
        served: Arc<dyn Faults>,
    ) -> Result<Self, FaultError> {
        let process = ProcessFaults::with_handler()?;
        let start = addresses.start;
        process.regions.add(addresses, served);
        Ok(Self { process, start })
    }

    /// Stops handling faults behind the first `len` bytes. When the call returns, no handler works
    /// there any more.
    pub(crate) fn serve_only(&self, len: usize) {
        self.process.regions.resize(self.start, len);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.process.mark.is_ours() {
            self.process.regions.resize(self.start, 0);
        }
    }
}

/// The ranges of snapshots whose faults this process handles in place. They may overlap.
#[derive(Clone, Copy, Debug)]
pub struct Ranges(&'static ProcessFaults);

impl Ranges {
    /// Returns the ranges of the calling process, and installs its handler. From now on, a signal
    /// that arrives after its range was removed is distinguished from a foreign signal.
    pub fn of_this_process() -> Result<Self, FaultError> {
        let process = ProcessFaults::with_handler()?;
        process.hooks.late.begin()?;
        Ok(Self(process))
    }

    /// Like [`of_this_process`](Self::of_this_process), whatever the current handler of SIGBUS is,
    /// and whether or not SIGBUS is blocked.
    pub fn known() -> rustix::io::Result<Self> {
        ProcessFaults::current().map(Self)
    }

    /// Like [`Registry::change`].
    pub fn change(self, change: impl FnOnce(&mut RangeTable<dyn Faults>)) {
        self.0.snapshots.change(change);
    }

    /// Returns true if a region or a snapshot has a part of the range.
    pub fn have_part_of(self, range: &Range<usize>) -> bool {
        self.0.regions.has_part_of(range) || self.0.snapshots.has_part_of(range)
    }

    /// Like [`Registry::hold`]. A thread that settles the table does not wait for a region's fault.
    pub fn hold(self, blocked: &SignalsBlocked) -> HeldTable<'_, dyn Faults> {
        self.0.snapshots.hold(blocked)
    }
}

/// Installs hugekit's handlers of SIGBUS and SIGSEGV again, if another handler has replaced them
/// ([`FaultError::HandlerReplaced`]).
///
/// Signals of other faults then go to the handler that was there *before* hugekit. The handler that
/// replaced hugekit's is not called any more, so the two cannot call each other endlessly. The call
/// does nothing if hugekit's handlers are installed, or were never installed.
///
/// Call it only if the program can run without the other handler, for example a debugging aid that
/// prints where a process dies.
///
/// # Errors
/// The error of `sigaction(2)`.
pub fn take_back_signals() -> std::io::Result<()> {
    Ok(ProcessFaults::current()?.reclaim()?)
}

impl ProcessFaults {
    /// Returns the faults of the calling process, and installs its handler.
    fn with_handler() -> Result<&'static Self, FaultError> {
        if is_blocked(libc::SIGBUS) {
            return Err(FaultError::Blocked);
        }
        let process = Self::current()
            .map_err(|errno| FaultError::Kernel { call: "mmap", source: errno.into() })?;
        process.see_that_handler_is_installed()?;
        Ok(process)
    }

    /// Returns the faults of the calling process.
    fn current() -> rustix::io::Result<&'static Self> {
        CURRENT.get_or_make(Self::after)
    }

    /// Makes a value without ranges, in a process that was forked from a process with `parent`, if
    /// there is one.
    fn after(parent: Option<&Self>) -> rustix::io::Result<Self> {
        let hooks = parent.map(|parent| &*parent.hooks);
        Ok(Self {
            mark: ForkMark::new(),
            regions: Registry::new()?,
            snapshots: Registry::new()?,
            hooks: Private::new(Hooks {
                late: Late::new(),
                bus: Hook::new(libc::SIGBUS, on_sigbus, hooks.map(|hooks| &hooks.bus)),
                segv: Hook::new(libc::SIGSEGV, on_sigsegv, hooks.map(|hooks| &hooks.segv)),
            })?,
            installer: Mutex::new(()),
        })
    }

    fn lock_handlers(&self) -> MutexGuard<'_, ()> {
        self.installer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs the handler of SIGBUS if the current handler is a known one.
    fn see_that_handler_is_installed(&self) -> Result<(), FaultError> {
        let _installer = self.lock_handlers();
        self.hooks.bus.install()
    }

    /// Installs the handlers again over those that have replaced them.
    fn reclaim(&self) -> rustix::io::Result<()> {
        let _installer = self.lock_handlers();
        self.hooks.bus.reclaim()?;
        self.hooks.segv.reclaim()
    }

    /// Handles the access of a signal, if it is hugekit's. Without a stack frame of its own,
    /// because a signal stack is small.
    #[inline(always)]
    fn serve(&self, cause: Cause, access: Access, blocked: &SignalsBlocked) -> bool {
        if !self.mark.is_ours() {
            return false;
        }
        match cause {
            Cause::Fault(address) => {
                let served = self
                    .at(address, blocked, |faults| faults.serve(address, access, blocked).is_ok());
                served.unwrap_or_else(|| self.hooks.late.may_be_tried_again(address))
            }
            Cause::BrokenMemory(address) => {
                self.at(address, blocked, |faults| faults.break_(address, blocked));
                false
            }
            Cause::Other => false,
        }
    }

    /// Handles a write that a mapping's rights forbid, if it is hugekit's. Snapshots forbid no
    /// writes by rights. Without a stack frame of its own.
    #[inline(always)]
    fn serve_forbidden(&self, address: usize, blocked: &SignalsBlocked) -> bool {
        let serve = |faults: &(dyn Faults + 'static)| faults.serve_forbidden(address, blocked);
        if !self.mark.is_ours() {
            return false;
        }
        match self.regions.with(address, blocked, serve) {
            Some(Forbidden::Served) => true,
            Some(Forbidden::NotHeldBack) => self.hooks.late.bears_another_try(address),
            Some(Forbidden::Refused) | None => false,
        }
    }

    /// Calls `act` with the server of an address.
    fn at<R>(
        &self,
        address: usize,
        blocked: &SignalsBlocked,
        act: impl Fn(&(dyn Faults + 'static)) -> R,
    ) -> Option<R> {
        let of_snapshot = self.snapshots.with(address, blocked, &act);
        of_snapshot.or_else(|| self.regions.with(address, blocked, &act))
    }
}

/// Installs both handlers.
pub(super) fn install_handlers() -> Result<(), FaultError> {
    let process = ProcessFaults::current()
        .map_err(|errno| FaultError::Kernel { call: "mmap", source: errno.into() })?;
    process.see_that_handler_is_installed()?;
    let _installer = process.lock_handlers();
    process.hooks.segv.install()
}

/// Returns true if a copy of the calling thread that faults is abandoned. Async-signal-safe.
pub(super) fn abandons_copies() -> bool {
    let in_force = |Hooks { bus, segv, .. }: &Hooks| bus.is_in_force() && segv.is_in_force();
    CURRENT.last().is_some_and(|process| in_force(&process.hooks))
}

/// Makes hugekit's handler also get writes that a mapping's rights forbid, in every thread that
/// does not block SIGSEGV.
pub fn serve_forbidden_writes() -> Result<(), FaultError> {
    if is_blocked(libc::SIGSEGV) {
        return Err(FaultError::Blocked);
    }
    install_handlers()
}

/// Async-signal-safe: allocates nothing, locks nothing that a thread could hold while it faults, keeps
/// `errno`, and needs less than 2 KiB of stack, or 2.5 on aarch64.
extern "C" fn on_sigbus(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let serve = |process: &ProcessFaults, access, blocked: &SignalsBlocked| {
        // SAFETY: what the kernel gave us.
        process.serve(unsafe { signal::cause(info) }, access, blocked)
    };
    // SAFETY: what the kernel gave us.
    unsafe {
        let is_fault = matches!(signal::cause(info), Cause::Fault(_));
        on_fault(Delivered { info, context }, is_fault, serve, |hooks| &hooks.bus);
    }
}

/// Async-signal-safe, like [`on_sigbus`].
extern "C" fn on_sigsegv(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let serve = |process: &ProcessFaults, access, blocked: &SignalsBlocked| {
        // SAFETY: what the kernel gave us.
        let forbidden = unsafe { signal::forbidden(info) };
        access != Access::Read
            && forbidden.is_some_and(|address| process.serve_forbidden(address, blocked))
    };
    // SAFETY: what the kernel gave us.
    unsafe { on_fault(Delivered { info, context }, true, serve, |hooks| &hooks.segv) }
}

/// The arguments that the kernel passes to a signal handler.
struct Delivered {
    info: *mut libc::siginfo_t,
    context: *mut c_void,
}

/// Handles an access that the kernel could not perform, abandons the copy that contains it, or
/// passes the signal to the former handler.
///
/// # Safety
/// A handler of hugekit calls this, with the arguments from the kernel.
unsafe fn on_fault(
    Delivered { info, context }: Delivered,
    is_fault: bool,
    serve: impl Fn(&ProcessFaults, Access, &SignalsBlocked) -> bool,
    hook: impl Fn(&Hooks) -> &Hook,
) {
    let _errno = ErrnoKept::new();
    let Some(process) = CURRENT.last() else { return }; // It was there before the handler was.
    // SAFETY: the kernel gave the handler both pointers, and they are valid until it returns.
    unsafe {
        let access = match arch::is_write(context) {
            Some(true) => Access::Write,
            Some(false) => Access::Read,
            None => Access::Unknown,
        };
        let is_copy = abandonable::is_interrupted(context);
        // What a copy reads and faults at has been replaced, whatever serves the addresses. An access of which nothing
        // is known may be such a read.
        let is_source = is_copy && access != Access::Write && is_fault;
        // They are, unless a handler that was installed over ours has called it, with the mask of its own choice.
        let serve = || without_signals(|blocked| serve(process, access, blocked));
        if is_source || !serve() {
            if is_copy {
                abandonable::abandon(context);
            } else {
                hook(&process.hooks).pass_on(info, context);
            }
        }
    }
}
