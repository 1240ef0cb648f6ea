//! The addresses whose faults are handled in place, for signal handlers: a sorted table that is
//! [published](Published) as a whole.
//!
//! A thread that reads or changes a table has its signals blocked. Otherwise its own signal handler
//! could touch memory that another thread is about to protect. The handler would then fault
//! repeatedly until that thread is done (`Arming` in `hugekit-snapshots`), and that thread waits
//! for this reader, or for the lock of this writer.

use std::ops::Range;
use std::sync::Arc;

use rustix::io;

use hugekit_sys::sync::{self, Published};
use hugekit_sys::thread::{SignalsBlocked, without_signals};

/// Ascending, disjoint ranges, each with its entry.
pub(crate) type RangeTable<T> = Vec<(Range<usize>, Arc<T>)>;

/// A table that only its holder changes.
pub type HeldTable<'a, T> = sync::PublishedGuard<'a, RangeTable<T>>;

/// Ranges of addresses with entries, which are found without a lock.
#[derive(Debug)]
pub struct Registry<T: ?Sized>(Published<RangeTable<T>>);

impl<T: ?Sized + Send + Sync> Registry<T> {
    /// Returns a registry without ranges.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Published::new(Vec::new())?))
    }

    /// Calls `read` with the entry at an address; `None` if there is no entry. Async-signal-safe if `read`
    /// is.
    pub fn with<R>(
        &self,
        address: usize,
        blocked: &SignalsBlocked,
        read: impl FnOnce(&T) -> R,
    ) -> Option<R> {
        self.0.read(blocked, |table| {
            let after = table.partition_point(|(range, _)| range.end <= address);
            let found = table.get(after).filter(|(range, _)| range.contains(&address));
            found.map(|(_, what)| read(what))
        })
    }

    /// Like [`with`](Self::with), for a thread whose signals are not blocked.
    pub fn with_shielded<R>(&self, address: usize, read: impl FnOnce(&T) -> R) -> Option<R> {
        without_signals(|blocked| self.with(address, blocked, read))
    }

    /// Calls `read` with every entry. Conditions as for [`with`](Self::with).
    pub fn for_each(&self, blocked: &SignalsBlocked, mut read: impl FnMut(&T)) {
        self.0.read(blocked, |table| table.iter().for_each(|(_, what)| read(what)));
    }

    /// Returns true if a part of a range has an entry.
    pub(crate) fn has_part_of(&self, range: &Range<usize>) -> bool {
        let overlaps = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        let is_there = |table: &RangeTable<T>| table.iter().any(|(other, _)| overlaps(other));
        without_signals(|blocked| self.0.read(blocked, is_there))
    }

    /// Adds a range that overlaps no other.
    pub(super) fn add(&self, range: Range<usize>, what: Arc<T>) {
        self.change(|table| {
            let at = table.partition_point(|(other, _)| other.start < range.start);
            table.insert(at, (range, what));
        });
    }

    /// Shortens the range that begins at `start` to `len` bytes, or removes it if `len` is 0. When
    /// the call returns, no thread reads the removed part any more.
    pub(super) fn resize(&self, start: usize, len: usize) {
        self.change(|table| {
            table.iter_mut().filter(|(range, _)| range.start == start).for_each(|(range, _)| {
                range.end = start + len;
            });
            table.retain(|(range, _)| !range.is_empty());
        });
    }

    /// Prevents other threads from changing the table.
    pub fn hold<'a>(&'a self, blocked: &'a SignalsBlocked) -> HeldTable<'a, T> {
        self.0.hold(blocked)
    }

    /// Changes the whole table at once. It must stay ascending and disjoint. When the call returns,
    /// no thread reads the old table any more.
    pub fn change(&self, change: impl FnOnce(&mut RangeTable<T>)) {
        without_signals(|blocked| {
            self.0.replace(blocked, |table| {
                let mut table = table.clone();
                change(&mut table);
                table
            });
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn find_of_an_address_is_its_range_and_no_other() {
        let registry = Registry::new().unwrap();
        for start in [30, 10, 20] {
            registry.add(start..start + 5, Arc::new(start));
        }
        registry.resize(20, 2);
        registry.resize(30, 0);
        let found = |address| registry.with_shielded(address, |&start| start);
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
    struct GoneFlag(Arc<AtomicBool>);

    impl Drop for GoneFlag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn remove_beside_readers_waits_for_them() {
        let registry = Registry::new().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        registry.with_shielded(50, |canary: &GoneFlag| {
                            assert!(!canary.0.load(Ordering::SeqCst));
                            thread::yield_now();
                            assert!(!canary.0.load(Ordering::SeqCst));
                        });
                    }
                });
            }
            for _ in 0..2000 {
                let gone = Arc::new(AtomicBool::new(false));
                registry.add(0..100, Arc::new(GoneFlag(Arc::clone(&gone))));
                assert!(!gone.load(Ordering::SeqCst));
                registry.resize(0, 0);
                assert!(gone.load(Ordering::SeqCst));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
