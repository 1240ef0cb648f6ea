//! Memory for what writers copy, taken before there is a snapshot and kept from one to the next.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{SnapshotError, collapse};
use rustix::param::page_size;

use crate::HUGE_PAGE_BYTES;
use crate::machine::Root;
use crate::pool::{Backing, limits};
use crate::sys::fork_mark::ForkMark;
use crate::sys::memory;
use crate::sys::private_pages::PrivateBytes;

/// Memory that writers copy granules to, touched once, and kept from one snapshot to the next.
///
/// Without one, a snapshot takes such memory when a granule is preserved, and a writer waits until the kernel has
/// found and cleared a huge page, as long as for the copy itself, or several times as long where free memory is
/// in pieces. A program that takes snapshots again and again makes a reserve when it starts:
///
/// ```
/// use hugekit::Snapshot;
/// use hugekit::snapshot::Reserve;
///
/// let mut state = vec![1_u8; 16 << 20];
/// let reserve = Reserve::new(8 << 20)?;
/// for save in 0..3 {
///     let builder = Snapshot::builder().reserve(&reserve);
///     // SAFETY: no thread blocks SIGBUS, and no system call writes to `state` while the snapshot lives.
///     let snapshot = unsafe { builder.of_anonymous(&raw const state[..]) }?;
///     state.fill(save);
///     assert!(snapshot.stats().reserved > 0);
///     snapshot.write_to(std::io::sink())?;
/// }
/// # Ok::<(), hugekit::SnapshotError>(())
/// ```
///
/// One snapshot has all of it until it is dropped; another one at the same time takes memory when it needs some
/// ([`Stats::reserved`](super::Stats::reserved) tells). Clones are the same reserve. A forked child has none of it.
#[derive(Clone, Debug)]
pub struct Reserve(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    bytes: ManuallyDrop<PrivateBytes>,
    len: usize,
    leased: AtomicBool,
    mark: ForkMark,
}

/// The reserve as one snapshot has it; over, another one may.
#[derive(Debug)]
pub(super) struct Lease {
    memory: Arc<Memory>,
    is_over: AtomicBool,
}

impl Reserve {
    /// Takes `bytes`, rounded up to 2 MiB, on transparent huge pages if the kernel has any. As much as writers
    /// change until a snapshot is read suffices: half of its range at most, in most cases.
    ///
    /// # Errors
    /// [`SnapshotError::Memory`] if there is not so much, [`SnapshotError::Kernel`]. Nothing is taken then.
    pub fn new(bytes: usize) -> Result<Self, SnapshotError> {
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
        // What came with the faults is on base pages where free memory is in pieces: this moves others away.
        // SAFETY: private memory.
        unsafe { collapse(std::ptr::slice_from_raw_parts(bytes.start(), len)) };
        let (bytes, leased) = (ManuallyDrop::new(bytes), AtomicBool::new(false));
        Ok(Self(Arc::new(Memory { bytes, len, leased, mark: ForkMark::new() })))
    }

    /// Bytes it has.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Touches every page, if no snapshot has them; whether it did.
    ///
    /// For virtual machines: hypervisors take back, move or stop mapping what a guest has not used for a while,
    /// seconds sometimes, and what the first access costs then a writer would wait for, up to milliseconds for
    /// 2 MiB. Before a snapshot, while writers still run: 4 milliseconds a gigabyte where all is there, tenths of a
    /// second where it is not.
    pub fn touch(&self) -> bool {
        let Some(lease) = self.lease() else { return false };
        for offset in (0..lease.len()).step_by(page_size()) {
            // SAFETY: within the reserve, which is ours alone while the lease lives, and whose bytes mean nothing.
            unsafe { lease.start().add(offset).write_volatile(0) };
        }
        true
    }

    /// All of it, unless another snapshot has it, or this is a forked child.
    pub(super) fn lease(&self) -> Option<Lease> {
        let memory = &self.0;
        let is_free = memory.mark.is_ours() && !memory.leased.swap(true, Ordering::Acquire);
        is_free.then(|| Lease { memory: Arc::clone(memory), is_over: AtomicBool::new(false) })
    }
}

impl Lease {
    pub(super) fn start(&self) -> *mut u8 {
        self.memory.bytes.start()
    }

    pub(super) fn len(&self) -> usize {
        self.memory.len
    }

    /// Nothing is written there by this any more.
    pub(super) fn end(&self) {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            self.memory.leased.store(false, Ordering::Release);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end();
    }
}

impl Drop for Memory {
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
    fn reserve_of_several_is_had_by_one_at_a_time() {
        let reserve = Reserve::new(1).unwrap();
        assert_eq!(reserve.len(), HUGE_PAGE_BYTES);
        assert!(reserve.touch());
        let lease = reserve.clone().lease().unwrap();
        assert!(reserve.lease().is_none() && !reserve.touch());
        // SAFETY: the last of so many bytes, which no other thread uses.
        unsafe { lease.start().add(lease.len() - 1).write(1) };
        drop(lease);
        assert!(reserve.touch() && reserve.lease().is_some());
        assert_eq!(reserve.lease().unwrap().len(), HUGE_PAGE_BYTES);
    }

    #[test]
    fn reserve_beyond_the_machine_is_an_error_with_numbers() {
        let refused = Reserve::new(usize::MAX / 2).unwrap_err().to_string();
        assert!(refused.contains("are available") || refused.contains("limit"), "{refused}");
        assert!(matches!(Reserve::new(usize::MAX), Err(SnapshotError::Kernel { .. })));
    }
}
