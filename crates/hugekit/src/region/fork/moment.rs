//! Forks that are only read: a point in time of a region.
//!
//! No thread uses such a fork's addresses. Its bytes are read through the pool's alias mapping, which takes
//! neither faults nor mappings, and it may *part with* a slot: the place that was reserved for its copy counts
//! as its own from then on, with whatever is in it, so that no writer has to copy anything for it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;

use super::family::{Family, Membership, State};
use super::frames::Near;
use super::member::Member;
use super::serve::TOGETHER;
use crate::fault::unsure;
use crate::sys::thread::without_signals;
use crate::sys::{peek, userfaultfd};
use crate::{CopyOptions, Reuse};

/// Bytes whose memory has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

/// Copies memory that may have failed to where it may fault.
///
/// # Safety
/// Both have as many bytes, those of `to` may be written and no other thread uses them, and they do not overlap.
unsafe fn copy_out(to: *mut u8, from: *mut u8, len: usize, reuse: Reuse) -> Result<(), Lost> {
    let (start, streams) = (from.expose_provenance(), reuse == Reuse::None);
    // SAFETY: the caller's to promise.
    match unsafe { unsure::copy(to, start, std::iter::once((0..len, streams))) } {
        Ok(()) => Ok(()),
        // SAFETY: as above.
        Err(Errno::FAULT) => unsafe { copy_out_by_pages(to, start, len) },
        Err(_) => {
            // SAFETY: as above.
            let copied = unsafe { CopyOptions::new().reuse(reuse).run_raw(to, from, len) };
            debug_assert!(copied.is_ok(), "they do not overlap, and no caller cancels");
            Ok(())
        }
    }
}

/// As [`copy_out`], whichever of the two it is that faults: what is written to is written by this thread, so that its
/// faults are served as ever.
///
/// # Safety
/// As there.
unsafe fn copy_out_by_pages(to: *mut u8, from: usize, len: usize) -> Result<(), Lost> {
    const PIECE: usize = 4096;
    let mut piece = [0_u8; PIECE];
    for at in (0..len).step_by(PIECE) {
        let count = PIECE.min(len - at);
        // SAFETY: the piece has as many bytes; the rest is the caller's to promise.
        unsafe {
            peek::copy(piece.as_mut_ptr(), from + at, std::iter::once(0..count))
                .map_err(|_| Lost)?;
            std::ptr::copy_nonoverlapping(piece.as_ptr(), to.wrapping_add(at), count);
        }
    }
    Ok(())
}

/// What writers have cost so far on account of one fork.
#[derive(Clone, Copy, Debug)]
pub(in crate::region) struct Cost {
    /// Slots that writers copied for it.
    pub(in crate::region) received: u64,
    /// The longest write to what the family shares, in nanoseconds, since the fork was made.
    pub(in crate::region) longest_nanos: u64,
}

/// Slots of one region that are to be written freely from now on.
struct Run<'a> {
    member: &'a Member,
    slots: Range<usize>,
}

impl Membership {
    /// Copies bytes of one slot, while others write what it shares: what was changed meanwhile is copied again.
    /// No lock is held that a fault could want, so that the copy may go anywhere.
    ///
    /// # Errors
    /// [`Lost`] if their memory has failed.
    ///
    /// # Safety
    /// As many bytes of `to` may be written, and no other thread uses them.
    pub(in crate::region) unsafe fn read(
        &self,
        bytes: Range<usize>,
        to: *mut u8,
        reuse: Reuse,
    ) -> Result<(), Lost> {
        let granule = self.family.granule_bytes;
        let (slot, within) = (bytes.start / granule, bytes.start % granule);
        debug_assert!(within + bytes.len() <= granule);
        // Nothing goes back to the pool meanwhile, which may have holes where it was.
        let _reading = self.family.reading.read().unwrap_or_else(PoisonError::into_inner);
        let look = || {
            self.entries(|state, member| {
                let frame = member.table.get(slot).frame();
                let alias = state.frames.alias(frame);
                if member.lost.get(slot) { Err(Lost) } else { Ok((frame, alias)) }
            })
        };
        let mut seen = look()?;
        loop {
            let from = seen.1.wrapping_add(within);
            // SAFETY: the alias mapping has the frame; a copy that others write meanwhile is thrown away. The
            // destination is the caller's to promise, and the two do not overlap: no program has the alias.
            let copied = unsafe { copy_out(to, from, bytes.len(), reuse) };
            // The writer of a frame has first had it replaced here, and then asked the kernel.
            fence(Ordering::SeqCst);
            let now = look()?;
            if now == seen {
                return copied;
            }
            seen = now;
        }
    }

    /// Needs these slots no more, or with `copied` has what they show for itself first. Where only one other
    /// region shows them then, it may write them from now on without a fault. How many it did not have for
    /// itself before.
    pub(in crate::region) fn part_with(&self, slots: Range<usize>, copied: bool) -> usize {
        let (mut next, mut shared) = (slots.start, 0);
        while next < slots.end {
            let some = next..slots.end.min(next + TOGETHER);
            next = some.end;
            shared += without_signals(|| self.part_with_some(some, copied));
        }
        shared
    }

    fn part_with_some(&self, slots: Range<usize>, copied: bool) -> usize {
        let family = &*self.family;
        let state = family.gate.share();
        let member = state.at(self.start).expect("a member as long as this exists");
        let _busy = family.claim(slots.clone());
        let (mut run, mut count): (Option<Run<'_>>, _) = (None, 0);
        for slot in slots.filter(|&slot| !member.keeps.get(slot)) {
            let shared = member.table.get(slot).frame();
            let kept = match copied {
                true => state.frames.copy(shared, member.own_frame(slot), Near::Neither),
                false => Ok(()),
            };
            family.turn_to_own(&state, member, slot);
            if kept.is_err() {
                family.lose(member, slot);
            }
            count += 1;
            let Some(last) = last_to_show(&state, member, slot, shared) else { continue };
            match &mut run {
                Some(run) if std::ptr::eq(run.member, last) && run.slots.end == slot => {
                    run.slots.end += 1;
                }
                _ => {
                    let done = run.replace(Run { member: last, slots: slot..slot + 1 });
                    done.into_iter().for_each(|done| family.free(&done));
                }
            }
        }
        run.into_iter().for_each(|run| family.free(&run));
        count
    }

    pub(in crate::region) fn cost(&self) -> Cost {
        self.entries(|_, member| Cost {
            received: member.counts().received.load(Ordering::Relaxed),
            longest_nanos: member.counts().longest_nanos.load(Ordering::Relaxed),
        })
    }
}

/// The only region that shows a frame, if nothing but its protection keeps it from writing there.
fn last_to_show<'a>(
    state: &'a State,
    member: &'a Member,
    slot: usize,
    frame: u64,
) -> Option<&'a Member> {
    if state.frames.sharers(frame) > 1 {
        return None;
    }
    let is_held_back =
        |other: &&Member| !other.stale.get(slot) && !other.table.get(slot).is_writable();
    state.others(member, slot, frame).next().filter(is_held_back)
}

impl Family {
    /// Lets writes pass at slots that only this region shows. If the kernel refuses, the next write asks again.
    fn free(&self, run: &Run<'_>) {
        let addresses = run.member.addresses_of(run.slots.clone());
        if userfaultfd::protect(self.descriptor.as_fd(), &addresses, false).is_ok() {
            for slot in run.slots.clone() {
                let table = &run.member.table;
                table.set(slot, table.get(slot).writable());
            }
        }
    }
}
