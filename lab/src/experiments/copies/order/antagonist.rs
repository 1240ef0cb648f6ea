//! Other memory that is read while writers work, so that less of a cache is left to them.
//!
//! *Contended*: threads on the CPUs that writers leave go round as much memory as the last level has, from before the
//! first copy until the last writer has ended. *Scarce*: between copy and use, outside the clock, each writer itself
//! reads so much that only 1.25 MiB of a cache level is left to its copy. Few threads cannot make a large cache that
//! short in the time of one copy.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;

use crate::measure::LabError;
use crate::measure::workloads::threads::spawn;
use hugekit_machine::CacheSizes;
use hugekit_machine::size::{KIB, MIB};

/// The last level that a thread of the published machine had: 45 MiB for 36 threads.
pub(super) const SHARE: usize = 5 * MIB / 4;

/// Last levels up to this are filled for each page; larger ones take longer to read than all the rest.
const MOST_READ: usize = 64 * MIB;

/// A thread looks after this many bytes whether it is to end.
const BLOCK: usize = 64 * KIB;

/// Bytes of other memory that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pressure {
    /// By each writer, and the level that they leave 1.25 MiB of: the last level where it can be filled again and
    /// again, and else a CPU's second one. `None` where neither is known or has more than is to be left.
    pub(super) scarce: Option<(usize, &'static str)>,
    /// By antagonists. `None` where the last level is not known or writers leave no CPU.
    pub(super) contended: Option<usize>,
    /// Threads, one on each CPU that writers leave.
    pub(super) antagonists: usize,
}

impl Pressure {
    pub(super) fn on(caches: Option<CacheSizes>, writers: usize, cpus: usize) -> Self {
        let spare = |bytes: usize| bytes.checked_sub(SHARE).filter(|&reads| reads > 0);
        let scarce = |caches: CacheSizes| {
            let of_llc = spare(caches.llc / writers).filter(|_| caches.llc <= MOST_READ);
            let of_l2 = || spare(caches.l2).map(|reads| (reads, "its L2"));
            of_llc.map(|reads| (reads, "the last level")).or_else(of_l2)
        };
        let antagonists = cpus.saturating_sub(writers);
        let llc = caches.map(|caches| caches.llc).filter(|&llc| llc > 0 && antagonists > 0);
        Self { scarce: caches.and_then(scarce), contended: llc, antagonists }
    }

    /// Without what reads more than there is.
    pub(super) fn within(self, bytes: usize) -> Self {
        let scarce = self.scarce.filter(|&(reads, _)| reads <= bytes);
        Self { scarce, contended: self.contended.filter(|&reads| reads <= bytes), ..self }
    }

    /// The most that one of them reads.
    pub(super) fn reads(self) -> usize {
        self.scarce.map_or(0, |(reads, _)| reads).max(self.contended.unwrap_or(0))
    }
}

/// Loads a word of each cache line.
#[allow(unsafe_code)]
pub(super) fn read_lines(bytes: &[u8]) {
    for line in bytes.chunks_exact(64) {
        // SAFETY: a readable byte; the volatile load keeps the loop from being left out.
        unsafe { line.as_ptr().read_volatile() };
    }
}

/// Threads that read, how much they have read, and whether they are to end.
#[derive(Debug, Default)]
pub(super) struct Antagonists {
    read: AtomicUsize,
    is_over: AtomicBool,
}

/// Antagonists end when this is dropped.
#[derive(Debug)]
pub(super) struct Ending<'a>(&'a Antagonists);

impl Antagonists {
    /// Bytes, of all of them together.
    pub(super) fn read(&self) -> usize {
        self.read.load(Ordering::Relaxed)
    }

    /// Starts this many threads. They have read as much as the memory has when this returns.
    pub(super) fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        count: usize,
        memory: &'scope [u8],
    ) -> Result<Ending<'scope>, LabError> {
        let ending = Ending(self);
        for index in 0..count {
            spawn(scope, move || self.go_round(memory, memory.len() / count * index))?;
        }
        while count > 0 && self.read() < memory.len() {
            std::thread::yield_now();
        }
        Ok(ending)
    }

    fn go_round(&self, memory: &[u8], from: usize) {
        let (before, behind) = memory.split_at(from);
        for block in behind.chunks(BLOCK).chain(before.chunks(BLOCK)).cycle() {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            read_lines(block);
            self.read.fetch_add(block.len(), Ordering::Relaxed);
        }
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn caches(l2: usize, llc: usize) -> Option<CacheSizes> {
        Some(CacheSizes { l1d: 32 << 10, l2, llc, llc_shared_by: 4 })
    }

    #[test]
    fn scarce_leaves_each_thread_what_it_had_then() {
        let of = |l2, llc, writers| Pressure::on(caches(l2, llc), writers, writers).scarce;
        assert_eq!(of(MIB / 2, 32 * MIB, 2), Some((16 * MIB - SHARE, "the last level")));
        assert_eq!(of(MIB / 2, 32 * MIB, 1), Some((32 * MIB - SHARE, "the last level")));
        assert_eq!(of(2 * MIB, 300 * MIB, 2), Some((2 * MIB - SHARE, "its L2")));
        assert_eq!(of(MIB, 300 * MIB, 2), None);
        assert_eq!(of(2 * MIB, 4 * MIB, 4), Some((2 * MIB - SHARE, "its L2")));
        assert_eq!(of(MIB, 4 * MIB, 4), None);
    }

    #[test]
    fn antagonists_have_the_cpus_that_writers_leave() {
        let of = |writers, cpus| Pressure::on(caches(MIB, 32 * MIB), writers, cpus);
        assert_eq!((of(1, 4).antagonists, of(1, 4).contended), (3, Some(32 * MIB)));
        assert_eq!((of(4, 4).antagonists, of(4, 4).contended), (0, None));
        assert_eq!(Pressure::on(None, 1, 4).reads(), 0);
    }

    #[test]
    fn pressure_that_needs_more_memory_than_there_is_is_none() {
        let pressure = Pressure::on(caches(MIB, 32 * MIB), 2, 4);
        assert_eq!(pressure.reads(), 32 * MIB);
        assert_eq!(pressure.within(32 * MIB), pressure);
        let less = pressure.within(32 * MIB - 1);
        assert_eq!((less.contended, less.reads()), (None, 16 * MIB - SHARE));
        assert_eq!(pressure.within(MIB).reads(), 0);
    }

    #[test]
    fn antagonists_read_all_memory_and_go_on_until_they_are_ended() {
        let (antagonists, memory) = (Antagonists::default(), vec![1; 3 * BLOCK + 64]);
        std::thread::scope(|scope| {
            let ending = antagonists.start(scope, 2, &memory).unwrap();
            let read = antagonists.read();
            assert!(read >= memory.len());
            let since = Instant::now();
            while antagonists.read() < read + 2 * memory.len() {
                assert!(since.elapsed() < Duration::from_secs(60), "they have ended");
                std::thread::yield_now();
            }
            drop(ending);
        });
    }
}
