//! The slots that a fork does not share with its parent.

use std::ops::Range;

/// The slots at which a fork shows its own frames from the beginning. A pinned slot is copied when the fork is made.
/// A slot that is left out shows zeroes. If only some bytes of a slot are left out, the slot is copied without them.
#[derive(Debug)]
pub(crate) struct UnsharedSlots {
    granule_bytes: usize,
    pinned: Vec<usize>,
    /// Offsets in the region: ascending, with a gap after each.
    left_out: Vec<Range<usize>>,
    unprotected: Vec<usize>,
    all: Vec<usize>,
}

impl UnsharedSlots {
    /// Finds the slots in a region of `len` bytes, which is a whole number of folios. The ranges lie within the
    /// region, and may overlap.
    pub(crate) fn new(
        pins: &[Range<usize>],
        left_out: &[Range<usize>],
        granule_bytes: usize,
        len: usize,
    ) -> Self {
        let slots = |range: &Range<usize>| match range.is_empty() {
            true => 0..0,
            false => range.start / granule_bytes..range.end.div_ceil(granule_bytes),
        };
        let pinned = ascending(pins.iter().flat_map(slots));
        let left_out = united(left_out);
        let whole = |range: &Range<usize>| {
            let end =
                if range.end == len { len.next_multiple_of(granule_bytes) } else { range.end };
            range.start.div_ceil(granule_bytes)..end / granule_bytes
        };
        let unprotected = ascending(pinned.iter().copied().chain(left_out.iter().flat_map(whole)));
        let all = ascending(pinned.iter().copied().chain(left_out.iter().flat_map(slots)));
        Self { granule_bytes, pinned, left_out, unprotected, all }
    }

    /// Returns the pinned slots.
    pub(super) fn pinned(&self) -> &[usize] {
        &self.pinned
    }

    /// Returns the slots whose writers in the parent are not held back: pinned slots, and slots of which the fork
    /// inherits no byte.
    pub(super) fn unprotected(&self) -> &[usize] {
        &self.unprotected
    }

    /// Returns all slots that are not shared.
    pub(super) fn all(&self) -> &[usize] {
        &self.all
    }

    /// Returns the bytes of a slot of `len` bytes that the fork does not inherit, as offsets in the slot.
    pub(super) fn left_out_of(
        &self,
        slot: usize,
        len: usize,
    ) -> impl Iterator<Item = Range<usize>> {
        let start = slot * self.granule_bytes;
        let first = self.left_out.partition_point(|range| range.end <= start);
        let parts =
            self.left_out[first..].iter().take_while(move |range| range.start < start + len);
        parts.map(move |range| range.start.max(start) - start..range.end.min(start + len) - start)
    }

    /// Returns true if the fork inherits no byte of a slot of `len` bytes.
    pub(super) fn is_left_out(&self, slot: usize, len: usize) -> bool {
        self.left_out_of(slot, len).next() == Some(0..len)
    }
}

fn ascending(slots: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut slots: Vec<usize> = slots.collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

fn united(ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut ranges: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let is_joined = next.start <= last.end;
        if is_joined {
            last.end = last.end.max(next.end);
        }
        is_joined
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_apart_wholly_or_in_part() {
        let left_out = [250..300, 20..40, 100..250, 5..5];
        let unshared = UnsharedSlots::new(std::slice::from_ref(&(410..420)), &left_out, 100, 450);
        assert_eq!(unshared.pinned(), [4]);
        assert_eq!(unshared.unprotected(), [1, 2, 4]);
        assert_eq!(unshared.all(), [0, 1, 2, 4]);
        assert!(unshared.left_out_of(0, 100).eq(std::iter::once(20..40)));
        assert!(unshared.is_left_out(1, 100) && unshared.is_left_out(2, 100));
        assert!(!unshared.is_left_out(0, 100) && !unshared.is_left_out(3, 100));
        assert_eq!(unshared.left_out_of(3, 100).count(), 0);
    }

    #[test]
    fn last_slot_that_the_region_cuts_is_left_out_as_a_whole() {
        let unshared = UnsharedSlots::new(&[], std::slice::from_ref(&(290..350)), 100, 350);
        assert_eq!((unshared.unprotected(), unshared.all()), (&[3][..], &[2, 3][..]));
        assert!(unshared.is_left_out(3, 50) && !unshared.is_left_out(2, 100));
    }
}
