//! One entry, and what may be asked of it and changed in it.

use core::fmt;

use crate::layout::{Bits, Flag, Format, Layout};

/// A page-table entry of format `F`. A table is a slice of them.
///
/// Only the bits that the format names change; all others are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Entry<F: Format>(F::Bits);

impl<F: Format> Entry<F> {
    /// Maps nothing.
    #[inline]
    #[must_use]
    pub fn empty() -> Self {
        Self::from_u64(F::LAYOUT.empty)
    }

    /// Maps a frame for reading: not accessed, not dirty.
    ///
    /// # Panics
    /// If the format cannot hold so large a frame number.
    #[must_use]
    pub fn new(frame: u64) -> Self {
        let Layout { accessed, dirty, write, store, soft_dirty, uffd_wp, .. } = F::LAYOUT;
        let off = accessed.off | dirty.off | write.off | store.off | soft_dirty.off | uffd_wp.off;
        Self::from_u64(F::LAYOUT.base | off).with_frame(frame)
    }

    /// An entry of these bits, unchecked.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: F::Bits) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[inline]
    #[must_use]
    pub fn bits(self) -> F::Bits {
        self.0
    }

    #[inline]
    fn from_u64(bits: u64) -> Self {
        Self(F::Bits::truncated(bits))
    }

    /// Returns true if it maps nothing and never did. An entry that is neither empty nor present belongs to its owner:
    /// a page that was swapped out, for instance.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::empty()
    }

    /// Returns true if it maps a page.
    #[inline]
    #[must_use]
    pub fn is_present(self) -> bool {
        self.intersects(F::LAYOUT.present)
    }

    /// Returns true if it maps memory that belongs to no folio.
    #[inline]
    #[must_use]
    pub fn is_special(self) -> bool {
        self.intersects(F::LAYOUT.special)
    }

    /// Returns true if the page may be written.
    #[inline]
    #[must_use]
    pub fn is_writable(self) -> bool {
        self.has(F::LAYOUT.write)
    }

    /// Returns true if the page was written.
    #[inline]
    #[must_use]
    pub fn is_dirty(self) -> bool {
        self.with_dirty_saved().has(F::LAYOUT.dirty)
    }

    /// Returns true if the page was used.
    #[inline]
    #[must_use]
    pub fn is_accessed(self) -> bool {
        self.has(F::LAYOUT.accessed)
    }

    /// Returns true if the page was written since its owner began to track soft-dirty bits.
    #[inline]
    #[must_use]
    pub fn is_soft_dirty(self) -> bool {
        self.has(F::LAYOUT.soft_dirty)
    }

    /// Returns true if userfaultfd protects the page from writes.
    #[inline]
    #[must_use]
    pub fn is_uffd_wp(self) -> bool {
        self.has(F::LAYOUT.uffd_wp)
    }

    /// The frame it maps; without meaning unless it is present.
    #[inline]
    #[must_use]
    pub fn frame(self) -> u64 {
        F::LAYOUT.frame.decode(self.0.into())
    }

    /// The same for another frame.
    ///
    /// # Panics
    /// If the format cannot hold so large a frame number.
    #[inline]
    #[must_use]
    pub fn with_frame(self, frame: u64) -> Self {
        let place = F::LAYOUT.frame;
        assert!(frame <= place.max(), "no entry of {} holds frame {frame:#x}", F::LAYOUT.name);
        let mask = F::Bits::truncated(place.encode(u64::MAX));
        Self(self.0 & !mask | F::Bits::truncated(place.encode(frame)))
    }

    /// The same, with the page writable. The hardware gets to know if it is dirty, too.
    #[must_use]
    pub fn writable(self) -> Self {
        let writable = self.with(F::LAYOUT.write);
        if writable.has(F::LAYOUT.dirty) { writable.with(F::LAYOUT.store) } else { writable }
    }

    /// The same, with the page protected from writes. It stays dirty if it is.
    #[inline]
    #[must_use]
    pub fn write_protected(self) -> Self {
        Change::write_protect().apply(self)
    }

    /// The same, with the page dirty.
    #[must_use]
    pub fn dirty(self) -> Self {
        let dirty = self.with(F::LAYOUT.dirty);
        if dirty.is_writable() { dirty.with(F::LAYOUT.store) } else { dirty }
    }

    /// The same, with the page clean.
    #[inline]
    #[must_use]
    pub fn clean(self) -> Self {
        Change::NOTHING.clean().apply(self)
    }

    /// The same, with the page accessed.
    #[must_use]
    pub fn accessed(self) -> Self {
        self.with(F::LAYOUT.accessed)
    }

    /// The same, with the page not accessed.
    #[inline]
    #[must_use]
    pub fn old(self) -> Self {
        Change::NOTHING.without(F::LAYOUT.accessed).apply(self)
    }

    /// The same, soft-dirty; unchanged in formats without it.
    #[must_use]
    pub fn soft_dirty(self) -> Self {
        self.with(F::LAYOUT.soft_dirty)
    }

    /// The same, protected by userfaultfd; unchanged in formats without it.
    #[must_use]
    pub fn uffd_wp(self) -> Self {
        self.with(F::LAYOUT.uffd_wp)
    }

    /// The same, no longer protected by userfaultfd.
    #[inline]
    #[must_use]
    pub fn without_uffd_wp(self) -> Self {
        Change::NOTHING.without(F::LAYOUT.uffd_wp).apply(self)
    }

    /// The same, special; unchanged in formats without it.
    #[must_use]
    pub fn special(self) -> Self {
        Self(self.0 | F::Bits::truncated(F::LAYOUT.special))
    }

    /// Dirtiness that the hardware keeps in `store` written down where write-protecting leaves it.
    #[inline]
    pub(crate) fn with_dirty_saved(self) -> Self {
        let Layout { write, store, dirty, store_is_dirty, .. } = F::LAYOUT;
        if !store_is_dirty {
            return self;
        }
        let bits: u64 = self.0.into();
        let writable = bits >> write.tells.trailing_zeros();
        let stopped = bits >> store.tells.trailing_zeros();
        let written = writable & !stopped & 1;
        Self::from_u64(bits | written << dirty.tells.trailing_zeros())
    }

    #[inline]
    fn intersects(self, mask: u64) -> bool {
        let bits: u64 = self.0.into();
        bits & mask != 0
    }

    #[inline]
    fn has(self, flag: Flag) -> bool {
        self.intersects(flag.tells) != (flag.tells_by_absence() != 0)
    }

    #[inline]
    fn with(self, flag: Flag) -> Self {
        let (on, off) = (F::Bits::truncated(flag.on), F::Bits::truncated(flag.off));
        Self((self.0 | on) & !off)
    }
}

impl<F: Format> Default for Entry<F> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<F: Format> fmt::Debug for Entry<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits: u64 = self.0.into();
        write!(f, "{}:{bits:#x}", F::LAYOUT.name)
    }
}

/// A change of each entry of a run, as two masks: the same for all of them, and nothing of one
/// reaches another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<F: Format> {
    keep: u64,
    set: u64,
    save_dirty: bool,
    format: core::marker::PhantomData<F>,
}

impl<F: Format> Change<F> {
    pub(crate) const NOTHING: Self =
        Self { keep: u64::MAX, set: 0, save_dirty: false, format: core::marker::PhantomData };

    /// Protects from writes. A dirty entry stays dirty, and must be read before `store` is lost.
    #[inline]
    pub(crate) fn write_protect() -> Self {
        let change = Self { save_dirty: true, ..Self::NOTHING };
        change.without(F::LAYOUT.write).without(F::LAYOUT.store)
    }

    #[inline]
    pub(crate) fn clean(self) -> Self {
        self.without(F::LAYOUT.dirty).without(F::LAYOUT.store)
    }

    #[inline]
    pub(crate) fn without(self, flag: Flag) -> Self {
        Self { keep: self.keep & !flag.all(), set: self.set & !flag.on | flag.off, ..self }
    }

    #[inline]
    pub(crate) fn apply(self, entry: Entry<F>) -> Entry<F> {
        let entry = if self.save_dirty { entry.with_dirty_saved() } else { entry };
        Entry(entry.0 & F::Bits::truncated(self.keep) | F::Bits::truncated(self.set))
    }
}
