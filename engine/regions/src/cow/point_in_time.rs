//! A fork that is only read: one point in time of a region.
//!
//! No thread uses the addresses of such a fork. Its bytes are read through the pool's alias mapping, which needs
//! neither faults nor mappings. The fork may *detach* a slot: it then counts its reserved frame as its own, with any
//! contents, so no writer has to copy the slot for it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;

use super::batch::SlotBatch;
use super::guard::{BATCH_SLOTS, SlotGuards};
use super::handle::CowHandle;
use super::slot_table::SlotEntry;
use crate::fault::no_fault;
use hugekit_bulk::{CopyOptions, Reuse};
use hugekit_sys::peek;
use hugekit_sys::thread::without_signals;

/// Bytes whose memory has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// Like [`copy_out`]. Sets `to` to zero if `from` is `None`.
///
/// # Safety
/// The conditions of [`copy_out`].
unsafe fn copy_or_clear(
    to: *mut u8,
    from: Option<*mut u8>,
    len: usize,
    reuse: Reuse,
) -> Result<(), Lost> {
    match from {
        // SAFETY: `to` may be written, no other thread uses it, and the two do not overlap.
        Some(from) => unsafe { copy_out(to, from, len, reuse) },
        None => {
            // SAFETY: as many bytes may be written, and no other thread uses them.
            unsafe { to.write_bytes(0, len) };
            Ok(())
        }
    }
}

/// Copies memory that may have failed. Writing to `to` may fault.
///
/// # Safety
/// Both have `len` bytes and do not overlap. `to` may be written, and no other thread uses it.
unsafe fn copy_out(to: *mut u8, from: *mut u8, len: usize, reuse: Reuse) -> Result<(), Lost> {
    let start = from.expose_provenance();
    // SAFETY: `to` may be written, no other thread uses it, and the two do not overlap.
    match unsafe { no_fault::copy(to, start, std::iter::once((0..len, no_fault::reach_of(reuse)))) }
    {
        Ok(()) => Ok(()),
        // SAFETY: `to` may be written, no other thread uses it, and the two do not overlap.
        Err(Errno::FAULT) => unsafe { copy_out_by_pages(to, start, len) },
        Err(_) => {
            // SAFETY: `to` may be written, no other thread uses it, and the two do not overlap.
            let copied = unsafe { CopyOptions::new().reuse(reuse).run_raw(to, from, len) };
            debug_assert!(copied.is_ok(), "they do not overlap, and no caller cancels");
            Ok(())
        }
    }
}

/// Like [`copy_out`], page by page. This thread itself writes to `to`, so its faults are served as usual.
///
/// # Safety
/// The conditions of [`copy_out`].
unsafe fn copy_out_by_pages(to: *mut u8, from: usize, len: usize) -> Result<(), Lost> {
    const PIECE: usize = 4096;
    let mut piece = [0_u8; PIECE];
    for at in (0..len).step_by(PIECE) {
        let count = PIECE.min(len - at);
        // SAFETY: the piece has as many bytes, and so have both ranges, of which `to` may be written.
        unsafe {
            peek::copy(piece.as_mut_ptr(), from + at, std::iter::once(0..count))
                .map_err(|_| Lost)?;
            std::ptr::copy_nonoverlapping(piece.as_ptr(), to.wrapping_add(at), count);
        }
    }
    Ok(())
}

/// The costs that one fork has caused for writers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriterCost {
    /// Slots that writers copied for the fork.
    pub(crate) received: u64,
    /// Slots that were copied when the fork was made, because they are pinned.
    pub(crate) copied_at_once: u64,
    /// The longest write to memory that the group shares, in nanoseconds, since the fork is observed.
    pub(crate) longest_nanos: u64,
}

/// A fork that is only read.
#[derive(Debug)]
pub(crate) struct PointInTime(pub(crate) CowHandle);

impl PointInTime {
    /// Copies bytes of one slot, while other threads may write to memory that the slot shares. If the slot changed
    /// during the copy, it is copied again. The thread holds nothing that a fault could wait for, so the destination
    /// may be any memory.
    ///
    /// # Errors
    /// [`Lost`] if the memory has failed.
    ///
    /// # Safety
    /// The bytes of `to` may be written, and no other thread uses them.
    pub(crate) unsafe fn read(
        &self,
        bytes: Range<usize>,
        to: *mut u8,
        reuse: Reuse,
    ) -> Result<(), Lost> {
        let granule = self.0.group.granule_bytes;
        let (slot, offset) = (bytes.start / granule, bytes.start % granule);
        debug_assert!(offset + bytes.len() <= granule);
        let within = |alias: *mut u8| alias.wrapping_add(offset);
        let _reading = self.0.group.folios.read();
        let look = || {
            self.0.look(|tables, mapping| {
                let SlotEntry { frame, slot } = mapping.entry(slot);
                if slot.is_lost() {
                    return Err(Lost);
                }
                Ok((frame, (!slot.is_unready()).then(|| tables.frames.alias(frame))))
            })
        };
        let mut seen = look()?;
        loop {
            // SAFETY: the alias mapping has the frame; a copy that others write meanwhile is thrown away. As many
            // bytes of the destination may be written, and it is not the alias, which no program has.
            let copied = unsafe { copy_or_clear(to, seen.1.map(within), bytes.len(), reuse) };
            // A writer first replaces the word of this slot, and then asks the kernel to let its write through.
            fence(Ordering::SeqCst);
            let now = look()?;
            if now == seen {
                return copied;
            }
            seen = now;
        }
    }

    /// Detaches slots. With `copied`, copies their bytes first. If only one other region then shows a frame, hugekit
    /// lets its writes through. Returns how many slots were shared.
    pub(crate) fn detach(&self, slots: Range<usize>, copied: bool) -> usize {
        let (mut next, mut shared) = (slots.start, 0);
        while next < slots.end {
            let some = next..slots.end.min(next + BATCH_SLOTS);
            next = some.end;
            shared += without_signals(|blocked| {
                let tables = self.0.group.gate.share(blocked);
                let mapping = tables.mappings.of_region(self.0.start);
                let guards =
                    SlotGuards::claim(&self.0.group.slots, &tables.mappings, some, blocked);
                SlotBatch::new(&self.0.group, &tables, mapping, &guards).detach(copied)
            });
        }
        shared
    }

    /// Starts to record how long writes to memory that the group shares take.
    pub(crate) fn observe(&self) {
        without_signals(|blocked| {
            let mut tables = self.0.group.gate.alone(blocked);
            let id = tables.mappings.of_region(self.0.start).id();
            tables.mappings.observe(id);
        });
    }

    pub(crate) fn cost(&self) -> WriterCost {
        self.0.look(|_, mapping| WriterCost {
            received: mapping.counts().received.load(Ordering::Relaxed),
            copied_at_once: mapping.counts().copied_at_once.load(Ordering::Relaxed),
            longest_nanos: mapping.counts().longest_nanos.load(Ordering::Relaxed),
        })
    }
}
