//! A value of a process that is found without a lock. A forked child makes its own, because locks
//! of the parent's value may be held by threads that the child does not have.
//!
//! The value is never freed, and is always reachable from a static, a parent's value from its
//! child's. So a leak checker finds it.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fork_mark::ForkMark;

/// A value that knows the process in which it was made.
pub trait OfProcess {
    fn mark(&self) -> &ForkMark;
}

#[derive(Debug)]
pub struct PerProcess<T: 'static>(AtomicPtr<MadeValue<T>>);

#[derive(Debug)]
struct MadeValue<T: 'static> {
    value: T,
    /// The value of the parent process, if it had one.
    _parents: Option<&'static MadeValue<T>>,
}

impl<T: OfProcess> PerProcess<T> {
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the value of the calling process. The first caller makes it, and may use the
    /// parent's value.
    pub fn get_or_make<E>(
        &self,
        make: impl Fn(Option<&'static T>) -> Result<T, E>,
    ) -> Result<&'static T, E> {
        loop {
            let seen = self.0.load(Ordering::Acquire);
            // SAFETY: null, or made below and never freed.
            let found = unsafe { seen.as_ref() };
            if let Some(made) = found.filter(|made| made.value.mark().is_ours()) {
                return Ok(&made.value);
            }
            let value = make(found.map(|made| &made.value))?;
            let fresh = Box::into_raw(Box::new(MadeValue { value, _parents: found }));
            if self.0.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }

    /// Returns the last value that this process or one of its ancestors made. Async-signal-safe.
    pub fn last(&self) -> Option<&'static T> {
        // SAFETY: null, or a box that `get_or_make` made and published, which is never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }.map(|made| &made.value)
    }
}
