//! A hook: a signal for which hugekit has a handler, and the handler that was installed before.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::pool::FaultError;
use hugekit_sys::private_pages::Private;
use hugekit_sys::signal::{self, Disposition, SignalHandler};
use hugekit_sys::thread::is_blocked;

static DEFAULT: Disposition = Disposition::DEFAULT;

/// The hook of a signal in a process.
#[derive(Debug)]
pub(super) struct Hook {
    signal: c_int,
    handler: SignalHandler,
    /// The former disposition; null before hugekit's handler is installed. It is never freed,
    /// because a handler may be reading it. It lies outside of the heap, where no leak checker
    /// expects it.
    previous: AtomicPtr<Disposition>,
    /// True if hugekit's handler was installed, by this process or by a process from which it was
    /// forked.
    installed: AtomicBool,
}

impl Hook {
    /// Makes a hook. The handler counts as installed only if the process was forked from a process
    /// with `parent`, where it was installed.
    pub(super) fn new(signal: c_int, handler: SignalHandler, parent: Option<&Self>) -> Self {
        let (previous, installed) = parent.map_or((std::ptr::null_mut(), false), |parent| {
            (parent.previous.load(Ordering::Acquire), parent.installed.load(Ordering::Acquire))
        });
        let (previous, installed) = (AtomicPtr::new(previous), AtomicBool::new(installed));
        Self { signal, handler, previous, installed }
    }

    /// Installs the handler if the current handler is a known one. Only one thread may call this at
    /// a time.
    pub(super) fn install(&self) -> Result<(), FaultError> {
        let failed = failed_to("sigaction");
        let in_force = signal::in_force(self.signal).map_err(failed)?;
        if in_force.is(self.handler) {
            return Ok(());
        }
        if self.installed.load(Ordering::Acquire) {
            // That handler may call us for what it does not know, and we would call it.
            if in_force.is_function() {
                return Err(FaultError::HandlerReplaced);
            }
            hugekit_sys::events::warn!(
                "hugekit's handler of a signal had been taken away, and is put back"
            );
        }
        // Known before the first signal can come.
        let previous = Private::new(in_force).map_err(failed_to("mmap"))?.leak();
        self.previous.store(std::ptr::from_ref(previous).cast_mut(), Ordering::Release);
        // SAFETY: our handlers do only what signal-safety(7) allows.
        unsafe { signal::install(self.signal, self.handler) }.map_err(failed)?;
        self.installed.store(true, Ordering::Release);
        Ok(())
    }

    /// Installs hugekit's handler again if another handler has replaced it. Signals that are not
    /// hugekit's go to the handler that was there before the first installation. Only one thread
    /// may call this at a time.
    pub(super) fn reclaim(&self) -> rustix::io::Result<()> {
        let is_replaced = !signal::in_force(self.signal)?.is(self.handler);
        if self.installed.load(Ordering::Acquire) && is_replaced {
            // SAFETY: our handlers do only what signal-safety(7) allows.
            unsafe { signal::install(self.signal, self.handler) }?;
        }
        Ok(())
    }

    /// Returns true if a fault of the calling thread would now be delivered to hugekit's handler.
    /// Async-signal-safe.
    pub(super) fn is_in_force(&self) -> bool {
        let is_ours = signal::in_force(self.signal).is_ok_and(|now| now.is(self.handler));
        is_ours && !is_blocked(self.signal)
    }

    /// Handles a signal that is not hugekit's, as the former disposition demands.
    ///
    /// # Safety
    /// The handler calls this, with the arguments from the kernel.
    #[cold]
    #[inline(never)] // what it needs of a signal stack is not there for each fault
    pub(super) unsafe fn pass_on(&self, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: null, or leaked, and never freed.
        let Some(previous) = (unsafe { self.previous.load(Ordering::Acquire).as_ref() }) else {
            return; // Only before the handler was installed.
        };
        let previous = if previous.is_for_once() { self.take_for_once(previous) } else { previous };
        // SAFETY: the kernel gave the handler both pointers, and they are valid until it returns.
        unsafe { signal::pass_on(previous, self.signal, info, context) }
        if previous.is_function() {
            self.see_that_it_resigned(previous);
        }
    }

    /// Returns the disposition for one call. A handler that asked to be called once is called once;
    /// later signals find the default.
    fn take_for_once<'a>(&self, previous: &'a Disposition) -> &'a Disposition {
        if self.forget(previous) { previous } else { &DEFAULT }
    }

    /// Detects a handler that has set the default disposition for itself, as Rust's handler does,
    /// and so has replaced hugekit's handler. Later signals that are not hugekit's find the
    /// default, and faults are still handled.
    fn see_that_it_resigned(&self, previous: &Disposition) {
        if signal::in_force(self.signal).is_ok_and(|now| now.is_default()) {
            self.forget(previous);
            // SAFETY: our handlers do only what signal-safety(7) allows.
            let _ = unsafe { signal::install(self.signal, self.handler) };
        }
    }

    /// Makes later signals find the default. Returns true if they did not find it before.
    fn forget(&self, previous: &Disposition) -> bool {
        let (seen, default) =
            (std::ptr::from_ref(previous).cast_mut(), (&raw const DEFAULT).cast_mut());
        let forgotten =
            self.previous.compare_exchange(seen, default, Ordering::AcqRel, Ordering::Relaxed);
        forgotten.is_ok()
    }
}

fn failed_to(call: &'static str) -> impl Fn(rustix::io::Errno) -> FaultError + Copy {
    move |errno| FaultError::Kernel { call, source: errno.into() }
}
