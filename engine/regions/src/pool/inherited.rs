//! Memory that forked children inherit: a file of its own, outside any pool, mapped as the kernel
//! inherits mappings.
//!
//! A pool gives the same folios to several owners in turn, so no child may keep them mapped. Memory
//! that children keep must never get another owner. So this memory has a file of its own, whose
//! descriptor is closed. No pool, fork or snapshot contains a part of it. The kernel frees the
//! memory when the last process has unmapped it.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::core::Core;
use super::{BackingReport, PoolError};
use hugekit_sys::events;
use hugekit_sys::mapping::SharedMapping;

/// Zeroed memory that this process shares with all processes that it forks afterwards. Each process
/// sees the writes of the others.
///
/// Clones refer to the same memory. The memory stays mapped until the last clone is dropped; a drop
/// in a child unmaps only the child's mapping. The memory is populated when it is made, on the
/// backing that a pool would use. Later page faults only map pages that exist. The memory cannot be
/// forked or snapshotted.
///
/// ```
/// use std::sync::atomic::Ordering;
///
/// use hugekit::Pool;
/// use hugekit::pool::Backing;
///
/// let shared = Pool::builder(1 << 20).backing(Backing::Base).build_inherited()?;
/// shared.words()[0].store(7, Ordering::Relaxed); // a child forked from here on reads it, and may answer
/// # Ok::<(), hugekit::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct InheritedMemory(Arc<InheritedMapping>);

#[derive(Debug)]
struct InheritedMapping {
    mapping: SharedMapping,
    report: BackingReport,
}

impl InheritedMemory {
    /// Makes a pool of populated memory of which no caller has any part.
    pub(super) fn new(core: &Core, report: BackingReport) -> Result<Self, PoolError> {
        let mapping = core.memory.map_for_children()?;
        Ok(Self(Arc::new(InheritedMapping { mapping, report })))
    }

    /// Returns the number of bytes that were requested.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "none of it is empty")]
    pub fn len(&self) -> usize {
        self.0.report.asked_capacity
    }

    /// Returns the number of bytes that are mapped: the length rounded up to a multiple of the
    /// backing's page.
    #[must_use]
    pub fn mapped_len(&self) -> usize {
        self.0.report.capacity
    }

    /// Returns the address of the memory, a multiple of the page size. The address is the same in
    /// children.
    ///
    /// The address is valid for [`mapped_len`](Self::mapped_len) bytes as long as a clone exists in
    /// this process. All processes may write at the same time, so use volatile or atomic accesses,
    /// never references.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.mapping.start().as_ptr()
    }

    /// Returns all mapped bytes as words of eight bytes.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        let words = self.mapped_len() / size_of::<AtomicU64>();
        // SAFETY: mapped, aligned to pages, initialised and writable for as long as `self` lives; no slice of plain bytes
        // is ever made of it.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast::<AtomicU64>(), words) }
    }

    /// Returns the backing of the memory, the requested backing, and the reasons for a difference.
    #[must_use]
    pub fn backing_report(&self) -> &BackingReport {
        &self.0.report
    }
}

impl Drop for InheritedMapping {
    fn drop(&mut self) {
        // SAFETY: a child has inherited the mapping at the same addresses; the last clone of this process goes, and with
        // it all leave to use them. Refused, the memory is held until the process ends.
        if let Err(errno) = unsafe { self.mapping.unmap() } {
            events::error!("inherited memory cannot be unmapped: {errno}");
        }
    }
}
