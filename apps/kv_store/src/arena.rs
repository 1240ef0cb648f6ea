//! The memory that holds everything, and snapshots of it.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

use anyhow::{Context, Result};
use hugekit::fault::FaultMode;
use hugekit::snapshot::{Builder, Changes, Epoch};
use hugekit::{HUGE_PAGE_BYTES, PopulateOptions, Snapshot, SnapshotError, Threads};
use memmap2::{Advice, MmapMut};

/// Anonymous memory, on huge pages if the kernel has any. All of it is populated at the start: no
/// request waits for a page, and a machine with too little memory says so at once.
#[derive(Debug)]
pub struct Arena {
    mapping: MmapMut,
    start: usize,
    len: usize,
}

impl Arena {
    /// At least `len` zeroes: whole huge pages.
    pub fn new(len: usize) -> Result<Self> {
        let len = len.next_multiple_of(HUGE_PAGE_BYTES);
        let missing = || format!("no {len} bytes of memory");
        let mapping = MmapMut::map_anon(len + HUGE_PAGE_BYTES).with_context(missing)?;
        // Without huge pages in the kernel, the arena has base pages.
        let _ = mapping.advise(Advice::HugePage);
        let start = mapping.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let mut arena = Self { mapping, start, len };
        PopulateOptions::new().threads(Threads::Auto).run(arena.uninit()).with_context(missing)?;
        Ok(arena)
    }

    fn uninit(&mut self) -> &mut [std::mem::MaybeUninit<u8>] {
        let bytes: &mut [u8] = self;
        // SAFETY: the same bytes, borrowed mutably. Populating changes none of them.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) }
    }

    /// All bytes, as they are now.
    pub fn first_epoch(&self) -> Result<Changes, SnapshotError> {
        // SAFETY: the memory is mapped until the process ends or the arena is dropped, which a
        // snapshot notices. No thread blocks SIGBUS. System calls only read the memory. No other
        // code of this program uses userfaultfd.
        unsafe { in_place().first_epoch(&raw const self[..]) }
    }

    /// The bytes that were written since the epoch began, as they are now.
    pub fn since(&self, epoch: Epoch) -> Result<Changes, SnapshotError> {
        // SAFETY: the epoch is of this memory: mapped, written by threads that do not block SIGBUS,
        // not written by system calls, and protected by no other user of userfaultfd.
        unsafe { in_place().since(epoch) }
    }
}

/// A thread that writes to protected memory copies the granule itself: no other thread is woken.
fn in_place() -> Builder {
    Snapshot::builder().fault_mode(FaultMode::InPlace)
}

impl Deref for Arena {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.mapping[self.start..self.start + self.len]
    }
}

impl DerefMut for Arena {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.mapping[self.start..self.start + self.len]
    }
}
