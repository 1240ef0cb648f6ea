//! Warmed memory to measure on.
//!
//! Memory that a virtual machine has never touched costs its first toucher the hypervisor's own
//! fault, 20 times what is to be measured. The arena is therefore written once before anything is
//! timed, and every experiment of a run uses the same one.

#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::size::{GIB, MIB, Size};
use crate::{LabError, Observer};

/// Alignment of the arena: that of the largest folio in it.
const ALIGN: usize = GIB;

/// Bytes written between two looks at the observer.
const STEP: usize = 64 * MIB;

/// Private anonymous memory, asked to be on huge pages, written once.
#[derive(Debug)]
pub(crate) struct Arena {
    start: NonNull<u8>,
    len: usize,
    mapping: (NonNull<u8>, usize),
}

impl Arena {
    /// Maps `len` bytes and writes them once.
    pub(crate) fn warmed(len: usize, observer: &dyn Observer) -> Result<Self, LabError> {
        let mut arena = Self::mapped(len)?;
        observer.begin(&format!("warming {}", Size(len)));
        for (step, chunk) in arena.bytes().chunks_mut(STEP).enumerate() {
            observer.check()?;
            chunk.fill(1);
            observer.progress(((step + 1) * STEP) as f64 / len as f64);
        }
        Ok(arena)
    }

    fn mapped(len: usize) -> Result<Self, LabError> {
        let refused =
            |cause: rustix::io::Errno| LabError::Map { len: Size(len), cause: cause.into() };
        let mapped = len + ALIGN;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), mapped, prot, flags) }
            .map_err(refused)?
            .cast::<u8>();
        let start = base.wrapping_add(base.align_offset(ALIGN));
        // SAFETY: the range lies within the mapping just made; the advice changes no contents. A
        // kernel without transparent huge pages refuses it, and base pages serve as well.
        let _ = unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxHugepage) };
        let non_null = |at| NonNull::new(at).expect("the kernel maps nothing at address 0");
        Ok(Self { start: non_null(start), len, mapping: (non_null(base), mapped) })
    }

    /// All of it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes from `start` lie within the mapping, which lives as long as self,
        // holds initialised bytes (the kernel's zeroes at first), and is borrowed mutably here.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Gives every page back to the kernel; they are zeroes when touched or populated again. What
    /// the hypervisor gave to this machine stays with it.
    pub(crate) fn give_back(&mut self) {
        // SAFETY: private anonymous memory of our own, borrowed mutably: it reads as zeroes from
        // here on, which are initialised bytes.
        let given = unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontNeed)
        };
        given.expect("the range is a mapping that nobody has locked");
    }

    /// Bytes of it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of it that the kernel says are on huge pages; `None` where it does not say.
    pub(crate) fn huge_bytes(&self) -> Option<usize> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let start = self.start.as_ptr().addr();
        Some(huge_bytes_within(&smaps, start, start + self.len))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let (base, len) = self.mapping;
        // SAFETY: exactly the mapping made in `mapped`; every borrow of it has ended.
        let _ = unsafe { rustix::mm::munmap(base.as_ptr().cast(), len) };
    }
}

/// Sums `AnonHugePages` of the mappings in `/proc/PID/smaps` that overlap `start..end`.
fn huge_bytes_within(smaps: &str, start: usize, end: usize) -> usize {
    let mut overlaps = false;
    let mut sum = 0;
    for line in smaps.lines() {
        if let Some((from, to)) = mapping_of(line) {
            overlaps = from < end && to > start;
        } else if overlaps && let Some(kib) = line.strip_prefix("AnonHugePages:") {
            let kib: usize = kib.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            sum += kib * 1024;
        }
    }
    sum
}

/// The address range of a line that opens a mapping.
fn mapping_of(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}

/// Bytes of these that the kernel says are on huge pages; `None` where it does not say.
pub(crate) fn huge_bytes_of(memory: &[u8]) -> Option<usize> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let start = memory.as_ptr().addr();
    Some(huge_bytes_within(&smaps, start, start + memory.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    #[test]
    fn an_arena_is_aligned_written_and_long_enough() {
        let mut arena = Arena::warmed(3 * MIB, &Quiet).unwrap();
        assert!(arena.bytes().as_ptr().addr().is_multiple_of(ALIGN));
        assert_eq!(arena.bytes().len(), 3 * MIB);
        assert!(arena.bytes().iter().all(|&byte| byte == 1));
        assert!(arena.huge_bytes().is_some_and(|bytes| bytes <= 3 * MIB));
    }

    #[test]
    fn pages_given_back_are_zeroes() {
        let mut arena = Arena::warmed(3 * MIB, &Quiet).unwrap();
        arena.give_back();
        assert!(arena.bytes().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn only_overlapping_mappings_count() {
        let smaps = "1000-3000 rw-p 0 0:0 0\nAnonHugePages:  4 kB\n\
                     3000-5000 rw-p 0 0:0 0\nRss: 9 kB\nAnonHugePages:  8 kB\n\
                     5000-6000 rw-p 0 0:0 0\nAnonHugePages:  16 kB\n";
        assert_eq!(huge_bytes_within(smaps, 0x3000, 0x5000), 8 * 1024);
        assert_eq!(huge_bytes_within(smaps, 0x2fff, 0x5001), 28 * 1024);
    }
}
