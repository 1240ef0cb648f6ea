//! The source of locks, atomics and their memory: std and the kernel, or loom, which explores every
//! interleaving. This is the only place in the library that makes this choice.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::thread::yield_now;

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
#[cfg(loom)]
pub use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(loom)]
pub use loom::thread::yield_now;

#[cfg(not(loom))]
pub use crate::private_pages::Private;

/// Words that are 0 at first.
#[cfg(not(loom))]
pub type Words = crate::private_pages::PrivateSlice<AtomicU32>;

#[cfg(loom)]
pub use self::on_the_heap::{Private, Words};

/// Stand-ins for private memory. In a model no snapshot protects the heap.
#[cfg(loom)]
mod on_the_heap {
    use std::ops::Deref;

    use rustix::io;

    use super::AtomicU32;

    #[derive(Debug)]
    pub struct Private<T>(Box<T>);

    impl<T> Private<T> {
        pub fn new(value: T) -> io::Result<Self> {
            Ok(Self(Box::new(value)))
        }
    }

    impl<T> Deref for Private<T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }

    #[derive(Debug)]
    pub struct Words(Box<[AtomicU32]>);

    impl Words {
        pub fn new(len: usize) -> io::Result<Self> {
            Ok(Self((0..len).map(|_| AtomicU32::new(0)).collect()))
        }
    }

    impl Deref for Words {
        type Target = [AtomicU32];

        fn deref(&self) -> &[AtomicU32] {
            &self.0
        }
    }
}
