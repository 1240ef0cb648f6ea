//! Warmed memory to measure on.
//!
//! Memory that a virtual machine has never touched costs its first toucher the hypervisor's own
//! fault, 20 times what is to be measured. The arena is therefore written once before anything is
//! timed, and every experiment of a run uses the same one.
//!
//! The bytes that are copied there are never zeroes: some machines store a line of zeroes at twice the speed of any
//! other (AMD Milan streams 46 GiB/s of them against 21), and an experiment that clears leaves nothing
//! else behind.

use std::ops::Range;

use hugekit_machine::size::{GIB, MIB, Size};
use procfs::process::{MemoryMap, Process};

use crate::measure::workloads::anonymous::Anonymous;
use crate::measure::workloads::threads::spawn;
use crate::measure::{LabError, Observer};

/// The most that the arena is aligned to: the largest folio that there is.
const MOST_ALIGN: usize = GIB;

/// Bytes written between two looks at the observer.
const STEP: usize = 64 * MIB;

/// Private anonymous memory, asked to be on huge pages, written once.
#[derive(Debug)]
pub struct Arena(Anonymous);

impl Arena {
    /// Maps `len` bytes and writes them once.
    pub fn warmed(len: usize, observer: &dyn Observer) -> Result<Self, LabError> {
        let mut arena = Self(Anonymous::aligned(len, align(len))?);
        observer.begin(&format!("warming {}", Size(len)));
        // The hypervisor is the slow part, and it serves CPUs side by side.
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        for (step, chunk) in arena.bytes().chunks_mut(STEP).enumerate() {
            observer.check()?;
            std::thread::scope(|scope| {
                let mut shares = chunk.chunks_mut(STEP.div_ceil(threads));
                shares.try_for_each(|share| spawn(scope, || share.fill(1)).map(drop))
            })?;
            observer.progress(((step + 1) * STEP) as f64 / len as f64);
        }
        Ok(arena)
    }

    /// Fills all of it with what no machine can tell from a program's data.
    pub fn fill_with_data(&mut self, observer: &dyn Observer) -> Result<(), LabError> {
        let mut random = fastrand::Rng::with_seed(4);
        for chunk in self.bytes().chunks_mut(STEP) {
            observer.check()?;
            random.fill(chunk);
        }
        Ok(())
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.0.bytes()
    }

    /// Gives the pages of the first `len` bytes back to the kernel.
    pub fn give_back(&mut self, len: usize) -> Result<(), LabError> {
        self.0.give_back(len)
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.0.addresses().len()
    }

    /// Bytes of it that the kernel says are on huge pages; `None` where it does not say.
    pub fn huge_bytes(&self) -> Option<usize> {
        huge_bytes_of(&self.0.addresses())
    }
}

/// The alignment of the largest folio that fits into this many bytes.
fn align(len: usize) -> usize {
    if len >= MOST_ALIGN { MOST_ALIGN } else { 2 * MIB }
}

/// Bytes of these addresses that the kernel says are mapped by huge pages, its own or the page cache's; `None` where it does
/// not say.
pub fn huge_bytes_of(addresses: &Range<usize>) -> Option<usize> {
    let mappings = Process::myself().and_then(|process| process.smaps()).ok()?;
    let overlaps = |mapping: &&MemoryMap| {
        let (from, to) = mapping.address;
        (from as usize) < addresses.end && (to as usize) > addresses.start
    };
    let huge = |mapping: &MemoryMap| {
        let field = |name| mapping.extension.map.get(name).copied().unwrap_or(0);
        field("AnonHugePages") + field("FilePmdMapped")
    };
    let bytes: u64 = mappings.iter().filter(overlaps).map(huge).sum();
    Some(bytes as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Quiet;
    use crate::measure::workloads::anonymous::Pages;

    #[test]
    fn data_holds_no_line_of_zeroes() {
        let mut arena = Arena::warmed(MIB, &Quiet).unwrap();
        arena.bytes().fill(0);
        arena.fill_with_data(&Quiet).unwrap();
        assert!(arena.bytes().chunks(64).all(|line| line.iter().any(|&byte| byte != 0)));
    }

    #[test]
    fn an_arena_is_aligned_written_and_long_enough() {
        let mut arena = Arena::warmed(3 * MIB, &Quiet).unwrap();
        assert!(arena.bytes().as_ptr().addr().is_multiple_of(2 * MIB));
        assert_eq!(arena.bytes().len(), 3 * MIB);
        assert!(arena.bytes().iter().all(|&byte| byte == 1));
        assert!(arena.huge_bytes().is_some_and(|bytes| bytes <= 3 * MIB));
    }

    #[test]
    fn pages_given_back_are_zeroes() {
        let mut arena = Arena::warmed(3 * MIB, &Quiet).unwrap();
        arena.give_back(3 * MIB).unwrap();
        assert!(arena.bytes().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn only_huge_pages_of_the_addresses_count() {
        let mut memory = Anonymous::new(Pages::Thp, 4 * MIB).unwrap();
        assert_eq!(huge_bytes_of(&memory.addresses()), Some(0));
        memory.bytes().fill(1);
        let huge = huge_bytes_of(&memory.addresses()).unwrap();
        assert!([0, 2, 4].contains(&(huge / MIB)), "{huge}");
        assert_eq!(huge_bytes_of(&(0..1)), Some(0));
    }
}
