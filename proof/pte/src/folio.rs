//! The counts of a folio, kept once per run: references and mappings.

use core::error::Error;
use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

/// The counts of one folio.
#[derive(Debug)]
pub struct Folio {
    references: AtomicU64,
    mappings: AtomicU64,
    pins: AtomicU32,
    pages: u32,
}

/// The folio may be pinned: a device or a ring uses its pages by address, so that the process that
/// pinned them must keep them, and a fork must copy them instead of sharing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned;

impl fmt::Display for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the folio is pinned, its pages cannot be shared")
    }
}

impl Error for Pinned {}

impl Folio {
    /// A folio of `pages` pages without references.
    #[must_use]
    pub const fn new(pages: u32) -> Self {
        Self {
            references: AtomicU64::new(0),
            mappings: AtomicU64::new(0),
            pins: AtomicU32::new(0),
            pages,
        }
    }

    /// The number of its pages.
    #[inline]
    #[must_use]
    pub const fn pages(&self) -> u32 {
        self.pages
    }

    /// The number of references that keep it.
    #[must_use]
    pub fn references(&self) -> u64 {
        self.references.load(Relaxed)
    }

    /// The number of entries that map its pages.
    #[must_use]
    pub fn mappings(&self) -> u64 {
        self.mappings.load(Relaxed)
    }

    /// Adds references.
    #[inline]
    pub fn get(&self, references: usize) {
        self.references.fetch_add(references as u64, Relaxed);
    }

    /// Gives references back. Returns whether they were the last; what others did with the folio has
    /// then happened before.
    #[inline]
    pub fn put(&self, references: usize) -> bool {
        let before = self.references.fetch_sub(references as u64, Release);
        debug_assert!(before >= references as u64, "more references given back than there were");
        let last = before == references as u64;
        if last {
            fence(Acquire);
        }
        last
    }

    /// Counts entries of a shared mapping.
    #[inline]
    pub fn map(&self, entries: usize) {
        self.mappings.fetch_add(entries as u64, Relaxed);
    }

    /// Counts entries of a private mapping.
    ///
    /// # Errors
    /// [`Pinned`], and nothing counted, if the folio may be pinned.
    #[inline]
    pub fn try_map(&self, entries: usize) -> Result<(), Pinned> {
        if self.is_pinned() {
            return Err(Pinned);
        }
        self.map(entries);
        Ok(())
    }

    /// No longer counts entries.
    #[inline]
    pub fn unmap(&self, entries: usize) {
        let before = self.mappings.fetch_sub(entries as u64, Relaxed);
        debug_assert!(before >= entries as u64, "more entries unmapped than there were");
    }

    /// Pins it. Pinning must not run beside a copy of the tables that map it: the tables' owner
    /// holds one lock for both.
    pub fn pin(&self) {
        self.pins.fetch_add(1, Relaxed);
    }

    /// Takes one pin back.
    pub fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Release);
        debug_assert!(before > 0, "unpinned more often than pinned");
    }

    /// Returns true if it has a pin.
    #[inline]
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Acquire) != 0
    }
}

/// A frame's folio, seen from that frame.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The folio.
    pub folio: &'a Folio,
    /// Its pages from the frame on, the frame's own included.
    pub left: usize,
}

/// Finds the folio that a frame belongs to.
pub trait Folios {
    /// The reason why a page could not be copied.
    type Error;

    /// The folio of a frame; `None` for a frame of no folio, which is not counted.
    fn find(&self, frame: u64) -> Option<Piece<'_>>;

    /// Copies the page of a frame for the child, whose entry will map the copy alone. Returns the
    /// copy's frame, its folio's reference and mapping counted already.
    ///
    /// # Errors
    /// If there is no page to copy to.
    fn copy_page(&self, frame: u64) -> Result<u64, Self::Error>;
}

/// Folios of one size in consecutive frames, as in a pool.
#[derive(Clone, Copy, Debug)]
pub struct UniformFolios<'a> {
    first_frame: u64,
    order: u32,
    folios: &'a [Folio],
}

impl<'a> UniformFolios<'a> {
    /// Folios of 2^`order` pages, all of them, the first beginning at `first_frame`.
    #[must_use]
    pub fn new(first_frame: u64, order: u32, folios: &'a [Folio]) -> Self {
        let same = || folios.iter().all(|folio| folio.pages() == 1 << order);
        debug_assert!(same(), "a folio has other than 2^{order} pages");
        Self { first_frame, order, folios }
    }
}

/// There are no pages to copy to: a private table that maps a pinned folio is copied up to there.
impl Folios for UniformFolios<'_> {
    type Error = Pinned;

    #[inline]
    fn find(&self, frame: u64) -> Option<Piece<'_>> {
        let page = frame.checked_sub(self.first_frame)?;
        let folio = self.folios.get(usize::try_from(page >> self.order).ok()?)?;
        let pages = 1_u64 << self.order;
        let left = pages - (page & (pages - 1));
        Some(Piece { folio, left: left as usize })
    }

    fn copy_page(&self, _frame: u64) -> Result<u64, Pinned> {
        Err(Pinned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_pinned_folio_is_not_mapped_and_counts_stay() {
        let folio = Folio::new(4);
        folio.get(1);
        folio.pin();
        assert_eq!((folio.try_map(3), folio.mappings()), (Err(Pinned), 0));
        folio.unpin();
        assert_eq!((folio.try_map(3), folio.mappings()), (Ok(()), 3));
        folio.unmap(3);
        folio.get(2);
        assert!(!folio.put(2));
        assert!(folio.put(1));
        assert_eq!((folio.references(), folio.mappings()), (0, 0));
    }

    #[test]
    fn uniform_folios_find_what_is_within() {
        let folios: Vec<Folio> = (0..3).map(|_| Folio::new(4)).collect();
        let uniform = UniformFolios::new(100, 2, &folios);
        let at =
            |frame| uniform.find(frame).map(|piece| (std::ptr::from_ref(piece.folio), piece.left));
        assert_eq!(at(99), None);
        assert_eq!(at(100), Some((std::ptr::from_ref(&folios[0]), 4)));
        assert_eq!(at(107), Some((std::ptr::from_ref(&folios[1]), 1)));
        assert_eq!(at(111), Some((std::ptr::from_ref(&folios[2]), 1)));
        assert_eq!(at(112), None);
    }
}
