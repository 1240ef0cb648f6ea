//! Addresses that new mappings of hugekit avoid: the addresses of snapshots. The owner of
//! snapshotted memory may unmap it at any moment, and the kernel would give the addresses to the
//! next mapping that fits. Memory of hugekit that another descriptor protects could then be
//! mistaken for the snapshotted memory, and memory that the maker of a snapshot writes would be
//! protected before its own writes.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use rustix::io;
use rustix::mm::{MapFlags, ProtFlags};

use super::mapping::{self, SharedMapping};

/// A function that calls its argument with each range that mappings must avoid. Async-signal-safe.
pub type EachTaken = fn(&mut dyn FnMut(&Range<usize>));

/// Set by the layer of snapshots, which is above this crate.
static EACH_TAKEN: OnceLock<EachTaken> = OnceLock::new();

/// Makes later mappings avoid these ranges.
pub fn keep_from(each_taken: EachTaken) {
    let _ = EACH_TAKEN.set(each_taken);
}

fn each_taken(look: &mut dyn FnMut(&Range<usize>)) {
    if let Some(each_taken) = EACH_TAKEN.get() {
        each_taken(look);
    }
}

/// Returns true if some of these addresses must be avoided.
pub(super) fn is_taken(addresses: &Range<usize>) -> bool {
    let mut is_taken = false;
    each_taken(&mut |taken| is_taken |= overlaps(taken, addresses));
    is_taken
}

/// Finds a run of addresses in which `len` addresses are free, wherever the ranges to avoid lie in
/// it.
pub(super) fn room_for(len: usize) -> Option<usize> {
    let (mut ranges, mut bytes) = (0_usize, 0_usize);
    each_taken(&mut |taken| {
        ranges += 1;
        bytes = bytes.saturating_add(taken.len());
    });
    // They cut it into one part more, of which one is long enough.
    len.checked_mul(ranges.checked_add(1)?)?.checked_add(bytes)
}

/// Returns the first of `len` free addresses, a multiple of `align`.
pub(super) fn free_within(room: &Range<usize>, len: usize, align: usize) -> Option<usize> {
    free_among(each_taken, room, len, align)
}

fn free_among(
    each_taken: impl Fn(&mut dyn FnMut(&Range<usize>)),
    room: &Range<usize>,
    len: usize,
    align: usize,
) -> Option<usize> {
    let mut start = room.start.checked_next_multiple_of(align)?;
    loop {
        let end = start.checked_add(len).filter(|&end| end <= room.end)?;
        let mut behind = start;
        each_taken(&mut |taken| {
            if overlaps(taken, &(start..end)) {
                behind = behind.max(taken.end);
            }
        });
        if behind == start {
            return Some(start);
        }
        start = behind.checked_next_multiple_of(align)?;
    }
}

/// `mmap(2)` without a file, at addresses that need not be avoided.
pub(super) fn map_anonymous(
    len: usize,
    access: ProtFlags,
    how: MapFlags,
) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice replaces none.
    let first = unsafe { mapping::map_anonymous(ptr::null_mut(), len, access, how) }?;
    let start = first.as_ptr();
    if !is_taken(&(start.addr()..start.addr().saturating_add(len))) {
        return Ok(first);
    }
    // SAFETY: just mapped, and not used yet.
    unsafe { mapping::unmap(start, len) }?;
    let page = rustix::param::page_size();
    let whole = len.checked_next_multiple_of(page).ok_or(io::Errno::NOMEM)?;
    let held = SharedMapping::reserve(whole, page)?;
    let there = held.start().as_ptr();
    // SAFETY: what is replaced are the addresses just taken, which no thread uses.
    let mapped = unsafe { mapping::map_anonymous(there, len, access, how | MapFlags::FIXED) };
    mapped.inspect_err(|_| {
        // SAFETY: `held` was mapped above, and mapping over it failed, so no thread uses its addresses.
        let _ = unsafe { held.unmap() };
    })
}

fn overlaps(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_place_beside_taken_ones_is_aligned_and_overlaps_none() {
        let taken = [30..50, 10..20, 40..64];
        let found = |room: Range<usize>, len, align| {
            free_among(|look| taken.iter().for_each(look), &room, len, align)
        };
        assert_eq!(found(0..100, 10, 1), Some(0));
        assert_eq!(found(1..100, 10, 1), Some(20));
        assert_eq!(found(1..100, 11, 1), Some(64));
        assert_eq!(found(1..100, 9, 8), Some(64));
        assert_eq!(found(1..100, 36, 1), Some(64));
        assert_eq!(found(1..100, 37, 1), None);
        assert_eq!(found(35..60, 1, 1), None);
    }
}
