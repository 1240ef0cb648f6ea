//! The memory that everything is kept in.
#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr;

use anyhow::{Context, Result};
use hugekit::fault::FaultMode;
use hugekit::snapshot::{Builder, Changes, Epoch, Stats};
use hugekit::{PopulateOptions, Snapshot, SnapshotError, Threads};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::slabs::SLAB;

/// Anonymous memory at a multiple of a slab, on huge pages if there are any. All of it is there from the start: who
/// is asked to store something then waits for no page, and a machine that has not enough says so at once.
#[derive(Debug)]
pub struct Arena {
    mapped: *mut u8,
    mapped_len: usize,
    start: *mut u8,
    len: usize,
}

impl Arena {
    /// `len` zeroes, a multiple of [`SLAB`], all of which are there.
    pub fn new(len: usize) -> Result<Self> {
        let mut arena = Self::unpopulated(len)?;
        PopulateOptions::new()
            .threads(Threads::Auto)
            .run(arena.uninit())
            .with_context(|| format!("no {len} bytes of memory"))?;
        Ok(arena)
    }

    /// As [`new`](Self::new), of which the kernel populates what is written.
    pub fn unpopulated(len: usize) -> Result<Self> {
        assert!(len.is_multiple_of(SLAB));
        let mapped_len = len + SLAB;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces none.
        let mapped =
            unsafe { mmap_anonymous(ptr::null_mut(), mapped_len, prot, MapFlags::PRIVATE) }
                .with_context(|| format!("no {len} bytes of addresses"))?;
        let mapped = mapped.cast::<u8>();
        let start = mapped.map_addr(|address| address.next_multiple_of(SLAB));
        // SAFETY: changes no byte. A kernel without huge pages has base pages.
        let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
        Ok(Self { mapped, mapped_len, start, len })
    }

    /// As memory that may be populated, which changes no byte of it.
    fn uninit(&mut self) -> &mut [std::mem::MaybeUninit<u8>] {
        // SAFETY: mapped, and borrowed mutably; a thread that populates it writes nothing.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len) }
    }

    /// A part as it is now, all of which is to be saved.
    pub fn watch(&self, part: Range<usize>) -> Result<Unsaved, SnapshotError> {
        let bytes = ptr::from_ref(&self[part.clone()]);
        // SAFETY: no thread of this program blocks SIGBUS, only the server's thread writes here, and it has no
        // system call do that; no other code uses userfaultfd.
        let changes = unsafe { in_place().first_epoch(bytes) }?;
        Ok(Unsaved { part, changes })
    }

    /// What of a part was written since it was saved.
    pub fn changed(&self, watched: Watched) -> Result<Unsaved, SnapshotError> {
        let Watched { part, epoch } = watched;
        // SAFETY: as above.
        let changes = unsafe { in_place().since(epoch) }?;
        Ok(Unsaved { part, changes })
    }
}

/// Writers serve themselves: no thread is woken for them.
fn in_place() -> Builder {
    Snapshot::builder().fault_mode(FaultMode::InPlace)
}

/// A part of the arena at one point in time: those of its bytes that are to be saved.
#[derive(Debug)]
pub struct Unsaved {
    part: Range<usize>,
    changes: Changes,
}

impl Unsaved {
    pub fn part(&self) -> &Range<usize> {
        &self.part
    }

    /// Behind the last byte that is to be saved; where the part begins if none is.
    pub fn end(&self) -> usize {
        self.part.start + self.changes.changed().last().map_or(0, |range| range.end)
    }

    /// Gives those bytes to `take`, ascending, with their offsets in the arena.
    pub fn write_to(
        self,
        mut take: impl FnMut(usize, &[u8]) -> io::Result<()>,
    ) -> Result<Watched, SnapshotError> {
        let Self { part, changes } = self;
        let start = part.start;
        let epoch = changes.write_to(|offset, bytes| take(start + offset, bytes))?;
        Ok(Watched { part, epoch })
    }
}

/// A part that was saved: what is written to it since is noted, granule by granule.
#[derive(Debug)]
pub struct Watched {
    part: Range<usize>,
    epoch: Epoch,
}

impl Watched {
    /// What it has cost to save it.
    pub fn stats(&self) -> Stats {
        self.epoch.stats()
    }
}

impl Deref for Arena {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and populated as long as this lives, and written only through it.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for Arena {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed mutably. A snapshot is read by the kernel, as from another process.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; no borrow of it is left. A snapshot notices.
        let _ = unsafe { munmap(self.mapped.cast(), self.mapped_len) };
    }
}
