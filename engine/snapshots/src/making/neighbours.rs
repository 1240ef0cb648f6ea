//! Snapshots of several ranges. Neighbouring ranges are snapshotted together, at one moment, and
//! split afterwards. This saves system calls, and does not split a huge page that two ranges share.
#![allow(unsafe_code)]

use std::ops::Range;

use rustix::param::page_size;

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
    let mut ranges: Vec<NumberedRange> =
        memory.iter().enumerate().map(NumberedRange::new).collect();
    ranges.sort_by_key(|place| place.range.start);
    let mut taken: Vec<Option<Snapshot>> = memory.iter().map(|_| None).collect();
    let all = ranges.iter().fold(0, |bytes: usize, place| bytes.saturating_add(place.range.len()));
    let builder = builder.clone().together(builder.together.max(all));
    for group in ranges.chunk_by(|one, other| are_neighbours(&builder, &one.range, &other.range)) {
        // SAFETY: the conditions of `of_anonymous` hold for the ranges: the contract of this function. What lies
        // between is padding (`are_neighbours`), which no owner uses.
        for (place, snapshot) in group.iter().zip(unsafe { take_group(&builder, group) }?) {
            taken[place.index] = Some(snapshot);
        }
    }
    Ok(taken.into_iter().flatten().collect())
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

/// Takes the snapshots of a group: together if possible, otherwise those that touch together, otherwise one by one.
///
/// # Safety
/// The conditions of `of_anonymous`, for the ranges and for the bytes between them.
unsafe fn take_group(
    builder: &Builder,
    group: &[NumberedRange],
) -> Result<Vec<Snapshot>, SnapshotError> {
    // SAFETY: `take_at_once` has the contract of this function, for the same ranges.
    let at_once = unsafe { take_at_once(builder, group) };
    if let Some(snapshots) = at_once {
        return Ok(snapshots);
    }
    let mut taken = Vec::new();
    for touching in group.chunk_by(|one, other| one.range.end == other.range.start) {
        // SAFETY: `take_at_once` has the contract of this function, and these are some of its ranges, with nothing
        // between them.
        match unsafe { take_at_once(builder, touching) } {
            Some(snapshots) => taken.extend(snapshots),
            None => {
                for place in touching {
                    // SAFETY: the conditions of `of_anonymous` hold for each range: the contract of this function.
                    taken.push(unsafe { builder.clone().of_anonymous(place.memory) }?);
                }
            }
        }
    }
    Ok(taken)
}

/// Takes one snapshot and divides it. Bytes between the ranges belong to the allocator, whose system calls do not
/// expect EFAULT. So if there are such bytes, threads serve the writes, or the ranges are not taken together.
///
/// # Safety
/// The conditions of [`take_group`].
unsafe fn take_at_once(builder: &Builder, group: &[NumberedRange]) -> Option<Vec<Snapshot>> {
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
    // SAFETY: the conditions of `of_anonymous` hold for the ranges and for what lies between them: the contract of
    // this function.
    let snapshot = unsafe { options.of_anonymous(whole) }
        .inspect_err(|refused| {
            hugekit_sys::events::debug!("ranges are taken one by one: {}", error_chain(refused));
        })
        .ok()?;
    let cuts: Vec<Range<usize>> =
        group.iter().map(|place| place.range.start - start..place.range.end - start).collect();
    snapshot.split(&cuts).ok()
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

/// Returns true if the gap between two ranges contains only the allocator's header of the second
/// range and the rest of the first range's last page. No whole page lies in the gap, so it cannot
/// be a mapping of its own, such as a stack or memory that a fault handler writes. All bytes except
/// the last ones must be zero. So the gap contains no block of a heap, because a header would come
/// before it.
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
    let padding = &bytes[..bytes.len().saturating_sub(HEADER_BYTES)];
    read.is_ok() && padding.iter().all(|&byte| byte == 0)
}
