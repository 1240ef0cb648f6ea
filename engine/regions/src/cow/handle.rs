//! The handle of a region in its group: looks at the tables, truncates the region, and leaves the group.
//!
//! A thread that truncates or leaves has exclusive access to the gate, so no fault is served meanwhile.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::ForkError;
use super::bulk::Bulk;
use super::error::kernel;
use super::fork_support::ForkSupport;
use super::frames::GivenUpFolios;
use super::group::ForkGroup;
use super::mapping::CowMapping;
use super::tables::Tables;
use super::whole_region::leave_to_kernel;
use crate::fault::Registration;
use crate::pool::Mapped;
use hugekit_sys::error_chain;
use hugekit_sys::headroom;
use hugekit_sys::thread::without_signals;

/// The handle of a region in its group.
#[derive(Debug)]
pub(crate) struct CowHandle {
    pub(crate) group: Arc<ForkGroup>,
    /// The start of the region.
    pub(crate) start: usize,
    registration: Option<Registration>,
    /// True if the group has not been left yet.
    is_member: bool,
}

impl Drop for CowHandle {
    fn drop(&mut self) {
        if !self.is_member {
            return;
        }
        let _lent = headroom::lend();
        if !self.is_ours() {
            return self.group.forget_handlers();
        }
        if let Err(error) = self.leave_group(false) {
            hugekit_sys::events::error!("folios are lost: {}", error_chain(&error));
        }
    }
}

impl CowHandle {
    /// Makes the handle of a mapping that is in the group.
    pub(super) fn new(
        group: Arc<ForkGroup>,
        start: usize,
        registration: Option<Registration>,
    ) -> Self {
        Self { group, start, registration, is_member: true }
    }

    /// Returns true if this process owns the region. A forked child does not.
    pub(crate) fn is_ours(&self) -> bool {
        self.group.pool.memory().is_ours()
    }

    /// Returns the slots, for calls that work on many of them.
    pub(crate) fn bulk(&self) -> Bulk<'_> {
        Bulk(self)
    }

    pub(crate) fn granule_bytes(&self) -> usize {
        self.group.granule_bytes
    }

    pub(crate) fn mapped_len(&self) -> usize {
        self.look(|_, mapping| mapping.mapping.len())
    }

    /// Returns the offset in the pool's file of a region that was never shared.
    pub(crate) fn file_offset(&self) -> u64 {
        self.look(|tables, mapping| tables.frames.offset(mapping.entry(0).frame))
    }

    /// Leaves a group that never had another region. All of the region is ready, and its addresses stay mapped.
    pub(crate) fn become_plain(mut self) -> Mapped {
        self.is_member = false;
        let group = Arc::clone(&self.group);
        // If the kernel refuses, no other group can register the memory.
        let _ = without_signals(|blocked| leave_to_kernel(&group, blocked));
        group.end();
        drop(self.registration.take());
        let removed = without_signals(|blocked| {
            let mut tables = group.gate.alone(blocked);
            let id = tables.mappings.of_region(self.start).id();
            group.count_vmas(tables.mappings.get(id), 0);
            tables.mappings.remove(id)
        });
        let (first, page_size) = (removed.reserved_frame(0), group.pool.page_size());
        let first = without_signals(|blocked| group.gate.share(blocked).frames.offset(first));
        let first = first as usize / page_size;
        let folios = first..first + removed.mapping.len() / page_size;
        Mapped::of_parts(group.folios.withdraw(&folios), removed.into_mapping())
    }

    /// Calls `look` with the tables. Faults may change them slot by slot at the same time.
    pub(super) fn look<R>(&self, look: impl FnOnce(&Tables, &CowMapping) -> R) -> R {
        without_signals(|blocked| {
            let tables = self.group.gate.share(blocked);
            look(&tables, tables.mappings.of_region(self.start))
        })
    }

    /// Returns the bytes that other regions show, too.
    pub(crate) fn count_shared(&self) -> usize {
        self.look(|tables, mapping| {
            let is_shared = |&slot: &usize| mapping.is_shared(slot);
            let slots = (0..mapping.slots()).filter(is_shared);
            slots.map(|slot| tables.frames.len_of(slot)).sum()
        })
    }

    /// Leaves the group. No thread uses the region's addresses any more. Memory that only this region had returns to
    /// the pool, or to the kernel with `to_kernel`.
    pub(crate) fn leave(mut self, to_kernel: bool) -> Result<(), ForkError> {
        self.leave_group(to_kernel)
    }

    fn leave_group(&mut self, to_kernel: bool) -> Result<(), ForkError> {
        self.is_member = false;
        // After this, no thread serves a fault of the region. Handlers may wait for the gate, so this comes before
        // it.
        drop(self.registration.take());
        let mut given_up = GivenUpFolios::new();
        let (_mapping, is_last) = without_signals(|blocked| {
            let mut tables = self.group.gate.alone(blocked);
            let id = tables.mappings.of_region(self.start).id();
            // SAFETY: the region's own addresses, which no thread uses any more. This happens in the gate: once the
            // addresses may belong to another region, no thread may change anything there.
            unsafe { tables.mappings.get_mut(id).mapping.unmap() }
                .or_else(|_| {
                    // The region may lie inside a larger mapping. To cut it out needs one more mapping.
                    self.group
                        .fork_support()
                        .into_iter()
                        .for_each(ForkSupport::release_spare_mappings);
                    // SAFETY: the region's own addresses still, which no thread uses any more.
                    unsafe { tables.mappings.get_mut(id).mapping.unmap() }
                })
                .map_err(|errno| kernel("munmap", errno))?;
            let slots = tables.mappings.get(id).slots();
            tables.give_up(id, 0..slots, to_kernel);
            tables.frames.take_given_up(&mut given_up);
            let mapping = tables.mappings.remove(id);
            self.group.count_vmas(&mapping, 0);
            tables.check();
            Ok::<_, ForkError>((mapping, tables.mappings.present() == 0))
        })?;
        if is_last {
            self.group.end();
        }
        self.group.return_given_up(given_up)
    }

    /// Cuts the region to the folios that contain its first `bytes`, or to granules if the group has other regions.
    /// Returns the remaining bytes. No thread uses the addresses behind them any more.
    pub(crate) fn truncate(&self, bytes: usize) -> Result<usize, ForkError> {
        let group = &*self.group;
        let (is_alone, len) =
            self.look(|tables, mapping| (tables.mappings.present() == 1, mapping.mapping.len()));
        let folio = group.pool.page_size();
        let unit = if is_alone { folio } else { group.granule_bytes.max(folio) };
        let kept = bytes.next_multiple_of(unit).min(len);
        let slots = kept.div_ceil(group.granule_bytes);
        if let Some(registration) = &self.registration {
            registration.serve_only(kept);
        }
        let mut given_up = GivenUpFolios::new();
        without_signals(|blocked| {
            let mut tables = group.gate.alone(blocked);
            let mapping = tables.mappings.of_region(self.start);
            let (id, all) = (mapping.id(), mapping.slots());
            if kept == len {
                return Ok(());
            }
            // SAFETY: the region's own addresses, which no thread uses any more.
            if let Err(errno) = unsafe { tables.mappings.get_mut(id).mapping.unmap_from(kept) } {
                // The tail is served again.
                self.registration.iter().for_each(|registration| registration.serve_only(len));
                return Err(kernel("munmap", errno));
            }
            tables.give_up(id, slots..all, false);
            if is_alone {
                let last = tables.mappings.get(id).entry(slots - 1).frame;
                tables.frames.truncate(kept, last);
            }
            tables.frames.take_given_up(&mut given_up);
            let mapping = tables.mappings.get_mut(id);
            mapping.table.truncate(slots);
            mapping.end_epoch();
            tables.check();
            Ok::<_, ForkError>(())
        })?;
        group.return_given_up(given_up)?;
        Ok(kept)
    }
}
