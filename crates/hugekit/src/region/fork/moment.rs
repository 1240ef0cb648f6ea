//! Forks that are only read: a point in time of a region.
//!
//! Nobody uses such a fork's addresses. Its bytes are read through the pool's alias mapping, which takes
//! neither faults nor mappings, and it may *part with* a slot: the place that was reserved for its copy counts
//! as its own from then on, with whatever is in it, so that nobody has to copy anything for it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::{Ordering, fence};

use super::family::{Family, Membership, State};
use super::frames::Near;
use super::member::Member;
use super::serve::TOGETHER;
use crate::Copy;
use crate::sys::thread::without_signals;
use crate::sys::userfaultfd;

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
    /// # Safety
    /// As many bytes of `to` may be written, and nobody else uses them.
    pub(in crate::region) unsafe fn read(&self, bytes: Range<usize>, to: *mut u8, copy: &Copy<'_>) {
        let granule = self.family.granule_bytes;
        let (slot, within) = (bytes.start / granule, bytes.start % granule);
        debug_assert!(within + bytes.len() <= granule);
        // Nothing goes back to the pool meanwhile, which may have holes where it was.
        let _reading = self.family.reading.read().unwrap_or_else(PoisonError::into_inner);
        let look = || {
            self.entries(|state, member| {
                let frame = member.table.get(slot).frame();
                (frame, state.frames.alias(frame))
            })
        };
        let mut seen = look();
        loop {
            let from = seen.1.wrapping_add(within);
            // SAFETY: the alias mapping has the frame; a copy that others write meanwhile is thrown away. The
            // destination is the caller's to promise, and the two do not overlap: nobody has the alias.
            let copied = unsafe { copy.run_raw(to, from, bytes.len()) };
            debug_assert!(copied.is_ok(), "the bytes lie within a granule, and nobody cancels");
            // Whoever writes to a frame has first had it replaced here, and then asked the kernel.
            fence(Ordering::SeqCst);
            let now = look();
            if now == seen {
                return;
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
            if copied {
                state.frames.copy(shared, member.own_frame(slot), Near::Neither);
            }
            family.turn_to_own(&state, member, slot);
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
