//! Memory for copies. It is allocated before the first snapshot and kept between snapshots.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{SnapshotError, collapse};
use rustix::param::page_size;

use hugekit_machine::Root;
use hugekit_regions::pool::{Backing, limits};
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::fork_mark::ForkMark;
use hugekit_sys::private_pages::PrivateBytes;
use hugekit_sys::{headroom, memory};

/// Populated memory for the copies of granules, which one snapshot after another uses.
///
/// Without a reserve, each copy uses new memory. The writer then waits until the kernel has found
/// and cleared a huge page. This lasts as long as the copy itself, or several times as long if free
/// memory is fragmented. A program that takes many snapshots should make a reserve when it starts:
///
/// ```
/// use hugekit::Snapshot;
/// use hugekit::snapshot::Reserve;
///
/// let mut state = vec![1_u8; 16 << 20];
/// let reserve = Reserve::new(8 << 20)?;
/// for save in 0..3 {
///     let builder = Snapshot::builder().reserve(&reserve);
///     // SAFETY: until the snapshot is dropped,
///     // - no thread that writes to `state` blocks SIGBUS, and no handler keeps hugekit's faults;
///     // - no stack, signal stack or thread-local variable lies in `state`;
///     // - no system call writes to `state`;
///     // - no other userfaultfd and no CRIU handles its faults.
///     let snapshot = unsafe { builder.of_anonymous(&raw const state[..]) }?;
///     state.fill(save);
///     assert!(snapshot.stats().reserved > 0);
///     snapshot.write_to(std::io::sink())?;
/// }
/// # Ok::<(), hugekit::SnapshotError>(())
/// ```
///
/// Snapshots that exist at the same time share the reserve. Each snapshot gets as many bytes as it
/// may hold, if they are free, and keeps them until it is dropped. Further copies use new memory
/// ([`SnapshotStats::reserved`](crate::SnapshotStats::reserved)). Clones are handles of the same
/// reserve. Children of `fork(2)` do not inherit it.
#[derive(Clone, Debug)]
pub struct Reserve(Arc<ReserveMemory>);

#[derive(Debug)]
struct ReserveMemory {
    bytes: ManuallyDrop<PrivateBytes>,
    len: usize,
    parts: PartsTaken,
    mark: ForkMark,
}

/// A part of the reserve that one snapshot has. When it has ended, another snapshot may have it.
#[derive(Debug)]
pub(super) struct ReservePart {
    memory: Arc<ReserveMemory>,
    range: Range<usize>,
    is_over: AtomicBool,
}

/// The huge pages that parts have, from the first page on, until no part is left. Both numbers are
/// one word, so that no lock is needed.
#[derive(Debug, Default)]
struct PartsTaken(AtomicU64);

impl PartsTaken {
    /// Returns the number of parts, and of huge pages up to the end of the last one.
    fn unpack(word: u64) -> (u64, usize) {
        (word >> u32::BITS, word as u32 as usize)
    }

    fn pack(count: u64, pages: usize) -> u64 {
        count << u32::BITS | pages as u64
    }

    /// Takes the next pages: as many as are wanted, or as are left of `all`.
    fn take_pages(&self, wanted: usize, all: usize) -> Option<Range<usize>> {
        let more = |word| {
            let (count, taken) = Self::unpack(word);
            let pages = wanted.min(all - taken);
            (pages > 0).then(|| Self::pack(count + 1, taken + pages))
        };
        let before = self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        let (_, start) = Self::unpack(before);
        Some(start..start + wanted.min(all - start))
    }

    /// Notes that a part has ended. After the last one, all pages are free again.
    fn give_back(&self) {
        let less = |word| {
            let (count, taken) = Self::unpack(word);
            Some(Self::pack(count - 1, if count > 1 { taken } else { 0 }))
        };
        let _ = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, less);
    }
}

impl Reserve {
    /// Allocates and populates `bytes`, rounded up to a multiple of 2 MiB, on transparent huge
    /// pages if the kernel has any.
    ///
    /// The reserve is large enough if it has as many bytes as writers change until a snapshot is
    /// read. The length of the memory is always enough.
    ///
    /// # Errors
    /// [`SnapshotError::Memory`] if less memory is available, and [`SnapshotError::Kernel`] if the
    /// kernel refuses a call. Nothing is allocated then.
    pub fn new(bytes: usize) -> Result<Self, SnapshotError> {
        headroom::check()?;
        let too_many = SnapshotError::kernel("mmap")(rustix::io::Errno::NOMEM);
        let len = bytes.max(1).checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or(too_many)?;
        limits::check_use(&Root::default(), Backing::Thp, len)?;
        let bytes =
            PrivateBytes::new(len, HUGE_PAGE_BYTES).map_err(SnapshotError::kernel("mmap"))?;
        bytes.keep_from_children().map_err(SnapshotError::kernel("madvise(MADV_DONTFORK)"))?;
        // A kernel without them has base pages.
        let _ = bytes.want_huge_pages();
        memory::populate_write(bytes.start(), len)
            .map_err(SnapshotError::kernel("madvise(MADV_POPULATE_WRITE)"))?;
        // If free memory is fragmented, the faults got base pages. The collapse moves other memory away.
        // SAFETY: the memory is private, so no other userfaultfd handles minor faults of shared memory there.
        unsafe { collapse(std::ptr::slice_from_raw_parts(bytes.start(), len)) };
        let (bytes, parts) = (ManuallyDrop::new(bytes), PartsTaken::default());
        Ok(Self(Arc::new(ReserveMemory { bytes, len, parts, mark: ForkMark::new() })))
    }

    /// Returns the length of the reserve in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Touches every page, if no snapshot uses a part of the reserve. Returns true if it touched
    /// the pages.
    ///
    /// This is for virtual machines. A hypervisor may take back, move or unmap memory that a guest
    /// has not used for some seconds. The next access then lasts up to some milliseconds for 2 MiB,
    /// and a writer would wait for it. Call this before a snapshot, while writers still run. The
    /// call lasts 4 ms per GiB if all memory is mapped, and tenths of a second if not.
    #[doc(hidden)]
    pub fn touch(&self) -> bool {
        let Some(part) = self.take_part(self.len()).filter(|part| part.len() == self.len()) else {
            return false;
        };
        for offset in (0..part.len()).step_by(page_size()) {
            // SAFETY: within the reserve, which is ours alone while the part lives, and whose bytes mean nothing.
            unsafe { part.start().add(offset).write_volatile(0) };
        }
        true
    }

    /// Takes the wanted bytes, rounded up to 2 MiB, or the bytes that other snapshots have left;
    /// none in a forked child.
    pub(super) fn take_part(&self, wanted: usize) -> Option<ReservePart> {
        let memory = &self.0;
        let (wanted, all) = (wanted.div_ceil(HUGE_PAGE_BYTES), memory.len / HUGE_PAGE_BYTES);
        let pages = memory.mark.is_ours().then(|| memory.parts.take_pages(wanted, all))??;
        let range = pages.start * HUGE_PAGE_BYTES..pages.end * HUGE_PAGE_BYTES;
        Some(ReservePart { memory: Arc::clone(memory), range, is_over: AtomicBool::new(false) })
    }
}

impl ReservePart {
    pub(super) fn start(&self) -> *mut u8 {
        self.memory.bytes.start().wrapping_add(self.range.start)
    }

    pub(super) fn len(&self) -> usize {
        self.range.len()
    }

    /// Ends the part: the snapshot writes nothing there any more.
    pub(super) fn end(&self) {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            self.memory.parts.give_back();
        }
    }
}

impl Drop for ReservePart {
    fn drop(&mut self) {
        self.end();
    }
}

impl Drop for ReserveMemory {
    fn drop(&mut self) {
        if self.mark.is_ours() {
            // SAFETY: not used afterwards. A forked child must not unmap what it has not got.
            unsafe { ManuallyDrop::drop(&mut self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_of_several_is_shared_and_each_byte_is_one_snapshots() {
        let reserve = Reserve::new(5 * HUGE_PAGE_BYTES).unwrap();
        assert!(reserve.touch());
        let wanted = [HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1, usize::MAX];
        let mut parts: Vec<_> = wanted.iter().map(|&len| reserve.take_part(len).unwrap()).collect();
        let places: Vec<_> = parts.iter().map(|part| (part.range.start, part.len())).collect();
        assert_eq!(places, [(0, 1), (1, 2), (3, 2)].map(|(at, len)| (at << 21, len << 21)));
        while let Some(part) = parts.pop() {
            // SAFETY: the last of so many bytes, which no other thread uses.
            unsafe { part.start().add(part.len() - 1).write(1) };
            assert!(!reserve.touch());
        }
        assert!(reserve.take_part(0).is_none() && reserve.touch());
    }

    #[test]
    fn reserve_of_one_snapshot_is_had_again_when_that_has_ended() {
        let reserve = Reserve::new(1).unwrap();
        assert_eq!(reserve.len(), HUGE_PAGE_BYTES);
        let part = reserve.clone().take_part(1).unwrap();
        assert!(reserve.take_part(1).is_none() && !reserve.touch());
        // SAFETY: the last of so many bytes, which no other thread uses.
        unsafe { part.start().add(part.len() - 1).write(1) };
        drop(part);
        assert!(reserve.touch() && reserve.take_part(1).is_some());
        assert_eq!(reserve.take_part(usize::MAX).unwrap().len(), HUGE_PAGE_BYTES);
    }

    #[test]
    fn reserve_beyond_the_machine_is_an_error_with_numbers() {
        let refused = Reserve::new(usize::MAX / 2).unwrap_err();
        let refused = hugekit_sys::error_chain(&refused).to_string();
        assert!(refused.contains("MiB available") || refused.contains("limit"), "{refused}");
        assert!(matches!(Reserve::new(usize::MAX), Err(SnapshotError::Kernel { .. })));
    }
}
