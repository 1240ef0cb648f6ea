//! Snapshots of several ranges. Neighbouring ranges are snapshotted together, at one moment, and
//! split afterwards. This saves system calls, and does not split a huge page that two ranges share.
#![allow(unsafe_code)]

use std::ops::Range;

use rustix::param::page_size;

use crate::reading::staging::Staging;
use crate::serving::delivery::KeptMemory;
use crate::serving::interval::inner_of;
use crate::{Builder, Snapshot, SnapshotError};
use hugekit_regions::fault::FaultMode;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::error_chain;
use hugekit_sys::{headroom, peek};

/// The bytes that an allocator writes before each block: two words.
const HEADER_BYTES: usize = 16;

/// [`Builder::take_many`].
///
/// # Safety
/// The conditions of [`Builder::take_many`].
pub(super) unsafe fn take_many(
    builder: &Builder,
    memory: &[*const [u8]],
) -> Result<Vec<Snapshot>, SnapshotError> {
    headroom::check()?;
    let ranges = numbered(memory);
    let mut taken: Vec<Option<Snapshot>> = memory.iter().map(|_| None).collect();
    let builder = builder.clone().together(builder.together.max(bytes_of(&ranges)));
    let take = |options: &Builder, whole, group: &[NumberedRange]| {
        // SAFETY: the conditions of `of_anonymous` hold for the ranges: the contract of this function. What lies
        // between is padding (`are_neighbours`), which no owner uses.
        let snapshot = unsafe { options.clone().of_anonymous(whole) }?;
        match group.len() {
            1 => Ok(vec![snapshot]),
            _ => snapshot.split(&offsets(group)),
        }
    };
    for (group, snapshots) in take_groups(&builder, &ranges, &take)? {
        for (place, snapshot) in group.iter().zip(snapshots) {
            taken[place.index] = Some(snapshot);
        }
    }
    Ok(taken.into_iter().flatten().collect())
}

/// [`Builder::stage_many`].
///
/// # Safety
/// The conditions of [`Builder::stage_many`].
pub(super) unsafe fn stage_many(
    builder: &Builder,
    memory: &[*const [u8]],
    kept: &KeptMemory,
) -> Result<Vec<Staging>, SnapshotError> {
    headroom::check()?;
    let ranges = numbered(memory);
    let take = |options: &Builder, whole, group: &[NumberedRange]| {
        let indices = group.iter().map(|place| place.index).zip(offsets(group)).collect();
        // SAFETY: the conditions of `of_anonymous` hold for the ranges: the contract of this function. What lies
        // between is padding (`are_neighbours`), which no owner uses.
        unsafe { Staging::new(options, whole, indices, kept) }
    };
    let taken = take_groups(builder, &ranges, &take)?;
    Ok(taken.into_iter().map(|(_, staging)| staging).collect())
}

/// [`Builder::neighbours`].
pub(super) fn neighbours(builder: &Builder, ranges: &[Range<usize>]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|&index| ranges[index].start);
    let groups =
        order.chunk_by(|&one, &other| are_neighbours(builder, &ranges[one], &ranges[other]));
    groups.map(<[usize]>::to_vec).collect()
}

/// Returns true if two ranges, in ascending order, can be snapshotted together: no other owner's
/// bytes lie between them, and one granule suits both.
fn are_neighbours(builder: &Builder, one: &Range<usize>, other: &Range<usize>) -> bool {
    // A range without a whole huge page suits any granule.
    let is_short = |range| inner_of(range, HUGE_PAGE_BYTES).is_empty();
    let granule = |range| builder.granule_bytes(range).ok();
    let suit_each_other = || is_short(one) || is_short(other) || granule(one) == granule(other);
    let between = one.end..other.start;
    between.start <= between.end && is_padding(&between) && suit_each_other()
}

/// A function that takes a whole group: it gets the options, the memory and the ranges.
type Take<'a, T> = dyn Fn(&Builder, *const [u8], &[NumberedRange]) -> Result<T, SnapshotError> + 'a;

/// Takes each group of neighbours: together if possible, otherwise those that touch together, otherwise one by one.
/// Returns the result of each group, with its ranges.
fn take_groups<'a, T>(
    builder: &Builder,
    ranges: &'a [NumberedRange],
    take: &Take<'_, T>,
) -> Result<Vec<(&'a [NumberedRange], T)>, SnapshotError> {
    let mut taken = Vec::new();
    for group in ranges.chunk_by(|one, other| are_neighbours(builder, &one.range, &other.range)) {
        if let Some(all) = take_at_once(builder, group, take) {
            taken.push((group, all));
            continue;
        }
        for touching in group.chunk_by(|one, other| one.range.end == other.range.start) {
            if let Some(all) = take_at_once(builder, touching, take) {
                taken.push((touching, all));
                continue;
            }
            for place in touching.chunks(1) {
                taken.push((place, take(builder, place[0].memory, place)?));
            }
        }
    }
    Ok(taken)
}

/// Takes a group of several ranges at once. Bytes between the ranges belong to the allocator, whose system calls do not
/// expect EFAULT. So if there are such bytes, threads serve the writes, or the ranges are not taken together.
fn take_at_once<T>(builder: &Builder, group: &[NumberedRange], take: &Take<'_, T>) -> Option<T> {
    let (first, last) = (group.first()?, group.last()?);
    if group.len() == 1 {
        return None;
    }
    let touch = group.windows(2).all(|pair| pair[0].range.end == pair[1].range.start);
    let mut options = builder.clone();
    match builder.fault_mode {
        _ if touch => {}
        FaultMode::InPlace => return None,
        FaultMode::Threaded { .. } => {}
        _auto => options.fault_mode = FaultMode::Threaded { threads: 1 },
    }
    let (start, len) = (first.range.start, last.range.end - first.range.start);
    let lens = || group.iter().map(|place| place.range.len());
    // If a number covers each range, it covers everything, with the bytes between the ranges.
    let all = |bytes: usize| match lens().all(|len| bytes >= len) {
        true => len,
        false => lens().map(|len| len.min(bytes)).sum(),
    };
    (options.cap, options.populated) = (builder.cap.map(all), all(builder.populated));
    if builder.reserved() >= lens().sum() {
        options.cap = Some(len);
    }
    let whole = std::ptr::slice_from_raw_parts(std::ptr::with_exposed_provenance(start), len);
    take(&options, whole, group)
        .inspect_err(|refused| {
            hugekit_sys::events::debug!("ranges are taken one by one: {}", error_chain(refused));
        })
        .ok()
}

/// Returns where the ranges of a group are, from the first byte of the group on.
fn offsets(group: &[NumberedRange]) -> Vec<Range<usize>> {
    let start = group.first().map_or(0, |first| first.range.start);
    group.iter().map(|place| place.range.start - start..place.range.end - start).collect()
}

/// Returns the ranges with their numbers, ascending by address.
fn numbered(memory: &[*const [u8]]) -> Vec<NumberedRange> {
    let mut ranges: Vec<NumberedRange> =
        memory.iter().enumerate().map(NumberedRange::new).collect();
    ranges.sort_by_key(|place| place.range.start);
    ranges
}

fn bytes_of(ranges: &[NumberedRange]) -> usize {
    ranges.iter().fold(0, |bytes, place| bytes.saturating_add(place.range.len()))
}

/// A range and its number.
#[derive(Debug)]
struct NumberedRange {
    memory: *const [u8],
    range: Range<usize>,
    index: usize,
}

impl NumberedRange {
    fn new((index, &memory): (usize, &*const [u8])) -> Self {
        let start = memory.cast::<u8>().expose_provenance();
        Self { memory, range: start..start.saturating_add(memory.len()), index }
    }
}

/// Returns whether the gap between two ranges contains only the rest of the first range's last page and the allocator's
/// header of the second range. No whole page lies in the gap, so it cannot be a mapping of its own, such as a stack or
/// memory that a fault handler writes. All other bytes must be zero. So the gap contains no block of a heap, because a
/// header would come before it.
fn is_padding(between: &Range<usize>) -> bool {
    let page = page_size();
    if between.is_empty() {
        return true;
    }
    if between.start.next_multiple_of(page) + page <= between.end {
        return false;
    }
    let mut bytes = vec![0_u8; between.len()];
    // SAFETY: as many bytes.
    let read =
        unsafe { peek::copy(bytes.as_mut_ptr(), between.start, std::iter::once(0..bytes.len())) };
    let mapped = (between.end - between.end % page).checked_sub(between.start);
    read.is_ok() && is_only_header(&mut bytes, mapped)
}

/// Returns whether bytes before a block are zero, but for the header right before it. The mapping of the block begins at
/// `mapped`, if it is in the bytes. If the C library has aligned the block within its mapping, there is another header at
/// the start of the mapping, which the one before the block describes.
fn is_only_header(bytes: &mut [u8], mapped: Option<usize>) -> bool {
    let header = bytes.len().saturating_sub(HEADER_BYTES);
    let of_mapping = mapped.filter(|mapped| mapped + HEADER_BYTES <= header);
    if let Some(mapped) = of_mapping
        && let (Some(first), Some(last)) = (words_at(bytes, mapped), words_at(bytes, header))
        && is_aligned_within(first, last, header - mapped)
    {
        bytes[mapped..mapped + HEADER_BYTES].fill(0);
    }
    bytes[..header].iter().all(|&byte| byte == 0)
}

/// Returns the two words of a header: the bytes before the block in its mapping, and its size with flags.
fn words_at(bytes: &[u8], at: usize) -> Option<[usize; 2]> {
    const WORD: usize = size_of::<usize>();
    let word = |at: usize| bytes.get(at..at + WORD)?.try_into().ok().map(usize::from_ne_bytes);
    Some([word(at)?, word(at + WORD)?])
}

/// Returns whether the second header is that of a block which glibc has moved `lead` bytes towards the end of its mapping
/// (`_int_memalign` of glibc 2.31 to 2.42).
fn is_aligned_within(first: [usize; 2], second: [usize; 2], lead: usize) -> bool {
    /// The block is a mapping of its own.
    const IS_MAPPED: usize = 2;
    const FLAGS: usize = 7;
    let ([before, size], [new_before, new_size]) = (first, second);
    size & FLAGS == IS_MAPPED
        && new_size & FLAGS == IS_MAPPED
        && before.checked_add(lead) == Some(new_before)
        && size.checked_sub(lead) == Some(new_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes with words in them, and a header right before their end.
    fn gap(len: usize, words: &[(usize, usize)]) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for &(at, word) in words {
            bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn gap_has_the_header_of_the_next_block_only() {
        let found = |mapped, words: &[_]| is_only_header(&mut gap(100, words), mapped);
        assert!(found(Some(84), &[(84, 0), (92, 0x2002)]));
        assert!(found(None, &[(92, 0x2002)]));
        assert!(!found(Some(84), &[(40, 1), (92, 0x2002)]));
        assert!(is_only_header(&mut [1; 16], None) && !is_only_header(&mut [1; 17], None));
    }

    #[test]
    fn gap_has_both_headers_of_a_block_that_was_aligned() {
        let found = |words: &[_]| is_only_header(&mut gap(128, words), Some(64));
        let (mapping, block) = ([(64, 0), (72, 0x5002)], [(112, 48), (120, 0x4fd2)]);
        assert!(found(&[mapping, block].concat()));
        assert!(!found(&[mapping, [(112, 40), (120, 0x4fd2)]].concat()), "another distance");
        assert!(!found(&[mapping, [(112, 48), (120, 0x4fd1)]].concat()), "a block of a heap");
        assert!(!found(&[&mapping[..], &block, &[(80, 1)]].concat()), "something lies between");
    }
}
