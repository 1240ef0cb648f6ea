//! Slots for the copies of granules. Their address space is mapped before the snapshot is taken, because a signal
//! handler cannot ask for memory. A slot uses memory from its first use on.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::io;
use rustix::param::page_size;

use super::reserve::ReservePart;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::memory;
use hugekit_sys::private_pages::{OwnWords, Private, PrivateBytes};

const BITS: usize = u64::BITS as usize;

/// Slots of one granule each. All functions except `new` are async-signal-safe. A forked child must not use or drop
/// an arena that has slots.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Memory of a reserve, for the first slots.
    reserved: Option<ReservePart>,
    /// Memory for the other slots.
    bytes: PrivateBytes,
    slot_bytes: usize,
    count: usize,
    /// A bit for each slot: set if the slot is taken. The bits behind the last slot are set, too.
    taken: OwnWords<AtomicU64>,
    held: Private<SlotCounts>,
}

/// The number of slots that are taken.
#[derive(Debug, Default)]
struct SlotCounts {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Arena {
    /// Makes `count` slots of `slot_bytes`, a power of two. The first slots use the reserved memory.
    pub(super) fn new(
        count: usize,
        slot_bytes: usize,
        reserved: Option<ReservePart>,
    ) -> io::Result<Self> {
        let rest = count - slots_of(reserved.as_ref(), slot_bytes).min(count);
        let len = rest.checked_mul(slot_bytes).ok_or(io::Errno::NOMEM)?;
        let bytes = PrivateBytes::new(len, slot_bytes)?;
        if rest > 0 {
            bytes.keep_from_children()?;
        }
        if slot_bytes >= HUGE_PAGE_BYTES {
            // A kernel without huge pages uses base pages. Their faults make a writer wait for 2 ms.
            let _ = bytes.want_huge_pages();
        }
        let taken = OwnWords::<AtomicU64>::new(count.div_ceil(BITS))?;
        if let Some(last) = taken.last().filter(|_| count % BITS != 0) {
            last.store(u64::MAX << (count % BITS), Ordering::Relaxed);
        }
        Ok(Self {
            reserved,
            bytes,
            slot_bytes,
            count,
            taken,
            held: Private::new(SlotCounts::default())?,
        })
    }

    /// Populates the first slots, as far as there is memory. Call it before any thread takes a slot.
    pub(crate) fn populate(&self, bytes: usize) {
        let len = bytes.min(self.count * self.slot_bytes).saturating_sub(self.reserved());
        if len > 0 {
            let _ = memory::populate_write(self.bytes.start(), len.next_multiple_of(page_size()));
        }
    }

    /// Takes the first free slot, which most likely has memory already.
    pub(super) fn take_slot(&self) -> Option<u32> {
        let slot = self.taken.iter().enumerate().find_map(|(at, word)| {
            let bit = take_bit(word)?;
            Some(at * BITS + bit as usize)
        })?;
        let now = self.held.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.held.most.fetch_max(now, Ordering::Relaxed);
        Some(slot as u32)
    }

    /// Returns a slot. Its memory stays for the next use.
    pub(super) fn give_back(&self, slot: u32) {
        let slot = slot as usize;
        self.held.now.fetch_sub(1, Ordering::Relaxed);
        self.taken[slot / BITS].fetch_and(!(1 << (slot % BITS)), Ordering::Release);
    }

    /// Frees the memory of all slots.
    ///
    /// # Safety
    /// No slot is taken, and none will be.
    pub(crate) unsafe fn end(&self) {
        debug_assert_eq!(self.held().0, 0, "slots are given back before");
        self.reserved.iter().for_each(ReservePart::end);
        // SAFETY: no slot is taken, and none will be, so no thread uses the bytes. If the call fails, the memory goes
        // with the arena.
        let _ = unsafe { self.bytes.give_back() };
    }

    pub(super) fn slot(&self, slot: u32) -> *mut u8 {
        let (slot, reserved) = (slot as usize, slots_of(self.reserved.as_ref(), self.slot_bytes));
        let (start, index) = match &self.reserved {
            Some(part) if slot < reserved => (part.start(), slot),
            _ => (self.bytes.start(), slot - reserved),
        };
        start.wrapping_add(index * self.slot_bytes)
    }

    /// Returns the bytes of slots in reserved memory.
    pub(crate) fn reserved(&self) -> usize {
        slots_of(self.reserved.as_ref(), self.slot_bytes).min(self.count) * self.slot_bytes
    }

    /// Returns the bytes in slots that are taken now, and the most that were.
    pub(crate) fn held(&self) -> (usize, usize) {
        let bytes = |slots: &AtomicUsize| slots.load(Ordering::Relaxed) * self.slot_bytes;
        (bytes(&self.held.now), bytes(&self.held.most))
    }
}

fn slots_of(part: Option<&ReservePart>, slot_bytes: usize) -> usize {
    part.map_or(0, |part| part.len() / slot_bytes)
}

/// Sets the lowest clear bit. Returns its number.
fn take_bit(word: &AtomicU64) -> Option<u32> {
    let lowest = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
    let before = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest).ok()?;
    Some((!before).trailing_zeros())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::serving::reserve::Reserve;

    #[test]
    fn take_of_slots_gives_each_once_and_no_more() {
        let reserve = Reserve::new(1).unwrap();
        for (count, reserve) in [0, 1, 63, 64, 65, 130, 600]
            .into_iter()
            .flat_map(|count| [(count, None), (count, Some(&reserve))])
        {
            let arena = Arena::new(
                count,
                4096,
                reserve.and_then(|reserve| reserve.take_part(count * 4096)),
            )
            .unwrap();
            assert_eq!(arena.reserved(), reserve.map_or(0, |_| count.min(512) * 4096));
            let places: BTreeSet<usize> =
                (0..count as u32).map(|slot| arena.slot(slot).addr() / 4096).collect();
            assert_eq!(places.len(), count);
            let slots: BTreeSet<u32> = std::iter::from_fn(|| arena.take_slot()).collect();
            assert_eq!(slots, (0..count as u32).collect());
            assert_eq!(arena.held(), (count * 4096, count * 4096));
            for &slot in slots.iter().rev().take(1) {
                arena.give_back(slot);
                assert_eq!(arena.held(), ((count - 1) * 4096, count * 4096));
                // SAFETY: a slot of that many bytes, which no other thread has.
                unsafe { arena.slot(slot).add(4095).write(1) };
                assert_eq!((arena.take_slot(), arena.take_slot()), (Some(slot), None));
            }
        }
    }
}
