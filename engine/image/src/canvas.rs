//! The memory of an image during the load: a file of memory, mapped shared and writable.
//!
//! The memory is divided into granules of 2 MiB. A granule with a byte that is not zero is put on
//! one huge page; the other granules stay holes. Every byte is populated before it is written, so a
//! shortage of memory is an error and never SIGBUS.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hugekit_bulk::populate::populate_pages;
use hugekit_bulk::{CopyOptions, PopulateError, Reuse};
use hugekit_machine::Root;
use hugekit_machine::available::MemoryBudget;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::mapping::{SharedMapping, collapse};
use hugekit_sys::{headroom, memfd};
use rustix::param::page_size;

use crate::error::ImageError;

/// The unit that is compared with zero, and left out if it is zero: a base page of most machines.
pub(crate) const BLOCK: usize = 4096;

static ZEROES: [u8; BLOCK] = [0; BLOCK];

/// The granule is a hole: all of its bytes are zero.
const HOLE: u8 = 0;
/// The granule is on a huge page.
const HUGE: u8 = 1;
/// Base pages are populated for the written bytes of the granule.
const BASE: u8 = 2;

/// Returns true if a block, or a part of one, is all zeroes.
pub(crate) fn is_zero(block: &[u8]) -> bool {
    block.chunks(BLOCK).all(|block| *block == ZEROES[..block.len()])
}

/// A file of memory that is being filled.
#[derive(Debug)]
pub(crate) struct Canvas {
    file: OwnedFd,
    mapping: CanvasMapping,
    bytes: usize,
    granules: Vec<AtomicU8>,
    /// Bytes of granules that are not holes.
    populated: AtomicU64,
    /// The limit of `populated`.
    most: u64,
    budget: Mutex<MemoryBudget>,
}

impl Canvas {
    /// Gives an empty file of memory its length, and maps it.
    pub(crate) fn new(file: OwnedFd, bytes: u64, most: u64) -> Result<Self, ImageError> {
        headroom::check()?;
        let too_long = || ImageError::of("ftruncate")(rustix::io::Errno::FBIG);
        let bytes = usize::try_from(bytes).map_err(|_| too_long())?;
        let mapped = bytes.checked_next_multiple_of(page_size()).ok_or_else(too_long)?;
        if bytes == 0 {
            return Err(ImageError::Nothing);
        }
        memfd::size(&file, bytes as u64).map_err(ImageError::of("ftruncate"))?;
        let mapping = SharedMapping::new(&file, 0, mapped, HUGE_PAGE_BYTES);
        let mapping = mapping.map_err(ImageError::of("mmap"))?;
        // Refused where the kernel has none: the pages are base pages then.
        let _ = mapping.want_huge_pages();
        let mapping = CanvasMapping(mapping);
        let (granules, populated) = (Vec::new(), AtomicU64::new(0));
        // Shared memory is charged to the process that populates it.
        let own = rustix::process::getpid().as_raw_pid();
        let budget = Mutex::new(MemoryBudget::of(&Root::default(), &[own]));
        let mut canvas = Self { file, mapping, bytes, granules, populated, most, budget };
        canvas.count_granules()?;
        Ok(canvas)
    }

    fn count_granules(&mut self) -> Result<(), ImageError> {
        let count = self.bytes.div_ceil(HUGE_PAGE_BYTES);
        self.granules.try_reserve_exact(count).map_err(|_| headroom::HeapShortage)?;
        self.granules.resize_with(count, || AtomicU8::new(HOLE));
        Ok(())
    }

    #[cfg(feature = "delta")]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.mapping.0.start().as_ptr()
    }

    /// Returns the number of bytes that are on huge pages.
    pub(crate) fn huge(&self) -> u64 {
        let huge = self.granules.iter().filter(|state| state.load(Ordering::Relaxed) == HUGE);
        huge.count() as u64 * HUGE_PAGE_BYTES as u64
    }

    /// Writes bytes to where nothing was written yet: zeroes are left out. Threads may do so at once, in different
    /// granules.
    pub(crate) fn fill(&self, at: usize, bytes: &[u8]) -> Result<(), ImageError> {
        let is_data = |&(_, block): &(usize, &[u8])| !is_zero(block);
        let mut blocks = blocks(at, bytes).filter(is_data).peekable();
        while let Some((start, first)) = blocks.next() {
            let mut end = start + first.len();
            while let Some((_, next)) = blocks.next_if(|&(at, _)| at == end) {
                end += next.len();
            }
            self.write(start, &bytes[start - at..end - at])?;
        }
        Ok(())
    }

    /// Writes bytes, zeroes too, in the place of others.
    #[cfg(feature = "delta")]
    pub(crate) fn overwrite(&self, at: usize, bytes: &[u8]) -> Result<(), ImageError> {
        for part in parts(at..at + bytes.len()) {
            let of_part = &bytes[part.start - at..part.end - at];
            match self.state(part.start).load(Ordering::Relaxed) {
                HOLE => self.fill(part.start, of_part)?,
                _ => self.write(part.start, of_part)?,
            }
        }
        Ok(())
    }

    /// Makes bytes zero: granules that have no others become holes. Not while another thread writes.
    #[cfg(feature = "delta")]
    pub(crate) fn clear(&self, range: Range<usize>) -> Result<(), ImageError> {
        for part in parts(range) {
            let granule = self.granule(part.start);
            match self.state(part.start).load(Ordering::Relaxed) {
                HOLE => {}
                _ if part == granule => self.punch(&granule)?,
                _ => {
                    self.zero(&part)?;
                    if is_zero(self.peek(&granule)?) {
                        self.punch(&granule)?;
                    }
                }
            }
        }
        Ok(())
    }

    #[cfg(feature = "delta")]
    fn zero(&self, part: &Range<usize>) -> Result<(), ImageError> {
        let there = self.start().wrapping_add(part.start);
        self.populate_bytes(part)?;
        // SAFETY: populated bytes of this value's mapping, to which no other thread writes: the deltas of a chain are
        // applied by one thread.
        unsafe { there.write_bytes(0, part.len()) };
        Ok(())
    }

    /// All bytes of a granule, populated.
    #[cfg(feature = "delta")]
    fn peek(&self, granule: &Range<usize>) -> Result<&[u8], ImageError> {
        let there = self.start().wrapping_add(granule.start);
        self.populate_bytes(granule)?;
        // SAFETY: populated bytes of this value's mapping. The thread that applies a chain is the only one that writes
        // to them, and it does so only after this reference is gone.
        Ok(unsafe { std::slice::from_raw_parts(there, granule.len()) })
    }

    #[cfg(feature = "delta")]
    fn punch(&self, granule: &Range<usize>) -> Result<(), ImageError> {
        let (at, len) = (granule.start as u64, granule.len() as u64);
        memfd::punch(&self.file, at, len).map_err(ImageError::of("fallocate"))?;
        self.state(granule.start).store(HOLE, Ordering::Relaxed);
        self.populated.fetch_sub(len, Ordering::Relaxed);
        Ok(())
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), ImageError> {
        for part in parts(at..at + bytes.len()) {
            let there = self.start().wrapping_add(part.start);
            if self.populate(part.start)? != HUGE {
                self.populate_bytes(&part)?;
            }
            let from = bytes[part.start - at..].as_ptr();
            // SAFETY: `from` has as many bytes as the part, which lies within the populated bytes of this value's
            // mapping. No other process has the file before it is sealed, and no other thread writes to this granule.
            let copied =
                unsafe { CopyOptions::new().reuse(Reuse::None).run_raw(there, from, part.len()) };
            copied.expect("a buffer and a mapping do not overlap, and one thread copies");
        }
        Ok(())
    }

    /// Populates the granule of a byte on a huge page, if the granule is a hole. If no huge page is
    /// available, writes populate it with base pages. Returns the granule's state.
    fn populate(&self, at: usize) -> Result<u8, ImageError> {
        let state = self.state(at);
        match state.load(Ordering::Relaxed) {
            HOLE => {
                let granule = self.granule(at);
                let len = granule.len() as u64;
                if self.populated.fetch_add(len, Ordering::Relaxed).saturating_add(len) > self.most
                {
                    return Err(ImageError::TooLarge { most: self.most });
                }
                let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
                budget.take(len).map_err(ImageError::NoMemory)?;
                drop(budget);
                let is_whole = granule.len() == HUGE_PAGE_BYTES;
                let made = if is_whole && self.make_huge(granule.start, at)? { HUGE } else { BASE };
                state.store(made, Ordering::Relaxed);
                Ok(made)
            }
            known => Ok(known),
        }
    }

    /// Returns true if one huge page is behind the granule then. The touch of one of its base pages
    /// allocates a huge page where the setting permits it, and the collapse makes one elsewhere.
    fn make_huge(&self, granule: usize, touched: usize) -> Result<bool, ImageError> {
        self.populate_bytes(&(touched..touched + 1))?;
        // SAFETY: a mapping of this value's, which no userfaultfd watches, so that no access to it waits for a thread.
        Ok(unsafe { collapse(self.start().wrapping_add(granule), HUGE_PAGE_BYTES) }.is_ok())
    }

    /// Populates the pages that these bytes lie on.
    fn populate_bytes(&self, bytes: &Range<usize>) -> Result<(), PopulateError> {
        let start = self.start().expose_provenance();
        populate_pages(start + bytes.start..start + bytes.end)
    }

    fn state(&self, at: usize) -> &AtomicU8 {
        &self.granules[at / HUGE_PAGE_BYTES]
    }

    /// Returns the granule of a byte; the last one may be shorter.
    fn granule(&self, at: usize) -> Range<usize> {
        let start = at - at % HUGE_PAGE_BYTES;
        start..self.bytes.min(start + HUGE_PAGE_BYTES)
    }

    /// Returns the file, which is mapped no longer: else it could not be sealed.
    pub(crate) fn into_file(self) -> Result<OwnedFd, ImageError> {
        let Self { file, mapping, .. } = self;
        mapping.unmap().map_err(ImageError::of("munmap"))?;
        Ok(file)
    }
}

/// The mapping of a canvas, which ends with it.
#[derive(Debug)]
struct CanvasMapping(SharedMapping);

impl CanvasMapping {
    /// Refused, the addresses are lost.
    fn unmap(self) -> rustix::io::Result<()> {
        let mapping = std::mem::ManuallyDrop::new(self);
        // SAFETY: mapped by `Canvas::new` in this process, whose threads are done with it.
        unsafe { mapping.0.unmap() }
    }
}

impl Drop for CanvasMapping {
    fn drop(&mut self) {
        // SAFETY: as in `unmap`.
        if let Err(errno) = unsafe { self.0.unmap() } {
            hugekit_sys::events::error!("an image cannot be unmapped: {errno}");
        }
    }
}

/// Returns the blocks of bytes that begin at an offset of the image, each with its offset: all but
/// the first and the last one are whole.
fn blocks(at: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut next = at;
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let len = rest.len().min(BLOCK - next % BLOCK);
        let (block, behind) = rest.split_at(len);
        let start = next;
        (rest, next) = (behind, next + len);
        (len > 0).then_some((start, block))
    })
}

/// Returns a range, divided where granules end.
fn parts(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut next = range.start;
    std::iter::from_fn(move || {
        let start = next;
        next = range.end.min(start - start % HUGE_PAGE_BYTES + HUGE_PAGE_BYTES);
        (start < range.end).then_some(start..next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_sys::memfd::FilePages;

    fn canvas(bytes: u64, most: u64) -> Canvas {
        let file = memfd::create(c"hugekit-test", FilePages::Shmem).unwrap();
        Canvas::new(file, bytes, most).unwrap()
    }

    fn present(canvas: &Canvas) -> u64 {
        memfd::facts(&canvas.file).unwrap().unwrap().present
    }

    #[test]
    fn parts_end_where_granules_do() {
        let all: Vec<_> = parts(5..(4 << 20) + 7).collect();
        assert_eq!(all, [5..2 << 20, 2 << 20..4 << 20, 4 << 20..(4 << 20) + 7]);
        assert_eq!(parts(7..7).count(), 0);
        let blocks: Vec<_> =
            blocks(4000, &[1; 5000]).map(|(at, block)| (at, block.len())).collect();
        assert_eq!(blocks, [(4000, 96), (4096, 4096), (8192, 808)]);
    }

    #[test]
    fn zeroes_stay_holes_and_what_is_beyond_the_limit_is_refused() {
        let canvas = canvas(6 << 20, 2 << 20);
        canvas.fill(0, &vec![0; 6 << 20]).unwrap();
        assert_eq!(present(&canvas), 0);
        canvas.fill(5 << 20, &[1]).unwrap();
        let beyond = canvas.fill(0, &[1]);
        assert!(matches!(beyond, Err(ImageError::TooLarge { most: 2097152 })), "{beyond:?}");
    }

    #[test]
    fn an_image_that_no_address_space_holds_is_refused() {
        for bytes in [1 << 62, i64::MAX as u64, u64::MAX] {
            let file = memfd::create(c"hugekit-test", FilePages::Shmem).unwrap();
            assert!(matches!(Canvas::new(file, bytes, 0), Err(ImageError::Kernel { .. })));
        }
    }

    #[cfg(feature = "delta")]
    #[test]
    fn what_is_cleared_is_a_hole_again() {
        let canvas = canvas(4 << 20, u64::MAX);
        canvas.fill(1 << 20, &vec![7; 2 << 20]).unwrap();
        canvas.overwrite((1 << 20) + 5, &[0; 3]).unwrap();
        assert_eq!(canvas.peek(&(0..2 << 20)).unwrap()[(1 << 20) + 3..][..6], [7, 7, 0, 0, 0, 7]);
        canvas.clear(0..(1 << 20) + 5).unwrap();
        canvas.clear((1 << 20) + 8..2 << 20).unwrap();
        canvas.clear(2 << 20..4 << 20).unwrap();
        assert_eq!(present(&canvas), 0);
        assert_eq!(canvas.huge(), 0);
    }
}
