//! A value that handlers read without a lock, and that a thread replaces as a whole.
//!
//! A signal may interrupt a thread at any moment, also a thread that replaces or reads the value.
//! So readers take no lock. They count themselves in one of two counters and read the published
//! value. A writer publishes a new value, and then does twice: it directs new readers to the other
//! counter, and waits until the first counter is zero. Once is not enough, because a reader may be
//! interrupted between the choice of its counter and the count. The counters take turns, so that a
//! steady flow of readers does not delay a writer. After that, no thread reads the old value.
//!
//! Readers do only the work of a fault and never wait for a writer, so a writer's wait ends. A
//! writer holds no lock that a reader takes. Readers and writers have their signals blocked, which
//! [`SignalsBlocked`] proves: otherwise a signal handler could wait for a thread that waits for the
//! interrupted thread.
#![allow(unsafe_code)]

use std::sync::PoisonError;
use std::time::Duration;

use rustix::io;

use super::held;
use super::primitives::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering, Private, yield_now};
use crate::thread::SignalsBlocked;

/// The number of checks of the counters before a waiting writer sleeps.
const LOOKS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub struct Published<T> {
    /// Made by `Box::into_raw`. Only writers store it.
    value: AtomicPtr<T>,
    words: Private<ReaderCounts>,
}

#[derive(Debug)]
struct ReaderCounts {
    /// The counter for readers that begin now: its lowest bit.
    turn: AtomicUsize,
    readers: [AtomicUsize; 2],
    /// Locked by the thread that replaces the value. It lies beside the counters, because a thread
    /// that protects memory locks it meanwhile.
    writer: Mutex<()>,
}

// SAFETY: owns its value as a box does; readers share it, and any thread may drop it.
unsafe impl<T: Send + Sync> Send for Published<T> {}
// SAFETY: a shared reference gives readers `&T` and lets the writer replace the value, which `T: Send + Sync` permits.
unsafe impl<T: Send + Sync> Sync for Published<T> {}

/// The lock of a value's writers. While it exists, no thread replaces the value.
#[derive(Debug)]
pub struct PublishedGuard<'a, T> {
    published: &'a Published<T>,
    _writer: MutexGuard<'a, ()>,
}

impl<T> PublishedGuard<'_, T> {
    /// Waits until all readers that began before have ended.
    pub fn settle(&self) {
        self.published.wait_for_readers();
    }
}

/// A reader that is counted until it is dropped.
struct CountedReader<'a>(&'a AtomicUsize);

impl<T> Published<T> {
    pub fn new(value: T) -> io::Result<Self> {
        let counter = || AtomicUsize::new(0);
        let readers = [counter(), counter()];
        let words =
            Private::new(ReaderCounts { turn: counter(), readers, writer: Mutex::new(()) })?;
        Ok(Self { value: AtomicPtr::new(Box::into_raw(Box::new(value))), words })
    }

    /// Calls `read` with the value. Async-signal-safe if `read` is. May be called inside another `read`.
    pub fn read<R>(&self, _: &SignalsBlocked, read: impl FnOnce(&T) -> R) -> R {
        // Any number will do: writers wait for both counters.
        let turn = self.words.turn.load(Ordering::Relaxed) & 1;
        let _reader = CountedReader::new(&self.words.readers[turn]);
        held::interrupt();
        // SAFETY: counted before the value was looked for, so that the writer that replaces it waits for us before it
        // drops it. Acquire: the value is whole.
        read(unsafe { &*self.value.load(Ordering::Acquire) })
    }

    /// Replaces the value by the result of `change`. When the call returns, no thread reads the old
    /// value any more.
    pub fn replace(&self, blocked: &SignalsBlocked, change: impl FnOnce(&T) -> T) {
        let _held = self.hold(blocked);
        // SAFETY: only writers replace it, and there is no other one. The lock orders it.
        let next = change(unsafe { &*self.value.load(Ordering::Relaxed) });
        // Release: readers find it whole.
        let old = self.value.swap(Box::into_raw(Box::new(next)), Ordering::AcqRel);
        self.wait_for_readers();
        // SAFETY: made by `Box::into_raw`, replaced above, and no thread reads it any more.
        drop(unsafe { Box::from_raw(old) });
    }

    /// Prevents other threads from replacing the value.
    pub fn hold<'a>(&'a self, _: &'a SignalsBlocked) -> PublishedGuard<'a, T> {
        let writer = self.words.writer.lock().unwrap_or_else(PoisonError::into_inner);
        held::interrupt();
        PublishedGuard { published: self, _writer: writer }
    }

    fn wait_for_readers(&self) {
        for _ in 0..2 {
            let before = self.words.turn.fetch_add(1, Ordering::Relaxed) & 1;
            let readers = &self.words.readers[before];
            let mut looks = 0;
            // A change of nothing rather than a load, which could miss a reader: one that counts itself behind it
            // sees what was published before (acquire and release), and one before it is seen.
            while readers.fetch_add(0, Ordering::AcqRel) > 0 {
                looks += 1;
                pause(looks);
            }
        }
    }
}

fn pause(looks: u32) {
    if looks < LOOKS || cfg!(loom) { yield_now() } else { std::thread::sleep(PAUSE) }
}

impl<'a> CountedReader<'a> {
    fn new(readers: &'a AtomicUsize) -> Self {
        // Acquire: behind a writer's look at the counter, this reader sees what the writer had published.
        readers.fetch_add(1, Ordering::AcqRel);
        Self(readers)
    }
}

impl Drop for CountedReader<'_> {
    fn drop(&mut self) {
        // Release: the writer drops the old value behind what was read.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        let value = self.value.load(Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw`; borrowed mutably, so that no thread reads it.
        drop(unsafe { Box::from_raw(value) });
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const BLOCKED: SignalsBlocked = SignalsBlocked::in_a_model();

    /// A value of which loom reports a reader that is not ordered before its end.
    struct Canary {
        number: usize,
        alive: UnsafeCell<bool>,
    }

    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Sync for Canary {}
    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Send for Canary {}

    impl Canary {
        fn new(number: usize) -> Self {
            Self { number, alive: UnsafeCell::new(true) }
        }

        fn check(&self) -> usize {
            // SAFETY: loom checks that it is not dropped meanwhile.
            assert!(self.alive.with(|alive| unsafe { *alive }), "read after it was dropped");
            self.number
        }
    }

    impl Drop for Canary {
        fn drop(&mut self) {
            // SAFETY: borrowed mutably; loom checks just that.
            self.alive.with_mut(|alive| unsafe { *alive = false });
        }
    }

    fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    fn published() -> Arc<Published<Canary>> {
        Arc::new(Published::new(Canary::new(0)).unwrap())
    }

    fn next(published: &Published<Canary>) {
        published.replace(&BLOCKED, |canary| Canary::new(canary.check() + 1));
    }

    #[test]
    fn replace_beside_readers_drops_after_the_last() {
        check(3, || {
            let published = published();
            let other = Arc::clone(&published);
            let reader = thread::spawn(move || other.read(&BLOCKED, Canary::check));
            next(&published);
            assert!(reader.join().unwrap() <= 1);
            assert_eq!(published.read(&BLOCKED, Canary::check), 1);
        });
    }

    /// A reader that has chosen its counter, and counts after the turns have changed.
    #[test]
    fn settle_beside_a_late_reader_waits_for_it() {
        check(2, || {
            let published = published();
            let other = Arc::clone(&published);
            let reader = thread::spawn(move || other.read(&BLOCKED, Canary::check));
            next(&published);
            next(&published);
            assert!(reader.join().unwrap() <= 2);
        });
    }

    /// A signal's handler reads while its thread does.
    #[test]
    fn settle_beside_a_nested_reader_ends() {
        check(2, || {
            let published = published();
            let other = Arc::clone(&published);
            let reader = thread::spawn(move || {
                other.read(&BLOCKED, |outer| {
                    let first = outer.check();
                    let second = other.read(&BLOCKED, Canary::check);
                    assert!(first <= second && outer.check() == first);
                });
            });
            next(&published);
            reader.join().unwrap();
        });
    }

    /// After a thread has settled, everything that earlier readers did has happened.
    #[test]
    fn settle_beside_earlier_readers_waits_for_them() {
        check(3, || {
            let shared = Arc::new((Published::new(()).unwrap(), UnsafeFlag::new()));
            let other = Arc::clone(&shared);
            let reader = thread::spawn(move || {
                let (published, flag) = &*other;
                published.read(&BLOCKED, |()| {
                    if flag.phase.load(Ordering::SeqCst) == 0 {
                        flag.touch();
                    }
                });
            });
            let (published, flag) = &*shared;
            flag.phase.store(1, Ordering::SeqCst);
            published.hold(&BLOCKED).settle();
            flag.touch();
            reader.join().unwrap();
        });
    }

    /// Memory that readers touch only until they see the other phase.
    struct UnsafeFlag {
        phase: AtomicUsize,
        memory: UnsafeCell<u32>,
    }

    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Sync for UnsafeFlag {}
    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Send for UnsafeFlag {}

    impl UnsafeFlag {
        fn new() -> Self {
            Self { phase: AtomicUsize::new(0), memory: UnsafeCell::new(0) }
        }

        fn touch(&self) {
            // SAFETY: one thread at a time; loom checks just that.
            self.memory.with_mut(|memory| unsafe { *memory += 1 });
        }
    }
}
