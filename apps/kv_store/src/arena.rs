//! The memory that holds everything, and snapshots of it.
#![allow(unsafe_code)]

use anyhow::{Context, Result};
use hugekit::fault::FaultMode;
use hugekit::snapshot::{Changes, Epoch};
use hugekit::{HUGE_PAGE_BYTES, PopulateOptions, Snapshot, SnapshotError, Threads};
use memmap2::{Advice, MmapMut};

/// Anonymous memory, on huge pages if the kernel has any. All of it is populated at the start: no
/// request waits for a page, and a machine with too little memory says so at once. It is mapped
/// until the process ends.
#[derive(Debug, Default)]
pub struct Arena {
    pub bytes: &'static mut [u8],
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
        let bytes = &mut Box::leak(Box::new(mapping))[start..start + len];
        // SAFETY: the same bytes, borrowed mutably. Populating changes none of them.
        let uninit = unsafe { &mut *(&raw mut *bytes as *mut [std::mem::MaybeUninit<u8>]) };
        PopulateOptions::new().threads(Threads::Auto).run(uninit).with_context(missing)?;
        Ok(Self { bytes })
    }

    /// The bytes that were written since the epoch began, or all of them, as they are now.
    pub fn changes(&self, since: Option<Epoch>) -> Result<Changes, SnapshotError> {
        // A thread that writes to protected memory copies the granule itself: no other is woken.
        let builder = Snapshot::builder().fault_mode(FaultMode::InPlace);
        // SAFETY: the memory is mapped until the process ends, and epochs are only of it. No thread
        // blocks SIGBUS. System calls only read the memory. No other code of this program uses
        // userfaultfd.
        unsafe {
            match since {
                Some(epoch) => builder.since(epoch),
                None => builder.first_epoch(&raw const *self.bytes),
            }
        }
    }
}
