//! Faults that the faulting thread serves itself, in a handler of SIGBUS, and of SIGSEGV where a mapping's rights hold
//! writes back.
//!
//! A handler is installed with the first region that needs it and stays. A signal is ours if this is
//! the process that installed the handler, the kernel raised it for an access, and the address lies in a range of
//! ours; every other one goes to the handler that was there before.
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

/// The faults that one process serves in place. A forked child that wants to serve regions of its own makes
/// another: locks of the first may be held by threads that the child has not.
///
/// Regions and snapshots have a table each, because a snapshot that is being made waits until no handler reads the
/// table: a handler that serves a region may itself write to memory that the snapshot protects, or wait for a
/// thread that does, and so wait for the snapshot.
#[derive(Debug)]
struct ProcessFaults {
    mark: ForkMark,
    regions: Registry<dyn Faults>,
    snapshots: Registry<dyn Faults>,
    hooks: Private<Hooks>,
    /// Held by the thread that installs a handler.
    installer: Mutex<()>,
}

/// The words that handlers write.
#[derive(Debug)]
struct Hooks {
    late: Late,
    bus: Hook,
    /// Installed only where copies are to be abandoned, or rights hold writes back.
    segv: Hook,
}

static CURRENT: PerProcess<ProcessFaults> = PerProcess::new();

impl OfProcess for ProcessFaults {
    fn mark(&self) -> &ForkMark {
        &self.mark
    }
}

/// A range that is served in place for as long as this lives.
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

    /// Ends serving what lies behind the first `len` bytes. No handler is at it any more when this returns.
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

/// The ranges that this process serves in place for snapshots. They come, go and overlap.
#[derive(Clone, Copy, Debug)]
pub struct Ranges(&'static ProcessFaults);

impl Ranges {
    /// Returns the ranges of the calling process, and installs its handler. From now on a signal that comes after its
    /// range has gone is told from a foreign one.
    pub fn of_this_process() -> Result<Self, FaultError> {
        let process = ProcessFaults::with_handler()?;
        process.hooks.late.begin()?;
        Ok(Self(process))
    }

    /// Like [`of_this_process`](Self::of_this_process), whatever handler SIGBUS has now and whether or not it is
    /// blocked.
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

    /// Like [`Registry::hold`]. Who settles it waits for no region's fault.
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

    /// Makes one that serves nothing yet, in a process that was forked from `parent`'s if there is one.
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

    /// Installs the handler of SIGBUS if the handler in force is one that we know.
    fn see_that_handler_is_installed(&self) -> Result<(), FaultError> {
        let _installer = self.lock_handlers();
        self.hooks.bus.install()
    }

    /// Installs the handlers over those that have replaced them.
    fn reclaim(&self) -> rustix::io::Result<()> {
        let _installer = self.lock_handlers();
        self.hooks.bus.reclaim()?;
        self.hooks.segv.reclaim()
    }

    /// Serves the access that a signal tells of, if that is ours to serve. Without a frame of its own, of which a signal
    /// stack has no room to spare.
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

    /// Serves a write that a mapping's rights forbid, if that is ours to serve. Snapshots forbid nothing. As
    /// above.
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

/// Has both handlers installed.
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

/// Has writes that a mapping's rights forbid come to us, too, in every thread that takes SIGSEGV. As for SIGBUS.
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

/// Async-signal-safe, as the other one.
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

/// Serves an access that the kernel could not carry out, abandons the copy that it is part of, or leaves it to the
/// handler that had the signal before.
///
/// # Safety
/// Called by a handler of ours, with what the kernel gave it.
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
