#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, Ordering};

/// A value of the process, for a static. The first thread that needs it makes it.
///
/// No thread waits for another one, as it would with `OnceLock`: a child of fork(2) does not have the
/// thread that was making the value, and would wait for ever. If several threads are first, each
/// makes a value, and one of the values stays.
#[derive(Debug)]
pub struct First<T>(AtomicPtr<T>);

impl<T> Default for First<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> First<T> {
    /// Without a value.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }
}

impl<T: Send + Sync> First<T> {
    /// The value, if a thread has made one. Async-signal-safe.
    #[inline]
    pub fn get(&'static self) -> Option<&'static T> {
        // SAFETY: not null, the pointer is that of a box that `get_or_make` has published by a
        // release, and that is never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// The value. Allocates if there is none.
    #[inline]
    pub fn get_or_make(&'static self, make: impl FnOnce() -> T) -> &'static T {
        self.get().unwrap_or_else(|| self.publish(make()))
    }

    #[cold]
    fn publish(&'static self, value: T) -> &'static T {
        let own = Box::into_raw(Box::new(value));
        let none = std::ptr::null_mut();
        match self.0.compare_exchange(none, own, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: a box that is published now, and never freed.
            Ok(_) => unsafe { &*own },
            Err(first) => {
                // SAFETY: the box was not published, so this is its only pointer.
                drop(unsafe { Box::from_raw(own) });
                // SAFETY: as in `get`: the exchange found what another thread has published.
                unsafe { &*first }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// As in a child of fork(2), where the first thread does not exist.
    #[test]
    fn value_is_made_while_another_thread_never_ends_making_it() {
        static VALUE: First<u32> = First::new();
        let (go_on, goes_on) = channel::<()>();
        let (makes, is_making) = channel();
        let slow = thread::spawn(move || {
            *VALUE.get_or_make(|| {
                makes.send(()).unwrap();
                goes_on.recv().unwrap();
                1
            })
        });
        is_making.recv().unwrap();
        assert_eq!(VALUE.get(), None);
        assert_eq!(*VALUE.get_or_make(|| 2), 2);
        go_on.send(()).unwrap();
        assert_eq!(slow.join().unwrap(), 2, "the first value stays");
        assert_eq!(VALUE.get(), Some(&2));
    }
}
