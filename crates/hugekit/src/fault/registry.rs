//! Which addresses are served in place, as a signal handler can look it up.
//!
//! A signal may interrupt any thread anywhere, so looking up takes no lock: readers announce
//! themselves in one of two counters and read an immutable, sorted table. Whoever changes the table
//! publishes a new one and then, twice, directs new readers to the other counter and waits until the
//! first one is zero: once would not do, because a reader that chose its counter and was interrupted
//! before it counted may come late, when that counter is the one that nobody waits for. After that the
//! old table may go, and what only it named. Readers only do what a fault needs and never wait for a
//! writer, so that a writer's wait ends; a writer holds no lock that a reader could need.
//!
//! A thread that reads or changes a table has its signals blocked. Its own signal handler could touch memory that
//! another thread is about to protect, and would then be sent away again and again until that thread is done
//! ([`Arming`](crate::snapshot)), which waits for exactly this reader, or for the lock that this writer holds.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{ptr, thread};

use crate::sys::thread::without_signals;

/// Ascending, disjoint ranges and what is there.
pub(crate) type Table<T> = Vec<(Range<usize>, Arc<T>)>;

/// Looks at the counters before a waiting writer sleeps.
const LOOKS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(50);

/// Ranges of addresses and what is there, looked up without a lock.
#[derive(Debug)]
pub(crate) struct Registry<T: ?Sized> {
    table: AtomicPtr<Table<T>>,
    /// Which counter readers that begin now count in: its lowest bit.
    phase: AtomicUsize,
    readers: [AtomicUsize; 2],
    /// Held by whoever changes the table.
    writer: Mutex<()>,
}

impl<T: ?Sized> Registry<T> {
    pub(crate) fn new() -> Self {
        Self {
            table: AtomicPtr::new(Box::into_raw(Box::default())),
            phase: AtomicUsize::new(0),
            readers: [const { AtomicUsize::new(0) }; 2],
            writer: Mutex::new(()),
        }
    }

    /// What `read` makes of whatever is at an address; `None` if nothing is. Async-signal-safe if `read`
    /// is, which must not panic. Called with signals blocked, as handlers are.
    pub(crate) fn with<R>(&self, address: usize, read: impl FnOnce(&T) -> R) -> Option<R> {
        self.read(|table| {
            let after = table.partition_point(|(range, _)| range.end <= address);
            let found = table.get(after).filter(|(range, _)| range.contains(&address));
            found.map(|(_, what)| read(what))
        })
    }

    /// As [`with`](Self::with), called by a thread whose signals are not blocked.
    pub(crate) fn with_shielded<R>(&self, address: usize, read: impl FnOnce(&T) -> R) -> Option<R> {
        without_signals(|| self.with(address, read))
    }

    /// Whatever there is anywhere. As [`with`](Self::with).
    pub(crate) fn for_each(&self, mut read: impl FnMut(&T)) {
        self.read(|table| table.iter().for_each(|(_, what)| read(what)));
    }

    /// Whether anything is anywhere in a range.
    pub(crate) fn has_part_of(&self, range: &Range<usize>) -> bool {
        let overlaps = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        without_signals(|| self.read(|table| table.iter().any(|(other, _)| overlaps(other))))
    }

    fn read<R>(&self, read: impl FnOnce(&Table<T>) -> R) -> R {
        let readers = &self.readers[self.phase.load(Ordering::SeqCst) & 1];
        readers.fetch_add(1, Ordering::SeqCst);
        // SAFETY: counted as a reader before the table was looked for, so that whoever replaces it
        // waits for us before it goes.
        let table = unsafe { &*self.table.load(Ordering::SeqCst) };
        let result = read(table);
        readers.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Adds a range that overlaps no other.
    pub(super) fn add(&self, range: Range<usize>, what: Arc<T>) {
        self.change(|table| {
            let at = table.partition_point(|(other, _)| other.start < range.start);
            table.insert(at, (range, what));
        });
    }

    /// Cuts the range that begins there to `len` bytes, or removes it if that is 0. Nobody reads what was
    /// cut off any more when this returns.
    pub(super) fn cut(&self, start: usize, len: usize) {
        self.change(|table| {
            table.iter_mut().filter(|(range, _)| range.start == start).for_each(|(range, _)| {
                range.end = start + len;
            });
            table.retain(|(range, _)| !range.is_empty());
        });
    }

    /// Keeps others from changing it, for a thread that has its signals blocked.
    pub(crate) fn hold(&self) -> Held<'_, T> {
        Held { registry: self, _writer: self.writer.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Changes all of it at once; it stays ascending and disjoint. Nobody reads the old one any more when
    /// this returns.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Table<T>)) {
        without_signals(|| self.change_shielded(change));
    }

    fn change_shielded(&self, change: impl FnOnce(&mut Table<T>)) {
        let _held = self.hold();
        // SAFETY: only whoever holds the lock replaces the table.
        let mut table = unsafe { &*self.table.load(Ordering::SeqCst) }.clone();
        change(&mut table);
        let old = self.table.swap(Box::into_raw(Box::new(table)), Ordering::SeqCst);
        self.wait_for_readers();
        // SAFETY: made by `Box::into_raw`, replaced above, and nobody reads it any more.
        drop(unsafe { Box::from_raw(old) });
    }

    fn wait_for_readers(&self) {
        for _ in 0..2 {
            let before = self.phase.fetch_add(1, Ordering::SeqCst) & 1;
            let mut looks = 0;
            while self.readers[before].load(Ordering::SeqCst) > 0 {
                looks += 1;
                if looks < LOOKS { thread::yield_now() } else { thread::sleep(PAUSE) }
            }
        }
    }
}

/// A registry that only its holder changes.
#[derive(Debug)]
pub(crate) struct Held<'a, T: ?Sized> {
    registry: &'a Registry<T>,
    _writer: MutexGuard<'a, ()>,
}

impl<T: ?Sized> Held<'_, T> {
    /// Waits until every reader has gone that began before.
    pub(crate) fn settle(&self) {
        self.registry.wait_for_readers();
    }
}

impl<T: ?Sized> Drop for Registry<T> {
    fn drop(&mut self) {
        let table = std::mem::replace(self.table.get_mut(), ptr::null_mut());
        // SAFETY: made by `Box::into_raw`; borrowed mutably, so that nobody reads it.
        drop(unsafe { Box::from_raw(table) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn an_address_is_found_in_its_range_and_nowhere_else() {
        let registry = Registry::new();
        for start in [30, 10, 20] {
            registry.add(start..start + 5, Arc::new(start));
        }
        registry.cut(20, 2);
        registry.cut(30, 0);
        let found = |address| registry.with(address, |&start| start);
        let expected = |address| match address {
            10..15 => Some(10),
            20..22 => Some(20),
            _ => None,
        };
        for address in 0..40 {
            assert_eq!(found(address), expected(address), "{address}");
        }
    }

    /// Says when it is gone, and is never read afterwards.
    struct Canary(Arc<AtomicBool>);

    impl Drop for Canary {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_is_removed_goes_when_nobody_reads_it_any_more() {
        let registry = Registry::new();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        registry.with(50, |canary: &Canary| {
                            assert!(!canary.0.load(Ordering::SeqCst));
                            thread::yield_now();
                            assert!(!canary.0.load(Ordering::SeqCst));
                        });
                    }
                });
            }
            for _ in 0..2000 {
                let gone = Arc::new(AtomicBool::new(false));
                registry.add(0..100, Arc::new(Canary(Arc::clone(&gone))));
                assert!(!gone.load(Ordering::SeqCst));
                registry.cut(0, 0);
                assert!(gone.load(Ordering::SeqCst));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
